//! What the model of a run does at its end: how much each token of the sample looks at the ones before it, head by head, and how
//! long the vectors of the residual stream are, layer by layer.
//!
//! A picture of a head has a pixel for each weight, coded by its palette: `page.js` reads the weight under the pointer from it.

use crate::page::escape;
use crate::plot::{Curve, CurvePlot, Style, shared};
use crate::words;
use limpid_core::config::Config;
use limpid_core::model::{Component, Module};
use limpid_tokenizer::Tokenizer;
use limpid_trace::palette::{Palette, entry};
use limpid_trace::picture::png::{base64, cells};
use limpid_trace::view::Matrix;
use limpid_trace::{Labelled, Trace, TraceError};

/// What a model does with a text.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLook {
    /// The tokens of the text, as they are written.
    pub tokens: Vec<String>,
    /// The attention weights of every head, layer by layer.
    pub heads: Vec<Vec<Matrix>>,
    /// Lengths of vectors by what they are: after how many layers, and the median over the tokens.
    pub norms: Vec<(String, Vec<(f64, f64)>)>,
}

/// Weights of all heads that a page holds: some 400 kB of pictures.
const WEIGHTS: usize = 200_000;

impl ModelLook {
    /// How many tokens of a text are worth looking at: as many as the pictures of all heads have room for.
    pub fn tokens(config: &Config) -> usize {
        (WEIGHTS / (config.n_layer * config.n_head).max(1)).isqrt().clamp(8, 64).min(config.context_length)
    }

    /// Of a run that was made for it.
    ///
    /// # Errors
    /// If a tensor cannot be read.
    pub fn new(trace: &Trace, tokenizer: &Tokenizer) -> Result<ModelLook, TraceError> {
        let piece = |id: u32| tokenizer.piece(id).unwrap_or_else(|_| id.to_string());
        let (labels, tokens) = (trace.labels(&piece), trace.batch().tokens.iter().map(|id| piece(*id)).collect());
        let layers = trace.model().config.n_layer;
        let all = |part: &str| -> Result<Vec<(f64, f64)>, TraceError> {
            let names = (0..layers).map(|l| (l + 1, Module::block(l).named(part)));
            let first = (part == "hook_resid_post").then(|| (0, Module::block(0).named("hook_resid_pre")));
            let point = |(after, name): (usize, String)| match trace.get(&name) {
                Err(TraceError::Unknown { .. }) => None, // not every model has it
                found => Some(found.map(|tensor| (after as f64, median_norm(&tensor)))),
            };
            first.into_iter().chain(names).filter_map(point).collect()
        };
        let mut norms = vec![];
        for (label, part) in [
            ("residual stream", "hook_resid_post"),
            ("attention adds", "hook_attn_out"),
            ("feed-forward adds", "hook_mlp_out"),
        ] {
            norms.push((label.to_string(), all(part)?));
        }
        norms.retain(|(_, points)| !points.is_empty());
        let pattern = |l: usize| {
            let name = Module::block(l).part(Component::Attention).named("hook_pattern");
            Ok(trace.get(&name)?.matrices(&labels).collect())
        };
        Ok(ModelLook { tokens, heads: (0..layers).map(pattern).collect::<Result<_, TraceError>>()?, norms })
    }

    /// The section of the page, whose first figure is its `number`-th.
    pub(super) fn html(&self, number: usize) -> String {
        let looks: Vec<Looks> = self.heads.iter().flatten().map(Looks::new).collect();
        let token = |word: &String| format!("<span>{}</span>", escape(&word.replace('\n', "⏎")));
        let tokens: String = self.tokens.iter().map(token).collect();
        let mut out = format!(
            "<h2>Attention in the sample</h2>\n<p class=\"words\">{}</p>\n<div id=\"heads\">\n<p class=\"tokens\">{tokens}</p>\n\
             <p class=\"legend\">Row: a token that looks; column: a token that it looks at; weight 0 \
             <img class=\"scale\" alt=\"from dark to bright, 0.25 in the middle\" src=\"{}\"> 1, in the middle 0.25; paper: hidden \
             by the mask</p>\n",
            escape(&summary(&looks)),
            picture(256, &(0..=255).map(Some).collect::<Vec<_>>()),
        );
        let mut looks = looks.iter();
        for (layer, heads) in self.heads.iter().enumerate() {
            out += &format!("<h3>Layer {layer}</h3>\n<div class=\"layer\">\n");
            for (head, (matrix, looks)) in heads.iter().zip(&mut looks).enumerate() {
                let code = |(at, weight): (usize, &f32)| {
                    let hidden = matrix.hidden.get(at).is_some_and(|hidden| *hidden);
                    (!hidden).then(|| entry(f64::from(*weight).sqrt(), (0.0, 1.0))) // small weights can be seen, too
                };
                let codes: Vec<Option<u8>> = matrix.values.iter().enumerate().map(code).collect();
                out += &format!(
                    "<div class=\"head\"><img alt=\"Layer {layer}, head {head}: {}\" src=\"{}\"><p>{head}: <span>{}</span></p></div>\n",
                    looks.sentence(),
                    picture(matrix.size[1], &codes),
                    looks.caption(),
                );
            }
            out += "</div>\n";
        }
        let norms = self.norms.iter().enumerate();
        let curves: Vec<Curve> =
            norms.map(|(i, (label, points))| Curve::new(label, Style::nth(i), points.clone())).collect();
        let figure = CurvePlot {
            title: "Norm of the residual stream".into(),
            note: "after so many layers; median over the sample's tokens".into(),
            said: words::each(&curves, "layers"),
            log: false,
            from: 0.0,
            legend: true,
            across: "layer",
            curves,
        };
        let drawn = figure.svg(number, &shared(&[&figure]), 424);
        out + &format!("</div>\n<h2>Norms through the layers</h2>\n<div class=\"plots\">\n{drawn}</div>\n")
    }
}

/// A picture that is part of the page.
fn picture(columns: usize, codes: &[Option<u8>]) -> String {
    format!("data:image/png;base64,{}", base64(&cells(columns, codes, Palette::Viridis)))
}

/// The median over rows of their lengths.
fn median_norm(tensor: &Labelled) -> f64 {
    let rows = tensor.values.chunks(tensor.shape.last().copied().unwrap_or(1).max(1));
    let mut norms: Vec<f64> = rows.map(|row| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()).collect();
    crate::plot::median(&mut norms)
}

/// Where a head looks: means over all tokens but the first, which has no choice, as `trace::heads` has them.
struct Looks {
    before: f64,
    itself: f64,
    first: f64,
    /// How many tokens it is spread over: e to the entropy of its weights.
    spread: f64,
}

impl Looks {
    fn new(head: &Matrix) -> Looks {
        let [rows, columns] = head.size;
        let at = |query: usize, key: usize| f64::from(head.values[query * columns + key]);
        let mean = |of: &dyn Fn(usize) -> f64| (1..rows).map(of).sum::<f64>() / rows.saturating_sub(1).max(1) as f64;
        let part = |weight: f64| if weight > 0.0 { -weight * weight.ln() } else { 0.0 };
        let entropy = |t: usize| (0..columns).map(|s| part(at(t, s))).sum::<f64>();
        Looks {
            before: mean(&|t| at(t, t - 1)),
            itself: mean(&|t| at(t, t)),
            first: mean(&|t| at(t, 0)),
            spread: mean(&entropy).exp(),
        }
    }

    /// What gets most of its weight, if one thing does.
    fn mostly(&self) -> Option<(&'static str, f64)> {
        let all = [("the token before", self.before), ("itself", self.itself), ("the first token", self.first)];
        all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, share)| *share >= 0.4)
    }

    fn caption(&self) -> String {
        let spread = || format!("about {} tokens", self.spread.round());
        self.mostly().map_or_else(spread, |(what, share)| format!("{what} {:.0}%", 100.0 * share))
    }

    fn sentence(&self) -> String {
        let [before, itself, first] = [self.before, self.itself, self.first].map(|share| 100.0 * share);
        format!(
            "{before:.0}% of its weight on the token before, {itself:.0}% on the token itself, {first:.0}% on the first token"
        )
    }
}

/// What the heads do, in a sentence.
fn summary(looks: &[Looks]) -> String {
    let count = |what: &str| looks.iter().filter(|look| look.mostly().map_or("", |(is, _)| is) == what).count();
    let told = ["the token before", "itself", "the first token"].map(|what| (count(what), what));
    let told: Vec<String> =
        told.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} mostly at {what}")).collect();
    let rest = format!("{} spread out", count(""));
    let all = told.into_iter().chain((count("") > 0).then_some(rest)).collect::<Vec<_>>().join(", ");
    format!(
        "How much each token looks at those before it: of {} heads, {all}. The weights are the kept ones.",
        looks.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_trace::view::HeatScale;

    #[test]
    fn where_a_head_looks() {
        let head = |weight: &dyn Fn(usize, usize) -> f32| Matrix {
            tensor: "blocks.0.attn.hook_pattern".into(),
            index: vec![],
            size: [5, 5],
            axes: ["query_pos", "key_pos"],
            rows: ["a", "<b>", "c", "d", "e"].map(String::from).into(),
            columns: vec![],
            values: (0..25).map(|at| if at % 5 <= at / 5 { weight(at / 5, at % 5) } else { 0.0 }).collect(),
            hidden: (0..25).map(|at| at % 5 > at / 5).collect(),
            scale: HeatScale::Unit,
        };
        let before = head(&|t, s| if s + 1 == t { 0.75 } else { 0.25 / t.max(1) as f32 });
        let first = head(&|t, s| if s == 0 { 0.5 } else { 0.5 / t.max(1) as f32 });
        let even = head(&|t, _| 1.0 / (t + 1) as f32);
        let looks: Vec<Looks> = [&before, &first, &even].map(Looks::new).into();
        // what is left of 1 is shared by t others
        assert!((looks[0].itself - 0.25 * (1.0 + 1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0) / 4.0).abs() < 1e-6);
        assert!((looks[2].first - (1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0 + 1.0 / 5.0) / 4.0).abs() < 1e-6);
        let captions: Vec<String> = looks.iter().map(Looks::caption).collect();
        // e to the mean entropy of 2, 3, 4 and 5 equal weights is the fourth root of their product
        assert!((looks[2].spread - 120f64.powf(0.25)).abs() < 1e-6);
        assert_eq!(captions, ["the token before 75%", "the first token 50%", "about 3 tokens"]);
        let look = ModelLook {
            tokens: ["a", "<b>", " c", "\n", "e"].map(String::from).into(),
            heads: vec![vec![before, first], vec![even]],
            norms: vec![("residual stream".into(), vec![(0.0, 1.0), (1.0, 3.0), (2.0, 4.0)])],
        };
        let page = look.html(7);
        assert!(
            page.contains("of 3 heads, 1 mostly at the token before, 1 mostly at the first token, 1 spread out."),
            "{page}"
        );
        assert_eq!((page.matches("<div class=\"head\">").count(), page.matches("<h3>").count()), (3, 2));
        assert!(
            page.contains("<span>&lt;b&gt;</span><span> c</span><span>⏎</span>")
                && page.contains("Residual stream rises from 1.00 to 4.00")
        );
        assert!(page.contains("points=\"0,1 1,3 2,4\"") && page.contains("id=\"f7\""));
    }
}
