//! What is shown of a run.

use super::{Figure, Live, Show, Step, WalkError, equal, worked};

/// One view of a step.
pub(super) fn show(live: &mut Live, _step: &Step, show: &Show) -> Result<Vec<Figure>, WalkError> {
    match show {
        Show::Worked { work, at } => worked::worked(live, work, at),
        Show::Equal { what, at } => equal::equal(live, what, at),
        other => Err(WalkError::NotBuilt(format!("{other:?}"))),
    }
}
