//! Randomness as a function: a draw depends on its coordinates alone, so there is no state to save. The backward of
//! dropout computes the same numbers again; batches, initial values and sampling resume from a step number; all
//! backends and all numbers of threads agree.
//!
//! [`bits`] mixes 64 bits per draw. For a draw per element, [`word`] costs a tenth of that: it mixes 32 bits, which
//! every vector unit can multiply, with a key that `bits` made for the whole row.

/// 64 mixed bits of three coordinates (splitmix64's finaliser, once per coordinate).
#[inline(always)]
pub fn bits(seed: u64, site: u64, index: u64) -> u64 {
    mix(stream(seed, site).wrapping_add(index))
}

/// The mix of the first two coordinates.
#[inline(always)]
pub fn stream(seed: u64, site: u64) -> u64 {
    mix(mix(seed).wrapping_add(site))
}

/// 32 mixed bits of a key and an index (lowbias32 by Chris Wellons, with one half of the key before each
/// multiplication). For a given key it is a permutation of the indices.
#[inline(always)]
pub fn word(key: [u32; 2], index: u32) -> u32 {
    let x = index ^ key[0];
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15) ^ key[1]).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// 64 mixed bits.
#[inline(always)]
pub fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Uniform in [0, 1).
pub fn uniform(seed: u64, site: u64, index: u64) -> f64 {
    (bits(seed, site, index) >> 11) as f64 / (1u64 << 53) as f64
}

/// A whole number in 0..n.
pub fn below(seed: u64, site: u64, index: u64, n: u64) -> u64 {
    ((u128::from(bits(seed, site, index)) * u128::from(n)) >> 64) as u64
}

/// The image of `i` under a permutation of 0..n, one for each (seed, site): a Feistel network over the next power of
/// four, applied until the result is below n.
pub fn permuted(seed: u64, site: u64, i: u64, n: u64) -> u64 {
    debug_assert!(i < n);
    let half = (64 - n.max(2).saturating_sub(1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut at = i;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (bits(seed, site.wrapping_mul(4).wrapping_add(round), right) & mask));
        }
        at = (left << half) | right;
        if at < n {
            return at;
        }
    }
}

/// The number of a site that has a name.
pub fn site(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_everything_once() {
        for n in [1, 2, 3, 4, 5, 16, 17, 1000] {
            let mut all: Vec<u64> = (0..n).map(|i| permuted(3, 4, i, n)).collect();
            let shuffled = all.clone();
            all.sort_unstable();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
            assert!(
                n < 16 || (shuffled != all && shuffled != (0..n).map(|i| permuted(3, 5, i, n)).collect::<Vec<_>>())
            );
        }
    }

    #[test]
    fn draws_are_repeatable_even_and_apart() {
        assert_eq!(bits(1, 2, 3), bits(1, 2, 3));
        assert_ne!(bits(1, 2, 3), bits(1, 3, 2));
        let n = 20_000;
        let mean = (0..n).map(|i| uniform(7, 0, i)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.01);
        assert!((0..1000).all(|i| below(3, 4, i, 7) < 7));
        let counts = (0..7000).fold([0; 7], |mut c, i| {
            c[below(3, 4, i, 7) as usize] += 1;
            c
        });
        assert!(counts.iter().all(|c| (800..1200).contains(c)), "{counts:?}");
    }
}
