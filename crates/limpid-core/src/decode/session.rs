//! Open sequences and their KV cache.
//!
//! Every row of a batch has its sequence and its position. So a prompt in chunks, one more token, and one more token
//! for many sequences at once are the same call: [`Session::extend`]. The bits of a sequence's logits do not depend
//! on how its tokens were fed.

use super::{BlockTable, DecodeError as Error, DecodeRows, Decoder, DecoderLimits};
use crate::backend::{Backend, BackendError, Cpu};
use crate::config::Config;
use crate::matrix::Precision;
use crate::model::Model;
use crate::numeric::simd::Level;
use crate::ops::cache_blocks;
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

/// A sequence.
struct Sequence {
    id: SequenceId,
    tokens: Vec<u32>,
    /// Its blocks of the cache: a whole context.
    table: BlockTable,
    /// Logits of the token that follows the last one; empty before the first.
    logits: Vec<f32>,
    /// The next value of `logits`, once all runs of a call are done.
    next: Vec<f32>,
}

/// Open sequences of one model, each with room for a whole context.
pub struct Session {
    decoder: Decoder,
    sequences: Vec<Option<Sequence>>,
    number: u64,
    opened: u64,
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
        Ok(Session::on(Decoder::new(config, DecoderLimits::of_sequences(config, sequences, rows), make)?))
    }

    /// A session on a decoder, for as many sequences as its cache has whole contexts.
    pub fn on(mut decoder: Decoder) -> Session {
        let blocks = cache_blocks(decoder.model().config.context_length);
        let sequences = (0..decoder.pool().capacity() / blocks).map(|_| None).collect();
        Session { decoder, sequences, number: SESSIONS.fetch_add(1, Relaxed), opened: 0 }
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
        self.decoder.model()
    }

    /// The model and its backend, to write parameters. The KV cache of open sequences was computed with the old
    /// parameters: open sequences afterwards.
    pub fn parts(&mut self) -> (&Model, &mut dyn Backend) {
        self.decoder.parts()
    }

    /// Copies the parameters of a model that was built for another mode, by name.
    ///
    /// # Errors
    /// If one is missing there or has another shape; nothing is then changed. Or if a backend fails.
    pub fn take_parameters(&mut self, model: &Model, backend: &dyn Backend) -> Result<(), Error> {
        let (taking, to) = self.parts();
        let mut found = Vec::with_capacity(taking.params.len());
        for own in &taking.params {
            let other = |what| Error::OtherModel { what };
            let theirs = model.param(&own.name).ok_or_else(|| other(format!("it has no `{}`", own.name)))?;
            if theirs.region.shape() != own.region.shape() {
                let what = format!("its `{}` is {:?}, not {:?}", own.name, theirs.region.shape(), own.region.shape());
                return Err(other(what));
            }
            found.push((own.region, theirs.region));
        }
        Ok(found.iter().try_for_each(|(own, theirs)| to.write(*own, &backend.read(*theirs)?))?)
    }

    /// T: the most tokens a sequence may hold.
    pub fn context(&self) -> usize {
        self.model().config.context_length
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
        let (capacity, context) = (self.capacity(), self.context());
        let place = self.sequences.iter_mut().find(|s| s.is_none()).ok_or(Error::NoRoom { sequences: capacity })?;
        let id = SequenceId { session: self.number, number: self.opened };
        self.opened += 1;
        let table = self.decoder.pool().reserve(None, context).expect("there are blocks for every sequence");
        *place = Some(Sequence { id, tokens: vec![], table, logits: vec![], next: vec![] });
        Ok(id)
    }

    /// Closes a sequence, so that another can be opened.
    ///
    /// # Errors
    /// If it is not open.
    pub fn close(&mut self, id: SequenceId) -> Result<(), Error> {
        let place = self.place(id)?;
        let closed = self.sequences[place].take().expect("it is open");
        self.decoder.pool().release(closed.table);
        Ok(())
    }

    /// Empties a sequence, which stays open.
    ///
    /// # Errors
    /// If it is not open.
    pub fn clear(&mut self, id: SequenceId) -> Result<(), Error> {
        let place = self.place(id)?;
        let sequence = self.sequences[place].as_mut().expect("it is open");
        sequence.tokens.clear();
        sequence.logits.clear();
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
        self.check_tokens(&tokens.iter().map(|(_, token)| *token).collect::<Vec<_>>())?;
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
        self.grow(&places, parts)?;
        for ((place, _), (_, tokens)) in places.iter().zip(parts) {
            let sequence = self.sequences[*place].as_mut().expect("checked to be open");
            std::mem::swap(&mut sequence.logits, &mut sequence.next);
            sequence.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Runs the parts and leaves their logits in `next`. If it fails, the cache may hold keys and values of these
    /// tokens; feeding others overwrites them.
    fn grow(&mut self, places: &[(usize, usize)], parts: &[(SequenceId, &[u32])]) -> Result<(), BackendError> {
        let Session { decoder, sequences, .. } = self;
        let (most, vocab_size) = (decoder.model().rows, decoder.model().config.vocab_size);
        // the current part, and how many of its tokens are done
        let (mut at, mut done) = (0, 0);
        while at < parts.len() {
            let (first, mut left, mut rows) = (at, most, vec![]);
            while at < parts.len() && left > 0 {
                let ((place, held), tokens) = (places[at], &parts[at].1[done..]);
                let tokens = &tokens[..tokens.len().min(left)];
                (left, done) = (left - tokens.len(), done + tokens.len());
                let ended = done == parts[at].1.len();
                let table = &sequences[place].as_ref().expect("checked to be open").table;
                let past = held + done - tokens.len();
                rows.push(DecodeRows { table, past, tokens, outputs: usize::from(ended) });
                if ended {
                    (at, done) = (at + 1, 0);
                }
            }
            decoder.run(rows)?;
            for ((place, _), row) in places[first..at].iter().zip(decoder.logits().chunks_exact(vocab_size)) {
                let next = &mut sequences[*place].as_mut().expect("checked to be open").next;
                next.clear();
                next.extend_from_slice(row);
            }
        }
        Ok(())
    }

    /// Makes room in a full sequence: the latest T / 2 tokens (rounded down) are fed again at positions from 0, and
    /// the others are dropped. Returns how many were kept and dropped; a sequence with room is unchanged.
    ///
    /// # Errors
    /// If the sequence is not open; or if the backend fails. The sequence is then unchanged.
    pub fn slide(&mut self, id: SequenceId) -> Result<(usize, usize), Error> {
        let (place, held, context) = (self.place(id)?, self.len(id)?, self.context());
        if held < context {
            return Ok((held, 0));
        }
        let kept = context / 2;
        if kept == 0 {
            self.clear(id)?;
            return Ok((kept, context));
        }
        let full = std::mem::take(&mut self.sequences[place].as_mut().expect("it is open").tokens);
        if let Err(error) = self.feed(id, &full[context - kept..]) {
            self.sequences[place].as_mut().expect("it is open").tokens = full; // it can take no token, so its overwritten cache is never read
            return Err(error);
        }
        Ok((kept, context - kept))
    }

    /// Checks that every token is in the vocabulary.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        self.decoder.check_tokens(tokens)
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
