//! Models as verbs open them: in a folder or a file, with an adapter, on a machine; their tokenizers and prompts.

use crate::options::{MachineOptions, Usage};
use crate::show;
use crate::source::{prompt, read_file};
use anyhow::{Context, Result, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use limpid::checkpoint::{CHAT_TEMPLATE, Carried, Checkpoint, Format};
use limpid::config::{Config, ConfigError};
use limpid::data::template::{ChatTemplate, TemplateTokens};
use limpid::matrix::Precision;
use limpid::model::Mode;
use limpid::settings::read_table;
use limpid::tokenizer::Tokenizer;
use limpid::{Interventions, Lm};
use limpid_base::words;
use std::path::{Path, PathBuf};

/// Names that are shown of many.
const SHOWN: usize = 8;

/// Refuses products of integers for weights that are none, and decides `--device auto`.
pub fn suits(checkpoint: &Checkpoint, machine: &MachineOptions) -> Result<()> {
    if machine.precision == Precision::Int8 && !checkpoint.is_quantised() {
        bail!(Usage(format!(
            "--precision int8 is for quantised weights, but {} has none: `limpid convert {} MODEL.gguf --dtype q8_0` \
             makes some",
            checkpoint.path.display(),
            show::quoted(&checkpoint.path)
        )));
    }
    machine.measure(&checkpoint.config, Mode::Decode { rows: 1, outputs: 1, blocks: 1 });
    Ok(())
}

/// Refuses a result that is no number, or infinite, naming what of the model it comes from.
pub fn finite(checkpoint: &Checkpoint, what: &str, result: f64) -> Result<()> {
    if result.is_finite() {
        return Ok(());
    }
    let place = checkpoint.path.display();
    match checkpoint.not_finite()? {
        Some((tensor, at)) => bail!("{what} is {result}: `{tensor}` in {place} is not finite at element {at}"),
        None => bail!("{what} is {result}, though all weights in {place} are finite: they are too large"),
    }
}

/// Opens a model; a name that no file has is most often a preset's, or one of a model elsewhere.
/// `verified`: its checksums are held against its bytes before the first value is read.
pub fn checkpoint(model: &Path, verified: bool) -> Result<Checkpoint> {
    if model.symlink_metadata().is_ok() {
        return Ok(Checkpoint::open_as(model, verified)?);
    }
    let (path, name) = (model.display(), model.to_string_lossy());
    let mend = match Config::preset(&name) {
        Ok(_) => format!(
            "it is the name of a preset: `limpid train --preset {name}` makes such a model; trained weights of that \
             name are fetched from where they are published, for example as the folder huggingface.co/{name}"
        ),
        Err(_) => "limpid opens a folder (of `limpid train`, or one of HuggingFace's that you have fetched), a .gguf \
                   or a .bin of llm.c, and downloads none"
            .into(),
    };
    bail!("there is no file or folder {path} here: {mend}")
}

/// A model in files.
#[derive(clap::Args, Clone, Debug)]
pub struct WeightOptions {
    /// A model: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c, or a state that a run kept,
    /// RUN/state/step-N.safetensors [default: the newest run under runs/]
    #[arg(value_name = "MODEL", value_parser = any_word())]
    place: Option<PathBuf>,
    /// The same as MODEL
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// A LoRA adapter to add to the model: a folder of limpid's or PEFT's (repeatable: their sum is added)
    #[arg(long, value_name = "DIR")]
    pub adapter: Vec<PathBuf>,
}

impl WeightOptions {
    /// The model that is named.
    pub fn named(&self) -> Result<Option<&Path>> {
        one_model(self.place.as_deref(), self.model.as_deref())
    }

    /// The model that is named, or the newest run, which is then printed and stays the one that is meant.
    pub fn path(&mut self) -> Result<&Path> {
        if self.named()?.is_none() {
            self.model = Some(newest_model()?);
        }
        Ok(self.named()?.expect("one of them is there"))
    }

    /// The model as it was named, in a command that is printed.
    pub fn words(&self) -> Result<String> {
        let Some(model) = self.named()? else { return Ok(String::new()) };
        let words = words::model_words(model, self.adapter.iter().map(PathBuf::as_path));
        Ok(words.iter().map(|word| format!(" {}", words::word(word))).collect())
    }

    /// What a verb takes beside the model, which stands before it: see [`after_model`].
    pub fn then(&mut self, word: Option<String>, verb: &str, what: &str) -> Result<String> {
        let missing = || Usage(format!("{what} is missing: `limpid {verb} [MODEL] {what}`"));
        Ok(after_model(&mut self.place, word, verb, what)?.ok_or_else(missing)?)
    }

    /// Refuses a text in the model's place, which `flag` of `verb` takes.
    pub fn refuse_text(&self, verb: &str, flag: &str) -> Result<()> {
        let Some(place) = self.place.as_deref().filter(|place| is_text(place)) else { return Ok(()) };
        let Err(error) = checkpoint(place, false) else { return Ok(()) };
        let from = if place.is_file() && flag != "--data" { "@" } else { "" };
        bail!("{error}; a text is given with {flag}: `limpid {verb} {flag} {from}{}`", show::quoted(place))
    }

    /// Opens it, with the adapters that are given.
    pub fn open(&mut self, verified: bool) -> Result<Checkpoint> {
        let adapters = self.adapter.clone();
        adapted(self.path()?, &adapters, verified)
    }
}

/// What changes a model's runs.
#[derive(clap::Args, Clone, Debug)]
pub struct InterventionOptions {
    /// Change what the model computes on its way: a list of steps in JSON, a file with one, or - for standard input
    /// (docs/interventions.md)
    #[arg(long, value_name = "JSON|FILE")]
    pub intervene: Option<String>,
}

impl InterventionOptions {
    /// The steps, if there are any.
    pub fn read(&self) -> Result<Option<Interventions>> {
        let Some(given) = &self.intervene else { return Ok(None) };
        let text = match given.as_str() {
            json if json.trim_start().starts_with(['[', '{']) => json.into(),
            "-" => prompt(given)?,
            file => {
                let path = Path::new(file.strip_prefix('@').unwrap_or(file));
                if !path.exists() && file.contains(char::is_whitespace) {
                    bail!(Usage(format!(
                        "--intervene {file:?}: expected steps in JSON, such as '[{{\"ablate\": \
                         \"blocks.1.attn.hook_z\", \"head\": 0}}]', or a file with them"
                    )));
                }
                read_file(path)?
            }
        };
        text.parse().map(Some).context("--intervene")
    }

    /// The model, with its runs changed if that is asked for.
    pub fn apply(&self, lm: Lm) -> Result<Lm> {
        match self.read()? {
            Some(steps) => lm.intervene(&steps).context("--intervene"),
            None => Ok(lm),
        }
    }
}

/// A word that may be a model's place or, alone, something else: also an empty text.
pub fn any_word() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The model that is named by its place or by --model.
pub fn one_model<'a>(place: Option<&'a Path>, flag: Option<&'a Path>) -> Result<Option<&'a Path>> {
    if let (Some(place), Some(flag)) = (place, flag) {
        let [place, flag] = [place, flag].map(show::quoted);
        bail!(Usage(format!("two models are named, {place} and --model {flag}: leave one out")));
    }
    Ok(place.or(flag))
}

/// The second of a verb's words, of which the first is a model; a word that is alone is the second.
pub fn after_model(
    place: &mut Option<PathBuf>,
    word: Option<String>,
    verb: &str,
    what: &str,
) -> Result<Option<String>> {
    match (&*place, &word) {
        (Some(first), Some(second)) if is_text(first) && Path::new(second).exists() => {
            let [first, second] = [show::quoted(first), show::quoted(second)];
            bail!(Usage(format!("MODEL stands before {what}: `limpid {verb} {second} {first}`")))
        }
        (Some(_), None) => {
            let only = place.take().unwrap_or_default().into_os_string().into_string();
            Ok(Some(only.map_err(|only| Usage(format!("{what} is not UTF-8: {}", only.display())))?))
        }
        _ => Ok(word),
    }
}

/// Whether what stands in a model's place can only be a text: neither a folder, nor a file with a name that a model's
/// has, nor a preset.
fn is_text(place: &Path) -> bool {
    let model = place.extension().is_some_and(|end| ["gguf", "bin", "safetensors"].iter().any(|one| end == *one));
    if place.is_file() {
        !model
    } else {
        place.symlink_metadata().is_err() && Config::preset(&place.to_string_lossy()).is_err()
    }
}

/// The newest run under runs/ that has saved a model.
fn newest_model() -> Result<PathBuf> {
    let Some(folder) = newest_folder(&WEIGHTS) else {
        bail!(Usage("no model is given, and runs/ has none: give MODEL, or train one with `limpid train`".into()));
    };
    show::say(format_args!("{} is the newest run; name a model to take another", folder.display()));
    Ok(folder)
}

/// The files in which a run saves its model: all of it, or an adapter.
pub const WEIGHTS: [&str; 2] = ["model.safetensors", "adapter_model.safetensors"];

/// The folder under runs/ in which one of these files was written last.
pub fn newest_folder(files: &[&str]) -> Option<PathBuf> {
    let saved = |folder: &Path, file: &str| folder.join(file).metadata().ok()?.modified().ok();
    let written = |folder: PathBuf| Some((files.iter().filter_map(|file| saved(&folder, file)).max()?, folder));
    let runs = std::fs::read_dir("runs").ok()?.flatten().filter_map(|entry| written(entry.path()));
    runs.max().map(|(_, folder)| folder)
}

/// Opens a model with these adapters.
pub fn adapted(model: &Path, adapters: &[PathBuf], verified: bool) -> Result<Checkpoint> {
    let merge = |checkpoint: Checkpoint, adapter: &PathBuf| checkpoint.with_adapter(adapter);
    Ok(adapters.iter().try_fold(checkpoint(model, verified)?, merge)?)
}

/// The prompt where none is given, which is said.
pub fn example(checkpoint: &Checkpoint) -> Result<String> {
    let text = checkpoint.tokenizer.as_ref().and_then(|own| limpid::generate::example(own, &checkpoint.config));
    let text = text.ok_or_else(|| {
        Usage("give --prompt TEXT, --tokens 1,2,3 or --data FILE: the model needs tokens to run on".into())
    })?;
    show::say(format_args!("the prompt is {text:?}; --prompt TEXT gives another"));
    Ok(text)
}

/// What SentencePiece's own files are called.
pub const SENTENCE_PIECE: [&str; 3] = ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"];

/// What such a file is, and the mend.
pub fn sentence_piece(name: &str) -> String {
    format!("{name}: {}", limpid::tokenizer::TokenizerError::SentencePiece)
}

/// The directory's tokenizer, or an error that says what to do without one.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<&Tokenizer> {
    match &checkpoint.tokenizer {
        Some(tokenizer) => Ok(tokenizer),
        None => match SENTENCE_PIECE.iter().find(|name| checkpoint.path.join(name).exists()) {
            Some(name) => bail!("{}: the tokenizer is {}", checkpoint.path.display(), sentence_piece(name)),
            None => bail!("{} has no tokenizer: give ids with --tokens 1,2,3", checkpoint.path.display()),
        },
    }
}

/// How conversations with the model are written: the template in `file`, or its own.
pub fn template(checkpoint: &Checkpoint, file: Option<&Path>) -> Result<ChatTemplate> {
    let tokens = TemplateTokens::new(tokenizer(checkpoint)?);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs() as i64);
    let (source, whence) = match (file, &checkpoint.chat_template) {
        (Some(file), _) => (read_file(file)?, file),
        (None, Some(own)) => (own.clone(), checkpoint.path.as_path()),
        (None, None) => {
            let model = checkpoint.path.display();
            let quoted = show::quoted(&checkpoint.path);
            let on = trained_on(&checkpoint.path).map(|data| format!(" but on {data}")).unwrap_or_default();
            bail!(
                "{model} was not trained on conversations{on} (it has no {CHAT_TEMPLATE}): `limpid generate --model \
                 {quoted} --prompt TEXT` continues a text; docs/chat.md says how to train a model that answers; \
                 --chat-template FILE gives a template to one whose files have none"
            )
        }
    };
    Ok(ChatTemplate::new(&source, tokens).with_context(|| whence.display().to_string())?.at(now))
}

/// The text that a model of limpid's was trained on, by the settings of its run.
fn trained_on(folder: &Path) -> Option<String> {
    Some(read_table(&folder.join("limpid.toml")).ok()?.get("data")?.as_str()?.into())
}

/// Refuses a device for what runs several times on one copy of the weights.
pub fn shares(machine: &MachineOptions) -> Result<()> {
    let device = machine.device();
    if device.can_share() {
        return Ok(());
    }
    bail!(Usage(format!(
        "--device {device} keeps weights for one run alone, and this verb has several: take the cpu or the gpu"
    )))
}

/// A model on the machine that was asked for.
pub fn on_machine(checkpoint: Checkpoint, machine: &MachineOptions) -> Result<Lm> {
    suits(&checkpoint, machine)?;
    Ok(Lm::from(checkpoint).with_machine(machine.machine()))
}

/// The same for what runs several times on one copy of the weights.
pub fn sharing(checkpoint: Checkpoint, machine: &MachineOptions) -> Result<Lm> {
    shares(machine)?;
    on_machine(checkpoint, machine)
}

/// The files of a model that was opened here.
pub fn files(lm: &Lm) -> &Checkpoint {
    lm.checkpoint().expect("it was opened from files")
}

/// The name of a folder or file.
#[cfg(feature = "serve")]
pub fn name(model: &Path) -> String {
    let whole = std::path::absolute(model).unwrap_or_else(|_| model.into());
    whole.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// Refuses an encoder that has no head, before anything else about it is asked for.
pub fn needs_head(checkpoint: &Checkpoint) -> Result<()> {
    if !checkpoint.config.lm_head {
        bail!("{}: {}", checkpoint.path.display(), ConfigError::NoHead);
    }
    Ok(())
}

/// The ids of a prompt, as the model expects it.
pub fn prompt_ids(checkpoint: &Checkpoint, text: &str) -> Result<Vec<u32>> {
    let tokenizer = tokenizer(checkpoint)?;
    Ok(limpid::generate::prompt_ids(tokenizer, checkpoint.config.mask, text)?)
}

/// Ids of one sequence: 1,2,3.
pub fn sequence(text: &str) -> Result<Vec<u32>, String> {
    text.split(',').map(ids).collect()
}

/// Ids as `--tokens` takes them: 1,2,3.
pub fn ids(text: &str) -> Result<u32, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("`{text}` is not a token id: give whole numbers with commas between, like 1,2,3"))
}

/// What goes along when a model becomes one of that format, and what does not: lines for people.
pub fn along(source: &Checkpoint, carried: &Carried, format: Format, keep_types: bool) -> Vec<(&'static str, String)> {
    let no_place = if format.is_folder() { String::new() } else { format!(", or {format} has no place for them") };
    let nowhere = format!("limpid does not read them{no_place}");
    let unsaid = if format == source.format {
        "they describe the types that tensors had"
    } else {
        "limpid writes them to GGUF only"
    };
    let [along, behind, keys] = source.parted(carried, format, keep_types);
    let lists = [
        ("carried", along, "as they are"),
        ("left behind", behind, nowhere.as_str()),
        ("left behind", keys, unsaid),
        ("ignored", carried.ignored.clone(), "keys of config.json that change no number"),
    ];
    let lists = lists.into_iter().filter(|(_, names, _)| !names.is_empty());
    lists.map(|(what, names, why)| (what, format!("{}: {why}", list(&names)))).collect()
}

/// The first few of many names.
pub fn list(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).map(|name| name.escape_debug().to_string()).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}
