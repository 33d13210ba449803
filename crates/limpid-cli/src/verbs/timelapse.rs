//! `timelapse`: what a model did inside while it learned, from the frames that `train --probe` keeps.

use crate::models::newest_folder;
use crate::options::Usage;
use crate::show;
use anyhow::{Result, bail};
use limpid::timelapse::{FILE, Frame, NONE, NORMS, SCORES, Timelapse};
use limpid::tokenizer::Tokenizer;
use limpid::trace::lens::stages;
use std::path::PathBuf;

/// Show what a model did inside while it learned: how each head's scores, the logit lens and a sample changed.
///
/// The frames are those of `limpid train --probe`, including a run that is still training. Every score of a head is a
/// share of its weights, except distance (in tokens); `repeated` is its induction score on random tokens that come
/// twice (docs/inside.md).
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: limpid timelapse runs/x --score repeated --above 0.5")]
pub struct Args {
    /// The folder of the run [default: the newest under runs/ that has a time-lapse]
    #[arg(value_name = "DIR")]
    run: Option<PathBuf>,
    /// Show the frame of this step, or the last one before it
    #[arg(long, value_name = "N", alias = "at")]
    step: Option<u64>,
    /// The score to follow [default: the one that each head is called after at the end, else repeated]
    #[arg(
        long, value_name = "NAME", conflicts_with = "step",
        value_parser = SCORES.into_iter().chain([REPEATED]).collect::<Vec<_>>()
    )]
    score: Option<String>,
    /// Report the first step at which the score of a head is above this
    #[arg(long, value_name = "X", default_value_t = 0.3, conflicts_with = "step")]
    above: f32,
    /// Print the frames as JSON on stdout: all without pictures, or that of --step with its pictures
    #[arg(long)]
    json: bool,
}

const REPEATED: &str = "repeated";

/// Frames beside each other in a table, and columns of a curve.
const BESIDE: usize = 7;
const CURVE: usize = 32;

/// A run's frames, read.
struct Read {
    timelapse: Timelapse,
    tokenizer: Option<Tokenizer>,
    frames: Vec<Frame>,
    heads: usize,
    layers: usize,
}

pub fn run(args: Args) -> Result<()> {
    let newest = || {
        let newest = newest_folder(&[FILE])?;
        show::say(format_args!(
            "{} is the newest run with a time-lapse; name a folder to take another",
            newest.display()
        ));
        Some(newest)
    };
    let Some(folder) = args.run.or_else(newest) else {
        bail!(Usage(
            "no run is named, and none under runs/ has a time-lapse: give its folder, or train with `limpid train \
             --probe`"
                .into()
        ));
    };
    let mut timelapse = Timelapse::open(&folder)?;
    if timelapse.unfinished() > 0 {
        show::say(format_args!(
            "the last {} of {} are not a whole frame and are left out: a frame is being written, or was cut short",
            show::plural(timelapse.unfinished() as usize, "byte"),
            folder.join(FILE).display()
        ));
    }
    let path = folder.join("tokenizer.json");
    let tokenizer = if path.exists() { Some(Tokenizer::load(path)?) } else { None };
    timelapse.check_model(tokenizer.as_ref().map(Tokenizer::to_json).as_deref(), None)?;
    let steps = timelapse.steps();
    if steps.is_empty() {
        bail!("{} has no frame yet: the first one comes before the first step", folder.join(FILE).display());
    }
    let chosen = args.step.map(|step| steps.partition_point(|own| *own <= step).saturating_sub(1));
    if args.json {
        let frames = chosen.map_or(0..steps.len(), |n| n..n + 1);
        let text = timelapse.json(tokenizer.as_ref(), frames, chosen.is_some())?;
        return show::out(&(text + "\n"));
    }
    let wanted = chosen.map_or(0..steps.len(), |n| n..n + 1);
    let frames = wanted.map(|n| timelapse.frame(n)).collect::<Result<Vec<_>, _>>()?;
    let shape =
        timelapse.header().channels.iter().find(|channel| channel.name == "scores").map(|channel| &channel.shape);
    let Some(&[layers, heads, _]) = shape.map(Vec::as_slice) else {
        bail!("{} has no scores of heads: another version of limpid wrote it", folder.join(FILE).display());
    };
    let read = Read { timelapse, tokenizer, frames, heads, layers };
    match (args.step, read.frames.first()) {
        (Some(_), Some(frame)) => show::out(&read.one(frame)),
        _ => show::out(&read.all(args.score.as_deref(), args.above)),
    }
}

/// A number in few characters.
fn short(v: f32) -> String {
    if v.is_nan() { "-".into() } else { format!("{v:.2}") }
}

/// Values between two bounds as a line of bars, the last one of each column.
fn curve(values: &[f32], (low, high): (f32, f32)) -> String {
    let columns = values.len().min(CURVE);
    let bar = |v: f32| match (v - low) / (high - low).max(f32::MIN_POSITIVE) {
        share if share.is_nan() => ' ',
        share => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][(share.clamp(0.0, 1.0) * 7.99) as usize],
    };
    (1..=columns).map(|column| bar(values[column * values.len() / columns - 1])).collect()
}

impl Read {
    fn piece(&self, id: u32) -> String {
        crate::look::piece(self.tokenizer.as_ref(), id)
    }

    fn text(&self, ids: &[u32]) -> String {
        let text = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.decode(ids).ok());
        text.unwrap_or_else(|| format!("{ids:?}"))
    }

    fn sample(&self, frame: &Frame) -> String {
        format!("{:?}", self.text(&self.timelapse.tokens(frame, "sample")))
    }

    fn numbers<'a>(&self, frame: &'a Frame, channel: &str) -> &'a [f32] {
        self.timelapse.numbers(frame, channel).unwrap_or_default()
    }

    fn at(&self, frame: &Frame, channel: &str, n: usize) -> f32 {
        self.numbers(frame, channel).get(n).copied().unwrap_or(f32::NAN)
    }

    /// A score of a head, by its name.
    fn score(&self, frame: &Frame, head: usize, name: &str) -> f32 {
        match SCORES.iter().position(|score| *score == name) {
            Some(score) => self.at(frame, "scores", head * SCORES.len() + score),
            None => self.at(frame, "induction", head),
        }
    }

    /// The score that a head is called after in a frame.
    fn kind(&self, frame: &Frame, head: usize) -> Option<&'static str> {
        let kinds = self.timelapse.counts(frame, "kind").unwrap_or_default();
        SCORES.get(*kinds.get(head)? as usize).copied()
    }

    /// The mean loss of the probe.
    fn loss(&self, frame: &Frame) -> f32 {
        let known: Vec<f32> = self.numbers(frame, "loss").iter().copied().filter(|loss| !loss.is_nan()).collect();
        known.iter().sum::<f32>() / known.len() as f32
    }

    fn name(&self, head: usize) -> String {
        format!("h{}.{}", head / self.heads, head % self.heads)
    }

    /// Some frames from the first to the last.
    fn some(&self) -> Vec<&Frame> {
        let (all, shown) = (self.frames.len(), self.frames.len().min(BESIDE));
        (0..shown).map(|i| &self.frames[i * (all - 1) / (shown - 1).max(1)]).collect()
    }

    /// The share of the probe's tokens that each stage expects first, where the next one is known.
    fn expected(&self, frame: &Frame, stage: usize) -> String {
        let tokens = self.timelapse.header().probe.len();
        let ranks = self.timelapse.counts(frame, "lens_rank").unwrap_or_default();
        let known: Vec<u32> = ranks.iter().skip(stage * tokens).take(tokens).copied().filter(|r| *r != NONE).collect();
        let first = known.iter().filter(|rank| **rank == 1).count();
        if known.is_empty() { "-".into() } else { format!("{:.0}%", 100.0 * first as f64 / known.len() as f64) }
    }

    /// How all of it changed.
    fn all(&self, score: Option<&str>, above: f32) -> String {
        let (first, last) = (&self.frames[0], &self.frames[self.frames.len() - 1]);
        let header = self.timelapse.header();
        let frames = show::plural(self.frames.len(), "frame");
        let unseen = self.timelapse.run_steps().filter(|steps| *steps != last.step);
        let of = unseen.map_or(String::new(), |steps| format!(" of {steps}"));
        let mut text = format!("{frames}, after {} to {}{of} steps, of the probe\n", first.step, last.step);
        text += &format!("  {:?}\n\n", self.text(&header.probe));
        let losses: Vec<f32> = self.frames.iter().map(|frame| self.loss(frame)).collect();
        let (low, high) = losses.iter().fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        text += &format!(
            "loss of the probe, nats a token:  {}  {} -> {}\n\n",
            curve(&losses, (low, high)),
            short(losses[0]),
            short(losses[losses.len() - 1])
        );
        let head = |head: usize| {
            let kind = self.kind(last, head);
            let name = score.or(kind).unwrap_or(REPEATED);
            let values: Vec<f32> = self.frames.iter().map(|frame| self.score(frame, head, name)).collect();
            let most = if name == "distance" { values.iter().copied().fold(1.0, f32::max) } else { 1.0 };
            let since = self.frames.iter().zip(&values).find(|(_, value)| **value > above);
            vec![
                self.name(head),
                kind.unwrap_or("-").into(),
                name.into(),
                short(values[values.len() - 1]),
                since.map_or("-".into(), |(frame, _)| show::commas(frame.step)),
                curve(&values, (0.0, most)),
            ]
        };
        let rows: Vec<Vec<String>> = (0..self.layers * self.heads).map(head).collect();
        let reached = format!("above {above} at step");
        text += &show::whole_columns(&["head", "kind", "score", "at the end", &reached, "over the frames"], &rows);
        let shown = self.some();
        let steps: Vec<String> = shown.iter().map(|frame| show::commas(frame.step)).collect();
        let headers: Vec<&str> = std::iter::once("after step").chain(steps.iter().map(String::as_str)).collect();
        let named = stages(self.layers).into_iter().enumerate();
        let rows = named.map(|(stage, name)| {
            std::iter::once(name).chain(shown.iter().map(|frame| self.expected(frame, stage))).collect()
        });
        text += "\nHow often the lens expects the token that follows, after each block:\n";
        text += &show::whole_columns(&headers, &rows.collect::<Vec<Vec<String>>>());
        let from = &header.probe[..header.prompt.min(header.probe.len())];
        text += &format!("\nWhat it wrote after {:?}:\n", self.text(from));
        for (frame, step) in shown.iter().zip(&steps) {
            text += &format!("{step:>8}  {}\n", self.sample(frame));
        }
        text
    }

    /// One frame.
    fn one(&self, frame: &Frame) -> String {
        let header = self.timelapse.header();
        let (step, tokens, loss) = (frame.step, show::plural(frame.tokens as usize, "token"), short(self.loss(frame)));
        let mut text =
            format!("after step {}, {tokens}: loss of the probe {loss} nats a token\n\n", show::commas(step));
        let head = |head: usize| {
            let scores = SCORES.iter().chain([&REPEATED]).map(|score| short(self.score(frame, head, score)));
            [self.name(head), self.kind(frame, head).unwrap_or("-").into()].into_iter().chain(scores).collect()
        };
        let rows: Vec<Vec<String>> = (0..self.layers * self.heads).map(head).collect();
        let headers: Vec<&str> = ["head", "kind"].into_iter().chain(SCORES).chain([REPEATED]).collect();
        text += &show::whole_columns(&headers, &rows);
        let layer = |layer: usize| {
            let norms = (0..NORMS.len()).map(|n| short(self.at(frame, "norms", layer * NORMS.len() + n)));
            std::iter::once(layer.to_string()).chain(norms).collect()
        };
        let rows: Vec<Vec<String>> = (0..self.layers).map(layer).collect();
        let headers: Vec<&str> = std::iter::once("layer").chain(NORMS).collect();
        text += &format!("\nMean length of the vectors:\n{}", show::whole_columns(&headers, &rows));
        let stages = stages(self.layers);
        let top = self.timelapse.counts(frame, "lens_top").unwrap_or_default();
        let row = |(pos, id): (usize, &u32)| {
            let seen = (0..stages.len()).map(|stage| top.get(stage * header.probe.len() + pos));
            let seen = seen.map(|id| id.map_or("-".into(), |id| self.piece(*id)));
            [self.piece(*id), short(self.at(frame, "loss", pos))].into_iter().chain(seen).collect()
        };
        let rows: Vec<Vec<String>> = header.probe.iter().enumerate().map(row).collect();
        let headers: Vec<&str> =
            ["token", "loss of the next"].into_iter().chain(stages.iter().map(String::as_str)).collect();
        text += "\nWhat the head would predict after each block:\n";
        text += &show::columns(&headers, &rows);
        let from = &header.probe[..header.prompt.min(header.probe.len())];
        text + &format!("\nWhat it wrote after {:?}:\n  {}\n", self.text(from), self.sample(frame))
    }
}
