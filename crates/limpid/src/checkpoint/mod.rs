//! Weights in files. A model directory holds `config.json`, `model.safetensors` and `tokenizer.json`; a run's
//! `state/last.safetensors` adds the optimizer's moments and the step. Files are written beside and renamed, so
//! a failure leaves the old one whole; they are checked, every name and shape, before the model is touched.

pub mod gguf;
pub mod llmc;
pub mod map;
pub mod safetensors_file;
pub mod store;

use crate::backend::Backend;
use crate::config::{Config, ConfigError};
use crate::model::{Model, Param};
use crate::ops::Space;
use crate::tokenizer::{self, Tokenizer};
use safetensors::tensor::{Dtype, Metadata, View};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system's answer.
    #[error("{}{}", .path.display(), mend(.source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Not a directory of a model.
    #[error("{} is not a model directory: it has no {missing}", .path.display())]
    NotAModel {
        /// The directory.
        path: PathBuf,
        /// The file that is not there.
        missing: &'static str,
    },
    /// A file that is not what its name says.
    #[error("{}: {what}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A tensor the model needs.
    #[error("{} has no tensor `{tensor}`, which this config.json asks for: the two files belong to different models", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error("{}: `{tensor}` is {found:?}, but config.json makes it {wanted:?}: the two files belong to different models", .path.display())]
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
    Tokenizer(#[from] tokenizer::Error),
    /// A tokenizer with more ids than the model has rows.
    #[error(
        "the tokenizer `{name}` has {tokens} tokens, the model's vocab_size is {vocab_size}: \
         they do not belong together (was tokenizer.json replaced?)"
    )]
    Mismatch {
        /// The tokenizer.
        name: String,
        /// Its size.
        tokens: usize,
        /// The model's.
        vocab_size: usize,
    },
}

fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => " (free some space; the file that was there is still whole)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => " (choose a folder you may write to)",
        _ => "",
    }
}

type Result<T> = std::result::Result<T, CheckpointError>;

pub(crate) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| CheckpointError::Io { path: path.into(), source })
}

/// Replaces `path` by what `write` produces: whole, or not at all.
///
/// # Errors
/// Whatever the file system says; the old file is then still there, and nothing is left beside it.
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    let beside = path.with_file_name(name);
    // created here, so that it has the permissions that files get
    let done = File::create(&beside)
        .and_then(|_| write(&beside))
        .and_then(|()| File::open(&beside)?.sync_all())
        .and_then(|()| fs::rename(&beside, path));
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    at(path, done)
}

/// Replaces a small text file.
///
/// # Errors
/// As [`replace`].
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    replace(path, |path| File::create(path)?.write_all(text.as_bytes()))
}

/// A tensor that is turned into bytes only when its turn to be written has come.
struct Lazy<'a> {
    shape: Vec<usize>,
    values: Box<dyn Fn() -> Vec<f32> + 'a>,
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        (self.values)().iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
    }
    fn data_len(&self) -> usize {
        4 * self.shape.iter().product::<usize>()
    }
}

/// A tensor of the given memory, parameter by parameter, with a prefix to its name.
fn stored<'a>(model: &'a Model, backend: &'a dyn Backend, space: Space, prefix: &str) -> Vec<(String, Lazy<'a>)> {
    let one = |param: &'a Param| {
        let values = move || backend.read(param.slot.in_space(space));
        (format!("{prefix}{}", param.name), Lazy { shape: param.shape(), values: Box::new(values) })
    };
    model.params.iter().map(one).collect()
}

fn write_tensors(path: &Path, tensors: Vec<(String, Lazy)>, facts: HashMap<String, String>) -> Result<()> {
    replace(path, |path| {
        safetensors::serialize_to_file(tensors, Some(facts), path).map_err(|e| match e {
            safetensors::SafeTensorError::IoError(e) => e,
            other => io::Error::other(other),
        })
    })
}

/// Writes the parameters to `path`, a safetensors file.
///
/// # Errors
/// Whatever the file system says; the old file is then still there.
pub fn save_parameters(path: &Path, model: &Model, backend: &dyn Backend) -> Result<()> {
    let facts = HashMap::from([("format".to_string(), "pt".to_string())]);
    write_tensors(path, stored(model, backend, Space::Param, ""), facts)
}

/// Writes parameters and moments to `path`, with `state` (JSON) in the metadata: all that resuming needs, in one file.
///
/// # Errors
/// As [`save_parameters`].
pub fn save_state(path: &Path, model: &Model, backend: &dyn Backend, state: String) -> Result<()> {
    let mut tensors = stored(model, backend, Space::Param, "");
    tensors.extend(stored(model, backend, Space::Moment1, "moment1/"));
    tensors.extend(stored(model, backend, Space::Moment2, "moment2/"));
    write_tensors(path, tensors, HashMap::from([("limpid".to_string(), state)]))
}

/// A safetensors file, opened and checked.
pub struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
    start: usize,
    metadata: Metadata,
}

impl Tensors {
    /// Reads `path`.
    ///
    /// # Errors
    /// If it cannot be read or is not a whole safetensors file.
    pub fn open(path: &Path) -> Result<Tensors> {
        let bytes = at(path, fs::read(path))?;
        let bad = |what: String| CheckpointError::Format { path: path.into(), what };
        let (header, metadata) =
            safetensors::SafeTensors::read_metadata(&bytes).map_err(|e| bad(explain(&e, bytes.len())))?;
        let start = header + 8;
        let wanted = start + metadata.data_len();
        if bytes.len() != wanted {
            return Err(bad(format!(
                "it should be {wanted} bytes and is {}: it was cut short or damaged",
                bytes.len()
            )));
        }
        Ok(Tensors { path: path.into(), bytes, start, metadata })
    }

    /// A metadata entry.
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// The names of the tensors.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The values of `name`, of the shape wanted.
    ///
    /// # Errors
    /// If it is not there, or not f32, or of another shape.
    pub fn values(&self, name: &str, wanted: &[usize]) -> Result<Vec<f32>> {
        let info = self.info(name, wanted)?;
        let bytes = &self.bytes[self.start + info.0..self.start + info.1];
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn info(&self, name: &str, wanted: &[usize]) -> Result<(usize, usize)> {
        let Some(info) = self.metadata.info(name) else {
            return Err(CheckpointError::Missing { path: self.path.clone(), tensor: name.into() });
        };
        if info.dtype != Dtype::F32 {
            let what = format!("`{name}` is stored as {:?}; this version reads F32", info.dtype);
            return Err(CheckpointError::Format { path: self.path.clone(), what });
        }
        if info.shape != wanted {
            let (found, wanted) = (info.shape.clone(), wanted.to_vec());
            return Err(CheckpointError::Shape { path: self.path.clone(), tensor: name.into(), found, wanted });
        }
        Ok(info.data_offsets)
    }

    /// Checks that every parameter is here under `prefix`, then writes them to `space` of the backend.
    ///
    /// # Errors
    /// As [`Tensors::values`]; the backend is then untouched.
    pub fn load(&self, model: &Model, backend: &mut dyn Backend, prefix: &str, space: Space) -> Result<()> {
        let name = |param: &Param| format!("{prefix}{}", param.name);
        model.params.iter().try_for_each(|p| self.info(&name(p), &p.shape()).map(drop))?;
        if prefix.is_empty() {
            let known = |n: &String| n.starts_with("moment") || model.params.iter().any(|p| p.name == *n);
            if let Some(extra) = self.names().iter().find(|n| !known(n)) {
                let what = format!(
                    "it has a tensor `{extra}` that config.json knows nothing of: the two files belong to different models"
                );
                return Err(CheckpointError::Format { path: self.path.clone(), what });
            }
        }
        for param in &model.params {
            let values = self.values(&name(param), &param.shape())?;
            backend.write(param.slot.in_space(space), &values);
        }
        Ok(())
    }
}

fn explain(error: &safetensors::SafeTensorError, len: usize) -> String {
    use safetensors::SafeTensorError::*;
    match error {
        HeaderTooSmall => format!("it has {len} bytes, too few for a safetensors file: it was cut short"),
        InvalidHeaderLength | MetadataIncompleteBuffer => {
            format!("its header points beyond its {len} bytes: it was cut short or damaged")
        }
        other => format!("it is not a safetensors file: {other}"),
    }
}

/// A model directory, its parts read and fitted together, the weights still in their file.
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// `config.json`.
    pub config: Config,
    /// `tokenizer.json`, if there is one.
    pub tokenizer: Option<Tokenizer>,
    /// `model.safetensors`.
    pub tensors: Tensors,
}

impl Directory {
    /// Opens `path`.
    ///
    /// # Errors
    /// Names the file that is missing, damaged, or does not fit the others.
    pub fn open(path: &Path) -> Result<Directory> {
        at(path, fs::metadata(path))?;
        let file = |name: &'static str| {
            let file = path.join(name);
            if file.exists() { Ok(file) } else { Err(CheckpointError::NotAModel { path: path.into(), missing: name }) }
        };
        let config_path = file("config.json")?;
        let text = at(&config_path, fs::read_to_string(&config_path))?;
        let checked = |config: Config| config.check().map(|()| config);
        let config = Config::from_json(&text)
            .and_then(checked)
            .map_err(|source| CheckpointError::Config { path: config_path, source })?;
        let tensors = Tensors::open(&file("model.safetensors")?)?;
        let tokenizer = file("tokenizer.json").ok().map(|path| Tokenizer::load(&path)).transpose()?;
        if let Some(t) = &tokenizer
            && t.vocab_size() > config.vocab_size
        {
            let (name, tokens, vocab_size) = (t.name().to_string(), t.vocab_size(), config.vocab_size);
            return Err(CheckpointError::Mismatch { name, tokens, vocab_size });
        }
        Ok(Directory { path: path.into(), config, tokenizer, tensors })
    }

    /// Writes the weights into a backend made for `model`.
    ///
    /// # Errors
    /// As [`Tensors::load`].
    pub fn load(&self, model: &Model, backend: &mut dyn Backend) -> Result<()> {
        self.tensors.load(model, backend, "", Space::Param)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
