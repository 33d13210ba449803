//! Rotary positions (RoPE, Su et al. 2021): each pair of features (2i, 2i + 1) of every query and key is rotated by
//! the angle position x base^(-2i/D), so that a score depends only on the distance of query and key. Values are
//! copied. Backward: rotated by the opposite angle, because the transpose of a rotation is its inverse.

use crate::config::Heads;

/// y: (rows, (H + 2K) D) from x; `angles`: (T,R) holds cosine and sine of each pair of the first R features of a head, the others
/// are copied; `sign` -1 rotates back.
pub fn turn<F>(y: &mut [F], x: &[F], add: bool, (angles, wide): (&[F], usize), positions: &[u32], heads: Heads, sign: F)
where
    F: Copy + std::ops::Mul<Output = F> + std::ops::Add<Output = F> + std::ops::Sub<Output = F>,
{
    let (cols, d, turned) = (heads.cols(), heads.d_head, heads.n_head + heads.n_kv_head);
    let mut put = |at: usize, value: F| y[at] = if add { y[at] + value } else { value };
    for (n, t) in positions.iter().enumerate() {
        let angles = &angles[*t as usize * wide..][..wide];
        let row = n * cols;
        for head in 0..turned {
            for i in (0..wide).step_by(2) {
                let (cos, sin) = (angles[i], sign * angles[i + 1]);
                let at = row + head * d + i;
                let (a, b) = (x[at], x[at + 1]);
                put(at, a * cos - b * sin);
                put(at + 1, a * sin + b * cos);
            }
            for at in row + head * d + wide..row + (head + 1) * d {
                put(at, x[at]);
            }
        }
        for at in row + turned * d..row + cols {
            put(at, x[at]);
        }
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
