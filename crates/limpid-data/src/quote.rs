//! Keeps the text of messages text, when a template mixes it with special tokens.
//!
//! A template writes special tokens and messages into one text. If a message contains the text of a special token, a
//! mark is put before it: a character that occurs neither in the messages nor in the template. After a mark in the
//! template's output, no token begins.

use super::message::Message;
use limpid_tokenizer::TextPart;

/// Characters that Unicode reserves for use inside a program.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// Special tokens by their text, and the mark of text that only looks like one.
pub(super) struct Quote<'a> {
    specials: Vec<(&'a str, u32)>,
    mark: Option<char>,
}

impl<'a> Quote<'a> {
    /// For these special tokens and these messages in this template. None if the messages contain all possible marks.
    pub fn new(mut specials: Vec<(&'a str, u32)>, messages: &[Message], template: &str) -> Option<Quote<'a>> {
        // if several begin at one place, the longest counts
        specials.retain(|(text, _)| !text.is_empty());
        specials.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let texts = messages.iter().map(|message| &*message.content);
        if texts.clone().all(|content| specials.iter().all(|(text, _)| !content.contains(text))) {
            return Some(Quote { specials, mark: None });
        }
        let free = |mark: &char| !template.contains(*mark) && texts.clone().all(|content| !content.contains(*mark));
        MARKS.into_iter().find(free).map(|mark| Quote { specials, mark: Some(mark) })
    }

    /// Whether a message contains the text of a special token.
    pub fn is_needed(&self) -> bool {
        self.mark.is_some()
    }

    /// The special token with which a text begins.
    fn first(&self, text: &str) -> Option<(&'a str, u32)> {
        self.specials.iter().find(|(token, _)| text.starts_with(token)).copied()
    }

    /// The messages, with marks.
    pub fn marked(&self, messages: &[Message]) -> Vec<Message> {
        let Some(mark) = self.mark else { return messages.to_vec() };
        let content = |content: &str| {
            let letters = content.char_indices();
            letters.fold(String::with_capacity(content.len()), |mut text, (at, letter)| {
                text.extend(self.first(&content[at..]).map(|_| mark));
                text.push(letter);
                text
            })
        };
        messages.iter().map(|Message { role, content: said }| Message { role: *role, content: content(said) }).collect()
    }

    /// Splits what a template wrote of marked messages into its special tokens and plain text.
    pub fn parts(&self, text: &str) -> Vec<TextPart> {
        let (mut parts, mut plain) = (vec![], String::new());
        let push = |parts: &mut Vec<TextPart>, plain: &mut String| {
            if !plain.is_empty() {
                parts.push(TextPart::Plain(std::mem::take(plain)));
            }
        };
        for (n, rest) in text.split(|letter| Some(letter) == self.mark).enumerate() {
            // no token begins after a mark
            let mut at = rest.chars().next().filter(|_| n > 0).map_or(0, char::len_utf8);
            plain += &rest[..at];
            while let Some(letter) = rest[at..].chars().next() {
                if let Some((token, id)) = self.first(&rest[at..]) {
                    push(&mut parts, &mut plain);
                    parts.push(TextPart::Special(id));
                    at += token.len();
                } else {
                    plain.push(letter);
                    at += letter.len_utf8();
                }
            }
        }
        push(&mut parts, &mut plain);
        parts
    }

    /// The first message, from 1, whose text became a special token after all, and that token. This happens if a
    /// vocabulary has special tokens among its words. `ids` are those of the `parts`.
    pub fn unquotable(
        &self,
        parts: &[TextPart],
        ids: &[u32],
        messages: &[Message],
        unknown: Option<u32>,
    ) -> Option<(usize, &'a str)> {
        self.specials.iter().filter(|(_, id)| Some(*id) != unknown).find_map(|(token, id)| {
            let written = parts.iter().filter(|part| **part == TextPart::Special(*id)).count();
            let found = ids.iter().filter(|found| *found == id).count();
            let says = messages.iter().position(|message| message.content.contains(token));
            (found > written).then(|| (says.unwrap_or_default() + 1, *token))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Role;

    /// Whatever messages say, only what a template writes itself is a token, and all text is there.
    #[test]
    fn only_the_template_writes_tokens() {
        let specials = [("<s>", 1), ("<s", 2), ("s><", 3), ("x", 4), ("é>", 5)];
        let pieces = ["<s>", "<", "s", ">", "<s", "x", "é", " ", "\u{fdd0}", "\u{fdd1}"];
        let mut chance = 1_u64;
        let mut below = |n: usize| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (chance >> 33) as usize % n
        };
        let mut needed = 0;
        for _ in 0..2000 {
            let content: String = (0..below(9)).map(|_| pieces[below(pieces.len())]).collect();
            let messages = [Message { role: Role::User, content: content.clone() }];
            let quote = Quote::new(specials.to_vec(), &messages, "").unwrap();
            needed += usize::from(quote.is_needed());
            let said = &quote.marked(&messages)[0].content;
            // special tokens that the template writes, and texts that are none
            let parts = quote.parts(&format!("<s>. {said} .<s>"));
            let plain = TextPart::Plain(format!(". {content} ."));
            assert_eq!(parts, [TextPart::Special(1), plain, TextPart::Special(1)], "{content:?}");
        }
        assert!((500..1900).contains(&needed), "{needed}");
        let all: String = MARKS.chain(['x']).collect();
        assert!(Quote::new(specials.to_vec(), &[Message { role: Role::User, content: all }], "").is_none());
        let template: String = MARKS.collect();
        assert!(
            Quote::new(specials.to_vec(), &[Message { role: Role::User, content: "x".into() }], &template).is_none()
        );
    }
}
