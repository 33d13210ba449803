//! Rotary positions (RoPE, Su et al. 2021): each pair of features (2i, 2i + 1) of every query and key is rotated by
//! the angle position x base^(-2i/D), so that a score depends only on the distance of query and key. Values are
//! copied. Backward: rotated by the opposite angle, because the transpose of a rotation is its inverse.

use crate::config::Heads;

/// y: (rows, (H + 2K) D) from x; `angles`: (T,R) holds cosine and sine of each pair of the first R features of a head,
/// the others are copied; `sign` -1 rotates back.
pub fn turn<F>(y: &mut [F], x: &[F], add: bool, (angles, wide): (&[F], usize), positions: &[u32], heads: Heads, sign: F)
where
    F: Copy + std::ops::Mul<Output = F> + std::ops::Add<Output = F> + std::ops::Sub<Output = F>,
{
    if add {
        turn_rows(y, x, |y, x| y + x, (angles, wide), positions, heads, sign);
    } else {
        turn_rows(y, x, |_, x| x, (angles, wide), positions, heads, sign);
    }
}

/// [`turn`], where `put` makes a value of the old one and the turned one.
fn turn_rows<F>(
    y: &mut [F],
    x: &[F],
    put: impl Fn(F, F) -> F + Copy,
    (angles, wide): (&[F], usize),
    positions: &[u32],
    heads: Heads,
    sign: F,
) where
    F: Copy + std::ops::Mul<Output = F> + std::ops::Add<Output = F> + std::ops::Sub<Output = F>,
{
    let (cols, d, turned) = (heads.cols(), heads.d_head, (heads.n_head + heads.n_kv_head) * heads.d_head);
    let copy = |y: &mut [F], x: &[F]| y.iter_mut().zip(x).for_each(|(y, x)| *y = put(*y, *x));
    for ((t, y), x) in positions.iter().zip(y.chunks_exact_mut(cols)).zip(x.chunks_exact(cols)) {
        let angles = angles[*t as usize * wide..][..wide].as_chunks().0;
        for (y, x) in y[..turned].chunks_exact_mut(d).zip(x[..turned].chunks_exact(d)) {
            let pairs = y[..wide].as_chunks_mut().0.iter_mut().zip(x[..wide].as_chunks().0).zip(angles);
            for (([even, odd], [a, b]), [cos, sin]) in pairs {
                let sin = sign * *sin;
                *even = put(*even, *a * *cos - *b * sin);
                *odd = put(*odd, *a * sin + *b * *cos);
            }
            copy(&mut y[wide..], &x[wide..]);
        }
        copy(&mut y[turned..], &x[turned..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RotaryScaling;
    use crate::model::tables::{frequencies, rotary};

    #[test]
    fn scores_depend_on_distance_alone_and_turning_back_undoes() {
        let (d, wide, t) = (6, 4, 9);
        let frequencies = frequencies(wide, 100.0, &RotaryScaling::NONE);
        let angle = |i| rotary(i / wide, i % wide, &frequencies);
        let angles: Vec<f64> = (0..t * wide).map(angle).collect();
        let heads = Heads { n_head: 1, n_kv_head: 1, d_head: d, d_value: d };
        let x: Vec<f64> = (0..3 * d).map(|i| (i as f64 * 1.3).sin()).collect();
        let turned = |position: u32| {
            let mut y = vec![0.0; 3 * d];
            turn(&mut y, &x, false, (&angles, wide), &[position], heads, 1.0);
            y
        };
        let score = |a: u32, b: u32| (0..d).map(|i| turned(a)[i] * turned(b)[d + i]).sum::<f64>();
        assert_eq!(turned(7)[wide..d], x[wide..d]);
        assert!((score(5, 2) - score(8, 5)).abs() < 1e-12 && (score(5, 2) - score(5, 3)).abs() > 1e-3);
        let mut back = vec![0.0; 3 * d];
        turn(&mut back, &turned(7), false, (&angles, wide), &[7], heads, -1.0);
        assert!(back.iter().zip(&x).all(|(b, x)| (b - x).abs() < 1e-12));
    }
}
