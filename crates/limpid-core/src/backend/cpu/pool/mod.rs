//! The threads of a backend: [`Pool`], in `threads`. It uses a few primitives of the standard library; `model_tests`
//! replaces them by loom's and tries every order in which threads can run and see each other's writes.

mod threads;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

pub use threads::{Pool, STACK};

/// The primitives by which threads synchronise.
mod primitives {
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{AtomicBool, AtomicUsize};
    pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub use std::thread::{Builder, JoinHandle, available_parallelism};
}
