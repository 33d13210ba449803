//! limpid in Python: the extension module `limpid._limpid`, which the package in `python/limpid` presents. The library
//! does the work; here values change their language.
//!
//! `model.rs` is `Lm`, `trace.rs` what is seen of a run, `tensor.rs` numbers that NumPy and PyTorch read in place,
//! `training.rs` `train` and the windows it reads, `local.rs` what keeps a model in the process that opened it.

mod local;
mod model;
mod tensor;
mod trace;
mod training;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

create_exception!(limpid, LimpidError, PyException, "What limpid refuses, and why. Its text names the mend.");

/// An error of the library as an exception, with its causes.
fn raised(error: impl Into<anyhow::Error>) -> PyErr {
    let error = error.into();
    let mut said = vec![];
    for cause in error.chain() {
        let text = cause.to_string();
        // an error that passes another one on repeats its words
        if !said.iter().any(|before: &String| before.contains(&text)) {
            said.push(text);
        }
    }
    LimpidError::new_err(said.join(": "))
}

/// Lets Python look for Ctrl-C now and then while limpid computes, and keeps what it raised.
struct Watch {
    last: Instant,
    raised: Option<PyErr>,
}

impl Watch {
    const EVERY: Duration = Duration::from_millis(50);

    fn new() -> Watch {
        Watch { last: Instant::now(), raised: None }
    }

    /// Whether to go on.
    fn goes_on(&mut self) -> bool {
        if self.raised.is_none() && self.last.elapsed() >= Watch::EVERY {
            self.ask(|py| py.check_signals());
            self.last = Instant::now();
        }
        self.raised.is_none()
    }

    /// Calls Python; what it raises ends the work.
    fn ask(&mut self, call: impl FnOnce(Python) -> PyResult<()>) {
        self.raised = Python::attach(|py| call(py).err());
    }

    /// The result, unless Python raised something meanwhile.
    fn end<T>(self, done: Result<T, impl Into<anyhow::Error>>) -> PyResult<T> {
        match self.raised {
            Some(raised) => Err(raised),
            None => done.map_err(raised),
        }
    }
}

/// Runs the command `limpid` with these words, the program's name first, and returns its exit code.
#[cfg(feature = "command")]
#[pyfunction]
fn command(py: Python, words: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| limpid_cli::run(words))
}

#[pymodule]
fn _limpid(m: &Bound<PyModule>) -> PyResult<()> {
    m.add("LimpidError", m.py().get_type::<LimpidError>())?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<model::Lm>()?;
    m.add_class::<model::Parameters>()?;
    m.add_class::<model::Sample>()?;
    m.add_class::<model::Stream>()?;
    m.add_class::<model::Tokenizer>()?;
    m.add_class::<tensor::Tensor>()?;
    m.add_class::<trace::Trace>()?;
    m.add_class::<trace::Sweep>()?;
    m.add_class::<training::Dataset>()?;
    #[cfg(feature = "command")]
    m.add_function(wrap_pyfunction!(command, m)?)?;
    m.add_function(wrap_pyfunction!(training::settings, m)?)?;
    m.add_function(wrap_pyfunction!(training::train, m)?)?;
    m.add_function(wrap_pyfunction!(training::open_dataset, m)?)?;
    Ok(())
}
