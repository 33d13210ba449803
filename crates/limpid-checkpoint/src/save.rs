//! Writes a model in one of the formats: makes sure that nothing is lost, and puts what [`formats`](crate::formats)
//! writes in place.

use crate::carried;
use crate::error::{CheckpointError, Result, refuse};
use crate::files::at;
use crate::formats::writing::{ModelData, Writing};
use crate::formats::{Format, outline};
use crate::store::Dtype;
use limpid_base::files;
use std::path::Path;
use std::{fs, io};

/// The names of what is in the folder `path` and is no part of a model.
fn other_files(path: &Path) -> Result<Vec<String>> {
    let mut names = vec![];
    for entry in at(path, fs::read_dir(path))? {
        let entry = at(path, entry)?;
        let (name, folder) = (entry.file_name().display().to_string(), at(path, entry.file_type())?.is_dir());
        let part = if folder { carried::is_known_folder(&entry.path()) } else { carried::is_part(&name) };
        if !part {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Writes a model to `path` (a folder, or for GGUF and llm.c a file), matrices stored as `dtype`. What was there is
/// replaced in one step, whole or not at all: a file, or a folder that has nothing but the files of a model.
///
/// # Errors
/// If the format cannot express the model or its tokenizer, saying what it lacks; if `path` is something else that
/// would be lost; or if writing fails. What was there is then unchanged.
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
        return write(path, format, dtype, source);
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
        write(beside, format, dtype, source).map_err(|error| io::Error::other(error.moved(beside, path)))
    });
    at(path, done).map_err(CheckpointError::inner)
}

/// Writes what [`save`] has found room for.
fn write(path: &Path, format: Format, dtype: &Dtype, source: &ModelData) -> Result<()> {
    if matches!(dtype, Dtype::Blocks(_)) && !format.mixes_types() {
        return refuse(path, format!("only GGUF has {dtype}: choose F32, F16 or BF16"));
    }
    let given = outline(path, source.config)?;
    let writing = Writing { path, dtype, source, given, takes_rows: format.mixes_types() };
    format.implementation().write(&writing)
}
