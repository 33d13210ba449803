//! Why processes cannot train together.

use std::error::Error;

/// Why processes cannot train together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// The connection between them failed.
    #[error("the processes that train together do not reach each other: {0}")]
    Lost(Box<dyn Error + Send + Sync>),
    /// Some processes do not answer.
    #[error(
        "{} not answered for {seconds} s: stopped, stuck, or cut off by the network. Look at that machine, then \
         resume from the \
         last save, or allow more time", silent(.processes)
    )]
    Silent {
        /// For how long.
        seconds: u64,
        /// Which ones.
        processes: Vec<usize>,
    },
    /// There are fewer micro-batches than processes, or a number is not a power of two.
    #[error(
        "{processes} processes share a step's {micros} micro-batches: both must be powers of two, with at least as \
         many micro-batches as processes. {accumulate} of {batch_size} sequences make a step of about the same size, \
         or start {fewer} processes"
    )]
    Micros {
        /// n.
        processes: usize,
        /// M.
        micros: u64,
        /// A number of micro-batches that fits,
        accumulate: u64,
        /// with this many sequences in each.
        batch_size: usize,
        /// A number of processes that fits.
        fewer: usize,
    },
    /// A process was started with something else.
    #[error(
        "process {rank} trains something different from process 0: its {what} is {found}, but process 0 has \
         {expected}. Start all with the same program, settings and texts"
    )]
    Differs {
        /// The process.
        rank: usize,
        /// What differs.
        what: String,
        /// Its value in that process.
        found: String,
        /// Its value in process 0.
        expected: String,
    },
}

/// The processes that have not answered, in words.
fn silent(processes: &[usize]) -> String {
    let numbers = processes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match processes.len() {
        0 => "the other processes have".into(),
        1 => format!("process {numbers} has"),
        _ => format!("processes {numbers} have"),
    }
}

/// The result of exchanging something with the other processes.
pub(crate) type Result<T, E = RanksError> = std::result::Result<T, E>;
