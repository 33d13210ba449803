//! Why a model's files cannot be read or written. An error names the file, what was expected, what was found, and the
//! remedy.

use limpid_base::words::system;
use limpid_core::backend::BackendError;
use limpid_core::config::ConfigError;
use std::io;
use std::path::{Path, PathBuf};

/// The file of an adapter's matrices.
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// What can be read of an adapter.
pub(crate) const PEFT_ALONE: &str = "limpid reads adapters in PEFT's format alone, a folder with adapter_config.json \
                                     and adapter_model.safetensors: give the folder that the file was made from";

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system's answer.
    #[error("{}: {}{}", .path.display(), system(.fault), remedy(.fault))]
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
        "{}: it is an adapter of the model {}, which is not there: open that model where it is, with this as its \
         adapter",
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
        "`{tensor}` with the adapter is not finite: {was} becomes {with}, because alpha / r = {scale:e} and the \
         adapter's matrices are too large: was its lora_alpha changed?"
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
    #[error(
        "{} has no tensor `{tensor}`, which {} asks for{}", .path.display(), config_of(.path).0, config_of(.path).1
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error(
        "{}: `{tensor}` is {found:?}, but {} makes it {wanted:?}{}", .path.display(), config_of(.path).0,
        config_of(.path).1
    )]
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
    let name = weights.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.rsplit_once('.') {
        Some((_, "gguf")) => ("its own metadata", ": it was not written whole, or is not a model of this architecture"),
        Some((_, "bin")) => ("its header", ": it was not written whole"),
        _ if name == ADAPTER_WEIGHTS => ("its adapter_config.json", ": the two files belong to different adapters"),
        _ => ("its config.json", ": the two files belong to different models"),
    }
}

impl CheckpointError {
    /// The same error for a file that was written in the folder `from` and would have been moved to `to`.
    pub(crate) fn moved(self, from: &Path, to: &Path) -> CheckpointError {
        let place = |path: PathBuf| path.strip_prefix(from).map_or(path.clone(), |rest| to.join(rest));
        match self {
            CheckpointError::Io { path, fault } => CheckpointError::Io { path: place(path), fault },
            CheckpointError::Format { path, what } => CheckpointError::Format { path: place(path), what },
            other => other,
        }
    }

    /// The error that was wrapped in an `io::Error`, unwrapped.
    pub(crate) fn inner(self) -> CheckpointError {
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

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => " (free some space; the old files are unchanged)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => " (choose a folder you may write to)",
        _ => "",
    }
}

pub(crate) type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// A file that is not what it should be.
pub(crate) fn bad(path: &Path, what: impl Into<String>) -> CheckpointError {
    CheckpointError::Format { path: path.into(), what: what.into() }
}

/// [`bad`] as a result.
pub(crate) fn refuse<T>(path: &Path, what: impl Into<String>) -> Result<T> {
    Err(bad(path, what))
}
