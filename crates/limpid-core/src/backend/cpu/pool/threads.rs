//! Threads that wait for work: they spin for some microseconds between the ops of a step and sleep when
//! nothing comes, so limpid at rest uses no processor.
//!
//! A job is a number of tasks. Each thread has a stretch of them to itself, the same one in every job of as many
//! tasks, so that rows it wrote in one op are near it in the next; when it has done its own it helps the others.
//! Which thread does which task changes nothing else, because a task writes what no other task writes.
#![allow(unsafe_code)] // a borrowed job is lent to threads that give it back before `run` returns

use super::primitives::{
    Arc, AtomicBool, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, available_parallelism, spin_loop, yield_now,
};
use crate::backend::BackendError;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A job: takes the number of a task and of the thread that does it.
type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Bytes of a thread's stack: what it uses of them is less than a tenth.
pub const STACK: usize = 2 << 20;

/// Threads that are started at most: far more than any processor has cores, and so few that the system tells which one it has no
/// room for (beyond some ten thousand, a thread that has begun finds none for itself, and the program ends at once).
const MOST: usize = 4096;

/// Spins before a waiting thread goes to sleep, where each thread has a core; where they share cores, none waits for long.
const PATIENCE: u32 = 20_000;

struct Shared {
    /// The job and how many tasks it has; changed only while no worker is inside.
    job: Mutex<Option<(*const Job<'static>, usize)>>,
    wake: Condvar,
    /// Counts jobs; workers wait for it to change. Changed under `job`'s lock, so that no sleeper misses it.
    turn: AtomicUsize,
    /// The next task of each thread's stretch; a line of the cache each.
    next: Vec<Line>,
    /// Workers that have not finished the current job.
    busy: AtomicUsize,
    /// Held while a job runs: one at a time, whoever else holds the pool.
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

/// The threads of a backend, the caller's own among them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// `threads` in all; the caller is one of them.
    ///
    /// # Errors
    /// If one cannot be started: the system has a limit on threads, or no memory for its stack. Or if there are more than 4096.
    pub fn start(threads: usize) -> Result<Pool, BackendError> {
        let cores = available_parallelism().map_or(threads, |n| n.get());
        Pool::by(threads, if threads <= cores { PATIENCE } else { 0 }, |thread, work| thread.spawn(work))
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
        let shared = Arc::new(Shared {
            job: Mutex::new(None),
            wake: Condvar::new(),
            turn: AtomicUsize::new(0),
            next: (0..threads.max(1)).map(|_| Line(AtomicUsize::new(0))).collect(),
            busy: AtomicUsize::new(0),
            one: Mutex::new(()),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            patience,
        });
        let mut pool = Pool { shared: shared.clone(), workers: vec![] };
        for id in 1..threads.max(1) {
            let shared = shared.clone();
            let worker = spawn(
                Builder::new().name(format!("limpid-{id}")).stack_size(STACK),
                Box::new(move || serve(&shared, id)),
            );
            let worker =
                worker.map_err(|error| BackendError::Thread { thread: id + 1, threads, what: error.to_string() });
            pool.workers.push(worker?);
        }
        Ok(pool)
    }

    /// Threads that work.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Does tasks 0..tasks, and returns when all are done.
    ///
    /// # Panics
    /// If a task did.
    pub fn run(&self, tasks: usize, job: &Job) {
        if self.workers.is_empty() || tasks <= 1 {
            return (0..tasks).for_each(|task| job(task, 0));
        }
        let shared = &*self.shared;
        let one = shared.one.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: only the lifetime is changed; `busy` below is waited for before `run` returns, so no
        // worker follows the pointer after `job` ends, and no other job changes `busy` meanwhile.
        let lent: *const Job<'static> = unsafe { std::mem::transmute::<*const Job, *const Job<'static>>(job) };
        for (id, next) in shared.next.iter().enumerate() {
            next.0.store(stretch(tasks, id, shared.next.len()).start, Relaxed);
        }
        shared.busy.store(self.workers.len(), Relaxed);
        {
            let mut region = shared.job.lock().unwrap_or_else(|e| e.into_inner());
            *region = Some((lent, tasks));
            shared.turn.fetch_add(1, Release);
        }
        shared.wake.notify_all();
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(shared, job, tasks, 0)));
        let mut spins = 0u32;
        while shared.busy.load(Acquire) > 0 {
            spins += 1;
            if spins > shared.patience { yield_now() } else { spin_loop() }
        }
        let others_panicked = shared.panicked.swap(false, Relaxed); // the next job begins without
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

/// Does the tasks of one's own stretch, then of the others'.
fn take(shared: &Shared, job: &Job, tasks: usize, id: usize) {
    let threads = shared.next.len();
    for other in (0..threads).map(|i| (id + i) % threads) {
        let end = stretch(tasks, other, threads).end;
        loop {
            let task = shared.next[other].0.fetch_add(1, Relaxed);
            if task >= end {
                break;
            }
            job(task, id);
        }
    }
}

fn serve(shared: &Shared, id: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0u32;
        while shared.turn.load(Acquire) == seen && !shared.stop.load(Relaxed) && spins < shared.patience {
            spins += 1;
            spin_loop();
        }
        let (job, tasks) = {
            let mut job = shared.job.lock().unwrap_or_else(|e| e.into_inner());
            while shared.turn.load(Acquire) == seen && !shared.stop.load(Relaxed) {
                job = shared.wake.wait(job).unwrap_or_else(|e| e.into_inner());
            }
            if shared.stop.load(Relaxed) {
                return;
            }
            job.expect("a turn has a job")
        };
        seen = seen.wrapping_add(1);
        // SAFETY: `run` does not return before this worker has counted itself out of `busy`.
        let job = unsafe { &*job };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(shared, job, tasks, id)));
        if done.is_err() {
            shared.panicked.store(true, Relaxed);
        }
        shared.busy.fetch_sub(1, Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _job = self.shared.job.lock().unwrap_or_else(|e| e.into_inner());
            self.shared.stop.store(true, Relaxed);
            self.shared.wake.notify_all();
        }
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}
