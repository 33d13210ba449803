//! A number with its noun: 1 thread, 2 threads. Every message that counts uses it.

/// A number with its noun, in the plural unless the number is 1; thousands are separated by commas.
///
/// ```
/// # use limpid_base::plural::plural;
/// assert_eq!(plural(1, "thread"), "1 thread");
/// assert_eq!(plural(50_257, "token"), "50,257 tokens");
/// assert_eq!(plural(2, "batch"), "2 batches");
/// ```
pub fn plural(n: impl TryInto<u64>, word: &str) -> String {
    let number = crate::units::commas(n.try_into().unwrap_or(u64::MAX));
    let end = match word {
        _ if number == "1" => "",
        word if ["s", "x", "ch", "sh"].iter().any(|end| word.ends_with(end)) => "es",
        _ => "s",
    };
    format!("{number} {word}{end}")
}

#[cfg(test)]
mod tests {
    use super::plural;

    #[test]
    fn one_is_no_plural() {
        for (n, word, said) in [
            (0, "thread", "0 threads"),
            (1, "batch", "1 batch"),
            (999, "loss", "999 losses"),
            (1000, "step", "1,000 steps"),
            (1_234_567, "token", "1,234,567 tokens"),
            (u64::MAX, "byte", "18,446,744,073,709,551,615 bytes"),
        ] {
            assert_eq!(plural(n, word), said);
        }
    }
}
