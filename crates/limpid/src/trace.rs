//! Looking inside: every tensor of one run, by name; printed, and saved.

pub use limpid_checkpoint::trace::{save, tensors};
pub use limpid_core::trace::*;

use crate::config::{Config, Mask};
use crate::ops::{Batch, IGNORE};

/// The ids as one sequence, ready for a trace. The target of each id is the next one. For a bidirectional model it is the id itself, and
/// none for `mask`, whose token the model predicts. `segments` are all 0 if none are given.
///
/// # Errors
/// If there are no ids, or the segments do not fit them or the model.
pub fn batch(config: &Config, ids: &[u32], segments: Option<&[u32]>, mask: Option<u32>) -> Result<Batch, TraceError> {
    let wrong = |what: String| Err(TraceError::Batch { what });
    if ids.is_empty() {
        return wrong("there are no tokens to look at".into());
    }
    let mut targets: Vec<u32> = match config.mask {
        Mask::Causal => ids[1..].to_vec(),
        _ => ids.iter().map(|id| if Some(*id) == mask { IGNORE } else { *id }).collect(),
    };
    targets.resize(ids.len(), IGNORE);
    let mut batch = Batch::of_sequences(ids.to_vec(), targets, ids.len());
    match (segments, config.n_segment) {
        (Some(_), 0) => return wrong("this model has no segment vectors (n_segment is 0): give no segments".into()),
        (Some(segments), _) if segments.len() != ids.len() => {
            let (given, tokens) = (segments.len(), ids.len());
            return wrong(format!("there are {given} segments for {tokens} tokens: give one for each"));
        }
        (Some(segments), _) => batch.segments = segments.to_vec(),
        (None, 0) => {}
        (None, _) => batch.segments = vec![0; ids.len()],
    }
    Ok(batch)
}
