//! The settings of a training, as plain data. A [`Recipe`] decides the numbers, and a run keeps it to its end;
//! [`RunOptions`] say how the run is carried out, and may change when it is resumed. Every field of both is a flag of
//! `train` and a key of its configuration file.

use crate::batches::{Batches, Documents, Objective, WindowOrder, WindowShape};
use limpid_core::config::{Config, ConfigError, Preset, Setting, Settings, axis, settings};
use limpid_core::model::init::Init;
use limpid_core::model::{MemoryPart, Model};
use limpid_core::numeric::element::Element;
use limpid_core::numeric::math::cos;
use limpid_core::ops::{MemorySpace, Terms};
use limpid_core::optimizer::{Method, Rule, muon};
use limpid_data::{DataError, Tokens};
use serde::{Deserialize, Serialize};

/// Elements of the largest pages that memory comes in.
const PAGE: usize = (2 << 20) / 4;

axis! {
    /// The learning rate after the warm-up.
    Schedule, "schedule" {
        /// Half a cosine from the learning rate to the minimum.
        Cosine = "cosine",
        /// A straight line to the minimum.
        Linear = "linear",
        /// No change.
        Constant = "constant",
        /// Warm-up, stable, decay: constant, then a straight line to the minimum over the last `decay_fraction` of the
        /// steps.
        Wsd = "wsd",
    }
}
axis! {
    /// What to do when the loss spikes, or is NaN or infinite.
    Divergence, "divergence" {
        /// Report a spike and go on; stop at a NaN or an infinity.
        Note = "note",
        /// Stop.
        Stop = "stop",
        /// Go back to the last saved state and skip the data that led here.
        Rollback = "rollback",
    }
}
axis! {
    /// How the losses of a step's rows are reduced to one; each row's own loss is always kept.
    Reduction, "reduction" {
        /// Their mean.
        Mean = "mean",
        /// Their sum.
        Sum = "sum",
    }
}

settings! {
    /// What decides the numbers of a training. By default nanoGPT's recipe for characters on a CPU: the preset
    /// `nanogpt-cpu`'s.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct Recipe {
        /// Updates; if none are given, a small text decides (docs/training.md).
        steps: u64 = 2000, Setting::of("N").size().common()
            .also(&["max-iters", "max-steps", "num-iterations", "num-steps"]);
        /// Sequences of a micro-batch.
        batch_size: usize = 12, Setting::of("B").size().common()
            .also(&["device-batch-size", "per-device-train-batch-size", "micro-batch-size"]);
        /// Tokens of a training sequence; 0 for the model's `context_length`.
        context: usize = 0, Setting::of("T").count();
        /// Gradient accumulation: micro-batches whose gradients make one update. They are added up in a binary tree.
        accumulate: usize = 1, Setting::of("N").whole(1, 1 << 20, "at most 2^20").common()
            .also(&["gradient-accumulation-steps", "grad-accum"]);
        /// The optimizer; with muon, adamw updates everything but the matrices inside the blocks.
        optimizer: Method = Method::AdamW, Setting::of("KIND").also(&["optim"]);
        /// Peak learning rate.
        learning_rate: f64 = 1e-3, Setting::of("X").common().also(&["lr"])
            .number(|x| x > 0.0 && x <= f32::MAX as f64, "above 0, and finite in f32");
        /// Learning rate at the end of the schedule.
        min_learning_rate: f64 = 1e-4, Setting::of("X").not_below_zero(MIN_RATE).common().also(&["min-lr"])
            .default_text("the same share of the peak rate as before, usually a tenth");
        /// Steps over which the learning rate rises from near 0.
        warmup_steps: u64 = 100, Setting::of("N").count().common().also(&["warmup-iters"])
            .default_text("at most a tenth of the steps");
        /// Schedule of the learning rate after the warm-up.
        schedule: Schedule = Schedule::Cosine, Setting::of("KIND").also(&["lr-scheduler-type"]);
        /// Step at which cosine and linear reach the minimum rate (nanoGPT's `lr_decay_iters`); 0 for the last step.
        decay_steps: u64 = 0, Setting::of("N").count().also(&["lr-decay-iters"]);
        /// Share of the steps over which wsd decays.
        decay_fraction: f64 = 0.2, Setting::of("X").number(|x| (0.0..=1.0).contains(&x), "from 0 to 1");
        /// Decay rate of the first moment; for sgd, the momentum.
        beta1: f64 = 0.9, Setting::of("X").below_one().also(&["adam-beta1", "momentum"]);
        /// Decay rate of the second moment.
        beta2: f64 = 0.99, Setting::of("X").below_one().also(&["adam-beta2"]);
        /// Added to the square root of the second moment.
        eps: f64 = 1e-8, Setting::of("X").also(&["adam-epsilon"])
            .number(|x| x as f32 > 0.0 && x <= f32::MAX as f64, "above 0, and finite in f32");
        /// Momentum of muon.
        muon_momentum: f64 = 0.95, Setting::of("X").below_one();
        /// Weight decay of matrices; vectors have none.
        weight_decay: f64 = 0.1, Setting::of("X").not_below_zero("0 or more, and finite in f32");
        /// Gradient clipping: the greatest norm of the whole gradient; 0 for no clipping.
        clip: f64 = 1.0, Setting::of("X").also(&["grad-clip", "max-grad-norm", "max-norm"])
            .not_below_zero("0 for no clipping, or the greatest norm of the gradient");
        /// How the losses of a step's tokens are reduced to one.
        reduction: Reduction = Reduction::Mean, Setting::of("KIND");
        /// Label smoothing: the share of each target that is spread evenly over all tokens.
        label_smoothing: f64 = 0.0, Setting::of("X").below_one().also(&["label-smoothing-factor"]);
        /// Weight of the squared log-sum-exp of the logits, which keeps them from drifting.
        z_loss: f64 = 0.0, Setting::of("X").number(|x| (0.0..=1.0).contains(&x), "from 0 to 1; 0.0001 is usual");
        /// Decay rate of an exponential moving average of the weights, which is then evaluated and kept (usually
        /// 0.999); 0 for none.
        ema: f64 = 0.0, Setting::of("X").below_one().also(&["ema-decay"]);
        /// Initialisation of the weights.
        init: Init = Init::Gpt2, Setting::of("KIND");
        /// Standard deviation of normal initial weights; 0 for 0.02 sqrt(768 / d_model), GPT-2's 0.02 scaled to the
        /// width.
        init_std: f64 = 0.0, Setting::of("X").also(&["initializer-range"])
            .not_below_zero("0 for a value that suits the width, or above 0");
        /// Decides initial weights, batches and dropout.
        seed: u64 = 1337, Setting::of("N").whole(0, i64::MAX as u64, "below 2^63").common();
        /// Share of the text kept for validation.
        val_fraction: f64 = 0.1, Setting::of("X").below_one();
        /// Order of the text's windows: random, sequential (whole batches from the beginning, as in llm.c), or
        /// shuffled.
        windows: WindowOrder = WindowOrder::Random, Setting::of("ORDER");
        /// Fill windows with whole documents instead of cutting the token stream anywhere.
        whole_documents: bool = false, Setting::of("BOOL").default_text("true for conversations, else false");
        /// Whether a document attends to those before it in its window.
        cross_documents: bool = true, Setting::of("BOOL").default_text("false for conversations, else true");
    }
}

const MIN_RATE: &str = "from 0 to the learning rate";

settings! {
    /// How a run is carried out: the settings that may change when it is resumed.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct RunOptions {
        /// Steps between evaluations; 0 for the end only.
        eval_every: u64 = 250, Setting::of("N").count().common().also(&["eval-interval", "eval-steps"]);
        /// About how many tokens an evaluation during training predicts; the last evaluation takes all.
        eval_tokens: usize = 20_000, Setting::of("N").count();
        /// Steps between saves of the state; 0 for the end only.
        save_every: u64 = 250, Setting::of("N").count().also(&["save-steps"]);
        /// Earlier saved states to keep besides the last.
        keep: usize = 0, Setting::of("N").count().also(&["save-total-limit"]);
        /// Early stopping: evaluations without a better loss after which training ends; 0 for never.
        patience: u64 = 0, Setting::of("N").count().also(&["early-stopping-patience"]);
        /// Steps between log lines of every layer's gradient, weight and update norms; 0 for none.
        #[serde(alias = "detail_every")]
        layer_stats_every: u64 = 10, Setting::of("N").count().also(&["detail-every"]);
        /// A loss this many standard deviations above the mean of the recent ones is a spike; 0 to look for none.
        #[serde(alias = "spike")]
        spike_sigma: f64 = 8.0, Setting::of("X").also(&["spike"])
            .not_below_zero("0 to look for none, or standard deviations above the recent losses");
        /// What to do when the loss spikes or is not finite: report it and continue if possible, stop, or roll back to
        /// the last saved state and skip the data that led there.
        divergence: Divergence = Divergence::Note, Setting::of("KIND").also(&["on-divergence"]);
        /// Record in timelapse.lpt what the model does inside while it learns: up to 200 frames, as many as take 1 % of
        /// the time, for `limpid timelapse` and the page (docs/inside.md).
        probe: bool = false, Setting::of("BOOL").common();
        /// Steps between the frames of --probe after the first ones; 0 for as many frames as fit in 1 % of the time.
        probe_every: u64 = 0, Setting::of("N").count();
        /// Check before the first step that training can work.
        preflight: bool = true, Setting::of("BOOL");
    }
}

impl Settings for RunOptions {}

impl Settings for Recipe {
    fn follow(&mut self, was: &Recipe, given: &dyn Fn(&str) -> bool) {
        if given("learning_rate") && !given("min_learning_rate") {
            self.min_learning_rate = was.min_learning_rate * (self.learning_rate / was.learning_rate);
        }
        if given("steps") && !given("warmup_steps") {
            // a short run warms up for at most a tenth of its steps
            let shorter = self.steps < was.steps;
            self.warmup_steps = if shorter { was.warmup_steps.min(self.steps / 10) } else { was.warmup_steps };
        }
    }
}

/// The names of the settings that may change when a run is resumed.
pub(crate) fn changeable() -> String {
    RunOptions::OWN.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ")
}

/// The defaults of `T` with a preset's own training settings.
fn preset<T: Settings>(name: &str) -> Result<T, ConfigError> {
    let (mut settings, training) = (T::default(), &Preset::named(name)?.training);
    let known: Vec<&str> = T::default().fields().iter().map(|(setting, _)| setting.name).collect();
    let mut own = training.iter().filter(|(name, _)| known.contains(&name.as_str()));
    own.try_for_each(|(name, text)| settings.set(name, text))?;
    Ok(settings)
}

/// All settings of a run, as its state has them.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunSettings {
    #[serde(flatten)]
    pub recipe: Recipe,
    #[serde(flatten)]
    pub options: RunOptions,
}

impl RunSettings {
    /// Whether every number is in its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.recipe.check()?;
        self.options.check_ranges()
    }
}

impl RunOptions {
    /// The options that go with a preset; docs/presets.md lists the choices.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<RunOptions, ConfigError> {
        preset(name)
    }

    /// The options to fine-tune a trained model: it is evaluated and saved more often.
    pub fn fine_tuning() -> RunOptions {
        RunOptions { eval_every: 50, save_every: 50, ..RunOptions::DEFAULT }
    }
}

impl Recipe {
    /// The recipe that goes with a preset; docs/presets.md lists the choices.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Recipe, ConfigError> {
        preset(name)
    }

    /// The recipe to fine-tune a trained model: few steps, and a learning rate that falls with its width and is ten
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
            ..Recipe::DEFAULT
        }
    }

    /// How windows treat documents.
    pub fn documents(&self) -> Documents {
        Documents { whole: self.whole_documents, cross: self.cross_documents }
    }

    /// The batches of a text; the context is the one trained on, not 0.
    ///
    /// # Errors
    /// As [`Batches::new`].
    pub fn batches<'a>(&self, text: &'a Tokens, objective: Objective) -> Result<Batches<'a>, DataError> {
        let Recipe { batch_size, context, seed, .. } = *self;
        let windows = WindowShape { context, objective, documents: self.documents() };
        let batches = Batches::new(text, windows, batch_size, seed)?;
        Ok(batches.accumulated(self.accumulate).ordered(self.windows))
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
        let last = if self.decay_steps == 0 { end } else { self.decay_steps as f64 };
        match self.schedule {
            Schedule::Constant => top,
            Schedule::Cosine => least + 0.5 * (top - least) * (1.0 + cos(std::f64::consts::PI * share(warm, last))),
            Schedule::Linear => top + (least - top) * share(warm, last),
            Schedule::Wsd => top + (least - top) * share(end - self.decay_fraction * end, end),
        }
    }

    /// The terms that training adds to each row's loss.
    pub fn terms(&self) -> Terms {
        Terms { smoothing: self.label_smoothing as f32, z_loss: self.z_loss as f32 }
    }

    /// The decay rate of the moving average in the step after `step` steps. It is smaller at first, so that the initial
    /// weights are soon forgotten.
    pub fn averaging(&self, step: u64) -> f64 {
        if step == 0 { 0.0 } else { self.ema.min((1 + step) as f64 / (10 + step) as f64) }
    }

    /// Bytes that training takes besides the model's own ([`Model::memory`]): the optimizer's moments, the average of
    /// the weights, scratch memory for the largest of muon's matrices, and gradients of micro-batches that wait to be
    /// added up.
    pub fn memory(&self, model: &Model) -> Vec<(MemoryPart, usize)> {
        let average = if self.ema > 0.0 { model.bytes(MemorySpace::Average) } else { 0 };
        let groups = model.update_groups(self.weight_decay, self.optimizer);
        let room = muon::waves(&groups).map(muon::elements).max();
        let size = model.program.size(MemorySpace::Moment1);
        // a parameter with one moment does not touch the memory of the second; the system gives memory in pages of at
        // most 2 MiB
        let two = groups.iter().filter(|g| self.optimizer != Method::Sgd && g.matrix.is_none() && !g.range.is_empty());
        let mut pages: Vec<_> = two.map(|g| g.range.start / PAGE..g.range.end.div_ceil(PAGE)).collect();
        pages.sort_by_key(|pages| pages.start);
        let (mut moments, mut reached) = (size, 0);
        for pages in pages {
            let from = pages.start.max(reached);
            reached = pages.end.max(reached);
            moments += (reached * PAGE).min(size) - (from * PAGE).min(size);
        }
        vec![
            (MemoryPart::Moments, model.element(MemorySpace::Moment1).bytes(moments)),
            (MemoryPart::Average, average),
            (MemoryPart::MuonMatrices, Element::F32.bytes(room.unwrap_or(0))),
            (MemoryPart::GradientsAside, model.bytes(MemorySpace::Grad) * self.accumulate.max(1).ilog2() as usize),
        ]
    }

    /// Bytes of address space that are reserved for training and never touched: second moments and an average that are
    /// not used.
    pub fn untouched(&self, model: &Model) -> usize {
        let reserved =
            [MemorySpace::Moment1, MemorySpace::Moment2, MemorySpace::Average].map(|space| model.bytes(space));
        let parts = self.memory(model).into_iter();
        let used = parts.filter(|(part, _)| matches!(part, MemoryPart::Moments | MemoryPart::Average));
        reserved.iter().sum::<usize>() - used.map(|(_, bytes)| bytes).sum::<usize>()
    }

    /// The update of one step.
    pub fn rule(&self, rate: f64, step: u64) -> Rule {
        let max_norm = if self.clip > 0.0 { self.clip } else { f64::INFINITY };
        let Recipe { beta1, beta2, muon_momentum: momentum, eps, .. } = *self;
        Rule { method: self.optimizer, rate, beta1, beta2, momentum, eps, step, max_norm, norm: None, most_loss: None }
    }

    /// Says whether every number is in its range.
    ///
    /// # Errors
    /// Names the first that is not, and what it may be.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_ranges()?;
        let (rate, least) = (self.learning_rate, self.min_learning_rate);
        if least > rate {
            return Err(ConfigError::Range { what: "min_learning_rate", found: least.to_string(), expected: MIN_RATE });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_core::config::Fields;

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
        let early = Recipe { steps: 5000, decay_steps: 1000, ..recipe };
        [0, 100, 550, 1000].iter().for_each(|step| near(early.rate(*step), recipe.rate(*step)));
        near(early.rate(4999), 1e-4);
        let wsd = Recipe { schedule: Schedule::Wsd, ..recipe };
        near(wsd.rate(800), 1e-3);
        near(wsd.rate(900), 5.5e-4);
    }

    /// States of runs that an older limpid began have settings by the names that they had then.
    #[test]
    fn old_names_are_read_from_a_state() {
        let mut state = serde_json::to_value(RunSettings::default()).unwrap();
        for (old, new, value) in [("spike", "spike_sigma", 3.5), ("detail_every", "layer_stats_every", 7.0)] {
            let fields = state.as_object_mut().unwrap();
            assert!(fields.remove(new).is_some());
            fields.insert(old.into(), if value == 7.0 { 7.into() } else { value.into() });
        }
        let RunSettings { options, .. } = serde_json::from_value(state).unwrap();
        assert_eq!((options.spike_sigma, options.layer_stats_every), (3.5, 7));
    }

    #[test]
    fn a_number_out_of_range_is_named() {
        let error = Recipe { beta2: 1.0, ..Recipe::default() }.check().unwrap_err().to_string();
        assert_eq!(error, "beta2 is 1: at least 0 and less than 1");
    }

    /// Every number is held to its range, whoever sets it: a flag, a file, the environment, a program.
    #[test]
    fn no_number_passes_that_cannot_be_trained_or_written() {
        let valid = serde_json::to_value(RunSettings::default()).unwrap();
        let with = |key: &str, value: serde_json::Value| {
            let mut changed = valid.clone();
            changed[key] = value;
            serde_json::from_value::<RunSettings>(changed).map(|chosen| chosen.check())
        };
        let mut numbers = 0;
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
            numbers += usize::from(value.is_number());
        }
        assert!(numbers > 20, "{valid}");
        assert!(with("stepps", 1.into()).is_err(), "an unknown key is refused");
        for bad in ["nan", "inf"] {
            for (setting, value) in Recipe::default().fields() {
                if value.number().is_some() && value.whole().is_none() {
                    let mut recipe = Recipe::default();
                    recipe.set(setting.name, bad).unwrap();
                    assert!(recipe.check().is_err(), "{} {bad}", setting.name);
                }
            }
        }
    }

    /// What a preset says of its training is a setting of the recipe or of how a run is carried out, in its range.
    #[test]
    fn presets_say_what_there_is() {
        let names = serde_json::to_value(RunSettings::default()).unwrap();
        for preset in Preset::all() {
            Recipe::preset(preset.name).unwrap().check().unwrap();
            RunOptions::preset(preset.name).unwrap().check_ranges().unwrap();
            for name in preset.training.keys() {
                assert!(names.get(name).is_some(), "{}: {name}", preset.name);
            }
        }
        assert_eq!(RunOptions::preset("llmc-gpt2").unwrap().eval_every, 10);
        assert_eq!(Recipe::preset("Nano_Llama").unwrap().optimizer, Method::Muon);
        let error = Recipe::preset("nanno").unwrap_err().to_string();
        assert!(error.contains("did you mean `nano`"), "{error}");
    }

    #[test]
    fn what_follows_from_a_setting_follows() {
        let over = |layers: &[&[(&'static str, &str)]]| {
            let layer =
                |layer: &&[(&'static str, &str)]| layer.iter().map(|(name, text)| (*name, text.to_string())).collect();
            let layers: Vec<Vec<_>> = layers.iter().map(layer).collect();
            let recipe = Recipe::default().over(&layers).unwrap();
            (recipe.warmup_steps, recipe.min_learning_rate)
        };
        assert_eq!(over(&[]), (100, 1e-4));
        assert_eq!(over(&[&[("steps", "100"), ("learning_rate", "0.002")]]), (10, 2e-4));
        assert_eq!(over(&[&[("steps", "100")], &[("steps", "4000")]]), (100, 1e-4), "as long as it was at first");
        assert_eq!(over(&[&[("warmup_steps", "50")], &[("steps", "100")]]), (10, 1e-4), "the later shorter run");
        assert_eq!(over(&[&[("steps", "100"), ("warmup_steps", "50")]]), (50, 1e-4));
        assert_eq!(over(&[&[("min_learning_rate", "0")], &[("lr", "")][..0]]), (100, 0.0));
        let error = Recipe::default().over(&[vec![("steps", "many")]]).unwrap_err().to_string();
        assert_eq!(error, "steps is `many`: it must be a whole number, in digits alone");
    }
}
