//! What is told of a run while it runs: a block at a time, then the predictions.

use crate::asked::{AskedFields, wrong};
use crate::{GlassError, Opened, Result, Subject, THUMBNAIL};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use limpid_core::config::Mask;
use limpid_core::model::{Component, Module};
use limpid_trace::OUTPUTS;
use limpid_trace::heads::{HeadLook, NAMED_FROM, look};
use limpid_trace::predict::Prediction;
use limpid_trace::sheet::AttentionHead;
use limpid_trace::tiles::{Code, MASKED, NOT_FINITE};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::thread;

/// Candidates of each prediction.
const MOST: usize = 5;

/// How far a run is, and what was told of it.
#[derive(Default)]
pub struct TraceProgress {
    events: Vec<Arc<str>>,
    next: Step,
    nats: f64,
    counted: usize,
}

#[derive(Clone, Copy, Default)]
enum Step {
    #[default]
    Start,
    Block(usize),
    Predict(usize),
    End,
    Done,
}

impl TraceProgress {
    /// What was told.
    pub fn events(&self) -> &[Arc<str>] {
        &self.events
    }

    /// Does the next step; `false` after the last.
    pub fn advance(&mut self, opened: &Opened) -> Result<bool> {
        let config = opened.subject.lm.config();
        let (event, next) = match self.next {
            Step::Start => (start(opened), Step::Block(0)),
            Step::Block(block) => {
                let last = if config.lm_head { Step::Predict(0) } else { Step::End };
                (layer(opened)?, if block + 1 < config.n_layer { Step::Block(block + 1) } else { last })
            }
            Step::Predict(from) => {
                let to = (from + OUTPUTS).min(opened.ids.len());
                let all = opened.trace(&Arc::default()).predictions(from..to, MOST)?;
                for target in all.iter().filter_map(|prediction| prediction.target) {
                    self.nats += f64::from(target.loss);
                    self.counted += 1;
                }
                let rows: Vec<Value> = all.iter().map(|prediction| predicted(&opened.subject, prediction)).collect();
                let event = json!({ "event": "predictions", "from": from, "rows": rows });
                (event, if to < opened.ids.len() { Step::Predict(to) } else { Step::End })
            }
            Step::End => {
                let loss = (self.counted > 0).then(|| self.nats / self.counted as f64);
                (json!({ "event": "done", "loss": loss, "counted": self.counted }), Step::Done)
            }
            Step::Done => return Ok(false),
        };
        self.events.push(event.to_string().into());
        self.next = next;
        Ok(true)
    }
}

/// The ids of a prompt, and how many before them were left out.
pub fn ids(subject: &Subject, body: &AskedFields) -> Result<(Vec<u32>, usize)> {
    let (lm, config) = (&subject.lm, subject.lm.config());
    let (prompt, last) = (body.text("prompt")?, body.flag("last")?);
    let tokens = body.get("tokens").map(|_| body.list("tokens", usize::MAX)).transpose()?;
    let mut ids = match (prompt, tokens) {
        (Some(text), None) => lm.encode(text).map_err(|error| GlassError::Prompt(error.into()))?,
        (None, Some(tokens)) => {
            let one = |token: &Value| match token.as_u64() {
                Some(id) if id < config.vocab_size as u64 => Ok(id as u32),
                Some(id) => Err(GlassError::Token { id, vocab_size: config.vocab_size }),
                None => Err(wrong("tokens", "a list of token ids", token)),
            };
            tokens.iter().map(one).collect::<Result<Vec<u32>>>()?
        }
        _ => return Err(wrong("prompt", "given, or else `tokens`, but not both", &Value::Null)),
    };
    let mut dropped = 0;
    if ids.len() > config.context_length {
        if !last {
            return Err(GlassError::TooLong { tokens: ids.len(), context: config.context_length });
        }
        dropped = ids.len() - config.context_length;
        ids.drain(..dropped);
    }
    if ids.is_empty() { Err(GlassError::Empty) } else { Ok((ids, dropped)) }
}

/// What a token looks like.
pub fn piece(subject: &Subject, id: u32) -> String {
    let piece = subject.lm.tokenizer().ok().and_then(|tokenizer| tokenizer.piece(id).ok());
    piece.unwrap_or_else(|| format!("#{id}"))
}

fn start(opened: &Opened) -> Value {
    let (subject, config) = (&opened.subject, opened.subject.lm.config());
    let token = |id: &u32| {
        let bytes = subject.lm.tokenizer().ok().and_then(|tokenizer| tokenizer.piece_bytes(*id)).unwrap_or_default();
        json!({ "id": id, "text": piece(subject, *id), "bytes": BASE64_STANDARD.encode(bytes) })
    };
    let given = subject.lm.interventions().last();
    json!({
        "event": "start",
        "interventions": given,
        "id": opened.id,
        "model": subject.name,
        "fingerprint": subject.fingerprint,
        "tokens": opened.ids.iter().map(token).collect::<Vec<_>>(),
        "dropped": opened.dropped,
        "side": opened.ids.len().min(THUMBNAIL),
        "named_from": NAMED_FROM,
        "layers": config.n_layer,
        "heads": config.n_head,
        "causal": config.mask == Mask::Causal,
    })
}

/// Runs the next block and looks at its heads.
fn layer(opened: &Opened) -> Result<Value> {
    let config = opened.subject.lm.config();
    // what is told of a run is for all who ask, so no one's budget ends it
    let trace = opened.trace(&Arc::default());
    let block = trace.step()?.unwrap_or(config.n_layer - 1);
    let mut norms = Map::new();
    for part in ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"] {
        let name = Module::block(block).named(&format!("hook_{part}"));
        // parallel blocks have no stream between their parts
        if part == "resid_mid" && trace.model().tensor(&name).is_none() {
            continue;
        }
        let tensor = trace.get(&name)?;
        let norm = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32;
        let all: Vec<f32> = tensor.values.chunks_exact(config.d_model).map(norm).collect();
        norms.insert(part.into(), all.into());
    }
    // a path begins with it
    trace.shared(&Module::block(block).part(Component::Attention).named("hook_z"))?;
    let heads: std::result::Result<Vec<AttentionHead>, _> =
        (0..config.n_head).map(|head| trace.head(block, 0, head)).collect();
    drop(trace);
    let looks = looks(heads?, &opened.ids, opened.subject.lm.machine().threads);
    let cells = looks.iter().flat_map(|look| &look.thumbnail);
    let byte = |v: &f32| match *v {
        f32::NEG_INFINITY => MASKED,
        v if v.is_finite() => Code::Log8.byte(v, [0.0, 1.0]),
        _ => NOT_FINITE,
    };
    let thumbnails: Vec<u8> = cells.map(byte).collect();
    Ok(json!({
        "event": "layer",
        "layer": block,
        "norms": norms,
        "heads": looks.iter().map(|look| look.scores).collect::<Vec<_>>(),
        "thumbnails": BASE64_STANDARD.encode(thumbnails),
    }))
}

/// Looks at heads, which threads share.
fn looks(heads: Vec<AttentionHead>, ids: &[u32], threads: usize) -> Vec<HeadLook> {
    let each = heads.len().div_ceil(threads.max(1));
    let look_at = |heads: &[AttentionHead]| -> Vec<HeadLook> {
        heads.iter().map(|head| look(head.clone(), ids, THUMBNAIL)).collect()
    };
    thread::scope(|scope| {
        let spawn = |part| (part, thread::Builder::new().spawn_scoped(scope, move || look_at(part)).ok());
        let others: Vec<_> = heads.chunks(each).skip(1).map(spawn).collect();
        let mut all = heads.chunks(each).next().map_or(vec![], look_at);
        for (part, other) in others {
            // where the system refused a thread
            all.extend(other.and_then(|other| other.join().ok()).unwrap_or_else(|| look_at(part)));
        }
        all
    })
}

/// A prediction as the page gets it.
pub fn predicted(subject: &Subject, prediction: &Prediction) -> Value {
    let top: Vec<Value> = prediction.top.iter().map(|best| json!([best.id, piece(subject, best.id), best.p])).collect();
    let target = prediction.target;
    json!({
        "top": top,
        "entropy": prediction.entropy,
        "lse": prediction.lse,
        "target": target.map(|target| target.candidate.id),
        "logprob": target.map(|target| -target.loss),
        "rank": target.map(|target| target.rank),
        "logit": target.map(|target| target.candidate.logit),
    })
}
