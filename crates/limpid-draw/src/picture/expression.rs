//! What is plotted, in a line: `blocks.0.attn.hook_pattern[0,1]`, `W_pos`, `cos(hook_embed)`, `curves(W_pos[*,4:8])`,
//! `loss`, `gelu`.
//!
//! A name may be a pattern (`blocks.*.attn.hook_pattern`). An index has a number, `a:b` or `*` for each axis of the
//! tensor, as its shape says; axes left out are whole.

use super::{Chart, PlotPart, Series, TensorPlot};
use crate::view::{HeatScale, Matrix, matrices};
use limpid_core::config::{Activation, Constants, Mask};
use limpid_core::kernels::activate::reference::value;
use limpid_core::ops::IGNORE;
use limpid_trace::labels::Labels;
use limpid_trace::{Trace, TraceError, names};
use std::ops::Range;

/// The most curves of a chart, rows of a table of cosines, and heat maps of a plot.
const CURVES: usize = 8;
const COSINES: usize = 4096;
const MAPS: usize = 256;

/// An error that names what was asked for.
fn wrong<T>(asked: &str, why: impl std::fmt::Display) -> Result<T, TraceError> {
    Err(TraceError::Expression { what: format!("`{asked}`: {why}") })
}

/// The picture that `asked` stands for; `labels` are [`Trace::labels`].
///
/// # Errors
/// If it cannot be read, names no tensor, or has an index that the tensor has not.
pub fn plot(trace: &Trace, asked: &str, labels: &Labels) -> Result<TensorPlot, TraceError> {
    let asked = asked.trim();
    let inner = |name: &str| asked.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
    if asked == "gelu" {
        return Ok(gelu(trace.model().config.activation_constants(), &before_activation(trace)?));
    }
    if asked == "loss" {
        return loss(trace, labels);
    }
    let (of, inside) = match (inner("cos"), inner("curves")) {
        (Some(inside), _) => (Of::Cosines, inside),
        (_, Some(inside)) => (Of::Curves, inside),
        (None, None) => (Of::Values, asked),
    };
    let matrices = parts(trace, inside.trim(), labels)?;
    let n = matrices.len();
    if n > MAPS {
        return wrong(asked, format!("it is {n} heat maps, {MAPS} at most are drawn: choose by an index"));
    }
    let mut parts = vec![];
    for (matrix, is_row) in matrices {
        parts.push(match of {
            Of::Cosines => PlotPart::Matrix(cosines(asked, matrix)?),
            Of::Curves => PlotPart::Chart(curves(asked, matrix)?),
            Of::Values if is_row => PlotPart::Chart(row(&matrix)),
            Of::Values => PlotPart::Matrix(matrix),
        });
    }
    let about = match (of, parts.first()) {
        (Of::Cosines, _) => {
            "cosine of the angle between each two rows: 1 the same direction, 0 at right angles, -1 opposite".into()
        }
        (_, Some(PlotPart::Matrix(Matrix { tensor, axes, size: [m, n], .. }))) => {
            let what = names::describe(tensor).map(|what| format!("{what}; ")).unwrap_or_default();
            let axes = match axes {
                ["query_pos", "key_pos"] => {
                    "a row is the token that looks (query), a column one that is looked at (key)".to_string()
                }
                [rows, columns] => format!("rows: {rows}, columns: {columns}"),
            };
            format!("{what}{axes}; {m} x {n}")
        }
        _ => names::describe(asked.split('[').next().unwrap_or_default()).unwrap_or_default().into(),
    };
    Ok(TensorPlot { title: asked.into(), about, parts })
}

/// The matrices of `NAME` or `NAME[INDEX]`, and whether each is one row that was asked for.
fn parts(trace: &Trace, asked: &str, labels: &Labels) -> Result<Vec<(Matrix, bool)>, TraceError> {
    let (name, index) = match asked.split_once('[') {
        None => (asked, None),
        Some((name, rest)) => match rest.strip_suffix(']') {
            Some(index) => (name, Some(index)),
            None => return wrong(asked, "an index ends with `]`"),
        },
    };
    let mut all = vec![];
    for name in trace.matching(name)? {
        let tensor = trace.get(&name)?;
        let axes: Vec<&str> = (0..tensor.shape.len()).map(|i| tensor.axes.get(i).copied().unwrap_or("axis")).collect();
        let entries: Vec<&str> = index.map_or(vec![], |index| index.split(',').map(str::trim).collect());
        let (given, n) = (entries.len(), axes.len());
        if given > n {
            let axes = axes.join(" ");
            return wrong(asked, format!("the index has {given} numbers, `{name}` has {n} axes: [{axes}]"));
        }
        let mut chosen: Vec<(&str, Range<usize>, bool)> = vec![];
        for (i, (axis, size)) in axes.iter().zip(&tensor.shape).enumerate() {
            let (range, one) = match entries.get(i) {
                None => (0..*size, false),
                Some(entry) => range(asked, entry, axis, *size)?,
            };
            chosen.push((axis, range, one));
        }
        let of = |axis: &str| chosen.iter().find(|(own, ..)| *own == axis);
        for matrix in matrices(&tensor, labels) {
            let inside = |(axis, i): &(&'static str, usize)| of(axis).is_none_or(|(_, range, _)| range.contains(i));
            if matrix.index.iter().all(inside) {
                let whole = |n: usize| (matrix.axes[n], 0..matrix.size[n], false);
                let [rows, columns] = [0, 1].map(|n| of(matrix.axes[n]).cloned().unwrap_or_else(|| whole(n)));
                let is_row = rows.2 || columns.2 || tensor.shape.len() == 1;
                let flip = columns.2 && !rows.2;
                let part = cut(matrix, rows.1, columns.1);
                all.push((if flip { turned(part) } else { part }, is_row));
            }
        }
    }
    Ok(all)
}

/// Cross-entropy of each token, as bars.
fn loss(trace: &Trace, labels: &Labels) -> Result<TensorPlot, TraceError> {
    let (losses, targets) = (trace.get("losses")?, &trace.batch().targets);
    let length = trace.batch().spans[0].rows;
    let mut parts = vec![];
    for (b, losses) in losses.values.chunks_exact(length).enumerate() {
        let counted = |t: &usize| targets.get(b * length + t).is_some_and(|target| *target != IGNORE);
        let at: Vec<usize> = (0..length).filter(counted).collect();
        if at.is_empty() {
            continue;
        }
        let causal = trace.model().config.mask == Mask::Causal;
        let word = |t: &usize| {
            let id = targets[b * length + t];
            let own = labels.tokens.get(b).and_then(|words| words.get(if causal { t + 1 } else { *t }));
            own.or_else(|| labels.vocabulary.get(id as usize)).cloned().unwrap_or_else(|| id.to_string())
        };
        let points: Vec<(f64, f64)> = at.iter().enumerate().map(|(i, t)| (i as f64, losses[*t].into())).collect();
        let mean = points.iter().map(|(_, loss)| loss).sum::<f64>() / points.len() as f64;
        let vocab_size = trace.model().config.vocab_size;
        let even = (vocab_size as f64).ln();
        let all = "how surprised the model is by each token";
        parts.push(PlotPart::Chart(Chart {
            title: if trace.batch().spans.len() > 1 { format!("sequence {b}") } else { all.into() },
            axes: ["the token that is predicted".into(), "-ln p, nats".into()],
            words: at.iter().map(word).collect(),
            bars: true,
            series: vec![Series { label: "loss".into(), points }],
            lines: vec![("mean".into(), mean), (format!("every token equally likely, ln {vocab_size}"), even)],
        }));
    }
    if parts.is_empty() {
        return wrong("loss", "no token has a target: give at least two tokens");
    }
    let about = names::describe("losses").unwrap_or_default().into();
    Ok(TensorPlot { title: "cross-entropy loss".into(), about, parts })
}

/// What goes into the activations of all blocks.
fn before_activation(trace: &Trace) -> Result<Vec<f32>, TraceError> {
    let names = trace.names().filter(|name| name.ends_with(".mlp.hook_pre"));
    let all: Result<Vec<Vec<f32>>, TraceError> = names.map(|name| Ok(trace.get(&name)?.values)).collect();
    Ok(all?.concat())
}

#[derive(Clone, Copy, PartialEq)]
enum Of {
    Values,
    Cosines,
    Curves,
}

/// The places of an axis that an entry of an index chooses, and whether it is one.
fn range(asked: &str, entry: &str, axis: &str, size: usize) -> Result<(Range<usize>, bool), TraceError> {
    let read = || -> Option<(Range<usize>, bool)> {
        match (entry, entry.split_once(':')) {
            ("*", _) => Some((0..size, false)),
            (_, Some((from, to))) => {
                let number = |text: &str, none: usize| if text.is_empty() { Some(none) } else { text.parse().ok() };
                Some((number(from, 0)?..number(to, size)?, false))
            }
            _ => entry.parse().ok().map(|i: usize| (i..i.saturating_add(1), true)),
        }
    };
    match read() {
        None => wrong(asked, format_args!("`{entry}` is no index of the axis {axis}: give a number, a:b or *")),
        Some((found, _)) if found.start >= found.end || found.end > size => {
            let last = size.saturating_sub(1);
            wrong(asked, format!("the axis {axis} has {size} places, 0 to {last}; `{entry}` is outside"))
        }
        Some(found) => Ok(found),
    }
}

/// Some rows and columns of a matrix, with their words or numbers.
fn cut(matrix: Matrix, rows: Range<usize>, columns: Range<usize>) -> Matrix {
    if rows == (0..matrix.size[0]) && columns == (0..matrix.size[1]) {
        return matrix;
    }
    let wide = matrix.size[1];
    let cells = || rows.clone().flat_map(|i| columns.clone().map(move |j| i * wide + j));
    let words = |words: &[String], range: &Range<usize>| -> Vec<String> {
        if !words.is_empty() {
            words[range.clone()].to_vec()
        } else if range.start == 0 {
            vec![]
        } else {
            range.clone().map(|i| i.to_string()).collect()
        }
    };
    let values = cells().map(|at| matrix.values[at]).collect();
    let mut hidden: Vec<bool> = cells().map(|at| matrix.is_hidden(at)).collect();
    if !hidden.contains(&true) {
        hidden.clear();
    }
    let (row_words, column_words) = (words(&matrix.rows, &rows), words(&matrix.columns, &columns));
    Matrix { size: [rows.len(), columns.len()], rows: row_words, columns: column_words, values, hidden, ..matrix }
}

/// Rows and columns exchanged.
fn turned(matrix: Matrix) -> Matrix {
    let [m, n] = matrix.size;
    let at = |k: usize| k % m * n + k / m;
    let values = (0..m * n).map(|k| matrix.values[at(k)]).collect();
    let hidden = if matrix.hidden.is_empty() { vec![] } else { (0..m * n).map(|k| matrix.hidden[at(k)]).collect() };
    let axes = [matrix.axes[1], matrix.axes[0]];
    Matrix { size: [n, m], axes, rows: matrix.columns, columns: matrix.rows, values, hidden, ..matrix }
}

/// One row as a curve, or as bars where its places have words.
fn row(matrix: &Matrix) -> Chart {
    let series = |i: usize| {
        let [_, n] = matrix.size;
        let points =
            (0..n).filter(|j| !matrix.is_hidden(i * n + j)).map(|j| (j as f64, matrix.values[i * n + j].into()));
        let label = matrix.rows.get(i).cloned().unwrap_or_else(|| format!("{} {i}", matrix.axes[0]));
        Series { label, points: points.collect() }
    };
    Chart {
        title: matrix.title(),
        axes: [matrix.axes[1].into(), "value".into()],
        words: matrix.columns.clone(),
        bars: !matrix.columns.is_empty() && matrix.size[0] == 1,
        series: (0..matrix.size[0]).map(series).collect(),
        lines: vec![],
    }
}

/// Each column as a curve over the rows.
fn curves(asked: &str, matrix: Matrix) -> Result<Chart, TraceError> {
    let (n, axis) = (matrix.size[1], matrix.axes[1]);
    if n > CURVES {
        let has = format!("it has {n} columns ({axis}), and a chart has room for {CURVES} curves");
        return wrong(asked, format!("{has}: choose some by an index, as in curves(W_pos[*,4:8])"));
    }
    let turned = turned(matrix);
    Ok(Chart { bars: false, words: vec![], ..row(&turned) })
}

/// The cosine of every pair of rows.
fn cosines(asked: &str, matrix: Matrix) -> Result<Matrix, TraceError> {
    let [m, n] = matrix.size;
    if m > COSINES {
        let has = format!("{m} rows have {m} x {m} cosines, at most {COSINES} rows are compared");
        return wrong(asked, format!("{has}: choose some by an index, as in cos(embed.weight[0:1000])"));
    }
    let dot = |i: usize, j: usize| -> f64 {
        let [a, b] = [i, j].map(|i| &matrix.values[i * n..(i + 1) * n]);
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let own: Vec<f64> = (0..m).map(|i| dot(i, i)).collect();
    let cosine = |i: usize, j: usize| (dot(i, j) / (own[i] * own[j]).sqrt().max(f64::MIN_POSITIVE)) as f32;
    let values = (0..m * m).map(|at| cosine(at / m, at % m)).collect();
    let (tensor, axes) = (format!("cos({})", matrix.tensor), [matrix.axes[0]; 2]);
    let columns = matrix.rows.clone();
    Ok(Matrix { tensor, size: [m, m], axes, columns, values, hidden: vec![], scale: HeatScale::Signed, ..matrix })
}

/// Where the figure of the GELUs begins and ends, and its places.
const GELU: (f64, usize) = (4.0, 161);

/// GELU by its definition, x Φ(x), its two approximations and ReLU; how far the approximations are from it; and, of a
/// model, how its values before the activation are spread. `k` has the constants of the approximation by tanh.
pub fn gelu(k: Constants, before: &[f32]) -> TensorPlot {
    use Activation::{GeluErf, GeluSigmoid, GeluTanh, Relu};
    let (end, n) = GELU;
    let points = |f: &dyn Fn(f64) -> f64| {
        let x = |i: usize| -end + 2.0 * end * i as f64 / (n - 1) as f64;
        (0..n).map(|i| (x(i), f(x(i)))).collect()
    };
    let of = |activation: Activation| move |x: f64| value(activation, k, x);
    let usual = [k.alpha, k.beta, k.gamma] == [Constants::USUAL.alpha, Constants::USUAL.beta, Constants::USUAL.gamma];
    let own = format!("by tanh, α {}, β {}, γ {}", k.alpha, k.beta, k.gamma);
    let by_tanh = if usual { "by tanh" } else { &own };
    let names =
        [(GeluErf, "GELU: x Φ(x)"), (GeluTanh, by_tanh), (GeluSigmoid, "by sigmoid: x σ(1.702 x)"), (Relu, "ReLU")];
    let series = names.map(|(activation, label)| Series { label: label.into(), points: points(&of(activation)) });
    let far = |activation: Activation, label: &str| Series {
        label: label.into(),
        points: points(&|x| of(activation)(x) - of(GeluErf)(x)),
    };
    let axes = |y: &str| ["x".to_string(), y.to_string()];
    let mut charts = vec![
        Chart { title: "the functions".into(), axes: axes("f(x)"), series: series.into(), ..Chart::default() },
        Chart {
            title: "how far the approximations are from it".into(),
            axes: axes("f(x) - x Φ(x)"),
            series: vec![far(GeluTanh, by_tanh), far(GeluSigmoid, "by sigmoid")],
            ..Chart::default()
        },
    ];
    let seen: Vec<f64> = before.iter().map(|v| f64::from(*v)).filter(|v| v.is_finite()).collect();
    if !seen.is_empty() {
        let bins = 80;
        let mut counts = vec![0.0; bins];
        for v in seen.iter().filter(|v| v.abs() < end) {
            counts[((v + end) / (2.0 * end) * bins as f64) as usize] += 1.0;
        }
        let outside = seen.iter().filter(|v| v.abs() >= end).count();
        let middle = |i: usize| -end + (i as f64 + 0.5) * 2.0 * end / bins as f64;
        let points = counts.iter().enumerate().map(|(i, count)| (middle(i), count / seen.len() as f64)).collect();
        let beyond = if outside > 0 { format!("; {outside} are beyond -4 or 4") } else { String::new() };
        charts.push(Chart {
            title: format!("where this model's {} values before the activation lie{beyond}", seen.len()),
            axes: axes("share"),
            bars: true,
            series: vec![Series { label: "share".into(), points }],
            ..Chart::default()
        });
    }
    TensorPlot {
        title: "GELU and its approximations".into(),
        about: "x times the share of a normal distribution below x".into(),
        parts: charts.into_iter().map(PlotPart::Chart).collect(),
    }
}
