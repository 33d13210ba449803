//! Questions about why: the sum behind a number, what wrote a logit, what each stage would have said, what a unit does.

use crate::asked::{AskedQuery, range, refusal};
use crate::stream::{piece, predicted};
use crate::{GlassError, Opened, Reply, Result, Subject};
use limpid_base::budget::Budget;
use limpid_core::config::Axis;
use limpid_trace::Trace;
use limpid_trace::attribution::{AttributionUnit, attribute};
use limpid_trace::explain::explain;
use limpid_trace::lens::{LENS_NOTE, LensCell, LensRow, lens, stages};
use limpid_trace::mlp::{MlpLook, MlpUnit, look_at_mlp};
use limpid_trace::path::{Hop, PathBar, PathQuestion, follow};
use serde_json::{Value, json};
use std::sync::Arc;

/// A number, or the word for one that JSON has not.
pub fn number(v: f64) -> Value {
    if v.is_finite() { v.into() } else { v.to_string().into() }
}

/// The sum behind a cell.
pub fn why(opened: &Opened, name: &str, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    let text = query.text("at").unwrap_or_default();
    let all = text.split(',').filter(|_| !text.is_empty());
    let at: Option<Vec<usize>> = all.map(|part| part.trim().parse().ok()).collect();
    let at = at.ok_or_else(|| refusal("at", "a whole number for each axis", text))?;
    Ok(json!(explain(&opened.trace(budget), name, &at)?).into())
}

/// A token as the page gets it.
pub fn token(subject: &Subject, id: u32) -> Value {
    json!([id, piece(subject, id)])
}

/// What the head would predict after each block.
pub fn lens_of(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    opened.needs_head()?;
    let n = opened.ids.len();
    let rows = match query.text("positions") {
        None => 0..n,
        Some(text) => range("lens", "pos", n, text)?,
    };
    let most = query.number("k", 5, 101)?;
    let rows: Vec<usize> = rows.collect();
    if rows.len() * (opened.subject.lm.config().n_layer + 1) > MOST_ROWS {
        let most = MOST_ROWS / (opened.subject.lm.config().n_layer + 1);
        return Err(GlassError::TooMany { name: "lens".into(), values: rows.len(), most });
    }
    let all = lens(&opened.trace(budget), &rows, most)?;
    let cell = |cell: &LensCell| {
        let mut value = predicted(&opened.subject, &cell.prediction);
        value["p"] = json!(cell.prediction.target.map(|target| target.candidate.p));
        value["kl"] = number(cell.kl);
        value
    };
    let row = |row: &LensRow| {
        let target = row.cells.first().and_then(|cell| cell.prediction.target).map(|target| target.candidate.id);
        json!({
            "position": row.row,
            "target": target.map(|id| token(&opened.subject, id)),
            "cells": row.cells.iter().map(cell).collect::<Vec<_>>(),
            "settled": row.settled,
        })
    };
    let positions: Vec<Value> = all.iter().map(row).collect();
    let stages = stages(opened.subject.lm.config().n_layer);
    Ok(json!({ "stages": stages, "positions": positions, "note": LENS_NOTE }).into())
}

/// Rows of logits of one answer.
const MOST_ROWS: usize = 4096;
/// Bars of one answer.
const BARS: usize = 64;
/// Parts of a step of a path.
const PARTS: usize = 24;
/// Units and tokens of each.
const UNITS: (usize, usize) = (20, 5);

/// Which word is asked about: the likeliest one at the last position rather than the next likeliest, unless it is said.
pub fn asked(opened: &Opened, trace: &Trace, query: &AskedQuery) -> Result<PathQuestion> {
    let (n, v) = (opened.ids.len(), opened.subject.lm.config().vocab_size);
    let row = query.number("position", n - 1, n)?;
    let best = trace.predictions(row..row + 1, 2)?;
    let best: Vec<u32> = best.iter().flat_map(|prediction| &prediction.top).map(|best| best.id).collect();
    if best.is_empty() {
        trace.check_finite(f64::NAN)?;
    }
    let usual = |place: usize| best.get(place).map_or(0, |id| *id as usize);
    let target = match query.text("word") {
        Some(word) if query.text("target").is_some() => {
            return Err(refusal("word", "alone, without `target`", word));
        }
        Some(word) => one_token(&opened.subject, "word", word)?,
        None => query.number("target", usual(0), v)? as u32,
    };
    let foil = match query.text("foil") {
        Some("none") => None,
        None if best.is_empty() => None,
        _ => Some(query.number("foil", usual(usize::from(usual(0) == target as usize)), v)? as u32),
    };
    Ok(PathQuestion { row, target, foil })
}

/// The token that has this text, or this number.
pub fn one_token(subject: &Subject, name: &'static str, word: &str) -> Result<u32> {
    let tokenizer = subject.lm.tokenizer().map_err(|error| GlassError::Prompt(error.into()))?;
    let named = limpid::generate::token_named(word, Some(tokenizer), subject.lm.config().vocab_size);
    named.map_err(|error| GlassError::Word { name, error })
}

/// One step of the path from a word to its reason.
pub fn path(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    opened.needs_head()?;
    let via = query.text("via").unwrap_or_default();
    let hops =
        via.split(',').filter(|hop| !hop.is_empty()).map(str::parse).collect::<std::result::Result<Vec<Hop>, _>>();
    let hops = hops.map_err(|_| refusal("via", "steps of a path such as h2.1,t5,m0,u17", via))?;
    let trace = opened.trace(budget);
    let asked = asked(opened, &trace, query)?;
    let step = follow(&trace, asked, &hops, PARTS)?;
    drop(trace);
    let word = |id: u32| format!("“{}”", piece(&opened.subject, id));
    let words = |all: &[(u32, f32)]| -> Value {
        all.iter().map(|(id, by)| json!([id, piece(&opened.subject, *id), number((*by).into())])).collect()
    };
    let bar = |bar: &PathBar| {
        json!({
            "name": bar.name,
            "part": bar.part,
            "value": number(bar.value),
            "token": bar.looked.map(|(id, _)| token(&opened.subject, id)),
            "weight": bar.looked.map(|(_, weight)| number(weight.into())),
            "words": words(&bar.words.raised),
            "hop": Hop::into(bar.part).map(|hop| hop.to_string()),
            "to": bar.at,
        })
    };
    Ok(json!({
        "position": asked.row,
        "target": token(&opened.subject, asked.target),
        "foil": asked.foil.map(|id| token(&opened.subject, id)),
        "via": via,
        "sentence": step.sentence(&word),
        "at": step.position,
        "token": token(&opened.subject, step.token),
        "value": number(step.value),
        "bars": step.bars.iter().map(bar).collect::<Vec<_>>(),
        "rest": { "count": step.rest.count, "value": number(step.rest.value), "weight": step.rest.weight },
        "remainder": number(step.remainder),
        "additive": step.additive,
        "weights": step.weights.iter().map(|weight| number((*weight).into())).collect::<Vec<_>>(),
        "raised": words(&step.words.raised),
        "lowered": words(&step.words.lowered),
        "to": step.at,
        "note": step.note,
    })
    .into())
}

/// What wrote a logit, or a difference of two.
pub fn attribution(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    opened.needs_head()?;
    let trace = opened.trace(budget);
    let PathQuestion { row, target, foil } = asked(opened, &trace, query)?;
    let unit = query.text("unit").unwrap_or("component");
    let unit = AttributionUnit::named(unit).ok_or_else(|| refusal("unit", "component, head or neuron", unit))?;
    let all = attribute(&trace, row, (target, foil), unit, BARS)?;
    drop(trace);
    Ok(json!({
        "position": row,
        "target": token(&opened.subject, all.target),
        "foil": all.foil.map(|id| token(&opened.subject, id)),
        "value": number(all.value),
        "bars": all.bars,
        "rest": number(all.rest),
        "remainder": number(all.remainder),
        "additive": all.additive,
        "note": all.note,
    })
    .into())
}

/// A feed-forward network at one position.
pub fn mlp(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    let (n, layers) = (opened.ids.len(), opened.subject.lm.config().n_layer);
    let (layer, row) = (query.number("layer", 0, layers)?, query.number("position", n - 1, n)?);
    let MlpLook { curve, edges, counts, all, units, dead, d_ff } =
        look_at_mlp(&opened.trace(budget), layer, row, UNITS)?;
    let unit = |unit: &MlpUnit| {
        let tokens: Vec<Value> =
            unit.tokens.iter().map(|(id, logit)| json!([id, piece(&opened.subject, *id), logit])).collect();
        json!({ "unit": unit.unit, "pre": unit.pre, "post": unit.post, "write_norm": unit.write_norm,
            "tokens": tokens })
    };
    Ok(json!({
        "layer": layer,
        "position": row,
        "activation": curve.function,
        "curve": { "x": curve.x, "y": curve.y },
        "edges": edges,
        "counts": counts,
        "all": all,
        "units": units.iter().map(unit).collect::<Vec<_>>(),
        "dead": dead,
        "d_ff": d_ff,
    })
    .into())
}
