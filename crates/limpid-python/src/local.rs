//! What belongs to one process: a model's threads are not in a copy that `fork` makes, so the copy may neither use the model nor end it.

use crate::LimpidError;
use pyo3::prelude::*;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of this process.
pub struct Local<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Local<T> {
    pub fn new(value: T) -> Local<T> {
        Local { process: std::process::id(), value: Some(value) }
    }

    /// The value; an error where it was closed, or in a copy of the process.
    pub fn get(&self) -> PyResult<&T> {
        self.check()?;
        self.value.as_ref().ok_or_else(closed)
    }

    /// [`Local::get`] to change it.
    pub fn get_mut(&mut self) -> PyResult<&mut T> {
        self.check()?;
        self.value.as_mut().ok_or_else(closed)
    }

    /// Ends it here, and lets its memory go where it is nobody else's.
    pub fn close(&mut self) {
        let value = self.value.take();
        if self.process != std::process::id() {
            // ending it would wait for threads that this process does not have
            mem::forget(value);
        }
    }

    fn check(&self) -> PyResult<()> {
        check(self.process)
    }
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// A value of this process for one thread at a time. In a copy of the process the lock may be one that a thread held which is not there.
pub struct LocalLock<T> {
    process: u32,
    local: Mutex<Local<T>>,
}

impl<T> LocalLock<T> {
    pub fn new(value: T) -> LocalLock<T> {
        LocalLock { process: std::process::id(), local: Mutex::new(Local::new(value)) }
    }

    /// Waits for it; an error in a copy of the process.
    pub fn lock(&self) -> PyResult<MutexGuard<'_, Local<T>>> {
        check(self.process)?;
        Ok(self.local.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// [`Local::close`]; a copy of the process has nothing to close.
    pub fn close(&self) {
        if let Ok(mut local) = self.lock() {
            local.close();
        }
    }
}

/// Whether a value of process `own` is used there.
fn check(own: u32) -> PyResult<()> {
    let now = std::process::id();
    if own == now {
        return Ok(());
    }
    Err(LimpidError::new_err(format!(
        "this was opened in process {own} and is used in process {now}, a fork of it without its threads: open it again there, or start \
         processes with multiprocessing's `spawn`"
    )))
}

fn closed() -> PyErr {
    LimpidError::new_err("this was closed: open it again")
}
