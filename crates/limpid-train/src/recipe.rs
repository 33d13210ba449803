//! What to do in training, as plain data: a model is not its training. Every field is a flag of `train` and a
//! key of its configuration file.

use crate::Documents;
use limpid_core::config::{Config, ConfigError, axis};
use limpid_core::model::Model;
use limpid_core::model::init::Init;
use limpid_core::ops::adamw::{Method, Rule};
use limpid_core::ops::classify::Terms;
use limpid_core::ops::math::cos;
use limpid_core::ops::{Space, muon};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Elements of the largest pages that memory comes in.
const PAGE: usize = (2 << 20) / 4;

axis! {
    /// How the learning rate goes after the warm-up.
    Schedule, "schedule" {
        /// Half a cosine from the learning rate to the least one.
        Cosine = "cosine",
        /// A straight line to the least one.
        Linear = "linear",
        /// As it is.
        Constant = "constant",
        /// As it is, then a straight line to the least one over the last `decay_fraction` of the steps.
        Wsd = "wsd",
    }
}
axis! {
    /// What to do when the loss jumps or is no number.
    Divergence, "divergence" {
        /// Note a jump and go on; stop at what is no number.
        Note = "note",
        /// Stop.
        Stop = "stop",
        /// Go back to the last saved state and pass over the data that led there.
        Rollback = "rollback",
    }
}
axis! {
    /// What the losses of a step's rows become (contract R198 to R200); each row's own loss is always kept.
    Reduction, "reduction" {
        /// Their mean.
        Mean = "mean",
        /// Their sum.
        Sum = "sum",
    }
}

/// A training recipe.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// Updates.
    pub steps: u64,
    /// B: sequences of a micro-batch.
    pub batch_size: usize,
    /// T: tokens of a sequence; 0 for the model's context_length.
    pub context: usize,
    /// Micro-batches of a step.
    pub accumulate: usize,
    /// The update rule.
    pub optimizer: Method,
    /// Greatest learning rate.
    pub learning_rate: f64,
    /// Least learning rate, at the end of the schedule.
    pub min_learning_rate: f64,
    /// Steps over which the rate rises from near 0.
    pub warmup_steps: u64,
    /// What it does then.
    pub schedule: Schedule,
    /// Share of the steps in which `wsd` falls.
    pub decay_fraction: f64,
    /// First moment's memory; sgd's momentum.
    pub beta1: f64,
    /// Second moment's memory.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Momentum of muon's matrices.
    pub muon_momentum: f64,
    /// Decay of matrices; vectors do not decay.
    pub weight_decay: f64,
    /// Greatest norm of the whole gradient; 0 for no clipping.
    pub clip: f64,
    /// What the losses become.
    pub reduction: Reduction,
    /// Share of each target that goes to all tokens alike.
    pub label_smoothing: f64,
    /// Weight of the squared log of the sum of exponentials, which keeps logits from drifting.
    pub z_loss: f64,
    /// Memory of the weights' moving average, which is what is evaluated and kept; 0 for the weights themselves.
    pub ema: f64,
    /// How weights start.
    pub init: Init,
    /// Deviation of normal initial weights; 0 for 0.02 sqrt(768 / d_model): GPT-2's at GPT-2's width, and the same
    /// size of products at others (LOG.md has what it brings to small models).
    pub init_std: f64,
    /// Decides initial weights, batches and dropout.
    pub seed: u64,
    /// Steps between evaluations; 0 for the end only.
    pub eval_every: u64,
    /// About how many tokens an evaluation on the way predicts; the last one takes all.
    pub eval_tokens: usize,
    /// Steps between saves of the state; 0 for the end only.
    pub save_every: u64,
    /// Saved states to keep beside the last.
    pub keep: usize,
    /// Evaluations without a better loss after which training ends; 0 for never.
    pub patience: u64,
    /// Steps between notes of every layer's gradients, weights and updates; 0 for none.
    pub detail_every: u64,
    /// Deviations above the recent losses from which a loss is a jump; 0 to look for none.
    pub spike: f64,
    /// What to do then.
    pub divergence: Divergence,
    /// Whether training is checked before the first step ([`mod@super::preflight`]).
    pub preflight: bool,
    /// Share of the text kept for validation.
    pub val_fraction: f64,
    /// Whether windows hold whole documents: see [`Documents::whole`].
    pub whole_documents: bool,
    /// Whether a document sees those before it in its window: see [`Documents::cross`].
    pub cross_documents: bool,
}

impl Default for Recipe {
    /// nanoGPT's recipe for characters on a CPU: the preset `nanogpt-cpu`'s.
    fn default() -> Recipe {
        Recipe {
            steps: 2000,
            batch_size: 12,
            context: 0,
            accumulate: 1,
            optimizer: Method::AdamW,
            learning_rate: 1e-3,
            min_learning_rate: 1e-4,
            warmup_steps: 100,
            schedule: Schedule::Cosine,
            decay_fraction: 0.2,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            muon_momentum: 0.95,
            weight_decay: 0.1,
            clip: 1.0,
            reduction: Reduction::Mean,
            label_smoothing: 0.0,
            z_loss: 0.0,
            ema: 0.0,
            init: Init::Gpt2,
            init_std: 0.0,
            seed: 1337,
            eval_every: 250,
            eval_tokens: 20_000,
            save_every: 250,
            keep: 0,
            patience: 0,
            detail_every: 10,
            spike: 8.0,
            divergence: Divergence::Note,
            preflight: true,
            val_fraction: 0.1,
            whole_documents: false,
            cross_documents: true,
        }
    }
}

impl Recipe {
    /// The recipe that goes with a preset of [`limpid_core::config::PRESETS`]; the choices are listed in docs/presets.md.
    pub fn preset(name: &str) -> Recipe {
        let base = Recipe::default();
        let large = Recipe {
            steps: 10_000,
            batch_size: 4,
            learning_rate: 6e-4,
            min_learning_rate: 6e-5,
            warmup_steps: 700,
            beta2: 0.95,
            init_std: 0.02,
            ..base
        };
        match name.to_lowercase().replace('_', "-").as_str() {
            // the best that was measured in about half a minute on two cores
            "nano" | "nano-llama" => {
                Recipe { steps: 1000, optimizer: Method::Muon, learning_rate: 3e-3, min_learning_rate: 3e-4, ..base }
            }
            "baby" => Recipe { batch_size: 64, steps: 5000, ..base },
            "zero-to-hero" => Recipe { batch_size: 4, steps: 5000, ..base },
            "decoder-readme" => Recipe { batch_size: 2, steps: 1000, learning_rate: 3e-3, warmup_steps: 20, ..base },
            "llmc-gpt2" => Recipe {
                batch_size: 4,
                context: 64,
                steps: 40,
                learning_rate: 1e-4,
                min_learning_rate: 1e-4,
                warmup_steps: 0,
                schedule: Schedule::Constant,
                beta2: 0.999,
                weight_decay: 0.0,
                clip: 0.0,
                eval_every: 10,
                ..base
            },
            "formulated-gpt" | "formulated-gpt2" | "formulated-bert" | "openai-gpt" | "gpt2" | "gpt2-medium"
            | "gpt2-large" | "gpt2-xl" | "bert-base-uncased" | "llama-3.2-1b" => large,
            _ => base,
        }
    }

    /// The recipe that goes with a model that has learned already: few steps, a rate that falls with its width, and ten
    /// times higher for an adapter (Schulman et al. 2025, "LoRA Without Regret"); docs/presets.md.
    pub fn fine_tuning(config: &Config, adapter: bool) -> Recipe {
        let rate = 5e-5 * 768.0 / config.d_model as f64 * if adapter { 10.0 } else { 1.0 };
        Recipe {
            steps: 300,
            batch_size: 4,
            context: config.context_length.min(512),
            learning_rate: rate,
            min_learning_rate: 0.1 * rate,
            warmup_steps: 20,
            weight_decay: 0.0,
            eval_every: 50,
            save_every: 50,
            ..Recipe::default()
        }
    }

    /// What windows make of documents.
    pub fn documents(&self) -> Documents {
        Documents { whole: self.whole_documents, cross: self.cross_documents }
    }

    /// The learning rate of step `step`, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        let (top, least) = (self.learning_rate, self.min_learning_rate);
        if step < self.warmup_steps {
            return top * (step + 1) as f64 / (self.warmup_steps + 1) as f64;
        }
        let share =
            |from: f64, to: f64| if to <= from { 1.0 } else { ((step as f64 - from) / (to - from)).clamp(0.0, 1.0) };
        let (warm, end) = (self.warmup_steps as f64, self.steps as f64);
        match self.schedule {
            Schedule::Constant => top,
            Schedule::Cosine => least + 0.5 * (top - least) * (1.0 + cos(std::f64::consts::PI * share(warm, end))),
            Schedule::Linear => top + (least - top) * share(warm, end),
            Schedule::Wsd => top + (least - top) * share(end - self.decay_fraction * end, end),
        }
    }

    /// What training adds to each row's loss.
    pub fn terms(&self) -> Terms {
        Terms { smoothing: self.label_smoothing as f32, z_loss: self.z_loss as f32 }
    }

    /// The moving average's memory in the step after `step` of them: shorter at first, when the weights are still near
    /// where they began.
    pub fn averaging(&self, step: u64) -> f64 {
        if step == 0 { 0.0 } else { self.ema.min((1 + step) as f64 / (10 + step) as f64) }
    }

    /// Bytes that training takes beside the model's own ([`Model::memory`]): the optimizer's moments, the weights' average, and
    /// room for the largest of muon's matrices.
    pub fn memory(&self, model: &Model) -> Vec<(&'static str, usize)> {
        let average = if self.ema > 0.0 { model.sizes[Space::Average as usize] } else { 0 };
        let groups = model.update_groups(self.weight_decay, self.optimizer);
        let room = muon::waves(&groups).map(|wave| muon::place(wave, wave.len() - 1).end).max();
        let size = model.sizes[Space::Moment1 as usize];
        // what has one moment leaves the place of the second untouched; the system gives memory by pages of at most 2 MiB
        let two = groups.iter().filter(|g| self.optimizer != Method::Sgd && g.matrix.is_none() && !g.range.is_empty());
        let pages: BTreeSet<usize> = two.flat_map(|g| g.range.start / PAGE..=(g.range.end - 1) / PAGE).collect();
        let moments = size + pages.iter().map(|page| ((page + 1) * PAGE).min(size) - page * PAGE).sum::<usize>();
        vec![
            ("optimizer moments", 4 * moments),
            ("average of the weights", 4 * average),
            ("muon's matrices", 4 * room.unwrap_or(0)),
        ]
    }

    /// Bytes of address space that are reserved for training and never touched: second moments and an average that are not used.
    pub fn untouched(&self, model: &Model) -> usize {
        let reserved = [Space::Moment1, Space::Moment2, Space::Average].map(|space| 4 * model.sizes[space as usize]);
        let used = &self.memory(model)[..2];
        reserved.iter().sum::<usize>() - used.iter().map(|(_, bytes)| bytes).sum::<usize>()
    }

    /// The update of one step.
    pub fn rule(&self, rate: f64, step: u64) -> Rule {
        let max_norm = if self.clip > 0.0 { self.clip } else { f64::INFINITY };
        let Recipe { beta1, beta2, muon_momentum: momentum, eps, .. } = *self;
        Rule { method: self.optimizer, rate, beta1, beta2, momentum, eps, step, max_norm }
    }

    /// Says whether every number is in its range.
    ///
    /// # Errors
    /// Names the first that is not, and what it may be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let zero =
            [("steps", self.steps == 0), ("batch_size", self.batch_size == 0), ("accumulate", self.accumulate == 0)];
        if let Some((what, _)) = zero.iter().find(|(_, zero)| *zero) {
            return Err(ConfigError::Zero { what });
        }
        let range = |what, found: f64, ok: bool, expected| {
            if ok { Ok(()) } else { Err(ConfigError::Range { what, found, expected }) }
        };
        let counts = [
            ("steps", self.steps),
            ("batch_size", self.batch_size as u64),
            ("context", self.context as u64),
            ("accumulate", self.accumulate as u64),
            ("warmup_steps", self.warmup_steps),
            ("eval_every", self.eval_every),
            ("eval_tokens", self.eval_tokens as u64),
            ("save_every", self.save_every),
            ("keep", self.keep as u64),
            ("patience", self.patience),
            ("detail_every", self.detail_every),
        ];
        for (what, n) in counts {
            range(what, n as f64, n <= 1 << 40, "at most 2^40")?;
        }
        // products of them stay countable, and TOML's whole numbers end there
        range("accumulate", self.accumulate as f64, self.accumulate <= 1 << 20, "at most 2^20")?;
        range("seed", self.seed as f64, self.seed <= i64::MAX as u64, "below 2^63")?;
        let finite = |x: f64| (0.0..=f64::from(f32::MAX)).contains(&x);
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        let (rate, least) = (self.learning_rate, self.min_learning_rate);
        range("learning_rate", rate, rate > 0.0 && finite(rate), "above 0, and a number of f32")?;
        range("min_learning_rate", least, (0.0..=rate).contains(&least), "from 0 to the learning rate")?;
        for (what, x) in [
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("muon_momentum", self.muon_momentum),
            ("label_smoothing", self.label_smoothing),
            ("ema", self.ema),
        ] {
            range(what, x, below_one(x), "from 0 up to, but not, 1")?;
        }
        range("z_loss", self.z_loss, (0.0..=1.0).contains(&self.z_loss), "from 0 to 1; 0.0001 is usual")?;
        range("spike", self.spike, finite(self.spike), "0 to look for none, or deviations above the recent losses")?;
        range("eps", self.eps, self.eps as f32 > 0.0 && finite(self.eps), "above 0, and a number of f32")?;
        range("weight_decay", self.weight_decay, finite(self.weight_decay), "0 or more, and a number of f32")?;
        range("clip", self.clip, finite(self.clip), "0 for no clipping, or the greatest norm of the gradient")?;
        range("init_std", self.init_std, finite(self.init_std), "0 for what suits the width, or above 0")?;
        range("decay_fraction", self.decay_fraction, (0.0..=1.0).contains(&self.decay_fraction), "from 0 to 1")?;
        range("val_fraction", self.val_fraction, below_one(self.val_fraction), "from 0 up to, but not, 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_at_the_milestones() {
        let recipe = Recipe { steps: 1000, warmup_steps: 100, ..Recipe::default() };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(recipe.rate(0), 1e-3 / 101.0);
        near(recipe.rate(100), 1e-3);
        near(recipe.rate(550), 5.5e-4);
        near(recipe.rate(1000), 1e-4);
        near(Recipe { schedule: Schedule::Linear, ..recipe }.rate(550), 5.5e-4);
        near(Recipe { schedule: Schedule::Constant, ..recipe }.rate(999), 1e-3);
        let wsd = Recipe { schedule: Schedule::Wsd, ..recipe };
        near(wsd.rate(800), 1e-3);
        near(wsd.rate(900), 5.5e-4);
    }

    #[test]
    fn a_number_out_of_range_is_named() {
        let error = Recipe { beta2: 1.0, ..Recipe::default() }.check().unwrap_err().to_string();
        assert_eq!(error, "beta2 is 1: from 0 up to, but not, 1");
    }

    /// Every number is held to its range, whoever sets it: a flag, a file, the environment, a program.
    #[test]
    fn no_number_passes_that_cannot_be_trained_or_written() {
        let valid = serde_json::to_value(Recipe::default()).unwrap();
        let with = |key: &str, value: serde_json::Value| {
            let mut changed = valid.clone();
            changed[key] = value;
            serde_json::from_value::<Recipe>(changed).map(|recipe| recipe.check())
        };
        for (key, value) in valid.as_object().unwrap() {
            if value.is_f64() {
                for bad in [-1.0, 1e300] {
                    assert!(with(key, bad.into()).unwrap().is_err(), "{key} {bad}");
                }
            } else if value.is_u64() {
                assert!(with(key, u64::MAX.into()).unwrap().is_err(), "{key}");
                assert!(with(key, (1u64 << 63).into()).unwrap().is_err(), "{key}");
                let most = with(key, (1u64 << 20).into()).unwrap();
                assert!(most.is_ok(), "{key}: {most:?}");
            }
        }
        for bad in [f64::NAN, f64::INFINITY] {
            let base = Recipe::default();
            for recipe in [
                Recipe { learning_rate: bad, ..base },
                Recipe { min_learning_rate: bad, ..base },
                Recipe { eps: bad, ..base },
                Recipe { weight_decay: bad, ..base },
                Recipe { clip: bad, ..base },
                Recipe { spike: bad, ..base },
                Recipe { init_std: bad, ..base },
                Recipe { z_loss: bad, ..base },
                Recipe { ema: bad, ..base },
                Recipe { decay_fraction: bad, ..base },
            ] {
                assert!(recipe.check().is_err(), "{recipe:?}");
            }
        }
    }
}
