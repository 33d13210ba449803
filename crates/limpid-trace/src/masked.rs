//! A run with any mask: a table says one by one which keys each query sees. No fused attention takes such a mask, so
//! the op runs as ever, and then its scores, weights and context are computed anew, in f64 as the reference backend
//! does, and written over its own.

use super::TraceError;
use limpid_core::backend::Backend;
use limpid_core::kernels::attend::reference;
use limpid_core::kernels::dropout::{Draws, weight_index};
use limpid_core::ops::{Batch, Op, Region};
use std::str::FromStr;

/// Which keys each query sees, (n,n): no query sees none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskTable {
    n: usize,
    sees: Vec<bool>,
}

impl MaskTable {
    /// How many queries, and how many keys.
    pub fn size(&self) -> usize {
        self.n
    }

    /// Whether a query sees a key.
    pub fn sees(&self, query: usize, key: usize) -> bool {
        self.sees[query * self.n + key]
    }
}

impl FromStr for MaskTable {
    type Err = TraceError;
    /// A line for each query: for each key `1` or `x` where the query sees it, `0` or `.` where it does not. Spaces and
    /// commas may stand between them.
    fn from_str(text: &str) -> Result<MaskTable, TraceError> {
        let wrong = |what: String| Err(TraceError::Mask { what });
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let n = lines.len();
        if n == 0 {
            return wrong("the mask is empty: it has a line of 0s and 1s for each token".into());
        }
        let mut sees = vec![];
        for (line, number) in lines.iter().zip(1..) {
            let here = format!("line {number} of the mask");
            for c in line.chars().filter(|c| !c.is_whitespace() && *c != ',') {
                match c {
                    '1' | 'x' => sees.push(true),
                    '0' | '.' => sees.push(false),
                    c => return wrong(format!("{here} has {c:?}: it is made of 0 and 1, or of . and x")),
                }
            }
            let row = &sees[(sees.len().min((number - 1) * n))..];
            let has = row.len();
            if has != n {
                return wrong(format!("{here} has {has} of the {n} that its {n} lines ask for: it is square"));
            }
            if !row.contains(&true) {
                let why = "a softmax over nothing would be 0 / 0; let the query see one key, itself for instance";
                return wrong(format!("{here} hides every key: {why}"));
            }
        }
        Ok(MaskTable { n, sees })
    }
}

/// Writes over what an attention computed what it computes with `mask`.
pub(super) fn attend(op: &Op, backend: &mut dyn Backend, batch: &Batch, mask: &MaskTable) -> Result<(), TraceError> {
    let Op::Attend { qkv, y, lse, heads, scoring, drop, raw, scores, pattern, .. } = *op else { return Ok(()) };
    let x: Vec<f64> = backend.read(qkv.for_batch(batch))?.into_iter().map(f64::from).collect();
    let x = &x[..];
    let (n_head, all) = (heads.n_head, heads.cols());
    let draws = drop.map(|drop| Draws::new(drop, batch.seed));
    let mut made: Vec<(Region, Vec<f32>)> = vec![];
    for region in [Some(y), Some(lse), raw, scores, pattern].into_iter().flatten() {
        made.push((region.for_batch(batch), backend.read(region.for_batch(batch))?));
    }
    for span in &batch.spans {
        for (i, h) in (0..span.rows).flat_map(|i| (0..n_head).map(move |h| (i, h))) {
            let (at, [query, key, value]) = (span.row + i, heads.starts(h));
            let part = |first: usize, d: usize| {
                (0..span.rows).map(move |j| (span.row + j) * all + first).map(move |at| &x[at..at + d])
            };
            let q = &x[at * all + query..][..heads.d_head];
            let score = |j, product| scoring.score(product, scoring.distance(span, i, j, [h, n_head]));
            let row = reference::row(q, part(key, heads.d_head), |j| mask.sees(i, j), score);
            let mut context = vec![0.0; heads.d_value];
            for (j, v) in part(value, heads.d_value).enumerate() {
                let factor = draws.map_or(1.0, |draws| f64::from(draws.factor(weight_index(at, h, n_head, j))));
                context.iter_mut().zip(v).for_each(|(y, v)| *y += row.pattern[j] * factor * v);
            }
            let values = [&context, &vec![row.lse], &row.raw, &row.scores, &row.pattern];
            for ((region, to), from) in made.iter_mut().zip(values) {
                let to = &mut to[at * region.cols..][..region.cols];
                let wide = to.len() / n_head;
                to[h * wide..][..from.len()].iter_mut().zip(from).for_each(|(to, from)| *to = *from as f32);
            }
        }
    }
    made.iter().try_for_each(|(region, values)| Ok(backend.write(*region, values)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_in_both_ways() {
        let mask: MaskTable = "1 0 0\n1,1,0\n\n1 0 1\n".parse().unwrap();
        assert_eq!(mask, "x..\nxx.\r\nx.x".parse().unwrap());
        let seen: Vec<(usize, usize)> =
            (0..3).flat_map(|i| (0..3).map(move |j| (i, j))).filter(|(i, j)| mask.sees(*i, *j)).collect();
        assert_eq!((mask.size(), seen), (3, vec![(0, 0), (1, 0), (1, 1), (2, 0), (2, 2)]));
    }

    #[test]
    fn what_is_no_mask_is_refused() {
        for (text, says) in [
            ("", "empty"),
            ("1 0\n1 2", "line 2 of the mask has '2'"),
            ("1 0\n1", "line 2 of the mask has 1 of the 2"),
            ("1 0 1\n1 1", "line 1 of the mask has 3 of the 2"),
            ("1 0\n0 0", "line 2 of the mask hides every key"),
        ] {
            let error = text.parse::<MaskTable>().unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
