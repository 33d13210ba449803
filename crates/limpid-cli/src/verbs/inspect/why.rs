//! `inspect --why`: the reason for a word, measured: which words turn it, which parts carry it; and the path along what
//! the parts wrote, in words and bars.

use super::{Args, Ready, grid, open};
use crate::look::{piece, position, token_id};
use crate::models::{self, prompt_ids};
use crate::options::Usage;
use crate::{show, source};
use anyhow::{Result, bail};
use limpid::config::ConfigError;
use limpid::draw::table::columns;
use limpid::draw::view::wrap;
use limpid::reason::{Reason, ReasonPart, ReasonQuestion, part_name};
use limpid::trace::path::{self, Hop, PathBar, PathQuestion, PathStep, largest};
use limpid::trace::{Keep, Trace};
use serde_json::json;
use std::sync::Arc;

/// Bars of a step.
const BARS: usize = 6;
/// Columns of a bar, to one side.
const HALF: usize = 12;

/// What `ready` was made from, opened again to be measured: not of a run that is changed, and not of other weights.
fn measured(args: &Args, question: &ReasonQuestion) -> Result<Option<Reason>> {
    let (Some(dir), None, false) = (&args.model, &args.changes.intervene, args.initial || args.mask_file.is_some())
    else {
        return Ok(None);
    };
    let checkpoint = open(args, dir)?;
    let corrupt = args.corrupt.as_ref().map(|text| prompt_ids(&checkpoint, &source::prompt(text)?)).transpose()?;
    let lm = models::sharing(checkpoint, &args.machine)?;
    Ok(Some(lm.reason(&ReasonQuestion { corrupt, ..question.clone() }, &Arc::default(), &mut |_| true)?))
}

/// What was measured: the sentence, what each part carries, and what it wrote.
fn reason_text(reason: &Reason, word: &dyn Fn(u32) -> String, width: usize) -> String {
    let whole = |id: u32| word(id).replace(' ', "\u{a0}");
    let mut text = wrap(&figures_kept(&reason.sentence(&whole)), 0, width).replace('\u{a0}', " ");
    let strongest: Vec<&ReasonPart> = reason.parts.iter().filter(|part| part.measured.is_some()).collect();
    if !strongest.is_empty() {
        let short = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.2}"));
        let row = |one: &&ReasonPart| {
            let measured = one.measured.as_ref();
            let shares = [Some(one.restored), measured.map(|m| m.broken), measured.map(|m| m.direct)];
            let numbers = shares.into_iter().chain([measured.and_then(|m| m.weight), one.wrote]).map(short);
            let remark = one.remark(reason.whole()).unwrap_or_default().to_string();
            [part_name(one.part)].into_iter().chain(numbers).chain([remark]).collect::<Vec<_>>()
        };
        let headers = ["part", "restores", "takes away", "directly", "weight", "wrote", ""];
        text += &grid(String::new(), &headers, strongest.iter().map(row)).whole(width);
    }
    text + &wrap(
        &format!(
            "Shares of the difference between both texts, each measured by a run of its own ({} in all). What a part \
             wrote is its part of the sum below.\n",
            reason.runs
        ),
        0,
        width,
    )
}

pub fn print(args: &Args, ready: Ready) -> Result<()> {
    let Ready { model, backend, batch, steps, tokenizer } = ready;
    let too_large = steps.as_ref().and_then(|steps| steps.too_large());
    let config = model.config.clone();
    if !config.lm_head {
        bail!("--why: {}", ConfigError::NoHead);
    }
    if batch.spans.len() > 1 {
        bail!(Usage("--why is about one sequence: give one --prompt".into()));
    }
    let tokenizer = tokenizer.as_ref();
    let row = position(args.position, &batch.tokens, (config.mask, tokenizer))?;
    let trace = Trace::run_with_steps(&model, backend, &batch, steps, Keep::default())?;
    let likeliest: Vec<u32> = trace.predictions(row..row + 1, 2)?[0].top.iter().map(|best| best.id).collect();
    if let Some(error) = too_large.filter(|_| likeliest.is_empty()) {
        bail!(error);
    }
    let id = |flag, token: &str| token_id((flag, token), tokenizer, config.vocab_size);
    let target = match args.why.as_deref() {
        None | Some("next") => likeliest.first().copied().unwrap_or(0),
        Some(token) => id("--why", token)?,
    };
    let foil = match args.rather_than.as_deref() {
        Some("none") => None,
        Some(token) if token != "next" => Some(id("--rather-than", token)?),
        _ => likeliest.into_iter().find(|id| *id != target),
    };
    if foil == Some(target) {
        bail!(Usage("--why and --rather-than are the same token: compare it with another one, or with none".into()));
    }
    let asked = PathQuestion { row, target, foil };
    let hops = match &args.via {
        Some(hops) => hops.clone(),
        None => largest(&trace, asked)?,
    };
    let steps = path::steps(&trace, asked, &hops, BARS)?;
    if !steps[0].value.is_finite() {
        bail!(
            "the logits of this run are NaN or infinite, so nothing adds up: `limpid params --check` finds a damaged \
             weight"
        );
    }
    let corrupt = None;
    let question = foil.map(|foil| ReasonQuestion { ids: batch.tokens.clone(), row, answer: target, foil, corrupt });
    let reason =
        question.filter(|_| args.via.is_none()).map(|question| measured(args, &question)).transpose()?.flatten();
    // a token is not cut at the end of a line
    let word = |id| piece(tokenizer, id).replace(' ', "\u{a0}");
    if args.json {
        let word = |id| piece(tokenizer, id);
        let all = steps.iter().enumerate().map(|(n, step)| as_json(step, &hops[..n], &word));
        return show::json(
            &json!({ "reason": reason.map(|reason| reason.json(&word)), "position": row, "target": target, "foil": foil,
                "steps": all.collect::<Vec<_>>() }),
        );
    }
    let width = args.width.map_or_else(show::table_width, usize::from);
    let mut text = reason.map_or(String::new(), |reason| {
        reason_text(&reason, &|id| piece(tokenizer, id), width) + "What the parts wrote, from the word on:\n\n"
    });
    for (n, step) in steps.iter().enumerate() {
        let via = hops[..n].last().map_or(String::new(), |hop| format!(" {hop}"));
        text +=
            &wrap(&format!("{}.{via} {}", n + 1, figures_kept(&step.sentence(&word))), 0, width).replace('\u{a0}', " ");
        text += &format!("{}\n", bars(step, &|id| piece(tokenizer, id), width));
    }
    text += &wrap(&steps[0].note, 0, width);
    text += &wrap(
        "Patterns of attention, means and scales of norms count as they are in this run. --via takes another path, \
         --open shows all of them.",
        0,
        width,
    );
    show::out(&text)
}

/// A sentence whose figures stay on the line of the names that they belong to.
fn figures_kept(sentence: &str) -> String {
    let mut kept = String::new();
    for word in sentence.split(' ') {
        let figure = word.trim_end_matches([',', ';', '.', ')']).parse::<f64>().is_ok();
        let own = (figure || word == "MLP") && !kept.ends_with([',', ';', '.']);
        kept += if kept.is_empty() {
            ""
        } else if own {
            "\u{a0}"
        } else {
            " "
        };
        kept += word;
    }
    kept
}

/// The parts of a step as lines; bars below zero go left.
fn bars(step: &PathStep, word: &dyn Fn(u32) -> String, width: usize) -> String {
    if step.bars.is_empty() {
        return String::new();
    }
    let name = |bar: &PathBar| match bar.looked {
        Some((id, weight)) => format!("{weight:.2} {}", word(id)),
        None => bar.name.clone(),
    };
    let mut lines: Vec<(String, f64, String)> = step
        .bars
        .iter()
        .map(|bar| (name(bar), bar.value, Hop::into(bar.part).map_or(String::new(), |hop| hop.to_string())))
        .collect();
    if step.rest.count > 0 {
        lines.push((show::plural(step.rest.count, "other part"), step.rest.value, String::new()));
    }
    let left = if step.additive { "rounding" } else { "not told apart" };
    lines.push((left.into(), step.remainder, String::new()));
    // the numbers and the hop stay on the line
    let room = if width == 0 { usize::MAX } else { width.saturating_sub(22).max(8) };
    for (name, ..) in lines.iter_mut().filter(|(name, ..)| columns(name) > room) {
        *name = name.chars().take(room - 3).chain("...".chars()).collect();
    }
    let wide = lines.iter().map(|(name, ..)| columns(name)).max().unwrap_or(0);
    let most = lines.iter().fold(1e-30, |most: f64, (_, value, _)| most.max(value.abs()));
    let drawn = width == 0 || wide + 2 * HALF + 24 <= width;
    let mut text = String::new();
    for (name, value, hop) in lines {
        let long = (HALF as f64 * value.abs() / most).round().min(HALF as f64) as usize;
        let (left, right) = if value < 0.0 { (long, 0) } else { (0, long) };
        let bar = format!("{:>HALF$}|{:<HALF$}", "-".repeat(left), "+".repeat(right));
        let line = format!("   {name}{}  {value:>+9.4}", " ".repeat(wide - columns(&name)));
        text += if drawn { format!("{line}  {bar}  {hop}") } else { format!("{line}  {hop}") }.trim_end();
        text.push('\n');
    }
    text += &format!("   {}  {:>+9.4}\n", format_args!("{:<wide$}", "together"), step.value);
    text
}

fn as_json(step: &PathStep, via: &[Hop], word: &dyn Fn(u32) -> String) -> serde_json::Value {
    let bar = |bar: &PathBar| {
        json!({ "name": bar.name, "value": bar.value, "weight": bar.looked.map(|(_, weight)| weight),
            "token": bar.looked.map(|(id, _)| id), "hop": Hop::into(bar.part).map(|hop| hop.to_string()) })
    };
    json!({
        "via": via.iter().map(Hop::to_string).collect::<Vec<_>>(), "sentence": step.sentence(word),
        "position": step.position,
        "value": step.value, "bars": step.bars.iter().map(bar).collect::<Vec<_>>(),
        "rest": { "count": step.rest.count, "value": step.rest.value }, "remainder": step.remainder,
        "additive": step.additive,
    })
}
