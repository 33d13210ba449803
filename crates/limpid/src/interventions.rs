//! Interventions resolved against a model. [`Lm::intervene`] checks their steps, runs the prompts that values come
//! from, and returns a model that applies them in every run. Read `trace::interventions` for what steps are, and for
//! how a run is changed.

use crate::Lm;
use crate::error::{Error, Result};
use crate::generate::{DecodeError, GenerateError};
use crate::model::{Mode, Model};
use crate::trace::interventions::{
    Action, ColumnAction, Condition, Direction, InterventionError, Interventions, Numbers, Positions, ResolvedStep,
    ResolvedSteps, Source, SourceText, Step, StepCondition, StepPositions, StepSite, WeightAction, position_in,
    unit_vector,
};
use crate::trace::{Keep, Trace};
use crate::trace::{NamedTensor, TraceError};
use limpid_base::budget::Budget;
use std::sync::Arc;

pub(crate) mod files;

impl Lm {
    /// The same model with every run changed: generation, scores, traces and vectors. Both share the weights, which
    /// stay unchanged. On a model that has interventions, the new ones are added. Prompts that values come from run
    /// without any. Files that steps name are read, and [`Lm::interventions`] has their numbers in place of their
    /// names.
    ///
    /// ```no_run
    /// # use limpid::{Interventions, Step};
    /// # let lm = limpid::Lm::open("runs/1")?;
    /// let silenced = lm.intervene(&Interventions::new([Step::ablate("blocks.0.attn.hook_z").head([1, 5])]))?;
    /// let (plain, without) = (lm.score("to be or", " not to be")?, silenced.score("to be or", " not to be")?);
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a step does not fit the model, a file cannot be used, or a prompt that values come from cannot be run.
    /// Positions are checked when a prompt runs.
    pub fn intervene(&self, interventions: &Interventions) -> Result<Lm> {
        interventions.check()?; // before any list of them is gone through
        self.intervene_within(&files::read(interventions, self)?, &Arc::default())
    }

    /// What interventions are on this model, for one request among others of an engine ([`EngineRequest::steps`]), with
    /// a budget for the runs that values come from. No file is read.
    ///
    /// # Errors
    /// As [`Lm::intervene_within`].
    ///
    /// [`EngineRequest::steps`]: crate::engine::EngineRequest::steps
    pub fn resolve(&self, interventions: &Interventions, budget: &Arc<Budget>) -> Result<ResolvedSteps> {
        interventions.check()?;
        Resolver::new(self, budget)?.resolve(interventions)
    }
}

/// The steps of a list held against a model, one after another.
pub(crate) struct Resolver {
    /// Without interventions.
    lm: Lm,
    named: Model,
    /// Runs of sources: their tokens, their steps, and their traces.
    runs: Vec<(Vec<u32>, Option<Interventions>, Trace)>,
    budget: Arc<Budget>,
}

/// A step, its place in the list, and the site that it is about.
#[derive(Clone, Copy)]
struct Asked<'a> {
    number: usize,
    step: &'a Step,
    site: &'a StepSite,
}

impl Asked<'_> {
    fn wrong<T>(self, what: impl Into<String>) -> Result<T> {
        Err(InterventionError::Step { step: self.number, what: what.into() }.into())
    }
}

impl Resolver {
    pub(crate) fn new(lm: &Lm, budget: &Arc<Budget>) -> Result<Resolver> {
        let named = Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 })?;
        Ok(Resolver { lm: lm.without_interventions(), named, runs: vec![], budget: budget.clone() })
    }

    /// What the steps, which were checked, are on this model. Prompts are run that they take activations from.
    fn resolve(&mut self, interventions: &Interventions) -> Result<ResolvedSteps> {
        let mut all: Vec<ResolvedStep> = vec![];
        for (number, step) in (1..).zip(&interventions.steps) {
            let resolved = self.step(number, step).map_err(|error| match error {
                // what is wrong with a prompt is wrong with the step that names it
                Error::TooLong { .. } | Error::Empty | Error::Generate(_) | Error::NoTokenizer => {
                    InterventionError::Step { step: number, what: format!("its source: {error}") }.into()
                }
                other => other,
            })?;
            let resolved: ResolvedSteps = resolved.into_iter().collect();
            self.take(resolved.bytes())?;
            all.extend(resolved.iter().cloned());
        }
        Ok(all.into_iter().collect())
    }

    /// Takes memory from the budget, and asks whether there is time.
    fn take(&self, bytes: usize) -> Result<()> {
        let taken = self.budget.take_bytes(bytes as u64).and_then(|()| self.budget.take_steps(1));
        taken.map_err(|why| TraceError::Spent { what: "the interventions".into(), why }.into())
    }

    fn step(&mut self, number: usize, step: &Step) -> Result<Vec<ResolvedStep>> {
        let positions = match &step.pos {
            None | Some(Positions::All) => StepPositions::All,
            Some(Positions::Prompt) => StepPositions::Prompt,
            Some(Positions::Generated) => StepPositions::Generated,
            Some(Positions::These(listed)) => StepPositions::These(listed.list()),
            Some(Positions::Token(text)) => StepPositions::Token(self.lm.tokenizer()?.encode(text)?),
        };
        let name = match &step.action {
            Action::FreezeAttention { layer, from } => return self.freeze(number, step, layer.as_ref(), from),
            Action::ControlVector { control_vector, by, layer } => {
                let vectors = files::chosen(control_vector, layer.as_ref(), self.lm.config().n_layer, number)?;
                let steps = vectors.into_iter().map(|(layer, vector)| {
                    let site = StepSite::find(&self.named, &format!("blocks.{layer}.hook_resid_post"), number)?;
                    let action = ColumnAction::Add(vector.iter().map(|v| v * by).collect());
                    let shown = site.shown(None, None)?;
                    let resolved = site.step(&shown, positions.clone(), action)?;
                    self.conditional(Asked { number, step, site: &site }, &shown, resolved)
                });
                return steps.collect();
            }
            Action::Zero { site } | Action::Mean { site, .. } | Action::Patch { site, .. } => site,
            Action::Scale { site, .. } | Action::Steer { site, .. } | Action::ProjectOut { site, .. } => site,
            Action::Set { site, .. } | Action::SetRow { site, .. } => site,
        };
        let site = StepSite::find(&self.named, name, number)?;
        let asked = Asked { number, step, site: &site };
        let heads = step.head.as_ref().map(Numbers::places);
        if site.is_pattern() {
            let action = self.weights(asked)?;
            let resolved = site.weights_step(heads.as_deref(), positions, action)?;
            return Ok(vec![self.conditional(asked, &[], resolved)?]);
        }
        let shown = site.shown(heads.as_deref(), step.unit.as_ref().map(Numbers::places).as_deref())?;
        let action = self.columns(asked, &shown, &positions)?;
        let resolved = site.step(&shown, positions, action)?;
        Ok(vec![self.conditional(asked, &shown, resolved)?])
    }

    /// The same where the step's condition holds, if it has one.
    fn conditional(&mut self, asked: Asked, shown: &[usize], resolved: ResolvedStep) -> Result<ResolvedStep> {
        let (probe, than, above) = match &asked.step.when {
            None => return Ok(resolved),
            Some(Condition::Token { token }) => {
                let ids = token.iter().map(|text| match self.lm.tokenizer()?.encode(text)?[..] {
                    [id] => Ok(id),
                    ref ids => asked.wrong(format!(
                        "`when` names one token at a time, and {text:?} is {}: give one of these, or `pos`",
                        ids.len()
                    )),
                });
                return Ok(resolved.when(StepCondition::Token(ids.collect::<Result<_>>()?))?);
            }
            Some(Condition::Above { probe, above }) => (probe, *above, true),
            Some(Condition::Below { probe, below }) => (probe, *below, false),
        };
        if asked.site.is_pattern() {
            return asked.wrong(format!("`{}` has no columns for a probe: leave `when` out", asked.site.name));
        }
        let unit = self.unit(asked, "probe", probe, shown)?;
        let threshold = f64::from(asked.site.unstretched([than])[0]);
        Ok(resolved.when(StepCondition::Probe { unit, threshold, above })?)
    }

    /// A direction of length 1.
    fn unit(&mut self, asked: Asked, key: &str, direction: &Direction, shown: &[usize]) -> Result<Arc<[f64]>> {
        let vector = self.direction(asked, direction, shown)?;
        if vector.len() != shown.len() {
            let (name, wide) = (&asked.site.name, shown.len());
            return asked.wrong(format!("`{name}` has {wide} numbers here and `{key}` has {}", vector.len()));
        }
        unit_vector(&vector).map_or_else(|| asked.wrong(format!("`{key}` is zero, which has no direction")), Ok)
    }

    /// What becomes of columns of an op's output.
    fn columns(&mut self, asked: Asked, shown: &[usize], positions: &StepPositions) -> Result<ColumnAction> {
        let (site, name) = (asked.site, &asked.site.name);
        Ok(match &asked.step.action {
            Action::Zero { .. } => ColumnAction::Set(vec![0.0; shown.len()].into()),
            Action::Scale { key: Some(_), .. } => asked.wrong(format!("`{name}` has no keys: leave `key` out"))?,
            Action::Scale { by, .. } => ColumnAction::Scale(*by),
            Action::Set { value, .. } => {
                let value = if let [all] = value[..] { &vec![all; shown.len()] } else { value };
                ColumnAction::Set(site.unstretched(value.iter().copied()).into())
            }
            Action::Mean { of, .. } => {
                let rows = self.rows(asked, of, shown)?;
                let mean = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64;
                ColumnAction::Set((0..shown.len()).map(|i| mean(i) as f32).collect())
            }
            Action::Steer { by, add, .. } => {
                let vector = self.direction(asked, add, shown)?;
                ColumnAction::Add(vector.into_iter().map(|v| v * by).collect())
            }
            Action::ProjectOut { direction, keep_norm, .. } => {
                let unit = self.unit(asked, "direction", direction, shown)?;
                ColumnAction::ProjectOut { unit, keep_norm: *keep_norm }
            }
            Action::Patch { from, from_pos: None, .. } => ColumnAction::SetFrom(self.rows(asked, from, shown)?.into()),
            Action::Patch { from, from_pos: Some(sources), .. } => {
                let (rows, sources) = (self.rows(asked, from, shown)?, sources.list());
                let StepPositions::These(targets) = positions else {
                    return asked.wrong("`from_pos` needs `pos` to be a number or a list of as many");
                };
                if sources.len() != targets.len() && sources.len() != 1 {
                    let counts = format!("{} and {}", sources.len(), targets.len());
                    return asked.wrong(format!("`from_pos` and `pos` have {counts} positions: give as many of both"));
                }
                let each = targets.iter().zip(sources.iter().cycle());
                let each = each.map(|(_, source)| row_at(asked, &rows, *source).cloned());
                ColumnAction::SetEach(each.collect::<Result<_>>()?)
            }
            Action::SetRow { .. } => asked.wrong(format!("`{name}` has no keys: give `value` in place of `row`"))?,
            Action::FreezeAttention { .. } | Action::ControlVector { .. } => asked.wrong("it has sites of its own")?,
        })
    }

    /// What becomes of weights of attention.
    fn weights(&mut self, asked: Asked) -> Result<WeightAction> {
        if asked.step.unit.is_some() {
            return asked.wrong(format!("`{}` has heads and no units: leave `unit` out", asked.site.name));
        }
        Ok(match &asked.step.action {
            Action::Zero { .. } => WeightAction::Scale(0.0, None),
            Action::Scale { by, key, .. } => {
                let keys = key.as_ref().map(|keys| Arc::new(keys.places().into_iter().collect()));
                WeightAction::Scale(*by, keys)
            }
            Action::SetRow { row, .. } => WeightAction::Set(Arc::new(row.clone())),
            Action::Patch { from, from_pos: None, .. } => {
                WeightAction::From(self.tensor(asked.number, from, &asked.site.name)?)
            }
            _ => {
                let allowed = "`ablate`, `scale`, `set` with `row`, or `patch` without `from_pos`";
                asked.wrong(format!("weights of attention change by {allowed}"))?
            }
        })
    }

    /// The weights of attention of another run in some layers.
    fn freeze(
        &mut self,
        number: usize,
        step: &Step,
        layers: Option<&Numbers>,
        from: &Source,
    ) -> Result<Vec<ResolvedStep>> {
        let n_layer = self.lm.config().n_layer;
        let heads = step.head.as_ref().map(Numbers::places);
        let mut steps = vec![];
        for layer in layers.map_or_else(|| (0..n_layer).collect(), Numbers::places) {
            if layer >= n_layer {
                let what = format!("there is no layer {layer}: the model has {n_layer}, counted from 0");
                return Err(InterventionError::Step { step: number, what }.into());
            }
            let name = format!("blocks.{layer}.attn.hook_pattern");
            let site = StepSite::find(&self.named, &name, number)?;
            let action = WeightAction::From(self.tensor(number, from, &name)?);
            steps.push(site.weights_step(heads.as_deref(), StepPositions::Prompt, action)?);
        }
        Ok(steps)
    }

    /// A tensor of the run of a source.
    fn tensor(&mut self, number: usize, source: &Source, name: &str) -> Result<Arc<NamedTensor>> {
        let ids = match &source.text {
            SourceText::Prompt(text) => self.lm.encode(text)?,
            SourceText::Tokens(ids) => ids.clone(),
        };
        let vocab_size = self.lm.config().vocab_size;
        if let Some((index, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab_size) {
            return Err(GenerateError::from(DecodeError::Token { id: *id, index, vocab_size }).into());
        }
        let known = self.runs.iter().position(|(tokens, steps, _)| *tokens == ids && *steps == source.steps);
        let place = match known {
            Some(place) => place,
            None => {
                let run = self.begin(&ids, source.steps.as_ref()).map_err(|error| match error {
                    Error::Intervention(error) => {
                        InterventionError::Step { step: number, what: format!("its source: {error}") }.into()
                    }
                    other => other,
                })?;
                self.runs.push((ids, source.steps.clone(), run));
                self.runs.len() - 1
            }
        };
        Ok(self.runs[place].2.shared(name)?)
    }

    fn begin(&mut self, ids: &[u32], steps: Option<&Interventions>) -> Result<Trace> {
        let steps = steps.map(|steps| self.resolve(steps)).transpose()?;
        if (1..=self.lm.config().context_length).contains(&ids.len()) {
            self.take(self.lm.trace_bytes(ids.len(), Keep::default())?)?;
        }
        let mut run = self.lm.trace_batch(&self.lm.batch_of(ids)?, steps.map(Arc::new), Keep::default())?;
        run.spend(&self.budget);
        Ok(run)
    }

    /// Some columns of the site in another run, position by position.
    fn rows(&mut self, asked: Asked, source: &Source, shown: &[usize]) -> Result<Vec<Arc<[f32]>>> {
        let tensor = self.tensor(asked.number, source, asked.site.tensor())?;
        let tokens = tensor.shape[1];
        let rows = tensor.values.chunks_exact((tensor.values.len() / tokens.max(1)).max(1));
        Ok(rows.map(|row| shown.iter().map(|column| row[*column]).collect()).collect())
    }

    /// What is added to some columns of the site.
    fn direction(&mut self, asked: Asked, add: &Direction, shown: &[usize]) -> Result<Vec<f32>> {
        match add {
            Direction::Vector { vector } => Ok(asked.site.unstretched(vector.iter().copied())),
            Direction::File { file, .. } => {
                let (path, instead) = (file.clone(), "{\"vector\": [numbers]}");
                Err(InterventionError::NoFiles { step: asked.number, path, instead }.into())
            }
            Direction::Difference { difference, pos } => {
                let [first, second] = difference.each_ref().map(|text| self.rows(asked, &Source::prompt(text), shown));
                let (first, second, at) = (first?, second?, pos.unwrap_or(-1));
                let (first, second) = (row_at(asked, &first, at)?, row_at(asked, &second, at)?);
                Ok(first.iter().zip(second.iter()).map(|(a, b)| a - b).collect())
            }
        }
    }
}

/// The row of a position; negative ones are counted from the end.
fn row_at<'a>(asked: Asked, rows: &'a [Arc<[f32]>], at: i64) -> Result<&'a Arc<[f32]>> {
    match position_in(at, rows.len()).and_then(|place| rows.get(place)) {
        Some(row) => Ok(row),
        None => asked.wrong(format!("the source has {} tokens and no position {at}", rows.len())),
    }
}
