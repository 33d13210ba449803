//! Sweeps ([`limpid_trace::sweep`]) told layer by layer, and gradients of a word's logit.

use crate::asked::{AskedFields, AskedQuery, refusal, wrong};
use crate::why::{asked, number, one_token, token};
use crate::{Glass, GlassError, Opened, Reply, Result, Subject, stream};
use limpid::Error;
use limpid_base::budget::Budget;
use limpid_core::config::{Axis, Mask};
use limpid_core::model::{Mode, Model};
use limpid_trace::Keep;
use limpid_trace::NamedTensor;
use limpid_trace::interventions::position_in;
use limpid_trace::sweep::{
    Sweep, SweepBy, SweepMetric, SweepPeak, SweepQuestion, SweepReceiver, SweepSite, TOKEN_LAYERS,
};
use serde_json::{Value, json};
use std::sync::Arc;

const FIELDS: &[&str] = &[
    "clean", "corrupt", "model", "site", "by", "metric", "answer", "foil", "position", "estimate", "confirm", "to",
    "to_head",
];

/// The ids of a text, or of a list of them.
pub fn ids(subject: &Subject, body: &AskedFields, name: &'static str) -> Result<Vec<u32>> {
    let given = body.get(name).unwrap_or(&Value::Null);
    let body = match given {
        Value::String(_) => json!({ "prompt": given }),
        Value::Array(_) => json!({ "tokens": given }),
        other => return Err(wrong(name, "a text or a list of token ids", other)),
    };
    Ok(stream::ids(subject, &AskedFields::read(&body, &["prompt", "tokens"])?)?.0)
}

/// A token by its text or its id, if one is given.
pub fn one(subject: &Subject, body: &AskedFields, name: &'static str) -> Result<Option<u32>> {
    let end = subject.lm.config().vocab_size as u64;
    match body.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => one_token(subject, name, text).map(Some),
        Some(given) => match given.as_u64().filter(|id| *id < end) {
            Some(id) => Ok(Some(id as u32)),
            None => Err(wrong(name, &format!("a text, or an id below {end}"), given)),
        },
    }
}

/// The position that is measured: the last, or of a model of masked tokens the first mask.
pub fn position(subject: &Subject, body: &AskedFields, ids: &[u32]) -> Result<i64> {
    if let Some(given) = body.get("position") {
        let expected = format!("a position from {} to {}", -(ids.len() as i64), ids.len() - 1);
        let found = given.as_i64().filter(|at| position_in(*at, ids.len()).is_some_and(|at| at < ids.len()));
        return found.ok_or_else(|| wrong("position", &expected, given));
    }
    let mask = subject.lm.tokenizer().ok().and_then(|tokenizer| tokenizer.special("[MASK]"));
    let blank = ids.iter().position(|id| mask == Some(*id) && subject.lm.config().mask != Mask::Causal);
    Ok(blank.map_or(-1, |at| at as i64))
}

/// A word of a few.
fn choice<'a>(body: &AskedFields<'a>, name: &'static str, usual: &'static str, all: &[&str]) -> Result<&'a str> {
    let word = body.text(name)?.unwrap_or(usual);
    if all.contains(&word) { Ok(word) } else { Err(refusal(name, &format!("one of {}", all.join(", ")), word)) }
}

/// What is asked, and the metric as far as it is said.
fn question(subject: &Subject, body: &AskedFields) -> Result<(SweepQuestion, Option<SweepMetric>)> {
    let [clean, corrupt] = [ids(subject, body, "clean")?, ids(subject, body, "corrupt")?];
    let site = choice(body, "site", "resid_pre", &SweepSite::names())?;
    let site: SweepSite = site.parse().map_err(|error| GlassError::from(Error::from(error)))?;
    let by = choice(body, "by", "head", &["head", "position", "pair"])?;
    let by = SweepBy::named(by).unwrap_or(SweepBy::Head);
    let (answer, foil) = (one(subject, body, "answer")?, one(subject, body, "foil")?);
    let metric = match (choice(body, "metric", "answer", &["answer", "loss", "kl"])?, answer, foil) {
        ("answer", Some(answer), foil) => Some(SweepMetric::of(answer, foil)),
        ("answer", None, None) => None,
        ("loss", None, None) => Some(SweepMetric::Loss),
        ("kl", None, None) => Some(SweepMetric::Divergence),
        ("answer", ..) => return Err(wrong("answer", "given where `foil` is", &Value::Null)),
        (metric, ..) => return Err(refusal("metric", "`answer` where `answer` or `foil` is given", metric)),
    };
    let heads = body.numbers("to_head", subject.lm.config().n_head)?;
    let heads = (!heads.is_empty()).then_some(heads);
    let to = match (body.text("to")?, heads) {
        (None, Some(_)) => return Err(wrong("to", "given where `to_head` is", &Value::Null)),
        (Some(_), _) if body.flag("estimate")? => {
            return Err(refusal("estimate", "false where `to` is given: an estimate adds up all paths", "true"));
        }
        (to, heads) => to.map(|tensor| SweepReceiver { tensor: tensor.into(), heads }),
    };
    let position = position(subject, body, &corrupt)?;
    let confirmed = body.flag("confirm")?;
    // what does not depend on the metric is found out with any
    let stand_in = metric.unwrap_or(SweepMetric::Divergence);
    let question = SweepQuestion { clean, corrupt, site, by, metric: stand_in, position, to, confirmed };
    question.check(subject.lm.config())?;
    let cost = question.cost(subject.lm.config());
    // an estimate does not run them
    if cost.token_layers > TOKEN_LAYERS && !confirmed && !body.flag("estimate")? {
        return Err(GlassError::LargeSweep(cost));
    }
    Ok((question, metric))
}

/// The likeliest token of the clean run against that of the corrupt one, which must be another.
fn usual_metric(subject: &Subject, question: &SweepQuestion) -> Result<SweepMetric> {
    let row = question.row()?;
    let best = |ids: &[u32]| -> Result<Option<u32>> {
        let all = subject.lm.trace_ids(ids, Keep::Blocks { seen: 0 })?.predictions(row..row + 1, 1)?;
        Ok(all.first().and_then(|one| one.top.first()).map(|best| best.id))
    };
    match (best(&question.clean)?, best(&question.corrupt)?) {
        (Some(answer), Some(foil)) if answer != foil => Ok(SweepMetric::of(answer, Some(foil))),
        (both, _) => {
            let word = both.map_or(String::new(), |id| format!("“{}”", stream::piece(subject, id)));
            let expected = format!("the token to measure, because both texts expect the same next one, {word}");
            Err(wrong("answer", &expected, &Value::Null))
        }
    }
}

impl Glass {
    /// Runs a sweep and tells its rows as they are computed, an event each, until `tell` says `false`; what it costs
    /// comes first. `body` is `{"clean": TEXT, "corrupt": TEXT}` with the fields of docs/inside.md. For memory it waits
    /// as long as `wait` says; `work` is spent on the runs.
    ///
    /// # Errors
    /// What [`GlassError`] says. Events that were told stay true.
    pub fn sweep(
        &self,
        subjects: &[Subject],
        body: &Value,
        (wait, work): (&Budget, &Arc<Budget>),
        tell: &mut dyn FnMut(&str) -> bool,
    ) -> Result<()> {
        let body = AskedFields::read(body, FIELDS)?;
        let subject = body.subject(subjects)?;
        let (mut question, metric) = question(subject, &body)?;
        let (lm, estimate) = (&subject.lm, body.flag("estimate")?);
        let _held = self.reserve(lm.sweep_bytes(&question, estimate)?, wait)?;
        let words = |ids: &[u32]| ids.iter().map(|id| stream::piece(subject, *id)).collect::<Vec<_>>();
        let ((axes, shape), cost) = (question.grid(lm.config()), question.cost(lm.config()));
        let named = Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 }).map_err(Error::from)?;
        question.check_sites(&named)?;
        let tensors: Vec<String> = (0..lm.config().n_layer).map(|layer| question.tensor(&named, layer)).collect();
        let start = json!({
            "event": "start", "clean": words(&question.clean), "corrupt": words(&question.corrupt),
            "site": question.site.name(),
            "tensors": tensors, "axes": axes, "shape": shape, "cells": cost.cells, "token_layers": cost.token_layers,
            "position": question.row()?,
            "estimate": estimate, "to": question.to.as_ref().map(|to| &to.tensor),
        });
        if !tell(&start.to_string()) {
            return Ok(());
        }
        question.metric = match metric {
            Some(metric) => metric,
            None => usual_metric(subject, &question)?,
        };
        let (answer, foil) = match question.metric {
            SweepMetric::LogitDifference { answer, foil } => (Some(answer), Some(foil)),
            SweepMetric::LogProbability { answer } => (Some(answer), None),
            _ => (None, None),
        };
        let [answer, foil] = [answer, foil].map(|id| id.map(|id| token(subject, id)));
        let measured = json!({ "event": "metric", "metric": question.metric.name(), "answer": answer, "foil": foil });
        if !tell(&measured.to_string()) {
            return Ok(());
        }
        let numbers = |all: &[f64]| all.iter().map(|v| number(*v)).collect::<Vec<_>>();
        let mut row = |layer: usize, metric: &[f64], recovered: &[f64]| {
            let (metric, recovered) = (numbers(metric), numbers(recovered));
            tell(&json!({ "event": "row", "layer": layer, "metric": metric, "recovered": recovered }).to_string())
        };
        let done = if estimate {
            lm.sweep_estimate(&question).inspect(|sweep| {
                let wide = sweep.metric.values.len() / lm.config().n_layer;
                let wider = |all: &NamedTensor, l: usize| -> Vec<f64> {
                    all.values[l * wide..(l + 1) * wide].iter().map(|v| f64::from(*v)).collect()
                };
                let _ = (0..lm.config().n_layer).all(|l| row(l, &wider(&sweep.metric, l), &wider(&sweep.recovered, l)));
            })
        } else {
            lm.sweep_within(&question, work, &mut |one| row(one.layer, &one.metric, &one.recovered))
        };
        match done {
            Ok(sweep) => tell(&ended(&sweep, &words(&question.corrupt), (&question, &body)).to_string()),
            Err(Error::Stopped) => false, // whoever asked has gone
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }
}

/// The last event: what restores the most.
fn ended(sweep: &Sweep, words: &[String], (question, body): (&SweepQuestion, &AskedFields)) -> Value {
    let peak = |peak: &SweepPeak| {
        let texts = ["clean", "corrupt"].map(|name| body.get(name).and_then(Value::as_str));
        let steps = question.in_words(peak.intervention.clone(), texts);
        json!({
            "index": peak.index, "recovered": number(peak.recovered), "sentence": sweep.sentence(peak, words),
            "interventions": steps,
        })
    };
    let peaks: Vec<Value> = sweep.peaks.iter().map(peak).collect();
    json!({
        "event": "done", "clean": number(sweep.clean), "corrupt": number(sweep.corrupt), "peaks": peaks,
        "note": sweep.nothing_restored(),
    })
}

/// How a word's logit, or its difference from another's, depends on the residual stream at each token and on each head:
/// norms of gradients, and of heads gradient times activation.
pub fn gradients(glass: &Glass, opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    opened.needs_head()?;
    let lm = &opened.subject.lm;
    let asked = asked(opened, &opened.trace(budget), query)?;
    let metric = SweepMetric::of(asked.target, asked.foil);
    let bytes_of = |keep| lm.trace_bytes(opened.ids.len(), keep);
    let bytes = bytes_of(Keep::All)?.saturating_add(bytes_of(Keep::Blocks { seen: 0 })?);
    let held = glass.reserve(bytes, budget)?;
    let slopes = lm.metric_slopes(&opened.ids, (metric, asked.row as i64))?;
    drop(held);
    let numbers = |all: &[Vec<f64>]| -> Vec<Vec<Value>> {
        all.iter().map(|row| row.iter().map(|v| number(*v)).collect()).collect()
    };
    Ok(json!({
        "position": asked.row,
        "target": token(&opened.subject, asked.target),
        "foil": asked.foil.map(|id| token(&opened.subject, id)),
        "metric": metric.name(),
        "stream": numbers(&slopes.stream),
        "heads": numbers(&slopes.heads),
        "attribution": numbers(&slopes.attribution),
    })
    .into())
}
