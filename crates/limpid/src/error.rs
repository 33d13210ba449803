//! What can go wrong with a model as a whole: the errors of the parts, and what only shows when they meet.

use crate::device::Device;
use crate::generate::GenerateError;
use crate::timelapse::TimelapseError;
use crate::{backend, checkpoint, config, data, generate, tokenizer, trace, train, units};
use std::path::PathBuf;

/// Why a direction cannot be found or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectionError {
    /// A question that has no answer.
    #[error("{what}")]
    Question {
        /// What was expected, and what was found.
        what: String,
    },
    /// Prompts that do not differ.
    #[error(
        "the positive and the negative prompts give the same activations at {site}: give others, or another position"
    )]
    Same {
        /// Where.
        site: String,
    },
    /// A kind of file that these directions do not fit into.
    #[error("{what}")]
    File {
        /// What was expected, and what was found.
        what: String,
    },
}

/// Why an [`Lm`](crate::Lm) cannot do what was asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Weights and their files.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    /// A configuration that cannot be built.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// Settings that cannot be given so.
    #[error(transparent)]
    Settings(#[from] SettingError),
    /// A number out of its range, and the place that gave it.
    #[error("{0}: {1}")]
    Setting(String, #[source] config::ConfigError),
    /// A file or a folder that does not serve.
    #[error("{0}")]
    Refused(String),
    /// A run that cannot go on.
    #[error("{} cannot be resumed: {why}", .folder.display())]
    NotResumed {
        /// Its folder.
        folder: PathBuf,
        /// What the folder lacks.
        why: &'static str,
    },
    /// The backend failed: threads or memory that the system refuses, a device that is lost.
    #[error(transparent)]
    Backend(#[from] backend::BackendError),
    /// A receipt of an answer that no other machine need give.
    #[error(
        "answers of the {0} have other last digits on other machines, so there is no receipt of them: run the model \
         on the cpu"
    )]
    NoReceipt(Device),
    /// Numbers that came of a run and are none.
    #[error("{}", not_finite(.weight.as_deref()))]
    NotFinite {
        /// The first parameter that has such values, if one has.
        weight: Option<String>,
    },
    /// Generating and scoring.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// Looking inside.
    #[error(transparent)]
    Trace(trace::TraceError),
    /// Changing what a run computes.
    #[error(transparent)]
    Intervention(#[from] trace::interventions::InterventionError),
    /// Finding a direction.
    #[error(transparent)]
    Direction(#[from] DirectionError),
    /// A sweep of interventions.
    #[error(transparent)]
    Sweep(#[from] trace::sweep::SweepError),
    /// Gradients of a run that is changed.
    #[error("gradients are those of the model as it is: they are not computed of a run with interventions")]
    InterventionGradients,
    /// Saving a model whose runs are changed.
    #[error(
        "interventions change this model's runs, and no file of a model holds them: save the model without them, and \
         keep the steps beside it"
    )]
    InterventionModel,
    /// A text that names no token.
    #[error(transparent)]
    TokenName(#[from] crate::generate::TokenNameError),
    /// What a model did while it learned.
    #[error(transparent)]
    Timelapse(#[from] TimelapseError),
    /// Training.
    #[error(transparent)]
    Train(Box<train::TrainError>),
    /// Text to train or evaluate on.
    #[error(transparent)]
    Source(Box<data::source::SourceError>),
    /// Tokens that make no batch.
    #[error(transparent)]
    Data(#[from] data::DataError),
    /// A conversation that cannot be written for the model.
    #[error(transparent)]
    Chat(#[from] data::chat::ChatError),
    /// A chat template that writes nothing.
    #[error(transparent)]
    Template(#[from] data::template::TemplateError),
    /// A text for a model without a tokenizer.
    #[error("this model has no tokenizer, so it cannot read text: give it one with `Lm::with_tokenizer`")]
    NoTokenizer,
    /// A tokenizer of another model.
    #[error("the tokenizer has {tokens} tokens, the model's vocab_size is {vocab_size}: they do not belong together")]
    OtherTokenizer {
        /// V of the tokenizer.
        tokens: usize,
        /// V of the model.
        vocab_size: usize,
    },
    /// More memory than is left.
    #[error("{} needs {} of memory and {} are {said}: fewer sequences, a shorter context or a smaller model would fit",
        if *.training { "training this model" } else { "this model" }, units::bytes(*.needed), units::bytes(*.left))]
    Memory {
        /// Whether the model was to be trained.
        training: bool,
        /// Where it was to run.
        device: Device,
        /// Bytes.
        needed: u64,
        /// Bytes under the nearest limit.
        left: u64,
        /// Which limit that is.
        said: String,
    },
    /// Conversations for a model that looks both ways.
    #[error(
        "the answers of conversations are predicted token by token, but this model predicts masked tokens: use one \
         whose mask is causal"
    )]
    NeedsCausal,
    /// An adapter without a folder to keep it, or whose model has no files that it could name, or is an adapter itself.
    #[error("an adapter is kept in a folder, and names the files of its model: {0}")]
    Adapter(&'static str),
    /// An adapter that would go on with another model than it was begun with.
    #[error("{} cannot be resumed: the model {}, which it adapts, has changed", .folder.display(), .model.display())]
    OtherBase {
        /// The adapter's folder.
        folder: PathBuf,
        /// Where its model is.
        model: PathBuf,
    },
    /// New special tokens for a model whose weights are in memory alone.
    #[error(
        "a model gets rows for new special tokens when it is read from its files: save it, and open the saved model"
    )]
    NoRows,
    /// An engine that could run nothing.
    #[error("an engine needs at least one {0}: `EngineLimits` has 0")]
    EngineLimits(&'static str),
    /// A model of masked tokens whose tokenizer cannot write one.
    #[error("the model predicts masked tokens, but its tokenizer has no [MASK]")]
    NoMask,
    /// A chat with a model whose form of conversations is not known.
    #[error(
        "the model has no chat template, so it was not trained on conversations: continue a text with `Lm::generate`"
    )]
    NoChat,
    /// More tokens than the model can see at once.
    #[error("the text has {tokens} tokens, the model's context_length is {context}: shorten it")]
    TooLong {
        /// Tokens of the text.
        tokens: usize,
        /// T.
        context: usize,
    },
    /// A place that the tokens do not have.
    #[error("there is no place {at} among {tokens} tokens: places are counted from 0")]
    NoPlace {
        /// The place asked for.
        at: usize,
        /// Tokens that there are.
        tokens: usize,
    },
    /// What was to be found was stopped before the end.
    #[error("stopped before the end")]
    Stopped,
    /// Nothing to work on.
    #[error("the text is empty: there is nothing to look at")]
    Empty,
}

/// What is done with a model, unless it fails.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl From<train::TrainError> for Error {
    fn from(error: train::TrainError) -> Error {
        Error::Train(error.into())
    }
}

impl From<data::source::SourceError> for Error {
    fn from(error: data::source::SourceError) -> Error {
        Error::Source(error.into())
    }
}

impl From<trace::TraceError> for Error {
    fn from(error: trace::TraceError) -> Error {
        match error {
            trace::TraceError::Intervention(error) => error.into(),
            error => Error::Trace(error),
        }
    }
}

impl From<tokenizer::TokenizerError> for Error {
    fn from(error: tokenizer::TokenizerError) -> Error {
        Error::Generate(error.into())
    }
}

impl Error {
    /// Whether a device was lost, with all that was in its memory.
    pub fn is_lost(&self) -> bool {
        matches!(self.backend(), Some(backend::BackendError::Lost { .. }))
    }

    /// What the backend said, if it is the one that failed.
    pub fn backend(&self) -> Option<&backend::BackendError> {
        match self {
            Error::Backend(error) | Error::Generate(GenerateError::Decode(generate::DecodeError::Backend(error))) => {
                Some(error)
            }
            Error::Train(error) => match &**error {
                train::TrainError::Backend(error) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// The settings by which it may be mended, with a value where one is known: `accumulate 4`.
    pub fn settings(&self) -> Vec<String> {
        match self {
            Error::Checkpoint(error) => error.settings(),
            Error::Data(error) => error.settings(),
            Error::Source(error) => error.settings(),
            Error::Train(error) => error.settings(),
            other => {
                let settings = other.backend().map_or(&[][..], backend::BackendError::settings);
                settings.iter().map(ToString::to_string).collect()
            }
        }
    }
}

impl From<generate::DecodeError> for Error {
    fn from(error: generate::DecodeError) -> Error {
        Error::Generate(error.into())
    }
}

/// What is told of numbers that are none.
fn not_finite(weight: Option<&str>) -> String {
    match weight {
        Some(name) => format!("the weights are damaged: `{name}` has NaN or infinite values"),
        None => "the model computes NaN or infinite values from finite weights: these are too large".into(),
    }
}

/// Settings that cannot be given so, in words that name the place where each stands.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);
