//! The time-lapse of a run as JSON: for the page, which asks for frames from some number on, and for whoever takes `limpid timelapse --json`.

use crate::asked::{AskedQuery, refusal};
use crate::{GlassError, MOST_VALUES, Query, Reply, Result, Subject};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use limpid::timelapse::{Channel, ChannelValues, Frame, NONE, NORMS, SCORES, SIDE, Timelapse, TimelapseError};
use limpid::tokenizer::Tokenizer;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Frames of an answer, unless it is said, and at most.
const COUNT: usize = 50;
const MOST: usize = 1000;

/// What is told of a time-lapse: what every frame has, and some frames.
#[derive(Serialize)]
struct Told<'a> {
    /// The probe.
    tokens: Vec<(u32, String)>,
    /// Random tokens that come twice.
    repeated: &'a [u32],
    /// How many tokens of the probe the sample continues.
    prompt: usize,
    scores: [&'static str; 8],
    norms: [&'static str; 3],
    side: usize,
    channels: &'a [Channel],
    /// The steps of all frames.
    steps: Vec<u64>,
    /// The number of the first frame below.
    from: usize,
    frames: Vec<ToldFrame<'a>>,
    /// The text of each token in the frames.
    texts: BTreeMap<u32, String>,
}

#[derive(Serialize)]
struct ToldFrame<'a> {
    step: u64,
    /// Tokens trained on.
    tokens: u64,
    /// The sample, as text.
    sample: String,
    values: BTreeMap<&'a str, Cells>,
}

/// Values of a channel: `null` where there is none, pictures in base64.
#[derive(Serialize)]
#[serde(untagged)]
enum Cells {
    Numbers(Vec<f32>),
    Counts(Vec<Option<u32>>),
    Picture(String),
}

impl Cells {
    fn new(values: &ChannelValues) -> Cells {
        match values {
            ChannelValues::F32(values) => Cells::Numbers(values.clone()),
            ChannelValues::U32(values) => Cells::Counts(values.iter().map(|v| (*v != NONE).then_some(*v)).collect()),
            ChannelValues::U8(values) => Cells::Picture(BASE64_STANDARD.encode(values)),
        }
    }
}

/// Frames of a time-lapse as JSON, with the pictures of its heads if `pictured`; fewer if they would be too many values for an answer.
///
/// # Errors
/// If a frame is damaged.
pub fn json(
    timelapse: &mut Timelapse,
    tokenizer: Option<&Tokenizer>,
    frames: Range<usize>,
    pictured: bool,
) -> Result<String, TimelapseError> {
    let piece = |id: u32| tokenizer.and_then(|t| t.piece(id).ok()).unwrap_or_else(|| format!("#{id}"));
    let header = timelapse.header().clone();
    let shown = |channel: &Channel| pictured || channel.dtype != "u8";
    let each: usize = header.channels.iter().filter(|c| shown(c)).map(|c| c.shape.iter().product::<usize>()).sum();
    let mut told = vec![];
    let mut ids = BTreeSet::new();
    for n in frames.clone().take((MOST_VALUES / each.max(1)).max(1)) {
        let frame = timelapse.frame(n)?;
        let sample: Vec<u32> = tokens_of(timelapse, &frame, "sample");
        ids.extend(tokens_of(timelapse, &frame, "lens_top").into_iter().chain(sample.iter().copied()));
        let text = match tokenizer.map(|tokenizer| tokenizer.decode(&sample)) {
            Some(Ok(text)) => text,
            _ => sample.iter().map(|id| piece(*id)).collect(),
        };
        let values = header.channels.iter().zip(&frame.values).filter(|(channel, _)| shown(channel));
        let values = values.map(|(channel, values)| (channel.name.as_str(), Cells::new(values))).collect();
        told.push(ToldFrame { step: frame.step, tokens: frame.tokens, sample: text, values });
    }
    let told = Told {
        tokens: header.probe.iter().map(|id| (*id, piece(*id))).collect(),
        repeated: &header.repeated,
        prompt: header.prompt,
        scores: SCORES,
        norms: NORMS,
        side: SIDE,
        channels: &header.channels,
        steps: timelapse.steps(),
        from: frames.start,
        frames: told,
        texts: ids.into_iter().map(|id| (id, piece(id))).collect(),
    };
    Ok(serde_json::to_string(&told).expect("numbers and texts are JSON"))
}

/// The tokens in a channel of a frame.
pub fn tokens_of(timelapse: &Timelapse, frame: &Frame, channel: &str) -> Vec<u32> {
    timelapse.counts(frame, channel).unwrap_or_default().iter().copied().filter(|id| *id != NONE).collect()
}

/// `timelapse`: frames of the run whose model is looked at, from a number on, or the one of a step with its pictures.
pub fn answer(subjects: &[Subject], query: &Query) -> Result<Reply> {
    let query = AskedQuery::read(query, &["from", "count", "step"])?;
    let none = GlassError::NotThis("this model has no time-lapse: it was not trained with --probe");
    let Some(subject) = subjects.first() else { return Err(none) };
    let Some(files) = subject.lm.checkpoint() else { return Err(none) };
    let mut timelapse = match Timelapse::open(&files.path) {
        Err(TimelapseError::Missing { .. }) => return Err(none),
        opened => opened?,
    };
    let steps = timelapse.steps();
    let (from, pictured) = match query.text("step") {
        Some(_) if query.text("from").or(query.text("count")).is_some() => {
            return Err(refusal("step", "alone, without `from` and `count`", "both"));
        }
        Some(asked) => {
            let at = asked.parse().ok().and_then(|step| steps.binary_search(&step).ok());
            let known = format!("the step of a frame (`steps` lists {} of them)", steps.len());
            (at.ok_or_else(|| refusal("step", &known, asked))?, true)
        }
        None => (query.number("from", 0, usize::MAX)?.min(steps.len()), false),
    };
    let count = if pictured { 1 } else { query.number("count", COUNT, MOST + 1)? };
    let to = from.saturating_add(count).min(steps.len());
    Ok(Reply::Json(json(&mut timelapse, subject.lm.tokenizer().ok(), from..to, pictured)?))
}

impl From<TimelapseError> for GlassError {
    fn from(error: TimelapseError) -> GlassError {
        // who asks has no use for the place of the file
        GlassError::Timelapse(match error {
            TimelapseError::Format { what, .. } => what,
            TimelapseError::Io { fault, .. } => fault.to_string(),
            error => error.to_string(),
        })
    }
}
