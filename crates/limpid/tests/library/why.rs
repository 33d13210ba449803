//! What is said of a number adds up to it: explanations, the logit lens, attribution, the units of a feed-forward
//! network, each against sums in f64 or another way to the same number.

use crate::by_layers::{batch, by_layers, filled, tuned};
use crate::random_config::configs;
use limpid::config::{Config, NormKind, NormPlace};
use limpid::model::{Lora, Mode, Tuning};
use limpid::names;
use limpid::numeric::random;
use limpid::trace::attribution::{Attribution, AttributionUnit, attribute};
use limpid::trace::compare::compare;
use limpid::trace::explain::{Explanation, Operation, TERMS, explain};
use limpid::trace::lens::{lens, stages};
use limpid::trace::mlp::{BINS, DEAD, look_at_mlp};
use limpid::trace::{Keep, NamedTensor, Trace, TraceError};
use std::collections::HashMap;

/// Every tensor of a trace, by name, the rows of each head together.
struct Tensors(HashMap<String, NamedTensor>);

impl Tensors {
    fn get(&mut self, trace: &Trace, name: &str) -> &NamedTensor {
        self.0.entry(name.into()).or_insert_with(|| trace.get(name).unwrap().heads_first())
    }
}

fn close(what: &str, got: f64, want: f64, size: f64) {
    let same = got == want || got.is_nan() && want.is_nan();
    assert!(same || (got - want).abs() <= 1e-12 * size, "{what}: {got} is not {want}");
}

/// How far f32 may be from the exact result: a sum of n terms in any order is off by less than n + 16 roundings of the
/// sum of sizes (16 for what a kernel does to a term: a weight has an exponential of its own); each step rounds its
/// result, and carries on what was off before.
fn bound(why: &Explanation, exponents: f64) -> f64 {
    let u = f64::from(f32::EPSILON) / 2.0;
    let sizes: f64 = why.parts.iter().flat_map(|part| part.terms.iter().map(|term| term.value.abs())).sum();
    let mut sum: f64 = why.parts.iter().map(|part| part.value).sum();
    let copied = why.of == 1 && why.parts[0].terms[0].right.is_none();
    let mut off = (exponents + if copied { 0.0 } else { why.of as f64 + 16.0 }) * u * sizes;
    for step in &why.steps {
        let (by, result) = (step.by.as_ref().map_or(0.0, |by| by.value), step.result.abs());
        off = match step.operation {
            Operation::Plus | Operation::Minus => off + u * (result + sum.abs()),
            Operation::Times => off * by.abs() + 2.0 * u * result,
            // the kernel multiplies with the rounded reciprocal
            Operation::Over => off / by.abs() + 4.0 * u * result,
            // the share among the vocabulary's exponentials is a sum too
            Operation::Exp => result * (off + 32.0 * u),
            Operation::Ln => off / sum.abs() + 4.0 * u * result,
            Operation::Sqrt => off / (2.0 * result).max(1e-30) + 4.0 * u * result,
            Operation::Sine | Operation::Cosine => off + 2.0 * u,
            // no slope is above 1.2
            Operation::Activation(..) => 1.2 * off + 16.0 * u * (1.0 + sum.abs()),
        };
        sum = step.result;
        if sum.is_infinite() {
            off = 0.0; // hidden by the mask, exactly
        }
    }
    off + 1e-37
}

/// Everything about one cell.
fn adds_up(trace: &Trace, tensors: &mut Tensors, name: &str, at: &[usize], dropout: f64) -> Explanation {
    let why = explain(trace, name, at).unwrap();
    let place = format!("{name} {at:?} of {:?}", trace.model().config);
    assert_eq!((why.cell.name.as_str(), &why.cell.at[..]), (name, at));
    assert_eq!(why.value.to_bits(), tensors.get(trace, name).at(at).unwrap().to_bits(), "{place}");
    let shown: usize = why.parts.iter().map(|part| part.terms.len()).sum();
    let of: usize = why.parts.iter().map(|part| part.of).sum();
    assert_eq!((why.shown, why.of), (shown, of), "{place}");
    assert!(shown == of.min(TERMS), "{place}: {shown} of {of}");
    let sum: f64 = why.parts.iter().map(|part| part.value).sum();
    let terms = || why.parts.iter().flat_map(|part| &part.terms);
    let size = terms().map(|term| term.value.abs()).sum::<f64>() + why.remainder.abs();
    close(&place, terms().map(|term| term.value).sum::<f64>() + why.remainder, sum, size);
    let mut exact = if why.parts.is_empty() { f64::from(why.value) } else { sum };
    for step in &why.steps {
        exact = step.operation.apply(exact, step.by.as_ref().map_or(0.0, |by| by.value));
        close(&place, step.result, exact, exact.abs());
    }
    close(&place, why.exact, exact, exact.abs());
    if why.value.is_finite() {
        close(&place, why.exact + why.rounding, why.value.into(), exact.abs());
    }
    for part in &why.parts {
        if part.terms.len() == part.of {
            close(&place, part.terms.iter().map(|term| term.value).sum(), part.value, size);
        }
    }
    // what it is made of is where it is said to be
    for operand in terms()
        .flat_map(|term| [Some(&term.left), term.right.as_ref()])
        .chain(why.steps.iter().map(|step| step.by.as_ref()))
        .flatten()
    {
        let Some(cell) = &operand.at else { continue };
        let tensor = tensors.get(trace, &cell.name);
        let value = tensor.at(&cell.at).unwrap_or_else(|| panic!("{place}: no {cell:?} in {:?}", tensor.shape));
        assert_eq!(f64::from(value).to_bits(), operand.value.to_bits(), "{place}: {cell:?}");
    }
    for step in &why.steps {
        let Some(cell) = &step.at else { continue };
        let there = f64::from(tensors.get(trace, &cell.name).at(&cell.at).unwrap());
        assert!((there - step.result).abs() <= 1e-5 * (1.0 + there.abs()), "{place}: {cell:?} is {there}");
    }
    for term in terms() {
        let product = term.left.value * term.right.as_ref().map_or(1.0, |right| right.value);
        if name.ends_with("hook_lse") || name.ends_with("hook_scale") {
            continue; // judged by the sum
        }
        let own = if name.ends_with("hook_z") { product * dropout } else { product };
        close(&format!("{place}: {}", term.label), term.value, own, own.abs());
    }
    // the weights of a context have exponentials of scores, whose size says how far they may be off
    let exponents = if name.ends_with("hook_z") {
        let scores = tensors.get(trace, &name.replace("hook_z", "hook_attn_scores"));
        4.0 * scores.values.iter().filter(|v| v.is_finite()).fold(0.0, |most, v| f64::from(v.abs()).max(most))
    } else if ["hook_qk_normed", "hook_norm_q", "hook_norm_k"].iter().any(|hook| name.ends_with(hook)) {
        32.0 // its mean and its scale are sums too, which have no names
    } else {
        0.0
    };
    let most = bound(&why, exponents);
    assert!(why.rounding.abs() <= most, "{place}: off by {:e}, at most {most:e}\n{why:#?}", why.rounding);
    why
}

fn every_name(trace: &Trace) -> Vec<String> {
    let model = trace.model();
    let mut all: Vec<String> = vec!["input".into()];
    all.extend(model.tensors.iter().map(|tensor| tensor.name.clone()));
    all.extend(model.params.iter().map(|param| param.name.clone()));
    all.extend(names::derived(model).into_iter().map(|(name, _)| name));
    all
}

/// What attention's weights are multiplied with outside training.
fn kept(config: &Config) -> f64 {
    use limpid::config::DropoutScale::Unscaled;
    let p = config.dropout.attention;
    if config.dropout.scale == Unscaled && p > 0.0 { f64::from(1.0 - p as f32) } else { 1.0 }
}

fn every_tensor_adds_up(trace: &Trace, seed: u64) {
    let (names, mut tensors) = (every_name(trace), Tensors(HashMap::new()));
    let kept = kept(&trace.model().config);
    for (n, name) in names.iter().enumerate() {
        let (_, shape) = trace.shape(name).unwrap();
        for draw in 0..2u64 {
            let pick = |(axis, size): (usize, &usize)| {
                random::below(seed, 40 + draw, (8 * n + axis) as u64, *size as u64) as usize
            };
            let at: Vec<usize> = shape.iter().enumerate().map(pick).collect();
            let why = adds_up(trace, &mut tensors, name, &at, kept);
            assert!(why.words.ends_with('.') && why.words.len() > 20, "{name}: {}", why.words);
            let is_made = trace.model().tensor(name).is_some();
            assert_eq!(why.op == "parameter" || why.op == "input", !is_made && !name.contains("hook"), "{name}");
        }
    }
}

#[test]
#[ignore = "gate"]
fn every_number_is_the_sum_behind_it() {
    for (seed, config) in configs().iter().enumerate() {
        let trace = by_layers(config, &batch(config, 2, 5, seed as u64), 1, seed as u64, 1 << 24);
        every_tensor_adds_up(&trace, seed as u64);
    }
}

#[test]
fn and_so_it_is_with_an_adapter() {
    for (seed, config) in configs().iter().enumerate().step_by(9) {
        every_tensor_adds_up(&adapted(config, seed as u64), seed as u64);
    }
}

fn adapted(config: &Config, seed: u64) -> Trace {
    let targets = vec!["attention".into(), "feed-forward".into()];
    let tuning = Tuning { lora: Some(Lora { rank: 3, alpha: 5.0, dropout: 0.0, targets }), ..Tuning::default() };
    let (model, backend) = tuned(config, Keep::default().mode(2, 5), &tuning, 1, seed);
    Trace::run(&model, Box::new(backend), &batch(config, 2, 5, seed), Keep::Blocks { seen: 1 << 24 }).unwrap()
}

#[test]
fn a_cell_that_is_not_there_is_refused() {
    let config = &configs()[0];
    let trace = by_layers(config, &batch(config, 1, 5, 1), 1, 1, 1 << 20);
    let said = |error: TraceError| error.to_string();
    let outside = said(explain(&trace, "blocks.0.hook_resid_post", &[0, 5, 0]).unwrap_err());
    assert!(outside.contains("[1, 5, 12]: there is no cell at [0, 5, 0]"), "{outside}");
    assert!(said(explain(&trace, "blocks.0.hook_resid_post", &[0]).unwrap_err()).contains("at [0]"));
    assert!(said(explain(&trace, "hook_embd", &[0]).unwrap_err()).contains("did you mean `hook_embed`"));
    assert!(matches!(explain(&trace, "logits.grad", &[0]).unwrap_err(), TraceError::NoBackward { .. }));
}

/// Beside a trace that keeps everything and runs the head on a stage at a time.
#[test]
fn the_lens_reads_every_stage_as_the_last() {
    for (seed, config) in configs().iter().enumerate().step_by(3) {
        let (seed, batch) = (seed as u64, batch(config, 2, 5, seed as u64));
        let (model, backend) = filled(config, Mode::Inspect { batch: 2, context: 5 }, 1, seed);
        let kept = Trace::run(&model, Box::new(backend), &batch, Keep::All).unwrap();
        let mut names = vec!["blocks.0.hook_resid_pre".to_string()];
        names.extend((0..config.n_layer).map(|block| format!("blocks.{block}.hook_resid_post")));
        let wanted: Vec<Vec<f32>> = names.iter().map(|name| kept.lens(name).unwrap().values).collect();
        let (rows, v) = ([7, 0, 9, 7], config.vocab_size);
        let all = lens(&by_layers(config, &batch, 1, seed, 1 << 20), &rows, 3).unwrap();
        assert_eq!(all.iter().map(|row| row.row).collect::<Vec<_>>(), rows);
        assert_eq!(stages(config.n_layer), ["embed", "0", "1"]);
        for row in &all {
            assert_eq!(row.cells.len(), names.len());
            let probs =
                |stage: usize| wanted[stage][row.row * v..][..v].iter().map(|p| f64::from(*p)).collect::<Vec<_>>();
            let last = probs(config.n_layer);
            let best = |p: &[f64]| (0..v).fold(0, |best, id| if p[id] > p[best] { id } else { best });
            let mut settled = 0;
            for (stage, cell) in row.cells.iter().enumerate() {
                let (own, said) = (probs(stage), &cell.prediction);
                assert_eq!(said.top.len(), 3);
                assert_eq!(said.top[0].id as usize, best(&own), "{config:?}");
                for candidate in &said.top {
                    assert_eq!(candidate.p.to_bits(), (own[candidate.id as usize] as f32).to_bits());
                }
                let target = said.target.unwrap();
                assert_eq!(target.candidate.id, batch.targets[row.row]);
                // of equal ones, such as logits at their bound, the first
                let (id, p) = (target.candidate.id as usize, own[target.candidate.id as usize]);
                let likelier = own.iter().enumerate().filter(|(i, q)| **q > p || **q == p && *i < id).count();
                assert_eq!(target.rank, 1 + likelier);
                // of probabilities in f32, so to some 1e-6 of their logarithms, which are below 100
                let kl: f64 = last.iter().zip(&own).filter(|(p, _)| **p > 0.0).map(|(p, q)| p * (p / q).ln()).sum();
                let entropy: f64 = own.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
                assert!(cell.kl >= 0.0 && (cell.kl - kl).abs() < 1e-4, "{} {kl}", cell.kl);
                assert!((said.entropy - entropy).abs() < 1e-4);
                if best(&own) != best(&last) {
                    settled = stage + 1;
                }
            }
            assert_eq!((row.settled, row.cells[config.n_layer].kl), (settled, 0.0));
        }
    }
    let config = &configs()[0];
    let trace = by_layers(config, &batch(config, 1, 5, 1), 1, 1, 1 << 20);
    assert!(lens(&trace, &[5], 1).unwrap_err().to_string().contains("no row 5"));
}

fn bar(all: &Attribution, name: &str) -> f64 {
    all.bars.iter().find(|bar| bar.name == name).unwrap_or_else(|| panic!("no {name} in {all:#?}")).value
}

/// The bars of all units add up to the logit difference, and finer ones to coarser ones; a write's bar is what its
/// definition says.
fn attribution_adds_up(trace: &Trace, seed: u64) {
    let config = trace.model().config.clone();
    let draw = |site: u64, n: usize| random::below(seed, 70 + site, 0, n as u64) as usize;
    let (row, target, foil) = (draw(0, 10), draw(1, config.vocab_size), draw(2, config.vocab_size));
    let asked = (target as u32, (draw(3, 4) > 0).then_some(foil as u32));
    let [whole, heads, neurons] = [AttributionUnit::Component, AttributionUnit::Head, AttributionUnit::Neuron]
        .map(|unit| attribute(trace, row, asked, unit, usize::MAX).unwrap());
    let logits = trace.get("logits").unwrap().values[row * config.vocab_size..][..config.vocab_size].to_vec();
    let wanted = f64::from(logits[target]) - asked.1.map_or(0.0, |_| f64::from(logits[foil]));
    let plain = !config.norm_place.is_post() && !config.head_transform && config.logits_softcap == 0.0;
    for all in [&whole, &heads, &neurons] {
        let (sum, size) =
            all.bars.iter().fold((0.0, 0.0), |(sum, size), bar| (sum + bar.value, size + bar.value.abs()));
        assert_eq!((all.value, all.rest, all.additive), (wanted, 0.0, plain), "{config:?}");
        // f32 sums of a few dozen terms that cancel
        // bounded logits are no sums
        let near = (sum - wanted).abs() <= 1e-4 * size || config.logits_softcap > 0.0;
        assert!(near, "{sum} {wanted} of {size}: {all:#?} {config:?}");
        assert!((all.value - sum - all.remainder).abs() <= 1e-12 * size);
        assert!(all.bars.is_sorted_by(|a, b| a.value.abs() >= b.value.abs()));
        for cell in all.bars.iter().filter_map(|bar| bar.at.as_ref()) {
            assert!(explain(trace, &cell.name, &cell.at).is_ok(), "{cell:?}");
        }
    }
    let some = attribute(trace, row, asked, AttributionUnit::Neuron, 5).unwrap();
    let shown = neurons.bars.len().min(5);
    let left: f64 = neurons.bars[shown..].iter().map(|bar| bar.value).sum();
    assert!(some.bars[..] == neurons.bars[..shown] && (some.rest - left).abs() <= 1e-12 * left.abs().max(1.0));
    let sum = |all: &Attribution, start: &str| -> (f64, f64) {
        let mine = all.bars.iter().filter(|bar| bar.name.starts_with(start));
        mine.fold((0.0, 0.0), |(sum, size), bar| (sum + bar.value, size + bar.value.abs()))
    };
    if config.head_transform {
        return;
    }
    let last = config.n_layer - 1;
    for (coarse, fine, start) in [
        (format!("L{last} MLP"), &neurons, format!("L{last} MLP")),
        (format!("L{last} attention"), &heads, format!("L{last}H")),
    ] {
        if config.norm_place == NormPlace::PostAttention && coarse.ends_with("attention") {
            assert!(whole.bars.iter().all(|bar| bar.name != coarse), "the feed-forward network alone leaves the block");
            continue;
        }
        let adapter = bar_or_zero(fine, &format!("{coarse}'s adapter"));
        let bias = if start.contains("MLP") { 0.0 } else { bar_or_zero(fine, &format!("L{last} attention bias")) };
        let (sum, size) = sum(fine, &start);
        let sum = sum + bias - if start.contains("MLP") { adapter } else { 0.0 };
        assert!((sum - bar(&whole, &coarse)).abs() <= 1e-4 * (size + 1e-6), "{coarse}: {sum} in {config:?}");
    }
    if !plain || config.norm_place != NormPlace::Pre {
        return;
    }
    // the definition, in f64: the write of the last block's network, centred, scaled, times the gain, times d
    let name = format!("blocks.{last}.hook_mlp_out_dropped");
    let name = if trace.shape(&name).is_ok() { name } else { format!("blocks.{last}.hook_mlp_out") };
    if trace.model().tuning.lora.is_some() {
        return; // there it has two parts
    }
    let c = config.d_model;
    let mut write: Vec<f64> = trace.get(&name).unwrap().values[row * c..][..c].iter().map(|v| f64::from(*v)).collect();
    if config.final_norm {
        let mean = if config.norm == NormKind::Rms { 0.0 } else { write.iter().sum::<f64>() / c as f64 };
        let scale = f64::from(trace.get("ln_final.hook_scale").unwrap().values[row]);
        let gain = config.norm_gain.then(|| trace.get("ln_final.weight").unwrap());
        for (i, v) in write.iter_mut().enumerate() {
            let one = if config.norm_gain_less_one { 1.0 } else { 0.0 };
            *v = (*v - mean) / scale * gain.as_ref().map_or(1.0, |gain| one + f64::from(gain.values[i]));
        }
    }
    let head = trace.get(if config.tied_head { "embed.weight" } else { "unembed.weight" }).unwrap();
    let reads = |id: usize| write.iter().zip(&head.values[id * c..]).map(|(v, w)| v * f64::from(*w)).sum::<f64>();
    let factor = config.logits_scale; // what is written has the factor of the stream
    let wanted = factor * (reads(target) - asked.1.map_or(0.0, |_| reads(foil)));
    assert!((bar(&whole, &format!("L{last} MLP")) - wanted).abs() < 1e-5 * (1.0 + wanted.abs()), "{config:?}");
}

fn bar_or_zero(all: &Attribution, name: &str) -> f64 {
    all.bars.iter().find(|bar| bar.name == name).map_or(0.0, |bar| bar.value)
}

#[test]
fn who_wrote_a_logit_adds_up_to_it() {
    for (seed, config) in configs().iter().enumerate() {
        let trace = by_layers(config, &batch(config, 2, 5, seed as u64), 1, seed as u64, 1 << 24);
        attribution_adds_up(&trace, seed as u64);
        if seed % 9 == 0 {
            attribution_adds_up(&adapted(config, seed as u64), seed as u64);
        }
    }
    let config = &configs()[0];
    let trace = by_layers(config, &batch(config, 1, 5, 1), 1, 1, 1 << 20);
    let refused = attribute(&trace, 0, (3, Some(11)), AttributionUnit::Head, 5).unwrap_err().to_string();
    assert!(refused.contains("token 11 is outside the model's vocabulary of 11"), "{refused}");
}

/// Its units one by one; and a unit's tokens, which go forward to the head, beside its bar, which comes back from
/// there.
#[test]
fn the_units_of_a_network_are_what_they_write() {
    for (seed, config) in configs().iter().enumerate().step_by(2) {
        let seed = seed as u64;
        let trace = by_layers(config, &batch(config, 2, 5, seed), 1, seed, 1 << 24);
        let (row, v, f, c) = (3 + seed as usize % 7, config.vocab_size, config.d_ff, config.d_model);
        for block in 0..config.n_layer {
            let look = look_at_mlp(&trace, block, row, (4, v)).unwrap();
            let tensor = |trace: &Trace, name: &str| trace.get(&format!("blocks.{block}.mlp.{name}")).unwrap();
            let [pre, post] = ["hook_pre", "hook_post"].map(|name| tensor(&trace, name));
            let owner = if config.shared_blocks { 0 } else { block };
            let weight = trace.get(&format!("blocks.{owner}.mlp.out.weight")).unwrap();
            assert_eq!((look.edges.len(), look.d_ff), (BINS + 1, f));
            for (counts, values) in [(&look.counts, &pre.values[row * f..][..f]), (&look.all, &pre.values[..])] {
                assert_eq!(counts.iter().sum::<usize>(), values.len());
                for (bin, count) in counts.iter().enumerate() {
                    let [from, to] = [look.edges[bin], look.edges[bin + 1]];
                    let inside = |slack: f64| {
                        values.iter().filter(|v| (from - slack..to + slack).contains(&f64::from(**v))).count()
                    };
                    assert!((inside(-1e-9)..=inside(1e-9)).contains(count), "{block} {bin}");
                }
            }
            let is_dead = |unit: &usize| (0..10).all(|row| post.values[row * f + unit].abs() < DEAD);
            assert_eq!(look.dead, (0..f).filter(is_dead).count());
            let length = |unit: usize| {
                let column = (0..c).map(|i| f64::from(weight.values[i * f + unit]).powi(2)).sum::<f64>();
                f64::from(post.values[row * f + unit].abs()) * column.sqrt()
            };
            let mut lengths: Vec<f64> = (0..f).map(length).collect();
            lengths.sort_by(|a, b| b.total_cmp(a));
            for (unit, longest) in look.units.iter().zip(&lengths) {
                assert_eq!((unit.pre, unit.post), (pre.values[row * f + unit.unit], post.values[row * f + unit.unit]));
                assert!((unit.write_norm - longest).abs() < 1e-9 && (length(unit.unit) - longest).abs() < 1e-9);
                let no_way = config.norm_place == NormPlace::PostAttention && block + 1 < config.n_layer;
                if config.head_transform || no_way {
                    assert!(unit.tokens.is_empty());
                    continue;
                }
                assert!(unit.tokens.len() == v && unit.tokens.is_sorted_by(|a, b| a.1 >= b.1));
                if config.norm_place.is_post() && block + 1 < config.n_layer {
                    continue;
                }
                let (best, worst) = (unit.tokens[0], unit.tokens[v - 1]);
                let asked = (best.0, Some(worst.0));
                let all = attribute(&trace, row, asked, AttributionUnit::Neuron, usize::MAX).unwrap();
                let (raised, back) =
                    (f64::from(best.1 - worst.1), bar(&all, &format!("L{block} MLP unit {}", unit.unit)));
                assert!((raised - back).abs() < 2e-5 * (1.0 + back.abs()), "{raised} {back} {config:?}");
            }
        }
    }
}

/// Beside probabilities and streams of traces that keep everything; also beyond the rows that the head takes at once.
#[test]
fn two_runs_differ_as_their_numbers_do() {
    for (seed, config) in configs().iter().enumerate().step_by(7) {
        let seed = seed as u64;
        let config = Config { context_length: 40, ..config.clone() };
        let [own, other] = [seed, seed + 1].map(|seed| batch(&config, 2, 40, seed));
        let kept = [(&own, seed), (&other, seed + 2)].map(|(batch, weights)| {
            let (model, backend) = filled(&config, Mode::Inspect { batch: 2, context: 40 }, 1, weights);
            let trace = Trace::run(&model, Box::new(backend), batch, Keep::All).unwrap();
            ["probs", "blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
                .map(|name| trace.get(name).unwrap().values)
        });
        let a = by_layers(&config, &own, 1, seed, 1 << 20);
        let b = by_layers(&config, &other, 1, seed + 2, 1 << 20);
        let found = compare(&a, &b).unwrap();
        let (kl, stream) = (found.kl.unwrap(), found.stream.unwrap());
        assert_eq!((kl.len(), stream.len(), stream[0].len()), (80, 3, 80));
        for row in 0..80 {
            let mine = |all: &[f32], wide: usize| -> Vec<f64> {
                all[row * wide..][..wide].iter().map(|v| f64::from(*v)).collect()
            };
            let [p, q] = [0, 1].map(|run| mine(&kept[run][0], config.vocab_size));
            let wanted: f64 = p.iter().zip(&q).filter(|(p, _)| **p > 0.0).map(|(p, q)| p * (p / q).ln()).sum();
            assert!((kl[row] - wanted).abs() < 1e-4, "{} {wanted}", kl[row]);
            for stage in 0..3 {
                let [x, y] = [0, 1].map(|run| mine(&kept[run][stage + 1], config.d_model));
                let length = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
                let wanted = length(&mut x.iter().zip(&y).map(|(x, y)| y - x)) / length(&mut x.iter().copied());
                assert!((stream[stage][row] - wanted).abs() < 1e-9 * (1.0 + wanted), "{stage} {row}");
            }
        }
        let same = compare(&a, &by_layers(&config, &own, 1, seed, 1 << 20)).unwrap();
        assert!(same.kl.unwrap().iter().chain(same.stream.unwrap().iter().flatten()).all(|v| *v == 0.0));
        let short = by_layers(&config, &batch(&config, 2, 5, 1), 1, seed, 1 << 20);
        assert!(compare(&a, &short).unwrap_err().to_string().contains("2 of 40, the other 2 of 5"));
    }
}
