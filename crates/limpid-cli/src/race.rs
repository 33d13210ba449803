//! Races: tracks, as data (`tracks.json`), one run on a track, and its record, from which anybody can train again.
//!
//! A track fixes the text, its tokenizer and the target, so a loss in nats a token means the same in all of its
//! records. A record has all that decides the bits of a run and a SHA-256 of its own fields, which finds edits; `limpid
//! race verify` finds the rest by training. `verbs/race.rs` has the commands.

use crate::options::Usage;
use crate::training::step_flops;
use anyhow::{Context, Result, bail};
use limpid::config::{Config, Mask, unknown};
use limpid::data::Tokens;
use limpid::data::source::{TextSource, text};
use limpid::receipt::{VERSION, sha256};
use limpid::train::{Control, Recipe, RunOptions, TrainEvent};
use limpid::{Machine, Training, memory};
use limpid_base::files::{self, OutputFile};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

/// The form of records.
const FORMAT: u64 = 1;

/// What is raced for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaceTrack {
    pub name: String,
    /// A built-in text, or what the file is called that the user gives.
    pub corpus: String,
    /// SHA-256 of that text.
    pub sha256: String,
    pub tokenizer: String,
    pub val_fraction: f64,
    /// Loss on the whole validation text, in nats a token.
    pub target: f64,
    /// The fewest and the most parameters of a model.
    pub parameters: [usize; 2],
    /// Steps between evaluations.
    pub eval_every: u64,
    /// Threads of its class of hardware.
    pub threads: usize,
    /// The model and recipe where none is given.
    pub preset: String,
}

impl RaceTrack {
    pub fn all() -> Vec<RaceTrack> {
        serde_json::from_str(include_str!("tracks.json")).expect("a test reads the table")
    }

    pub fn named(name: &str) -> Result<RaceTrack> {
        let all = RaceTrack::all();
        let names: Vec<&str> = all.iter().map(|track| track.name.as_str()).collect();
        let error = unknown("track", name, &names);
        all.into_iter().find(|track| track.name == name).ok_or_else(|| Usage(error.to_string()).into())
    }

    /// The name of its text here, once the text is the track's.
    pub fn data(&self, file: Option<&str>) -> Result<String> {
        let built_in = self.corpus.starts_with("builtin:");
        let data = match (built_in, file) {
            (true, Some(_)) => bail!(Usage(format!("--data: the track {} has the text {}", self.name, self.corpus))),
            (true, None) => self.corpus.as_str(),
            (false, Some(file)) => file,
            (false, None) => bail!(Usage(format!("the track {} needs its text: --data {}", self.name, self.corpus))),
        };
        let found = sha256(&text(data)?);
        if found != self.sha256 {
            bail!("{data} is not the text of {}: its SHA-256 is {found}, expected {}", self.name, self.sha256);
        }
        Ok(data.into())
    }

    /// Its tokens: `data` is the name of its text.
    fn source(&self, data: &str, tuning: bool) -> TextSource {
        let mut source = TextSource::new(data);
        (source.tokenizer, source.val_fraction, source.tuning) =
            (Some(self.tokenizer.clone()), self.val_fraction, tuning);
        source
    }

    /// Writes its tokens into a new folder, for another program: `train.bin` and `val.bin`, two bytes an id as nanoGPT
    /// has them, `tokenizer.json`, and `track.json` with what a record needs. Returns how many tokens each part has.
    ///
    /// # Errors
    /// If the text cannot be read, or the folder exists or cannot be written.
    pub fn write_tokens(&self, data: &str, tuning: bool, out: &Path) -> Result<[usize; 2]> {
        if out.symlink_metadata().is_ok() {
            bail!("{} exists already: choose another name", out.display());
        }
        let corpus = self.source(data, tuning).read()?;
        let facts = json!({
            "name": self.name, "sha256": self.sha256, "target": self.target, "eval_every": self.eval_every,
            "tuning": tuning,
            "parameters": self.parameters, "vocab_size": corpus.tokenizer.vocab_size(),
        });
        let two = |id: &u32| Some(u16::try_from(*id).ok()?.to_le_bytes());
        let ids = |tokens: &Tokens| -> Result<Vec<u8>> {
            let mut ids = vec![];
            tokens.copy(0..tokens.len(), &mut ids);
            let bytes: Option<Vec<[u8; 2]>> = ids.iter().map(two).collect();
            Ok(bytes.context("an id above 65,535 does not fit two bytes")?.concat())
        };
        let files: [(&str, Vec<u8>); 4] = [
            ("train.bin", ids(&corpus.train)?),
            ("val.bin", ids(&corpus.validation)?),
            ("tokenizer.json", corpus.tokenizer.to_json().into()),
            ("track.json", (facts.to_string() + "\n").into()),
        ];
        let written = files::replace_folder(out, |beside| {
            files.iter().try_for_each(|(name, bytes)| OutputFile::create(&beside.join(name))?.write_all(bytes))
        });
        written.with_context(|| out.display().to_string())?;
        Ok([corpus.train.len(), corpus.validation.len()])
    }
}

/// A validation loss after a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaceLoss {
    pub step: u64,
    pub loss: f64,
}

/// The machine that a time was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaceMachine {
    pub threads: usize,
    pub simd: String,
    pub roof_flops: f64,
    pub read_roof_bytes_s: f64,
}

/// A run on a track. `kind` is `run`, which can be verified, or `peer`: another program's, which cannot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaceRecord {
    pub format: u64,
    pub kind: String,
    /// The program: `limpid 0.1.0`.
    pub program: String,
    /// What the recipe is called.
    pub name: String,
    pub track: String,
    /// SHA-256 of the text.
    pub corpus: String,
    pub target: f64,
    /// Whether losses are those of the text for tuning: such a record is not for the table.
    pub tuning: bool,
    pub config: Option<Value>,
    pub recipe: Option<Recipe>,
    pub precision: String,
    pub parameters: usize,
    pub reached: bool,
    pub steps: u64,
    pub losses: Vec<RaceLoss>,
    /// The least loss that any model can reach on that text, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// Checksum of the weights after the last step, as in receipts.
    pub weights: Option<String>,
    /// Of all steps, forward and backward, without evaluations.
    pub flops: f64,
    /// Training without evaluations.
    pub seconds: f64,
    /// With evaluations.
    pub seconds_all: f64,
    pub machine: RaceMachine,
    /// SHA-256 of the other fields.
    #[serde(default)]
    pub sha256: String,
}

impl RaceRecord {
    /// # Errors
    /// If it is not JSON, of a newer form, or was edited.
    pub fn read(text: &str) -> Result<RaceRecord> {
        let value: Value = serde_json::from_str(text).context("it is not a whole JSON document")?;
        match value["format"].as_u64() {
            Some(FORMAT) => {}
            Some(other) => bail!("it is a record of format {other}; limpid {VERSION} reads format {FORMAT}"),
            None => bail!("it is not a record of a race: it has no `format` number"),
        }
        let record: RaceRecord = serde_json::from_value(value).context("it is not a record of a race")?;
        let found = record.hash();
        if record.sha256 != found {
            bail!("it was edited: its fields have the SHA-256 {found}, and it says {}", record.sha256);
        }
        Ok(record)
    }

    fn hash(&self) -> String {
        let bare = RaceRecord { sha256: String::new(), ..self.clone() };
        sha256(&serde_json::to_value(bare).expect("a record is JSON").to_string())
    }

    pub fn to_json(&self) -> String {
        let whole = RaceRecord { sha256: self.hash(), ..self.clone() };
        serde_json::to_string_pretty(&whole).expect("a record is JSON") + "\n"
    }

    /// What another run of the same came to otherwise: the first that differs, in the order in which training finds it.
    pub fn difference(&self, now: &RaceRecord) -> Option<String> {
        let differs = |what: &str, theirs: String, ours: String| {
            (theirs != ours).then(|| format!("{what}: the record has {theirs}, training again gives {ours}"))
        };
        let losses = self.losses.iter().zip(&now.losses);
        let mut losses = losses.filter_map(|(theirs, ours)| {
            let step = differs("the step of an evaluation", theirs.step.to_string(), ours.step.to_string());
            step.or_else(|| differs(&format!("the loss at step {}", ours.step), loss(theirs), loss(ours)))
        });
        let weights = |record: &RaceRecord| record.weights.clone().unwrap_or_else(|| "none".into());
        let recipe = |record: &RaceRecord| serde_json::to_value(record.recipe).unwrap_or_default();
        let settings = [("config", self.config.clone().unwrap_or_default(), now.config.clone().unwrap_or_default())];
        let mut settings = settings.into_iter().chain([("recipe", recipe(self), recipe(now))]);
        let floor = self.floor.filter(|_| self.floor != now.floor);
        let ours = || now.floor.map_or("none".into(), |floor| floor.to_string());
        differs("parameters", self.parameters.to_string(), now.parameters.to_string())
            .or_else(|| settings.find_map(|(what, theirs, ours)| setting(what, &theirs, &ours)))
            .or_else(|| floor.and_then(|floor| differs("the floor", floor.to_string(), ours())))
            .or_else(|| losses.next())
            .or_else(|| differs("the number of losses", self.losses.len().to_string(), now.losses.len().to_string()))
            .or_else(|| differs("steps", self.steps.to_string(), now.steps.to_string()))
            .or_else(|| differs("reached", self.reached.to_string(), now.reached.to_string()))
            .or_else(|| differs("the weights", weights(self), weights(now)))
            .or_else(|| differs("flops", self.flops.to_string(), now.flops.to_string()))
    }
}

/// A setting of a record that is not the one which training used. One that an older record does not have is not
/// compared, and neither is its `vocab_size` if it is the usual one: it was written before the text was read.
fn setting(what: &str, theirs: &Value, ours: &Value) -> Option<String> {
    let usual = Config::preset("nano").map(|usual| usual.vocab_size).ok();
    let unread = |key: &str, value: &Value| key == "vocab_size" && usual.is_some_and(|usual| *value == usual);
    let other = |(key, value): &(&String, &Value)| ours.get(key) != Some(value) && !unread(key, value);
    let (key, value) = theirs.as_object()?.iter().find(other)?;
    let used = ours.get(key).map_or("none".into(), Value::to_string);
    Some(format!("{what}: the record has {key} {value}, and training used {used}"))
}

fn loss(at: &RaceLoss) -> String {
    at.loss.to_string()
}

/// What runs on a track.
pub struct RaceEntry {
    pub name: String,
    pub config: Config,
    pub recipe: Recipe,
    pub tuning: bool,
}

/// Trains an entry until the track's target or its own last step. None if `tell` stopped it.
///
/// # Errors
/// If the text is another, the model is outside the track's limits, or it cannot be trained.
pub fn race(
    track: &RaceTrack,
    data: &str,
    entry: RaceEntry,
    machine: (Machine, RaceMachine),
    tell: &mut dyn FnMut(&TrainEvent) -> Control,
) -> Result<Option<RaceRecord>> {
    let RaceEntry { name, config, recipe, tuning } = entry;
    let source = track.source(data, tuning);
    let options = RunOptions {
        eval_every: track.eval_every,
        eval_tokens: 1 << 40, // the most that the setting takes: all of the text
        layer_stats_every: 0,
        spike_sigma: 0.0,
        ..RunOptions::default()
    };
    let recipe = Recipe { val_fraction: track.val_fraction, ..recipe };
    let training = Training::new(config.clone(), recipe).source(source).options(options).machine(machine.0);
    let plan = training.prepare()?;
    let parameters = plan.model.parameter_count();
    let [least, most] = track.parameters;
    if config.mask != Mask::Causal {
        bail!("a race is for models that predict the next token: leave the mask causal");
    }
    if !(least..=most).contains(&parameters) {
        bail!("the model has {parameters} parameters; the track {} takes {least} to {most}", track.name);
    }
    memory::fits(&plan.model, Some(&plan.recipe), &plan.placement)?;
    let mut run = plan.start()?;
    let mut losses: Vec<RaceLoss> = vec![];
    let (begin, mut last) = (Instant::now(), Instant::now());
    let (mut seconds, mut seconds_all, mut reached, mut stopped) = (0.0, 0.0, false, false);
    let summary = run.go(&mut |event| {
        match &event {
            TrainEvent::Step(..) => seconds += last.elapsed().as_secs_f64(),
            TrainEvent::Validated { step, loss, .. } => {
                seconds_all = begin.elapsed().as_secs_f64();
                losses.push(RaceLoss { step: *step, loss: *loss });
                reached |= *loss <= track.target;
            }
            _ => {}
        }
        // evaluations are left out; they are reported as they go on, before they end
        last = Instant::now();
        stopped |= !reached && tell(&event) == Control::Stop;
        if reached || stopped { Control::Stop } else { Control::Continue }
    })?;
    if stopped {
        return Ok(None);
    }
    if let Some(RaceLoss { step, loss }) = losses.iter().find(|at| !at.loss.is_finite()) {
        bail!("the validation loss at step {step} is {loss}: lower the learning rate");
    }
    let lm = run.trainer.averaged(|trainer| plan.lm(trainer))??;
    let weights = lm.receipt_hashes()?.weights.clone();
    Ok(Some(RaceRecord {
        format: FORMAT,
        kind: "run".into(),
        program: format!("limpid {VERSION}"),
        name,
        track: track.name.clone(),
        corpus: track.sha256.clone(),
        target: track.target,
        tuning,
        config: Some(serde_json::to_value(&plan.model.config)?),
        recipe: Some(recipe),
        precision: plan.machine.precision.to_string(),
        parameters,
        reached,
        steps: summary.steps,
        losses,
        floor: plan.entropy_floor(),
        weights: Some(weights),
        flops: summary.steps as f64 * step_flops(&plan.model, &plan.recipe),
        seconds,
        seconds_all,
        machine: machine.1,
        sha256: String::new(),
    }))
}

/// A stranger's words in a cell of a table.
fn cell(text: &str) -> String {
    text.replace(char::is_control, " ").replace('|', "\\|")
}

/// The records of a table, in Markdown: track by track, the fastest first, then those that missed the target.
pub fn table(records: &[RaceRecord]) -> String {
    let mut records: Vec<&RaceRecord> = records.iter().filter(|record| !record.tuning).collect();
    records.sort_by(|a, b| a.track.cmp(&b.track).then(b.reached.cmp(&a.reached)).then(a.seconds.total_cmp(&b.seconds)));
    let mut out = String::from(
        "| track | recipe | program | target | last loss | steps | seconds | TFLOPs | machine | verifiable \
         |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for record in records {
        let last = record.losses.last().map_or("none".into(), |last| format!("{:.4}", last.loss));
        let missed = if record.reached { "" } else { " (missed)" };
        let RaceMachine { threads, simd, roof_flops, .. } = &record.machine;
        out += &format!(
            "| {} | {} | {} | {}{missed} | {last} | {} | {:.1} | {:.2} | {threads} threads, {}, {:.0} GFLOP/s | {} |\n",
            cell(&record.track),
            cell(&record.name),
            cell(&record.program),
            record.target,
            record.steps,
            record.seconds,
            record.flops / 1e12,
            cell(simd),
            roof_flops / 1e9,
            if record.kind == "run" { "yes" } else { "no" },
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid::numeric::simd::Level;
    use limpid_base::files::faults;

    fn record() -> RaceRecord {
        RaceRecord {
            format: FORMAT,
            kind: "run".into(),
            program: format!("limpid {VERSION}"),
            name: "default".into(),
            track: "stories-nano".into(),
            corpus: "00".into(),
            target: 0.6,
            tuning: false,
            config: Some(serde_json::to_value(Config::preset("nano").unwrap()).unwrap()),
            recipe: Some(Recipe::preset("nano").unwrap()),
            precision: "f32".into(),
            parameters: 7,
            reached: true,
            steps: 20,
            losses: vec![RaceLoss { step: 10, loss: 0.1 + 0.2 }, RaceLoss { step: 20, loss: 0.25 }],
            floor: None,
            weights: Some("ab".into()),
            flops: 3e12,
            seconds: 1.5,
            seconds_all: 2.5,
            machine: RaceMachine { threads: 2, simd: "avx2".into(), roof_flops: 1e11, read_roof_bytes_s: 1e10 },
            sha256: String::new(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_an_edit_is_found() {
        let text = record().to_json();
        let read = RaceRecord::read(&text).unwrap();
        assert_eq!(RaceRecord { sha256: String::new(), ..read.clone() }, record());
        assert_eq!(read.to_json(), text);
        let error = |text: &str| format!("{:#}", RaceRecord::read(text).unwrap_err());
        for (was, is) in
            [("0.25", "0.24"), ("\"seconds\": 1.5", "\"seconds\": 1.4"), ("\"seed\": 1337", "\"seed\": 1338")]
        {
            assert!(text.contains(was), "{was} is in the record");
            let found = error(&text.replacen(was, is, 1));
            assert!(found.starts_with("it was edited"), "{was}: {found}");
        }
        assert!(error(&text[..text.len() / 2]).starts_with("it is not a whole JSON document"));
        assert!(error(&text.replace("\"format\": 1", "\"format\": 2")).contains("format 2"));
        assert!(error(&text.replace("\"target\": 0.6", "\"target\": \"0.6\"")).contains("expected f64"));
        assert!(error("[]").contains("format"));
    }

    #[test]
    fn what_differs_first_is_named() {
        let was = record();
        assert_eq!(was.difference(&was), None);
        // what was written, not measured
        let edit = |key: &str, value: Value| {
            let mut config = was.config.clone().unwrap();
            config[key] = value;
            was.difference(&RaceRecord { config: Some(config), ..was.clone() })
        };
        let forged =
            RaceRecord { recipe: Some(Recipe { seed: 7, ..was.recipe.unwrap() }), floor: Some(0.1), ..was.clone() };
        assert!(forged.difference(&was).unwrap().starts_with("recipe: the record has seed 7, and training used 1337"));
        let forged = RaceRecord { floor: Some(0.1), ..was.clone() };
        assert_eq!(forged.difference(&was).unwrap(), "the floor: the record has 0.1, training again gives none");
        assert_eq!(was.difference(&forged), None, "an older record has no floor");
        assert!(edit("d_model", 8.into()).unwrap().starts_with("config: the record has d_model"));
        let mut extra = was.clone();
        extra.config.as_mut().unwrap()["more"] = 1.into();
        assert_eq!(extra.difference(&was).unwrap(), "config: the record has more 1, and training used none");
        assert_eq!(was.difference(&extra), None, "a newer limpid has more settings");
        // the usual size of a vocabulary, before the text was read
        assert_eq!(edit("vocab_size", 99.into()), None);
        let (mut later, mut both) = (was.clone(), was.clone());
        later.weights = Some("cd".into());
        (both.losses[1].loss, both.weights) = (0.26, Some("cd".into()));
        // times and machines are not compared
        (both.seconds, both.machine.threads) = (9.0, 1);
        assert!(was.difference(&later).unwrap().starts_with("the weights: the record has ab"));
        assert!(was.difference(&both).unwrap().starts_with("the loss at step 20: the record has 0.25"));
    }

    /// A run of a toy on a track like that of characters.
    fn toy(file: &std::path::Path, target: f64, tuning: bool, threads: usize, level: Level) -> Result<RaceRecord> {
        let mut track = RaceTrack::named("shakespeare-char").unwrap();
        (track.target, track.eval_every) = (target, 5);
        let config = Config { d_model: 32, d_ff: 64, n_layer: 1, ..Config::preset("nano").unwrap() };
        let recipe =
            Recipe { steps: 20, batch_size: 4, context: 16, warmup_steps: 2, ..Recipe::preset("nano").unwrap() };
        let entry = RaceEntry { name: "toy".into(), config, recipe, tuning };
        let machine = Machine { level, ..Machine::cpu(threads) };
        let here = RaceMachine { threads, simd: level.name().into(), roof_flops: 1e11, read_roof_bytes_s: 1e10 };
        let done = race(&track, &file.display().to_string(), entry, (machine, here), &mut |_| Control::Continue);
        done.map(|record| record.expect("nobody stopped it"))
    }

    #[test]
    fn a_race_has_the_same_bits_on_any_machine_and_ends_at_its_target() {
        let folder = std::env::temp_dir().join(format!("limpid-race-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (file, other) = (folder.join("text.txt"), folder.join("other.txt"));
        let lines = (0..300).map(|n| format!("the {} fox saw {n} birds\n", ["red", "old", "sly"][n % 3]));
        let text: String = lines.collect();
        // the same but for the end, which lies in the validation part
        let (first, last) = text.split_at(text.len() * 19 / 20);
        std::fs::write(&file, &text).unwrap();
        std::fs::write(&other, format!("{first}{}", last.to_uppercase())).unwrap();
        let best = Level::best();
        let whole = toy(&file, 0.0, false, 1, best).unwrap();
        assert!(!whole.reached && whole.steps == 20 && whole.floor.is_none());
        assert_eq!(whole.losses.iter().map(|at| at.step).collect::<Vec<_>>(), [5, 10, 15, 20]);
        for level in Level::available().into_iter().filter(|level| level.is_exact()) {
            assert_eq!(whole.difference(&toy(&file, 0.0, false, 2, level).unwrap()), None, "{level}");
        }
        let target = whole.losses[1].loss;
        assert!(whole.losses[0].loss > target, "{:?}", whole.losses);
        let short = toy(&file, target, false, 1, best).unwrap();
        assert!(short.reached && short.steps == 10 && short.losses == whole.losses[..2]);
        assert!(whole.difference(&short).unwrap().starts_with("the number of losses"));
        // a run for tuning never sees the validation text
        let tuned = toy(&file, 0.0, true, 1, best).unwrap();
        assert_eq!(tuned.difference(&toy(&other, 0.0, true, 1, best).unwrap()), None);
        assert_ne!(tuned.losses, whole.losses);
        assert!(whole.difference(&toy(&other, 0.0, false, 1, best).unwrap()).is_some());
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A disk that is full at any moment leaves nothing of the folder; once there is room, it is whole.
    #[test]
    fn tokens_are_written_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("limpid-race-full-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (file, out) = (folder.join("text.txt"), folder.join("tokens"));
        std::fs::write(&file, "to be or not to be, that is the question\n".repeat(40)).unwrap();
        let track = RaceTrack::named("shakespeare-char").unwrap();
        let write = || track.write_tokens(&file.display().to_string(), false, &out);
        let there = |folder: &Path| {
            let names =
                std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        let (written, operations) = faults::during(0..0, write);
        assert_eq!(there(&out), ["tokenizer.json", "track.json", "train.bin", "val.bin"]);
        let sizes = written.unwrap().map(|tokens| 2 * tokens as u64);
        let bytes = ["train.bin", "val.bin"].map(|name| out.join(name).metadata().unwrap().len());
        assert!(bytes == sizes && operations > 8, "{sizes:?}, {operations} operations");
        std::fs::remove_dir_all(&out).unwrap();
        for n in 0..operations {
            // full from here on, as a disk is, and for a moment
            for full in [n..u64::MAX, n..n + 1] {
                let error = format!("{:#}", faults::during(full, write).0.unwrap_err());
                assert!(error.starts_with(&out.display().to_string()), "operation {n}: {error}");
                assert_eq!(there(&folder), ["text.txt"], "operation {n}");
            }
        }
        write().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_model_outside_the_limits_of_a_track_is_refused() {
        let mut track = RaceTrack::named("shakespeare-char").unwrap();
        track.parameters = [1, 500];
        let file = std::env::temp_dir().join(format!("limpid-race-limit-{}.txt", std::process::id()));
        std::fs::write(&file, "to be or not to be\n".repeat(40)).unwrap();
        let config = Config { d_model: 32, d_ff: 64, n_layer: 1, ..Config::preset("nano").unwrap() };
        let entry = RaceEntry { name: "toy".into(), config, recipe: Recipe::preset("nano").unwrap(), tuning: false };
        let here = record().machine;
        let ran = race(&track, &file.display().to_string(), entry, (Machine::cpu(1), here), &mut |_| Control::Continue);
        let error = ran.unwrap_err().to_string();
        assert!(error.ends_with("parameters; the track shakespeare-char takes 1 to 500"), "{error}");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn tracks_are_whole_and_found_by_name() {
        for track in RaceTrack::all() {
            assert_eq!(RaceTrack::named(&track.name).unwrap().sha256.len(), 64, "{}", track.name);
            Config::preset(&track.preset).unwrap();
        }
        let error = RaceTrack::named("storys-nano").unwrap_err().to_string();
        assert!(error.contains("stories-nano"), "{error}");
    }

    #[test]
    fn the_table_of_the_guide_is_that_of_its_records() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let guide = std::fs::read_to_string(docs.join("race.md")).unwrap();
        let inside = std::fs::read_dir(docs.join("race")).unwrap().map(|entry| entry.unwrap().path());
        let records = inside.filter(|path| path.extension().is_some_and(|e| e == "json"));
        let records: Vec<_> =
            records.map(|path| RaceRecord::read(&std::fs::read_to_string(path).unwrap()).unwrap()).collect();
        let begin = guide.find("<!-- records -->\n").unwrap() + "<!-- records -->\n".len();
        let end = guide.find("<!-- end of records -->").unwrap();
        assert_eq!(guide[begin..end], table(&records), "docs/race.md: `limpid race table docs/race` prints its table");
    }
}
