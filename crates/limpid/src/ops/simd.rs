//! Which instructions this CPU was seen to have, and how one body is compiled for each of them.
//!
//! A kernel is a struct whose fields are its operands and whose [`Kernel::run`] is ordinary safe Rust;
//! [`Level::run`] calls the copy compiled for the level. The portable copy is the twin that proves the
//! fast ones. There is one `unsafe` per level, here, and none in the kernels.
#![allow(unsafe_code)] // calling a function compiled for instructions that `Level` proves are there

use crate::config::{ConfigError, unknown};
use std::fmt;

/// Instructions this CPU was seen to have. The field is private: holding a `Level` is the proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level(Isa);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Isa {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with a dot product of bf16 pairs; for f32 the same as `Avx512`.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// A body to be compiled for every level. `run` must be `#[inline(always)]`, and so must what it calls.
pub trait Kernel {
    /// What it returns.
    type Output;
    /// The body; `FMA` says whether `mul_add` is one instruction.
    fn run<const FMA: bool>(self) -> Self::Output;
}

impl Level {
    /// Plain Rust, any CPU.
    pub const PORTABLE: Level = Level(Isa::Portable);

    /// The levels this CPU has, slowest first. The only way to come by a fast one.
    pub fn available() -> Vec<Level> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut levels = vec![Level::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            levels.push(Level(Isa::Avx2));
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

    /// The fastest level of this CPU. Intel's cores do a dot product of bf16 pairs at a quarter of the pace of AMD's,
    /// which makes bf16 slower than f32 (88 GFLOP/s a core, f32 175: LOG.md): there it has to be asked for by name.
    pub fn best() -> Level {
        let slow_dot = |level: &Level| level.has_dot() && !is_amd();
        *Level::available().iter().rfind(|level| !slow_dot(level)).expect("portable is always there")
    }

    /// The level called `name`, if this CPU has it.
    ///
    /// # Errors
    /// Names what this CPU has.
    pub fn named(name: &str) -> Result<Level, ConfigError> {
        let all = Level::available();
        let names: Vec<&str> = all.iter().map(|l| l.name()).collect();
        all.iter()
            .copied()
            .find(|l| l.name() == name)
            .ok_or_else(|| unknown("instruction set on this CPU", name, &names))
    }

    /// `portable`, `avx2`, `avx512`, `avx512-bf16` or `neon`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
        }
    }

    /// Whether vectors of 16 f32 can be used.
    pub(crate) fn is_avx512(self) -> bool {
        self.name().starts_with("avx512")
    }

    /// Whether products of bf16 pairs are one instruction.
    pub(crate) fn has_dot(self) -> bool {
        self.name() == "avx512-bf16"
    }

    /// Runs the copy of `kernel` compiled for this level.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Isa::Portable => kernel.run::<false>(),
            // SAFETY: `available` made this level only after seeing its features on this CPU.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512(kernel) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run::<true>(),
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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<true>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<true>()
}

/// a b + c, fused where that is one instruction.
#[inline(always)]
pub fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Lanes that every sum is kept in: part of the definition of a result, so the same at every level.
pub const LANES: usize = 16;

/// The sum of the lanes, in one order.
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

/// The sum of f(i) over the elements of `x`: element i in lane i mod 16, lanes added in one order.
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
    impl Kernel for Sum<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<const FMA: bool>(self) -> f32 {
            sum(self.0, |x| fma::<FMA>(x, x, 0.0))
        }
    }

    #[test]
    fn every_level_agrees() {
        for n in [0, 1, 15, 16, 17, 1003] {
            let x: Vec<f32> = (0..n).map(|i| (i as f32).sin()).collect();
            let want: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            for level in Level::available() {
                assert!((f64::from(level.run(Sum(&x))) - want).abs() < 1e-4, "{level}, n = {n}");
            }
        }
    }

    #[test]
    fn a_level_has_a_name() {
        for level in Level::available() {
            assert_eq!(Level::named(level.name()), Ok(level));
        }
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
}
