//! `inspect --unit`: what a unit of an MLP responds to in a text, and what it writes there.

use super::Args;
use crate::models::{self, sharing};
use crate::options::Usage;
use crate::{show, source};
use anyhow::{Result, bail};
use limpid::budget::Budget;
use limpid::checkpoint::Checkpoint;
use limpid::draw::view::wrap;
use limpid::unit_places::{UNIT_TOKENS, UnitContext, UnitText};
use serde_json::{Value, json};
use std::sync::Arc;

/// The layer and the number of a unit by its name, such as `L0U63`.
pub fn named(name: &str) -> Result<(usize, usize), String> {
    let numbers = || {
        let (layer, unit) = name.strip_prefix(['L', 'l'])?.split_once(['U', 'u'])?;
        Some((layer.parse().ok()?, unit.parse().ok()?))
    };
    numbers().ok_or_else(|| format!("a unit is named like L0U63 (unit 63 of layer 0), found {name}"))
}

pub fn print(args: &Args, checkpoint: Checkpoint, (layer, unit): (usize, usize)) -> Result<()> {
    let tokenizer = models::tokenizer(&checkpoint)?.clone();
    let text = match &args.data {
        None => UnitText::stories(&tokenizer)?,
        Some(data) => {
            let (ids, _) = source::worded(source::source(data, &args.reading, &args.machine).whole(&tokenizer))?;
            ids.check_ids(checkpoint.config.vocab_size)?;
            let mut first = vec![];
            ids.copy(0..UNIT_TOKENS.min(ids.len()), &mut first);
            UnitText::new(data, first)
        }
    };
    let lm = sharing(checkpoint, &args.machine)?;
    let config = lm.config();
    if layer >= config.n_layer || unit >= config.d_ff {
        let (layers, units) = (config.n_layer, config.d_ff);
        bail!(Usage(format!("--unit L{layer}U{unit}: the model has {layers} layers of {units} units, counted from 0")));
    }
    let budget = Arc::new(Budget::default());
    let places = lm.unit_places(&text, &budget)?;
    let page = places.page(layer, unit)?;
    let words = lm.unit_writes(&places, &page, &budget)?;
    let word = |id: u32| tokenizer.piece(id).unwrap_or_else(|_| id.to_string());
    if args.json {
        let context = |one: &UnitContext| {
            let tokens: Vec<String> = one.tokens.iter().map(|id| word(*id)).collect();
            json!({ "tokens": tokens, "at": one.at, "position": one.position, "value": one.value })
        };
        let pairs = |all: &[(u32, f32)]| -> Vec<Value> { all.iter().map(|(id, by)| json!([word(*id), by])).collect() };
        return show::json(&json!({
            "unit": page.name(), "text": places.text, "tokens": places.tokens.len(), "fires": page.fires,
            "contexts": page.contexts.iter().map(context).collect::<Vec<_>>(),
            "raised": pairs(&words.raised), "lowered": pairs(&words.lowered),
        }));
    }
    let name = page.name();
    let share = 100.0 * page.fires as f64 / places.tokens.len() as f64;
    let tokens = limpid_base::units::commas(places.tokens.len());
    let about = format!(
        "{name}, unit {unit} of layer {layer}'s MLP, is positive at {share:.1} % of {tokens} tokens of \
                         {}.",
        places.text
    );
    let width = args.width.map_or_else(show::table_width, usize::from);
    let mut shown = wrap(&about, 0, width);
    let around = |one: &UnitContext| {
        let part = |ids: &[u32]| ids.iter().map(|id| word(*id)).collect::<String>().replace('\n', "\u{21b5}");
        let (before, rest) = one.tokens.split_at(one.at);
        format!("{}\u{ab}{}\u{bb}{}", part(before), part(&rest[..1]), part(&rest[1..]))
    };
    let rows: Vec<Vec<String>> =
        page.contexts.iter().map(|one| vec![format!("{:+.3}", one.value), around(one)]).collect();
    if !rows.is_empty() {
        shown += &format!("\n{}", show::columns(&["activation", "where"], &rows));
    }
    for (what, all) in [("likelier", &words.raised), ("less likely", &words.lowered)] {
        let said: Vec<String> = all.iter().map(|(id, by)| format!("{:?} {by:+.3}", word(*id))).collect();
        if !said.is_empty() {
            shown += &format!(
                "\n{}",
                wrap(&format!("At the first of these it makes {what}: {}", said.join(", ")), 2, width)
            );
        }
    }
    show::out(&shown)
}
