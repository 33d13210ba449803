//! What is shown of a run: tensors, shapes, losses, what comes next. `facts` has what needs no run.

use super::parts::{Met, Views, grid, lacks, said, verdict, without_empty_end};
use super::plain::wide;
use super::{
    At, Figure, Line, Live, Picture, Result, Run, Show, Shown, TensorPart, WalkError, WalkStep, equal, facts, printed,
    worked,
};
use limpid_base::plural::plural;
use limpid_base::units::short;
use limpid_core::config::{Axis, Config, ConfigError, Mask, Positions};
use limpid_core::model::{Model, Module, in_block};
use limpid_core::optimizer::Method;
use limpid_core::optimizer::adamw::reference::update;
use limpid_draw::diagram::Diagram;
use limpid_draw::picture::plot;
use limpid_draw::table;
use limpid_draw::view::{HeatScale, Matrix, View, matrices};
use limpid_tokenizer::Tokenizer;
use limpid_trace::labels::label;
use limpid_trace::names::{self, Notation};
use limpid_trace::{NamedTensor, SummaryRow};
use limpid_train::Recipe;
use std::iter;

/// Tokens that are named after each token.
const LIKELIEST: usize = 5;
/// Rows of a vocabulary that are shown whole; of a larger one those of the texts.
const MANY: usize = 256;

impl Live {
    /// A step, live. The first on a model trains or opens it. What a model of another kind lacks is said where it would
    /// be shown.
    ///
    /// # Errors
    /// If a model cannot be made, opened or run.
    pub fn step(&mut self, step: &WalkStep) -> Result<Shown> {
        let number = self.walk().steps.iter().position(|own| own.id == step.id).map_or(0, |at| at + 1);
        if self.is_other() {
            self.ready(&At::default())?; // what is wrong with the user's model or texts is no step's
        }
        let step = &self.fitted(step)?;
        let mut figures: Vec<Figure> = vec![];
        for show in &step.views {
            match self::show(self, step, show) {
                Ok(shown) => figures.extend(shown),
                Err(error) => figures.push(self.lacking(error)?),
            }
        }
        // a view of them has them
        let listed = step.views.iter().any(|show| matches!(show, Show::Notations { .. }));
        let shapes = if listed { vec![] } else { self.shapes(step)? };
        let checks = self.checks(step)?;
        let mut notes = if number == 1 { self.other_texts()? } else { vec![] };
        notes
            .extend(self.compared()?.iter().filter(|(_, steps)| steps.contains(&number)).map(|(line, _)| line.clone()));
        Ok(Shown { number, step: step.clone(), shapes, figures, checks, notes })
    }
}

/// One view of a step.
pub(super) fn show(live: &mut Live, step: &WalkStep, show: &Show) -> Views {
    let default = At::default();
    match show {
        Show::Worked { work, at } => worked::worked(live, work, at),
        Show::Equal { what, at } => equal::equal(live, what, at),
        Show::Letters => facts::letters(live),
        Show::Vocabulary { tokenizer, base } => facts::vocabulary(live, tokenizer.as_deref(), *base),
        Show::Tokens(wanted) => facts::tokens(live, wanted),
        Show::OneHot { tokenizer, text, sequence } => match (tokenizer, text) {
            (Some(tokenizer), Some(text)) => facts::one_hot_of(&Tokenizer::named(tokenizer)?, text),
            _ => live.run(&default, |run| one_hot(run, *sequence)),
        },
        Show::Table { of, targets: true, at, .. } if of == "input" => live.run(at, |run| Ok(targets(run))),
        Show::Table { of, sparse: true, at, .. } if of == "input" => live.run(at, |run| sparse(run)),
        Show::Table { of, part, at, .. } => live.run(at, |run| figures(run, run.get(of)?, part, at, false)),
        Show::Heat { of, at, .. } if of == "similarity" => live.run(at, |run| similarity(run, at)),
        Show::Heat { of, at, .. } if of == "position-similarity" => live.run(at, |run| position_similarity(run)),
        Show::Heat { of, part, at } => live.run(at, |run| figures(run, run.get(of)?, part, at, true)),
        Show::Positions { kind, rows } => live.run(&default, |run| facts::positions(run.config(), *kind, *rows)),
        Show::Masks { forms, n } => live.run(&default, |run| masks(run, forms, *n)),
        Show::Printed { golden, of, decimals, at } => live.run(at, |run| as_printed(run, golden, of, *decimals, at)),
        Show::Function { names, at, minimum, difference, slopes } => {
            let k = live.ready(&default)?.config.activation_constants();
            facts::function(k, names, at, [*minimum, *difference, *slopes])
        }
        Show::Shapes { of, by_position, formulas, about, at } => {
            live.run(at, |run| Ok(shapes(run, of, [*by_position, *formulas, *about], at)))
        }
        Show::Lines { rows } => live.run(&default, |run| Ok(lines(run, rows))),
        Show::Listing { one_block } => live.run(&default, |run| Ok(vec![listing(run.trace.model(), *one_block)])),
        Show::Notations { of } => {
            let shapes = live.shapes(step)?;
            live.run(&default, |run| Ok(vec![facts::notations(&step.symbols, &shapes, of, run)]))
        }
        Show::Next { sequence, after, last, masked, at } => live.run(at, |run| {
            needs_head(run.config())?;
            match after {
                Some(_) => after_blocks(run, *sequence),
                None => next(run, *sequence, [*last, *masked], at),
            }
        }),
        Show::Generate { prompt, tokens, logits } => generate(live, prompt, *tokens, *logits),
        Show::Losses { forms } => losses(live, forms),
        Show::Params(wanted) => facts::params(live, wanted),
        Show::Layout { of, preset, sizes, slices } => {
            live.run(&default, |run| facts::layout(run, of, preset.as_deref(), sizes, *slices))
        }
        Show::Gradients { by, at } => live.run(at, |run| gradients(run, by.as_deref(), at)),
        Show::Step { optimizer, learning_rate, parameter, at } => {
            live.run(at, |run| one_step(run, optimizer, *learning_rate, parameter))
        }
        Show::Picture { name, words, command, now } => {
            let what = name.split_once(' ').map_or(name.as_str(), |(_, what)| what);
            let drawn =
                if live.draws() { live.run(&default, |run| drawn(run, command, now.is_none()))? } else { vec![] };
            let mut figures = match now {
                Some(now) => self::show(live, step, now)?,
                None => vec![said("It shows the numbers above.")],
            };
            if let Some(first) = figures.first_mut() {
                let what = what.into();
                let words = words.clone();
                let command = command.clone();
                first.picture = Some(Picture { what, words, command, drawn });
            }
            Ok(figures)
        }
        Show::Lessons { claims } => Ok(vec![facts::lessons(claims)]),
    }
}

/// What a command draws of a run, as SVG: its diagrams, and its plots if they are asked for.
fn drawn(run: &Run, command: &str, plots: bool) -> Result<Vec<String>> {
    let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('"')).collect();
    let mut all = vec![];
    for pair in words.windows(2) {
        match pair {
            ["--diagram", name] => {
                let diagram = Diagram::named(name).map_err(WalkError::Lacks)?;
                all.push(diagram.of_run(&run.trace, &run.labels, run.notation)?);
            }
            ["--plot", asked] if plots => all.push(plot(&run.trace, asked, &run.labels)?.svg(None)),
            _ => {}
        }
    }
    Ok(all)
}

fn needs_head(config: &Config) -> Result<()> {
    if config.lm_head { Ok(()) } else { lacks(ConfigError::NoHead.to_string()) }
}

/// What a tensor is called, whole or head by head, and what was changed for it: `wei, before training`.
pub(super) fn caption(run: &Run, name: &str, by_head: bool, at: &At) -> String {
    // a document calls it X̃ before its dropout, and has no name for it after
    let plain = |called: String| if called == "X_sum" { "X̃ (before dropout)".into() } else { called };
    let called = if by_head {
        names::called_by_head(name, run.config(), run.notation, None)
    } else {
        names::called(name, run.config(), run.notation)
    };
    let mut parts: Vec<String> = called.map(plain).into_iter().collect();
    let own = |on: &String| if run.scene.is_empty() { format!("of the {on} model") } else { run.scene.clone() };
    parts.extend(at.on.as_ref().map(own));
    parts.extend(at.initial.then(|| "before training".to_string()));
    parts.extend(at.set.0.iter().map(|(name, value)| format!("with {} {value}", name.replace('_', "-"))));
    parts.extend(at.prompt.as_ref().map(|prompt| format!("of {prompt:?}")));
    parts.join(", ")
}

/// A tensor cut into matrices, or the part of it that is asked for.
fn figures(run: &Run, tensor: NamedTensor, part: &TensorPart, at: &At, heat: bool) -> Views {
    let last = tensor.name.rsplit('.').next().unwrap_or_default();
    // a document writes W_Q for all heads
    let merged = part.merged || part.head.is_none() && last.starts_with("W_");
    let caption = caption(run, &tensor.name, !merged, at);
    let mut tensor = if merged { merge(tensor) } else { tensor };
    if part.transpose && tensor.shape.len() > 1 {
        let n = tensor.shape.len();
        let order: Vec<usize> = (0..n - 2).chain([n - 1, n - 2]).collect();
        tensor = tensor.permuted(&order);
    }
    for (axis, wanted) in [("batch", part.sequence), ("head", part.head)] {
        let size = tensor.axes.iter().position(|own| *own == axis).map(|at| tensor.shape[at]);
        if let (Some(wanted), Some(size)) = (wanted, size)
            && wanted >= size
        {
            let axis = if axis == "batch" { "sequence" } else { axis };
            return lacks(format!("there is no {axis} {wanted} here: {}", plural(size, axis)));
        }
    }
    let named = |id: u32| format!("{} (id {id})", label(&run.ready.piece(id)));
    let words: Option<Vec<String>> = of_texts(run, &mut tensor).map(|ids| ids.into_iter().map(named).collect());
    let asked = |axis: &str, i: usize| match axis {
        "batch" => part.sequence.is_none_or(|wanted| wanted == i),
        "head" => part.head.is_none_or(|wanted| wanted == i),
        _ => true,
    };
    let mut all: Vec<Matrix> = matrices(&tensor, &run.labels).collect();
    all.retain(|matrix| matrix.index.iter().all(|(axis, i)| asked(axis, *i)));
    let figure = |matrix: Matrix| {
        let rows = words.clone().unwrap_or(matrix.rows);
        let view = View::Matrix(Matrix { rows, ..matrix });
        Figure { heat, decimals: part.decimals.unwrap_or(4), caption: caption.clone(), ..view.into() }
    };
    Ok(all.into_iter().map(figure).collect())
}

/// Heads side by side: `[batch pos head d_head]` as `[batch pos features]`, `[head d_model d_head]` as `[d_model
/// features]`.
fn merge(tensor: NamedTensor) -> NamedTensor {
    let Some(head) = tensor.axes.iter().position(|axis| *axis == "head") else { return tensor };
    let n = tensor.shape.len();
    let others = (0..n).filter(|axis| *axis != head && *axis != n - 1);
    let order: Vec<usize> = others.chain([head, n - 1]).collect();
    let NamedTensor { name, mut axes, mut shape, values } = tensor.permuted(&order);
    let (wide, heads) = (shape.pop().unwrap_or(1), shape.pop().unwrap_or(1));
    axes.truncate(n - 2);
    axes.push("features");
    shape.push(heads * wide);
    NamedTensor { name, axes, shape, values }
}

/// Of a table with a row for each of many tokens, those of the texts; gives their ids.
fn of_texts(run: &Run, tensor: &mut NamedTensor) -> Option<Vec<u32>> {
    let many = tensor.axes.first() == Some(&"d_vocab") && tensor.shape.len() == 2 && tensor.shape[0] > MANY;
    if !many {
        return None;
    }
    let ids = distinct(run);
    let wide = tensor.shape[1];
    tensor.values = ids.iter().flat_map(|id| &tensor.values[*id as usize * wide..][..wide]).copied().collect();
    tensor.shape[0] = ids.len();
    Some(ids)
}

/// The ids of the run's texts, each once, ascending.
fn distinct(run: &Run) -> Vec<u32> {
    let mut ids = run.trace.batch().tokens.clone();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The cosine of every two rows.
fn cosines(name: &str, axis: &'static str, rows: &[&[f32]], words: Vec<String>) -> Figure {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let norm = |a: &[f32]| dot(a, a).sqrt().max(f64::MIN_POSITIVE);
    let values = rows.iter().flat_map(|a| rows.iter().map(move |b| (dot(a, b) / (norm(a) * norm(b))) as f32)).collect();
    let matrix = Matrix {
        tensor: format!("cosines of {name}"),
        index: vec![],
        size: [rows.len(); 2],
        axes: [axis; 2],
        rows: words.clone(),
        columns: words,
        values,
        hidden: vec![],
        scale: HeatScale::Signed,
    };
    let caption = format!("cosines of {name}");
    Figure { heat: true, decimals: 2, caption, ..View::Matrix(matrix).into() }
}

fn similarity(run: &Run, at: &At) -> Views {
    let mut table = run.get("embed.weight")?;
    let words = match of_texts(run, &mut table) {
        Some(ids) => ids.iter().map(|id| label(&run.ready.piece(*id))).collect(),
        None => run.labels.vocabulary.clone(),
    };
    let rows: Vec<&[f32]> = table.values.chunks_exact(table.shape[1]).collect();
    Ok(vec![cosines(&caption(run, "embed.weight", false, at), "d_vocab", &rows, words)])
}

fn position_similarity(run: &Run) -> Views {
    let table = run.get("hook_pos_embed")?;
    let rows: Vec<&[f32]> = table.values.chunks_exact(run.config().d_embed()).take(run.length).collect();
    let map = cosines(&caption(run, "hook_pos_embed", false, &At::default()), "pos", &rows, vec![]);
    let View::Matrix(matrix) = &map.view else { return Ok(vec![map]) };
    let first = matrix.values[..rows.len()].iter().enumerate().map(|(t, cosine)| row![t, format!("{cosine:.4}")]);
    let numbers = grid("its row 0 in numbers", ["position", "cosine with position 0"], first);
    Ok(vec![map, numbers])
}

// ---- tokens

fn one_hot(run: &Run, sequence: Option<usize>) -> Views {
    let (b, v) = (run.sequences, run.config().vocab_size);
    let mut flat = table::one_hot(&run.trace.batch().tokens, v);
    if run.notation == Notation::S2 {
        flat.name = "OneHot(x)".into();
    }
    let shape = vec![b, run.length, v];
    let tensor = NamedTensor { axes: vec!["batch", "pos", "d_vocab"], shape, ..flat };
    let part = TensorPart { sequence, decimals: Some(0), ..TensorPart::default() };
    figures(run, tensor, &part, &At::default(), false)
}

/// Each token, and the one that it predicts.
fn targets(run: &Run) -> Vec<Figure> {
    let mut rows = vec![];
    for b in 0..run.sequences {
        for (t, (id, target)) in run.ids(b).iter().zip(run.targets(b)).enumerate() {
            let shown = |id: u32| row![label(&run.ready.piece(id)), id];
            let target = target.map_or_else(|| row!["none", "-"], shown);
            rows.push([row![b, t], shown(*id), target].concat());
        }
    }
    vec![grid("", ["sequence", "position", "token", "id", "predicts", "its id"], rows)]
}

/// The ids that the tokenizer had before they were made dense.
fn sparse(run: &Run) -> Views {
    let Some(Tokenizer::Dense(dense)) = &run.ready.tokenizer else {
        return lacks("this model's ids are its tokenizer's own: none were made dense");
    };
    let mut tensor = run.get("input")?;
    let sparse = dense.ids().sparse(&run.trace.batch().tokens)?;
    tensor.values = sparse.into_iter().map(|id| id as f32).collect();
    figures(run, tensor, &TensorPart::default(), &At::default(), false)
}

// ---- tables of tensors

fn masks(run: &Run, forms: &[String], n: Option<usize>) -> Views {
    if run.config().mask != Mask::Causal {
        return lacks(format!("this model's mask is {}: it hides nothing", run.config().mask));
    }
    let window = run.config().window_of(0);
    let masks = table::masks(n.unwrap_or(run.length), window);
    let of = |value: &dyn Fn(f32) -> f32| {
        let values = masks.binary.values.iter().map(|v| value(*v)).collect();
        NamedTensor { values, ..masks.binary.clone() }
    };
    let mut all = vec![];
    for form in forms {
        let (caption, tensor) = match form.as_str() {
            "ones" => ("Mask_BD: every query (row) sees every key (column)", of(&|_| 1.0)),
            "binary" => ("1 where a query (row) sees a key (column)", masks.binary.clone()),
            "additive" => ("to be added to the scores", masks.additive.clone()),
            "multiplicative" => {
                let masked = |v| if v == 0.0 { f32::NEG_INFINITY } else { 1.0 };
                ("Mask_AR, to be multiplied with the scores", of(&masked))
            }
            "function" => {
                let sees = |i: usize, j: usize| j <= i && (window == 0 || i - j < window);
                let cell = |i: usize, j: usize| if sees(i, j) { format!("x_{i},{j}") } else { "−∞".to_string() };
                let n = n.unwrap_or(run.length);
                let rows = (0..n).map(|i| iter::once(i.to_string()).chain((0..n).map(|j| cell(i, j))).collect());
                let headers = iter::once(String::new()).chain((0..n).map(|j| j.to_string()));
                all.push(grid("Mask(x)", headers, rows));
                continue;
            }
            _ => return lacks(format!("a mask has no form {form}")),
        };
        let mut labels = run.labels.clone();
        labels.reach.clear(); // all of a mask is shown
        let seen = |matrix: Matrix| View::Matrix(Matrix { hidden: vec![], ..matrix });
        let figure = |view: View| Figure { decimals: 0, caption: caption.into(), ..view.into() };
        all.extend(matrices(&tensor, &labels).map(seen).map(figure));
    }
    Ok(all)
}

/// The live numbers where a document prints some, and whether they meet them.
fn as_printed(run: &Run, golden: &str, of: &str, decimals: u8, at: &At) -> Views {
    let tensor = run.get(of)?;
    let batches = || (0..run.sequences).map(|b| format!("{golden}.batch{b}")).collect();
    let keys = if printed::rows(golden).is_empty() { batches() } else { vec![golden.to_string()] };
    let mut met = Met::new(golden);
    let mut all = vec![];
    for (key, matrix) in keys.iter().zip(matrices(&tensor, &run.labels)) {
        let [high, wide] = matrix.size;
        let [rows, _] = printed::place(key);
        met.compare(key, |i, c| (rows[i] < high && c < wide).then(|| matrix.values[rows[i] * wide + c]));
        all.push(Figure { decimals, caption: caption(run, of, true, at), ..View::Matrix(matrix).into() });
    }
    // another model need not meet them
    all.push(if run.other && !met.all() { said(met.text()) } else { verdict(met.text(), met.all()) });
    Ok(all)
}

/// Tensors with symbol, shape, and formula or what they are.
fn shapes(run: &Run, of: &[String], [by_position, formulas, about]: [bool; 3], at: &At) -> Vec<Figure> {
    let model = run.trace.model();
    let row = |name: &String| {
        let Ok(SummaryRow { symbol, letters, shape, formula, .. }) =
            run.trace.row(name).map(|row| row.in_notation(model, run.notation))
        else {
            return row![name, "none", "", "", "this model has none"];
        };
        // the context is called by what its heads come to, side by side
        let together = match run.notation {
            Notation::S1 | Notation::TransformerLens => false,
            _ => name.ends_with(".hook_z"),
        };
        let (letters, shape) = match run.get(name) {
            Ok(tensor) if by_position => (run.notation.letters(name, &tensor.axes, run.config()), tensor.shape),
            Ok(tensor) if together => {
                let shape = vec![run.sequences, run.length, tensor.shape[2..].iter().product()];
                (run.notation.letters(name, &["batch", "pos", "features"], run.config()), shape)
            }
            _ => (letters, shape),
        };
        let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
        let what = names::describe(name).unwrap_or_default();
        let last = if formulas {
            &formula
        } else if about && run.config().positions == Positions::Rotary {
            what
        } else if about {
            what.trim_end_matches("; before any rotation") // nothing is rotated here
        } else {
            ""
        };
        row![name, symbol, letters, sizes.join(" "), last]
    };
    let title = at.on.as_ref().map_or(String::new(), |on| format!("of the model {on}"));
    let headers = ["tensor", "symbol", "axes", "shape", if formulas { "formula" } else { "what it is" }];
    vec![without_empty_end(title, headers, of.iter().map(row).collect())]
}

fn lines(run: &Run, rows: &[Line]) -> Vec<Figure> {
    // without spaces, so that no line breaks within a shape
    let joined = |shape: &str| shape.split(", ").map(|own| own.replace(' ', "×")).collect::<Vec<_>>().join(", ");
    let row = |line: &Line| {
        let shape = run.get(&line.of).map(|tensor| {
            let joined = tensor.shape.len() == 4 && line.to.split(' ').count() == 3;
            let tensor = if joined { merge(tensor) } else { tensor.heads_first() };
            tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×")
        });
        let shape = shape.unwrap_or_else(|_| "none here".into());
        let Line { line, code, does, from, to, of, notes } = line;
        let out = if to.is_empty() { String::new() } else { format!(" → {}", joined(to)) };
        let notes = if notes.is_empty() { String::new() } else { format!(". {notes}") };
        said(format!("{line} {code}: {does}; {}{out}; {of} {shape}{notes}", joined(from)))
    };
    rows.iter().map(row).collect()
}

/// The model's ops, a line each; of several blocks, which are alike, the first alone.
fn listing(model: &Model, one_block: bool) -> Figure {
    let row = |line: &str| {
        let (left, from) = line.split_once("<-").unwrap_or((line, ""));
        let (left, shape) = left.split_once('(').unwrap_or((left, ""));
        let (op, name) = left.trim().split_once(' ').unwrap_or((left, ""));
        let shape = shape.trim().trim_end_matches(')').replace(',', " x");
        // places that have no name (an op's statistics) say nothing here
        let from: Vec<&str> = from.split_whitespace().filter(|name| !name.contains('@')).collect();
        [op, name, &shape, &from.join(" ")].map(|cell| cell.trim().to_string()).to_vec()
    };
    let mut rows: Vec<Vec<String>> = model.to_string().lines().map(row).collect();
    // what another block reads and a block keeps
    let block = |name: &str| in_block(name).map(|(block, _)| block);
    let other = |row: &Vec<String>| {
        block(&row[1]).is_some() && row[3].split(' ').find_map(block).is_some_and(|block| block > 0)
    };
    if let (true, Some(first)) = (one_block, rows.iter().position(other)) {
        rows.retain(|row| !other(row));
        let blocks = model.config.n_layer - 1;
        rows.insert(first, row!["...", format!("{} more", plural(blocks, "block")), "", ""]);
    }
    grid("", ["op", "makes", "rows x columns", "from"], rows)
}

// ---- predictions

/// The likeliest tokens, with their probabilities.
fn likeliest(run: &Run, probs: &[f32], most: usize) -> Vec<String> {
    let mut all: Vec<(u32, f32)> = (0..).zip(probs.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shown = |(id, p): &(u32, f32)| format!("{} {:.1}%", label(&run.ready.piece(*id)), 100.0 * p);
    all.iter().take(most).map(shown).collect()
}

fn next(run: &Run, sequence: Option<usize>, [last, masked]: [bool; 2], at: &At) -> Views {
    let (probs, v) = (run.get("probs")?, run.config().vocab_size);
    let mask = run.ready.mask();
    if masked && mask.is_none() {
        return lacks("this model's tokenizer has no [MASK]: it predicts the next token");
    }
    let only = match sequence {
        Some(_) => Some(run.sequence(sequence)?),
        None => None,
    };
    let mut all = vec![];
    for b in (0..run.sequences).filter(|b| only.is_none_or(|only| only == *b)) {
        let of = &probs.values[b * run.length * v..][..run.length * v];
        let row = |(t, (id, probs)): (usize, (&u32, &[f32]))| {
            let shown = !(last && t + 1 < run.length || masked && Some(*id) != mask);
            let token = row![t, label(&run.ready.piece(*id))];
            shown.then(|| [token, likeliest(run, probs, LIKELIEST)].concat())
        };
        let rows: Vec<_> = run.ids(b).iter().zip(of.chunks_exact(v)).enumerate().filter_map(row).collect();
        if rows.is_empty() {
            continue;
        }
        let headers = ["position", "token", "likeliest", "second", "third", "fourth", "fifth"];
        let headers = headers.into_iter().take(2 + LIKELIEST.min(v));
        let title = match &at.prompt {
            Some(prompt) => format!("after {prompt:?}"),
            None if run.sequences > 1 => format!("sequence {b}"),
            None => String::new(),
        };
        all.push(grid(title, headers, rows));
    }
    if all.is_empty() { lacks("this text has no [MASK]") } else { Ok(all) }
}

/// What the head would say after every block.
fn after_blocks(run: &mut Run, sequence: Option<usize>) -> Views {
    let (b, v, layers) = (run.sequence(sequence)?, run.config().vocab_size, run.config().n_layer);
    let mut rows: Vec<_> = run.ids(b).iter().enumerate().map(|(t, id)| row![t, label(&run.ready.piece(*id))]).collect();
    for i in 0..layers {
        let probs = run.trace.lens(&Module::block(i).named("hook_resid_post"))?;
        let of = probs.values[b * run.length * v..].chunks_exact(v);
        rows.iter_mut().zip(of).for_each(|(row, probs)| row.extend(likeliest(run, probs, 1)));
    }
    let blocks = (0..layers).map(|i| format!("after block {i}"));
    Ok(vec![grid("", row!["position", "token"].into_iter().chain(blocks), rows)])
}

/// A prompt continued, each time with the likeliest token.
fn generate(live: &mut Live, prompt: &str, tokens: usize, logits: bool) -> Views {
    let at = At::default();
    let ready = live.ready(&at)?;
    needs_head(&ready.config)?;
    if ready.config.mask != Mask::Causal {
        return lacks(format!("this model's mask is {}: it does not write on", ready.config.mask));
    }
    let mut ids = ready.shown(prompt).0;
    let mut rows = vec![];
    let mut all = vec![];
    for round in 1..=tokens {
        if ids.len() > ready.config.context_length {
            let full = plural(ready.config.context_length, "position");
            all.push(said(format!("the context is full: {full}")));
            break;
        }
        let n = ids.len();
        let v = ready.config.vocab_size;
        let (last, probs) = live.run_on(&at, &[ids.clone()], |run| {
            let tail = |name: &str| Ok::<_, WalkError>(run.get(name)?.values[(n - 1) * v..].to_vec());
            Ok((tail("logits")?, tail("probs")?))
        })?;
        let best = (0..v).max_by(|a, b| last[*a].total_cmp(&last[*b]).then(b.cmp(a))).unwrap_or(0);
        let word = |id: usize| label(&ready.piece(id as u32));
        let texts = ids.iter().map(|id| word(*id as usize)).collect::<Vec<_>>().join(" ");
        let (logit, chosen) = (format!("{:.4}", last[best]), format!("{:.1}%", 100.0 * probs[best]));
        let shapes = [format!("(1, {n})"), format!("(1, {n}, {v})")];
        rows.push(row![round, texts, shapes[0], shapes[1], word(best), best, logit, chosen]);
        if logits {
            let mut order: Vec<usize> = (0..v).collect();
            order.sort_by(|a, b| last[*b].total_cmp(&last[*a]));
            let row = |i: &usize| row![word(*i), i, format!("{:.4}", last[*i]), format!("{:.4}", probs[*i])];
            let title = format!("round {round}: the last of {}", plural(n, "row"));
            all.push(grid(title, ["token", "id", "logit", "probability"], order.iter().take(10).map(row)));
        }
        ids.push(best as u32);
    }
    let headers = ["round", "input", "ids", "logits", "next", "its id", "its logit", "its probability"];
    all.insert(0, grid("", headers, rows));
    Ok(all)
}

// ---- losses and gradients

/// A token that has a target, and its loss.
struct Counted {
    sequence: usize,
    position: usize,
    token: u32,
    target: u32,
    loss: f64,
}

/// Every token that has a target.
fn counted(run: &Run) -> Result<Vec<Counted>> {
    needs_head(run.config())?;
    let losses = run.get("losses")?;
    let mut all = vec![];
    for sequence in 0..run.sequences {
        for (position, (token, target)) in run.ids(sequence).iter().zip(run.targets(sequence)).enumerate() {
            let token = *token;
            let loss = f64::from(losses.values[sequence * run.length + position]);
            all.extend(target.map(|target| Counted { sequence, position, token, target, loss }));
        }
    }
    if all.is_empty() {
        return lacks("there is nothing to predict: no token here has a target");
    }
    Ok(all)
}

fn losses(live: &mut Live, forms: &[String]) -> Views {
    // of the weights before training, if that is the first of them
    let initial = forms.first().is_some_and(|form| form == "before-training");
    let at = At { initial, ..At::default() };
    let when = if initial { "before training, " } else { "" };
    let (all, sequences) = live.run(&at, |run| Ok((counted(run)?, run.sequences)))?;
    let ready = live.ready(&at)?;
    let (sum, n) = (all.iter().map(|own| own.loss).sum::<f64>(), plural(all.len(), "token"));
    let mean = sum / all.len() as f64;
    let mut figures = vec![];
    for form in forms {
        figures.push(match form.as_str() {
            "each" => {
                let row = |own: &Counted| {
                    let [token, target] = [own.token, own.target].map(|id| label(&ready.piece(id)));
                    let [p, loss] = [(-own.loss).exp(), own.loss].map(|v| format!("{v:.4}"));
                    row![own.sequence, own.position, token, target, p, loss]
                };
                let headers = ["sequence", "position", "token", "next", "its probability", "loss"];
                let title = if initial { "before training" } else { "" };
                grid(title, headers, all.iter().map(row))
            }
            "mean" => said(format!("{when}the mean of the losses of {n} is {mean:.6}")),
            "sum" => said(format!("{when}the sum of the losses of {n} is {sum:.6}")),
            "without-log" => {
                let without = -all.iter().map(|own| (-own.loss).exp()).sum::<f64>();
                said(format!("{when}without the logarithm: minus the sum of the probabilities of {n} is {without:.6}"))
            }
            "initial" => {
                let before = At { initial: true, ..At::default() };
                let first = live.run(&before, |run| {
                    let all = counted(run)?;
                    Ok(all.iter().map(|own| own.loss).sum::<f64>() / all.len() as f64)
                })?;
                let v = ready.config.vocab_size;
                let guess = (v as f64).ln();
                said(format!(
                    "mean loss before training {first:.6}, of a guess among {v} words ln {v} = {guess:.6}, after \
                     training {mean:.6}"
                ))
            }
            "product" => {
                let row = |what: String, own: &dyn Fn(&Counted) -> bool| {
                    let sum: f64 = all.iter().filter(|counted| own(counted)).map(|counted| counted.loss).sum();
                    row![what, short((-sum).exp()), format!("{:.6}", -sum), format!("{sum:.6}")]
                };
                let each = (0..sequences).map(|b| row(format!("sequence {b}"), &|own| own.sequence == b));
                let rows = each.chain([row("all".into(), &|_| true)]);
                grid("", ["of", "product of probabilities", "sum of logarithms", "its negative"], rows)
            }
            "log-sum" | "negative" | "before-training" => continue, // beside the product; of all
            _ => return lacks(format!("losses have no form {form}")),
        });
    }
    Ok(figures)
}

fn gradients(run: &Run, by: Option<&str>, at: &At) -> Views {
    counted(run)?;
    let mut rows: Vec<(String, f64, String)> = vec![];
    for param in &run.trace.model().params {
        let gradient = run.get(&format!("{}.grad", param.name))?;
        let squares: f64 = gradient.values.iter().map(|g| f64::from(*g).powi(2)).sum();
        let shape = gradient.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        let name = match by {
            Some("llmc") => names::lookup(&param.name).map_or("", |(entry, _)| entry.llmc).to_string(),
            Some(_) => param.module.layer().name(),
            None => param.name.clone(),
        };
        match rows.iter_mut().find(|row| row.0 == name) {
            Some(row) => row.1 += squares,
            None => rows.push((name, squares, shape)),
        }
    }
    let all: f64 = rows.iter().map(|row| row.1).sum();
    rows.push(("all".into(), all, String::new()));
    let columns = if by.is_some() { 2 } else { 3 };
    let rows = rows.iter().map(|(name, squares, shape)| row![name, short(squares.sqrt()), shape][..columns].to_vec());
    let headers = ["gradient of", "norm", "shape"].into_iter().take(columns);
    Ok(vec![grid(if at.initial { "before training" } else { "" }, headers, rows)])
}

/// A parameter before and after one step.
fn one_step(run: &Run, optimizer: &str, rate: f64, parameter: &str) -> Views {
    counted(run)?;
    let method = Method::ALL.iter().find(|method| method.name() == optimizer);
    let Some(method) = method else { return lacks(format!("there is no optimizer {optimizer}")) };
    // SGD without momentum, and no weight decay: the plain rules
    let beta1 = if *method == Method::Sgd { 0.0 } else { Recipe::DEFAULT.beta1 };
    let rule = Recipe { optimizer: *method, beta1, clip: 0.0, ..Recipe::DEFAULT }.rule(rate, 1);
    let (old, gradient) = (run.get(parameter)?, run.get(&format!("{parameter}.grad"))?);
    let (mut new, g) = (wide(&old.values), wide(&gradient.values));
    let (mut m, mut v) = (vec![0.0; g.len()], vec![0.0; g.len()]);
    update(&rule, 1.0, 0.0, &mut new, &g, &mut m, &mut v);
    let is_vocabulary = old.shape[..] == [run.config().vocab_size];
    let rows = (0..new.len().min(MANY)).map(|i| {
        let word = if is_vocabulary { run.labels.vocabulary[i].clone() } else { i.to_string() };
        let [old, g, new] = [f64::from(old.values[i]), g[i], new[i]].map(|v| format!("{v:.6}"));
        row![word, old, g, new]
    });
    let title = format!("{parameter}, one step of {optimizer}, learning rate {rate}");
    Ok(vec![grid(title, ["", "old", "gradient", "new"], rows)])
}
