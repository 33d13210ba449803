//! A run at a glance: how surprised the model was by each token, what it would have said after each block, and what
//! each head attends to. Each is a table for a terminal; limpid-glass has the same numbers for a page.

use crate::table::columns;
use crate::view::Grid;
use limpid_trace::Trace;
use limpid_trace::TraceError;
use limpid_trace::heads::{HeadKind, HeadScores, look};
use limpid_trace::lens::{LensCell, LensRow, lens, stages};
use limpid_trace::predict::Prediction;
use limpid_trace::sheet::AttentionHead;

/// What is seen first.
#[derive(Clone, Debug)]
pub struct Glance {
    /// The labels of the tokens.
    pub tokens: Vec<String>,
    /// What is predicted after each; nothing of a model without a head.
    pub predictions: Vec<Prediction>,
    /// What each stage would have said at some positions; nothing of a model without a head.
    pub lens: Vec<LensRow>,
    /// The likeliest token of each stage of these.
    pub best: Vec<Vec<String>>,
    /// What each head of each block attends to.
    pub heads: Vec<Vec<HeadScores>>,
}

/// Positions that a lens shows: the last ones.
const LENS: usize = 16;

/// Runs what has not run of a trace, and looks at one of its sequences. `piece` is a token's label.
///
/// # Errors
/// If the backend fails.
pub fn glance(trace: &Trace, sequence: usize, piece: &dyn Fn(u32) -> String) -> Result<Glance, TraceError> {
    let (span, config) = (trace.batch().spans[sequence], trace.model().config.clone());
    let rows = span.row..span.row + span.rows;
    let ids = trace.batch().tokens[rows.clone()].to_vec();
    let mut heads = vec![];
    for block in 0..config.n_layer {
        let all: Vec<AttentionHead> =
            (0..config.n_head).map(|head| trace.head(block, sequence, head)).collect::<Result<_, _>>()?;
        heads.push(all.into_iter().map(|head| look(head, &ids, 1).scores).collect());
    }
    let tokens = ids.iter().map(|id| piece(*id)).collect();
    let mut glance = Glance { tokens, predictions: vec![], lens: vec![], best: vec![], heads };
    if config.lm_head {
        let last: Vec<usize> = (rows.start.max(rows.end.saturating_sub(LENS))..rows.end).collect();
        glance.predictions = trace.predictions(rows, 1)?;
        glance.lens = lens(trace, &last, 1)?;
        let best = |cell: &LensCell| cell.prediction.top.first().map_or(String::new(), |best| piece(best.id));
        glance.best = glance.lens.iter().map(|row| row.cells.iter().map(best).collect()).collect();
        glance.lens.iter_mut().for_each(|row| row.row -= span.row);
    }
    Ok(glance)
}

/// What a head attends to in a word, and how much of its weight goes there: `previous 92%`.
pub fn head_label(scores: &HeadScores) -> String {
    match scores.kind {
        Some(HeadKind { score: "entropy", name, .. }) => name.into(),
        Some(HeadKind { name, value, .. }) => format!("{name} {:.0}%", 100.0 * value),
        None if scores.first.is_some() => "mixed".into(),
        None => "-".into(),
    }
}

impl Glance {
    /// The mean cross-entropy of the tokens that have a target, in nats.
    pub fn loss(&self) -> Option<f64> {
        let losses: Vec<f64> = self.predictions.iter().filter_map(|p| Some(f64::from(p.target?.loss))).collect();
        (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64)
    }

    /// How surprised the model was by each token, in nats: of a causal model by the token after the one that predicts
    /// it.
    pub fn surprise(&self, causal: bool) -> Vec<Option<f32>> {
        let losses = self.predictions.iter().map(|p| p.target.map(|target| target.loss));
        if causal { std::iter::once(None).chain(losses).take(self.tokens.len()).collect() } else { losses.collect() }
    }

    /// The text in lines of at most `width` characters (0 for any), and under each token its surprise.
    pub fn text(&self, causal: bool, width: usize) -> String {
        let (mut text, mut above, mut below) = (String::new(), String::new(), String::new());
        let mut used = 0;
        for (token, nats) in self.tokens.iter().zip(self.surprise(causal)) {
            let nats = nats.map_or(String::new(), |nats| format!("{nats:.2}"));
            let wide = columns(token).max(nats.len());
            if width > 0 && used > 0 && used + 2 + wide > width {
                text += &format!("{}\n{}\n\n", above.trim_end(), below.trim_end());
                (above, below, used) = (String::new(), String::new(), 0);
            }
            if used > 0 {
                above += "  ";
                below += "  ";
                used += 2;
            }
            above += &format!("{token}{}", " ".repeat(wide - columns(token)));
            below += &format!("{nats}{}", " ".repeat(wide - nats.len()));
            used += wide;
        }
        text + &format!("{}\n{}\n", above.trim_end(), below.trim_end())
    }

    /// The likeliest token after each block, a row for each of the last positions. A star follows the stage from which
    /// it stays. Of many stages as many as a line of `width` characters has room for (0 for any), the first and the
    /// last among them.
    pub fn lens(&self, width: usize) -> Grid {
        let stages = stages(self.best.first().map_or(0, Vec::len).saturating_sub(1));
        let cell = |n: usize, stage: usize| {
            format!("{}{}", self.best[n][stage], if self.lens[n].settled == stage { " *" } else { "" })
        };
        let wide = |stage: usize| {
            let cells = (0..self.best.len()).map(|n| columns(&cell(n, stage)));
            cells.max().unwrap_or(0).max(stages[stage].len()) + 2
        };
        let sides = 6 + self.tokens.iter().map(|token| columns(token)).max().unwrap_or(0);
        let mut shown: Vec<usize> = (0..stages.len()).collect();
        while width > 0 && shown.len() > 2 && sides + shown.iter().map(|stage| wide(*stage)).sum::<usize>() > width {
            // the stages that are left stay apart as evenly as they can
            let least = (1..shown.len() - 1).min_by_key(|at| shown[at + 1] - shown[at - 1]).unwrap_or(1);
            shown.remove(least);
        }
        let row = |(n, row): (usize, &LensRow)| {
            let cells = shown.iter().map(|stage| cell(n, *stage));
            [row.row.to_string(), self.tokens[row.row].clone()].into_iter().chain(cells).collect()
        };
        let headers = shown.iter().map(|stage| stages[*stage].clone());
        Grid {
            title: String::new(),
            headers: ["pos".to_string(), "token".to_string()].into_iter().chain(headers).collect(),
            rows: self.lens.iter().enumerate().map(row).collect(),
        }
    }

    /// What each head attends to, a row for each block.
    pub fn heads(&self) -> Grid {
        let n = self.heads.first().map_or(0, Vec::len);
        let row = |(block, heads): (usize, &Vec<HeadScores>)| -> Vec<String> {
            std::iter::once(block.to_string()).chain(heads.iter().map(head_label)).collect()
        };
        Grid {
            title: String::new(),
            headers: std::iter::once("block".to_string()).chain((0..n).map(|head| format!("head {head}"))).collect(),
            rows: self.heads.iter().enumerate().map(row).collect(),
        }
    }
}
