//! Numbers with units, for people to read.

/// Bytes with a unit.
pub fn bytes(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.1} kB", n / 1e3),
        n => format!("{n} bytes"),
    }
}

/// 1234567 as 1,234,567.
pub fn commas(n: impl TryInto<u64>) -> String {
    let digits = n.try_into().unwrap_or(u64::MAX).to_string();
    let mut number = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            number.push(',');
        }
        number.push(digit);
    }
    number
}

/// A count with a unit: 1.2 M.
pub fn count(n: f64) -> String {
    match n {
        n if n >= 1e12 => format!("{:.2} T", n / 1e12),
        n if n >= 1e9 => format!("{:.2} G", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e4 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// Seconds in the units that people use.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{:.1} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{}m {:02}s", s as u64 / 60, s as u64 % 60),
        s if s < 86_400.0 * 3.0 => format!("{}h {:02}m", s as u64 / 3600, s as u64 / 60 % 60),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// A label of an axis that goes to `greatest`, in few characters: 0.25, 20k, 3e-4.
pub fn tick(v: f64, greatest: f64) -> String {
    let trimmed = |v: f64, unit: &str| {
        let text = format!("{v:.4}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match v.abs() {
        0.0 => "0".into(),
        a if a >= 1e9 => trimmed(v / 1e9, "G"),
        a if a >= 1e6 => trimmed(v / 1e6, "M"),
        a if a >= 1e4 => trimmed(v / 1e3, "k"),
        _ if greatest >= 1e-2 => trimmed(v, ""),
        // added steps have rounding errors in their last digits
        _ => format!("{:e}", format!("{v:.3e}").parse::<f64>().unwrap_or(v)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!(
            (bytes(1_500_000), duration(75.0), count(3.97e9)),
            ("1.5 MB".into(), "1m 15s".into(), "3.97 G".into())
        );
        assert_eq!([0, 999, 1000, 100_069, 1_234_567].map(commas), ["0", "999", "1,000", "100,069", "1,234,567"]);
        let ticks = [(0.0, 1.0), (0.25, 1.0), (7.0, 9.0), (2e4, 5e4), (2.5e6, 3e6), (0.1 * 3e-3, 6e-4), (0.005, 0.01)];
        assert_eq!(ticks.map(|(v, to)| tick(v, to)), ["0", "0.25", "7", "20k", "2.5M", "3e-4", "0.005"]);
    }
}
