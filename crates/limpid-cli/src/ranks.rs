//! This process among others that MPI started to train one model.

use anyhow::{Error, Result};
use limpid::train::{Ranks, Solo};
#[cfg(feature = "mpi")]
use std::time::Duration;

/// How many processes a launcher of MPI says that it started: Open MPI's, MPICH's, Slurm's.
fn launched() -> Option<usize> {
    let of = |name: &str| std::env::var(name).ok()?.parse().ok();
    let slurm = || std::env::var_os("PMIX_RANK").or(std::env::var_os("PMI_RANK")).and_then(|_| of("SLURM_NTASKS"));
    of("OMPI_COMM_WORLD_SIZE").or_else(|| of("PMI_SIZE")).or_else(slurm)
}

/// Joins the others, if there are any; ends all if some do not answer for so many seconds.
#[cfg(feature = "mpi")]
pub fn join(timeout: u64) -> Result<Box<dyn Ranks>> {
    use limpid::train::ranks::mpi::MpiRanks;
    let limit = Duration::from_secs(if timeout == 0 { u64::MAX } else { timeout });
    let lost = |error| last_words(&format!("error: {error}"));
    let joined = if launched().is_some() { MpiRanks::join(limit, lost)? } else { None };
    Ok(joined.map_or_else(|| Box::new(Solo) as Box<dyn Ranks>, |ranks| Box::new(ranks)))
}

#[cfg(not(feature = "mpi"))]
pub fn join(_: u64) -> Result<Box<dyn Ranks>> {
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
        std::thread::sleep(Duration::from_secs(2));
    }
    let of_all =
        matches!(error.downcast_ref(), Some(TrainError::Ranks(RanksError::Differs { .. } | RanksError::Micros { .. })));
    let who = if rank > 0 && !of_all { format!("process {rank} of {size}: ") } else { String::new() };
    last_words(&format!("error: {who}{error:#}"))
}

/// Says why all processes end, and ends them when the launcher has had time to hand that on.
#[cfg(feature = "mpi")]
fn last_words(why: &str) -> ! {
    crate::show::say(format_args!("{why}"));
    std::thread::sleep(Duration::from_millis(300));
    limpid::train::ranks::mpi::abort(1)
}

#[cfg(not(feature = "mpi"))]
pub fn end_all(_: usize, _: usize, error: Error) -> Error {
    error
}
