//! Numbers with units, as people read and write them.

/// Bytes with a unit.
pub fn bytes(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.1} kB", n / 1e3),
        n => format!("{n} bytes"),
    }
}

/// Reads bytes as people write them: 2G, 1.5GiB, 800 MB, 2000000000. K, M, G and T are powers of 1000; Ki, Mi, Gi and
/// Ti are powers of 1024.
pub fn parse_bytes(text: &str) -> Option<u64> {
    parse_size(text, 1000.0)
}

/// Reads bytes like [`parse_bytes`], except that K, M, G and T are powers of 1024, too: 20M is 20 MiB.
pub fn parse_binary_bytes(text: &str) -> Option<u64> {
    parse_size(text, 1024.0)
}

fn parse_size(text: &str, thousand: f64) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let (number, unit) = (number.trim(), unit.to_ascii_lowercase());
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let power = match unit {
        "" => return number.parse().ok().filter(|n| *n > 0), // no part of a byte
        "k" | "ki" => 1,
        "m" | "mi" => 2,
        "g" | "gi" => 3,
        "t" | "ti" => 4,
        _ => return None,
    };
    let base = if unit.ends_with('i') { 1024.0 } else { thousand };
    let n = number.parse::<f64>().ok()? * base.powi(power);
    (1.0..u64::MAX as f64).contains(&n).then_some(n as u64)
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

/// Round numbers for an axis from `low` to `high`, about so many.
pub fn ticks(low: f64, high: f64, about: f64) -> Vec<f64> {
    let rough = ((high - low) / about).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough * 0.999).unwrap_or(power);
    let first = (low / step - 1e-9).ceil();
    let all = (0..64).map(|i| (first + f64::from(i)) * step).take_while(|v| *v <= high + 1e-9 * step);
    // the nearest double to the decimal that is meant
    all.map(|v| format!("{v:.12e}").parse().unwrap_or(v)).collect()
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

/// A number in at most nine columns, with an exponent where plain digits would lose too much.
pub fn short(v: f64) -> String {
    match v.abs() {
        _ if v.is_nan() => "-".into(),
        0.0 => "0".into(),
        a if (1e-3..1e4).contains(&a) => format!("{v:.4}"),
        _ => format!("{v:.2e}"),
    }
}

/// Whether the crates that write dates can write this one: of the years 1970 to 9999.
pub fn has_date(time: std::time::SystemTime) -> bool {
    let end = std::time::Duration::from_secs(253_402_300_800);
    time.duration_since(std::time::SystemTime::UNIX_EPOCH).is_ok_and(|since| since < end)
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
        assert_eq!([0.0, -0.5, 1e-9, 123456.0].map(short), ["0", "-0.5000", "1.00e-9", "1.23e5"]);
        assert_eq!([0, 999, 1000, 100_069, 1_234_567].map(commas), ["0", "999", "1,000", "100,069", "1,234,567"]);
        let ticks = [(0.0, 1.0), (0.25, 1.0), (7.0, 9.0), (2e4, 5e4), (2.5e6, 3e6), (0.1 * 3e-3, 6e-4), (0.005, 0.01)];
        assert_eq!(ticks.map(|(v, to)| tick(v, to)), ["0", "0.25", "7", "20k", "2.5M", "3e-4", "0.005"]);
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(0.0, 1.0, 5.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(0.3, 0.7, 5.0), [0.3, 0.4, 0.5, 0.6, 0.7]);
        assert_eq!(ticks(-3.0, 40.0, 5.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
    }

    #[test]
    fn sizes_as_people_write_them() {
        let both = |text| [parse_bytes(text), parse_binary_bytes(text)];
        for (text, decimal, binary) in [
            ("1", 1, 1),
            ("2000000000", 2_000_000_000, 2_000_000_000),
            ("18446744073709551615", u64::MAX, u64::MAX),
            ("7B", 7, 7),
            ("500K", 500_000, 512_000),
            ("64kb", 64_000, 65_536),
            ("20M", 20_000_000, 20 << 20),
            ("800 MB", 800_000_000, 800 << 20),
            ("2g", 2_000_000_000, 2 << 30),
            ("1T", 1_000_000_000_000, 1 << 40),
            ("1KiB", 1024, 1024),
            ("1.5GiB", 3 << 29, 3 << 29),
            ("512Mi", 512 << 20, 512 << 20),
            ("0.5k", 500, 512),
        ] {
            assert_eq!(both(text), [Some(decimal), Some(binary)], "{text}");
        }
        let refused = "| |0|0G|-1|-2G|1.5|0.0001K|1.2.3M|G|MB|i|5i|5iB|2Gbb|2X|2P|1e9|1 000M|2G |2 G \
                       B|nan|inf|infG|0x10|2G2|\u{663}M";
        for text in refused.split('|').chain(["18446744073709551616", "20000000T"]) {
            assert_eq!(both(text), [None, None], "{text:?}");
        }
    }
}
