//! Why a token is predicted rather than another, by what would change the answer: the smallest change of words that
//! turns it, and the heads and feed-forward networks that carry the difference between both texts. Every number is that
//! of a single run with that change; what parts wrote to the logits by themselves stands beside it.
//!
//! Read `words` for how words are found, `carriers` for how parts are measured, and `told` for the sentence.

mod carriers;
mod told;
mod words;

use crate::Lm;
use crate::error::{Error, Result};
use crate::trace::Keep;
use crate::trace::attribution::ModelPart;
use crate::trace::parts::{Contest, at_once, parts};
use carriers::Carriers;
use limpid_base::budget::Budget;
use std::sync::Arc;
pub use told::part_name;
use words::{ChangedText, WordSearch, wrong};

/// The part of the difference that one part carries where it is said to carry it.
const CARRIES: f64 = 0.5;

/// Which token is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonQuestion {
    /// The text.
    pub ids: Vec<u32>,
    /// The row after which (or, of an encoder, in whose place) the token is predicted.
    pub row: usize,
    /// The token.
    pub answer: u32,
    /// The token that it is compared with.
    pub foil: u32,
    /// Another text of as many tokens, if words are not to be looked for.
    pub corrupt: Option<Vec<u32>>,
}

impl ReasonQuestion {
    /// A question about an answer and a foil; the likeliest tokens take the place of one that is not given.
    ///
    /// # Errors
    /// If there is no such row, the run fails or the budget is spent.
    pub fn new(
        lm: &Lm,
        (ids, row): (Vec<u32>, usize),
        [answer, foil]: [Option<u32>; 2],
        budget: &Arc<Budget>,
    ) -> Result<ReasonQuestion> {
        let mut likeliest = vec![];
        if answer.is_none() || foil.is_none() {
            let mut run = lm.trace_ids(&ids, Keep::Blocks { seen: 0 })?;
            run.spend(budget);
            likeliest.extend(run.predictions(row..row + 1, 2)?.iter().flat_map(|best| &best.top).map(|best| best.id));
        }
        let answer = answer.or(likeliest.first().copied()).unwrap_or(0);
        let foil = foil.or(likeliest.into_iter().find(|id| *id != answer)).unwrap_or(0);
        Ok(ReasonQuestion { ids, row, answer, foil, corrupt: None })
    }
}

/// A word that is changed wherever it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct WordChange {
    /// Its token, at the first place.
    pub from: u32,
    /// The token that is put there.
    pub to: u32,
    /// Its places.
    pub places: Vec<usize>,
    /// The difference of logits with this change alone.
    pub alone: f64,
}

/// A head or a feed-forward network, and how much of the difference between both texts it carries.
#[derive(Clone, Debug, PartialEq)]
pub struct ReasonPart {
    /// Which.
    pub part: ModelPart,
    /// The share that comes back when the changed text's run gets it from the text's.
    pub restored: f64,
    /// More about it, if it is one of those that restore most.
    pub measured: Option<MeasuredPart>,
    /// What it wrote to the difference of logits in the run of the text: its part of the sum that the path divides.
    pub wrote: Option<f64>,
}

/// What else is measured of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredPart {
    /// The share that is lost when the text's run gets it from the changed text's.
    pub broken: f64,
    /// The share that comes back from it at the last token alone.
    pub at_end: f64,
    /// The share that comes back if it reaches the logits directly, and nothing behind it changes.
    pub direct: f64,
    /// Of a head its weight on the changed words, seen from the last token.
    pub weight: Option<f64>,
}

/// What a question found.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The contest, with the token that is ahead as its answer.
    pub contest: Contest,
    /// The logit of the answer less that of the foil.
    pub difference: f64,
    /// How far rounding may move it.
    pub noise: f64,
    /// The words that are changed; none if nothing could be changed, or both tokens are as likely.
    pub changes: Vec<WordChange>,
    /// The changed text.
    pub changed: Vec<u32>,
    /// The difference there.
    pub changed_difference: f64,
    /// The difference with all words changed, where no change turned it.
    pub all_changed: Option<f64>,
    /// The parts, those first that restore most.
    pub parts: Vec<ReasonPart>,
    /// How many parts the model has: those that gradients put last may be left out.
    pub of_parts: usize,
    /// Where no part carries most of it alone: several, and what they restore together.
    pub together: Option<(Vec<ModelPart>, f64)>,
    /// Texts and changed runs that were computed.
    pub runs: usize,
}

/// What is told while a reason is looked for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ReasonEvent<'a> {
    /// The first answer, from gradients: a change of a word, and the difference that it makes to first order.
    Guess(&'a WordChange, f64),
    /// The words that turn the answer, or go furthest so far: the changes, and the difference with them.
    Changed(&'a [WordChange], f64),
    /// A part, as soon as it is measured.
    Part(&'a ReasonPart),
}

/// Whoever asked wants to hear more.
fn go_on(wanted: bool) -> Result<()> {
    if wanted { Ok(()) } else { Err(Error::Stopped) }
}

impl Lm {
    /// Why a token is predicted rather than another: words that turn the answer when they are changed, and parts of the
    /// model that carry the difference. `tell` hears what is found so far and returns whether to go on.
    ///
    /// # Errors
    /// If the question does not fit the model or has the same token twice, a run fails, the budget is spent, or `tell`
    /// wants no more ([`Error::Stopped`]).
    pub fn reason(
        &self,
        question: &ReasonQuestion,
        budget: &Arc<Budget>,
        tell: &mut dyn FnMut(&ReasonEvent) -> bool,
    ) -> Result<Reason> {
        self.check_reason(question)?;
        let ReasonQuestion { ids, row, answer, foil, corrupt } = question;
        let mut contest = Contest { row: *row, answer: *answer, foil: *foil };
        let mut search = WordSearch::new(self, ids, contest, budget)?;
        if search.own.difference < 0.0 {
            contest = search.exchange();
        }
        let own = search.own;
        let mut reason = Reason {
            contest,
            difference: own.difference,
            noise: own.noise,
            changes: vec![],
            changed: search.ids.clone(),
            changed_difference: own.difference,
            all_changed: None,
            parts: vec![],
            of_parts: parts(self.config()).len(),
            together: None,
            runs: 0,
        };
        if own.difference <= own.noise {
            return Ok(Reason { runs: search.runs, ..reason });
        }
        let found = match corrupt {
            Some(other) => Some(search.changes_to(other)?),
            None => search.search(tell)?,
        };
        let turned = found.as_ref().is_some_and(|found| found.reading.difference < 0.0);
        if !turned && corrupt.is_none() {
            reason.all_changed = search.all_changed()?;
        }
        reason.runs = search.runs;
        let Some(ChangedText { changes, ids: changed, reading }) = found else { return Ok(reason) };
        go_on(tell(&ReasonEvent::Changed(&changes, reading.difference)))?;
        (reason.changes, reason.changed, reason.changed_difference) = (changes, changed, reading.difference);
        if own.difference - reading.difference > own.noise.max(reading.noise) {
            Carriers::new(self, (&search.ids, &reason), budget)?.measure(&mut reason, tell)?;
        }
        Ok(reason)
    }

    /// Bytes that looking for a reason takes beside the weights.
    ///
    /// # Errors
    /// If there are more tokens than the context has.
    pub fn reason_bytes(&self, tokens: usize) -> Result<usize> {
        let runs = self.layer_bytes(at_once(tokens), tokens)?;
        let ends = 2 * self.trace_bytes(tokens, Keep::default())?;
        let search = words::bytes(self.config(), tokens);
        Ok(self.trace_bytes(tokens, Keep::All)?.saturating_add(ends).saturating_add(runs).saturating_add(search))
    }

    /// Whether a question fits the model, before anything is computed.
    ///
    /// # Errors
    /// What [`Lm::reason`] says of questions.
    pub fn check_reason(&self, question: &ReasonQuestion) -> Result<()> {
        let ReasonQuestion { ids, row, answer, foil, corrupt } = question;
        let vocab = self.config().vocab_size;
        if !self.interventions().is_empty() {
            return wrong("a reason is measured on a model without interventions: take `Lm::without_interventions`");
        }
        if !self.config().lm_head {
            return wrong("this model has no head, so it predicts no tokens");
        }
        if answer == foil {
            return wrong(format!(
                "the token and the one that it is compared with are both {answer}: name another one"
            ));
        }
        if *row >= ids.len() {
            return wrong(format!("there is no position {row}: the text has {} tokens", ids.len()));
        }
        let all = ids.iter().chain(corrupt.iter().flatten()).chain([answer, foil]);
        if let Some(id) = all.copied().find(|id| *id as usize >= vocab) {
            return wrong(format!("token {id} is outside the model's vocabulary of {vocab}"));
        }
        match corrupt {
            Some(other) if other.len() != ids.len() => wrong(format!(
                "the text has {} tokens and the other one {}: parts keep their position, so both need as many",
                ids.len(),
                other.len()
            )),
            Some(other) if other[..=*row] == ids[..=*row] => {
                wrong("both texts are the same up to the position that is asked about: change a word")
            }
            _ => self.batch_of(ids).map(drop),
        }
    }
}
