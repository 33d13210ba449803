//! A sample as it is written, piece by piece.

use crate::Lm;
use crate::data::chat::Message;
use crate::engine::{Engine, EngineEvent, EngineRequest, RequestId};
use crate::error::{Error, Result};
use crate::generate::{GeneratedToken, Options, Sample, advance};
use std::collections::VecDeque;
use std::ops::Deref;

impl Lm {
    /// Continues `prompt` as it is asked for the next piece of text.
    ///
    /// # Errors
    /// As [`Lm::generate`].
    pub fn stream(&self, prompt: &str, options: &Options) -> Result<SampleStream<&Lm>> {
        SampleStream::new(self, &self.prompt_ids(prompt)?, options)
    }

    /// [`Lm::chat`] as it is asked for the next piece of the answer.
    ///
    /// # Errors
    /// As [`Lm::chat`].
    pub fn chat_stream(&self, messages: &[Message], options: &Options) -> Result<SampleStream<&Lm>> {
        let (ids, options) = self.chat_prompt(messages, options)?;
        SampleStream::new(self, &ids, &options)
    }
}

/// A sample that is being written: an iterator over its pieces of text, which are whole characters and never a part of
/// a stop text. The model computes when the next piece is asked for. One that is dropped ends there.
///
/// ```no_run
/// # use limpid::{Lm, generate::Options};
/// let lm = Lm::open("runs/1")?;
/// for piece in lm.stream("Once upon a time", &Options::default())? {
///     print!("{}", piece?);
/// }
/// # Ok::<(), limpid::Error>(())
/// ```
#[must_use = "nothing is written before a piece is asked for"]
pub struct SampleStream<L: Deref<Target = Lm>> {
    lm: L,
    /// Lent by the model until this ends.
    engine: Option<Engine>,
    id: RequestId,
    pieces: VecDeque<String>,
    sample: Option<Sample>,
}

impl<L: Deref<Target = Lm>> SampleStream<L> {
    /// Continues a prompt of ids ([`Lm::prompt_ids`], [`Lm::chat_prompt`]). `lm` may be a reference, or an `Arc` for a
    /// stream that outlives its caller.
    ///
    /// # Errors
    /// As [`Lm::generate`].
    pub fn new(lm: L, prompt: &[u32], options: &Options) -> Result<SampleStream<L>> {
        let mut engine = lm.lend_engine()?;
        let request = EngineRequest {
            prompt: prompt.to_vec(),
            options: options.clone(),
            log_probs: None,
            reuse: true,
            steps: None,
        };
        match engine.submit(request) {
            Ok(id) => Ok(SampleStream { lm, engine: Some(engine), id, pieces: VecDeque::new(), sample: None }),
            Err(error) => {
                lm.take_back(engine);
                Err(error.into())
            }
        }
    }

    /// The whole sample, whose pieces need not have been taken.
    ///
    /// # Errors
    /// As [`Lm::generate`].
    pub fn sample(mut self) -> Result<Sample> {
        self.try_for_each(|piece| piece.map(drop))?;
        self.sample.take().ok_or(Error::Stopped)
    }

    /// One run of the model.
    fn round(&mut self, mut engine: Engine) -> Result<()> {
        let ran = advance(&mut engine, self.id, &mut |event| {
            if let EngineEvent::Token { token: GeneratedToken { text, .. }, .. } = event
                && !text.is_empty()
            {
                self.pieces.push_back(text);
            }
            true
        });
        let ran = ran.map_err(Error::from);
        match &ran {
            Ok(None) => self.engine = Some(engine),
            Err(error) if error.is_lost() => {}
            Ok(Some(_)) | Err(_) => self.lm.take_back(engine),
        }
        self.sample = ran?;
        Ok(())
    }
}

impl<L: Deref<Target = Lm>> Iterator for SampleStream<L> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        while self.pieces.is_empty() {
            let engine = self.engine.take()?;
            if let Err(error) = self.round(engine) {
                return Some(Err(error));
            }
        }
        self.pieces.pop_front().map(Ok)
    }
}

impl<L: Deref<Target = Lm>> Drop for SampleStream<L> {
    fn drop(&mut self) {
        if let Some(mut engine) = self.engine.take() {
            engine.cancel(&[self.id].into());
            self.lm.take_back(engine);
        }
    }
}
