//! `race`: train to a track's target, verify records, print their table. What a track and a record are stands in
//! `race`.

use crate::devices::roofs;
use crate::machine::share;
use crate::options::{Asked, Interrupted, Usage, read_settings, threads};
use crate::race::{RaceEntry, RaceMachine, RaceRecord, RaceTrack, race, table};
use crate::show::{self, Progress};
use crate::signals::interrupt;
use crate::training::{ProcessSettings, TrainingArgs};
use anyhow::{Context, Result, bail};
use clap::{Args as _, Command, FromArgMatches};
use limpid::Machine;
use limpid::config::{Config, parse_axis};
use limpid::matrix::Precision;
use limpid::numeric::simd::Level;
use limpid::receipt::VERSION;
use limpid::train::{Control, TrainEvent};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Train to a given validation loss on a track (stories-nano, shakespeare-char, stories-8M), and write a record.
///
/// The record has every setting, the losses and a checksum of the weights; `limpid race verify` trains again from it
/// and must get the same bytes. Exit 0: the target was reached; 1: it was not, and the record says so. docs/race.md has
/// the rules.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The track
    #[arg(value_name = "TRACK", required = true)]
    track: Option<String>,
    /// A file of settings, as `limpid train --config` reads [default: the track's preset]
    #[arg(long, value_name = "FILE")]
    recipe: Option<String>,
    /// Evaluate on the text for tuning instead of the validation text: to try recipes
    #[arg(long)]
    tune: bool,
    /// Write the record to a new file [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    on: Where,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Train again from a record, and compare losses and weights bit for bit
    Verify {
        /// A record
        #[arg(value_name = "RECORD.json")]
        record: PathBuf,
        #[command(flatten)]
        on: Where,
    },
    /// Write a track's tokens as nanoGPT reads them, for another program to train on
    Tokens {
        /// The track
        #[arg(value_name = "TRACK")]
        track: String,
        /// The folder to create: train.bin and val.bin (two bytes a token), tokenizer.json, track.json
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// The text for tuning as val.bin
        #[arg(long)]
        tune: bool,
        /// The text of a track that has no built-in one
        #[arg(long, value_name = "FILE")]
        data: Option<String>,
        /// Print the result as JSON on stdout
        #[arg(long)]
        json: bool,
    },
    /// Print the table of records, in Markdown
    Table {
        /// Records, or folders of them
        #[arg(value_name = "RECORD.json|DIR", required = true)]
        records: Vec<PathBuf>,
    },
}

/// The text and the processor.
#[derive(clap::Args, Debug)]
struct Where {
    /// The text of a track that has no built-in one
    #[arg(long, value_name = "FILE")]
    data: Option<String>,
    /// Threads [default: the track's]
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Instruction set, as for `limpid generate` [default: the fastest this CPU has]
    #[arg(
        long, value_name = "SET", env = "LIMPID_SIMD", value_parser = Level::named, hide_env_values = true,
        hide_short_help = true, alias = "level"
    )]
    simd: Option<Level>,
}

pub fn run(args: Args) -> Result<()> {
    match args.verb {
        Some(Verb::Verify { record, on }) => verify(&record, &on),
        Some(Verb::Tokens { track, out, tune, data, json }) => {
            let track = RaceTrack::named(&track)?;
            let [train, validation] = track.write_tokens(&track.data(data.as_deref())?, tune, &out)?;
            let rows =
                [("to train on", show::plural(train, "token")), ("to validate", show::plural(validation, "token"))];
            show::found(json, &json!({ "train": train, "validation": validation }), &rows)
        }
        Some(Verb::Table { records }) => show::out(&table(&read_all(&records)?)),
        None => enter(&args),
    }
}

fn enter(args: &Args) -> Result<()> {
    let track = RaceTrack::named(args.track.as_deref().unwrap_or_default())?;
    if let Some(out) = &args.out {
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!("--out {}: there is no folder {}: create it first", out.display(), folder.display());
        }
    }
    let words = match &args.recipe {
        Some(file) => ["--config", file],
        None => ["--preset", &track.preset],
    };
    let flags = TrainingArgs::augment_args(Command::new("train").no_binary_name(true));
    let training = TrainingArgs::from_arg_matches(&flags.try_get_matches_from(words)?)?;
    let (training, _) = training.resolved(&Asked::<ProcessSettings>::default())?;
    let (config, recipe, precision) = training.raced()?;
    if let Some(file) = args.recipe.as_ref().filter(|_| !training.settings.has("steps")) {
        bail!(Usage(format!("{file} does not say `steps`, on which schedules depend: add it")));
    }
    let name = args.recipe.as_ref().map_or("default".into(), |file| stem(Path::new(file)));
    let entry = RaceEntry { name, config, recipe, tuning: args.tune };
    let record = trained(&track, entry, precision, &args.on)?;
    let text = record.to_json();
    match &args.out {
        Some(out) => {
            if let Err(error) = limpid::checkpoint::write_text(out, &text) {
                show::out(&text)?; // what took so long is not lost
                return Err(error.into());
            }
        }
        None => show::out(&text)?,
    }
    say("trained", &record);
    if !record.reached {
        bail!("the target {} was not reached in {}", track.target, show::plural(record.steps as usize, "step"));
    }
    Ok(())
}

fn verify(file: &Path, on: &Where) -> Result<()> {
    let record = read(file)?;
    let shown = file.display();
    let (Some(config), Some(recipe), "run") = (&record.config, record.recipe, record.kind.as_str()) else {
        bail!("{shown} is a record of {}, which limpid cannot repeat: it cannot be verified", record.program);
    };
    let track = RaceTrack::named(&record.track).with_context(|| shown.to_string())?;
    let facts =
        [("corpus", &record.corpus, &track.sha256), ("target", &record.target.to_string(), &track.target.to_string())];
    if let Some((what, theirs, ours)) = facts.into_iter().find(|(_, theirs, ours)| theirs != ours) {
        bail!("{shown}: {what} is {theirs}, and {ours} on the track {}", track.name);
    }
    let config = Config::from_json(&config.to_string()).with_context(|| format!("{shown}: config"))?;
    recipe.check().with_context(|| format!("{shown}: recipe"))?;
    let precision = parse_axis(&record.precision).with_context(|| format!("{shown}: precision"))?;
    let entry = RaceEntry { name: record.name.clone(), config, recipe, tuning: record.tuning };
    let now = trained(&track, entry, precision, on)?;
    say("recorded", &record);
    say("now", &now);
    match record.difference(&now) {
        None => show::out("the same losses and weights\n"),
        Some(what) => {
            let version = format!("limpid {VERSION}");
            let other = if record.program == version {
                String::new()
            } else {
                format!(" (of {}; this is {version})", record.program)
            };
            bail!("{shown}{other}: {what}")
        }
    }
}

/// Runs an entry here.
fn trained(track: &RaceTrack, entry: RaceEntry, precision: Precision, on: &Where) -> Result<RaceRecord> {
    if !matches!(precision, Precision::F32 | Precision::Bf16) {
        bail!(Usage(format!(
            "--precision {precision}: a race takes f32 or bf16, which have the same bits on every processor"
        )));
    }
    let data = track.data(on.data.as_deref())?;
    let threads = threads(Some(on.threads.map_or(track.threads, usize::from)));
    let level = on.simd.unwrap_or_else(Level::best);
    if !level.is_exact() {
        bail!(Usage(format!("--simd {level} has other last digits than the others: a record needs an exact one")));
    }
    let machine = Machine { level, precision, ..Machine::cpu(threads) };
    let [roof_flops, read_roof_bytes_s] = roofs(&machine)?;
    let here = RaceMachine { threads, simd: level.name().into(), roof_flops, read_roof_bytes_s };
    let stop = interrupt()?;
    let progress = Progress::new(entry.recipe.steps, false);
    let done = race(track, &data, entry, (machine, here), &mut |event| {
        match event {
            TrainEvent::Step(step, _) => {
                progress.step(step.step, || format!("loss {:.4}", step.loss.unwrap_or(f64::NAN)))
            }
            TrainEvent::Validated { step, loss, .. } => progress.line(&format!("step {step}: val loss {loss:.4}")),
            TrainEvent::Notice(what) => progress.line(what),
            _ => {}
        }
        if stop.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
    });
    progress.done();
    done?.ok_or_else(|| Interrupted("stopped before the end: there is no record").into())
}

/// Times of a record, beside the machine's roof.
fn say(what: &str, record: &RaceRecord) {
    let rate = record.flops / record.seconds.max(1e-9);
    let share = share(rate, record.machine.roof_flops).map_or("?".into(), |share| format!("{:.0} %", 100.0 * share));
    let last = record.losses.last().map_or("none".into(), |last| format!("{:.4}", last.loss));
    let floor = record.floor.zip(record.losses.last()).map(|(floor, at)| at.loss - floor);
    let floor = floor.map_or(String::new(), |above| format!(" ({above:.4} above the floor)"));
    show::prose(format_args!(
        "{what}: loss {last}{floor} after {} in {:.1} s ({:.1} s with evaluations), {:.2} TFLOPs, {share} of the \
         roof; {}, {}",
        show::plural(record.steps as usize, "step"),
        record.seconds,
        record.seconds_all,
        record.flops / 1e12,
        show::plural(record.machine.threads, "thread"),
        record.machine.simd
    ));
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(file: &Path) -> Result<RaceRecord> {
    RaceRecord::read(&read_settings(file)?).with_context(|| file.display().to_string())
}

/// The records of files and folders.
fn read_all(places: &[PathBuf]) -> Result<Vec<RaceRecord>> {
    let mut files = vec![];
    for place in places {
        if place.is_dir() {
            let inside = std::fs::read_dir(place).with_context(|| place.display().to_string())?;
            let mut inside = inside.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
            inside.retain(|path| path.extension().is_some_and(|e| e == "json"));
            inside.sort();
            files.append(&mut inside);
        } else {
            files.push(place.clone());
        }
    }
    files.iter().map(|file| read(file)).collect()
}
