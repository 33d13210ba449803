//! Walks: five documents on the transformer, read section by section on a live model of their kind.
//!
//! A walk is data, written in `s0.toml` to `s4.toml`: what a section says, the tensors it is about, where it errs, what
//! it prints, what to try. [`Walk::live`] trains or opens its models, and [`Live::step`] shows one step on them. Here
//! is what is written; `live` has models and runs, `views` what of them is shown, `worked` and `equal` small
//! computations and equalities, `printed` the numbers that documents print.
//!
//! ```
//! use limpid_study::walk::{Walk, WalkOptions};
//! let walk = Walk::named("s3")?;
//! let step = walk.steps[walk.find("masking")?].clone();
//! let shown = walk.live(WalkOptions::default()).step(&step)?;
//! assert!(shown.checks.iter().all(|check| check.holds));
//! # Ok::<(), limpid_study::walk::WalkError>(())
//! ```

mod commands;
mod computed;
pub mod equal;
mod facts;
mod kinds;
mod live;
mod notebook;
mod parts;
pub mod plain;
pub mod printed;
#[cfg(test)]
mod tests;
mod views;
mod worked;

pub use equal::Equal;
pub use live::{Live, WalkOptions};
use live::{Ready, Run};
pub use printed::{As, Check, Printed};
pub use worked::Worked;

use limpid_base::nearest::nearest;
use limpid_core::config::{Config, ConfigError, Fields, Positions, Settings};
use limpid_draw::view::View;
use limpid_trace::names::Notation;
use limpid_train::{Recipe, RunOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A document, step by step.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Walk {
    /// Its name: `s0` to `s4`.
    pub name: String,
    /// Its other names.
    pub also: Vec<String>,
    /// The document's title.
    pub title: String,
    /// What the document is, and what the model is.
    pub about: String,
    /// Whose symbols and letters it has.
    pub notation: Notation,
    /// The document's letters for axes, in its order, and limpid's names of these axes: `("d_k", "d_head")`.
    pub letters: Vec<(String, String)>,
    /// The models that it is walked on.
    #[serde(rename = "model")]
    pub models: Vec<Made>,
    /// Models with some weights set exactly, so that the document's own numbers come out of them.
    #[serde(default, rename = "scene")]
    pub scenes: Vec<Scene>,
    /// Its steps, in the document's order.
    #[serde(rename = "step")]
    pub steps: Vec<WalkStep>,
}

/// How a model is trained: [`Made::command`] is the command, and [`Live`] does the same in memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// Its name in views' `on`.
    pub id: String,
    /// The folder that the command writes; `id` if none is given.
    pub folder: Option<String>,
    /// The preset it begins from.
    pub preset: String,
    /// The text it learns.
    pub data: String,
    /// The tokenizer, where it is not the text's own.
    pub tokenizer: Option<String>,
    /// Settings that differ from the preset's.
    #[serde(default)]
    pub set: Set,
    /// The texts it is shown on, a sequence each.
    #[serde(default)]
    pub prompts: Vec<String>,
    /// Documents of `data` that it is shown on instead, by their numbers from 0.
    #[serde(default)]
    pub documents: Vec<usize>,
    /// Whether each of these goes on in the next, so that the last token of one predicts the first of the next.
    #[serde(default)]
    pub continued: bool,
    /// The segment of each token of each sequence, for a model that has segments.
    #[serde(default)]
    pub segments: Vec<Vec<u32>>,
    /// What was chosen, and why.
    pub about: String,
    /// Whether views without `on` are of this one; else they are of the first.
    #[serde(default)]
    pub default: bool,
}

/// A model that is not trained but written.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scene {
    /// Its name in views' `on`.
    pub id: String,
    /// What it is called in captions: `with the printed rows`; its name if empty.
    #[serde(default)]
    pub called: String,
    /// The model whose configuration and initial weights it has.
    pub of: String,
    /// Settings that differ from that model's.
    #[serde(default)]
    pub set: Set,
    /// The texts it is shown on; the walk's for the model if none are given.
    #[serde(default)]
    pub prompts: Vec<String>,
    /// The tokenizer, where it is not the model's; it may be made of these texts.
    pub tokenizer: Option<String>,
    /// Parameters that are written.
    #[serde(default)]
    pub writes: Vec<Write>,
    /// What it is for.
    pub about: String,
}

/// A parameter whose values a scene sets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// Its name.
    pub parameter: String,
    /// What is written.
    pub values: SceneValues,
}

/// What a scene writes into a parameter: what the notebook of "Zero-to-Hero" drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SceneValues {
    /// The rows of its look-up table that belong to the model's tokens.
    FirstTable,
    /// The same of the table that its second run drew.
    SecondTable,
    /// The weights of Wq, Wk and Wv.
    AttentionWeights,
    /// Their biases.
    AttentionBiases,
}

/// Settings by name, each as the text that `--NAME` would be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "BTreeMap<String, toml::Value>")]
pub struct Set(pub BTreeMap<String, String>);

impl Set {
    /// Those that are settings of `base`.
    fn settings_of(&self, base: &impl Fields) -> Vec<(&str, String)> {
        let fields = base.fields();
        let known = |name: &String| fields.iter().any(|(setting, _)| setting.name == name);
        self.0.iter().filter(|(name, _)| known(name)).map(|(name, value)| (name.as_str(), value.clone())).collect()
    }
}

impl From<BTreeMap<String, toml::Value>> for Set {
    fn from(all: BTreeMap<String, toml::Value>) -> Set {
        let text = |value: toml::Value| value.as_str().map_or_else(|| value.to_string(), String::from);
        Set(all.into_iter().map(|(name, value)| (name, text(value))).collect())
    }
}

/// A step: a section of the document, or a part of one.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WalkStep {
    /// Its name in the walk.
    pub id: String,
    /// The section's heading.
    pub section: String,
    /// What it comes to.
    pub title: String,
    /// Symbols that it brings.
    pub symbols: Vec<String>,
    /// Its formula, in the document's symbols; may be empty.
    pub formula: String,
    /// Symbols with their shapes in the document's letters: `("W_e", "V D")`.
    #[serde(default)]
    pub shapes: Vec<(String, String)>,
    /// What is shown.
    pub views: Vec<Show>,
    /// What to see in it.
    pub see: String,
    /// Where the document errs.
    #[serde(default)]
    pub errata: Vec<Erratum>,
    /// The numbers that the document prints here.
    #[serde(default)]
    pub printed: Vec<Printed>,
    /// Commands to try.
    #[serde(rename = "try")]
    pub commands: Vec<String>,
    /// Commands that are refused, with a message that is worth reading.
    #[serde(default)]
    pub refused: Vec<String>,
}

/// A place where the document errs, or where documents disagree.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Erratum {
    /// Its number in the list of docs/contract.md: E0-01; X-01 where documents disagree.
    pub id: String,
    /// What is wrong, and what is right.
    pub note: String,
}

/// On what a view is taken: by default on the walk's default model, as trained, and on its prompts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct At {
    /// Another of the walk's models, or a scene.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Its weights before training.
    #[serde(skip_serializing_if = "is_default")]
    pub initial: bool,
    /// Settings that are changed while the weights stay.
    #[serde(skip_serializing_if = "is_default")]
    pub set: Set,
    /// Another text, alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// Which part of a tensor is shown, and how.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct TensorPart {
    /// One sequence, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<usize>,
    /// One head, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<usize>,
    /// Heads side by side as (pos, d_model).
    #[serde(skip_serializing_if = "is_default")]
    pub merged: bool,
    /// Rows as columns.
    #[serde(skip_serializing_if = "is_default")]
    pub transpose: bool,
    /// Digits after the point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decimals: Option<u8>,
}

/// One thing that a step shows.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "show", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are what the toml files write; each producer says what it takes")]
pub enum Show {
    /// The document's letters, what they are and how large.
    Letters,
    /// The tokens of a tokenizer by their ids, counted from `base`.
    Vocabulary {
        tokenizer: Option<String>,
        #[serde(default)]
        base: u32,
    },
    /// Texts as tokens.
    Tokens(TokensShown),
    /// Rows of zeros with a one, of the prompts or of a text.
    OneHot { tokenizer: Option<String>, text: Option<String>, sequence: Option<usize> },
    /// A tensor as numbers. `input` with `targets` has beside each token the one that it predicts; `sparse` shows the
    /// ids that the tokenizer had before they were made dense.
    Table {
        of: String,
        #[serde(default)]
        targets: bool,
        #[serde(default)]
        sparse: bool,
        #[serde(flatten)]
        part: TensorPart,
        #[serde(flatten)]
        at: At,
    },
    /// A tensor as a heat map; `similarity` is the cosine of every two tokens' embeddings, `position-similarity` that
    /// of two positions'.
    Heat {
        of: String,
        #[serde(flatten)]
        part: TensorPart,
        #[serde(flatten)]
        at: At,
    },
    /// The first rows of a kind of position table.
    Positions { kind: Positions, rows: usize },
    /// The mask in its forms: `binary`, `additive`, `multiplicative`, `function`; for the prompts' length or for `n`.
    Masks { forms: Vec<String>, n: Option<usize> },
    /// A printed table beside the live tensor.
    Printed {
        golden: String,
        of: String,
        decimals: u8,
        #[serde(flatten)]
        at: At,
    },
    /// Values of activations at some places, with their greatest difference from the first, their minimum, their
    /// slopes.
    Function {
        names: Vec<String>,
        at: Vec<f64>,
        #[serde(default)]
        minimum: bool,
        #[serde(default)]
        difference: bool,
        #[serde(default)]
        slopes: bool,
    },
    /// A small computation.
    Worked {
        #[serde(flatten)]
        work: Worked,
        #[serde(flatten)]
        at: At,
    },
    /// Two ways to the same numbers, compared.
    Equal {
        #[serde(flatten)]
        what: Equal,
        #[serde(flatten)]
        at: At,
    },
    /// Tensors with symbol, shape and formula, or with what they are (`about`); heads first, or `by_position`.
    Shapes {
        of: Vec<String>,
        #[serde(default)]
        by_position: bool,
        #[serde(default)]
        formulas: bool,
        #[serde(default)]
        about: bool,
        #[serde(flatten)]
        at: At,
    },
    /// Lines of the document's program, with the shapes that go in and out.
    Lines { rows: Vec<Line> },
    /// The model's ops; of several blocks the first alone (`one_block`).
    Listing {
        #[serde(default)]
        one_block: bool,
    },
    /// The step's symbols with their shapes here; `of` has limpid's name for each.
    Notations { of: Vec<String> },
    /// The likeliest next tokens after each token; after every block (`after = "every block"`), after the last token
    /// only, or for masked tokens.
    Next {
        sequence: Option<usize>,
        after: Option<String>,
        #[serde(default)]
        last: bool,
        #[serde(default)]
        masked: bool,
        #[serde(flatten)]
        at: At,
    },
    /// A prompt continued greedily, with ids and shapes of each round, and with logits.
    Generate {
        prompt: String,
        tokens: usize,
        #[serde(default)]
        logits: bool,
    },
    /// Losses in their forms: `each`, `mean`, `sum`, `initial`, `product`, `log-sum`, `negative`, `without-log`.
    Losses { forms: Vec<String> },
    /// Parameters, counted or listed.
    Params(ParamsShown),
    /// llm.c's memory: `parameters`, `activations`, or one of its tensors layer by layer; of the model, or of a preset.
    Layout {
        of: String,
        preset: Option<String>,
        #[serde(default)]
        sizes: Set,
        #[serde(default)]
        slices: bool,
    },
    /// Norms of gradients, of parameters, by `block`, or of what `llmc` keeps in one array.
    Gradients {
        by: Option<String>,
        #[serde(flatten)]
        at: At,
    },
    /// A parameter before and after one step of an optimizer.
    Step {
        optimizer: String,
        learning_rate: f64,
        parameter: String,
        #[serde(flatten)]
        at: At,
    },
    /// A picture of the document's: what it is, with its row in docs/contract.md; the document's own words for it,
    /// which mark its place; the command that draws it; and what shows the same here, or nothing where the views above
    /// have it.
    Picture { name: String, words: String, command: String, now: Option<Box<Show>> },
    /// What a document claims, and the lessons that measure it; none where the second is empty.
    Lessons { claims: Vec<(String, String)> },
}

/// Texts as tokens: of the model's prompts, or of one; of the text it learned (`of = "corpus"`); or of `text`, of the
/// `ids` or of a document's printed ids (`golden`) by the `tokenizer` named, or by several.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct TokensShown {
    /// `corpus`: the text that the model learned.
    pub of: Option<String>,
    /// One sequence, counted from 0.
    pub sequence: Option<usize>,
    /// From where ids are counted.
    pub base: u32,
    /// A tokenizer.
    pub tokenizer: Option<String>,
    /// Several, for one `text`.
    pub tokenizers: Vec<String>,
    /// A text.
    pub text: Option<String>,
    /// The key of printed ids.
    pub golden: Option<String>,
    /// Ids.
    pub ids: Vec<u32>,
    /// How many ids are used, of the text that the model learned.
    pub statistics: bool,
    /// On what it is taken.
    #[serde(flatten)]
    pub at: At,
}

/// Parameters by group, of the model, of a preset (with other `sizes` of its vocabulary), or of several presets.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ParamsShown {
    /// Another of the walk's models.
    pub on: Option<String>,
    /// A preset, instead of a model.
    pub preset: Option<String>,
    /// Several presets, a line each.
    pub names: Vec<String>,
    /// What these lines have: `n_layer`, `parameters`.
    pub columns: Vec<String>,
    /// Rows of the token table.
    pub sizes: Vec<usize>,
    /// How many each group has.
    pub groups: bool,
    /// The document's formula beside what is counted.
    pub formula: bool,
    /// Each parameter with its shape, and how much training changed it.
    pub list: bool,
}

/// A line of a document's program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Its number: `[1]`.
    pub line: String,
    /// It.
    pub code: String,
    /// What it does.
    pub does: String,
    /// Shapes that go in, in the document's letters.
    pub from: String,
    /// The shape that comes out.
    pub to: String,
    /// The tensor of limpid's that holds it.
    pub of: String,
    /// What the document remarks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

/// A step on its models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// Its number in the walk, from 1.
    pub number: usize,
    /// What is said.
    pub step: WalkStep,
    /// Its shapes in numbers.
    pub shapes: Vec<ShapeRow>,
    /// What is shown.
    pub figures: Vec<Figure>,
    /// The numbers that the document prints, compared.
    pub checks: Vec<Check>,
    /// What a model of another kind shows otherwise.
    pub notes: Vec<String>,
}

/// A symbol's shape, in the document's letters and in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShapeRow {
    /// The symbol.
    pub symbol: String,
    /// The document's letters.
    pub letters: String,
    /// The sizes.
    pub sizes: Vec<usize>,
}

/// A view, and how it is best printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// It.
    pub view: View,
    /// Whether a matrix is best seen as a heat map.
    pub heat: bool,
    /// Digits after the point of a matrix.
    pub decimals: u8,
    /// What the document's notation calls the tensor, and what was changed for it; may be empty.
    pub caption: String,
    /// Whether it says why this model has nothing to show here.
    #[serde(skip_serializing_if = "is_default")]
    pub lacks: bool,
    /// The document's picture that stands here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picture: Option<Picture>,
}

/// A picture of a document's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Picture {
    /// What it is.
    pub what: String,
    /// What the document says where it has it.
    pub words: String,
    /// The command that draws it; empty where this model lacks what it would show.
    pub command: String,
    /// What the command draws, as SVG: where [`WalkOptions::pictures`] asks for it, and the figure is not the same
    /// already.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drawn: Vec<String>,
}

impl From<View> for Figure {
    /// A view as a table, with four digits.
    fn from(view: View) -> Figure {
        Figure { view, heat: false, decimals: 4, caption: String::new(), lacks: false, picture: None }
    }
}

type Result<T, E = WalkError> = std::result::Result<T, E>;

/// Why a step cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// No walk has the name.
    #[error("there is no walk `{name}`: {}{}", Walk::ALL.join(", "), did_you_mean(.nearest))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The nearest.
        nearest: Option<String>,
    },
    /// No step has the name.
    #[error(
        "`{walk}` has no step `{name}`: give its name, its number from 1 to {count}, or words of its section{}",
        did_you_mean(.nearest)
    )]
    NoStep {
        /// The walk's name.
        walk: String,
        /// The name asked for.
        name: String,
        /// How many steps it has.
        count: usize,
        /// The nearest.
        nearest: Option<String>,
    },
    /// Something that a step speaks of is not there: a model, a head, a token.
    #[error("{0}")]
    Lacks(String),
    /// A model: made, opened or run.
    #[error(transparent)]
    Run(#[from] limpid::Error),
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or(String::new(), |nearest| format!("; did you mean `{nearest}`?"))
}

macro_rules! run_errors {
    ($($error:ty),*) => {
        $(impl From<$error> for WalkError {
            fn from(error: $error) -> WalkError {
                WalkError::Run(error.into())
            }
        })*
    };
}
run_errors!(
    ConfigError,
    limpid_trace::TraceError,
    limpid_core::backend::BackendError,
    limpid_tokenizer::TokenizerError,
    limpid::generate::GenerateError,
    limpid_data::source::SourceError,
    limpid_data::DataError
);

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

const TEXTS: [&str; 5] = [
    include_str!("s0.toml"),
    include_str!("s1.toml"),
    include_str!("s2.toml"),
    include_str!("s3.toml"),
    include_str!("s4.toml"),
];

impl Show {
    /// On what it is taken, where that can be chosen.
    fn at(&self) -> Option<&At> {
        match self {
            Show::Tokens(TokensShown { at, .. })
            | Show::Table { at, .. }
            | Show::Heat { at, .. }
            | Show::Printed { at, .. }
            | Show::Worked { at, .. }
            | Show::Equal { at, .. }
            | Show::Shapes { at, .. }
            | Show::Next { at, .. }
            | Show::Gradients { at, .. }
            | Show::Step { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The model or scene that it names.
    fn on(&self) -> Option<&str> {
        match self {
            Show::Params(params) => params.on.as_deref(),
            other => other.at().and_then(|at| at.on.as_deref()),
        }
    }
}

impl Walk {
    /// Names of the walks, in the order of the documents.
    pub const ALL: [&str; 5] = ["s0", "s1", "s2", "s3", "s4"];

    /// Every walk.
    pub fn all() -> Vec<Walk> {
        TEXTS.iter().map(|text| toml::from_str(text).expect("the walks are well written: a test reads them")).collect()
    }

    /// The walk of that name, or of one of its document's names.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<Walk> {
        let mut walks = Walk::all();
        let own = name.to_lowercase().replace('_', "-");
        match walks.iter().position(|walk| walk.name == own || walk.also.contains(&own)) {
            Some(at) => Ok(walks.swap_remove(at)),
            None => {
                let names = walks.iter().flat_map(|walk| walk.also.iter().chain([&walk.name])).map(String::as_str);
                Err(WalkError::Unknown { name: name.into(), nearest: nearest(&own, names).map(String::from) })
            }
        }
    }

    /// The first step of a name: its own, its number from 1, the beginning of its section or of a part of that (`7.1`,
    /// `step 4`; a section's whole number with its dot: `5.`), or words of its section or title.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(&self, name: &str) -> Result<usize> {
        let own = name.trim().to_lowercase();
        let count = self.steps.len();
        let first = |is: &dyn Fn(&WalkStep) -> bool| self.steps.iter().position(is);
        let number = || own.parse().ok().filter(|n| (1..=count).contains(n)).map(|n: usize| n - 1);
        // `4.1` begins `4.1.` and `4.1 Norm`, but not `4.10`
        let begins =
            |part: &str| part.strip_prefix(&own).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
        let parts = |step: &WalkStep| {
            let section = step.section.to_lowercase();
            section.split([':', ';', '(']).any(|part| begins(part.trim_start())) || begins(&section)
        };
        let words = |step: &WalkStep| format!("{} {}", step.section, step.title).to_lowercase().contains(&own);
        let found = first(&|step| step.id == own.replace([' ', '_'], "-")).or_else(number);
        let found = found.or_else(|| first(&|step| !own.is_empty() && parts(step)));
        found.or_else(|| first(&|step| own.len() > 2 && words(step))).ok_or_else(|| {
            let near = nearest(&own, self.steps.iter().map(|step| step.id.as_str())).map(String::from);
            WalkError::NoStep { walk: self.name.clone(), name: name.into(), count, nearest: near }
        })
    }

    /// The model that views without `on` are of.
    pub fn default_model(&self) -> &Made {
        self.models.iter().find(|made| made.default).unwrap_or(&self.models[0])
    }
}

impl Made {
    /// Its configuration.
    fn config(&self) -> Result<Config, ConfigError> {
        let config = Config::preset(&self.preset)?;
        config.over(&[self.set.settings_of(&config)])
    }

    /// The command that makes it.
    pub fn command(&self) -> String {
        let mut command = format!("limpid train --preset {} --data {}", self.preset, self.data);
        let (config, recipe, options) = (Config::default(), Recipe::default(), RunOptions::default());
        // in the order in which they are declared
        let fields = config.fields().into_iter().chain(recipe.fields()).chain(options.fields());
        let set = fields.filter_map(|(setting, _)| Some((setting.name, self.set.0.get(setting.name)?)));
        for (name, value) in self.tokenizer.iter().map(|name| ("tokenizer", name)).chain(set) {
            command += &format!(" --{} {value}", name.replace('_', "-"));
        }
        command + " --out " + self.folder()
    }

    /// The folder that its command writes.
    pub fn folder(&self) -> &str {
        self.folder.as_deref().unwrap_or(&self.id)
    }
}
