//! What a sweep found, as heat maps.

use super::{PlotPart, TensorPlot};
use crate::view::{HeatScale, Matrix};
use limpid_trace::NamedTensor;
use limpid_trace::sweep::Sweep;

/// The recovered fractions as heat maps; `words` are the corrupt prompt's tokens. Heads of all layers are rows below
/// each other, `2.5` for head 5 of layer 2; of pairs of positions each head is a map, the one that restores the most
/// first.
pub fn plot(sweep: &Sweep, words: &[String]) -> TensorPlot {
    let NamedTensor { axes, shape, values, .. } = &sweep.recovered;
    let is_word = |axis: &str| axis.ends_with("pos");
    let scale = if values.iter().any(|v| *v < 0.0) { HeatScale::Signed } else { HeatScale::Positive };
    let matrix = |index, size, axes: [&'static str; 2], rows, values| Matrix {
        tensor: sweep.recovered.name.clone(),
        index,
        size,
        axes,
        rows,
        columns: if is_word(axes[1]) { words.to_vec() } else { vec![] },
        values,
        hidden: vec![],
        scale,
    };
    let part = |matrix| PlotPart::Matrix(matrix);
    let by_head = |heads: usize| (0..shape[0] * heads).map(|n| format!("{}.{}", n / heads, n % heads)).collect();
    let parts = match &axes[1..] {
        ["pos", "head"] => {
            let head_first = sweep.recovered.permuted(&[0, 2, 1]);
            let size = [shape[0] * shape[2], shape[1]];
            vec![part(matrix(vec![], size, ["layer.head", "pos"], by_head(shape[2]), head_first.values))]
        }
        ["head", "query_pos"] => {
            let size = [shape[0] * shape[1], shape[2]];
            vec![part(matrix(vec![], size, ["layer.head", "query_pos"], by_head(shape[1]), values.clone()))]
        }
        ["head", "query_pos", "key_pos"] => {
            let one = shape[2] * shape[3];
            let greatest = |values: &[f32]| values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut heads: Vec<(usize, &[f32])> = values.chunks_exact(one).enumerate().collect();
            heads.sort_by(|a, b| greatest(b.1).total_cmp(&greatest(a.1)));
            let map = |(n, values): (usize, &[f32])| {
                let index = vec![("layer", n / shape[1]), ("head", n % shape[1])];
                part(matrix(index, [shape[2], shape[3]], ["query_pos", "key_pos"], words.to_vec(), values.to_vec()))
            };
            heads.into_iter().map(map).collect()
        }
        _ => vec![part(matrix(vec![], [shape[0], shape[1]], ["layer", axes[1]], vec![], values.clone()))],
    };
    let about = format!("{}: clean {:.4}, corrupt {:.4}", sweep.metric.name, sweep.clean, sweep.corrupt);
    TensorPlot { title: sweep.recovered.name.clone(), about, parts }
}
