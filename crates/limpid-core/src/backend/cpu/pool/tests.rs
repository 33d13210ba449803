//! The pool with the system's threads: every task runs once, panics reach the caller, threads that do not start are
//! an error. `model_tests` tries every order of its threads.

use super::Pool;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[test]
fn every_task_is_done_once() {
    for threads in [1, 2, 3, 7] {
        let pool = Pool::start(threads).unwrap();
        for tasks in [0, 1, 2, 5, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|task, id| {
                assert!(id < threads);
                counts[task].fetch_add(1, Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{threads} threads, {tasks} tasks");
        }
        std::thread::sleep(Duration::from_millis(5)); // asleep, and awake again
        pool.run(3, &|_, _| {});
    }
}

#[test]
fn the_first_threads_do_all_where_fewer_are_used() {
    let mut pool = Pool::start(4).unwrap();
    for used in [1, 3, 4, 2, 4, 1, 2] {
        pool.use_threads(used);
        assert_eq!(pool.threads(), used);
        for tasks in [1, 2, 7, 100] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|task, id| {
                assert!(id < used);
                counts[task].fetch_add(1, Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{used} of 4 threads, {tasks} tasks");
        }
    }
    for (asked, used) in [(0, 1), (9, 4)] {
        pool.use_threads(asked);
        assert_eq!(pool.threads(), used);
    }
}

#[test]
fn two_callers_take_turns() {
    let pool = Pool::start(3).unwrap();
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
    let pool = Pool::start(3).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        pool.run(8, &|task, _| assert!(task != 5));
    }));
    assert!(caught.is_err());
    pool.run(8, &|_, _| {});
}

#[test]
fn when_every_thread_has_panicked_the_next_job_is_done() {
    let pool = Pool::start(3).unwrap();
    // each begins with a task of its own range, so the caller panics and so do the others
    let all = catch_unwind(AssertUnwindSafe(|| pool.run(9, &|_, _| panic!("every task"))));
    assert!(all.is_err());
    let done = AtomicUsize::new(0);
    pool.run(9, &|_, _| {
        done.fetch_add(1, Relaxed);
    });
    assert_eq!(done.into_inner(), 9);
}

#[test]
fn a_thread_that_does_not_start_is_an_error_and_those_that_did_end() {
    for last in [1, 2, 5] {
        let started = AtomicUsize::new(1);
        let pool = Pool::by(6, 0, |thread, work| match started.fetch_add(1, Relaxed) {
            n if n == last => Err(io::ErrorKind::WouldBlock.into()),
            _ => thread.spawn(work),
        });
        let error = pool.err().expect("one did not start").to_string(); // those that did have been waited for
        assert!(error.starts_with(&format!("cannot start thread {} of 6: ", last + 1)), "{error}");
        assert_eq!(started.load(Relaxed), last + 1);
    }
}

#[test]
fn more_threads_than_any_machine_runs_are_refused_at_once() {
    for threads in [4097, 1_000_000, usize::MAX] {
        let error = Pool::start(threads).err().expect("too many").to_string();
        let said = format!("cannot start thread 4097 of {threads}: at most 4096 are started; ask for fewer threads");
        assert_eq!(error, said);
    }
}

/// Beside other programs a thread may not run for a while: the others do its tasks, and nobody waits for it.
#[test]
fn a_thread_that_does_not_run_holds_up_no_job() {
    let (open, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let pool = Pool::by(3, 0, |thread, work| {
        let gate = gate.clone();
        thread.spawn(move || {
            let _ = gate.lock().unwrap().recv();
            work();
        })
    })
    .unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let done = AtomicUsize::new(0);
        for _ in 0..3 {
            pool.run(8, &|_, _| {
                done.fetch_add(1, Relaxed);
            });
        }
        tell.send(done.into_inner()).unwrap();
        drop(open); // the pool waits for its threads to end
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(24), "it waits for threads that do not run");
}
