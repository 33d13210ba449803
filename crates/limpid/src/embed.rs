//! Texts as vectors: the hidden states of a model, pooled, also as sentence-transformers does it.
//!
//! ```no_run
//! use limpid::Lm;
//! use limpid::embed::{Pooling, normalized};
//! let lm = Lm::open("runs/1")?;
//! let [a, b] = ["a cat", "a dog"].map(|text| lm.embed(text, Pooling::Mean).map(normalized));
//! let cosine: f32 = a?.iter().zip(b?).map(|(a, b)| a * b).sum();
//! # Ok::<(), limpid::Error>(())
//! ```

use crate::Lm;
use crate::checkpoint::{Checkpoint, SentenceRecipe};
use crate::config::{ConfigError, unknown};
use crate::error::{Error, Result};
use crate::model::{Component, Mode, Model, Module};
use crate::trace::Keep;
use std::str::FromStr;

/// What the vector of a text is made of, from the hidden states (T, C) of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pooling {
    /// The mean of all, the tokens round the text included.
    #[default]
    Mean,
    /// The first: of an encoder's `[CLS]`.
    Cls,
    /// The last, which of a causal model alone has seen the whole text.
    Last,
    /// The greatest, feature by feature.
    Max,
    /// The sum of all divided by the root of their number.
    MeanSqrtLen,
    /// The mean of all, the first weighted 1, the next 2, ...
    WeightedMean,
}

impl Pooling {
    /// Every one, its name, and sentence-transformers' name of it.
    const ALL: [(Pooling, &str, &str); 6] = [
        (Pooling::Mean, "mean", "mean"),
        (Pooling::Cls, "cls", "cls"),
        (Pooling::Last, "last", "lasttoken"),
        (Pooling::Max, "max", "max"),
        (Pooling::MeanSqrtLen, "mean-sqrt-len", "mean_sqrt_len"),
        (Pooling::WeightedMean, "weighted-mean", "weightedmean"),
    ];

    /// The vector (C) of hidden states (T, C).
    fn pool(self, states: &[f32], width: usize) -> Vec<f32> {
        let rows = states.len() / width;
        let weighted = |weight: fn(usize) -> f64, of: f64| -> Vec<f32> {
            let sum = |c: usize| {
                states.chunks_exact(width).enumerate().map(|(i, row)| weight(i) * f64::from(row[c])).sum::<f64>()
            };
            (0..width).map(|c| (sum(c) / of) as f32).collect()
        };
        let n = rows as f64;
        match self {
            Pooling::Cls => states[..width].to_vec(),
            Pooling::Last => states[(rows - 1) * width..].to_vec(),
            Pooling::Mean => weighted(|_| 1.0, n),
            Pooling::MeanSqrtLen => weighted(|_| 1.0, n.sqrt()),
            Pooling::WeightedMean => weighted(|i| i as f64 + 1.0, n * (n + 1.0) / 2.0),
            Pooling::Max => {
                let greatest =
                    |c: usize| states.chunks_exact(width).map(|row| row[c]).fold(f32::NEG_INFINITY, f32::max);
                (0..width).map(greatest).collect()
            }
        }
    }
}

impl FromStr for Pooling {
    type Err = ConfigError;
    fn from_str(name: &str) -> Result<Pooling, ConfigError> {
        let found = Pooling::ALL.iter().find(|(_, own, theirs)| [*own, *theirs].contains(&name));
        found.map(|found| found.0).ok_or_else(|| unknown("pooling", name, &Pooling::ALL.map(|(_, own, _)| own)))
    }
}

/// A vector divided by its length (L2), so that the dot product of two is the cosine between them. One of zeros stays
/// as it is.
#[must_use]
pub fn normalized(vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length == 0.0 {
        return vector;
    }
    vector.into_iter().map(|x| (f64::from(x) / length) as f32).collect()
}

impl Lm {
    /// A text as one vector (C): the hidden states before the head, pooled. For causal and bidirectional models.
    /// [`normalized`] makes it one of length 1.
    ///
    /// # Errors
    /// If the model has no tokenizer, or the text is empty or longer than the context.
    pub fn embed(&self, text: &str, pooling: Pooling) -> Result<Vec<f32>> {
        self.embed_ids(&self.encode(text)?, pooling)
    }

    /// [`Lm::embed`] of ids, such as [`Lm::encode`] gives.
    ///
    /// # Errors
    /// As [`Lm::embed`], and if an id is not in the vocabulary.
    pub fn embed_ids(&self, ids: &[u32], pooling: Pooling) -> Result<Vec<f32>> {
        let batch = self.batch_of(ids)?;
        let (width, context) = (self.config().d_model, batch.tokens.len());
        // the scores of all heads are not kept, where a mode has the hidden states of all positions without them
        let mode = match (self.config().lm_head, self.config().final_norm) {
            (true, _) => Mode::Score { batch: 1, context },
            (false, false) => Keep::default().mode(1, context),
            (false, true) => Mode::Inspect { batch: 1, context },
        };
        let (model, backend) = self.scoring(mode)?;
        let mut backend = self.intervened(backend, &batch)?;
        let name = if self.config().final_norm {
            Module::MODEL.part(Component::FinalNorm).named("hook_out")
        } else {
            Module::block(self.config().n_layer - 1).named("hook_resid_post")
        };
        // an op has the same number in each of them, and a place of its own where all is kept
        let named = Model::new(self.config(), Mode::Inspect { batch: 1, context: 1 })?;
        let kept = named.tensor(&name).expect("every model has hidden states").region;
        let last = named.ops().iter().rposition(|op| op.output() == kept).expect("an op makes them");
        let hidden = model.ops()[last].output();
        backend.feed(&batch)?;
        backend.forward(model.program.forward(..=last))?;
        let vector = pooling.pool(&backend.read(hidden.for_batch(&batch))?, width);
        if vector.iter().all(|v| v.is_finite()) {
            Ok(vector)
        } else {
            match (self.damaged(&model)?, self.resolved_steps().and_then(|steps| steps.too_large())) {
                (None, Some(error)) => Err(error.into()),
                (weight, _) => Err(Error::NotFinite { weight }),
            }
        }
    }

    /// How sentence-transformers makes vectors with it, if its folder says so, and what is taken of the hidden states
    /// then.
    ///
    /// # Errors
    /// If its folder asks for modules or a pooling that limpid has not.
    pub fn sentence_recipe(&self) -> Result<Option<(SentenceRecipe, Pooling)>> {
        let Some(recipe) = self.checkpoint().map(Checkpoint::sentence_recipe).transpose()?.flatten() else {
            return Ok(None);
        };
        let pooling = recipe.pooling.parse()?;
        Ok(Some((recipe, pooling)))
    }

    /// The ids that sentence-transformers makes of a text by that recipe, and how many the text has beyond the most,
    /// which are left out.
    ///
    /// # Errors
    /// As [`Lm::encode`].
    pub fn sentence_ids(&self, text: &str, recipe: &SentenceRecipe) -> Result<(Vec<u32>, usize)> {
        let mut text = format!("{}{text}", recipe.prompt);
        if recipe.lowercase {
            text = text.to_lowercase();
        }
        let (mut ids, tokenizer) = (self.encode(&text)?, self.tokenizer()?);
        let most = recipe.max_tokens.unwrap_or(usize::MAX).min(self.config().context_length);
        let over = ids.len().saturating_sub(most);
        // what stands after a text stays
        let end = ids.len() - tokenizer.after().len().min(ids.len());
        ids.drain(end.saturating_sub(over)..end);
        Ok((ids, over))
    }
}
