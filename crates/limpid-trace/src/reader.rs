//! Reads tensors, and their gradients, out of the memory of a run: by name, in the order of the field, and what is
//! derived of them.

use crate::names::{self, Derived};
use crate::sheet::{AttentionHead, Sheet};
use crate::{NamedTensor, TraceError, named_rows, parameter, parameter_part, unknown};
use limpid_core::backend::Backend;
use limpid_core::kernels::attend::Stage;
use limpid_core::kernels::dropout::{Draws, weight_index};
use limpid_core::model::{Axes, Model, Param, Tensor};
use limpid_core::ops::{Batch, Op, Region, Scoring, Target};
use std::sync::Arc;

/// A run whose tensors are in the memory of a backend.
pub(crate) struct Reader<'a> {
    pub model: &'a Model,
    pub backend: &'a dyn Backend,
    pub batch: &'a Batch,
    /// Whether it went backward.
    pub backward: bool,
    /// Of each sequence.
    pub length: usize,
}

impl Reader<'_> {
    /// As [`Trace::get`](crate::Trace::get).
    pub fn get(&self, name: &str) -> Result<NamedTensor, TraceError> {
        if name == "input" {
            return Ok(self.named_rows(name, Axes::Position, self.batch.tokens.iter().map(|id| *id as f32).collect()));
        }
        if let Some(base) = name.strip_suffix(".grad") {
            return self.gradient(name, base);
        }
        if let Some(tensor) = self.model.tensor(name) {
            return self.tensor(name, tensor, tensor.region);
        }
        if let Some(param) = self.model.param(name) {
            return self.param(name, param, param.region);
        }
        if let Some((_, op, is_mask)) = names::drawn(self.model).into_iter().find(|(own, ..)| own == name) {
            return self.dropped(name, &op, is_mask);
        }
        self.derived(name, names::derivation(self.model, name).ok_or_else(|| self.unknown(name))?)
    }

    /// A dropout's mask as the run drew it, or the attention weights that it left.
    fn dropped(&self, name: &str, op: &Op, is_mask: bool) -> Result<NamedTensor, TraceError> {
        match *op {
            Op::Attend { pattern: Some(pattern), drop: Some(drop), heads, .. } => {
                let mut weights = self.get(&self.model.name_of(pattern))?;
                let (draws, (t, n)) = (Draws::new(drop, self.batch.seed), (self.length, heads.n_head));
                for (at, weight) in weights.values.iter_mut().enumerate() {
                    let (b, head, query, key) = (at / (n * t * t), at / (t * t) % n, at / t % t, at % t);
                    let factor = draws.factor(weight_index(b * t + query, head, n, key));
                    *weight = if is_mask { factor } else { *weight * factor };
                }
                Ok(NamedTensor { name: name.into(), ..weights })
            }
            Op::Dropout { y, drop, .. } => {
                let (of, draws) = (self.get(&self.model.name_of(y))?, Draws::new(drop, self.batch.seed));
                let values = (0..of.values.len() as u64).map(|at| draws.factor(at)).collect();
                Ok(NamedTensor { name: name.into(), values, ..of })
            }
            _ => Err(self.unknown(name)),
        }
    }

    fn gradient(&self, name: &str, base: &str) -> Result<NamedTensor, TraceError> {
        if base == "input" {
            return Err(TraceError::NoGradient { name: name.into(), why: "token ids are not differentiable" });
        }
        let (tensor, param) = (self.model.tensor(base), self.model.param(base));
        if names::drawn(self.model).iter().any(|(own, ..)| own == base) {
            return Err(TraceError::NoGradient { name: name.into(), why: "it is drawn, or made of what has one" });
        }
        let derived = match (tensor, param) {
            (None, None) => Some(names::derivation(self.model, base).ok_or_else(|| self.unknown(name))?),
            _ => None,
        };
        if !self.backward {
            return Err(TraceError::NoBackward { name: name.into() });
        }
        if let Some(derived) = derived {
            return self.derived(name, derived);
        }
        if let Some(param) = param {
            return self.param(name, param, param.region.grad());
        }
        match (base, tensor.map(|t| (t, t.grad))) {
            // head and loss are one op, so the gradients of its outputs are written out here
            ("losses", _) => {
                Ok(self.named_rows(name, Axes::Position, self.each_target(|to, target| to.push(self.weight(target)))))
            }
            ("probs", _) => {
                let (probs, v) = (self.get("probs")?, self.model.config.vocab_size);
                let mut rows = probs.values.chunks_exact(v);
                let slopes = self.each_target(|to, target| {
                    let p = rows.next().unwrap_or_default().iter().enumerate();
                    to.extend(p.map(|(j, p)| match target {
                        Target::Token(t) if t == j => -self.batch.weight / p,
                        Target::Soft(y) if y[j] != 0.0 => -self.batch.weight * y[j] / p,
                        _ => 0.0,
                    }));
                });
                Ok(self.named_rows(name, Axes::Vocab, slopes))
            }
            (_, Some((tensor, Some(grad)))) => {
                let slopes = self.tensor(name, tensor, grad)?;
                if base.ends_with(".hook_pattern") { self.hidden_weights(slopes, base) } else { Ok(slopes) }
            }
            _ => Err(TraceError::NoGradient { name: name.into(), why: "nothing differentiable depends on it" }),
        }
    }

    /// The gradients of attention weights, with those of weights that the mask makes 0. No kernel reads these, but what
    /// reads weights takes all of them: z = P v, so dP = dz v', hidden or not.
    fn hidden_weights(&self, mut slopes: NamedTensor, base: &str) -> Result<NamedTensor, TraceError> {
        let beside = |hook: &str| self.get(&base.replace("hook_pattern", hook));
        let (scores, dz, v) = (beside("hook_attn_scores")?, beside("hook_z.grad")?, beside("hook_v")?);
        let weights = self.model.tensor(base).map(|tensor| tensor.region);
        let drop = self.model.ops().iter().find_map(|op| match *op {
            Op::Attend { pattern, drop, .. } if pattern == weights => drop,
            _ => None,
        });
        let draws = drop.map(|drop| Draws::new(drop, self.batch.seed));
        let (t, n_head, n_kv_head, d) = (self.length, dz.shape[2], v.shape[2], dz.shape[3]);
        for (at, slope) in slopes.values.iter_mut().enumerate() {
            if scores.values[at] != f32::NEG_INFINITY {
                continue;
            }
            let (b, head, query, key) = (at / (n_head * t * t), at / (t * t) % n_head, at / t % t, at % t);
            let given = &dz.values[((b * t + query) * n_head + head) * d..][..d];
            let value = &v.values[((b * t + key) * n_kv_head + head * n_kv_head / n_head) * d..][..d];
            let sum: f64 = given.iter().zip(value).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let kept = draws.map_or(1.0, |draws| draws.factor(weight_index(b * t + query, head, n_head, key)));
            *slope = sum as f32 * kept;
        }
        Ok(slopes)
    }

    /// What is derived, or, where `name` is a gradient's, its gradient: by the chain rule from the gradients of what it
    /// is read out of and of what reads it.
    pub fn derived(&self, name: &str, derived: Derived) -> Result<NamedTensor, TraceError> {
        let (base, is_gradient) = name.strip_suffix(".grad").map_or((name, false), |base| (base, true));
        let beside = |hook: &str| {
            let last = base.rfind('.').map_or(0, |dot| dot + 1);
            self.get(&format!("{}{hook}", &base[..last]))
        };
        Ok(match derived {
            Derived::Mean { stats, .. } if !is_gradient => {
                let values = self.backend.read(stats.for_batch(self.batch))?;
                self.named_rows(name, Axes::One, values.into_iter().step_by(stats.cols).collect())
            }
            // n = (x - mean) / s, and s does not change with the mean
            Derived::Mean { .. } => {
                let (slopes, scale) = (beside("hook_normalized.grad")?, beside("hook_scale")?);
                let sum = |row: &[f32]| row.iter().map(|v| f64::from(*v)).sum::<f64>();
                let rows = slopes.values.chunks_exact(slopes.shape[2]).map(sum);
                let values = rows.zip(&scale.values).map(|(sum, s)| (-sum / f64::from(*s)) as f32).collect();
                NamedTensor { name: name.into(), values, ..scale }
            }
            // p = exp(score - lse)
            Derived::Lse { lse } => {
                let ((b, t), h) = ((self.batch.spans.len(), self.length), self.model.config.n_head);
                let (axes, shape) = (vec!["batch", "pos", "head"], vec![b, t, h]);
                if !is_gradient {
                    let values = self.backend.read(lse.for_batch(self.batch))?;
                    return Ok(NamedTensor { name: name.into(), axes, shape, values });
                }
                let (pattern, slopes) = (beside("hook_pattern")?, beside("hook_pattern.grad")?);
                let product = |(p, dp): (&f32, &f32)| f64::from(*p) * f64::from(*dp);
                let products: Vec<f64> = pattern.values.iter().zip(&slopes.values).map(product).collect();
                let values = products.chunks_exact(t).map(|row| -row.iter().sum::<f64>() as f32).collect();
                let by_head = vec!["batch", "head", "pos"];
                NamedTensor { name: name.into(), axes: by_head, shape: vec![b, h, t], values }.permuted(&[0, 2, 1])
            }
            Derived::Unscaled { op } => {
                let (products, scoring) = self.products(op)?;
                let mut raw = beside(if is_gradient { "hook_raw_scores.grad" } else { "hook_raw_scores" })?;
                for (v, product) in raw.values.iter_mut().zip(products) {
                    *v = if is_gradient { (f64::from(*v) * scoring.steepness(product.into())) as f32 } else { product };
                }
                NamedTensor { name: name.into(), ..raw }
            }
            Derived::Scaled { of, factor } => {
                let mut scaled = self.get(&format!("{of}{}", if is_gradient { ".grad" } else { "" }))?;
                scaled.values.iter_mut().for_each(|v| *v = if is_gradient { *v / factor } else { *v * factor });
                NamedTensor { name: name.into(), ..scaled }
            }
            Derived::Part { param, rows } => {
                let param = self.model.param(&param).ok_or_else(|| self.unknown(name))?;
                let region = if is_gradient { param.region.grad() } else { param.region };
                parameter_part(&self.model.config, name, (param, rows), self.backend.read(region)?)
            }
        })
    }

    /// Queries times keys, (B,H,T,T), and what scores they make.
    fn products(&self, op: usize) -> Result<(Vec<f32>, Scoring), TraceError> {
        let Op::Attend { qkv, lse, heads, scoring, .. } = self.model.ops()[op] else {
            return Ok((vec![], Scoring::plain(self.model.config.mask, 1.0)));
        };
        let read = |region: Region| -> Result<Arc<NamedTensor>, TraceError> {
            let values = self.backend.read(region.for_batch(self.batch))?;
            Ok(Arc::new(NamedTensor { name: String::new(), axes: vec![], shape: vec![], values }))
        };
        let (qkv, lse, t, mut all) = (read(qkv)?, read(lse)?, self.length, vec![]);
        for (span, head) in self.batch.spans.iter().flat_map(|span| (0..heads.n_head).map(move |head| (*span, head))) {
            let (qkv, lse) = (qkv.clone(), lse.clone());
            let (scoring, changes) = (scoring.products(), [].into());
            let head = AttentionHead { qkv, lse, heads, head, span, scoring, changes };
            all.extend(Sheet::scores(head, Stage::Raw).band(0..t, 0..t));
        }
        Ok((all, scoring))
    }

    fn weight(&self, target: Target) -> f32 {
        if target == Target::None { 0.0 } else { self.batch.weight }
    }

    fn each_target(&self, mut f: impl FnMut(&mut Vec<f32>, Target)) -> Vec<f32> {
        let mut to = vec![];
        (0..self.batch.tokens.len()).for_each(|n| f(&mut to, self.batch.target(n, self.model.config.vocab_size)));
        to
    }

    fn param(&self, name: &str, param: &Param, region: Region) -> Result<NamedTensor, TraceError> {
        Ok(parameter(&self.model.config, name, param, self.backend.read(region)?))
    }

    /// A tensor's columns, read from its own region or from its gradient's.
    fn tensor(&self, name: &str, tensor: &Tensor, region: Region) -> Result<NamedTensor, TraceError> {
        let all = self.backend.read(region.for_batch(self.batch))?;
        let values = if tensor.cols == (0..region.cols) {
            all
        } else {
            all.chunks_exact(region.cols).flat_map(|row| &row[tensor.cols.clone()]).copied().collect()
        };
        let values = match tensor.order {
            Some(order) => values.chunks_exact(tensor.cols.len()).flat_map(|row| order.show(row, 1)).collect(),
            None => values,
        };
        Ok(self.named_rows(name, tensor.axes, values))
    }

    fn named_rows(&self, name: &str, axes: Axes, values: Vec<f32>) -> NamedTensor {
        named_rows(&self.model.config, (self.batch.spans.len(), self.length), name, axes, values)
    }

    fn unknown(&self, name: &str) -> TraceError {
        unknown(self.model, name)
    }
}
