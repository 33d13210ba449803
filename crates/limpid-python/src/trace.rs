//! What is seen of a run: its tensors by name, and sweeps.

use crate::local::Local;
use crate::raised;
use crate::tensor::{Tensor, image};
use limpid::draw::picture::swept::plot;
use limpid::trace;
use limpid::trace::TraceError;
use limpid::trace::labels::{Labels, label};
use limpid::trace::names;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// One run of a prompt: a mapping from names to tensors. It keeps little and computes what is asked for, so a trace of
/// a long prompt is small; names are TransformerLens's (docs/names.md).
#[pyclass(frozen, mapping, module = "limpid")]
pub struct Trace {
    names: Vec<String>,
    /// The tokens that ran.
    tokens: Vec<u32>,
    labels: Arc<Labels>,
    run: Local<trace::Trace>,
}

impl Trace {
    /// `word` is what a token looks like.
    pub fn new(run: trace::Trace, word: impl Fn(u32) -> String) -> Trace {
        let (names, tokens) = (names::activations(run.model()), run.batch().tokens.clone());
        let words = tokens.iter().map(|id| label(&word(*id))).collect();
        let labels = Arc::new(Labels { tokens: vec![words], ..Labels::default() });
        Trace { names, tokens, labels, run: Local::new(run) }
    }

    /// Work on the run without holding up other threads of Python.
    fn on_run<T: Send>(&self, py: Python, work: impl FnOnce(&mut trace::Trace) -> T + Send) -> PyResult<T> {
        py.detach(|| self.run.with(work))
    }
}

#[pymethods]
impl Trace {
    /// The ids that ran.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.tokens.clone()
    }

    /// The names of the run's tensors, in the order in which they are computed.
    fn keys(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Every tensor; one at a time takes less memory.
    fn values(&self, py: Python) -> PyResult<Vec<Tensor>> {
        self.names.iter().map(|name| self.__getitem__(py, name)).collect()
    }

    /// Every name with its tensor.
    fn items(&self, py: Python) -> PyResult<Vec<(String, Tensor)>> {
        Ok(self.names.iter().cloned().zip(self.values(py)?).collect())
    }

    /// The tensor of that name, or `default` if there is none.
    #[pyo3(signature = (name, default = None))]
    fn get(&self, py: Python, name: &str, default: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        match self.__getitem__(py, name) {
            Ok(tensor) => Ok(Some(Py::new(py, tensor)?.into_any())),
            Err(error) if error.is_instance_of::<PyKeyError>(py) => Ok(default),
            Err(error) => Err(error),
        }
    }

    /// A tensor, a parameter, or what is derived of them.
    fn __getitem__(&self, py: Python, name: &str) -> PyResult<Tensor> {
        match self.on_run(py, |run| run.shared(name))? {
            Ok(tensor) => Ok(Tensor::from(tensor).labelled(&self.labels)),
            Err(error @ TraceError::Unknown { .. }) => Err(PyKeyError::new_err(error.to_string())),
            Err(error) => Err(raised(error)),
        }
    }

    /// Also of what is in no list: parameters, and what is derived.
    fn __contains__(&self, py: Python, name: &Bound<PyAny>) -> PyResult<bool> {
        let Ok(name) = name.extract::<String>() else { return Ok(false) };
        Ok(self.names.contains(&name) || self.on_run(py, |run| run.shared(&name))?.is_ok())
    }

    fn __iter__(slf: &Bound<Trace>) -> PyResult<Py<PyAny>> {
        let names = PyTuple::new(slf.py(), &slf.get().names)?;
        Ok(names.try_iter()?.into_any().unbind())
    }

    fn __len__(&self) -> usize {
        self.names.len()
    }

    fn __repr__(&self) -> String {
        format!("Trace({} tokens, {} tensors)", self.tokens.len(), self.names.len())
    }

    /// The tensors with their axes, block by block; none is computed for it.
    fn _repr_html_(&self, py: Python) -> PyResult<String> {
        let mut groups: Vec<(&str, String)> = vec![];
        for name in &self.names {
            let (axes, shape) = self.on_run(py, |run| run.shape(name))?.map_err(raised)?;
            let sizes: Vec<String> = axes.iter().zip(shape).map(|(axis, n)| format!("{axis} {n}")).collect();
            let block = name.strip_prefix("blocks.").and_then(|rest| rest.find('.'));
            let outside = if groups.len() < 2 { "before the blocks" } else { "after the blocks" };
            let group = block.map_or(outside, |end| &name[.."blocks.".len() + end]);
            if groups.last().is_none_or(|(last, _)| *last != group) {
                groups.push((group, String::new()));
            }
            if let Some((_, rows)) = groups.last_mut() {
                *rows += &format!("<tr><td><code>{name}</code></td><td>{}</td></tr>", sizes.join(", "));
            }
        }
        let shown = |(group, rows): (&str, String)| {
            format!("<details><summary>{group}</summary><table>{rows}</table></details>")
        };
        Ok(format!("<code>{}</code>{}", self.__repr__(), groups.into_iter().map(shown).collect::<String>()))
    }

    /// Lets the run's memory go.
    fn close(&self, py: Python) {
        py.detach(|| self.run.close());
    }
}

/// A sweep: which patches of the clean run's activations restore its answer in the corrupt run.
#[pyclass(frozen, module = "limpid")]
pub struct Sweep {
    sweep: limpid::trace::sweep::Sweep,
    /// The heat map for a notebook.
    image: String,
}

impl Sweep {
    pub fn new(sweep: limpid::trace::sweep::Sweep, words: &[String]) -> Sweep {
        let image = image(&plot(&sweep, words));
        Sweep { sweep, image }
    }
}

#[pymethods]
impl Sweep {
    /// How much of the clean run's behaviour each patch restores: 1 is all of it, 0 none. Its axes are
    /// TransformerLens's: `[layer, pos]`, `[layer, head]`, ...
    #[getter]
    fn recovered(&self) -> Tensor {
        Arc::new(self.sweep.recovered.clone()).into()
    }

    /// The metric in the clean run.
    #[getter]
    fn clean(&self) -> f64 {
        self.sweep.clean
    }

    /// The metric in the corrupt run.
    #[getter]
    fn corrupt(&self) -> f64 {
        self.sweep.corrupt
    }

    fn __repr__(&self) -> String {
        let sizes = self.sweep.recovered.axes.iter().zip(&self.sweep.recovered.shape);
        let sizes: Vec<String> = sizes.map(|(axis, n)| format!("{axis}={n}")).collect();
        format!("Sweep([{}], clean {:.4}, corrupt {:.4})", sizes.join(" "), self.sweep.clean, self.sweep.corrupt)
    }

    fn _repr_html_(&self) -> String {
        self.image.clone()
    }
}
