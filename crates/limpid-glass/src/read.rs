//! Questions about a trace that has run, or is running: tensors, parts of them, pictures, predictions.

use crate::asked::{AskedFields, AskedQuery, range, refusal, shown, wrong};
use crate::stream::{piece, predicted};
use crate::{Glass, GlassError, MOST_VALUES, Opened, Query, Reply, Result};
use limpid_base::budget::{Budget, Spent};
use limpid_core::config::Axis;
use limpid_core::model::Model;
use limpid_trace::json::numbers;
use limpid_trace::names::{self, Notation};
use limpid_trace::predict::NextToken;
use limpid_trace::sheet::Sheet;
use limpid_trace::tiles::{Code, DEEPEST, Extent, Tile, TilePool};
use limpid_trace::{NamedTensor, TraceError, index_of};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Tiles of one request.
const MOST_TILES: usize = 256;

/// Rows of a matrix that are computed before the next look at the budget.
const BAND: usize = 64;
/// Bytes of a number in an answer, as a number and as text.
const WRITTEN: u64 = 24;

/// Answers a question about one trace, and a name if it has one.
pub fn answer(
    glass: &Glass,
    opened: &Opened,
    (question, name): (&str, &str),
    query: &Query,
    budget: &Arc<Budget>,
) -> Result<Reply> {
    let name = &super::decoded(name);
    let known: &[&str] = match (question, name.is_empty()) {
        ("tensors", false) => &["at", "other", "stats", "format"],
        ("explain", false) => &["at"],
        ("lens", true) => &["positions", "k"],
        ("attribution", true) => &["position", "target", "foil", "unit"],
        ("path", true) => &["position", "target", "word", "foil", "via"],
        ("gradients", true) => &["position", "target", "word", "foil"],
        ("mlp", true) => &["layer", "position"],
        ("predictions", true) => &["position", "k"],
        _ => &[],
    };
    let query = &AskedQuery::read(query, known)?;
    match (question, name.is_empty()) {
        ("tensors", true) => listing(opened, budget),
        ("tensors", false) => values(glass, opened, name, query, budget),
        ("explain", false) => super::why::why(opened, name, query, budget),
        ("lens", true) => super::why::lens_of(opened, query, budget),
        ("attribution", true) => super::why::attribution(opened, query, budget),
        ("path", true) => super::why::path(opened, query, budget),
        ("gradients", true) => super::sweep::gradients(glass, opened, query, budget),
        ("mlp", true) => super::why::mlp(opened, query, budget),
        ("predictions", true) => predictions(opened, query, budget),
        _ => Err(GlassError::Question(shown(question))),
    }
}

/// What ran out while `name` was computed.
fn spent(name: &str) -> impl Fn(Spent) -> GlassError {
    let what = format!("`{}`", shown(name));
    move |why| GlassError::Spent { what: what.clone(), why }
}

// ---- tensors

/// Every tensor and parameter with what is known of it before it is computed, and the list of ops.
fn listing(opened: &Opened, budget: &Arc<Budget>) -> Result<Reply> {
    let trace = opened.trace(budget);
    let model = trace.model().clone();
    let mut tensors = names::activations(&model);
    let derived = names::derived(&model).into_iter().map(|(name, _)| name);
    tensors.extend(derived.filter(|name| !tensors.contains(name)).collect::<Vec<_>>());
    let mut first = HashMap::new();
    let mut line = |name: &str| -> Result<Value> {
        let (axes, shape) = trace.shape(name)?;
        let letters = Notation::Limpid.letters(name, &axes, &model.config);
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
            "letters": letters,
            "shape": shape,
            "layer": names::lookup(name).and_then(|(_, block)| block),
            "about": names::describe(name),
            "same_as": same_as,
        }))
    };
    let all: Vec<Value> = tensors.iter().map(|name| line(name)).collect::<Result<_>>()?;
    let params: Vec<Value> = model.params.iter().map(|param| line(&param.name)).collect::<Result<_>>()?;
    Ok(json!({ "tensors": all, "params": params, "ops": ops(&model) }).into())
}

/// The list of ops.
fn ops(model: &Model) -> Vec<Value> {
    let op = |(i, op): (usize, &limpid_core::ops::Op)| {
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
struct TensorSlice<'a> {
    name: &'a str,
    axes: &'a [&'static str],
    shape: &'a [usize],
    index: Vec<[usize; 2]>,
    #[serde(serialize_with = "numbers")]
    values: &'a [f32],
    stats: Option<Value>,
}

/// A matrix, or what it has more than that of another trace.
fn sheet(
    glass: &Glass,
    opened: &Opened,
    (name, index): (&str, &[usize]),
    rows: Option<Range<usize>>,
    other: Option<&str>,
    budget: &Arc<Budget>,
) -> Result<Sheet> {
    let own = opened.trace(budget).sheet(name, index, rows.clone())?;
    let Some(other) = other else { return Ok(own) };
    let other = glass.find(other)?;
    let other = other.trace(budget).sheet(name, index, rows)?;
    let [here, there] = [&own, &other].map(|sheet| vec![sheet.rows, sheet.cols]);
    own.minus(other).ok_or_else(|| GlassError::Differ { name: name.into(), own: here, other: there })
}

fn values(glass: &Glass, opened: &Opened, name: &str, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    let (axes, sizes) = opened.trace(budget).shape(name)?;
    let texts: Vec<&str> = query.text("at").map_or(vec![], |at| at.split(',').collect());
    if !texts.is_empty() && texts.len() != axes.len() {
        let expected = format!("an entry for each of the axes {}", axes.join(", "));
        return Err(refusal("at", &expected, &texts.join(",")));
    }
    let texts = texts.into_iter().chain(std::iter::repeat("*"));
    let asked = axes.iter().zip(&sizes).zip(texts);
    let all = asked.map(|((axis, n), text)| range(name, axis, *n, text)).collect::<Result<Vec<Range<usize>>>>()?;
    let count = all.iter().map(Range::len).fold(1usize, usize::saturating_mul);
    if count > MOST_VALUES {
        return Err(GlassError::TooMany { name: name.into(), values: count, most: MOST_VALUES });
    }
    let (want_stats, format) = (query.flag("stats")?, query.text("format").unwrap_or("json"));
    let (leading, rows, cols) = match &all[..] {
        [] => (&[][..], 0..1, 0..1),
        [cols] => (&[][..], 0..1, cols.clone()),
        [leading @ .., rows, cols] => (leading, rows.clone(), cols.clone()),
    };
    let spent = spent(name);
    budget.take_bytes(WRITTEN * count as u64).map_err(&spent)?;
    let mut values = Vec::with_capacity(count);
    let lengths: Vec<usize> = leading.iter().map(Range::len).collect();
    // an empty part is looked at nowhere
    let places: usize = if count > 0 { lengths.iter().product() } else { 0 };
    for place in 0..places {
        let index: Vec<usize> =
            leading.iter().zip(index_of(place, &lengths)).map(|(range, i)| range.start + i).collect();
        let sheet = sheet(glass, opened, (name, &index), Some(rows.clone()), query.text("other"), budget)?;
        let strip = sheet.strip(cols.clone(), budget).map_err(&spent)?;
        for from in rows.clone().step_by(BAND) {
            values.extend(strip.band(from..rows.end.min(from + BAND)).map_err(&spent)?);
        }
    }
    let stats = if want_stats { stats(opened, name, budget)? } else { None };
    let part =
        NamedTensor { name: name.into(), axes: axes.clone(), shape: all.iter().map(Range::len).collect(), values };
    match format {
        "json" => {
            let index = all.iter().map(|range| [range.start, range.end]).collect();
            let part = TensorSlice { name, axes: &axes, shape: &sizes, index, values: &part.values, stats };
            Ok(Reply::Json(serde_json::to_string(&part).unwrap_or_default()))
        }
        format => super::file::file(format, &part, &all),
    }
}

/// The statistics of a whole tensor, where it is one that can be held.
fn stats(opened: &Opened, name: &str, budget: &Arc<Budget>) -> Result<Option<Value>> {
    let trace = opened.trace(budget);
    let (_, sizes) = trace.shape(name)?;
    if name.starts_with("cos(") || sizes.iter().copied().fold(1, usize::saturating_mul) > MOST_VALUES {
        return Ok(None);
    }
    let row = trace.row(name)?;
    Ok(Some(json!({
        "mean": row.mean, "sd": row.deviation, "min": row.min, "max": row.max,
        "nan": row.nan, "infinite": row.infinite, "masked": row.masked,
    })))
}

// ---- tiles

/// Sends the tiles that a body asks for, in its order. All of them are read before the first is computed.
pub fn tiles(
    glass: &Glass,
    opened: &Opened,
    body: &Value,
    budget: &dyn Fn() -> Arc<Budget>,
    tell: &mut dyn FnMut(Vec<u8>) -> bool,
) -> Result<()> {
    let body = AskedFields::read(body, &["tiles"])?;
    if body.get("tiles").is_none() {
        return Err(wrong("tiles", &format!("a list of at most {MOST_TILES}"), &Value::Null));
    }
    let all: Vec<Wanted> = body.list("tiles", MOST_TILES)?.iter().map(Wanted::read).collect::<Result<_>>()?;
    // the matrix that the last one was of, of which several in a row may be
    let mut known: Option<(String, Sheet, Option<Extent>)> = None;
    for (i, Wanted { name, index, other, tile }) in all.iter().enumerate() {
        let (mut tile, spent, budget) = (*tile, spent(name), &budget());
        // logits are computed for the rows of the tile alone, so their matrix is not kept, and their ends are those of
        // these rows
        let step = limpid_trace::tiles::SIDE << tile.level;
        let head = matches!(*name, "logits" | "probs");
        let rows = head.then(|| tile.at[0].saturating_mul(step)..tile.at[0].saturating_add(1).saturating_mul(step));
        let key = format!("{name}{index:?}{other:?}{rows:?}");
        let (_, sheet, extent) = match known.take().filter(|(last, ..)| *last == key) {
            Some(same) => known.insert(same),
            None => known.insert((key, sheet(glass, opened, (name, index), rows, *other, budget)?, None)),
        };
        let outside = || GlassError::Outside {
            name: shown(name),
            axis: "its tiles".into(),
            size: sheet.rows.max(sheet.cols).div_ceil(step),
            found: format!("{:?}", tile.at),
        };
        tile.part(sheet).ok_or_else(outside)?;
        let is_weights = name.ends_with(".hook_pattern") && other.is_none();
        if !is_weights && tile.code != Code::F32 {
            let whole = match *extent {
                Some(whole) => whole,
                None => *extent.insert(Extent::measure(sheet, budget).map_err(&spent)?),
            };
            tile.ends = whole.ends(tile.code);
        }
        let frame = tile.frame(sheet, i as u32, i + 1 == all.len(), budget).map_err(&spent)?;
        if !tell(frame.ok_or_else(outside)?) {
            break;
        }
    }
    Ok(())
}

/// A tile that is asked for.
struct Wanted<'a> {
    name: &'a str,
    index: Vec<usize>,
    other: Option<&'a str>,
    tile: Tile,
}

/// Axes before the last two, and more than any tensor has.
const MOST_AXES: usize = 8;

impl<'a> Wanted<'a> {
    fn read(value: &'a Value) -> Result<Wanted<'a>> {
        let asked = AskedFields::read(value, &["name", "index", "tile", "level", "pool", "code", "other"])?;
        let [name, code, pool] = ["name", "code", "pool"].map(|key| asked.text(key).map(Option::unwrap_or_default));
        let (code, pool) = (Code::named(code?), TilePool::named(pool?));
        let missing = |key: &str| asked.get(key).unwrap_or(&Value::Null);
        let code = code.ok_or_else(|| wrong("code", "f32, lin8, log8 or slog8", missing("code")))?;
        let pool = pool.ok_or_else(|| wrong("pool", "max, absmax or mean", missing("pool")))?;
        let at = asked.numbers("tile", 2)?.try_into();
        let at = at.map_err(|_| wrong("tile", "a row and a column", missing("tile")))?;
        let level = asked.number("level", DEEPEST.into())? as u8;
        let tile = Tile { at, level, pool, code, ends: [0.0, 1.0] };
        Ok(Wanted { name: name?, index: asked.numbers("index", MOST_AXES)?, other: asked.text("other")?, tile })
    }
}

// ---- predictions

fn predictions(opened: &Opened, query: &AskedQuery, budget: &Arc<Budget>) -> Result<Reply> {
    opened.needs_head()?;
    let n = opened.ids.len();
    let (position, k) = (query.number("position", n - 1, n)?, query.number("k", 20, 1001)?);
    let all = opened.trace(budget).predictions(position..position + 1, k)?;
    let Some(prediction) = all.first() else { return Err(TraceError::Batch { what: "no such row".into() }.into()) };
    let mut value = predicted(&opened.subject, prediction);
    let candidate = |best: &NextToken| json!([best.id, piece(&opened.subject, best.id), best.p, best.logit]);
    value["top"] = prediction.top.iter().map(candidate).collect();
    Ok(value.into())
}
