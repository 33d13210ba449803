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
    let typed = letters(word)?;
    let near = candidates.into_iter().filter_map(|candidate| {
        let known = letters(candidate)?;
        let slips = distance(&typed, &known);
        let begins = typed.len() >= 3 && known.starts_with(&typed) && 2 * typed.len() >= known.len();
        (slips <= typed.len().max(known.len()) / 3 || begins)
            .then_some((if begins { slips.min(1) } else { slips }, candidate))
    });
    near.min_by_key(|&(slips, _)| slips).map(|(_, candidate)| candidate)
}

/// The letters that are compared: lower case, `-` read as `_`. `None` for a word that is empty or too long.
fn letters(word: &str) -> Option<Vec<char>> {
    let letters: Vec<char> =
        word.chars().flat_map(char::to_lowercase).map(|c| if c == '-' { '_' } else { c }).take(LONGEST + 1).collect();
    (1..=LONGEST).contains(&letters.len()).then_some(letters)
}

/// Edit distance with swaps of neighbours (optimal string alignment), three rows at a time.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        let count = |a: &str, b: &str| distance(&letters(a).unwrap(), &letters(b).unwrap());
        assert_eq!(count("gpt2", "gpt2"), 0);
        assert_eq!(count("gtp2", "gpt2"), 1);
        assert_eq!(count("kitten", "sitting"), 3);
        assert_eq!(count("a", "abc"), 2);
        assert_eq!(count("Learning-Rate", "learning_rate"), 0);
    }

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
