//! Ranks of MPI: started by `mpirun`, `srun` or whatever else starts MPI's programs, and joined by Open MPI, MPICH or another
//! implementation.

use super::{Ranks, Result};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives, Root};
use std::sync::{Mutex, PoisonError};

/// What keeps this process in MPI. It is not given up where an error is on its way: a process that ends without having left
/// ends the others, and none waits for it in vain.
static JOINED: Mutex<Option<Universe>> = Mutex::new(None);

/// A process among those that MPI started.
pub struct MpiRanks {
    rank: usize,
    size: usize,
}

/// All processes. A handle of MPI stays in the thread that has it, so each call gets its own.
fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

impl MpiRanks {
    /// Joins the others; `None` if this process has joined before. Whoever joins says [`leave`] when all is well, or [`abort`].
    pub fn join() -> Option<MpiRanks> {
        let (universe, _) = mpi::initialize_with_threading(Threading::Serialized)?;
        *JOINED.lock().unwrap_or_else(PoisonError::into_inner) = Some(universe);
        let number = |n| usize::try_from(n).unwrap_or(0);
        Some(MpiRanks { rank: number(world().rank()), size: number(world().size()) })
    }
}

/// Leaves the others, when nothing more is to be done together.
pub fn leave() {
    drop(JOINED.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Ends all processes that were started together, with an exit status.
pub fn abort(status: i32) -> ! {
    world().abort(status)
}

// MPI's own error handler says what failed, and ends all processes.
impl Ranks for MpiRanks {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<()> {
        world().all_to_all_into(send, receive);
        Ok(())
    }
    fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
        world().all_gather_into(own, all);
        Ok(())
    }
    fn gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
        let world = world();
        let first = world.process_at_rank(0);
        match self.rank() {
            0 => first.gather_into_root(own, all),
            _ => first.gather_into(own),
        }
        Ok(())
    }
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        world().process_at_rank(0).broadcast_into(bytes);
        Ok(())
    }
    fn barrier(&mut self) -> Result<()> {
        world().barrier();
        Ok(())
    }
}
