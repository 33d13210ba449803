//! `direction`: a vector that tells two kinds of prompts apart, in every layer.

use crate::models::{WeightOptions, prompt_ids, sharing};
use crate::options::{MachineOptions, Usage};
use crate::outputs::Force;
use crate::show::{self, plural};
use crate::source;
use anyhow::{Context, Result, bail};
use limpid::checkpoint::Checkpoint;
use limpid::config::Mask;
use limpid::directions::{DirectionEffect, DirectionPosition, DirectionQuestion, Directions, LayerDirection};
use limpid::trace::directions::DirectionMethod;
use limpid::trace::interventions::Direction;
use limpid::{Interventions, Step};
use limpid_base::words;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Find a direction: the vector that tells positive prompts from negative ones, in every layer. Adding it steers what
/// the model writes.
///
/// The prompts are pairs: the first positive with the first negative one, and so on. A direction's length is how far
/// the two prompts of a pair are apart along it, so {"by": 1} moves a run by one such distance. The table also says
/// which share of the pairs' differences (their squares) lies along it, and which part of the prompts that it was not
/// made from it tells apart. Below the table stands what the model writes with and without the direction.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// A positive prompt (repeatable); @FILE, or - for standard input: each line is a prompt
    #[arg(long, value_name = "TEXT", required = true)]
    positive: Vec<String>,
    /// A negative prompt (repeatable); @FILE, or - for standard input: each line is a prompt
    #[arg(long, value_name = "TEXT", required = true)]
    negative: Vec<String>,
    /// Where: the residual stream after a layer (resid_post), before it (resid_pre) or within (resid_mid), what
    /// attention or the MLP adds to it (attn_out, mlp_out), heads' outputs (z), an MLP's units (mlp.hook_post), or any
    /// other tensor of docs/interventions.md
    #[arg(long, value_name = "SITE", default_value = "resid_post")]
    site: String,
    /// Layers: numbers and ranges such as 1,4..8 [default: all]
    #[arg(long = "layer", value_name = "LAYERS", value_delimiter = ',', value_parser = numbers)]
    layers: Vec<Vec<usize>>,
    /// Heads, where the site has heads: numbers and ranges [default: all]
    #[arg(long, value_name = "HEADS", value_delimiter = ',', value_parser = numbers, conflicts_with = "unit")]
    head: Vec<Vec<usize>>,
    /// Units, where it has none: numbers and ranges [default: all]
    #[arg(long, value_name = "UNITS", value_delimiter = ',', value_parser = numbers)]
    unit: Vec<Vec<usize>>,
    /// The position in each prompt, counted from 0, or from the end if negative; or mean, for the mean over all
    /// positions
    #[arg(
        long, value_name = "N|mean", default_value = "-1", allow_hyphen_values = true,
        value_parser = str::parse::<DirectionPosition>
    )]
    position: DirectionPosition,
    /// How: mean (the difference of the means), pca (the first principal component of the pairs' differences) or probe
    /// (the weights of a logistic regression)
    #[arg(long, value_name = "NAME", default_value = "mean", value_parser = str::parse::<DirectionMethod>)]
    method: DirectionMethod,
    /// The fraction of the pairs, the last ones, that the direction is tested on and not made from [default: 0.25 of
    /// four pairs or more, and for probe; 0 with --test-positive]
    #[arg(long, value_name = "FRACTION")]
    held_out: Option<f64>,
    /// A positive prompt to test the direction on (repeatable); @FILE: each line is a prompt
    #[arg(long, value_name = "TEXT", requires = "test_negative")]
    test_positive: Vec<String>,
    /// A negative prompt to test it on, the other of the pair
    #[arg(long, value_name = "TEXT", requires = "test_positive")]
    test_negative: Vec<String>,
    /// What the model continues, with and without the direction [default: the first negative prompt]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Tokens that it writes each time; 0: none
    #[arg(long, value_name = "N", default_value_t = 12)]
    write: usize,
    /// Write the directions into FILE.gguf (a control vector, as llama.cpp reads it), FILE.safetensors or FILE.json
    /// (steps for --intervene)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    _force: Force,
    /// Print the directions as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

/// A number or a range.
fn numbers(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || "expected a number or a range such as 2..5".to_string();
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    match text.split_once("..") {
        None => Ok(vec![number(text)?]),
        Some((from, to)) => match (number(from)?, number(to)?) {
            (from, to) if from < to && to <= 1 << 17 => Ok((from..to).collect()),
            _ => Err(wrong()),
        },
    }
}

pub fn run(mut args: Args) -> Result<()> {
    if args.positive.iter().chain(&args.negative).filter(|text| *text == "-").count() > 1 {
        bail!(Usage("there is one standard input: give - once, and the other prompts as texts or @FILE".into()));
    }
    if let Some(out) = &args.out {
        let ends = ["gguf", "safetensors", "json"];
        if !ends.iter().any(|end| out.extension().is_some_and(|own| own == *end)) {
            bail!(Usage(format!("--out {} should end in .gguf, .safetensors or .json", out.display())));
        }
    }
    let checkpoint = args.weights.open(!args.machine.no_verify)?;
    let (pairs, first) = pairs_of(&checkpoint, [("--positive", &args.positive), ("--negative", &args.negative)])?;
    let tests = [("--test-positive", &args.test_positive), ("--test-negative", &args.test_negative)];
    let (test_pairs, _) = pairs_of(&checkpoint, tests)?;
    let (prompt, continued) = match &args.prompt {
        Some(text) => (text.clone(), prompt_ids(&checkpoint, text).context("--prompt")?),
        None => (first, pairs.first().map_or(vec![], |pair| pair[1].clone())),
    };
    let all = |numbers: &[Vec<usize>]| (!numbers.is_empty()).then(|| numbers.concat());
    let tested = test_pairs.is_empty() && (args.method == DirectionMethod::Probe || pairs.len() >= 4);
    let question = DirectionQuestion {
        pairs,
        test_pairs,
        site: args.site.clone(),
        layers: all(&args.layers),
        heads: all(&args.head),
        units: all(&args.unit),
        position: args.position,
        method: args.method,
        held_out: args.held_out.unwrap_or(if tested { 0.25 } else { 0.0 }),
    };
    let lm = sharing(checkpoint, &args.machine)?;
    let found = lm.directions(&question)?;
    if let Some(out) = &args.out {
        found.save(out)?;
    }
    let writes = args.write > 0 && lm.config().lm_head && lm.config().mask == Mask::Causal;
    let best = found.best().filter(|_| writes);
    let effects =
        best.map(|layer| Ok::<_, limpid::Error>((layer, lm.direction_effects(&found, layer, &continued, args.write)?)));
    let effects = effects.transpose()?;
    if args.json {
        let mut all = as_json(&args, &found);
        if let Some((layer, effects)) = &effects {
            all["best"] = layer.layer.into();
            all["prompt"] = prompt.into();
            all["effects"] = json!(effects);
        }
        return show::json(&all);
    }
    let shown = effects.filter(|(_, effects)| !effects.is_empty());
    let shown = shown.map_or(String::new(), |(layer, effects)| texts(layer.layer, &prompt, &effects));
    show::out(&format!("{}\n\n{}\n{shown}{}", about(&args, &found), table(&found), after(&args, &found, &prompt)?))
}

/// What the model writes after the prompt, line by line.
fn texts(layer: usize, prompt: &str, effects: &[DirectionEffect]) -> String {
    let rows: Vec<Vec<String>> = effects.iter().map(|one| vec![one.name.clone(), format!("{:?}", one.text)]).collect();
    let about = format!("What the model writes after {prompt:?}, with the direction of layer {layer}:");
    format!("{}\n\n{}\n", show::sentence(&about), show::columns(&["", "text"], &rows))
}

/// Pairs of prompts, and the first negative one as a text.
fn pairs_of(checkpoint: &Checkpoint, sides: [(&str, &Vec<String>); 2]) -> Result<(Vec<[Vec<u32>; 2]>, String)> {
    let names = sides.map(|(flag, _)| flag);
    let [positive, negative] = sides.map(|(flag, given)| prompts(checkpoint, (flag, given)));
    let (positive, negative) = (positive?, negative?);
    if positive.len() != negative.len() {
        let ([one, other], negative) = (names, negative.len());
        bail!(Usage(format!("{one} has {} and {other} {negative}: give pairs", plural(positive.len(), "prompt"))));
    }
    let first = negative.first().map(|(text, _)| text.clone()).unwrap_or_default();
    Ok((positive.into_iter().zip(negative).map(|((_, a), (_, b))| [a, b]).collect(), first))
}

/// The prompts of a flag and their tokens.
fn prompts(checkpoint: &Checkpoint, (flag, given): (&str, &[String])) -> Result<Vec<(String, Vec<u32>)>> {
    let mut prompts = vec![];
    for given in given {
        if Path::new(given).is_file() {
            bail!(Usage(format!(
                "{flag} {given} is the name of a file: {flag} @{given} takes each of its lines as a prompt"
            )));
        }
        let text = source::prompt(given).context(flag.to_string())?;
        let lines = given == "-" || given.starts_with('@');
        for (n, text) in if lines { text.lines().collect() } else { vec![&*text] }.into_iter().enumerate() {
            let place = || if lines { format!("{flag} {given}, line {}", n + 1) } else { flag.to_string() };
            let ids = prompt_ids(checkpoint, text).with_context(place)?;
            if ids.is_empty() {
                bail!("{}: the prompt is empty: give a text, or leave the line out", place());
            }
            prompts.push((text.to_string(), ids));
        }
    }
    Ok(prompts)
}

/// What was found, in a sentence.
fn about(args: &Args, found: &Directions) -> String {
    let how = match args.method {
        DirectionMethod::Mean => "Difference of means",
        DirectionMethod::Pca => "First principal component of the differences",
        DirectionMethod::Probe => "Linear probe",
    };
    let at = match args.position {
        DirectionPosition::At(-1) => "at the last token".into(),
        DirectionPosition::At(at) => format!("at position {at}"),
        DirectionPosition::Mean => "in the mean over all positions".to_string(),
    };
    let tested = match found.held_out {
        0 => "; not tested on other pairs: give four or more, or --test-positive and --test-negative".into(),
        others => format!("; tested on {}, where chance is 50 %", plural(others, "other")),
    };
    let whole = format!("{how} of {}, {} {at}{tested}.", plural(found.pairs, "pair"), args.site);
    limpid::draw::view::wrap(&whole, 0, show::table_width()).trim_end().to_string()
}

fn table(found: &Directions) -> String {
    let row = |layer: &LayerDirection| {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let mut row = vec![layer.layer.to_string(), format!("{:.4}", layer.norm), percent(layer.share)];
        let tested = layer.separation.iter();
        row.extend(tested.flat_map(|told| [percent(told.accuracy), format!("{:.3}", told.by_chance)]));
        row
    };
    let mut headers = vec!["layer", "length", "share"];
    headers.extend(["told apart", "by chance"].into_iter().filter(|_| found.held_out > 0));
    show::columns(&headers, &found.layers.iter().map(row).collect::<Vec<_>>())
}

/// What the file is for: the command that uses it.
fn after(args: &Args, found: &Directions, prompt: &str) -> Result<String> {
    let Some(out) = &args.out else {
        return Ok(show::sentence("To use it, add --out FILE.gguf, .safetensors or .json.") + "\n");
    };
    let steps = match steps(found, out) {
        Some(steps) => words::word(&steps.to_string()),
        None => words::quoted(out),
    };
    let (model, prompt) = (args.weights.words()?, words::flag("prompt", prompt));
    let program = show::program();
    let left_out = if left_out(found, out) {
        "Layer 0 is not in it: llama.cpp's control vectors have no place for that layer. FILE.json or FILE.safetensors \
         holds all.\n"
    } else {
        ""
    };
    Ok(format!(
        "Written to {}.\n{left_out}To steer with it:\n{program} generate{model} {prompt} --intervene {steps}\n",
        out.display()
    ))
}

/// Whether a file lacks the direction of layer 0, which was found.
fn left_out(found: &Directions, out: &Path) -> bool {
    out.extension().is_some_and(|end| end == "gguf") && found.layers.iter().any(|one| one.layer == 0 && one.norm > 0.0)
}

/// The steps that use a file: in one layer, the best one. None if the file is a list of steps.
fn steps(found: &Directions, out: &Path) -> Option<Interventions> {
    let lacks = left_out(found, out);
    let layers = found.layers.iter().filter(|one| !(lacks && one.layer == 0)).cloned().collect();
    let written = Directions { layers, ..found.clone() };
    let best = written.best()?;
    match out.extension()?.to_str()? {
        "gguf" => Some(Interventions::new([Step::control_vector(out.to_path_buf()).layer(best.layer)])),
        "safetensors" => {
            Some(Interventions::new([found.step(best, Direction::File { file: out.into(), tensor: None })]))
        }
        _ => None,
    }
}

fn as_json(args: &Args, found: &Directions) -> Value {
    let mut all = json!({
        "method": args.method.name(), "pairs": found.pairs, "held_out": found.held_out,
        "layers": found.layers,
    });
    if found.held_out > 0 {
        all["chance"] = 0.5.into();
    }
    if let Some(out) = &args.out {
        all["out"] = json!(out);
        if left_out(found, out) {
            all["left_out"] = json!([0]);
        }
    }
    all
}
