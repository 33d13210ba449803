//! SentencePiece's byte pairs as llama.cpp runs them on the table of a GGUF file: no list of merges, but a score for
//! each token. Of any two neighbours that together spell a token the pair with the best score is joined first, of equal
//! scores the leftmost; neither has to be a token itself. A character that is no token in the end becomes the tokens of
//! its bytes.
//!
//! A list of merges cannot say this exactly: it ranks pairs of tokens, so it has no place for a character without a
//! token, and no equal ranks. So limpid's tokenizer.json keeps the scores (a model of the type [`SCORED`]); [`merges`]
//! are what transformers makes of them.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap},
};

use super::{
    TokenizerError,
    markers::Marker,
    spec::{Merge, Spec, Vocab, steps},
};

/// The type of such a model in limpid's tokenizer.json.
pub(super) const SCORED: &str = "Scored";

/// What stands for a blank.
pub(super) const BLANK: &str = "▁";

/// A tokenizer of tokens with scores.
pub(super) struct Scored {
    /// The tokens with their ids and scores.
    tokens: HashMap<String, (u32, f32)>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Tokens that are cut out first, the longest first.
    markers: Vec<Marker>,
    /// The lengths of those that begin with a byte.
    begins: Vec<BTreeSet<usize>>,
    /// Whether a part of the text begins with a blank that is not written there.
    prefix: bool,
    /// Whether no token has a blank after a letter, so that words are joined apart.
    apart: bool,
}

impl Scored {
    /// What a tokenizer.json of limpid's says, if it is of this type.
    pub(super) fn from_spec(spec: &Spec) -> Result<Option<Scored>, TokenizerError> {
        let Vocab::Scores(list) = &spec.model.vocab else { return Ok(None) };
        if spec.kind() != SCORED {
            return Ok(None);
        }
        let tokens: HashMap<String, (u32, f32)> =
            list.iter().zip(0..).map(|((token, score), id)| (token.clone(), (id, *score as f32 + 0.0))).collect();
        let id = |token: &str| tokens.get(token).map(|(id, _)| *id);
        let byte = |byte: usize| {
            let byte = byte as u8;
            id(&format!("<0x{byte:02X}>")).or_else(|| str::from_utf8(&[byte]).ok().and_then(id))
        };
        let added = spec.added_tokens.iter().filter(|added| !added.content.is_empty());
        let mut markers: Vec<Marker> = added.map(Marker::from).collect();
        markers.sort_by_key(|marker| Reverse(marker.text.len()));
        let mut begins = vec![BTreeSet::new(); 256];
        for marker in &markers {
            begins[usize::from(marker.text.as_bytes()[0])].insert(marker.text.len());
        }
        let over = |token: &String| token.match_indices(BLANK).any(|(at, _)| at > 0 && !token[..at].ends_with(BLANK));
        steps("the pre_tokenizer", &spec.pre_tokenizer)?;
        let steps = steps("the normalizer", &spec.normalizer)?;
        let unknown = spec.model.unk_token.as_deref().and_then(id);
        let (bytes, apart) = (std::array::from_fn(byte), !tokens.keys().any(over));
        let prefix = steps.iter().any(|(kind, _)| *kind == "Prepend");
        Ok(Some(Scored { bytes, unknown, prefix, apart, markers, begins, tokens }))
    }

    /// The ids of `text`; without `specials` only tokens that are not special are cut out of it.
    pub(super) fn encode(&self, text: &str, specials: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = vec![];
        for part in self.parts(text, specials) {
            match part {
                Fragment::Marker(id) => ids.push(id),
                Fragment::Text(text) => {
                    let prefix = if self.prefix { BLANK } else { "" };
                    let text = prefix.to_string() + &text.replace(' ', BLANK);
                    self.words(&text).try_for_each(|word| self.join(word, &mut ids))?;
                }
            }
        }
        Ok(ids)
    }

    /// A text cut at the markers in it: at all of the longest first.
    fn parts<'a>(&self, text: &'a str, specials: bool) -> Vec<Fragment<'a>> {
        let mut parts = if text.is_empty() { vec![] } else { vec![Fragment::Text(text)] };
        let there: BTreeSet<&str> = (0..text.len())
            .flat_map(|at| self.begins[usize::from(text.as_bytes()[at])].iter().map(move |len| (at, at + len)))
            .filter_map(|(from, to)| text.get(from..to))
            .collect();
        let sought = self.markers.iter().filter(|marker| specials || !marker.special);
        for marker in sought.filter(|marker| there.contains(marker.text.as_str())) {
            let cut = |part| {
                let Fragment::Text(text) = part else { return vec![part] };
                let mut cut = vec![];
                for (i, rest) in text.split(marker.text.as_str()).enumerate() {
                    cut.extend((i > 0).then_some(Fragment::Marker(marker.id)));
                    cut.extend((!rest.is_empty()).then_some(Fragment::Text(rest)));
                }
                cut
            };
            parts = parts.into_iter().flat_map(cut).collect();
        }
        parts
    }

    /// The parts of a text that no token goes over.
    fn words<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let starts = |&(at, _): &(usize, &str)| at > 0 && !text[..at].ends_with(BLANK);
        let cuts = if self.apart { text.match_indices(BLANK).filter(starts).collect() } else { vec![] };
        let ends = cuts.into_iter().map(|(at, _)| at).chain([text.len()]);
        ends.scan(0, |from, to| Some(&text[std::mem::replace(from, to)..to]))
    }

    /// Joins neighbours until none spell a token.
    fn join(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        // of each character where it begins, and how far what has become of it reaches (0: joined to one before)
        if u32::try_from(text.len()).is_err() {
            let detail = format!("a word has {} bytes, at most {} can be joined", text.len(), u32::MAX);
            return Err(TokenizerError::Encode { name: "scored-bpe", detail });
        }
        let starts: Vec<u32> = text.char_indices().map(|(at, _)| at).chain([text.len()]).map(|at| at as u32).collect();
        let count = starts.len() as u32 - 1;
        let mut next: Vec<u32> = (1..=count).collect();
        let mut before: Vec<u32> = (0..count).map(|i| i.wrapping_sub(1)).collect();
        let mut joins = BinaryHeap::new();
        let part = |left: u32, end: u32| &text[starts[left as usize] as usize..starts[end as usize] as usize];
        let offer = |joins: &mut BinaryHeap<Join>, left: u32, right: u32, end: u32| {
            if let Some((_, score)) = self.tokens.get(part(left, end)) {
                joins.push(Join { score: Score::new(*score), left: Reverse(left), right, end });
            }
        };
        (1..count).for_each(|right| offer(&mut joins, right - 1, right, right + 1));
        while let Some(Join { left: Reverse(left), right, end, .. }) = joins.pop() {
            // one of the two has become part of another since
            if next[left as usize] != right || next[right as usize] != end {
                continue;
            }
            (next[left as usize], next[right as usize]) = (end, 0);
            if end < count {
                before[end as usize] = left;
                offer(&mut joins, left, end, next[end as usize]);
            }
            if left > 0 {
                offer(&mut joins, before[left as usize], left, end);
            }
        }
        let mut at = 0;
        while at < count {
            let piece = part(at, next[at as usize]);
            at = next[at as usize];
            if let Some((id, _)) = self.tokens.get(piece) {
                ids.push(*id);
            } else if let Some(bytes) = piece.bytes().map(|b| self.bytes[usize::from(b)]).collect::<Option<Vec<u32>>>()
            {
                ids.extend(bytes);
            } else {
                let detail = || format!("its vocabulary has no token for {piece:?} or its bytes, and no unknown token");
                ids.push(self.unknown.ok_or_else(|| TokenizerError::Encode { name: "scored-bpe", detail: detail() })?);
            }
        }
        Ok(())
    }
}

/// Text, or a token that was cut out of it.
enum Fragment<'a> {
    Text(&'a str),
    Marker(u32),
}

/// Two neighbours that spell a token: what reaches from character `left` to `right`, and on to `end`. The best score is
/// the greatest, of equal ones the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Join {
    score: Score,
    left: Reverse<u32>,
    right: u32,
    end: u32,
}

/// The bits of a score as a whole number in the order of `f32::total_cmp`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score(i32);

impl Score {
    fn new(score: f32) -> Score {
        let bits = score.to_bits() as i32;
        Score(if bits < 0 { bits ^ i32::MAX } else { bits })
    }
}

/// The merges that transformers makes of scores: every way to put a token together of two tokens, the best token first.
/// None where a token is put together of a character that has no token.
pub(super) fn merges(tokens: &[(String, f64)], normal: impl Fn(usize) -> bool) -> Option<Vec<Merge>> {
    let ids: HashMap<&str, usize> = tokens.iter().map(|(token, _)| token.as_str()).zip(0..).collect();
    let mut found: Vec<(f64, &str, &str)> = vec![];
    for (_, (token, score)) in tokens.iter().enumerate().filter(|(id, _)| normal(*id)) {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let start = found.len();
        for (a, b) in cuts {
            let known = [a, b].map(|part| ids.contains_key(part));
            let lone = |part: &str| part.chars().nth(1).is_none();
            match known {
                [true, true] => found.push((*score, a, b)),
                [false, true] if lone(a) => return None,
                [true, false] if lone(b) => return None,
                [false, false] if lone(a) && lone(b) => return None,
                _ => {}
            }
        }
        found[start..].sort_by_key(|(_, a, b)| (ids[a], ids[b]));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    Some(found.into_iter().map(|(_, a, b)| Merge(a.into(), b.into())).collect())
}
