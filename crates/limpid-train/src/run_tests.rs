//! A run under faults: every file operation fails in turn, every moment is a stop, every file has a flipped bit. What
//! comes out is, to the byte, the run that nothing happened to, or it was told.

use crate::ranks::threads::{ThreadRank, threads};
use crate::{
    Batches, Control, Divergence, Documents, Objective, Ranks, Recipe, Run, RunData, RunOptions, Summary, TrainError,
    TrainEvent, Trainer, WindowShape,
};
use limpid_base::files::faults;
use limpid_checkpoint::safetensors_file;
use limpid_core::backend::Cpu;
use limpid_core::config::{Config, Dropout, Positions};
use limpid_core::matrix::Precision;
use limpid_core::model::{Mode, Model};
use limpid_core::numeric::random;
use limpid_core::numeric::simd::Level;
use limpid_core::ops::Batch;
use limpid_data::Tokens;
use limpid_tokenizer::{Order, Tokenizer, TokenizerKind};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../limpid/tests/library/common/folder.rs"]
mod folder;
use folder::copy_folder;

/// What is trained, and on what.
#[derive(Clone)]
struct Case {
    recipe: Recipe,
    options: RunOptions,
    train: Tokens,
    validation: Tokens,
    precision: Precision,
    letters: &'static str,
}

impl Case {
    /// Six steps with evaluations and saves between, and documents that repeat.
    fn small() -> Case {
        let ids: Vec<u32> = (0..400).map(|i| random::below(1, 0, i / 3, 7) as u32).collect();
        let recipe = Recipe { steps: 6, batch_size: 2, warmup_steps: 1, learning_rate: 1e-2, ..Recipe::default() };
        let options = RunOptions {
            eval_every: 2,
            save_every: 3,
            eval_tokens: 40,
            layer_stats_every: 4,
            keep: 1,
            preflight: false,
            ..RunOptions::default()
        };
        let [train, validation] = [&ids[..300], &ids[300..]].map(|ids| Tokens::new(ids.to_vec()));
        Case { recipe, options, train, validation, precision: Precision::F32, letters: "abcdefg" }
    }

    fn with(recipe: Recipe, options: RunOptions) -> Case {
        Case { recipe, options, ..Case::small() }
    }

    /// A document of noise among others that are soon known: training goes back.
    fn astray() -> Case {
        let noise = |i: u64| 2 + random::below(9, 1, i, 5) as u32;
        let ids = (0..150 * 9).map(|i| if i / 9 == 77 { noise(i) } else { (i % 9 % 2) as u32 }).collect();
        let train = Tokens::of_documents(ids, (1..=150).map(|d| 9 * d).collect(), None);
        let documents = Documents { whole: true, cross: false };
        let late = |seed: &u64| {
            let batches =
                Batches::new(&train, WindowShape { documents, ..WindowShape::next_token(8) }, 1, *seed).unwrap();
            let mut batch = Batch::default();
            (33..37).any(|step| {
                batches.fill(step, 0, &mut batch);
                batch.tokens[3] > 1
            })
        };
        let recipe = Recipe {
            steps: 44,
            seed: (0..).find(late).unwrap(),
            batch_size: 1,
            learning_rate: 2e-2,
            whole_documents: true,
            cross_documents: false,
            ..Case::small().recipe
        };
        let options = RunOptions {
            save_every: 15,
            eval_every: 7,
            keep: 0,
            divergence: Divergence::Rollback,
            spike_sigma: 1.5,
            ..Case::small().options
        };
        let validation = Tokens::new((0..60).map(|i| i % 9 % 2).collect());
        Case { recipe, options, train, validation, ..Case::small() }
    }

    fn run(&self, folder: &Path) -> Run<'_> {
        let config = Config {
            vocab_size: 7,
            context_length: 8,
            d_model: 8,
            n_head: 2,
            n_layer: 1,
            d_ff: 16,
            dropout: Dropout::everywhere(if self.recipe.batch_size == 1 { 0.0 } else { 0.1 }),
            positions: Positions::Learned,
            ..Config::preset("nano").unwrap()
        };
        let model = Model::new(&config, Mode::Train { batch: self.recipe.batch_size, context: 8 }).unwrap();
        let backend = Box::new(Cpu::with(&model, 1, Level::best(), self.precision));
        let trainer = Trainer::new(model, backend, self.recipe).unwrap();
        let tokenizer = Tokenizer::train(TokenizerKind::Char, self.letters, Order::Sorted, &[]).unwrap();
        let tokenizer: &'static Tokenizer = Box::leak(Box::new(tokenizer));
        let folder = Some(folder.to_path_buf());
        let mut run = Run::new(
            trainer,
            folder,
            RunData { train: &self.train, validation: &self.validation, objective: Objective::NextToken, tokenizer },
        )
        .unwrap();
        run.options = self.options;
        run.files = vec![("limpid.toml".into(), "steps = 6\n".into())];
        run
    }

    /// Takes up what the folder holds, or begins, and goes on until `listen` says stop.
    fn go(
        &self,
        folder: &Path,
        listen: &mut dyn FnMut(&TrainEvent) -> Control,
    ) -> (Result<Summary, TrainError>, Vec<String>) {
        let (mut run, mut notices) = (self.run(folder), vec![]);
        let taken_up = if Run::can_resume(folder) { run.resume(None).map(drop) } else { Ok(()) };
        let done = taken_up.and_then(|()| {
            run.go(&mut |event| {
                if let TrainEvent::Notice(what) = &event {
                    notices.push(what.clone());
                }
                listen(&event)
            })
        });
        (done, notices)
    }

    fn to_the_end(&self, folder: &Path) -> Summary {
        let (summary, notices) = self.go(folder, &mut |_| Control::Continue);
        let summary = summary.unwrap();
        assert!(!summary.stopped && summary.missing.is_empty(), "{summary:?} {notices:?}");
        summary
    }

    /// Why a folder's run is not taken up.
    fn refused(&self, folder: &Path) -> String {
        self.run(folder).resume(None).expect_err("it is refused").to_string()
    }
}

fn folder(name: &str) -> PathBuf {
    faults::none();
    let path = std::env::temp_dir().join(format!("limpid-run-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

fn metrics(folder: &Path) -> Vec<Value> {
    let untimed = |line: &str| {
        let mut value: Value = serde_json::from_str(line).expect("a whole line");
        value.as_object_mut().unwrap().retain(|key, _| key != "seconds" && key != "time");
        value
    };
    fs::read_to_string(folder.join("metrics.jsonl")).unwrap().lines().map(untimed).collect()
}

/// All that a run leaves that is not a time.
fn left(folder: &Path) -> (Value, Vec<u8>, Vec<u8>, Vec<Value>) {
    let path = folder.join("state/last.safetensors");
    let (store, _) = safetensors_file::open_summed(&path).expect("the state is whole");
    let mut said: Value = serde_json::from_str(store.fact("limpid").unwrap()).unwrap();
    (said["seconds"], said["log"]) = (Value::Null, Value::Null);
    let names: Vec<String> = store.names().map(String::from).collect();
    let tensors = names.iter().flat_map(|name| store.get(name).unwrap().bytes.to_vec()).collect();
    // the table has every step
    let lines = metrics(folder);
    let steps = lines.iter().filter(|line| line["train_loss"].is_f64()).count();
    assert_eq!(fs::read_to_string(folder.join("metrics.csv")).unwrap().lines().count(), 1 + steps);
    (said, tensors, fs::read(folder.join("model.safetensors")).unwrap(), lines)
}

/// Each file operation of a run fails, alone, with the two after it, and with all after it.
#[test]
#[ignore = "gate"]
fn whatever_cannot_be_written_is_told_and_loses_nothing() {
    let plain = Case::small();
    let rollback = Divergence::Rollback;
    let back = RunOptions { divergence: rollback, save_every: 2, eval_every: 1, keep: 0, ..plain.options };
    let average = Case::with(Recipe { ema: 0.5, ..plain.recipe }, RunOptions { keep: 0, ..plain.options });
    let cases = [plain.clone(), Case { validation: Tokens::default(), ..average }, Case::with(plain.recipe, back)];
    for (c, case) in cases.iter().enumerate() {
        let whole = folder(&format!("faults{c}"));
        let (_, operations) = faults::during(0..0, || case.to_the_end(&whole));
        let want = left(&whole);
        assert!(operations > 60, "{operations}");
        fs::remove_dir_all(&whole).unwrap();
        for first in 0..operations {
            for failing in [first..first + 1, first..first + 3, first..u64::MAX] {
                let (at, path) = (format!("case {c}, {failing:?} of {operations}"), folder(&format!("fault{c}")));
                let ((done, notices), _) =
                    faults::during(failing.clone(), || case.go(&path, &mut |_| Control::Continue));
                match done {
                    Ok(summary) => {
                        assert!(!notices.is_empty(), "{at}: not told");
                        if summary.missing.is_empty() {
                            assert!(left(&path) == want, "{at}: another run");
                        }
                    }
                    // what it goes on with can no longer be read
                    Err(error) if path.join("state/last.safetensors").exists() => {
                        assert!(error.to_string().contains("limpid-run"), "{at}: {error}");
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("limpid-run") && notices.is_empty(), "{at}: {error}");
                        assert!(
                            failing.end - first > 1 || !path.exists(),
                            "{at}: {error}: it never began, and left something"
                        );
                    }
                }
                // with room again
                let (summary, notices) = case.go(&path, &mut |_| Control::Continue);
                assert!(summary.is_ok_and(|s| s.missing.is_empty()) && notices.is_empty(), "{at}: {notices:?}");
                assert!(left(&path) == want, "{at}: another run after it was taken up");
                fs::remove_dir_all(&path).unwrap();
            }
        }
    }
}

/// A run goes back to an earlier state, and each operation of that fails, or is the last before the process is killed,
/// or finds that somebody has removed what it is about. What is then taken up is the run as it was, or the one that
/// went back undisturbed.
#[test]
#[ignore = "gate"]
fn a_run_goes_back_in_one_step() {
    let case = Case::small();
    let options = RunOptions { eval_every: 1, save_every: 2, keep: 3, ..case.options };
    let cases = [options, RunOptions { divergence: Divergence::Rollback, ..options }];
    for (c, options) in cases.into_iter().enumerate() {
        let case = Case { options, ..case.clone() };
        let (before, whole, path) =
            (folder(&format!("back{c}-before")), folder(&format!("back{c}-whole")), folder(&format!("back{c}")));
        // it ends with a save that is none to go back to
        let (stopped, _) = case.go(&before, &mut |event| match event {
            TrainEvent::Step(step, _) if step.step == 5 => Control::Stop,
            _ => Control::Continue,
        });
        assert!(stopped.unwrap().stopped);
        let go_back = |path: &Path| {
            let mut run = case.run(path);
            run.resume(Some(2))?;
            run.go(&mut |_| Control::Continue)
        };
        copy_folder(&before, &whole);
        let (done, operations) = faults::during(0..0, || go_back(&whole));
        assert!(done.is_ok_and(|summary| summary.steps == 6 && summary.missing.is_empty()) && operations > 20);
        let want = left(&whole);
        copy_folder(&before, &path);
        case.to_the_end(&path);
        let undisturbed = left(&path);
        for n in 0..operations {
            for how in ["fails", "is not reached", "and all after it fail", "finds that the log was removed"] {
                let at = format!("case {c}: operation {n} of {operations} {how}");
                fs::remove_dir_all(&path).unwrap();
                copy_folder(&before, &path);
                let log = path.join("metrics.jsonl");
                let hook = move |at| match how {
                    "is not reached" if at == n => std::panic::resume_unwind(Box::new("killed")),
                    "finds that the log was removed" if at == n => limpid_base::files::remove(&log),
                    "fails" if at != n => Ok(()),
                    "fails" | "and all after it fail" if at >= n => Err(std::io::ErrorKind::StorageFull.into()),
                    _ => Ok(()),
                };
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    faults::before_each(hook, || go_back(&path)).0
                }));
                faults::none();
                if let Ok(Ok(summary)) = &done {
                    let told = !summary.missing.is_empty();
                    assert!(told || how != "and all after it fail", "{at}: not told");
                    assert!(told || left(&path) == want, "{at}: another run");
                }
                if let (Ok(Err(error)), "finds that the log was removed") = (&done, how) {
                    assert!(error.to_string().contains("metrics.jsonl"), "{at}: {error}");
                    assert!(case.refused(&path).contains("metrics.jsonl"), "{at}");
                    continue;
                }
                let (summary, _) = case.go(&path, &mut |_| Control::Continue);
                assert!(summary.as_ref().is_ok_and(|s| s.missing.is_empty()), "{at}: {summary:?}");
                if left(&path) == undisturbed && undisturbed != want {
                    assert!(!matches!(done, Ok(Ok(_))), "{at}: it did not go back");
                    go_back(&path).unwrap();
                }
                assert!(left(&path) == want, "{at}: another run after it was taken up");
            }
        }
        [before, whole, path].iter().for_each(|path| fs::remove_dir_all(path).unwrap());
    }
}

/// A stop at each event of a run, told once or again and again, and going on.
#[test]
#[ignore = "gate"]
fn a_run_that_is_stopped_anywhere_ends_in_the_same_bytes() {
    let Case { recipe: plain, options, .. } = Case::small();
    let long = Recipe { steps: 40, learning_rate: 0.05, ..plain };
    let patient = RunOptions { eval_every: 1, patience: 2, save_every: 5, ..options };
    let average = Recipe { ema: 0.9, accumulate: 2, ..plain };
    let cases = [
        Case::small(),
        Case { validation: Tokens::default(), ..Case::small() },
        Case::with(average, RunOptions { save_every: 4, keep: 2, ..options }),
        Case::with(long, patient),
        Case::astray(),
    ];
    for (c, case) in cases.iter().enumerate() {
        let whole = folder(&format!("stops{c}"));
        let mut events = vec![];
        let (summary, notices) = case.go(&whole, &mut |event| {
            events.push(event.clone());
            Control::Continue
        });
        let summary = summary.unwrap();
        assert_eq!(summary.ended_early, c == 3, "{summary:?}");
        assert_eq!(notices.iter().any(|n| n.contains("Back to step")), c == 4, "{notices:?}");
        let (want, kept) = (left(&whole), super::run::kept_steps(&whole));
        for at in 0..events.len() {
            for sticky in [true, false] {
                let (path, mut seen) = (folder(&format!("stop{c}")), 0);
                let (stopped, _) = case.go(&path, &mut |_| {
                    seen += 1;
                    let stop = if sticky { seen > at } else { seen == at + 1 };
                    if stop { Control::Stop } else { Control::Continue }
                });
                let (place, stopped) = (format!("case {c}, stopped at {:?}", events[at]), stopped.unwrap());
                assert!(stopped.stopped || !sticky, "{place}");
                assert!(case.validation.is_empty() || stopped.stopped == stopped.val_loss.is_none(), "{place}");
                // and once more, a step later
                let mut steps = 0;
                let (_, _) = case.go(&path, &mut |event| {
                    steps += u64::from(matches!(event, TrainEvent::Step(..)));
                    if steps == 2 { Control::Stop } else { Control::Continue }
                });
                let end = case.to_the_end(&path);
                assert!(left(&path) == want, "{place}: another run");
                assert_eq!(super::run::kept_steps(&path), kept, "{place}");
                let timed = |s: &Summary| Summary { seconds: 0.0, tok_s: 0.0, ..s.clone() };
                assert_eq!(timed(&end), timed(&summary), "{place}");
                fs::remove_dir_all(&path).unwrap();
            }
        }
        fs::remove_dir_all(&whole).unwrap();
    }
}

/// Hundreds of places of each file that a run goes on from.
#[test]
#[ignore = "gate"]
fn a_flipped_bit_is_found_in_every_file() {
    let (case, path) = (Case::small(), folder("bits"));
    case.to_the_end(&path);
    for file in
        ["state/last.safetensors", "model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "limpid.toml"]
    {
        let at = path.join(file);
        let whole = fs::read(&at).unwrap();
        let bits = 8 * whole.len() as u64;
        let places = (0..64).chain((0..600).map(|n| random::below(7, 0, n, bits))).chain(bits - 64..bits);
        for bit in places {
            let mut bytes = whole.clone();
            let byte = bit as usize / 8 % whole.len();
            bytes[byte] ^= 1 << (bit % 8);
            fs::write(&at, bytes).unwrap();
            let error = case.refused(&path);
            assert!(error.contains(file), "{file}, bit {bit}: {error}");
        }
        // cut short, empty, gone
        for len in [whole.len() - 1, whole.len() / 2, 0] {
            fs::write(&at, &whole[..len]).unwrap();
            assert!(case.refused(&path).contains(file), "{file} of {len} bytes");
        }
        fs::remove_file(&at).unwrap();
        if file != "state/last.safetensors" {
            assert!(case.refused(&path).contains(file), "{file} is gone");
        }
        fs::write(&at, whole).unwrap();
    }
    case.to_the_end(&path);
    fs::remove_dir_all(path).unwrap();
}

#[test]
fn what_would_change_the_results_is_refused() {
    let (case, path) = (Case::small(), folder("given"));
    let (stopped, _) = case.go(&path, &mut |event| match event {
        TrainEvent::Step(step, _) if step.step == 4 => Control::Stop,
        _ => Control::Continue,
    });
    assert!(stopped.unwrap().stopped);
    let changed = |text: &Tokens, at: usize| {
        let mut ids = vec![];
        text.copy(0..text.len(), &mut ids);
        ids[at] = (ids[at] + 1) % 7;
        Tokens::new(ids)
    };
    for at in [0, 70, 150, 299] {
        let other = Case { train: changed(&case.train, at), ..case.clone() };
        assert!(other.refused(&path).contains("the training text is a different one"), "token {at}");
    }
    let ended = Tokens::of_documents((0..300).map(|i| case.train.id(i)).collect(), vec![100, 300], None);
    let recipe = Recipe { learning_rate: 0.5, ..case.recipe };
    for (other, said) in [
        (Case { train: ended, ..case.clone() }, "the training text is a different one"),
        (Case { validation: changed(&case.validation, 50), ..case.clone() }, "the validation text is a different one"),
        (Case { validation: Tokens::default(), ..case.clone() }, "the validation text is a different one"),
        (Case { precision: Precision::Bf16, ..case.clone() }, "precision was f32 and is bf16"),
        (Case { letters: "gfedcbX", ..case.clone() }, "the tokenizer is a different one"),
        (Case { recipe, ..case.clone() }, "learning_rate was 0.01 and is 0.5"),
    ] {
        let error = other.refused(&path);
        assert!(error.contains(said), "{error}");
    }
    case.to_the_end(&path);
    fs::remove_dir_all(path).unwrap();
}

/// Gradients of micro-batches once added up one after the other: whoever goes on with such a run would come to other
/// bits.
#[test]
fn a_state_whose_micro_batches_added_up_otherwise_is_refused() {
    for accumulate in [1, 2] {
        let small = Case::small();
        let case = Case { recipe: Recipe { accumulate, ..small.recipe }, ..small };
        let path = folder(&format!("format{accumulate}"));
        case.to_the_end(&path);
        let want = left(&path).1;
        let state = path.join("state/last.safetensors");
        let (digits, mut bytes) = (safetensors_file::open_summed(&state).unwrap().1, fs::read(&state).unwrap());
        let place = |bytes: &[u8], text: &str| bytes.windows(text.len()).position(|w| w == text.as_bytes()).unwrap();
        let format = place(&bytes, r#"format\":4"#) + r#"format\":"#.len();
        bytes[format] = b'2';
        let sum = place(&bytes, &digits);
        bytes[sum..sum + digits.len()].fill(b'0');
        let digits = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes));
        bytes[sum..sum + digits.len()].copy_from_slice(digits.as_bytes());
        fs::write(&state, bytes).unwrap();
        if accumulate == 1 {
            case.to_the_end(&path);
            assert!(left(&path).1 == want);
        } else {
            let error = case.refused(&path);
            assert!(
                error.contains("(accumulate) added up in another order: resume it with the older limpid"),
                "{error}"
            );
        }
        fs::remove_dir_all(path).unwrap();
    }
}

/// Somebody removes files while the run goes on.
#[test]
fn what_is_removed_is_made_again() {
    let (case, whole) = (Case::small(), folder("removed"));
    let case = Case { recipe: Recipe { steps: 9, ..case.recipe }, ..case };
    case.to_the_end(&whole);
    let want = left(&whole);
    for name in ["state", "config.json", "limpid.toml", "metrics.jsonl", "metrics.csv"] {
        // at the end of a step, after the last save, and between
        for step in [1, 5, 9] {
            let (path, mut there) = (folder(&format!("removed-{name}")), true);
            let (summary, notices) = case.go(&path, &mut |event| {
                let now = match event {
                    TrainEvent::Saved(saved) => step == 9 && *saved == 9,
                    TrainEvent::Step(done, _) => step < 9 && done.step == step,
                    _ => false,
                };
                if now && std::mem::take(&mut there) {
                    limpid_base::files::remove(&path.join(name)).unwrap();
                }
                if matches!(event, TrainEvent::Saved(6)) {
                    assert!(path.join("state/lock").exists());
                    assert!(
                        matches!(case.run(&path).resume(None), Err(TrainError::Busy { .. })),
                        "the lock holds again"
                    );
                }
                Control::Continue
            });
            assert!(summary.unwrap().missing.is_empty());
            assert!(left(&path) == want, "{name} after step {step}");
            let is_told = notices.iter().any(|told| told.contains(name) && told.contains("was removed during the run"));
            assert_eq!(is_told, !["state", "metrics.csv"].contains(&name), "{name}: {notices:?}");
            fs::remove_dir_all(path).unwrap();
        }
    }
    fs::remove_dir_all(whole).unwrap();
}

/// Somebody moves the folder away while the run goes on, and puts it back, or another into its place, or nothing.
#[test]
fn a_folder_that_is_moved_is_missed_and_nothing_is_made_in_its_place() {
    let (case, whole) = (Case::small(), folder("moved-whole"));
    let case = Case { recipe: Recipe { steps: 9, ..case.recipe }, ..case };
    case.to_the_end(&whole);
    let want = left(&whole);
    for (back, other) in [(Some(7), false), (None, false), (None, true), (Some(7), true)] {
        let (path, away) = (folder("moved"), folder("moved-away"));
        let (summary, notices) = case.go(&path, &mut |event| {
            match event {
                TrainEvent::Step(step, _) if step.step == 4 => {
                    fs::rename(&path, &away).unwrap();
                    if other {
                        fs::create_dir_all(path.join("state")).unwrap();
                        fs::write(path.join("state/lock"), "another's").unwrap();
                        fs::write(path.join("metrics.jsonl"), "another's").unwrap();
                    }
                }
                TrainEvent::Step(step, _) if Some(step.step) == back => {
                    let _ = fs::remove_dir_all(&path);
                    fs::rename(&away, &path).unwrap();
                }
                _ => {}
            }
            Control::Continue
        });
        let at = format!("back: {back:?}, another: {other}: {notices:?}");
        let missing = summary.unwrap().missing.join("");
        assert!(notices.iter().any(|told| told.contains("is no longer the folder of this run")), "{at}");
        assert_eq!(missing.contains("is no longer the folder of this run"), back.is_none(), "{at}: {missing}");
        if back.is_none() {
            if other {
                assert_eq!(fs::read_dir(&path).unwrap().count(), 2, "{at}: something was written");
                assert_eq!(fs::read_to_string(path.join("metrics.jsonl")).unwrap(), "another's");
                fs::remove_dir_all(&path).unwrap();
            } else {
                assert!(!path.exists(), "{at}")
            }
            fs::rename(&away, &path).unwrap();
            case.to_the_end(&path);
        }
        assert!(left(&path) == want, "{at}");
        fs::remove_dir_all(path).unwrap();
    }
    fs::remove_dir_all(whole).unwrap();
}

/// What no run put there stays; with force the new model is the one that is read.
#[test]
fn a_folder_of_something_else_is_not_written_into() {
    let (case, path) = (Case::small(), folder("foreign"));
    let foreign: &[(&str, &str)] = &[
        ("config.json", "{\"mine\": 1}"),
        ("model-00001-of-00002.safetensors", "x"),
        ("model.safetensors.index.json", "{}"),
        ("tokenizer_config.json", "{}"),
        ("notes.txt", "notes"),
    ];
    fs::create_dir_all(&path).unwrap();
    foreign.iter().for_each(|(name, text)| fs::write(path.join(name), text).unwrap());
    let (refused, _) = case.go(&path, &mut |_| Control::Continue);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("config.json, model-00001-of-00002.safetensors") && error.contains("force"), "{error}");
    assert!(foreign.iter().all(|(name, text)| fs::read_to_string(path.join(name)).unwrap() == *text));
    assert_eq!(fs::read_dir(&path).unwrap().count(), foreign.len());
    let mut run = case.run(&path);
    run.force = true;
    assert!(run.go(&mut |_| Control::Continue).unwrap().missing.is_empty());
    let there: Vec<bool> = foreign.iter().map(|(name, _)| path.join(name).exists()).collect();
    assert_eq!(there, [true, false, false, false, true]);
    assert!(limpid_checkpoint::Checkpoint::open(&path).is_ok());
    drop(run);
    // and a run is not begun over another
    fs::remove_file(path.join("state/last.safetensors")).unwrap();
    fs::write(path.join("summary.json"), "{}").unwrap();
    let (refused, _) = case.go(&path, &mut |_| Control::Continue);
    assert!(refused.unwrap_err().to_string().contains("already holds a run"));
    fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_run_that_never_began_leaves_nothing() {
    let path = folder("never");
    let Case { recipe, options, .. } = Case::small();
    let case = Case::with(Recipe { init_std: 5.0, ..recipe }, RunOptions { preflight: true, ..options });
    let (refused, _) = case.go(&path.join("runs/one"), &mut |_| Control::Continue);
    assert!(matches!(refused, Err(TrainError::Preflight(_))), "{refused:?}");
    assert!(!path.exists());
}

/// What a report says of gradients is of all processes, whoever updates what; and it is written before any of them
/// hears why it must end.
#[test]
fn processes_report_what_one_does_before_they_end() {
    let astray = Case::astray();
    let options = RunOptions { divergence: Divergence::Stop, spike_sigma: 0.1, ..astray.options };
    let case = Case { recipe: Recipe { accumulate: 2, steps: 300, ..astray.recipe }, options, ..astray };
    for broken in [false, true] {
        let reports = [1, 2].map(|size| {
            let at = folder(&format!("report-{size}-{broken}"));
            let process = |rank: ThreadRank| {
                let mut run = case.run(&at);
                run.folder = Some(at.clone()).filter(|_| rank.rank() == 0);
                if broken {
                    let first = run.trainer.model.params[0].region;
                    run.trainer.backend.write(first, &vec![f32::NAN; first.len()]).unwrap();
                }
                run.trainer = run.trainer.among(Box::new(rank)).unwrap();
                let error = run.go(&mut |_| Control::Continue).expect_err("it ends");
                let report = fs::read_dir(at.join("divergence")).unwrap().next().unwrap().unwrap().path();
                (error.to_string(), fs::read_to_string(report).unwrap())
            };
            let all: Vec<_> = std::thread::scope(|scope| {
                let started: Vec<_> = threads(size).into_iter().map(|rank| scope.spawn(|| process(rank))).collect();
                started.into_iter().map(|process| process.join().unwrap()).collect()
            });
            assert!(all.iter().all(|of| *of == all[0]), "{all:?}");
            all.into_iter().next().unwrap()
        });
        assert_eq!(reports[0], reports[1]);
        let (said, report) = &reports[0];
        assert!(said.contains(if broken { "is not finite" } else { "loss spike" }), "{said}");
        assert!(broken || report.contains("greatest gradients by layer: "), "{report}");
    }
}

/// A process that sees another run in that place is told from the first word: nothing is exchanged whose size is not
/// its own.
#[test]
fn processes_that_see_different_runs_do_not_go_on() {
    let here = folder("two-runs");
    let case = Case::with(Recipe { accumulate: 2, ..Case::small().recipe }, Case::small().options);
    case.to_the_end(&here);
    let longer = Case::with(Recipe { ema: 0.9, ..case.recipe }, case.options);
    let process = |rank: ThreadRank| {
        let main = rank.rank() == 0;
        let mut run = if main { &case } else { &longer }.run(&here);
        run.trainer = run.trainer.among(Box::new(rank)).unwrap();
        let done = if main { run.resume(None) } else { run.resume_with() };
        done.expect_err("they differ").to_string()
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = threads(2).into_iter().map(|rank| scope.spawn(|| process(rank))).collect();
        for said in started.into_iter().map(|process| process.join().unwrap()) {
            assert!(said.contains("process 1 trains something different") && said.contains("its ema is 0.9"), "{said}");
        }
    });
}
