//! Steps that look at the row they change: where a condition holds, and projecting a direction out. What they found is
//! noted for whoever explains the run, since a changed row no longer shows it. Products and norms are f64 sums over
//! ascending columns, so they have the same bits in any batch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A projected row shorter than this part of what it was is rounding; it is not stretched again.
const ROUNDING: f64 = 1e-12;

/// A condition on each position, as the step finds it.
#[derive(Clone, Debug, PartialEq)]
pub enum StepCondition {
    /// The token at the position is one of these.
    Token(Arc<[u32]>),
    /// The columns that the step changes, times a unit vector, lie above a threshold; or below it.
    Probe {
        /// The unit vector.
        unit: Arc<[f64]>,
        /// The threshold.
        threshold: f64,
        /// Whether above it.
        above: bool,
    },
}

impl StepCondition {
    /// Whether it holds for some columns of a row.
    pub(super) fn holds(&self, token: u32, columns: &[usize], row: &[f32]) -> bool {
        match self {
            StepCondition::Token(ids) => ids.contains(&token),
            StepCondition::Probe { unit, threshold, above } => {
                let along = product(unit, columns, row);
                if *above { along > *threshold } else { along < *threshold }
            }
        }
    }

    /// How many numbers it has.
    pub(super) fn len(&self) -> usize {
        match self {
            StepCondition::Token(ids) => ids.len(),
            StepCondition::Probe { unit, .. } => 2 * unit.len(),
        }
    }
}

/// A vector of length 1 in this direction; none if the vector is zero.
pub fn unit_vector(vector: &[f32]) -> Option<Arc<[f64]>> {
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    (length > 0.0).then(|| vector.iter().map(|v| f64::from(*v) / length).collect())
}

fn product(unit: &[f64], columns: &[usize], row: &[f32]) -> f64 {
    unit.iter().zip(columns).map(|(unit, at)| unit * f64::from(row[*at])).sum()
}

/// Takes a direction out of some columns of a row: x <- (x - (x·u) u) s. With `keep_norm` s makes them as long as they
/// were, else it is 1.
pub(super) fn project_out(unit: &[f64], keep_norm: bool, columns: &[usize], row: &mut [f32]) -> Measure {
    let along = product(unit, columns, row);
    let rest = |row: &[f32], n: usize| f64::from(row[columns[n]]) - along * unit[n];
    let mut factor = 1.0;
    if keep_norm {
        let before = columns.iter().map(|at| f64::from(row[*at]).powi(2)).sum::<f64>();
        let after = (0..columns.len()).map(|n| rest(row, n).powi(2)).sum::<f64>();
        if after.sqrt() > ROUNDING * before.sqrt() {
            factor = (before / after).sqrt();
        }
    }
    for (n, at) in columns.iter().enumerate() {
        row[*at] = (rest(row, n) * factor) as f32;
    }
    Measure { along, factor }
}

/// What a step found in a row: x·u of a projection, and the factor behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measure {
    pub along: f64,
    pub factor: f64,
}

impl Default for Measure {
    fn default() -> Measure {
        Measure { along: 0.0, factor: 1.0 }
    }
}

/// An op, a row of the batch, and the place of a step among the op's steps.
type Place = (usize, usize, usize);

/// What steps found in the rows of a batch. A step whose condition did not hold has nothing there. Clones share one
/// list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measures(Arc<Mutex<HashMap<Place, Measure>>>);

impl Measures {
    /// Notes what a step found where it applied; none where it did not.
    pub(super) fn note(&self, at: Place, measure: Option<Measure>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match measure {
            Some(measure) => all.insert(at, measure),
            None => all.remove(&at),
        };
    }

    /// What a step found there.
    pub(super) fn get(&self, at: Place) -> Option<Measure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&at).copied()
    }
}
