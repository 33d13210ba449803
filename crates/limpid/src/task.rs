//! A training task: the text as tokens, the configuration, the recipe and the objective, decided before memory is reserved for a model.
//! [`Training`](crate::Training) and the command line both begin with it, and with the files by which either resumes a run of the other.

use crate::Error;
use crate::checkpoint::{CHAT_TEMPLATE, Carried, Checkpoint, CheckpointError, GENERATION, adapter, generation_config};
use crate::config::{Config, Fields, Mask};
use crate::data::Tokens;
use crate::data::chat::{MARKERS, is_template, template};
use crate::data::source::{Conversations, Corpus, TextSource};
use crate::files;
use crate::matrix::Precision;
use crate::model::{Model, Tuning};
use crate::tokenizer::Tokenizer;
use crate::train::{Objective, Recipe, RunOptions, RunSettings};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a task needs besides text, configuration and recipe, if a model is fine-tuned or a run resumed.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Whether the model is fine-tuned: its vocabulary is then fixed, and may be larger than the tokenizer's.
    pub model: bool,
    /// Its tokenizer, which then encodes the text.
    pub tokenizer: Option<Tokenizer>,
    /// The template of the conversations that it was trained on, or another that was chosen: conversations are trained on in this one.
    pub chat_template: Option<String>,
    /// Its file, where it was chosen.
    pub template_file: Option<PathBuf>,
    /// Special tokens that the tokenizer gets besides.
    pub special_tokens: Vec<String>,
    /// The folder of a run that is resumed, with its tokenizer.
    pub resumed: Option<PathBuf>,
    /// Settings of the recipe that were chosen and so override those for conversations: `whole_documents`, `cross_documents`.
    pub chosen: Vec<String>,
}

/// A text as tokens, the configuration with the size of its vocabulary, and how the model is trained on it.
#[non_exhaustive]
pub struct Task {
    /// The model, its vocabulary the tokenizer's.
    pub config: Config,
    /// The recipe, with the context that is trained on.
    pub recipe: Recipe,
    /// The text; its validation part is empty if there is no validation text.
    pub corpus: Corpus,
    /// Its conversations, if it has any.
    pub conversations: Option<Conversations>,
    /// What the model is trained to predict.
    pub objective: Objective,
    /// How conversations are written, if it has or had any.
    pub chat_template: Option<String>,
    /// What goes into the settings: the text's name, its field, whether bad documents are left out and special tokens are found in documents, the
    /// tokenizer and the chat template if they were chosen, and the special tokens that the tokenizer got.
    text: [(&'static str, String); 7],
}

/// How a run of a task begins, as its folder records it.
pub struct Begins<'a> {
    /// The preset that the model began from; empty for none.
    pub preset: &'a str,
    /// The files of the model that is fine-tuned, if one is.
    pub from: Option<&'a Checkpoint>,
    /// The model.
    pub model: &'a Model,
    /// How it is carried out.
    pub options: RunOptions,
    /// Precision of matrix products.
    pub precision: Precision,
    /// The bytes that it keeps within, if there is a limit.
    pub memory: Option<u64>,
    /// Tokens of the sample that the command writes at the end, where that was chosen.
    pub sample: Option<usize>,
}

/// More than any chat template has.
const LARGEST_TEMPLATE: u64 = 16 << 20;

impl Task {
    /// Reads the text and decides the rest.
    ///
    /// # Errors
    /// If it cannot be read, is empty, or does not suit the model or its tokenizer.
    pub fn read(mut config: Config, mut recipe: Recipe, mut source: TextSource, given: Given) -> Result<Task, Error> {
        let masked = config.mask != Mask::Causal;
        source.val_fraction = recipe.val_fraction;
        let conversations = source.conversations()?;
        let in_folder =
            |name: &str| given.resumed.as_ref().map(|folder| folder.join(name)).filter(|path| path.exists());
        // a run goes on in the template that it began with
        let read = |path: PathBuf| {
            let text = files::read_text(&path, LARGEST_TEMPLATE);
            text.map_err(|fault| CheckpointError::Io { path, fault })
        };
        let chosen = in_folder(CHAT_TEMPLATE).map(read).transpose()?.or(given.chat_template);
        let foreign = chosen.as_deref().filter(|text| !is_template(text));
        let specials: &[&str] = match (&conversations, foreign) {
            (Some(_), _) if masked => return Err(Error::NeedsCausal),
            (Some(_), None) => &MARKERS,
            (None, _) if masked => &["[MASK]"],
            _ => &[],
        };
        source.specials = specials.iter().map(ToString::to_string).collect();
        source.added.clone_from(&given.special_tokens);
        let saved = in_folder("tokenizer.json");
        let of_model = given.tokenizer.is_some();
        source.decided = saved.map(Tokenizer::load).transpose()?.or(given.tokenizer);
        let mut corpus = match &conversations {
            Some(conversations) => conversations.corpus(&source, foreign)?,
            None => source.read()?,
        };
        if corpus.validation.len() < 2 {
            corpus.validation = Tokens::default();
        }
        let (tokens, vocab_size) = (corpus.tokenizer.vocab_size(), config.vocab_size);
        let stands = |name: &str| given.chosen.iter().any(|chosen| chosen == name);
        match given.model || stands("vocab_size") {
            true if tokens > vocab_size && given.special_tokens.is_empty() => {
                return Err(Error::OtherTokenizer { tokens, vocab_size });
            }
            true => config.vocab_size = vocab_size.max(tokens),
            false => config.vocab_size = tokens,
        }
        let objective = match masked {
            true => {
                let mask = corpus.tokenizer.special("[MASK]").ok_or(Error::NoMask)?;
                Objective::Masked { mask, vocab_size: tokens, segments: config.n_segment > 0 }
            }
            false => Objective::NextToken,
        };
        if conversations.is_some() {
            recipe.whole_documents |= !stands("whole_documents");
            recipe.cross_documents &= stands("cross_documents");
        }
        if recipe.context == 0 {
            recipe.context = config.context_length;
        }
        // only a file has a path: a folder may have the name of a tokenizer
        let tokenizer = &corpus.tokenizer_name;
        let tokenizer = if Path::new(tokenizer).is_file() { absolute(tokenizer) } else { tokenizer.clone() };
        let own = || conversations.as_ref().map(|_| template(&corpus.tokenizer));
        let chat_template = foreign.map(String::from).or_else(own).or(chosen);
        let text = [
            ("data", absolute(&source.name)),
            ("field", source.field.unwrap_or_default()),
            ("skip_bad", if source.skip_bad { "true".into() } else { String::new() }),
            ("parse_special", if source.parse_special { String::new() } else { "false".into() }),
            ("tokenizer", if of_model { String::new() } else { tokenizer }),
            (
                "chat_template",
                given.template_file.map(|file| absolute(&file.display().to_string())).unwrap_or_default(),
            ),
            ("add_special_tokens", given.special_tokens.join(",")),
        ];
        Ok(Task { config, recipe, corpus, conversations, objective, chat_template, text })
    }

    /// What a run's folder has of that of the model that is fine-tuned, with the same tokenizer or another: all that goes along when a model
    /// is written. An adapter's folder has nothing of it.
    pub fn carried(&self, begins: &Begins) -> Carried {
        let whole = begins.from.filter(|_| begins.model.tuning.lora.is_none());
        let carried = whole.map(|from| from.carried.clone()).unwrap_or_default();
        let own = begins.from.is_some_and(|from| from.tokenizer.is_some());
        if own { carried } else { carried.without_tokenizer() }
    }

    /// The files that a run begins its folder with, beside those of every run: limpid.toml, which says what it was started with, and what
    /// an adapter or a model of conversations has.
    ///
    /// # Errors
    /// If the files of the model that is fine-tuned cannot be read.
    pub fn files(&self, begins: &Begins) -> Result<Vec<(String, String)>, Error> {
        let from = begins.from.map(|files| absolute(&files.path.display().to_string()));
        let mut files = vec![];
        if let (Some(path), Some(from)) = (&from, begins.from) {
            files =
                adapter::describe(begins.model, &adapter::Base { path: path.into(), fingerprint: from.fingerprint()? });
        }
        files.extend(self.chat_template.iter().map(|template| (CHAT_TEMPLATE.into(), template.clone())));
        let whole = begins.from.is_some() && begins.model.tuning.lora.is_none();
        if whole && !self.carried(begins).written().any(|name| name == GENERATION) {
            files.extend(generation_config(&self.corpus.tokenizer).map(|text| (GENERATION.into(), text)));
        }
        let rest = [
            ("preset", begins.preset.to_string()),
            ("from", from.unwrap_or_default()),
            ("precision", begins.precision.to_string()),
            ("memory", begins.memory.map(|bytes| bytes.to_string()).unwrap_or_default()),
            ("sample", begins.sample.map(|tokens| tokens.to_string()).unwrap_or_default()),
        ];
        let rest = rest.into_iter().chain(self.text.clone()).chain(keys(&begins.model.tuning));
        let chosen = RunSettings { recipe: self.recipe, options: begins.options };
        // written first, so that a run that is killed at its beginning can be resumed
        let padded = begins.from.is_none() && self.config.vocab_size > self.corpus.tokenizer.vocab_size();
        files.insert(0, ("limpid.toml".into(), settings(&self.config, &chosen, padded, rest)));
        Ok(files)
    }
}

/// Freezing and LoRA, as settings.
fn keys(tuning: &Tuning) -> Vec<(&'static str, String)> {
    let mut keys = vec![("freeze", tuning.freeze.join(",")), ("train_only", tuning.train_only.join(","))];
    if let Some(lora) = &tuning.lora {
        keys.extend([
            ("lora", lora.rank.to_string()),
            ("lora_alpha", lora.alpha.to_string()),
            ("lora_dropout", lora.dropout.to_string()),
            ("lora_targets", lora.targets.join(",")),
        ]);
    }
    keys
}

/// Settings as a configuration file: what the command's `--config` and `--resume` read.
/// The vocabulary is the tokenizer's, unless it is padded.
fn settings(
    config: &Config,
    chosen: &RunSettings,
    padded: bool,
    rest: impl Iterator<Item = (&'static str, String)>,
) -> String {
    // what follows the model's own is written so, for whoever takes another model with these settings
    let own = chosen.recipe.context == config.context_length;
    let recipe = Recipe { context: if own { 0 } else { chosen.recipe.context }, ..chosen.recipe };
    let fields = config.fields().into_iter().chain(recipe.fields()).chain(chosen.options.fields());
    let fields = fields.filter(|(setting, _)| setting.chosen && (padded || setting.name != "vocab_size"));
    let values = fields.map(|(setting, value)| (setting.name, value.json()));
    let rest = rest.filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key, json!(value)));
    let lines: BTreeMap<&str, Value> = values.filter(|(_, value)| !value.is_null()).chain(rest).collect();
    // one value a key: TOML has it as JSON has, but for a character that it does not take as it is
    let line = |(key, value): (&&str, &Value)| format!("{key} = {value}\n").replace('\u{7f}', "\\u007f");
    let lines: String = lines.iter().map(line).collect();
    format!("# What this run was started with. `limpid train --config FILE` starts another like it.\n{lines}")
}

/// A path from the root, where there is something; a name as it is.
fn absolute(name: &str) -> String {
    match Path::new(name).exists() {
        true => std::path::absolute(name).map_or_else(|_| name.into(), |path| path.display().to_string()),
        false => name.into(),
    }
}
