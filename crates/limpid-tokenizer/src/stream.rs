//! Decodes ids to text while they are still being generated.
//!
//! A byte-pair token may end in the middle of a character, and a word's blank depends on the word before it. A
//! [`TextStream`] holds incomplete characters back, so that every piece it returns is valid text, and all pieces
//! together are exactly what [`Tokenizer::decode`] returns for all ids.

use super::{Tokenizer, TokenizerError, TokenizerKind, imported::Seam, words::Spacing};

/// Turns ids into text one at a time, never splitting a character.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    state: Decoding,
    /// The beginning of a character: 0 to 3 bytes.
    held: Vec<u8>,
    count: usize,
}

/// What decoding a token depends on besides the token: those before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Decoding {
    spacing: Spacing,
    seam: Seam,
}

impl Decoding {
    /// Adds the bytes of an id, which has been checked, to those of the ids before it.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32, bytes: &mut Vec<u8>) {
        match tokenizer {
            Tokenizer::Learned(vocabulary) => {
                let token = &vocabulary.tokens()[id as usize];
                if vocabulary.kind() == TokenizerKind::Word {
                    bytes.extend(self.spacing.before(token).bytes());
                }
                bytes.extend(token.bytes());
            }
            Tokenizer::Bpe(encoding) => bytes.extend(encoding.bytes(&[id])),
            Tokenizer::Imported(imported) => imported.push(id, &mut self.seam, bytes),
            Tokenizer::Dense(dense) => self.push(dense.full(), dense.sparse(&[id])[0], bytes),
        }
    }
}

impl TextStream {
    /// A stream at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer) -> TextStream {
        TextStream { tokenizer: tokenizer.clone(), state: Decoding::default(), held: Vec::new(), count: 0 }
    }

    /// A stream that goes on after `ids` (a prompt), whose own text is not given again.
    pub fn after(tokenizer: &Tokenizer, ids: &[u32]) -> Result<TextStream, TokenizerError> {
        let mut stream = TextStream::new(tokenizer);
        for &id in ids {
            stream.push(id)?;
        }
        Ok(stream)
    }

    /// Takes the next id and gives the text that is now whole, which may be empty.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.tokenizer.check_at(self.count, id)?;
        self.count += 1;
        self.state.push(&self.tokenizer, id, &mut self.held);
        Ok(whole(&mut self.held))
    }

    /// What is left: U+FFFD if the ids stopped within a character, else nothing.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Takes from `bytes` all but the beginning of a character at its end. What can never become one is replaced.
fn whole(bytes: &mut Vec<u8>) -> String {
    let mut keep = 0;
    if let Some(last) = bytes.utf8_chunks().last() {
        let broken = last.invalid();
        if str::from_utf8(broken).is_err_and(|error| error.error_len().is_none()) {
            keep = broken.len();
        }
    }
    let held = bytes.split_off(bytes.len() - keep);
    let text = String::from_utf8_lossy(bytes).into_owned();
    *bytes = held;
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_character_is_held() {
        let mut bytes = b"ab\xF0\x9F".to_vec();
        assert_eq!(whole(&mut bytes), "ab");
        assert_eq!(bytes, b"\xF0\x9F");
        bytes.extend(b"\x99\x82c\xFF\xE2\x82");
        assert_eq!(whole(&mut bytes), "🙂c\u{fffd}");
        assert_eq!(bytes, b"\xE2\x82");
        bytes.extend(b"x");
        assert_eq!(whole(&mut bytes), "\u{fffd}x");
        assert!(bytes.is_empty());
    }
}
