//! Every kernel on one thread beside its roof: `cargo bench --bench ops -- [name] [avx512|avx2|...]`. Products and
//! attention are in GFLOP/s, beside the roof of multiply-adds; passes over memory are in GB/s, beside a copy of data
//! of the same size. The best of several runs counts; the roof is measured between them.

use limpid::backend::cpu::roof::Roof;
use limpid::config::{Activation, Constants, Mask, NormKind};
use limpid::numeric::blocks::Quant;
use limpid::numeric::half::nearest_bf16;
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::{BLOCK, Scoring, Span, Target};
use limpid::optimizer::{Method, Rule};
use limpid_core::kernels::attend::{CacheBlocks, CachedKeys, Keys};
use limpid_core::kernels::{activate, attend, classify, norm};
use limpid_core::matrix::codes::Codes;
use limpid_core::matrix::dot::{Left, Round, RoundedLayout, RoundedRows};
use limpid_core::matrix::gemm::{self, Packed, gemm_packed, multiply_codes, product};
use limpid_core::matrix::view::{Mat, MatMut};
use limpid_core::matrix::{Precision, Start, Sums};
use limpid_core::optimizer::adamw;
use std::time::Instant;

fn values(n: usize) -> Vec<f32> {
    (0..n as u64).map(|i| random::uniform(1, 2, i) as f32 - 0.5).collect()
}

/// Seconds of the best of some runs.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed().as_secs_f64() < 0.25 {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed().as_secs_f64());
    }
    best
}

struct Bench {
    level: Level,
    wanted: Option<String>,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        self.wanted.as_ref().is_none_or(|w| name.contains(w.as_str()))
    }
    fn flops(&self, name: &str, precision: Precision, flops: f64, f: impl FnMut()) {
        if !self.wants(name) {
            return;
        }
        let mut roof = Roof::multiply_adds(1, self.level, precision).unwrap();
        roof.measure(20);
        let seconds = best(f);
        let roof = roof.measure(20);
        let rate = flops / seconds;
        println!("{name:<44} {:>9.1} GFLOP/s {:>4.0} % of the roof", rate / 1e9, 100.0 * rate / roof);
    }
    /// `floats` are read or written once each.
    fn bytes(&self, name: &str, floats: usize, f: impl FnMut()) {
        if !self.wants(name) {
            return;
        }
        let (from, mut to) = (vec![1f32; floats / 2], vec![0f32; floats / 2]);
        let seconds = best(f);
        let copy = best(|| std::hint::black_box(&mut to).copy_from_slice(&from));
        let (rate, roof) = (4.0 * floats as f64 / seconds, 4.0 * (floats / 2 * 2) as f64 / copy);
        println!("{name:<44} {:>9.1} GB/s    {:>4.0} % of a copy", rate / 1e9, 100.0 * rate / roof);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let named = args.iter().find_map(|a| Level::named(a).ok());
    let wanted = args.into_iter().find(|a| Level::named(a).is_err());
    let bench = Bench { level: named.unwrap_or_else(Level::best), wanted };
    println!("one thread, {}", bench.level);
    products(&bench);
    attention(&bench);
    cached_attention(&bench);
    integers(&bench);
    passes(&bench);
}

fn products(bench: &Bench) {
    let level = bench.level;
    let mut scratch = vec![0.0; gemm::SCRATCH];
    for precision in [Precision::F32, Precision::Bf16] {
        // rows, out, in: nano's, GPT-2's
        for (n, o, i) in [(384, 512, 128), (384, 128, 512), (256, 768, 768), (256, 3072, 768), (256, 768, 3072)] {
            let (x, w, dy) = (values(n * i), values(o * i), values(n * o));
            let (mut y, mut dx, mut dw) = (vec![0.0; n * o], vec![0.0; n * i], vec![0.0; o * i]);
            let flops = 2.0 * (n * o * i) as f64;
            let name = |way: &str| format!("product {precision} {way} {n}x{o}x{i}");
            bench.flops(&name("y = x w'"), precision, flops, || {
                let (x, w) = (Mat::new(&x, i), Mat::new(&w, i).t());
                product(level, precision, MatMut::new(&mut y, o), x, w, (Start::Zero, Sums::Blocks), &mut scratch);
            });
            bench.flops(&name("dx = dy w"), precision, flops, || {
                let (dy, w) = (Mat::new(&dy, o), Mat::new(&w, i));
                product(level, precision, MatMut::new(&mut dx, i), dy, w, (Start::Zero, Sums::Blocks), &mut scratch);
            });
            bench.flops(&name("dw += dy' x"), precision, flops, || {
                let (dy, x) = (Mat::new(&dy, o).t(), Mat::new(&x, i));
                product(level, precision, MatMut::new(&mut dw, i), dy, x, (Start::Own, Sums::Chain), &mut scratch);
            });
        }
        // decoding: a row of each of some sequences, weights larger than the caches
        let (o, i) = (16 * 3072, 768);
        let w = values(o * i);
        let packed = Packed::new(level, precision, Mat::new(&w, i).t()).unwrap();
        for rows in [1, 2, 4, 6, 8, 12, 16] {
            let (x, mut y) = (values(rows * i), vec![0.0; rows * o]);
            bench.bytes(&format!("product {precision} {rows} rows of {o}x{i}, packed"), packed.bytes() / 4, || {
                gemm_packed(level, MatMut::new(&mut y, o), Mat::new(&x, i), &packed, 0, false, &mut scratch);
            });
        }
    }
}

/// Quantised weights by rows that are rounded to eight bits, as in a prompt, and rounding them; exact rows beside them.
fn integers(bench: &Bench) {
    let level = bench.level;
    let mut scratch = vec![0.0; gemm::SCRATCH];
    for quant in [Quant::Q8_0, Quant::Q4_0, Quant::Q4_K] {
        for (rows, o, i) in [(1, 3072, 768), (256, 3072, 768), (256, 768, 3072)] {
            let codes = Codes::one(quant);
            let blocks = vec![0x11; quant.bytes(i)];
            let packed = Packed::of_codes(level, codes, i, &vec![(quant, &blocks[..]); o]).unwrap();
            let (x, mut y) = (values(rows * i), vec![0.0; rows * o]);
            let (x, how) = (Mat::new(&x, i), RoundedLayout { rows, k: i, codes });
            let mut room = vec![0.0; how.elements()];
            let mut round = || {
                for (tile, to) in room.chunks_exact_mut(how.tile()).enumerate() {
                    level.run(Round { to, x: x.rows(how.rows_of(tile)), how });
                }
            };
            let (flops, name) = (2.0 * (rows * o * i) as f64, format!("{quant:?} {rows}x{o}x{i}"));
            bench.bytes(&format!("round {name}"), rows * i, &mut round);
            round();
            let left = Left::Rounded(RoundedRows::new(&room, how));
            bench.flops(&format!("int8 {name}"), Precision::Int8, flops, || {
                multiply_codes(level, MatMut::new(&mut y, o), left, &packed, 0, Start::Zero);
            });
            bench.flops(&format!("exact {name}"), Precision::F32, flops, || {
                gemm_packed(level, MatMut::new(&mut y, o), x, &packed, 0, false, &mut scratch);
            });
        }
    }
}

fn attention(bench: &Bench) {
    let mut scratch = vec![0.0; attend::SCRATCH];
    for (t, d) in [(64, 32), (256, 64), (1024, 64)] {
        let (q, k, v, dy) = (values(t * d), values(t * d), values(t * d), values(t * d));
        let (mut y, mut lse) = (vec![0.0; t * d], vec![0.0; t]);
        let [mut dq, mut dk, mut dv] = [0; 3].map(|_| vec![0.0; t * d]);
        let head = attend::Head {
            q: Mat::new(&q, d),
            k: Keys::Plain(Mat::new(&k, d)),
            v: Keys::Plain(Mat::new(&v, d)),
            span: Span { row: 0, rows: t, past: 0, table: 0, valid: t },
            scoring: Scoring::plain(Mask::Causal, 1.0 / (d as f32).sqrt()),
            draws: None,
            head: 0,
            n_head: 1,
        };
        let flops = 2.0 * (t * (t + 1) * d) as f64; // q k' and p v, unmasked scores only
        bench.flops(&format!("attend forward T {t}, head {d}"), Precision::F32, flops, || {
            let (y, lse) = (MatMut::new(&mut y, d), MatMut::new(&mut lse, 1));
            attend::forward(bench.level, head, y, lse, &mut scratch);
        });
        bench.flops(&format!("attend backward T {t}, head {d}"), Precision::F32, 2.5 * flops, || {
            let [dq, dk, dv] = [&mut dq, &mut dk, &mut dv].map(|m| MatMut::new(m, d));
            let to = attend::Gradients { dq, dk, dv, watched: [None, None, None] };
            let given = [Mat::new(&dy, d), Mat::new(&y, d), Mat::new(&lse, 1)];
            attend::backward(bench.level, head, to, [false; 2], given, &mut scratch);
        });
    }
}

/// One head that reads 1,024 keys of a KV cache: as one matrix, and from blocks in any order, in f32 and bf16.
fn cached_attention(bench: &Bench) {
    let (keys, d, cols) = (1024, 64, 2 * 12 * 64);
    let mut scratch = vec![0.0; attend::SCRATCH];
    let blocks = keys / BLOCK;
    // neighbours lie apart, and every block is there once
    let table: Vec<u32> = (0..blocks as u32).map(|block| block * 7 % blocks as u32).collect();
    let whole = values(keys * cols);
    let halves: Vec<u16> = whole.iter().map(|v| nearest_bf16(*v)).collect();
    for rows in [1, 256] {
        let q = values(rows * d);
        let (mut y, mut lse) = (vec![0.0; rows * d], vec![0.0; rows]);
        let plain = |at: usize| Keys::Plain(Mat::strided(&whole[at..], keys, d, cols));
        let of = |cache, tile: usize| {
            let (block, start, columns) = (24 * BLOCK * d, tile * BLOCK * d, tile < 12);
            Keys::Cached(CachedKeys { cache, block, start, columns, table: &table, d })
        };
        let flops = 4.0 * ((keys - rows) * rows * d + rows * (rows + 1) * d / 2) as f64;
        for (what, k, v) in [
            ("one matrix", plain(0), plain(cols / 2)),
            ("blocks", of(CacheBlocks::F32(&whole), 0), of(CacheBlocks::F32(&whole), 12)),
            ("blocks of bf16", of(CacheBlocks::Bf16(&halves), 0), of(CacheBlocks::Bf16(&halves), 12)),
        ] {
            let span = Span { row: 0, rows, past: keys - rows, table: 0, valid: keys };
            let scoring = Scoring::plain(Mask::Causal, 1.0 / (d as f32).sqrt());
            let head = attend::Head { q: Mat::new(&q, d), k, v, span, scoring, draws: None, head: 0, n_head: 1 };
            bench.flops(&format!("attend {rows} of 1024 keys, {what}"), Precision::F32, flops, || {
                let (y, lse) = (MatMut::new(&mut y, d), MatMut::new(&mut lse, 1));
                attend::forward(bench.level, head, y, lse, &mut scratch);
            });
        }
    }
}

fn passes(bench: &Bench) {
    let (rows, c) = (256, 768);
    let n = rows * c;
    let (x, dy, gain, offset) = (values(n), values(n), values(c), values(c));
    let (mut y, mut stats, mut dx, mut g) = (vec![0.0; n], vec![0.0; 2 * rows], vec![0.0; n], vec![0.0; c]);
    let (kind, eps, less_one) = (NormKind::Layer, 1e-5, false);
    bench.bytes("norm forward 256x768", 2 * n, || {
        let (gain, offset) = (Some(&gain[..]), Some(&offset[..]));
        bench.level.run(norm::Forward { y: &mut y, stats: &mut stats, x: &x, gain, offset, less_one, kind, eps });
    });
    bench.bytes("norm backward 256x768", 3 * n, || {
        let (dx, g, gain) = (&mut dx[..], &mut g[..], Some(&gain[..]));
        bench.level.run(norm::BackwardInput {
            dx,
            add: false,
            dy: &dy,
            x: &x,
            stats: &stats,
            gain,
            less_one,
            kind,
            eps,
            g,
        });
    });
    for f in [Activation::GeluTanh, Activation::GeluErf, Activation::Silu] {
        bench.bytes(&format!("{f} forward"), 2 * n, || {
            bench.level.run(activate::Forward { f, k: Constants::USUAL, y: &mut y, x: &x });
        });
        bench.bytes(&format!("{f} backward"), 3 * n, || {
            bench.level.run(activate::Backward { f, k: Constants::USUAL, dx: &mut dx, add: false, dy: &dy, x: &x });
        });
    }
    let mut logits = values(50_257);
    bench.bytes("softmax and loss, a row of 50257", 2 * logits.len(), || {
        let row = classify::Row {
            logits: &mut logits,
            target: Target::Token(7),
            terms: Default::default(),
            weight: Some(1.0),
        };
        bench.level.run(row);
    });
    let rule = Rule {
        method: Method::AdamW,
        rate: 1e-3,
        beta1: 0.9,
        beta2: 0.99,
        momentum: 0.0,
        eps: 1e-8,
        step: 3,
        max_norm: 1.0,
        norm: None,
        most_loss: None,
    };
    let n = 4 << 20;
    let [mut w, g, mut m, mut v] = [0; 4].map(|_| values(n));
    bench.bytes("adamw, 4 Mi parameters", 7 * n, || {
        let (w, g, m, v) = (&mut w[..], &g[..], &mut m[..], &mut v[..]);
        bench.level.run(adamw::Update { rule: &rule, clip: 1.0, decay: 0.1, w, g, m, v });
    });
}
