//! What the model of a run does at its end: how much each token of the sample looks at the ones before it, head by
//! head, and how long the vectors of the residual stream are, layer by layer.
//!
//! A picture of a head has a pixel for each weight, coded by its palette: `page.js` reads the weight under the pointer
//! from it.

use crate::escape::escape;
use crate::plot::{Curve, CurvePlot, Style, shared};
use crate::words;
use limpid_base::plural::plural;
use limpid_core::config::Config;
use limpid_core::model::{Component, Module};
use limpid_draw::glance::head_label;
use limpid_draw::palette::{Palette, entry};
use limpid_draw::picture::png::{base64, cells};
use limpid_draw::view::{Matrix, matrices};
use limpid_tokenizer::Tokenizer;
use limpid_trace::heads::{HeadScores, NAMED_FROM, scores_of_weights};
use limpid_trace::{NamedTensor, Trace, TraceError};

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
            Ok(matrices(&trace.get(&name)?, &labels).collect())
        };
        Ok(ModelLook { tokens, heads: (0..layers).map(pattern).collect::<Result<_, TraceError>>()?, norms })
    }

    /// The section of the page, whose first figure is its `number`-th.
    pub(super) fn html(&self, number: usize) -> String {
        let looks: Vec<HeadScores> = self.heads.iter().flatten().map(|head| scores(head, &self.tokens)).collect();
        let token = |word: &String| format!("<span>{}</span>", escape(&word.replace('\n', "⏎")));
        let tokens: String = self.tokens.iter().map(token).collect();
        let mut out = format!(
            "<h2>Attention in the sample</h2>\n<p class=\"words\">{}</p>\n<div id=\"heads\">\n<p \
             class=\"tokens\">{tokens}</p>\n<p class=\"legend\">Row: a token that looks; column: a token that it \
             looks at; weight 0 <img class=\"scale\" alt=\"from dark to bright, 0.25 in the middle\" src=\"{}\"> 1, \
             in the middle 0.25; paper: hidden by the mask</p>\n",
            escape(&summary(&looks, self.tokens.len())),
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
                    "<div class=\"head\"><img alt=\"Layer {layer}, head {head}: {}\" src=\"{}\"><p>{head}: \
                     <span>{}</span></p></div>\n",
                    sentence(looks),
                    picture(matrix.size[1], &codes),
                    head_label(looks),
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
fn median_norm(tensor: &NamedTensor) -> f64 {
    let rows = tensor.values.chunks(tensor.shape.last().copied().unwrap_or(1).max(1));
    let mut norms: Vec<f64> = rows.map(|row| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()).collect();
    crate::plot::median(&mut norms)
}

/// Where a head looks, as [`limpid_trace::heads`] has it: tokens that are written alike count as the same.
fn scores(head: &Matrix, tokens: &[String]) -> HeadScores {
    let columns = head.size[1];
    let first = |token: &String| tokens.iter().position(|other| other == token).unwrap_or(0) as u32;
    let sees = |t: usize| {
        let hidden = |s: &usize| head.hidden.get(t * columns + s).is_some_and(|hidden| *hidden);
        let seen = || (0..columns).filter(|s| !hidden(s));
        seen().min().unwrap_or(0)..seen().max().map_or(0, |last| last + 1)
    };
    scores_of_weights(&head.values, &tokens.iter().map(first).collect::<Vec<_>>(), sees)
}

fn sentence(scores: &HeadScores) -> String {
    let [before, itself, first] =
        [scores.previous, scores.current, scores.first].map(|share| 100.0 * share.unwrap_or(0.0));
    format!(
        "{before:.0}% of its weight on the token before, {itself:.0}% on the token itself, {first:.0}% on the first \
         token"
    )
}

/// What the heads do, in a sentence.
fn summary(all: &[HeadScores], tokens: usize) -> String {
    let count = |name: Option<&str>| all.iter().filter(|scores| scores.kind.map(|kind| kind.name) == name).count();
    let habits = [
        ("previous", "the token before"),
        ("self", "the token itself"),
        ("first", "the first token"),
        ("duplicate", "earlier tokens that are the same"),
        ("induction", "what followed an earlier token that is the same"),
        ("even", "all tokens alike"),
    ];
    let told: Vec<String> = habits
        .iter()
        .filter_map(|(name, at)| match count(Some(name)) {
            0 => None,
            1 => Some(format!("1 looks at {at} ({name})")),
            n => Some(format!("{n} look at {at} ({name})")),
        })
        .collect();
    let rest = count(None);
    let habits = match (told.is_empty(), rest) {
        (true, _) if tokens < NAMED_FROM => format!("none can be named: that takes {NAMED_FROM} tokens"),
        (true, _) => "none has a clear habit".to_string(),
        (false, 0) => told.join(", "),
        (false, rest) => {
            format!("{}; {rest} {} no clear habit", told.join(", "), if rest == 1 { "has" } else { "have" })
        }
    };
    format!(
        "How much each token looks at those before it. Of {}, {habits}. The weights are the kept ones.",
        plural(all.len(), "head")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_draw::view::HeatScale;

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
        let first = head(&|t, s| if s == 0 { 0.6 } else { 0.4 / t.max(1) as f32 });
        let mixed = head(&|t, s| if s == t / 2 { 0.6 } else { 0.4 / t.max(1) as f32 });
        let tokens: Vec<String> = ["a", "<b>", " c", "\n", "e"].map(String::from).into();
        let looks = [&before, &first, &mixed].map(|head| scores(head, &tokens));
        // what is left of 1 is shared by t others
        let itself = 0.25 * (1.0 + 1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0) / 4.0;
        assert!((looks[0].current.unwrap() - itself).abs() < 1e-6);
        assert_eq!(looks.each_ref().map(head_label), ["previous 75%", "first 60%", "mixed"]);
        let look = ModelLook {
            tokens,
            heads: vec![vec![before, first], vec![mixed]],
            norms: vec![("residual stream".into(), vec![(0.0, 1.0), (1.0, 3.0), (2.0, 4.0)])],
        };
        let page = look.html(7);
        assert!(
            page.contains(
                "Of 3 heads, 1 looks at the token before (previous), 1 looks at the first token (first); 1 has no \
                 clear habit."
            ),
            "{page}"
        );
        assert!(summary(&looks[2..], 5).contains("Of 1 head, none has a clear habit."));
        // fewer tokens than the library names heads from
        let few = scores_of_weights(&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0], &[1, 2, 3], |t| 0..t + 1);
        assert!(summary(&[few], 3).contains("none can be named: that takes 5 tokens."));
        assert_eq!((page.matches("<div class=\"head\">").count(), page.matches("<h3>").count()), (3, 2));
        assert!(
            page.contains("<span>&lt;b&gt;</span><span> c</span><span>⏎</span>")
                && page.contains("Residual stream rises from 1.00 to 4.00")
        );
        assert!(page.contains("points=\"0,1 1,3 2,4\"") && page.contains("id=\"f7\""));
    }
}
