//! What a training will do and take, decided before it begins. `training` makes and runs it; read it next.

use crate::config::Config;
use crate::data::source::{Conversations, Corpus};
use crate::fitted::FittedLength;
use crate::memory::Placement;
use crate::model::Model;
use crate::train::ranks::Ranks;
use crate::train::{Objective, Recipe, Resumable, RunOptions};
use crate::{Lm, Machine};
use std::cell::Cell;
use std::path::PathBuf;

/// All that is decided before memory is reserved for a training.
#[non_exhaustive]
pub struct TrainingPlan {
    /// The model, its vocabulary the tokenizer's.
    pub config: Config,
    /// The recipe, with the context that is trained on.
    pub recipe: Recipe,
    /// How the run is carried out.
    pub options: RunOptions,
    /// The text; its validation part is empty if there is no validation text.
    pub corpus: Corpus,
    /// Its conversations, if it has any.
    pub conversations: Option<Conversations>,
    /// What the model is trained to predict.
    pub objective: Objective,
    /// How conversations are written, if it has or had any.
    pub chat_template: Option<String>,
    /// The built list.
    pub model: Model,
    /// Where it is trained.
    pub machine: Machine,
    /// Why it is on that device, if the device was `auto`.
    pub measured: Option<String>,
    /// The same with the weights it begins from, as memory is counted.
    pub placement: Placement,
    /// Bytes that the process holds beside the model.
    pub program: u64,
    /// The bytes that it keeps within, if there is a limit.
    pub memory: Option<u64>,
    pub(crate) base: Option<Lm>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) force: bool,
    pub(crate) resumed: Option<PathBuf>,
    pub(crate) resume_step: Option<u64>,
    pub(crate) state: Cell<Option<Resumable>>,
    /// What the size of the text decided, if it was asked ([`Training::fitting_text`](crate::Training::fitting_text)).
    pub fitted: Option<FittedLength>,
    /// What a time-lapse looks at, if one is kept.
    pub(crate) probe: Option<Vec<u32>>,
    /// The frames of its time-lapse, if it records one ([`RunOptions::probe`]).
    pub frames: Option<u64>,
    pub(crate) preset: String,
    /// What goes into limpid.toml besides: of the text, its tokenizer and template, and what the caller noted.
    pub(crate) noted: Vec<(&'static str, String)>,
    pub(crate) ranks: Cell<Option<Box<dyn Ranks>>>,
    pub(crate) main: bool,
}

impl TrainingPlan {
    /// Whether it goes on with a run that was saved.
    pub fn resumes(&self) -> bool {
        self.resumed.is_some()
    }
}
