//! The threads of a backend: [`Pool`], in `threads`. It is written over a few primitives, the system's; `model_tests` puts loom's in their
//! place and tries every order in which threads can run and see what others wrote.

mod threads;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

pub use threads::{Pool, STACK};

/// What threads meet by.
mod primitives {
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{AtomicBool, AtomicUsize};
    pub use std::sync::{Arc, Condvar, Mutex};
    pub use std::thread::{Builder, JoinHandle, available_parallelism, yield_now};
}
