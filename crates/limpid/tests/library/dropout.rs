//! What dropout draws is seen: each mask is the one that the run used, and what is dropped is its tensor times the
//! mask.

use crate::random_config::{configs, fill};
use limpid::backend::Reference;
use limpid::config::{Config, Dropout, DropoutScale};
use limpid::model::{Mode, Model};
use limpid::names;
use limpid::numeric::random;
use limpid::ops::{Batch, Op};
use limpid::trace::{Keep, Trace, TraceError};

fn run(config: &Config, seed: Option<u64>, look: impl FnOnce(&Model, &Trace)) {
    let model = Model::new(config, Mode::Inspect { batch: 2, context: 5 }).unwrap();
    let mut reference = Reference::new(&model);
    fill(&model, &mut reference, 3);
    let ids: Vec<u32> = (0..10).collect();
    let mut batch = Batch::of_sequences(ids.clone(), ids, 5);
    if config.n_segment > 0 {
        batch.segments = vec![0; 10];
    }
    batch.seed = seed;
    look(&model, &Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap());
}

fn close(what: &str, got: f32, want: f64) {
    assert!((f64::from(got) - want).abs() <= 1e-5 + 2e-5 * want.abs(), "{what}: {got}, expected {want}");
}

#[test]
fn masks_are_those_of_the_run() {
    let (mut masks, mut zeros, mut all) = (0, 0, 0);
    for (i, config) in configs().into_iter().enumerate().step_by(5) {
        let scale = [DropoutScale::Inverted, DropoutScale::Unscaled][i / 5 % 2];
        let config = Config { dropout: Dropout { scale, ..Dropout::everywhere(0.25) }, ..config };
        let [kept, at_rest] = if scale == DropoutScale::Inverted { [1.0 / 0.75, 1.0] } else { [1.0, 0.75] };
        run(&config, Some(random::bits(9, 0, 0)), |model, trace| {
            for (name, op, is_mask) in names::drawn(model) {
                assert!(trace.names().any(|own| own == name), "{name} is in the table");
                let tensor = trace.get(&name).unwrap();
                let grad = trace.get(&format!("{name}.grad"));
                assert!(matches!(grad, Err(TraceError::NoGradient { .. } | TraceError::NoBackward { .. })), "{name}");
                if is_mask {
                    assert!(tensor.values.iter().all(|v| *v == 0.0 || (v - kept).abs() < 1e-6), "{name}");
                    zeros += tensor.values.iter().filter(|v| **v == 0.0).count();
                    (masks, all) = (masks + 1, all + tensor.values.len());
                }
                match op {
                    Op::Dropout { x, y, .. } => {
                        let [x, y] = [x, y].map(|region| trace.get(&model.name_of(region)).unwrap().values);
                        for ((x, y), mask) in x.iter().zip(&y).zip(&tensor.values) {
                            close(&name, *y, f64::from(*x) * f64::from(*mask));
                        }
                    }
                    Op::Attend { heads, .. } if !is_mask => {
                        let block = name.split(".attn").next().unwrap();
                        let [v, z] = ["v", "z"].map(|hook| trace.get(&format!("{block}.attn.hook_{hook}")).unwrap());
                        for (b, h, query, k) in (0..2 * 5 * heads.n_head * heads.d_value).map(|n| {
                            let (rest, k) = (n / heads.d_value, n % heads.d_value);
                            (rest / heads.n_head / 5, rest % heads.n_head, rest / heads.n_head % 5, k)
                        }) {
                            let value = |j| f64::from(v.at(&[b, j, h / heads.group(), k]).unwrap());
                            let weight = |j| f64::from(tensor.at(&[b, h, query, j]).unwrap());
                            let sum = (0..5).map(|j| weight(j) * value(j)).sum();
                            close(&name, z.at(&[b, query, h, k]).unwrap(), sum);
                        }
                    }
                    _ => {}
                }
            }
        });
        // without a seed nothing is dropped
        run(&config, None, |model, trace| {
            for (name, _, is_mask) in names::drawn(model) {
                let tensor = trace.get(&name).unwrap();
                assert!(!trace.names().any(|own| own == name));
                assert!(!is_mask || tensor.values.iter().all(|v| (v - at_rest).abs() < 1e-6), "{name}");
            }
        });
    }
    let share = f64::from(zeros as u32) / f64::from(all as u32);
    assert!(masks > 30 && (share - 0.25).abs() < 0.02, "{masks} masks, {share} dropped");
}
