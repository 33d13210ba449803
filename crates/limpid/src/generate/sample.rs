//! Chooses a token from logits: a pure function of the logits, the tokens so far, and the numbers of the sample and
//! the step.
//!
//! In this order: repetition penalty, presence and frequency penalty, temperature, top-k, top-p, min-p; the rest is
//! renormalised, and one uniform draw chooses a token by adding up probabilities in f64. The least likely tokens are
//! cut first; equal logits are ranked by id, the lowest first.

use crate::numeric::random;
use limpid_core::decode::DecodeError as Error;
use limpid_core::numeric::math::{exp_f64, ln_f64};
use std::cmp::Ordering;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Logits are divided by it: below 1 sharper, above 1 flatter. 0 takes the greatest (greedy).
    pub temperature: f64,
    /// Only this many of the most likely tokens; 0 for all.
    pub top_k: usize,
    /// Only the fewest of the most likely tokens whose probabilities add up to at least this; 1 for all.
    pub top_p: f64,
    /// Only tokens at least this fraction as likely as the likeliest; 0 for all.
    pub min_p: f64,
    /// The logit of a token that the sequence already has is divided by this if positive, multiplied if negative
    /// (Keskar et al. 2019, CTRL); 1 for none.
    pub repetition_penalty: f64,
    /// Taken from the logit of every token that the answer already has; 0 for none.
    pub presence_penalty: f64,
    /// Taken from the logit of a token once for each time that the answer already has it; 0 for none.
    pub frequency_penalty: f64,
    /// The seed of every draw.
    pub seed: u64,
}

impl Default for Sampler {
    /// The model's own distribution.
    fn default() -> Sampler {
        Sampler { temperature: 1.0, ..Sampler::GREEDY }
    }
}

/// The tokens before the one that is chosen: penalties are theirs.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokensBefore<'a> {
    /// What the model was given.
    pub prompt: &'a [u32],
    /// What it has chosen since.
    pub answer: &'a [u32],
}

/// A token that may be chosen.
#[derive(Clone, Copy)]
struct Choice {
    token: u32,
    logit: f64,
    /// Its probability divided by that of the most likely token.
    weight: f64,
}

/// The more likely first; of equals, the lower id.
fn rank(a: &Choice, b: &Choice) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Leaves the `n` first in rank, in that order.
fn best(choices: &mut Vec<Choice>, n: usize) {
    if n < choices.len() {
        choices.select_nth_unstable_by(n, rank);
        choices.truncate(n);
    }
    choices.sort_unstable_by(rank);
}

impl Sampler {
    /// Always the most likely token.
    pub const GREEDY: Sampler = Sampler {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    /// Checks that every setting is in its range.
    ///
    /// # Errors
    /// Names the first that is not, and its range.
    pub fn check(&self) -> Result<(), Error> {
        let above_0 = f64::from_bits(1); // the least number that is
        let settings = [
            ("temperature", self.temperature, 0.0..=f64::MAX, "0 (greedy) or a positive number"),
            ("top_p", self.top_p, above_0..=1.0, "above 0 and at most 1 (1 turns it off)"),
            ("min_p", self.min_p, 0.0..=1_f64.next_down(), "at least 0 (off) and less than 1"),
            ("repetition_penalty", self.repetition_penalty, above_0..=f64::MAX, "above 0 (1 turns it off)"),
            ("presence_penalty", self.presence_penalty, f64::MIN..=f64::MAX, "a number (0 turns it off)"),
            ("frequency_penalty", self.frequency_penalty, f64::MIN..=f64::MAX, "a number (0 turns it off)"),
        ];
        match settings.into_iter().find(|(_, value, range, _)| !range.contains(value)) {
            Some((what, found, _, expected)) => Err(Error::Setting { what, found, expected }),
            None => Ok(()),
        }
    }

    /// The token that follows `before` in sample number `sample` at `step`.
    ///
    /// # Errors
    /// If a setting is out of its range, a logit is NaN or infinite, or all are minus infinity.
    pub fn pick(&self, logits: &[f32], before: TokensBefore, sample: u64, step: u64) -> Result<u32, Error> {
        Ok(self.draw(&self.candidates(logits, before)?, sample, step))
    }

    /// The tokens that may follow, with their probabilities, the most likely first.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn distribution(&self, logits: &[f32], before: TokensBefore) -> Result<Vec<(u32, f64)>, Error> {
        let mut choices = self.candidates(logits, before)?;
        let total: f64 = choices.iter().map(|c| c.weight).sum();
        choices.sort_unstable_by(rank);
        Ok(choices.iter().map(|c| (c.token, c.weight / total)).collect())
    }

    /// [`Sampler::pick`], and the probability of every token that could have been chosen, ascending by id.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn pick_of(
        &self,
        logits: &[f32],
        before: TokensBefore,
        (sample, step): (u64, u64),
    ) -> Result<(u32, Vec<(u32, f64)>), Error> {
        let kept = self.candidates(logits, before)?;
        let total: f64 = kept.iter().map(|c| c.weight).sum();
        let chances = kept.iter().map(|c| (c.token, c.weight / total)).collect();
        Ok((self.draw(&kept, sample, step), chances))
    }

    /// The tokens left after all cuts, ascending by id; at least one.
    fn candidates(&self, logits: &[f32], before: TokensBefore) -> Result<Vec<Choice>, Error> {
        self.check()?;
        check_logits(logits)?;
        let penalties = [self.repetition_penalty - 1.0, self.presence_penalty, self.frequency_penalty];
        if self.temperature == 0.0 && penalties == [0.0; 3] {
            // what decides is the greatest alone: a server has no time to list the others for every sequence
            let token = greatest(logits).ok_or(Error::NoToken)?;
            return Ok(vec![Choice { token: token as u32, logit: f64::from(logits[token]), weight: 1.0 }]);
        }
        let choice =
            |(token, logit): (usize, &f32)| Choice { token: token as u32, logit: f64::from(*logit), weight: 1.0 };
        let mut choices: Vec<Choice> = logits.iter().enumerate().map(choice).collect();
        self.penalise(&mut choices, before);
        // ids ascend, so of equals the lowest id is kept
        let likeliest = choices.iter().copied().reduce(|best, c| if c.logit > best.logit { c } else { best });
        let likeliest = likeliest.filter(|c| c.logit > f64::NEG_INFINITY).ok_or(Error::NoToken)?;
        if self.temperature == 0.0 {
            return Ok(vec![likeliest]);
        }
        if self.top_k > 0 && self.top_k < choices.len() {
            best(&mut choices, self.top_k);
        }
        choices.iter_mut().for_each(|c| c.weight = exp_f64((c.logit - likeliest.logit) / self.temperature));
        if self.top_p < 1.0 {
            choices = self.nucleus(choices);
        }
        choices.retain(|c| c.weight > 0.0 && c.weight >= self.min_p);
        if !choices.is_sorted_by_key(|c| c.token) {
            choices.sort_unstable_by_key(|c| c.token);
        }
        Ok(choices)
    }

    fn penalise(&self, choices: &mut [Choice], before: TokensBefore) {
        let Sampler { repetition_penalty, presence_penalty, frequency_penalty, .. } = *self;
        let logits = choices.len();
        if repetition_penalty != 1.0 {
            let mut seen = vec![false; logits];
            let all = before.prompt.iter().chain(before.answer).map(|token| *token as usize);
            all.filter(|token| *token < logits).for_each(|token| seen[token] = true);
            for (choice, _) in choices.iter_mut().zip(seen).filter(|(_, seen)| *seen) {
                let (logit, by) = (choice.logit, repetition_penalty);
                choice.logit = if logit > 0.0 { (logit / by).min(f64::MAX) } else { logit * by };
            }
        }
        if [presence_penalty, frequency_penalty] != [0.0; 2] {
            let mut times = vec![0; logits];
            let answer = before.answer.iter().map(|token| *token as usize);
            answer.filter(|token| *token < logits).for_each(|token| times[token] += 1);
            for (choice, times) in choices.iter_mut().zip(times).filter(|(_, times)| *times > 0) {
                choice.logit -= presence_penalty + frequency_penalty * f64::from(times);
            }
        }
    }

    /// The fewest of the most likely tokens whose probabilities add up to `top_p`; the one that crosses it is
    /// included. It ranks only as many tokens as it needs, eight times more at each try.
    fn nucleus(&self, choices: Vec<Choice>) -> Vec<Choice> {
        let wanted = self.top_p * choices.iter().map(|c| c.weight).sum::<f64>();
        let mut tried = 64;
        loop {
            let mut top = choices.clone();
            best(&mut top, tried);
            let mut sum = 0.0;
            let crossing = top.iter().position(|c| {
                sum += c.weight;
                sum >= wanted
            });
            match crossing {
                Some(last) => top.truncate(last + 1),
                None if top.len() < choices.len() => {
                    tried *= 8;
                    continue;
                }
                None => {} // by rounding: the whole sum was added in another order
            }
            return top;
        }
    }

    /// The first token at which the sum of weights passes the draw.
    fn draw(&self, kept: &[Choice], sample: u64, step: u64) -> u32 {
        let site = random::site("generate").wrapping_add(sample);
        let at = random::uniform(self.seed, site, step) * kept.iter().map(|c| c.weight).sum::<f64>();
        let mut sum = 0.0;
        let found = kept.iter().find(|c| {
            sum += c.weight;
            sum > at
        });
        found.or(kept.last()).expect("at least the likeliest token is kept").token
    }
}

/// Refuses NaN and infinity; minus infinity is allowed and means an impossible token.
fn check_logits(logits: &[f32]) -> Result<(), Error> {
    // one pass without an exit is done in vectors
    if logits.iter().fold(true, |fine, logit| fine & (*logit < f32::INFINITY)) {
        return Ok(());
    }
    match logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        Some(token) => Err(Error::Logit { token: token as u32, value: logits[token] }),
        None => Ok(()),
    }
}

/// The place of the greatest logit, of equals the first; none if all are minus infinity.
fn greatest(logits: &[f32]) -> Option<usize> {
    let top = logits.iter().fold(f32::NEG_INFINITY, |top, logit| if *logit > top { *logit } else { top });
    logits.iter().position(|logit| *logit == top).filter(|_| top > f32::NEG_INFINITY)
}

/// The log of the sum of exponentials: a logit minus this is a log-probability.
///
/// # Errors
/// If a logit is NaN or infinite, or all are minus infinity.
pub fn log_sum_exp(logits: &[f32]) -> Result<f64, Error> {
    check_logits(logits)?;
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    if top == f64::NEG_INFINITY {
        return Err(Error::NoToken);
    }
    Ok(top + ln_f64(logits.iter().map(|logit| exp_f64(f64::from(*logit) - top)).sum::<f64>()))
}

/// The `n` tokens of the greatest logits, greatest first.
pub fn likeliest(logits: &[f32], n: usize) -> Vec<u32> {
    let choice = |(token, logit): (usize, &f32)| Choice { token: token as u32, logit: f64::from(*logit), weight: 1.0 };
    let mut choices: Vec<Choice> = logits.iter().enumerate().map(choice).collect();
    best(&mut choices, n);
    choices.iter().map(|c| c.token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 0.4 0.3 0.2 0.08 0.02, not in order: ids 3 1 0 4 2.
    fn logits() -> Vec<f32> {
        [0.2f32, 0.3, 0.02, 0.4, 0.08].map(f32::ln).to_vec()
    }

    fn after(prompt: &[u32]) -> TokensBefore<'_> {
        TokensBefore { prompt, answer: &[] }
    }

    fn kept(sampler: Sampler) -> Vec<u32> {
        sampler.distribution(&logits(), TokensBefore::default()).unwrap().iter().map(|(token, _)| *token).collect()
    }

    #[test]
    fn cuts_keep_what_they_promise() {
        let plain = Sampler::default();
        assert_eq!(kept(plain), [3, 1, 0, 4, 2]);
        assert_eq!(kept(Sampler { top_k: 2, ..plain }), [3, 1]);
        assert_eq!(kept(Sampler { top_k: 9, ..plain }), [3, 1, 0, 4, 2]);
        // the token that crosses the sum is kept
        assert_eq!(kept(Sampler { top_p: 0.39, ..plain }), [3]);
        assert_eq!(kept(Sampler { top_p: 0.41, ..plain }), [3, 1]);
        assert_eq!(kept(Sampler { top_p: 0.71, ..plain }), [3, 1, 0]);
        assert_eq!(kept(Sampler { top_p: 1e-300, ..plain }), [3]);
        // the ends of the ranges
        assert_eq!(kept(Sampler { top_p: 5e-324, ..plain }), [3]);
        assert_eq!(kept(Sampler { min_p: 1_f64.next_down(), ..plain }), [3]);
        assert_eq!(kept(Sampler { repetition_penalty: 5e-324, ..plain }), kept(plain));
        // top-p is of what top-k left: 0.4 of 0.7 is 0.571
        assert_eq!(kept(Sampler { top_k: 2, top_p: 0.57, ..plain }), [3]);
        assert_eq!(kept(Sampler { top_k: 2, top_p: 0.58, ..plain }), [3, 1]);
        // min-p is relative to the likeliest: 0.19 of 0.4 is 0.076
        assert_eq!(kept(Sampler { min_p: 0.19, ..plain }), [3, 1, 0, 4]);
        assert_eq!(kept(Sampler { min_p: 0.21, ..plain }), [3, 1, 0]);
        // and looks at what temperature made: (0.2 / 0.4)^2 = 0.25
        assert_eq!(kept(Sampler { min_p: 0.26, temperature: 0.5, ..plain }), [3, 1]);
    }

    #[test]
    fn probabilities_are_renormalised_and_sharpened() {
        let close = |got: Vec<(u32, f64)>, want: &[f64]| {
            assert_eq!(got.len(), want.len());
            got.iter().zip(want).for_each(|((_, got), want)| assert!((got - want).abs() < 1e-7, "{got} {want}"));
        };
        let of = |sampler: Sampler| sampler.distribution(&logits(), TokensBefore::default()).unwrap();
        close(of(Sampler { top_k: 2, ..Sampler::default() }), &[4.0 / 7.0, 3.0 / 7.0]);
        let squares = [0.16, 0.09, 0.04, 0.0064, 0.0004];
        close(of(Sampler { temperature: 0.5, ..Sampler::default() }), &squares.map(|s| s / 0.2968));
        let flat = of(Sampler { temperature: 1e9, ..Sampler::default() });
        assert!(flat.iter().all(|(_, p)| (p - 0.2).abs() < 1e-6));
        assert_eq!(of(Sampler { temperature: 1e-310, ..Sampler::default() }), [(3, 1.0)]);
    }

    #[test]
    fn greedy_takes_the_greatest_and_of_equals_the_first() {
        let pick = |logits: &[f32]| Sampler::GREEDY.pick(logits, TokensBefore::default(), 0, 0).unwrap();
        assert_eq!(pick(&logits()), 3);
        assert_eq!(pick(&[1.0, 5.0, 5.0, -1.0]), 1);
        assert_eq!(pick(&[-0.0, 0.0]), 0);
        assert_eq!(pick(&[f32::NEG_INFINITY, -3.0]), 1);
        let tie = Sampler { top_k: 1, ..Sampler::default() };
        assert_eq!(tie.distribution(&[1.0, 5.0, 5.0], TokensBefore::default()).unwrap(), [(1, 1.0)]);
        assert_eq!(likeliest(&[1.0, 5.0, -2.0, 5.0], 3), [1, 3, 0]);
    }

    #[test]
    fn repetition_is_penalised_once_per_token() {
        let sampler = Sampler { temperature: 0.0, repetition_penalty: 2.0, ..Sampler::default() };
        assert_eq!(sampler.pick(&[3.0, 2.0, -1.0], after(&[0, 0, 0]), 0, 0).unwrap(), 1, "3 / 2 is below 2");
        assert_eq!(sampler.pick(&[3.0, 1.4, -1.0], after(&[0, 0, 0]), 0, 0).unwrap(), 0, "3 / 2 is above 1.4");
        assert_eq!(sampler.pick(&[-1.0, -1.5], after(&[0, 77]), 0, 0).unwrap(), 1, "-1 x 2 is below -1.5");
        let wild = Sampler { repetition_penalty: 1e-300, ..Sampler::default() };
        assert_eq!(wild.distribution(&[1e30, 0.0], after(&[0])).unwrap(), [(0, 1.0)]);
    }

    /// Tokens of the answer alone are counted, and positive and negative logits alike.
    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let logits_after = |presence_penalty, frequency_penalty, answer: &[u32]| {
            let sampler = Sampler { presence_penalty, frequency_penalty, ..Sampler::default() };
            let before = TokensBefore { prompt: &[2, 2, 2], answer };
            let found = sampler.distribution(&[1.0, -1.0, 0.0], before).unwrap();
            // relative to token 2, which is never penalised
            let of = |token| found.iter().find(|(t, _)| *t == token).unwrap().1.ln();
            [of(0) - of(2), of(1) - of(2)]
        };
        let cases: [(f64, f64, &[u32], [f64; 2]); 5] = [
            (0.0, 0.0, &[0, 0, 1], [1.0, -1.0]),
            (0.5, 0.0, &[0, 0, 99], [0.5, -1.0]),
            (0.0, 0.5, &[0, 0, 1], [0.0, -1.5]),
            (0.25, 0.5, &[1, 1, 1], [1.0, -2.75]),
            (-1.0, -1.0, &[1], [1.0, 1.0]),
        ];
        for (presence, frequency, answer, want) in cases {
            let got = logits_after(presence, frequency, answer);
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-9), "{answer:?}: {got:?}, {want:?}");
        }
    }

    #[test]
    fn frequencies_follow_probabilities_and_seeds_differ() {
        let want = [0.2, 0.3, 0.02, 0.4, 0.08];
        let n = 20_000;
        let draws = |seed, sample| {
            let sampler = Sampler { seed, ..Sampler::default() };
            (0..n)
                .map(|step| sampler.pick(&logits(), TokensBefore::default(), sample, step).unwrap())
                .collect::<Vec<_>>()
        };
        let first = draws(1, 0);
        assert_eq!(first, draws(1, 0));
        assert_ne!(first, draws(2, 0));
        assert_ne!(first, draws(1, 1));
        for tokens in [&first, &draws(2, 0), &draws(1, 1)] {
            let count = |token: u32| tokens.iter().filter(|t| **t == token).count() as f64;
            let chi: f64 = (0u32..).zip(want).map(|(t, p)| (count(t) - n as f64 * p).powi(2) / (n as f64 * p)).sum();
            assert!(chi < 18.5, "chi-square {chi} of 4 degrees of freedom is beyond one in a thousand");
        }
    }

    /// Chi-square in every direction: how often each token comes along seeds, samples and steps, and each pair of
    /// neighbours.
    #[test]
    fn draws_are_independent_along_seeds_samples_and_steps() {
        let want = [0.2, 0.3, 0.02, 0.4, 0.08];
        const N: usize = 24;
        let pick = |[seed, sample, step]: [usize; 3]| {
            let sampler = Sampler { seed: seed as u64, ..Sampler::default() };
            sampler.pick(&logits(), TokensBefore::default(), sample as u64, step as u64).unwrap() as usize
        };
        let cells = |n: usize| (0..n.pow(3)).map(move |i| [i / n / n, i / n % n, i % n]);
        let drawn: Vec<usize> = cells(N).map(pick).collect();
        let at = |[a, b, c]: [usize; 3]| drawn[(a * N + b) * N + c];
        for axis in 0..3 {
            let mut pairs = [[0.0; 5]; 5];
            for cell in cells(N).filter(|cell| cell[axis] + 1 < N) {
                let mut next = cell;
                next[axis] += 1;
                pairs[at(cell)][at(next)] += 1.0;
            }
            let n: f64 = pairs.as_flattened().iter().sum();
            let expected = (0..25).map(|i| n * want[i / 5] * want[i % 5]);
            let chi: f64 =
                pairs.as_flattened().iter().zip(expected).map(|(got, want)| (got - want).powi(2) / want).sum();
            assert!(chi < 51.2, "axis {axis}: chi-square {chi} of 24 degrees of freedom is beyond one in a thousand");
        }
        for fixed in 0..3 {
            for value in 0..N {
                let mut counts = [0.0; 5];
                cells(N).filter(|cell| cell[fixed] == value).for_each(|cell| counts[at(cell)] += 1.0);
                let n = (N * N) as f64;
                let chi: f64 = counts.iter().zip(want).map(|(got, p)| (got - n * p).powi(2) / (n * p)).sum();
                assert!(
                    chi < 33.4,
                    "axis {fixed} at {value}: chi-square {chi} of 4 degrees of freedom: one in a million"
                );
            }
        }
    }

    #[test]
    fn a_large_nucleus_needs_no_order() {
        // 3000 equal logits: half of the mass is the 1500 lowest ids
        let sampler = Sampler { top_p: 0.5, ..Sampler::default() };
        let kept = sampler.distribution(&vec![0.5; 3000], TokensBefore::default()).unwrap();
        assert_eq!(kept.iter().map(|(token, _)| *token).collect::<Vec<_>>(), (0..1500).collect::<Vec<_>>());
        assert!((kept.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_out_of_range_is_said() {
        let said = |sampler: Sampler| sampler.pick(&logits(), TokensBefore::default(), 0, 0).unwrap_err().to_string();
        let plain = Sampler::default();
        assert_eq!(
            said(Sampler { temperature: -1.0, ..plain }),
            "temperature is -1: it must be 0 (greedy) or a positive number"
        );
        assert!(said(Sampler { temperature: f64::NAN, ..plain }).starts_with("temperature is NaN"));
        assert!(said(Sampler { temperature: f64::INFINITY, ..plain }).starts_with("temperature is inf"));
        for top_p in [0.0, 1.1, f64::NAN] {
            assert!(said(Sampler { top_p, ..plain }).starts_with("top_p is "));
        }
        for min_p in [-0.1, 1.0, f64::NAN] {
            assert!(said(Sampler { min_p, ..plain }).starts_with("min_p is "));
        }
        for repetition_penalty in [0.0, -1.0, f64::NAN] {
            assert!(said(Sampler { repetition_penalty, ..plain }).starts_with("repetition_penalty is "));
        }
        let bad = |logits: &[f32]| plain.pick(logits, TokensBefore::default(), 0, 0).unwrap_err();
        assert!(matches!(bad(&[0.0, f32::NAN]), Error::Logit { token: 1, .. }));
        assert!(matches!(bad(&[f32::INFINITY]), Error::Logit { token: 0, .. }));
        assert!(matches!(bad(&[f32::NEG_INFINITY; 3]), Error::NoToken));
        assert!(matches!(bad(&[]), Error::NoToken));
        assert!(log_sum_exp(&[f32::NAN]).is_err());
        assert_eq!(log_sum_exp(&[0.0, 0.0]).unwrap(), 2f64.ln());
    }
}
