//! Did you mean …? Finds the known name closest to an unknown one, by edit distance.
//!
//! Every part of limpid that refuses an unknown name (tokenizers, presets, flags, keys) uses it, so that the same
//! typing error gets the same hint everywhere.

/// Longer words get no hint: they are no typing error, and the work is quadratic.
const LONGEST: usize = 64;

/// The candidate nearest to `word`, or `None` if none is close enough.
///
/// Case is ignored, and `-` and `_` are equal. A swap of two neighbours counts as one error, like a missing, extra
/// or wrong letter. A candidate is close enough with one error in three letters, or if `word` is its beginning and
/// at least half of it. Of equals, the first wins.
///
/// ```
/// # use limpid_base::nearest::nearest;
/// let known = ["char", "word", "gpt2", "cl100k_base"];
/// assert_eq!(nearest("gtp2", known), Some("gpt2"));
/// assert_eq!(nearest("cl100k", known), Some("cl100k_base"));
/// assert_eq!(nearest("zebra", known), None);
/// assert_eq!(nearest("--device", ["--device-batch-size"]), None);
/// ```
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (typed, length) = letters(word)?;
    let near = candidates.into_iter().filter_map(|candidate| {
        let (known, known_length) = letters(candidate)?;
        let slips = strsim::osa_distance(&typed, &known);
        let begins = length >= 3 && known.starts_with(&typed) && 2 * length >= known_length;
        (slips <= length.max(known_length) / 3 || begins)
            .then_some((if begins { slips.min(1) } else { slips }, candidate))
    });
    near.min_by_key(|&(slips, _)| slips).map(|(_, candidate)| candidate)
}

/// The letters that are compared, lower case, `-` read as `_`, and how many. `None` for a word that is empty or too
/// long.
fn letters(word: &str) -> Option<(String, usize)> {
    let letters: String =
        word.chars().flat_map(char::to_lowercase).map(|c| if c == '-' { '_' } else { c }).take(LONGEST + 1).collect();
    let length = letters.chars().count();
    (1..=LONGEST).contains(&length).then_some((letters, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meant_name_is_found() {
        let names = ["char", "word", "gpt2", "cl100k_base", "o200k_base"];
        for (typed, meant) in [
            ("chars", "char"),
            ("wrod", "word"),
            ("GPT-2", "gpt2"),
            ("gpt", "gpt2"),
            ("cl100k", "cl100k_base"),
            ("cl100kbase", "cl100k_base"),
            ("o200k-base", "o200k_base"),
        ] {
            assert_eq!(nearest(typed, names), Some(meant), "{typed}");
        }
    }

    #[test]
    fn nothing_close_gives_no_hint() {
        let names = ["char", "word", "gpt2"];
        for typed in ["", "zebra", "q", "man", "core", "x".repeat(10_000).as_str()] {
            assert_eq!(nearest(typed, names), None, "{typed}");
        }
        assert_eq!(nearest("char", []), None);
    }
}
