//! The sums behind attention's numbers: scores, their logs of sums, weights, and what a head reads with them.

use super::{Cell, Draft, Explainer, LOG_SUM, Operand, Operation, SumTerm, constant, found, short, term};
use crate::TraceError;
use limpid_base::plural::plural;
use limpid_core::kernels::attend::Stage;
use limpid_core::kernels::dropout::{Draws, weight_index};
use limpid_core::numeric::math;
use limpid_core::ops::{Op, Region};

impl Explainer<'_> {
    /// A row of scores, by the name of the stage.
    pub(super) fn stage(
        &mut self,
        op: Op,
        stage: Stage,
        (head, query): (usize, usize),
        keys: std::ops::Range<usize>,
    ) -> Result<Vec<Operand>, TraceError> {
        let Op::Attend { raw, scores, pattern, .. } = op else { return Ok(vec![]) };
        let region = [raw, scores, pattern][stage as usize];
        let name = region.map_or(String::new(), |region| self.trace.model().name_of(region));
        let values = self.score(&name, head, query, keys.clone())?;
        let cell = |key: usize| Cell { name: name.clone(), at: vec![self.b, head, query, key] };
        Ok(keys.zip(values).map(|(key, value)| found(value, cell(key))).collect())
    }

    /// Query times key.
    pub(super) fn products(&mut self, op: Op, head: usize, query: usize, key: usize) -> Result<Draft, TraceError> {
        let Op::Attend { qkv, heads, .. } = op else { return Ok(Draft::default()) };
        let span = self.trace.batch().spans[self.b];
        let [q, k, _] = heads.starts(head);
        let (of_query, of_key) = (self.values_of(qkv, span.row + query)?, self.values_of(qkv, span.row + key)?);
        let one = |i: usize| {
            let left = found(of_query[q + i], self.cell_in(qkv, span.row + query, q + i));
            let right = found(of_key[k + i], self.cell_in(qkv, span.row + key, k + i));
            term(format!("dimension {i}"), left, Some(right))
        };
        let what = format!(
            "How well the key of position {key} fits the query of position {query} in head {head}: their {} \
             multiplied and added up.",
            plural(heads.d_head, "dimension")
        );
        Ok(Draft::new(what).part("query times key", (0..heads.d_head).map(one).collect()))
    }

    pub(super) fn attend(
        &mut self,
        op: Op,
        region: Region,
        (head, query): (usize, usize),
        key: usize,
    ) -> Result<Draft, TraceError> {
        let Op::Attend { lse, heads, scoring, raw, scores, .. } = op else { return Ok(Draft::default()) };
        let span = self.trace.batch().spans[self.b];
        let seen = scoring.sees(&span, query);
        if raw == Some(region) {
            let draft = self.products(op, head, query, key)?;
            let draft = draft.step(Operation::Times, "the scale", constant(scoring.scale)).bounded(scoring.cap);
            let far = constant(scoring.distance(&span, query, key, [head, heads.n_head]));
            let label = "the head's slope times the distance";
            return Ok(if scoring.alibi { draft.step(Operation::Minus, label, far) } else { draft });
        }
        if scores == Some(region) {
            let before = self.stage(op, Stage::Raw, (head, query), key..key + 1)?.remove(0);
            let what = if seen.contains(&key) {
                format!("The query of position {query} may see position {key}: the score is unchanged.")
            } else if key < seen.start {
                let keys = plural(seen.len(), "key");
                format!("Position {key} lies before the window of the query of position {query}, which sees {keys}.")
            } else {
                format!("The mask hides position {key} from the query of position {query}.")
            };
            let draft = Draft::new(what).term("score", before, None);
            let hidden = constant(f64::NEG_INFINITY);
            return Ok(if seen.contains(&key) { draft } else { draft.step(Operation::Plus, "the mask", hidden) });
        }
        if lse == region {
            let keys = self.stage(op, Stage::Masked, (head, query), seen.clone())?;
            let top = keys.iter().map(|key| key.value).fold(f64::NEG_INFINITY, f64::max);
            let one = |(j, left): (usize, Operand)| {
                let value = math::exp_f64(left.value - top);
                SumTerm { label: format!("key {j}"), left, right: None, value }
            };
            let what = format!(
                "The log of the sum of the exponentials of the {} that position {query} sees in head {head}. The \
                 greatest score, {}, is subtracted from each and added again at the end.",
                plural(seen.len(), "score"),
                short(top)
            );
            let draft = Draft::new(what).part("exponentials", seen.zip(keys).map(one).collect());
            return Ok(draft.apply(Operation::Ln).step(Operation::Plus, "the greatest", constant(top)));
        }
        let score = self.stage(op, Stage::Masked, (head, query), key..key + 1)?.remove(0);
        let name = score.at.as_ref().map_or(String::new(), |cell| cell.name.replace("hook_attn_scores", "hook_lse"));
        let sum = self.trace.stored_row(&name, span.row + query)?[head];
        let sum = found(sum, Cell { name, at: vec![self.b, query, head] });
        let what = format!(
            "How much position {query} takes from position {key} in head {head}: the share of its exponential among \
             the {} that it sees.",
            plural(seen.len(), "key")
        );
        let draft = Draft::new(what).term("score", score, None);
        Ok(draft.step(Operation::Minus, LOG_SUM, sum).apply(Operation::Exp))
    }

    /// What attention gives on: values by their weights.
    pub(super) fn context(&mut self, op: Op, col: usize) -> Result<Draft, TraceError> {
        let Op::Attend { qkv, heads, scoring, drop, .. } = op else { return Ok(Draft::default()) };
        let (span, seed) = (self.trace.batch().spans[self.b], self.trace.batch().seed);
        let (head, d) = (col / heads.d_value, col % heads.d_value);
        let (value, shared) = (heads.starts(head)[2] + d, head / heads.group());
        let seen = scoring.sees(&span, self.pos);
        let weights = self.stage(op, Stage::Weights, (head, self.pos), seen.clone())?;
        let raw = weights.first().and_then(|weight| weight.at.clone()).map_or(String::new(), |cell| cell.name);
        let name = raw.replace("hook_pattern", "hook_v");
        let draws = drop.map(|drop| Draws::new(drop, seed));
        let (mut terms, n_head) = (vec![], heads.n_head);
        for (j, left) in seen.clone().zip(weights) {
            let cell = Cell { name: name.clone(), at: vec![self.b, shared, j, d] };
            let right = found(self.values_of(qkv, span.row + j)?[value], cell);
            let kept = draws.map_or(1.0, |draws| f64::from(draws.factor(weight_index(self.row, head, n_head, j))));
            let mut one = term(format!("key {j}"), left, Some(right));
            one.value *= kept;
            terms.push(one);
        }
        let kept = if draws.is_some_and(|draws| !draws.is_identity()) { ", times what dropout keeps" } else { "" };
        let what = format!(
            "Head {head} at position {}: dimension {d} of the values of {}, each times its weight{kept}.",
            self.pos,
            plural(seen.len(), "key")
        );
        Ok(Draft::new(what).part("values by weight", terms))
    }
}
