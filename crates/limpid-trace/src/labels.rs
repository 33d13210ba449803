//! Words for the places of a tensor: its tokens, and which keys a query does not see.

use crate::masked::MaskTable;
use limpid_core::model::in_block;

/// Words for the axes of a run's tensors ([`Trace::labels`](crate::Trace::labels)); without any, rows and columns are
/// numbered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels {
    /// The tokens of each sequence.
    pub tokens: Vec<Vec<String>>,
    /// Every token, by its id.
    pub vocabulary: Vec<String>,
    /// How many keys each query of each sequence sees; none where nothing is hidden.
    pub reach: Vec<Vec<usize>>,
    /// How many of these, the nearest ones, it sees at most in each block; 0 for all.
    pub windows: Vec<usize>,
    /// Which keys each query sees instead, in a run with a mask of its own.
    pub mask: Option<MaskTable>,
}

impl Labels {
    /// The window of the block that a tensor belongs to; 0 for none.
    fn window(&self, tensor: &str) -> usize {
        in_block(tensor).and_then(|(block, _)| self.windows.get(block)).copied().unwrap_or(0)
    }

    /// Whether the mask hides a key from a query of a sequence.
    pub fn hides(&self, tensor: &str, sequence: usize, query: usize, key: usize) -> bool {
        if let Some(mask) = &self.mask {
            return !mask.sees(query, key);
        }
        let reach = self.reach.get(sequence).and_then(|reach| reach.get(query));
        let window = self.window(tensor);
        reach.is_some_and(|reach| key >= *reach || window > 0 && key + window < *reach)
    }

    /// Words for an axis of `size`; for positions they are a sequence's.
    pub fn words(&self, axis: &str, sequence: Option<usize>, size: usize) -> Vec<String> {
        let words = match axis {
            "pos" | "query_pos" | "key_pos" => sequence.and_then(|sequence| self.tokens.get(sequence)),
            "d_vocab" => Some(&self.vocabulary),
            _ => None,
        };
        words.filter(|words| words.len() == size).cloned().unwrap_or_default()
    }
}

/// A token as a label: as it is, or in quotes where spaces or what no eye sees belong to it.
pub fn label(piece: &str) -> String {
    let quoted = format!("{piece:?}");
    let plain = !piece.is_empty() && !piece.contains(char::is_whitespace) && quoted[1..quoted.len() - 1] == *piece;
    if plain { piece.into() } else { quoted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_can_be_told_apart_and_steer_nothing() {
        for (piece, shown) in [
            ("dog", "dog"),
            ("é日", "é日"),
            ("don't", "don't"),
            (" the", "\" the\""),
            ("", "\"\""),
            ("\n", "\"\\n\""),
            ("a\u{1b}[31m", "\"a\\u{1b}[31m\""),
            ("\u{202e}x", "\"\\u{202e}x\""),
            ("say \"", "\"say \\\"\""),
        ] {
            assert_eq!(label(piece), shown);
        }
    }
}
