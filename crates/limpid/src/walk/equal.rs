//! Two ways to the same numbers, compared on the live model.

use super::{At, Figure, Live, WalkError};
use serde::{Deserialize, Serialize};

/// An equality by its name.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names say it; each function says more")]
pub enum Equal {
    ReluByElement,
    NormByRow,
    StoiItos { tokenizer: String },
    OneHotIsLookup,
    SamePositionSameVector,
    FusedIsPerHead,
    FeedForwardByPosition,
    RowsSumToOne,
    OneHotTargetsAreIndices,
    SameTokenSameRow,
    ContextIsWeightsTimesValues,
    SegmentsAreALookUp,
    GradientIsASlope,
    ScalarTimesVectorIsWeightsTimesValues,
}

/// Both ways, compared: a sentence that says whether they agree.
pub(super) fn equal(_live: &mut Live, what: &Equal, _at: &At) -> Result<Vec<Figure>, WalkError> {
    Err(WalkError::NotBuilt(format!("{what:?}")))
}
