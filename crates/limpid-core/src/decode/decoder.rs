//! A model, the backend that runs it, and its KV cache: rows of many sequences in one run.

use super::{BlockPool, BlockTable, DecodeError as Error};
use crate::backend::{Backend, BackendError};
use crate::config::{Config, ConfigError, Mask};
use crate::model::{Mode, Model};
use crate::numeric::element::Element;
use crate::ops::{Batch, MemorySpace, Op, Span, cache_blocks};

/// The most that a [`Decoder`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Rows of one run.
    pub rows: usize,
    /// Rows of one run whose logits are computed.
    pub outputs: usize,
    /// Blocks of 64 positions of the KV cache.
    pub blocks: usize,
    /// The type of its elements: f32, or bf16 in half the memory.
    pub cache: Element,
}

impl DecoderLimits {
    /// For `sequences` sequences with room for a whole context each, and runs of `rows` rows (at least `sequences`, at
    /// most the positions of all).
    pub fn of_sequences(config: &Config, sequences: usize, rows: usize) -> DecoderLimits {
        let rows = rows.min(config.context_length.saturating_mul(sequences)).max(sequences);
        let blocks = cache_blocks(config.context_length).saturating_mul(sequences);
        DecoderLimits { rows, outputs: sequences, blocks, cache: Element::F32 }
    }
    /// The model that a decoder with these limits runs.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn model(self, config: &Config) -> Result<Model, ConfigError> {
        let DecoderLimits { rows, outputs, blocks, cache } = self;
        Ok(Model::new(config, Mode::Decode { rows, outputs, blocks })?.with_element(MemorySpace::Cache, cache))
    }
}

/// Rows of one sequence in a run.
#[derive(Clone, Copy, Debug)]
pub struct DecodeRows<'a> {
    /// The sequence's blocks of the cache.
    pub table: &'a BlockTable,
    /// How many of its positions are in the cache.
    pub past: usize,
    /// The tokens that follow.
    pub tokens: &'a [u32],
    /// How many of these, the last ones, give logits.
    pub outputs: usize,
}

/// Runs rows of sequences, which have their keys and values in blocks of one cache. A row's logits depend on the tokens
/// of its sequence up to it and on nothing else: not on the run that it is in, nor on where its blocks lie.
pub struct Decoder {
    model: Model,
    backend: Box<dyn Backend>,
    pool: BlockPool,
    /// How many ops come before the head: a run without outputs needs only these.
    body: usize,
    batch: Batch,
    /// The logits of a run.
    logits: Vec<f32>,
}

impl Decoder {
    /// A decoder run by the backend that `make` returns for the model. Parameters are zero until they are written.
    ///
    /// # Errors
    /// If the model is not causal or cannot be built, or `make` fails.
    pub fn new(
        config: &Config,
        limits: DecoderLimits,
        make: impl FnOnce(&Model) -> Result<Box<dyn Backend>, BackendError>,
    ) -> Result<Decoder, Error> {
        config.check()?;
        if config.mask != Mask::Causal {
            return Err(Error::Mask { mask: config.mask });
        }
        let model = limits.model(config)?;
        let body = model.ops().iter().position(|op| matches!(op, Op::Gather { .. })).unwrap_or(model.ops().len());
        let backend = make(&model)?;
        let pool = BlockPool::new(limits.blocks);
        Ok(Decoder { model, backend, pool, body, batch: Batch::default(), logits: vec![] })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The account of the cache's blocks.
    pub fn pool(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// The model and its backend, to write parameters. What is in the cache was computed with the old ones.
    pub fn parts(&mut self) -> (&Model, &mut dyn Backend) {
        (&self.model, &mut *self.backend)
    }

    /// The same with another backend around its own.
    #[must_use]
    pub fn wrapped(self, around: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>) -> Decoder {
        Decoder { backend: around(self.backend), ..self }
    }

    /// Copies the parameters of a model that was built for another mode, by name. What is in the cache was computed
    /// with the old ones.
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
        found.iter().try_for_each(|(own, theirs)| Ok(self.backend.write(*own, &backend.read(*theirs)?)?))
    }

    /// Checks that every token is in the vocabulary.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocab_size = self.model.config.vocab_size;
        match tokens.iter().position(|token| *token as usize >= vocab_size) {
            Some(index) => Err(Error::Token { id: tokens[index], index, vocab_size }),
            None => Ok(()),
        }
    }

    /// One run. [`Decoder::logits`] has what came of it.
    ///
    /// # Errors
    /// If the rows do not fit the limits, the vocabulary, the context or their tables, two sequences write to one
    /// block, or the backend fails. The same rows may be run again.
    pub fn run<'a>(&mut self, rows: impl IntoIterator<Item = DecodeRows<'a>>) -> Result<(), BackendError> {
        let batch = &mut self.batch;
        let ids = [&mut batch.tokens, &mut batch.positions, &mut batch.outputs, &mut batch.blocks];
        ids.into_iter().for_each(Vec::clear);
        batch.spans.clear();
        for DecodeRows { table, past, tokens, outputs } in rows {
            let (row, all) = (batch.tokens.len(), past + tokens.len());
            let span = Span { row, rows: tokens.len(), past, table: batch.blocks.len(), valid: all };
            batch.spans.push(span);
            batch.blocks.extend(&table.blocks()[..span.cache_blocks().min(table.blocks().len())]);
            batch.tokens.extend(tokens);
            batch.positions.extend((past..all).map(|position| position as u32));
            batch.outputs.extend((row + tokens.len() - outputs..row + tokens.len()).map(|row| row as u32));
        }
        self.backend.feed(&self.batch)?;
        if self.batch.outputs.is_empty() {
            self.logits.clear();
            return self.backend.forward(self.model.program.forward(..self.body));
        }
        self.backend.forward(self.model.ops())?;
        let region = self.model.logits().expect("a model that decodes has logits").for_batch(&self.batch);
        self.logits.resize(region.len(), 0.0);
        self.backend.fetch(self.backend.request(region)?, &mut self.logits)
    }

    /// The logits (outputs,V) of the last run: of all rows that give some, in order.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }
}
