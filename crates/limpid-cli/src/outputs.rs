//! Where verbs write, and what they may replace there: one table and one rule for every output of every verb.
//!
//! No output replaces a file that its own command reads. Without --force, no output replaces a file that limpid did not
//! write as the same kind of output, or becomes part of a model that lies there. limpid knows its own files by what is
//! in them.

use crate::models::{WEIGHTS, newest_folder};
use anyhow::{Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use limpid::checkpoint::{ControlVector, axes_of, is_part};
use limpid::data::matching;
use limpid::draw::picture;
use limpid::train::folder;
use limpid_base::files;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What a verb writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// A page with a model's inside.
    Page,
    /// A page about runs.
    Report,
    /// SVG or PNG.
    Picture,
    /// Tensors of a run of a model, as safetensors.
    Tensors,
    /// Directions: a control vector, safetensors, or steps.
    Directions,
    /// Conversations, to which more are added.
    Chat,
    /// Manual pages, in a folder.
    Manual,
    /// A tokenizer as a file or folder, which nothing marks as limpid's.
    Tokenizer,
    /// A receipt or a record, which is never replaced.
    Evidence,
    /// The folder of a run. `train::folder` says what else it may replace.
    Run,
    /// What has a rule of its own: a model (`convert`), shards (`data::prepare`), a folder that must be new.
    Own,
}

/// Every argument of every verb that says where something is written.
#[rustfmt::skip]
pub const OUTPUTS: &[(&str, &str, OutputKind)] = &[
    ("train", "out", OutputKind::Run),
    ("generate", "receipt", OutputKind::Evidence),
    ("inspect", "save", OutputKind::Tensors),
    ("inspect", "plot_out", OutputKind::Picture),
    ("inspect", "html", OutputKind::Page),
    ("site", "file", OutputKind::Page),
    ("sweep", "plot_out", OutputKind::Picture),
    ("sweep", "html", OutputKind::Page),
    ("direction", "out", OutputKind::Directions),
    ("report", "out", OutputKind::Report),
    ("tokenize", "export", OutputKind::Tokenizer),
    ("tokenize train", "out", OutputKind::Tokenizer),
    ("data prepare", "out", OutputKind::Own),
    ("convert", "dst", OutputKind::Own),
    ("race", "out", OutputKind::Evidence),
    ("race tokens", "out", OutputKind::Own),
    ("man", "folder", OutputKind::Manual),
];

/// Every other argument that names a file or folder: it is only read.
#[cfg(test)]
#[rustfmt::skip]
pub const INPUTS: &[&str] = &[
    "adapter", "against", "api_key_file", "chat_template", "config", "data", "from", "inputs", "intervene", "lines",
    "mask_file", "model", "name", "path", "place", "recipe", "record", "records", "resume", "run", "runs", "src",
    "tokenizer", "ui_dir",
];

/// The flag `--force`, which [`check`] reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Force(pub bool);

impl clap::Args for Force {
    fn augment_args(command: Command) -> Command {
        let help = "Replace a file that limpid did not write as such an output; a file that the command reads is \
                    never replaced";
        command.arg(Arg::new("force").long("force").help(help).action(ArgAction::SetTrue))
    }
    fn augment_args_for_update(command: Command) -> Command {
        Force::augment_args(command)
    }
}

impl clap::FromArgMatches for Force {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Force, clap::Error> {
        Ok(Force(matches.get_flag("force")))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Force::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A place where a command writes.
pub struct Output<'a> {
    /// What names it.
    pub flag: &'a str,
    pub path: &'a Path,
    pub kind: OutputKind,
    /// Whether --force is given; none where there is no such flag.
    pub force: Option<bool>,
    /// What the command reads.
    pub inputs: &'a [PathBuf],
}

/// Refuses a command that would write where it must not.
///
/// # Errors
/// What would be lost, and how to keep it.
pub fn check(cli: &Command, matches: &ArgMatches) -> Result<()> {
    let (mut verb, mut name, mut matches) = (cli, String::new(), matches);
    while let Some((word, own)) = matches.subcommand() {
        let Some(found) = verb.find_subcommand(word) else { break };
        (verb, name, matches) = (found, format!("{name} {word}").trim_start().to_string(), own);
    }
    let typed =
        |id: &str| matches.try_contains_id(id).is_ok() && matches.value_source(id) > Some(ValueSource::DefaultValue);
    let own = |id: &str| OUTPUTS.iter().find(|(verb, arg, _)| *verb == name && *arg == id);
    let outputs = verb.get_arguments().filter_map(|arg| Some((arg, own(arg.get_id().as_str())?.2)));
    let outputs: Vec<_> = outputs.filter(|(arg, _)| typed(arg.get_id().as_str())).collect();
    if outputs.is_empty() {
        return Ok(());
    }
    let mut inputs = vec![];
    for arg in verb.get_arguments().filter(|arg| own(arg.get_id().as_str()).is_none() && is_text(arg)) {
        let id = arg.get_id().as_str();
        let values = typed(id).then(|| matches.get_raw(id)).flatten();
        values.into_iter().flatten().for_each(|value| named(value, &mut inputs));
    }
    let takes = |id: &str| verb.get_arguments().any(|arg| arg.get_id() == id);
    if takes("place") && !typed("place") && !typed("model") {
        inputs.extend(newest_folder(&WEIGHTS));
    }
    let resumes = takes("resume") && typed("resume");
    let force = takes("force").then(|| matches.get_flag("force"));
    for (arg, kind) in outputs {
        let flag = arg.get_long().map_or_else(|| arg.get_id().as_str().to_uppercase(), |long| format!("--{long}"));
        // a run that begins in a free folder, or goes on, loses nothing
        if name == "train" && (resumes || force == Some(false)) {
            continue;
        }
        for path in matches.get_raw(arg.get_id().as_str()).into_iter().flatten() {
            Output { flag: &flag, path: Path::new(path), kind, force, inputs: &inputs }.check()?;
        }
    }
    Ok(())
}

/// Whether the values of an argument are paths or texts, which may name files.
fn is_text(arg: &Arg) -> bool {
    let of = arg.get_value_parser().type_id();
    of == std::any::TypeId::of::<PathBuf>() || of == std::any::TypeId::of::<String>()
}

/// The files and folders that a value names: itself, as `@FILE` or a pattern, or inside of it, as in a list of steps
/// and in a file of steps.
fn named(value: &OsStr, to: &mut Vec<PathBuf>) {
    let there = |path: &Path| path.exists().then(|| path.to_path_buf());
    to.extend(there(Path::new(value)));
    let Some(text) = value.to_str() else { return };
    let parts = |text: &str| text.split(['"', ',']).filter_map(|part| there(Path::new(part))).collect::<Vec<_>>();
    to.extend(parts(text.strip_prefix('@').unwrap_or(text)));
    if text.contains(['*', '?', '[']) {
        to.extend(matching(text));
    }
    if text.ends_with(".json")
        && let Ok(steps) = files::read_text(Path::new(text), 1 << 20)
    {
        to.extend(parts(&steps));
    }
}

impl Output<'_> {
    /// Refuses it if something would be lost.
    ///
    /// # Errors
    /// What would be.
    pub fn check(&self) -> Result<()> {
        let Output { flag, path, kind, force, inputs } = self;
        let shown = path.display();
        if let Some(input) = inputs.iter().find(|input| self.is_read(input)) {
            let input = input.display();
            bail!("{flag} {shown}: this command reads {input}, which would be replaced: give another name");
        }
        if matches!(kind, OutputKind::Run | OutputKind::Own) || *force == Some(true) {
            return Ok(());
        }
        let mend = if force.is_some() { ", or replace it with --force" } else { "" };
        if let Some(model) = folder_of(path).filter(|folder| is_models_file(path) && is_models_folder(folder)) {
            let model = model.display();
            bail!("{flag} {shown}: {model} is the folder of a model, whose file that is: give another name{mend}");
        }
        let whole = || Some(path.to_path_buf());
        let foreign = match kind {
            OutputKind::Manual => pages(path).find(|page| !kind.wrote(page)),
            OutputKind::Tokenizer if path.is_dir() => inside(path).next().and_then(|_| whole()),
            OutputKind::Evidence => whole().filter(|path| path.symlink_metadata().is_ok()),
            _ => whole().filter(|path| path.is_file() && !kind.wrote(path)),
        };
        if let Some(foreign) = foreign {
            let (what, there) =
                (kind.name(), if foreign.is_dir() { "folder is not empty" } else { "file exists already" });
            bail!("{flag} {}: this {there}{what}: choose another name{mend}", foreign.display());
        }
        Ok(())
    }

    /// Whether it would replace something of an input.
    fn is_read(&self, input: &Path) -> bool {
        let (Ok(there), Ok(read)) = (self.path.canonicalize(), input.canonicalize()) else { return false };
        let of_model =
            |file: &Path| is_models_file(file) || folder_of(file).is_some_and(|folder| folder.ends_with("state"));
        match self.kind {
            OutputKind::Own => false,
            OutputKind::Run => read == there || read.starts_with(&there) && of_model(&read),
            _ if there.is_dir() => read.starts_with(&there),
            // of a model in a file, or of a state of a run, the files beside it are read too
            _ if read.is_file() => {
                let beside = [read.parent(), read.parent().and_then(Path::parent)].contains(&there.parent());
                read == there || beside && of_model(&read) && of_model(&there)
            }
            _ if !there.starts_with(&read) => {
                inside(&read).any(|file| file.canonicalize().is_ok_and(|file| file == there)) // by a link
            }
            _ if is_models_folder(&read) => of_model(&there),
            _ => !self.kind.wrote(&there),
        }
    }
}

impl OutputKind {
    /// What limpid did not write, in words.
    fn name(self) -> &'static str {
        match self {
            OutputKind::Page => ", and is no page that limpid saved",
            OutputKind::Report => ", and is no report of limpid's",
            OutputKind::Picture => ", and is no picture that limpid drew",
            OutputKind::Tensors => ", and has no tensors that limpid saved",
            OutputKind::Directions => ", and has no directions that limpid wrote",
            OutputKind::Chat => ", and has no conversations",
            OutputKind::Manual => ", and is no page of limpid's manual",
            OutputKind::Tokenizer | OutputKind::Evidence | OutputKind::Run | OutputKind::Own => "",
        }
    }

    /// Whether limpid wrote the file as this kind of output.
    pub fn wrote(self, path: &Path) -> bool {
        const MOST: u64 = 64 << 20;
        let text = || files::read_text(path, MOST).unwrap_or_default();
        match self {
            OutputKind::Page => {
                let text = text();
                text.contains("<title>limpid</title>")
                    && text.contains("<script type=\"application/octet-stream\" id=\"saved\">")
            }
            OutputKind::Report => text().contains("<footer>Made by limpid.</footer>"),
            OutputKind::Picture => picture::is_own(&files::read_small(path, MOST).unwrap_or_default()),
            OutputKind::Tensors => axes_of(path).is_some_and(|axes| axes.iter().any(|axes| axes != "unit")),
            OutputKind::Directions => match path.extension().and_then(OsStr::to_str) {
                Some("gguf") => ControlVector::is_own(path),
                Some("safetensors") => axes_of(path).is_some_and(|axes| axes.iter().all(|axes| axes == "unit")),
                _ => is_steps(&text()),
            },
            OutputKind::Chat => {
                let chat = |line: &str| serde_json::from_str(line).is_ok_and(|line: Value| line["messages"].is_array());
                files::read_text(path, MOST).is_ok_and(|text| text.lines().all(chat))
            }
            OutputKind::Manual => text().contains(".TH limpid"),
            OutputKind::Tokenizer | OutputKind::Evidence | OutputKind::Run | OutputKind::Own => false,
        }
    }
}

/// Whether it is a list of directions as limpid writes it: on one line without blanks, each a vector that is added
/// once.
fn is_steps(text: &str) -> bool {
    let own = |step: &Value| step["steer"].is_string() && step["by"] == 1 && step["add"]["vector"].is_array();
    let Ok(Value::Array(steps)) = serde_json::from_str(text) else { return false };
    !steps.is_empty() && steps.iter().all(own) && !text.trim_end().contains(char::is_whitespace)
}

fn folder_of(path: &Path) -> Option<&Path> {
    path.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

/// What lies in a folder.
fn inside(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The files of a folder that have names of limpid's manual pages.
fn pages(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let named = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("limpid") && name.ends_with(".1")
    };
    inside(folder).filter(named)
}

/// Whether a file of this name is read as part of a model's folder, or of a run's.
fn is_models_file(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    is_part(&name) || folder::is_part(&name)
}

/// Whether a folder holds a model or a run.
fn is_models_folder(folder: &Path) -> bool {
    let there = |name: &str| folder.join(name).is_file();
    let weights = |path: &PathBuf| {
        path.extension().and_then(OsStr::to_str).is_some_and(|end| ["safetensors", "bin", "pt"].contains(&end))
    };
    there("limpid.toml")
        || ["config.json", "adapter_config.json"].into_iter().any(there) && inside(folder).any(|path| weights(&path))
}
