//! What the memory of a model and its training consists of: [`MemoryPart`]. Who counts a part is `Model::memory` here,
//! `Recipe::memory` of limpid-train, `takes` of limpid-gpu, or `memory` of limpid, which adds them up.

use crate::config::axis;

axis! {
    /// One part of the memory that a model takes, alone or in training.
    MemoryPart, "part of the memory" {
        /// The weights, with constant tables.
        Parameters = "parameters",
        /// The gradients of the weights.
        Gradients = "gradients",
        /// The outputs of ops.
        Activations = "activations",
        /// The gradients of those.
        ActivationGradients = "activation gradients",
        /// What ops keep for their backward: means, scales, sums.
        Statistics = "statistics",
        /// Keys and values of earlier tokens.
        Cache = "cache",
        /// Tables that say where a sequence's blocks of the cache are.
        Tables = "tables",
        /// What the optimizer remembers of earlier gradients.
        Moments = "optimizer moments",
        /// The moving average of the weights.
        Average = "average of the weights",
        /// Scratch for the largest of Muon's matrices.
        MuonMatrices = "muon's matrices",
        /// Gradients of micro-batches that wait to be added up.
        GradientsAside = "gradients set aside",
        /// Scratch of the processor's threads.
        ThreadScratch = "threads' scratch",
        /// Scratch of a device's kernels.
        KernelScratch = "kernels' scratch",
        /// The lists of ops, with the names of their tensors.
        OpLists = "lists of ops",
        /// Gradients and parameters on their way between processes.
        ExchangeBuffers = "buffers to and from the others",
        /// What MPI takes in a process.
        Mpi = "MPI itself",
    }
}

impl MemoryPart {
    /// Whether each of several processes keeps its part of it.
    pub fn is_divided(self) -> bool {
        matches!(self, MemoryPart::Moments | MemoryPart::Average)
    }

    /// Whether no tensor of the model lies in it.
    pub fn is_scratch(self) -> bool {
        matches!(self, MemoryPart::ThreadScratch | MemoryPart::KernelScratch)
    }
}
