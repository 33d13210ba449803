//! Tensors of a run as other programs take them: by name with their gradients, and as llm.c's arrays.

use crate::names::{Notation, called, derived};
use crate::{Labelled, Trace, TraceError};

/// The tensors called `names`; with none, every tensor of the run and, after a backward pass, its gradient.
///
/// # Errors
/// As [`Trace::get`].
pub fn tensors(trace: &Trace, names: &[&str]) -> Result<Vec<Labelled>, TraceError> {
    if names.is_empty() {
        with_gradients(trace, trace.names())
    } else {
        names.iter().map(|name| trace.get(name)).collect()
    }
}

/// The tensors called `names`, each with its gradient after it, if there is one.
fn with_gradients(trace: &Trace, names: impl Iterator<Item = String>) -> Result<Vec<Labelled>, TraceError> {
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

/// A run's tensors as llm.c keeps them, under its names: of each kind one array for all blocks, with an axis for the block first
/// (`ln1`: `n_layer batch pos d_model`), statistics without an axis of one, heads side by side in `atty`, and the reciprocals of
/// deviations (`ln1_rstd`). After a backward pass those of `grads_acts` too. What llm.c has no word for is left out.
///
/// # Errors
/// As [`Trace::get`].
pub fn llmc_arrays(trace: &Trace) -> Result<Vec<Labelled>, TraceError> {
    let config = &trace.model().config;
    let names = trace.names().filter(|name| name != "input");
    let mut names: Vec<String> = names.chain(derived(trace.model()).into_iter().map(|(name, _)| name)).collect();
    names.retain(|name| called(name, config, Notation::Llmc).is_some());
    let mut arrays: Vec<Labelled> = vec![];
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
        if matches!(tensor.axes[..], [.., "head", "d_head" | "d_v"]) {
            let wide = tensor.shape.split_off(tensor.shape.len() - 2).iter().product();
            tensor.axes.truncate(tensor.axes.len() - 2);
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
                arrays.push(Labelled { name: name.into(), ..tensor });
            }
        }
    }
    Ok(arrays)
}
