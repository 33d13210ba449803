//! The softmax of attention: why scores are divided by √d, and what may stand where the mask hides.

use super::Topic;
use limpid_core::kernels::attend::reference::row;
use limpid_core::numeric::random::{normal, site};
use limpid_draw::view::{HeatScale, Matrix, View};
use std::iter;

/// Keys of a query.
const KEYS: usize = 16;
/// Queries whose mean is taken.
const QUERIES: u64 = 500;

/// Why scores are divided by √d.
pub(super) const SHARPNESS: Topic = Topic {
    name: "scale-and-sharpness",
    title: "Why are the scores of attention divided by √d?",
    about: "Draws queries and keys of d standard normal numbers, 16 keys a query, and takes the softmax of their \
            products with and without the division by √d. The slope of a weight p with respect to its product q·k is \
            p (1 − p), with the scale p (1 − p) / √d; slopes are summed over the keys.",
    teach: |class| {
        let draw = |what: &str, query: u64, n: usize| -> Vec<f64> {
            (0..n as u64).map(|i| normal(class.seed, site(&format!("{what} {n} {query}")), i)).collect()
        };
        let mut weights = vec![];
        let mut slopes = vec![];
        let mut found = vec![];
        let mut maps = [vec![], vec![]];
        let sizes = [4, 16, 64, 256];
        for d in sizes {
            // variance of the scores; the greatest weight, without and with the scale; each query's slopes likewise
            let (mut sums, mut steep) = ([0.0; 3], [vec![], vec![]]);
            for query in 0..QUERIES {
                let (q, keys) = (draw("query", query, d), draw("keys", query, KEYS * d));
                for (s, scale) in [1.0, 1.0 / (d as f64).sqrt()].into_iter().enumerate() {
                    let seen = row(&q, keys.chunks_exact(d), |_| true, |_, product| scale * product);
                    if s == 0 {
                        sums[0] += seen.raw.iter().map(|x| x * x).sum::<f64>() / KEYS as f64;
                    }
                    sums[1 + s] += seen.pattern.iter().copied().fold(0.0, f64::max);
                    steep[s].push(scale * seen.pattern.iter().map(|p| p * (1.0 - p)).sum::<f64>());
                    if query == 0 {
                        maps[s].extend(seen.pattern.iter().map(|p| *p as f32));
                    }
                }
            }
            let means = sums.map(|sum| sum / QUERIES as f64);
            let [mean, median] = [
                |all: &Vec<f64>| all.iter().sum::<f64>() / QUERIES as f64,
                |all: &Vec<f64>| {
                    let mut all = all.clone();
                    all.sort_by(f64::total_cmp);
                    all[all.len() / 2]
                },
            ];
            let steep = [mean(&steep[0]), mean(&steep[1]), median(&steep[0]), median(&steep[1])];
            let row = |cells: Vec<String>| [vec![d.to_string()], cells].concat();
            weights.push(row(means.map(|mean| format!("{mean:.2}")).to_vec()));
            slopes.push(row(steep.map(|slope| format!("{slope:.3}")).to_vec()));
            found.push((means, steep));
        }
        class.table("Means of 500 queries", ["d", "variance of q·k", "greatest weight", "scaled"], weights);
        class.table("Slopes of 500 queries", ["d", "mean", "scaled", "median", "scaled"], slopes);
        for (values, name) in maps.into_iter().zip(["softmax(q·k)", "softmax(q·k / √d)"]) {
            class.show(View::Matrix(Matrix {
                tensor: format!("weights of the first query, {name}"),
                index: vec![],
                size: [sizes.len(), KEYS],
                axes: ["d_head", "key_pos"],
                rows: sizes.map(|d| format!("d {d}")).to_vec(),
                columns: vec![],
                values,
                hidden: vec![],
                scale: HeatScale::Unit,
            }));
        }
        // the least and the greatest of the four sizes
        type Figures = ([f64; 3], [f64; 4]);
        let ends = |of: &dyn Fn(f64, &Figures) -> f64| {
            let all = sizes.into_iter().zip(&found).map(|(d, found)| of(d as f64, found));
            all.fold([f64::INFINITY, 0.0], |[least, most], v| [least.min(v), most.max(v)])
        };
        let variance = ends(&|d, (means, _)| means[0] / d);
        let weight = ends(&|_, (means, _)| means[2]);
        let slope = ends(&|d, (_, steep)| d.sqrt() * steep[1]);
        class.claim("The variance of q·k is d");
        class.at_least("least variance / d", variance[0], 0.85);
        class.at_most("greatest variance / d", variance[1], 1.15);
        class.claim("Without the scale the softmax of a large d is nearly all on one key");
        class.at_least("greatest weight, d 256", found[3].0[1], 0.85);
        class.at_most("d 4", found[0].0[1], 0.6);
        class.claim(
            "Without the scale most queries of a large d get much less gradient, though a few, between two keys, get \
             more",
        );
        class.at_most("median slope, d 256, without / with", found[3].1[2] / found[3].1[3], 0.5);
        class.at_least("mean slope", found[3].1[0] / found[3].1[1], 1.5);
        class.claim("With the scale it is the same for every d");
        class.at_least("least mean of greatest weights", weight[0], 0.2);
        class.at_most("greatest mean of greatest weights", weight[1], 0.3);
        class.at_least("least mean slope times √d", slope[0], 0.8);
        class.at_most("greatest mean slope times √d", slope[1], 0.92);
        Ok(())
    },
};

/// Tokens of the example.
const TOKENS: usize = 5;

/// What may stand where the mask hides.
pub(super) const FILL: Topic = Topic {
    name: "mask-fill",
    title: "What should stand in place of a hidden score?",
    about: "Draws the scores of 5 tokens, writes −∞, −1e9 or −10 in place of those above the diagonal, and takes the \
            softmax of each row in f64. Then it does so with a row that is hidden entirely.",
    teach: |class| {
        let scores: Vec<f64> = (0..(TOKENS * TOKENS) as u64).map(|i| normal(class.seed, site("scores"), i)).collect();
        let softmax = |scores: &[f64]| row(&[1.0], scores.chunks_exact(1), |_| true, |_, score| score).pattern;
        let above = |at: usize| at % TOKENS > at / TOKENS;
        let weights = |fill: f64| -> Vec<f64> {
            let filled: Vec<f64> = scores.iter().enumerate().map(|(at, s)| if above(at) { fill } else { *s }).collect();
            filled.chunks_exact(TOKENS).flat_map(softmax).collect()
        };
        let fills = [f64::NEG_INFINITY, -1e9, -10.0];
        let [infinite, large, small] = fills.map(weights);
        class.show(View::Matrix(Matrix {
            tensor: "weights, hidden scores are −∞".into(),
            index: vec![],
            size: [TOKENS; 2],
            axes: ["query_pos", "key_pos"],
            rows: vec![],
            columns: vec![],
            values: infinite.iter().map(|p| *p as f32).collect(),
            hidden: (0..TOKENS * TOKENS).map(above).collect(),
            scale: HeatScale::Unit,
        }));
        let headers = || iter::once(String::new()).chain((0..TOKENS).map(|j| format!("key {j}")));
        let line = |name: String, row: &[f64], digits: usize| {
            iter::once(name).chain(row.iter().map(|p| format!("{p:.digits$}"))).collect()
        };
        let leaked = small.chunks_exact(TOKENS).enumerate().map(|(i, row)| line(format!("query {i}"), row, 6));
        class.table("The weights, hidden scores are −10", headers(), leaked);
        let hidden = fills.map(|fill| softmax(&[fill; TOKENS]));
        let lines = ["−∞", "−1e9", "−10"].into_iter().zip(&hidden).map(|(name, row)| line(name.into(), row, 2));
        class.table("A row that is hidden entirely, by what stands there", headers(), lines);
        let same = infinite.iter().zip(&large).filter(|(a, b)| a.to_bits() == b.to_bits()).count();
        let leak =
            |weights: &[f64]| (0..weights.len()).filter(|at| above(*at)).map(|at| weights[at]).fold(0.0, f64::max);
        let nan = hidden[0].iter().filter(|p| p.is_nan()).count();
        let far = hidden[1].iter().map(|p| (p - 1.0 / TOKENS as f64).abs()).fold(0.0, f64::max);
        let all = (TOKENS * TOKENS) as f64;
        class.claim("−1e9 gives the same bits as −∞");
        class.between("weights that are the same, of 25", same as f64, all, all);
        class.claim("With either a hidden weight is exactly 0");
        class.between("greatest", leak(&infinite).max(leak(&large)), 0.0, 0.0);
        class.claim("−10 leaks: a query sees a little of what is hidden");
        class.at_least("greatest hidden weight", leak(&small), 1e-6);
        class.claim(
            "A row that is hidden entirely has no weights with −∞, and the same for every key with −1e9, so it sees \
             what is hidden",
        );
        class.between("weights that are NaN, of 5", nan as f64, TOKENS as f64, TOKENS as f64);
        // f64 rounds 1e9 by 1e-7
        class.at_most("greatest distance from 1/5 with −1e9", far, 1e-7);
        Ok(())
    },
};
