//! Text out of the tokens a model chooses, and when to stop.
//!
//! A [`Writer`] is one sample in the making: give it logits, feed the model the token it answers with, until it says
//! that the sample is finished. It holds back what is no whole character yet, and what may be the beginning of a stop
//! text.

use super::{DecodeError, GenerateError, Result, Sampler, TokensBefore, likeliest, log_sum_exp};
use limpid_core::numeric::math::exp_f64;
use limpid_tokenizer::{TextStream, Tokenizer};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

/// Tokens beside the chosen one that a [`Choice`] lists.
const CANDIDATES: usize = 5;

/// What happens when a token must be added and the context is full; [`generate`](super::generate) says exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// The oldest half is dropped, and the sample goes on.
    #[default]
    SlideHalf,
    /// The oldest token is dropped for every new one: each is chosen by a run of the last `context_length` tokens
    /// alone, from the first position on.
    Crop,
    /// The sample ends.
    Stop,
}

impl FromStr for Overflow {
    type Err = String;
    fn from_str(name: &str) -> std::result::Result<Overflow, String> {
        match name.replace('_', "-").as_str() {
            "slide-half" => Ok(Overflow::SlideHalf),
            "crop" => Ok(Overflow::Crop),
            "stop" => Ok(Overflow::Stop),
            _ => Err("it is slide-half, crop or stop".into()),
        }
    }
}

/// How a sample is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Most tokens.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampler: Sampler,
    /// Which of several samples with one seed, of one prompt or of several: each number has draws of its own.
    pub sample: u64,
    /// Texts that end the sample and are not part of it.
    pub stop: Vec<String>,
    /// Whether the tokenizer's end-of-text token ends the sample, or the one that ends an answer.
    pub stop_at_end_of_text: bool,
    /// Whether the text is without special tokens, as if they had not been chosen. One whose text is a stop text ends
    /// the sample nevertheless.
    pub skip_special_tokens: bool,
    /// What happens at the end of the context.
    pub overflow: Overflow,
    /// Added to the logits of these tokens before anything else; shared by the samples of a request.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Whether every choice is explained.
    pub trace: bool,
}

impl Default for Options {
    /// 100 tokens of the model's own distribution, ended by the end-of-text token; special tokens are seen.
    fn default() -> Options {
        Options {
            max_tokens: 100,
            sampler: Sampler::default(),
            sample: 0,
            stop: vec![],
            stop_at_end_of_text: true,
            skip_special_tokens: false,
            overflow: Overflow::default(),
            logit_bias: [].into(),
            trace: false,
        }
    }
}

impl Options {
    /// Says which option, if any, is out of its range.
    ///
    /// # Errors
    /// Names it.
    pub fn check(&self) -> Result<()> {
        self.sampler.check()?;
        match self.stop.iter().position(String::is_empty) {
            Some(index) => Err(GenerateError::EmptyStop { index }),
            None => Ok(()),
        }
    }
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// It has as many tokens as were wanted, or as the context holds.
    Length,
    /// A stop text came, or the end of an answer.
    Stop,
    /// The end-of-text token came.
    EndOfText,
    /// The callback cancelled it.
    Cancelled,
}

impl FinishReason {
    /// `length`, `stop`, `end_of_text` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::Stop => "stop",
            FinishReason::EndOfText => "end_of_text",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The text, up to the stop text.
    pub text: String,
    /// The tokens chosen, those of the stop text too; an end-of-text token that ended the sample is not one of them.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// A token that could have been chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The token.
    #[serde(rename = "id")]
    pub token: u32,
    /// It, to look at ([`Tokenizer::piece`]); its number if there is no tokenizer.
    pub piece: String,
    /// The model's logit.
    pub logit: f32,
    /// The model's probability: softmax of the logits.
    pub probability: f64,
    /// The sampler's probability: after repetition penalty, temperature, top-k, top-p and min-p; 0 if it was excluded.
    pub chance: f64,
}

/// How one token was chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Tokens the model saw: its input was (1, input_len).
    pub input_len: usize,
    /// The token chosen.
    pub chosen: Candidate,
    /// The five that the model finds likeliest, the likeliest first.
    pub candidates: Vec<Candidate>,
}

/// The token chosen from one set of logits, and the text that is certain after it.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// The token to feed, unless the sample is finished.
    pub token: u32,
    /// Text that is now certain; may be empty.
    pub text: String,
    /// How the token was chosen, if [`Options::trace`].
    pub choice: Option<Choice>,
    /// Whether the sample is finished, and why.
    pub finish: Option<FinishReason>,
}

/// One sample in the making.
#[derive(Clone, Debug)]
pub struct Writer {
    options: Options,
    tokenizer: Option<Tokenizer>,
    stream: Option<TextStream>,
    cutter: Cutter,
    /// Special tokens that have no text, ascending, and whether each ends the sample.
    skipped: Vec<(u32, bool)>,
    /// The prompt and what followed.
    all: Vec<u32>,
    prompt: usize,
    text: String,
}

impl Writer {
    /// A sample that continues `prompt`. Without a tokenizer it has no text.
    ///
    /// # Errors
    /// If an option is out of its range, there are stop texts and no tokenizer, the prompt is empty, or it has a token
    /// that the tokenizer lacks.
    pub fn new(tokenizer: Option<&Tokenizer>, prompt: &[u32], options: &Options) -> Result<Writer> {
        options.check()?;
        if tokenizer.is_none() && !options.stop.is_empty() {
            return Err(GenerateError::StopWithoutTokenizer);
        }
        if prompt.is_empty() {
            return Err(DecodeError::Empty.into());
        }
        let specials = tokenizer.filter(|_| options.skip_special_tokens).map(Tokenizer::specials).unwrap_or_default();
        let stops = |text: &str| options.stop.iter().any(|stop| stop == text);
        Ok(Writer {
            skipped: specials.into_iter().map(|(text, id)| (id, stops(text))).collect(),
            options: options.clone(),
            tokenizer: tokenizer.cloned(),
            stream: tokenizer.map(|tokenizer| TextStream::after(tokenizer, prompt)).transpose()?,
            cutter: Cutter { stops: options.stop.clone(), held: String::new() },
            all: prompt.to_vec(),
            prompt: prompt.len(),
            text: String::new(),
        })
    }

    /// How it is made.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The tokens chosen so far.
    pub fn tokens(&self) -> &[u32] {
        &self.all[self.prompt..]
    }

    /// The text that is certain so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Chooses a token by the model's `logits` (V) after the `input_len` tokens it saw. Ids beyond the tokenizer's,
    /// which a model with a padded vocabulary has, are never chosen.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn take(&mut self, logits: &[f32], input_len: usize) -> Result<GeneratedToken> {
        let known = self.tokenizer.as_ref().map_or(logits.len(), |t| t.vocab_size().min(logits.len()));
        let logits = &logits[..known];
        let mut biased = Cow::from(logits);
        for (token, bias) in self.options.logit_bias.iter().filter(|(token, _)| (*token as usize) < known) {
            biased.to_mut()[*token as usize] += bias;
        }
        let (prompt, answer) = self.all.split_at(self.prompt);
        let before = TokensBefore { prompt, answer };
        let draw = (self.options.sample, (self.all.len() - self.prompt) as u64);
        let (token, choice) = if self.options.trace {
            let (token, chances) = self.options.sampler.pick_of(&biased, before, draw)?;
            (token, Some(self.explain(logits, token, &chances, input_len)?))
        } else {
            (self.options.sampler.pick(&biased, before, draw.0, draw.1)?, None)
        };
        let tokenizer = self.tokenizer.as_ref();
        let turn = tokenizer.and_then(Tokenizer::end_of_turn) == Some(token);
        let ends = tokenizer.is_some_and(|t| t.end_of_text() == Some(token) || t.more_ends().contains(&token) && !turn);
        if self.options.stop_at_end_of_text && ends {
            return Ok(GeneratedToken { token, text: self.flush(), choice, finish: Some(FinishReason::EndOfText) });
        }
        self.all.push(token);
        let skipped = self.skipped.binary_search_by_key(&token, |(id, _)| *id).ok().map(|at| self.skipped[at].1);
        if self.options.stop_at_end_of_text && turn || skipped == Some(true) {
            return Ok(GeneratedToken { token, text: self.flush(), choice, finish: Some(FinishReason::Stop) });
        }
        let stream = self.stream.as_mut().filter(|_| skipped.is_none());
        let piece = stream.map(|stream| stream.push(token)).transpose()?.unwrap_or_default();
        let (mut text, stopped) = self.cutter.push(&piece);
        self.text += &text;
        let finish = if stopped {
            Some(FinishReason::Stop)
        } else {
            (self.tokens().len() >= self.options.max_tokens).then_some(FinishReason::Length)
        };
        if finish == Some(FinishReason::Length) {
            text += &self.flush();
        }
        Ok(GeneratedToken { token, text, choice, finish })
    }

    /// Gives what was held back: no more tokens will come. The beginning of a character becomes U+FFFD, as
    /// [`Tokenizer::decode`] makes it.
    pub fn flush(&mut self) -> String {
        let rest =
            self.stream.take().filter(|_| self.all.len() > self.prompt).map(TextStream::finish).unwrap_or_default();
        let (mut text, stopped) = self.cutter.push(&rest);
        if !stopped {
            text += &std::mem::take(&mut self.cutter.held);
        }
        self.text += &text;
        text
    }

    /// The sample as it is now.
    pub fn into_sample(self, finish_reason: FinishReason) -> Sample {
        Sample { tokens: self.all[self.prompt..].to_vec(), text: self.text, finish_reason }
    }

    fn explain(&self, logits: &[f32], token: u32, chances: &[(u32, f64)], input_len: usize) -> Result<Choice> {
        let lse = log_sum_exp(logits)?;
        let candidate = |token: u32| -> Result<Candidate> {
            let logit = logits[token as usize];
            let piece = self.tokenizer.as_ref().map_or_else(|| Ok(token.to_string()), |t| t.piece(token))?;
            let chance = chances.binary_search_by_key(&token, |(token, _)| *token).map_or(0.0, |at| chances[at].1);
            Ok(Candidate { token, piece, logit, probability: exp_f64(f64::from(logit) - lse), chance })
        };
        let candidates = likeliest(logits, CANDIDATES).into_iter().map(candidate).collect::<Result<_, _>>()?;
        Ok(Choice { input_len, chosen: candidate(token)?, candidates })
    }
}

/// Text up to a stop text, whatever pieces it comes in.
#[derive(Clone, Debug)]
struct Cutter {
    stops: Vec<String>,
    /// May be the beginning of a stop text.
    held: String,
}

impl Cutter {
    /// Takes a piece, gives what is certain, and whether a stop text is complete: the one that ends first counts, of
    /// several that end there the longest.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.held += piece;
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop).map(|at| (at + stop.len(), at)));
        if let Some((_, at)) = found.min() {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return (text, true);
        }
        let beginning = |stop: &String| {
            let ends = |n: &usize| stop.is_char_boundary(*n) && self.held.ends_with(&stop[..*n]);
            (1..stop.len()).rev().find(ends).unwrap_or(0)
        };
        let keep = self.stops.iter().map(beginning).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, held), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_tokenizer::{Order, TokenizerKind};

    /// The same text in any pieces is cut at the same place.
    #[test]
    fn stop_texts_are_found_across_pieces_and_never_begun() {
        let cut = |stops: &[&str], pieces: &[&str]| {
            let mut cutter = Cutter { stops: stops.iter().map(|s| s.to_string()).collect(), held: String::new() };
            let mut text = String::new();
            for piece in pieces {
                let (more, stopped) = cutter.push(piece);
                text += &more;
                if stopped {
                    return (text, true);
                }
            }
            (text + &cutter.held, false)
        };
        let cases: [(&[&str], &str, &str, bool); 8] = [
            (&["END"], "one END two", "one ", true),
            (&["END"], "one EN", "one EN", false),
            (&["\n\n"], "a\nb\n\nc", "a\nb", true),
            (&["aab"], "aaab", "a", true),
            (&["cd", "XY"], "abXYcd", "ab", true),
            (&["XYZ", "Y"], "abXYZ", "abX", true),
            (&["BC", "ABC"], "zABC", "z", true),
            (&["é!", "🙂"], "caféé!🙂", "café", true),
        ];
        for (stops, text, want, stopped) in cases {
            assert_eq!(cut(stops, &[text]), (want.to_string(), stopped), "{text} whole");
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
            assert_eq!(cut(stops, &chars), (want.to_string(), stopped), "{text} by characters");
        }
        let mut cutter = Cutter { stops: vec!["STOP".into()], held: String::new() };
        assert_eq!(cutter.push("abcST"), ("abc".into(), false));
        assert_eq!(cutter.push("ART"), ("START".into(), false));
        assert_eq!(cutter.push("S"), (String::new(), false));
        assert_eq!(cutter.push("TOPPED"), (String::new(), true));
    }

    #[test]
    fn characters_are_never_split() {
        let gpt2 = Tokenizer::named("gpt2").unwrap();
        let (prompt, text) = (gpt2.encode("Smile:").unwrap(), " 🙂 naïve 日本語 🦀!");
        let ids = gpt2.encode(text).unwrap();
        assert!(ids.len() > text.chars().count() / 2 && ids.iter().any(|id| gpt2.piece(*id).unwrap().contains('\\')));
        let options = Options { sampler: Sampler::GREEDY, max_tokens: ids.len(), trace: true, ..Options::default() };
        let mut writer = Writer::new(Some(&gpt2), &prompt, &options).unwrap();
        let mut streamed = String::new();
        // a padded vocabulary whose padding is likeliest: never chosen
        let mut logits = vec![0.0; gpt2.vocab_size() + 47];
        logits[gpt2.vocab_size()..].fill(99.0);
        for (i, id) in ids.iter().enumerate() {
            logits[*id as usize] = 9.0;
            let turn = writer.take(&logits, prompt.len() + i).unwrap();
            logits[*id as usize] = 0.0;
            assert_eq!(turn.token, *id);
            assert!(!turn.text.contains('\u{fffd}'), "{:?}", turn.text);
            let step = turn.choice.unwrap();
            assert_eq!((step.input_len, step.candidates.len()), (prompt.len() + i, 5));
            assert_eq!(step.candidates[0], step.chosen);
            assert_eq!((step.chosen.chance, step.candidates[1].chance), (1.0, 0.0));
            streamed += &turn.text;
            assert_eq!(turn.finish, (i + 1 == ids.len()).then_some(FinishReason::Length));
        }
        assert_eq!((streamed.as_str(), writer.text()), (text, text));
        // ended within a character: what decode makes of it
        let crab = gpt2.encode("🦀").unwrap();
        let mut writer = Writer::new(Some(&gpt2), &prompt, &Options { max_tokens: 1, ..options.clone() }).unwrap();
        logits[crab[0] as usize] = 9.0;
        assert_eq!(writer.take(&logits, 1).unwrap().text, gpt2.decode(&crab[..1]).unwrap());
        // end of text
        let mut writer = Writer::new(Some(&gpt2), &prompt, &options).unwrap();
        logits[50_256] = 10.0;
        assert_eq!(writer.take(&logits, 1).unwrap().finish, Some(FinishReason::EndOfText));
        assert!(writer.into_sample(FinishReason::EndOfText).tokens.is_empty());
    }

    #[test]
    fn the_end_of_a_turn_ends_a_sample() {
        for end in ["<|end|>", "<|im_end|>"] {
            let words = Tokenizer::train(TokenizerKind::Word, "a b", Order::Sorted, &[end]).unwrap();
            for stops in [true, false] {
                let options = Options { stop_at_end_of_text: stops, sampler: Sampler::GREEDY, ..Options::default() };
                let mut writer = Writer::new(Some(&words), &words.encode("a").unwrap(), &options).unwrap();
                let said: Vec<GeneratedToken> = ["b", end]
                    .map(|token| {
                        let id = words.encode(token).unwrap()[0];
                        let logits: Vec<f32> = (0..3).map(|other| f32::from(u8::from(other == id))).collect();
                        writer.take(&logits, 1).unwrap()
                    })
                    .into();
                assert_eq!((said[0].finish, said[1].finish), (None, stops.then_some(FinishReason::Stop)), "{end}");
                assert_eq!(writer.text(), if stops { " b".into() } else { format!(" b {end}") });
                assert_eq!(writer.tokens().len(), 2, "as a stop text's tokens are");
            }
        }
    }

    /// A special token is in the text only if it is to be seen; in the text beside it nothing changes, and one that is
    /// a stop text ends it.
    #[test]
    fn special_tokens_are_skipped_if_they_are_to_be() {
        let specials = ["<think>", "<|end|>", "<UNK>"];
        let words = Tokenizer::train(TokenizerKind::Word, "a b c", Order::Sorted, &specials).unwrap();
        let write = |skip: bool, stop: &[&str], chosen: &[&str]| {
            let stop = stop.iter().map(|stop| (*stop).into()).collect();
            let options = Options {
                stop,
                skip_special_tokens: skip,
                stop_at_end_of_text: false,
                sampler: Sampler::GREEDY,
                max_tokens: chosen.len(),
                ..Options::default()
            };
            let mut writer = Writer::new(Some(&words), &words.encode("a").unwrap(), &options).unwrap();
            let (mut streamed, mut finish) = (String::new(), None);
            for token in chosen {
                let id = words.encode(token).unwrap()[0];
                let logits: Vec<f32> =
                    (0..words.vocab_size() as u32).map(|other| f32::from(u8::from(other == id))).collect();
                let token = writer.take(&logits, 1).unwrap();
                streamed += &token.text;
                finish = token.finish;
                if finish.is_some() {
                    break;
                }
            }
            let sample = writer.into_sample(finish.unwrap());
            assert_eq!(streamed, sample.text);
            (sample.text, sample.tokens.len(), sample.finish_reason)
        };
        let chosen = ["b", "<think>", "c", "<|end|>", "a"];
        let length = FinishReason::Length;
        assert_eq!(write(false, &[], &chosen), (" b <think> c <|end|> a".into(), 5, length));
        assert_eq!(write(true, &[], &chosen), (" b c a".into(), 5, length), "as if they had not been chosen");
        assert_eq!(write(true, &[], &["<think>", "<UNK>"]), (String::new(), 2, length));
        for skip in [true, false] {
            let text = if skip { " b c" } else { " b <think> c " };
            assert_eq!(write(skip, &["<|end|>", "x"], &chosen), (text.into(), 4, FinishReason::Stop));
        }
        assert_eq!(
            write(true, &["b c"], &chosen),
            (" ".into(), 3, FinishReason::Stop),
            "stop texts are found in what is seen"
        );
        assert_eq!(write(true, &["c a b", "<|end|>"], &chosen).0, " b c", "what was held back is text");
    }

    /// What is added decides, and what is told is the model's own.
    #[test]
    fn a_bias_is_added_before_anything_else() {
        let sampler = Sampler { top_k: 1, ..Sampler::default() };
        let logit_bias = [(1, 3.0), (0, -1.0), (7, 100.0)].into();
        let options = Options { sampler, logit_bias, trace: true, ..Options::default() };
        let mut writer = Writer::new(None, &[0], &options).unwrap();
        let chosen = writer.take(&[2.0, 0.5, 3.0], 1).unwrap();
        let choice = chosen.choice.unwrap();
        assert_eq!((chosen.token, choice.chosen.logit, choice.chosen.chance), (1, 0.5, 1.0));
        assert_eq!(choice.candidates.iter().map(|c| c.token).collect::<Vec<_>>(), [2, 0, 1]);
    }

    #[test]
    fn options_are_checked_before_anything_runs() {
        let new = |tokenizer, prompt: &[u32], stop: &[&str]| {
            let stop = stop.iter().map(|s| s.to_string()).collect();
            Writer::new(tokenizer, prompt, &Options { stop, ..Options::default() }).map(drop)
        };
        let gpt2 = Tokenizer::named("gpt2").unwrap();
        assert!(matches!(new(Some(&gpt2), &[1], &["a", ""]), Err(GenerateError::EmptyStop { index: 1 })));
        assert!(matches!(new(None, &[1], &["a"]), Err(GenerateError::StopWithoutTokenizer)));
        assert!(matches!(new(None, &[], &[]), Err(GenerateError::Decode(DecodeError::Empty))));
        assert!(matches!(new(Some(&gpt2), &[60_000], &[]), Err(GenerateError::Tokenizer(_))));
    }
}
