//! The items of a JSON array in a file, one after the other in bounded memory; `documents` reads what stands in each.

use super::corpus_error::{CorpusError, bad};
use super::inputs::{Input, LONGEST, TextSource, damaged};
use std::io::BufRead;

/// The items of a JSON array as they stand there.
pub(super) struct JsonArray {
    source: TextSource,
    state: State,
    item: u64,
}

#[derive(PartialEq)]
enum State {
    Before,
    Within,
    After,
}

/// An item of an array, byte by byte.
#[derive(Default)]
struct Item {
    bytes: Vec<u8>,
    /// Whether it has more than [`LONGEST`] bytes; the rest is not held.
    long: bool,
    /// How many objects and arrays are open.
    depth: u32,
    /// Whether a text is open, and whether its last character was a backslash that escapes the next.
    string: bool,
    escape: bool,
}

impl Item {
    /// Takes the next byte. Returns whether the item ends with it; the state says whether the array does.
    fn push(&mut self, byte: u8, state: &mut State) -> bool {
        if *state == State::Before {
            if byte == b'[' {
                *state = State::Within;
            }
            return false;
        }
        if self.string {
            self.string = self.escape || byte != b'"';
            self.escape = !self.escape && byte == b'\\';
        } else {
            match byte {
                b'"' => self.string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => self.depth -= 1,
                b',' if self.depth == 0 => return true,
                b']' => {
                    *state = State::After;
                    return true;
                }
                _ => {}
            }
        }
        if self.bytes.len() == LONGEST {
            self.long = true;
        } else {
            self.bytes.push(byte);
        }
        false
    }
}

impl JsonArray {
    pub fn new(source: TextSource) -> JsonArray {
        JsonArray { source, state: State::Before, item: 0 }
    }

    /// Whether it has begun and not ended.
    pub fn is_within(&self) -> bool {
        self.state == State::Within
    }

    /// The number of the last item, from 1.
    pub fn number(&self) -> u64 {
        self.item
    }

    /// The bytes of the next item, if there is one.
    ///
    /// # Errors
    /// If the file is damaged, cut short or goes on after the array, or an item is longer than [`LONGEST`].
    pub fn next(&mut self, input: &Input) -> Result<Option<Vec<u8>>, CorpusError> {
        if self.state == State::After {
            return self.end(input);
        }
        let mut item = Item::default();
        loop {
            let started = std::mem::replace(&mut self.state, State::After); // unless this succeeds
            let buffer = damaged(input, self.source.fill_buf())?;
            if buffer.is_empty() {
                return Err(bad(&input.path, "its JSON array does not end: the file was cut short"));
            }
            self.state = started;
            let ended = buffer.iter().position(|byte| item.push(*byte, &mut self.state));
            let used = ended.map_or(buffer.len(), |last| last + 1);
            self.source.consume(used);
            if ended.is_some() {
                self.item += 1;
                if item.long {
                    return Err(CorpusError::TooLong { place: input.place(self.item), limit: LONGEST });
                }
                if self.state == State::After && item.bytes.trim_ascii().is_empty() {
                    return self.end(input);
                }
                return Ok(Some(item.bytes));
            }
        }
    }

    /// Nothing may follow the array.
    fn end(&mut self, input: &Input) -> Result<Option<Vec<u8>>, CorpusError> {
        loop {
            let buffer = damaged(input, self.source.fill_buf())?;
            let used = buffer.len();
            if !buffer.trim_ascii().is_empty() {
                return Err(bad(
                    &input.path,
                    "there is more after the end of its JSON array: put all in one array, or one object on each line",
                ));
            }
            if used == 0 {
                return Ok(None);
            }
            self.source.consume(used);
        }
    }
}
