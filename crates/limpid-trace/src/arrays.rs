//! Tensors of a run as other programs take them: by name with their gradients, and as llm.c's arrays.

use crate::names::{self, Notation, called, derived};
use crate::{NamedTensor, Trace, TraceError, heads_in_rows};

/// The tensors called `names`; with none, every tensor of the run and, after a backward pass, its gradient.
///
/// # Errors
/// As [`Trace::get`].
pub fn tensors(trace: &Trace, names: &[&str]) -> Result<Vec<NamedTensor>, TraceError> {
    if names.is_empty() {
        with_gradients(trace, trace.names())
    } else {
        names.iter().map(|name| trace.get(name)).collect()
    }
}

/// The tensors called `names`, each with its gradient after it, if there is one.
fn with_gradients(trace: &Trace, names: impl Iterator<Item = String>) -> Result<Vec<NamedTensor>, TraceError> {
    let mut tensors = vec![];
    for name in names {
        tensors.push(trace.get(&name)?);
        match trace.get(&format!("{name}.grad")) {
            Ok(gradient) => tensors.push(gradient),
            Err(error @ TraceError::Backend(_)) => return Err(error),
            Err(_) => {} // token ids have none, nor has anything without a backward pass
        }
    }
    Ok(tensors)
}

/// A run's tensors as llm.c keeps them, under its names: of each kind one array for all blocks, with an axis for the
/// block first (`ln1`: `n_layer batch pos d_model`), statistics without an axis of one, heads side by side in `atty`,
/// and the reciprocals of deviations (`ln1_rstd`). After a backward pass those of `grads_acts` too. What llm.c has no
/// word for is left out.
///
/// # Errors
/// As [`Trace::get`].
pub fn llmc_arrays(trace: &Trace) -> Result<Vec<NamedTensor>, TraceError> {
    let config = &trace.model().config;
    let names = trace.names().filter(|name| name != "input");
    let mut names: Vec<String> = names.chain(derived(trace.model()).into_iter().map(|(name, _)| name)).collect();
    names.retain(|name| called(name, config, Notation::Llmc).is_some());
    let mut arrays: Vec<NamedTensor> = vec![];
    for mut tensor in with_gradients(trace, names.iter().cloned())? {
        let Some(called) = called(&tensor.name, config, Notation::Llmc) else { continue };
        let (word, block) = match called.split_once('[') {
            Some((word, block)) => (word, block.trim_end_matches(']').parse::<usize>().ok()),
            None => (called.as_str(), None),
        };
        let (name, reciprocal) = word.strip_prefix("1/").map_or((word, false), |name| (name, true));
        if reciprocal {
            tensor.values.iter_mut().for_each(|value| *value = 1.0 / *value);
        }
        if tensor.name.ends_with(".hook_pattern.grad") {
            // llm.c takes no key after its query, and leaves a zero there
            let keys = tensor.shape[3];
            let later = |at: usize| at % keys > at / keys % tensor.shape[2];
            tensor.values.iter_mut().enumerate().filter(|(at, _)| later(*at)).for_each(|(_, slope)| *slope = 0.0);
        }
        if tensor.axes.last() == Some(&"1") {
            tensor.axes.pop();
            tensor.shape.pop();
        }
        if let Some(head) = heads_in_rows(&tensor.axes) {
            let wide = tensor.shape.split_off(head).iter().product();
            tensor.axes.truncate(head);
            tensor.axes.push(if wide == trace.model().config.d_model { "d_model" } else { "features" });
            tensor.shape.push(wide);
        }
        // two names of one tensor: the stream between two blocks
        let at = arrays.iter().position(|array| array.name == name);
        match (at, block) {
            (Some(at), Some(block)) if arrays[at].shape[0] == block => {
                arrays[at].shape[0] += 1;
                arrays[at].values.append(&mut tensor.values);
            }
            (Some(_), _) => {}
            (None, _) => {
                if block.is_some() {
                    tensor.axes.insert(0, "n_layer");
                    tensor.shape.insert(0, 1);
                }
                arrays.push(NamedTensor { name: name.into(), ..tensor });
            }
        }
    }
    Ok(arrays)
}

/// An error that names what was asked for.
fn wrong<T>(asked: &str, why: impl std::fmt::Display) -> Result<T, TraceError> {
    Err(TraceError::Expression { what: format!("`{asked}`: {why}") })
}

impl Trace {
    /// Names that `asked` stands for: of tensors, parameters and what is derived of them, all that a pattern with `*`
    /// or `?` matches; or the one that it is, by our name or TransformerLens's. `NAME.grad` likewise.
    ///
    /// # Errors
    /// If a pattern cannot be read or matches nothing; the nearest name is in the message.
    pub fn matching(&self, asked: &str) -> Result<Vec<String>, TraceError> {
        let base = asked.strip_suffix(".grad").unwrap_or(asked);
        let suffix = &asked[base.len()..];
        let derived = derived(self.model());
        let names: Vec<String> = self.names().collect();
        let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
        all.extend(self.model().params.iter().map(|param| param.name.as_str()));
        all.extend(derived.iter().map(|(name, _)| name.as_str()));
        if !base.contains(['*', '?']) {
            // TransformerLens's names of parameters: W_pos, embed.W_E
            let own = |lens: &str| !lens.is_empty() && (lens == base || lens.rsplit('.').next() == Some(base));
            let lens = names::TABLE.iter().find(|entry| entry.is_param() && own(entry.lens));
            let name = if all.contains(&base) { base } else { lens.map_or(base, |entry| entry.name) };
            return Ok(vec![format!("{name}{suffix}")]);
        }
        let pattern = match glob::Pattern::new(base) {
            Ok(pattern) => pattern,
            Err(error) => return wrong(asked, format!("the pattern cannot be read: {error}")),
        };
        let found = all.into_iter().filter(|name| pattern.matches(name));
        let found: Vec<String> = found.map(|name| format!("{name}{suffix}")).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        match crate::unknown(self.model(), &base.replace('*', "0")) {
            TraceError::Unknown { nearest: Some(near), .. } => {
                wrong(asked, format!("no tensor matches; did you mean `{near}{suffix}`?"))
            }
            _ => wrong(asked, "no tensor matches; `limpid inspect --table` lists all"),
        }
    }
}
