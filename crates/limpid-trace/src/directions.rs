//! Directions: a vector that tells two groups of activations apart. Three ways to find one from pairs of rows, a
//! positive and a negative one each: the difference of the groups' means, the first principal component of the pairs'
//! differences, and a linear probe. All in f64, without chance: the same rows give the same bits.
//!
//! A direction's length says how far the two rows of a pair are apart along it, so adding it once moves a negative row
//! about to where the positive ones are. `limpid::directions` takes the rows from a model.

use limpid_base::nearest::nearest;
use limpid_core::numeric::math;
use limpid_core::numeric::random;
use serde::Serialize;
use std::str::FromStr;

/// How a direction is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DirectionMethod {
    /// The mean of the positive rows minus the mean of the negative ones.
    #[default]
    Mean,
    /// The first principal component of the pairs' differences, about zero: as llama.cpp's cvector-generator finds it.
    /// Its sign is that of the mean difference, its length the root mean square of the differences along it.
    Pca,
    /// The weights of a logistic regression that tells the groups apart; their length is the distance of the groups'
    /// means along them.
    Probe,
}

/// The weight of a probe's L2 term: λ of mean(ln(1 + e^(-y (w·x + b)))) + λ/2 |w|², where rows are centred and have a
/// mean square length of 1.
pub const PROBE_L2: f64 = 1e-3;

/// The most rounds of the power iteration, and of the probe's descent; both end earlier once nothing changes.
const ROUNDS: usize = 20_000;

impl DirectionMethod {
    /// Each of them.
    pub const ALL: [DirectionMethod; 3] = [DirectionMethod::Mean, DirectionMethod::Pca, DirectionMethod::Probe];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            DirectionMethod::Mean => "mean",
            DirectionMethod::Pca => "pca",
            DirectionMethod::Probe => "probe",
        }
    }
}

impl FromStr for DirectionMethod {
    type Err = String;
    fn from_str(name: &str) -> Result<DirectionMethod, String> {
        DirectionMethod::ALL.into_iter().find(|method| method.name() == name).ok_or_else(|| {
            let names = DirectionMethod::ALL.map(DirectionMethod::name);
            let near = nearest(name, names).map_or(String::new(), |near| format!("; did you mean {near}?"));
            format!("a method is one of {}, found {name}{near}", names.join(", "))
        })
    }
}

/// A direction that was found. One of rows that do not differ has only zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundDirection {
    /// The vector.
    pub vector: Vec<f64>,
    /// Which part of the pairs' differences, squared, lies along it.
    pub share: f64,
    /// Where rows are told apart: the positive ones have a greater product with the vector, divided by its length.
    pub threshold: f64,
}

/// How well a direction tells pairs of rows apart. Chance is 0.5.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Separation {
    /// Which part of the rows lies on the right side; a row between the sides counts half.
    pub accuracy: f64,
    /// How likely it is to be as good or better by chance: if a coin decides, for each pair, which of its rows is
    /// called positive. It is exact if the direction was not made from these pairs.
    pub by_chance: f64,
}

impl FoundDirection {
    /// Finds it. Rows `i` of both groups are a pair.
    ///
    /// # Panics
    /// If there are no rows, not as many in both, or one is of another width.
    pub fn new(method: DirectionMethod, positive: &[Vec<f64>], negative: &[Vec<f64>]) -> FoundDirection {
        assert!(!positive.is_empty() && positive.len() == negative.len(), "pairs of rows");
        let differences: Vec<Vec<f64>> = positive.iter().zip(negative).map(|(a, b)| minus(a, b)).collect();
        let [above, below] = [mean(positive), mean(negative)];
        let between = minus(&above, &below);
        let middle = |unit: &[f64]| (dot(&above, unit) + dot(&below, unit)) / 2.0;
        let long = |unit: &[f64], length: f64| unit.iter().map(|v| v * length).collect();
        let (unit, vector, threshold) = match method {
            DirectionMethod::Mean => {
                let unit = unit(&between);
                let threshold = middle(&unit);
                (unit, between, threshold)
            }
            DirectionMethod::Pca => {
                let mut unit = principal(&differences);
                if dot(&unit, &between) < 0.0 {
                    unit.iter_mut().for_each(|v| *v = -*v);
                }
                let squares = differences.iter().map(|row| dot(row, &unit).powi(2)).sum::<f64>();
                let (vector, threshold) = (long(&unit, (squares / differences.len() as f64).sqrt()), middle(&unit));
                (unit, vector, threshold)
            }
            DirectionMethod::Probe => {
                let (unit, threshold) = probe(positive, negative);
                let vector = long(&unit, dot(&unit, &between));
                (unit, vector, threshold)
            }
        };
        let all: f64 = differences.iter().map(|row| dot(row, row)).sum();
        let along: f64 = differences.iter().map(|row| dot(row, &unit).powi(2)).sum();
        let share = if all > 0.0 { along / all } else { 0.0 };
        FoundDirection { vector, share, threshold }
    }

    /// Its length.
    pub fn norm(&self) -> f64 {
        dot(&self.vector, &self.vector).sqrt()
    }

    /// How well it tells these pairs apart.
    ///
    /// # Panics
    /// If there are not as many rows in both.
    pub fn separation(&self, positive: &[Vec<f64>], negative: &[Vec<f64>]) -> Separation {
        assert_eq!(positive.len(), negative.len(), "pairs of rows");
        let unit = unit(&self.vector);
        let side = |row: &Vec<f64>| match dot(row, &unit) - self.threshold {
            side if side > 0.0 => 1,
            side if side < 0.0 => -1,
            _ => 0,
        };
        // 2: both rows of the pair are right, -2: both are wrong; with its rows exchanged a pair has the opposite
        let scores: Vec<i64> = positive.iter().zip(negative).map(|(a, b)| side(a) - side(b)).collect();
        let right: i64 = scores.iter().sum();
        Separation {
            accuracy: 0.5 + right as f64 / (4.0 * scores.len().max(1) as f64),
            by_chance: at_least(right, &scores),
        }
    }
}

/// How likely a sum of these numbers is at least `least` if a coin decides the sign of each.
fn at_least(least: i64, numbers: &[i64]) -> f64 {
    let most: i64 = numbers.iter().map(|number| number.abs()).sum();
    let mut odds = vec![0.0; 2 * most as usize + 1];
    odds[most as usize] = 1.0; // the sum of none; those below 0 come first
    for number in numbers.iter().map(|number| number.unsigned_abs() as usize).filter(|number| *number > 0) {
        let before = odds.clone();
        for (sum, odds) in odds.iter_mut().enumerate() {
            let at = |from: Option<usize>| from.and_then(|from| before.get(from)).copied().unwrap_or(0.0);
            *odds = (at(sum.checked_sub(number)) + at(sum.checked_add(number))) / 2.0;
        }
    }
    odds[(least + most) as usize..].iter().sum()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    let sum = |at: usize| rows.iter().map(|row| row[at]).sum::<f64>();
    (0..rows[0].len()).map(|at| sum(at) / rows.len() as f64).collect()
}

/// The same of length 1; zeros stay.
fn unit(vector: &[f64]) -> Vec<f64> {
    let length = dot(vector, vector).sqrt();
    vector.iter().map(|v| if length > 0.0 { v / length } else { 0.0 }).collect()
}

/// Σ weight row.
fn combined(rows: &[Vec<f64>], weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sum = vec![0.0; rows[0].len()];
    for (row, weight) in rows.iter().zip(weights) {
        sum.iter_mut().zip(row).for_each(|(sum, v)| *sum += weight * v);
    }
    sum
}

/// The unit vector v that makes |D v| largest, where D has these rows: by power iteration, v <- DᵀD v. It begins with
/// random weights of the rows, which are orthogonal to it by accident only.
fn principal(rows: &[Vec<f64>]) -> Vec<f64> {
    let site = random::site("principal component");
    let mut found = unit(&combined(rows, (0..).map(|i| random::normal(1, site, i))));
    for _ in 0..ROUNDS {
        let products: Vec<f64> = rows.iter().map(|row| dot(row, &found)).collect();
        let next = unit(&combined(rows, products.into_iter()));
        let step = minus(&next, &found);
        found = next;
        if dot(&step, &step) < 1e-30 {
            break;
        }
    }
    found
}

/// The unit vector and the threshold of a logistic regression, by Nesterov's descent. The rows are centred and divided
/// by one number, so the slope changes by at most 1/4 + λ of a step, and at least by λ: these give the steps.
fn probe(positive: &[Vec<f64>], negative: &[Vec<f64>]) -> (Vec<f64>, f64) {
    let all: Vec<Vec<f64>> = [positive, negative].concat();
    let centre = mean(&all);
    let centred: Vec<Vec<f64>> = all.iter().map(|row| minus(row, &centre)).collect();
    let scale = (centred.iter().map(|row| dot(row, row)).sum::<f64>() / all.len() as f64).sqrt();
    if scale == 0.0 {
        return (centre.iter().map(|_| 0.0).collect(), 0.0);
    }
    let rows: Vec<Vec<f64>> = centred.into_iter().map(|row| row.into_iter().map(|v| v / scale).collect()).collect();
    let most = 0.25 + PROBE_L2;
    let root = (PROBE_L2 / most).sqrt();
    let momentum = (1.0 - root) / (1.0 + root);
    let mut at = (vec![0.0; centre.len()], 0.0);
    let mut ahead = at.clone();
    for _ in 0..ROUNDS {
        let wrong = |(i, row): (usize, &Vec<f64>)| {
            let y = if i < positive.len() { 1.0 } else { 0.0 };
            (1.0 / (1.0 + math::exp_f64(-dot(row, &ahead.0) - ahead.1)) - y) / rows.len() as f64
        };
        let wrong: Vec<f64> = rows.iter().enumerate().map(wrong).collect();
        let slope = combined(&rows, wrong.iter().copied());
        let slope: Vec<f64> = slope.iter().zip(&ahead.0).map(|(slope, w)| slope + PROBE_L2 * w).collect();
        let bias_slope: f64 = wrong.iter().sum();
        let next: Vec<f64> = ahead.0.iter().zip(&slope).map(|(w, slope)| w - slope / most).collect();
        let next = (next, ahead.1 - bias_slope / most);
        let on = |new: f64, old: f64| new + momentum * (new - old);
        let weights = next.0.iter().zip(&at.0).map(|(new, old)| on(*new, *old)).collect();
        ahead = (weights, on(next.1, at.1));
        at = next;
        if dot(&slope, &slope) + bias_slope * bias_slope < 1e-24 {
            break;
        }
    }
    let (weights, bias) = at;
    let along = unit(&weights);
    // w·(x - centre)/scale + b = 0
    let threshold = dot(&along, &centre) - bias * scale / dot(&weights, &weights).sqrt().max(f64::MIN_POSITIVE);
    (along, threshold)
}
