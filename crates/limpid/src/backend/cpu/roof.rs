//! The machine's own roofs, measured: how fast it multiplies and adds when nothing else stands in the way, and
//! how fast it reads memory. Every share of the roof that limpid reports is of these.

use super::pool::Pool;
use crate::ops::linear::Precision;
use crate::ops::linear::gemm::{self, Packed, gemm_packed};
use crate::ops::simd::{Kernel, Level};
use crate::ops::view::{Mat, MatMut};
use std::sync::Mutex;

/// What a run of one of the roofs did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Floating-point operations, or bytes read.
    pub amount: f64,
}

/// Keeps the processor at a product that fits its nearest caches.
pub struct Products {
    pool: Pool,
    level: Level,
    a: Vec<f32>,
    b: Packed,
    c: Vec<Mutex<[Vec<f32>; 2]>>,
}

impl Products {
    const ROWS: usize = 48;
    const INNER: usize = gemm::K_BLOCK;

    /// For `threads` threads.
    pub fn new(threads: usize, level: Level, precision: Precision) -> Products {
        let pool = Pool::new(threads);
        let width = gemm::width(level);
        let c = (0..pool.threads())
            .map(|_| Mutex::new([vec![0.0; Products::ROWS * width], vec![0.0; gemm::SCRATCH]]))
            .collect();
        // without the dot product, bf16 is multiplied as f32
        let precision = if level.has_dot() { precision } else { Precision::F32 };
        let b = Packed::new(level, precision, Mat::new(&vec![0.5; Products::INNER * width], width));
        Products { pool, level, a: vec![0.5; Products::ROWS * Products::INNER], b, c }
    }

    /// Some milliseconds of multiply-adds on every thread.
    pub fn run(&self) -> Work {
        const TIMES: usize = 200;
        let tasks = self.pool.threads() * 4;
        self.pool.run(tasks, &|_, id| {
            let [c, scratch] = &mut *self.c[id].lock().unwrap_or_else(|e| e.into_inner());
            for _ in 0..TIMES {
                gemm_packed(
                    self.level,
                    MatMut::new(c, self.b.cols()),
                    Mat::new(&self.a, Products::INNER),
                    &self.b,
                    0,
                    false,
                    scratch,
                );
            }
        });
        let one = 2 * Products::ROWS * Products::INNER * self.b.cols();
        Work { amount: (tasks * TIMES * one) as f64 }
    }
}

/// Reads more memory than the caches hold.
pub struct Reads {
    pool: Pool,
    level: Level,
    data: Vec<f32>,
    seen: Mutex<f32>,
}

struct Sum<'a>(&'a [f32]);
impl Kernel for Sum<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<const FMA: bool>(self) -> f32 {
        // four independent vectors, so that memory and not the adder is what is waited for
        let [mut a, mut b, mut c, mut d] = [[0f32; 16]; 4];
        for chunk in self.0.as_chunks::<64>().0 {
            for i in 0..16 {
                a[i] += chunk[i];
                b[i] += chunk[16 + i];
                c[i] += chunk[32 + i];
                d[i] += chunk[48 + i];
            }
        }
        [a, b, c, d].as_flattened().iter().sum()
    }
}

impl Reads {
    /// `bytes` of memory read by `threads` threads.
    pub fn new(threads: usize, level: Level, bytes: usize) -> Reads {
        Reads { pool: Pool::new(threads), level, data: vec![1.0; bytes / 4], seen: Mutex::new(0.0) }
    }

    /// Reads all of it once.
    pub fn run(&self) -> Work {
        let part = 1 << 18;
        self.pool.run(self.data.len().div_ceil(part), &|task, _| {
            let sum = self.level.run(Sum(&self.data[task * part..((task + 1) * part).min(self.data.len())]));
            *self.seen.lock().unwrap_or_else(|e| e.into_inner()) += sum;
        });
        Work { amount: 4.0 * self.data.len() as f64 }
    }
}
