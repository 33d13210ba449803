//! Threads that wait for work. Between the ops of a step they spin for some microseconds, about as long as falling
//! asleep and waking take, then they sleep: an idle program uses no processor time, and a busy machine is not kept
//! busier.
//!
//! A job is a number of tasks, for as many threads at most: the others are not woken, and those that spin go on. Each
//! thread first does a range of tasks of its own, the same range in every job with as many tasks, so that the rows it
//! wrote in one op are in its cache in the next. Then it takes tasks from the ranges of others. Which thread does which
//! task changes no result, because no two tasks write the same element.
//!
//! A thread joins a job when it wakes, and a job waits only for those that joined: beside other programs a thread may
//! not run for milliseconds, and the others do its tasks meanwhile.
#![allow(unsafe_code)] // a borrowed job is lent to threads that give it back before `run` returns

use super::primitives::{
    Arc, AtomicBool, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, MutexGuard, available_parallelism, spin_loop,
};
use crate::backend::BackendError;
use limpid_base::words::system;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A job: takes the number of a task and of the thread that does it.
type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Bytes of a thread's stack; a thread uses less than a tenth of them.
pub const STACK: usize = 2 << 20;

/// Bytes that a thread may need beside its stack as it starts.
const SPARE: usize = 1 << 20;

/// The most threads of a pool: far more than any processor has cores, and so few that the system reports which
/// thread it has no memory for (beyond some ten thousand, a thread may start and then find no memory, which ends the
/// program).
const MOST: usize = 4096;

/// How often a waiting thread spins before it sleeps, if each thread has a core; where threads share cores, they
/// sleep at once. A pause takes 3 to 45 ns by processor, sleeping and waking 5 to 60 µs by system.
const PATIENCE: u32 = 1_500;

/// What threads agree on under a lock.
struct JobSlot {
    /// The job, how many tasks it has and how many threads it is for, while threads may join it.
    job: Option<(*const Job<'static>, usize, usize)>,
    /// Whether the caller sleeps until those that joined have finished.
    waits: bool,
}

struct Shared {
    slot: Mutex<JobSlot>,
    /// Of each thread, what wakes it, and whether it sleeps until there is a job for it. That is changed under the lock
    /// of `slot`.
    sleepers: Vec<(Condvar, AtomicBool)>,
    done: Condvar,
    /// Counts jobs; workers wait for it to change. It is changed under the lock of `slot`, so that no sleeping worker
    /// misses the change.
    turn: AtomicUsize,
    /// How many threads the last job is for, the first ones. It is changed before `turn`.
    crew: AtomicUsize,
    /// The next task of each thread's range; each has a cache line of its own.
    next: Vec<Line>,
    /// How many workers have joined the current job and not finished. Workers join under the lock of `slot`.
    busy: AtomicUsize,
    /// Held while a job runs: jobs run one at a time, whoever calls [`Pool::run`].
    one: Mutex<()>,
    stop: AtomicBool,
    panicked: AtomicBool,
    patience: u32,
}

#[repr(align(128))]
struct Line(AtomicUsize);

// SAFETY: the raw job is only followed between the start and the end of `run`, while what it points to lives,
// and a job is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn lock_slot(&self) -> MutexGuard<'_, JobSlot> {
        self.slot.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The threads of a backend, including the caller's.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// How many threads take part in jobs, the first ones.
    used: usize,
}

impl Pool {
    /// A pool of `threads` threads, including the caller's.
    ///
    /// # Errors
    /// If a thread cannot be started, because the system limits threads or has no memory for its stack. Or if more
    /// than 4096 are asked for.
    pub fn start(threads: usize) -> Result<Pool, BackendError> {
        let cores = available_parallelism().map_or(threads, |n| n.get());
        Pool::by(threads, if threads <= cores { PATIENCE } else { 0 }, |thread, work| {
            // A thread that starts and finds no memory for itself ends the program: so there must be some to spare, and
            // the next thread takes none before this one has what it needs.
            Vec::<u8>::new()
                .try_reserve_exact(STACK + SPARE)
                .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            let (tell, told) = std::sync::mpsc::sync_channel(1);
            let started = thread.spawn(move || {
                tell.send(()).ok();
                work();
            })?;
            told.recv().ok();
            Ok(started)
        })
    }

    pub(super) fn by(
        threads: usize,
        patience: u32,
        spawn: impl Fn(Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> Result<Pool, BackendError> {
        if threads > MOST {
            let what = format!("at most {MOST} are started");
            return Err(BackendError::Thread { thread: MOST + 1, threads, what });
        }
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            slot: Mutex::new(JobSlot { job: None, waits: false }),
            sleepers: (0..threads).map(|_| (Condvar::new(), AtomicBool::new(false))).collect(),
            done: Condvar::new(),
            turn: AtomicUsize::new(0),
            crew: AtomicUsize::new(0),
            next: (0..threads).map(|_| Line(AtomicUsize::new(0))).collect(),
            busy: AtomicUsize::new(0),
            one: Mutex::new(()),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            patience,
        });
        let mut pool = Pool { shared: shared.clone(), workers: vec![], used: threads };
        for id in 1..threads {
            let shared = shared.clone();
            let worker = spawn(
                Builder::new().name(format!("limpid-{id}")).stack_size(STACK),
                Box::new(move || serve(&shared, id)),
            );
            let worker = worker.map_err(|error| BackendError::Thread { thread: id + 1, threads, what: system(&error) });
            pool.workers.push(worker?);
        }
        Ok(pool)
    }

    /// The number of threads that take part in jobs.
    pub fn threads(&self) -> usize {
        self.used
    }

    /// Has so many threads take part from now on, of those that were started; the others sleep.
    pub fn use_threads(&mut self, threads: usize) {
        self.used = threads.clamp(1, self.workers.len() + 1);
    }

    /// How many jobs woke the others.
    #[cfg(test)]
    pub fn jobs(&self) -> usize {
        self.shared.turn.load(Relaxed)
    }

    /// Does tasks 0..tasks, and returns when all are done.
    ///
    /// # Panics
    /// If a task panicked.
    pub fn run(&self, tasks: usize, job: &Job) {
        if self.used == 1 || tasks <= 1 {
            return (0..tasks).for_each(|task| job(task, 0));
        }
        let shared = &*self.shared;
        let one = shared.one.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: only the lifetime is changed. Workers join while the slot has the job, and those that joined are
        // waited for before `run` returns, so none follows the pointer after `job` ends.
        let lent: *const Job<'static> = unsafe { std::mem::transmute::<*const Job, *const Job<'static>>(job) };
        let crew = &shared.next[..tasks.min(self.used)];
        for (id, next) in crew.iter().enumerate() {
            next.0.store(stretch(tasks, id, crew.len()).start, Relaxed);
        }
        {
            let mut slot = shared.lock_slot();
            slot.job = Some((lent, tasks, crew.len()));
            shared.crew.store(crew.len(), Relaxed);
            shared.turn.fetch_add(1, Release);
        }
        for (wake, _) in shared.sleepers[..crew.len()].iter().filter(|(_, asleep)| asleep.load(Relaxed)) {
            wake.notify_one();
        }
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(crew, job, tasks, 0)));
        shared.lock_slot().job = None;
        let mut spins = 0u32;
        while shared.busy.load(Acquire) > 0 && spins < shared.patience {
            spins += 1;
            spin_loop();
        }
        if shared.busy.load(Acquire) > 0 {
            let mut slot = shared.lock_slot();
            slot.waits = true;
            while shared.busy.load(Acquire) > 0 {
                slot = shared.done.wait(slot).unwrap_or_else(|e| e.into_inner());
            }
            slot.waits = false;
        }
        let others_panicked = shared.panicked.swap(false, Relaxed); // reset for the next job
        drop(one);
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!others_panicked, "a task panicked; its message is above");
    }
}

/// The tasks of thread `id` of `threads`.
fn stretch(tasks: usize, id: usize, threads: usize) -> Range<usize> {
    tasks * id / threads..tasks * (id + 1) / threads
}

/// Does the tasks of the thread's own range, then of the others'.
fn take(crew: &[Line], job: &Job, tasks: usize, id: usize) {
    for other in (0..crew.len()).map(|i| (id + i) % crew.len()) {
        let end = stretch(tasks, other, crew.len()).end;
        loop {
            let task = crew[other].0.fetch_add(1, Relaxed);
            if task >= end {
                break;
            }
            job(task, id);
        }
    }
}

fn serve(shared: &Shared, id: usize) {
    let mut seen = 0;
    // until there is a new job, and it is for this thread
    let waits = |seen: usize| {
        (shared.turn.load(Acquire) == seen || shared.crew.load(Relaxed) <= id) && !shared.stop.load(Relaxed)
    };
    loop {
        let mut spins = 0u32;
        while waits(seen) && spins < shared.patience {
            spins += 1;
            spin_loop();
        }
        let joined = {
            let mut slot = shared.lock_slot();
            while waits(seen) {
                let (wake, asleep) = &shared.sleepers[id];
                asleep.store(true, Relaxed);
                slot = wake.wait(slot).unwrap_or_else(|e| e.into_inner());
                asleep.store(false, Relaxed);
            }
            if shared.stop.load(Relaxed) {
                return;
            }
            seen = shared.turn.load(Relaxed);
            if slot.job.is_some() {
                shared.busy.fetch_add(1, Relaxed);
            }
            slot.job
        };
        let Some((job, tasks, crew)) = joined else { continue }; // it was done without this thread
        // SAFETY: `run` does not return before this worker, which joined, has counted itself out of `busy`.
        let job = unsafe { &*job };
        let done =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(&shared.next[..crew], job, tasks, id)));
        if done.is_err() {
            shared.panicked.store(true, Relaxed);
        }
        if shared.busy.fetch_sub(1, Release) == 1 && shared.lock_slot().waits {
            shared.done.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _slot = self.shared.lock_slot();
            self.shared.stop.store(true, Relaxed);
            self.shared.sleepers.iter().for_each(|(wake, _)| wake.notify_all());
        }
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}
