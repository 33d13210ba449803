//! What is shown without a run: letters, vocabularies, tokens, functions, parameters, llm.c's memory.

use super::parts::{Views, grid, lacks, said, without_empty_end};
use super::{At, Figure, Live, ParamsShown, Result, Run, Set, ShapeRow, TokensShown, WalkError, printed};
use limpid_base::plural::plural;
use limpid_base::units::commas;
use limpid_base::units::short;
use limpid_core::config::{Activation, Axis, Config, Constants, Positions, Settings};
use limpid_core::kernels::activate::reference::{derivative, value};
use limpid_core::model::tables::{sinusoidal, sinusoidal_one_based};
use limpid_core::model::{Mode, Model, Param, ParamStack};
use limpid_draw::table;
use limpid_draw::view::{Matrix, View, matrices};
use limpid_tokenizer::{self, Order, Tokenizer, TokenizerKind};
use limpid_trace::NamedTensor;
use limpid_trace::labels::{Labels, label};
use limpid_trace::names::{self, Notation};
use std::iter;

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
            "kv_head" => "heads of keys and values",
            "d_head" if letter == "d_q" => "features of a head's query",
            "d_head" => "features of a head",
            "d_v" => "features of a head's value",
            "d_ff" => "features inside the feed-forward network",
            "n_layer" => "blocks",
            "context_length" => "positions that the model has",
            _ => "",
        };
        row![letter, ready.size(axis), axis, what]
    };
    let walk = live.walk();
    // sizes of their own, for which the document has no letter
    let other = [("kv_head", "head"), ("d_v", "d_head")].into_iter().filter(|(own, usual)| {
        ready.size(own) != ready.size(usual) && walk.letters.iter().all(|(_, axis)| axis != own)
    });
    let other: Vec<_> = other.map(|(own, _)| (walk.notation.letter(own).to_string(), own.to_string())).collect();
    let rows = walk.letters.iter().chain(&other).map(row);
    Ok(vec![grid("", ["letter", "here", "limpid's name", "what it is"], rows)])
}

pub(super) fn notations(symbols: &[String], shapes: &[ShapeRow], of: &[String], run: &Run) -> Figure {
    let row = |(i, symbol): (usize, &String)| {
        // several symbols of the document's row may differ in this model
        let parts: Vec<&str> = symbol.split(", ").collect();
        let own = |row: &&ShapeRow| row.symbol == *symbol || row.symbol.split(", ").all(|part| parts.contains(&part));
        let mut rows: Vec<&ShapeRow> = shapes.iter().filter(own).collect();
        rows.dedup_by(|a, b| a.sizes == b.sizes);
        let each = |of: &dyn Fn(&ShapeRow) -> String| rows.iter().map(|row| of(row)).collect::<Vec<_>>().join(" / ");
        let (letters, sizes) = (each(&|row| row.letters.clone()), each(&|row| joined(&row.sizes)));
        let name = of.get(i).cloned().unwrap_or_default();
        let bare = name.split(" (").next().unwrap_or_default(); // without a word on it
        let called = names::called(bare, run.config(), run.notation).filter(|_| run.notation != Notation::S0);
        row![symbol, letters, sizes, name, called.unwrap_or_default()]
    };
    let headers = ["symbol", "axes", "shape", "limpid's name", run.notation.name()];
    without_empty_end(String::new(), headers, symbols.iter().enumerate().map(row).collect())
}

// ---- tokens

/// A tokenizer by name; one that is learned, from the text.
fn tokenizer_for(name: &str, text: &str) -> Result<Tokenizer> {
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
    let rows = ids.iter().zip(&pieces).map(|(id, piece)| row![id + base, label(piece)]);
    let shown = if size > MANY { format!(", of which {MANY} are shown") } else { String::new() };
    Ok(vec![grid("", ["id", "token"], rows), said(format!("V = {}{shown}", counted(size)))])
}

/// One row for each token.
fn cut(title: &str, pieces: &[String], ids: &[u32], base: u32) -> Figure {
    let rows = ids.iter().zip(pieces).enumerate().map(|(t, (id, piece))| row![t, label(piece), id + base]);
    let header = if base == 0 { "id".to_string() } else { format!("id, from {base}") };
    grid(title, ["position", "token", &header], rows)
}

/// Ids by number alone: `1 2 3`.
fn numbers(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

pub(super) fn tokens(live: &mut Live, wanted: &TokensShown) -> Views {
    let TokensShown { of, sequence, base, tokenizer, tokenizers, text, at, .. } = wanted;
    if wanted.statistics {
        return used(live, tokenizer.as_deref());
    }
    if of.as_deref() == Some("corpus") {
        return corpus(live, at, *base);
    }
    match (text, tokenizer) {
        (Some(text), _) if !tokenizers.is_empty() => {
            let row = |name: &String| {
                let tokenizer = tokenizer_for(name, text)?;
                let ids = tokenizer.encode(text)?;
                let pieces = tokenizer.pieces(&ids)?.iter().map(|piece| label(piece)).collect::<Vec<_>>().join(" ");
                Ok(row![name, ids.len(), pieces, numbers(&ids)])
            };
            let rows = tokenizers.iter().map(row).collect::<Result<Vec<_>>>()?;
            Ok(vec![grid(text, ["tokenizer", "tokens", "pieces", "ids"], rows)])
        }
        (Some(text), Some(name)) => {
            let tokenizer = tokenizer_for(name, text)?;
            let ids = tokenizer.encode(text)?;
            Ok(vec![cut(text, &tokenizer.pieces(&ids)?, &ids, *base)])
        }
        (None, Some(name)) => decoded(&tokenizer_for(name, "")?, wanted),
        (_, None) => live.run(at, |run| {
            let only = sequence.map(|_| run.sequence(*sequence)).transpose()?;
            let figure = |b: usize| {
                let pieces: Vec<String> = run.ids(b).iter().map(|id| run.ready.piece(*id)).collect();
                let title = if run.sequences > 1 { format!("sequence {b}") } else { String::new() };
                cut(&title, &pieces, run.ids(b), *base)
            };
            Ok((0..run.sequences).filter(|b| only.is_none_or(|only| only == *b)).map(figure).collect())
        }),
    }
}

/// Ids as a tokenizer decodes them, given or printed; of several printed lists the texts alone.
fn decoded(tokenizer: &Tokenizer, wanted: &TokensShown) -> Views {
    let list = |value: &serde_json::Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap_or_default() };
    let printed = wanted.golden.as_deref().and_then(printed::golden);
    let rows = printed.and_then(|value| value.as_array()).filter(|rows| rows.iter().all(|row| row.is_object()));
    if let Some(rows) = rows {
        let row = |(b, row): (usize, &serde_json::Value)| {
            Ok(said(format!("{b}: {:?}", tokenizer.decode(&list(&row["ids"]))?)))
        };
        return rows.iter().enumerate().map(row).collect();
    }
    let ids = printed.map_or_else(|| wanted.ids.clone(), list);
    let text = tokenizer.decode(&ids)?;
    let again = tokenizer.encode(&text)?;
    let returns = if again == ids { "the same again" } else { "others" };
    let sentence = format!("decoded: {text:?}; encoded again: {}, {returns}", plural(again.len(), "id"));
    Ok(vec![cut("", &tokenizer.pieces(&ids)?, &ids, wanted.base), said(sentence)])
}

/// The documents that the walk's model learns.
fn corpus(live: &mut Live, at: &At, base: u32) -> Views {
    let Some(toy) = live.walk().default_model().toy() else { return lacks("the text is no document's example") };
    let ready = live.ready(at)?;
    let row = |(n, text): (usize, &&str)| {
        let ids = ready.ids(text).map(|ids| ids.iter().map(|id| id + base).collect::<Vec<_>>());
        row![n, text, ids.map_or_else(|_| "not in this vocabulary".into(), |ids| numbers(&ids))]
    };
    Ok(vec![grid("", ["sequence", "text", "ids"], toy.documents.iter().enumerate().map(row))])
}

/// How many of a tokenizer's ids the walk's text uses.
fn used(live: &mut Live, name: Option<&str>) -> Views {
    let Some(toy) = live.walk().default_model().toy() else { return lacks("the text is no document's example") };
    let tokenizer = Tokenizer::named(name.unwrap_or(toy.tokenizer))?;
    let text = toy.documents.concat();
    let mut ids = vec![];
    for document in toy.documents {
        ids.extend(tokenizer.encode(document)?);
    }
    let found = limpid_tokenizer::statistics(&tokenizer, &text, &ids)?;
    let greatest = found.max_id.unwrap_or(0);
    let greatest = format!("{} ({:?})", commas(greatest), found.max_piece.unwrap_or_default());
    let rows = [
        row!["tokens of the text", counted(found.tokens)],
        row!["different ones", counted(found.distinct)],
        row!["the greatest id", greatest],
        row!["ids of the encoding", counted(tokenizer.vocab_size())],
        row!["rows of this model's token table", counted(live.ready(&At::default())?.config.vocab_size)],
    ];
    Ok(vec![grid("", ["", "how many"], rows)])
}

/// One-hot rows of a text.
pub(super) fn one_hot_of(tokenizer: &Tokenizer, text: &str) -> Views {
    let (ids, v) = (tokenizer.encode(text)?, tokenizer.vocab_size());
    let flat = table::one_hot(&ids, v);
    let tensor = NamedTensor { axes: vec!["batch", "pos", "d_vocab"], shape: vec![1, ids.len(), v], ..flat };
    let words = |ids: &[u32]| Ok::<_, WalkError>(tokenizer.pieces(ids)?.iter().map(|piece| label(piece)).collect());
    let every: Vec<u32> = (0..v as u32).collect();
    let labels = Labels { tokens: vec![words(&ids)?], vocabulary: words(&every)?, ..Labels::default() };
    let figure = |matrix: Matrix| {
        let tensor = format!("{} of {text:?}", matrix.tensor);
        Figure { decimals: 0, ..View::Matrix(Matrix { tensor, ..matrix }).into() }
    };
    Ok(matrices(&tensor, &labels).map(figure).collect())
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
    let tensor = NamedTensor {
        name: kind.to_string(),
        axes: names::axes("pos_embed.weight", config),
        shape: vec![rows, d],
        values,
    };
    let figure = |matrix| Figure { caption: format!("positions {kind}"), ..View::Matrix(matrix).into() };
    Ok(matrices(&tensor, &Labels::default()).map(figure).collect())
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

pub(super) fn function(k: Constants, wanted: &[String], at: &[f64], [minimum, difference, slopes]: [bool; 3]) -> Views {
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
    let mut all = vec![grid("", headers, at.iter().map(row))];
    let usual = Constants { leak: k.leak, ..Constants::USUAL };
    if functions.contains(&Activation::GeluTanh) && k != usual {
        all.push(said(format!("gelu-tanh is this model's, with α = {}, β = {}, γ = {}", k.alpha, k.beta, k.gamma)));
    }
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

fn built(config: &Config) -> Result<Model> {
    Ok(Model::new(config, Mode::Inspect { batch: 1, context: 1 })?)
}

pub(super) fn params(live: &mut Live, wanted: &ParamsShown) -> Views {
    let ParamsShown { on, preset, names, columns, sizes, groups, formula, list } = wanted;
    if !names.is_empty() {
        let row = |name: &String| {
            let config = Config::preset(name)?;
            let parameters = built(&config)?.parameter_count();
            let cell = |column: &String| if column == "n_layer" { config.n_layer } else { parameters };
            Ok(iter::once(name.clone()).chain(columns.iter().map(|column| counted(cell(column)))).collect())
        };
        let headers = columns.iter().map(|column| if column == "n_layer" { "blocks" } else { column });
        let rows = names.iter().map(row).collect::<Result<Vec<_>>>()?;
        return Ok(vec![grid("", iter::once("model").chain(headers), rows)]);
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
        let share = |n: usize| format!("{:.1}%", 100.0 * n as f64 / total as f64);
        let rows = model.groups().into_iter().map(|(name, n)| row![name, counted(n), share(n)]);
        let rows = rows.chain([row!["total", counted(total), ""]]);
        all.push(grid(format!("parameters of {what}"), ["group", "parameters", "share"], rows));
    }
    if !sizes.is_empty() {
        let row = |v: &usize| {
            let model = built(&Config { vocab_size: *v, ..config.clone() })?;
            Ok(row![counted(*v), counted(model.parameter_count())])
        };
        let rows = sizes.iter().map(row).collect::<Result<Vec<_>>>()?;
        all.push(grid("by the size of the vocabulary", ["rows of the token table", "parameters"], rows));
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
    let sum: usize = lines.iter().map(|line| line.1).sum();
    let rows = lines.into_iter().map(|(formula, n, group)| row![formula, counted(n), group, counted(found(group))]);
    let all = row!["λ", counted(sum), "all", counted(model.parameter_count())];
    grid("", ["formula", "gives", "group", "counted"], rows.chain([all]))
}

/// Every parameter, and how much training changed it.
fn changes(live: &mut Live, at: &At, model: &Model) -> Result<Figure> {
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
        Ok(row![param.name, joined(&param.shape()), counted(new.len()), changed])
    };
    let mut rows = model.params.iter().map(row).collect::<Result<Vec<_>>>()?;
    rows.push(row!["all", "", counted(model.parameter_count()), ""]);
    Ok(grid("", ["parameter", "shape", "numbers", "changed by (root mean square)"], rows))
}

// ---- llm.c's memory

/// llm.c's activations, in its order.
const ACTS: &str = "encoded ln1 ln1_mean ln1_rstd qkv atty preatt att attproj residual2 ln2 ln2_mean ln2_rstd fch \
                    fch_gelu fcproj residual3 lnf lnf_mean lnf_rstd logits probs losses";

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
            let n = param.region.len();
            let shape = joined(&param.shape());
            row![param.name, shape, counted(l * n), counted((l + 1) * n - 1)]
        };
        let rows: Vec<_> = model.params.iter().filter(named).enumerate().map(row).collect();
        if rows.is_empty() {
            return lacks(format!("this model has nothing that llm.c calls {of}"));
        }
        return Ok(vec![grid(format!("{of}, layer by layer"), ["parameter", "shape", "from", "to"], rows)]);
    }
    if of == "parameters" {
        let mut from = 0; // llm.c leaves no room between two tensors
        let row = |stack: &ParamStack| {
            let first = stack.name.replace("{i}", "0");
            let own = names::axes(&first, &config);
            let axes: Vec<&str> = stack.blocks.map(|_| "n_layer").into_iter().chain(own).collect();
            let shape: Vec<usize> = stack.blocks.into_iter().chain(stack.shape.clone()).collect();
            let letters = Notation::Llmc.letters(&first, &axes, &config);
            let called = called(&first).unwrap_or_default();
            from += stack.count;
            row![called, letters, joined(&shape), counted(stack.count), counted(from - stack.count), stack.name]
        };
        let mut rows: Vec<_> = model.layout().iter().map(row).collect();
        rows.push(row!["all", "", "", counted(model.parameter_count()), "", ""]);
        let title = preset.map_or(String::new(), |name| format!("{name}, V = {}", counted(config.vocab_size)));
        return Ok(vec![grid(title, ["llm.c", "axes", "shape", "numbers", "from", "limpid"], rows)]);
    }
    let mut rows = vec![];
    let mut total = 0;
    for name in ACTS.split(' ') {
        let is = |llmc: &str| llmc.trim_start_matches("1/") == name;
        let Some(entry) = names::TABLE.iter().find(|entry| is(entry.llmc)) else { continue };
        let first = entry.name.replace("{i}", "0");
        let Ok(tensor) = run.get(&first) else {
            rows.push(row![name, "", "", "0", "this model has none"]);
            continue;
        };
        let tensor = if name == "atty" { merged(tensor) } else { tensor };
        let own = tensor.axes.iter().copied().zip(tensor.shape).filter(|(axis, _)| *axis != "1");
        let layers = (first != entry.name).then_some(("n_layer", config.n_layer));
        let (axes, shape): (Vec<&str>, Vec<usize>) = layers.into_iter().chain(own).unzip();
        let count: usize = shape.iter().product();
        total += count;
        let limpid = if entry.llmc == name { entry.name.into() } else { format!("1 / {}", entry.name) };
        rows.push(row![name, Notation::Llmc.letters(&first, &axes, &config), joined(&shape), counted(count), limpid]);
    }
    rows.push(row!["all", "", "", counted(total), ""]);
    Ok(vec![grid("", ["llm.c", "axes", "shape", "numbers", "limpid"], rows)])
}

/// The context as llm.c keeps it: heads side by side.
fn merged(tensor: NamedTensor) -> NamedTensor {
    let NamedTensor { name, shape, values, .. } = tensor;
    let shape = vec![shape[0], shape[1], shape[2..].iter().product()];
    NamedTensor { name, axes: vec!["batch", "pos", "features"], shape, values }
}

// ---- lessons

pub(super) fn lessons(claims: &[(String, String)]) -> Figure {
    let lesson = |lesson: &String| if lesson.is_empty() { "none".into() } else { lesson.clone() };
    grid("", ["what is claimed", "lessons"], claims.iter().map(|(claim, of)| row![claim, lesson(of)]))
}
