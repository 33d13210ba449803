//! Sequences that grow on a decoder, each with room for a whole context: what tests feed, a token or many at a time.

use limpid::backend::{Backend, BackendError, Cpu};
use limpid::config::Config;
use limpid::engine::{BlockTable, DecodeRows, Decoder, DecoderLimits};
use limpid::generate::DecodeError as Error;
use limpid::matrix::Precision;
use limpid::model::Model;
use limpid::numeric::simd::Level;
use limpid_core::kernels::attend;

/// The place of a sequence.
pub type SequenceId = usize;

struct Sequence {
    tokens: Vec<u32>,
    table: BlockTable,
    /// Logits of the token that follows the last one; empty before the first.
    logits: Vec<f32>,
    /// The next value of `logits`, once all runs of a call are done.
    next: Vec<f32>,
}

pub struct Sequences {
    decoder: Decoder,
    all: Vec<Option<Sequence>>,
}

impl Sequences {
    /// As many as that, in runs of at most so many rows.
    pub fn new(
        config: &Config,
        sequences: usize,
        rows: usize,
        make: impl FnOnce(&Model) -> Result<Box<dyn Backend>, BackendError>,
    ) -> Result<Sequences, Error> {
        Ok(Sequences::on(Decoder::new(config, DecoderLimits::of_sequences(config, sequences, rows), make)?))
    }

    /// As many as its cache has whole contexts.
    pub fn on(mut decoder: Decoder) -> Sequences {
        let blocks = limpid::ops::cache_blocks(decoder.model().config.context_length);
        let all = (0..decoder.pool().capacity() / blocks).map(|_| None).collect();
        Sequences { decoder, all }
    }

    pub fn on_cpu(config: &Config, sequences: usize, threads: usize) -> Result<Sequences, Error> {
        Sequences::new(config, sequences, 256.min(config.context_length), |model| {
            Ok(Box::new(Cpu::start(model, threads, Level::best(), Precision::F32)?))
        })
    }

    pub fn model(&self) -> &Model {
        self.decoder.model()
    }

    pub fn parts(&mut self) -> (&Model, &mut dyn Backend) {
        self.decoder.parts()
    }

    pub fn take_parameters(&mut self, model: &Model, backend: &dyn Backend) -> Result<(), Error> {
        self.decoder.take_parameters(model, backend)
    }

    pub fn context(&self) -> usize {
        self.model().config.context_length
    }

    /// An empty one, in the first free place.
    pub fn open(&mut self) -> SequenceId {
        let id = self.all.iter().position(Option::is_none).expect("a place is free");
        let context = self.context();
        let table = self.decoder.pool().reserve(None, context);
        let table = table.expect("there are blocks for every sequence");
        self.all[id] = Some(Sequence { tokens: vec![], table, logits: vec![], next: vec![] });
        id
    }

    pub fn close(&mut self, id: SequenceId) {
        let closed = self.all[id].take().expect("it is open");
        self.decoder.pool().release(closed.table);
    }

    fn one(&self, id: SequenceId) -> &Sequence {
        self.all[id].as_ref().expect("it is open")
    }

    fn one_mut(&mut self, id: SequenceId) -> &mut Sequence {
        self.all[id].as_mut().expect("it is open")
    }

    pub fn tokens(&self, id: SequenceId) -> &[u32] {
        &self.one(id).tokens
    }

    pub fn len(&self, id: SequenceId) -> usize {
        self.tokens(id).len()
    }

    /// How many more tokens it can hold.
    pub fn room(&self, id: SequenceId) -> usize {
        self.context() - self.len(id)
    }

    /// The logits (V) after its last token; empty before the first.
    pub fn logits(&self, id: SequenceId) -> &[f32] {
        &self.one(id).logits
    }

    pub fn feed(&mut self, id: SequenceId, tokens: &[u32]) -> Result<(), Error> {
        self.extend(&[(id, tokens)])
    }

    /// Adds one token to each of several, in one run.
    pub fn step(&mut self, tokens: &[(SequenceId, u32)]) -> Result<(), Error> {
        let parts: Vec<_> = tokens.iter().map(|(id, token)| (*id, std::slice::from_ref(token))).collect();
        self.extend(&parts)
    }

    /// Adds tokens to several. A run takes rows of them in the order given until it is full; only the last row of each
    /// gets logits. If a run fails, nothing is changed: the same call may be tried again.
    pub fn extend(&mut self, parts: &[(SequenceId, &[u32])]) -> Result<(), Error> {
        for (id, tokens) in parts {
            self.decoder.check_tokens(tokens)?;
            assert!(tokens.len() <= self.room(*id), "the context is full");
        }
        self.grow(parts)?;
        for (id, tokens) in parts {
            let sequence = self.one_mut(*id);
            std::mem::swap(&mut sequence.logits, &mut sequence.next);
            sequence.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Runs the parts and leaves their logits in `next`. If it fails, the cache may hold keys and values of these
    /// tokens; feeding others overwrites them.
    fn grow(&mut self, parts: &[(SequenceId, &[u32])]) -> Result<(), BackendError> {
        let Sequences { decoder, all } = self;
        let (most, vocab_size) = (decoder.model().rows, decoder.model().config.vocab_size);
        // the current part, and how many of its tokens are done
        let (mut at, mut done) = (0, 0);
        while at < parts.len() {
            let (first, mut left, mut rows) = (at, most, vec![]);
            while at < parts.len() && left > 0 {
                let (id, tokens) = (parts[at].0, &parts[at].1[done..]);
                let tokens = &tokens[..tokens.len().min(left)];
                (left, done) = (left - tokens.len(), done + tokens.len());
                let ended = done == parts[at].1.len();
                let Sequence { table, tokens: held, .. } = all[id].as_ref().expect("it is open");
                let past = held.len() + done - tokens.len();
                rows.push(DecodeRows { table, past, tokens, outputs: usize::from(ended) });
                if ended {
                    (at, done) = (at + 1, 0);
                }
            }
            decoder.run(rows)?;
            for ((id, _), row) in parts[first..at].iter().zip(decoder.logits().chunks_exact(vocab_size)) {
                let next = &mut all[*id].as_mut().expect("it is open").next;
                next.clear();
                next.extend_from_slice(row);
            }
        }
        Ok(())
    }

    /// Makes room in a full one: its latest T / 2 tokens are fed again at positions from 0, and the others are dropped.
    pub fn slide(&mut self, id: SequenceId) -> Result<(), Error> {
        let context = self.context();
        if self.len(id) < context {
            return Ok(());
        }
        let full = std::mem::take(&mut self.one_mut(id).tokens);
        if let Err(error) = self.feed(id, &full[context - context / 2..]) {
            self.one_mut(id).tokens = full; // it can take no token, so its overwritten cache is never read
            return Err(error);
        }
        Ok(())
    }
}
