//! The same numbers in another form. The five documents limpid was made from (docs/contract.md; its numbers are in the
//! comments) write one model in several ways: one-hot or look-up, three matrices or one per head, masks in three forms,
//! targets in three, sum or mean. Each test builds the other way from plain loops and shows that nothing is different;
//! where the contract corrects a document (its E numbers), the test shows the correction.
//!
//! All in f64 on `Reference`: `TIGHT` is the rounding of sums of some hundred terms, 100 x 2^-53 = 1e-14, through two
//! blocks. Where an f32 is part of the definition (the score scale, a row's weight) the bound is its rounding, 2^-24 =
//! 6e-8. Printed numbers agree within half of their last digit.

use crate::common::{assert_close, ids, narrow, normals};
use limpid::backend::{Backend, Reference};
use limpid::config::{
    Activation, Axis, Config, ConfigError, Constants, Dropout, DropoutScale, Mask, NormKind, NormPlace, PRESETS,
    Positions,
};
use limpid::model::init::{self, Init};
use limpid::model::tables::sinusoidal;
use limpid::model::{Axes, Mode, Model};
use limpid::numeric::simd::Level;
use limpid::ops::program::Flaw;
use limpid::ops::{Batch, DropoutSpec, IGNORE, MemorySpace, Op, Program, Target, Terms};
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind, from_one_based, to_one_based};
use limpid_core::kernels::dropout::Draws;
use limpid_core::kernels::{activate, classify, linear, norm};
use limpid_study::walk::equal::{self, Both, By, Seen};
use limpid_study::walk::plain::{
    add, columns, concat, diag, matmul, one_hot, project, scaled, segments, softmax, stack, transpose, wide,
};

const TIGHT: f64 = 1e-12;
/// B
const B: usize = 2;
/// T
const T: usize = 5;

/// Rows of the sequence `b` of a (B T, cols) matrix.
fn sequence(x: &[f64], b: usize, cols: usize) -> &[f64] {
    &x[b * T * cols..][..T * cols]
}

// ---- a model to look into

/// C = 12, H = 3, D = 4, F = 20, V = 11: no two the same.
fn small() -> Config {
    Config { vocab_size: 11, context_length: 6, d_model: 12, n_head: 3, n_layer: 2, d_ff: 20, ..Config::default() }
}

fn batch(config: &Config) -> Batch {
    let rows = B * T;
    let mut batch =
        Batch::of_sequences(ids("tokens", rows, config.vocab_size), ids("targets", rows, config.vocab_size), T);
    if config.n_segment > 0 {
        batch.segments = ids("segments", rows, config.n_segment);
    }
    batch
}

/// A model with random parameters (gains about 1, nothing zero) after a forward and a backward.
struct Run {
    model: Model,
    reference: Reference,
}

impl Run {
    fn new(config: &Config, batch: &Batch) -> Run {
        let context = batch.spans.iter().map(|s| s.rows).max().unwrap();
        let model = Model::new(config, Mode::Inspect { batch: batch.spans.len(), context }).unwrap();
        let mut reference = Reference::new(&model);
        for param in &model.params {
            let shift = if matches!(param.role, limpid::model::ParamRole::Gain) { 1.0 } else { 0.0 };
            let values: Vec<f64> = normals(&param.name, param.region.len()).iter().map(|v| shift + 0.4 * v).collect();
            reference.write(param.region, &narrow(&values)).unwrap();
        }
        let mut run = Run { model, reference };
        run.go(batch);
        run
    }
    fn go(&mut self, batch: &Batch) {
        self.reference.feed(batch).unwrap();
        self.reference.forward(self.model.ops()).unwrap();
        for param in &self.model.params {
            self.reference.exact_mut(param.region.grad()).fill(0.0);
        }
        self.reference.backward(self.model.back()).unwrap();
    }
    fn of(&self, name: &str) -> Vec<f64> {
        let tensor = self.model.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
        columns(self.reference.exact(tensor.region), tensor.region.cols, tensor.cols.clone())
    }
    fn block(&self, name: &str) -> Vec<f64> {
        self.of(&format!("blocks.0.{name}"))
    }
    fn param(&self, name: &str) -> Vec<f64> {
        self.reference.exact(self.model.param(name).unwrap_or_else(|| panic!("no parameter {name}")).region).to_vec()
    }
    /// An equality of the walks on this run, at full precision.
    fn both(&self, batch: &Batch, by: By) -> Vec<Both> {
        let h = self.model.config.n_head;
        // scores are stored as (query, head, key)
        let by_head = |x: Vec<f64>| -> Vec<f64> {
            let heads = (0..B).flat_map(|b| (0..h).map(move |h| (b, h)));
            heads.flat_map(|(b, k)| columns(sequence(&x, b, h * T), h * T, k * T..(k + 1) * T)).collect()
        };
        let get = |name: &str| match self.model.tensor(name) {
            Some(tensor) if matches!(tensor.axes, Axes::Scores) => Ok(by_head(self.of(name))),
            Some(_) => Ok(self.of(name)),
            None => Ok(self.param(name)),
        };
        by(&Seen { config: &self.model.config, batch, get: &get }).unwrap_or_else(|e| panic!("{e}"))
    }
    /// All gradients, one after the other.
    fn gradients(&self) -> Vec<f64> {
        self.model.params.iter().flat_map(|p| self.reference.exact(p.region.grad()).to_vec()).collect()
    }
}

// ---- tokens and embeddings

/// R015 to R018, R043; G01, G02, E0-01, E0-03: ids from 0 and from 1 are one bijection apart by 1, and the one-hot of
/// either is the same matrix.
#[test]
fn ids_from_zero_and_from_one() {
    let lines = ["cat eat mouse", "dog chase cat", "mouse eat cheese"];
    let tokenizer = Tokenizer::train(TokenizerKind::Word, &lines.join(" "), Order::FirstAppearance, &[]).unwrap();
    assert_eq!(tokenizer.vocab_size(), 6);
    let zero: Vec<Vec<u32>> = lines.iter().map(|line| tokenizer.encode(line).unwrap()).collect();
    let one: Vec<Vec<u32>> = zero.iter().map(|ids| to_one_based(ids).unwrap()).collect();
    assert_eq!(zero, [[0, 1, 2], [3, 4, 0], [2, 1, 5]]);
    assert_eq!(one, [[1, 2, 3], [4, 5, 1], [3, 2, 6]]);
    for (line, (zero, one)) in lines.iter().zip(zero.iter().zip(&one)) {
        assert_eq!(from_one_based(one).unwrap(), *zero);
        assert_eq!(tokenizer.decode(zero).unwrap(), *line);
        let from_one = one.iter().flat_map(|id| (1..=6).map(move |j| f64::from(j == *id))); // R043's own rule
        assert_eq!(one_hot(zero, 6), from_one.collect::<Vec<f64>>());
    }
    let toy =
        Tokenizer::from_vocabulary(TokenizerKind::Word, ["cat", "dog", "mouse"].map(String::from).to_vec()).unwrap();
    assert_eq!(toy.encode("cat dog mouse").unwrap(), [0, 1, 2]);
    assert!((0..3).all(|id| toy.encode(&toy.decode(&[id]).unwrap()).unwrap() == [id]));
}

/// R041 to R044, R046, R049 to R052; G03, G04 (the last row is w_V, not w_T: E0-06): a one-hot matrix times the table
/// picks its rows, in each sequence with the same table.
#[test]
fn one_hot_times_the_table_is_look_up() {
    assert_eq!(one_hot(&[2, 1], 3), [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    let table: Vec<f64> = (0..8).map(f64::from).collect(); // V = 4, C = 2: w_1 = (0, 1) .. w_V = (6, 7)
    assert_eq!(matmul(&one_hot(&[1, 0, 3], 4), &table, 4), [2.0, 3.0, 0.0, 1.0, 6.0, 7.0]);

    let (config, batch) = (small(), batch(&small()));
    let run = Run::new(&config, &batch);
    for both in run.both(&batch, equal::one_hot_is_lookup) {
        assert_eq!(both.one, both.other);
    }
    let x = one_hot(&batch.tokens, config.vocab_size);
    assert!(x.chunks(config.vocab_size).all(|row| row.iter().sum::<f64>() == 1.0));
}

/// R060, R061, R064 to R069, R350; E0-07, E0-08, E0-09: a position's vector is the same in every sequence and row t
/// of the table, and it is added.
#[test]
fn positions_are_rows_of_one_table() {
    for positions in [Positions::Learned, Positions::Sinusoidal, Positions::SinusoidalOneBased] {
        let config = Config { positions, ..small() };
        let run = Run::new(&config, &batch(&config));
        let (c, got) = (config.d_model, run.of("hook_pos_embed"));
        let want: Vec<f64> = match positions {
            Positions::Learned => run.param("pos_embed.weight")[..T * c].to_vec(),
            Positions::Sinusoidal => (0..T * c).map(|i| f64::from(sinusoidal(i / c, i % c, c) as f32)).collect(),
            // S0's rule to the letter, i and j from 1 (R061, E0-08)
            _ => (0..T * c)
                .map(|at| {
                    let (i, j) = ((at / c + 1) as f64, at % c + 1);
                    let angle = |j: usize| i / 10_000f64.powf(j as f64 / c as f64);
                    let value = if j.is_multiple_of(2) { angle(j).sin() } else { angle(j - 1).cos() };
                    f64::from(value as f32)
                })
                .collect(),
        };
        (0..B).for_each(|b| assert_eq!(sequence(&got, b, c), want, "{positions}"));
        assert_eq!(run.of("hook_embed_sum"), add(&run.of("hook_embed"), &got), "{positions}");
        for both in run.both(&batch(&config), equal::same_position_same_vector) {
            assert_eq!(both.one, both.other, "{positions}: {}", both.what);
        }
    }
}

/// Without positions nothing is added, and one block knows nothing of the order of the words before: in another order
/// they give the last row the same logits but for the rounding of sums. Any positions tell them apart, and so do two
/// blocks, by the causal mask.
#[test]
fn without_positions_the_order_is_lost() {
    let apart = |positions, n_layer| -> f64 {
        let config = Config { positions, n_layer, ..small() };
        let last = |batch: &Batch| sequence(&Run::new(&config, batch).of("logits"), 0, 11)[(T - 1) * 11..].to_vec();
        let mut batch = batch(&config);
        let before = last(&batch);
        batch.tokens[..T - 1].reverse();
        last(&batch).iter().zip(before).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    assert!(apart(Positions::None, 1) < TIGHT);
    assert!(apart(Positions::None, 2) > 1e-3);
    for positions in Positions::ALL.iter().filter(|positions| **positions != Positions::None) {
        assert!(apart(*positions, 1) > 1e-3, "{positions}");
    }
    let config = Config { positions: Positions::None, ..small() };
    let run = Run::new(&config, &batch(&config));
    assert_eq!(run.of("hook_embed_sum"), run.of("hook_embed"));
    assert!(run.model.tensor("hook_pos_embed").is_none() && run.model.param("pos_embed.weight").is_none());
    assert_eq!(limpid::names::formula(&run.model, "hook_embed_sum").unwrap(), "X̃ = X");
}

/// R062, R063, R070, R071, E1-08: the two ways to write the exponent agree where columns count from 0; values lie in
/// [-1, 1]; every position has its own vector, and near ones are nearer than far ones, by the distance alone.
#[test]
fn sinusoids_have_their_properties() {
    let (t, c) = (16, 64);
    let row = |p: usize| -> Vec<f64> { (0..c).map(|j| sinusoidal(p, j, c)).collect() };
    for (p, i) in (0..t).flat_map(|p| (0..c / 2).map(move |i| (p, i))) {
        let pair = p as f64 / 10_000f64.powf(2.0 * i as f64 / c as f64); // by pair: 2i / d_model
        let j = 2 * i;
        // by column: j / D and (j - 1) / D
        let by_column = |j: usize| if j.is_multiple_of(2) { j } else { j - 1 } as f64;
        let column = |j: usize| p as f64 / 10_000f64.powf(by_column(j) / c as f64);
        // the system's functions may differ from ours in the last digit
        for (is, want) in [(j, pair.sin()), (j + 1, pair.cos()), (j, column(j).sin()), (j + 1, column(j + 1).cos())] {
            assert!((row(p)[is] - want).abs() <= 4.0 * f64::EPSILON, "{p} {is}: {} {want}", row(p)[is]);
        }
    }
    let far = |a: usize, b: usize| add(&row(a), &scaled(&row(b), -1.0)).iter().map(|d| d * d).sum::<f64>().sqrt();
    for p in 0..t {
        assert!(row(p).iter().all(|v| v.abs() <= 1.0));
        for q in (0..t).filter(|q| *q != p) {
            assert!(far(p, q) >= far(0, 1) - TIGHT && far(p, q) > 0.5, "{p} and {q}");
            assert!((far(p, q) - far(0, p.abs_diff(q))).abs() < TIGHT, "distance alone decides");
        }
    }
    assert!((1..4).all(|d| far(0, d) < far(0, d + 1)) && far(0, 1) < far(0, 15) / 2.0);
}

/// R045; and the primer's check of inner dimensions: the product of the documents is the linear layer's, with the
/// matrix as it is stored, and a layer whose matrix does not fit is refused.
#[test]
fn a_product_is_a_linear_layer() {
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, 2.0, 1.0, 0.0, 3.0]);
    let printed = [5.0, 11.0, 14.0, 23.0];
    let mut y = [0.0; 4];
    linear::reference::forward(&mut y, &a, &transpose(&b, 2), None, 3);
    assert_eq!((y, matmul(&a, &b, 3)), (printed, printed.to_vec()));

    let model = Model::new(&small(), Mode::Score { batch: B, context: T }).unwrap();
    for (rows, cols) in [(1, 0), (0, 1)] {
        let mut other = model.program.draft();
        let w = other.ops.iter_mut().find_map(|op| if let Op::Linear { w, .. } = op { Some(w) } else { None }).unwrap();
        (w.rows, w.cols) = (w.rows + rows, w.cols + cols);
        assert!(matches!(Program::new(other).unwrap_err().flaw, Flaw::Shapes(_)));
    }
}

/// The attention of the first block alone: queries, keys and values as given, (B T, 3 C), to the merged heads, (B T,
/// C).
fn attend(config: &Config, batch: &Batch, qkv: &[f64]) -> Vec<f64> {
    let mut run = Run::new(config, batch);
    let given = run.model.tensor("blocks.0.attn.hook_qkv").unwrap().region;
    run.reference.exact_mut(given).copy_from_slice(qkv);
    let at = run.model.ops().iter().position(|op| matches!(op, Op::Attend { .. })).unwrap();
    run.reference.forward(run.model.program.forward(at..=at)).unwrap();
    run.block("attn.hook_z")
}

/// R128 to R131; G25: three heads of two columns over two positions give the printed matrices, and their merge is the
/// printed Concat. Heads 0 and 2 look at themselves alone; head 1 looks at both alike, so its second value is what
/// makes the mean the printed row.
#[test]
fn heads_are_concatenated() {
    let config = Config { d_model: 6, n_head: 3, ..small() };
    let own = 1e6; // exp(-1e6 / sqrt 2) is 0
    #[rustfmt::skip]
    let qkv = [
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0,   0.0, 0.0, 0.0, 0.0, 0.0, 0.0,   1.0, 2.0, 5.0, 6.0,  9.0, 10.0,
        1.0, 0.0, 0.0, 0.0, 0.0, 1.0,   own, 0.0, 0.0, 0.0, 0.0, own,   3.0, 4.0, 9.0, 10.0, 11.0, 12.0,
    ];
    let parts = [1.0, 5.0, 9.0].map(|a: f64| vec![a, a + 1.0, a + 2.0, a + 3.0]);
    let printed = [1.0, 2.0, 5.0, 6.0, 9.0, 10.0, 3.0, 4.0, 7.0, 8.0, 11.0, 12.0];
    assert_eq!(concat(&parts, 2), printed);
    assert_eq!(attend(&config, &Batch::of_sequences(vec![1, 2], vec![3, 4], 2), &qkv), printed);
}

/// R078: dropout falls on the weights after the softmax, each of B x H x T x T with a draw of its own, and what is left
/// is not normalised again. The values are unit rows, so the context shows the weights.
#[test]
fn dropout_falls_on_attention_weights() {
    let (h, d) = (3, T);
    let weights = |p: f64, scale, seed| {
        let dropout = Dropout { attention: p, scale, ..Dropout::NONE };
        let config = Config { d_model: h * d, n_head: h, dropout, ..small() };
        let qk = normals("queries and keys", B * T * 2 * h * d);
        let unit = |t: usize| (0..h * d).map(move |j| f64::from(j % d == t));
        let rows = qk.chunks(2 * h * d).enumerate();
        let qkv: Vec<f64> = rows.flat_map(|(n, qk)| qk.iter().copied().chain(unit(n % T))).collect();
        attend(&config, &Batch { seed, ..batch(&config) }, &qkv)
    };
    let whole = weights(0.0, DropoutScale::Inverted, None);
    assert!(whole.chunks(d).all(|row| (row.iter().sum::<f64>() - 1.0).abs() < TIGHT), "rows of weights");
    assert_eq!(weights(0.5, DropoutScale::Inverted, None), whole, "in evaluation nothing is dropped");
    for (scale, kept) in [(DropoutScale::Inverted, 2.0), (DropoutScale::Unscaled, 1.0)] {
        let some = weights(0.5, scale, Some(9));
        let seen = (0..some.len()).filter(|at| whole[*at] > 0.0);
        let (gone, left): (Vec<usize>, Vec<usize>) = seen.partition(|at| some[*at] == 0.0);
        // B H T (T + 1) / 2 = 90 weights of which half go: six deviations are 28
        assert!((17..74).contains(&gone.len()), "{scale}: {} of 90", gone.len());
        assert!(left.iter().all(|at| (some[*at] - kept * whole[*at]).abs() < TIGHT), "{scale}");
        let masks: std::collections::HashSet<Vec<bool>> = (0..B * h)
            .map(|s| (0..T * T).map(|i| some[(s / h * T + i / T) * h * d + s % h * d + i % T] == 0.0).collect())
            .collect();
        assert_eq!(masks.len(), B * h, "{scale}: every sequence and head has draws of its own");
    }
}

/// R047, R048, R266; G26, E2-17: diag(t) Stack(w_A) + diag(1 - t) Stack(w_B) is the look-up of a segment, with w_A in
/// row 1.
#[test]
fn segments_are_a_look_up() {
    assert_eq!(diag(&[1.0, 2.0, 3.0]), [1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 3.0]);
    assert_eq!(stack(2, &[7.0, 8.0]), [7.0, 8.0, 7.0, 8.0]);
    let printed = segments(&[0.0, 0.0, 1.0, 1.0], &[1.0, 2.0], &[10.0, 20.0]);
    assert_eq!(printed, [10.0, 20.0, 10.0, 20.0, 1.0, 2.0, 1.0, 2.0]);

    let config = Config { n_segment: 2, ..small() };
    let batch = batch(&config);
    let run = Run::new(&config, &batch);
    assert!(batch.segments.contains(&0) && batch.segments.contains(&1));
    for both in run.both(&batch, equal::segments_are_a_look_up) {
        assert_eq!(both.one, both.other);
    }
}

// ---- linear layers and attention

/// R294, R295, R161; E3-04, E3-05: y = x W with W (in,out) and y = x W' with W (out,in) are the same where the stored
/// matrix is transposed, and only there.
#[test]
fn weights_in_out_and_out_in() {
    let (inner, outer) = (5, 3);
    let (x, w, b) = (normals("x", 4 * inner), normals("w", outer * inner), normals("b", outer)); // (out,in)
    let mut y = vec![0.0; 4 * outer];
    linear::reference::forward(&mut y, &x, &w, Some(&b), inner);
    let in_out = transpose(&w, inner);
    let formula = matmul(&x, &in_out, inner).iter().enumerate().map(|(i, y)| y + b[i % outer]).collect::<Vec<f64>>();
    assert_close("x W + b", &y, &formula, TIGHT);
    let square = normals("square", 9);
    let x = &x[..9];
    assert_ne!(matmul(x, &square, 3), matmul(x, &transpose(&square, 3), 3)); // one matrix read both ways is two layers
}

/// R111, G05: column d of a projection is feature d mod D/H of head d div D/H. Adding 1 to that column of all values
/// adds 1 there and nowhere else, as weights sum to 1; a query's or key's column changes the columns of its head alone.
#[test]
fn head_split_index() {
    for (c, h, column, head, feature) in [(64, 4, 37, 2, 5), (6, 3, 5, 2, 1), (768, 12, 700, 10, 60)] {
        let config = Config { d_model: c, n_head: h, n_layer: 1, d_ff: 4, ..small() };
        let (d, batch) = (config.d_head(), batch(&config));
        assert_eq!(head * d + feature, column);
        let qkv = normals("qkv", B * T * 3 * c);
        let before = attend(&config, &batch, &qkv);
        let moved = |third: usize, by: &dyn Fn(usize) -> f64| -> Vec<f64> {
            let mut other = qkv.clone();
            (0..B * T).for_each(|n| other[n * 3 * c + third * c + column] += by(n));
            add(&attend(&config, &batch, &other), &scaled(&before, -1.0))
        };
        for (at, by) in moved(2, &|_| 1.0).into_iter().enumerate() {
            assert!((by - f64::from(at % c == column)).abs() < TIGHT, "C {c}, column {}: {by}", at % c);
        }
        for third in [0, 1] {
            // keys move differently, for what is added to all of them adds alike to a query's scores
            let changed = moved(third, &|n| n as f64);
            let heads: std::collections::BTreeSet<usize> =
                (0..changed.len()).filter(|at| changed[*at] != 0.0).map(|at| at % c / d).collect();
            assert_eq!(heads, [head].into(), "C {c}");
        }
    }
}

/// R277: eps is a number of the configuration, added to the variance of every row.
#[test]
fn eps_is_a_choice() {
    for norm_eps in [1e-12, 1e-5, 0.5, 100.0] {
        let config = Config { norm_eps, ..small() };
        let run = Run::new(&config, &batch(&config));
        let (x, c) = (run.block("hook_resid_pre"), config.d_model);
        let want = x.chunks(c).flat_map(|row| {
            let mean = row.iter().sum::<f64>() / c as f64;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / c as f64;
            row.iter().map(move |v| (v - mean) / (variance + f64::from(norm_eps as f32)).sqrt()).collect::<Vec<_>>()
        });
        assert_close("normalised", &run.block("ln1.hook_normalized"), &want.collect::<Vec<f64>>(), TIGHT);
    }
}

/// R099, R100, R102 to R106, R108, R110 to R114, R125, R128 to R132, R135, R138, R139; G05, G17; E0-28, E0-35, E3-06:
/// one fused (3C,C) matrix, three of C x C, and a matrix per head and letter whose results are concatenated, are one
/// attention. R101, E0-45: so they are where values have another number of features than queries and keys; W^O has H
/// d_v columns.
#[test]
fn fused_is_three_matrices_is_one_per_head() {
    let wide = |d_v| Config { d_v: Some(d_v), ..small() };
    let shared = Config { d_model: 24, n_head: 6, n_kv_head: Some(2), ..wide(9) };
    for config in
        [small(), Config { mask: Mask::Bidirectional, attention_bias: false, ..small() }, wide(1), wide(7), shared]
    {
        let batch = batch(&config);
        let run = Run::new(&config, &batch);
        let out = run.model.param("blocks.0.attn.out.weight").unwrap();
        assert_eq!(out.shape(), [config.d_model, config.n_head * config.d_value()]);
        let all = run.both(&batch, equal::fused_is_per_head);
        assert_eq!(all.len(), 5);
        for (i, both) in all.iter().enumerate() {
            // from the scores on: the model's 1 / sqrt(d) is an f32
            assert_close(both.what, &both.one, &both.other, if i < 3 { TIGHT } else { 1e-7 });
        }
    }
}

/// R114 to R116; G24: sqrt(d_k), sqrt(query.size(-1)), sqrt of S2's D and sqrt(head_size) are one number, of the head
/// and not of d_model; and scaling can be off (E3-07).
#[test]
fn scores_are_divided_by_the_root_of_the_head_size() {
    let hero = Config::preset("zero-to-hero").unwrap();
    assert_eq!((hero.d_head(), 1.0 / hero.score_scale(0)), (16, 4.0));
    for attention_scale in [true, false] {
        let config = Config { attention_scale, ..small() };
        let run = Run::new(&config, &batch(&config));
        let (c, h, d) = (config.d_model, config.n_head, config.d_head());
        let (q, k, raw) = (run.block("attn.hook_q"), run.block("attn.hook_k"), run.block("attn.hook_raw_scores"));
        let divisor = if attention_scale { (q.len() as f64 / (B * T * h) as f64).sqrt() } else { 1.0 };
        for (s, head) in (0..B).flat_map(|s| (0..h).map(move |head| (s, head))) {
            let [q, k] = [&q, &k].map(|m| columns(sequence(m, s, c), c, head * d..(head + 1) * d));
            let want = scaled(&matmul(&q, &transpose(&k, d), d), 1.0 / divisor);
            assert_close("scores", &columns(sequence(&raw, s, h * T), h * T, head * T..(head + 1) * T), &want, TIGHT);
        }
    }
}

/// R118 to R120, R123 to R126, R342; G12, E0-29, E0-30, E0-32, E1-20: the binary mask with a fill, the additive mask
/// (its logarithm) and the mask as a function make the same scores and weights; what is hidden weighs exactly 0.
#[test]
fn three_masks_one_softmax() {
    let binary = |i: usize, j: usize| f64::from(j <= i);
    let additive = |i: usize, j: usize| if j <= i { 0.0 } else { f64::NEG_INFINITY };
    assert!((0..16).all(|at| additive(at / 4, at % 4) == binary(at / 4, at % 4).ln()));

    let config = small();
    let run = Run::new(&config, &batch(&config));
    let wide = config.n_head * T;
    let [raw, masked, pattern] = ["raw_scores", "attn_scores", "pattern"].map(|n| run.block(&format!("attn.hook_{n}")));
    for (s, h) in (0..B).flat_map(|s| (0..config.n_head).map(move |h| (s, h))) {
        let [raw, masked, pattern] =
            [&raw, &masked, &pattern].map(|m| columns(sequence(m, s, wide), wide, h * T..(h + 1) * T));
        let each = |form: &dyn Fn(usize, usize, f64) -> f64| -> Vec<f64> {
            (0..T * T).map(|at| form(at / T, at % T, raw[at])).collect()
        };
        let filled = each(&|i, j, x| if binary(i, j) == 0.0 { f64::NEG_INFINITY } else { x });
        let added = each(&|i, j, x| x + additive(i, j));
        let function = each(&|i, j, x| if i >= j { x } else { f64::NEG_INFINITY });
        assert!(filled == added && added == function && function == masked);
        assert_close("weights", &pattern, &softmax(&filled, T), TIGHT);
        assert!((0..T * T).all(|at| (pattern[at] == 0.0) == (at % T > at / T)));
        assert!(pattern.chunks(T).all(|row| (row.iter().sum::<f64>() - 1.0).abs() < TIGHT));
    }
}

/// R121, G12, E2-01: scores times 1 or minus infinity are no mask (a negative score becomes plus infinity, a zero one
/// NaN, and so the weights are NaN); the name is refused with the reason. "1 - M" is none either.
#[test]
fn the_multiplicative_mask_is_refused() {
    let times = |scores: [f64; 4]| -> Vec<f64> {
        scores.iter().zip([1.0, f64::NEG_INFINITY, 1.0, 1.0]).map(|(s, m)| s * m).collect()
    };
    let negative = times([2.0, -1.0, 0.5, 1.0]);
    assert_eq!(negative, [2.0, f64::INFINITY, 0.5, 1.0]);
    assert!(softmax(&negative, 2)[1].is_nan() && !softmax(&negative, 2)[2].is_nan());
    assert!(times([2.0, 0.0, 0.5, 1.0])[1].is_nan());
    // right by luck, where the future scores are positive
    assert_eq!(softmax(&times([2.0, 3.0, 0.5, 1.0]), 2)[..2], [1.0, 0.0]);
    for name in ["multiplicative", "Multiplicative"] {
        assert_eq!(name.parse::<Mask>(), Err(ConfigError::MultiplicativeMask));
    }
    assert!("multiplicative".parse::<Mask>().unwrap_err().to_string().contains("NaN"));
    let one_minus = softmax(&add(&[2.0, 3.0], &[0.0, 1.0]), 2); // S0's 1 - M added in place of minus infinity
    assert!(one_minus[1] > 0.5);
}

/// R140, R141, R297; G18, E4-03 to E4-05: the value step of llm.c's wiki, a weight times a value vector, channel by
/// channel as (C,T,T), summed along rows to (C,T), stacked to (B,C,T), is A_w V once the last two axes are exchanged.
#[test]
fn scalar_times_vector_is_the_weights_times_the_values() {
    let config = small();
    let run = Run::new(&config, &batch(&config));
    for by in [equal::scalar_times_vector_is_weights_times_values as By, equal::context_is_weights_times_values] {
        for both in run.both(&batch(&config), by) {
            assert_close(both.what, &both.one, &both.other, TIGHT);
        }
    }
}

/// G13, E1-17: the printed weights are the softmax of the printed scores as they are; dividing those by 4 once more
/// is wrong.
#[test]
fn the_printed_scores_are_scaled_already() {
    let rows: [(&[f64], &[f64]); 3] = [
        (&[0.2712], &[1.0]),
        (&[-0.0456, 0.3352], &[0.4059, 0.5941]),
        (&[-0.0627, 0.1498, -0.3736], &[0.3368, 0.4165, 0.2468]),
    ];
    for (scores, printed) in rows {
        let near = |by: f64| {
            let mut row = scaled(scores, by);
            classify::reference::row(&mut row, Target::None, Terms::default(), None);
            assert_close("softmax", &row, &softmax(&scaled(scores, by), scores.len()), TIGHT);
            row.iter().zip(printed).all(|(got, want)| (got - want).abs() < 6e-5)
        };
        assert!(near(1.0) && (scores.len() == 1 || !near(0.25)));
    }
}

/// R187, R188, R126, G21, G14: rows of a softmax sum to 1, and a constant added to a row changes nothing; the printed
/// logits give the printed distribution, whose greatest is "dog" and not "jumps" (E3-20).
#[test]
fn softmax_rows_sum_to_one() {
    let mut x = normals("logits", 2 * 3 * 4);
    let shifted: Vec<f64> = x.iter().map(|v| v + 100.0).collect();
    let (plain, moved) = (softmax(&x, 4), softmax(&shifted, 4));
    assert_close("shifted", &moved, &plain, 1e-11);
    x.chunks_mut(4).for_each(|row| _ = classify::reference::row(row, Target::None, Terms::default(), None));
    assert_close("softmax", &x, &plain, TIGHT);
    assert!(x.chunks(4).all(|row| (row.iter().sum::<f64>() - 1.0).abs() < TIGHT));
    let logits = [2.3, 4.1, 1.8, 3.0, 0.5, -1.2, -0.8];
    let printed = [0.100_903, 0.610_430, 0.061_201, 0.203_194, 0.016_679, 0.003_047, 0.004_546];
    let p = softmax(&logits, 7);
    assert!(p.iter().zip(printed).all(|(p, want)| (p - want).abs() < 5e-7));
    assert!((0..7).all(|id| p[id] <= p[1]));
}

// ---- norms, feed-forward, blocks

/// R088, R091 to R093, E0-10, E1-24: a loop over rows, the whole (B T, C) matrix at once, and the row on its own are
/// one layer norm.
#[test]
fn row_by_row_is_all_at_once() {
    let (n, c, eps) = (B * T, 12, 1e-5);
    let (x, gain, offset) = (normals("x", n * c), normals("gain", c), normals("offset", c));
    // all at once: matrices of means and deviations, kept (N,1)
    let mean = scaled(&matmul(&x, &vec![1.0; c], c), 1.0 / c as f64);
    let centred: Vec<f64> = x.iter().enumerate().map(|(i, v)| v - mean[i / c]).collect();
    let squares: Vec<f64> = centred.iter().map(|v| v * v).collect();
    let deviation: Vec<f64> = matmul(&squares, &vec![1.0; c], c).iter().map(|v| (v / c as f64 + eps).sqrt()).collect();
    let whole: Vec<f64> =
        centred.iter().enumerate().map(|(i, v)| v / deviation[i / c] * gain[i % c] + offset[i % c]).collect();
    // row by row, stacked
    let affine = (Some(&gain[..]), Some(&offset[..]));
    let rows = x.chunks(c).flat_map(|row| {
        let (mut y, mut stats) = (vec![0.0; c], [0.0; 2]);
        norm::reference::forward((&mut y, &mut stats), row, affine, (NormKind::Layer, eps));
        y
    });
    assert_close("rows stacked", &rows.collect::<Vec<f64>>(), &whole, TIGHT);
    // in a model, before a sub-layer and after it
    for norm_place in [NormPlace::Pre, NormPlace::Post] {
        let config = Config { norm_place, ..small() };
        for both in Run::new(&config, &batch(&config)).both(&batch(&config), equal::norm_by_row) {
            assert_close(both.what, &both.one, &both.other, TIGHT);
        }
    }
    // the kernels too, to the bit
    let (x, gain, offset) = (narrow(&x), narrow(&gain), narrow(&offset));
    for level in Level::available() {
        let run = |x: &[f32]| {
            let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * x.len() / c]);
            let (gain, offset, eps) = (Some(&gain[..]), Some(&offset[..]), eps as f32);
            let kind = NormKind::Layer;
            level.run(norm::Forward { y: &mut y, stats: &mut stats, x, gain, offset, less_one: false, kind, eps });
            y
        };
        assert_eq!(run(&x), x.chunks(c).flat_map(run).collect::<Vec<f32>>(), "{level}");
    }
}

/// R084 to R086, R089, R094: before gain and offset, every row has mean 0 and (but for epsilon) deviation 1; without
/// them the norm is that.
#[test]
fn a_normalised_row_has_mean_zero_and_deviation_one() {
    for norm in [NormKind::Layer, NormKind::LayerStd] {
        let config = Config { norm, norm_eps: 1e-9, ..small() };
        let run = Run::new(&config, &batch(&config));
        for row in run.block("ln2.hook_normalized").chunks(config.d_model) {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / row.len() as f64; // biased
            assert!(mean.abs() < TIGHT && (variance - 1.0).abs() < 1e-8, "{norm}: mean {mean}, variance {variance}");
        }
        let bare = Config { norm_gain: false, norm_offset: false, ..config };
        let run = Run::new(&bare, &batch(&bare));
        assert_eq!(run.block("ln2.hook_out"), run.block("ln2.hook_normalized"));
        assert!(run.model.params.iter().all(|p| !p.name.contains("ln")));
    }
}

/// R145, R148, R149, R159, R160, R348; E0-18, E0-19, E1-25: one feed-forward network for every position of every
/// sequence, and each position on its own.
#[test]
fn the_feed_forward_network_is_position_wise() {
    let config = small();
    let run = Run::new(&config, &batch(&config));
    for both in run.both(&batch(&config), equal::feed_forward_by_position) {
        assert_close(both.what, &both.one, &both.other, TIGHT);
    }
}

/// R150 to R156, G23, E0-16, E2-11: how far the GELUs are apart; that they are bounded below and not above; and that
/// the tanh form is the general one, x (1 + tanh(b (a x + c (a x)^3))) / 2 with a = 1, b = sqrt(2 / pi), c =
/// 0.044715.
#[test]
fn gelus_are_three_functions() {
    let value = |f, x| activate::reference::value(f, Constants::USUAL, x);
    let points = || (-100_000..=100_000).map(|i| f64::from(i) * 1e-4);
    let apart = |a, b| points().map(|x| (value(a, x) - value(b, x)).abs()).fold(0.0, f64::max);
    assert!((apart(Activation::GeluErf, Activation::GeluTanh) - 4.73e-4).abs() < 1e-6);
    assert!((apart(Activation::GeluErf, Activation::GeluSigmoid) - 2.03e-2).abs() < 1e-4);
    for f in [Activation::GeluErf, Activation::GeluTanh, Activation::GeluSigmoid] {
        let least = points().map(|x| value(f, x)).fold(f64::INFINITY, f64::min);
        assert!((-0.1701..-0.1636).contains(&least) && value(f, 1e6) == 1e6, "{f}: {least}");
    }
    let general = |a: f64, b: f64, c: f64, x: f64| 0.5 * x * (1.0 + (b * (a * x + c * (a * x).powi(3))).tanh());
    let b = (2.0 / std::f64::consts::PI).sqrt();
    assert!(points().all(|x| (general(1.0, b, 0.044_715, x) - value(Activation::GeluTanh, x)).abs() < TIGHT));
    assert_eq!([-2.0, 0.0, 3.0].map(|x| value(Activation::Relu, x)), [0.0, 0.0, 3.0]);
    assert_eq!([-2.0, 3.0].map(|x| value(Activation::LeakyRelu, x)), [-0.02, 3.0]);
}

/// R164 to R173, R178 to R180, R184; E0-17, E0-37, E0-43, E1-26, E3-01, E3-11, E3-12: pre-norm adds what a sub-layer
/// makes of its normalised input to the input itself; post-norm normalises the sum. S1's code, taken at its word, ends
/// a block with the feed-forward network: no sum and no norm follows.
#[test]
fn norms_stand_before_or_after() {
    for norm_place in [NormPlace::Pre, NormPlace::Post, NormPlace::PostAttention] {
        let config = Config { norm_place, final_norm: norm_place == NormPlace::Pre, ..small() };
        let run = Run::new(&config, &batch(&config));
        let norm = |name: &str, x: &[f64]| {
            let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * B * T]);
            let (gain, offset) = (run.param(&format!("{name}.weight")), run.param(&format!("{name}.bias")));
            let eps = f64::from(config.norm_eps as f32);
            norm::reference::forward((&mut y, &mut stats), x, (Some(&gain), Some(&offset)), (config.norm, eps));
            y
        };
        let mut x = run.of("hook_embed_sum");
        for i in 0..config.n_layer {
            let of = |name: &str| run.of(&format!("blocks.{i}.{name}"));
            let ln = |k: usize, x: &[f64]| norm(&format!("blocks.{i}.ln{k}"), x);
            assert_close("input", &of("hook_resid_pre"), &x, TIGHT);
            let (z, mlp) = (of("hook_attn_out"), of("hook_mlp_out"));
            if norm_place == NormPlace::Pre {
                assert_close("Z1", &of("ln1.hook_out"), &ln(1, &x), TIGHT);
                x = add(&x, &z);
                assert_close("Z3", &of("hook_resid_mid"), &x, TIGHT);
                assert_close("Z4", &of("ln2.hook_out"), &ln(2, &x), TIGHT);
                x = add(&x, &mlp);
            } else {
                x = ln(1, &add(&x, &z));
                assert_close("X'", &of("hook_resid_mid"), &x, TIGHT);
                x = match norm_place {
                    NormPlace::Post => ln(2, &add(&x, &mlp)),
                    _ => {
                        assert!(run.model.param(&format!("blocks.{i}.ln2.weight")).is_none());
                        let linear = |name: &str, x: &[f64]| {
                            let part = |part: &str| run.param(&format!("blocks.{i}.mlp.{name}.{part}"));
                            project(x, &part("weight"), &part("bias"), x.len() / (B * T))
                        };
                        let inside = linear("in", &x);
                        let active = |x: &f64| activate::reference::value(config.activation, Constants::USUAL, *x);
                        linear("out", &inside.iter().map(active).collect::<Vec<_>>())
                    }
                };
            }
            assert_close("output", &of("hook_resid_post"), &x, TIGHT);
        }
        if config.final_norm {
            x = norm("ln_final", &x);
        }
        let logits = matmul(&x, &transpose(&run.param("embed.weight"), config.d_model), config.d_model);
        assert_close("X W_e'", &run.of("logits"), &logits, TIGHT); // R184
    }
}

// ---- losses

/// R202 to R204; E0-41: targets as indices, as one-hot rows and as distributions: the first two are the same losses
/// and gradients, and a mixture of targets has the mixture of both.
#[test]
fn targets_in_three_forms() {
    let config = small();
    let (v, index) = (config.vocab_size, batch(&config));
    let soft = |rows: Vec<f64>| Batch { targets: vec![], soft_targets: narrow(&rows), ..index.clone() };
    let other = ids("other targets", B * T, v);
    let (a, b) = (one_hot(&index.targets, v), one_hot(&other, v));
    let mixed = add(&scaled(&a, 0.25), &scaled(&b, 0.75));

    let mut run = Run::new(&config, &index);
    let mut go = |batch: &Batch| {
        run.go(batch);
        (run.of("losses"), run.gradients())
    };
    let (losses, gradients) = go(&index);
    for both in Run::new(&config, &index).both(&index, equal::one_hot_targets_are_indices) {
        assert_close(both.what, &both.one, &both.other, TIGHT);
    }
    let by_formula = go(&soft(a));
    assert_close("one-hot losses", &by_formula.0, &losses, TIGHT);
    assert_close("one-hot gradients", &by_formula.1, &gradients, TIGHT);
    let (b_losses, b_gradients) = go(&soft(b));
    let (mixed_losses, mixed_gradients) = go(&soft(mixed));
    let mix = |a: &[f64], b: &[f64]| add(&scaled(a, 0.25), &scaled(b, 0.75));
    assert_close("mixed losses", &mixed_losses, &mix(&losses, &b_losses), TIGHT);
    assert_close("mixed gradients", &mixed_gradients, &mix(&gradients, &b_gradients), TIGHT);
}

/// R187, R194, R197 to R201, R206, R207, R209; G28, E0-21, E1-29, E2-02: the loss of a row is -log of its target's
/// probability; the sum is N times the mean, in value and in gradient.
#[test]
fn the_sum_is_n_times_the_mean() {
    let config = small();
    let mut sum = batch(&config);
    sum.targets[8] = IGNORE;
    sum.targets[9] = IGNORE; // N = 8: 1 / N is exact
    let mean = Batch { weight: 1.0 / 8.0, ..sum.clone() };
    sum.weight = 1.0;
    let run = Run::new(&config, &mean);
    let (losses, gradients) = (run.of("losses"), run.gradients());
    assert_close("gradients", &Run::new(&config, &sum).gradients(), &scaled(&gradients, 8.0), TIGHT);
    let probs = run.of("probs");
    let log = |n: usize| match sum.targets[n] {
        IGNORE => 0.0,
        target => -probs[n * config.vocab_size + target as usize].ln(),
    };
    assert_close("-log P", &losses, &(0..B * T).map(log).collect::<Vec<f64>>(), TIGHT);
    assert_close("softmax(logits)", &probs, &softmax(&run.of("logits"), config.vocab_size), TIGHT);
    let likelihood: f64 = losses.iter().map(|l| (-l).exp()).product(); // the factorised P(x)
    assert!((likelihood.ln() + losses.iter().sum::<f64>()).abs() < 1e-10);
    // the printed example: P = 0.7 and 0.8
    let mut rows = [[0.7f64.ln(), 0.3f64.ln()], [0.8f64.ln(), 0.2f64.ln()]];
    let losses = rows.each_mut().map(|row| classify::reference::row(row, Target::Token(0), Terms::default(), None));
    let total = losses[0] + losses[1];
    assert!((total - 0.579_818).abs() < 5e-7 && (total / 2.0 - 0.289_909).abs() < 5e-7);
}

/// R023, R037, R205, R208: (B,T,V) flattened to (B T, V) is the same rows: a batch's losses are its sequences' own,
/// and its gradient their mean.
#[test]
fn flattening_mixes_nothing() {
    let config = small();
    let both = batch(&config);
    let run = Run::new(&config, &both);
    let (mut losses, mut gradients, mut logits) = (vec![], vec![0.0; run.gradients().len()], vec![]);
    for b in 0..B {
        let of = |ids: &[u32]| ids[b * T..(b + 1) * T].to_vec();
        let own = Run::new(&config, &Batch::of_sequences(of(&both.tokens), of(&both.targets), T));
        losses.extend(own.of("losses"));
        logits.extend(own.of("logits"));
        gradients = add(&gradients, &scaled(&own.gradients(), 1.0 / B as f64));
    }
    assert_eq!(run.of("losses"), losses);
    assert_eq!(run.of("logits"), logits);
    // the weights 1/10 and 1/5 are f32
    assert_close("gradients", &run.gradients(), &gradients, 1e-7);
}

/// R349, E0-24: [PAD] up to a fixed length, with the targets there ignored and the keys hidden, is as if it were not
/// there.
#[test]
fn padding_changes_nothing() {
    for mask in [Mask::Causal, Mask::Bidirectional] {
        let config = Config { mask, ..small() };
        let mut padded = batch(&config);
        padded.spans[1].valid = 3;
        padded.targets[8..].fill(IGNORE);
        padded.tokens[8..].fill(0);
        padded.weight = 1.0;
        let run = Run::new(&config, &padded);
        let own = |from: usize, n: usize| {
            let ids = |ids: &[u32]| ids[from..from + n].to_vec();
            let alone = Batch { weight: 1.0, ..Batch::of_sequences(ids(&padded.tokens), ids(&padded.targets), n) };
            Run::new(&config, &alone)
        };
        let (first, second) = (own(0, 5), own(5, 3));
        let losses = [first.of("losses"), second.of("losses"), vec![0.0; 2]].concat();
        assert_eq!(run.of("losses"), losses, "{mask}");
        assert_close("gradients", &run.gradients(), &add(&first.gradients(), &second.gradients()), TIGHT);
        // another token for padding: neither
        padded.tokens[8..].fill(7);
        assert_eq!(Run::new(&config, &padded).of("losses"), losses, "{mask}");
    }
}

/// R351, R352, R122, R098, R189, R190; E0-14, E0-15, E1-18, E1-19: a later token changes nothing before it under the
/// causal mask, and does under the bidirectional one (and none).
#[test]
fn only_the_causal_mask_hides_the_future() {
    for mask in [Mask::Causal, Mask::Bidirectional, Mask::None] {
        let config = Config { mask, ..small() };
        let before = batch(&config);
        let mut after = before.clone();
        after.tokens[3] = (after.tokens[3] + 1) % config.vocab_size as u32;
        let [a, b] = [before, after].map(|batch| Run::new(&config, &batch).of("logits"));
        let v = config.vocab_size;
        let changed: Vec<usize> = (0..B * T).filter(|n| a[n * v..(n + 1) * v] != b[n * v..(n + 1) * v]).collect();
        let want: Vec<usize> = if mask == Mask::Causal { vec![3, 4] } else { vec![0, 1, 2, 3, 4] };
        assert_eq!(changed, want, "{mask}"); // the other sequence, rows 5 to 9, never
    }
}

/// R348, R093: parameters are the same for every sequence of the batch: exchanging sequences exchanges results.
#[test]
fn sequences_are_exchangeable() {
    let config = small();
    let ab = batch(&config);
    let mut ba = ab.clone();
    [&mut ba.tokens, &mut ba.targets].into_iter().for_each(|ids| ids.rotate_left(T));
    let [x, y] = [ab, ba].map(|batch| Run::new(&config, &batch));
    let mut swapped = y.of("logits");
    swapped.rotate_left(T * config.vocab_size);
    assert_eq!(x.of("logits"), swapped);
    assert_close("gradients", &y.gradients(), &x.gradients(), TIGHT);
}

/// G30: with all logits equal the loss is ln V, exactly; with small random weights it is near it.
#[test]
fn the_first_loss_is_ln_v() {
    for (vocab_size, printed) in [
        (6, 1.791_759),
        (7, 1.945_910),
        (3771, 8.235_095),
        (40_478, 10.608_514),
        (50_257, 10.824_905),
        (100_277, 11.515_692),
    ] {
        let config = Config { vocab_size, n_layer: 1, ..small() };
        let batch = batch(&config);
        let model = Model::new(&config, Mode::Score { batch: B, context: T }).unwrap();
        let mut reference = Reference::new(&model); // all zero
        let mut loss = |init: Option<f64>| {
            for (param, std) in model.params.iter().zip(init.iter().cycle()) {
                reference.write(param.region, &init::values(&model, param, Init::Gpt2, *std, 3)).unwrap();
            }
            reference.feed(&batch).unwrap();
            reference.forward(model.ops()).unwrap();
            reference.exact(model.losses().unwrap()).iter().sum::<f64>() / (B * T) as f64
        };
        assert!((loss(None) - printed).abs() < 5e-7, "V = {vocab_size}");
        // a logit is a sum of C = 12 products of about 1 and 0.02: deviation 0.07, so a mean of 10 rows strays by 0.02
        let random = loss(Some(0.02));
        assert!((random - printed).abs() < 0.07, "V = {vocab_size}: {random}");
    }
}

// ---- dropout

/// R075, R076, R082; G33, E0-25: the two dropouts drop the same elements and differ by 1 / (1 - p); in evaluation the
/// inverted one is nothing and the other multiplies by 1 - p.
#[test]
fn dropout_in_two_scales() {
    let draws = |scale, seed| Draws::new(DropoutSpec { p: 0.5, scale, site: 4 }, seed);
    let [unscaled, inverted] = [DropoutScale::Unscaled, DropoutScale::Inverted].map(|scale| draws(scale, Some(9)));
    let mask: Vec<f32> = (0..200).map(|i| unscaled.factor(i)).collect();
    assert!(mask.contains(&0.0) && mask.contains(&1.0) && mask.iter().all(|m| *m == 0.0 || *m == 1.0));
    assert!(mask.iter().zip(0..).all(|(m, i)| inverted.factor(i) == m / (1.0 - 0.5)));
    assert_eq!([DropoutScale::Unscaled, DropoutScale::Inverted].map(|scale| draws(scale, None).factor(7)), [0.5, 1.0]);

    // through the model: without a seed, a model with inverted dropout everywhere is the model without
    let config = Config { dropout: Dropout::everywhere(0.3), ..small() };
    let logits = |config: &Config, seed| Run::new(config, &Batch { seed, ..batch(config) }).of("logits");
    assert_eq!(logits(&config, None), logits(&small(), None));
    assert_ne!(logits(&config, Some(1)), logits(&small(), None));
}

// ---- shapes, ids and counts

/// R014, R031, R036; G16, X-13, E3-16, E3-17: the readme's eight words by its printed map, by first appearance, and
/// shifted: eight tokens make seven pairs.
#[test]
fn ids_of_the_readmes_corpus() {
    let text = "dog jumps around cat man is helping cat";
    let map = ["cat", "dog", "jumps", "around", "man", "is", "helping"].map(String::from);
    let printed = Tokenizer::from_vocabulary(TokenizerKind::Word, map.to_vec()).unwrap().encode(text).unwrap();
    assert_eq!(printed.chunks(4).collect::<Vec<_>>(), [[1, 2, 3, 0], [4, 5, 6, 0]]);
    let appearance =
        Tokenizer::train(TokenizerKind::Word, text, Order::FirstAppearance, &[]).unwrap().encode(text).unwrap();
    assert_eq!(appearance, [0, 1, 2, 3, 4, 5, 6, 3]);
    let targets: Vec<u32> = printed[1..].iter().copied().chain([IGNORE]).collect();
    assert_eq!(targets.chunks(4).collect::<Vec<_>>(), [[2, 3, 0, 4], [5, 6, 0, IGNORE]]);
    let batch = Batch::of_sequences(printed, targets, 4);
    assert_eq!((batch.spans.len(), batch.weight), (2, 1.0 / 7.0));
}

/// R052, R110 to R113, R159, R162, R175, R186, R279, R318; G15: every tensor of the readme's example, B = 2, T = 4, C
/// = 6, V = 7, three heads of 2. And G10, R278: the same for the article's, B = 4, T = 16 (where B = H and T = D hide
/// exchanges).
#[test]
fn shapes_of_the_worked_examples() {
    let shapes = |preset: &str, batch: usize| -> Vec<(String, Vec<usize>)> {
        let config = Config { n_layer: 1, ..Config::preset(preset).unwrap() };
        let t = config.context_length;
        let model = Model::new(&config, Mode::Inspect { batch, context: t }).unwrap();
        let shape = |tensor: &limpid::model::Tensor| {
            assert_eq!(tensor.region.rows, batch * t, "{}", tensor.name); // flattened (R205)
            let shape = match tensor.axes {
                Axes::Heads | Axes::Values => vec![batch, t, tensor.cols.len() / config.d_head(), config.d_head()],
                Axes::Scores => vec![batch, config.n_head, t, tensor.cols.len() / config.n_head],
                Axes::Position => vec![batch, t],
                _ => vec![batch, t, tensor.cols.len()],
            };
            assert_eq!(shape.iter().product::<usize>(), tensor.region.rows * tensor.cols.len(), "{}", tensor.name);
            (tensor.name.replace("blocks.0.", ""), shape)
        };
        model.tensors.iter().map(shape).collect()
    };
    let want: &[(&str, &[usize])] = &[
        ("hook_embed", &[2, 4, 6]),
        ("hook_pos_embed", &[2, 4, 6]),
        ("hook_embed_sum", &[2, 4, 6]),
        ("hook_resid_pre", &[2, 4, 6]),
        ("ln1.hook_scale", &[2, 4, 1]),
        ("ln1.hook_normalized", &[2, 4, 6]),
        ("ln1.hook_out", &[2, 4, 6]),
        ("attn.hook_qkv", &[2, 4, 18]),
        ("attn.hook_q", &[2, 4, 3, 2]),
        ("attn.hook_k", &[2, 4, 3, 2]),
        ("attn.hook_v", &[2, 4, 3, 2]),
        ("attn.hook_raw_scores", &[2, 3, 4, 4]),
        ("attn.hook_attn_scores", &[2, 3, 4, 4]),
        ("attn.hook_pattern", &[2, 3, 4, 4]),
        ("attn.hook_z", &[2, 4, 3, 2]),
        ("hook_attn_out", &[2, 4, 6]),
        ("hook_resid_mid", &[2, 4, 6]),
        ("ln2.hook_scale", &[2, 4, 1]),
        ("ln2.hook_normalized", &[2, 4, 6]),
        ("ln2.hook_out", &[2, 4, 6]),
        ("mlp.hook_pre", &[2, 4, 24]),
        ("mlp.hook_post", &[2, 4, 24]),
        ("hook_mlp_out", &[2, 4, 6]),
        ("hook_mlp_out_dropped", &[2, 4, 6]),
        ("hook_resid_post", &[2, 4, 6]),
        ("logits", &[2, 4, 7]),
        ("probs", &[2, 4, 7]),
        ("losses", &[2, 4]),
    ];
    let got = shapes("decoder-readme", 2);
    assert_eq!(got, want.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect::<Vec<_>>());

    let got = shapes("zero-to-hero", 4);
    let of = |name: &str| got.iter().find(|(n, _)| n == name).unwrap().1.clone();
    assert_eq!(of("hook_embed"), [4, 16, 64]);
    assert_eq!(of("attn.hook_q"), [4, 16, 4, 16]);
    assert_eq!(of("attn.hook_pattern"), [4, 4, 16, 16]);
    assert_eq!(of("mlp.hook_pre"), [4, 16, 256]);
    assert_eq!(of("logits"), [4, 16, 3771]);
}

fn decode(config: &Config) -> Model {
    Model::new(config, Mode::Decode { rows: 1, outputs: 1, blocks: 1 }).unwrap()
}

/// R274 to R276, R278, R279, R281, R283, R327; G19, G32, E1-02, E2-12, E2-13: the printed totals and parts; and every
/// preset against the formula, extended by the choices it does not have.
#[test]
fn parameter_counts() {
    let of = |name: &str| Config::preset(name).unwrap();
    let gpt2 = of("gpt2");
    for (what, config, want) in [
        ("formulated GPT", of("formulated-gpt"), 116_497_920),
        ("the same with attention biases", Config { attention_bias: true, ..of("formulated-gpt") }, 116_534_784),
        ("openai-gpt", of("openai-gpt"), 116_534_784),
        ("formulated GPT-2: a final norm more", of("formulated-gpt2"), 116_499_456),
        ("formulated BERT: two segments more", of("formulated-bert"), 116_499_456),
        ("GPT-2 small", gpt2.clone(), 124_439_808),
        ("GPT-2 medium", of("gpt2-medium"), 354_823_168),
        ("GPT-2 large", of("gpt2-large"), 774_030_080),
        ("GPT-2 XL", of("gpt2-xl"), 1_557_611_200),
        ("GPT-2 small without attention biases", Config { attention_bias: false, ..gpt2.clone() }, 124_402_944),
        ("GPT-2 small untied", Config { tied_head: false, ..gpt2.clone() }, 163_037_184),
        ("GPT-2 small with 50304 rows", Config { vocab_size: 50_304, ..gpt2 }, 124_475_904),
        ("llm.c's GPT-2", of("llmc-gpt2"), 124_439_808),
        ("Llama 3.2 1B", of("llama-3.2-1b"), 1_235_814_400),
        ("the readme's toy", of("decoder-readme"), 42 + 24 + (108 + 36 + 318 + 24) + 49),
    ] {
        assert_eq!(decode(&config).parameter_count(), want, "{what}");
    }
    assert_eq!(
        decode(&of("formulated-gpt")).groups(),
        [
            ("token embedding", 31_087_104),
            ("position embedding", 393_216),
            ("attention", 28_311_552),
            ("norms", 36_864),
            ("feed-forward", 56_669_184)
        ]
    );
    let hero = Config { n_layer: 1, ..of("zero-to-hero") };
    let parts = [
        ("token embedding", 3771 * 64),
        ("attention", 16_384),
        ("norms", 256),
        ("feed-forward", 33_088),
        ("head", 245_115),
    ];
    assert_eq!(decode(&hero).groups(), parts);
    let sparse = decode(&Config { vocab_size: 100_070, ..hero });
    assert_eq!(sparse.param("embed.weight").unwrap().region.len(), 6_404_480); // E1-02: id 100069 needs 100070 rows

    for name in PRESETS.iter() {
        let c = of(name);
        let (v, n, h, f, l) = (c.vocab_size, c.context_length, c.d_model, c.d_ff, c.n_layer);
        let there = |yes: bool, n: usize| if yes { n } else { 0 };
        let norm = there(c.norm_gain, h) + there(c.norm_offset, h);
        let (q, k) = (c.heads().query_cols(), c.heads().key_cols());
        let attention = 2 * h * (q + k) + there(c.attention_bias, q + 2 * k + h);
        let up = if c.ffn_gated { 2 } else { 1 };
        let ffn = (up + 1) * h * f + there(c.ffn_bias, up * f + h);
        let lambda = v * h
            + there(c.positions == Positions::Learned, n * h)
            + c.n_segment * h
            + there(c.embedding_norm, norm)
            + l * (attention + ffn + 2 * norm)
            + there(c.final_norm, norm)
            + there(c.head_transform, h * h + h + norm)
            + there(!c.tied_head, v * h)
            + there(c.head_bias, v);
        assert_eq!(decode(&c).parameter_count(), lambda, "{name}");
    }
}

/// R284 to R286, R289 to R292, R296, R193; G20, E4-01, E4-08, E4-09: GPT-2 small's parameters lie as in llm.c's file,
/// kind by kind, layer within kind, the table with room for 50,304 rows.
#[test]
fn parameters_lie_as_in_llm_c() {
    let model = decode(&Config::preset("llmc-gpt2").unwrap());
    let order = [
        ("embed.weight", 38_633_472, 0),
        ("pos_embed.weight", 786_432, 38_633_472),
        ("blocks.ln1.weight", 9_216, 39_419_904),
        ("blocks.ln1.bias", 9_216, 39_429_120),
        ("blocks.attn.qkv.weight", 21_233_664, 39_438_336),
        ("blocks.attn.qkv.bias", 27_648, 60_672_000),
        ("blocks.attn.out.weight", 7_077_888, 60_699_648),
        ("blocks.attn.out.bias", 9_216, 67_777_536),
        ("blocks.ln2.weight", 9_216, 67_786_752),
        ("blocks.ln2.bias", 9_216, 67_795_968),
        ("blocks.mlp.in.weight", 28_311_552, 67_805_184),
        ("blocks.mlp.in.bias", 36_864, 96_116_736),
        ("blocks.mlp.out.weight", 28_311_552, 96_153_600),
        ("blocks.mlp.out.bias", 9_216, 124_465_152),
        ("ln_final.weight", 768, 124_474_368),
        ("ln_final.bias", 768, 124_475_136),
    ];
    let mut params = model.params.iter();
    for (kind, size, at) in order {
        let layers = if kind.starts_with("blocks") { 12 } else { 1 };
        for layer in 0..layers {
            let param = params.next().unwrap();
            assert_eq!(param.name, kind.replace("blocks", &format!("blocks.{layer}")));
            // base + l x size: nothing is copied
            assert_eq!(param.region.at, at + layer * (size / layers), "{}", param.name);
            assert!(kind == "embed.weight" || param.region.len() == size / layers, "{}", param.name);
        }
    }
    assert!(params.next().is_none());
    assert_eq!(model.program.size(MemorySpace::Param), 124_475_904);
    assert_eq!(model.param("embed.weight").unwrap().region.shape(), (50_257, 768)); // padding rows exist in memory only
    assert_eq!(model.param("blocks.3.attn.qkv.weight").unwrap().region.shape(), (3 * 768, 768));
    assert_eq!(model.tensor("blocks.3.mlp.hook_pre").unwrap().region.cols, 4 * 768);
    assert_eq!(model.tensor("blocks.3.hook_mlp_out").unwrap().region.cols, 768); // fcproj is (L,B,T,C)
}

/// R189, R190, R240; E2-21: the last row alone, asked for by decoding, is the last row of all rows.
#[test]
fn the_last_row_is_the_last_of_all_rows() {
    let config = small();
    let batch = batch(&config);
    let run = Run::new(&config, &batch);
    let model = Model::new(&config, Mode::Decode { rows: B * T, outputs: B, blocks: B }).unwrap();
    let mut reference = Reference::new(&model);
    for (to, from) in model.params.iter().zip(&run.model.params) {
        assert_eq!(to.name, from.name);
        reference.write(to.region, &run.reference.read(from.region).unwrap()).unwrap();
    }
    let last = [T as u32 - 1, (B * T) as u32 - 1];
    let mut batch = Batch { outputs: last.to_vec(), blocks: (0..B as u32).collect(), ..batch };
    (0..B).for_each(|sequence| batch.spans[sequence].table = sequence); // each fits one block of the cache
    reference.feed(&batch).unwrap();
    reference.forward(model.ops()).unwrap();
    let logits = wide(&run.reference.read(run.model.logits().unwrap()).unwrap());
    let v = config.vocab_size;
    let want: Vec<f64> = last.iter().flat_map(|n| logits[*n as usize * v..][..v].to_vec()).collect();
    assert_eq!(wide(&reference.read(model.logits().unwrap()).unwrap())[..2 * v], want);
}

/// The walks' equalities can fail: a number moved after the run is seen by every one that reads it.
#[test]
fn an_equality_that_does_not_hold_is_told() {
    let config = Config { n_segment: 2, ..small() };
    let mut batch = batch(&config);
    batch.tokens[T] = batch.tokens[0]; // one word at one place in both sequences
    let all: [(By, &str); 12] = [
        (equal::norm_by_row, "blocks.0.ln1.weight"),
        (equal::one_hot_is_lookup, "embed.weight"),
        (equal::same_position_same_vector, "hook_pos_embed"),
        (equal::same_position_same_vector, "hook_embed_sum"),
        (equal::same_token_same_row, "hook_embed"),
        (equal::fused_is_per_head, "blocks.0.attn.qkv.weight"),
        (equal::feed_forward_by_position, "blocks.0.mlp.in.weight"),
        (equal::rows_sum_to_one, "probs"),
        (equal::one_hot_targets_are_indices, "logits"),
        (equal::scalar_times_vector_is_weights_times_values, "blocks.0.attn.hook_v"),
        (equal::context_is_weights_times_values, "blocks.0.attn.hook_v"),
        (equal::segments_are_a_look_up, "segment_embed.weight"),
    ];
    for (by, name) in all {
        let mut run = Run::new(&config, &batch);
        let holds = |run: &Run| run.both(&batch, by).iter().all(|both| both.compare(1e-6).1 == both.other.len());
        assert!(holds(&run), "{name}");
        let (region, at) = match (run.model.tensor(name), run.model.param(name)) {
            (Some(tensor), _) => (tensor.region, tensor.cols.start),
            // a row of the token table that is used
            (_, Some(param)) if name == "embed.weight" => (param.region, batch.tokens[0] as usize * config.d_model),
            (_, param) => (param.unwrap().region, 0),
        };
        run.reference.exact_mut(region)[at] += 0.5;
        assert!(!holds(&run), "{name}");
    }
}
