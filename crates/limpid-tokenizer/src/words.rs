//! The two halves of the word tokenizer: where a word begins and ends, and where decoding puts blanks.
//!
//! [`pieces`] cuts text into words, single marks and newlines, and drops the blanks between them. [`Spacing`] puts
//! blanks back while pieces come in, one at a time, looking only at what came before; so a stream and a whole text
//! agree.
//!
//! [`Tokenizer`](super::Tokenizer) describes what survives of a text.

/// [`pieces`] as a regular expression, for other readers of tokenizer.json. Change both together: HuggingFace's
/// `tokenizers` 0.23 was compared over every code point, and parts only at the 4,672 that its older Unicode does not
/// know.
pub(super) const PATTERN: &str = r"[\p{Alphabetic}\p{N}\x{0300}-\x{036F}]+(?:['’_\-][\p{Alphabetic}\p{N}\x{0300}-\x{036F}]+|(?<=[0-9])[.,:](?=[0-9])[\p{Alphabetic}\p{N}\x{0300}-\x{036F}]+)*|\n|\S";

/// The pieces of `text` in order, each with the byte where it starts.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (start, c) = text[at..].char_indices().find(|&(_, c)| c == '\n' || !c.is_whitespace())?;
        let start = at + start;
        at = if in_word(c) { word_end(text, start) } else { start + c.len_utf8() };
        Some((start, &text[start..at]))
    })
}

/// Letters, digits, and the accents that follow a letter in decomposed text.
fn in_word(c: char) -> bool {
    c.is_alphanumeric() || ('\u{300}'..='\u{36f}').contains(&c)
}

/// The end of the word that starts at `start`. An apostrophe, hyphen or underscore between two letters belongs to it,
/// and so does a point, comma or colon between two digits (3.14, 1,000, 10:30).
fn word_end(text: &str, start: usize) -> usize {
    let mut chars = text[start..].char_indices().peekable();
    let mut last = ' ';
    while let Some((at, c)) = chars.next() {
        let inside = in_word(c)
            || chars.peek().is_some_and(|&(_, next)| match c {
                '\'' | '’' | '-' | '_' => in_word(last) && in_word(next),
                '.' | ',' | ':' => last.is_ascii_digit() && next.is_ascii_digit(),
                _ => false,
            });
        if !inside {
            return start + at;
        }
        last = c;
    }
    text.len()
}

/// Puts the blanks back between pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spacing {
    /// Nothing may come between the last piece and the next: the text starts here, or the last piece opens something.
    tight: bool,
    /// A double quote was opened on this line and not closed.
    quoted: bool,
    started: bool,
}

impl Spacing {
    /// What stands before `piece`, given all pieces before it: a space or nothing.
    pub(super) fn before(&mut self, piece: &str) -> &'static str {
        let (tight_before, tight_after) = match piece {
            "\n" => {
                self.quoted = false;
                (true, true)
            }
            "\"" => {
                self.quoted = !self.quoted;
                (!self.quoted, self.quoted)
            }
            "." | "," | "!" | "?" | ";" | ":" | ")" | "%" | "…" | "”" | "’" => (true, false),
            "(" | "“" | "‘" | "$" => (false, true),
            _ => (false, false),
        };
        let space = self.started && !self.tight && !tight_before;
        (self.started, self.tight) = (true, tight_after);
        if space { " " } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        pieces(text).map(|(_, piece)| piece).collect()
    }

    fn join(pieces: &[&str]) -> String {
        let mut spacing = Spacing::default();
        pieces.iter().flat_map(|piece| [spacing.before(piece), piece]).collect()
    }

    #[test]
    fn words_marks_and_newlines() {
        assert_eq!(
            split("  The well-known dog's bowl,\t(new)!\n\nOK "),
            ["The", "well-known", "dog's", "bowl", ",", "(", "new", ")", "!", "\n", "\n", "OK"]
        );
        assert_eq!(split("'tis - a_b_ it''s x-"), ["'", "tis", "-", "a_b", "_", "it", "'", "'", "s", "x", "-"]);
        assert_eq!(split("3.14 1,000 10:30 a.b 1. 2"), ["3.14", "1,000", "10:30", "a", ".", "b", "1", ".", "2"]);
        assert_eq!(split("cafe\u{301} naïve 東京!🙂"), ["cafe\u{301}", "naïve", "東京", "!", "🙂"]);
        assert!(split(" \t\r ").is_empty());
    }

    #[test]
    fn starts_are_byte_offsets() {
        assert_eq!(pieces("é, b").collect::<Vec<_>>(), [(0, "é"), (2, ","), (4, "b")]);
    }

    #[test]
    fn english_comes_back_byte_for_byte() {
        for text in [
            "Anna said, \"Where is my kite?\" Then she ran home.\n",
            "Once upon a time, there was a dog. It didn't bark!\n\nThe end; or (perhaps) not: who knows?",
            "\"Yes,\" said Tom. \"Let's go (now)!\"\n\"No,\" said Mia.\n",
            "An open \"quote\nends with the \"line\".",
            "It cost $3.50, 20% less than at 10:30. “Good,” he said… ‘Fine’ and the dogs’ bowls.",
            "a well-known 21st-century thing\n",
            "\n\n",
        ] {
            assert_eq!(join(&split(text)), text);
        }
    }

    #[test]
    fn other_spacing_keeps_its_pieces() {
        for text in [
            "a  b",
            "x--y",
            " ( a ) ",
            "\" a \" b",
            "e.g. this",
            "3 . 14 , 1",
            "dogs' ' x",
            "a \n b",
            "’ s 5 ’ 5 $ ( ’ x",
        ] {
            let pieces = split(text);
            assert_eq!(split(&join(&pieces)), pieces, "{text:?}");
        }
    }
}
