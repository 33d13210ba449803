//! Cuts a token stream into windows and fills batches with them: [`Batches`] to train on, in random order or in order,
//! and [`Windows`] to evaluate on, all in order.
//!
//! A window is a piece of the stream, so its tokens are read in one go and the window of any number is found at once.
//! [`Documents`] says where windows begin, and whether attention and positions begin anew with each document inside
//! them. A window never joins documents from different places of the stream: if documents do not see each other, it
//! does not matter which of them share a window, and windows are shuffled anyway.

use crate::shuffle::Shuffle;
use limpid_core::config::axis;
use limpid_core::numeric::random;
use limpid_core::ops::{Batch, IGNORE, Span};
use limpid_data::{CorpusError, DataError, Tokens};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What the model is trained to predict at each position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    /// The next token.
    NextToken,
    /// Masked tokens, as in BERT: 15 % of the tokens, and at least one of every window, are chosen and predicted. Of
    /// these, 80 % become `mask`, 10 % a random token, and 10 % stay.
    Masked {
        /// Id of the mask token.
        mask: u32,
        /// Ids to draw random tokens from: 0..vocab_size.
        vocab_size: usize,
        /// Whether half of the windows are made of two segments.
        segments: bool,
    },
}

/// How windows treat the documents of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Documents {
    /// Windows begin where documents begin and hold as many whole documents as fit; a longer document is cut into
    /// windows of its own. They are not filled up, so batches differ in their rows. Otherwise all windows have the same
    /// length and are cut anywhere.
    pub whole: bool,
    /// A document sees those before it in its window. Otherwise each document is a sequence of its own, with positions
    /// from 0, and its last token predicts nothing: a window then gives what its documents would give one by one, bit
    /// for bit.
    pub cross: bool,
}

impl Default for Documents {
    /// A stream, as GPT-2 was trained on.
    fn default() -> Documents {
        Documents { whole: false, cross: true }
    }
}

/// How a text is cut into windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowShape {
    /// Tokens of a window.
    pub context: usize,
    /// What is predicted.
    pub objective: Objective,
    /// How documents are treated.
    pub documents: Documents,
}

impl WindowShape {
    /// Windows of `context` tokens of a stream, each of which predicts the next one: as GPT-2 was trained.
    pub fn next_token(context: usize) -> WindowShape {
        WindowShape::new(context, Objective::NextToken)
    }
    /// Windows of `context` tokens of a stream.
    pub fn new(context: usize, objective: Objective) -> WindowShape {
        WindowShape { context, objective, documents: Documents::default() }
    }
}

axis! {
    /// In which order a training takes the windows of its text.
    WindowOrder, "windows" {
        /// Shuffled, and cut from another place every epoch.
        Random = "random",
        /// One after the other from the beginning of the text, in whole batches, every epoch the same: llm.c's order.
        Sequential = "sequential",
        /// The same batches, in an order drawn anew every epoch: that of llm.c's shuffling DataLoader.
        Shuffled = "shuffled",
    }
}

/// Checks that neither size is 0 and that a batch's tokens can be counted.
fn check_size(batch_size: usize, context: usize) -> Result<(), DataError> {
    let zero = [("batch_size", batch_size), ("context", context)].into_iter().find(|(_, size)| *size == 0);
    let many = batch_size.checked_mul(context).is_none_or(|n| n as u64 > 1 << 40);
    let wrong = zero.or(many.then_some(("batch_size", batch_size)));
    wrong.map_or(Ok(()), |(what, found)| Err(DataError::Size { what, found }))
}

/// A stream, and how it is cut into windows.
#[derive(Clone, Debug)]
struct Cut<'a> {
    tokens: &'a Tokens,
    context: usize,
    objective: Objective,
    cross: bool,
    /// Where windows begin, if they hold whole documents.
    starts: Option<Arc<[usize]>>,
    /// Documents that no window holds whole.
    long: usize,
}

impl<'a> Cut<'a> {
    fn new(tokens: &'a Tokens, windows: WindowShape) -> Cut<'a> {
        let WindowShape { context, objective, documents } = windows;
        // the last token is only a target and needs no row
        let room = context + usize::from(objective == Objective::NextToken);
        let (mut starts, mut start, mut long) = (vec![0], 0, 0);
        for document in (0..if documents.whole { tokens.documents() } else { 0 }).map(|i| tokens.document(i)) {
            if document.end - start > room && document.start > start {
                start = document.start;
                starts.push(start);
            }
            long += usize::from(document.end - start > room);
            while document.end - start > room {
                start += context;
                starts.push(start);
            }
        }
        let starts = documents.whole.then(|| starts.into());
        Cut { tokens, context, objective, cross: documents.cross, starts, long }
    }

    /// Where the last of consecutive windows ends: a masked token is predicted at its own place, the next token one
    /// place earlier.
    fn end(&self) -> usize {
        self.tokens.len() - usize::from(self.objective == Objective::NextToken)
    }

    /// How many consecutive windows there are.
    fn count(&self) -> usize {
        self.starts.as_ref().map_or(self.end().div_ceil(self.context), |starts| starts.len())
    }

    /// The `i`-th of them; the last may be short.
    fn in_order(&self, i: usize) -> Range<usize> {
        match &self.starts {
            Some(starts) => self.whole(starts, i),
            None => i * self.context..((i + 1) * self.context).min(self.end()),
        }
    }

    /// Window `i` of whole documents.
    fn whole(&self, starts: &[usize], i: usize) -> Range<usize> {
        let end = starts.get(i + 1).copied().unwrap_or(self.tokens.len());
        starts[i]..end.min(starts[i] + self.context)
    }

    /// Empties `batch` and gives it room for any batch of `windows`.
    fn clear(&self, windows: usize, batch: &mut Batch) {
        let rows = windows * self.context;
        let Batch { tokens, positions, segments, targets, spans, .. } = batch;
        [&mut *tokens, &mut *positions, &mut *segments, &mut *targets].into_iter().for_each(Vec::clear);
        [tokens, positions, targets].into_iter().for_each(|values| values.reserve(rows));
        if let Objective::Masked { segments: true, .. } = self.objective {
            segments.reserve(rows);
        }
        spans.clear();
        let parts = if self.cross { 1 } else { self.tokens.documents() + 1 };
        spans.reserve(rows.min(windows.saturating_mul(parts)));
    }

    /// The sequences that a window consists of, each with the place where the tokens that it may predict end.
    fn sequences(&self, window: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut document = if self.cross { 0 } else { self.tokens.document_at(window.start) };
        let mut start = window.start;
        let all = std::iter::from_fn(move || {
            if start >= window.end {
                return None;
            }
            let whole = self.cross || document >= self.tokens.documents();
            let end = if whole { self.tokens.len() } else { self.tokens.document(document).end };
            document += 1;
            let sequence = start..end.min(window.end);
            start = sequence.end;
            Some((sequence, end))
        });
        all.filter(|(sequence, _)| !sequence.is_empty())
    }

    /// Appends one window. The last target of a sequence is the token after it.
    fn push(&self, batch: &mut Batch, window: Range<usize>, draws: Draws) {
        let tokens = self.tokens;
        for (sequence, end) in self.sequences(window.clone()) {
            let (row, rows) = (batch.positions.len(), sequence.len());
            batch.spans.push(Span { row, rows, past: 0, table: 0, valid: rows });
            batch.positions.extend(0..rows as u32);
            if self.objective == Objective::NextToken {
                tokens.copy(sequence.clone(), &mut batch.tokens);
                let target = |at: usize| if at < end && tokens.counted(at) { tokens.id(at) } else { IGNORE };
                batch.targets.extend(sequence.map(|at| target(at + 1)));
            }
        }
        if let Objective::Masked { mask, vocab_size, segments } = self.objective {
            let rows = window.len();
            let least = draws.least_choice(rows);
            for (i, token) in window.map(|at| tokens.id(at)).enumerate() {
                let chosen = draws.chooses(i, least);
                let fate = draws.draw("fate", i);
                batch.targets.push(if chosen { token } else { IGNORE });
                batch.tokens.push(if !chosen || fate >= 0.9 {
                    token
                } else if fate < 0.8 {
                    mask
                } else {
                    (draws.draw("token", i) * vocab_size as f64) as u32
                });
            }
            if segments {
                let one = draws.draw("two", 0) < 0.5;
                let second = if one { rows } else { (draws.draw("split", 0) * rows as f64) as usize };
                batch.segments.extend((0..rows).map(|i| u32::from(i >= second)));
            }
        }
    }

    /// How many targets [`Cut::push`] would give a window.
    fn count_targets(&self, window: Range<usize>, draws: Draws) -> usize {
        match self.objective {
            Objective::NextToken => {
                let targets = |(sequence, end): (Range<usize>, usize)| {
                    self.tokens.count_targets(sequence.start + 1..end.min(sequence.end + 1))
                };
                self.sequences(window).map(targets).sum()
            }
            Objective::Masked { .. } => {
                let least = draws.least_choice(window.len());
                (0..window.len()).filter(|i| draws.chooses(*i, least)).count()
            }
        }
    }
}

/// The random draws of one window.
#[derive(Clone, Copy)]
struct Draws {
    seed: u64,
    /// Which batch: a number that is drawn itself for training, or counted for evaluation.
    batch: u64,
    /// The window's place in the batch.
    window: usize,
}

impl Draws {
    /// The draws of an evaluation's window, counted from 0.
    fn of_evaluation(number: u64) -> Draws {
        Draws { seed: 0x5eed, batch: number, window: 0 }
    }

    /// The draw for row `i`, at least 0 and below 1.
    fn draw(&self, purpose: &str, i: usize) -> f64 {
        let counter = self.batch.wrapping_add(((self.window as u64) << 32) + i as u64);
        random::uniform(self.seed, random::site(purpose), counter)
    }

    /// The least of the draws that choose which of `rows` tokens are to be predicted.
    fn least_choice(&self, rows: usize) -> f64 {
        (0..rows).map(|i| self.draw("choose", i)).fold(1.0, f64::min)
    }

    /// Whether token `i` is to be predicted. The token of the least draw always is: a window without a target teaches
    /// nothing.
    fn chooses(&self, i: usize, least: f64) -> bool {
        let drawn = self.draw("choose", i);
        drawn < 0.15 || drawn == least
    }
}

/// How many rows a batch has, and how many of them have a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCount {
    /// Rows with a target.
    pub targets: usize,
    /// All rows.
    pub tokens: usize,
}

impl std::iter::Sum for TargetCount {
    fn sum<I: Iterator<Item = TargetCount>>(counts: I) -> TargetCount {
        counts.fold(TargetCount::default(), |all, one| TargetCount {
            targets: all.targets + one.targets,
            tokens: all.tokens + one.tokens,
        })
    }
}

/// Shuffled windows: an endless stream of batches that can be entered at any step. Each epoch cuts the text into
/// windows from an offset of its own (whole documents always give the same windows) and takes each window once, so no
/// text is left out for long. The order is a permutation that is computed, not stored. [`Batches::ordered`] takes the
/// windows in order instead. Any thread may fill any step's batch; that takes microseconds, so no thread runs ahead
/// (docs/decisions.md#there-is-no-data-loader).
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    cut: Cut<'a>,
    batch_size: usize,
    part: Range<usize>,
    micros: u64,
    seed: u64,
    order: WindowOrder,
    /// The permutation of the last epoch, for [`WindowOrder::Shuffled`].
    shuffle: Option<Arc<Mutex<Shuffle>>>,
}

impl<'a> Batches<'a> {
    /// Batches of `batch_size` such windows.
    ///
    /// # Errors
    /// If the text is shorter than one window, or a batch would be empty.
    pub fn new(
        tokens: &'a Tokens,
        windows: WindowShape,
        batch_size: usize,
        seed: u64,
    ) -> Result<Batches<'a>, DataError> {
        let WindowShape { context, documents, .. } = windows;
        check_size(batch_size, context)?;
        check_length("training text", tokens.len(), if documents.whole { 1 } else { context })?;
        let (cut, order) = (Cut::new(tokens, windows), WindowOrder::Random);
        Ok(Batches { cut, batch_size, part: 0..batch_size, micros: 1, seed, order, shuffle: None })
    }

    /// The same, with `micros` batches in each step.
    pub fn accumulated(self, micros: usize) -> Batches<'a> {
        Batches { micros: micros as u64, ..self }
    }

    /// The same text with its windows in this order. With [`WindowOrder::Sequential`] an epoch consists of all whole
    /// batches of full windows, and the rest of the text is not trained on: llm.c's order. A text that is shorter than
    /// one batch, or whose windows are whole documents, is used to its end instead; the next epoch may then begin
    /// inside a batch. [`WindowOrder::Shuffled`] shuffles these batches, or the windows if batches are not whole.
    pub fn ordered(self, order: WindowOrder) -> Batches<'a> {
        let ordered = Batches { order, shuffle: None, ..self };
        let (windows, unit) = ordered.windows();
        let shuffle = || Arc::new(Mutex::new(Shuffle::new(windows / unit)));
        Batches { shuffle: (order == WindowOrder::Shuffled).then(shuffle), ..ordered }
    }

    /// How many windows an epoch has.
    pub fn epoch(&self) -> u64 {
        self.windows().0 as u64
    }

    /// The number of windows of an epoch, and how many of them stay together when batches are shuffled.
    fn windows(&self) -> (usize, usize) {
        let Cut { tokens, context, starts, .. } = &self.cut;
        let filling = self.cut.end() / context / self.batch_size * self.batch_size;
        match (starts, self.order) {
            (Some(starts), _) => (starts.len(), 1),
            (None, WindowOrder::Random) => (((tokens.len() - 1) / context).saturating_sub(1).max(1), 1),
            (None, _) if filling > 0 => (filling, self.batch_size),
            (None, _) => (self.cut.count(), 1),
        }
    }

    /// The windows of every batch that belong to the `rank`-th of `ranks` computers. The windows of all ranks, in their
    /// order, make up the batch. [`fill`](Batches::fill) gives the weight of this part alone; a mean over the whole
    /// step needs the [`count_targets`] of all parts.
    ///
    /// # Errors
    /// If there is no such rank, or a rank would have no window.
    pub fn rank(self, rank: usize, ranks: usize) -> Result<Batches<'a>, DataError> {
        let windows = self.batch_size;
        if rank >= ranks || ranks > windows {
            return Err(DataError::Rank { rank, ranks, windows });
        }
        Ok(Batches { part: windows * rank / ranks..windows * (rank + 1) / ranks, ..self })
    }

    /// Checks that the text's files have not changed since they were opened: see [`Tokens::check_files`].
    ///
    /// # Errors
    /// If one has changed.
    pub fn check_files(&self) -> Result<(), CorpusError> {
        self.cut.tokens.check_files()
    }

    /// The number of documents that are longer than a window, and so are cut even if windows hold whole documents.
    pub fn long(&self) -> usize {
        self.cut.long
    }

    /// Fills `batch` with micro-batch `micro` of `step`. Its weight is that for the mean of this micro-batch alone.
    /// Allocates nothing if `batch` has been filled before.
    pub fn fill(&self, step: u64, micro: u64, batch: &mut Batch) {
        self.cut.clear(self.part.len(), batch);
        for (window, draws) in self.windows_of(step, micro) {
            self.cut.push(batch, window, draws);
        }
        finish(batch);
    }

    /// Counts the rows and targets that [`fill`](Batches::fill) gives micro-batch `micro` of `step`, without filling
    /// it.
    pub fn count(&self, step: u64, micro: u64) -> TargetCount {
        let one = |(window, draws): (Range<usize>, Draws)| TargetCount {
            tokens: window.len(),
            targets: self.cut.count_targets(window, draws),
        };
        self.windows_of(step, micro).map(one).sum()
    }

    /// The windows of micro-batch `micro` of `step`, and their draws.
    fn windows_of(&self, step: u64, micro: u64) -> impl Iterator<Item = (Range<usize>, Draws)> {
        let batch = random::bits(step, 0, micro);
        self.part.clone().map(move |window| {
            let number = (step * self.micros + micro) * self.batch_size as u64 + window as u64;
            (self.window(number), Draws { seed: self.seed, batch, window })
        })
    }

    /// Fills `batch` with the first micro-batch from `step` on that has a target; false if an epoch has none.
    pub fn fill_counted(&self, step: u64, batch: &mut Batch) -> bool {
        let micros = step * self.micros..;
        micros.take(self.epoch().div_ceil(self.batch_size as u64) as usize).any(|micro| {
            self.fill(micro / self.micros, micro % self.micros, batch);
            count_targets(batch) > 0
        })
    }

    /// Window `number` of the stream.
    fn window(&self, number: u64) -> Range<usize> {
        let (seed, Cut { tokens, context, starts, .. }) = (self.seed, &self.cut);
        let last = tokens.len() - 1;
        let (windows, unit) = self.windows();
        let (epoch, i) = (number / windows as u64, (number % windows as u64) as usize);
        if self.order != WindowOrder::Random {
            let Some(shuffle) = &self.shuffle else { return self.cut.in_order(i) };
            let mut shuffle = shuffle.lock().unwrap_or_else(PoisonError::into_inner);
            return self.cut.in_order(shuffle.batch(epoch, i / unit) * unit + i % unit);
        }
        let i = random::permuted(seed, epoch, i as u64, windows as u64) as usize;
        if let Some(starts) = starts {
            return self.cut.whole(starts, i);
        }
        let slack = (last - windows * context).min(context - 1) as u64 + 1;
        let start = random::below(seed, random::site("offset"), epoch, slack) as usize + i * context;
        start..start + context
    }
}

/// All windows of a text in order, none overlapping, the last one short: a deterministic evaluation.
#[derive(Clone, Debug)]
pub struct Windows<'a> {
    cut: Cut<'a>,
    every: usize,
}

impl<'a> Windows<'a> {
    /// All such windows.
    ///
    /// # Errors
    /// If there is nothing to predict.
    pub fn new(what: &'static str, tokens: &'a Tokens, windows: WindowShape) -> Result<Windows<'a>, DataError> {
        check_size(1, windows.context)?;
        check_length(what, tokens.len(), 1)?;
        Ok(Windows { cut: Cut::new(tokens, windows), every: 1 })
    }

    /// Some of the windows, evenly spread, so that about `tokens` tokens are predicted.
    pub fn about(mut self, tokens: usize) -> Windows<'a> {
        self.every = self.cut.tokens.len().div_ceil(tokens.max(1)).max(1);
        self
    }

    /// The most tokens that will be predicted.
    pub fn tokens(&self) -> usize {
        self.cut.end().div_ceil(self.every)
    }

    /// Checks that the text's files have not changed since they were opened: see [`Tokens::check_files`].
    ///
    /// # Errors
    /// If one has changed.
    pub fn check_files(&self) -> Result<(), CorpusError> {
        self.cut.tokens.check_files()
    }

    /// The first `most` windows of full length that hold one sequence, as one batch: what a model that learns this text
    /// sees. If there is no such window, the first window, up to the end of its first sequence.
    pub fn first(&self, most: usize) -> Batch {
        let Cut { tokens, context, cross, .. } = self.cut;
        let windows = || (0..self.cut.count()).map(|i| self.cut.in_order(i)).filter(|window| !window.is_empty());
        let one = |window: Range<usize>| {
            let whole = cross || tokens.documents() == 0;
            let end = if whole { window.end } else { tokens.document(tokens.document_at(window.start)).end };
            window.start..end.min(window.end)
        };
        let full = windows().map(one).filter(|window| window.len() == context);
        let mut chosen: Vec<Range<usize>> = full.take(most.max(1)).collect();
        if chosen.is_empty() {
            chosen.extend(windows().map(one).next());
        }
        let mut batch = Batch::default();
        self.cut.clear(chosen.len(), &mut batch);
        for (number, window) in (0..).zip(chosen) {
            self.cut.push(&mut batch, window, Draws::of_evaluation(number));
        }
        finish(&mut batch);
        batch
    }

    /// Calls `with` for one batch after another, each of at most `batch_size` windows, and at least one.
    pub fn each(&self, batch_size: usize, mut with: impl FnMut(&Batch)) {
        let batch_size = batch_size.max(1);
        let (mut batch, mut number) = (Batch::default(), 0);
        let mut windows = (0..self.cut.count()).step_by(self.every).map(|i| self.cut.in_order(i)).peekable();
        while windows.peek().is_some() {
            self.cut.clear(batch_size, &mut batch);
            for window in windows.by_ref().take(batch_size) {
                self.cut.push(&mut batch, window, Draws::of_evaluation(number));
                number += 1;
            }
            finish(&mut batch);
            with(&batch);
        }
    }
}

fn check_length(what: &'static str, found: usize, context: usize) -> Result<(), DataError> {
    if found > context {
        return Ok(());
    }
    Err(DataError::TooShort { what, found, wanted: context + 1, context, mend: found.saturating_sub(1).max(1) })
}

/// Sets the weight that makes the loss a mean over the batch's targets.
fn finish(batch: &mut Batch) {
    batch.weight = 1.0 / count_targets(batch).max(1) as f32;
}

/// How many rows of a batch have a target.
pub fn count_targets(batch: &Batch) -> usize {
    batch.targets.iter().filter(|t| **t != IGNORE).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_next_token_and_a_batch_is_its_step() {
        let tokens = Tokens::new((0..50).collect());
        let batches = Batches::new(&tokens, WindowShape::next_token(7), 3, 1).unwrap();
        let (mut a, mut b) = (Batch::default(), Batch::default());
        batches.fill(5, 2, &mut a);
        batches.fill(6, 2, &mut b);
        assert_ne!(a.tokens, b.tokens);
        batches.fill(5, 2, &mut b);
        assert_eq!(a, b);
        assert!(a.tokens.iter().zip(&a.targets).all(|(x, y)| x + 1 == *y) && a.tokens.len() == 21);
        assert_eq!(a.positions[..8], [0, 1, 2, 3, 4, 5, 6, 0]);
    }

    /// Documents of 2, 4, 3 and 4 tokens: with windows of 4, whole and apart, the second and the fourth fill one.
    #[test]
    fn the_first_windows_are_full_and_of_one_sequence() {
        let stream = Tokens::new((0..10).collect());
        let first = |tokens, context, documents, most| {
            Windows::new("text", tokens, WindowShape { documents, ..WindowShape::next_token(context) })
                .unwrap()
                .first(most)
        };
        let usual = Documents::default();
        let two = first(&stream, 4, usual, 2);
        assert_eq!((two.tokens, two.targets), ((0..8).collect(), (1..9).collect()));
        assert_eq!((two.spans.len(), two.weight), (2, 1.0 / 8.0));
        assert_eq!(first(&stream, 4, usual, 9).tokens.len(), 8);
        assert_eq!(first(&stream, 4, usual, 0).tokens.len(), 4);
        let short = first(&stream, 40, usual, 3);
        assert_eq!((short.tokens, short.spans.len()), ((0..9).collect(), 1));
        let documents = Tokens::of_documents((0..13).collect(), vec![2, 6, 9, 13], None);
        let apart = Documents { whole: true, cross: false };
        let full = first(&documents, 4, apart, 9);
        assert_eq!(full.tokens, [2, 3, 4, 5, 9, 10, 11, 12]);
        assert_eq!(full.targets, [3, 4, 5, IGNORE, 10, 11, 12, IGNORE]);
        // none is full: the first document alone
        assert_eq!(first(&documents, 7, apart, 9).tokens, [0, 1]);
        assert_eq!(first(&documents, 7, Documents { whole: false, cross: false }, 9).tokens, [0, 1]);
    }

    #[test]
    fn an_epoch_takes_every_window_once() {
        let tokens = Tokens::new((0..1003).collect());
        let batches = Batches::new(&tokens, WindowShape::next_token(10), 5, 1).unwrap().accumulated(3);
        let (mut batch, mut starts) = (Batch::default(), vec![]);
        for step in 0..7 {
            for micro in 0..3 {
                batches.fill(step, micro, &mut batch);
                starts.extend(batch.spans.iter().map(|s| batch.tokens[s.row] as usize));
            }
        }
        starts.truncate(99); // one epoch: (1002 / 10) - 1 windows
        let offset = starts[0] % 10;
        starts.sort_unstable();
        assert_eq!(starts, (0..99).map(|i| offset + 10 * i).collect::<Vec<_>>());
    }

    /// R036; G15, G16: S3's eight words are two windows of four, of which the last predicts three: less than a batch of
    /// two, so all are taken; then they come again.
    #[test]
    fn windows_in_order_are_the_text_again_and_again() {
        let text = Tokens::new(vec![1, 2, 3, 0, 4, 5, 6, 0]);
        let of = |objective, size| {
            Batches::new(&text, WindowShape::new(4, objective), size, 7).unwrap().ordered(WindowOrder::Sequential)
        };
        let mut batch = Batch::default();
        for step in 0..3 {
            of(Objective::NextToken, 2).fill(step, 0, &mut batch);
            assert_eq!(batch.tokens, [1, 2, 3, 0, 4, 5, 6], "step {step}");
            assert_eq!(batch.targets, [2, 3, 0, 4, 5, 6, 0]);
            assert_eq!(batch.positions, [0, 1, 2, 3, 0, 1, 2]);
            assert_eq!(batch.weight, 1.0 / 7.0);
        }
        // what is masked is predicted where it stands, so the last word is in the last window
        let masked = Objective::Masked { mask: 7, vocab_size: 8, segments: false };
        let lengths = |batch: &Batch| batch.spans.iter().map(|span| span.rows).collect::<Vec<_>>();
        of(masked, 2).fill(0, 0, &mut batch);
        assert_eq!(lengths(&batch), [4, 4]);
        Windows::new("text", &text, WindowShape::new(4, masked))
            .unwrap()
            .each(2, |batch| assert_eq!(lengths(batch), [4, 4]));
    }

    /// llm.c's DataLoader: sample i is B T tokens from i B T on, and the targets are one further; of n tokens there are
    /// (n - 1) / (B T) samples, then the first comes again, also within a step of several.
    #[test]
    fn windows_in_order_are_llm_cs_batches() {
        let (size, context) = (3, 4);
        let whole = size * context;
        for n in whole + 1..4 * whole {
            let text = Tokens::new((0..n as u32).collect());
            let of = Batches::new(&text, WindowShape::next_token(context), size, 7).unwrap();
            let of = of.ordered(WindowOrder::Sequential).accumulated(2);
            let mut batch = Batch::default();
            for sample in 0..8 {
                of.fill(sample / 2, sample % 2, &mut batch);
                let at = (sample as usize % ((n - 1) / whole) * whole) as u32;
                assert_eq!(batch.tokens, (at..at + whole as u32).collect::<Vec<_>>(), "sample {sample} of {n} tokens");
                assert_eq!(batch.targets, (at + 1..=at + whole as u32).collect::<Vec<_>>());
            }
        }
    }

    /// In order, whole documents are all there once an epoch, and of a stream all but the rest; evaluation sees the
    /// same windows.
    #[test]
    fn windows_in_order_are_those_of_an_evaluation() {
        let tokens = documents(120);
        for documents in KINDS {
            let objective = Objective::NextToken;
            let of = Batches::new(&tokens, WindowShape { context: 14, objective, documents }, 1, 5).unwrap();
            let of = of.ordered(WindowOrder::Sequential);
            let (mut batch, mut step) = (Batch::default(), 0);
            let evaluated = Windows::new("text", &tokens, WindowShape { context: 14, objective, documents }).unwrap();
            evaluated.each(1, |window| {
                if documents.whole || window.tokens.len() == 14 {
                    of.fill(step, 0, &mut batch);
                    step += 1;
                    assert_eq!(batch, *window, "{documents:?}, window {step}");
                }
            });
            assert!(tokens.len() % 14 > 1, "a stream has a short window");
            of.fill(step, 0, &mut batch);
            assert_eq!(batch.tokens[0], 0, "the next epoch");
        }
    }

    #[test]
    fn evaluation_sees_every_token_but_the_first_once() {
        let tokens = Tokens::new((0..50).collect());
        let mut seen: Vec<u32> = vec![];
        Windows::new("text", &tokens, WindowShape::next_token(8)).unwrap().each(3, |batch| seen.extend(&batch.targets));
        assert_eq!(seen, (1..50).collect::<Vec<u32>>());
    }

    #[test]
    fn masked_tokens_are_fifteen_percent_in_shares_of_eighty_ten_ten() {
        let tokens = Tokens::new((0..40_000).map(|i| i % 90).collect());
        let objective = Objective::Masked { mask: 99, vocab_size: 100, segments: true };
        let batches = Batches::new(&tokens, WindowShape::new(512, objective), 64, 3).unwrap();
        let mut batch = Batch::default();
        batches.fill(0, 0, &mut batch);
        let rows = batch.tokens.len() as f64;
        let chosen: Vec<(u32, u32)> =
            batch.tokens.iter().zip(&batch.targets).filter(|(_, y)| **y != IGNORE).map(|(x, y)| (*x, *y)).collect();
        let share =
            |f: &dyn Fn(&(u32, u32)) -> bool| chosen.iter().filter(|c| f(c)).count() as f64 / chosen.len() as f64;
        assert!((chosen.len() as f64 / rows - 0.15).abs() < 0.01);
        assert!((share(&|(x, _)| *x == 99) - 0.8).abs() < 0.02, "masked");
        assert!((share(&|(x, y)| x == y) - 0.1).abs() < 0.02, "kept");
        assert!(batch.segments.contains(&1) && batch.segments.len() == batch.tokens.len());
    }

    /// Of every window something is predicted, however short, and the draws of those in which some token was chosen are
    /// what they were.
    #[test]
    fn every_window_has_a_masked_token() {
        let objective = Objective::Masked { mask: 99, vocab_size: 100, segments: false };
        let (mut batch, mut short) = (Batch::default(), 0);
        for context in [1, 2, 3, 7, 40] {
            let tokens = Tokens::new((0..400).map(|i| i % 90).collect());
            for seed in 0..40 {
                let batches = Batches::new(&tokens, WindowShape::new(context, objective), 5, seed).unwrap();
                for (step, micro) in (0..6).map(|n| (n / 2, n % 2)) {
                    batches.fill(step, micro, &mut batch);
                    let at = random::bits(step, 0, micro);
                    for (b, targets) in (0u64..).zip(batch.targets.chunks(context)) {
                        let draws = (0..context as u64)
                            .map(|i| random::uniform(seed, random::site("choose"), at.wrapping_add((b << 32) + i)));
                        let drawn: Vec<bool> = draws.map(|draw| draw < 0.15).collect();
                        let chosen: Vec<bool> = targets.iter().map(|target| *target != IGNORE).collect();
                        if drawn.contains(&true) {
                            assert_eq!(chosen, drawn)
                        } else {
                            assert_eq!(chosen.iter().filter(|chosen| **chosen).count(), 1)
                        }
                        short += usize::from(!drawn.contains(&true));
                    }
                }
            }
            let windows = Windows::new("text", &tokens, WindowShape::new(context, objective)).unwrap();
            windows.each(1, |batch| assert!(count_targets(batch) > 0));
        }
        assert!(short > 1000, "{short}");
    }

    #[test]
    fn a_text_too_short_says_what_would_do() {
        let error =
            Batches::new(&Tokens::new(vec![1, 2, 3]), WindowShape::next_token(16), 2, 0).unwrap_err().to_string();
        assert!(
            error.contains("has 3 tokens") && error.contains("needs 17") && error.contains("context_length of 2"),
            "{error}"
        );
    }

    /// `n` documents of 0 to 29 tokens; the ids are places in the stream, some are not counted.
    fn documents(n: u64) -> Tokens {
        let ends = |at: &mut usize, i| {
            *at += random::below(4, 0, i, 30) as usize;
            Some(*at)
        };
        let ends: Vec<usize> = (0..n).scan(0, |at, i| ends(at, i)).collect();
        let ids: Vec<u32> = (0..*ends.last().unwrap() as u32).collect();
        let counted = ids.iter().map(|i| i % 7 != 3).collect();
        Tokens::of_documents(ids, ends, Some(counted))
    }

    const KINDS: [Documents; 4] = [
        Documents { whole: false, cross: true },
        Documents { whole: false, cross: false },
        Documents { whole: true, cross: true },
        Documents { whole: true, cross: false },
    ];

    #[test]
    fn whole_documents_are_whole_and_each_is_there_once_an_epoch() {
        let tokens = documents(300);
        for context in [12, 16, 40] {
            let of =
                Batches::new(&tokens, WindowShape { documents: KINDS[3], ..WindowShape::next_token(context) }, 1, 1)
                    .unwrap();
            let windows = of.cut.starts.as_ref().unwrap().len() as u64;
            let (mut batch, mut targets, mut room) = (Batch::default(), vec![], None);
            for step in 0..windows {
                of.fill(step, 0, &mut batch);
                assert!(batch.tokens.len() <= context && batch.positions.len() == batch.tokens.len());
                for span in &batch.spans {
                    let (first, last) =
                        (batch.tokens[span.row] as usize, batch.tokens[span.row + span.rows - 1] as usize);
                    let document = tokens.document(tokens.document_at(first));
                    // whole but for a last token that is only predicted, or a piece of a long one
                    let long = document.len() > context + 1;
                    assert!(long || first == document.start && last + 2 >= document.end, "{span:?} of {document:?}");
                    assert!(last < document.end);
                    assert_eq!(batch.positions[span.row..][..span.rows], (0..span.rows as u32).collect::<Vec<u32>>());
                }
                targets.extend(batch.targets.iter().copied().filter(|t| *t != IGNORE));
                let now = (batch.tokens.capacity(), batch.targets.capacity(), batch.spans.capacity());
                assert_eq!(*room.get_or_insert(now), now, "it has all its room from the start");
            }
            targets.sort_unstable();
            let begins = |i: usize| tokens.document(tokens.document_at(i)).start == i;
            let want = (0..tokens.len()).filter(|i| tokens.counted(*i) && !begins(*i)).map(|i| i as u32);
            assert_eq!(targets, want.collect::<Vec<u32>>(), "all but what nothing comes before");
            let long = (0..300).filter(|i| tokens.document(*i).len() > context + 1).count();
            assert_eq!((of.long(), long > 0), (long, context < 29));
        }
    }

    /// The batch of a step does not depend on who filled what before, nor on which thread.
    #[test]
    fn any_number_of_threads_fill_the_same_batches() {
        let tokens = documents(200);
        for documents in KINDS {
            for objective in [Objective::NextToken, Objective::Masked { mask: 1, vocab_size: 9, segments: true }] {
                let batches = Batches::new(&tokens, WindowShape { context: 14, objective, documents }, 3, 5)
                    .unwrap()
                    .accumulated(2);
                let load = |threads: u64| {
                    let one = |id: u64| {
                        let (batches, mut batch) = (&batches, Batch::default());
                        let steps = (0..40).filter(move |step| step % threads == id);
                        let mut fill = move |step, micro| {
                            batches.fill(step, micro, &mut batch);
                            (step, micro, batch.clone())
                        };
                        steps.flat_map(|step| [fill(step, 1), fill(step, 0)]).collect::<Vec<_>>()
                    };
                    let mut all: Vec<_> = std::thread::scope(|scope| {
                        let workers: Vec<_> = (0..threads).map(|id| scope.spawn(move || one(id))).collect();
                        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
                    });
                    all.sort_by_key(|(step, micro, _)| (*step, *micro));
                    all
                };
                let one = load(1);
                assert!(one == load(2) && one == load(5));
            }
        }
    }

    #[test]
    fn targets_are_counted_without_filling() {
        let tokens = documents(200);
        let mut batch = Batch::default();
        for documents in KINDS {
            for objective in [Objective::NextToken, Objective::Masked { mask: 1, vocab_size: 9, segments: true }] {
                let batches = Batches::new(&tokens, WindowShape { context: 14, objective, documents }, 3, 5)
                    .unwrap()
                    .accumulated(2);
                for (step, micro) in (0..80).map(|n| (n / 2, n % 2)) {
                    batches.fill(step, micro, &mut batch);
                    let filled = TargetCount { targets: count_targets(&batch), tokens: batch.tokens.len() };
                    assert_eq!(batches.count(step, micro), filled, "{documents:?}, {objective:?}, step {step}");
                }
            }
        }
    }

    #[test]
    fn the_parts_of_ranks_put_together_are_the_batch() {
        let tokens = documents(200);
        for documents in KINDS {
            for objective in [Objective::NextToken, Objective::Masked { mask: 1, vocab_size: 9, segments: true }] {
                let batches = Batches::new(&tokens, WindowShape { context: 14, objective, documents }, 6, 5)
                    .unwrap()
                    .accumulated(2);
                for (ranks, step) in [1, 2, 4, 6].into_iter().flat_map(|ranks| (0..9).map(move |step| (ranks, step))) {
                    let (mut whole, mut all) = (Batch::default(), Batch::default());
                    batches.fill(step, 1, &mut whole);
                    for rank in 0..ranks {
                        let mut part = Batch::default();
                        batches.clone().rank(rank, ranks).unwrap().fill(step, 1, &mut part);
                        let row = all.tokens.len();
                        let moved = |s: &Span| Span { row: s.row + row, ..*s };
                        all.spans.extend(part.spans.iter().map(moved));
                        all.tokens.extend(part.tokens);
                        all.positions.extend(part.positions);
                        all.segments.extend(part.segments);
                        all.targets.extend(part.targets);
                    }
                    finish(&mut all);
                    assert_eq!(all, whole, "{ranks} ranks");
                }
                for (rank, ranks) in [(2, 2), (0, 7)] {
                    let error = batches.clone().rank(rank, ranks).unwrap_err();
                    assert_eq!(error, DataError::Rank { rank, ranks, windows: 6 });
                }
            }
        }
    }

    /// What measures and prints, for those who ask for it by name.
    mod measures {
        use super::*;

        /// `cargo test --release -- --ignored --nocapture batches::tests::measures`
        #[test]
        #[ignore = "prints figures"]
        fn report() {
            let ids = (0..10_000_000u64).map(|i| random::bits(1, 0, i) as u32 % 50_257).collect();
            let ends = (1..=20_000).map(|i| i * 500).collect();
            let tokens = Tokens::of_documents(ids, ends, None);
            for documents in KINDS {
                let start = std::time::Instant::now();
                let batches =
                    Batches::new(&tokens, WindowShape { documents, ..WindowShape::next_token(1024) }, 12, 1).unwrap();
                let (begin, mut batch) = (start.elapsed(), Batch::default());
                let start = std::time::Instant::now();
                (0..1000).for_each(|step| batches.fill(step, 0, &mut batch));
                println!("{documents:?}: begun in {begin:?}, a batch of 12 x 1024 in {:?}", start.elapsed() / 1000);
            }
        }
    }
}
