//! Where a text may be cut in two: at the end of a paragraph, a line, a sentence or a word, but never inside a word or
//! inside a character that consists of several code points.

use unicode_segmentation::UnicodeSegmentation;

/// How far away the end of a word is searched for, in bytes.
const WORD: usize = 1 << 16;
/// The same for scripts without blanks between words.
const CLUSTER: usize = 1 << 12;

/// The place nearest to `at` where `text` may be cut: the end of a paragraph at most `reach` bytes away, or else that
/// of a line, or else that of a sentence; failing these, the nearest end of a word at any distance. It is never an end
/// of the text, unless the text is a single character.
pub fn boundary(text: &str, at: usize, reach: usize) -> usize {
    let nearest = |reach: usize, is: fn(&str, &str) -> bool| {
        let near = (0..=reach).flat_map(|d| [at.checked_sub(d), at.checked_add(d)]).flatten();
        near.filter(|&i| 0 < i && i < text.len() && text.is_char_boundary(i)).find(|&i| is(&text[..i], &text[i..]))
    };
    let reach = reach.min(text.len());
    nearest(reach, paragraph)
        .or_else(|| nearest(reach, line))
        .or_else(|| nearest(reach, sentence))
        .or_else(|| nearest(WORD.min(text.len()), word))
        .unwrap_or_else(|| cluster(text, at))
}

fn paragraph(before: &str, after: &str) -> bool {
    (before.ends_with("\n\n") || before.ends_with("\n\r\n")) && !after.starts_with(['\n', '\r'])
}

fn line(before: &str, after: &str) -> bool {
    before.ends_with('\n') && !after.starts_with(['\n', '\r'])
}

fn sentence(before: &str, after: &str) -> bool {
    const CLOSING: [char; 7] = ['"', '\'', ')', ']', '”', '’', '»'];
    let said = before.trim_end();
    let spaced = said.len() < before.len() && !after.starts_with(char::is_whitespace);
    let full = said.trim_end_matches(CLOSING);
    spaced && full.ends_with(['.', '!', '?', '…']) || said.len() == before.len() && full.ends_with(['。', '！', '？'])
}

fn word(before: &str, after: &str) -> bool {
    before.ends_with(char::is_whitespace) && !after.starts_with(char::is_whitespace)
}

/// The end of a word by Unicode's rules, or else of a whole character.
fn cluster(text: &str, at: usize) -> usize {
    let whole = |i: &usize| text.is_char_boundary(*i);
    let from = (0..=at.saturating_sub(CLUSTER)).rev().find(whole).unwrap_or(0);
    let to = ((at + CLUSTER).min(text.len())..).find(whole).unwrap_or(text.len());
    let part = &text[from..to];
    let nearest = |ends: &mut dyn Iterator<Item = usize>| {
        ends.map(|i| from + i).filter(|i| 0 < *i && *i < text.len()).min_by_key(|i| i.abs_diff(at))
    };
    // the first may be the rest of a word that begins before the part
    nearest(&mut part.split_word_bound_indices().skip(1).map(|(i, _)| i))
        .or_else(|| nearest(&mut part.grapheme_indices(true).skip(1).map(|(i, _)| i)))
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_place_within_reach() {
        let text = "One two. Three four\nfive \"six!\" seven\n\neight nine ten eleven";
        let cut = |at: usize, reach: usize| text.split_at(boundary(text, at, reach)).1;
        assert_eq!(cut(4, 60), "eight nine ten eleven", "a paragraph");
        assert_eq!(cut(12, 12), "five \"six!\" seven\n\neight nine ten eleven", "a line");
        assert_eq!(cut(30, 4), "seven\n\neight nine ten eleven", "a sentence");
        assert_eq!(cut(11, 3), "Three four\nfive \"six!\" seven\n\neight nine ten eleven", "a sentence");
        assert_eq!(cut(51, 3), "ten eleven", "a word");
        for (at, second) in [(0, "eat mouse"), (5, "eat mouse"), (8, "mouse"), (13, "mouse"), (99, "mouse")] {
            assert_eq!("cat eat mouse".split_at(boundary("cat eat mouse", at, 0)).1, second, "{at}");
        }
    }

    #[test]
    fn never_within_a_word_or_a_cluster() {
        for text in [
            "cat eat cheese well-known don't\r\n\r\nx",
            "слово и ещё слово",
            "e\u{301}e\u{301}e\u{301} e\u{301}",
            "👩\u{200d}👩\u{200d}👧🇩🇪🇫🇷",
            "天気がいい。散歩に行く",
        ] {
            for at in 0..=text.len() {
                for reach in [0, 3, 100] {
                    let cut = boundary(text, at, reach);
                    assert!(
                        text.grapheme_indices(true).any(|(i, _)| i == cut && i > 0),
                        "{text:?} {at} {reach}: {cut}"
                    );
                    let inside = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic() || "слоещё'-".contains(c));
                    let (a, b) = (text[..cut].chars().next_back(), text[cut..].chars().next());
                    assert!(!(inside(a) && inside(b)), "{text:?} {at}: {cut}");
                }
            }
        }
        assert_eq!((boundary("x", 0, 5), boundary("", 0, 5)), (1, 0));
    }
}
