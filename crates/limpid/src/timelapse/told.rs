//! A time-lapse as JSON: for the page, and for whoever takes `limpid timelapse --json`.

use super::{Channel, ChannelValues, Frame, NONE, NORMS, SCORES, SIDE, Timelapse, TimelapseError};
use crate::tokenizer::Tokenizer;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Values of one answer.
const MOST_VALUES: usize = 4 << 20;

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
    /// The steps of the whole run.
    run_steps: Option<u64>,
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

impl Timelapse {
    /// Frames as JSON (docs/inside.md), with the pictures of heads if `pictured`; fewer if they are more than one
    /// answer has.
    ///
    /// # Errors
    /// If a frame is damaged.
    ///
    /// # Panics
    /// If there are no such frames.
    pub fn json(
        &mut self,
        tokenizer: Option<&Tokenizer>,
        frames: Range<usize>,
        pictured: bool,
    ) -> Result<String, TimelapseError> {
        let piece = |id: u32| tokenizer.and_then(|t| t.piece(id).ok()).unwrap_or_else(|| format!("#{id}"));
        let header = self.header().clone();
        let shown = |channel: &Channel| pictured || channel.dtype != "u8";
        let each: usize = header.channels.iter().filter(|c| shown(c)).map(|c| c.shape.iter().product::<usize>()).sum();
        let mut told = vec![];
        let mut ids = BTreeSet::new();
        for n in frames.clone().take((MOST_VALUES / each.max(1)).max(1)) {
            let frame = self.frame(n)?;
            let sample: Vec<u32> = self.tokens(&frame, "sample");
            ids.extend(self.tokens(&frame, "lens_top").into_iter().chain(sample.iter().copied()));
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
            steps: self.steps(),
            run_steps: self.run_steps(),
            from: frames.start,
            frames: told,
            texts: ids.into_iter().map(|id| (id, piece(id))).collect(),
        };
        Ok(serde_json::to_string(&told).expect("numbers and texts are JSON"))
    }

    /// The tokens in a channel of a frame.
    pub fn tokens(&self, frame: &Frame, channel: &str) -> Vec<u32> {
        self.counts(frame, channel).unwrap_or_default().iter().copied().filter(|id| *id != NONE).collect()
    }
}
