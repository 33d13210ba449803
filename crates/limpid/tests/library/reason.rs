//! Reasons: every number is that of a single run with the same change, bit for bit, whatever the model; what is wrong
//! with a question is said; the same question has the same answer.

use crate::common::folder::Folder;
use crate::random_config::configs;
use limpid::checkpoint::{self, Format, ModelData, store::Dtype};
use limpid::config::Config;
use limpid::model::{Mode, Model, Param};
use limpid::numeric::random;
use limpid::reason::{Reason, ReasonEvent, ReasonQuestion};
use limpid::trace::attribution::ModelPart;
use limpid::trace::parts::PartPatch;
use limpid::trace::{Keep, Trace};
use limpid::{Error, Interventions, Lm, Machine};
use limpid_base::budget::Budget;
use std::sync::Arc;

const TOKENS: usize = 6;

/// A model in a file, with weights that make its parts differ.
fn lm(config: &Config, seed: u64) -> (Lm, Folder) {
    let folder = Folder::absent("reason");
    let model = Model::new(config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let values = |param: &Param| {
        let draw = |i: usize| (random::normal(seed, random::site(&param.name), i as u64) * 0.4) as f32;
        (0..param.region.len()).map(draw).collect::<Vec<f32>>()
    };
    assert!(!model.params.is_empty());
    checkpoint::save(&folder.0, Format::Limpid, &Dtype::F32, &ModelData::new(config, &values)).unwrap();
    (Lm::open(&folder.0).unwrap().with_machine(Machine::cpu(1 + seed as usize % 2)), folder)
}

fn question(config: &Config, seed: u64) -> ReasonQuestion {
    let v = config.vocab_size as u64;
    let ids = (0..TOKENS as u64).map(|i| random::below(seed, 3, i, v) as u32).collect();
    let answer = random::below(seed, 5, 0, v) as u32;
    ReasonQuestion { ids, row: TOKENS - 1, answer, foil: (answer + 1) % v as u32, corrupt: None }
}

fn asked(lm: &Lm, question: &ReasonQuestion) -> Result<Reason, Error> {
    lm.reason(question, &Arc::default(), &mut |_| true)
}

/// The difference of logits of a run, read in another way.
fn difference(run: &Trace, reason: &Reason) -> f64 {
    let logits = run.get("logits").unwrap();
    let v = logits.values.len() / run.batch().tokens.len();
    let logit = |id: u32| f64::from(logits.values[reason.contest.row * v + id as usize]);
    logit(reason.contest.answer) - logit(reason.contest.foil)
}

#[test]
#[ignore = "gate"]
fn every_number_is_that_of_a_single_run() {
    let (mut parts, mut changed) = (0, 0);
    for (seed, config) in configs().iter().enumerate().filter(|(_, config)| config.lm_head).step_by(5) {
        let (lm, _folder) = lm(config, seed as u64);
        let question = question(config, seed as u64);
        let reason = asked(&lm, &question).unwrap();
        let run = |ids: &[u32], steps: Option<&Interventions>| {
            let lm = steps.map_or(lm.without_interventions(), |steps| lm.intervene(steps).unwrap());
            difference(&lm.trace_ids(ids, Keep::default()).unwrap(), &reason)
        };
        let text = &question.ids;
        assert_eq!(run(text, None).to_bits(), reason.difference.to_bits(), "{config:?}");
        assert_eq!(run(&reason.changed, None).to_bits(), reason.changed_difference.to_bits(), "{config:?}");
        for change in &reason.changes {
            let mut alone = text.clone();
            change.places.iter().for_each(|at| alone[*at] = reason.changed[*at]);
            assert_eq!(run(&alone, None).to_bits(), change.alone.to_bits(), "{config:?}");
            changed += 1;
        }
        let ends = [text, &reason.changed].map(|ids| lm.trace_ids(ids, Keep::default()).unwrap());
        let [whole, end] = [0..TOKENS, TOKENS - 1..TOKENS];
        let share = |difference: f64| (difference - reason.changed_difference) / reason.whole();
        let restored = |part: ModelPart, positions: &std::ops::Range<usize>, direct: bool| {
            let patch = PartPatch { parts: vec![part], positions: positions.clone(), direct };
            share(run(&reason.changed, Some(&patch.interventions([&ends[0], &ends[1]]).unwrap())))
        };
        for part in &reason.parts {
            assert_eq!(restored(part.part, &whole, false).to_bits(), part.restored.to_bits(), "{part:?} {config:?}");
            let Some(measured) = &part.measured else { continue };
            assert_eq!(restored(part.part, &end, false).to_bits(), measured.at_end.to_bits(), "{part:?} {config:?}");
            assert_eq!(restored(part.part, &whole, true).to_bits(), measured.direct.to_bits(), "{part:?} {config:?}");
            let patch = PartPatch { parts: vec![part.part], positions: whole.clone(), direct: false };
            let lost = run(text, Some(&patch.interventions([&ends[1], &ends[0]]).unwrap()));
            let broken = (reason.difference - lost) / reason.whole();
            assert_eq!(broken.to_bits(), measured.broken.to_bits(), "{part:?} {config:?}");
            parts += 1;
        }
        if let Some((all, share_of_all)) = &reason.together {
            let patch = PartPatch { parts: all.clone(), positions: whole.clone(), direct: false };
            let together = share(run(&reason.changed, Some(&patch.interventions([&ends[0], &ends[1]]).unwrap())));
            assert_eq!(together.to_bits(), share_of_all.to_bits(), "{config:?}");
        }
        let word = |id: u32| format!("<{id}>");
        assert_eq!(asked(&lm, &question).unwrap().json(&word), reason.json(&word), "{config:?}");
        assert!(!reason.sentence(&word).contains("NaN"));
    }
    assert!(parts > 20 && changed > 10, "{parts} parts, {changed} changes");
}

#[test]
fn the_token_that_is_ahead_is_the_one_that_is_explained() {
    let config = configs().into_iter().find(|config| config.lm_head).unwrap();
    let (lm, _folder) = lm(&config, 3);
    let question = question(&config, 3);
    let turned = ReasonQuestion { answer: question.foil, foil: question.answer, ..question.clone() };
    let [a, b] = [&question, &turned].map(|question| asked(&lm, question).unwrap());
    assert!(a.difference > 0.0);
    assert_eq!((a.contest, a.difference, &a.changes), (b.contest, b.difference, &b.changes));
}

#[test]
fn a_text_that_is_given_is_measured_and_nothing_is_looked_for() {
    let config = configs().into_iter().find(|config| config.lm_head).unwrap();
    let (lm, _folder) = lm(&config, 4);
    let plain = question(&config, 4);
    let mut other = plain.ids.clone();
    other[1] = (other[1] + 1) % config.vocab_size as u32;
    let given = ReasonQuestion { corrupt: Some(other.clone()), ..plain.clone() };
    let reason = asked(&lm, &given).unwrap();
    assert!(reason.changed == other && reason.changes.len() == 1 && reason.changes[0].places == [1]);
    for (wrong, says) in [
        (ReasonQuestion { corrupt: Some(plain.ids[1..].to_vec()), ..plain.clone() }, "both need as many"),
        (ReasonQuestion { corrupt: Some(plain.ids.clone()), ..plain.clone() }, "both texts are the same"),
        (ReasonQuestion { foil: plain.answer, ..plain.clone() }, "name another one"),
        (ReasonQuestion { row: TOKENS, ..plain.clone() }, "there is no position 6"),
        (ReasonQuestion { answer: 1 << 30, ..plain.clone() }, "outside the model's vocabulary"),
        (ReasonQuestion { ids: vec![], ..plain.clone() }, "there is no position 5"),
    ] {
        let error = asked(&lm, &wrong).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn whoever_asked_can_stop_and_work_is_bounded() {
    let config = configs().into_iter().find(|config| config.lm_head).unwrap();
    let (lm, _folder) = lm(&config, 5);
    let question = question(&config, 5);
    let mut heard = 0;
    let stopped = lm.reason(&question, &Arc::default(), &mut |event| {
        heard += 1;
        assert!(matches!(event, ReasonEvent::Guess(..)), "gradients answer first");
        false
    });
    assert!(matches!(stopped, Err(Error::Stopped)) && heard == 1, "{stopped:?}");
    let few = Arc::new(Budget::default().steps(3));
    let spent = lm.reason(&question, &few, &mut |_| true).unwrap_err().to_string();
    assert!(spent.contains("it takes more than 3 steps"), "{spent}");
}
