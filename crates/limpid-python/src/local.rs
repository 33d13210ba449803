//! What belongs to one process: a model's threads are not in a copy that `fork` makes, so the copy may neither use the
//! model nor end it, nor wait for a lock that a thread held which it does not have.

use crate::LimpidError;
use pyo3::prelude::*;
use std::mem;
use std::sync::{Mutex, PoisonError};

/// A value of this process, for one thread at a time.
pub struct Local<T> {
    process: u32,
    value: Mutex<Option<T>>,
}

impl<T> Local<T> {
    pub fn new(value: T) -> Local<T> {
        Local { process: std::process::id(), value: Mutex::new(Some(value)) }
    }

    /// Work on the value, once no other thread has it; an error where it was closed, or in a copy of the process.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let (own, now) = (self.process, std::process::id());
        if own != now {
            return Err(LimpidError::new_err(format!(
                "this was opened in process {own} and is used in process {now}, a fork of it without its threads: \
                 open it again there, or start processes with multiprocessing's `spawn`"
            )));
        }
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        value.as_mut().map(work).ok_or_else(|| LimpidError::new_err("this was closed: open it again"))
    }

    /// Ends it here, and lets its memory go where it is nobody else's. A copy of the process has nothing to end.
    pub fn close(&self) {
        if self.process == std::process::id() {
            self.value.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // ending it would wait for threads that this process does not have
            mem::forget(self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
