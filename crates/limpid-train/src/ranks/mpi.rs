//! Ranks of MPI: started by `mpirun`, `srun` or whatever else starts MPI's programs, and joined by Open MPI, MPICH or another
//! implementation.

use super::{Ranks, RanksError, Result};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{LocalScope, Request, StaticScope, scope};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives, Destination, Root, Source};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What keeps this process in MPI. It is not given up where an error is on its way: a process that ends without having left
/// ends the others, and none waits for it in vain.
static JOINED: Mutex<Option<Universe>> = Mutex::new(None);

/// How long a process that waits keeps asking without a pause. What arrives at once is taken at once; what takes longer leaves
/// the processor to those that compute.
const EAGER: Duration = Duration::from_micros(200);

/// The pause between two rounds of questions then.
const PAUSE: Duration = Duration::from_micros(100);

/// Questions in a round: to each, MPI moves what has come since the last (over TCP, a fragment).
const ROUND: usize = 16;

/// A process among those that MPI started.
pub struct MpiRanks {
    rank: usize,
    size: usize,
    limit: Duration,
    lost: fn(RanksError) -> !,
    /// How often they spoke to each other: the same number in all, whenever they do.
    spoken: i32,
}

/// All processes. A handle of MPI stays in the thread that has it, so each call gets its own.
fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

impl MpiRanks {
    /// Joins the others; `None` if this process has joined before. Whoever joins says [`leave`] when all is well, or [`abort`].
    ///
    /// MPI does not tell of a process that is stopped, or of a network that is down. So a process that has waited for `limit`
    /// ends by `lost`, with [`RanksError::Silent`]; what was sent is still MPI's, so there is no way back.
    ///
    /// # Errors
    /// If this MPI lets only one thread call it.
    pub fn join(limit: Duration, lost: fn(RanksError) -> !) -> Result<Option<MpiRanks>> {
        let Some((universe, threads)) = mpi::initialize_with_threading(Threading::Serialized) else { return Ok(None) };
        *JOINED.lock().unwrap_or_else(PoisonError::into_inner) = Some(universe);
        if threads < Threading::Serialized {
            let what = "this MPI can be called by one thread alone; use one that supports MPI_THREAD_SERIALIZED";
            return Err(RanksError::Lost(what.into()));
        }
        let number = |n| usize::try_from(n).unwrap_or(0);
        Ok(Some(MpiRanks { rank: number(world().rank()), size: number(world().size()), limit, lost, spoken: 0 }))
    }

    /// Waits for what `begin` began.
    fn speak<'a, D: ?Sized + 'a>(
        &mut self,
        begin: impl for<'s> FnOnce(&'s LocalScope<'a>) -> Request<'a, D, &'s LocalScope<'a>>,
    ) -> Result<()> {
        self.spoken = (self.spoken + 1) % 32_768; // MPI's tags go so far
        scope(|scope| {
            let (began, mut request, mut told) = (Instant::now(), begin(scope), false);
            'all: loop {
                for _ in 0..ROUND {
                    match request.test() {
                        Ok(_) => break 'all,
                        Err(waits) => request = waits,
                    }
                }
                let waited = began.elapsed();
                if waited < EAGER {
                    std::thread::yield_now();
                    continue;
                }
                std::thread::sleep(PAUSE);
                if waited > self.limit / 2 && !told {
                    told = true;
                    self.say_here();
                }
                if waited > self.limit {
                    (self.lost)(RanksError::Silent { seconds: waited.as_secs(), processes: self.silent() });
                }
            }
        });
        Ok(())
    }

    /// Tells the others that this process waits.
    fn say_here(&self) {
        static NOTHING: [u8; 0] = [];
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            let all = world();
            let other = all.process_at_rank(rank as i32);
            if let Err(waits) = other.immediate_send_with_tag(StaticScope, &NOTHING[..], self.spoken).test() {
                std::mem::forget(waits); // it may be dropped only when it has arrived
            }
        }
    }

    /// The processes that have not said that they wait for the same.
    fn silent(&self) -> Vec<usize> {
        let said = |rank: usize| world().process_at_rank(rank as i32).immediate_probe_with_tag(self.spoken).is_some();
        (0..self.size).filter(|rank| *rank != self.rank && !said(*rank)).collect()
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
        self.speak(|scope| world().immediate_all_to_all_into(scope, send, receive))
    }
    fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
        self.speak(|scope| world().immediate_all_gather_into(scope, own, all))
    }
    fn gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
        let first = world();
        let first = first.process_at_rank(0);
        match self.rank {
            0 => self.speak(|scope| first.immediate_gather_into_root(scope, own, all)),
            _ => self.speak(|scope| first.immediate_gather_into(scope, own)),
        }
    }
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.speak(|scope| world().process_at_rank(0).immediate_broadcast_into(scope, bytes))
    }
}
