//! Open sequences and their KV cache.
//!
//! Every row of a batch has its sequence and its position. So a prompt in chunks, one more token, and one more token
//! for many sequences at once are the same call: [`Session::extend`]. The bits of a sequence's logits do not depend
//! on how its tokens were fed.

use super::DecodeError as Error;
use crate::backend::{Backend, BackendError, Cpu};
use crate::config::{Config, Mask};
use crate::model::{Mode, Model};
use crate::ops::linear::Precision;
use crate::ops::simd::Level;
use crate::ops::{Batch, Op, Span};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most rows of one run, unless another number is asked for: longer prompts are fed in pieces of this size.
const ROWS: usize = 256;

/// How many sessions were made in this process: each has a number of its own.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// Names a sequence of one session. No id is given twice, and other sessions do not accept it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SequenceId {
    session: u64,
    number: u64,
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

/// A sequence. Its index in the list is its index in the KV cache.
struct Sequence {
    id: SequenceId,
    tokens: Vec<u32>,
    /// Logits of the token that follows the last one; empty before the first.
    logits: Vec<f32>,
    /// The next value of `logits`, once all runs of a call are done.
    next: Vec<f32>,
}

impl Sequence {
    fn new(id: SequenceId) -> Sequence {
        Sequence { id, tokens: vec![], logits: vec![], next: vec![] }
    }
}

/// Open sequences of one model, and the backend that runs it.
pub struct Session {
    model: Model,
    backend: Box<dyn Backend>,
    sequences: Vec<Option<Sequence>>,
    number: u64,
    opened: u64,
    /// How many ops come before the head: a run without outputs needs only these.
    body: usize,
    batch: Batch,
    /// The logits of a run.
    logits: Vec<f32>,
}

impl Session {
    /// A session for `sequences` open sequences, run by the backend that `make` returns for the model. A run has at
    /// most `rows` rows (at least `sequences`, at most the positions of all contexts). Parameters are zero until
    /// they are written.
    ///
    /// # Errors
    /// If the model is not causal or cannot be built, or `make` fails.
    pub fn new(
        config: &Config,
        sequences: usize,
        rows: usize,
        make: impl FnOnce(&Model) -> Result<Box<dyn Backend>, BackendError>,
    ) -> Result<Session, Error> {
        config.check()?;
        if config.mask != Mask::Causal {
            return Err(Error::Mask { mask: config.mask });
        }
        let most = config.context_length.saturating_mul(sequences);
        let model = Model::new(config, Mode::Decode { rows: rows.min(most).max(sequences), sequences })?;
        let body = model.ops().iter().position(|op| matches!(op, Op::Gather { .. })).unwrap_or(model.ops().len());
        let backend = make(&model)?;
        let batch = Batch { context: config.context_length, ..Batch::default() };
        let sequences = (0..sequences).map(|_| None).collect();
        let number = SESSIONS.fetch_add(1, Relaxed);
        Ok(Session { model, backend, sequences, number, opened: 0, body, batch, logits: vec![] })
    }

    /// [`Session::new`] on this processor, with `threads` threads.
    ///
    /// # Errors
    /// As [`Session::new`], and if the system refuses memory or threads.
    pub fn on_cpu(config: &Config, sequences: usize, threads: usize) -> Result<Session, Error> {
        Session::new(config, sequences, ROWS.min(config.context_length), |model| {
            Ok(Box::new(Cpu::start(model, threads, Level::best(), Precision::F32)?))
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model and its backend, to write parameters. The KV cache of open sequences was computed with the old
    /// parameters: open sequences afterwards.
    pub fn parts(&mut self) -> (&Model, &mut dyn Backend) {
        (&self.model, &mut *self.backend)
    }

    /// Copies the parameters of a model that was built for another mode, by name.
    ///
    /// # Errors
    /// If one is missing there or has another shape; nothing is then changed. Or if a backend fails.
    pub fn take_parameters(&mut self, model: &Model, backend: &dyn Backend) -> Result<(), Error> {
        let mut found = Vec::with_capacity(self.model.params.len());
        for own in &self.model.params {
            let other = |what| Error::OtherModel { what };
            let theirs = model.param(&own.name).ok_or_else(|| other(format!("it has no `{}`", own.name)))?;
            if theirs.region.shape() != own.region.shape() {
                let what = format!("its `{}` is {:?}, not {:?}", own.name, theirs.region.shape(), own.region.shape());
                return Err(other(what));
            }
            found.push((own.region, theirs.region));
        }
        Ok(found.iter().try_for_each(|(own, theirs)| self.backend.write(*own, &backend.read(*theirs)?))?)
    }

    /// T: the most tokens a sequence may hold.
    pub fn context(&self) -> usize {
        self.model.config.context_length
    }

    /// How many sequences may be open at once.
    pub fn capacity(&self) -> usize {
        self.sequences.len()
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// If all are open.
    pub fn open(&mut self) -> Result<SequenceId, Error> {
        let sequences = self.sequences.len();
        let place = self.sequences.iter_mut().find(|s| s.is_none()).ok_or(Error::NoRoom { sequences })?;
        let id = SequenceId { session: self.number, number: self.opened };
        self.opened += 1;
        *place = Some(Sequence::new(id));
        Ok(id)
    }

    /// Closes a sequence, so that another can be opened.
    ///
    /// # Errors
    /// If it is not open.
    pub fn close(&mut self, id: SequenceId) -> Result<(), Error> {
        let place = self.place(id)?;
        self.sequences[place] = None;
        Ok(())
    }

    /// Empties a sequence, which stays open.
    ///
    /// # Errors
    /// If it is not open.
    pub fn clear(&mut self, id: SequenceId) -> Result<(), Error> {
        let place = self.place(id)?;
        self.sequences[place] = Some(Sequence::new(id));
        Ok(())
    }

    /// The tokens a sequence holds.
    ///
    /// # Errors
    /// If it is not open.
    pub fn tokens(&self, id: SequenceId) -> Result<&[u32], Error> {
        Ok(&self.sequence(id)?.tokens)
    }

    /// How many tokens a sequence holds.
    ///
    /// # Errors
    /// If the sequence is not open.
    pub fn len(&self, id: SequenceId) -> Result<usize, Error> {
        Ok(self.tokens(id)?.len())
    }

    /// How many more tokens a sequence can hold.
    ///
    /// # Errors
    /// If the sequence is not open.
    pub fn room(&self, id: SequenceId) -> Result<usize, Error> {
        Ok(self.context() - self.len(id)?)
    }

    /// The logits (V) of the token that follows the sequence's last one.
    ///
    /// # Errors
    /// If the sequence is not open or holds no tokens.
    pub fn logits(&self, id: SequenceId) -> Result<&[f32], Error> {
        let logits = &self.sequence(id)?.logits;
        if logits.is_empty() { Err(Error::Empty) } else { Ok(logits) }
    }

    /// Adds a prompt, or more of one, to a sequence.
    ///
    /// # Errors
    /// As [`Session::extend`].
    pub fn feed(&mut self, id: SequenceId, tokens: &[u32]) -> Result<(), Error> {
        self.extend(&[(id, tokens)])
    }

    /// Adds one token to each of several sequences, in one run.
    ///
    /// # Errors
    /// As [`Session::extend`]; the index of a token out of range is that in `tokens`.
    pub fn step(&mut self, tokens: &[(SequenceId, u32)]) -> Result<(), Error> {
        if let Some(index) = tokens.iter().position(|(_, token)| *token as usize >= self.model.config.vocab_size) {
            return Err(self.out_of_range(tokens[index].1, index));
        }
        let parts: Vec<_> = tokens.iter().map(|(id, token)| (*id, std::slice::from_ref(token))).collect();
        self.extend(&parts)
    }

    /// Adds tokens to several sequences, to each at least one. A run takes rows from the sequences in the order
    /// given until it is full; only the last row of each sequence gets logits.
    ///
    /// # Errors
    /// If a sequence is not open or is named twice, a list is empty, a token is not in the vocabulary, or a sequence
    /// would be longer than the context; or if the backend fails. Nothing is then changed: the same call may be
    /// tried again.
    pub fn extend(&mut self, parts: &[(SequenceId, &[u32])]) -> Result<(), Error> {
        let places = self.check(parts)?;
        let done = self.grow(&places, parts);
        for (place, held) in &places {
            let sequence = self.sequences[*place].as_mut().expect("checked to be open");
            match done {
                Ok(()) => std::mem::swap(&mut sequence.logits, &mut sequence.next),
                // the cache may hold keys and values of these tokens; feeding them again overwrites those
                Err(_) => sequence.tokens.truncate(*held),
            }
        }
        Ok(done?)
    }

    /// Runs the parts and leaves their logits in `next`.
    fn grow(&mut self, places: &[(usize, usize)], parts: &[(SequenceId, &[u32])]) -> Result<(), BackendError> {
        // the current part, and how many of its tokens are done
        let (mut at, mut done) = (0, 0);
        while at < parts.len() {
            let first = at;
            let batch = &mut self.batch;
            batch.tokens.clear();
            batch.positions.clear();
            batch.spans.clear();
            batch.outputs.clear();
            while at < parts.len() && batch.tokens.len() < self.model.rows {
                let (sequence, tokens) = (places[at].0, parts[at].1);
                let held = &mut self.sequences[sequence].as_mut().expect("checked to be open").tokens;
                let (row, past) = (batch.tokens.len(), held.len());
                let rows = (tokens.len() - done).min(self.model.rows - row);
                batch.tokens.extend(&tokens[done..done + rows]);
                batch.positions.extend((past..past + rows).map(|position| position as u32));
                batch.spans.push(Span { row, rows, past, sequence, valid: past + rows });
                held.extend(&tokens[done..done + rows]);
                done += rows;
                if done == tokens.len() {
                    batch.outputs.push((row + rows - 1) as u32);
                    (at, done) = (at + 1, 0);
                }
            }
            self.run(&places[first..at])?;
        }
        Ok(())
    }

    /// Makes room in a full sequence: the latest T / 2 tokens (rounded down) are fed again at positions from 0, and
    /// the others are dropped. Returns how many were kept and dropped; a sequence with room is unchanged.
    ///
    /// # Errors
    /// If the sequence is not open; or if the backend fails. The sequence is then unchanged.
    pub fn slide(&mut self, id: SequenceId) -> Result<(usize, usize), Error> {
        let (tokens, context) = (self.tokens(id)?, self.context());
        if tokens.len() < context {
            return Ok((tokens.len(), 0));
        }
        let kept = context / 2;
        let latest = tokens[context - kept..].to_vec();
        let place = self.place(id)?;
        let full = self.sequences[place].replace(Sequence::new(id));
        if kept > 0
            && let Err(error) = self.feed(id, &latest)
        {
            self.sequences[place] = full; // it can take no token, so its overwritten cache is never read
            return Err(error);
        }
        Ok((kept, context - kept))
    }

    /// Checks that every token is in the vocabulary.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        match tokens.iter().position(|token| *token as usize >= self.model.config.vocab_size) {
            Some(index) => Err(self.out_of_range(tokens[index], index)),
            None => Ok(()),
        }
    }

    fn out_of_range(&self, id: u32, index: usize) -> Error {
        Error::Token { id, index, vocab_size: self.model.config.vocab_size }
    }

    /// Runs the batch; `ended` says which sequences its outputs belong to.
    fn run(&mut self, ended: &[(usize, usize)]) -> Result<(), BackendError> {
        let batch = &self.batch;
        self.backend.feed(batch)?;
        if ended.is_empty() {
            return self.backend.forward(self.model.program.forward(..self.body));
        }
        self.backend.forward(self.model.ops())?;
        let region = self.model.logits().expect("a model that decodes has logits").of(batch);
        self.logits.resize(region.len(), 0.0);
        self.backend.fetch(self.backend.request(region)?, &mut self.logits)?;
        for ((place, _), row) in ended.iter().zip(self.logits.chunks_exact(region.cols)) {
            let next = &mut self.sequences[*place].as_mut().expect("checked to be open").next;
            next.clear();
            next.extend_from_slice(row);
        }
        Ok(())
    }

    /// Checks the parts. Returns the index of each sequence and how many tokens it holds.
    fn check(&self, parts: &[(SequenceId, &[u32])]) -> Result<Vec<(usize, usize)>, Error> {
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(parts.len());
        for (id, tokens) in parts {
            let place = self.place(*id)?;
            if places.iter().any(|(other, _)| *other == place) {
                return Err(Error::Twice { id: *id });
            }
            if tokens.is_empty() {
                return Err(Error::Empty);
            }
            self.check_tokens(tokens)?;
            let (held, context) = (self.len(*id)?, self.context());
            if tokens.len() > context - held {
                return Err(Error::Full { held, more: tokens.len(), context });
            }
            places.push((place, held));
        }
        Ok(places)
    }

    fn place(&self, id: SequenceId) -> Result<usize, Error> {
        let found = self.sequences.iter().position(|s| s.as_ref().is_some_and(|s| s.id == id));
        found.ok_or(Error::Sequence { id })
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, Error> {
        self.sequences.iter().flatten().find(|s| s.id == id).ok_or(Error::Sequence { id })
    }
}
