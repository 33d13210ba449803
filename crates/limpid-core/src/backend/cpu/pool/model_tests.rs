//! The pool in every order of its threads and of their view of each other's writes. loom runs a small case for every
//! such order with at most a few preemptions, which is where nearly all bugs are. A test fails if a task is left out
//! or done twice, if a task's writes might not be seen after [`Pool::run`], if two tasks touch one cell, or if all
//! threads wait.
#![allow(unsafe_code)] // cells without a lock: the tests try whether they need one

use loom::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use threads::Pool;

#[path = "threads.rs"]
#[allow(dead_code, clippy::duplicate_mod)] // what only the system's threads need; it is over other primitives here
mod threads;

/// loom's primitives instead of the standard library's.
mod primitives {
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{AtomicBool, AtomicUsize};
    pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub use loom::thread::{Builder, JoinHandle};
    pub use std::thread::available_parallelism;
}

/// Numbers that threads write without a lock; loom reports if two might do so at once.
struct Cells(Vec<UnsafeCell<usize>>);

// SAFETY: loom runs one thread at a time, and ends the test where accesses are in no order.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(n: usize) -> Cells {
        Cells((0..n).map(|_| UnsafeCell::new(0)).collect())
    }
    fn add(&self, i: usize) {
        // SAFETY: as above.
        self.0[i].with_mut(|cell| unsafe { *cell += 1 });
    }
    fn all(&self) -> Vec<usize> {
        // SAFETY: as above.
        self.0.iter().map(|cell| cell.with(|cell| unsafe { *cell })).collect()
    }
}

fn pool(threads: usize, patience: u32) -> Pool {
    Pool::by(threads, patience, |thread, work| thread.spawn(work)).expect("loom starts threads")
}

fn in_every_order(preemptions: usize, case: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(case);
}

#[test]
#[ignore = "gate"]
fn jobs_are_done_one_after_the_other() {
    for patience in [0, 1] {
        in_every_order(3, move || {
            let (pool, cells) = (pool(2, patience), Cells::new(3));
            for turn in 1..=2 {
                pool.run(3, &|task, _| cells.add(task));
                assert_eq!(cells.all(), [turn; 3]);
            }
        });
    }
}

#[test]
fn three_threads_share_a_job() {
    in_every_order(2, || {
        let (pool, cells) = (pool(3, 0), Cells::new(3));
        pool.run(3, &|task, _| cells.add(task));
        assert_eq!(cells.all(), [1; 3]);
    });
}

/// The third thread has no part in the first job and one in the second, asleep or not.
#[test]
#[ignore = "gate"]
fn a_job_of_few_tasks_is_for_few_threads() {
    for (patience, preemptions) in [(0, 2), (1, 1)] {
        in_every_order(preemptions, move || {
            let (pool, cells) = (pool(3, patience), Cells::new(3));
            pool.run(2, &|task, id| {
                assert!(id < 2);
                cells.add(task);
            });
            pool.run(3, &|task, _| cells.add(task));
            assert_eq!(cells.all(), [2, 2, 1]);
        });
    }
}

/// Three threads, then two of them, then all again.
#[test]
#[ignore = "gate"]
fn the_number_of_threads_changes_between_jobs() {
    in_every_order(1, || {
        let (mut pool, cells) = (pool(3, 0), Cells::new(3));
        for used in [3, 2, 3] {
            pool.use_threads(used);
            pool.run(3, &|task, id| {
                assert!(id < used);
                cells.add(task);
            });
        }
        assert_eq!(cells.all(), [3; 3]);
    });
}

#[test]
#[ignore = "gate"]
fn two_callers_take_turns() {
    in_every_order(3, || {
        let pool = Arc::new(pool(2, 0));
        let call = |pool: &Pool| {
            let cells = Cells::new(2);
            pool.run(2, &|task, _| cells.add(task));
            assert_eq!(cells.all(), [1; 2]);
        };
        let other = pool.clone();
        let other = loom::thread::spawn(move || call(&other));
        call(&pool);
        other.join().expect("it panicked");
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_next_job_is_done() {
    for bad in [0, 1] {
        in_every_order(3, move || {
            let (pool, cells) = (pool(2, 0), Cells::new(2));
            let quiet = |task: usize| {
                if task == bad {
                    resume_unwind(Box::new("a task"))
                }
            };
            assert!(catch_unwind(AssertUnwindSafe(|| pool.run(2, &|task, _| quiet(task)))).is_err());
            pool.run(2, &|task, _| cells.add(task));
            assert_eq!(cells.all(), [1; 2]);
        });
    }
}
