//! Models in files, limpid's own and other programs'. limpid keeps a model as a folder with `config.json`,
//! `model.safetensors` and `tokenizer.json`; a run's `state/last.safetensors` adds the optimizer's moments and the step.
//! [`Checkpoint::open`] recognises these, HuggingFace's folders, GGUF and llm.c's files; [`save`] writes all of them.
//!
//! There are two layers. Containers (`store`, `safetensors_file`, `gguf`, `llmc`) are files of named tensors and know nothing of
//! models; they are mapped and checked when opened, and values are decoded on request. `dialect` knows what the names mean. A file is
//! written under another name and then renamed, so a failure leaves the old file unchanged.

pub mod adapter;
mod arrays;
mod carried;
mod control_vector;
mod dialect;
pub mod gguf;
pub mod llmc;
mod quantize;
pub mod safetensors_file;
pub mod store;
mod writing;

pub use adapter::Adapter;
pub use arrays::{NamedArray, axes_of, write_arrays};
pub use carried::{Carried, GENERATION, ORIGIN, SentenceRecipe};
use carried::{chat_template, ends};
pub use control_vector::ControlVector;
use dialect::huggingface::{self, Family};
pub use dialect::regained;
use dialect::{Link, Linked, Names, TensorLayout};
use limpid_base::files;
use limpid_base::plural::plural;
use limpid_base::words::{not_json, system};
use limpid_core::backend::{self, Backend, BackendError};
use limpid_core::config::{Config, ConfigError, axis};
use limpid_core::model::{Model, Param};
use limpid_core::ops::{MemorySpace, Region};
use limpid_tokenizer::Tokenizer;
use std::borrow::Cow;
use std::fs;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use store::{Dtype, Facts, MakeValues, OutputTensor, Store, bad, refuse};

/// The file in a model's folder that says how conversations are written for it, in Jinja, as transformers reads it.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system's answer.
    #[error("{}: {}{}", .path.display(), system(.fault), mend(.fault))]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        fault: io::Error,
    },
    /// Not a directory of a model.
    #[error("{} is not a model directory: it has no {missing}", .path.display())]
    NotAModel {
        /// The directory.
        path: PathBuf,
        /// The file that is not there.
        missing: &'static str,
    },
    /// A model that a format cannot express.
    #[error("{form} cannot express this model: it lacks {what}{}", avoided(.settings))]
    Inexpressible {
        /// The format.
        form: String,
        /// What the model has.
        what: String,
        /// The settings that make a model without that, each a name and its value.
        settings: Vec<String>,
    },
    /// An adapter whose model is not where it was.
    #[error(
        "{}: it is an adapter of the model {}, which is not there: open that model where it is, with this as its adapter",
        .path.display(), .base.display()
    )]
    NoBase {
        /// The adapter.
        path: PathBuf,
        /// Where its model was.
        base: PathBuf,
    },
    /// A file that is not what its name says.
    #[error("{}: {what}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file whose checksum does not match its bytes.
    #[error("{}: {what}; one that was changed on purpose is read without the check", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Both checksums.
        what: String,
    },
    /// Weights that an adapter makes infinite or NaN.
    #[error(
        "`{tensor}` with the adapter is not finite: {was} becomes {with}, because alpha / r = {scale:e} and the adapter's \
         matrices are too large: was its lora_alpha changed?"
    )]
    Unbounded {
        /// The parameter.
        tensor: String,
        /// A weight of it.
        was: f32,
        /// The same with the adapter.
        with: f32,
        /// What the adapter's product is multiplied by.
        scale: f64,
    },
    /// A tensor the model needs.
    #[error("{} has no tensor `{tensor}`, which {} asks for{}", .path.display(), config_of(.path).0, config_of(.path).1)]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error("{}: `{tensor}` is {found:?}, but {} makes it {wanted:?}{}", .path.display(), config_of(.path).0, config_of(.path).1)]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape in the model.
        wanted: Vec<usize>,
    },
    /// A configuration that cannot be built.
    #[error("{}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
    /// A tokenizer that cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] limpid_tokenizer::TokenizerError),
    /// A tokenizer with more ids than the model has rows.
    #[error(
        "{}: the tokenizer `{name}` has {tokens} tokens, the model's vocab_size is {vocab_size}: \
         they do not belong together (was tokenizer.json replaced?)",
        .path.display()
    )]
    Mismatch {
        /// The folder or file that has both.
        path: PathBuf,
        /// The tokenizer.
        name: String,
        /// Its size.
        tokens: usize,
        /// The model's.
        vocab_size: usize,
    },
    /// The backend that holds the values.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Where the configuration of weights in this file is, and what is wrong where they disagree.
fn config_of(weights: &Path) -> (&'static str, &'static str) {
    let ends = |end: &str| weights.extension().is_some_and(|own| own == end);
    let name = weights.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match () {
        () if ends("gguf") => {
            ("its own metadata", ": it was not written whole, or is not a model of this architecture")
        }
        () if ends("bin") => ("its header", ": it was not written whole"),
        () if name == adapter::WEIGHTS => ("its adapter_config.json", ": the two files belong to different adapters"),
        () => ("its config.json", ": the two files belong to different models"),
    }
}

impl CheckpointError {
    /// The same error for a file that was written in the folder `from` and would have been moved to `to`.
    fn moved(self, from: &Path, to: &Path) -> CheckpointError {
        let place = |path: PathBuf| path.strip_prefix(from).map_or(path.clone(), |rest| to.join(rest));
        match self {
            CheckpointError::Io { path, fault } => CheckpointError::Io { path: place(path), fault },
            CheckpointError::Format { path, what } => CheckpointError::Format { path: place(path), what },
            other => other,
        }
    }

    /// The error that was wrapped in an `io::Error`, unwrapped.
    fn inner(self) -> CheckpointError {
        match self {
            CheckpointError::Io { path, fault } => {
                fault.downcast().unwrap_or_else(|fault| CheckpointError::Io { path, fault })
            }
            other => other,
        }
    }
}

/// The settings of a model that the format could express.
fn avoided(settings: &[String]) -> String {
    if settings.is_empty() {
        String::new()
    } else {
        format!("; one trained with {} can be written so", settings.join(", "))
    }
}

impl CheckpointError {
    /// The settings that may help, each a name and its value.
    pub fn settings(&self) -> Vec<String> {
        match self {
            CheckpointError::Inexpressible { settings, .. } => settings.clone(),
            CheckpointError::NoBase { .. } => vec!["model".into(), "adapter".into()],
            CheckpointError::Damaged { .. } => vec!["no_verify".into()],
            _ => vec![],
        }
    }
}

fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => " (free some space; the old files are unchanged)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => " (choose a folder you may write to)",
        _ => "",
    }
}

/// More bytes than any configuration or index has; a larger file by that name is something else.
const LARGEST_JSON: u64 = 64 << 20;

type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Adds the path to an error of the file system.
///
/// # Errors
/// That error.
pub fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|fault| CheckpointError::Io { path: path.into(), fault })
}

/// Reads a file of JSON; `wrong` is what is said of one that is none, or another.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path, wrong: &str) -> Result<T> {
    let text = at(path, files::read_text(path, LARGEST_JSON))?;
    serde_json::from_str(&text).map_err(|error| {
        let said = error.to_string();
        bad(path, format!("{wrong}: {}", not_json(&text, error.line(), error.column(), &said).unwrap_or(said)))
    })
}

/// Replaces `path` by what `write` produces: whole, or not at all.
///
/// # Errors
/// The file system's error; the old file is then unchanged, and no other file is left behind.
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    at(path, files::replace(path, write))
}

/// Replaces a small text file.
///
/// # Errors
/// As [`replace`].
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    replace(path, |path| files::OutputFile::create(path)?.write_all(text.as_bytes()))
}

/// How many elements are read from a backend at once; at least a row.
const PART: usize = 1 << 20;

/// The parameters that a run keeps in the given memory: moments are of those that learn.
pub fn kept(model: &Model, space: MemorySpace) -> impl Iterator<Item = &Param> {
    model.kept().filter(move |p| space == MemorySpace::Param || p.region.learns())
}

/// A parameter's place in the given memory.
pub fn place(param: &Param, space: MemorySpace) -> Region {
    if space == MemorySpace::Param { param.region } else { param.region.in_space(space) }
}

/// A tensor of the given memory, parameter by parameter, with a prefix to its name.
fn stored<'a>(model: &'a Model, read: Reader<'a>, space: MemorySpace, prefix: &str) -> Vec<OutputTensor<'a>> {
    let one = |param: &'a Param| {
        let whole = place(param, space);
        // heads stay together, within which features change their places
        let together = param.order.map_or(1, |order| order.d_head);
        let step = (PART / whole.cols.max(1) / together).max(1) * together;
        let rows = move |from: usize| {
            let rows = step.min(whole.rows - from);
            Region { at: whole.at + from * whole.cols, rows, ..whole }
        };
        let shown = move |from: usize, values: Vec<f32>| match param.order {
            Some(order) if param.is_matrix() => order.part(from, step).show(&values, whole.cols),
            Some(order) => order.show(&values, 1),
            None => values,
        };
        let part = move |from| Box::new(move || Ok(shown(from, read(rows(from))?))) as MakeValues<'a>;
        let values = (0..whole.rows).step_by(step).map(part).collect();
        OutputTensor::new(format!("{prefix}{}", param.name), Dtype::F32, param.shape(), values)
    };
    kept(model, space).map(one).collect()
}

/// Reads a tensor: from a backend, or from wherever it lies.
type Reader<'a> = &'a dyn Fn(Region) -> backend::Result<Vec<f32>>;

/// What transformers asks of a safetensors file.
fn format_pt() -> Facts {
    Facts::from([("format".to_string(), "pt".to_string())])
}

/// Writes the parameters to `path`, a safetensors file.
///
/// # Errors
/// The file system's error; the old file is then unchanged.
pub fn save_parameters(path: &Path, model: &Model, backend: &dyn Backend) -> Result<()> {
    safetensors_file::write(path, stored(model, &|region| backend.read(region), MemorySpace::Param, ""), format_pt())
}

/// The file in `folder` that holds what a run keeps: `model.safetensors`, or the adapter alone where there is one.
pub fn weights_path(folder: &Path, model: &Model) -> PathBuf {
    folder.join(if model.tuning.lora.is_none() { "model.safetensors" } else { adapter::WEIGHTS })
}

/// Writes what a run keeps to `folder`, with the step it is of and a checksum. Returns the checksum.
///
/// # Errors
/// As [`save_parameters`].
pub fn save_weights(folder: &Path, model: &Model, backend: &dyn Backend, step: u64) -> Result<String> {
    let read = |region| backend.read(region);
    let tensors = match model.tuning.lora {
        None => stored(model, &read, MemorySpace::Param, ""),
        Some(_) => adapter::tensors(folder, model, backend)?,
    };
    let mut facts = format_pt();
    facts.insert("step".into(), step.to_string());
    safetensors_file::write_summed(&weights_path(folder, model), tensors, facts)
}

/// The checksum of what [`save_weights`] wrote, and the step it is of.
///
/// # Errors
/// If the file cannot be read, or is not what was written.
pub fn check_weights(folder: &Path, model: &Model) -> Result<(String, u64)> {
    let path = weights_path(folder, model);
    let (store, sum) = safetensors_file::open_summed(&path)?;
    let step = store.fact("step").and_then(|step| step.parse().ok());
    Ok((sum, step.ok_or_else(|| bad(&path, "it does not say of which step it is"))?))
}

/// Reads what [`save_weights`] wrote.
///
/// # Errors
/// As [`load`].
pub fn load_weights(folder: &Path, model: &Model, backend: &mut dyn Backend) -> Result<()> {
    match model.tuning.lora {
        None => {
            load(&safetensors_file::open(&folder.join("model.safetensors"))?, model, backend, "", MemorySpace::Param)
        }
        Some(_) => adapter::load(folder, model, backend),
    }
}

/// Writes `memories`, each with a prefix to its tensors' names, to `path`, with `state` (JSON) and a checksum in the metadata.
///
/// # Errors
/// As [`save_parameters`].
pub fn save_state(
    path: &Path,
    model: &Model,
    read: &dyn Fn(Region) -> backend::Result<Vec<f32>>,
    memories: &[(&str, MemorySpace)],
    state: String,
) -> Result<()> {
    let tensors = memories.iter().flat_map(|(prefix, space)| stored(model, read, *space, prefix)).collect();
    safetensors_file::write_summed(path, tensors, Facts::from([("limpid".to_string(), state)])).map(drop)
}

/// Our own names of some parameters, with a prefix for the tensors of another memory.
fn own_links<'a>(prefix: &str, params: impl Iterator<Item = &'a Param>) -> Vec<Link> {
    let layout = |p: &Param| p.order.map_or(TensorLayout::Same, TensorLayout::Features);
    params.map(|p| Link::whole(format!("{prefix}{}", p.name), p, layout(p))).collect()
}

/// Reads what [`save_parameters`] or [`save_state`] wrote: the parameters, or another memory with its prefix.
///
/// # Errors
/// If a tensor is missing, unexpected or of another shape; the backend is then unchanged.
pub fn load(store: &Store, model: &Model, backend: &mut dyn Backend, prefix: &str, space: MemorySpace) -> Result<()> {
    let wanted = |name: &str| if prefix.is_empty() { !name.contains('/') } else { name.starts_with(prefix) };
    let names = dialect::names(store, |name| wanted(name).then(|| name.into()))?;
    Linked { links: &own_links(prefix, kept(model, space)), model, store, names: &names }.load(backend, space)
}

/// Looks up the values of a parameter, or of another memory of it, in what [`save_state`] wrote. They may be missing or of
/// another shape.
pub fn state_values<'a>(
    store: &'a Store,
    model: &'a Model,
    prefix: &str,
    space: MemorySpace,
) -> impl Fn(&Param) -> Result<Cow<'a, [f32]>> {
    let links = own_links(prefix, kept(model, space));
    let names = store.names().map(|name| (name.to_string(), name.to_string())).collect();
    move |param| Linked { links: &links, model, store, names: &names }.values(param)
}

axis! {
    /// Whose files a model is kept in.
    Format, "format" {
        /// limpid's own folder.
        Limpid = "limpid",
        /// A folder of HuggingFace's transformers.
        HuggingFace = "hf",
        /// llama.cpp's GGUF, one file.
        Gguf = "gguf",
        /// llm.c's `.bin`, one file.
        Llmc = "llmc",
    }
}

/// Whose names the tensors have.
#[derive(Clone, Copy)]
enum Dialect {
    Own,
    HuggingFace(&'static Family),
    /// Whether queries, keys and values are one tensor.
    Gguf(&'static dialect::gguf::Architecture, bool),
    Llmc,
}

impl Dialect {
    fn links(self, model: &Model) -> Vec<Link> {
        match self {
            Dialect::Own => own_links("", model.params.iter().filter(|p| !p.is_adapter())),
            Dialect::HuggingFace(family) => family.links(model),
            Dialect::Gguf(kind, fused) => kind.links(model, fused),
            Dialect::Llmc => dialect::llmc::links(model),
        }
    }
}

/// A model in its files, opened and fitted together; the weights are still in their files.
pub struct Checkpoint {
    /// The folder or file.
    pub path: PathBuf,
    /// Whose files they are.
    pub format: Format,
    /// Which transformer.
    pub config: Config,
    /// Its tokenizer, if there is one.
    pub tokenizer: Option<Tokenizer>,
    /// How conversations are written for it, in Jinja, if it was trained on any: chat_template.jinja or what
    /// tokenizer_config.json or GGUF has in its place. `data::chat` knows ours.
    pub chat_template: Option<String>,
    /// Tensors in the files on which no result depends; they are left out when the model is written.
    pub left_out: Vec<String>,
    /// What its folder has beside all this, which goes along when the model is written.
    pub carried: Carried,
    /// The adapters that are merged into its weights.
    pub adapters: Vec<Adapter>,
    /// What a GGUF file says beside its tokenizer's tables: of its author, its license, how it was made.
    pub metadata: gguf::Metadata,
    /// Its keys that change no number and that limpid writes to GGUF only.
    pub unused: Vec<String>,
    /// The tokens that end a text or a turn, by a folder's files.
    ends: Vec<u32>,
    /// The ids of tokens that its files do not have.
    added: Range<usize>,
    /// Whether checksums are held against the bytes, an adapter's too.
    verified: bool,
    dialect: Dialect,
    store: Store,
    names: Names,
}

/// A table with rows that no token has.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PaddedTable {
    /// The tensor's name in the file.
    pub tensor: String,
    /// The rows that it has.
    pub rows: usize,
    /// How many of them, the first, are read.
    pub read: usize,
}

impl Checkpoint {
    /// Opens `path` and recognises what it is: a folder of limpid's or HuggingFace's, a `.gguf`, llm.c's `.bin`, or an adapter whose
    /// base model is where the adapter says. The checkpoint reads weights in place, so no program may write into the files while it
    /// exists; replace files by renaming new ones.
    ///
    /// # Errors
    /// If a file is missing, damaged, unsupported, or does not fit the others; the error names the file and the reason.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        Checkpoint::open_as(path, true)
    }

    /// [`Checkpoint::open`], with (`verified`) or without checking the checksums in limpid's files. The check runs once, before the first
    /// value is read. Other programs' files have no checksums.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_as(path: &Path, verified: bool) -> Result<Checkpoint> {
        if adapter::is_one(path) {
            return Checkpoint::open_adapter(path, verified);
        }
        let about = at(path, fs::metadata(path))?;
        let opened = if about.is_dir() {
            Checkpoint::open_folder(path)?
        } else if about.is_file() {
            Checkpoint::open_file(path)?
        } else {
            return refuse(path, "it is a pipe or a device: a model is a folder or a file");
        };
        if let Some(t) = &opened.tokenizer
            && t.vocab_size() > opened.config.vocab_size
        {
            let (name, tokens, vocab_size) = (t.name().to_string(), t.vocab_size(), opened.config.vocab_size);
            return Err(CheckpointError::Mismatch { path: path.into(), name, tokens, vocab_size });
        }
        let blocks = if opened.config.shared_blocks { 1 } else { opened.config.n_layer };
        let tensors = opened.store.names().count();
        // queries, keys and values, what follows them, and two of the feed-forward network
        if blocks > tensors / 4 {
            let blocks = plural(blocks, "block");
            let what =
                format!("its configuration has {blocks} of 4 tensors or more, but there are only {tensors} tensors");
            return refuse(opened.store.path(), what);
        }
        let model = opened.outline()?;
        opened.linked(&opened.dialect.links(&model), &model).check()?;
        let store = if verified { opened.store } else { opened.store.unverified() };
        let opened = Checkpoint { store, verified, ..opened };
        if about.is_dir() && adapter::is_in(path) { opened.with_adapter(path) } else { Ok(opened) }
    }

    /// The same with a tokenizer that has more tokens. Their rows, in the token table and in the head, are the mean of all others' (Hewitt 2021):
    /// beside them no other token's probability changes much.
    #[must_use]
    pub fn with_more_tokens(self, tokenizer: Tokenizer) -> Checkpoint {
        let had = self.tokenizer.as_ref().map_or(self.config.vocab_size, Tokenizer::vocab_size);
        Checkpoint { added: had..tokenizer.vocab_size().max(had), tokenizer: Some(tokenizer), ..self }
    }

    /// The values of a parameter with a row for each token, with those of the added ones, as `model` has them.
    fn with_added_rows(&self, model: &Model, param: &Param) -> Result<Option<Vec<f32>>> {
        if self.added.is_empty() || !param.is_vocabulary() {
            return Ok(None);
        }
        let own = self.outline()?;
        let stored = own.param(&param.name).expect("the models differ in rows alone");
        let mut values = self.linked(&self.dialect.links(&own), &own).values(stored)?.into_owned();
        let cols = values.len() / own.config.vocab_size;
        let (known, all) = (self.added.start, model.config.vocab_size);
        let mean = |col: usize| {
            let sum: f64 = (0..known).map(|row| f64::from(values[row * cols + col])).sum();
            (sum / known as f64) as f32
        };
        let mean: Vec<f32> = (0..cols).map(mean).collect();
        values.truncate(known * cols);
        values.extend(mean.iter().cycle().take((all - known) * cols));
        Ok(Some(values))
    }

    /// A model of its parameters, and its files.
    fn linked<'m, 's: 'm>(&'s self, links: &'m [Link], model: &'m Model) -> Linked<'m, 's> {
        Linked { links, model, store: &self.store, names: &self.names }
    }

    fn outline(&self) -> Result<Model> {
        dialect::outline(&self.config).map_err(|source| CheckpointError::Config { path: self.path.clone(), source })
    }

    /// A configuration and its weights, with nothing beside them.
    fn bare(
        path: PathBuf,
        (format, dialect): (Format, Dialect),
        config: Config,
        store: Store,
        names: Names,
    ) -> Checkpoint {
        Checkpoint {
            path,
            format,
            config,
            tokenizer: None,
            chat_template: None,
            left_out: vec![],
            carried: Carried::default(),
            adapters: vec![],
            metadata: gguf::Metadata::default(),
            unused: vec![],
            added: 0..0,
            ends: vec![],
            verified: true,
            dialect,
            store,
            names,
        }
    }

    fn open_folder(path: &Path) -> Result<Checkpoint> {
        let config_path = path.join("config.json");
        if !config_path.exists() {
            return Err(CheckpointError::NotAModel { path: path.into(), missing: "config.json" });
        }
        let text = at(&config_path, files::read_text(&config_path, LARGEST_JSON))?;
        let bad_config = |source| CheckpointError::Config { path: config_path.clone(), source };
        let tokenizer = Tokenizer::open(path)?;
        let chat_template = chat_template(path)?;
        let path = path.to_path_buf();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        if value["model_type"] == "limpid" || value["model_type"].is_null() && !value["d_model"].is_null() {
            let checked = |config: Config| config.check().map(|()| config);
            let config = Config::from_json(&text).and_then(checked).map_err(bad_config)?;
            let store = open_weights(&path)?;
            let names = dialect::names(&store, |name| Some(name.into()))?;
            let (carried, ends) = (Carried::open(&path, None)?, ends(&path)?);
            let bare = Checkpoint::bare(path, (Format::Limpid, Dialect::Own), config, store, names);
            return Ok(Checkpoint { tokenizer, chat_template, carried, ends, ..bare });
        }
        let (family, config, ignored) = huggingface::read(&text).map_err(bad_config)?;
        let store = open_weights(&path)?;
        let has = |name: &str| {
            let there = |name: &str| store.names().any(|n| n.ends_with(name));
            there(name) || family.copies().iter().any(|(copy, of)| *of == name && there(copy))
        };
        let config = family.fit(config, has).map_err(bad_config)?;
        let (config, instead) = settle_copies(family, config, &store);
        let mut names = dialect::names(&store, |name| family.tidy(name, &config))?;
        let mut left_out: Vec<String> =
            store.names().filter(|name| family.tidy(name, &config).is_none()).map(String::from).collect();
        for (of, copy) in instead {
            left_out.retain(|name| *name != copy);
            left_out.extend(names.insert(of.into(), copy));
        }
        let mut carried = Carried::open(&path, Some(text.as_str()))?;
        carried.ignored = ignored;
        let ends = ends(&path)?;
        let whose = (Format::HuggingFace, Dialect::HuggingFace(family));
        let bare = Checkpoint::bare(path, whose, config, store, names);
        Ok(Checkpoint { tokenizer, chat_template, left_out, carried, ends, ..bare })
    }

    fn open_file(path: &Path) -> Result<Checkpoint> {
        let mut first = [0; 16];
        let n = at(path, files::open_regular(path).and_then(|mut f| f.read(&mut first)))?;
        if first.starts_with(b"GGUF") {
            let (metadata, store) = gguf::open(path)?;
            dialect::gguf::is_model(&metadata, &store)?;
            let dialect::gguf::GgufModel { kind, config, fused, unused } = dialect::gguf::read(&metadata, &store)?;
            let names = dialect::names(&store, |name| dialect::gguf::holds(name, &config).then(|| name.into()))?;
            let tokenizer = dialect::gguf_vocabulary::read_tokenizer(&metadata, path)?;
            let chat_template = metadata.maybe(dialect::gguf::CHAT_TEMPLATE, gguf::Metadata::str)?.map(String::from);
            let metadata = metadata.without(dialect::gguf_vocabulary::is_tokens);
            let whose = (Format::Gguf, Dialect::Gguf(kind, fused));
            let bare = Checkpoint::bare(path.into(), whose, config, store, names);
            return Ok(Checkpoint { tokenizer, chat_template, metadata, unused, ..bare });
        }
        if safetensors_file::looks_like_pickle(&first[..n]) {
            return Err(safetensors_file::pickle(path));
        }
        if path.extension().is_some_and(|e| e == "safetensors") {
            return Checkpoint::open_kept(path);
        }
        if !llmc::looks_like_one(&first[..n]) && path.extension().is_none_or(|e| e != "bin") {
            let what = "it is not a model: limpid opens a folder with config.json and safetensors, a .gguf, or a .bin of llm.c";
            return refuse(path, what);
        }
        let (header, store) = llmc::open(path)?;
        let config =
            dialect::llmc::read(&header).map_err(|source| CheckpointError::Config { path: path.into(), source })?;
        let names = dialect::names(&store, |name| Some(name.into()))?;
        let beside = Tokenizer::open(path.parent().unwrap_or(Path::new(".")))?;
        let gpt2 = || Tokenizer::named("gpt2").ok();
        let tokenizer = beside.or_else(gpt2).filter(|t| t.vocab_size() == config.vocab_size);
        let bare = Checkpoint::bare(path.into(), (Format::Llmc, Dialect::Llmc), config, store, names);
        Ok(Checkpoint { tokenizer, ..bare })
    }

    /// Other weights of a folder of limpid's, which lie in a folder below it: those that a run kept, with moments as `moment1/NAME`.
    fn open_kept(path: &Path) -> Result<Checkpoint> {
        let whole = at(path, path.canonicalize())?;
        let above = whole.parent().and_then(Path::parent);
        let Some(above) = above.filter(|above| above.join("config.json").is_file()) else {
            return refuse(path, "it is the weights alone: give the folder that it is in, with config.json beside it");
        };
        let model = Checkpoint::open_folder(above)?;
        let store = safetensors_file::open(path)?;
        let names = dialect::names(&store, |name| (!name.contains('/')).then(|| name.into()))?;
        Ok(Checkpoint { path: path.into(), store, names, ..model })
    }

    /// Writes the weights into a backend made for `model`.
    ///
    /// # Errors
    /// If a tensor is missing, has another shape, or has a type that limpid cannot read; the backend is then unchanged.
    pub fn load(&self, model: &Model, backend: &mut dyn Backend) -> Result<()> {
        if !self.added.is_empty() {
            let own = self.outline()?;
            self.linked(&self.dialect.links(&own), &own).check()?;
            for param in model.params.iter().filter(|p| !p.is_adapter()) {
                backend.write(param.region, &self.values(model, param)?)?;
            }
            return self.store.check();
        }
        self.linked(&self.dialect.links(model), model).load(backend, MemorySpace::Param)?;
        for param in model.params.iter().filter(|p| self.is_adapted(p)) {
            backend.write(param.region, &self.values(model, param)?)?;
        }
        Ok(())
    }

    /// The values of one parameter of `model`.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    pub fn values(&self, model: &Model, param: &Param) -> Result<Cow<'_, [f32]>> {
        if let Some(values) = self.with_added_rows(model, param)? {
            return Ok(values.into());
        }
        self.adapters
            .iter()
            .try_fold(self.values_of_base(model, param)?, |values, adapter| adapter.merge(param, values))
    }

    /// The values of one parameter without what adapters add to them.
    fn values_of_base(&self, model: &Model, param: &Param) -> Result<Cow<'_, [f32]>> {
        self.linked(&self.dialect.links(model), model).values(param)
    }

    /// Whether an adapter adds to a parameter.
    pub fn is_adapted(&self, param: &Param) -> bool {
        self.adapters.iter().any(|adapter| adapter.adapts(param))
    }

    /// The tokens that end a text or a turn by generation_config.json, or else config.json, of a folder; of a file none.
    pub fn end_tokens(&self) -> Vec<u32> {
        self.ends.clone()
    }

    /// How sentence-transformers makes vectors with it, if its folder says so, or a GGUF file by its `pooling_type`.
    ///
    /// # Errors
    /// As [`SentenceRecipe::open`].
    pub fn sentence_recipe(&self) -> Result<Option<SentenceRecipe>> {
        match self.format {
            Format::Gguf => dialect::gguf::sentence_recipe(&self.metadata, &self.path),
            _ => SentenceRecipe::open(&self.path),
        }
    }

    /// How the rows of every parameter of `model` are stored: its name, rows of it, their type.
    pub fn stored(&self, model: &Model) -> Vec<(String, Range<usize>, Dtype)> {
        let of = |link: &Link| self.names.get(&link.name).and_then(|name| Some(self.store.get(name)?.dtype.clone()));
        let links = self.dialect.links(model).into_iter();
        links.filter_map(|link| of(&link).map(|dtype| (link.param, link.rows, dtype))).collect()
    }

    /// How rows of a parameter of `model` are stored: those of one tensor after those of another.
    pub fn stored_as(&self, model: &Model, param: &Param) -> Vec<(Range<usize>, Dtype)> {
        let own = self.stored(model).into_iter().filter(|(name, ..)| *name == param.name);
        own.map(|(_, rows, dtype)| (rows, dtype)).collect()
    }

    /// Tensors with more rows than the configuration has tokens. (llm.c's files pad their table always, and say so.)
    ///
    /// # Errors
    /// If the configuration is not that of a model.
    pub fn padded(&self) -> Result<Vec<PaddedTable>> {
        let model = self.outline()?;
        let more = |link: &Link| {
            let stored = self.store.get(self.names.get(&link.name)?)?;
            let (has, read) = (*stored.shape.first()?, *link.shape(model.param(&link.param)?).first()?);
            (link.padded && has > read).then(|| PaddedTable { tensor: stored.name.to_string(), rows: has, read })
        };
        let links = if self.format == Format::Llmc { vec![] } else { self.dialect.links(&model) };
        Ok(links.iter().filter_map(more).collect())
    }

    /// Whether any of its tensors has blocks.
    pub fn is_quantised(&self) -> bool {
        self.store.names().filter_map(|name| self.store.get(name)).any(|t| matches!(t.dtype, Dtype::Blocks(_)))
    }

    /// All that a GGUF file says, with its tokenizer's tables; nothing of other formats.
    ///
    /// # Errors
    /// If the file has changed since it was opened.
    pub fn whole_metadata(&self) -> Result<Option<gguf::Metadata>> {
        let whole = || gguf::open(&self.path).map(|(metadata, _)| metadata);
        (self.format == Format::Gguf).then(whole).transpose()
    }

    /// Rows of a parameter of `model` as they are stored, where no arithmetic is between the two: see [`ModelData::rows`].
    pub fn rows(&self, model: &Model, param: &Param, rows: Range<usize>) -> Option<StoredRows<'_>> {
        let found = self.linked(&self.dialect.links(model), model).rows_as_stored(param, rows);
        found.ok().flatten().filter(|_| !self.is_adapted(param))
    }

    /// How its matrices are stored: as the token table is, but f32 for a mixture with blocks, which one type cannot hold.
    pub fn dtype(&self) -> Dtype {
        let tensors = || self.store.names().filter_map(|n| self.store.get(n));
        let largest = tensors().max_by_key(|t| t.shape.iter().product::<usize>());
        let one = largest.map_or(Dtype::F32, |t| t.dtype.clone());
        let mixed = tensors().any(|t| matches!(t.dtype, Dtype::Blocks(_)) && *t.dtype != one);
        if mixed { Dtype::F32 } else { one }
    }

    /// The tensors as they are stored.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Verifies the checksum of weights or an adapter that limpid wrote. It checks the files that were opened, even if others have
    /// replaced them since. Other programs' files have no checksum, and neither do models of several files.
    ///
    /// # Errors
    /// If a single bit was changed.
    pub fn check_sum(&self) -> Result<()> {
        self.store.check()?;
        self.adapters.iter().try_for_each(|adapter| adapter.store().check())
    }

    /// The first NaN or infinity: its tensor, and the index in it.
    ///
    /// # Errors
    /// If a tensor is of a type that is not read.
    pub fn not_finite(&self) -> Result<Option<(String, usize)>> {
        for tensor in self.names.values().filter_map(|name| self.store.get(name)) {
            if let Some(at) = tensor.not_finite()? {
                return Ok(Some((tensor.name.into(), at)));
            }
        }
        Ok(None)
    }
}

/// The tokenizer in a GGUF file, of one without weights too.
///
/// # Errors
/// If it is not a GGUF file, has no tokenizer, or has one that is not read.
pub fn gguf_tokenizer(path: &Path) -> Result<Tokenizer> {
    let (metadata, _) = gguf::open(path)?;
    dialect::gguf_vocabulary::read_tokenizer(&metadata, path)?
        .ok_or_else(|| bad(path, "it has no tokenizer (`tokenizer.ggml.model`)"))
}

/// Whether a file begins as GGUF files do.
pub fn is_gguf(path: &Path) -> bool {
    let mut first = [0; 4];
    files::open_regular(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok()) && first == *b"GGUF"
}

/// The weights of a folder: one file, several with an index, or a pickle, which is refused. Files of weights that the index
/// does not name are not read.
fn open_weights(folder: &Path) -> Result<Store> {
    let (one, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
    if index.exists() {
        return safetensors_file::open_sharded(folder, &index);
    }
    if one.exists() {
        return safetensors_file::open(&one);
    }
    for name in ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "pytorch_model.pt", "ckpt.pt"] {
        if folder.join(name).exists() {
            return Err(safetensors_file::pickle(&folder.join(name)));
        }
    }
    Err(CheckpointError::NotAModel { path: folder.into(), missing: "model.safetensors" })
}

/// What is read where a table or a bias may be stored twice, as transformers decides it: a copy that is alone stands for both, and one that
/// differs is a head of its own, whatever config.json says. Gives the configuration, and which tensors are read in place of others.
fn settle_copies(family: &Family, mut config: Config, store: &Store) -> (Config, Vec<(&'static str, String)>) {
    let mut instead = vec![];
    let find = |wanted: &str| store.names().find(|name| family.bare(name) == wanted).and_then(|name| store.get(name));
    for &(copy, of) in family.copies().iter().filter(|_| config.lm_head) {
        let (Some(stored), is_bias) = (find(copy), copy.ends_with(".bias")) else { continue };
        let is_tied = config.tied_head;
        match find(of) {
            None if is_bias || is_tied => instead.push((of, stored.name.to_string())),
            Some(other) if other.bytes != stored.bytes && is_bias => instead.push((of, stored.name.to_string())),
            Some(other) if other.bytes != stored.bytes && is_tied => config.tied_head = false,
            _ => {}
        }
    }
    (config, instead)
}

/// The type of some rows, and each as it is stored.
pub type StoredRows<'a> = (Dtype, Vec<&'a [u8]>);

/// A model to be written: what it is, and the values of its parameters by our names.
pub struct ModelData<'a> {
    /// Which transformer.
    pub config: &'a Config,
    /// Its tokenizer.
    pub tokenizer: Option<&'a Tokenizer>,
    /// [`Checkpoint::chat_template`]
    pub chat_template: Option<&'a str>,
    /// [`Checkpoint::carried`]; nothing for a model that is not from a folder.
    pub carried: Option<&'a Carried>,
    /// The values of a parameter of `config`'s model.
    pub values: ModelValues<'a>,
    /// Some rows of it as they are stored, if they are of one type: GGUF takes over, bit for bit, what has the type that it gets there.
    pub rows: &'a dyn Fn(&Param, Range<usize>) -> Option<StoredRows<'a>>,
    /// Whether every matrix of a GGUF keeps the type that it has, where that can be: mixtures stay mixtures.
    pub keep_types: bool,
    /// [`Checkpoint::whole_metadata`], of which GGUF takes over what it does not say itself, and the tokenizer if it is this one's.
    pub metadata: Option<&'a gguf::Metadata>,
    /// Bytes from which on a folder of HuggingFace's has its weights in several files; [`SHARD_BYTES`] as a rule.
    pub shard_bytes: usize,
}

/// The values of a model's parameters: in memory, or from files that may have been changed or damaged.
#[derive(Clone, Copy)]
pub enum ModelValues<'a> {
    /// In memory.
    Held(&'a dyn Fn(&Param) -> Vec<f32>),
    /// From files.
    Read(&'a dyn Fn(&Param) -> Result<Vec<f32>>),
}

impl ModelValues<'_> {
    fn get(self, param: &Param) -> Result<Vec<f32>> {
        match self {
            ModelValues::Held(values) => Ok(values(param)),
            ModelValues::Read(values) => values(param),
        }
    }
}

/// The size from which on transformers parts weights into files.
pub const SHARD_BYTES: usize = 5_000_000_000;

impl<'a> ModelData<'a> {
    /// A model alone, whose values are in memory.
    pub fn new(config: &'a Config, values: &'a dyn Fn(&Param) -> Vec<f32>) -> ModelData<'a> {
        ModelData::of(config, ModelValues::Held(values))
    }

    /// A model alone.
    pub fn of(config: &'a Config, values: ModelValues<'a>) -> ModelData<'a> {
        ModelData {
            config,
            tokenizer: None,
            chat_template: None,
            carried: None,
            values,
            rows: &|_, _| None,
            keep_types: false,
            metadata: None,
            shard_bytes: SHARD_BYTES,
        }
    }
}

impl Dtype {
    /// This, or f32 where the format has nothing like it: blocks are GGUF's alone, some are only read, and llm.c has no f16.
    pub fn in_format(self, format: Format) -> Dtype {
        match (self, format) {
            (Dtype::Blocks(quant), format) if format != Format::Gguf || !quantize::WRITTEN.contains(&quant) => {
                Dtype::F32
            }
            (Dtype::F16, Format::Llmc) => Dtype::F32,
            (dtype, _) => dtype,
        }
    }
}

impl Format {
    /// Whether such a model is a folder; else it is one file.
    pub fn is_folder(self) -> bool {
        matches!(self, Format::Limpid | Format::HuggingFace)
    }
}

/// Whether a file of this name may be part of a model's folder, as limpid and transformers write them.
pub fn is_part(name: &str) -> bool {
    #[rustfmt::skip]
    const NAMES: &[&str] = &[
        "config.json", ORIGIN, "model.safetensors", "model.safetensors.index.json", "tokenizer.json", CHAT_TEMPLATE,
    ];
    NAMES.contains(&name) || carried::is_known(name) || name.starts_with("model-") && name.ends_with(".safetensors")
}

/// The names of what is in the folder `path` and is no part of a model.
fn other_files(path: &Path) -> Result<Vec<String>> {
    let mut names = vec![];
    for entry in at(path, fs::read_dir(path))? {
        let entry = at(path, entry)?;
        let (name, folder) = (entry.file_name().display().to_string(), at(path, entry.file_type())?.is_dir());
        let part = if folder { carried::is_known_folder(&entry.path()) } else { is_part(&name) };
        if !part {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Writes a model to `path` (a folder, or for GGUF and llm.c a file), matrices stored as `dtype`. What was there is replaced
/// in one step, whole or not at all: a file, or a folder that has nothing but the files of a model.
///
/// # Errors
/// If the format cannot express the model or its tokenizer, saying what it lacks; if `path` is something else that would be
/// lost; or if writing fails. What was there is then unchanged.
pub fn save(path: &Path, format: Format, dtype: &Dtype, source: &ModelData) -> Result<()> {
    if fs::symlink_metadata(path).is_ok() && !path.exists() {
        return refuse(path, "it is a link to a missing file or folder: give the place itself");
    }
    let path = &path.canonicalize().unwrap_or(path.into()); // a link stays a link
    if path.exists() && path.is_dir() != format.is_folder() {
        let [is, wanted] = if path.is_dir() { ["a folder", "one file"] } else { ["a file", "a folder"] };
        return refuse(path, format!("it is {is}, and a model as {format} is {wanted}: give another place"));
    }
    if path.file_name().is_none() {
        return refuse(path, "it has no name to write to: give another place");
    }
    if !format.is_folder() {
        return writing::write(path, format, dtype, source);
    }
    if path.is_dir()
        && let names = other_files(path)?
        && !names.is_empty()
    {
        let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
        let some = names.iter().take(3).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let what = format!("it has {some}{more}, no part of a model, which would be lost: give another folder");
        return refuse(path, what);
    }
    if let Some(parent) = path.parent() {
        at(parent, fs::create_dir_all(parent))?;
    }
    let done = files::replace_folder(path, |beside| {
        writing::write(beside, format, dtype, source).map_err(|error| io::Error::other(error.moved(beside, path)))
    });
    at(path, done).map_err(CheckpointError::inner)
}

/// The generation_config.json of a model with this tokenizer, if more than one token ends its texts and turns.
pub fn generation_config(tokenizer: &Tokenizer, chat_template: Option<&str>) -> Option<String> {
    let all = ends_of(tokenizer, chat_template);
    let named = !tokenizer.more_ends().is_empty();
    (named || all.len() > 1).then(|| format!("{:#}\n", serde_json::json!({ carried::EOS: all })))
}

/// The tokens that end a text or a turn: the tokenizer's own, the end of a text first, and the end of a turn that the template writes.
fn ends_of(tokenizer: &Tokenizer, chat_template: Option<&str>) -> Vec<u32> {
    let writes =
        |id: &u32| chat_template.is_some_and(|text| tokenizer.decode(&[*id]).is_ok_and(|end| text.contains(&end)));
    let turn = tokenizer.end_of_turn().filter(writes);
    let mut all: Vec<u32> = vec![];
    for id in tokenizer.end_of_text().into_iter().chain(tokenizer.more_ends()).chain(turn) {
        if !all.contains(&id) {
            all.push(id);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// reference/folders.py
    #[test]
    fn of_several_chat_templates_that_of_transformers_is_taken() {
        let cases: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("../fixtures/chat_templates.json")).unwrap();
        let folder = std::env::temp_dir().join(format!("limpid-templates-{}", std::process::id()));
        assert!(cases.len() > 15);
        let taken = |files: &serde_json::Value| {
            _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join(carried::TEMPLATES)).unwrap();
            for (name, text) in files.as_object().unwrap() {
                fs::write(folder.join(name), text.as_str().unwrap()).unwrap();
            }
            chat_template(&folder).map_err(|error| error.to_string())
        };
        for case in cases {
            assert_eq!(taken(&case["files"]).unwrap().as_deref(), case["taken"].as_str(), "{case}");
        }
        // of a model that sees pictures: looked at last
        let beside = |config: &str| serde_json::json!({"chat_template.json": "{\"chat_template\": \"a\"}", "tokenizer_config.json": config});
        assert_eq!(taken(&beside("{}")).unwrap().as_deref(), Some("a"));
        assert_eq!(taken(&beside("{\"chat_template\": \"b\"}")).unwrap().as_deref(), Some("b"));
        // a file that cannot be read is no model without a template
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
        for (wrong, said) in [
            ("", "it is not an object in JSON"),
            ("{\"chat_template\": \"a\"", "EOF"),
            ("[\"a\"]", "invalid type: sequence"),
            ("{\"chat_template\": 5}", "`chat_template` is 5"),
            ("{\"chat_template\": true}", "`chat_template` is true"),
            ("{\"chat_template\": {\"default\": [1]}}", "`chat_template` is [1]"),
            ("{\"chat_template\": [{\"name\": \"default\", \"template\": {}}]}", "`chat_template` is {}"),
            ("{\"x\": NaN}", "it has NaN at line 1 column 7"),
            (pointer, "git lfs pull"),
        ] {
            for name in ["chat_template.json", "tokenizer_config.json"] {
                let error = taken(&serde_json::json!({ name: wrong })).unwrap_err();
                assert!(error.contains(said) && error.contains(name), "{name} with {wrong}: {error}");
            }
        }
        for none in
            ["{}", "{\"chat_template\": null}", "{\"chat_template\": []}", "{\"chat_template\": {\"rag\": \"x\"}}"]
        {
            assert_eq!(taken(&serde_json::json!({ "chat_template.json": none })).unwrap(), None, "{none}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_failed_save_leaves_the_old_file_and_nothing_beside() {
        let dir = std::env::temp_dir().join(format!("limpid-replace-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        write_text(&path, "good").unwrap();
        let full = replace(&path, |p| {
            File::create(p)?.write_all(b"ha")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(full.unwrap_err().to_string().contains("free some space"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "good");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }
}
