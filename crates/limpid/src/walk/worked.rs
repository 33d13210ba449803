//! Small computations that a document does by hand, done here on its numbers or on the live model's.

use super::{At, Figure, Live, WalkError};
use serde::{Deserialize, Serialize};

/// A computation by its name, and what it takes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are what the toml files write")]
pub enum Worked {
    Product {
        a: String,
        b: String,
        element: [usize; 2],
        sequence: usize,
    },
    Diag {
        x: Vec<f64>,
    },
    Stack {
        x: Vec<f64>,
        n: usize,
    },
    Concat {
        x: Vec<Vec<Vec<f64>>>,
    },
    Split {
        features: Vec<usize>,
    },
    Flatten {
        of: String,
    },
    ValueStep {
        sequence: usize,
        head: usize,
        feature: usize,
    },
    MultipliedMask {
        #[serde(default)]
        scores: Vec<Vec<f64>>,
        #[serde(default)]
        of: Option<String>,
        #[serde(default)]
        head: usize,
    },
    Dropout {
        x: Vec<f64>,
        mask: Vec<f64>,
        p: f64,
    },
    Update {
        w: f64,
        g: f64,
        learning_rate: f64,
        optimizers: Vec<String>,
    },
    Norms {
        rows: Vec<Vec<f64>>,
        eps: f64,
        kinds: Vec<String>,
    },
    Softmax {
        #[serde(default)]
        scores: Vec<Vec<f64>>,
        #[serde(default)]
        golden: Option<String>,
        #[serde(default)]
        labels: Vec<String>,
        #[serde(default)]
        targets: bool,
    },
    PrintedDivided {
        golden: String,
        by: f64,
    },
    PrintedEnds,
    Change {
        #[serde(default)]
        sequence: usize,
        position: usize,
        to: String,
    },
    Similar {
        token: String,
    },
    Sum {
        of: Vec<String>,
        sequence: usize,
        position: usize,
    },
    Memory,
    CompareModels {
        models: Vec<String>,
    },
    Curve,
    Moments {
        of: String,
    },
}

/// What the computation comes to.
pub(super) fn worked(_live: &mut Live, work: &Worked, _at: &At) -> Result<Vec<Figure>, WalkError> {
    Err(WalkError::NotBuilt(format!("{work:?}")))
}
