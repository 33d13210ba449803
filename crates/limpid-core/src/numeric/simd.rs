//! The instruction sets that were detected on this CPU, and how one body is compiled for each of them.
//!
//! A kernel is a struct whose fields are its operands and whose [`Kernel::run`] is ordinary safe Rust;
//! [`Level::run`] calls the copy compiled for the level. There is one `unsafe` per level, here, and none in the
//! kernels.
//!
//! Every level gives the same bits. Sums are kept in [`LANES`] lanes whatever the width of a vector, and a
//! multiply-add rounds once: the portable copy computes that, the others have an instruction for it. The fast copies
//! are tested against the portable one.
#![allow(unsafe_code)] // calling a function compiled for instructions that `Level` proves are there

use crate::config::{ConfigError, serde_as_text, setting_value, unknown};
#[cfg(target_arch = "wasm32")]
use std::arch::wasm32::*;
use std::fmt;

/// An instruction set that was detected on this CPU. The field is private: a `Level` is the proof that the CPU has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level(Isa);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Isa {
    Portable,
    Unfused,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 with a sum of four products of bytes; for floats the same as `Avx2`.
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with a dot product of bf16 pairs; for f32 the same as `Avx512`.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The vectors of WebAssembly: the only level there, with one copy of each kernel, since a page carries it.
    #[cfg(target_arch = "wasm32")]
    Wasm,
}

/// The vectors that the products of a level run on. Code that differs by level matches on them without a default arm,
/// so that the compiler names every place which a new one must enter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code)] // a CPU has some of them; code is written for all
pub(crate) enum Vectors {
    /// Sixteen lanes in plain Rust.
    Plain,
    /// 128 bits, 32 registers.
    Neon,
    /// 256 bits.
    Avx2,
    /// 512 bits.
    Avx512,
}

/// a b + c, as a level computes it.
pub trait MulAdd {
    /// a b + c
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// One instruction, rounded once.
pub struct Fused;

/// The same bits without the instruction. The product is exact in f64. The sum is rounded to odd in f64, so that
/// rounding it to f32 gives the same as rounding the exact sum (Boldo and Melquiond 2008, "Emulation of a FMA and
/// correctly rounded sums").
pub struct Computed;

/// Rounded twice: faster on a CPU without the instruction, but with other bits.
pub struct Unfused;

#[cfg(not(target_arch = "wasm32"))]
impl MulAdd for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// A module of WebAssembly has the instruction for vectors alone, and engines may round it twice: [`Level::is_sound`]
/// asks.
#[cfg(target_arch = "wasm32")]
impl MulAdd for Fused {
    #[cfg(target_feature = "relaxed-simd")]
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        f32x4_extract_lane::<0>(f32x4_relaxed_madd(f32x4_splat(a), f32x4_splat(b), f32x4_splat(c)))
    }
    #[cfg(not(target_feature = "relaxed-simd"))]
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        Computed::mul_add(a, b, c)
    }
}

/// [`Computed::mul_add`] in four lanes: what the instruction of an engine that lacks it, or rounds it twice, is
/// replaced by.
#[cfg(target_arch = "wasm32")]
#[inline(always)]
pub fn computed_lanes(a: v128, b: v128, c: v128) -> v128 {
    let half = |[a, b, c]: [v128; 3]| {
        let [a, b, c] = [a, b, c].map(|v| f64x2_promote_low_f32x4(v));
        let product = f64x2_mul(a, b);
        let sum = f64x2_add(product, c);
        let part = f64x2_sub(sum, product);
        let rest = f64x2_add(f64x2_sub(product, f64x2_sub(sum, part)), f64x2_sub(c, part));
        let inexact = f64x2_gt(f64x2_abs(rest), f64x2_splat(0.0));
        let moves = v128_and(v128_andnot(inexact, sum), i64x2_splat(1));
        let inwards = v128_and(u64x2_shr(v128_xor(sum, rest), 63), moves);
        f32x4_demote_f64x2_zero(i64x2_sub(i64x2_add(sum, moves), i64x2_shl(inwards, 1)))
    };
    let high = |v: v128| i64x2_shuffle::<1, 1>(v, v);
    i64x2_shuffle::<0, 2>(half([a, b, c]), half([high(a), high(b), high(c)]))
}

impl MulAdd for Computed {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = product + c;
        // the rounding error of the sum (Knuth's TwoSum); NaN with infinities
        let part = sum - product;
        let rest = (product - (sum - part)) + (c - part);
        // if the rounded sum is even, take the odd neighbour on the other side of the exact sum
        let bits = sum.to_bits();
        let moves = u64::from(rest.abs() > 0.0) & !bits & 1;
        let inwards = (bits ^ rest.to_bits()) >> 63;
        f64::from_bits(bits.wrapping_add(moves).wrapping_sub(2 * (moves & inwards))) as f32
    }
}

impl MulAdd for Unfused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// A body to be compiled for every level, which returns an `Output`. `run` must be `#[inline(always)]`, and so must
/// what it calls.
pub trait Kernel<Output = ()> {
    /// The body; `M` is how it multiplies and adds.
    fn run<M: MulAdd>(self) -> Output;
}

impl Level {
    /// Plain Rust, any CPU.
    pub const PORTABLE: Level = Level(Isa::Portable);

    /// Plain Rust without the guarantee: a multiply-add rounds twice, so the bits are not those of the other levels.
    /// It is many times faster than `PORTABLE`, for a CPU that has no faster level.
    pub const UNFUSED: Level = Level(Isa::Unfused);

    /// The levels of this CPU, slowest first, all with the same results. Fast levels come from here only.
    pub fn available() -> Vec<Level> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        #[cfg(target_arch = "wasm32")]
        let levels = vec![Level(Isa::Wasm)];
        #[cfg(not(target_arch = "wasm32"))]
        let mut levels = vec![Level::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            levels.push(Level(Isa::Avx2));
            if is_x86_feature_detected!("avxvnni") {
                levels.push(Level(Isa::Avx2Vnni));
            }
            if is_x86_feature_detected!("avx512f") {
                levels.push(Level(Isa::Avx512));
                if is_x86_feature_detected!("avx512bf16") {
                    levels.push(Level(Isa::Avx512Bf16));
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        levels.push(Level(Isa::Neon)); // every aarch64 has it
        levels
    }

    /// The fastest level of this CPU. Intel's cores compute a dot product of bf16 pairs four times slower than
    /// AMD's, which makes bf16 slower than f32 (88 GFLOP/s per core, f32 175:
    /// docs/decisions.md#intel-runs-bf16-products-in-f32). So on Intel `avx512-bf16` must be asked for by name.
    pub fn best() -> Level {
        let slow_dot = |level: &Level| level.has_dot() && !is_amd();
        *Level::available().iter().rfind(|level| !slow_dot(level)).expect("portable is always there")
    }

    /// The level called `name`, if this CPU has it; every CPU has `unfused`.
    ///
    /// # Errors
    /// Names the levels of this CPU.
    pub fn named(name: &str) -> Result<Level, ConfigError> {
        let mut all = Level::available();
        all.push(Level::UNFUSED);
        let names: Vec<&str> = all.iter().map(|l| l.name()).collect();
        all.iter()
            .copied()
            .find(|l| l.name() == name)
            .ok_or_else(|| unknown("instruction set on this CPU", name, &names))
    }

    /// `portable`, `avx2`, `avx2-vnni`, `avx512`, `avx512-bf16`, `neon` or `unfused`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Portable => "portable",
            Isa::Unfused => "unfused",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Vnni => "avx2-vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
            #[cfg(target_arch = "wasm32")]
            Isa::Wasm => "wasm",
        }
    }

    /// Whether a multiply-add rounds once here. It does everywhere, but for engines of WebAssembly that round the
    /// relaxed instruction twice: in their copy of a module, `computed_lanes` takes its place.
    pub fn is_sound() -> bool {
        // the exact product is 1 + 2^-11 + 2^-24, and rounded 1 + 2^-11
        let [x, sum] = std::hint::black_box([1.0 + 2f32.powi(-12), -(1.0 + 2f32.powi(-11))]);
        Fused::mul_add(x, x, sum) != 0.0
    }

    /// Whether results have the same bits as at the other levels, on any machine.
    pub fn is_exact(self) -> bool {
        self != Level::UNFUSED
    }

    /// The vectors that its products run on.
    pub(crate) fn vectors(self) -> Vectors {
        #[cfg(target_arch = "wasm32")]
        return Vectors::Neon;
        #[cfg(not(target_arch = "wasm32"))]
        match self.0 {
            Isa::Portable | Isa::Unfused => Vectors::Plain,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni => Vectors::Avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => Vectors::Avx512,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Vectors::Neon,
        }
    }

    /// Whether products of bf16 pairs are one instruction.
    pub(crate) fn has_dot(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Isa::Avx512Bf16;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether products of four bytes, with integer sums, are one instruction on the level's vectors. The sums are
    /// exact with or without it, so on vectors of 512 and of 128 bits this is not a level of its own.
    pub(crate) fn has_byte_dot(self) -> bool {
        match self.0 {
            Isa::Portable | Isa::Unfused => false,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni => self.0 == Isa::Avx2Vnni,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "wasm32")]
            Isa::Wasm => false,
        }
    }

    /// Runs the copy of `kernel` compiled for this level.
    #[inline]
    pub fn run<Output>(self, kernel: impl Kernel<Output>) -> Output {
        #[cfg(target_arch = "wasm32")]
        return kernel.run::<Fused>();
        #[cfg(not(target_arch = "wasm32"))]
        match self.0 {
            Isa::Portable => kernel.run::<Computed>(),
            Isa::Unfused => kernel.run::<Unfused>(),
            // SAFETY: `available` made this level only after seeing its features on this CPU.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni => unsafe { avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512(kernel) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run::<Fused>(),
        }
    }
}

/// Whether AMD made this CPU.
fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    let maker = {
        let id = std::arch::x86_64::__cpuid(0);
        [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let maker = [[0u8; 4]; 3];
    maker.as_flattened() == b"AuthenticAMD"
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Level {
    type Err = ConfigError;
    fn from_str(name: &str) -> Result<Level, ConfigError> {
        Level::named(name)
    }
}
serde_as_text!(Level);
setting_value!(Option<Level>, |text| Some(text.parse()?));

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<Output>(kernel: impl Kernel<Output>) -> Output {
    kernel.run::<Fused>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f")]
fn avx512<Output>(kernel: impl Kernel<Output>) -> Output {
    kernel.run::<Fused>()
}

/// a b + c, as the level does it.
#[inline(always)]
pub fn fma<M: MulAdd>(a: f32, b: f32, c: f32) -> f32 {
    M::mul_add(a, b, c)
}

/// How many lanes every sum is kept in. It is part of the definition of a result, so it is the same at every level.
pub const LANES: usize = 16;

/// The sum of the lanes, in a fixed order.
#[inline(always)]
pub fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of f over the elements of `x`: element i goes to lane i mod 16, and lanes are added in a fixed order.
#[inline(always)]
pub fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += f(chunk[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
    }
    total(lanes)
}

/// The sum of f(x, y) over the elements of two slices, in the order of [`sum`].
#[inline(always)]
pub fn sum2(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        for i in 0..LANES {
            lanes[i] += f(x[i], y[i]);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(x_rest).zip(y_rest) {
        *lane += f(*x, *y);
    }
    total(lanes)
}

/// The greatest element; minus infinity for none, NaN if there is one.
#[inline(always)]
pub fn greatest(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    let pick = |top: f32, x: f32| if x > top || x.is_nan() { x } else { top };
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = pick(lanes[i], chunk[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = pick(*lane, *x);
    }
    lanes.into_iter().reduce(pick).expect("there are lanes")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f32]);
    impl Kernel<f32> for Sum<'_> {
        #[inline(always)]
        fn run<M: MulAdd>(self) -> f32 {
            sum(self.0, |x| fma::<M>(x, x, 0.0))
        }
    }

    #[test]
    fn every_level_agrees() {
        for n in [0, 1, 15, 16, 17, 1003] {
            let x: Vec<f32> = (0..n).map(|i| (i as f32).sin()).collect();
            let want: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let sums: Vec<f32> = Level::available().into_iter().map(|level| level.run(Sum(&x))).collect();
            assert!((f64::from(sums[0]) - want).abs() < 1e-4, "n = {n}");
            assert!(sums.iter().all(|sum| sum.to_bits() == sums[0].to_bits()), "n = {n}: {sums:?}");
        }
    }

    /// Sixteen multiply-adds.
    struct Each<'a>(&'a mut [f32; LANES], [[f32; LANES]; 3]);
    impl Kernel for Each<'_> {
        #[inline(always)]
        fn run<M: MulAdd>(self) {
            let Each(to, [a, b, c]) = self;
            for i in 0..LANES {
                to[i] = fma::<M>(a[i], b[i], c[i]);
            }
        }
    }

    /// The computed multiply-add has the bits of the instruction, and of the correctly rounded function of the
    /// system's library.
    fn compare(triples: u64, seed: u64, instruction: impl Fn(&mut [f32; LANES], [[f32; LANES]; 3])) {
        let mut at = 0;
        let mut bits = || {
            at += 1;
            crate::numeric::random::bits(seed, 0, at)
        };
        let edges = [0, 1, 0x7f_ffff, 0x80_0000, 0x3f80_0000, 0x3f7f_ffff, 0x7f7f_ffff, 0x7f80_0000, 0x7fc0_0000u32];
        // a sign, an exponent of n from `low`, and bits of the fraction
        let number = |r: u64, low: u64, n: u64, fraction: u32| {
            let exponent = low + (r >> 40) % n;
            f32::from_bits((r as u32 & 0x8000_0000) | ((exponent as u32) << 23) | ((r >> 8) as u32 & fraction))
        };
        for turn in 0..triples / LANES as u64 {
            let mut x = [[0f32; LANES]; 3];
            for i in 0..LANES {
                let r = [bits(), bits(), bits()];
                let triple = match turn % 6 {
                    // anything
                    0 => r.map(|r| f32::from_bits(r as u32)),
                    // a sum that cancels all but the last bits
                    1 => {
                        let [a, b] = [r[0], r[1]].map(|r| number(r, 127, 1, 0x7f_ffff));
                        [a, b, f32::from_bits((-a * b).to_bits().wrapping_add((r[2] % 9) as u32).wrapping_sub(4))]
                    }
                    // few bits each: ties between two neighbours, and numbers near ties
                    2 => r.map(|r| number(r, 107, 40, 0x7f_f000)),
                    // results below the smallest normal number
                    3 => [
                        number(r[0], 40, 30, 0x7f_ffff),
                        number(r[1], 40, 30, 0x7f_ffff),
                        number(r[2], 0, 2, 0x7f_ffff),
                    ],
                    // the largest and smallest numbers and their neighbours
                    4 => r.map(|r| {
                        let edge = edges[r as usize % edges.len()];
                        f32::from_bits((edge + (r >> 8) as u32 % 2) | ((r >> 32) as u32 & 0x8000_0000))
                    }),
                    // a product about half the last place of what it is added to
                    _ => [
                        number(r[0], 127, 1, 0x7f_f800),
                        number(r[1], 127, 1, 0x7f_f800),
                        number(r[2], 149, 6, 0x7f_ffff),
                    ],
                };
                for k in 0..3 {
                    x[k][i] = triple[k];
                }
            }
            let [mut want, mut got] = [[0f32; LANES]; 2];
            instruction(&mut want, x);
            Level::PORTABLE.run(Each(&mut got, x));
            for i in 0..LANES {
                let (a, b, c) = (x[0][i], x[1][i], x[2][i]);
                let same = want[i].to_bits() == got[i].to_bits() || (want[i].is_nan() && got[i].is_nan());
                assert!(same, "{a:e} * {b:e} + {c:e}: {:e}, computed {:e}", want[i], got[i]);
            }
        }
    }

    #[test]
    fn a_computed_multiply_add_is_the_instruction() {
        for level in Level::available().into_iter().skip(1) {
            compare(6_000_000, 1, |to, x| level.run(Each(to, x)));
        }
        // where there is no other level, the system's
        compare(600_000, 2, |to, [a, b, c]| (0..LANES).for_each(|i| to[i] = a[i].mul_add(b[i], c[i])));
    }

    #[test]
    fn a_level_has_a_name() {
        for level in Level::available() {
            assert_eq!(Level::named(level.name()), Ok(level));
            assert!(level.is_exact());
        }
        assert!(!Level::named("unfused").unwrap().is_exact());
        let error = Level::named("avx9").unwrap_err().to_string();
        assert!(error.contains("avx9") && error.contains("portable"), "{error}");
    }

    #[test]
    fn the_greatest_is_found_and_nan_is_not_lost() {
        assert_eq!(greatest(&[1.0, 5.0, 2.0]), 5.0);
        assert_eq!(greatest(&[]), f32::NEG_INFINITY);
        let mut x = vec![1.0; 40];
        x[3] = f32::NAN;
        assert!(greatest(&x).is_nan());
    }

    /// Longer than the gate may take: `cargo xtask sweep` runs them.
    mod slow {
        use super::*;

        /// `cargo test --release -p limpid-core --lib hundreds_of_millions -- --ignored`
        #[test]
        #[ignore = "half a minute"]
        fn a_computed_multiply_add_is_the_instruction_hundreds_of_millions_of_times() {
            let best = Level::best();
            compare(600_000_000, 3, |to, x| best.run(Each(to, x)));
        }
    }
}
