//! Token ids as a batch that a trace runs.

use crate::TraceError;
use limpid_base::plural::plural;
use limpid_core::config::{Config, Mask};
use limpid_core::ops::{Batch, IGNORE};

/// The ids as one sequence, ready for a trace. The target of each id is the next one. For a bidirectional model it is
/// the id itself, and none for `mask`, whose token the model predicts. `segments` are all 0 if none are given.
///
/// # Errors
/// If there are no ids, or the segments do not fit them or the model.
pub fn batch(config: &Config, ids: &[u32], segments: Option<&[u32]>, mask: Option<u32>) -> Result<Batch, TraceError> {
    let segments = segments.map(|segments| [segments]);
    batch_of(config, &[ids], segments.as_ref().map(|segments| &segments[..]), mask)
}

/// Several texts as one batch, a sequence each, with targets as [`batch`] gives them; `segments` are those of each
/// sequence.
///
/// # Errors
/// As [`batch`], and if the sequences are not equally long.
pub fn batch_of<T: AsRef<[u32]>, S: AsRef<[u32]>>(
    config: &Config,
    sequences: &[T],
    segments: Option<&[S]>,
    mask: Option<u32>,
) -> Result<Batch, TraceError> {
    let wrong = |what: String| Err(TraceError::Batch { what });
    let length = sequences.first().map_or(0, |ids| ids.as_ref().len());
    let (mut tokens, mut targets): (Vec<u32>, Vec<u32>) = (vec![], vec![]);
    for (b, ids) in sequences.iter().map(AsRef::as_ref).enumerate() {
        if ids.len() != length {
            let found = format!("sequence 0 has {} and sequence {b} has {}", plural(length, "token"), ids.len());
            let mend = "sequences beside each other are equally long; lengthen one or shorten the other";
            return wrong(format!("{found}: {mend}"));
        }
        tokens.extend(ids);
        match config.mask {
            Mask::Causal => targets.extend(ids.iter().skip(1)),
            _ => targets.extend(ids.iter().map(|id| if Some(*id) == mask { IGNORE } else { *id })),
        }
        targets.resize(tokens.len(), IGNORE);
    }
    if tokens.is_empty() {
        return wrong("there are no tokens to look at".into());
    }
    let mut batch = Batch::of_sequences(tokens, targets, length);
    batch.segments = match (segments, config.n_segment) {
        (Some(_), 0) => return wrong("this model has no segment vectors (n_segment is 0): give no segments".into()),
        (Some(segments), _) => {
            for (b, ids) in sequences.iter().enumerate() {
                let given = segments.get(b).map_or(0, |segments| segments.as_ref().len());
                let tokens = ids.as_ref().len();
                if given != tokens {
                    return wrong(format!("there are {given} segments for {tokens} tokens: give one for each"));
                }
            }
            segments.iter().take(sequences.len()).flat_map(AsRef::as_ref).copied().collect()
        }
        (None, 0) => vec![],
        (None, _) => vec![0; batch.tokens.len()],
    };
    Ok(batch)
}
