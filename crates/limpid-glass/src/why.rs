//! Questions about why: the sum behind a number, what wrote a logit, what each stage would have said, what a unit does.

use crate::asked::{AskedQuery, shown};
use crate::read::range;
use crate::stream::{piece, predicted};
use crate::{GlassError, Opened, Reply, Result};
use limpid_base::budget::Budget;
use limpid_trace::attribution::{AttributionBar, AttributionUnit, attribute};
use limpid_trace::explain::{Cell, Explanation, Operand, SumPart, SumStep, SumTerm, explain};
use limpid_trace::lens::{LENS_NOTE, LensCell, LensRow, lens, stages};
use limpid_trace::mlp::{MlpLook, MlpUnit, look_at_mlp};
use serde_json::{Value, json};
use std::sync::Arc;

/// A number, or the word for one that JSON has not.
pub fn number(v: f64) -> Value {
    if v.is_finite() { v.into() } else { v.to_string().into() }
}

fn cell(cell: &Cell) -> Value {
    json!({ "name": cell.name, "at": cell.at })
}

fn operand(operand: &Operand) -> Value {
    json!({ "value": number(operand.value), "to": operand.at.as_ref().map(cell) })
}

fn term(term: &SumTerm) -> Value {
    let right = term.right.as_ref().map(operand);
    json!({ "label": term.label, "left": operand(&term.left), "right": right, "value": number(term.value) })
}

fn part(part: &SumPart) -> Value {
    let terms: Vec<Value> = part.terms.iter().map(term).collect();
    json!({ "label": part.label, "value": number(part.value), "of": part.of, "terms": terms })
}

fn step(step: &SumStep) -> Value {
    json!({
        "operation": step.operation.name(),
        "label": step.label,
        "by": step.by.as_ref().map(operand),
        "result": number(step.result),
        "to": step.at.as_ref().map(cell),
    })
}

/// The sum behind a cell.
pub fn why(opened: &Opened, name: &str, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    let text = query.text("at").unwrap_or_default();
    let all = text.split(',').filter(|_| !text.is_empty());
    let at: Option<Vec<usize>> = all.map(|part| part.trim().parse().ok()).collect();
    let at = at.ok_or_else(|| GlassError::Parameter {
        name: "at",
        expected: "a whole number for each axis".into(),
        found: shown(text),
    })?;
    let Explanation { cell, value, op, formula, words, parts, shown, of, remainder, steps, exact, rounding, curve } =
        explain(&mut opened.trace(budget), name, &at)?;
    let curve = curve.map(|curve| json!({ "function": curve.function, "x": curve.x, "y": curve.y }));
    Ok(Reply::Json(
        json!({
            "name": cell.name,
            "at": cell.at,
            "value": number(value.into()),
            "op": op,
            "formula": formula,
            "words": words,
            "parts": parts.iter().map(part).collect::<Vec<_>>(),
            "shown": shown,
            "of": of,
            "remainder": number(remainder),
            "steps": steps.iter().map(step).collect::<Vec<_>>(),
            "exact": number(exact),
            "rounding": number(rounding),
            "curve": curve,
        })
        .to_string(),
    ))
}

fn token(opened: &Opened, id: u32) -> Value {
    json!([id, piece(&opened.subject, id)])
}

fn needs_head(opened: &Opened) -> Result<()> {
    match opened.subject.lm.config().lm_head {
        true => Ok(()),
        false => Err(GlassError::NotThis("this model has no head, so it predicts no tokens")),
    }
}

/// What the head would predict after each block.
pub fn lens_of(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    needs_head(opened)?;
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
    let all = lens(&mut opened.trace(budget), &rows, most)?;
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
            "target": target.map(|id| token(opened, id)),
            "cells": row.cells.iter().map(cell).collect::<Vec<_>>(),
            "settled": row.settled,
        })
    };
    let positions: Vec<Value> = all.iter().map(row).collect();
    let stages = stages(opened.subject.lm.config().n_layer);
    Ok(Reply::Json(json!({ "stages": stages, "positions": positions, "note": LENS_NOTE }).to_string()))
}

/// Rows of logits of one answer.
const MOST_ROWS: usize = 4096;
/// Bars of one answer.
const BARS: usize = 64;
/// Units and tokens of each.
const UNITS: (usize, usize) = (20, 5);

/// What wrote a logit, or a difference of two.
pub fn attribution(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    needs_head(opened)?;
    let (n, v) = (opened.ids.len(), opened.subject.lm.config().vocab_size);
    let row = query.number("position", n - 1, n)?;
    let mut trace = opened.trace(budget);
    let best = trace.predictions(row..row + 1, 2)?;
    let best: Vec<u32> = best.iter().flat_map(|prediction| &prediction.top).map(|best| best.id).collect();
    let usual = |place: usize| best.get(place).map_or(0, |id| *id as usize);
    let target = query.number("target", usual(0), v)?;
    let foil = match query.text("foil") {
        Some("none") => None,
        _ => Some(query.number("foil", if usual(0) == target { usual(1) } else { usual(0) }, v)?),
    };
    let unit = match query.text("unit").unwrap_or("component") {
        "component" => AttributionUnit::Component,
        "head" => AttributionUnit::Head,
        "neuron" => AttributionUnit::Neuron,
        other => {
            let expected = "component, head or neuron".into();
            return Err(GlassError::Parameter { name: "unit", expected, found: shown(other) });
        }
    };
    let all = attribute(&mut trace, row, (target as u32, foil.map(|id| id as u32)), unit, BARS)?;
    drop(trace);
    let bar =
        |bar: &AttributionBar| json!({ "name": bar.name, "value": number(bar.value), "to": bar.at.as_ref().map(cell) });
    Ok(Reply::Json(
        json!({
            "position": row,
            "target": token(opened, all.target),
            "foil": all.foil.map(|id| token(opened, id)),
            "value": number(all.value),
            "bars": all.bars.iter().map(bar).collect::<Vec<_>>(),
            "rest": number(all.rest),
            "remainder": number(all.remainder),
            "additive": all.additive,
            "note": all.note,
        })
        .to_string(),
    ))
}

/// A feed-forward network at one position.
pub fn mlp(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    let (n, layers) = (opened.ids.len(), opened.subject.lm.config().n_layer);
    let (layer, row) = (query.number("layer", 0, layers)?, query.number("position", n - 1, n)?);
    let MlpLook { curve, edges, counts, all, units, dead, d_ff } =
        look_at_mlp(&mut opened.trace(budget), layer, row, UNITS)?;
    let unit = |unit: &MlpUnit| {
        let tokens: Vec<Value> =
            unit.tokens.iter().map(|(id, logit)| json!([id, piece(&opened.subject, *id), logit])).collect();
        json!({ "unit": unit.unit, "pre": unit.pre, "post": unit.post, "write_norm": unit.write_norm, "tokens": tokens })
    };
    Ok(Reply::Json(
        json!({
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
        .to_string(),
    ))
}
