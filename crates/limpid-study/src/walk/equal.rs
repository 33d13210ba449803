//! Two ways to the same numbers, compared: on a walk's live models, and by tests on models of other sizes.
//!
//! Each function reads tensors by name, computes them the other way in the plain loops of [`super::plain`], and gives
//! [`Both`].

use super::live::Run;
use super::parts::{Views, lacks, verdict};
use super::plain::{add, columns, concat, matmul, one_hot, project, segments, transpose, wide};
use super::worked::softmax;
use super::{At, Figure, Live, Result};
use limpid_core::backend::{Backend, Reference};
use limpid_core::config::{Activation, Config, Constants, NormPlace, Positions};
use limpid_core::kernels::{activate, classify, norm};
use limpid_core::numeric::simd::Level;
use limpid_core::ops::{Batch, Scoring, Target, Terms};
use limpid_tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

/// An equality by its name.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names say it; each function says more")]
pub enum Equal {
    ReluByElement,
    NormByRow,
    StoiItos { tokenizer: String },
    OneHotIsLookup,
    SamePositionSameVector,
    FusedIsPerHead,
    FeedForwardByPosition,
    RowsSumToOne,
    OneHotTargetsAreIndices,
    SameTokenSameRow,
    ContextIsWeightsTimesValues,
    SegmentsAreALookUp,
    GradientIsASlope,
    ScalarTimesVectorIsWeightsTimesValues,
}

/// What an equality reads of a run.
pub struct Seen<'a> {
    /// The model's configuration.
    pub config: &'a Config,
    /// What it ran on: B sequences of T tokens.
    pub batch: &'a Batch,
    /// A tensor or a parameter, laid out as [`Trace::get`](limpid_trace::Trace::get) has it.
    pub get: &'a dyn Fn(&str) -> Result<Vec<f64>>,
}

/// The same numbers, computed in two ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Both {
    /// What is equal, in words.
    pub what: &'static str,
    /// As the model has them.
    pub one: Vec<f64>,
    /// As they were computed here.
    pub other: Vec<f64>,
    /// The greatest of what was added up: roundings are in proportion to it.
    pub size: f64,
}

/// The greatest magnitude.
fn greatest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |top, v| top.max(v.abs()))
}

impl Both {
    fn new(what: &'static str, one: Vec<f64>, other: Vec<f64>) -> Both {
        let size = greatest(&other);
        Both { what, one, other, size }
    }

    /// The greatest difference, and how many numbers agree within `tolerance` times the size.
    pub fn compare(&self, tolerance: f64) -> (f64, usize) {
        let allowed = tolerance * self.size;
        let pairs = || self.one.iter().zip(&self.other);
        let off = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() };
        (pairs().map(off).fold(0.0, f64::max), pairs().map(off).filter(|off| *off <= allowed).count())
    }

    /// It in a sentence that says whether it holds: sums of single precision round.
    fn sentence(&self) -> Figure {
        let (off, agree) = self.compare(1e-5);
        let of = self.other.len();
        let off = if off == 0.0 { "0".into() } else { format!("{off:.1e}") };
        let text = format!("{}: {agree} of {of} numbers agree, largest difference {off}", self.what);
        verdict(text, agree == of && of == self.one.len() && of > 0)
    }
}

/// Both ways, compared: a sentence that says whether they agree.
pub(super) fn equal(live: &mut Live, what: &Equal, at: &At) -> Views {
    let by = match what {
        Equal::StoiItos { tokenizer } => return Ok(vec![stoi_itos(&Tokenizer::named(tokenizer)?)?.sentence()]),
        Equal::GradientIsASlope => return live.run(at, gradient_is_a_slope),
        Equal::ReluByElement => relu_by_element,
        Equal::NormByRow => norm_by_row,
        Equal::OneHotIsLookup => one_hot_is_lookup,
        Equal::SamePositionSameVector => same_position_same_vector,
        Equal::FusedIsPerHead => fused_is_per_head,
        Equal::FeedForwardByPosition => feed_forward_by_position,
        Equal::RowsSumToOne => rows_sum_to_one,
        Equal::OneHotTargetsAreIndices => one_hot_targets_are_indices,
        Equal::SameTokenSameRow => same_token_same_row,
        Equal::ContextIsWeightsTimesValues => context_is_weights_times_values,
        Equal::SegmentsAreALookUp => segments_are_a_look_up,
        Equal::ScalarTimesVectorIsWeightsTimesValues => scalar_times_vector_is_weights_times_values,
    };
    live.run(at, |run| {
        let get = |name: &str| Ok(wide(&run.get(name)?.values));
        let both = by(&Seen { config: run.config(), batch: run.trace.batch(), get: &get })?;
        Ok(both.iter().map(Both::sentence).collect())
    })
}

/// How an equality is computed.
pub type By = fn(&Seen) -> Result<Vec<Both>>;

impl Seen<'_> {
    fn get(&self, name: &str) -> Result<Vec<f64>> {
        (self.get)(name)
    }
    fn block(&self, name: &str) -> Result<Vec<f64>> {
        self.get(&format!("blocks.0.{name}"))
    }
    /// Of a parameter that some models have not: empty where it is missing.
    fn bias(&self, there: bool, name: &str) -> Result<Vec<f64>> {
        if there { self.block(name) } else { Ok(vec![]) }
    }
    /// B and T
    fn sizes(&self) -> (usize, usize) {
        (self.batch.spans.len(), self.batch.spans.first().map_or(0, |span| span.rows))
    }
    /// What the first block's attention (`ln1`) or feed-forward network (`ln2`) reads.
    fn input(&self, norm: &str, stream: &str) -> Result<Vec<f64>> {
        self.block(&if self.config.norm_place == NormPlace::Pre { format!("{norm}.hook_out") } else { stream.into() })
    }
}

/// Ids to words and back: every id.
///
/// # Errors
/// If a token is no text of its own.
pub fn stoi_itos(tokenizer: &Tokenizer) -> Result<Both> {
    let ids: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
    let back = ids.iter().map(|id| Ok(tokenizer.encode(&tokenizer.decode(&[*id])?)?));
    let back: Vec<Vec<u32>> = back.collect::<Result<_>>()?;
    let number = |ids: &[u32]| ids.iter().copied().map(f64::from).collect();
    Ok(Both::new("from number to word and back", number(&ids), number(&back.concat())))
}

/// ReLU of a whole tensor, and of each of its numbers alone.
///
/// # Errors
/// If the tensor cannot be read; so of the others.
pub fn relu_by_element(seen: &Seen) -> Result<Vec<Both>> {
    let x: Vec<f32> = seen.block("hook_resid_pre")?.iter().map(|v| *v as f32).collect();
    let relu = |x: &[f32]| {
        let mut y = vec![0.0; x.len()];
        Level::best().run(activate::Forward { y: &mut y, x, f: Activation::Relu, k: Constants::USUAL });
        wide(&y)
    };
    let each: Vec<f64> = x.chunks(1).flat_map(relu).collect();
    Ok(vec![Both::new("ReLU of the tensor is ReLU of each number", relu(&x), each)])
}

/// A norm of a whole tensor, and of each row alone.
///
/// # Errors
/// If a tensor cannot be read.
pub fn norm_by_row(seen: &Seen) -> Result<Vec<Both>> {
    let (c, pre) = (seen.config, seen.config.norm_place == NormPlace::Pre);
    let (x, whole) = if pre { ("hook_resid_pre", "ln1.hook_out") } else { ("hook_attn_sum", "hook_resid_mid") };
    let (gain, offset) = (seen.bias(c.norm_gain, "ln1.weight")?, seen.bias(c.norm_offset, "ln1.bias")?);
    let [gain, offset] = [gain, offset].map(|v| Some(v).filter(|v| !v.is_empty()));
    let affine = (gain.as_deref(), offset.as_deref());
    let x = seen.block(x)?;
    let rows = x.chunks_exact(c.d_model).flat_map(|row| {
        let mut y = vec![0.0; row.len()];
        let mut stats = [0.0; 2];
        norm::reference::forward((&mut y, &mut stats), row, affine, (c.norm, f64::from(c.norm_eps as f32)));
        y
    });
    let what = "the norm of the tensor is the norm of each row";
    Ok(vec![Both::new(what, seen.block(whole)?, rows.collect())])
}

/// One-hot rows times the table, and the rows looked up.
///
/// # Errors
/// If a tensor cannot be read.
pub fn one_hot_is_lookup(seen: &Seen) -> Result<Vec<Both>> {
    let v = seen.config.vocab_size;
    let table = seen.get("embed.weight")?;
    let product = seen.batch.tokens.iter().flat_map(|id| matmul(&one_hot(&[*id], v), &table, v)).collect();
    Ok(vec![Both::new("one-hot rows times W_e are the rows looked up", seen.get("hook_embed")?, product)])
}

/// The vector of a position in every sequence, and the sum of a token that stands at the same place in two.
///
/// # Errors
/// If a tensor cannot be read.
pub fn same_position_same_vector(seen: &Seen) -> Result<Vec<Both>> {
    let ((b, t), c, ids) = (seen.sizes(), seen.config.d_embed(), &seen.batch.tokens);
    let (positions, sums) = (seen.get("hook_pos_embed")?, seen.get("hook_embed_sum")?);
    let first = positions[..t * c].repeat(b);
    let row = |n: usize| sums[n * c..(n + 1) * c].to_vec();
    let twice = (t..b * t).filter_map(|n| (0..n).find(|m| m % t == n % t && ids[*m] == ids[n]).map(|m| (m, n)));
    let (one, other): (Vec<_>, Vec<_>) = twice.map(|(m, n)| (row(m), row(n))).unzip();
    let what = "every sequence adds the same vectors of positions";
    let same = Both::new("a word at the same place has the same sum", one.concat(), other.concat());
    let all = [Both::new(what, positions, first), same];
    Ok(all.into_iter().filter(|both| !both.one.is_empty()).collect())
}

/// The row of a token wherever it stands.
///
/// # Errors
/// If a tensor cannot be read, or all tokens differ.
pub fn same_token_same_row(seen: &Seen) -> Result<Vec<Both>> {
    let (x, c, ids) = (seen.get("hook_embed")?, seen.config.d_embed(), &seen.batch.tokens);
    let row = |n: usize| x[n * c..(n + 1) * c].to_vec();
    let twice = (0..ids.len()).filter_map(|n| ids[..n].iter().position(|id| *id == ids[n]).map(|m| (m, n)));
    let (one, other): (Vec<_>, Vec<_>) = twice.map(|(m, n)| (row(m), row(n))).unzip();
    if one.is_empty() {
        return lacks("no token stands at two places here");
    }
    let what = "a token that stands at several places has one row";
    Ok(vec![Both::new(what, one.concat(), other.concat())])
}

/// One matrix for all heads cut into three, and a matrix for each head and letter whose results are put side by side.
///
/// # Errors
/// If a tensor cannot be read, or the queries and keys are rotated.
pub fn fused_is_per_head(seen: &Seen) -> Result<Vec<Both>> {
    let (config, (b, t), c) = (seen.config, seen.sizes(), seen.config.d_model);
    if config.positions == Positions::Rotary {
        return lacks("this model rotates queries and keys between W_Q, W_K and the scores");
    }
    let (heads, d, wide) = (config.heads(), config.d_head(), config.d_value());
    let x = seen.input("ln1", "hook_resid_pre")?;
    let (w, bias) = (seen.block("attn.qkv.weight")?, seen.bias(config.attention_bias, "attn.qkv.bias")?);
    let part = |rows: std::ops::Range<usize>| {
        let bias = if bias.is_empty() { &[][..] } else { &bias[rows.clone()] };
        project(&x, &w[rows.start * c..rows.end * c], bias, c)
    };
    let named = [("Q by W_Q alone", "hook_q"), ("K by W_K alone", "hook_k"), ("V by W_V alone", "hook_v")];
    let mut all = vec![];
    for ((what, name), rows) in named.into_iter().zip(heads.parts()) {
        all.push(Both::new(what, seen.block(&format!("attn.{name}"))?, part(rows)));
    }
    let scoring = Scoring::new(config, 0);
    let head = |h: usize| -> Vec<f64> {
        let [q, k, v] = heads.of_head(h).map(&part);
        let one = |s: usize| {
            let [q, k, v] = [(&q, d), (&k, d), (&v, wide)].map(|(m, d)| &m[s * t * d..][..t * d]);
            let mut scores = matmul(q, &transpose(k, d), d);
            let span = &seen.batch.spans[s];
            for (at, score) in scores.iter_mut().enumerate() {
                let (i, j) = (at / t, at % t);
                let distance = scoring.distance(span, i, j, [h, heads.n_head]);
                let sees = scoring.sees(span, i).contains(&j);
                *score = if sees { scoring.score(*score, distance) } else { f64::NEG_INFINITY };
            }
            let weights: Vec<f64> = scores.chunks_exact(t).flat_map(softmax).collect();
            matmul(&weights, v, t)
        };
        (0..b).flat_map(one).collect()
    };
    let z = concat(&(0..heads.n_head).map(head).collect::<Vec<_>>(), wide);
    let out_bias = seen.bias(config.attention_bias, "attn.out.bias")?;
    let out = project(&z, &seen.block("attn.out.weight")?, &out_bias, heads.output_cols());
    all.push(Both::new("heads with matrices of their own, side by side", seen.block("attn.hook_z")?, z));
    all.push(Both::new("the same after W_O", seen.block("hook_attn_out")?, out));
    Ok(all)
}

/// The feed-forward network on each position alone.
///
/// # Errors
/// If a tensor cannot be read, or the network is gated.
pub fn feed_forward_by_position(seen: &Seen) -> Result<Vec<Both>> {
    let c = seen.config;
    if c.ffn_gated {
        return lacks("this model's feed-forward network is gated: it has three matrices");
    }
    let (w1, w2) = (seen.block("mlp.in.weight")?, seen.block("mlp.out.weight")?);
    let (b1, b2) = (seen.bias(c.ffn_bias, "mlp.in.bias")?, seen.bias(c.ffn_bias, "mlp.out.bias")?);
    let (mut pre, mut post, mut out) = (vec![], vec![], vec![]);
    for row in seen.input("ln2", "hook_resid_mid")?.chunks_exact(c.d_model) {
        let inside = project(row, &w1, &b1, c.d_model);
        let active: Vec<f64> =
            inside.iter().map(|x| activate::reference::value(c.activation, c.activation_constants(), *x)).collect();
        out.extend(project(&active, &w2, &b2, c.d_ff));
        pre.extend(inside);
        post.extend(active);
    }
    let both = |what, name: &str, other| -> Result<Both> { Ok(Both::new(what, seen.block(name)?, other)) };
    Ok(vec![
        both("before the activation, each position alone gives what all together give", "mlp.hook_pre", pre)?,
        both("after the activation, each position alone gives what all together give", "mlp.hook_post", post)?,
        both("at the end of the network, each position alone gives what all together give", "hook_mlp_out", out)?,
    ])
}

/// Rows of probabilities, and of attention weights, add up to 1.
///
/// # Errors
/// If a tensor cannot be read.
pub fn rows_sum_to_one(seen: &Seen) -> Result<Vec<Both>> {
    let sums = |what, name: &str, cols: usize| -> Result<Both> {
        let one: Vec<f64> = seen.get(name)?.chunks_exact(cols).map(|row| row.iter().sum()).collect();
        let ones = vec![1.0; one.len()];
        Ok(Both::new(what, one, ones))
    };
    let (_, t) = seen.sizes();
    Ok(vec![
        sums("rows of P add up to 1", "probs", seen.config.vocab_size)?,
        sums("rows of attention weights add up to 1", "blocks.0.attn.hook_pattern", t)?,
    ])
}

/// Targets as one-hot rows give the losses that targets as numbers give.
///
/// # Errors
/// If a tensor cannot be read, or no token has a target.
pub fn one_hot_targets_are_indices(seen: &Seen) -> Result<Vec<Both>> {
    let (v, logits, losses) = (seen.config.vocab_size, seen.get("logits")?, seen.get("losses")?);
    let (mut one, mut other) = (vec![], vec![]);
    for (n, (row, loss)) in logits.chunks_exact(v).zip(losses).enumerate() {
        let Target::Token(target) = seen.batch.target(n, v) else { continue };
        let soft: Vec<f32> = one_hot(&[target as u32], v).iter().map(|y| *y as f32).collect();
        one.push(loss);
        other.push(classify::reference::row(&mut row.to_vec(), Target::Soft(&soft), Terms::default(), None));
    }
    if one.is_empty() {
        return lacks("there is nothing to predict: no token here has a target");
    }
    let what = "losses by one-hot targets are those by numbers";
    // a small loss is the difference of two numbers as large as logits
    Ok(vec![Both { size: greatest(&logits), ..Both::new(what, one, other) }])
}

/// Attention weights times values, head by head.
///
/// # Errors
/// If a tensor cannot be read.
pub fn context_is_weights_times_values(seen: &Seen) -> Result<Vec<Both>> {
    let ((b, t), heads, d) = (seen.sizes(), seen.config.heads(), seen.config.d_value());
    let pattern = seen.block("attn.hook_pattern")?;
    let v = seen.block("attn.hook_v")?;
    let wide = heads.value_cols();
    let z = (0..b).flat_map(|s| {
        let head = |h: usize| {
            let own = h / heads.group() * d;
            let values = columns(&v[s * t * wide..][..t * wide], wide, own..own + d);
            matmul(&pattern[(s * heads.n_head + h) * t * t..][..t * t], &values, t)
        };
        concat(&(0..heads.n_head).map(head).collect::<Vec<_>>(), d)
    });
    Ok(vec![Both::new("attention weights times V, head by head", seen.block("attn.hook_z")?, z.collect())])
}

/// The value step of llm.c's wiki: a weight times a value vector, channel by channel as (C,T,T), summed along rows to
/// (C,T), is A_w V with its last two axes exchanged.
///
/// # Errors
/// If a tensor cannot be read.
pub fn scalar_times_vector_is_weights_times_values(seen: &Seen) -> Result<Vec<Both>> {
    let ((b, t), heads, d) = (seen.sizes(), seen.config.heads(), seen.config.d_value());
    let pattern = seen.block("attn.hook_pattern")?;
    let v = seen.block("attn.hook_v")?;
    let wide = heads.value_cols();
    let c = heads.output_cols();
    let mut z = vec![];
    for s in 0..b {
        let att = |h: usize, t1: usize, t2: usize| pattern[((s * heads.n_head + h) * t + t1) * t + t2];
        // a channel's (T,T), of which each row is summed
        let ct: Vec<f64> = (0..c * t)
            .map(|at| {
                let (channel, t1) = (at / t, at % t);
                let own = channel / d / heads.group() * d + channel % d;
                (0..t).map(|t2| att(channel / d, t1, t2) * v[(s * t + t2) * wide + own]).sum()
            })
            .collect();
        z.extend(transpose(&ct, t));
    }
    let what = "weights times vectors, (C, T, T), summed to (C, T) and transposed";
    Ok(vec![Both::new(what, seen.block("attn.hook_z")?, z)])
}

/// diag(t) Stack(w_A) + diag(1 - t) Stack(w_B) is the look-up of a segment, with w_A in row 1.
///
/// # Errors
/// If a tensor cannot be read, or the model has no segments.
pub fn segments_are_a_look_up(seen: &Seen) -> Result<Vec<Both>> {
    let (c, table) = (seen.config.d_embed(), seen.get("segment_embed.weight")?);
    let t: Vec<f64> = seen.batch.segments.iter().copied().map(f64::from).collect();
    let x0 = add(&seen.get("hook_embed")?, &seen.get("hook_pos_embed")?);
    let other = add(&x0, &segments(&t, &table[c..2 * c], &table[..c]));
    let what = "diag(t) Stack(w_A) + diag(1 − t) Stack(w_B) is the look-up of segments";
    Ok(vec![Both::new(what, seen.get("hook_embed_sum")?, other)])
}

/// The loss with one weight moved by a little to both sides, in double precision, and the gradient of the run.
fn gradient_is_a_slope(run: &mut Run) -> Views {
    const NAME: &str = "blocks.0.attn.out.weight";
    const STEP: f64 = 1e-4;
    let (gradient, model) = (run.get(&format!("{NAME}.grad"))?, run.trace.model());
    let steepest = |a: &usize, b: &usize| gradient.values[*a].abs().total_cmp(&gradient.values[*b].abs());
    let at = (0..gradient.values.len()).max_by(steepest).unwrap_or(0);
    let (Some(losses), Some(param)) = (model.losses(), model.param(NAME)) else {
        return lacks("this model has no head, so no loss");
    };
    let mut reference = Reference::new(model);
    for param in &model.params {
        reference.write(param.region, &run.get(&param.name)?.values)?;
    }
    reference.feed(run.trace.batch())?;
    let mut loss = |by: f64| -> Result<f64> {
        reference.exact_mut(param.region)[at] += by;
        reference.forward(model.ops())?;
        let rows = losses.for_batch(run.trace.batch());
        Ok(reference.exact(rows).iter().sum::<f64>() * f64::from(run.trace.batch().weight))
    };
    let slope = (loss(STEP)? - loss(-2.0 * STEP)?) / (2.0 * STEP);
    let gradient = f64::from(gradient.values[at]);
    let cols = param.region.cols;
    let holds = (slope - gradient).abs() <= 1e-4 * gradient.abs() && gradient != 0.0;
    let text = format!(
        "{NAME}[{}][{}] moved by {STEP} to both sides: the loss changes by {slope:.6} times as much; its gradient is \
         {gradient:.6}",
        at / cols,
        at % cols
    );
    Ok(vec![verdict(text, holds)])
}
