//! Which parameters of a model learn: all, some by their names, or low-rank matrices beside its weights.
//!
//! A frozen parameter is stored among the constants. It has no gradient and no moments, and gradients that only it
//! needs are not computed (`plan::differentiate`). LoRA (Hu et al. 2021) freezes the model and adds a low-rank
//! product to chosen products:
//!
//!   y = x W' + b + (alpha / r) (x A') B',   A: (r, in), B: (out, r)
//!
//! Only A and B learn. B starts as zeros, so the adapted model starts as the model itself.

use super::Param;
use crate::config::{ConfigError, unknown};
use glob::Pattern;
use serde::{Deserialize, Serialize};

/// Which parameters learn, as plain data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// Names of parameters that do not learn, with `*`, `?` and `[0-5]`.
    pub freeze: Vec<String>,
    /// Names of the only parameters that learn; empty for all.
    pub train_only: Vec<String>,
    /// A low-rank adapter, which learns instead of the model.
    pub lora: Option<Lora>,
}

/// A low-rank adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// r
    pub rank: usize,
    /// The adapter's product is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Dropout on its input.
    pub dropout: f64,
    /// The products that get an adapter: `attention`, `feed-forward`, or names without `.weight`, with `*`, `?` and
    /// `[0-5]`.
    pub targets: Vec<String>,
}

/// The words that `targets` may hold, and the patterns that they mean.
const GROUPS: [(&str, &str); 2] = [("attention", "*.attn.*"), ("feed-forward", "*.mlp.*")];

fn matches(pattern: &str, name: &str) -> bool {
    Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(name))
}

impl Lora {
    /// The factor of the adapter's product.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
    /// Whether the product called `name` gets an adapter.
    pub fn adapts(&self, name: &str) -> bool {
        self.targets.iter().any(|target| matches(Lora::pattern(target), name))
    }
    fn pattern(target: &str) -> &str {
        GROUPS.iter().find(|(word, _)| *word == target).map_or(target, |(_, pattern)| pattern)
    }
}

impl Tuning {
    /// Whether a parameter learns.
    pub(super) fn trains(&self, name: &str, adapter: bool) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
        match self.lora {
            Some(_) => adapter,
            None => !any(&self.freeze) && (self.train_only.is_empty() || any(&self.train_only)),
        }
    }

    /// Checks that every pattern matches a name, and that at least one parameter learns.
    pub(super) fn check(&self, params: &[Param]) -> Result<(), ConfigError> {
        let own = || params.iter().filter(|p| !p.is_adapter());
        for pattern in self.freeze.iter().chain(&self.train_only) {
            known("parameter", (pattern, pattern), &[], own().map(|p| (p.name.clone(), p.pattern("*"))))?;
        }
        if let Some(lora) = &self.lora {
            let range = |what, found: f64, ok: bool, expected| {
                if ok { Ok(()) } else { Err(ConfigError::Range { what, found: found.to_string(), expected }) }
            };
            range("lora rank", lora.rank as f64, (1..=1 << 16).contains(&lora.rank), "from 1 to 65536")?;
            range("lora alpha", lora.alpha, lora.alpha > 0.0 && lora.alpha.is_finite(), "it must be above 0")?;
            range("lora dropout", lora.dropout, (0.0..1.0).contains(&lora.dropout), "at least 0 and less than 1")?;
            for target in &lora.targets {
                let products = own().filter(|p| p.is_inside()).map(|p| (p.module.name(), p.module.pattern("*")));
                known("lora target", (target, Lora::pattern(target)), &GROUPS.map(|(word, _)| word), products)?;
            }
        }
        if params.iter().any(|p| p.region.learns()) { Ok(()) } else { Err(ConfigError::NothingLearns) }
    }
}

/// Refuses a pattern that no name matches; the error lists `words` and the `names` that exist, those of all blocks as
/// one.
fn known(
    what: &'static str,
    (said, pattern): (&str, &str),
    words: &[&str],
    names: impl Iterator<Item = (String, String)>,
) -> Result<(), ConfigError> {
    let mut kinds: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    for (name, kind) in names {
        if matches(pattern, &name) {
            return Ok(());
        }
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    Err(unknown(what, said, &kinds.iter().map(String::as_str).collect::<Vec<_>>()))
}
