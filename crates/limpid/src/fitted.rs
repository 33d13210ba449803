//! How long a run is if nobody says how many steps: as long as its text needs, and at most as long as its recipe. A
//! small text is passed over again and again, and soon known by heart; its validation loss says when to stop, if enough
//! tokens are kept for one. `Training::fitting_text` asks; docs/training.md says what was measured.

use crate::data::Tokens;
use crate::error::Result;
use crate::train::{Objective, Recipe, RunOptions};

/// The least number of validation tokens whose loss tells one evaluation from the next: the mean of 500 losses, which
/// differ by one or two nats, is known to 0.1.
const LEAST_VALIDATED: usize = 500;
/// The most passes over a text, validated or not.
const PASSES: [f64; 2] = [40.0, 10.0];
/// Steps that a new model needs to learn anything, however small its text is.
const LEAST_STEPS: u64 = 300;
/// Evaluations of a run that its validation loss may end, and how many in a row must be no better.
const EVALUATIONS: u64 = 20;
const PATIENCE: u64 = 5;

/// What the size of its text decided of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct FittedLength {
    /// The tokens that validation predicts, or would predict.
    pub validated: usize,
    /// Whether they are enough to judge by.
    pub judged: bool,
    /// Whether the number of steps is smaller than the recipe's.
    pub shorter: bool,
}

/// The tokens of a validation text that are predicted.
pub(crate) fn validated(validation: &Tokens) -> usize {
    validation.count_targets(0..validation.len())
}

/// Whether so many are enough to judge by.
pub(crate) fn judges(validated: usize) -> bool {
    validated >= LEAST_VALIDATED
}

/// How often a recipe's steps pass over a text.
///
/// # Errors
/// As [`Recipe::batches`].
pub fn passes(recipe: &Recipe, text: &Tokens, objective: Objective) -> Result<f64> {
    let windows = recipe.batches(text, objective)?.epoch() as f64;
    Ok(recipe.steps as f64 * (recipe.batch_size * recipe.accumulate) as f64 / windows)
}

/// The steps that pass over a text so many times.
pub(crate) fn steps(recipe: &Recipe, text: &Tokens, objective: Objective, passes: f64) -> Result<u64> {
    let windows = recipe.batches(text, objective)?.epoch() as f64;
    Ok((passes * windows / (recipe.batch_size * recipe.accumulate) as f64).ceil().max(1.0) as u64)
}

/// The number of steps that suits a text, and how the run is carried out; settings that are `kept` stay as they are.
pub(crate) fn fit(
    (recipe, options): (&Recipe, &mut RunOptions),
    text: &Tokens,
    objective: Objective,
    judged: bool,
    kept: impl Fn(&str) -> bool,
) -> Result<u64> {
    let most = steps(recipe, text, objective, PASSES[usize::from(judged)])?.max(LEAST_STEPS);
    let steps = recipe.steps.min(most);
    if !judged && !kept("eval_every") {
        options.eval_every = 0; // the last weights are then the best that are known
    } else if judged && steps < recipe.steps {
        if !kept("eval_every") {
            options.eval_every = steps.div_ceil(EVALUATIONS);
        }
        if !kept("patience") {
            options.patience = PATIENCE;
        }
    }
    Ok(steps)
}
