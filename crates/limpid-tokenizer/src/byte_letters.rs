//! GPT-2's mapping of bytes to letters (`bytes_to_unicode`), and the merges of a list of ranked tokens.
//!
//! GPT-2's vocabulary has a printable letter for each byte (a space is `Ġ`), and byte-level BPE has used these letters
//! since. OpenAI's later encodings are ranked tokens without a list of merges; [`merges`] reconstructs it.

use std::{collections::HashMap, sync::OnceLock};

/// The letter of each byte: itself where it is printable and no blank, otherwise one from U+0100 on.
fn letters() -> &'static ([char; 256], HashMap<char, u8>) {
    static LETTERS: OnceLock<([char; 256], HashMap<char, u8>)> = OnceLock::new();
    LETTERS.get_or_init(|| {
        let mut next = 0x100..;
        let letter = |byte: u8| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => next.next().and_then(char::from_u32).unwrap_or('\u{fffd}'),
        };
        let letters: Vec<char> = (0..=255).map(letter).collect();
        let back = letters.iter().zip(0..=255).map(|(&letter, byte)| (letter, byte)).collect();
        (std::array::from_fn(|byte| letters[byte]), back)
    })
}

/// Bytes in GPT-2's letters.
pub(super) fn letters_of(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| letters().0[byte as usize]).collect()
}

/// The bytes of a token in GPT-2's letters; none if a character is not one of them.
pub(super) fn bytes_of(token: &str) -> Option<Vec<u8>> {
    token.chars().map(|letter| letters().1.get(&letter).copied()).collect()
}

/// The pair of tokens that each token of two and more bytes is merged from, in the order of the ids. `tokens` are by
/// rank, with gaps. Merging what ranks lowest from the token's own bytes ends in that pair; none if it does not.
///
/// Why a list of such pairs gives the same ids as the ranks: while a token's first and last bytes are joined to nothing
/// outside it, what happens inside does not depend on the text around.
pub(super) fn merges(tokens: &[Option<Vec<u8>>]) -> Vec<Option<(u32, u32)>> {
    let ranks: HashMap<&[u8], u32> =
        tokens.iter().zip(0..).filter_map(|(token, rank)| Some((token.as_deref()?, rank))).collect();
    let pair = |(token, rank): (&Option<Vec<u8>>, u32)| {
        let token = token.as_deref().filter(|token| token.len() > 1)?;
        // Where each part begins, and the rank of the part joined with the next.
        let joined = |a: usize, b: usize| ranks.get(&token[a..b]).copied().filter(|&r| r < rank).unwrap_or(u32::MAX);
        let n = token.len();
        let mut parts: Vec<(usize, u32)> = (0..n).map(|at| (at, joined(at, (at + 2).min(n)))).collect();
        parts[n - 1].1 = u32::MAX;
        while parts.len() > 2 {
            let (i, _) = parts.iter().enumerate().min_by_key(|(_, part)| part.1).filter(|(_, p)| p.1 != u32::MAX)?;
            parts.remove(i + 1);
            let start = |i: usize| parts.get(i).map_or(n, |part| part.0);
            let (after, own) = (start(i + 2), start(i));
            let right = if i + 1 < parts.len() { joined(own, after) } else { u32::MAX };
            if i > 0 {
                parts[i - 1].1 = joined(start(i - 1), start(i + 1));
            }
            parts[i].1 = right;
        }
        let half = parts.get(1)?.0;
        Some((*ranks.get(&token[..half])?, *ranks.get(&token[half..])?))
    };
    tokens.iter().zip(0..).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_letter() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes_of(&letters_of(&all)).unwrap(), all);
        assert_eq!(letters_of(" a\n\0é".as_bytes()), "ĠaĊĀÃ©");
        assert_eq!((bytes_of("a b"), bytes_of("東")), (None, None));
    }

    #[test]
    fn the_pair_is_what_merging_ends_in() {
        let tokens: Vec<_> = ["a", "b", "c", "ab", "bc", "abc", "abcx"].map(|t| Some(t.as_bytes().to_vec())).to_vec();
        assert_eq!(merges(&tokens), [None, None, None, Some((0, 1)), Some((1, 2)), Some((3, 2)), None]);
    }
}
