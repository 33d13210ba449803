//! Agreement with PyTorch, through the golden tensors of `fixtures/` (made by `reference/make.py`, read its README):
//! three models of HuggingFace, forward, backward and trained for ten steps (`pytorch`), and the ops one by one.
//!
//! The fixtures are true values rounded to f32, so the tolerances are about our own arithmetic:
//!
//! * `EXACT`, for `Reference`. It computes in f64, but epsilons, the score scale and the weight of a row are f32
//!   by type and its results are read as f32: a few roundings of 2^-24 = 6e-8, carried through two blocks.
//! * `SINGLE`, for the f32 kernels and `Cpu`. A result here is behind some 25 ops in a row, each rounding sums
//!   of up to 40 terms: 25 x sqrt(40) x 6e-8 = 1e-5. (PyTorch's own f32 is off by about 1e-6 on these.)
//!
//! Families of models have theirs in `fixtures/training` (`reference/families.py train`), for the models of
//! `fixtures/hf`: gradients and three steps.
//!
//! Both are relative to the greatest element of the tensor (see `common::assert_close`).

use crate::common::{assert_close, narrow, wide};
use crate::pytorch::{self, Fixture};
use limpid::backend::{Backend, Cpu, Reference};
use limpid::config::{Activation, Config, Constants, Fields, Heads, Mask, NormKind, RotaryScaling};
use limpid::matrix::Precision;
use limpid::model::{Model, tables};
use limpid::numeric::simd::Level;
use limpid::ops::{Scoring, Span, Target, Terms};
use limpid::optimizer::Method;
use limpid_core::kernels::attend::{self, Gradients, Head, Keys};
use limpid_core::kernels::{activate, classify, norm, rotate};
use limpid_core::matrix::view::{Mat, MatMut};
use serde_json::Value;

pub const LIBRARY: &str = env!("CARGO_MANIFEST_DIR");
const EXACT: f64 = 1e-6;
const SINGLE: f64 = 1e-5;

/// Every backend, with what it is called and how exact it must be.
pub fn backends(model: &Model) -> Vec<(String, Box<dyn Backend>, f64)> {
    let mut all: Vec<(String, Box<dyn Backend>, f64)> =
        vec![("reference".into(), Box::new(Reference::new(model)), EXACT)];
    for level in Level::available() {
        for threads in 1..=3 {
            let cpu = Cpu::with(model, threads, level, Precision::F32);
            all.push((format!("cpu {level} x{threads}"), Box::new(cpu), SINGLE));
        }
    }
    all
}

// ---- whole models

/// GPT-2: pre-norm, final norm, tied head, tanh GELU (presets gpt2, llmc-gpt2; R212, R213).
#[test]
fn gpt2_is_huggingfaces() {
    pytorch::check_model("gpt2");
}

/// OpenAI GPT: post-norm, no final norm, tied head (R167).
#[test]
fn openai_gpt_is_huggingfaces() {
    pytorch::check_model("openai-gpt");
}

/// BERT: bidirectional, segments, padding, embedding norm, head transform, exact GELU. Padding rows are compared too.
#[test]
fn bert_is_huggingfaces() {
    pytorch::check_model("bert");
}

// ---- training

/// AdamW with decay by group and clipping (R217, R220, R221); every parameter is trained (R222).
#[test]
fn ten_steps_of_adamw() {
    for name in ["gpt2", "openai-gpt", "bert"] {
        pytorch::check_training(&Fixture::open(name), Method::AdamW);
    }
}

/// Adam with decay in the gradient (R216), and SGD with momentum (R215).
#[test]
fn ten_steps_of_adam_and_sgd() {
    pytorch::check_training(&Fixture::open("gpt2"), Method::Adam);
    pytorch::check_training(&Fixture::open("gpt2"), Method::Sgd);
}

/// Losses, gradients and three steps of AdamW, of every family that shows a choice of its own.
#[test]
#[ignore = "gate"]
fn families_train_as_transformers_does() {
    pytorch::check_families();
}

/// What came later than GPT-2's choices is trained by another program too, in each of its values: no setting is
/// forgotten above.
#[test]
fn families_have_every_later_choice() {
    let usual = Config::default();
    let models: Vec<Config> =
        pytorch::FAMILIES.iter().map(|(name, ..)| Fixture::of_family(name).model_config()).collect();
    let mut seen = 0;
    for (setting, value) in usual.fields() {
        let is = |c: &Config| c.fields().into_iter().find(|(own, _)| own.name == setting.name).unwrap().1.json();
        let wanted: Vec<serde_json::Value> = match setting.name {
            "positions" => ["learned", "rotary", "alibi"].map(Value::from).to_vec(),
            // within the context dynamic is no scaling
            "rotary_scaling_kind" => ["bands", "yarn", "longrope"].map(Value::from).to_vec(),
            "norm_place" => ["pre", "post", "branch", "both"].map(Value::from).to_vec(),
            // other programs have none: `equivalences` and `kernels/activate.rs` judge them
            "d_v" | "gelu_alpha" | "gelu_beta" | "gelu_gamma" => continue,
            _ if setting.optional_in_files => value.choices().into_iter().map(Value::from).collect(),
            _ => continue,
        };
        seen += 1;
        let other = models.iter().any(|c| is(c) != value.json());
        assert!(other, "no model of FAMILIES has another `{}` than {}", setting.name, value.json());
        for choice in wanted {
            assert!(models.iter().any(|c| is(c) == choice), "no model of FAMILIES has `{}` {choice}", setting.name);
        }
    }
    assert!(seen > 20, "{seen} settings");
}

// ---- ops one by one

/// R146 to R157: value and slope of every activation.
#[test]
fn activations() {
    let f = Fixture::open("ops");
    let k = Constants::leaking(f.number("leaky_relu_slope"));
    let x = f.get("activation/x");
    for (theirs, ours) in [
        ("gelu_erf", Activation::GeluErf),
        ("gelu_tanh", Activation::GeluTanh),
        ("gelu_quick", Activation::GeluSigmoid),
        ("relu", Activation::Relu),
        ("leaky_relu", Activation::LeakyRelu),
        ("silu", Activation::Silu),
        ("sigmoid", Activation::Sigmoid),
        ("tanh", Activation::Tanh),
    ] {
        let (value, derivative) =
            (f.get(&format!("activation/{theirs}")), f.get(&format!("activation/{theirs}_derivative")));
        let got: Vec<f64> = x.iter().map(|x| activate::reference::value(ours, k, *x)).collect();
        assert_close(theirs, &got, value, EXACT);
        let got: Vec<f64> = x.iter().map(|x| activate::reference::derivative(ours, k, *x)).collect();
        assert_close(&format!("{theirs}'"), &got, derivative, EXACT);
        let (x, ones) = (narrow(x), vec![1.0; x.len()]);
        for level in Level::available() {
            let (mut y, mut dx) = (vec![0.0; x.len()], vec![9.0; x.len()]);
            level.run(activate::Forward { f: ours, k, y: &mut y, x: &x });
            assert_close(&format!("{theirs} {level}"), &wide(&y), value, EXACT); // one op: no need for SINGLE's 25
            // but slopes have a factor 1 - s that cancels where s is nearly 1: up to 2^-24 x 35 for the tanh GELU at 5
            level.run(activate::Backward { f: ours, k, dx: &mut dx, add: false, dy: &ones, x: &x });
            assert_close(&format!("{theirs}' {level}"), &wide(&dx), derivative, SINGLE);
            level.run(activate::Backward { f: ours, k, dx: &mut dx, add: true, dy: &ones, x: &x });
            let twice: Vec<f64> = derivative.iter().map(|d| 2.0 * d).collect();
            assert_close(&format!("{theirs}' twice {level}"), &wide(&dx), &twice, SINGLE);
        }
    }
}

/// R084 to R086, and RMS norm: value and gradients. The unbiased deviation is another function, and not ours (R086).
#[test]
fn norms() {
    let f = Fixture::open("ops");
    for (name, kind) in
        [("layer_norm", NormKind::Layer), ("sigma_norm", NormKind::LayerStd), ("rms_norm", NormKind::Rms)]
    {
        let eps = f.number(&format!("{name}_eps"));
        let of = |part: &str| f.get(&format!("{name}/{part}"));
        let (x, dy, gain, cols) = (of("x"), of("dy"), of("gain"), of("gain").len());
        let offset = (kind != NormKind::Rms).then(|| of("bias"));
        let rows = x.len() / cols;

        let (mut y, mut stats, mut dx) = (vec![0.0; x.len()], vec![0.0; 2 * rows], vec![0.0; x.len()]);
        let (mut dgain, mut doffset) = (vec![0.0; cols], vec![0.0; cols]);
        norm::reference::forward((&mut y, &mut stats), x, (Some(gain), offset), (kind, eps));
        assert_close(name, &y, of("y"), EXACT);
        let to = (Some(&mut dgain[..]), offset.is_some().then_some(&mut doffset[..]));
        norm::reference::backward((&mut dx, false), to, dy, x, &stats, Some(gain), (kind, eps));
        assert_close(&format!("{name} dx"), &dx, of("dx"), EXACT);
        assert_close(&format!("{name} dgain"), &dgain, of("dgain"), EXACT);
        if offset.is_some() {
            assert_close(&format!("{name} dbias"), &doffset, of("dbias"), EXACT);
        }

        let (gain, offset, eps) = (narrow(gain), offset.map(narrow), eps as f32);
        let (x, dy) = (narrow(x), narrow(dy));
        for level in Level::available() {
            let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * rows]);
            level.run(norm::Forward {
                y: &mut y,
                stats: &mut stats,
                x: &x,
                gain: Some(&gain),
                offset: offset.as_deref(),
                less_one: false,
                kind,
                eps,
            });
            assert_close(&format!("{name} {level}"), &wide(&y), of("y"), EXACT);
            let mut dx = vec![f32::NAN; x.len()]; // overwritten, then added to
            for (add, times) in [(false, 1.0), (true, 2.0)] {
                let g = &mut vec![0.0; cols];
                level.run(norm::BackwardInput {
                    dx: &mut dx,
                    add,
                    dy: &dy,
                    x: &x,
                    stats: &stats,
                    gain: Some(&gain),
                    less_one: false,
                    kind,
                    eps,
                    g,
                });
                // a difference of nearly equal numbers: g - mean(g) - n mean(g n)
                let want: Vec<f64> = of("dx").iter().map(|d| times * d).collect();
                assert_close(&format!("{name} dx {level}"), &wide(&dx), &want, SINGLE);
            }
            let (mut dgain, mut doffset) = (vec![0.0; cols], vec![0.0; cols]);
            let (one, two) = (Some(&mut dgain[..]), Some(&mut doffset[..]));
            level.run(norm::BackwardParams { dgain: one, doffset: two, from: 0, dy: &dy, x: &x, stats: &stats });
            assert_close(&format!("{name} dgain {level}"), &wide(&dgain), of("dgain"), SINGLE);
            if offset.is_some() {
                assert_close(&format!("{name} dbias {level}"), &wide(&doffset), of("dbias"), SINGLE);
            }
        }
    }
    let (biased, unbiased) = (f.get("sigma_norm/y"), f.get("sigma_norm_unbiased/y"));
    assert!(biased.iter().zip(unbiased).any(|(b, u)| (b - u).abs() > 0.01));
}

/// R098, R099, R114, R118, R122, R125, R126, R128: softmax(q k' / sqrt(d)) v and its gradients, without a mask and
/// with the causal one.
#[test]
fn attention() {
    let f = Fixture::open("ops");
    let scale = f.number("attention_scale");
    for (name, mask) in
        [("attention_full", Mask::None), ("attention_full", Mask::Bidirectional), ("attention_causal", Mask::Causal)]
    {
        let &[batch, heads, t, d] = f.shape(&format!("{name}/q")) else { panic!("four axes") };
        for part in 0..batch * heads {
            let of = |tensor: &str| &f.get(&format!("{name}/{tensor}"))[part * t * d..][..t * d];
            let span = Span { row: 0, rows: t, past: 0, table: 0, valid: t };

            let rows = |tensor| of(tensor).chunks_exact(d);
            let [mut y, mut dq, mut dk, mut dv] = [(); 4].map(|()| vec![0.0; t * d]);
            for (i, (q, dy)) in rows("q").zip(rows("dy")).enumerate() {
                let score = |_, product| scale * product;
                let p = attend::reference::row(q, rows("k"), |j| j < span.reach(mask, i), score).pattern;
                let (_, ds) = attend::reference::row_backward(&p, dy, rows("v"), |_| 1.0);
                for (j, e) in (0..t).flat_map(|j| (0..d).map(move |e| (j, e))) {
                    y[i * d + e] += p[j] * of("v")[j * d + e];
                    dv[j * d + e] += p[j] * dy[e];
                    dq[i * d + e] += scale * ds[j] * of("k")[j * d + e];
                    dk[j * d + e] += scale * ds[j] * q[e];
                }
            }
            for (tensor, got) in [("y", y), ("dq", dq), ("dk", dk), ("dv", dv)] {
                assert_close(&format!("{name} {tensor} of head {part}"), &got, of(tensor), EXACT);
            }

            let [q, k, v, dy] = ["q", "k", "v", "dy"].map(|tensor| narrow(of(tensor)));
            let mat = |data| Mat::new(data, d);
            let head = Head {
                q: mat(&q),
                k: Keys::Plain(mat(&k)),
                v: Keys::Plain(mat(&v)),
                span,
                scoring: Scoring::plain(mask, scale as f32),
                draws: None,
                head: 0,
                n_head: 1,
            };
            for level in Level::available() {
                let mut scratch = vec![0.0; attend::SCRATCH];
                let [mut y, mut dq, mut dk, mut dv] = [(); 4].map(|()| vec![f32::NAN; t * d]); // all overwritten
                let mut lse = vec![0.0; t];
                attend::forward(level, head, MatMut::new(&mut y, d), MatMut::new(&mut lse, 1), &mut scratch);
                assert_close(&format!("{name} y of head {part} {level}"), &wide(&y), of("y"), SINGLE);
                for (add, times) in [(false, 1.0), (true, 2.0)] {
                    let [dq_to, dk_to, dv_to] = [&mut dq, &mut dk, &mut dv].map(|to| MatMut::new(to, d));
                    let to = Gradients { dq: dq_to, dk: dk_to, dv: dv_to, watched: [None, None, None] };
                    let from = [Mat::new(&dy, d), Mat::new(&y, d), Mat::new(&lse, 1)];
                    attend::backward(level, head, to, [add; 2], from, &mut scratch);
                    for (tensor, got) in [("dq", &dq), ("dk", &dk), ("dv", &dv)] {
                        let want: Vec<f64> = of(tensor).iter().map(|d| times * d).collect();
                        assert_close(&format!("{name} {tensor} of head {part} {level}"), &wide(got), &want, SINGLE);
                    }
                }
            }
        }
    }
}

/// Rotary positions: queries and keys turn, values stay; turned by -1, they come back.
#[test]
fn rotary() {
    let f = Fixture::open("ops");
    let &[t, heads, d] = f.shape("rotary/x") else { panic!("three axes") };
    let (base, width) = (f.number("rotary_base"), heads * d);
    let layout = Heads { n_head: heads, n_kv_head: heads, d_head: d, d_value: d };
    let frequencies = tables::frequencies(d, base, &RotaryScaling::NONE);
    let angles: Vec<f64> = (0..t * d).map(|i| tables::rotary(i / d, i % d, &frequencies)).collect();
    let stack = |q: &[f64], v: &[f64]| -> Vec<f64> {
        let rows = q.chunks_exact(width).zip(v.chunks_exact(width));
        rows.flat_map(|(q, v)| [q, q, v].concat()).collect()
    };
    let x = stack(f.get("rotary/x"), f.get("rotary/x"));
    let want = stack(f.get("rotary/y"), f.get("rotary/x"));
    let positions: Vec<u32> = (0..t as u32).collect();
    let (mut y, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    rotate::turn(&mut y, &x, false, (&angles, d), &positions, layout, 1.0);
    assert_close("rotary", &y, &want, EXACT);
    rotate::turn(&mut back, &y, false, (&angles, d), &positions, layout, -1.0);
    assert_close("rotary and back", &back, &x, EXACT);
    let mut y = vec![0f32; x.len()];
    rotate::turn(&mut y, &narrow(&x), false, (&narrow(&angles), d), &positions, layout, 1.0);
    assert_close("rotary in f32", &wide(&y), &want, EXACT);
}

/// R202: cross-entropy with a distribution as the target.
#[test]
fn soft_cross_entropy() {
    let f = Fixture::open("ops");
    let of = |part: &str| f.get(&format!("cross_entropy_soft/{part}"));
    let &[rows, v] = f.shape("cross_entropy_soft/p") else { panic!("two axes") };
    let p = narrow(of("p"));
    let target = |n: usize| Target::Soft(&p[n * v..][..v]);
    let mut grad = of("logits").to_vec();
    let each = grad.chunks_exact_mut(v).enumerate();
    let losses: Vec<f64> = each
        .map(|(n, row)| classify::reference::row(row, target(n), Terms::default(), Some(1.0 / rows as f64)))
        .collect();
    assert_close("soft losses", &losses, of("losses"), EXACT);
    assert_close("soft loss", &[losses.iter().sum::<f64>() / rows as f64], of("loss"), EXACT);
    assert_close("soft dlogits", &grad, of("dlogits"), EXACT);
    for level in Level::available() {
        let mut grad = narrow(of("logits"));
        let weight = Some(1.0 / rows as f32);
        let each = grad.chunks_exact_mut(v).enumerate();
        let losses: Vec<f32> = each
            .map(|(n, logits)| level.run(classify::Row { logits, target: target(n), terms: Terms::default(), weight }))
            .collect();
        assert_close(&format!("soft losses {level}"), &wide(&losses), of("losses"), EXACT);
        assert_close(&format!("soft dlogits {level}"), &wide(&grad), of("dlogits"), EXACT);
    }
}
