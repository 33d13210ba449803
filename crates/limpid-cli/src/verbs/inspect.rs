//! `inspect`: the tensors of a model on a prompt.
//!
//! Everything that can go wrong is looked up into [`Seen`] first, then printed: as text, or as one JSON object.

mod changes;
mod print;
mod ready;
mod slopes;
mod unit;
mod why;

#[cfg(feature = "serve")]
use crate::glass::{self, GlassOptions};
use crate::look::{check_picture, drawn, piece, token_id, write_picture};
use crate::models::{self, InterventionOptions, WeightOptions};
use crate::options::{MachineOptions, ModelOptions, NotationOptions, TextOptions, Usage, named};
use crate::outputs::Force;
use crate::show;
use crate::source;
use anyhow::{Context, Result, bail};
use limpid::backend::Backend;
use limpid::config::{Axis, Config, ConfigError, Mask};
use limpid::draw::diagram::Diagram;
use limpid::draw::glance::glance;
use limpid::draw::palette::Palette;
use limpid::draw::picture::{self, TensorPlot};
use limpid::draw::table::{self, Masks, TableOptions};
use limpid::draw::view::{self, Grid, wrap};
use limpid::model::{Mode, Model, Module, Param};
use limpid::ops::{Batch, IGNORE};
use limpid::tokenizer::Tokenizer;
use limpid::trace::interventions::{InterveningBackend, ResolvedSteps};
use limpid::trace::labels::Labels;
use limpid::trace::masked::MaskTable;
use limpid::trace::path::Hop;
use limpid::trace::ranking::{likeliest, nearest_rows};
use limpid::trace::{Keep, NamedTensor, SummaryRow, Trace, TraceError, llmc_arrays, save, tensors};
#[cfg(feature = "serve")]
use ready::prompts;
use ready::{Ready, dense, open, ready, sequences};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Look inside a model that runs on a prompt.
///
/// Shows how surprised it was by each token, what it would have said after each block, and what its heads attend to;
/// every tensor with its symbol, shape and statistics (--table); in a browser (--open), a file (--html), or a picture
/// (--plot).
#[derive(clap::Args, Debug)]
#[command(after_help = "The flags of a model's hyperparameters, for --preset: limpid inspect --help-model")]
#[command(group(clap::ArgGroup::new("printed").args(["tensor", "masks"]).multiple(true)))]
#[command(group(clap::ArgGroup::new("asked").args(["why", "answer"])))]
#[command(group(clap::ArgGroup::new("measured").args(["intervene", "backward"]).multiple(true)))]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// The model that is looked at, if it is not a preset
    #[arg(skip)]
    model: Option<PathBuf>,
    /// Text, @FILE, or - for standard input (repeatable: sequences of equal length)
    #[arg(long, short, value_name = "TEXT", action = clap::ArgAction::Append, conflicts_with = "tokens")]
    prompt: Vec<String>,
    /// Token ids instead of a prompt: 1,2,3; for several sequences: 1,2,3;4,5,6
    #[arg(long, value_name = "IDS", value_delimiter = ';', value_parser = models::sequence)]
    tokens: Option<Vec<Vec<u32>>>,
    /// Use the first windows of a text, with their targets, instead of a prompt: the windows that training would cut
    /// from anything that `eval --data` reads
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "prompt", "tokens", "segments"])]
    data: Option<String>,
    /// How many windows of --data
    #[arg(long, value_name = "B", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: u16,
    /// The segment of each token: 0,0,1,1; for several sequences one list for all, or one for each: 0,0,1;0,1,1
    /// [default: all 0]
    #[arg(long, value_name = "IDS", value_delimiter = ';', value_parser = models::sequence)]
    segments: Option<Vec<Vec<u32>>>,
    /// Use this attention mask instead of the model's: a line for each token, with 1 (or x) for each token that it sees
    /// and 0 (or .) for the others
    #[arg(long, value_name = "FILE", conflicts_with_all = ["backward", "masks"])]
    mask_file: Option<PathBuf>,
    /// Run with dropout, as the first micro-batch of a training with this seed draws it: its masks are then in the
    /// table, and by name (blocks.0.attn.hook_pattern_mask, blocks.0.hook_attn_out_mask)
    #[arg(long, value_name = "SEED", conflicts_with_all = ["mask_file", "why", "answer", "intervene"])]
    training: Option<u64>,
    /// Use the initial weights, before training
    #[arg(long, conflicts_with = "preset")]
    initial: bool,
    /// Print this tensor (repeatable), by name (blocks.0.attn.hook_pattern, embed.weight, logits.grad) or pattern
    /// ('blocks.*.attn.hook_pattern', '*.hook_resid_post')
    #[arg(long, value_name = "NAME", action = clap::ArgAction::Append)]
    tensor: Vec<String>,
    /// Print one head of the named tensors, counted from 0
    #[arg(long, value_name = "H", requires = "tensor")]
    head: Option<usize>,
    /// Print the named tensors transposed
    #[arg(long, requires = "tensor")]
    transpose: bool,
    /// Print the named tensors as heat maps or as tables; auto: attention and probabilities as heat maps on a terminal
    #[arg(
        long, value_name = "VIEW", default_value = "auto", requires = "tensor", value_parser = ["auto", "heat", "table"]
    )]
    view: String,
    /// Show tokens at the rows and columns of the named tensors; false: numbers
    #[arg(long, value_name = "BOOL", default_value_t = true, requires = "tensor", action = clap::ArgAction::Set)]
    labels: bool,
    /// Show queries, keys, values and context as [batch head pos d_head], not [batch pos head d_head]
    #[arg(long)]
    heads_first: bool,
    /// Digits after the decimal point of the named tensors
    #[arg(
        long, value_name = "N", default_value_t = 6, requires = "tensor",
        value_parser = clap::value_parser!(u8).range(..=17)
    )]
    decimals: u8,
    /// Print all rows and columns
    #[arg(long, requires = "printed")]
    full: bool,
    #[command(flatten)]
    words: NotationOptions,
    /// Draw a tensor or parameter, NAME or NAME[INDEX] with a number, a:b or * for each axis
    /// (blocks.0.attn.hook_pattern[0,1], W_pos); cos(NAME): cosines of all its rows; curves(NAME[*,0:4]): columns as
    /// curves; loss: the cross-entropy of each token; gelu: GELU and its approximations, with the model's own values if
    /// there is one. Drawn in the terminal, or into --plot-out (repeatable)
    #[arg(long, value_name = "EXPR", action = clap::ArgAction::Append)]
    plot: Vec<String>,
    /// Draw a diagram of the model with its own shapes, as SVG; list: all of them
    #[arg(long, value_name = "NAME", action = clap::ArgAction::Append, value_parser = diagram)]
    diagram: Vec<Option<Diagram>>,
    /// File for a picture: FILE.svg or FILE.png (PNG text is ASCII only; diagrams are SVG). Give it once for each
    /// --plot, then for each --diagram
    #[arg(long, value_name = "FILE", action = clap::ArgAction::Append)]
    plot_out: Vec<PathBuf>,
    /// Colours of heat maps: ink (the darker, the greater), viridis, cividis, or diverging for two signs [default: what
    /// suits the tensor]
    #[arg(long, value_name = "NAME", requires = "plot", value_parser = named::<Palette>())]
    palette: Option<Palette>,
    /// Save all tensors, or those named, as safetensors
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    _force: Force,
    /// Layout of --save: llmc (llm.c's 23 activations under its names, with all blocks in one array whose first axis is
    /// the block; with --backward, grads_acts too)
    #[arg(long, value_name = "NAME", requires = "save", conflicts_with = "tensor", value_parser = ["llmc"])]
    layout: Option<String>,
    /// If the prompt is longer than the context, keep its last tokens
    #[arg(long)]
    last: bool,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    glass: GlassOptions,
    /// Print the table of all tensors
    #[arg(long)]
    table: bool,
    /// Also list the parameters in the table
    #[arg(long)]
    params: bool,
    /// Print the list of ops
    #[arg(long)]
    listing: bool,
    /// Also run the backward pass: gradients of the loss as NAME.grad, and a table of them. The loss is that of the
    /// next tokens; in a model of masked tokens, of each token in its own place that is not masked
    #[arg(long)]
    backward: bool,
    /// Print the five likeliest tokens after each token
    #[arg(long)]
    next: bool,
    /// Print the causal mask in its three forms
    #[arg(long)]
    masks: bool,
    /// Print why this token is predicted rather than another: which words turn the answer when they are changed, and
    /// which heads and MLPs carry that, all measured; then which parts wrote it, back to a word of the input. Its text,
    /// or its id if no token has that text; next: the likeliest
    #[arg(
        long, value_name = "TOKEN",
        conflicts_with_all = ["preset", "data", "tensor", "plot", "diagram", "save", "table", "params", "listing",
        "backward", "next", "masks", "similar"]
    )]
    why: Option<String>,
    /// Measure this token: its log-probability, or with --rather-than the difference of both logits. With --intervene,
    /// with the change and without it; with --backward, how it depends on the residual stream and the heads, or on the
    /// tensors of --tensor
    #[arg(
        long, value_name = "TOKEN", requires = "measured",
        conflicts_with_all = ["why", "preset", "data", "plot", "save", "table", "params", "mask_file", "initial"]
    )]
    answer: Option<String>,
    /// The prompt whose prediction the change should restore: prints which part of it comes back, (with - without) /
    /// (clean - without)
    #[arg(long, value_name = "TEXT", requires_all = ["answer", "intervene"])]
    clean: Option<String>,
    /// With --intervene, also write N tokens after the prompt with and without the change, each time the likeliest
    #[arg(long, value_name = "N", requires = "intervene")]
    write: Option<usize>,
    /// The token that --why or --answer compares with, or none [default: for --why the likeliest other token, for
    /// --answer none]
    #[arg(long, value_name = "TOKEN", requires = "asked")]
    rather_than: Option<String>,
    /// The position that --why or --answer is about, counted from 0 [default: the last; of a model of masked tokens the
    /// first mask]
    #[arg(long, value_name = "N", requires = "asked")]
    position: Option<usize>,
    /// The text that --why measures against, of as many tokens, instead of looking for words to change
    #[arg(long, value_name = "TEXT", requires = "why", conflicts_with_all = ["via", "intervene", "initial"])]
    corrupt: Option<String>,
    /// The path that --why takes, without measuring anything: h2.1 a head, t5 a token it looked at, m3 an MLP, u17 its
    /// unit [default: the largest part of each step]
    #[arg(long, value_name = "STEPS", requires = "why", value_delimiter = ',', value_parser = str::parse::<Hop>)]
    via: Option<Vec<Hop>>,
    /// Print what this unit of an MLP responds to in a text, and what it writes there: L0U63 is unit 63 of layer 0. The
    /// text is that of --data, else the built-in stories that no training has seen
    #[arg(
        long, value_name = "UNIT", value_parser = unit::named,
        conflicts_with_all = ["preset", "prompt", "tokens", "tensor", "plot", "diagram", "save", "table", "params",
        "listing", "backward", "next", "masks", "similar", "why", "answer", "intervene", "initial", "mask_file",
        "segments"]
    )]
    unit: Option<(usize, usize)>,
    /// Print the tokens whose embeddings are nearest to this one's: its text, or its id if no token has that text
    #[arg(long, value_name = "TOKEN")]
    similar: Option<String>,
    /// Maximum line width in characters [default: the terminal's; unlimited in a file or a pipe]
    #[arg(long, value_name = "N", conflicts_with = "json", value_parser = clap::value_parser!(u16).range(1..))]
    width: Option<u16>,
    /// Print the table as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    changes: InterventionOptions,
    #[command(flatten)]
    reading: TextOptions,
    #[command(flatten)]
    preset: ModelOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

/// Candidates after each token, and neighbours of one.
const LIKELIEST: usize = 5;
const NEAREST: usize = 10;

/// What was asked for, found.
struct Seen {
    rows: Vec<SummaryRow>,
    /// The names of the tensors asked for, and they.
    names: Vec<String>,
    tensors: Vec<NamedTensor>,
    /// The input with words and targets, if it was asked for.
    inputs: Vec<Grid>,
    /// Words for the tensors' axes.
    labels: Labels,
    gradients: Vec<Gradient>,
    /// Norms of the parameters' gradients: of each layer, and of all.
    layers: Vec<(String, f64)>,
    masks: Option<Masks>,
    /// For each position of each sequence (token, probability), likeliest first.
    next: Vec<Vec<(u32, f64)>>,
    /// The token asked for, and (token, cosine), nearest first.
    similar: Option<(u32, Vec<(u32, f64)>)>,
    plots: Vec<TensorPlot>,
    /// Diagrams as SVG.
    diagrams: Vec<String>,
}

/// A diagram by its name; none for `list`.
fn diagram(name: &str) -> Result<Option<Diagram>, String> {
    if name == "list" { Ok(None) } else { Diagram::named(name).map(Some) }
}

pub fn run(mut args: Args) -> Result<()> {
    args.weights.refuse_text("inspect", "--prompt")?;
    args.preset.forget_environment(); // it is about what is trained
    args.preset.check_values()?;
    args.model = args.weights.named()?.map(Path::to_path_buf);
    let outs = plot_files(&args)?;
    if args.diagram.contains(&None) {
        let rows = Diagram::ALL.iter().map(|one| vec![one.name().to_string(), one.about().to_string()]);
        return show::out(&grid(String::new(), &["diagram", "what it shows"], rows).text(show::table_width()));
    }
    if alone(&args) {
        // neither a model nor a run is needed
        let constants = args.preset.over(&Config::default())?.activation_constants();
        return pictures(&args, &outs, args.plot.iter().map(|_| picture::gelu(constants, &[])).collect(), vec![]);
    }
    if args.model.is_none() && args.preset.preset.is_none() {
        args.model = Some(args.weights.path()?.to_path_buf());
    }
    if let Some(diagrams) = shapes_only(&args)? {
        return pictures(&args, &outs, vec![], diagrams);
    }
    check_changes(&args)?;
    if let (Some(unit), Some(dir)) = (args.unit, &args.model) {
        return unit::print(&args, open(&args, dir)?, unit);
    }
    #[cfg(feature = "serve")]
    if let Some(done) = elsewhere(&args)? {
        return Ok(done);
    }
    if let (Some(_), Some(dir), true) = (&args.changes.intervene, &args.model, glances(&args) && args.why.is_none()) {
        let checkpoint = open(&args, dir)?;
        let sequences = sequences(&args, &checkpoint)?.unwrap_or_default();
        return changes::print(&args, checkpoint, &sequences);
    }
    if let (Some(_), Some(dir), true) = (&args.answer, &args.model, args.backward) {
        let checkpoint = open(&args, dir)?;
        let sequences = sequences(&args, &checkpoint)?.unwrap_or_default();
        return slopes::print(&args, checkpoint, &sequences);
    }
    let ready = ready(&args)?;
    if args.why.is_some() {
        return why::print(&args, ready);
    }
    if glances(&args) {
        return first(&args, ready);
    }
    let Ready { model, backend, batch, steps, tokenizer } = ready;
    let backend = InterveningBackend::around(backend, steps.as_ref(), &batch)?;
    let tokenizer = tokenizer.as_ref();
    let trace = traced(&args, &model, backend, &batch)?;
    // every name is looked up before anything is printed or written
    let seen = look(&args, &trace, tokenizer)?;
    if let Some(path) = &args.save {
        save_tensors(&args, path, &trace, &seen.names)?;
    }
    if args.json {
        show::json(&to_json(&args, &trace, &seen, tokenizer))?;
    } else {
        print::seen(&args, &trace, &seen, tokenizer)?;
    }
    if draws(&args) && !(args.json && outs.is_empty()) {
        pictures(&args, &outs, seen.plots, seen.diagrams)?;
    }
    sound_rows(&trace, &seen.rows, steps.as_deref())
}

/// Runs the model, with the mask of --mask-file if one is given.
fn traced(args: &Args, model: &Model, backend: Box<dyn Backend>, batch: &Batch) -> Result<Trace> {
    let backward = args.backward || args.tensor.iter().any(|t| t.ends_with(".grad"));
    if args.next && !model.config.lm_head {
        bail!("--next: {}", ConfigError::NoHead);
    }
    let Some(file) = &args.mask_file else {
        let keep = if backward { Keep::Gradients } else { Keep::All };
        return Ok(Trace::run(model, backend, batch, keep)?);
    };
    if backward {
        bail!(Usage("--mask-file: gradients are computed with the model's own mask alone".into()));
    }
    let mask = source::read_file(file)?;
    let file = file.display();
    let own = model.config.mask;
    let mask: MaskTable = mask.parse().with_context(|| file.to_string())?;
    let trace = Trace::run_masked(model, backend, batch, mask)?;
    show::say(format_args!("note: {file} decides which tokens see which; the model's own mask ({own}) does not apply"));
    Ok(trace)
}

/// Refuses a run with a NaN or an infinity in one of its rows.
fn sound_rows(trace: &Trace, rows: &[SummaryRow], steps: Option<&ResolvedSteps>) -> Result<()> {
    let broken = |row: &SummaryRow| row.nan + row.infinite > 0;
    let first = rows.iter().find(|row| broken(row)).map(|row| row.name.as_str());
    sound((first, steps), &trace.model().params, |name| Ok(broken(&trace.row(name)?)))
}

/// Refuses a run with a NaN or an infinity in `first`, if there is one: names the parameter at fault, or the step, or
/// else `first`.
fn sound(
    (first, steps): (Option<&str>, Option<&ResolvedSteps>),
    params: &[Param],
    mut broken: impl FnMut(&str) -> Result<bool, TraceError>,
) -> Result<()> {
    let Some(first) = first else { return Ok(()) };
    for Param { name, .. } in params {
        if broken(name)? {
            bail!("the weights are damaged: `{name}` has NaN or infinite values");
        }
    }
    if let Some(error) = steps.and_then(ResolvedSteps::too_large) {
        bail!("`{first}` has NaN or infinite values: {error}");
    }
    bail!("`{first}` has NaN or infinite values, though the weights have none: the weights are too large")
}

/// Refuses --intervene with what does not run the model as it is trained, or goes backward.
fn check_changes(args: &Args) -> Result<()> {
    if args.changes.intervene.is_none() {
        return Ok(());
    }
    let gradients = args.backward || args.tensor.iter().any(|name| name.ends_with(".grad"));
    let other = [
        (gradients, "gradients are those of the model as it is: leave --backward and .grad out"),
        (args.mask_file.is_some(), "--mask-file runs the model in another way: give one of the two"),
        (args.model.is_none(), "it is about a trained model: give --model, not --preset"),
        (args.initial, "it is about the trained weights: leave --initial out"),
    ];
    match other.iter().find(|(given, _)| *given) {
        Some((_, why)) => bail!(Usage(format!("--intervene: {why}"))),
        None => Ok(()),
    }
}

/// --save: the tensors that were asked for, or all.
fn save_tensors(args: &Args, path: &Path, trace: &Trace, names: &[String]) -> Result<()> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let saved = match &args.layout {
        Some(_) => {
            let arrays = llmc_arrays(trace)?;
            save(path, &arrays)?;
            format!("{} of llm.c", show::plural(arrays.len(), "array"))
        }
        None => {
            save(path, &tensors(trace, &names)?)?;
            if names.is_empty() { "all tensors".into() } else { show::plural(names.len(), "tensor") }
        }
    };
    show::say(format_args!("saved {saved} to {}", path.display()));
    Ok(())
}

/// The tensors that --tensor names, as --head, --heads-first and --transpose want them.
fn asked_tensors(args: &Args, trace: &Trace) -> Result<(Vec<String>, Vec<NamedTensor>)> {
    let (mut names, mut tensors) = (vec![], vec![]);
    for asked in &args.tensor {
        let found = trace.matching(asked)?;
        let alone = found.len() == 1;
        let before = names.len();
        for name in found {
            let mut tensor = match trace.get(&name) {
                // of several that a pattern means, those without a gradient are left out
                Err(TraceError::NoGradient { .. }) if !alone => continue,
                tensor => tensor?,
            };
            if let Some(head) = args.head {
                tensor = one_head(&tensor, head)?;
            }
            let tensor = if args.heads_first { tensor.heads_first() } else { tensor };
            tensors.push(if args.transpose { tensor.transposed() } else { tensor });
            names.push(name);
        }
        if names.len() == before {
            bail!("no tensor that `{asked}` means has a gradient");
        }
    }
    Ok((names, tensors))
}

/// Looks up all that was asked for.
fn look(args: &Args, trace: &Trace, tokenizer: Option<&Tokenizer>) -> Result<Seen> {
    let (model, causal) = (trace.model(), trace.model().config.mask == Mask::Causal);
    let params: Vec<&str> = model.params.iter().map(|p| p.name.as_str()).collect();
    let (names, tensors) = asked_tensors(args, trace)?;
    let mut labels = Labels::default();
    if !tensors.is_empty() || draws(args) {
        labels = trace.labels(&|id| tokenizer.and_then(|t| t.piece(id).ok()).unwrap_or_else(|| id.to_string()));
        if !args.labels || tokenizer.is_none() {
            // what the mask hides is known without words
            (labels.tokens, labels.vocabulary) = (vec![], vec![]);
        }
    }
    let mut inputs = vec![];
    if names.iter().any(|name| name == "input") {
        let dense = dense(tokenizer);
        let other =
            dense.map(|dense| (format!("{} id", dense.full().name()), |id: u32| dense.ids().used()[id as usize]));
        let text = |id| piece(tokenizer, id);
        let text = (args.labels && tokenizer.is_some()).then_some(&text as &dyn Fn(u32) -> String);
        inputs = view::inputs(trace, text, other.as_ref().map(|(name, id)| (name.as_str(), id as &dyn Fn(u32) -> u32)));
    }
    let similar = match &args.similar {
        Some(token) => {
            let id = token_id(("--similar", token), tokenizer, model.config.vocab_size)?;
            Some((id, nearest_rows(&trace.get("embed.weight")?, id, NEAREST)))
        }
        None => None,
    };
    if args.masks && !causal {
        bail!("this model's mask is {}: it hides nothing, so there is no mask to print", model.config.mask);
    }
    let mut rows = trace.rows()?;
    let (mut gradients, mut layers) = (vec![], vec![]);
    if args.params {
        rows.extend(params.iter().map(|name| trace.row(name)).collect::<Result<Vec<_>, _>>()?);
    }
    if let Some(notation) = args.words.notation {
        rows = rows.into_iter().map(|row| row.in_notation(model, notation)).collect();
    }
    if args.backward {
        let of_params = gradients_of(trace, &params)?;
        layers = by_layer(model, &of_params);
        let names: Vec<String> = trace.names().collect();
        gradients = gradients_of(trace, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        gradients.extend(of_params.into_iter().filter(|_| args.params));
    }
    if args.heads_first {
        rows = rows.into_iter().map(SummaryRow::heads_first).collect();
    }
    let mut next = vec![];
    if args.next {
        let probs = trace.get("probs")?.values;
        next.extend(probs.chunks_exact(model.config.vocab_size).map(|probs| likeliest(probs, LIKELIEST)));
    }
    let window = (0..model.config.n_layer).map(|block| model.config.window_of(block)).max().unwrap_or(0);
    let masks = args.masks.then(|| table::masks(trace.batch().spans[0].rows, window));
    let plots = args.plot.iter().map(|asked| picture::plot(trace, asked, &labels)).collect::<Result<_, _>>()?;
    let drawn = |diagram: &Diagram| {
        let notation = args.words.notation.unwrap_or(diagram.notation());
        diagram.of_run(trace, &labels, notation)
    };
    let diagrams = args.diagram.iter().flatten().map(drawn).collect::<Result<_, _>>()?;
    Ok(Seen { rows, names, tensors, inputs, labels, gradients, layers, masks, next, similar, plots, diagrams })
}

fn to_json(args: &Args, trace: &Trace, seen: &Seen, tokenizer: Option<&Tokenizer>) -> Value {
    let (batch, length) = (trace.batch(), trace.batch().spans[0].rows);
    // of several sequences a list, of one itself
    let each = |of: &[Value]| match batch.spans.len() {
        1 => Value::from(of),
        _ => of.chunks(length).map(Value::from).collect(),
    };
    let ids = |ids: &mut dyn Iterator<Item = Option<u32>>| each(&ids.map(Value::from).collect::<Vec<_>>());
    let row = |r: &SummaryRow| {
        json!({ "name": r.name, "symbol": r.symbol, "formula": r.formula, "axes": r.letters, "shape": r.shape,
            "mean": r.mean, "deviation": r.deviation, "min": r.min, "max": r.max, "masked": r.masked, "nan": r.nan,
            "without_target": r.without_target })
    };
    let tensor = |(name, t): (&String, &NamedTensor)| {
        let mut tensor = json!({ "name": name, "axes": t.axes, "shape": t.shape, "values": t.values });
        if name == "input" {
            let target = |id: &u32| (*id != IGNORE).then_some(*id);
            tensor["targets"] = ids(&mut batch.targets.iter().map(target));
            if let Some(dense) = dense(tokenizer) {
                tensor["sparse"] = ids(&mut batch.tokens.iter().map(|id| Some(dense.ids().used()[*id as usize])));
            }
        }
        tensor
    };
    let text = |id: u32| tokenizer.and_then(|t| t.piece(id).ok());
    let mut all = json!({
        "tokens": ids(&mut batch.tokens.iter().copied().map(Some)),
        "rows": seen.rows.iter().map(row).collect::<Vec<_>>(),
        "tensors": seen.names.iter().zip(&seen.tensors).map(tensor).collect::<Vec<_>>(),
    });
    if !seen.plots.is_empty() {
        all["plots"] = json!(seen.plots);
    }
    if !seen.diagrams.is_empty() {
        all["diagrams"] = json!(seen.diagrams);
    }
    if args.listing {
        all["listing"] = trace.model().to_string().into();
    }
    if args.backward {
        let layer = |(name, norm): &(String, f64)| json!({ "name": name, "norm": norm });
        all["gradients"] = json!(seen.gradients);
        all["layers"] = seen.layers.iter().map(layer).collect();
    }
    if let Some(masks) = &seen.masks {
        // JSON has no infinity: what hides is null there
        let rows = |mask: &NamedTensor| mask.values.chunks_exact(length).map(|row| json!(row)).collect::<Value>();
        all["masks"] =
            json!({ "binary": rows(&masks.binary), "additive": rows(&masks.additive), "function": masks.function });
    }
    if let Some((id, near)) = &seen.similar {
        let one = |(id, cosine): &(u32, f64)| json!({ "id": id, "piece": text(*id), "cosine": cosine });
        all["similar"] = json!({ "id": id, "piece": text(*id), "nearest": near.iter().map(one).collect::<Value>() });
    }
    if args.next {
        let one = |(id, p): &(u32, f64)| json!({ "id": id, "piece": text(*id), "probability": p });
        all["next"] = each(&seen.next.iter().map(|best| best.iter().map(one).collect::<Value>()).collect::<Vec<_>>());
    }
    all
}

// ---- what is shown first

/// Whether nothing is asked for but a look, for which a model has an example where no prompt is given.
fn glances(args: &Args) -> bool {
    let run = args.model.is_some() || !args.prompt.is_empty() || args.tokens.is_some() || args.why.is_some();
    let otherwise =
        args.training.is_some() || args.heads_first || args.mask_file.is_some() || args.words.notation.is_some();
    run && !(tells(args) || draws(args) || otherwise)
}

/// Whether tensors, or tables of them, are asked for.
fn tells(args: &Args) -> bool {
    let named = !args.tensor.is_empty()
        || args.save.is_some()
        || args.similar.is_some()
        || args.json && args.why.is_none() && args.changes.intervene.is_none();
    named || args.table || args.params || args.listing || args.next || args.masks || args.backward
}

/// The text with the surprise of each token, what each block would have said, and what heads attend to.
fn first(args: &Args, ready: Ready) -> Result<()> {
    let Ready { model, backend, batch, steps, tokenizer } = ready;
    let width = args.width.map_or_else(show::table_width, usize::from);
    let causal = model.config.mask == Mask::Causal;
    let head = model.config.lm_head;
    let sequences = batch.spans.len();
    let trace = Trace::run_with_steps(&model, backend, &batch, steps.clone(), Keep::default())?;
    let mut text = String::new();
    let mut numbers = true;
    let prose = |text: &str| wrap(text, 0, width);
    for sequence in 0..sequences {
        let glance = glance(&trace, sequence, &|id| piece(tokenizer.as_ref(), id))?;
        let of = if sequences > 1 { format!("sequence {sequence}, ") } else { String::new() };
        let tokens = show::plural(glance.tokens.len(), "token");
        numbers &= glance.loss().is_none_or(f64::is_finite);
        let below = if causal { "surprising it was" } else { "unlikely it was in its own place" };
        let said = |loss: f64| format!(": loss {loss:.4} nats a token. Under each token how {below}, in nats:");
        text += &prose(&format!("{of}{tokens}{}", glance.loss().map(said).unwrap_or_default()));
        text += &format!("\n{}\n", glance.text(causal, width));
        if head {
            text +=
                &prose("What the head predicts after each block (the logit lens); * marks where it stops changing:");
            text += &format!("{}\n", glance.lens(width).text(width));
        }
        text += &prose("What each head attends to most, and with how much of its weight:");
        text += &format!("{}\n", glance.heads().whole(width));
    }
    text += &prose(
        "More: --why next says why it expects what it expects, --table lists every tensor, --tensor NAME prints one, \
         --open shows all in a browser.",
    );
    show::out(&text)?;
    let broken = |tensor: &NamedTensor| tensor.values.iter().any(|v| !v.is_finite());
    let (last, params) = (trace.last()?, trace.model().params.clone());
    let first = if numbers { Some(&*last.name).filter(|_| broken(&last)) } else { Some("loss") };
    sound((first, steps.as_deref()), &params, |name| trace.shared(name).map(|tensor| broken(&tensor)))
}

/// What is shown elsewhere than in the terminal, if that is asked for.
#[cfg(feature = "serve")]
fn elsewhere(args: &Args) -> Result<Option<()>> {
    let Some(dir) = args.model.as_deref().filter(|_| args.glass.open || args.glass.html.is_some()) else {
        return Ok(None);
    };
    if tells(args) || draws(args) {
        bail!(Usage("--open and --html show all in a page: leave out the flags that print, draw or save".into()));
    }
    if args.training.is_some() {
        bail!(Usage("--training: --open and --html show the model without dropout: leave it out".into()));
    }
    let checkpoint = open(args, dir)?;
    let prompts = prompts(args)?;
    let ids = args.tokens.as_deref().and_then(<[Vec<u32>]>::first).map(Vec::as_slice);
    if prompts.len() > 1 || args.tokens.as_ref().is_some_and(|all| all.len() > 1) {
        bail!(Usage("--open and --html show one sequence: give one --prompt".into()));
    }
    let (prompt, steps) = (prompts.first().map(String::as_str), args.changes.read()?);
    let run = glass::PageRun { prompt, ids, last: args.last, steps: steps.as_ref() };
    match &args.glass.html {
        Some(path) => glass::html(&args.glass, path, (dir, checkpoint), &run, &args.machine)?,
        None if ids.is_some() => bail!(Usage("--open begins with a text: give --prompt".into())),
        None => glass::open(&args.glass, (dir, checkpoint), &run, &args.machine)?,
    }
    Ok(Some(()))
}

// ---- pictures

fn draws(args: &Args) -> bool {
    !args.plot.is_empty() || !args.diagram.is_empty()
}

/// Whether there is something for a model to run on.
fn given(args: &Args) -> bool {
    args.tokens.is_some() || !args.prompt.is_empty() || args.data.is_some()
}

/// Whether only curves are asked for that need no model.
fn alone(args: &Args) -> bool {
    let curves = !args.plot.is_empty() && args.diagram.is_empty() && args.plot.iter().all(|asked| asked == "gelu");
    curves && args.model.is_none() && args.preset.preset.is_none() && !given(args) && !tells(args)
}

/// Diagrams of a model that need no run, if nothing else was asked for: of one sequence as long as the context.
fn shapes_only(args: &Args) -> Result<Option<Vec<String>>> {
    let model = args.model.is_some() != args.preset.preset.is_some();
    if given(args) || tells(args) || !args.plot.is_empty() || !model || args.diagram.is_empty() {
        return Ok(None);
    }
    let config = match &args.model {
        Some(dir) => args.preset.config_seen(&dir.display().to_string(), &open(args, dir)?.config)?,
        None => args.preset.config()?,
    };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: config.context_length })?;
    let drawn = |diagram: &Diagram| diagram.of_model(&model, args.words.notation.unwrap_or(diagram.notation()));
    Ok(args.diagram.iter().flatten().map(drawn).collect())
}

/// Where each picture goes, before anything is run: nowhere, or each to a file whose ending says how it is drawn.
fn plot_files(args: &Args) -> Result<Vec<PathBuf>> {
    let files = &args.plot_out;
    let pictures = args.plot.len() + args.diagram.len();
    if files.is_empty() {
        return Ok(vec![]);
    }
    if files.len() != pictures {
        let (files, pictures) = (show::plural(files.len(), "file"), show::plural(pictures, "picture"));
        bail!(Usage(format!(
            "{pictures} and {files} of --plot-out: give a --plot-out for each --plot, then for each --diagram"
        )));
    }
    for (i, path) in files.iter().enumerate() {
        let name = path.display();
        check_picture(path, i >= args.plot.len())?;
        if files[..i].contains(path) {
            bail!(Usage(format!("--plot-out {name} is given twice: two pictures need two files")));
        }
    }
    Ok(files.clone())
}

/// Writes pictures to their files, or shows them.
fn pictures(args: &Args, outs: &[PathBuf], plots: Vec<TensorPlot>, diagrams: Vec<String>) -> Result<()> {
    if outs.is_empty() {
        let width = args.width.map_or_else(show::width, usize::from);
        let options = TableOptions { width, ..TableOptions::default() };
        let maps: Vec<String> = plots.iter().map(|plot| plot.text(show::paint(), &options)).collect();
        // labels are spelled, and the rest is ours
        show::painted(&maps.join("\n"))?;
        return show::painted(&diagrams.concat());
    }
    let drawn = plots.iter().zip(outs).map(|(plot, path)| drawn(plot, path, args.palette));
    for (bytes, path) in drawn.chain(diagrams.into_iter().map(String::into_bytes)).zip(outs) {
        write_picture(path, &bytes)?;
    }
    Ok(())
}

// ---- what is made of tensors

/// A gradient on one line.
#[derive(serde::Serialize)]
struct Gradient {
    name: String,
    shape: Vec<usize>,
    norm: f64,
    mean: f64,
    min: f64,
    max: f64,
}

/// The gradients of those tensors that have one.
fn gradients_of(trace: &Trace, names: &[&str]) -> Result<Vec<Gradient>> {
    let mut all = vec![];
    for name in names {
        let tensor = match trace.get(&format!("{name}.grad")) {
            Err(TraceError::NoGradient { .. }) => continue,
            found => found?,
        };
        let values = || tensor.values.iter().map(|v| f64::from(*v));
        all.push(Gradient {
            name: name.to_string(),
            norm: values().map(|v| v * v).sum::<f64>().sqrt(),
            mean: values().sum::<f64>() / tensor.values.len().max(1) as f64,
            min: values().fold(f64::NAN, f64::min),
            max: values().fold(f64::NAN, f64::max),
            shape: tensor.shape,
        });
    }
    Ok(all)
}

/// The norm of each layer's parameter gradients together: a block's, a table's; and of all.
fn by_layer(model: &Model, params: &[Gradient]) -> Vec<(String, f64)> {
    let mut layers: Vec<(Module, f64)> = vec![];
    for gradient in params {
        let Some(layer) = model.param(&gradient.name).map(|param| param.module.layer()) else { continue };
        match layers.iter_mut().find(|(own, _)| *own == layer) {
            Some((_, squares)) => *squares += gradient.norm.powi(2),
            None => layers.push((layer, gradient.norm.powi(2))),
        }
    }
    let all = layers.iter().map(|(_, squares)| squares).sum();
    let layers = layers.into_iter().map(|(layer, squares)| (layer.name(), squares));
    layers.chain([("all".into(), all)]).map(|(name, squares): (String, f64)| (name, squares.sqrt())).collect()
}

fn one_head(tensor: &NamedTensor, head: usize) -> Result<NamedTensor> {
    let NamedTensor { name, axes, shape, .. } = tensor;
    let Some(at) = axes.iter().position(|axis| *axis == "head") else {
        bail!("`{name}` has no heads: its axes are [{}]; leave --head out", axes.join(" "));
    };
    let heads = shape[at];
    tensor.slice("head", head).with_context(|| format!("--head {head}: `{name}` has {heads} heads, 0 to {}", heads - 1))
}

// ---- text

/// What a named tensor is, in the notation asked for: `blocks.0.attn.hook_pattern [B heads T T]: softmax(wei) =
/// softmax(masked wei)`.
fn headline(row: SummaryRow) -> String {
    let says = if row.formula.is_empty() { row.symbol } else { row.formula };
    let says = if says.is_empty() { says } else { format!(": {says}") };
    format!("{} [{}]{says}\n", row.name, row.letters)
}

/// Formats a number as the summary does; NaN is spelled out.
fn short(v: f64) -> String {
    if v.is_nan() { v.to_string() } else { limpid_base::units::short(v) }
}

/// Lines of texts to look at.
fn grid(title: String, headers: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Grid {
    Grid { title, headers: headers.iter().map(|header| header.to_string()).collect(), rows: rows.collect() }
}
