//! What the memory of a model and its training consists of: [`MemoryPart`]. Who counts a part is `Model::memory` here, `Recipe::memory` of
//! limpid-train, `takes` of limpid-gpu, or `memory` of limpid, which adds them up.

use std::fmt;

/// One part of the memory that a model takes, alone or in training.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPart {
    /// The weights, with constant tables.
    Parameters,
    /// The gradients of the weights.
    Gradients,
    /// The outputs of ops.
    Activations,
    /// The gradients of those.
    ActivationGradients,
    /// What ops keep for their backward: means, scales, sums.
    Statistics,
    /// Keys and values of earlier tokens.
    Cache,
    /// Tables that say where a sequence's blocks of the cache are.
    Tables,
    /// What the optimizer remembers of earlier gradients.
    Moments,
    /// The moving average of the weights.
    Average,
    /// Scratch for the largest of Muon's matrices.
    MuonMatrices,
    /// Gradients of micro-batches that wait to be added up.
    GradientsAside,
    /// Scratch of the processor's threads.
    ThreadScratch,
    /// Scratch of a device's kernels.
    KernelScratch,
    /// The lists of ops, with the names of their tensors.
    OpLists,
    /// Gradients and parameters on their way between processes.
    ExchangeBuffers,
    /// What MPI takes in a process.
    Mpi,
}

impl MemoryPart {
    /// As `plan` shows it.
    pub fn name(self) -> &'static str {
        match self {
            MemoryPart::Parameters => "parameters",
            MemoryPart::Gradients => "gradients",
            MemoryPart::Activations => "activations",
            MemoryPart::ActivationGradients => "activation gradients",
            MemoryPart::Statistics => "statistics",
            MemoryPart::Cache => "cache",
            MemoryPart::Tables => "tables",
            MemoryPart::Moments => "optimizer moments",
            MemoryPart::Average => "average of the weights",
            MemoryPart::MuonMatrices => "muon's matrices",
            MemoryPart::GradientsAside => "gradients set aside",
            MemoryPart::ThreadScratch => "threads' scratch",
            MemoryPart::KernelScratch => "kernels' scratch",
            MemoryPart::OpLists => "lists of ops",
            MemoryPart::ExchangeBuffers => "buffers to and from the others",
            MemoryPart::Mpi => "MPI itself",
        }
    }

    /// Whether each of several processes keeps its part of it.
    pub fn is_divided(self) -> bool {
        matches!(self, MemoryPart::Moments | MemoryPart::Average)
    }

    /// Whether no tensor of the model lies in it.
    pub fn is_scratch(self) -> bool {
        matches!(self, MemoryPart::ThreadScratch | MemoryPart::KernelScratch)
    }
}

impl fmt::Display for MemoryPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
