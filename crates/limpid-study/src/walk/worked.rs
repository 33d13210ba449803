//! Small computations that a document does by hand, done here on its numbers or on the live model's, by limpid's own
//! operations where it has them.

use super::live::Run;
use super::notebook::NotebookRun;
use super::parts::{Met, Views, grid, lacks, said, verdict};
use super::plain::{concat, diag, one_hot, stack, wide};
use super::{At, Figure, Live, Result, WalkError, printed};
use limpid_base::plural::plural;
use limpid_base::units::commas;
use limpid_core::config::{Activation, Config, Constants, DropoutScale, Mask, NormKind, NormPlace};
use limpid_core::kernels::classify;
use limpid_core::kernels::dropout::Draws;
use limpid_core::kernels::{activate, norm};
use limpid_core::model::{Mode, Model, Module};
use limpid_core::ops::{DropoutSpec, MemorySpace};
use limpid_core::ops::{Target, Terms};
use limpid_core::optimizer::{Method, adamw};
use limpid_draw::table::TableOptions;
use limpid_draw::view::{Grid, HeatScale, Matrix, View};
use limpid_trace::NamedTensor;
use limpid_trace::labels::label;
use limpid_trace::names;
use limpid_train::Recipe;
use serde::{Deserialize, Serialize};
use std::iter;

/// A computation by its name, and what it takes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are what the toml files write")]
pub enum Worked {
    /// One element of a product of two matrices, written out.
    Product { a: String, b: String, element: [usize; 2], sequence: usize },
    /// The matrix with these numbers on its diagonal.
    Diag { x: Vec<f64> },
    /// A row, n times.
    Stack { x: Vec<f64>, n: usize },
    /// Matrices side by side.
    Concat { x: Vec<Vec<Vec<f64>>> },
    /// Which feature of which head a feature is.
    Split { features: Vec<usize> },
    /// (B, T, n) as (B·T, n).
    Flatten { of: String },
    /// One feature of one head: every weight times its value, and the sum.
    ValueStep { sequence: usize, head: usize, feature: usize },
    /// Scores times a mask of 1 and −∞.
    MultipliedMask {
        #[serde(default)]
        scores: Vec<Vec<f64>>,
        of: Option<String>,
        #[serde(default)]
        head: usize,
    },
    /// A row with a mask, in both scalings.
    Dropout { x: Vec<f64>, mask: Vec<f64>, p: f64 },
    /// One step of an optimizer on one weight.
    Update { w: f64, g: f64, learning_rate: f64, optimizers: Vec<String> },
    /// Rows normalised by several kinds of norm.
    Norms { rows: Vec<Vec<f64>>, eps: f64, kinds: Vec<String> },
    /// Rows of scores as probabilities.
    Softmax {
        #[serde(default)]
        scores: Vec<Vec<f64>>,
        golden: Option<String>,
        #[serde(default)]
        labels: Vec<String>,
        #[serde(default)]
        targets: bool,
    },
    /// The rows of the look-up table of "Zero-to-Hero" that it prints, drawn again.
    LookUpTable,
    /// The cross-entropy of a target that need not be one-hot with the softmax of scores, with label smoothing and
    /// without.
    CrossEntropy { scores: Vec<f64>, target: Vec<f64>, smoothing: f64 },
    /// What changes when one token is another.
    Change {
        #[serde(default)]
        sequence: usize,
        position: usize,
        to: String,
    },
    /// The tokens whose embeddings are nearest to one's.
    Similar { token: String },
    /// One token's row of two tensors and of their sum, and of what is made of it.
    Sum { of: Vec<String>, sequence: usize, position: usize },
    /// One token's row through the first norm: as it is, normalised, gain, offset, and what they come to.
    NormRow { position: usize },
    /// What training keeps beside the parameters.
    Memory,
    /// Two models side by side.
    CompareModels { models: Vec<String> },
    /// The losses of the training that made the model.
    Curve,
    /// Mean and deviation of each row.
    Moments { of: String },
}

/// What the computation comes to.
pub(super) fn worked(live: &mut Live, work: &Worked, at: &At) -> Views {
    match work {
        Worked::Product { a, b, element, sequence } => live.run(at, |run| product(run, [a, b], *element, *sequence)),
        Worked::Diag { x } => Ok(vec![plain("diag(x)", x.len(), diag(x))]),
        Worked::Stack { x, n } => Ok(vec![plain("Stack(x)", x.len(), stack(*n, x))]),
        Worked::Concat { x } => Ok(concatenated(x)),
        Worked::Split { features } => live.run(at, |run| split_features(run, features)),
        Worked::Flatten { of } => live.run(at, |run| flatten(run, of)),
        Worked::ValueStep { sequence, head, feature } => {
            live.run(at, |run| value_step(run, *sequence, *head, *feature))
        }
        Worked::MultipliedMask { scores, of: None, .. } => Ok(multiplied(scores, "an example")),
        Worked::MultipliedMask { of: Some(of), head, .. } => {
            live.run(at, |run| Ok(multiplied(&head_rows(run, of, *head)?, "the live head")))
        }
        Worked::Dropout { x, mask, p } => Ok(vec![dropped(x, mask, *p)]),
        Worked::CrossEntropy { scores, target, smoothing } => Ok(cross_entropies(scores, target, *smoothing)),
        Worked::Update { w, g, learning_rate, optimizers } => updated([*w, *g, *learning_rate], optimizers),
        Worked::Norms { rows, eps, kinds } => norms(rows, *eps, kinds),
        Worked::Softmax { scores, golden, labels, targets } => {
            let printed = golden.iter().map(|key| printed::numbers(key));
            let rows = scores.iter().cloned().chain(printed);
            Ok(rows.map(|row| distribution(&row, labels, *targets)).collect())
        }
        Worked::LookUpTable => Ok(look_up_table()),
        Worked::Change { sequence, position, to } => change(live, at, [*sequence, *position], to),
        Worked::Similar { token } => live.run(at, |run| similar(run, token)),
        Worked::Sum { of, sequence, position } => live.run(at, |run| sum(run, of, *sequence, *position)),
        Worked::NormRow { position } => live.run(at, |run| norm_row(run, *position)),
        Worked::Memory => live.run(at, |run| memory(run.config())),
        Worked::CompareModels { models } => compare_models(live, models),
        Worked::Curve => Ok(curve(&live.ready(at)?.losses)),
        Worked::Moments { of } => live.run(at, |run| moments(run, of)),
    }
}

// ---- figures

/// An example: a matrix of numbers without words, of a size of its own.
fn plain(title: &str, cols: usize, values: Vec<f64>) -> Figure {
    let matrix = matrix(title, ["row", "column"], cols, values);
    let caption = format!("{title}, an example of {} x {cols}", matrix.size[0]);
    Figure { caption, ..View::Matrix(matrix).into() }
}

fn matrix(title: &str, axes: [&'static str; 2], cols: usize, values: Vec<f64>) -> Matrix {
    let signed = values.iter().any(|v| *v < 0.0 && v.is_finite());
    Matrix {
        tensor: title.into(),
        index: vec![],
        size: [values.len() / cols.max(1), cols],
        axes,
        rows: vec![],
        columns: vec![],
        hidden: vec![],
        scale: if signed { HeatScale::Signed } else { HeatScale::Positive },
        values: values.into_iter().map(|v| v as f32).collect(),
    }
}

/// A number with as many digits as a table has; −0 is 0.
fn number(v: f64) -> String {
    let v = v + 0.0;
    if v.fract() == 0.0 && v.abs() < 1e6 { format!("{v}") } else { format!("{v:.4}") }
}

/// Numbers in one cell.
fn joined(values: &[f64], text: impl Fn(f64) -> String) -> String {
    values.iter().map(|v| text(*v)).collect::<Vec<_>>().join("  ")
}

/// A sequence's tokens.
fn tokens(run: &Run, sequence: usize) -> Vec<String> {
    run.labels.tokens.get(sequence).cloned().unwrap_or_default()
}

/// The (rows, cols) part of a tensor for one sequence, heads side by side.
fn of_sequence(tensor: &NamedTensor, sequence: usize) -> Result<Vec<f64>> {
    let sequences = tensor.shape.first().copied().unwrap_or(1).max(1);
    let size = tensor.values.len() / sequences;
    match tensor.values.get(sequence * size..(sequence + 1) * size) {
        Some(values) => Ok(wide(values)),
        None => Err(WalkError::Lacks(format!("there is no sequence {sequence}: there are {sequences}"))),
    }
}

/// A row of a list that has one of that number.
fn nth<T: Copy>(of: &[T], at: usize, what: &str) -> Result<T> {
    of.get(at).copied().ok_or_else(|| WalkError::Lacks(format!("there is no {what} {at}: there are {}", of.len())))
}

// ---- matrices

fn product(run: &mut Run, [a, b]: [&String; 2], [row, column]: [usize; 2], sequence: usize) -> Views {
    let by = run.get(b)?;
    let (inner, cols) = (by.shape[0], by.shape.last().copied().unwrap_or(1));
    let left = match a.as_str() {
        "one-hot" => {
            let span = nth(&run.trace.batch().spans, sequence, "sequence")?;
            let id = nth(&run.trace.batch().tokens[span.row..][..span.rows], row, "token")?;
            one_hot(&[id], run.config().vocab_size)
        }
        _ => of_sequence(&run.get(a)?, sequence)?.chunks_exact(inner).nth(row).map(<[f64]>::to_vec).unwrap_or_default(),
    };
    if left.len() != inner || column >= cols {
        return lacks(format!("{a} times {b} has no element {row}, {column}"));
    }
    let right: Vec<f64> = by.values.iter().skip(column).step_by(cols).copied().map(f64::from).collect();
    let products: Vec<f64> = left.iter().zip(&right).map(|(a, b)| a * b).collect();
    // of a long sum, what is not 0
    let shown = (0..inner).filter(|k| inner <= 32 || products[*k] != 0.0);
    let rows = shown.map(|k| row![k, number(left[k]), number(right[k]), number(products[k])]);
    let total: f64 = products.iter().sum();
    let rows = rows.chain([row!["sum", "", "", number(total)]]);
    let word = |name: &String| names::called(name, run.config(), run.notation).unwrap_or_else(|| name.clone());
    let left_word = if a == "one-hot" { "X^ohe".into() } else { word(a) };
    let title = format!("element ({row}, {column}) of {left_word} times {}: {inner} products", word(b));
    let headers = ["k", &format!("a_{row}k"), &format!("b_k{column}"), "product"];
    let mut views = vec![grid(title, headers, rows)];
    if a == "one-hot" {
        let looked = of_sequence(&run.get("hook_embed")?, sequence)?[row * cols + column];
        views.push(verdict(format!("looked up it is {}: the same", number(looked)), looked == total));
    }
    Ok(views)
}

fn concatenated(parts: &[Vec<Vec<f64>>]) -> Vec<Figure> {
    let d = parts.first().and_then(|part| part.first()).map_or(1, Vec::len);
    let flat: Vec<Vec<f64>> = parts.iter().map(|part| part.concat()).collect();
    let mut views: Vec<Figure> =
        flat.iter().zip(1..).map(|(part, k)| plain(&format!("X_{k}"), d, part.clone())).collect();
    views.push(plain("Concat", d * parts.len(), concat(&flat, d)));
    views
}

/// The head that a feature belongs to, and which of its features it is.
pub(super) fn split(config: &Config, feature: usize) -> (usize, usize) {
    (feature / config.d_head(), feature % config.d_head())
}

fn split_features(run: &mut Run, features: &[usize]) -> Views {
    let (q, d) = (run.get("blocks.0.attn.hook_q")?, run.config().d_head());
    let row = of_sequence(&q, 0)?;
    let mut rows = vec![];
    for feature in features.iter().filter(|feature| **feature < run.config().heads().query_cols()) {
        let (head, own) = split(run.config(), *feature);
        let (there, here) = (q.at(&[0, 0, head, own]).unwrap_or(f32::NAN), row[*feature]);
        let rule = format!("{feature} = {head} · {d} + {own}");
        rows.push(row![feature, head, own, rule, number(here), number(there.into())]);
    }
    let same = rows.iter().all(|row| row[4] == row[5]) && !rows.is_empty();
    let headers = ["feature d", "head h", "its feature d_q", "rule", "Q[0, 0, d]", "Q[0, h, 0, d_q]"];
    Ok(vec![grid("", headers, rows), verdict("both places hold the same number", same)])
}

fn flatten(run: &mut Run, of: &str) -> Views {
    let tensor = run.get(of)?;
    let (b, t) = (run.sequences, run.length);
    let cols = tensor.values.len() / (b * t).max(1);
    let mut flat = matrix(of, ["batch · pos", "d_vocab"], cols, wide(&tensor.values));
    let words = run.labels.tokens.iter().enumerate().flat_map(|(b, words)| words.iter().map(move |word| (b, word)));
    flat.rows = words.map(|(b, word)| format!("{b} {word}")).collect();
    flat.columns = if cols == run.labels.vocabulary.len() { run.labels.vocabulary.clone() } else { vec![] };
    let own = |n: usize| (0..cols).all(|j| tensor.at(&[n / t, n % t, j]) == Some(flat.values[n * cols + j]));
    let holds = (0..b * t).all(own);
    let text = format!("row n of ({}, {cols}) is row n mod {t} of sequence n div {t} of ({b}, {t}, {cols})", b * t);
    let mut views = vec![View::Matrix(flat).into(), verdict(text, holds)];
    if of == "logits" {
        let target = |target: Option<u32>| target.map_or("-".into(), |id| id.to_string());
        let targets: Vec<String> = (0..b).flat_map(|b| run.targets(b)).map(target).collect();
        views.push(said(format!("targets ({}): {}", b * t, targets.join(" "))));
    }
    Ok(views)
}

// ---- attention

fn value_step(run: &mut Run, sequence: usize, head: usize, feature: usize) -> Views {
    let (pattern, v) = (run.get("blocks.0.attn.hook_pattern")?, run.get("blocks.0.attn.hook_v")?);
    let z = run.get("blocks.0.attn.hook_z")?;
    let words = tokens(run, sequence);
    let own = head / run.config().heads().group();
    let t = words.len();
    let lacks = || WalkError::Lacks(format!("there is no feature {feature} of head {head} in sequence {sequence}"));
    let mut values = vec![];
    let mut same = t > 0;
    for i in 0..t {
        let one = |j: usize| {
            Some(f64::from(pattern.at(&[sequence, head, i, j])?) * f64::from(v.at(&[sequence, j, own, feature])?))
        };
        let products: Vec<f64> = (0..t).map(one).collect::<Option<_>>().ok_or_else(lacks)?;
        let total = products.iter().sum::<f64>();
        let live = z.at(&[sequence, i, head, feature]).ok_or_else(lacks)?;
        same &= (total - f64::from(live)).abs() <= 1e-5 * products.iter().map(|p| p.abs()).sum::<f64>().max(1e-30);
        values.extend(products.into_iter().chain([total]).map(|value| value + 0.0));
    }
    let mut products = matrix("att · v, and their sum", ["query_pos", "key_pos"], t + 1, values);
    let hides = |i: usize, j: usize| j < t && run.labels.hides("blocks.0.attn.hook_pattern", sequence, i, j);
    products.hidden = (0..t * (t + 1)).map(|at| hides(at / (t + 1), at % (t + 1))).collect();
    products.columns = words.iter().cloned().chain(["sum".into()]).collect();
    products.rows = words;
    products.index = vec![("batch", sequence), ("head", head), (v.axes[3], feature)];
    let d = run.config().d_value();
    let text = format!("the sums are column {} of atty: {t} of them", head * d + feature);
    Ok(vec![View::Matrix(products).into(), verdict(text, same)])
}

/// One head's rows of the first sequence.
fn head_rows(run: &mut Run, of: &str, head: usize) -> Result<Vec<Vec<f64>>> {
    let scores = of_sequence(&run.get(of)?, 0)?;
    let t = tokens(run, 0).len();
    let own = scores.chunks_exact(t * t).nth(head);
    let own = own.ok_or_else(|| WalkError::Lacks(format!("there is no head {head} of {of}")))?;
    Ok(own.chunks_exact(t).map(<[f64]>::to_vec).collect())
}

fn multiplied(scores: &[Vec<f64>], whose: &str) -> Vec<Figure> {
    let n = scores.len();
    let mask = |at: usize| if at % n > at / n { f64::NEG_INFINITY } else { 1.0 };
    let times: Vec<f64> = scores.concat().iter().enumerate().map(|(at, score)| score * mask(at)).collect();
    let cell = |v: f64| match v {
        f64::INFINITY => "+∞".into(),
        f64::NEG_INFINITY => "−∞".into(),
        v => number(v),
    };
    let text = |values: &[f64]| joined(values, cell);
    let mut rows = vec![];
    let mut lost = 0;
    for (i, (own, times)) in scores.iter().zip(times.chunks_exact(n)).enumerate() {
        let weights = super::plain::softmax(times, n);
        lost += usize::from(weights.iter().any(|w| w.is_nan()));
        rows.push(row![i, text(own), text(times), text(&weights)]);
    }
    let note = format!("{lost} of {n} rows are not distributions: e^∞ / e^∞ and 0 · ∞ are NaN");
    let title = format!("scores times 1 or −∞: {whose}");
    vec![grid(title, ["row", "scores", "scores ⊙ mask", "softmax"], rows), said(note)]
}

/// The printed rows of the article's look-up table, and their ids.
pub(super) fn looked_up() -> (Vec<usize>, Vec<Vec<f32>>) {
    let [ids, _] = printed::place(LOOK_UP);
    let table = NotebookRun::First.rows(&ids.iter().map(|id| *id as u32).collect::<Vec<_>>());
    (ids, table)
}

/// Its key in `printed.json`.
const LOOK_UP: &str = "s1.lookup";

fn look_up_table() -> Vec<Figure> {
    let (ids, table) = looked_up();
    let mut met = Met::new(LOOK_UP);
    met.compare(LOOK_UP, |i, c| Some(table[i][c]));
    let matrix = Matrix {
        tensor: "Token Embedding Look-Up Table".into(),
        index: vec![],
        size: [table.len(), table[0].len()],
        axes: ["d_vocab", "d_model"],
        rows: ids.iter().map(|id| format!("id {id}")).collect(),
        columns: vec![],
        values: table.concat(),
        hidden: vec![],
        scale: HeatScale::Signed,
    };
    let caption = "rows 0 to 4 and 100064 to 100068 of 100,069, drawn as the article drew them".into();
    vec![Figure { decimals: 6, caption, ..View::Matrix(matrix).into() }, verdict(met.text(), met.all())]
}

// ---- softmax, norms, dropout, steps

/// A row of scores as limpid's own softmax.
pub(super) fn softmax(scores: &[f64]) -> Vec<f64> {
    let mut row = scores.to_vec();
    classify::reference::row(&mut row, Target::None, Terms::default(), None);
    row
}

/// The loss of a row of logits for each word as the true one.
pub(super) fn losses(logits: &[f64]) -> Vec<f64> {
    let loss = |t| classify::reference::row(&mut logits.to_vec(), Target::Token(t), Terms::default(), None);
    (0..logits.len()).map(loss).collect()
}

/// The loss of a row of logits for a target that is a distribution, as limpid computes it.
pub(super) fn cross_entropy(scores: &[f64], target: &[f64], smoothing: f64) -> f64 {
    let target: Vec<f32> = target.iter().map(|y| *y as f32).collect();
    let terms = Terms { smoothing: smoothing as f32, ..Terms::default() };
    classify::reference::row(&mut scores.to_vec(), Target::Soft(&target), terms, None)
}

/// The same word by word, by the formula.
fn cross_entropies(scores: &[f64], target: &[f64], smoothing: f64) -> Vec<Figure> {
    let p = softmax(scores);
    let even = target.iter().sum::<f64>() / target.len() as f64;
    let smooth: Vec<f64> = target.iter().map(|y| (1.0 - smoothing) * y + smoothing * even).collect();
    let part = |y: &f64, p: &f64| -y * p.ln();
    let row = |i: usize| {
        let cells = [target[i], p[i], part(&target[i], &p[i]), smooth[i], part(&smooth[i], &p[i])];
        std::iter::once((i + 1).to_string()).chain(cells.map(|cell| format!("{cell:.6}"))).collect()
    };
    let [plain, smoothed] = [target, &smooth].map(|y| y.iter().zip(&p).map(|(y, p)| part(y, p)).sum::<f64>());
    let [sum, smooth_sum] = [plain, smoothed].map(|sum| format!("{sum:.6}"));
    let rows = (0..target.len()).map(row).chain([row!["sum", "", "", sum, "", smooth_sum]]);
    let spread = format!("y, {smoothing} of it spread");
    let table = grid("", ["j", "y", "ŷ", "−y log ŷ", &spread, "−y log ŷ of that"], rows);
    let own = [(plain, 0.0), (smoothed, smoothing)].map(|(by, s)| (by - cross_entropy(scores, target, s)).abs() < 1e-6);
    vec![table, verdict("the losses that limpid computes are these sums", own == [true; 2])]
}

fn distribution(scores: &[f64], labels: &[String], targets: bool) -> Figure {
    let p = softmax(scores);
    let loss = losses(scores);
    let row = |i: usize| {
        let word = labels.get(i).cloned().unwrap_or_else(|| i.to_string());
        row![word, number(scores[i]), format!("{:.4}", p[i]), format!("{:.4}", loss[i])]
    };
    let sum = row!["sum", "", format!("{:.4}", p.iter().sum::<f64>()), ""];
    let plain: f64 = scores.iter().map(|s| s.exp()).sum();
    let top = number(scores.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    let title = if plain.is_finite() {
        String::new()
    } else {
        format!("the greatest, {top}, is taken away first: the sum of e^score is infinite without it")
    };
    let columns = if targets { 4 } else { 3 };
    let headers = if targets { ["word", "score", "P", "−log P"] } else { ["", "score", "P", ""] };
    let rows = (0..scores.len()).map(row).chain([sum]).map(|row| row[..columns].to_vec());
    grid(title, headers.into_iter().take(columns), rows)
}

/// Rows, and each kind of norm of them.
fn norms(rows: &[Vec<f64>], eps: f64, kinds: &[String]) -> Views {
    let cols = rows.first().map_or(1, Vec::len);
    let figure = |caption: &str, title: &str, values| Figure { caption: caption.into(), ..plain(title, cols, values) };
    let mut figures = vec![figure("rows to normalise", "rows", rows.concat())];
    for name in kinds {
        let kind = name.parse()?;
        let caption = match kind {
            NormKind::Layer => "less their mean, over √(σ² + ε)",
            NormKind::LayerStd => "less their mean, over σ + ε",
            NormKind::Rms => "over √(the mean of their squares + ε)",
        };
        figures.push(figure(caption, name, normalised(rows, eps, kind)));
    }
    Ok(figures)
}

/// Rows normalised, without gain and offset.
pub(super) fn normalised(rows: &[Vec<f64>], eps: f64, kind: NormKind) -> Vec<f64> {
    let x = rows.concat();
    let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * rows.len()]);
    norm::reference::forward((&mut y, &mut stats), &x, (None, None), (kind, eps));
    y
}

/// What an element that dropout keeps is multiplied by: while training, and in evaluation.
pub(super) fn dropout_factors(scale: DropoutScale, p: f64) -> [f64; 2] {
    let factor = |seed| {
        let draws = Draws::new(DropoutSpec { p: p as f32, scale, site: 0 }, seed);
        (0..1000).map(|i| draws.factor(i)).find(|factor| *factor > 0.0).map_or(0.0, f64::from)
    };
    [factor(Some(1)), factor(None)]
}

fn dropped(x: &[f64], mask: &[f64], p: f64) -> Figure {
    let text = |name: &str, row: Vec<f64>| {
        let mean = row.iter().sum::<f64>() / row.len().max(1) as f64;
        [vec![name.to_string()], row.into_iter().chain([mean]).map(number).collect()].concat()
    };
    let masked = |by: f64| x.iter().zip(mask).map(|(x, m)| x * m * by).collect::<Vec<f64>>();
    let mut rows = vec![text("X", x.to_vec()), text("M", mask.to_vec())];
    for scale in [DropoutScale::Unscaled, DropoutScale::Inverted] {
        let [training, evaluation] = dropout_factors(scale, p);
        rows.push(text(&format!("{scale}, training"), masked(training)));
        rows.push(text(&format!("{scale}, evaluation"), x.iter().map(|x| x * evaluation).collect()));
    }
    let places: Vec<String> = (0..x.len()).map(|i| i.to_string()).collect();
    grid(format!("dropout with p {p}"), [row![""], places, row!["mean"]].concat(), rows)
}

/// A weight after the first step of an optimizer.
pub(super) fn stepped([w, g, rate]: [f64; 3], method: Method) -> f64 {
    let rule = Recipe { optimizer: method, clip: 0.0, ..Recipe::DEFAULT }.rule(rate, 1);
    let mut w = [w];
    adamw::reference::update(&rule, 1.0, 0.0, &mut w, &[g], &mut [0.0], &mut [0.0]);
    w[0]
}

fn updated([w, g, rate]: [f64; 3], optimizers: &[String]) -> Views {
    let mut rows = vec![];
    for name in optimizers {
        let method: Method = name.parse()?;
        let new = stepped([w, g, rate], method);
        let rule = if method == Method::Sgd { "W − η g" } else { "W − η m̂ / (√v̂ + ε)" };
        rows.push(row![name, rule, number(w), number(g), format!("{:.9}", w - new), format!("{new:.9}")]);
    }
    Ok(vec![grid(format!("one step with η = {rate}"), ["", "rule", "W", "gradient", "step", "new W"], rows)])
}

/// Where an activation is least, left of 0, and how much it is there.
pub(super) fn least(f: Activation) -> [f64; 2] {
    let (mut low, mut high) = (-1.5, -0.25);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if activate::reference::derivative(f, Constants::USUAL, middle) < 0.0 { low = middle } else { high = middle }
    }
    [low, activate::reference::value(f, Constants::USUAL, low)]
}

// ---- the live model

fn change(live: &mut Live, at: &At, [sequence, position]: [usize; 2], to: &str) -> Views {
    let logits = |run: &mut Run| Ok((run.get("logits")?, run.config().mask, run.config().vocab_size));
    let (before, mask, v) = live.run(at, logits)?;
    let ready = live.ready(at)?;
    let mut ids = match &at.prompt {
        Some(prompt) => vec![ready.ids(prompt)?],
        None => ready.sequences.clone(),
    };
    let sequence = sequence.min(ids.len().saturating_sub(1));
    let t = ids.get(sequence).map_or(0, Vec::len);
    if t == 0 {
        return lacks("there are no tokens to change");
    }
    let position = position.min(t - 1);
    let old = ids[sequence][position];
    // a word that the vocabulary lacks is another that it has
    let new = ready.ids(to).ok().and_then(|ids| ids.first().copied()).filter(|id| *id != old);
    let new = new.unwrap_or((old + 1) % v as u32);
    ids[sequence][position] = new;
    let (after, ..) = live.run_on(at, &ids, logits)?;
    let row = |logits: &NamedTensor, i: usize| logits.values[(sequence * t + i) * v..][..v].to_vec();
    let off = |i: usize| {
        row(&before, i).iter().zip(row(&after, i)).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
    };
    let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    let same: Vec<bool> = (0..t).map(|i| bits(row(&before, i)) == bits(row(&after, i))).collect();
    let causal = mask == Mask::Causal;
    let rows = (0..t).map(|i| {
        let change = if same[i] { "same bits".into() } else { format!("{:.4}", off(i)) };
        row![i, label(&ready.piece(ids[sequence][i])), change]
    });
    let (was, is) = (label(&ready.piece(old)), label(&ready.piece(new)));
    let title = format!("{was} at position {position} becomes {is}: the greatest change of a logit");
    let kept = same.iter().filter(|same| **same).count();
    let holds = (0..t).all(|i| same[i] == (causal && i < position));
    let kept_before = match position {
        1 => "the row before it keeps every bit".into(),
        _ => format!("the {} before it keep every bit", plural(position, "row")),
    };
    let text = match (holds, causal, position, t - position) {
        (false, ..) => format!("{kept} of {} keep every bit", plural(t, "row")),
        (_, false, ..) => "every row changes, those before it too".into(),
        (_, _, 0, 1) => "it is the only row, and changes".into(),
        (_, _, 0, _) => "no row is before it: all change".into(),
        (_, _, _, 1) => format!("{kept_before}, only the last changes"),
        _ => format!("{kept_before}, it and all later ones change"),
    };
    Ok(vec![grid(title, ["", "token", "change"], rows), verdict(text, holds)])
}

fn similar(run: &mut Run, token: &str) -> Views {
    let (table, c) = (run.get("embed.weight")?, run.config().d_embed());
    let id = run.ready.ids(token).ok().and_then(|ids| ids.first().copied()).unwrap_or(0) as usize;
    let rows: Vec<Vec<f64>> = table.values.chunks_exact(c).map(wide).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let own = nth(&rows.iter().collect::<Vec<_>>(), id, "token")?;
    let cosine = |row: &Vec<f64>| dot(own, row) / (dot(own, own) * dot(row, row)).sqrt();
    let mut near: Vec<(usize, f64)> = rows.iter().map(cosine).enumerate().filter(|(other, _)| *other != id).collect();
    near.sort_by(|a, b| b.1.total_cmp(&a.1));
    let word = |id: usize| label(&run.ready.piece(id as u32));
    let rows = near.iter().take(10).map(|(id, cosine)| row![word(*id), id, format!("{cosine:.4}")]);
    Ok(vec![grid(format!("nearest to {}", word(id)), ["token", "id", "cosine"], rows)])
}

/// One token's rows of tensors, a row for each name, which it is called by. A parameter's vector is the same for every
/// token.
fn rows_of(run: &Run, of: &[String], [sequence, position]: [usize; 2]) -> Result<Matrix> {
    let c = run.config().d_model;
    let mut values = vec![];
    for name in of {
        let tensor = run.get(name)?;
        let (rows, position) = match tensor.shape.len() {
            1 => (wide(&tensor.values), 0),
            _ => (of_sequence(&tensor, sequence)?, position),
        };
        let row = rows.chunks_exact(c).nth(position);
        values.extend(row.ok_or_else(|| WalkError::Lacks(format!("{name} has no position {position}")))?);
    }
    // what a norm makes before its gain and offset has no symbol in most documents
    let own = |name: &String| match name.rsplit('.').next().unwrap_or_default() {
        "hook_normalized" => "normalised".into(),
        last => last.to_string(),
    };
    let symbol = |name: &String| names::called(name, run.config(), run.notation).unwrap_or_else(|| own(name));
    let mut rows = matrix("", ["", "d_model"], c, values);
    rows.rows = of.iter().map(symbol).collect();
    rows.index = vec![("batch", sequence), ("pos", position)];
    let word = tokens(run, sequence).get(position).cloned().unwrap_or_default();
    rows.tensor = format!("one row, of {word}");
    Ok(rows)
}

fn sum(run: &mut Run, of: &[String], sequence: usize, position: usize) -> Views {
    let [_, _, sum, ..] = of else {
        return lacks("a sum is of three tensors: two parts and what they add up to");
    };
    // in post-norm the stream is the sum's norm, and the sum has a name of its own
    let mut of = of.to_vec();
    if run.config().norm_place == NormPlace::Post {
        of[2] = sum.replace("resid_mid", "attn_sum").replace("resid_post", "mlp_sum");
    }
    let rows = rows_of(run, &of, [sequence, position])?;
    let c = rows.size[1];
    let [a, b, sum] = [0, 1, 2].map(|i| &rows.values[i * c..][..c]);
    // single precision rounds once
    let holds = a.iter().zip(b).zip(sum).all(|((a, b), sum)| (a + b).to_bits() == sum.to_bits());
    let text = format!("{} = {} + {}, to the bit: {c} numbers", rows.rows[2], rows.rows[0], rows.rows[1]);
    Ok(vec![View::Matrix(rows).into(), verdict(text, holds)])
}

/// The first norm, which reads and makes what `equal::norm_by_row` names.
fn norm_row(run: &mut Run, position: usize) -> Views {
    let (x, y) = if run.config().norm_place == NormPlace::Pre {
        ("hook_resid_pre", "ln1.hook_out")
    } else {
        ("hook_attn_sum", "hook_resid_mid")
    };
    let of = [x, "ln1.hook_normalized", "ln1.weight", "ln1.bias", y].map(|name| format!("blocks.0.{name}"));
    let rows = rows_of(run, &of, [0, position])?;
    let c = rows.size[1];
    let [_, normalised, gain, offset, y] = [0, 1, 2, 3, 4].map(|i| wide(&rows.values[i * c..][..c]));
    let top = y.iter().fold(0.0f64, |top, y| top.max(y.abs()));
    let holds = (0..c).all(|j| (gain[j] * normalised[j] + offset[j] - y[j]).abs() <= 1e-6 * top);
    let [_, normalised, gain, offset, y] = &rows.rows[..] else { unreachable!("a row for each of five names") };
    let text = format!("{normalised} times {gain} plus {offset} is {y}: {c} numbers");
    Ok(vec![View::Matrix(rows).into(), verdict(text, holds)])
}

fn memory(config: &Config) -> Views {
    let model = Model::new(config, Mode::Train { batch: 1, context: config.context_length })?;
    let spaces = [
        ("parameters", "params_memory", MemorySpace::Param),
        ("gradients", "grads_memory", MemorySpace::Grad),
        ("first moments", "m_memory", MemorySpace::Moment1),
        ("second moments", "v_memory", MemorySpace::Moment2),
    ];
    let sizes = spaces.map(|(.., space)| model.program.size(space));
    let rows = spaces.iter().zip(sizes).map(|((what, name, _), n)| row![what, name, commas(n as u64)]);
    let all = sizes.iter().sum::<usize>();
    let rows = rows.chain([row!["all", "", commas(all as u64)]]);
    let title = "numbers kept in training, before activations";
    let table = grid(title, ["", "in llm.c", "in limpid's memory"], rows);
    Ok(vec![table, verdict("four stretches of memory of the same length", all == 4 * sizes[0])])
}

fn compare_models(live: &mut Live, ids: &[String]) -> Views {
    let mut models = vec![];
    for id in ids {
        let at = At { on: Some(id.clone()), ..At::default() };
        let streams = live.run(&at, |run| {
            let after = (0..run.config().n_layer).map(|i| Module::block(i).named("hook_resid_post"));
            let names: Vec<String> = [Module::block(0).named("hook_resid_pre")].into_iter().chain(after).collect();
            let one = |name: &String| {
                let row = run.trace.row(name)?;
                let called = names::called(name, run.config(), run.notation);
                Ok((called.unwrap_or_else(|| name.clone()), row.deviation))
            };
            names.iter().map(one).collect::<Result<Vec<_>>>()
        })?;
        models.push((live.ready(&at)?.config.clone(), streams));
    }
    let Some((first, streams)) = models.first() else { return Ok(vec![]) };
    let fields: Vec<_> = models.iter().map(|(config, _)| limpid_core::config::Fields::fields(config)).collect();
    let differ = (0..fields[0].len()).filter(|i| fields.iter().any(|f| f[*i].1.json() != fields[0][*i].1.json()));
    let settings = differ.map(|i| {
        let values = fields.iter().map(|fields| fields[i].1.json().to_string().replace('"', ""));
        iter::once(fields[0][i].0.name.to_string()).chain(values).collect()
    });
    let deviations = (0..=first.n_layer).map(|i| {
        let values = models.iter().map(|(_, streams)| streams.get(i).map_or(String::new(), |s| format!("{:.4}", s.1)));
        iter::once(streams[i].0.clone()).chain(values).collect()
    });
    let headers = || iter::once("").chain(ids.iter().map(String::as_str));
    Ok(vec![
        grid("settings that differ", headers(), settings),
        grid("deviation of the stream's numbers", headers(), deviations),
    ])
}

fn curve(losses: &[f64]) -> Vec<Figure> {
    let (n, top) = (losses.len(), losses.iter().copied().fold(0.0, f64::max));
    if n == 0 {
        return vec![said("this model was not trained here, so its losses are not known")];
    }
    let mut steps: Vec<usize> = (0..10).map(|k| k * (n - 1) / 9).collect();
    steps.dedup();
    // all equally wide, so that they begin in one column
    let bar = |loss: f64| format!("{:<20}", "█".repeat((20.0 * loss / top.max(f64::MIN_POSITIVE)).round() as usize));
    let rows = steps.into_iter().map(|i| row![i + 1, format!("{:.4}", losses[i]), bar(losses[i])]);
    vec![grid("loss while training", ["step", "loss", ""], rows)]
}

fn moments(run: &mut Run, of: &str) -> Views {
    let (tensor, scale) = (run.get(of)?, run.get(&of.replace("hook_normalized", "hook_scale"))?);
    let c = tensor.shape.last().copied().unwrap_or(1);
    let eps = f64::from(run.config().norm_eps as f32);
    let words = run.labels.tokens.concat();
    let mut rows = vec![];
    let mut holds = true;
    for ((row, scale), word) in tensor.values.chunks_exact(c).zip(&scale.values).zip(&words) {
        let row = wide(row);
        let mean = row.iter().sum::<f64>() / c as f64;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / c as f64;
        // of a divisor √(σ² + ε) the variance that is left is 1 − ε / divisor²
        let left = 1.0 - eps / f64::from(*scale).powi(2);
        holds &= mean.abs() < 1e-5 && (variance - left).abs() < 1e-4;
        let mean = (1e6 * mean).round() / 1e6 + 0.0;
        rows.push(row![word, format!("{mean:.6}"), format!("{:.6}", variance.sqrt())]);
    }
    let text = format!("every row has mean 0 and, but for ε, deviation 1: {} rows", rows.len());
    let holds = holds && !rows.is_empty();
    let headers = ["token", "mean", "deviation"].map(String::from).to_vec();
    let few = TableOptions { max_rows: 16, edge_rows: 4, ..TableOptions::default() };
    let table = View::Grid(Grid { title: of.into(), headers, rows }.ends(&few));
    Ok(vec![table.into(), verdict(text, holds)])
}
