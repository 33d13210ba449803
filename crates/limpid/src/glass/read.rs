//! Questions about a trace that has run, or is running: tensors, parts of them, pictures, predictions.

use super::stream::{piece, predicted};
use super::{Glass, GlassError, MOST_VALUES, Opened, Query, Reply, Result, shown};
use crate::model::Model;
use crate::names::{self, Notation};
use crate::trace::layers::LayerTrace;
use crate::trace::sheet::Sheet;
use crate::trace::tiles::{Code, DEEPEST, Extent, Tile, TilePool};
use crate::trace::view::numbers;
use crate::trace::{Labelled, TraceError, letter};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::Range;

/// Tiles of one request.
const MOST_TILES: usize = 256;

/// Answers a question about one trace.
pub fn answer(glass: &Glass, opened: &Opened, question: &str, name: &str, query: &Query) -> Result<Reply> {
    let name = &super::decoded(name);
    let known: &[&str] = match (question, name.is_empty()) {
        ("tensors", false) => &["at", "other", "stats", "format"],
        ("explain", false) => &["at"],
        ("lens", true) => &["positions", "k"],
        ("attribution", true) => &["position", "target", "foil", "unit"],
        ("mlp", true) => &["layer", "position"],
        ("predictions", true) => &["position", "k"],
        _ => &[],
    };
    super::only(query.iter().map(|(name, _)| name), known)?;
    match (question, name.is_empty()) {
        ("tensors", true) => listing(opened),
        ("tensors", false) => values(glass, opened, name, query),
        ("explain", false) => super::why::why(opened, name, query),
        ("lens", true) => super::why::lens_of(opened, query),
        ("attribution", true) => super::why::attribution(opened, query),
        ("mlp", true) => super::why::mlp(opened, query),
        ("predictions", true) => predictions(opened, query),
        _ => Err(GlassError::Question(shown(question))),
    }
}

/// A parameter of a question.
pub fn given<'a>(query: &'a Query, name: &str) -> Option<&'a str> {
    query.iter().find_map(|(own, value)| (own == name).then_some(value.as_str()))
}

/// A parameter that is a whole number below `end`, or the `usual` one.
pub fn number(query: &Query, name: &'static str, usual: usize, end: usize) -> Result<usize> {
    let Some(found) = given(query, name) else { return Ok(usual) };
    found.parse().ok().filter(|n| *n < end).ok_or_else(|| GlassError::Parameter {
        name,
        expected: format!("a whole number below {end}"),
        found: shown(found),
    })
}

// ---- tensors

/// Every tensor and parameter with what is known of it before it is computed, and the list of ops.
fn listing(opened: &Opened) -> Result<Reply> {
    let mut trace = opened.trace();
    let model = trace.names().clone();
    let mut tensors = names::activations(&model);
    let derived = names::derived(&model).into_iter().map(|(name, _)| name);
    tensors.extend(derived.filter(|name| !tensors.contains(name)).collect::<Vec<_>>());
    let mut first = HashMap::new();
    let mut line = |name: &str| -> Result<Value> {
        let (axes, shape) = trace.shape(name)?;
        let letters: Vec<&str> = axes.iter().map(|axis| letter(axis)).collect();
        let place = model.tensor(name).map(|tensor| (tensor.region.space, tensor.region.at, tensor.cols.clone()));
        let same_as = place.and_then(|place| match first.get(&place) {
            Some(earlier) => Some(String::clone(earlier)),
            None => {
                first.insert(place, name.to_string());
                None
            }
        });
        Ok(json!({
            "name": name,
            "symbol": names::symbol(name, &model.config),
            "formula": names::formula(&model, name),
            "axes": axes,
            "letters": letters.join(" "),
            "shape": shape,
            "layer": names::lookup(name).and_then(|(_, block)| block),
            "about": names::describe(name),
            "same_as": same_as,
        }))
    };
    let all: Vec<Value> = tensors.iter().map(|name| line(name)).collect::<Result<_>>()?;
    let params: Vec<Value> = model.params.iter().map(|param| line(&param.name)).collect::<Result<_>>()?;
    Ok(Reply::Json(json!({ "tensors": all, "params": params, "ops": ops(&model) }).to_string()))
}

/// The list of ops.
fn ops(model: &Model) -> Vec<Value> {
    let op = |(i, op): (usize, &crate::ops::Op)| {
        let (name, region) = (model.output_name(i), op.output());
        let mut copy = *op;
        let others = copy.operands().map(|(_, region)| *region).filter(|other| *other != region);
        let others: Vec<String> = others.map(|region| model.name_of(region)).collect();
        let formula = names::formula_in(model, name, Notation::Limpid);
        json!({ "op": op.name(), "out": name, "shape": [region.rows, region.cols], "in": others, "formula": formula })
    };
    model.ops().iter().enumerate().map(op).collect()
}

/// Part of a tensor. Numbers have the fewest digits that name them.
#[derive(Serialize)]
struct Part<'a> {
    name: &'a str,
    axes: &'a [&'static str],
    shape: &'a [usize],
    index: Vec<[usize; 2]>,
    #[serde(serialize_with = "numbers")]
    values: &'a [f32],
    stats: Option<Value>,
}

/// What of an axis is asked for.
pub fn range(name: &str, axis: &str, size: usize, text: &str) -> Result<Range<usize>> {
    let outside = || GlassError::Outside { name: shown(name), axis: axis.into(), size, found: shown(text) };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| outside());
    let range = match text.trim() {
        "*" => 0..size,
        text => match text.split_once(':') {
            Some((from, to)) => {
                let to = if to.is_empty() { size } else { number(to)?.min(size) };
                (if from.is_empty() { 0 } else { number(from)? })..to
            }
            None => {
                let at = number(text)?;
                at..at.checked_add(1).ok_or_else(outside)?
            }
        },
    };
    if range.start > range.end || range.end > size || range.start >= size { Err(outside()) } else { Ok(range) }
}

/// The axes of a name, also of `cos(NAME)`.
fn shape(trace: &mut LayerTrace, name: &str) -> Result<(Vec<&'static str>, Vec<usize>)> {
    let Some(inner) = name.strip_prefix("cos(").and_then(|rest| rest.strip_suffix(')')) else {
        return Ok(trace.shape(name)?);
    };
    let (mut axes, mut sizes) = shape(trace, inner)?;
    let n = sizes.len();
    if n >= 2 {
        (axes[n - 1], sizes[n - 1]) = (axes[n - 2], sizes[n - 2]);
    }
    Ok((axes, sizes))
}

/// A matrix, or what it has more than that of another trace.
fn sheet(
    glass: &Glass,
    opened: &Opened,
    name: &str,
    index: &[usize],
    rows: Option<Range<usize>>,
    other: Option<&str>,
) -> Result<Sheet> {
    let own = opened.trace().sheet(name, index, rows.clone())?;
    let Some(other) = other else { return Ok(own) };
    let other = glass.find(other)?;
    let other = other.trace().sheet(name, index, rows)?;
    let shapes = [[own.rows, own.cols], [other.rows, other.cols]].map(|shape| shape.to_vec());
    own.minus(other).ok_or_else(|| {
        let [own, other] = shapes;
        GlassError::Differ { name: name.into(), own, other }
    })
}

fn values(glass: &Glass, opened: &Opened, name: &str, query: &Query) -> Result<Reply> {
    let (axes, sizes) = shape(&mut opened.trace(), name)?;
    let texts: Vec<&str> = given(query, "at").map_or(vec![], |at| at.split(',').collect());
    if !texts.is_empty() && texts.len() != axes.len() {
        return Err(GlassError::Parameter {
            name: "at",
            expected: format!("an entry for each of the axes {}", axes.join(", ")),
            found: shown(&texts.join(",")),
        });
    }
    let text = |i: usize| texts.get(i).copied().unwrap_or("*");
    let all: Vec<Range<usize>> = axes
        .iter()
        .zip(&sizes)
        .enumerate()
        .map(|(i, (axis, n))| range(name, axis, *n, text(i)))
        .collect::<Result<_>>()?;
    let count = all.iter().map(Range::len).fold(1usize, usize::saturating_mul);
    if count > MOST_VALUES {
        return Err(GlassError::TooMany { name: name.into(), values: count, most: MOST_VALUES });
    }
    let leading = all.len().saturating_sub(2);
    let (rows, cols) = match all.len() {
        0 => (0..1, 0..1),
        1 => (0..1, all[0].clone()),
        n => (all[n - 2].clone(), all[n - 1].clone()),
    };
    // every index of the leading axes, the last one fastest
    let mut indices = vec![vec![]];
    for range in &all[..leading] {
        let longer = |index: &Vec<usize>| -> Vec<Vec<usize>> {
            range.clone().map(|i| [index.as_slice(), &[i]].concat()).collect()
        };
        indices = indices.iter().flat_map(longer).collect();
    }
    let mut values = vec![];
    for index in indices {
        let sheet = sheet(glass, opened, name, &index, Some(rows.clone()), given(query, "other"))?;
        values.extend(sheet.band(rows.clone(), cols.clone()));
    }
    let stats = match given(query, "stats") {
        None | Some("0") => None,
        Some(_) => stats(opened, name)?,
    };
    let part = Labelled { name: name.into(), axes: axes.clone(), shape: all.iter().map(Range::len).collect(), values };
    match given(query, "format").unwrap_or("json") {
        "json" => {
            let index = all.iter().map(|range| [range.start, range.end]).collect();
            let part = Part { name, axes: &axes, shape: &sizes, index, values: &part.values, stats };
            Ok(Reply::Json(serde_json::to_string(&part).unwrap_or_default()))
        }
        format => super::file::file(format, &part, &all),
    }
}

/// The statistics of a whole tensor, where it is one that can be held.
fn stats(opened: &Opened, name: &str) -> Result<Option<Value>> {
    let mut trace = opened.trace();
    let (_, sizes) = shape(&mut trace, name)?;
    if name.starts_with("cos(") || sizes.iter().product::<usize>() > MOST_VALUES {
        return Ok(None);
    }
    let row = trace.row(name)?;
    Ok(Some(json!({
        "mean": row.mean, "sd": row.deviation, "min": row.min, "max": row.max,
        "nan": row.nan, "infinite": row.infinite, "masked": row.masked,
    })))
}

// ---- tiles

/// Sends the tiles that a body asks for, in its order.
pub fn tiles(glass: &Glass, opened: &Opened, body: &Value, tell: &mut dyn FnMut(Vec<u8>) -> bool) -> Result<()> {
    let wrong = |name, expected: &str, found: &Value| GlassError::Parameter {
        name,
        expected: expected.into(),
        found: shown(&found.to_string()),
    };
    super::only(super::fields(body), &["tiles"])?;
    let all = body["tiles"].as_array().filter(|all| all.len() <= MOST_TILES);
    let all = all.ok_or_else(|| wrong("tiles", &format!("a list of at most {MOST_TILES}"), &Value::Null))?;
    // matrices that several tiles are of
    let mut known: HashMap<String, (Sheet, Option<Extent>)> = HashMap::new();
    for (i, asked) in all.iter().enumerate() {
        super::only(super::fields(asked), &["name", "index", "tile", "level", "pool", "code", "other"])?;
        let text = |key| asked[key].as_str().unwrap_or_default();
        let whole = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let list = |key| asked[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let index: Option<Vec<usize>> = list("index").iter().map(whole).collect();
        let index = index.ok_or_else(|| wrong("index", "whole numbers", &asked["index"]))?;
        let at: Option<Vec<usize>> = list("tile").iter().map(whole).collect();
        let at: Option<[usize; 2]> = at.and_then(|at| at.try_into().ok());
        let at = at.ok_or_else(|| wrong("tile", "a row and a column", &asked["tile"]))?;
        let level = asked["level"].as_u64().unwrap_or(0);
        let level = u8::try_from(level).ok().filter(|level| *level <= DEEPEST);
        let level = level.ok_or_else(|| wrong("level", &format!("at most {DEEPEST}"), &asked["level"]))?;
        let code =
            Code::named(text("code")).ok_or_else(|| wrong("code", "f32, lin8, log8 or slog8", &asked["code"]))?;
        let pool = TilePool::named(text("pool")).ok_or_else(|| wrong("pool", "max, absmax or mean", &asked["pool"]))?;
        let name = text("name");
        let other = asked["other"].as_str();
        let mut tile = Tile { at, level, pool, code, ends: [0.0, 1.0] };
        // logits are computed for the rows of the tile alone, so their matrix is not kept, and their ends are those of these rows
        let step = crate::trace::tiles::SIDE << level;
        let head = matches!(name, "logits" | "probs");
        let rows = head.then(|| at[0].saturating_mul(step)..at[0].saturating_add(1).saturating_mul(step));
        let key = format!("{name}{index:?}{other:?}{rows:?}");
        if !known.contains_key(&key) {
            known.insert(key.clone(), (sheet(glass, opened, name, &index, rows, other)?, None));
        }
        let Some((sheet, extent)) = known.get_mut(&key) else { continue };
        let is_weights = name.ends_with(".hook_pattern") && other.is_none();
        if !is_weights && code != Code::F32 {
            let extent = extent.get_or_insert_with(|| Extent::of(sheet));
            tile.ends = extent.ends(code);
        }
        let frame = tile.frame(sheet, i as u32, i + 1 == all.len());
        let frame = frame.ok_or_else(|| GlassError::Outside {
            name: name.into(),
            axis: "its tiles".into(),
            size: sheet.rows.max(sheet.cols).div_ceil(step),
            found: format!("{at:?}"),
        })?;
        if !tell(frame) {
            break;
        }
    }
    Ok(())
}

// ---- predictions

fn predictions(opened: &Opened, query: &Query) -> Result<Reply> {
    if !opened.subject.lm.config().lm_head {
        return Err(GlassError::NotThis("this model has no head, so it predicts no tokens"));
    }
    let n = opened.ids.len();
    let (position, k) = (number(query, "position", n - 1, n)?, number(query, "k", 20, 1001)?);
    let all = opened.trace().predictions(position..position + 1, k)?;
    let Some(prediction) = all.first() else { return Err(TraceError::Batch { what: "no such row".into() }.into()) };
    let mut value = predicted(&opened.subject, prediction);
    let candidate =
        |best: &crate::trace::predict::NextToken| json!([best.id, piece(&opened.subject, best.id), best.p, best.logit]);
    value["top"] = prediction.top.iter().map(candidate).collect();
    Ok(Reply::Json(value.to_string()))
}
