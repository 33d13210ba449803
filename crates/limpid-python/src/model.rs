//! A model: what `limpid::Lm` does, with Python's types.

use crate::local::Local;
use crate::tensor::Tensor;
use crate::trace::{Sweep, Trace};
use crate::{Watch, raised};
use limpid::checkpoint::store::Dtype;
use limpid::config::{Axis, parse_axis};
use limpid::data::chat::{END, Message, Role, is_template};
use limpid::data::source::TextSource;
use limpid::directions::DirectionQuestion;
use limpid::generate::{GenerateEvent, Options, Sampler};
use limpid::reason::ReasonQuestion;
use limpid::trace::Keep;
use limpid::trace::directions::DirectionMethod;
use limpid::trace::interventions::{InterventionError, position_in};
use limpid::trace::sweep::{SweepBy, SweepMetric, SweepQuestion, SweepReceiver, SweepSite};
use limpid::unit_places::{UnitContext, UnitText};
use limpid::{Device, Interventions, Machine, SampleStream, Step};
use limpid_glass::Subject;
use limpid_serve::live;
use limpid_serve::saved::{self, SaveError};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyString, PyTuple};
use pythonize::pythonize;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// A language model: a transformer with its weights and, mostly, a tokenizer. `Lm.open(path)` opens one,
/// `limpid.train()` makes one. Several threads may use it at once.
#[pyclass(frozen, module = "limpid")]
pub struct Lm {
    lm: Local<Arc<limpid::Lm>>,
}

impl From<limpid::Lm> for Lm {
    fn from(lm: limpid::Lm) -> Lm {
        Lm { lm: Local::new(Arc::new(lm)) }
    }
}

/// The keywords of a call that chooses text.
const CHOOSING: [&str; 12] = [
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "sample",
    "stop",
    "overflow",
];

/// A value of a keyword, whose name the error has.
fn read<'py, T>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    value.extract().map_err(|error: PyErr| {
        let text = format!("{name}: {}; found {}", error.value(value.py()), shown(value));
        let is = |kind: bool, error: fn(String) -> PyErr| kind.then(|| error(text.clone()));
        is(error.is_instance_of::<PyTypeError>(value.py()), PyTypeError::new_err)
            .or_else(|| is(error.is_instance_of::<PyOverflowError>(value.py()), PyOverflowError::new_err))
            .unwrap_or_else(|| PyValueError::new_err(text))
    })
}

/// The options of a call.
fn options(given: Option<&Bound<PyDict>>) -> PyResult<Options> {
    let mut options = Options { max_tokens: 200, ..Options::default() };
    options.sampler = Sampler { temperature: 0.8, seed: 1337, ..Sampler::default() };
    let Some(given) = given else { return Ok(options) };
    let to = &mut options.sampler;
    for (name, value) in given {
        let name: String = name.extract()?;
        match name.as_str() {
            "max_tokens" => options.max_tokens = read(&name, &value)?,
            "temperature" => to.temperature = read(&name, &value)?,
            "top_k" => to.top_k = read(&name, &value)?,
            "top_p" => to.top_p = read(&name, &value)?,
            "min_p" => to.min_p = read(&name, &value)?,
            "repetition_penalty" => to.repetition_penalty = read(&name, &value)?,
            "presence_penalty" => to.presence_penalty = read(&name, &value)?,
            "frequency_penalty" => to.frequency_penalty = read(&name, &value)?,
            "seed" => to.seed = read(&name, &value)?,
            "sample" => options.sample = read(&name, &value)?,
            "stop" => {
                let one = value.extract::<String>().map(|text| vec![text]);
                options.stop = one.or_else(|_| read::<Several<String>>(&name, &value).map(|all| all.0))?;
            }
            "overflow" => {
                let how: String = read(&name, &value)?;
                options.overflow =
                    how.parse().map_err(|why| PyValueError::new_err(format!("overflow: {why}; found {how:?}")))?;
            }
            _ => {
                let near =
                    limpid_base::nearest::nearest(&name, CHOOSING).map(|near| format!("; did you mean `{near}`?"));
                let text = format!("unexpected keyword argument `{name}`{}", near.unwrap_or_default());
                return Err(PyTypeError::new_err(text));
            }
        }
    }
    options.check().map_err(raised)?;
    Ok(options)
}

/// A prompt: a text, or the ids of its tokens.
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Prompt {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Prompt> {
        if let Ok(text) = given.cast::<PyString>() {
            return Ok(Prompt::Text(text.to_str()?.into()));
        }
        // bytes are a list of numbers too, but nobody means them as ids
        let bytes = given.is_instance_of::<PyBytes>() || given.is_instance_of::<PyByteArray>();
        let ids = if bytes { Err(PyTypeError::new_err("bytes")) } else { given.extract::<Several<u32>>() };
        ids.map(|Several(ids)| Prompt::Ids(ids)).map_err(|why| {
            let text = format!("expected a text, or a list of token ids, found {}", shown(&given));
            let is = |kind: bool, error: fn(String) -> PyErr| kind.then(|| error(text.clone()));
            is(why.is_instance_of::<PyOverflowError>(given.py()), PyOverflowError::new_err)
                .or_else(|| is(why.is_instance_of::<PyTypeError>(given.py()), PyTypeError::new_err))
                .unwrap_or(why)
        })
    }
}

/// A list, or what is read like one: as many as it gives, at most `MOST`, whatever length it claims.
struct Several<T, const MOST: usize = { 1 << 20 }>(Vec<T>);

impl<'a, 'py, T, const MOST: usize> FromPyObject<'a, 'py> for Several<T, MOST>
where
    T: for<'b> FromPyObject<'b, 'py>,
{
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Several<T, MOST>> {
        if given.is_instance_of::<PyString>() || given.is_instance_of::<PyDict>() || !given.hasattr("__getitem__")? {
            return Err(PyTypeError::new_err(format!("expected a list, found {}", shown(&given))));
        }
        let mut all = vec![];
        for one in given.try_iter()? {
            if all.len() == MOST {
                let most = limpid_base::units::commas(MOST);
                return Err(PyValueError::new_err(format!("{} has more than {most} values", shown(&given))));
            }
            all.push(one?.extract().map_err(Into::into)?);
        }
        Ok(Several(all))
    }
}

/// A value in a message, cut where it is long.
fn shown(value: &Bound<PyAny>) -> String {
    let text = value.repr().map_or_else(|_| "something without a representation".into(), |text| text.to_string());
    if text.chars().count() > 80 { text.chars().take(77).collect::<String>() + "..." } else { text }
}

impl Prompt {
    fn ids(self, lm: &limpid::Lm) -> PyResult<Vec<u32>> {
        match self {
            Prompt::Text(text) => lm.encode(&text).map_err(raised),
            Prompt::Ids(ids) => Ok(ids),
        }
    }
}

/// A token by its text or its id.
#[derive(FromPyObject)]
enum Token {
    #[pyo3(transparent, annotation = "int")]
    Id(u32),
    #[pyo3(transparent, annotation = "str")]
    Text(String),
}

impl Token {
    fn id(self, name: &str, lm: &limpid::Lm) -> PyResult<u32> {
        let text = match self {
            Token::Id(id) => return Ok(id),
            Token::Text(text) => text,
        };
        let found = limpid::generate::token_named(&text, lm.tokenizer().ok(), lm.config().vocab_size);
        found.map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
    }
}

/// The messages of a conversation: `[{"role": "user", "content": "..."}]`, or one text of the user.
fn messages(given: &Bound<PyAny>) -> PyResult<Vec<Message>> {
    if let Ok(content) = given.extract::<String>() {
        return Ok(vec![Message { role: Role::User, content }]);
    }
    let message = |one: Bound<PyAny>| -> PyResult<Message> {
        let part = |name: &str| -> PyResult<String> {
            let wrong =
                |_| PyTypeError::new_err(format!("messages: expected {{'role': ..., 'content': ...}}, found {one}"));
            one.get_item(name).map_err(wrong)?.extract().map_err(|error: PyErr| wrong(error))
        };
        let role = part("role")?;
        let known = [Role::System, Role::User, Role::Assistant].into_iter().find(|known| known.name() == role);
        let wrong = || PyValueError::new_err(format!("role: expected system, user or assistant, found {role:?}"));
        Ok(Message { role: known.ok_or_else(wrong)?, content: part("content")? })
    };
    given.try_iter()?.map(|one| message(one?)).collect()
}

/// The machine that keywords ask for.
fn machine(threads: Option<usize>, precision: &str, simd: Option<&str>, device: &str) -> PyResult<Machine> {
    let all = Machine::default();
    let wrong = |name: &str, error: &dyn std::fmt::Display| PyValueError::new_err(format!("{name}: {error}"));
    if threads.is_some_and(|threads| !(1..=1024).contains(&threads)) {
        return Err(wrong("threads", &format!("expected 1 to 1024, found {}", threads.unwrap_or(0))));
    }
    Ok(Machine {
        threads: threads.unwrap_or(all.threads),
        clock: all.clock.filter(|_| threads.is_none()),
        precision: parse_axis(precision).map_err(|error| wrong("precision", &error))?,
        level: match simd {
            Some(name) => limpid::numeric::simd::Level::named(name).map_err(|error| wrong("simd", &error))?,
            None => all.level,
        },
        device: parse_axis::<Device>(device).map_err(|error| wrong("device", &error))?,
        ..all
    })
}

impl Lm {
    fn get(&self) -> PyResult<Arc<limpid::Lm>> {
        self.lm.with(|lm| lm.clone())
    }

    /// Work of the library, without holding up other threads of Python.
    fn run<T: Send>(
        &self,
        py: Python,
        work: impl FnOnce(Arc<limpid::Lm>) -> Result<T, limpid::Error> + Send,
    ) -> PyResult<T> {
        let lm = self.get()?;
        py.detach(|| work(lm).map_err(raised))
    }

    /// What continues a prompt: its ids, with the options of a model that was trained on conversations.
    fn prompt(lm: &limpid::Lm, prompt: Prompt, options: &mut Options) -> PyResult<Vec<u32>> {
        if lm.chat_template().is_some_and(is_template) && lm.tokenizer().is_ok() {
            options.stop.push(END.into());
        }
        match prompt {
            Prompt::Text(text) => lm.prompt_ids(&text).map_err(raised),
            Prompt::Ids(ids) => Ok(ids),
        }
    }

    fn generated(lm: &limpid::Lm, py: Python, ids: &[u32], options: &Options) -> PyResult<Sample> {
        py.detach(|| {
            let mut watch = Watch::new();
            let done = lm.generate_events(ids, options, &mut |_: GenerateEvent| watch.goes_on());
            watch.end(done).map(Sample)
        })
    }
}

#[pymethods]
impl Lm {
    /// Opens a model: a folder of limpid's or HuggingFace's, a .gguf, a .bin of llm.c's, an adapter, or a state that a
    /// run kept.
    #[staticmethod]
    #[pyo3(signature = (path, *, threads = None, precision = "f32", simd = None, device = "cpu"))]
    fn open(
        py: Python,
        path: PathBuf,
        threads: Option<usize>,
        precision: &str,
        simd: Option<&str>,
        device: &str,
    ) -> PyResult<Lm> {
        let machine = machine(threads, precision, simd, device)?;
        py.detach(|| limpid::Lm::open(path).map_err(raised)).map(|lm| lm.with_machine(machine).into())
    }

    /// Which transformer it is: the settings of `config.json`, a dictionary.
    #[getter]
    fn config(&self, py: Python) -> PyResult<Py<PyAny>> {
        Ok(pythonize(py, self.get()?.config())?.unbind())
    }

    /// Its tokenizer.
    #[getter]
    fn tokenizer(&self) -> PyResult<Tokenizer> {
        self.get()?.tokenizer().cloned().map(Tokenizer::new).map_err(raised)
    }

    /// Its parameters: a mapping from names to tensors.
    #[getter]
    fn parameters(&self) -> PyResult<Parameters> {
        let lm = self.get()?;
        let shapes = lm.parameters().map_err(raised)?;
        Ok(Parameters { lm: Local::new(lm), shapes })
    }

    /// Continues a prompt, a text or ids; from the beginning of a text if it is empty. The prompt is not part of the
    /// sample.
    #[pyo3(signature = (prompt = Prompt::Text(String::new()), **choosing), text_signature = "($self, prompt='', *, max_tokens=200, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, seed=1337, sample=0, stop=(), overflow='slide-half')")]
    fn generate(&self, py: Python, prompt: Prompt, choosing: Option<&Bound<PyDict>>) -> PyResult<Sample> {
        let (lm, mut options) = (self.get()?, options(choosing)?);
        let ids = Lm::prompt(&lm, prompt, &mut options)?;
        Lm::generated(&lm, py, &ids, &options)
    }

    /// The same, as an iterator over pieces of text: whole characters, computed when they are asked for.
    #[pyo3(signature = (prompt = Prompt::Text(String::new()), **choosing), text_signature = "($self, prompt='', *, max_tokens=200, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, seed=1337, sample=0, stop=(), overflow='slide-half')")]
    fn stream(&self, prompt: Prompt, choosing: Option<&Bound<PyDict>>) -> PyResult<Stream> {
        let (lm, mut options) = (self.get()?, options(choosing)?);
        let ids = Lm::prompt(&lm, prompt, &mut options)?;
        Stream::new(lm, &ids, &options)
    }

    /// Answers the last message of a conversation, `[{"role": "user", "content": "..."}]`, or one text. For models that
    /// were trained on conversations.
    #[pyo3(signature = (messages, **choosing), text_signature = "($self, messages, *, max_tokens=200, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, seed=1337, sample=0, stop=(), overflow='slide-half')")]
    fn chat(&self, py: Python, messages: &Bound<PyAny>, choosing: Option<&Bound<PyDict>>) -> PyResult<Sample> {
        let (lm, asked) = (self.get()?, self::messages(messages)?);
        let (ids, options) = lm.chat_prompt(&asked, &options(choosing)?).map_err(raised)?;
        Lm::generated(&lm, py, &ids, &options)
    }

    /// The same, as an iterator over pieces of the answer.
    #[pyo3(signature = (messages, **choosing), text_signature = "($self, messages, *, max_tokens=200, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, seed=1337, sample=0, stop=(), overflow='slide-half')")]
    fn chat_stream(&self, messages: &Bound<PyAny>, choosing: Option<&Bound<PyDict>>) -> PyResult<Stream> {
        let (lm, asked) = (self.get()?, self::messages(messages)?);
        let (ids, options) = lm.chat_prompt(&asked, &options(choosing)?).map_err(raised)?;
        Stream::new(lm, &ids, &options)
    }

    /// How likely `continuation` is after `prompt`: the logarithm of each token's probability, in nats. Their sum is
    /// the whole's.
    fn score(&self, py: Python, prompt: &str, continuation: &str) -> PyResult<Vec<f64>> {
        self.run(py, |lm| Ok(lm.score(prompt, continuation)?.log_probs))
    }

    /// The loss on a text, a file or a name that `--data` takes, in windows of the context: a dictionary with `loss` in
    /// nats a token, `perplexity` and `tokens`.
    fn evaluate(&self, py: Python, data: &str) -> PyResult<Py<PyAny>> {
        let score = self.run(py, |lm| lm.evaluate(&TextSource::new(data)))?;
        let said = json!({ "loss": score.loss(), "perplexity": score.perplexity(), "tokens": score.tokens });
        Ok(pythonize(py, &said)?.unbind())
    }

    /// A text as one vector, a float32 tensor `[d_model]`: the hidden states before the head, pooled (`mean`, `last`,
    /// `first`, ...).
    #[pyo3(signature = (text, pooling = "mean"))]
    fn embed(&self, py: Python, text: &str, pooling: &str) -> PyResult<Tensor> {
        let pooling = pooling.parse().map_err(raised)?;
        let values = self.run(py, |lm| lm.embed(text, pooling))?;
        let shape = vec![values.len()];
        Ok(Arc::new(limpid::trace::NamedTensor { name: "embedding".into(), axes: vec!["d_model"], shape, values })
            .into())
    }

    /// What a unit of a layer's MLP responds to in a text (without one, in the built-in stories that no training has
    /// seen), and which tokens it makes likelier and less likely where it responds most: a dictionary. What is found is
    /// kept in a file beside the model.
    #[pyo3(signature = (layer, unit, text = None))]
    fn unit<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        unit: usize,
        text: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lm = self.get()?;
        let found = self.run(py, |lm| {
            let text = match &text {
                None => UnitText::stories(lm.tokenizer()?)?,
                Some(text) => UnitText::new("the text that you gave", lm.tokenizer()?.encode(text)?),
            };
            let budget = Arc::default();
            let places = lm.unit_places(&text, &budget)?;
            let page = places.page(layer, unit)?;
            let words = lm.unit_writes(&places, &page, &budget)?;
            Ok((places, page, words))
        })?;
        let (places, page, words) = found;
        let pairs = |all: &[(u32, f32)]| all.iter().map(|(id, by)| json!([word(&lm, *id), by])).collect::<Vec<_>>();
        let context = |one: &UnitContext| {
            let tokens: Vec<String> = one.tokens.iter().map(|id| word(&lm, *id)).collect();
            json!({ "tokens": tokens, "at": one.at, "position": one.position, "value": one.value })
        };
        let told = json!({
            "unit": page.name(), "text": places.text, "tokens": places.tokens.len(), "fires": page.fires,
            "contexts": page.contexts.iter().map(context).collect::<Vec<_>>(),
            "raised": pairs(&words.raised), "lowered": pairs(&words.lowered),
        });
        Ok(pythonize(py, &told)?)
    }

    /// Finds the direction that tells positive texts from negative ones in each layer, from pairs of them: a dictionary
    /// of what it is, how well it tells pairs apart that it was not made from, and what the model writes with the best
    /// one added and projected out (`docs/interventions.md`). Of four pairs or more the last quarter is held out,
    /// unless there are `test_pairs`.
    #[pyo3(
        signature = (pairs, *, test_pairs = vec![], site = "resid_post", method = "mean", prompt = None, write = 12),
        text_signature = "($self, pairs, *, test_pairs=[], site='resid_post', method='mean', prompt=None, write=12)"
    )]
    #[allow(clippy::too_many_arguments)] // keywords
    fn direction<'py>(
        &self,
        py: Python<'py>,
        pairs: Vec<(String, String)>,
        test_pairs: Vec<(String, String)>,
        site: &str,
        method: &str,
        prompt: Option<String>,
        write: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let method: DirectionMethod =
            method.parse().map_err(|error| PyValueError::new_err(format!("method: {error}")))?;
        let told = self.run(py, |lm| {
            let ids = |all: &[(String, String)]| -> Result<Vec<[Vec<u32>; 2]>, limpid::Error> {
                all.iter().map(|(a, b)| Ok([lm.encode(a)?, lm.encode(b)?])).collect()
            };
            let (given, test_pairs) = (ids(&pairs)?, ids(&test_pairs)?);
            let shown = match &prompt {
                Some(text) => lm.encode(text)?,
                None => given.first().map_or(vec![], |pair| pair[1].clone()),
            };
            let held_out = if test_pairs.is_empty() && given.len() >= 4 { 0.25 } else { 0.0 };
            let site = site.to_string();
            let found = lm.directions(&DirectionQuestion {
                test_pairs,
                site,
                method,
                held_out,
                ..DirectionQuestion::new(given)
            })?;
            let best = found.best().filter(|_| write > 0);
            let effects =
                best.map(|best| lm.direction_effects(&found, best, &shown, write)).transpose()?.unwrap_or_default();
            let best = found.best().map(|best| best.layer);
            Ok(json!({ "pairs": found.pairs, "held_out": found.held_out, "chance": 0.5, "layers": found.layers,
                "best": best, "effects": effects }))
        })?;
        Ok(pythonize(py, &told)?)
    }

    /// Fills every `[MASK]` of a text, with a model of masked tokens: the text.
    fn fill(&self, py: Python, text: &str) -> PyResult<String> {
        self.run(py, |lm| Ok(lm.fill(text)?.text))
    }

    /// Writes the model with its tokenizer: `limpid`, `huggingface`, `gguf` or `llmc`. Matrices are stored as they
    /// were, or as `dtype`.
    #[pyo3(signature = (path, format = "limpid", dtype = None))]
    fn save(&self, py: Python, path: PathBuf, format: &str, dtype: Option<&str>) -> PyResult<()> {
        let format = parse_axis(format).map_err(|error| PyValueError::new_err(format!("format: {error}")))?;
        let dtype = dtype.map(str::parse::<Dtype>).transpose();
        let dtype = dtype.map_err(|error| PyValueError::new_err(format!("dtype: {error}")))?;
        self.run(py, |lm| match &dtype {
            Some(dtype) => lm.save_as(path, format, dtype),
            None => lm.save(path, format),
        })
    }

    /// Runs a prompt, a text or ids, and gives every tensor of the run by name: `lm.trace("To
    /// be")["blocks.0.attn.hook_pattern"]`.
    fn trace(&self, py: Python, prompt: Prompt) -> PyResult<Trace> {
        let lm = self.get()?;
        let ids = prompt.ids(&lm)?;
        let run = self.run(py, |lm| lm.trace_ids(&ids, Keep::default()))?;
        Ok(Trace::new(run, |id| word(&lm, id)))
    }

    /// Gradients at the tensors and parameters of these names: of the loss of a prompt, or, with `answer`, of that
    /// token's log-probability (with `rather_than` of the difference of their logits) at `position`. A dictionary of
    /// tensors with the shapes of their names.
    #[pyo3(
        signature = (prompt, names, *, answer = None, rather_than = None, position = -1),
        text_signature = "($self, prompt, names, *, answer=None, rather_than=None, position=-1)"
    )]
    fn gradients<'py>(
        &self,
        py: Python<'py>,
        prompt: Prompt,
        names: Several<String>,
        answer: Option<Token>,
        rather_than: Option<Token>,
        position: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let lm = self.get()?;
        let metric = metric(&lm, answer, rather_than, "loss")?;
        let ids = prompt.ids(&lm)?;
        let found = self.run(py, |lm| lm.metric_gradients(&ids, (metric, position), &names.0))?;
        let all = PyDict::new(py);
        for (name, slopes) in names.0.into_iter().zip(found) {
            all.set_item(name, Py::new(py, Tensor::from(Arc::new(slopes)))?)?;
        }
        Ok(all)
    }

    /// The same model with every run changed: steps are dictionaries, as docs/interventions.md has them. Both share the
    /// weights, and this one stays as it is.
    fn intervene(&self, py: Python, steps: &Bound<PyAny>) -> PyResult<Lm> {
        let steps: Interventions =
            as_json(steps)?.parse().map_err(|error: InterventionError| raised(limpid::Error::from(error)))?;
        self.run(py, |lm| lm.intervene(&steps)).map(Lm::from)
    }

    /// The steps that change its runs.
    #[getter]
    fn interventions(&self, py: Python) -> PyResult<Py<PyAny>> {
        Ok(pythonize(py, &steps(&*self.get()?))?.unbind())
    }

    /// The same model without its interventions.
    fn without_interventions(&self) -> PyResult<Lm> {
        Ok(self.get()?.without_interventions().into())
    }

    /// Runs `corrupt` many times, each time with one activation of `clean` in its place, and measures how much of the
    /// clean run's behaviour each restores (activation patching). `by` is `head`, `position` or `pair`; the metric is
    /// the answer's logit less that of `rather_than`, its log-probability, or without an answer `metric`: `kl` or
    /// `loss`. `to` and `to_heads` follow paths (path patching); `estimate` takes gradients instead of runs.
    #[pyo3(
        signature = (clean, corrupt, *, site = "resid_pre", by = "head", answer = None, rather_than = None,
        metric = "kl", position = -1,
            to = None, to_heads = None, estimate = false, confirm = false),
        text_signature = "($self, clean, corrupt, *, site='resid_pre', by='head', answer=None, rather_than=None, metric='kl', position=-1, to=None, to_heads=None, estimate=False, confirm=False)"
    )]
    #[allow(clippy::too_many_arguments)] // keywords
    fn sweep(
        &self,
        py: Python,
        clean: Prompt,
        corrupt: Prompt,
        site: &str,
        by: &str,
        answer: Option<Token>,
        rather_than: Option<Token>,
        metric: &str,
        position: i64,
        to: Option<String>,
        to_heads: Option<Several<usize>>,
        estimate: bool,
        confirm: bool,
    ) -> PyResult<Sweep> {
        let lm = self.get()?;
        let wrong = || PyValueError::new_err(format!("by: expected 'head', 'position' or 'pair', found {by:?}"));
        let by = SweepBy::named(by).ok_or_else(wrong)?;
        let question = SweepQuestion {
            clean: clean.ids(&lm)?,
            corrupt: corrupt.ids(&lm)?,
            site: site.parse::<SweepSite>().map_err(raised)?,
            by,
            metric: self::metric(&lm, answer, rather_than, metric)?,
            position,
            to: to.map(|tensor| SweepReceiver { tensor, heads: to_heads.map(|Several(heads)| heads) }),
            confirmed: confirm,
        };
        let done = py.detach(|| {
            if estimate {
                return lm.sweep_estimate(&question).map_err(raised);
            }
            let mut watch = Watch::new();
            let done = lm.sweep(&question, &mut |_| watch.goes_on());
            watch.end(done)
        })?;
        Ok(Sweep::new(done, &question.corrupt.iter().map(|id| word(&lm, *id)).collect::<Vec<_>>()))
    }

    /// Why a token is predicted after a prompt rather than another (by default the likeliest two): a dictionary of the
    /// words that turn the answer when they are changed, the parts of the model that carry the difference, and a
    /// `sentence`, every number measured by a run of its own. `corrupt` is another text to measure against.
    #[pyo3(
        signature = (prompt, *, answer = None, rather_than = None, corrupt = None, position = -1),
        text_signature = "($self, prompt, *, answer=None, rather_than=None, corrupt=None, position=-1)"
    )]
    fn why(
        &self,
        py: Python,
        prompt: Prompt,
        answer: Option<Token>,
        rather_than: Option<Token>,
        corrupt: Option<Prompt>,
        position: i64,
    ) -> PyResult<Py<PyAny>> {
        let lm = self.get()?;
        let ids = prompt.ids(&lm)?;
        let corrupt = corrupt.map(|prompt| prompt.ids(&lm)).transpose()?;
        let [answer, foil] = [("answer", answer), ("rather_than", rather_than)]
            .map(|(name, token)| token.map(|token| token.id(name, &lm)).transpose());
        let (answer, foil) = (answer?, foil?);
        let row = position_in(position, ids.len()).filter(|row| *row < ids.len());
        let row = row.ok_or_else(|| PyIndexError::new_err(format!("position: there is no position {position}")))?;
        let found = py.detach(|| {
            let budget = Arc::default();
            let question = ReasonQuestion::new(&lm, (ids, row), [answer, foil], &budget).map_err(raised)?;
            let mut watch = Watch::new();
            let question = ReasonQuestion { corrupt, ..question };
            let done = lm.reason(&question, &budget, &mut |_| watch.goes_on());
            watch.end(done)
        })?;
        Ok(pythonize(py, &found.json(&|id| word(&lm, id)))?.unbind())
    }

    /// The page that looks into a run of this prompt: one HTML file that needs no network. A notebook shows it, and
    /// `save(path)` writes it. A model of at most 64 MB is in it, and runs in the browser, where this limpid was built
    /// with the module for that; else, or with `still`, there are answers about this prompt, in at most `max_bytes`.
    #[pyo3(signature = (prompt, max_bytes = 10_000_000, *, still = false))]
    fn look(&self, py: Python, prompt: &str, max_bytes: usize, still: bool) -> PyResult<Py<PyAny>> {
        let lm = self.get()?;
        let steps = steps(&lm);
        let html = py.detach(|| {
            if !still && let Some(checkpoint) = lm.checkpoint() {
                let json = json!(steps).to_string();
                let changes = (!steps.is_empty()).then_some(("i", json.as_str()));
                let words: Vec<(&str, &str)> =
                    [("v", "map")].into_iter().chain(changes).chain([("p", prompt)]).collect();
                // files that were moved since cannot be read again, and the answers need none
                let page = live::page("model", (checkpoint, lm.machine()), &live::address(&words));
                if let Ok(Some(html)) = page {
                    return Ok(html);
                }
            }
            let mut body = json!({ "prompt": prompt });
            if !steps.is_empty() {
                body["interventions"] = json!(steps);
            }
            let lm = Arc::new(lm.without_interventions());
            let subject = Subject { name: "model".into(), fingerprint: "limpid".into(), step: None, lm };
            saved::page(&subject, (&body, None), max_bytes).map(|page| page.html)
        });
        let html = html.map_err(|error: SaveError| raised(error))?;
        Ok(py.import("limpid")?.call_method1("Page", (html,))?.unbind())
    }

    /// Ends the model here, and lets its memory go. Traces and streams that are open keep what they need.
    fn close(&self) {
        self.lm.close();
    }

    fn __enter__(slf: Py<Lm>) -> Py<Lm> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let Ok(lm) = self.get() else { return "Lm(closed)".into() };
        let tokenizer = lm.tokenizer().map_or("no tokenizer".into(), |own| format!("tokenizer {}", own.name()));
        format!("Lm({}; {tokenizer})", lm.config())
    }
}

/// A value of Python as JSON, by its own module, which finds what refers to itself; arrays become lists.
fn as_json(value: &Bound<PyAny>) -> PyResult<String> {
    let py = value.py();
    let how = PyDict::new(py);
    how.set_item("allow_nan", false)?;
    how.set_item("default", py.import("limpid._run")?.getattr("_plain")?)?;
    py.import("json")?.call_method("dumps", (value,), Some(&how))?.extract()
}

/// What a token looks like.
fn word(lm: &limpid::Lm, id: u32) -> String {
    lm.tokenizer().ok().and_then(|tokenizer| tokenizer.piece(id).ok()).unwrap_or_else(|| id.to_string())
}

/// All steps of a model's interventions, in their order.
fn steps(lm: &limpid::Lm) -> Vec<&Step> {
    lm.interventions().iter().flat_map(|interventions| &interventions.steps).collect()
}

/// What is measured.
fn metric(lm: &limpid::Lm, answer: Option<Token>, foil: Option<Token>, usual: &str) -> PyResult<SweepMetric> {
    match (answer, foil, usual) {
        (Some(answer), foil, _) => {
            let foil = foil.map(|foil| foil.id("rather_than", lm)).transpose()?;
            Ok(SweepMetric::of(answer.id("answer", lm)?, foil))
        }
        (None, Some(_), _) => Err(PyTypeError::new_err("rather_than needs `answer`")),
        (_, _, "loss") => Ok(SweepMetric::Loss),
        (_, _, "kl") => Ok(SweepMetric::Divergence),
        (_, _, other) => Err(PyValueError::new_err(format!("metric: expected 'kl' or 'loss', found {other:?}"))),
    }
}

/// What `generate` wrote. `str(sample)` is its text.
#[pyclass(frozen, module = "limpid")]
pub struct Sample(limpid::generate::Sample);

#[pymethods]
impl Sample {
    /// The text, without the prompt.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// The ids that were chosen.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.0.tokens.clone()
    }

    /// Why it ended: `length`, `stop`, ...
    #[getter]
    fn finish_reason(&self, py: Python) -> PyResult<Py<PyAny>> {
        Ok(pythonize(py, &self.0.finish_reason)?.unbind())
    }

    fn __str__(&self) -> &str {
        &self.0.text
    }

    fn __repr__(&self) -> String {
        format!("Sample({:?}, {} tokens)", self.0.text, self.0.tokens.len())
    }
}

/// Pieces of text as they are written.
#[pyclass(frozen, module = "limpid")]
pub struct Stream {
    stream: Local<SampleStream<Arc<limpid::Lm>>>,
}

impl Stream {
    fn new(lm: Arc<limpid::Lm>, ids: &[u32], options: &Options) -> PyResult<Stream> {
        let stream = SampleStream::new(lm, ids, options).map_err(raised)?;
        Ok(Stream { stream: Local::new(stream) })
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: Py<Stream>) -> Py<Stream> {
        slf
    }

    fn __next__(&self, py: Python) -> PyResult<Option<String>> {
        py.check_signals()?;
        py.detach(|| self.stream.with(|stream| stream.next().transpose().map_err(raised))?)
    }

    /// Ends it early.
    fn close(&self, py: Python) {
        py.detach(|| self.stream.close());
    }
}

/// The parameters of a model: a mapping from names to float32 tensors, each read when it is asked for.
#[pyclass(frozen, mapping, module = "limpid")]
pub struct Parameters {
    lm: Local<Arc<limpid::Lm>>,
    shapes: Vec<(String, Vec<usize>)>,
}

#[pymethods]
impl Parameters {
    /// Their names, in the order of memory.
    fn keys(&self) -> Vec<String> {
        self.shapes.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Every tensor.
    fn values(&self, py: Python) -> PyResult<Vec<Tensor>> {
        self.shapes.iter().map(|(name, _)| self.__getitem__(py, name)).collect()
    }

    /// Every name with its tensor.
    fn items(&self, py: Python) -> PyResult<Vec<(String, Tensor)>> {
        self.shapes.iter().map(|(name, _)| Ok((name.clone(), self.__getitem__(py, name)?))).collect()
    }

    /// The tensor of that name, or `default` if there is none.
    #[pyo3(signature = (name, default = None))]
    fn get(&self, py: Python, name: &str, default: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        match self.__getitem__(py, name) {
            Err(error) if error.is_instance_of::<PyKeyError>(py) => Ok(default),
            found => Ok(Some(Py::new(py, found?)?.into_any())),
        }
    }

    fn __getitem__(&self, py: Python, name: &str) -> PyResult<Tensor> {
        let lm = self.lm.with(|lm| lm.clone())?;
        match py.detach(|| lm.parameter(name)) {
            Ok(tensor) => Ok(Arc::new(tensor).into()),
            Err(limpid::Error::Trace(error @ limpid::trace::TraceError::Unknown { .. })) => {
                Err(PyKeyError::new_err(error.to_string()))
            }
            Err(error) => Err(raised(error)),
        }
    }

    /// Also of a part that has a name of its own, `blocks.0.attn.W_K`, which is in no list.
    fn __contains__(&self, name: &Bound<PyAny>) -> PyResult<bool> {
        let Ok(name) = name.extract::<String>() else { return Ok(false) };
        Ok(self.shapes.iter().any(|(own, _)| *own == name) || self.lm.with(|lm| lm.parameter(&name).is_ok())?)
    }

    fn __iter__(&self, py: Python) -> PyResult<Py<PyAny>> {
        Ok(PyList::new(py, self.keys())?.try_iter()?.into_any().unbind())
    }

    fn __len__(&self) -> usize {
        self.shapes.len()
    }

    fn __repr__(&self) -> String {
        let all: usize = self.shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        format!("Parameters({} tensors, {} numbers)", self.shapes.len(), limpid_base::units::commas(all))
    }
}

/// A token in a text: its id, its text, where it begins and where it ends.
type PlacedToken = (u32, String, Option<usize>, Option<usize>);

/// Texts to ids, and back.
#[pyclass(frozen, module = "limpid")]
pub struct Tokenizer {
    tokenizer: limpid::tokenizer::Tokenizer,
}

impl Tokenizer {
    pub fn new(tokenizer: limpid::tokenizer::Tokenizer) -> Tokenizer {
        Tokenizer { tokenizer }
    }
}

#[pymethods]
impl Tokenizer {
    /// Its kind: `char`, `bpe`, ...
    #[getter]
    fn name(&self) -> &'static str {
        self.tokenizer.name()
    }

    /// How many ids it has.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The ids of a text.
    fn encode(&self, text: &str) -> PyResult<Vec<u32>> {
        self.tokenizer.encode(text).map_err(raised)
    }

    /// The text of ids.
    fn decode(&self, ids: Several<u32, { 1 << 26 }>) -> PyResult<String> {
        self.tokenizer.decode(&ids.0).map_err(raised)
    }

    /// The tokens of a text: of each its id, its text, and where it begins and ends, in characters. Two tokens that
    /// share a character both have it. Where a tokenizer changes the text (lower case, say) there are no places: begin
    /// and end are None.
    fn tokens(&self, text: &str) -> PyResult<Vec<PlacedToken>> {
        let ids = self.tokenizer.encode(text).map_err(raised)?;
        let bytes: Vec<Vec<u8>> = ids.iter().map(|id| self.tokenizer.piece_bytes(*id).unwrap_or_default()).collect();
        let pieces = self.tokenizer.pieces(&ids).map_err(raised)?.into_iter();
        if bytes.concat() != text.as_bytes() {
            return Ok(ids.into_iter().zip(pieces).map(|(id, piece)| (id, piece, None, None)).collect());
        }
        // a character begins with a byte that does not continue one
        let begins = |bytes: &[u8]| bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        let mut end = 0;
        let token = |((id, piece), bytes): ((u32, String), Vec<u8>)| {
            let shares = bytes.first().is_some_and(|first| begins(&[*first]) == 0);
            let begin = end - usize::from(shares);
            end += begins(&bytes);
            (id, piece, Some(begin), Some(end))
        };
        Ok(ids.into_iter().zip(pieces).zip(bytes).map(token).collect())
    }

    fn __len__(&self) -> usize {
        self.vocab_size()
    }

    fn __repr__(&self) -> String {
        format!("Tokenizer({}, {} tokens)", self.name(), self.vocab_size())
    }
}
