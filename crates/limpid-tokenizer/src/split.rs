//! Splits text into pieces before byte pairs are merged: the regular expressions of GPT-2, GPT-4 and similar models,
//! written as code.
//!
//! Each piece depends on nothing before it, so a text may be cut wherever a piece always ends ([`Split::cut`]) and
//! its parts encoded apart. Read `ranks` next.

use std::{ops::Range, sync::OnceLock};

/// A way of cutting text into pieces that byte pairs stay within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// GPT-2's: words, numbers and marks, each with the blank before it.
    Gpt2,
    /// That of `cl100k_base`: at most three digits, any one mark before a word.
    Gpt4,
    /// That of `o200k_base`: besides, words are cut before capitals and keep `'s`.
    Gpt4o,
    /// Llama 3's: GPT-4's, but blanks after the last newline of a text are a piece of their own.
    Llama3,
    /// Qwen 2's: Llama 3's with single digits.
    Qwen2,
}

/// What a character is, as bits. Neither letter, number nor blank: a mark.
const LETTER: u8 = 1;
const NUMBER: u8 = 2;
const BLANK: u8 = 4;
/// `\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}`
const UPPER: u8 = 8;
/// `\p{Ll}\p{Lm}\p{Lo}\p{M}`
const LOWER: u8 = 16;
const NEWLINE: u8 = 32;

/// The bits of all characters in runs, in the order of code points: each run the bits and the length, which takes three
/// bytes, the lowest first. They are those of `regex`, which tiktoken goes by; a test compares them.
static CLASSES: &[u8] = include_bytes!("split/classes.bin");

/// The bits of every character, by code point.
fn classes() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Vec::with_capacity(0x11_0000);
        for [bits, low, mid, high] in CLASSES.as_chunks().0 {
            table.resize(table.len() + u32::from_le_bytes([*low, *mid, *high, 0]) as usize, *bits);
        }
        table
    })
}

/// A text and the table beside it.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    text: &'a str,
    classes: &'a [u8],
}

impl Cursor<'_> {
    /// The bits of the character at `at`, and where the next one is. Nothing at the end.
    #[inline(always)]
    fn at(self, at: usize) -> Option<(u8, usize)> {
        let first = *self.text.as_bytes().get(at)?;
        if first < 128 {
            return Some((self.classes[first as usize], at + 1));
        }
        let c = self.text[at..].chars().next()?;
        Some((self.classes[c as usize], at + c.len_utf8()))
    }

    /// Where the run of characters that `is` ends.
    #[inline(always)]
    fn run(self, mut at: usize, is: impl Fn(u8) -> bool) -> usize {
        while let Some((_, next)) = self.at(at).filter(|&(class, _)| is(class)) {
            at = next;
        }
        at
    }

    /// The end of `'s`, `'ll` and so on at `at`.
    fn contraction(self, at: usize, any_case: bool) -> Option<usize> {
        let rest = self.text.as_bytes().get(at..)?;
        let lower = |i: usize| rest.get(i).map_or(0, |b| if any_case { b.to_ascii_lowercase() } else { *b });
        match (lower(0), lower(1), lower(2)) {
            (b'\'', b's' | b'd' | b'm' | b't', _) => Some(at + 2),
            (b'\'', b'l', b'l') | (b'\'', b'v' | b'r', b'e') => Some(at + 3),
            (b'\'', ..) if any_case && self.text[at + 1..].starts_with('ſ') => Some(at + 3),
            _ => None,
        }
    }

    /// The end of the blanks at `at` that are one piece.
    fn blanks(self, at: usize, split: Split) -> usize {
        let (mut end, mut last, mut line) = (at, at, None);
        while let Some((class, next)) = self.at(end).filter(|(class, _)| class & BLANK != 0) {
            (last, end) = (end, next);
            if class & NEWLINE != 0 {
                line = Some(next);
            }
        }
        let whole = end == self.text.len();
        match (split, line) {
            (Split::Gpt2, _) | (_, None) if whole => end,
            (Split::Gpt4, _) if whole => end,
            (Split::Gpt4 | Split::Gpt4o | Split::Llama3 | Split::Qwen2, Some(line)) => line,
            _ if last > at => last,
            _ => end,
        }
    }

    /// GPT-4o's words: an optional mark, capitals, small letters, `'s`.
    fn cased(self, at: usize, class: u8, next: usize) -> Option<usize> {
        let mark = class & (LETTER | NUMBER | NEWLINE) == 0;
        let small = |from: usize| {
            let (mut upper, mut both) = (from, None);
            while let Some((class, next)) = self.at(upper).filter(|(class, _)| class & UPPER != 0) {
                if class & LOWER != 0 {
                    both = Some(next);
                }
                upper = next;
            }
            let end = self.run(upper, |class| class & LOWER != 0);
            if end > upper { Some(end) } else { both }
        };
        let found = if mark { small(next).or_else(|| small(at)) } else { small(at) };
        let end = found.or_else(|| {
            let from = if mark { next } else { at };
            let end = self.run(from, |class| class & UPPER != 0);
            (end > from).then_some(end)
        })?;
        Some(self.contraction(end, true).unwrap_or(end))
    }

    /// The end of the piece at `at`, which is before the end of the text.
    #[inline(always)]
    fn piece(self, at: usize, split: Split) -> usize {
        let is_mark = |class: u8| class & (LETTER | NUMBER | BLANK) == 0;
        let Some((class, next)) = self.at(at) else { return at };
        let blank = self.text.as_bytes()[at] == b' ';
        if split == Split::Gpt2 {
            if let Some(end) = self.contraction(at, false) {
                return end;
            }
            let (kind, from) = match self.at(next) {
                Some((other, after)) if blank && other & BLANK == 0 => (other, after),
                _ => (class, next),
            };
            return match kind & (LETTER | NUMBER | BLANK) {
                0 => self.run(from, is_mark),
                BLANK => self.blanks(at, split),
                bit => self.run(from, |class| class & bit != 0),
            };
        }
        if split == Split::Gpt4o {
            if class & NUMBER == 0
                && let Some(end) = self.cased(at, class, next)
            {
                return end;
            }
        } else {
            if let Some(end) = self.contraction(at, true) {
                return end;
            }
            if class & LETTER != 0 {
                return self.run(next, |class| class & LETTER != 0);
            }
            if class & (NUMBER | NEWLINE) == 0 {
                let end = self.run(next, |class| class & LETTER != 0);
                if end > next {
                    return end;
                }
            }
        }
        if class & NUMBER != 0 {
            let most = if split == Split::Qwen2 { 1 } else { 3 };
            let mut end = next;
            for _ in 1..most {
                end = self.at(end).filter(|(class, _)| class & NUMBER != 0).map_or(end, |(_, next)| next);
            }
            return end;
        }
        let from = match self.at(next) {
            Some((other, after)) if blank && is_mark(other) => after,
            _ if is_mark(class) => next,
            _ => return self.blanks(at, split),
        };
        let end = self.run(from, is_mark);
        let rest = &self.text.as_bytes()[end..];
        let slash = split == Split::Gpt4o;
        end + rest.iter().take_while(|b| matches!(b, b'\r' | b'\n') || (slash && **b == b'/')).count()
    }
}

impl Split {
    /// The ways that can be trained with, and their names.
    pub const ALL: [Split; 5] = [Split::Gpt2, Split::Gpt4, Split::Gpt4o, Split::Llama3, Split::Qwen2];

    /// `gpt2`, `gpt4`, `gpt4o`, `llama3` or `qwen2`.
    pub fn name(self) -> &'static str {
        ["gpt2", "gpt4", "gpt4o", "llama3", "qwen2"][self as usize]
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Split> {
        Split::ALL.into_iter().find(|split| split.name() == name)
    }

    /// Gives each piece of `text` to `each`, in order: all of it, none empty.
    #[inline]
    pub(super) fn pieces<'a>(self, text: &'a str, each: impl FnMut(&'a [u8])) {
        match self {
            Split::Gpt2 => run(text, Split::Gpt2, each),
            Split::Gpt4 => run(text, Split::Gpt4, each),
            Split::Gpt4o => run(text, Split::Gpt4o, each),
            Split::Llama3 => run(text, Split::Llama3, each),
            Split::Qwen2 => run(text, Split::Qwen2, each),
        }
    }

    /// The last place in `range` before which a piece ends whatever comes before and after: behind a letter, before
    /// what is neither letter nor accent nor apostrophe. The same for every way of cutting.
    pub(super) fn cut(text: &str, range: Range<usize>) -> Option<usize> {
        let cursor = Cursor { text, classes: classes() };
        let mut after = None;
        for (at, c) in text.get(..range.end)?.char_indices().rev() {
            if after.is_some_and(|safe| safe) && cursor.classes[c as usize] & LETTER != 0 {
                return Some(at + c.len_utf8());
            }
            if at <= range.start {
                return None;
            }
            after = Some(c != '\'' && cursor.classes[c as usize] & (LETTER | UPPER | LOWER) == 0);
        }
        None
    }
}

#[inline(always)]
fn run<'a>(text: &'a str, split: Split, mut each: impl FnMut(&'a [u8])) {
    let cursor = Cursor { text, classes: classes() };
    let mut at = 0;
    while at < text.len() {
        let end = cursor.piece(at, split);
        each(&text.as_bytes()[at..end]);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex_syntax::hir::{Class, HirKind};

    /// `WRITE_DOCS=1 cargo test -p limpid-tokenizer --lib classes` writes the file anew.
    #[test]
    fn the_classes_are_those_of_regex() {
        let mut table = vec![0u8; 0x11_0000];
        for (regex, bit) in [
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\s", BLANK),
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
            (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", LOWER),
            (r"[\r\n]", NEWLINE),
        ] {
            let parsed = regex_syntax::parse(regex).unwrap();
            let HirKind::Class(Class::Unicode(class)) = parsed.kind() else { panic!("{regex}: {parsed:?}") };
            for range in class.ranges() {
                table[range.start() as usize..=range.end() as usize].iter_mut().for_each(|bits| *bits |= bit);
            }
        }
        if std::env::var_os("WRITE_DOCS").is_some() {
            let runs = table.chunk_by(|a, b| a == b);
            let bytes: Vec<u8> =
                runs.flat_map(|run| (u32::from(run[0]) | (run.len() as u32) << 8).to_le_bytes()).collect();
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/split/classes.bin"), bytes).unwrap();
            return;
        }
        let differs = table.iter().zip(classes()).position(|(regex, own)| regex != own);
        assert_eq!((differs, classes().len()), (None, table.len()), "classes.bin is stale: write it anew");
    }
}
