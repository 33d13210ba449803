//! What can go wrong in training: [`TrainError`], and [`PreflightError`] for the check before the first step. Each
//! message names what was found and what may help; [`TrainError::settings`] names the settings to change.

use crate::folder::FolderContents;
use crate::ranks::RanksError;
use crate::recipe;
use limpid_checkpoint::CheckpointError;
use limpid_core::backend::BackendError;
use limpid_core::config::ConfigError;
use limpid_data::{CorpusError, DataError};
use std::path::PathBuf;

/// Why training cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The model cannot be built, or a number of the recipe is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tokens cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A text file changed while it was being read.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// A file of the run or of a model.
    #[error(transparent)]
    Checkpoint(CheckpointError),
    /// The backend failed. The weights and the files on disk are as before the step.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The processes that train together lost each other, or were started differently.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// The model was built for another mode.
    #[error("the model was built for another mode: it computes no {lacks}. Build it with {remedy}")]
    Purpose {
        /// What it does not compute.
        lacks: &'static str,
        /// The modes in which it does.
        remedy: &'static str,
    },
    /// A loss, a gradient or an update is NaN or infinite.
    #[error(
        "step {step}: {tensor} is not finite ({value}); the weights of step {} are untouched. \
         A smaller learning_rate, more warmup_steps or a smaller clip usually helps", .step - 1
    )]
    NotFinite {
        /// The step that failed, from 1.
        step: u64,
        /// The first tensor with a value that is not finite, in the order of computation.
        tensor: String,
        /// Its first such value.
        value: f32,
    },
    /// What looks at the run ([`Observer`](crate::Observer)).
    #[error(transparent)]
    Observer(Box<dyn std::error::Error + Send + Sync>),
    /// The check before the first step failed.
    #[error(transparent)]
    Preflight(PreflightError),
    /// The loss spiked, and the settings say to stop.
    #[error(
        "step {step}: loss spike: {loss:.4} is {deviations:.0} standard deviations above the recent mean {usual:.4}. \
         Rolling back and skipping the data that led here may help (divergence rollback); a smaller learning_rate \
         helps more"
    )]
    Spike {
        /// The step that was not done.
        step: u64,
        /// Its loss.
        loss: f64,
        /// The mean of the recent losses.
        usual: f64,
        /// How many standard deviations of the recent losses lie between the two.
        deviations: f64,
    },
    /// The loss rose far above the first one and stays there.
    #[error(
        "step {step}: the loss is {loss:.4} and was {first:.4} at first: training diverges. A learning rate of \
         {} would be the next to try, or run the learning-rate finder", one_digit(.rate / 10.0)
    )]
    Diverged {
        /// The last step done.
        step: u64,
        /// The mean of the recent losses.
        loss: f64,
        /// The first loss.
        first: f64,
        /// The recipe's learning rate.
        rate: f64,
    },
    /// The run rolled back too often.
    #[error(
        "training diverged {times} times, the last time at step {step}: rolling back does not help; a smaller \
         learning_rate may"
    )]
    TooManyRollbacks {
        /// How often.
        times: u64,
        /// The step of the last time.
        step: u64,
    },
    /// Another process trains in the folder.
    #[error(
        "another process is training in {} (its lock is state/lock): wait for it, stop it, or choose another folder",
        .path.display()
    )]
    Busy {
        /// The run's folder.
        path: PathBuf,
    },
    /// The run's folder was moved away or removed during training.
    #[error(
        "{} is no longer the folder of this run: it was moved or removed during the run. Move it back before the run \
         ends, and \
         nothing is lost; or resume later from the last state that was saved in it", .path.display()
    )]
    FolderGone {
        /// Where it was.
        path: PathBuf,
    },
    /// The folder holds something else.
    #[error("{}", .found.reason(.path))]
    FolderNotEmpty {
        /// The folder.
        path: PathBuf,
        /// What it holds.
        found: FolderContents,
    },
    /// The run was resumed with another model, recipe or text.
    #[error(
        "{} cannot be resumed with other settings: {what}. What may differ: {}. To train its model with other \
         settings, start a new run \
         from that model in another folder", .path.display(), recipe::changeable()
    )]
    Differs {
        /// The run's folder.
        path: PathBuf,
        /// What differs.
        what: String,
    },
}

/// What training comes to, unless it fails.
pub(crate) type Result<T, E = TrainError> = std::result::Result<T, E>;

/// Why training would not work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PreflightError {
    /// A tensor holds a NaN or an infinity before the first update.
    #[error("before the first step, {tensor} is not finite ({value}): check the initial weights")]
    NotFinite {
        /// The first such tensor, in the order of computation.
        tensor: String,
        /// Its first such value.
        value: f32,
    },
    /// The model was not built to be trained.
    #[error("the model was built for another mode: it computes no gradients. Build it with Mode::Train")]
    Purpose,
    /// The model is to predict no token of the text.
    #[error("no window of the training text has a token to predict: there is nothing to learn")]
    NothingToPredict,
    /// No gradient reaches a parameter.
    #[error("no gradient reaches {param}: it would never learn, so the backward pass is cut between it and the loss")]
    Unreached {
        /// Its name.
        param: String,
    },
    /// A parameter has a gradient, and no update changes it.
    #[error("{param} should be trained, but no update would change it")]
    NotUpdated {
        /// Its name.
        param: String,
    },
    /// Gradient accumulation is wrong.
    #[error(
        "the gradient of {param} from two micro-batches is not that of the whole batch ({two:e} instead of {one:e} \
         along one direction): gradient accumulation is broken"
    )]
    Accumulation {
        /// The first parameter whose gradients differ.
        param: String,
        /// The gradient of the whole batch along a random direction.
        one: f64,
        /// The gradient of the micro-batches along the same direction.
        two: f64,
    },
    /// The initial weights are too large.
    #[error(
        "before the first step the logits of a row have a standard deviation of {spread:.2}, and {most:.2} is the \
         most: the initial weights are too large. To train with them anyway, turn preflight off"
    )]
    TooLarge {
        /// The standard deviation of a row's logits.
        spread: f64,
        /// The largest that is accepted.
        most: f64,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> TrainError {
        match error {
            CheckpointError::Backend(error) => TrainError::Backend(error),
            error => TrainError::Checkpoint(error),
        }
    }
}

impl From<PreflightError> for TrainError {
    fn from(error: PreflightError) -> TrainError {
        match error {
            PreflightError::Backend(error) => TrainError::Backend(error),
            error => TrainError::Preflight(error),
        }
    }
}

impl TrainError {
    /// The same as an error of the backend, for code that knows no other: processes that are lost are as lost as a
    /// device.
    pub(crate) fn into_backend(self) -> BackendError {
        match self {
            TrainError::Backend(error) => error,
            error => BackendError::Lost { op: "training together", what: error.to_string() },
        }
    }

    /// The settings that may help, each with its name and, if one is known, a value: `clip`, `divergence rollback`.
    pub fn settings(&self) -> Vec<String> {
        let names: &[&str] = match self {
            TrainError::NotFinite { .. } => &["learning_rate", "warmup_steps", "clip"],
            TrainError::Preflight(error) => error.settings(),
            TrainError::Backend(error) => error.settings(),
            TrainError::Spike { .. } => &["divergence rollback", "learning_rate"],
            TrainError::Diverged { rate, .. } => {
                return vec![format!("learning_rate {}", one_digit(rate / 10.0)), "lr_find".into()];
            }
            TrainError::TooManyRollbacks { .. } => &["learning_rate"],
            TrainError::Busy { .. } => &["out"],
            TrainError::FolderGone { path } => return vec![format!("resume {}", path.display())],
            TrainError::FolderNotEmpty { path, found } => return found.settings(path),
            TrainError::Differs { path, .. } => return vec!["out".into(), format!("from {}", path.display())],
            TrainError::Data(error) => return error.settings(),
            TrainError::Config(_)
            | TrainError::Checkpoint(_)
            | TrainError::Corpus(_)
            | TrainError::Ranks(_)
            | TrainError::Observer(_)
            | TrainError::Purpose { .. } => &[],
        };
        names.iter().map(ToString::to_string).collect()
    }
}

impl PreflightError {
    /// The settings that may help, as [`TrainError::settings`] has them.
    pub fn settings(&self) -> &'static [&'static str] {
        match self {
            PreflightError::NotFinite { .. } => &["init", "init_std"],
            PreflightError::TooLarge { .. } => &["init", "init_std", "preflight false"],
            _ => &[],
        }
    }
}

/// A learning rate, rounded to one digit.
fn one_digit(rate: f64) -> String {
    format!("{rate:.0e}").parse::<f64>().unwrap_or(rate).to_string()
}
