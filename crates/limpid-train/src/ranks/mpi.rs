//! Ranks of MPI: started by `mpirun`, `srun` or whatever else starts MPI's programs, and joined by Open MPI, MPICH or
//! another implementation.

use super::{Ranks, RanksError, Result};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{LocalScope, Request, StaticScope, scope};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives, Destination, Root, Source};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What keeps this process in MPI. It is not given up where an error is on its way: a process that ends without having
/// left ends the others, and none waits for it in vain. Only the holder of this lock calls MPI: one thread at a time.
static JOINED: Mutex<Option<Universe>> = Mutex::new(None);

/// The only one that may call MPI.
fn turn() -> MutexGuard<'static, Option<Universe>> {
    JOINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tag of what is brought to process 0: the greatest of MPI's.
const BROUGHT: i32 = 32_767;

/// How long a process may take to end the others, before it just ends.
const LAST: Duration = Duration::from_secs(5);

/// How long a process that waits keeps asking without a pause. What arrives at once is taken at once; what takes longer
/// leaves the processor to those that compute.
const EAGER: Duration = Duration::from_micros(200);

/// The pause between two rounds of questions then.
const PAUSE: Duration = Duration::from_micros(100);

/// What a round may add to the time waited. A longer one means that this process was stopped itself (by a signal, or a
/// laptop's lid), and that says nothing about the others.
const AWAKE: Duration = Duration::from_secs(1);

/// Questions in a round: to each, MPI moves what has come since the last (over TCP, a fragment).
const ROUND: usize = 16;

/// A process among those that MPI started.
pub struct MpiRanks {
    rank: usize,
    size: usize,
    here: usize,
    limit: Duration,
    lost: fn(RanksError) -> !,
    /// How often all spoke to each other: the same number in all, whenever they do, and while two of them speak.
    spoken: i32,
}

/// All processes. A handle of MPI stays in the thread that has it, so each call gets its own.
fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

impl MpiRanks {
    /// Joins the others; `None` if this process has joined before. Whoever joins says [`leave`] when all is well, or
    /// [`abort`].
    ///
    /// MPI does not tell of a process that is stopped, or of a network that is down. So a process that has waited for
    /// `limit`, awake, ends by `lost`, with [`RanksError::Silent`]; what was sent is still MPI's, so there is no way
    /// back.
    ///
    /// # Errors
    /// If this MPI lets only one thread call it.
    pub fn join(limit: Duration, lost: fn(RanksError) -> !) -> Result<Option<MpiRanks>> {
        let mut joined = turn();
        let Some((universe, threads)) = mpi::initialize_with_threading(Threading::Serialized) else { return Ok(None) };
        *joined = Some(universe);
        if threads < Threading::Serialized {
            let what = "this MPI can be called by one thread alone; use one that supports MPI_THREAD_SERIALIZED";
            return Err(RanksError::Lost(what.into()));
        }
        let number = |n| usize::try_from(n).unwrap_or(0);
        let (rank, size) = (number(world().rank()), number(world().size()));
        let here = number(world().split_shared(world().rank()).size());
        Ok(Some(MpiRanks { rank, size, here, limit, lost, spoken: 0 }))
    }

    /// Waits for what all began.
    fn speak<'a, D: ?Sized + 'a>(
        &mut self,
        begin: impl for<'s> FnOnce(&'s LocalScope<'a>) -> Request<'a, D, &'s LocalScope<'a>>,
    ) -> Result<()> {
        self.wait(begin)?;
        self.spoken = (self.spoken + 1) % BROUGHT;
        Ok(())
    }

    /// Waits for what `begin` began.
    fn wait<'a, D: ?Sized + 'a>(
        &mut self,
        begin: impl for<'s> FnOnce(&'s LocalScope<'a>) -> Request<'a, D, &'s LocalScope<'a>>,
    ) -> Result<()> {
        scope(|scope| {
            let (mut waited, mut asked, mut told) = (Duration::ZERO, Instant::now(), false);
            let mut request = {
                let _turn = turn();
                begin(scope)
            };
            'all: loop {
                {
                    let _turn = turn();
                    for _ in 0..ROUND {
                        match request.test() {
                            Ok(_) => break 'all,
                            Err(waits) => request = waits,
                        }
                    }
                }
                let now = Instant::now();
                waited += (now - asked).min(AWAKE);
                asked = now;
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
        let _turn = turn();
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
        let _turn = turn();
        let said = |rank: usize| world().process_at_rank(rank as i32).immediate_probe_with_tag(self.spoken).is_some();
        (0..self.size).filter(|rank| *rank != self.rank && !said(*rank)).collect()
    }
}

/// Leaves the others, when nothing more is to be done together.
pub fn leave() {
    drop(turn().take());
}

/// Ends all processes that were started together, with an exit status.
pub fn abort(status: i32) -> ! {
    // whatever MPI is busy with: this process ends, and MPI's launcher ends the others of one that did not leave
    let _ = std::thread::Builder::new().spawn(|| {
        std::thread::sleep(LAST);
        std::process::abort()
    });
    let _turn = turn();
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
    fn here(&self) -> usize {
        self.here
    }
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<()> {
        self.speak(|scope| world().immediate_all_to_all_into(scope, send, receive))
    }
    fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
        self.speak(|scope| world().immediate_all_gather_into(scope, own, all))
    }
    fn bring(&mut self, from: usize, bytes: &mut [u8]) -> Result<()> {
        let all = world();
        let other = |rank: usize| all.process_at_rank(rank as i32);
        match self.rank {
            0 if from > 0 => self.wait(|scope| other(from).immediate_receive_into_with_tag(scope, bytes, BROUGHT)),
            rank if rank == from && from > 0 => {
                self.wait(|scope| other(0).immediate_send_with_tag(scope, &*bytes, BROUGHT))
            }
            _ => Ok(()),
        }
    }
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.speak(|scope| world().process_at_rank(0).immediate_broadcast_into(scope, bytes))
    }
}
