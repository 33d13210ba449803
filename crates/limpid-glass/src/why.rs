//! Questions about why: the sum behind a number, what wrote a logit, what each stage would have said, what a unit does.

use crate::asked::{AskedQuery, refusal};
use crate::read::range;
use crate::stream::{piece, predicted};
use crate::{GlassError, Opened, Reply, Result};
use limpid_base::budget::Budget;
use limpid_trace::attribution::{AttributionUnit, attribute};
use limpid_trace::explain::explain;
use limpid_trace::lens::{LENS_NOTE, LensCell, LensRow, lens, stages};
use limpid_trace::mlp::{MlpLook, MlpUnit, look_at_mlp};
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
    Ok(json!(explain(&mut opened.trace(budget), name, &at)?).into())
}

fn token(opened: &Opened, id: u32) -> Value {
    json!([id, piece(&opened.subject, id)])
}

/// That the model predicts tokens.
pub fn needs_head(opened: &Opened) -> Result<()> {
    if opened.subject.lm.config().lm_head {
        Ok(())
    } else {
        Err(GlassError::NotThis("this model has no head, so it predicts no tokens"))
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
    Ok(json!({ "stages": stages, "positions": positions, "note": LENS_NOTE }).into())
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
        other => return Err(refusal("unit", "component, head or neuron", other)),
    };
    let all = attribute(&mut trace, row, (target as u32, foil.map(|id| id as u32)), unit, BARS)?;
    drop(trace);
    Ok(json!({
        "position": row,
        "target": token(opened, all.target),
        "foil": all.foil.map(|id| token(opened, id)),
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
        look_at_mlp(&mut opened.trace(budget), layer, row, UNITS)?;
    let unit = |unit: &MlpUnit| {
        let tokens: Vec<Value> =
            unit.tokens.iter().map(|(id, logit)| json!([id, piece(&opened.subject, *id), logit])).collect();
        json!({ "unit": unit.unit, "pre": unit.pre, "post": unit.post, "write_norm": unit.write_norm, "tokens": tokens })
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
