//! Which keys a query sees, and what a score is besides the product of query and key.
//!
//!   score = c(scale q k') - slope |t - j|, with c(s) = cap tanh(s / cap), or s where there is no cap
//!
//! for the query at position t and the key at j; then the mask hides keys. A cap bounds scores (Gemma 2). ALiBi's
//! slopes let them fall with the distance, head by head (Press et al. 2022). A window hides keys that are far
//! (Mistral). Everything that needs one of these asks here: the kernels of `attend`, the reference, explanations.

use super::Span;
use crate::config::{Config, Mask, Positions};
use crate::numeric::math::{pow, tanh_f64};
use std::ops::Range;

/// How attention scores keys, and which.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scoring {
    /// Which keys a query sees.
    pub mask: Mask,
    /// The factor of products.
    pub scale: f32,
    /// Under a causal mask, how many keys a query sees at most, the nearest ones, itself among them; 0 for no limit.
    pub window: usize,
    /// What bounds scores; 0 for nothing.
    pub cap: f32,
    /// Whether scores fall with the distance of query and key.
    pub alibi: bool,
}

impl Scoring {
    /// Products by `scale`, and a mask: GPT-2.
    pub const fn plain(mask: Mask, scale: f32) -> Scoring {
        Scoring { mask, scale, window: 0, cap: 0.0, alibi: false }
    }

    /// That of `block`, counted from 0.
    pub fn new(c: &Config, block: usize) -> Scoring {
        Scoring {
            window: c.window_of(block),
            cap: c.attention_softcap as f32,
            alibi: c.positions == Positions::Alibi,
            ..Scoring::plain(c.mask, c.score_scale(block) as f32)
        }
    }

    /// The same keys, with products as their scores.
    pub fn products(self) -> Scoring {
        Scoring { window: self.window, ..Scoring::plain(self.mask, 1.0) }
    }

    /// Whether a score is more than a product times the scale.
    pub fn bends(self) -> bool {
        self.cap > 0.0 || self.alibi
    }

    /// The keys that row `i` of a span sees. With a window these are t - window + 1 to t, for a query at t
    /// (transformers: `masking_utils.sliding_window_overlay`, `kv_idx > q_idx - sliding_window`; GPT-Neo the same).
    pub fn sees(self, span: &Span, i: usize) -> Range<usize> {
        let end = span.reach(self.mask, i);
        let limited = self.window > 0 && self.mask == Mask::Causal;
        if limited { end.saturating_sub(self.window)..end } else { 0..end }
    }

    /// How many keys a row sees that would see `keys` without a window.
    pub fn keys(self, keys: usize) -> usize {
        if self.window > 0 { keys.min(self.window) } else { keys }
    }

    /// How fast scores of a head fall with the distance; 0 without ALiBi. For 2^n heads a geometric sequence from
    /// 2^(-8 / 2^n) on, with that as its ratio. Other numbers of heads take those of the power of two below, and then
    /// every second one of the sequence for twice as many (transformers: `modeling_bloom._get_alibi_slopes`).
    pub fn slope(self, head: usize, n_head: usize) -> f32 {
        let below = 1 << n_head.max(1).ilog2();
        let exponent = match head.checked_sub(below) {
            None => 8.0 * (head + 1) as f64 / below as f64,
            Some(more) => 4.0 * (2 * more + 1) as f64 / below as f64,
        };
        if self.alibi { pow(2.0, -exponent) as f32 } else { 0.0 }
    }

    /// What distance takes off the score of key `j` for row `i` of a span, in one of the heads.
    pub fn distance(self, span: &Span, i: usize, j: usize, [head, n_head]: [usize; 2]) -> f64 {
        f64::from(self.slope(head, n_head)) * (span.past + i).abs_diff(j) as f64
    }

    /// The score of a product before the mask, with what distance takes off it.
    pub fn score(self, product: f64, distance: f64) -> f64 {
        let (scaled, cap) = (f64::from(self.scale) * product, f64::from(self.cap));
        let bounded = if cap > 0.0 { cap * tanh_f64(scaled / cap) } else { scaled };
        bounded - distance
    }

    /// The derivative of that by the product: scale (1 - tanh(scaled / cap)^2).
    pub fn steepness(self, product: f64) -> f64 {
        let (scale, cap) = (f64::from(self.scale), f64::from(self.cap));
        let t = if cap > 0.0 { tanh_f64(scale * product / cap) } else { 0.0 };
        scale * (1.0 - t * t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers 5.23: `_get_alibi_slopes(n, "cpu")` of BLOOM; MPT's `build_mpt_alibi_tensor` has the same.
    #[test]
    fn slopes_are_those_of_bloom() {
        let alibi = Scoring { alibi: true, ..Scoring::plain(Mask::Causal, 1.0) };
        let slopes = |n: usize| (0..n).map(|head| alibi.slope(head, n)).collect::<Vec<f32>>();
        assert_eq!(slopes(1), [0.003_906_25]);
        assert_eq!(slopes(2), [0.0625, 0.003_906_25]);
        assert_eq!(slopes(3), [0.0625, 0.003_906_25, 0.25]);
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        assert_eq!(slopes(16)[..3], [0.707_106_77, 0.5, 0.353_553_38]);
        assert_eq!(Scoring { alibi: false, ..alibi }.slope(0, 6), 0.0);
    }

    #[test]
    fn a_window_ends_at_the_query() {
        let span = Span { row: 0, rows: 4, past: 3, table: 0, valid: 5 };
        let seen = |mask, window| Scoring { window, ..Scoring::plain(mask, 1.0) }.sees(&span, 1);
        let causal = [0, 1, 2, 5, 6].map(|window| seen(Mask::Causal, window));
        assert_eq!(causal, [0..5, 4..5, 3..5, 0..5, 0..5]);
        assert_eq!([Mask::Bidirectional, Mask::None].map(|mask| seen(mask, 0)), [0..5, 0..7]);
    }

    #[test]
    fn a_score_has_the_slope_it_should() {
        let scoring = Scoring { cap: 1.5, alibi: true, ..Scoring::plain(Mask::Causal, 0.5) };
        for product in [-9.0, -1.0, 0.0, 0.3, 2.0, 40.0] {
            let score = |product| scoring.score(product, 0.75);
            assert!((score(product) + 0.75).abs() <= 1.5);
            let slope = (score(product + 1e-5) - score(product - 1e-5)) / 2e-5;
            assert!((slope - scoring.steepness(product)).abs() < 1e-9, "{product}: {slope}");
        }
        assert_eq!(scoring.products().score(7.0, 0.0), 7.0);
    }
}
