//! The smallest change of words that turns an answer. Gradients propose changes, words for others that the model itself
//! finds likely there; runs decide. What a run says counts only if the question stays the same: the two tokens keep
//! most of the probability that they had together.

use super::{ReasonEvent, WordChange};
use crate::Lm;
use crate::error::{Error, Result};
use crate::model::{Mode, Model};
use crate::trace::interventions::SequenceSteps;
use crate::trace::parts::{Contest, ContestReading, at_once};
use crate::trace::ranking::greatest;
use crate::trace::sweep::SweepMetric;
use crate::trace::{self, Keep};
use limpid_base::budget::Budget;
use limpid_core::config::{Config, Mask};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tokens that a place may get: so many of those that are likely there.
const LIKELY: usize = 20;
/// And so many of those whose embeddings are nearest to its own.
const NEAR: usize = 12;
/// The part of the difference by which the other token leads where an answer is clearly turned.
const CLEARLY: f64 = 0.25;
/// Texts of one round whose likelihood is compared.
const COMPARED: usize = 32;
/// Changes of one text that are run, of those that gradients propose: at least, and at most.
const TRIED: [usize; 2] = [24, 240];
/// Changes of one word that go before other words' further ones.
const OF_A_WORD: usize = 6;
/// Texts that are changed further.
const BEAM: usize = 4;
/// Words of a change.
const WORDS: usize = 4;
/// The part of the two tokens' probability that a changed text keeps.
const KEPT: f64 = 0.4;
/// The part of a change's effect that is left when a needless word of it is not changed.
const NEEDED: f64 = 0.9;
/// Tokens times layers that the search runs in all, if two rounds take less.
const TOKEN_LAYERS: usize = 60_000;

/// A changed text, and what is predicted there.
#[derive(Clone, Debug)]
pub(super) struct ChangedText {
    /// The words that are changed.
    pub changes: Vec<WordChange>,
    /// The text.
    pub ids: Vec<u32>,
    /// What it says.
    pub reading: ContestReading,
}

/// What the search needs of a model and a question.
pub(super) struct WordSearch<'a> {
    lm: &'a Lm,
    contest: Contest,
    budget: &'a Arc<Budget>,
    /// The embedding of each token.
    table: Cow<'a, [f32]>,
    /// The tokens whose embeddings are nearest to those of each token of the text.
    near: BTreeMap<u32, Vec<u32>>,
    /// Tokens that are no words.
    specials: BTreeSet<u32>,
    /// The text, of which a causal model reads nothing behind the contest's row.
    pub ids: Vec<u32>,
    /// The text's own reading.
    pub own: ContestReading,
    /// Runs that may still be made, and that were made.
    left: usize,
    /// Runs that were made.
    pub runs: usize,
}

/// A change that gradients propose.
struct Proposal {
    estimate: f64,
    ids: Vec<u32>,
    change: WordChange,
}

impl<'a> WordSearch<'a> {
    pub(super) fn new(lm: &'a Lm, ids: &[u32], contest: Contest, budget: &'a Arc<Budget>) -> Result<WordSearch<'a>> {
        let read = if lm.config().mask == Mask::Causal { &ids[..=contest.row] } else { ids };
        let model = Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 })?;
        let table = match model.param("embed.weight") {
            Some(param) => Cow::Owned(lm.values(&model, param)?.into_owned()),
            None => Cow::Borrowed(&[][..]),
        };
        let left = TOKEN_LAYERS / (read.len() * lm.config().n_layer).max(1);
        let unread = ContestReading { difference: 0.0, together: 0.0, noise: 0.0 };
        let left = left.max(2 * TRIED[0]);
        let specials = lm.tokenizer().map(|all| all.specials().iter().map(|(_, id)| *id).collect()).unwrap_or_default();
        let (ids, near) = (read.to_vec(), nearest(&table, lm.config().vocab_size, read));
        let mut search = WordSearch { lm, contest, budget, table, near, specials, ids, own: unread, left, runs: 0 };
        search.own = search.run(&[read.to_vec()])?[0];
        Ok(search)
    }

    /// From now on the other token is the answer: what was read of the text holds the other way round.
    pub(super) fn exchange(&mut self) -> Contest {
        let Contest { row, answer, foil } = self.contest;
        self.contest = Contest { row, answer: foil, foil: answer };
        self.own.difference = -self.own.difference;
        self.contest
    }

    /// What texts say, as many at once as fit.
    pub(super) fn run(&mut self, texts: &[Vec<u32>]) -> Result<Vec<ContestReading>> {
        let mask = self.lm.tokenizer().ok().and_then(|tokenizer| tokenizer.special("[MASK]"));
        let mut readings = vec![];
        for some in texts.chunks(at_once(self.ids.len())) {
            let batch = trace::batch_of::<_, &[u32]>(self.lm.config(), some, None, mask)?;
            let mut run = self.lm.trace_sequences(&batch, SequenceSteps::default())?;
            run.spend(self.budget);
            readings.extend(self.contest.read(&run)?);
        }
        self.runs += texts.len();
        self.left = self.left.saturating_sub(texts.len());
        Ok(readings)
    }

    /// The change that turns the answer, or else the one that goes furthest; none if nothing can be changed.
    pub(super) fn search(&mut self, tell: &mut dyn FnMut(&ReasonEvent) -> bool) -> Result<Option<ChangedText>> {
        let own = ChangedText { changes: vec![], ids: self.ids.clone(), reading: self.own };
        let mut beam = vec![own.clone()];
        let mut best: Option<ChangedText> = None;
        for round in 0..WORDS {
            let mut found = vec![];
            // another last word asks another question, so it is changed, as signs are, where two words turn nothing
            let others = round == 2 && !best.as_ref().is_some_and(|best| best.reading.difference < 0.0);
            if others {
                self.tries((&own, true), TRIED[0], &mut found)?;
            }
            let share = self.left / (2 * beam.len());
            let share = share.clamp(TRIED[0].min(self.left / beam.len()), TRIED[1]);
            for from in &beam {
                let guess = self.tries((from, false), share, &mut found)?;
                if let (0, Some((change, estimate))) = (round, guess) {
                    super::go_on(tell(&ReasonEvent::Guess(&change, estimate)))?;
                }
            }
            found.retain(|found| found.reading.together >= KEPT * self.own.together);
            found.sort_by(|a, b| a.reading.difference.total_cmp(&b.reading.difference).then(a.ids.cmp(&b.ids)));
            found.dedup_by(|a, b| a.ids == b.ids);
            let Some(first) = found.first() else { break };
            let turned = self.likeliest_turned(&found)?;
            let known = best.as_ref().map_or(f64::INFINITY, |best| best.reading.difference);
            let better = match &turned {
                Some(turned) if known >= 0.0 || self.is_clear(turned) => Some(turned),
                _ if known >= 0.0 && first.reading.difference < known => Some(first),
                _ => None,
            };
            if let Some(better) = better {
                best = Some(better.clone());
                super::go_on(tell(&ReasonEvent::Changed(&better.changes, better.reading.difference)))?;
            }
            if best.as_ref().is_some_and(|best| self.is_clear(best)) {
                break;
            }
            found.truncate(BEAM);
            beam = found;
        }
        best.map(|best| self.without_needless(best)).transpose()
    }

    /// Runs the texts that follow from one with one more word changed, those first that gradients put first; `others`:
    /// the last word, and signs. Returns the first proposal.
    fn tries(
        &mut self,
        (from, others): (&ChangedText, bool),
        most: usize,
        found: &mut Vec<ChangedText>,
    ) -> Result<Option<(WordChange, f64)>> {
        let mut proposals = self.proposals(from, others)?;
        let guess = proposals.first().map(|first| (first.change.clone(), first.estimate));
        proposals.truncate(most);
        let texts: Vec<Vec<u32>> = proposals.iter().map(|one| one.ids.clone()).collect();
        for (Proposal { ids, change, .. }, reading) in proposals.into_iter().zip(self.run(&texts)?) {
            let changes = [&from.changes[..], &[change]].concat();
            found.push(ChangedText { changes, ids, reading });
        }
        Ok(guess)
    }

    /// Of the texts that turn the answer, clearly if there are such, the one that the model finds likeliest.
    fn likeliest_turned(&mut self, found: &[ChangedText]) -> Result<Option<ChangedText>> {
        let clear = found.iter().any(|found| self.is_clear(found));
        let bound = if clear { -CLEARLY * self.own.difference } else { 0.0 };
        let turned = found.iter().filter(|found| found.reading.difference < bound).take(COMPARED).collect::<Vec<_>>();
        let mut best: Option<(f64, &ChangedText)> = None;
        for some in turned.chunks(at_once(self.ids.len())) {
            for (text, likelihood) in some.iter().copied().zip(self.likelihoods(some)?) {
                if best.is_none_or(|(own, _)| likelihood > own) {
                    best = Some((likelihood, text));
                }
            }
        }
        Ok(best.map(|(_, text)| text.clone()))
    }

    /// Whether the other token leads by enough.
    fn is_clear(&self, text: &ChangedText) -> bool {
        text.reading.difference < -CLEARLY * self.own.difference
    }

    /// The logarithm of the probability of each text.
    fn likelihoods(&mut self, texts: &[&ChangedText]) -> Result<Vec<f64>> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| &text.ids[..]).collect();
        let batch = trace::batch_of::<_, &[u32]>(self.lm.config(), &ids, None, None)?;
        let mut run = self.lm.trace_sequences(&batch, SequenceSteps::default())?;
        run.spend(self.budget);
        let n = self.ids.len();
        let all = run.predictions(0..n * texts.len(), 0)?;
        let losses = all.iter().map(|row| row.target.map_or(0.0, |target| f64::from(target.loss))).collect::<Vec<_>>();
        self.runs += texts.len();
        self.left = self.left.saturating_sub(texts.len());
        Ok(losses.chunks_exact(n).map(|losses| -losses.iter().sum::<f64>()).collect())
    }

    /// Without the words whose change is not needed.
    pub(super) fn without_needless(&mut self, mut text: ChangedText) -> Result<ChangedText> {
        let effect = self.own.difference - text.reading.difference;
        let turned = text.reading.difference < 0.0;
        while text.changes.len() > 1 {
            let restored = |change: &WordChange| {
                let mut ids = text.ids.clone();
                change.places.iter().for_each(|at| ids[*at] = self.ids[*at]);
                ids
            };
            let texts: Vec<Vec<u32>> = text.changes.iter().map(restored).collect();
            let readings = self.run(&texts)?;
            let still =
                |reading: &ContestReading| reading.difference < 0.0 && reading.together >= KEPT * self.own.together;
            let most = |reading: &ContestReading| self.own.difference - reading.difference >= NEEDED * effect;
            let enough = |reading: &ContestReading| if turned { still(reading) } else { most(reading) };
            let fits = (0..texts.len()).filter(|n| enough(&readings[*n]));
            let Some(n) = fits.min_by(|a, b| readings[*a].difference.total_cmp(&readings[*b].difference)) else {
                break;
            };
            text.changes.remove(n);
            (text.ids, text.reading) = (texts[n].clone(), readings[n]);
        }
        let alone = |change: &WordChange| {
            let mut ids = self.ids.clone();
            change.places.iter().for_each(|at| ids[*at] = text.ids[*at]);
            ids
        };
        let texts: Vec<Vec<u32>> = text.changes.iter().map(alone).collect();
        let readings = if texts.len() > 1 { self.run(&texts)? } else { vec![text.reading] };
        text.changes.iter_mut().zip(readings).for_each(|(change, reading)| change.alone = reading.difference);
        text.changes.sort_by_key(|change| change.places[0]);
        Ok(text)
    }

    /// The changes from the text to another one of as many tokens, word by word.
    pub(super) fn changes_to(&mut self, other: &[u32]) -> Result<ChangedText> {
        let mut changes: Vec<WordChange> = vec![];
        for at in (0..self.ids.len()).filter(|at| self.ids[*at] != other[*at]) {
            let (from, to) = (self.ids[at], other[at]);
            match changes.iter_mut().find(|change| (change.from, change.to) == (from, to)) {
                Some(change) => change.places.push(at),
                None => changes.push(WordChange { from, to, places: vec![at], alone: 0.0 }),
            }
        }
        let ids = other[..self.ids.len()].to_vec();
        let reading = self.run(std::slice::from_ref(&ids))?[0];
        self.without_needless(ChangedText { changes, ids, reading })
    }

    /// The difference where every word is changed for another that is likely there and favours the foil.
    pub(super) fn all_changed(&mut self) -> Result<Option<f64>> {
        let own = ChangedText { changes: vec![], ids: self.ids.clone(), reading: self.own };
        let mut ids = self.ids.clone();
        let mut changed = BTreeSet::new();
        for Proposal { change, ids: proposed, .. } in
            [self.proposals(&own, false)?, self.proposals(&own, true)?].into_iter().flatten()
        {
            if change.places.iter().all(|at| !changed.contains(at)) {
                change.places.iter().for_each(|at| ids[*at] = proposed[*at]);
                changed.extend(change.places);
            }
        }
        if changed.is_empty() { Ok(None) } else { Ok(Some(self.run(&[ids])?[0].difference)) }
    }

    /// Changes of one more word, those first that lower the difference most to first order, and of each word its best.
    fn proposals(&self, text: &ChangedText, others: bool) -> Result<Vec<Proposal>> {
        let taken = self.budget.take_steps(1);
        taken.map_err(|why| trace::TraceError::Spent { what: "the search for words".into(), why })?;
        let Contest { row, answer, foil } = self.contest;
        let metric = (SweepMetric::LogitDifference { answer, foil }, row as i64);
        let name = if self.lm.config().embedding_scale == 1.0 { "hook_embed" } else { "hook_embed_unscaled" };
        let slopes = self.lm.metric_gradients(&text.ids, metric, &[name.into()])?.remove(0).values;
        let width = slopes.len() / text.ids.len();
        let gain = |at: usize, id: u32| -> f64 {
            let row = |id: u32| self.table.get(id as usize * width..(id as usize + 1) * width).unwrap_or_default();
            let change = row(id).iter().zip(row(text.ids[at])).map(|(new, old)| f64::from(*new) - f64::from(*old));
            slopes[at * width..(at + 1) * width]
                .iter()
                .zip(change)
                .map(|(slope, change)| f64::from(*slope) * change)
                .sum()
        };
        let mut likely = self.likely(&text.ids)?;
        for (likely, id) in likely.iter_mut().zip(&self.ids) {
            likely.extend(self.near.get(id).into_iter().flatten());
        }
        let (mut all, mut rest): (Vec<Proposal>, Vec<Proposal>) = (vec![], vec![]);
        let in_order = |a: &Proposal, b: &Proposal| a.estimate.total_cmp(&b.estimate).then(a.ids.cmp(&b.ids));
        for places in self.words(text, others) {
            let (mut seen, mut own, word) = (BTreeSet::new(), vec![], self.is_word(self.ids[places[0]]));
            for (at, to) in places.iter().flat_map(|at| likely[*at].iter().map(|to| (*at, *to))) {
                let mut ids = text.ids.clone();
                for other in &places {
                    if let Some(to) = self.spelled(ids[at], to, ids[*other]) {
                        ids[*other] = to;
                    }
                }
                let places: Vec<usize> = places.iter().copied().filter(|at| ids[*at] != text.ids[*at]).collect();
                let Some(first) = places.first().copied().filter(|at| !word || self.is_word(ids[*at])) else {
                    continue;
                };
                if seen.insert(ids[first]) {
                    let estimate = places.iter().map(|at| gain(*at, ids[*at])).sum();
                    let change = WordChange { from: self.ids[first], to: ids[first], places, alone: 0.0 };
                    own.push(Proposal { estimate, ids, change });
                }
            }
            own.sort_by(in_order);
            rest.extend(own.split_off(own.len().min(OF_A_WORD)));
            all.extend(own);
        }
        all.sort_by(in_order);
        rest.sort_by(in_order);
        Ok(all.into_iter().chain(rest).collect())
    }

    /// The places of each word that may be changed and is not yet: of those with letters or digits before the last
    /// token, or of the others.
    fn words(&self, text: &ChangedText, others: bool) -> Vec<Vec<usize>> {
        let mut words: Vec<(String, Vec<usize>)> = vec![];
        for at in (0..self.ids.len()).filter(|at| !self.specials.contains(&self.ids[*at])) {
            if text.ids[at] != self.ids[at] || at == self.contest.row && self.lm.config().mask != Mask::Causal {
                continue;
            }
            let word = self.word(self.ids[at]);
            match words.iter_mut().find(|(own, _)| *own == word) {
                Some((_, places)) => places.push(at),
                None => words.push((word, vec![at])),
            }
        }
        let all = words.into_iter().map(|(_, places)| places);
        let other = |places: &Vec<usize>| places[..] == [self.contest.row] || !self.is_word(self.ids[places[0]]);
        all.filter(|places| other(places) == others).collect()
    }

    /// Whether a token has a letter or a digit; without a tokenizer all are words.
    fn is_word(&self, id: u32) -> bool {
        self.word(id).contains(char::is_alphanumeric)
    }

    /// A token without the blanks before it, or its number where there is no text.
    fn word(&self, id: u32) -> String {
        let piece = self.lm.tokenizer().ok().and_then(|tokenizer| tokenizer.piece(id).ok());
        piece.map(|piece| piece.trim().to_string()).filter(|word| !word.is_empty()).unwrap_or(format!("#{id}"))
    }

    /// What `to`, which is likely in the place of `from`, is where the same word is spelled `other`: with a blank
    /// before it, or without one.
    fn spelled(&self, from: u32, to: u32, other: u32) -> Option<u32> {
        if from == other {
            return Some(to);
        }
        let tokenizer = self.lm.tokenizer().ok()?;
        let blank = tokenizer.piece(other).ok()?;
        let blank = &blank[..blank.len() - blank.trim_start().len()];
        tokenizer.token(&format!("{blank}{}", self.word(to)))
    }

    /// The tokens that the model itself finds likely at each place.
    fn likely(&self, ids: &[u32]) -> Result<Vec<Vec<u32>>> {
        let top = |ids: &[u32]| -> Result<Vec<Vec<u32>>> {
            let mut run = self.lm.trace_ids(ids, Keep::default())?;
            run.spend(self.budget);
            let all = run.predictions(0..ids.len(), LIKELY)?;
            Ok(all.into_iter().map(|row| row.top.into_iter().map(|next| next.id).collect()).collect())
        };
        let mut likely = top(ids)?;
        if self.lm.config().mask == Mask::Causal {
            // the first word is as it is after the end of another text
            let tokenizer = self.lm.tokenizer().ok();
            let end = tokenizer.and_then(|tokenizer| tokenizer.end_of_text().or(tokenizer.begin_of_text()));
            let first = end.map(|end| top(&[end])).transpose()?.and_then(|mut rows| rows.pop()).unwrap_or_default();
            likely.insert(0, first);
            likely.pop();
        }
        likely.iter_mut().for_each(|row| row.retain(|id| !self.specials.contains(id)));
        Ok(likely)
    }
}

/// Bytes that a search takes beside its runs: the table of embeddings, cosines of each token, and texts that are
/// proposed.
pub(super) fn bytes(config: &Config, tokens: usize) -> usize {
    let rows = config.vocab_size.saturating_mul(config.d_model.saturating_add(tokens));
    let texts = tokens.saturating_mul(tokens).saturating_mul(LIKELY + NEAR);
    rows.saturating_add(texts).saturating_mul(size_of::<f32>())
}

/// The tokens whose embeddings have the greatest cosines to those of each of some tokens.
fn nearest(table: &[f32], vocab_size: usize, ids: &[u32]) -> BTreeMap<u32, Vec<u32>> {
    let width = (table.len() / vocab_size.max(1)).max(1);
    let row = |id: u32| table.get(id as usize * width..(id as usize + 1) * width).unwrap_or_default();
    let all: BTreeSet<u32> = ids.iter().copied().collect();
    let mut cosines: Vec<Vec<f32>> = vec![Vec::with_capacity(vocab_size); all.len()];
    for other in table.chunks_exact(width) {
        let size = dot(other, other);
        for (cosines, id) in cosines.iter_mut().zip(&all) {
            // the token's own length changes no order
            cosines.push(dot(row(*id), other) / size.sqrt().max(f32::MIN_POSITIVE));
        }
    }
    let near = |(id, cosines): (u32, Vec<f32>)| {
        let near = greatest(&cosines, NEAR + 1).into_iter().map(|other| other as u32);
        (id, near.filter(|other| *other != id).take(NEAR).collect())
    };
    all.into_iter().zip(cosines).map(near).collect()
}

/// A product in lanes, whose order does not depend on the machine.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (left, right) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in left.zip(right) {
        lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(lane, (a, b))| *lane += a * b);
    }
    lanes.iter().sum::<f32>() + rest
}

/// What a question about a text must be.
pub(super) fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Sweep(trace::sweep::SweepError::Question { what: what.into() }))
}
