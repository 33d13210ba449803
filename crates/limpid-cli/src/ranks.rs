//! This process among others that MPI started to train one model.

use crate::options::Usage;
use anyhow::{Error, Result};
use limpid::train::{Ranks, Solo};
use std::time::Duration;

/// Which process a launcher says that this is, and how many it started: Open MPI's, MPICH's, Slurm's (which starts
/// processes of programs that know of no MPI, too).
fn launched() -> Option<(usize, usize)> {
    let of = |name: &str| std::env::var(name).ok()?.parse().ok();
    let slurm = || Some((of("SLURM_PROCID")?, of("SLURM_STEP_NUM_TASKS").filter(|n| *n > 1)?));
    let known = [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];
    known.into_iter().find_map(|(rank, size)| Some((of(rank)?, of(size)?))).or_else(slurm)
}

/// Refuses what several processes were started for, though each would do all of it. Process 0 says so, and the others
/// end.
fn refused(rank: usize, why: String) -> Error {
    if rank > 0 {
        std::thread::sleep(Duration::from_secs(2)); // a launcher ends the rest with the first that fails
        std::process::exit(2);
    }
    Usage(why).into()
}

/// Refuses a verb that knows no other processes, where a launcher started several.
pub fn alone(verb: &str) -> Result<()> {
    match launched() {
        Some((rank, n)) if n > 1 => Err(refused(
            rank,
            format!(
                "`limpid {verb}` runs in one process, and {n} were started, each of which would do all the work: \
                 start it without mpirun or srun. Several processes are for `limpid train`"
            ),
        )),
        _ => Ok(()),
    }
}

/// Joins the others, if there are any; ends all if some do not answer for so many seconds.
#[cfg(feature = "mpi")]
pub fn join(timeout: u64) -> Result<Box<dyn Ranks>> {
    use limpid::train::RanksError;
    use limpid::train::ranks::mpi::MpiRanks;
    let limit = Duration::from_secs(if timeout == 0 { u64::MAX } else { timeout });
    // who is lost is told with the flags that mend it, as any error is
    let lost = |error: RanksError| {
        let error = Error::from(error);
        last_words(&format!("error: {error}{}", advice(&error)))
    };
    let Some((rank, n)) = launched() else { return Ok(Box::new(Solo)) };
    let ranks = MpiRanks::join(limit, lost)?.map_or_else(|| Box::new(Solo) as Box<dyn Ranks>, |ranks| Box::new(ranks));
    match ranks.size() {
        found if found == n => Ok(ranks),
        found => Err(refused(
            rank,
            format!(
                "{n} processes were started, but the MPI that this limpid was built with sees {found}: they would \
                 train more than one model into one folder. Start it with the mpirun of that MPI, or with srun \
                 --mpi=pmix"
            ),
        )),
    }
}

#[cfg(not(feature = "mpi"))]
pub fn join(_: u64) -> Result<Box<dyn Ranks>> {
    match launched() {
        Some((rank, n)) if n > 1 => Err(refused(
            rank,
            format!(
                "this limpid was built without MPI, so {n} processes would train {n} models into one folder: build it \
                 with MPI (cargo build --release --features mpi; that needs mpicc and libclang, on Debian apt-get \
                 install libopenmpi-dev openmpi-bin libclang-dev), or start one process"
            ),
        )),
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
    let of_all = matches!(
        error.downcast_ref(),
        Some(
            TrainError::Ranks(RanksError::Differs { .. } | RanksError::Micros { .. })
                | TrainError::NotFinite { .. }
                | TrainError::Spike { .. }
                | TrainError::Diverged { .. }
                | TrainError::TooManyRollbacks { .. }
        )
    );
    if rank > 0 {
        // what all have, process 0 says now, and ends this one
        std::thread::sleep(Duration::from_secs(2));
        if of_all {
            std::thread::sleep(Duration::from_secs(10)); // a busy machine takes its time
            limpid::train::ranks::mpi::abort(1)
        }
    }
    let who = if rank > 0 { format!("process {rank} of {size}: ") } else { String::new() };
    last_words(&format!("error: {who}{error:#}{}", advice(&error)))
}

/// The flags of `train`, the verb that runs in several processes, that may mend an error.
#[cfg(feature = "mpi")]
fn advice(error: &Error) -> String {
    use clap::CommandFactory;
    let command = crate::Cli::command();
    command.find_subcommand("train").map_or_else(String::new, |train| crate::options::mending(error, train))
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
