//! The machine's roofs (as in the roofline model), measured: how fast it multiplies and adds when all operands are
//! in registers, and how fast it reads memory. Every share of the roof that limpid reports is a share of these, and
//! no program with the same instructions goes above them (`benches/compare/roof.py` compares them with PyTorch's).
#![allow(unsafe_code)] // instructions that the machine has: `Level` proves it

use super::pool::Pool;
use crate::backend::{BackendError, Result};
use crate::matrix::Precision;
use crate::matrix::arena::Arena;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::numeric::simd::Vectors;
use crate::numeric::simd::{Kernel, Level, MulAdd, fma};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
#[cfg(target_arch = "aarch64")]
use std::arch::{aarch64::*, asm};
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

/// A limit of this machine. Other programs and a slower clock only ever lower a reading, so the best of many short
/// readings counts; take them before and after the measurement that is compared with them.
pub struct Roof {
    pool: Pool,
    level: Level,
    work: Work,
    best: f64,
}

enum Work {
    /// Multiply-adds on registers, `times` times over.
    MultiplyAdds { times: usize, of: Precision },
    /// Reads of more memory than the caches hold.
    Reads(Arena),
}

/// Seconds of a reading: long compared with the start of a thread, short compared with the time slice of another
/// program.
const READING: f64 = 1e-3;

/// Bytes that are read: more than the caches of most machines hold.
const MEMORY: usize = 512 << 20;

/// Elements that one task reads from each of two streams.
const PART: usize = 1 << 18;

impl Roof {
    /// The roof of multiply-adds of a precision, in operations per second; a multiply-add counts as two. In int8 they
    /// are of bytes, with integer sums.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn multiply_adds(threads: usize, level: Level, precision: Precision) -> Result<Roof> {
        let work = Work::MultiplyAdds { times: 1 << 10, of: precision };
        Ok(Roof { pool: Pool::start(threads)?, level, work, best: 0.0 })
    }

    /// The roof of reading memory, in bytes per second.
    ///
    /// # Errors
    /// If a thread cannot be started, or the system refuses the half gigabyte that is read.
    pub fn reads(threads: usize, level: Level) -> Result<Roof> {
        let data = Arena::reserve(MEMORY / 4);
        let mut data = data.map_err(|refused| BackendError::refused("a reading of memory", &refused))?;
        data.fill(1.0);
        Ok(Roof { pool: Pool::start(threads)?, level, work: Work::Reads(data), best: 0.0 })
    }

    /// Takes `readings` readings, each of a millisecond for multiply-adds or of one pass for reads. Returns the best
    /// of all so far.
    pub fn measure(&mut self, readings: usize) -> f64 {
        let mut taken = 0;
        while taken < readings {
            let start = Instant::now();
            let amount = self.once();
            let seconds = start.elapsed().as_secs_f64();
            match &mut self.work {
                Work::MultiplyAdds { times, .. } if seconds < READING => *times *= 2,
                _ => {
                    taken += 1;
                    self.best = self.best.max(amount / seconds);
                }
            }
        }
        self.best
    }

    /// The best reading so far.
    pub fn best(&self) -> f64 {
        self.best
    }

    /// Runs the work once on all threads. Returns the operations or bytes done.
    fn once(&mut self) -> f64 {
        let (level, threads) = (self.level, self.pool.threads());
        match &self.work {
            &Work::MultiplyAdds { times, of } => {
                let done = Mutex::new(0.0);
                self.pool.run(threads, &|_, _| {
                    let did = chains(level, of, times);
                    *done.lock().unwrap_or_else(|e| e.into_inner()) += did;
                });
                done.into_inner().unwrap_or_else(|e| e.into_inner())
            }
            Work::Reads(data) => {
                // two streams at once: memory is faster where it can prefetch more than one
                let (a, b) = data.split_at(data.len() / 2);
                self.pool.run(a.len() / PART, &|task, _| {
                    let part = task * PART..(task + 1) * PART;
                    black_box(level.run(Sum([&a[part.clone()], &b[part]])));
                });
                4.0 * data.len() as f64
            }
        }
    }
}

/// Adds a product to each of several sums, `times` times. There are as many sums as keep the adders busy (two a
/// cycle, four to six cycles each), as far as there are registers. Returns the number of operations.
fn chains(level: Level, of: Precision, times: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    match (level.vectors(), of) {
        // SAFETY: the level proves the instructions.
        (Vectors::Avx512, Precision::Bf16) if level.has_dot() => return unsafe { avx512_bf16(times) },
        // SAFETY: as above, and the CPU was asked for VNNI.
        (Vectors::Avx512, Precision::Int8) if level.has_byte_dot() => return unsafe { avx512_vnni(times) },
        // SAFETY: the level proves the instructions.
        (Vectors::Avx2, Precision::Int8) if level.has_byte_dot() => return unsafe { avx2_vnni(times) },
        // SAFETY: as above: all levels of AVX-512 have AVX2.
        (Vectors::Avx2 | Vectors::Avx512, Precision::Int8) => return unsafe { avx2_bytes(times) },
        // without the dot product, bf16 is multiplied as f32
        // SAFETY: as above.
        (Vectors::Avx512, _) => return unsafe { avx512(times) },
        // SAFETY: as above.
        (Vectors::Avx2, _) => return unsafe { avx2(times) },
        (Vectors::Plain | Vectors::Neon, _) => {}
    }
    #[cfg(target_arch = "aarch64")]
    match (level.vectors(), of) {
        // SAFETY: the CPU was asked for the instruction.
        (Vectors::Neon, Precision::Int8) if level.has_byte_dot() => return unsafe { neon_dot(times) },
        // SAFETY: the level proves the instructions.
        (Vectors::Neon, Precision::Int8) => return unsafe { neon_bytes(times) },
        _ => {}
    }
    let _ = of;
    level.run(Chains(times))
}

/// The loop of one level: `$times` times `$add`, a product added to a register, for `$chains` registers of `$lanes`
/// products.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! registers {
    ($name:ident, $features:literal, $chains:literal x $lanes:literal, $zero:expr, $one:expr, $add:expr) => {
        #[target_feature(enable = $features)]
        fn $name(times: usize) -> f64 {
            let (a, b) = black_box(($one, $one));
            let mut sums = [$zero; $chains];
            for _ in 0..times {
                for sum in &mut sums {
                    *sum = $add(a, b, *sum);
                }
            }
            black_box(sums);
            (2 * $lanes * $chains * times) as f64
        }
    };
}
#[cfg(target_arch = "x86_64")]
registers!(avx2, "avx2,fma", 12 x 8, _mm256_setzero_ps(), _mm256_set1_ps(1e-3), _mm256_fmadd_ps);
#[cfg(target_arch = "x86_64")]
registers!(avx512, "avx512f", 24 x 16, _mm512_setzero_ps(), _mm512_set1_ps(1e-3), _mm512_fmadd_ps);
#[cfg(target_arch = "x86_64")]
registers!(
    avx512_bf16,
    "avx512f,avx512bf16",
    24 x 32,
    _mm512_setzero_ps(),
    _mm512_set1_ps(1e-3),
    |a: __m512, b: __m512, sum| {
        // SAFETY: a vector of 16 floats has the bits of a vector of 32 bf16.
        let bf16 = |v: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(v) };
        _mm512_dpbf16_ps(sum, bf16(a), bf16(b))
    }
);

#[cfg(target_arch = "x86_64")]
registers!(
    avx512_vnni,
    "avx512f,avx512vnni",
    24 x 64,
    _mm512_setzero_si512(),
    _mm512_set1_epi8(1),
    |a, b, sum| _mm512_dpbusd_epi32(sum, a, b)
);
#[cfg(target_arch = "x86_64")]
registers!(
    avx2_vnni,
    "avx2,avxvnni",
    12 x 32,
    _mm256_setzero_si256(),
    _mm256_set1_epi8(1),
    |a, b, sum| _mm256_dpbusd_avx_epi32(sum, a, b)
);
#[cfg(target_arch = "x86_64")]
registers!(
    avx2_bytes,
    "avx2",
    12 x 32,
    _mm256_setzero_si256(),
    _mm256_set1_epi8(1),
    // of the sum itself, or the product would be computed once
    |a, _, sum| _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, sum))
);

#[cfg(target_arch = "aarch64")]
registers!(
    neon_dot,
    "neon,dotprod",
    24 x 16,
    vdupq_n_s32(0),
    vdupq_n_s8(1),
    |a: int8x16_t, b: int8x16_t, mut sum: int32x4_t| {
        // SAFETY: the instruction reads and writes registers alone.
        unsafe {
            asm!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        sum
    }
);
#[cfg(target_arch = "aarch64")]
registers!(
    neon_bytes,
    "neon",
    24 x 8,
    vdupq_n_s16(0),
    vdup_n_s8(1),
    // of the sum itself, or the product would be computed once
    |a, _, sum| vmlal_s8(sum, a, vget_low_s8(vreinterpretq_s8_s16(sum)))
);

/// In plain Rust, for the levels without a body of their own.
struct Chains(usize);

impl Kernel<f64> for Chains {
    #[inline(always)]
    fn run<M: MulAdd>(self) -> f64 {
        const CHAINS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 12 };
        let (a, b) = black_box(([1e-3f32; 4], [1e-3f32; 4]));
        let mut sums = [[0f32; 4]; CHAINS];
        for _ in 0..self.0 {
            for sum in &mut sums {
                for l in 0..4 {
                    sum[l] = fma::<M>(a[l], b[l], sum[l]);
                }
            }
        }
        black_box(sums);
        (2 * 4 * CHAINS * self.0) as f64
    }
}

struct Sum<'a>([&'a [f32]; 2]);
impl Kernel<f32> for Sum<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) -> f32 {
        // four independent vectors, so that memory is the limit and not the adder
        let [mut a, mut b, mut c, mut d] = [[0f32; 16]; 4];
        let [left, right] = self.0.map(|part| part.as_chunks::<32>().0);
        for (left, right) in left.iter().zip(right) {
            for i in 0..16 {
                a[i] += left[i];
                b[i] += left[16 + i];
                c[i] += right[i];
                d[i] += right[16 + i];
            }
        }
        [a, b, c, d].as_flattened().iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::gemm::{self, Packed, gemm_packed};
    use crate::matrix::view::{Mat, MatMut};

    /// What measures and prints, for those who ask for it by name.
    mod measures {
        use super::*;

        /// A share above 100 % would mean that the roof is wrong: even the fastest product, with all operands in the
        /// nearest caches, stays below it.
        ///
        /// `cargo test --release -p limpid-core --lib above_the_roof -- --ignored`, on a quiet machine.
        #[test]
        #[ignore = "it measures time"]
        fn no_product_goes_above_the_roof() {
            const ROWS: usize = 48;
            for level in Level::available() {
                for precision in [Precision::F32, Precision::Bf16] {
                    let mut roof = Roof::multiply_adds(1, level, precision).unwrap();
                    roof.measure(5);
                    // without the dot product, unpacking would be in the way
                    let held = if level.has_dot() { precision } else { Precision::F32 };
                    let (inner, width) = (gemm::K_BLOCK, gemm::width(level));
                    let b = Packed::new(level, held, Mat::new(&vec![0.5; inner * width], width)).unwrap();
                    let (a, mut c, mut scratch) =
                        (vec![0.5; ROWS * inner], vec![0.0; ROWS * width], vec![0.0; gemm::SCRATCH]);
                    let mut times = 1;
                    let mut best = 0f64;
                    for _ in 0..10 {
                        let start = Instant::now();
                        for _ in 0..times {
                            let c = MatMut::new(&mut c, width);
                            gemm_packed(level, c, Mat::new(&a, inner), &b, 0, false, &mut scratch);
                        }
                        let seconds = start.elapsed().as_secs_f64();
                        best = best.max((times * 2 * ROWS * inner * width) as f64 / seconds);
                        times = if seconds < READING { 2 * times } else { times };
                    }
                    let roof = roof.measure(20);
                    assert!(best < roof, "{level} {precision}: {:.1} GFLOP/s, roof {:.1}", best / 1e9, roof / 1e9);
                }
            }
        }
    }
}
