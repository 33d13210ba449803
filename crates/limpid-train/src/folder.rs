//! Whether a run may use a folder. A run never writes into a folder that holds something else, unless it is forced to;
//! it then removes the files that would be read instead of its own model.

use limpid_base::files;
use limpid_checkpoint::{CheckpointError, at};
use std::fs;
use std::path::{Path, PathBuf};

/// What a folder holds, for a run that begins there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderContents {
    /// The folder does not exist or is empty.
    Nothing,
    /// A run that began and saved no state: it begins again.
    Begun,
    /// A run with a state, or a finished one.
    Run,
    /// Something else, by the names of its files.
    Other(Vec<String>),
}

/// The files of a run.
const OWN: &[&str] = &[
    "limpid.toml",
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "model.safetensors",
    "adapter_config.json",
    "adapter_model.safetensors",
    "base.json",
    "metrics.jsonl",
    "metrics.csv",
    "timelapse.lpt",
    "summary.json",
    "report.html",
    "divergence",
    "state",
];

/// Files of other programs' models that would be read together with a run's own files, or instead of them.
const READ: &[&str] = &[
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "adapter_model.bin",
    "model.pt",
    "ckpt.pt",
    "config.hf.json",
    "generation_config.json",
    "modules.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "gpt2_tokenizer.bin",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
];

/// Whether a run writes files of this name.
fn is_own(name: &str) -> bool {
    let name = unfinished(name).unwrap_or(name);
    OWN.contains(&name) || name.starts_with("events.out.tfevents.") && name.ends_with(".limpid")
}

/// The name of the file that would have taken the place of another, had it been written to its end.
fn unfinished(name: &str) -> Option<&str> {
    Some(name.strip_suffix(files::PARTIAL)?.rsplit_once('.')?.0)
}

/// Removes what a process that was killed left half written.
pub(crate) fn sweep(folder: &Path) {
    let state = folder.join("state");
    let own = names(folder).into_iter().filter(|name| is_own(name)).map(|name| folder.join(name));
    let left = own.chain(names(&state).into_iter().map(|name| state.join(name)));
    let half = |path: &PathBuf| path.is_file() && path.to_str().is_some_and(|path| unfinished(path).is_some());
    left.filter(half).for_each(|path| drop(files::remove(&path)));
}

/// Whether a file of this name would be read together with a run's own files, or instead of them.
fn is_read(name: &str) -> bool {
    let shard = |start: &str, end: &str| name.starts_with(start) && name.ends_with(end);
    READ.contains(&name) || shard("model-", ".safetensors") || shard("pytorch_model", ".bin")
}

/// Whether a file of this name is read as part of a run or of a model.
pub fn is_part(name: &str) -> bool {
    name != "report.html" && (is_own(name) || is_read(name))
}

/// Whether a file of this name marks a folder as one of a model or of a run.
fn is_models(name: &str) -> bool {
    let weights = name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".pt");
    ["config.json", "limpid.toml"].contains(&name) || is_read(name) || weights && is_own(name)
}

/// The names in a folder, without hidden files and `lost+found`.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.') && name != "lost+found").collect();
    names.sort();
    names
}

/// Finds out what a folder holds.
pub fn look(folder: &Path) -> FolderContents {
    if folder.exists() && !folder.is_dir() {
        return FolderContents::Other(vec!["a file".into()]);
    }
    let names = names(folder);
    let state = folder.join("state");
    let began = state.join("lock").exists();
    if names.is_empty() {
        FolderContents::Nothing
    } else if state.join("last.safetensors").is_file() || began && folder.join("summary.json").is_file() {
        FolderContents::Run
    } else if began || names == ["state"] {
        FolderContents::Begun
    } else {
        FolderContents::Other(names)
    }
}

impl FolderContents {
    /// Whether a run can be forced into it: only a model or a run is replaced, nothing else.
    pub fn is_replaced(&self) -> bool {
        match self {
            FolderContents::Nothing | FolderContents::Begun | FolderContents::Run => true,
            FolderContents::Other(names) => names.iter().any(|name| is_models(name)),
        }
    }

    /// Why a run does not begin in the folder.
    pub fn reason(&self, folder: &Path) -> String {
        let at = folder.display();
        match self {
            FolderContents::Nothing | FolderContents::Begun => format!("{at} is free"),
            FolderContents::Run if !folder.join("state/last.safetensors").exists() => format!(
                "{at} already holds a run that has ended, without a state to resume from: choose another folder, or \
                 force a new run into its place"
            ),
            FolderContents::Run => {
                format!("{at} already holds a run: resume it, choose another folder, or force a new run into its place")
            }
            FolderContents::Other(names) => {
                let (first, rest) = names.split_at(names.len().min(4));
                let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
                let held = format!("{at} holds {}{more}", first.join(", "));
                if self.is_replaced() {
                    format!(
                        "{held}, which no run put there: choose another folder, or force a run into it, which \
                         replaces the model there"
                    )
                } else {
                    format!(
                        "{held}, and no model or run that could be replaced: choose another folder, or a new one \
                         inside it"
                    )
                }
            }
        }
    }

    /// The settings with which a run can begin or resume anyway, as
    /// [`TrainError::settings`](crate::TrainError::settings) has them.
    pub fn settings(&self, folder: &Path) -> Vec<String> {
        let goes_on = *self == FolderContents::Run && folder.join("state/last.safetensors").exists();
        let resume = goes_on.then(|| format!("resume {}", folder.display()));
        let force = self.is_replaced().then(|| "force".into());
        resume.into_iter().chain(["out".into()]).chain(force).collect()
    }
}

/// Removes the files of an earlier run, except those in `stay`; with `force`, also those of another program's model.
///
/// # Errors
/// If a file cannot be removed.
pub(crate) fn clear(folder: &Path, stay: &[&str], force: bool) -> Result<(), CheckpointError> {
    let remove = |path: &Path| at(path, files::remove(path));
    for name in names(folder) {
        let path = folder.join(&name);
        let goes = (is_own(&name) || force && is_read(&name)) && !stay.contains(&name.as_str());
        if goes && (path.is_file() || name == "divergence") {
            remove(&path)?;
        }
    }
    let state = folder.join("state");
    let goes = |path: &PathBuf| path.is_file() && path.file_name().is_some_and(|name| name != "lock");
    names(&state).iter().map(|name| state.join(name)).filter(goes).try_for_each(|path| remove(&path))
}

/// Removes the files of a run that could not begin, and the folders from `first` down that are then empty.
pub(crate) fn leave(folder: &Path, first: Option<&Path>) {
    let names = names(folder);
    let mut own = names.iter().filter(|name| is_own(name) && *name != "state");
    // state/ goes last: while it is there, the folder is still recognised as a run's
    if own.all(|name| files::remove(&folder.join(name)).is_ok()) {
        let _ = files::remove(&folder.join("state"));
    }
    let made = |path: &&Path| first.is_some_and(|first| path.starts_with(first));
    for path in folder.ancestors().take_while(made) {
        let _ = fs::remove_dir(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_known_by_what_is_in_them() {
        let folder = std::env::temp_dir().join(format!("limpid-folder-{}", std::process::id()));
        let other = |names: &[&str]| FolderContents::Other(names.iter().map(|name| name.to_string()).collect());
        let shards = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"];
        let cases: &[(&[&str], FolderContents)] = &[
            (&[], FolderContents::Nothing),
            (&[".gitkeep"], FolderContents::Nothing),
            (&["state/"], FolderContents::Begun),
            (&["state/lock"], FolderContents::Begun),
            (&["state/lock", "limpid.toml", "model.safetensors"], FolderContents::Begun),
            (&["state/lock", "limpid.toml", "summary.json"], FolderContents::Run),
            (&["state/last.safetensors"], FolderContents::Run),
            (&["limpid.toml"], other(&["limpid.toml"])),
            (&["notes.txt"], other(&["notes.txt"])),
            (&["config.json", "model.safetensors"], other(&["config.json", "model.safetensors"])),
            (&shards, other(&shards)),
        ];
        for (files, found) in cases {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join("state")).unwrap();
            if !files.iter().any(|file| file.starts_with("state")) {
                fs::remove_dir(folder.join("state")).unwrap();
            }
            files.iter().filter(|file| !file.ends_with('/')).for_each(|file| fs::write(folder.join(file), "").unwrap());
            assert_eq!(look(&folder), *found, "{files:?}");
        }
        clear(&folder, &["config.json"], false).unwrap();
        assert_eq!(names(&folder), shards);
        for (names, replaced) in [
            (&["notes.txt"][..], false),
            (&["bin", "etc", "home", "state", "tokenizer.json"], false),
            (&["a.bin", "x.safetensors"], false),
            (&["notes.txt", "config.json"], true),
            (&["pytorch_model.bin"], true),
            (&["model-00001-of-00002.safetensors"], true),
            (&["limpid.toml"], true),
        ] {
            assert_eq!(other(names).is_replaced(), replaced, "{names:?}");
            assert_eq!(other(names).settings(&folder).contains(&"force".into()), replaced, "{names:?}");
        }
        clear(&folder, &["config.json"], true).unwrap();
        assert_eq!(names(&folder), ["config.json"]);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(look(&folder), FolderContents::Nothing);
    }
}
