//! Threads that wait for work: they spin for some microseconds between the ops of a step and sleep when
//! nothing comes, so limpid at rest uses no processor.
//!
//! A job is a number of tasks. Each thread has a stretch of them to itself, the same one in every job of as many
//! tasks, so that rows it wrote in one op are near it in the next; when it has done its own it helps the others.
//! Which thread does which task changes nothing else, because a task writes what no other task writes.
#![allow(unsafe_code)] // a borrowed job is lent to threads that give it back before `run` returns

use crate::backend::BackendError;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};

/// A job: takes the number of a task and of the thread that does it.
type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Bytes of a thread's stack: what it uses of them is less than a tenth.
pub const STACK: usize = 2 << 20;

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
    /// If one cannot be started: the system has a limit on threads, or no memory for its stack.
    pub fn start(threads: usize) -> Result<Pool, BackendError> {
        Pool::by(threads, |thread, work| thread.spawn(work))
    }

    /// The same where it has been seen that they start.
    ///
    /// # Panics
    /// If one cannot be started.
    pub fn new(threads: usize) -> Pool {
        Pool::start(threads).unwrap_or_else(|error| panic!("{error}"))
    }

    fn by(
        threads: usize,
        spawn: impl Fn(Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> Result<Pool, BackendError> {
        let cores = std::thread::available_parallelism().map_or(threads, |n| n.get());
        let shared = Arc::new(Shared {
            job: Mutex::new(None),
            wake: Condvar::new(),
            turn: AtomicUsize::new(0),
            next: (0..threads.max(1)).map(|_| Line(AtomicUsize::new(0))).collect(),
            busy: AtomicUsize::new(0),
            one: Mutex::new(()),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            patience: if threads <= cores { PATIENCE } else { 0 },
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
        let _one = shared.one.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: only the lifetime is changed; `busy` below is waited for before `run` returns, so no
        // worker follows the pointer after `job` ends, and no other job changes `busy` meanwhile.
        let lent: *const Job<'static> = unsafe { std::mem::transmute::<*const Job, *const Job<'static>>(job) };
        for (id, next) in shared.next.iter().enumerate() {
            next.0.store(stretch(tasks, id, shared.next.len()).start, Relaxed);
        }
        shared.busy.store(self.workers.len(), Relaxed);
        {
            let mut slot = shared.job.lock().unwrap_or_else(|e| e.into_inner());
            *slot = Some((lent, tasks));
            shared.turn.fetch_add(1, Release);
        }
        shared.wake.notify_all();
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(shared, job, tasks, 0)));
        let mut spins = 0u32;
        while shared.busy.load(Acquire) > 0 {
            spins += 1;
            if spins > shared.patience { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.panicked.swap(false, Relaxed), "a task panicked; its message is above");
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
            std::hint::spin_loop();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 5, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task, id| {
                    assert!(id < threads);
                    counts[task].fetch_add(1, Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
            std::thread::sleep(std::time::Duration::from_millis(5)); // asleep, and awake again
            pool.run(3, &|_, _| {});
        }
    }

    #[test]
    fn two_callers_take_turns() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let done: Vec<AtomicUsize> = (0..7).map(|_| AtomicUsize::new(0)).collect();
                        pool.run(done.len(), &|task, _| {
                            done[task].fetch_add(1, Relaxed);
                        });
                        assert!(done.iter().all(|count| count.load(Relaxed) == 1));
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives() {
        let pool = Pool::new(3);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(8, &|task, _| assert!(task != 5));
        }));
        assert!(caught.is_err());
        pool.run(8, &|_, _| {});
    }

    #[test]
    fn a_thread_that_does_not_start_is_an_error_and_those_that_did_end() {
        for last in [1, 2, 5] {
            let started = AtomicUsize::new(1);
            let pool = Pool::by(6, |thread, work| match started.fetch_add(1, Relaxed) {
                n if n == last => Err(io::ErrorKind::WouldBlock.into()),
                _ => thread.spawn(work),
            });
            let error = pool.err().expect("one did not start").to_string(); // those that did have been waited for
            assert!(error.starts_with(&format!("cannot start thread {} of 6: ", last + 1)), "{error}");
            assert_eq!(started.load(Relaxed), last + 1);
        }
    }
}
