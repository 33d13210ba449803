//! This process among others that MPI started to train one model.

use anyhow::{Error, Result};
use limpid::train::{Ranks, Solo};

/// How many processes a launcher of MPI says that it started: Open MPI's, MPICH's, Slurm's.
fn launched() -> Option<usize> {
    let of = |name: &str| std::env::var(name).ok()?.parse().ok();
    let slurm = || std::env::var_os("PMIX_RANK").or(std::env::var_os("PMI_RANK")).and_then(|_| of("SLURM_NTASKS"));
    of("OMPI_COMM_WORLD_SIZE").or_else(|| of("PMI_SIZE")).or_else(slurm)
}

/// Joins the others, if there are any.
#[cfg(feature = "mpi")]
pub fn join() -> Result<Box<dyn Ranks>> {
    let joined = launched().and_then(|_| limpid::train::ranks::mpi::MpiRanks::join());
    Ok(joined.map_or_else(|| Box::new(Solo) as Box<dyn Ranks>, |ranks| Box::new(ranks)))
}

#[cfg(not(feature = "mpi"))]
pub fn join() -> Result<Box<dyn Ranks>> {
    match launched() {
        Some(n) if n > 1 => anyhow::bail!(
            "this limpid was built without MPI, so {n} processes would train {n} models into one folder: build it with MPI \
             (cargo build --release --features mpi; that needs mpicc and libclang, on Debian apt-get install libopenmpi-dev \
             openmpi-bin libclang-dev), or start one process"
        ),
        _ => Ok(Box::new(Solo)),
    }
}

/// Leaves the others, at the end.
pub fn leave() {
    #[cfg(feature = "mpi")]
    limpid::train::ranks::mpi::leave();
}

/// What ends one process ends all: says it once, and ends them. An error that all have is process 0's to say.
#[cfg(feature = "mpi")]
pub fn end_all(rank: usize, size: usize, error: Error) -> Error {
    use crate::options::Interrupted;
    use limpid::train::{RanksError, TrainError};
    if size == 1 || error.is::<Interrupted>() {
        return error;
    }
    if rank > 0 {
        // what all have, process 0 says now, and ends this one
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
    let of_all =
        matches!(error.downcast_ref(), Some(TrainError::Ranks(RanksError::Differs { .. } | RanksError::Micros { .. })));
    let who = if rank > 0 && !of_all { format!("process {rank} of {size}: ") } else { String::new() };
    crate::show::say(format_args!("error: {who}{error:#}"));
    limpid::train::ranks::mpi::abort(1)
}

#[cfg(not(feature = "mpi"))]
pub fn end_all(_: usize, _: usize, error: Error) -> Error {
    error
}
