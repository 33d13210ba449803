//! Tokenizers learned from texts that need not fit into memory.
//!
//! Texts go by and only the counts of distinct pieces are kept, so that what is learned depends on the texts alone, not
//! on threads. Then the most frequent pair of neighbours becomes a token, and again, as the `tokenizers` crate does: of
//! pairs that are equally frequent, the one whose ids are smaller.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    ops::Range,
    path::Path,
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    DenseTokenizer, Split, Tokenizer, TokenizerError, TokenizerKind, Vocabulary, byte_letters, files,
    markers::{Marker, Markers},
    pairs::{parts, share},
    spec::{Added, Merge, Model, Spec, Vocab},
    steps, toys,
};

/// What a name ends with whose tokenizer numbers only the ids that a text uses.
const DENSE: &str = ":dense";

/// What a learned tokenizer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learn {
    /// Byte-level byte pairs within pieces that are cut so.
    Bpe(Split),
    /// BERT's word pieces, of text in small letters without accents if `lowercase`.
    WordPiece {
        /// Capitals and accents go.
        lowercase: bool,
    },
    /// Characters or words.
    Plain(TokenizerKind),
}

/// What to learn.
#[derive(Clone, Debug)]
pub struct LearnerOptions {
    /// The kind of tokens.
    pub learn: Learn,
    /// V at most, special tokens counted.
    pub vocab_size: usize,
    /// Tokens that the text is cut at and nothing is learned of. Byte pairs have them last, the others first.
    pub special: Vec<String>,
    /// What is seen less often becomes no token.
    pub min_frequency: u64,
    /// Whether the end of a line is a token, of words; otherwise it is a blank like any other.
    pub newlines: bool,
}

/// Counts pieces of text, then makes a tokenizer. Of words and characters the most frequent are taken; words are
/// numbered as they first appear, characters by their code points.
pub struct Learner {
    recipe: LearnerOptions,
    counts: Counts,
    /// Bytes that went by.
    read: u64,
}

type Counts = FxHashMap<Box<[u8]>, Seen>;

/// How often a piece was seen, and where first.
#[derive(Clone, Copy)]
struct Seen {
    count: u64,
    first: u64,
}

/// Bytes counted by a thread at a time.
const PART: usize = 1 << 19;
/// Distinct pieces kept: beyond, the rarest go until half as many are left.
const PIECES: usize = 1 << 22;
/// Longer pieces, in bytes, are counted in parts.
const LONGEST: usize = 4096;
/// Characters that word pieces are made of; what is rarer is unknown.
const ALPHABET: usize = 1000;

impl Learner {
    /// Learns that, if it can be learned.
    pub fn new(recipe: LearnerOptions) -> Result<Learner, TokenizerError> {
        for (i, token) in recipe.special.iter().enumerate() {
            let wrong = |why| Err(TokenizerError::Learn(format!("the special token {token:?} {why}")));
            if token.is_empty() || token.trim() != token {
                return wrong("is empty, or begins or ends with a blank");
            }
            if matches!(recipe.learn, Learn::WordPiece { .. }) && token.contains(['\n', '\r']) {
                return wrong("has a line end in it, and BERT's vocabulary has one token a line");
            }
            if recipe.special[..i].contains(token) {
                return wrong("is given twice");
            }
        }
        let (bytes, special) = (if matches!(recipe.learn, Learn::Bpe(_)) { 256 } else { 1 }, recipe.special.len());
        if recipe.vocab_size < bytes + special || recipe.vocab_size > 1 << 24 {
            let of = if bytes == 256 { "256 bytes" } else { "1 token" };
            return Err(TokenizerError::Learn(format!(
                "a vocabulary of {} cannot be learned: it has {of} and {}, so at least {}, and at most 16777216",
                recipe.vocab_size,
                limpid_base::plural::plural(special, "special token"),
                bytes + special
            )));
        }
        Ok(Learner { recipe, counts: Counts::default(), read: 0 })
    }

    /// Counts the pieces of some texts, shared out among `threads`.
    ///
    /// # Errors
    /// If BERT's rules cannot cut one.
    pub fn add<T: AsRef<str>>(&mut self, texts: &[T], threads: usize) -> Result<(), TokenizerError> {
        let mut places = vec![];
        let seam = |text: &str, range| seam_beside(text, range, &self.recipe.special);
        for part in texts.iter().flat_map(|text| parts(text.as_ref(), PART, seam)) {
            places.push((self.read, part));
            self.read += part.len() as u64;
        }
        let recipe = &self.recipe;
        let marker = |text: &String| Marker { text: text.clone(), id: 0, special: true };
        let markers = Markers::new(recipe.special.iter().map(marker));
        let all = share(threads, &places, |parts| {
            let mut counts = Counts::default();
            for (_, (start, part)) in parts {
                for (plain, _) in markers.cut(part, true) {
                    recipe.pieces(&part[plain.clone()], start + plain.start as u64, &mut counts)?;
                }
            }
            Ok(counts)
        });
        for counts in all {
            for (piece, Seen { count, first }) in counts? {
                let seen = self.counts.entry(piece).or_insert(Seen { count: 0, first });
                (seen.count, seen.first) = (seen.count + count, seen.first.min(first));
            }
        }
        let mut least = 1;
        while self.counts.len() > if least == 1 { PIECES } else { PIECES / 2 } {
            least += 1;
            self.counts.retain(|_, seen| seen.count >= least);
        }
        Ok(())
    }

    /// Makes the tokenizer. `tell` hears how many of how many tokens there are and may say no (`None` is then
    /// returned).
    pub fn finish(self, tell: &mut dyn FnMut(usize, usize) -> bool) -> Result<Option<Tokenizer>, TokenizerError> {
        let LearnerOptions { learn, vocab_size, special, min_frequency, newlines } = self.recipe;
        if self.counts.is_empty() {
            return Err(TokenizerError::Empty("text"));
        }
        let mut seen: Vec<(Box<[u8]>, Seen)> = self.counts.into_iter().collect();
        seen.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let counts = || seen.iter().map(|(piece, seen)| (piece, seen.count));
        let text = |piece: &[u8]| String::from_utf8_lossy(piece).into_owned();
        match learn {
            Learn::Plain(kind) => {
                let newlines = newlines || kind == TokenizerKind::Char;
                seen.retain(|(piece, seen)| seen.count >= min_frequency && (newlines || **piece != *b"\n"));
                seen.sort_by_key(|(_, seen)| (Reverse(seen.count), seen.first));
                seen.truncate(vocab_size - special.len());
                match kind {
                    TokenizerKind::Char => seen.sort_unstable_by(|(a, _), (b, _)| a.cmp(b)),
                    TokenizerKind::Word => seen.sort_unstable_by_key(|(_, seen)| seen.first),
                }
                if seen.is_empty() {
                    return Err(TokenizerError::Empty(kind.name()));
                }
                let tokens = special.into_iter().chain(seen.iter().map(|(piece, _)| text(piece)));
                Vocabulary::with_newlines(kind, tokens.collect(), newlines).map(Tokenizer::learned).map(Some)
            }
            Learn::Bpe(split) => {
                // In the order of their letters, which is GPT-2's.
                let mut bytes: Vec<u8> = (0..=255).collect();
                bytes.sort_by_key(|byte| byte_letters::letters_of(&[*byte]));
                let tokens: Vec<String> = bytes.iter().map(|byte| byte_letters::letters_of(&[*byte])).collect();
                let ids: HashMap<u8, u32> = bytes.into_iter().zip(0..).collect();
                let words = counts().map(|(piece, count)| (piece.iter().map(|byte| ids[byte]).collect(), count));
                let most = vocab_size - special.len();
                let Some((tokens, merges)) = join(tokens, words.collect(), most, min_frequency, "", tell) else {
                    return Ok(None);
                };
                let added_tokens = Added::specials(&special, tokens.len());
                let vocab = tokens.into_iter().chain(special.iter().cloned()).zip(0..).collect();
                let (r#type, vocab) = (Some("BPE".into()), Vocab::Ids(vocab));
                let model = Model { r#type, vocab, merges: Some(merges), ..Model::default() };
                Tokenizer::made(Spec { added_tokens, ..steps::byte_pairs(model, split) }).map(Some)
            }
            Learn::WordPiece { lowercase } => {
                let words: Vec<(String, u64)> = counts().map(|(piece, count)| (text(piece), count)).collect();
                let mut seen: FxHashMap<char, u64> = FxHashMap::default();
                words.iter().for_each(|(word, n)| word.chars().for_each(|c| *seen.entry(c).or_insert(0) += n));
                let mut alphabet: Vec<(char, u64)> = seen.into_iter().collect();
                alphabet.sort_by_key(|&(c, count)| (Reverse(count), c));
                alphabet.truncate(ALPHABET);
                let alphabet: std::collections::HashSet<char> = alphabet.into_iter().map(|(c, _)| c).collect();
                let forms = |word: &str| -> Vec<String> {
                    let known = word.chars().filter(|c| alphabet.contains(c)).enumerate();
                    known.map(|(i, c)| if i == 0 { c.into() } else { format!("##{c}") }).collect()
                };
                let letters: std::collections::BTreeSet<(bool, String)> =
                    words.iter().flat_map(|(word, _)| forms(word)).map(|form| (form.starts_with("##"), form)).collect();
                let mut tokens = special.clone();
                tokens.extend(letters.into_iter().map(|(_, form)| form).filter(|form| !special.contains(form)));
                if tokens.len() > vocab_size {
                    return Err(TokenizerError::Learn(format!(
                        "a vocabulary of {vocab_size} is too small: {} characters and special tokens are in it before \
                         any joining",
                        tokens.len()
                    )));
                }
                let ids: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
                let words = words.iter().map(|(word, n)| (forms(word).iter().map(|form| ids[form]).collect(), *n));
                let Some((tokens, _)) = join(tokens, words.collect(), vocab_size, min_frequency, "##", tell) else {
                    return Ok(None);
                };
                let lines: String = tokens.into_iter().map(|token| token + "\n").collect();
                files::learned_pieces(&lines, lowercase, &special).map(Some)
            }
        }
    }
}

impl LearnerOptions {
    /// The size of a vocabulary of all characters or words that there are.
    pub const ALL: usize = 1 << 24;

    /// The usual of that: what must be seen twice to be a token (once, of characters and words), and, where no
    /// `special` tokens are given, `<|endoftext|>` for byte pairs, BERT's five for word pieces, `<UNK>` for words.
    pub fn usual(learn: Learn, vocab_size: usize, special: &[String]) -> LearnerOptions {
        let usual: &[&str] = match learn {
            _ if !special.is_empty() => &[],
            Learn::Bpe(_) => &["<|endoftext|>"],
            Learn::WordPiece { .. } => &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            Learn::Plain(TokenizerKind::Word) => &["<UNK>"],
            Learn::Plain(TokenizerKind::Char) => &[],
        };
        let special = special.iter().cloned().chain(usual.iter().map(|token| token.to_string())).collect();
        let min_frequency = if matches!(learn, Learn::Plain(_)) { 1 } else { 2 };
        LearnerOptions { learn, vocab_size, special, min_frequency, newlines: true }
    }

    /// Counts the pieces of a text without special tokens that begins at byte `start` of all texts.
    fn pieces(&self, text: &str, start: u64, counts: &mut Counts) -> Result<(), TokenizerError> {
        let mut place = |at: usize, piece: &[u8]| {
            let first = start + at as u64;
            match counts.get_mut(piece) {
                Some(seen) => (seen.count, seen.first) = (seen.count + 1, seen.first.min(first)),
                None => _ = counts.insert(piece.into(), Seen { count: 1, first }),
            }
        };
        let mut add = |piece: &[u8]| place(0, piece);
        match self.learn {
            Learn::Bpe(split) => split.pieces(text, |piece| piece.chunks(LONGEST).for_each(&mut add)),
            Learn::Plain(kind) => kind.pieces(text).for_each(|(at, piece)| place(at, piece.as_bytes())),
            #[cfg(not(feature = "huggingface"))]
            Learn::WordPiece { .. } => {
                return Err(TokenizerError::Feature { what: "learning word pieces".into(), feature: "huggingface" });
            }
            #[cfg(feature = "huggingface")]
            Learn::WordPiece { lowercase } => {
                use tokenizers::{
                    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
                    normalizers::BertNormalizer, pre_tokenizers::bert::BertPreTokenizer,
                };
                let refused = |error: tokenizers::Error| TokenizerError::Learn(error.to_string());
                for line in text.split_inclusive(['\n', ' ']) {
                    let mut line = NormalizedString::from(line);
                    BertNormalizer::new(true, true, None, lowercase).normalize(&mut line).map_err(refused)?;
                    let mut line = PreTokenizedString::from(line);
                    BertPreTokenizer.pre_tokenize(&mut line).map_err(refused)?;
                    for (word, ..) in line.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
                        if word.chars().nth(100).is_none() {
                            add(word.as_bytes()); // longer ones are unknown to BERT
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Byte pairs that suit a text of so many bytes: fewer would use less of a large one, more would be learned by heart
/// from a small one (docs/presets.md has what was measured).
fn suited(bytes: usize) -> usize {
    1 << (bytes / 256).max(1).ilog2().clamp(9, 11)
}

/// The size in `bpe:SIZE`.
fn size(size: &str) -> Result<usize, TokenizerError> {
    let (digits, unit) = match size.to_lowercase().strip_suffix('k') {
        Some(digits) => (digits.to_string(), 1 << 10),
        None => (size.to_string(), 1),
    };
    let found = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
    found.ok_or_else(|| {
        TokenizerError::Learn(format!("`bpe:{size}`: the size of the vocabulary is a number like bpe:4096 or bpe:8k"))
    })
}

impl Tokenizer {
    /// The tokenizer of that name or file.
    ///
    /// # Errors
    /// As [`Tokenizer::load`] and [`Tokenizer::named`].
    pub fn known(name: &str) -> Result<Tokenizer, TokenizerError> {
        if Path::new(name).is_file() { Tokenizer::load(name) } else { Tokenizer::named(name) }
    }

    /// The tokenizer of that name or file, or learned from `texts` where the name is `char`, `word`, `bpe` (of a size
    /// that suits the texts) or `bpe:SIZE`; a learned one, and that of a document's example, has the `special` tokens
    /// too. `NAME:dense` numbers only the ids that the texts use.
    ///
    /// ```
    /// # use limpid_tokenizer::Tokenizer;
    /// let texts = || vec!["to be or not to be".into()];
    /// let tokenizer = Tokenizer::for_texts("char", &texts, &[], 1)?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("not to be")?)?, "not to be");
    /// # Ok::<(), limpid_tokenizer::TokenizerError>(())
    /// ```
    ///
    /// # Errors
    /// If there is none of that name, or none can be learned.
    pub fn for_texts<'a>(
        name: &str,
        texts: &dyn Fn() -> Vec<Cow<'a, str>>,
        special: &[String],
        threads: usize,
    ) -> Result<Tokenizer, TokenizerError> {
        if let Some(of) = name.strip_suffix(DENSE) {
            let of = Tokenizer::for_texts(of, texts, special, threads)?;
            return Ok(Tokenizer::Dense(Arc::new(DenseTokenizer::for_texts(of, &texts(), special, threads)?)));
        }
        let asked = match (name, name.strip_prefix("bpe:")) {
            (_, Some(asked)) => Some(size(asked)?),
            _ => None,
        };
        let learn = match name {
            "char" => Learn::Plain(TokenizerKind::Char),
            "word" => Learn::Plain(TokenizerKind::Word),
            _ if name == "bpe" || asked.is_some() => Learn::Bpe(Split::Gpt2),
            _ => {
                // a file of that name goes before
                let toy = toys::named(name, special).filter(|_| !Path::new(name).is_file());
                return toy.unwrap_or_else(|| Tokenizer::known(name));
            }
        };
        let texts = texts();
        let vocab_size = match learn {
            Learn::Plain(_) => LearnerOptions::ALL,
            _ => asked.unwrap_or_else(|| suited(texts.iter().map(|text| text.len()).sum())),
        };
        let mut recipe = LearnerOptions::usual(learn, vocab_size, &[]);
        recipe.special.extend_from_slice(special);
        let mut learner = Learner::new(recipe)?;
        learner.add(&texts, threads)?;
        Ok(learner.finish(&mut |_, _| true)?.expect("nobody stops it"))
    }
}

/// The last [`seam`] in `range` that is not inside one of the `special` tokens, which may have blanks in them.
fn seam_beside(text: &str, mut range: Range<usize>, special: &[String]) -> Option<usize> {
    let covers = |token: &String, at: usize| {
        (1..token.len()).any(|before| {
            at.checked_sub(before).is_some_and(|from| text.as_bytes()[from..].starts_with(token.as_bytes()))
        })
    };
    loop {
        range.end = seam(text, range.clone())?;
        if !special.iter().any(|token| covers(token, range.end)) {
            return Some(range.end);
        }
    }
}

/// The last place in `range` between a letter and a blank: no piece of any kind goes over it.
pub(super) fn seam(text: &str, range: Range<usize>) -> Option<usize> {
    let mut blank = None;
    for (at, c) in text.get(..range.end)?.char_indices().rev() {
        if let Some(cut) = blank.filter(|_| c.is_ascii_alphabetic()) {
            return Some(cut);
        }
        if at <= range.start {
            return None;
        }
        blank = (c == ' ' || c == '\n').then_some(at);
    }
    None
}

/// Two tokens that stand side by side.
type Pair = (u32, u32);

/// How often every pair of neighbours occurs, and in which words.
#[derive(Default)]
struct Neighbours {
    counts: FxHashMap<Pair, i64>,
    /// The numbers of the words that have, or once had, the pair.
    places: FxHashMap<Pair, Vec<u32>>,
}

impl Neighbours {
    /// Counts a pair of word number `place`, which occurs `times` times.
    fn add(&mut self, pair: Pair, times: i64, place: u32) {
        *self.counts.entry(pair).or_insert(0) += times;
        let places = self.places.entry(pair).or_default();
        if places.last() != Some(&place) {
            places.push(place);
        }
    }

    /// Replaces a pair by the token `id` wherever it stands in a word, and notes the pairs that this makes.
    fn join(
        &mut self,
        pair: Pair,
        id: u32,
        (word, times): (&mut Vec<u32>, i64),
        place: u32,
        made: &mut FxHashSet<Pair>,
    ) {
        let mut change = |old: Pair, new: Pair| {
            if let Some(count) = self.counts.get_mut(&old) {
                *count -= times;
            }
            self.add(new, times, place);
            made.insert(new);
        };
        let (mut from, mut to) = (0, 0);
        while from < word.len() {
            let next = word.get(from + 1).copied();
            if (word[from], next.unwrap_or(u32::MAX)) != pair {
                word[to] = word[from];
                (from, to) = (from + 1, to + 1);
                continue;
            }
            if to > 0 {
                change((word[to - 1], pair.0), (word[to - 1], id));
            }
            if let Some(after) = word.get(from + 2).copied() {
                change((pair.1, after), (id, after));
            }
            word[to] = id;
            (from, to) = (from + 2, to + 1);
        }
        word.truncate(to);
    }
}

/// Joins the most frequent pair of neighbours in `words` until there are `most` tokens. Returns the tokens and what
/// they were joined from. `prefix` is left out of a right side.
fn join(
    mut tokens: Vec<String>,
    mut words: Vec<(Vec<u32>, u64)>,
    most: usize,
    least: u64,
    prefix: &str,
    tell: &mut dyn FnMut(usize, usize) -> bool,
) -> Option<(Vec<String>, Vec<Merge>)> {
    let mut merges = Vec::new();
    let mut neighbours = Neighbours::default();
    let mut ids: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
    for ((word, count), place) in words.iter().zip(0..) {
        for pair in word.windows(2) {
            neighbours.add((pair[0], pair[1]), *count as i64, place);
        }
    }
    let mut heap: BinaryHeap<(i64, Reverse<Pair>)> =
        neighbours.counts.iter().map(|(pair, n)| (*n, Reverse(*pair))).collect();
    while tokens.len() < most
        && let Some((count, Reverse(pair))) = heap.pop()
    {
        // an entry may be out of date: the count has changed since it was pushed
        let now = neighbours.counts.get(&pair).copied().unwrap_or(0);
        if now != count {
            if now > 0 {
                heap.push((now, Reverse(pair)));
            }
            continue;
        }
        if count < least.max(1) as i64 {
            break;
        }
        let (a, b) = (tokens[pair.0 as usize].clone(), tokens[pair.1 as usize].clone());
        let joined = format!("{a}{}", b.strip_prefix(prefix).unwrap_or(&b));
        let id = *ids.entry(joined).or_insert_with_key(|joined| {
            tokens.push(joined.clone());
            tokens.len() as u32 - 1
        });
        merges.push(Merge(a, b));
        if merges.len() % 256 == 0 && !tell(tokens.len(), most) {
            return None;
        }
        neighbours.counts.remove(&pair);
        let mut made = FxHashSet::default();
        for place in neighbours.places.remove(&pair).unwrap_or_default() {
            let (word, times) = &mut words[place as usize];
            neighbours.join(pair, id, (word, *times as i64), place, &mut made);
        }
        for pair in made {
            if let Some(count) = neighbours.counts.get(&pair).filter(|count| **count > 0) {
                heap.push((*count, Reverse(pair)));
            }
        }
    }
    Some((tokens, merges))
}

#[cfg(test)]
#[cfg(all(feature = "huggingface", feature = "tiktoken"))]
mod tests {
    use super::*;

    fn learned(
        learn: Learn,
        size: usize,
        special: &[&str],
        text: &str,
        threads: usize,
    ) -> Result<Tokenizer, TokenizerError> {
        let special = special.iter().map(|token| token.to_string()).collect();
        let mut learner =
            Learner::new(LearnerOptions { learn, vocab_size: size, special, min_frequency: 1, newlines: true })?;
        learner.add(&[text], threads)?;
        Ok(learner.finish(&mut |_, _| true)?.unwrap())
    }

    fn text() -> String {
        let mut random = crate::tests::Random(5);
        (0..30_000)
            .map(|_| ["the ", "dogs ", "don't ", "été ", "東京", "10 ", "\n", "<|end|>"][random.below(8)])
            .collect()
    }

    #[test]
    fn threads_and_blocks_change_nothing() {
        let text = text().repeat(8); // several parts
        let kinds = Split::ALL.map(Learn::Bpe).into_iter();
        let kinds = kinds.chain([Learn::WordPiece { lowercase: true }, Learn::Plain(TokenizerKind::Word)]);
        for learn in kinds {
            let special: &[&str] = match learn {
                Learn::WordPiece { .. } => &["[UNK]", "[CLS]", "[SEP]", "<|end|>"],
                _ => &["<UNK>", "<|end|>"],
            };
            let one = learned(learn, 300, special, &text, 1).unwrap();
            for threads in [2, 5] {
                assert!(learned(learn, 300, special, &text, threads).unwrap().to_json() == one.to_json(), "{learn:?}");
            }
            assert_eq!(one.encode("<|end|>").unwrap(), [one.special("<|end|>").unwrap()]);
        }
    }

    /// A special token may have blanks in it: it is one token wherever it stands, and no part of a text is cut inside
    /// of it.
    #[test]
    fn special_tokens_may_have_blanks_in_them() {
        let kinds = [Learn::Bpe(Split::Gpt2), Learn::Bpe(Split::Gpt4o), Learn::WordPiece { lowercase: false }];
        let kinds = kinds.into_iter().chain([TokenizerKind::Char, TokenizerKind::Word].map(Learn::Plain));
        for learn in kinds {
            for special in ["old tree", "a  b c", "<|the end|>", "tree. Old", "t o", "zwei\tTabs"] {
                let all: &[&str] = &["[UNK]", "[CLS]", "[SEP]", special];
                let text = format!("the {special} and a tree{special}x, old {special}\n{special}");
                let found = learned(learn, 400, all, &text, 1).unwrap();
                let again = Tokenizer::from_json(&found.to_json()).unwrap();
                let id = found.special(special).unwrap();
                for tokenizer in [&found, &again] {
                    let ids = tokenizer.encode(&text).unwrap();
                    assert_eq!(ids.iter().filter(|own| **own == id).count(), 4, "{learn:?} {special:?}");
                    assert_eq!(tokenizer.decode(&[id]).unwrap(), special, "{learn:?}");
                    assert!(!tokenizer.encode_ordinary(&text).unwrap().contains(&id), "{learn:?} {special:?}");
                }
            }
        }
        // several parts; where one was cut inside of the token, its words would be tokens
        let text = "old tree ".repeat(2 * PART / 9) + "leaf";
        let word = learned(Learn::Plain(TokenizerKind::Word), 99, &["old tree"], &text, 2).unwrap();
        assert_eq!(word.vocab_size(), 2, "old tree, leaf");
    }

    #[test]
    fn the_most_frequent_pair_comes_first_and_ties_go_by_id() {
        let found = learned(Learn::Bpe(Split::Gpt2), 259, &[], "ab ab cd cd ab", 1).unwrap();
        assert_eq!(found.pieces(&[256, 257, 258]).unwrap(), ["ab", "cd", " ab"]);
        assert_eq!(found.decode(&found.encode("é cab\0").unwrap()).unwrap(), "é cab\0");
        let pieces =
            learned(Learn::WordPiece { lowercase: true }, 12, &["[UNK]", "[CLS]", "[SEP]"], "Été et", 1).unwrap();
        assert_eq!(pieces.pieces(&pieces.encode("ÉTÉ x").unwrap()).unwrap(), ["ete", "[UNK]"]);
        let many = "Et [SEP] été\n".repeat(20_000); // goes in parts
        assert_eq!(pieces.encode(&many).unwrap(), pieces.encode("Et [SEP] été\n").unwrap().repeat(20_000));
    }

    #[test]
    fn other_programs_files_come_back_the_same() {
        let dir = std::env::temp_dir().join(format!("limpid-learn-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (ranks, llmc, sample) = (dir.join("a.tiktoken"), dir.join("a.bin"), text());
        for split in Split::ALL {
            let own = learned(Learn::Bpe(split), 320, &["<|endoftext|>"], &sample, 2).unwrap();
            assert_eq!(own.split(), Some(split));
            std::fs::write(&ranks, own.to_tiktoken().unwrap()).unwrap();
            assert!(matches!(Tokenizer::load(&ranks),
                Err(TokenizerError::File { fault, .. }) if matches!(*fault, TokenizerError::NoSplit)));
            let end = ["<|endoftext|>".to_string()];
            let again = Tokenizer::load_with(&ranks, Some(split), &end).unwrap();
            let sample = "don't <|endoftext|>\n\n the Dogs 123456 \n ";
            assert_eq!(again.encode(sample).unwrap(), own.encode(sample).unwrap(), "{split:?}");
            std::fs::write(&llmc, own.to_llmc().unwrap()).unwrap();
            let bin = Tokenizer::load(&llmc).unwrap();
            assert_eq!(bin.end_of_text(), own.end_of_text());
            assert_eq!(bin.decode(&own.encode(sample).unwrap()).unwrap(), sample);
            own.export(&dir, 1024).unwrap();
        }
        for encoding in crate::Encoding::all().take(2) {
            std::fs::write(&ranks, Tokenizer::Bpe(encoding).to_tiktoken().unwrap()).unwrap();
            assert_eq!(Tokenizer::load(&ranks).unwrap(), Tokenizer::Bpe(encoding));
        }
        std::fs::write(&ranks, "YQ== 0\nYQ== 1\n").unwrap();
        assert!(Tokenizer::load(&ranks).unwrap_err().to_string().contains("line 2"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_cannot_be_learned_is_said() {
        let bpe = Learn::Bpe(Split::Gpt4);
        let said = |size, special: &[&str], text| learned(bpe, size, special, text, 1).unwrap_err().to_string();
        assert!(said(256, &["<a>"], "text").contains("256 bytes and 1 special token, so at least 257"));
        assert!(said(300, &["<a>", "<a>"], "text").contains("\"<a>\" is given twice"));
        for special in ["", " ", " a", "a ", "a\n", "\u{2003}a b"] {
            assert!(said(300, &[special], "text").contains("begins or ends with a blank"), "{special:?}");
        }
        let pieces = learned(Learn::WordPiece { lowercase: true }, 300, &["a\nb"], "text", 1);
        assert!(pieces.unwrap_err().to_string().contains("one token a line"));
        assert!(said(300, &[], "").contains("empty"));
    }
}
