//! What a sweep found, as heat maps and in words.

use super::{NOTHING, Sweep, SweepPeak};
use crate::Labelled;
use crate::picture::{PlotPart, TensorPlot};
use crate::view::{HeatScale, Matrix};

impl Sweep {
    /// The recovered fractions as heat maps; `words` are the corrupt prompt's tokens. Heads of all layers are rows below each other, `2.5`
    /// for head 5 of layer 2; of pairs of positions each head is a map, the one that restores the most first.
    pub fn plot(&self, words: &[String]) -> TensorPlot {
        let Labelled { axes, shape, values, .. } = &self.recovered;
        let is_word = |axis: &str| axis.ends_with("pos");
        let scale = if values.iter().any(|v| *v < 0.0) { HeatScale::Signed } else { HeatScale::Positive };
        let matrix = |index, size, axes: [&'static str; 2], rows, values| Matrix {
            tensor: self.recovered.name.clone(),
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
                let head_first = self.recovered.permuted(&[0, 2, 1]);
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
        let about = format!("{}: clean {:.4}, corrupt {:.4}", self.metric.name, self.clean, self.corrupt);
        TensorPlot { title: self.recovered.name.clone(), about, parts }
    }

    /// Those peaks whose part is not said as 0.00.
    pub fn strong(&self) -> impl Iterator<Item = &SweepPeak> {
        self.peaks.iter().filter(|peak| peak.recovered.abs() >= NOTHING)
    }

    /// What is to be said of the grid before its peaks, where no cell restores anything.
    pub fn nothing_restored(&self) -> Option<&'static str> {
        match self.strong().next() {
            Some(peak) if peak.recovered > 0.0 => None,
            Some(_) => {
                Some("No cell restores any of the difference: patches lead away from the clean run, or change nothing.")
            }
            None => Some("No cell changes the metric by 0.5 % of the difference."),
        }
    }

    /// What a peak is, in a sentence; `words` are the corrupt prompt's tokens.
    pub fn sentence(&self, peak: &SweepPeak, words: &[String]) -> String {
        let mut places = vec![];
        for (axis, at) in self.recovered.axes.iter().zip(&peak.index) {
            let word = || words.get(*at).map_or(String::new(), |word| format!(" ({word})"));
            match *axis {
                "pos" => places.insert(0, format!("position {at}{}", word())),
                "query_pos" => places.push(format!("query {at}{}", word())),
                "key_pos" => places.push(format!("key {at}{}", word())),
                other => places.push(format!("{other} {at}")),
            }
        }
        let (places, size) = (places.join(", "), peak.recovered.abs());
        let text = match peak.recovered {
            v if v <= -NOTHING => format!("{places} leads away from the clean run, by {size:.2} of the difference."),
            _ => format!("{places} restores {:.2} of the difference.", peak.recovered),
        };
        text[..1].to_uppercase() + &text[1..]
    }
}
