//! `sweep`: activation patching over all layers and positions, as a heat map.

#[cfg(feature = "serve")]
use crate::glass;
use crate::look::{answer_ids, check_picture, drawn, position, write_picture};
use crate::models::{WeightOptions, checkpoint, needs_head, prompt_ids, sharing};
use crate::options::{MachineOptions, Usage, named};
use crate::outputs::Force;
use crate::show::{self, commas};
use crate::source;
use anyhow::{Result, bail};
use limpid::Error;
use limpid::checkpoint::Checkpoint;
use limpid::config::{Axis, Config};
use limpid::draw::palette::Palette;
use limpid::draw::picture::swept::plot;
use limpid::draw::table::TableOptions;
use limpid::draw::view::wrap;
use limpid::tokenizer::Tokenizer;
use limpid::trace::labels::label;
use limpid::trace::sweep::{
    Sweep, SweepBy, SweepCost, SweepError, SweepMetric, SweepPeak, SweepQuestion, SweepReceiver, SweepSite,
    TOKEN_LAYERS,
};
use limpid::train::run::{kept_path, kept_steps};
use limpid_base::words;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Find out where a model keeps what makes the difference between two prompts: run the corrupt prompt once for each
/// layer and position (or head), each time with one activation of the clean prompt in its place, and show how much of
/// the clean run's answer comes back.
///
/// 1 means that the patch restores all of the difference, 0 that it restores nothing. Both prompts need the same number
/// of tokens. Each cell is a run with one step of `inspect --intervene`, to the last bit.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// The prompt that activations are taken from: text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT")]
    clean: String,
    /// The prompt whose run they are put into; it needs the same number of tokens
    #[arg(long, value_name = "TEXT")]
    corrupt: String,
    /// The token that the clean prompt should lead to: its text, or its id if no token has that text
    #[arg(long, value_name = "TOKEN", required_unless_present = "metric")]
    answer: Option<String>,
    /// The token that the answer is compared with: the metric is the difference of their logits [default: none; the
    /// metric is the answer's log-probability]
    #[arg(long, value_name = "TOKEN", requires = "answer")]
    rather_than: Option<String>,
    /// Measure something other than an answer: loss (of the clean prompt's tokens, in nats a token) or kl (the KL
    /// divergence from the clean run's prediction, in nats)
    #[arg(long, value_name = "NAME", conflicts_with = "answer", value_parser = ["loss", "kl"])]
    metric: Option<String>,
    /// The position whose prediction is measured, counted from 0 [default: the last; of a model of masked tokens the
    /// first mask]
    #[arg(long, value_name = "N")]
    position: Option<usize>,
    /// What is patched: the residual stream (resid_pre, resid_mid), what attention or the MLP adds to it (attn_out,
    /// mlp_out), the heads' outputs, queries, keys or values (z, q, k, v), or attention weights (pattern)
    #[arg(long, value_name = "SITE", default_value = "resid_pre", value_parser = SweepSite::names())]
    site: String,
    /// Patch heads at one position at a time, and attention weights for one query at a time [default: at all positions]
    #[arg(long)]
    by_pos: bool,
    /// Patch one attention weight at a time: of each query and key
    #[arg(long, conflicts_with = "by_pos")]
    by_pair: bool,
    /// Follow the paths to this tensor alone (path patching): what is patched reaches it through the residual stream,
    /// with every other attention and MLP output as in the corrupt run, and nothing else changes. The last
    /// hook_resid_post asks what reaches the logits directly
    #[arg(long, value_name = "TENSOR", conflicts_with = "estimate")]
    to: Option<String>,
    /// Follow the paths to these heads of it (repeatable, or separated by commas) [default: all]
    #[arg(long, value_name = "N", requires = "to", value_delimiter = ',')]
    to_head: Vec<usize>,
    /// Estimate the grid from gradients (attribution patching) instead of running every cell
    #[arg(long)]
    estimate: bool,
    /// Run the sweep on every state that the run kept (train --keep), one after another, and print when the strongest
    /// cells first appeared
    #[arg(long, conflicts_with_all = ["plot_out", "adapter"])]
    over_steps: bool,
    /// Also run a sweep of more than 10,000,000 token-layers
    #[arg(long)]
    yes: bool,
    /// Draw the heat map into FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    plot_out: Option<PathBuf>,
    #[command(flatten)]
    _force: Force,
    /// Save the page with the sweep as one file that works offline, to send to somebody; with the model inside where
    /// `inspect --html` has it, and then the browser sweeps, unless it is a sweep that needs --yes
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plot_out", "json", "over_steps"])]
    html: Option<PathBuf>,
    /// Save the answers of the sweep alone, without weights
    #[cfg(feature = "serve")]
    #[arg(long, requires = "html")]
    still: bool,
    /// Colours of the picture: ink, viridis, cividis or diverging [default: what suits the numbers]
    #[arg(long, value_name = "NAME", requires = "plot_out", value_parser = named::<Palette>())]
    palette: Option<Palette>,
    /// Maximum line width in characters [default: the terminal's; unlimited in a file or a pipe]
    #[arg(long, value_name = "N", conflicts_with = "json", value_parser = clap::value_parser!(u16).range(1..))]
    width: Option<u16>,
    /// Print the grid as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

/// Token-layers from which on it is said how far a sweep is.
const LONG: u64 = 200_000;

pub fn run(mut args: Args) -> Result<()> {
    if let Some(path) = &args.plot_out {
        check_picture(path, false)?;
    }
    if args.clean == "-" && args.corrupt == "-" {
        bail!(Usage("--clean - and --corrupt - are one standard input: give one of them as text or @FILE".into()));
    }
    let checkpoint = args.weights.open(!args.machine.no_verify)?;
    needs_head(&checkpoint)?;
    let Some(tokenizer) = checkpoint.tokenizer.clone() else {
        bail!("{} has no tokenizer, so --clean and --corrupt cannot be read", checkpoint.path.display());
    };
    let config = checkpoint.config.clone();
    let texts = [source::prompt(&args.clean)?, source::prompt(&args.corrupt)?];
    let [clean, corrupt] = [prompt_ids(&checkpoint, &texts[0])?, prompt_ids(&checkpoint, &texts[1])?];
    let question = question(&args, [clean, corrupt], (&config, &tokenizer))?;
    let cost = question.cost(&config);
    if !args.estimate {
        say_cost(&question, (&config, cost))?;
    }
    if args.over_steps {
        return over_steps(&args, &checkpoint.path, (&question, &texts));
    }
    #[cfg(feature = "serve")]
    if let Some(path) = &args.html {
        return page(&args, path, checkpoint, (&question, &texts));
    }
    let sweep = swept(&args, checkpoint, &question)?;
    let words = words(&question, &tokenizer);
    let plot = plot(&sweep, &words);
    if let Some(path) = &args.plot_out {
        write_picture(path, &drawn(&plot, path, args.palette))?;
    }
    if args.json {
        return show::json(&as_json(&question, &sweep, (cost, &texts)));
    }
    let width = args.width.map_or_else(show::table_width, usize::from);
    let estimated = if args.estimate { "estimated from gradients; " } else { "" };
    let about = wrap(&format!("{estimated}{}", plot.about), 0, width);
    let options = TableOptions { width, ..TableOptions::default() };
    show::painted(&format!("{about}\n{}\n", plot.text(show::paint(), &options)))?;
    let sentences = sweep.strong().map(|peak| sweep.sentence(peak, &words));
    let said = sweep.nothing_restored().map(String::from).into_iter().chain(sentences);
    let mut text: String = said.map(|sentence| wrap(&sentence, 0, width)).collect();
    if let Some(peak) = sweep.strong().next() {
        text += &format!("The first of them alone:\n{}\n", command(&args, peak, (&question, &texts))?);
    }
    show::out(&text)
}

/// The corrupt prompt's tokens.
fn words(question: &SweepQuestion, tokenizer: &Tokenizer) -> Vec<String> {
    let word = |id: &u32| tokenizer.piece(*id).map_or_else(|_| id.to_string(), |piece| label(&piece));
    question.corrupt.iter().map(word).collect()
}

/// The sweep of one model, with its progress.
fn swept(args: &Args, checkpoint: Checkpoint, question: &SweepQuestion) -> Result<Sweep> {
    let (cost, layers) = (question.cost(&checkpoint.config), checkpoint.config.n_layer as u64);
    let lm = sharing(checkpoint, &args.machine)?;
    if args.estimate {
        return Ok(lm.sweep_estimate(question)?);
    }
    let progress = show::Progress::of("%", 100, args.json || cost.token_layers < LONG);
    let sweep = lm.sweep(question, &mut |row| {
        progress.reach(row.layer as u64 + 1, layers, || format!("layer {} of {layers}", row.layer + 1));
        true
    });
    progress.done();
    Ok(sweep?)
}

/// --html: the page with the run of the corrupt prompt and the sweep.
#[cfg(feature = "serve")]
fn page(
    args: &Args,
    path: &Path,
    checkpoint: Checkpoint,
    (question, [clean, corrupt]): (&SweepQuestion, &[String; 2]),
) -> Result<()> {
    if question.by == SweepBy::Pair {
        bail!(Usage("--html draws no grid of pairs: leave --by-pair out, or take --plot-out".into()));
    }
    let dir = checkpoint.path.clone();
    let long = question.cost(&checkpoint.config).token_layers > TOKEN_LAYERS;
    if !args.still
        && !long
        && glass::put_live(path, (&dir, &checkpoint), &address(args, question, [clean, corrupt]), &args.machine)?
    {
        return Ok(());
    }
    let mut sweep = json!({
        "clean": clean, "corrupt": corrupt, "site": question.site.name(), "by": question.by.name(),
        "position": question.position,
        "estimate": args.estimate, "confirm": true,
        "to": question.to.as_ref().map(|to| &to.tensor), "to_head": question.to.as_ref().map(|to| &to.heads),
    });
    match question.metric {
        SweepMetric::LogitDifference { answer, foil } => {
            (sweep["answer"], sweep["foil"]) = (answer.into(), foil.into())
        }
        SweepMetric::LogProbability { answer } => sweep["answer"] = answer.into(),
        SweepMetric::Loss => sweep["metric"] = "loss".into(),
        SweepMetric::Divergence => sweep["metric"] = "kl".into(),
    }
    glass::save((path, None), (&dir, checkpoint), (&json!({ "prompt": corrupt }), Some(&sweep)), &args.machine)
}

/// Where a page begins that sweeps: what is asked, in the words of its form.
#[cfg(feature = "serve")]
fn address(args: &Args, question: &SweepQuestion, [clean, corrupt]: [&str; 2]) -> String {
    let heads: Vec<String> = args.to_head.iter().map(usize::to_string).collect();
    let (heads, position) = (heads.join(","), args.position.map(|at| at.to_string()));
    let given = [
        ("answer", args.answer.as_deref()),
        ("foil", args.rather_than.as_deref()),
        ("metric", args.metric.as_deref()),
        ("to", args.to.as_deref()),
        ("toh", (!heads.is_empty()).then_some(heads.as_str())),
        ("pos", position.as_deref()),
        ("est", args.estimate.then_some("1")),
    ];
    let mut words =
        vec![("v", "sweep"), ("go", "1"), ("clean", clean), ("site", question.site.name()), ("by", question.by.name())];
    words.extend(given.into_iter().filter_map(|(name, word)| Some((name, word?))));
    words.push(("p", corrupt));
    limpid_serve::live::address(&words)
}

/// --over-steps: the sweep of each state that a run kept. Of one that answers both prompts alike there is nothing to
/// restore.
fn over_steps(args: &Args, run: &Path, (question, texts): (&SweepQuestion, &[String; 2])) -> Result<()> {
    let steps = kept_steps(run);
    if steps.is_empty() {
        bail!("{} has kept no states: train with `--keep N`, and give the run's folder", run.display());
    }
    let width = args.width.map_or_else(show::table_width, usize::from);
    let mut all = vec![];
    for step in steps {
        let checkpoint = checkpoint(&kept_path(run, step), !args.machine.no_verify)?;
        let (cost, tokenizer) = (question.cost(&checkpoint.config), checkpoint.tokenizer.clone());
        let sweep = match swept(args, checkpoint, question) {
            Err(error) if matches!(error.downcast_ref(), Some(Error::Sweep(SweepError::Same { .. }))) => None,
            sweep => Some(sweep?),
        };
        if args.json {
            let mut one = sweep.as_ref().map_or_else(|| json!({}), |sweep| as_json(question, sweep, (cost, texts)));
            one["step"] = step.into();
            all.push(one);
            continue;
        }
        let said = match (&sweep, tokenizer) {
            (Some(sweep), Some(tokenizer)) => {
                let words = words(question, &tokenizer);
                let first = sweep.peaks.first().map_or(String::new(), |peak| sweep.sentence(peak, &words));
                format!("clean {:.4}, corrupt {:.4}. {first}", sweep.clean, sweep.corrupt)
            }
            _ => format!("both prompts give the same {}", question.metric.name()),
        };
        show::out(&wrap(&format!("step {}: {said}", commas(step)), 2, width))?;
    }
    if args.json { show::json(&Value::from(all)) } else { Ok(()) }
}

/// What is asked of a model.
fn question(
    args: &Args,
    [clean, corrupt]: [Vec<u32>; 2],
    (config, tokenizer): (&Config, &Tokenizer),
) -> Result<SweepQuestion> {
    let metric = match (&args.answer, args.metric.as_deref()) {
        (Some(answer), _) => {
            let asked = (answer.as_str(), args.rather_than.as_deref());
            let (answer, foil) = answer_ids(asked, (Some(tokenizer), config.vocab_size))?;
            SweepMetric::of(answer, foil)
        }
        (None, Some("loss")) => SweepMetric::Loss,
        (None, _) => SweepMetric::Divergence,
    };
    let by = match (args.by_pair, args.by_pos) {
        (true, _) => SweepBy::Pair,
        (_, true) => SweepBy::Position,
        _ => SweepBy::Head,
    };
    let (site, confirmed) = (args.site.parse()?, args.yes);
    let heads = (!args.to_head.is_empty()).then(|| args.to_head.clone());
    let to = args.to.as_ref().map(|tensor| SweepReceiver { tensor: tensor.clone(), heads });
    let mut question = SweepQuestion { clean, corrupt, site, by, metric, position: -1, to, confirmed };
    question.check(config)?;
    question.position = position(args.position, &question.corrupt, (config.mask, Some(tokenizer)))? as i64;
    Ok(question)
}

/// The command that runs a peak alone.
fn command(args: &Args, peak: &SweepPeak, (question, texts): (&SweepQuestion, &[String; 2])) -> Result<String> {
    let model = args.weights.words()?;
    let steps =
        question.in_words(peak.intervention.clone(), texts.each_ref().map(|text| Some(text.as_str()))).to_string();
    let flag = |(name, value): (&str, Option<String>)| value.map(|value| format!(" {}", words::flag(name, &value)));
    let measured = [
        ("answer", args.answer.clone()),
        ("rather-than", args.rather_than.clone()),
        ("position", args.position.map(|at| at.to_string())),
        ("clean", Some(texts[0].clone())),
    ];
    let measured: String = match args.answer {
        Some(_) => measured.into_iter().filter_map(flag).collect(),
        None => String::new(),
    };
    let [prompt, steps] = [words::flag("prompt", &texts[1]), words::word(&steps)];
    Ok(format!("{} inspect{model} {prompt} --intervene {steps}{measured}", show::program()))
}

/// Says what the sweep runs, before it does.
fn say_cost(question: &SweepQuestion, (config, cost): (&Config, SweepCost)) -> Result<()> {
    let (axes, sizes) = question.grid(config);
    let grid: Vec<String> = axes.iter().zip(&sizes).map(|(axis, size)| format!("{size} {axis}")).collect();
    let (cells, token_layers) = (commas(cost.cells), commas(cost.token_layers));
    let to = question.to.as_ref().map_or(String::new(), |to| format!(" to {}", to.tensor));
    let whole = format!(
        "{}{to} over {}: {cells} cells, at most {token_layers} token-layers",
        question.site.name(),
        grid.join(" x ")
    );
    if cost.token_layers > TOKEN_LAYERS && !question.confirmed {
        bail!(Usage(format!(
            "{whole}, more than {}: add --yes to run it, --estimate to estimate it, or take a coarser grid or shorter \
             prompts",
            commas(TOKEN_LAYERS)
        )));
    }
    show::say(whole);
    Ok(())
}

fn as_json(question: &SweepQuestion, sweep: &Sweep, (cost, texts): (SweepCost, &[String; 2])) -> Value {
    let steps = |peak: &SweepPeak| {
        question.in_words(peak.intervention.clone(), texts.each_ref().map(|text| Some(text.as_str())))
    };
    let peak =
        |peak: &SweepPeak| json!({ "index": peak.index, "recovered": peak.recovered, "intervention": steps(peak) });
    let to = question.to.as_ref().map(|to| json!({ "tensor": to.tensor, "head": to.heads }));
    json!({
        "site": question.site.name(), "metric": question.metric.name(), "position": question.position, "to": to,
        "tokens": { "clean": question.clean, "corrupt": question.corrupt },
        "clean": sweep.clean, "corrupt": sweep.corrupt,
        "axes": sweep.metric.axes, "shape": sweep.metric.shape,
        "values": sweep.metric.values, "recovered": sweep.recovered.values,
        "cells": cost.cells, "token_layers": cost.token_layers,
        "peaks": sweep.peaks.iter().map(peak).collect::<Vec<_>>(),
    })
}
