//! Makes the frames of a time-lapse while a run trains. A [`Probe`] is the run's observer: after a step it copies the
//! trainer's weights, with an adapter merged in, into an [`Lm`] and asks it what anybody could ask of a model: two
//! traces and a sample. So training computes the same bits as without it, and there is nothing here that only a
//! time-lapse can do. (A copy is packed, and writes a sample in less time than the trainer's own weights would, the
//! copying included.)

use super::file::{Channel, ChannelValues, Frame, NONE, TimelapseError, TimelapseHeader, TimelapseWriter, checksum};
use super::{NORMS, SCORES, SIDE};
use crate::config::{Config, Mask};
use crate::error::Result;
use crate::generate::{Options, Overflow, Sampler, prompt_ids};
use crate::model::{Mode, Model, Module};
use crate::numeric::random;
use crate::snapshot::snapshot;
use crate::trace::Keep;
use crate::trace::heads::{HeadLook, HeadScores, look};
use crate::trace::lens::guesses;
use crate::trace::sheet::Sheet;
use crate::trace::tiles::{Code, MASKED, NOT_FINITE};
use crate::train::{Observer, Trainer};
use crate::{Error, Lm, Machine, TrainingPlan};
use limpid_core::kernels::attend::Stage;
use std::path::{Path, PathBuf};

/// Tokens of the probe, unless a text is given.
const TOKENS: usize = 64;
/// Random tokens, which come twice.
const RANDOM: usize = 32;
/// Tokens of a sample.
const SAMPLE: usize = 32;
/// Bytes that tensors of a trace may take which were looked at.
const SEEN: usize = 16 << 20;
/// Frames of a run, if its share of the time allows.
const FRAMES: u64 = 200;
/// The most of the training's time that frames may take.
const SHARE: f64 = 0.01;

/// What a frame costs beside the operations of its products, in operations of a training step: its fixed part, how much
/// more than a row of a batch a token of a sample costs, what a weight costs that is copied, and what an entry of an
/// attention pattern or of the lens costs that is looked at. Measured with the preset nano on two cores, where a step
/// does 2.4e11 operations a second: on many more cores a frame takes a larger share, because part of it runs on one.
const FIXED: f64 = 8e8;
const ONE_ROW: f64 = 20.0;
const COPIED: f64 = 650.0;
const LOOKED_AT: f64 = 1500.0;

/// After which steps of a run there is a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSchedule {
    /// Steps between frames, after the first ones.
    pub every: u64,
    /// Steps of the run.
    pub steps: u64,
}

impl ProbeSchedule {
    /// A frame every so many steps; if that is 0, as many frames as may cost their share of the time, where a frame
    /// costs `frame` and a training step `step` operations.
    pub fn new(every: u64, steps: u64, (frame, step): (f64, f64)) -> ProbeSchedule {
        let most = (SHARE * steps as f64 * step / frame.max(1.0)) as u64;
        let with = |every| ProbeSchedule { every, steps };
        if every > 0 {
            return with(every);
        }
        let evenly = (1..=most.min(FRAMES)).rev().map(|evenly| with(steps.div_ceil(evenly).max(1)));
        evenly.into_iter().find(|schedule| schedule.frames() <= most.min(FRAMES)).unwrap_or(with(steps.max(1)))
    }

    /// Whether there is a frame after this step: before the first and after the last one, after 1, 2, 4, 8, ... and
    /// then evenly.
    pub fn is_due(&self, step: u64) -> bool {
        step == 0
            || step == self.steps
            || step.is_multiple_of(self.every)
            || step.is_power_of_two() && step < self.every
    }

    /// The number of frames of the whole run.
    pub fn frames(&self) -> u64 {
        let Some(last) = self.steps.checked_sub(1) else { return 1 };
        let early = u64::BITS - (self.every - 1).min(last).leading_zeros(); // 1, 2, 4, ... below `every`
        2 + u64::from(early) + last / self.every
    }
}

/// Operations of a frame of a model, in those of a training step.
fn work(config: &Config, header: &TimelapseHeader) -> Result<f64> {
    let model = Model::new(config, Mode::Inspect { batch: 1, context: header.probe.len().max(header.repeated.len()) })?;
    let run = |rows: usize| model.flops(rows, rows.div_ceil(2));
    let (tokens, random) = (header.probe.len(), header.repeated.len());
    let head = (config.vocab_size * config.d_model * 2) as f64;
    let stages = (config.n_layer * tokens) as f64;
    let patterns = (config.n_layer * config.n_head * (tokens * tokens + random * random)) as f64;
    let looked_at = patterns + stages * config.vocab_size as f64;
    Ok(FIXED
        + run(tokens)
        + run(random)
        + run(header.prompt)
        + stages * head
        + ONE_ROW * SAMPLE as f64 * run(1)
        + LOOKED_AT * looked_at
        + COPIED * model.parameter_count() as f64)
}

/// After which steps of a planned run there are frames.
fn schedule(plan: &TrainingPlan, header: &TimelapseHeader) -> Result<ProbeSchedule> {
    let TrainingPlan { config, recipe, model, .. } = plan;
    let keys = recipe.context.div_ceil(2);
    let step = recipe.accumulate as f64 * model.training_flops(recipe.batch_size * recipe.context, keys)
        / plan.placement.processes[0] as f64;
    Ok(ProbeSchedule::new(plan.options.probe_every, recipe.steps, (work(config, header)?, step)))
}

/// Whether a training of this model can be probed.
///
/// # Errors
/// If it cannot; the error says why.
pub fn check(config: &Config) -> Result<(), TimelapseError> {
    if config.mask != Mask::Causal {
        return Err(TimelapseError::NotThis(
            "its frames have samples and induction scores, which a model of masked tokens has not: leave the probe out",
        ));
    }
    Ok(())
}

/// The observer of a run that keeps a time-lapse.
pub(crate) struct Probe {
    path: PathBuf,
    schedule: ProbeSchedule,
    header: TimelapseHeader,
    config: Config,
    machine: Machine,
    /// In the process that has the folder.
    writer: Option<TimelapseWriter>,
}

impl Probe {
    /// The ids that a run's model looks at: a text's, else the first of the validation text, else of the training text.
    ///
    /// # Errors
    /// If the tokenizer has no tokens for the text, or it is empty or longer than the context.
    pub fn ids(text: Option<&str>, plan: &TrainingPlan) -> Result<Vec<u32>> {
        let context = plan.recipe.context;
        let Some(text) = text else {
            let corpus = &plan.corpus;
            let from = if corpus.validation.is_empty() { &corpus.train } else { &corpus.validation };
            let mut ids = vec![];
            from.copy(0..TOKENS.min(context).min(from.len()), &mut ids);
            return Ok(ids);
        };
        let ids = prompt_ids(&plan.corpus.tokenizer, plan.config.mask, text)?;
        match ids.len() {
            0 => Err(Error::Empty),
            tokens if tokens > context => Err(Error::TooLong { tokens, context }),
            _ => Ok(ids),
        }
    }

    /// The number of frames of a planned run that looks at `probe`.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn frames(plan: &TrainingPlan, probe: &[u32]) -> Result<u64> {
        Ok(schedule(plan, &header(&plan.config, "", probe.to_vec(), plan.recipe.context))?.frames())
    }

    /// The observer of a planned run that looks at `probe`; `folder` is none in processes that write no files.
    ///
    /// # Errors
    /// If a run goes on whose folder has a time-lapse of another probe, or a damaged one.
    pub fn new(plan: &TrainingPlan, probe: Vec<u32>, folder: Option<&Path>) -> Result<Probe> {
        let TrainingPlan { config, machine, .. } = plan;
        let header = header(config, &plan.corpus.tokenizer.to_json(), probe, plan.recipe.context);
        let writer = folder.map(|folder| TimelapseWriter::new(folder, header.clone()));
        if plan.resumes() {
            writer.iter().try_for_each(TimelapseWriter::check)?;
        }
        Ok(Probe {
            path: folder.unwrap_or(Path::new("")).join(super::FILE),
            schedule: schedule(plan, &header)?,
            config: config.clone(),
            machine: machine.clone(),
            writer,
            header,
        })
    }

    /// What the model computes inside, after a step.
    fn frame(&self, trainer: &mut Trainer) -> Result<Vec<ChannelValues>> {
        let lm = snapshot(trainer, (&self.config, None, None), &self.machine)?;
        let header = &self.header;
        let mut values = on_probe(&lm, &header.probe)?;
        let induction = on_repeated(&lm, &header.repeated)?;
        values.insert(2, ChannelValues::F32(induction));
        let greedy = Sampler { temperature: 0.0, ..Sampler::default() };
        let options = Options { max_tokens: SAMPLE, sampler: greedy, overflow: Overflow::Stop, ..Options::default() };
        let sample = lm.generate_events(&header.probe[..header.prompt], &options, &mut |_| true)?;
        let padded = sample.tokens.into_iter().chain(std::iter::repeat(NONE)).take(SAMPLE);
        values.push(ChannelValues::U32(padded.collect()));
        Ok(values)
    }
}

fn header(config: &Config, tokenizer: &str, probe: Vec<u32>, context: usize) -> TimelapseHeader {
    let (layers, heads, tokens, stages) = (config.n_layer, config.n_head, probe.len(), config.n_layer + 1);
    let half = RANDOM.min(context / 2).min(config.vocab_size);
    let mut random: Vec<u32> = vec![];
    for draw in 0.. {
        let id = random::below(0, 0, draw, config.vocab_size as u64) as u32;
        if random.len() == half {
            break;
        } else if !random.contains(&id) {
            random.push(id);
        }
    }
    let repeated = [&random[..], &random].concat();
    let (each_head, each_stage) = ([("layer", layers), ("head", heads)], [("stage", stages), ("pos", tokens)]);
    let and = |rest: &[(&'static str, usize)]| [&each_head[..], rest].concat();
    let channels = vec![
        Channel::new("scores", &and(&[("score", SCORES.len())]), "f32", "share of the weight; distance in tokens"),
        Channel::new("kind", &each_head, "u32", "which score the head is called after"),
        Channel::new("induction", &each_head, "f32", "share of the weight, on the repeated random tokens"),
        Channel::new("norms", &[("layer", layers), ("norm", NORMS.len())], "f32", "mean length of a vector"),
        Channel::new("lens_top", &each_stage, "u32", "likeliest token"),
        Channel::new("lens_log_prob", &each_stage, "f32", "log-probability of the likeliest token, nats"),
        Channel::new("lens_rank", &each_stage, "u32", "rank of the token that follows, from 1"),
        Channel::new("loss", &[("pos", tokens)], "f32", "loss of the token that follows, nats"),
        Channel::new("patterns", &and(&[("row", SIDE), ("column", SIDE)]), "u8", "greatest weight of a square, log8"),
        Channel::new("sample", &[("token", SAMPLE)], "u32", "token"),
    ];
    let prompt = tokens.min(context.saturating_sub(SAMPLE).max(1));
    TimelapseHeader {
        config: checksum(&config.to_json()),
        tokenizer: checksum(tokenizer),
        probe,
        repeated,
        prompt,
        channels,
    }
}

fn in_order(scores: &HeadScores) -> [f32; 8] {
    let HeadScores { entropy, previous, current, first, duplicate, induction, distance, max, kind: _ } = *scores;
    [entropy, previous, current, first, duplicate, induction, distance, max].map(|v| v.map_or(f32::NAN, |v| v as f32))
}

/// The picture of a head, a byte a square, SIDE in a row.
fn picture(look: &HeadLook) -> impl Iterator<Item = u8> + '_ {
    let byte = |v: f32| match v {
        f32::NEG_INFINITY => MASKED,
        v if v.is_finite() => Code::Log8.byte(v, [0.0, 1.0]),
        _ => NOT_FINITE,
    };
    let square = move |row: usize, column: usize| {
        let there = row < look.side && column < look.side;
        if there { byte(look.thumbnail[row * look.side + column]) } else { MASKED }
    };
    (0..SIDE).flat_map(move |row| (0..SIDE).map(move |column| square(row, column)))
}

/// Every channel of the probe's run but the sample and the scores on other tokens.
fn on_probe(lm: &Lm, ids: &[u32]) -> Result<Vec<ChannelValues>> {
    let config = lm.config();
    let (mut scores, mut kinds, mut norms, mut patterns) = (vec![], vec![], vec![], vec![]);
    let trace = lm.trace_ids(ids, Keep::Blocks { seen: SEEN })?;
    for block in 0..config.n_layer {
        trace.step()?;
        for name in ["hook_resid_post", "hook_attn_out", "hook_mlp_out"] {
            let tensor = trace.shared(&Module::block(block).named(name))?;
            let length = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let all: f64 = tensor.values.chunks_exact(config.d_model).map(length).sum();
            norms.push((all / ids.len() as f64) as f32);
        }
        for head in 0..config.n_head {
            let seen = look(trace.head(block, 0, head)?, ids, SIDE);
            scores.extend(in_order(&seen.scores));
            let kind = seen.scores.kind.and_then(|kind| SCORES.iter().position(|score| *score == kind.score));
            kinds.push(kind.map_or(NONE, |at| at as u32));
            patterns.extend(picture(&seen));
        }
    }
    let stages = config.n_layer + 1;
    let (mut top, mut log_prob) = (vec![NONE; stages * ids.len()], vec![f32::NAN; stages * ids.len()]);
    let (mut rank, mut loss) = (vec![NONE; stages * ids.len()], vec![f32::NAN; ids.len()]);
    for (n, guess) in guesses(&trace, &(0..ids.len()).collect::<Vec<_>>())?.into_iter().enumerate() {
        let (pos, stage) = (n / stages, n % stages);
        let at = stage * ids.len() + pos;
        (top[at], log_prob[at]) = (guess.id, guess.log_prob);
        if let Some((own, place)) = guess.target {
            rank[at] = place as u32;
            loss[pos] = own; // the last stage's is the model's own
        }
    }
    Ok(vec![
        ChannelValues::F32(scores),
        ChannelValues::U32(kinds),
        ChannelValues::F32(norms),
        ChannelValues::U32(top),
        ChannelValues::F32(log_prob),
        ChannelValues::U32(rank),
        ChannelValues::F32(loss),
        ChannelValues::U8(patterns),
    ])
}

/// The induction score of each head on different tokens that come twice: the mean weight of those of the second half on
/// the token that came after their first place.
fn on_repeated(lm: &Lm, ids: &[u32]) -> Result<Vec<f32>> {
    if ids.is_empty() {
        return Ok(vec![f32::NAN; lm.config().n_layer * lm.config().n_head]); // a context of one token
    }
    let trace = lm.trace_ids(ids, Keep::Blocks { seen: SEEN })?;
    let mut induction = vec![];
    let half = ids.len() / 2;
    for block in 0..lm.config().n_layer {
        trace.step()?;
        for head in 0..lm.config().n_head {
            let weights = Sheet::scores(trace.head(block, 0, head)?, Stage::Weights);
            let band = weights.band(half..ids.len(), 0..ids.len());
            let after = |t: usize| f64::from(band[t * ids.len() + t + 1]);
            induction.push(((0..half).map(after).sum::<f64>() / half as f64) as f32);
        }
    }
    Ok(induction)
}

impl Observer for Probe {
    fn path(&self) -> &Path {
        &self.path
    }

    fn is_due(&self, step: u64) -> bool {
        self.schedule.is_due(step)
    }

    fn look(&mut self, trainer: &mut Trainer, tokens: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let step = trainer.steps_done();
        if self.writer.as_ref().is_none_or(|writer| writer.last().is_some_and(|last| last >= step)) {
            return Ok(());
        }
        let values = self.frame(trainer)?;
        self.writer.iter_mut().for_each(|writer| writer.add(&Frame { step, tokens, values: values.clone() }));
        Ok(())
    }

    fn looks(&self) -> u64 {
        self.writer.as_ref().map_or(0, TimelapseWriter::frame_count)
    }

    fn write(&mut self, synced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.writer.as_mut().map_or(Ok(()), |writer| writer.write(synced))?)
    }

    fn rewind(&mut self, step: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.writer.as_mut().map_or(Ok(()), |writer| writer.rewind(step))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_early_and_then_evenly_and_take_their_share_at_most() {
        let plan = |steps, frame, step| ProbeSchedule::new(0, steps, (frame, step));
        let all =
            |schedule: ProbeSchedule| (0..=schedule.steps).filter(|step| schedule.is_due(*step)).collect::<Vec<_>>();
        assert_eq!(all(ProbeSchedule::new(5, 12, (1.0, 1.0))), [0, 1, 2, 4, 5, 10, 12]);
        assert_eq!(all(ProbeSchedule::new(1, 4, (1.0, 1.0))), [0, 1, 2, 3, 4]);
        assert_eq!(all(plan(0, 1.0, 1.0)), [0]);
        for (steps, frame) in [(2000, 0.5), (2000, 0.01), (100_000, 1.0), (600_000, 0.2), (5000, 1.0)] {
            let schedule = plan(steps, frame, 1.0);
            let frames = all(schedule);
            assert_eq!(frames.len() as u64, schedule.frames());
            assert!(frames.len() as f64 * frame <= 0.01 * steps as f64, "{steps} {frame}: {} frames", frames.len());
            assert!(frames.len() <= 200 && frames[..4] == [0, 1, 2, 4] && frames.last() == Some(&steps));
        }
        assert!(plan(100_000, 1e-3, 1.0).frames() > 180);
        // too short a run for its share: the first frames and the last
        assert_eq!(all(plan(50, 1.0, 1.0)), [0, 1, 2, 4, 8, 16, 32, 50]);
    }
}
