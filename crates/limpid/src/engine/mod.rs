//! Many requests on one model, side by side: [`Engine`]. Everything that generates or scores uses it: a program with
//! one prompt, `limpid generate`, a server with many clients.
//!
//! [`turn()`] decides what one run of the model computes: a function of its arguments, without clock, threads or
//! numbers of the model. [`BlockPool`] keeps account of the KV cache, in blocks that sequences with the same
//! beginning share. Neither changes a bit of any answer: a row depends on its own sequence alone. Read `turn` first.
//!
//! ```no_run
//! # use limpid::engine::{EngineEvent, EngineLimits, EngineRequest};
//! # use limpid::generate::Options;
//! # let lm = limpid::Lm::open("runs/1")?;
//! let mut engine = lm.engine(&EngineLimits::new(lm.config(), 4, 256))?; // four at a time
//! for prompt in ["to be", "not to be"] {
//!     let (prompt, options) = (lm.prompt_ids(prompt)?, Options::default());
//!     engine.submit(EngineRequest { prompt, options, log_probs: None, reuse: true, steps: None })?;
//! }
//! let mut tell = |id, event| {
//!     if let EngineEvent::Done(sample) = event {
//!         println!("{id}: {}", sample.text);
//!     }
//!     true // false cancels the request
//! };
//! while engine.round(&mut tell)? {}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod turn;

pub use limpid_core::decode::{BlockPool, BlockTable, DecodeRows, Decoder, DecoderLimits};
pub use turn::{SequenceProgress, Turn, TurnLimits, TurnRows, WaitingRequest, turn};

use crate::backend::BackendError;
use crate::config::Config;
use crate::generate::{
    FinishReason, GenerateError, GeneratedToken, Options, Overflow, Sample, Writer, likeliest, log_sum_exp,
};
use crate::numeric::element::Element;
use crate::ops::BLOCK;
use crate::ops::cache_blocks;
use crate::tokenizer::Tokenizer;
use limpid_core::decode::DecodeError;
use limpid_trace::interventions::{InterveningBackend, InterventionError, PlacedSteps, ResolvedSteps, SequenceSteps};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::{fmt, mem};

/// Rows beside those of the sequences whose logits one run computes: of prompts whose log-probabilities are wanted.
const SCORED: usize = 64;

/// What is asked of an engine: one sample that continues a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineRequest {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// How it is continued; by at most 0 tokens if only its log-probabilities are wanted.
    pub options: Options,
    /// Which log-probabilities are wanted.
    pub log_probs: Option<LogProbs>,
    /// Whether it uses keys and values that earlier prompts with the same beginning left in the cache, and leaves its
    /// own. The answer is the same. A sequence that may slide shares nothing.
    pub reuse: bool,
    /// What changes its runs ([`EngineRequest::place`]); the answer of such a request shares nothing with others.
    pub steps: Option<Arc<PlacedSteps>>,
}

impl EngineRequest {
    /// What steps are for this request: its prompt, of which nothing must be dropped, and what may follow.
    ///
    /// # Errors
    /// As [`ResolvedSteps::on`].
    pub fn place(&self, steps: &ResolvedSteps, config: &Config) -> Result<Arc<PlacedSteps>, InterventionError> {
        let (run, positions) = extent(self.prompt.len(), self.options.max_tokens, config.context_length);
        steps.on(&self.prompt[..run], positions).map(Arc::new)
    }
}

/// How many tokens of a prompt run, and how many positions the sequence may come to have.
fn extent(prompt: usize, max_tokens: usize, context: usize) -> (usize, usize) {
    let run = prompt.saturating_sub(usize::from(max_tokens == 0));
    (run, run.saturating_add(max_tokens.saturating_sub(1)).min(context))
}

/// Which log-probabilities are wanted beside those of the tokens that are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProbs {
    /// How many of the likeliest tokens beside each.
    pub top: usize,
    /// Those of the prompt's tokens too, from this one on (at least from the second, 1, for nothing predicts the
    /// first).
    pub prompt_from: Option<usize>,
}

/// How likely the model finds a token after those before it: in nats, of the softmax over all logits, before
/// temperature, penalties and cuts.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProb {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub log_prob: f64,
    /// The likeliest tokens and their log-probabilities, the likeliest first.
    pub top: Vec<(u32, f64)>,
}

impl TokenLogProb {
    /// That of `token` by the `logits` (V) of the position before it.
    fn new(logits: &[f32], token: u32, top: usize) -> Result<TokenLogProb, DecodeError> {
        let lse = log_sum_exp(logits)?;
        let of = |token: u32| f64::from(logits[token as usize]) - lse;
        let top = likeliest(logits, top).into_iter().map(|token| (token, of(token))).collect();
        Ok(TokenLogProb { token, log_prob: of(token), top })
    }
}

/// Names a request of one engine. No id is given twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct RequestId(u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happens to a request.
#[derive(Debug)]
pub enum EngineEvent {
    /// The oldest tokens were dropped, because the context was full ([`Overflow`]).
    Cropped {
        /// Tokens still seen.
        kept: usize,
        /// Tokens no longer seen.
        dropped: usize,
    },
    /// The prompt was run; comes once, before the first token.
    Prompt {
        /// How many of its tokens were in the cache.
        cached: usize,
        /// If wanted: one for each token from [`LogProbs::prompt_from`] on.
        log_probs: Vec<TokenLogProb>,
    },
    /// A token was chosen. The one that ends a sample is told too, end-of-text as well.
    Token {
        /// The token, and the text that is certain after it.
        token: GeneratedToken,
        /// If wanted.
        log_prob: Option<TokenLogProb>,
    },
    /// The request is answered, or was cancelled; the last event.
    Done(Sample),
    /// The request failed; the last event.
    Failed(GenerateError),
}

/// Hears what happens to one request; one for which it returns `false` is cancelled.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(EngineEvent) -> bool;

/// How large an engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Sequences that run side by side; others wait.
    pub sequences: usize,
    /// Rows of prompts in one run.
    pub prompt_rows: usize,
    /// Bytes of the KV cache; it has room for at least one block of positions.
    pub cache_bytes: u64,
    /// The type of its elements: f32, or bf16 in half the memory. It changes the answers' last digits.
    /// [`Lm::engine`](crate::Lm::engine) makes room for as many positions in a cache of type
    /// [`Machine::cache`](crate::Machine::cache).
    pub cache: Element,
}

impl EngineLimits {
    /// For `sequences` sequences of at most `positions` positions each.
    pub fn new(config: &Config, sequences: usize, positions: usize) -> EngineLimits {
        let all = cache_blocks(positions.min(config.context_length)).saturating_mul(sequences);
        let cache = Element::F32;
        let cache_bytes = block_bytes(config, cache).saturating_mul(all as u64);
        EngineLimits { sequences, prompt_rows: 256, cache_bytes, cache }
    }

    /// The same positions in a cache of this type.
    #[must_use]
    pub fn with_cache(self, cache: Element) -> EngineLimits {
        let [was, is] = [self.cache, cache].map(|element| element.bytes(BLOCK) as u64);
        EngineLimits { cache, cache_bytes: self.cache_bytes / was * is, ..self }
    }

    /// The same with room for at least one whole context.
    #[must_use]
    pub fn with_whole_context(self, config: &Config) -> EngineLimits {
        let blocks = cache_blocks(config.context_length) as u64;
        let least = block_bytes(config, self.cache).saturating_mul(blocks);
        EngineLimits { cache_bytes: self.cache_bytes.max(least), ..self }
    }

    /// The decoder of an engine with these limits.
    pub fn decoder(&self, config: &Config) -> DecoderLimits {
        let EngineLimits { sequences, prompt_rows, cache_bytes, cache } = *self;
        let blocks = (cache_bytes / block_bytes(config, cache)).min(u64::from(u32::MAX)) as usize;
        let rows = prompt_rows.min(config.context_length.saturating_mul(sequences)) + sequences;
        DecoderLimits { rows, outputs: rows.min(sequences + SCORED), blocks: blocks.max(1), cache }
    }
}

/// Bytes of the keys and values of one block, in all layers.
fn block_bytes(config: &Config, cache: Element) -> u64 {
    let layer = cache.bytes(config.heads().cache_cols() * BLOCK) as u64;
    layer.saturating_mul(config.n_layer as u64).max(1)
}

/// What an engine holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Tokens of the prompts that wait.
    pub waiting_tokens: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Blocks that requests hold.
    pub held: usize,
    /// Blocks that nobody holds, whose content can be used again.
    pub idle: usize,
    /// Rows of the last run.
    pub rows: usize,
    /// The same, rows of changed sequences counted by what they cost ([`PlacedSteps::weight`]).
    pub work: usize,
}

impl EngineCounts {
    /// How many sequences of `context_length` tokens the cache holds.
    pub fn whole_sequences(&self, context_length: usize) -> usize {
        self.blocks / cache_blocks(context_length)
    }
}

/// A request, from its submission to its end.
struct Request {
    id: RequestId,
    writer: Writer,
    log_probs: Option<LogProbs>,
    reuse: bool,
    steps: Option<Arc<PlacedSteps>>,
    /// How many rows one of its rows is worth.
    weight: usize,
    /// The tokens of the sequence: what is seen of the prompt, and what followed.
    tokens: Vec<u32>,
    /// How many of them are to be run; the last of a prompt that nothing follows is not.
    run: usize,
    /// The first position whose logits are wanted.
    logits_from: usize,
    /// Positions that it may come to need.
    positions: usize,
    /// Tokens of the prompt that the context has no room for.
    dropped: usize,
    /// Its blocks, once it runs.
    table: Option<BlockTable>,
    /// How many positions are in the cache.
    held: usize,
    /// Its prompt's log-probabilities so far, until these are told.
    prompt: Option<Vec<TokenLogProb>>,
    /// Those with smaller numbers are admitted first.
    order: usize,
    /// Whether it leaves places to others: one with costly steps, or a later answer of somebody who asks for many.
    yields: bool,
}

impl Request {
    /// The tokens that another sequence may have left in the cache: those whose logits are not wanted.
    fn prefix(&self) -> &[u32] {
        &self.tokens[..self.logits_from.min(self.run - 1)]
    }
    fn waits(&self, ready: bool) -> WaitingRequest<'_> {
        let Request { logits_from, positions, reuse, weight, .. } = *self;
        WaitingRequest { tokens: &self.tokens[..self.run], logits_from, positions, shares: reuse, weight, ready }
    }
    fn progress(&self) -> SequenceProgress {
        let Request { held, run, logits_from, weight, .. } = *self;
        SequenceProgress { held, known: run, logits_from, weight }
    }
    /// What follows from the last rows, which gave `logits`: `held` of the sequence's positions are in the cache now.
    fn advance(&mut self, logits: &[&[f32]], context: usize, tell: Tell) -> Result<(), End> {
        let mut tell = |event| if tell(event) { Ok(()) } else { Err(End::Finished(FinishReason::Cancelled)) };
        let dropped = mem::take(&mut self.dropped);
        if dropped > 0 {
            tell(EngineEvent::Cropped { kept: self.tokens.len(), dropped })?;
        }
        let top = self.log_probs.map_or(0, |wanted| wanted.top);
        if let Some(prompt) = &mut self.prompt {
            // the last of a prompt that is continued predicts what is not there yet
            let following = &self.tokens[self.held.min(self.run) + 1 - logits.len()..];
            for (logits, token) in logits.iter().zip(following) {
                prompt.push(TokenLogProb::new(logits, *token, top)?);
            }
        }
        if self.held < self.run {
            return Ok(());
        }
        if let Some(log_probs) = self.prompt.take() {
            let cached = self.table.as_ref().map_or(0, BlockTable::found);
            tell(EngineEvent::Prompt { cached, log_probs })?;
        }
        let overflow = self.writer.options().overflow;
        let Some(logits) = logits.last().filter(|_| self.writer.options().max_tokens > 0) else {
            return Err(End::Finished(FinishReason::Length));
        };
        let mut chosen = self.writer.take(logits, self.held)?;
        let full = chosen.finish.is_none() && self.held == context;
        if full && overflow == Overflow::Stop {
            chosen.text += &self.writer.flush();
            chosen.finish = Some(FinishReason::Length);
        }
        let (token, finish) = (chosen.token, chosen.finish);
        let log_prob = self.log_probs.map(|wanted| TokenLogProb::new(logits, token, wanted.top)).transpose()?;
        tell(EngineEvent::Token { token: chosen, log_prob })?;
        if let Some(reason) = finish {
            return Err(End::Finished(reason));
        }
        if full {
            let kept = if overflow == Overflow::Crop { context - 1 } else { context / 2 };
            self.tokens.drain(..context - kept);
            self.held = 0;
            tell(EngineEvent::Cropped { kept, dropped: context - kept })?;
        }
        self.tokens.push(token);
        self.run = self.tokens.len();
        self.logits_from = self.run - 1;
        Ok(())
    }
    /// Whether `other`, which has `held` positions in the cache, will leave more there of what this one begins with
    /// than the `found` positions that are there.
    fn gains_by(&self, found: usize, other: &Request, held: usize) -> bool {
        let same = self.prefix().iter().zip(&other.tokens[..other.run]).take_while(|(a, b)| a == b).count();
        other.reuse && held < other.run && same / BLOCK * BLOCK > held.max(found)
    }
}

/// Why a request ended.
enum End {
    Finished(FinishReason),
    Failed(GenerateError),
}

impl<E: Into<GenerateError>> From<E> for End {
    fn from(error: E) -> End {
        End::Failed(error.into())
    }
}

/// Requests on one model, run side by side. It has no thread, no clock and no socket: who calls [`Engine::round`]
/// decides when.
///
/// The bytes and log-probabilities of an answer depend on its request and the model only: not on the other requests,
/// the limits, or what is in the cache.
pub struct Engine {
    decoder: Decoder,
    tokenizer: Option<Tokenizer>,
    limits: TurnLimits,
    /// What changes the runs of requests that say nothing of it.
    steps: Option<Arc<ResolvedSteps>>,
    sequences: SequenceSteps,
    requests: u64,
    /// How many have asked.
    askers: usize,
    /// Requests that need no run.
    silent: Vec<Request>,
    waiting: VecDeque<Request>,
    running: Vec<Request>,
    rows: usize,
    work: usize,
}

impl Engine {
    /// An engine on a decoder, which was made with [`EngineLimits::decoder`]. Without a tokenizer samples have no text.
    pub fn new(mut decoder: Decoder, tokenizer: Option<Tokenizer>, limits: &EngineLimits) -> Engine {
        let DecoderLimits { rows, outputs, blocks, .. } = limits.decoder(&decoder.model().config);
        assert_eq!(decoder.pool().capacity(), blocks, "the decoder has other limits");
        let sequences = limits.sequences;
        let limits = TurnLimits { rows, outputs, prompt_rows: rows - sequences, sequences };
        let (silent, waiting, running) = (vec![], VecDeque::new(), vec![]);
        let sequences = SequenceSteps::default();
        let decoder = decoder.wrapped(|backend| Box::new(InterveningBackend::new(backend, sequences.clone())));
        let (steps, requests, askers, rows, work) = (None, 0, 0, 0, 0);
        Engine { decoder, tokenizer, limits, steps, sequences, requests, askers, silent, waiting, running, rows, work }
    }

    /// The same with every request changed that has no steps of its own.
    #[must_use]
    pub fn with_steps(self, steps: Option<Arc<ResolvedSteps>>) -> Engine {
        Engine { steps, ..self }
    }

    /// The model and its backend.
    pub fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// What its steps of every request are for a prompt that comes to have so many positions.
    ///
    /// # Errors
    /// As [`ResolvedSteps::on`].
    pub(crate) fn place(
        &self,
        prompt: &[u32],
        positions: usize,
    ) -> Result<Option<Arc<PlacedSteps>>, InterventionError> {
        self.steps.as_ref().map(|steps| steps.on(prompt, positions).map(Arc::new)).transpose()
    }

    /// Takes a request. All that can be checked is checked now.
    ///
    /// The context is T = `context_length` positions, and [`Options::overflow`] says what happens at its end.
    /// [`Overflow::Stop`]: a prompt of more than T tokens is an error; the sample ends (finish reason `Length`) with
    /// the token that was chosen when the sequence held T tokens, so that prompt and sample have at most T + 1.
    /// [`Overflow::SlideHalf`]: of a longer prompt the last T tokens are seen; and when a token must be added to a
    /// sequence of T, its oldest T - T / 2 tokens are dropped (T / 2 rounded down) and the other T / 2 run again, at
    /// positions from 0, before it. [`Overflow::Crop`] drops one token and runs the other T - 1 again, so that every
    /// token follows from the last T alone; it costs a whole context a token. Each time [`EngineEvent::Cropped`] is
    /// told. The repetition penalty still counts what was dropped.
    ///
    /// # Errors
    /// If the prompt is empty or has tokens that the model or the tokenizer lacks; if it does not fit the context or,
    /// with its answer, the cache; or if an option is out of its range.
    pub fn submit(&mut self, request: EngineRequest) -> Result<RequestId, GenerateError> {
        self.submit_nth(request, 0)
    }

    /// The same for the n-th (from 0) of several requests by one who asks: it lets n who ask later pass, and all but
    /// the first leave a quarter of the sequences to others, so that nobody waits for all of them.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_nth(&mut self, request: EngineRequest, n: usize) -> Result<RequestId, GenerateError> {
        self.askers += usize::from(n == 0);
        let EngineRequest { mut prompt, options, log_probs, reuse, steps } = request;
        self.decoder.check_tokens(&prompt)?;
        // tokens that have no text may be scored, and none is made
        let writes = options.max_tokens > 0 || !options.stop.is_empty();
        let writer = Writer::new(self.tokenizer.as_ref().filter(|_| writes), &prompt, &options)?;
        let config = &self.decoder.model().config;
        if let Some((token, _)) = options.logit_bias.iter().find(|(token, _)| *token as usize >= config.vocab_size) {
            let (id, vocab_size) = (*token, config.vocab_size);
            return Err(DecodeError::Token { id, index: 0, vocab_size }.into());
        }
        let (context, silent) = (config.context_length, usize::from(options.max_tokens == 0));
        let (slides, more) = (options.overflow != Overflow::Stop, options.max_tokens.saturating_sub(1));
        let dropped = (prompt.len() - silent).saturating_sub(context);
        if dropped > 0 && !slides {
            return Err(DecodeError::Full { held: 0, more: prompt.len() - silent, context }.into());
        }
        prompt.drain(..dropped);
        let (run, positions) = extent(prompt.len(), options.max_tokens, context);
        if !self.decoder.pool().fits(positions) {
            let room = self.decoder.pool().capacity() * BLOCK;
            return Err(GenerateError::NoCache { positions, room });
        }
        let may_slide = slides && run.saturating_add(more) > context;
        if (steps.is_some() || self.steps.is_some()) && may_slide {
            return Err(GenerateError::InterventionSlides { positions: run.saturating_add(more), context });
        }
        let steps = match steps {
            Some(placed) => {
                assert_eq!(placed.positions(), positions, "the steps were placed for another request");
                Some(placed)
            }
            None => self.place(&prompt[..run], positions)?,
        };
        let weight = steps.as_ref().map_or(1, |steps| steps.weight(self.decoder.model()));
        let scored = log_probs.and_then(|wanted| wanted.prompt_from).map(|from| from.max(1));
        let from = scored.filter(|from| *from < prompt.len()).map(|from| from - 1);
        let request = Request {
            id: RequestId(self.requests),
            writer,
            log_probs,
            reuse: reuse && steps.is_none() && !may_slide,
            steps,
            weight,
            logits_from: from.unwrap_or(usize::MAX).min(run.saturating_sub(1)),
            tokens: prompt,
            run: if silent == 1 && from.is_none() { 0 } else { run },
            positions,
            dropped,
            table: None,
            held: 0,
            prompt: Some(vec![]),
            order: self.askers + n,
            yields: n > 0 || weight > 1,
        };
        self.requests += 1;
        match request.run {
            0 => self.silent.push(request),
            _ => {
                let at = self.waiting.partition_point(|other| other.order <= request.order);
                self.waiting.insert(at, request);
            }
        }
        Ok(RequestId(self.requests - 1))
    }

    /// Ends requests that wait or run: they get no more events, and their blocks are free. Unknown ids are ignored.
    pub fn cancel(&mut self, ids: &HashSet<RequestId>) {
        self.silent.retain(|request| !ids.contains(&request.id));
        self.waiting.retain(|request| !ids.contains(&request.id));
        for request in self.running.extract_if(.., |request| ids.contains(&request.id)).collect::<Vec<_>>() {
            self.release(request);
        }
    }

    /// One run of the model for all requests. Tells each what happened to it; one for which `tell` returns `false` is
    /// cancelled, and told `Done` with what it has. Returns whether there is more to do.
    ///
    /// # Errors
    /// If the backend fails. No request has then advanced: the call may be repeated.
    pub fn round(&mut self, tell: &mut dyn FnMut(RequestId, EngineEvent) -> bool) -> Result<bool, BackendError> {
        self.answer_at_once(tell);
        let progress: Vec<SequenceProgress> = self.running.iter().map(Request::progress).collect();
        let next = self.next();
        let turn = {
            let next: Vec<&Request> = next.iter().map(|at| &self.waiting[*at]).collect();
            let pool = self.decoder.pool();
            let found: Vec<usize> = next.iter().map(|request| pool.found(request.prefix())).collect();
            let running = &self.running;
            let before = |n: usize| next.iter().zip(&found).take(n).map(|(request, found)| (*request, *found));
            let ready = |n: usize, request: &Request| {
                let mut others = running.iter().map(|other| (other, other.held)).chain(before(n));
                !request.reuse || !others.any(|(other, held)| request.gains_by(found[n], other, held))
            };
            let waits = next.iter().enumerate().map(|(n, request)| request.waits(ready(n, request)));
            turn(self.decoder.pool(), &progress, waits, &self.limits)
        };
        for (before, (at, table)) in turn.admitted.into_iter().enumerate() {
            let mut request = self.waiting.remove(next[at] - before).expect("only those that wait are admitted");
            if let (Some(steps), Some(first)) = (&request.steps, table.blocks().first()) {
                self.sequences.insert(*first, steps.clone());
            }
            (request.held, request.table) = (table.found(), Some(table));
            self.running.push(request);
        }
        self.rows = turn.rows.iter().map(|given| given.rows).sum();
        self.work = turn.rows.iter().map(|given| given.rows * self.running[given.sequence].weight).sum();
        if turn.rows.is_empty() {
            return Ok(self.is_busy());
        }
        let Engine { decoder, running, .. } = self;
        let context = decoder.model().config.context_length;
        let vocab_size = decoder.model().config.vocab_size;
        decoder.run(turn.rows.iter().map(|given| {
            let Request { table, held, tokens, .. } = &running[given.sequence];
            let table = table.as_ref().expect("it runs");
            DecodeRows { table, past: *held, tokens: &tokens[*held..held + given.rows], outputs: given.outputs }
        }))?;
        for given in &turn.rows {
            let Request { table, held, tokens, .. } = &mut running[given.sequence];
            *held += given.rows;
            decoder.pool().register(table.as_mut().expect("it runs"), &tokens[..*held]);
        }
        let mut logits = decoder.logits().chunks_exact(vocab_size);
        let mut ended = vec![];
        for given in &turn.rows {
            let mine: Vec<&[f32]> = logits.by_ref().take(given.outputs).collect();
            let request = &mut running[given.sequence];
            let id = request.id;
            if let Err(end) = request.advance(&mine, context, &mut |event| tell(id, event)) {
                ended.push((given.sequence, end));
            }
        }
        ended.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, end) in ended {
            let request = self.running.remove(at);
            self.end(request, end, tell);
        }
        Ok(self.is_busy())
    }

    /// The places of those that wait and may be admitted next. Costly steps wait for other costly steps: what a row of
    /// each is worth beyond a plain one is half of a run's prompts at most, so that nobody waits longer for it. These,
    /// and the later requests of a client that sends many, leave a quarter of the sequences to others, which overtake
    /// them meanwhile. A turn may have no rows for some of these, so they take no place from the others.
    fn next(&self) -> Vec<usize> {
        let more = |request: &Request| request.weight - 1;
        let mut taken: usize = self.running.iter().map(more).sum();
        let yielding = self.running.iter().filter(|request| request.yields).count();
        let TurnLimits { sequences, prompt_rows, .. } = self.limits;
        let mut room = [sequences - self.running.len(), sequences - sequences / 4 - yielding];
        let (mut next, mut full) = (vec![], false);
        for (at, request) in self.waiting.iter().enumerate() {
            let costly = more(request) > 0;
            full |= costly && taken > 0 && taken + more(request) > prompt_rows / 2;
            let room = &mut room[usize::from(request.yields)];
            if costly && full || *room == 0 {
                continue;
            }
            taken += more(request);
            *room -= 1;
            next.push(at);
        }
        next
    }

    /// Changes how many rows of prompts a run may have, at most [`EngineLimits::prompt_rows`]: fewer make a run
    /// shorter. No answer changes.
    pub fn set_prompt_rows(&mut self, rows: usize) {
        self.limits.prompt_rows = rows.clamp(1, self.limits.rows - self.limits.sequences);
    }

    /// What it holds now.
    pub fn counts(&mut self) -> EngineCounts {
        let pool = self.decoder.pool();
        let (blocks, held, idle) = (pool.capacity(), pool.held(), pool.idle());
        let waiting_tokens = self.waiting.iter().map(|request| request.run).sum();
        let (running, waiting) = (self.running.len(), self.waiting.len() + self.silent.len());
        EngineCounts { running, waiting, waiting_tokens, blocks, held, idle, rows: self.rows, work: self.work }
    }

    /// Whether a request runs or waits.
    pub fn is_busy(&self) -> bool {
        !(self.running.is_empty() && self.waiting.is_empty() && self.silent.is_empty())
    }

    /// Ends the requests that need no run.
    fn answer_at_once(&mut self, tell: &mut dyn FnMut(RequestId, EngineEvent) -> bool) {
        for mut request in mem::take(&mut self.silent) {
            let id = request.id;
            let end = request.advance(&[], usize::MAX, &mut |event| tell(id, event)).expect_err("nothing follows");
            self.end(request, end, tell);
        }
    }

    fn end(&mut self, request: Request, end: End, tell: &mut dyn FnMut(RequestId, EngineEvent) -> bool) {
        let (id, steps) = (request.id, request.steps.clone());
        let writer = self.release(request);
        let end = match (end, steps.and_then(|steps| steps.too_large())) {
            (End::Failed(GenerateError::Decode(DecodeError::Logit { .. })), Some(error)) => End::Failed(error.into()),
            (end, _) => end,
        };
        let last = match end {
            End::Finished(reason) => EngineEvent::Done(writer.into_sample(reason)),
            End::Failed(error) => EngineEvent::Failed(error),
        };
        tell(id, last);
    }

    fn release(&mut self, request: Request) -> Writer {
        if let Some(table) = request.table {
            if let (Some(_), Some(first)) = (&request.steps, table.blocks().first()) {
                self.sequences.remove(*first);
            }
            self.decoder.pool().release(table);
        }
        request.writer
    }
}
