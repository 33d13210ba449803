//! Dropout: while training, elements vanish with probability p; what is kept is divided by 1 - p, or left as
//! it is (contract R075, R076, G33). In evaluation the inverted form does nothing and the un-rescaled one
//! multiplies by 1 - p, so that means agree.
//!
//! A draw is a function of (seed, site, element): the backward asks again instead of remembering. One
//! 64-bit mix serves four neighbours, 16 bits each, so p is exact to 2^-16.

use super::{Drop, random};
use crate::config::DropoutScale;

/// The draws of one place in the model for one batch.
#[derive(Clone, Copy)]
pub struct Draws {
    seed: Option<u64>,
    site: u64,
    threshold: u64,
    kept: f32,
    evaluated: f32,
}

impl Draws {
    /// `seed` is the batch's; none in evaluation.
    pub fn new(drop: Drop, seed: Option<u64>) -> Draws {
        let kept = match drop.scale {
            DropoutScale::Inverted => 1.0 / (1.0 - drop.p),
            DropoutScale::Unscaled => 1.0,
        };
        let evaluated = match drop.scale {
            DropoutScale::Inverted => 1.0,
            DropoutScale::Unscaled => 1.0 - drop.p,
        };
        Draws { seed, site: drop.site, threshold: (f64::from(drop.p) * 65_536.0).round() as u64, kept, evaluated }
    }

    /// What element `index` is multiplied by: in training 0 or the kept elements' factor.
    #[inline(always)]
    pub fn factor(&self, index: u64) -> f32 {
        match self.seed {
            None => self.evaluated,
            Some(seed) => self.pick(random::bits(seed, self.site, index / 4), index % 4),
        }
    }

    #[inline(always)]
    fn pick(&self, bits: u64, lane: u64) -> f32 {
        if (bits >> (16 * lane)) & 0xffff < self.threshold { 0.0 } else { self.kept }
    }

    /// Whether multiplying would change nothing.
    pub fn is_identity(&self) -> bool {
        self.seed.is_none() && self.evaluated == 1.0
    }

    /// `with(element, factor)` for the elements from `first` on, one mix for four.
    #[inline(always)]
    pub fn each(&self, first: u64, n: usize, mut with: impl FnMut(usize, f32)) {
        let Some(seed) = self.seed else { return (0..n).for_each(|i| with(i, self.evaluated)) };
        let mut i = 0;
        while i < n {
            let index = first + i as u64;
            let bits = random::bits(seed, self.site, index / 4);
            for lane in index % 4..4 {
                if i < n {
                    with(i, self.pick(bits, lane));
                    i += 1;
                }
            }
        }
    }
}

/// y = x times its factors; elements are counted from `first`. Backward is the same with gradients.
pub fn forward(y: &mut [f32], x: &[f32], draws: Draws, first: u64) {
    draws.each(first, y.len(), |i, factor| y[i] = x[i] * factor);
}

/// dx = (or +=) dy times the factors.
pub fn backward(dx: &mut [f32], add: bool, dy: &[f32], draws: Draws, first: u64) {
    let keep = if add { 1.0 } else { 0.0 };
    draws.each(first, dx.len(), |i, factor| dx[i] = if keep == 0.0 { dy[i] * factor } else { dx[i] + dy[i] * factor });
}

/// The place of an attention weight among its site's draws: row of the batch, head, key.
pub fn weight_index(row: usize, head: usize, n_head: usize, key: usize) -> u64 {
    (((row * n_head + head) as u64) << 24) + key as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(p: f32, scale: DropoutScale, seed: Option<u64>) -> Draws {
        Draws::new(Drop { p, scale, site: 3 }, seed)
    }

    /// Contract G33: on twos with p = 1/2, kept ones are 4 inverted and 2 un-rescaled; evaluation as documented.
    #[test]
    fn the_two_scales() {
        let x = [2.0; 64];
        for (scale, kept, evaluated) in [(DropoutScale::Inverted, 4.0, 2.0), (DropoutScale::Unscaled, 2.0, 1.0)] {
            let mut y = [9.0; 64];
            forward(&mut y, &x, draws(0.5, scale, Some(1)), 0);
            assert!(y.iter().all(|y| *y == 0.0 || *y == kept) && y.contains(&0.0) && y.contains(&kept));
            forward(&mut y, &x, draws(0.5, scale, None), 0);
            assert_eq!(y, [evaluated; 64]);
        }
    }

    #[test]
    fn the_share_dropped_is_p_and_the_place_decides() {
        let d = draws(0.3, DropoutScale::Inverted, Some(5));
        let n = 100_000;
        let dropped = (0..n).filter(|i| d.factor(*i) == 0.0).count() as f64 / n as f64;
        assert!((dropped - 0.3).abs() < 0.01, "{dropped}");
        let mut seen = vec![];
        d.each(7, 23, |i, f| seen.push((i, f)));
        assert!(seen.iter().all(|(i, f)| *f == d.factor(7 + *i as u64)) && seen.len() == 23);
    }
}
