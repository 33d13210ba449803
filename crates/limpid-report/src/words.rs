//! What curves do, in words: for readers who cannot see them, and as a first answer for those who can.

use crate::plot::Curve;
use limpid_base::units::{commas, count};

/// A number in a sentence: three digits, or four of those above 1.
pub fn number(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        a if a >= 9999.5 => count(v),
        a if a >= 99.95 => format!("{v:.0}"),
        a if a >= 1.0 => format!("{v:.2}"),
        a if a >= 0.01 => format!("{v:.3}"),
        a if a >= 0.001 => format!("{v:.4}"),
        _ => format!("{v:.1e}"),
    }
}

/// `falls from 4.17 to 1.50, fastest between steps 1 and 40`; none for fewer than two points. A curve that goes back
/// and forth has no direction, only bounds.
fn trend(points: &[(f64, f64)], across: &str) -> Option<String> {
    let points: Vec<(f64, f64)> = points.iter().copied().filter(|p| p.1.is_finite()).collect();
    let ((first, last), true) = (points.first().zip(points.last())?, points.len() > 1) else { return None };
    let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let (low, high) = (points.iter().min_by(by_value)?, points.iter().max_by(by_value)?);
    let range = high.1 - low.1;
    if range <= 0.02 * high.1.abs().max(low.1.abs()) {
        return Some(format!("stays at {}", number(last.1)));
    }
    let (from, to) = (number(first.1), number(last.1));
    let change = last.1 - first.1;
    let way: f64 = points.windows(2).map(|p| (p[1].1 - p[0].1).abs()).sum();
    let (over, under) = (high.1 - first.1.max(last.1), first.1.min(last.1) - low.1);
    let straight = change.abs() + 2.0 * if change.abs() >= 0.8 * range { 0.0 } else { over.max(under) };
    if way > 2.0 * straight {
        return Some(format!("moves between {} and {}, and ends at {to}", number(low.1), number(high.1)));
    }
    if change.abs() >= 0.8 * range {
        let verb = if change < 0.0 { "falls" } else { "rises" };
        let text = format!("{verb} from {from} to {to}");
        // the fewest steps of half the change
        let half = |i: usize| {
            let far = |p: &&(f64, f64)| (p.1 - points[i].1) / change >= 0.5;
            points[i..].iter().find(far).map(|p| (points[i].0, p.0))
        };
        let fastest = (0..points.len()).filter_map(half).min_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
        return Some(match fastest {
            Some((a, b)) if b - a <= 0.35 * (last.0 - first.0) => {
                format!("{text}, fastest between {across} {} and {}", commas(a as u64), commas(b as u64))
            }
            _ => format!("{text}, evenly"),
        });
    }
    let (verb, then, at) = if over > under { ("rises", "falls", high) } else { ("falls", "rises", low) };
    let peak = number(at.1);
    let step = commas(at.0 as u64);
    Some(format!("{verb} from {from} to {peak} at {} {step}, then {then} to {to}", across.trim_end_matches('s')))
}

fn sentence(text: String) -> String {
    let mut letters = text.chars();
    let first = letters.next().map_or(String::new(), |c| c.to_uppercase().collect());
    if text.is_empty() { text } else { format!("{first}{}.", letters.as_str()) }
}

/// A sentence on a few curves, each with its own words.
pub fn each(curves: &[Curve], across: &str) -> String {
    let told = curves.iter().filter_map(|curve| {
        let mut points = curve.points.clone();
        // a mean over the first steps is not where it began
        points.iter_mut().zip(&curve.raw).take(1).for_each(|(first, raw)| *first = *raw);
        let trend = trend(&points, across)?;
        Some(format!("{}{}{trend}", curve.label, if curve.label.is_empty() { "" } else { " " }))
    });
    sentence(told.collect::<Vec<_>>().join("; "))
}

/// A sentence on how far validation is from training at the end, and where it was least.
pub fn gap(train: &[Curve], val: &[Curve]) -> String {
    let (Some(train), Some(val)) = (train.first(), val.first()) else { return String::new() };
    let (Some(ours), Some(theirs)) = (train.points.last(), val.points.last()) else { return String::new() };
    let gap = theirs.1 - ours.1;
    let Some(least) = val.points.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else { return String::new() };
    let side = if gap < 0.0 { "below" } else { "above" };
    let when = if least.0 == theirs.0 {
        "at the last step, where it is lowest".into()
    } else {
        format!("at the end; it was lowest, {}, at step {}", number(least.1), commas(least.0 as u64))
    };
    format!("Validation is {} {side} training {when}.", number(gap.abs()))
}

/// A sentence on where many curves end: the least and the greatest.
pub fn ends(curves: &[Curve]) -> String {
    let last = |curve: &Curve| Some((curve.points.iter().rfind(|p| p.1.is_finite())?.1, curve.label.clone()));
    let mut ends: Vec<(f64, String)> = curves.iter().filter_map(last).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    match &ends[..] {
        [] => String::new(),
        [(v, label)] => format!("Ends at {} ({label}).", number(*v)),
        [low, .., high] => {
            format!("Ends lowest in {} ({}) and highest in {} ({}).", low.1, number(low.0), high.1, number(high.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_in_words() {
        let of = |f: &dyn Fn(f64) -> f64| {
            trend(&(0..=100).map(|n| (f64::from(n), f(f64::from(n)))).collect::<Vec<_>>(), "steps")
        };
        let same = |of: Option<String>, words: &str| assert_eq!(of.as_deref(), Some(words));
        same(of(&|n| 2.0 - n / 100.0), "falls from 2.00 to 1.00, evenly");
        // 3 / 2^10 is left after ten steps: half is gone after one
        same(of(&|n| 1.0 + 3.0 / n.exp2()), "falls from 4.00 to 1.00, fastest between steps 0 and 1");
        same(
            of(&|n| if n < 40.0 { 0.5 } else { 0.5 + 0.1 * (n - 40.0).min(20.0) }),
            "rises from 0.500 to 2.50, fastest between steps 40 and 50",
        );
        same(of(&|n| n.min(201.0 - 2.0 * n).max(1.0)), "rises from 1.00 to 67.00 at step 67, then falls to 1.00");
        same(of(&|n| 3.0 + (n - 70.0).abs()), "falls from 73.00 to 3.00 at step 70, then rises to 33.00");
        same(of(&|n| 3.0 + 0.0001 * n), "stays at 3.01");
        same(of(&|n| if n == 50.0 { f64::NAN } else { n }), "rises from 0 to 100, evenly");
        same(of(&|n| n % 10.0), "moves between 0 and 9.00, and ends at 0");
        assert_eq!(trend(&[(1.0, 2.0)], "steps"), None);
        assert_eq!(
            [0.0, 12_345.0, 1234.0, 99.9, 0.1234, 0.000_31, -2.5].map(number),
            ["0", "12.3 k", "1234", "99.90", "0.123", "3.1e-4", "-2.50"]
        );
    }
}
