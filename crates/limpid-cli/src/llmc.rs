//! llm.c's two programs: `train --recipe llmc` is its train_gpt2, `check --against STATE` its test_gpt2. Both print
//! what those print, line for line, with limpid's own numbers; a test compares every line with what llm.c itself
//! printed.

use crate::options::{Interrupted, MachineOptions, Usage};
use crate::signals::interrupt;
use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::backend::Backend;
use limpid::checkpoint::llmc::{DebugState, Header, open, open_state};
use limpid::checkpoint::store::Dtype;
use limpid::checkpoint::{Checkpoint, Format, ModelData, save};
use limpid::config::{Config, Mask};
use limpid::engine::{DecodeRows, DecoderLimits};
use limpid::generate::start_ids;
use limpid::memory::{self, Placement};
use limpid::model::{Mode, Model, Param};
use limpid::names;
use limpid::ops::Batch;
use limpid::optimizer::Method;
use limpid::tokenizer::Tokenizer;
use limpid::train::evaluate::Score;
use limpid::train::{Batches, Recipe, Trainer, WindowOrder};
use limpid::{Machine, TrainingPlan};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Steps between the texts that a training writes.
const GENERATE_EVERY: u64 = 20;
/// Batches of an evaluation.
const VALIDATION_BATCHES: u64 = 5;
/// Rows of llm.c's token table are a multiple of this.
const VOCAB_ALIGN: usize = 128;

/// The sizes of a model, as llm.c prints them.
fn sizes(model: &Model) -> String {
    let Config { context_length, vocab_size, n_layer, n_head, d_model, .. } = model.config;
    let padded = vocab_size.next_multiple_of(VOCAB_ALIGN);
    let count = model.parameter_count() + (padded - vocab_size) * d_model * if model.config.tied_head { 1 } else { 2 };
    format!(
        "[GPT-2]\nmax_seq_len: {context_length}\nvocab_size: {vocab_size}\npadded_vocab_size: {padded}\nnum_layers: \
         {n_layer}\nnum_heads: {n_head}\nchannels: {d_model}\nnum_parameters: {count}\n"
    )
}

/// llm.c's draws: xorshift64* (Marsaglia 2003, Vigna 2014), from a fixed state on.
struct Coin(u64);

impl Coin {
    /// A number of at least 0 and less than 1.
    fn toss(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (high >> 8) as f64 / f64::from(1 << 24)
    }
}

/// The first token up to which the probabilities of the softmax add up to more than the coin.
fn pick(logits: &[f32], coin: f64) -> u32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| f64::from(logit - most).exp();
    let all = logits.iter().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let up_to = logits.iter().position(|logit| {
        sum += weight(logit) / all;
        coin < sum
    });
    up_to.unwrap_or(logits.len() - 1) as u32
}

/// Trains as train_gpt2 does; the model goes to `out`, if there is one.
pub fn train(plan: &TrainingPlan, out: Option<&Path>) -> Result<()> {
    let (recipe, corpus) = (&plan.recipe, &plan.corpus);
    if plan.config.mask != Mask::Causal {
        bail!(Usage(format!("--recipe llmc trains models that predict the next token; mask is {}", plan.config.mask)));
    }
    if let Some(out) = out.filter(|out| out.symlink_metadata().is_ok()) {
        bail!("{} exists already: choose another --out", out.display());
    }
    let batches = recipe.batches(&corpus.train, plan.objective)?;
    let in_order = Recipe { windows: WindowOrder::Sequential, accumulate: 1, ..*recipe };
    let validation = (corpus.validation.len() > recipe.context)
        .then(|| in_order.batches(&corpus.validation, plan.objective))
        .transpose()?;
    let [train, val] =
        [&corpus.train, &corpus.validation].map(|part| part.len() / (recipe.batch_size * recipe.context));
    let sizes = sizes(&plan.model);
    show::out(&format!("{sizes}train dataset num_batches: {train}\nval dataset num_batches: {val}\n"))?;
    let asked = interrupt()?;
    let mut trainer = plan.trainer().map_err(source::of_library)?;
    let start = start_ids(&corpus.tokenizer).unwrap_or_else(|| vec![corpus.train.id(0)]);
    let mut coin = Coin(1337);
    for step in 0..recipe.steps {
        if asked.load(Ordering::Relaxed) {
            bail!(Interrupted("stopped before the end"));
        }
        if let Some(validation) = validation.as_ref().filter(|_| due(plan.options.eval_every, step)) {
            show::out(&format!("val loss {:.6}\n", validate(&mut trainer, validation)?))?;
        }
        if step > 0 && due(GENERATE_EVERY, step) {
            let ids = generate(&trainer, &plan.machine, &start, recipe.context, &corpus.tokenizer, &mut coin)?;
            show::out(&format!("generating:\n---\n{}\n---\n", printable(&corpus.tokenizer, ids)?))?;
        }
        let began = Instant::now();
        let loss = trainer.step(&batches)?.loss;
        let loss = loss.map_or("none".into(), |loss| format!("{loss:.6}"));
        show::out(&format!("step {step}: train loss {loss} (took {:.6} ms)\n", milliseconds(began)))?;
    }
    let Some(out) = out else { return Ok(()) };
    let values = |param: &Param| {
        let own = trainer.model.param(&param.name).expect("they are one model");
        trainer.backend.read(own.region).expect("the backend has just trained")
    };
    let tokenizer = Some(&corpus.tokenizer);
    let chat_template = plan.chat_template.as_deref();
    let source = ModelData { tokenizer, chat_template, ..ModelData::new(&plan.config, &values) };
    save(out, Format::Limpid, &Dtype::F32, &source)?;
    show::say(format_args!("the model is in {}", out.display()));
    Ok(())
}

fn due(every: u64, step: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

fn milliseconds(since: Instant) -> f64 {
    1000.0 * since.elapsed().as_secs_f64()
}

/// The mean loss of the first batches.
fn validate(trainer: &mut Trainer, batches: &Batches) -> Result<f64> {
    let (mut batch, mut score) = (Batch::default(), Score::default());
    for n in 0..VALIDATION_BATCHES {
        batches.fill(n, 0, &mut batch);
        score.add(&losses(&trainer.model, &mut *trainer.backend, &batch)?, &batch.targets);
    }
    score.loss().context("the validation text has no token to predict")
}

/// The loss of every row of a batch.
fn losses(model: &Model, backend: &mut dyn Backend, batch: &Batch) -> Result<Vec<f32>> {
    let losses = model.losses().context("the model has no losses")?;
    backend.feed(batch)?;
    backend.forward(model.ops())?;
    Ok(backend.read(losses.for_batch(batch))?)
}

/// What the weights as they are write after `start`, up to so many tokens with it.
fn generate(
    trainer: &Trainer,
    machine: &Machine,
    start: &[u32],
    tokens: usize,
    tokenizer: &Tokenizer,
    coin: &mut Coin,
) -> Result<Vec<u32>> {
    let config = &trainer.model.config;
    let mut decoder = machine.decoder(config, DecoderLimits::of_sequences(config, 1, 1))?;
    decoder.take_parameters(&trainer.model, &*trainer.backend)?;
    let known = tokenizer.vocab_size().min(config.vocab_size);
    let room = config.context_length;
    let table = decoder.pool().reserve(None, room).context("the cache has room for one sequence")?;
    let mut written = start.to_vec();
    let mut past = 0;
    loop {
        // one at a time: a run has one row
        for token in &written[past..] {
            decoder.run([DecodeRows { table: &table, past, tokens: &[*token], outputs: 1 }])?;
            past += 1;
        }
        if written.len() >= tokens {
            return Ok(written.split_off(start.len()));
        }
        written.push(pick(&decoder.logits()[..known], coin.toss()));
    }
}

/// The text of tokens, without those that are one byte which is no character that can be seen.
fn printable(tokenizer: &Tokenizer, ids: Vec<u32>) -> Result<String> {
    let mut seen = vec![];
    for id in ids {
        match tokenizer.decode_bytes(&[id])?[..] {
            [byte] if !byte.is_ascii_graphic() && !byte.is_ascii_whitespace() => {}
            _ => seen.push(id),
        }
    }
    Ok(tokenizer.decode(&seen)?)
}

// ---- test_gpt2

/// Differences that llm.c accepts, of logits and losses and of gradients.
const FORWARD: f32 = 1e-2;
const GRADIENT: f32 = 2e-2;
const STEPS: u64 = 10;
/// PyTorch's losses of GPT-2 on the batch of its debug state.
#[allow(clippy::excessive_precision)] // as llm.c has them
const LOSSES: [f32; STEPS as usize] = [
    5.270_007_133_483_887,
    4.059_706_687_927_246,
    3.375_123_023_986_816_4,
    2.800_782_680_511_474_6,
    2.315_382_242_202_759,
    1.849_028_587_341_308_6,
    1.394_656_419_754_028_3,
    0.999_146_521_091_461_2,
    0.624_080_419_540_405_3,
    0.376_510_977_745_056_15,
];

/// Compares a model with the state that PyTorch left beside it, as test_gpt2 does. Whether all is as it should be.
pub fn test(model: &Path, state: &Path, machine: &MachineOptions, json: bool) -> Result<bool> {
    let (header, _) = open(model).context("--against compares a .bin of llm.c")?;
    let state = open_state(state, &header)?;
    let opened = Checkpoint::open(model)?;
    let DebugState { batch_size, context, .. } = state;
    let built = Model::new(&opened.config, Mode::Inspect { batch: batch_size, context })?;
    let mut text = format!("{}[State]\nbatch_size: {batch_size}\nseq_len: {context}\n", sizes(&built));
    let mut found = vec![];
    let ids = |ids: &[i32]| ids.iter().map(|id| *id as u32).collect::<Vec<_>>();
    let batch = Batch::of_sequences(ids(&state.inputs), ids(&state.targets), context);
    let mut passed = first_pass(&built, &opened, &batch, &header, &state, machine, (&mut text, &mut found))?;
    let steps = steps(&opened, &batch, machine)?;
    // the ten losses are of one model on one batch
    let known = (LOSSES[0] - state.loss).abs() < FORWARD && header.n_layer == 12 && header.d_model == 768;
    for (step, (loss, took)) in steps.iter().enumerate() {
        let expected = if known { Some(LOSSES[step]) } else { Some(state.loss).filter(|_| step == 0) };
        let ok = expected.map(|expected| (expected - loss).abs() < FORWARD);
        passed &= ok.unwrap_or(true);
        let ok = ok.map(|ok| format!(" OK = {}", u8::from(ok))).unwrap_or_default();
        text += &format!("step {step}: loss {loss:.6} (took {took:.6} ms){ok}\n");
    }
    text += &format!("overall okay: {}\n", u8::from(passed));
    if json {
        let losses: Vec<f32> = steps.iter().map(|(loss, _)| *loss).collect();
        show::json(&serde_json::json!({ "passed": passed, "tensors": found, "losses": losses }))?;
    } else {
        show::out(&text)?;
    }
    Ok(passed)
}

/// Logits, loss and every gradient of the weights as they are.
fn first_pass(
    model: &Model,
    opened: &Checkpoint,
    batch: &Batch,
    header: &Header,
    state: &DebugState,
    machine: &MachineOptions,
    (text, found): (&mut String, &mut Vec<serde_json::Value>),
) -> Result<bool> {
    let on = Placement::from(&machine.machine()).with_weights(opened, model);
    memory::fits(model, None, on)?;
    let mut backend = machine.machine().start(model)?;
    opened.load(model, &mut *backend)?;
    let rows = losses(model, &mut *backend, batch)?;
    let loss = mean(&rows);
    backend.backward(model.back())?;
    let theirs = |name: &str| -> Result<Vec<f32>> {
        let tensor = state.store.get(name).with_context(|| format!("the state has no {name}"))?;
        Ok(tensor.values()?.into_owned())
    };
    let mut passed = true;
    let mut add = |name: &str, off: f32, ok: bool| {
        passed &= ok;
        found.push(serde_json::json!({ "name": name, "ok": ok, "max_diff": off }));
    };
    let (own, want) = (backend.read(model.logits().context("the model has no head")?)?, theirs("logits")?);
    own.iter().zip(&want).take(10).for_each(|(own, want)| *text += &format!("{want:.6}, {own:.6}\n"));
    let off = apart(&own, &want);
    let near = |(own, want): (&f32, &f32)| (own - want).abs() < FORWARD; // a NaN is not
    let wrong = own.iter().zip(&want).position(|both| !near(both));
    if let Some(at) = wrong {
        let (row, token) = (at / header.vocab_size, at % header.vocab_size);
        *text += &format!("MISMATCH AT INDEX {row},{token}: {:.6} {:.6}\nNOT ", want[at], own[at]);
    }
    *text += &format!("OK (LOGITS), max_diff = {}\n", exponent(off));
    add("logits", off, wrong.is_none());
    let ok = (loss - state.loss).abs() < FORWARD;
    *text += &format!("LOSS {}: {loss:.6} {:.6}\n", if ok { "OK" } else { "MISMATCH" }, state.loss);
    add("loss", (loss - state.loss).abs(), ok);
    let kind = |(name, _): (String, _)| name.split('.').next().unwrap_or(&name).to_string();
    let mut kinds: Vec<String> = header.tensors().into_iter().map(kind).collect();
    kinds.dedup();
    for kind in kinds {
        let (mut own, mut want) = (vec![], vec![]);
        for param in model.params.iter().filter(|p| names::lookup(&p.name).is_some_and(|(e, _)| e.llmc == kind)) {
            let block = names::lookup(&param.name).and_then(|(_, block)| block);
            let read = backend.read(param.region.grad())?;
            let stored = theirs(&block.map_or(kind.clone(), |i| format!("{kind}.{i}")))?;
            want.extend_from_slice(&stored[..read.len()]); // rows of padding come last
            own.extend(read);
        }
        let off = apart(&own, &want);
        let ok = own.iter().zip(&want).all(|(own, want)| (own - want).abs() <= GRADIENT);
        *text += &format!("d{kind}\n");
        for (own, want) in own.iter().zip(&want).take(5) {
            let not = if (own - want).abs() <= GRADIENT { "" } else { "NOT " };
            *text += &format!("{not}OK {own:.6} {want:.6}\n");
        }
        *text += &format!("TENSOR {}OK, maxdiff = {}\n", if ok { "" } else { "NOT " }, exponent(off));
        add(&format!("d{kind}"), off, ok);
    }
    Ok(passed)
}

/// Losses of ten steps on one batch, each before its update, with what the step took.
fn steps(opened: &Checkpoint, batch: &Batch, machine: &MachineOptions) -> Result<Vec<(f32, f64)>> {
    let (sequences, context) = (batch.spans.len(), batch.spans[0].rows);
    let model = Model::new(&opened.config, Mode::Train { batch: sequences, context })?;
    let recipe = Recipe::preset("llmc-gpt2")?;
    memory::fits(&model, Some(&recipe), &machine.machine())?;
    let mut backend = machine.machine().start(&model)?;
    opened.load(&model, &mut *backend)?;
    // llm.c's weights decay all alike, gains and biases too
    let mut groups = model.update_groups(0.0, Method::AdamW);
    groups.iter_mut().for_each(|group| group.decay = 0.01);
    let losses = model.losses().context("the model has no losses")?;
    let mut steps = vec![];
    for step in 1..=STEPS {
        let began = Instant::now();
        backend.feed(batch)?;
        backend.forward(model.body())?;
        backend.backward(model.back())?;
        let rows = backend.read(losses.for_batch(batch))?;
        let took = milliseconds(began);
        backend.update(&groups, &recipe.rule(recipe.learning_rate, step), &mut [])?;
        steps.push((mean(&rows), took));
    }
    Ok(steps)
}

fn mean(losses: &[f32]) -> f32 {
    (losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len() as f64) as f32
}

fn apart(own: &[f32], want: &[f32]) -> f32 {
    own.iter().zip(want).map(|(own, want)| (own - want).abs()).fold(0.0, f32::max)
}

/// A number as C's `%e` writes it.
fn exponent(x: f32) -> String {
    let text = format!("{x:.6e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}
