//! What is shown without a run: letters, vocabularies, tokens, functions, parameters, llm.c's memory.

use super::views::{grid, lacks, said};
use super::{At, Figure, Live, Run, Set, ShapeRow, Show, WalkError, printed};
use limpid_base::plural::plural;
use limpid_base::units::commas;
use limpid_core::config::{Activation, Axis, Config, Constants, Positions, Settings};
use limpid_core::kernels::activate::reference::{derivative, value};
use limpid_core::model::tables::{sinusoidal, sinusoidal_one_based};
use limpid_core::model::{Mode, Model, Param, ParamStack};
use limpid_tokenizer::{self, Order, Tokenizer, TokenizerKind};
use limpid_trace::Labelled;
use limpid_trace::names::{self, Notation};
use limpid_trace::table::{self, short};
use limpid_trace::view::{Labels, Matrix, View, label};

type Views = Result<Vec<Figure>, WalkError>;

/// Tokens of a large vocabulary that are shown.
const MANY: usize = 36;

fn counted(n: usize) -> String {
    commas(n as u64)
}

fn joined(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

// ---- letters

pub(super) fn letters(live: &mut Live) -> Views {
    let ready = live.ready(&At::default())?;
    let row = |(letter, axis): &(String, String)| {
        let what = match axis.as_str() {
            "batch" => "sequences at once",
            "pos" => "tokens of a sequence",
            "d_model" => "features of a token: the width of the model",
            "d_embed" => "features of a row of the token table",
            "d_vocab" => "tokens of the vocabulary",
            "head" => "heads of attention",
            "d_head" => "features of a head",
            "d_ff" => "features inside the feed-forward network",
            "n_layer" => "blocks",
            "context_length" => "positions that the model has",
            _ => "",
        };
        vec![letter.clone(), ready.size(axis).to_string(), axis.clone(), what.into()]
    };
    let rows = live.walk().letters.iter().map(row).collect();
    Ok(vec![grid("", &["letter", "here", "limpid's name", "what it is"], rows)])
}

pub(super) fn notations(symbols: &[String], shapes: &[ShapeRow], of: &[String], run: &Run) -> Figure {
    let row = |(i, symbol): (usize, &String)| {
        let shape = shapes.iter().find(|row| row.symbol == *symbol);
        let (letters, sizes) = shape.map_or_else(Default::default, |row| (row.letters.clone(), joined(&row.sizes)));
        let name = of.get(i).cloned().unwrap_or_default();
        let bare = name.split(" (").next().unwrap_or_default(); // without a word on it
        let called = names::called(bare, run.config(), run.notation).filter(|_| run.notation != Notation::S0);
        vec![symbol.clone(), letters, sizes, name, called.unwrap_or_default()]
    };
    let mut rows: Vec<Vec<String>> = symbols.iter().enumerate().map(row).collect();
    let mut headers = vec!["symbol", "axes", "shape", "limpid's name", run.notation.name()];
    if rows.iter().all(|row| row[4].is_empty()) {
        headers.pop();
        rows.iter_mut().for_each(|row| row.truncate(4));
    }
    grid("", &headers, rows)
}

// ---- tokens

/// A tokenizer by name; one that is learned, from the text.
fn tokenizer_for(name: &str, text: &str) -> Result<Tokenizer, WalkError> {
    Ok(match name {
        "char" => Tokenizer::train(TokenizerKind::Char, text, Order::Sorted, &[])?,
        "word" => Tokenizer::train(TokenizerKind::Word, text, Order::FirstAppearance, &[])?,
        name => Tokenizer::named(name)?,
    })
}

pub(super) fn vocabulary(live: &mut Live, name: Option<&str>, base: u32) -> Views {
    let tokenizer = match name {
        Some(name) => Some(Tokenizer::named(name)?),
        None => live.ready(&At::default())?.tokenizer.clone(),
    };
    let Some(tokenizer) = tokenizer else { return lacks("this model has no tokenizer: its tokens are numbers") };
    let size = tokenizer.vocab_size();
    let ids: Vec<u32> = (0..size.min(MANY) as u32).collect();
    let pieces = tokenizer.pieces(&ids)?;
    let rows = ids.iter().zip(&pieces).map(|(id, piece)| vec![(id + base).to_string(), label(piece)]).collect();
    let shown = if size > MANY { format!(", of which {MANY} are shown") } else { String::new() };
    Ok(vec![grid("", &["id", "token"], rows), said(format!("V = {}{shown}", counted(size)))])
}

/// One row for each token.
fn cut(title: &str, tokenizer: &Tokenizer, ids: &[u32], base: u32) -> Result<Figure, WalkError> {
    let pieces = tokenizer.pieces(ids)?;
    let row = |(t, (id, piece)): (usize, (&u32, &String))| vec![t.to_string(), label(piece), (id + base).to_string()];
    let rows = ids.iter().zip(&pieces).enumerate().map(row).collect();
    let header = if base == 0 { "id".to_string() } else { format!("id, from {base}") };
    Ok(grid(title, &["position", "token", &header], rows))
}

/// Ids by number alone: `1 2 3`.
fn numbers(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

pub(super) fn tokens(live: &mut Live, show: &Show) -> Views {
    let Show::Tokens { of, sequence, base, tokenizer, tokenizers, text, golden, ids, statistics, at } = show else {
        return Ok(vec![]);
    };
    if *statistics {
        return used(live, tokenizer.as_deref());
    }
    if of.as_deref() == Some("corpus") {
        return corpus(live, at, *base);
    }
    if let (Some(text), false) = (text, tokenizers.is_empty()) {
        let row = |name: &String| {
            let tokenizer = tokenizer_for(name, text)?;
            let ids = tokenizer.encode(text)?;
            let pieces = tokenizer.pieces(&ids)?.iter().map(|piece| label(piece)).collect::<Vec<_>>().join(" ");
            Ok(vec![name.clone(), ids.len().to_string(), pieces, numbers(&ids)])
        };
        let rows = tokenizers.iter().map(row).collect::<Result<_, WalkError>>()?;
        return Ok(vec![grid(text, &["tokenizer", "tokens", "pieces", "ids"], rows)]);
    }
    if let Some(name) = tokenizer {
        let tokenizer = tokenizer_for(name, text.as_deref().unwrap_or_default())?;
        if let Some(text) = text {
            return Ok(vec![cut(text, &tokenizer, &tokenizer.encode(text)?, *base)?]);
        }
        let printed = golden.as_deref().and_then(printed::golden);
        if let Some(rows) =
            printed.and_then(|value| value.as_array()).filter(|rows| rows.iter().all(|row| row.is_object()))
        {
            let row = |(b, row): (usize, &serde_json::Value)| {
                let ids: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap_or_default();
                Ok(said(format!("{b}: {:?}", tokenizer.decode(&ids)?)))
            };
            return rows.iter().enumerate().map(row).collect();
        }
        let ids =
            printed.map_or_else(|| ids.clone(), |value| serde_json::from_value(value.clone()).unwrap_or_default());
        let text = tokenizer.decode(&ids)?;
        let again = tokenizer.encode(&text)?;
        let returns = if again == ids { "the same again" } else { "others" };
        let decoded = format!("decoded: {text:?}; encoded again: {}, {returns}", plural(again.len(), "id"));
        return Ok(vec![cut("", &tokenizer, &ids, *base)?, said(decoded)]);
    }
    live.run(at, |run| {
        let only = match sequence {
            Some(_) => Some(run.sequence(*sequence)?),
            None => None,
        };
        let shown = (0..run.sequences).filter(|b| only.is_none_or(|only| only == *b));
        let figure = |b: usize| {
            let row =
                |(t, id): (usize, &u32)| vec![t.to_string(), label(&run.ready.piece(*id)), (id + base).to_string()];
            let rows = run.ids(b).iter().enumerate().map(row).collect();
            let title = if run.sequences > 1 { format!("sequence {b}") } else { String::new() };
            let header = if *base == 0 { "id".to_string() } else { format!("id, from {base}") };
            grid(title, &["position", "token", &header], rows)
        };
        Ok(shown.map(figure).collect())
    })
}

/// The documents that the walk's model learns.
fn corpus(live: &mut Live, at: &At, base: u32) -> Views {
    let Some(toy) = live.walk().default_model().toy() else { return lacks("the text is no document's example") };
    let ready = live.ready(at)?;
    let row = |(n, text): (usize, &&str)| {
        let ids = ready.ids(text).map(|ids| ids.iter().map(|id| id + base).collect::<Vec<_>>());
        vec![n.to_string(), (*text).into(), ids.map_or_else(|_| "not in this vocabulary".into(), |ids| numbers(&ids))]
    };
    Ok(vec![grid("", &["sequence", "text", "ids"], toy.documents.iter().enumerate().map(row).collect())])
}

/// How many of a tokenizer's ids the walk's text uses.
fn used(live: &mut Live, name: Option<&str>) -> Views {
    let Some(toy) = live.walk().default_model().toy() else { return lacks("the text is no document's example") };
    let tokenizer = Tokenizer::named(name.unwrap_or(toy.tokenizer))?;
    let (text, mut ids) = (toy.documents.concat(), vec![]);
    for document in toy.documents {
        ids.extend(tokenizer.encode(document)?);
    }
    let found = limpid_tokenizer::statistics(&tokenizer, &text, &ids)?;
    let greatest = found.max_id.unwrap_or(0);
    let rows = [
        ("tokens of the text", counted(found.tokens)),
        ("different ones", counted(found.distinct)),
        ("the greatest id", format!("{} ({:?})", commas(greatest), found.max_piece.unwrap_or_default())),
        ("ids of the encoding", counted(tokenizer.vocab_size())),
        ("rows of this model's token table", counted(live.ready(&At::default())?.config.vocab_size)),
    ];
    Ok(vec![grid("", &["", "how many"], rows.map(|(what, n)| vec![what.to_string(), n]).to_vec())])
}

/// One-hot rows of a text.
pub(super) fn one_hot_of(tokenizer: &Tokenizer, text: &str) -> Views {
    let (ids, v) = (tokenizer.encode(text)?, tokenizer.vocab_size());
    let flat = table::one_hot(&ids, v);
    let tensor = Labelled { axes: vec!["batch", "pos", "d_vocab"], shape: vec![1, ids.len(), v], ..flat };
    let words = |ids: &[u32]| Ok::<_, WalkError>(tokenizer.pieces(ids)?.iter().map(|piece| label(piece)).collect());
    let every: Vec<u32> = (0..v as u32).collect();
    let labels = Labels { tokens: vec![words(&ids)?], vocabulary: words(&every)?, ..Labels::default() };
    let figure = |matrix: Matrix| {
        let tensor = format!("{} of {text:?}", matrix.tensor);
        Figure { decimals: 0, ..View::Matrix(Matrix { tensor, ..matrix }).into() }
    };
    Ok(tensor.matrices(&labels).map(figure).collect())
}

// ---- functions

/// The first rows of a table of positions that is computed.
pub(super) fn positions(config: &Config, kind: Positions, rows: usize) -> Views {
    let d = config.d_embed();
    let value = match kind {
        Positions::Sinusoidal => sinusoidal,
        Positions::SinusoidalOneBased => sinusoidal_one_based,
        _ => return lacks(format!("positions that are {kind} have no computed table")),
    };
    let values = (0..rows * d).map(|at| value(at / d, at % d, d) as f32).collect();
    let tensor = Labelled {
        name: kind.to_string(),
        axes: names::axes("pos_embed.weight", config),
        shape: vec![rows, d],
        values,
    };
    let figure = |matrix| Figure { caption: format!("positions {kind}"), ..View::Matrix(matrix).into() };
    Ok(tensor.matrices(&Labels::default()).map(figure).collect())
}

/// Places of a scan for a function's greatest or least value.
const SCAN: std::ops::RangeInclusive<i32> = -8000..=8000;

/// Where `f` is least: by a scan, then by thirds.
fn least(f: impl Fn(f64) -> f64) -> (f64, f64) {
    let places = SCAN.map(|i| f64::from(i) / 1000.0);
    let near = places.min_by(|a, b| f(*a).total_cmp(&f(*b))).unwrap_or(0.0);
    let (mut low, mut high) = (near - 1e-3, near + 1e-3);
    for _ in 0..60 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if f(a) < f(b) { high = b } else { low = a }
    }
    let x = f64::midpoint(low, high);
    (x, f(x))
}

pub(super) fn function(wanted: &[String], at: &[f64], [minimum, difference, slopes]: [bool; 3]) -> Views {
    let k = Constants::USUAL;
    let mut functions = vec![];
    for name in wanted {
        match Activation::ALL.iter().find(|f| f.name() == name) {
            Some(f) => functions.push(*f),
            None => return lacks(format!("there is no activation {name}")),
        }
    }
    let mut headers = vec!["x".to_string()];
    headers.extend(functions.iter().map(|f| f.name().to_string()));
    headers.extend(functions.iter().filter(|_| slopes).map(|f| format!("slope of {}", f.name())));
    let row = |x: &f64| {
        let values = functions.iter().map(|f| value(*f, k, *x));
        let slopes = functions.iter().filter(|_| slopes).map(|f| derivative(*f, k, *x));
        let cells = values.chain(slopes).map(|v| format!("{v:.6}"));
        [x.to_string()].into_iter().chain(cells).collect()
    };
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let mut all = vec![grid("", &headers, at.iter().map(row).collect())];
    if minimum {
        for f in functions.iter().filter(|f| f.name().starts_with("gelu")) {
            let (x, y) = least(|x| value(*f, k, x));
            all.push(said(format!("{} is least at x = {x:.6}: {y:.6}", f.name())));
        }
    }
    if let (true, [first, second, ..]) = (difference, &functions[..]) {
        let off = |x: f64| (value(*first, k, x) - value(*second, k, x)).abs();
        let (x, y) = least(|x| -off(x));
        all.push(said(format!(
            "{} and {} differ most at x = ±{:.2}: by {:.6}",
            first.name(),
            second.name(),
            x.abs(),
            -y
        )));
    }
    Ok(all)
}

// ---- parameters

fn built(config: &Config) -> Result<Model, WalkError> {
    Ok(Model::new(config, Mode::Inspect { batch: 1, context: 1 })?)
}

pub(super) fn params(live: &mut Live, show: &Show) -> Views {
    let Show::Params { on, preset, names, columns, sizes, groups, formula, list } = show else { return Ok(vec![]) };
    if !names.is_empty() {
        let row = |name: &String| {
            let config = Config::preset(name)?;
            let parameters = built(&config)?.parameter_count();
            let cell = |column: &String| if column == "n_layer" { config.n_layer } else { parameters };
            Ok([vec![name.clone()], columns.iter().map(|column| counted(cell(column))).collect()].concat())
        };
        let headers = columns.iter().map(|column| if column == "n_layer" { "blocks" } else { column });
        let headers: Vec<&str> = ["model"].into_iter().chain(headers).collect();
        return Ok(vec![grid("", &headers, names.iter().map(row).collect::<Result<_, WalkError>>()?)]);
    }
    let at = At { on: on.clone(), ..At::default() };
    let config = match preset {
        Some(name) => Config::preset(name)?,
        None => live.ready(&at)?.config.clone(),
    };
    let model = built(&config)?;
    let mut all = vec![];
    let what = preset.clone().or(on.clone()).unwrap_or_else(|| "this model".into());
    if *formula {
        all.push(lambda(&config, &model));
    }
    if *groups {
        let total = model.parameter_count();
        let row = |(name, n): &(&str, usize)| {
            vec![name.to_string(), counted(*n), format!("{:.1}%", 100.0 * *n as f64 / total as f64)]
        };
        let mut rows: Vec<Vec<String>> = model.groups().iter().map(row).collect();
        rows.push(vec!["total".into(), counted(total), String::new()]);
        all.push(grid(format!("parameters of {what}"), &["group", "parameters", "share"], rows));
    }
    if !sizes.is_empty() {
        let row = |v: &usize| {
            Ok(vec![counted(*v), counted(built(&Config { vocab_size: *v, ..config.clone() })?.parameter_count())])
        };
        let rows = sizes.iter().map(row).collect::<Result<_, WalkError>>()?;
        all.push(grid("by the size of the vocabulary", &["rows of the token table", "parameters"], rows));
    }
    if *list {
        all.push(changes(live, &at, &model)?);
    }
    Ok(all)
}

/// λ of "The Formulated GPT-2", line by line, beside what is counted.
fn lambda(c: &Config, model: &Model) -> Figure {
    let (v, n, h, f, l, a, d) = (c.vocab_size, c.context_length, c.d_model, c.d_ff, c.n_layer, c.n_head, c.d_head());
    let found = |group: &str| model.groups().iter().find(|(name, _)| *name == group).map_or(0, |(_, n)| *n);
    let lines = [
        ("V·H", v * h, "token embedding"),
        ("n·H", n * h, "position embedding"),
        ("L·(A·3HD + AD·H)", l * (a * 3 * h * d + a * d * h), "attention"),
        ("L·(HF + F + FH + H)", l * (h * f + f + f * h + h), "feed-forward"),
        ("L·4H", l * 4 * h, "norms"),
    ];
    let row = |(formula, n, group): &(&str, usize, &str)| {
        vec![formula.to_string(), counted(*n), group.to_string(), counted(found(group))]
    };
    let mut rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    let sum: usize = lines.iter().map(|line| line.1).sum();
    rows.push(vec!["λ".into(), counted(sum), "all".into(), counted(model.parameter_count())]);
    grid("", &["formula", "gives", "group", "counted"], rows)
}

/// Every parameter, and how much training changed it.
fn changes(live: &mut Live, at: &At, model: &Model) -> Result<Figure, WalkError> {
    let ready = live.ready(at)?;
    let row = |param: &Param| {
        let new = ready.values(model, param, None)?;
        let changed = match ready.began {
            Some(_) => {
                let old = ready.values(model, param, ready.began)?;
                let squares: f64 = new.iter().zip(&old).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                short((squares / new.len() as f64).sqrt())
            }
            None => "not known".into(),
        };
        Ok(vec![param.name.clone(), joined(&param.shape()), counted(new.len()), changed])
    };
    let mut rows = model.params.iter().map(row).collect::<Result<Vec<_>, WalkError>>()?;
    rows.push(vec!["all".into(), String::new(), counted(model.parameter_count()), String::new()]);
    Ok(grid("", &["parameter", "shape", "numbers", "changed by (root mean square)"], rows))
}

// ---- llm.c's memory

/// llm.c's activations, in its order.
const ACTS: [&str; 23] = [
    "encoded",
    "ln1",
    "ln1_mean",
    "ln1_rstd",
    "qkv",
    "atty",
    "preatt",
    "att",
    "attproj",
    "residual2",
    "ln2",
    "ln2_mean",
    "ln2_rstd",
    "fch",
    "fch_gelu",
    "fcproj",
    "residual3",
    "lnf",
    "lnf_mean",
    "lnf_rstd",
    "logits",
    "probs",
    "losses",
];

pub(super) fn layout(run: &Run, of: &str, preset: Option<&str>, sizes: &Set, slices: bool) -> Views {
    let mut config = match preset {
        Some(name) => Config::preset(name)?,
        None => run.config().clone(),
    };
    for (name, value) in &sizes.0 {
        config.set(name, value)?;
    }
    let model = built(&config)?;
    let called = |name: &str| names::called_within(name, &config, Notation::Llmc, Some(0));
    if slices {
        let named = |param: &&Param| names::lookup(&param.name).is_some_and(|(entry, _)| entry.llmc == of);
        let row = |(l, param): (usize, &Param)| {
            let (n, shape) = (param.region.len(), joined(&param.shape()));
            vec![param.name.clone(), shape, counted(l * n), counted((l + 1) * n - 1)]
        };
        let rows: Vec<Vec<String>> = model.params.iter().filter(named).enumerate().map(row).collect();
        if rows.is_empty() {
            return lacks(format!("this model has nothing that llm.c calls {of}"));
        }
        return Ok(vec![grid(format!("{of}, layer by layer"), &["parameter", "shape", "from", "to"], rows)]);
    }
    if of == "parameters" {
        let mut from = 0; // llm.c leaves no room between two tensors
        let row = |stack: &ParamStack| {
            let first = stack.name.replace("{i}", "0");
            let own = names::axes(&first, &config);
            let axes: Vec<&str> = stack.blocks.map(|_| "n_layer").into_iter().chain(own).collect();
            let shape: Vec<usize> = stack.blocks.into_iter().chain(stack.shape.clone()).collect();
            // the one table by positions has a row for every place that may come
            let letters = Notation::Llmc.letters(&axes, &config).replace('T', "maxT");
            let called = called(&first).unwrap_or_default();
            from += stack.count;
            let at = counted(from - stack.count);
            vec![called, letters, joined(&shape), counted(stack.count), at, stack.name.clone()]
        };
        let mut rows: Vec<Vec<String>> = model.layout().iter().map(row).collect();
        let total = counted(model.parameter_count());
        rows.push(["all", "", "", &total, "", ""].map(String::from).to_vec());
        let title = preset.map_or(String::new(), |name| format!("{name}, V = {}", counted(config.vocab_size)));
        return Ok(vec![grid(title, &["llm.c", "axes", "shape", "numbers", "from", "limpid"], rows)]);
    }
    let (mut rows, mut total) = (vec![], 0);
    for name in ACTS {
        let is = |llmc: &str| llmc.trim_start_matches("1/") == name;
        let Some(entry) = names::TABLE.iter().find(|entry| is(entry.llmc)) else { continue };
        let first = entry.name.replace("{i}", "0");
        let Ok(tensor) = run.get(&first) else {
            rows.push([name, "", "", "0", "this model has none"].map(String::from).to_vec());
            continue;
        };
        let tensor = if name == "atty" { merged(tensor) } else { tensor };
        let inside = first != entry.name;
        let mut axes: Vec<&str> = tensor.axes.clone();
        axes.retain(|axis| *axis != "1");
        let mut shape: Vec<usize> =
            tensor.axes.iter().zip(&tensor.shape).filter(|(axis, _)| **axis != "1").map(|(_, n)| *n).collect();
        if inside {
            axes.insert(0, "n_layer");
            shape.insert(0, config.n_layer);
        }
        let count: usize = shape.iter().product();
        total += count;
        rows.push(vec![
            name.into(),
            Notation::Llmc.letters(&axes, &config),
            joined(&shape),
            counted(count),
            if entry.llmc == name { entry.name.into() } else { format!("1 / {}", entry.name) },
        ]);
    }
    rows.push(vec!["all".into(), String::new(), String::new(), counted(total), String::new()]);
    Ok(vec![grid("", &["llm.c", "axes", "shape", "numbers", "limpid"], rows)])
}

/// The context as llm.c keeps it: heads side by side.
fn merged(tensor: Labelled) -> Labelled {
    let Labelled { name, shape, values, .. } = tensor;
    let shape = vec![shape[0], shape[1], shape[2..].iter().product()];
    Labelled { name, axes: vec!["batch", "pos", "d_model"], shape, values }
}

// ---- lessons

pub(super) fn lessons(claims: &[(String, String)]) -> Figure {
    let row = |(claim, lesson): &(String, String)| {
        vec![claim.clone(), if lesson.is_empty() { "none".into() } else { lesson.clone() }]
    };
    grid("", &["what is claimed", "lessons"], claims.iter().map(row).collect())
}
