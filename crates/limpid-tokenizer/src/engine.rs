//! HuggingFace's crate with guards: a regular expression that gives up is an error (the crate leaves the rest of the
//! text uncut), and so are letters that a vocabulary lacks and no unknown token stands for (the crate leaves them out).

use std::{
    cell::RefCell,
    collections::HashMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use super::{
    TextPart, TokenizerError,
    pairs::parts,
    spec::{Added, Spec, steps},
    steps::split,
};
use fancy_regex::Regex;
use limpid_base::contain::contain;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, NormalizedString, Normalizer, Offsets, PostProcessorWrapper,
    PreTokenizedString, PreTokenizer, Result, SplitDelimiterBehavior, Token, TokenizerImpl,
    tokenizer::pattern::{Invert, Pattern},
};

/// The crate's tokenizer.
pub(super) type Engine =
    TokenizerImpl<Whole, Steps<dyn Normalizer + Send + Sync>, Steps<Cutting>, PostProcessorWrapper, DecoderWrapper>;

type Made<T> = std::result::Result<T, TokenizerError>;

/// A step that cuts text.
pub(super) type Cutting = dyn PreTokenizer + Send + Sync;

/// The longest text, in bytes, that the crate encodes in one piece.
const WHOLE: usize = 16 << 20;

/// The crate's tokenizer three times over; the last two are made when they are first asked for.
pub(super) struct Engines {
    /// What kind of tokenizer it is.
    kind: &'static str,
    /// Finds special tokens by their text.
    whole: Engine,
    ordinary: OnceLock<Box<Engine>>,
    marked: OnceLock<Box<Marked>>,
    added: Vec<Added>,
    /// Whether and how a long text is encoded in parts; the crate needs memory of 160 times a text.
    pub parting: Option<Parting>,
}

/// Where a text may be cut so that the ids of its parts are its own: between a letter, a blank and a letter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parting {
    /// Before the blank.
    Before,
    /// Before and after it: the normalizer puts one before every part.
    Within,
}

impl Engines {
    /// For a tokenizer.json and its tokens.
    pub(super) fn new(kind: &'static str, spec: Spec, tokens: &[Option<String>]) -> Made<Engines> {
        let (added, parting) = (spec.added_tokens.clone(), parting(&spec, tokens)?);
        let (ordinary, marked) = (OnceLock::new(), OnceLock::new());
        Ok(Engines { kind, whole: spec.build()?, ordinary, marked, added, parting })
    }

    /// Takes the text of a special token for text like any other.
    fn ordinary(&self) -> &Engine {
        self.ordinary.get_or_init(|| {
            let mut other = self.whole.clone();
            other.set_encode_special_tokens(true);
            Box::new(other)
        })
    }

    /// Finds the added tokens, where they are special, by their marks alone.
    fn marked(&self) -> Result<&Marked> {
        if let Some(made) = self.marked.get() {
            return Ok(made);
        }
        let made = Box::new(Marked::new(self.ordinary().clone(), &self.added)?);
        Ok(self.marked.get_or_init(|| made))
    }

    pub(super) fn encode(&self, text: &str, specials: bool) -> Made<Vec<u32>> {
        self.encode_by(if specials { &self.whole } else { self.ordinary() }, text)
    }

    /// The ids of parts of a text.
    pub(super) fn encode_parts(&self, parts: &[TextPart]) -> Made<Vec<u32>> {
        let marked = self.marked().map_err(|error| self.fault(error.to_string()))?;
        let mut text = String::new();
        for part in parts {
            match part {
                TextPart::Plain(plain) if plain.contains(MARK) => {
                    let what = "it has the text of a special token, and U+FDD0 or U+FDD1, which limpid then needs for \
                                itself: leave one of them out";
                    return Err(self.fault(what.into()));
                }
                TextPart::Plain(plain) => text += plain,
                TextPart::Special(id) => text += &mark(u64::from(*id)),
            }
        }
        let ids = self.encode_by(&marked.engine, &text)?;
        Ok(ids.into_iter().map(|id| marked.ids.get(&id).copied().unwrap_or(id)).collect())
    }

    /// The ids of one of the engines, part by part of a long text.
    fn encode_by(&self, engine: &Engine, text: &str) -> Made<Vec<u32>> {
        if self.parting.is_none() && text.len() > WHOLE {
            return Err(self.fault(format!(
                "it can only be encoded whole, which needs 160 times its size, and has {} bytes, more than {WHOLE}: \
                 prepare shards, which cuts long texts into parts",
                text.len()
            )));
        }
        let mut ids = Vec::new();
        let parts = if self.parting.is_some() { parts(text, 1 << 16, gap) } else { vec![text] };
        for (n, part) in parts.into_iter().enumerate() {
            let own = n > 0 && self.parting == Some(Parting::Within);
            let part = if own { &part[1..] } else { part };
            let found = contain(|| heard(|| engine.encode_fast(part, false))).unwrap_or_else(|panic| Err(panic.into()));
            ids.extend(found.map_err(|error| self.fault(error.to_string()))?.get_ids());
        }
        Ok(ids)
    }

    fn fault(&self, detail: String) -> TokenizerError {
        TokenizerError::Encode { name: self.kind, detail }
    }
}

/// The last place in `range` of a blank between letters.
fn gap(text: &str, range: Range<usize>) -> Option<usize> {
    let (bytes, letter) = (text.as_bytes(), |at: usize| text.as_bytes()[at].is_ascii_alphabetic());
    (range.start.max(1)..range.end.min(bytes.len() - 1))
        .rev()
        .find(|&at| bytes[at] == b' ' && letter(at - 1) && letter(at + 1))
}

/// Whether no step looks past a blank between letters, and either one divides there or no token goes over it.
fn parting(spec: &Spec, tokens: &[Option<String>]) -> Made<Option<Parting>> {
    let (mut marked, mut own) = (false, false);
    for (kind, step) in steps("the normalizer", &spec.normalizer)? {
        match kind {
            "BertNormalizer" | "Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD" | "StripAccents" => {}
            "Prepend" if step["prepend"] == "▁" && !marked => own = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => marked = true,
            _ => return Ok(None),
        }
    }
    let mut divided = split(&spec.pre_tokenizer).is_some();
    for (kind, step) in if divided { vec![] } else { steps("the pre_tokenizer", &spec.pre_tokenizer)? } {
        match kind {
            "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" => divided |= !marked,
            "ByteLevel" if step["use_regex"] != false => divided |= !marked,
            "Metaspace" if step["replacement"] == "▁" && step["split"] == false => marked = true,
            "Metaspace" if step["replacement"] == "▁" => divided |= !marked,
            "Split" if marked && step["pattern"]["String"] == " " => {} // there are none left
            "Punctuation" | "Digits" => {}
            _ => return Ok(None),
        }
    }
    let over = |token: &String| token.char_indices().any(|(at, c)| c == '▁' && !token[..at].ends_with(['▁']) && at > 0);
    let model = &spec.model;
    let apart = spec.kind() == "BPE"
        && marked
        && model.ignore_merges != Some(true)
        && spec.is_unmarked()
        && tokens.iter().flatten().any(|token| token == "▁")
        && !tokens.iter().flatten().any(over);
    let harmless = |added: &Added| {
        let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic());
        !(added.content.contains(char::is_whitespace)
            || added.rstrip && letter(added.content.chars().last())
            || own && letter(added.content.chars().next()))
    };
    let fits = (divided || apart) && own <= marked && spec.added_tokens.iter().all(harmless);
    Ok(fits.then_some(if own { Parting::Within } else { Parting::Before }))
}

/// An engine that takes a [`mark`] for the special token that it stands for, and the text of that token for text like
/// any other.
struct Marked {
    engine: Engine,
    /// The tokens that the engine's own ids of marks stand for.
    ids: HashMap<u32, u32>,
}

/// Begins and ends a mark; Unicode keeps these characters for use within a program.
const MARK: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// What stands for a special token.
fn mark(id: u64) -> String {
    let [begin, end] = MARK;
    format!("{begin}{id}{end}")
}

impl Marked {
    /// A mark takes the blanks beside it as its token does.
    fn new(mut engine: Engine, added: &[Added]) -> Result<Marked> {
        let specials = || added.iter().filter(|added| added.special);
        engine.add_tokens(specials().map(|added| {
            AddedToken::from(mark(added.id), false).normalized(false).lstrip(added.lstrip).rstrip(added.rstrip)
        }))?;
        let ids =
            specials().filter_map(|added| Some((engine.token_to_id(&mark(added.id))?, added.id as u32))).collect();
        Ok(Marked { engine, ids })
    }
}

/// Steps, one after the other.
pub(super) struct Steps<T: ?Sized>(pub Arc<[Box<T>]>);

impl<T: ?Sized> Clone for Steps<T> {
    fn clone(&self) -> Self {
        Steps(self.0.clone())
    }
}

impl Normalizer for Steps<dyn Normalizer + Send + Sync> {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let done = self.0.iter().try_for_each(|step| step.normalize(text));
        done.inspect_err(|error| UNHEARD.set(Some(error.to_string())))
    }
}

thread_local! {
    /// What a normalizer failed with: the crate goes on with the text as it was.
    static UNHEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What `encode` gives, unless a normalizer failed meanwhile.
fn heard<T>(encode: impl FnOnce() -> Result<T>) -> Result<T> {
    UNHEARD.set(None);
    let done = encode();
    UNHEARD.take().map_or(done, |error| Err(error.into()))
}

impl PreTokenizer for Steps<Cutting> {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        self.0.iter().try_for_each(|step| step.pre_tokenize(text))
    }
}

/// A regular expression.
pub(super) struct Expression(Regex);

impl Expression {
    pub(super) fn new(pattern: &str) -> Result<Expression> {
        Ok(Expression(Regex::new(pattern)?))
    }
}

impl Pattern for &Expression {
    fn find_matches(&self, text: &str) -> Result<Vec<(Offsets, bool)>> {
        let (mut found, mut last) = (vec![], 0);
        for part in self.0.find_iter(text) {
            let part = part.map_err(|e| {
                let pattern = self.0.as_str();
                format!(
                    "its regular expression {pattern:?} gives up on it ({e}): shorten its longest runs of blanks or \
                     marks"
                )
            })?;
            if last < part.start() {
                found.push(((last, part.start()), false));
            }
            found.push(((part.start(), part.end()), true));
            last = part.end();
        }
        if last < text.len() || text.is_empty() {
            found.push(((last, text.len()), false));
        }
        Ok(found)
    }
}

/// Cuts at a regular expression.
pub(super) struct Cut {
    pub pattern: Expression,
    pub behavior: SplitDelimiterBehavior,
    pub invert: bool,
    /// Puts a blank before a text that has none.
    pub blank: bool,
}

impl PreTokenizer for Cut {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        text.split(|_, mut part| {
            if self.blank && !part.get().starts_with(' ') {
                part.prepend(" ");
            }
            if self.invert {
                part.split(Invert(&self.pattern), self.behavior)
            } else {
                part.split(&self.pattern, self.behavior)
            }
        })
    }
}

/// Replaces what a regular expression finds.
pub(super) struct Swap(pub Expression, pub String);

impl Normalizer for Swap {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        text.replace(&self.0, &self.1)
    }
}

/// A model that gives ids for all of a text.
#[derive(Clone)]
pub(super) struct Whole {
    pub model: ModelWrapper,
    /// Whether the crate's own leaves out what it has no token for.
    pub leaves_out: bool,
}

impl Model for Whole {
    type Trainer = <ModelWrapper as Model>::Trainer;

    fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        let tokens = self.model.tokenize(text)?;
        if self.leaves_out && tokens.last().map_or(0, |token| token.offsets.1) < text.len() {
            let mut letters: Vec<String> = text.chars().map(String::from).collect();
            letters.retain(|letter| self.model.token_to_id(letter).is_none());
            letters.sort();
            letters.dedup();
            letters.truncate(8);
            return Err(format!(
                "its vocabulary has no token for {letters:?} and no unknown token, so they would be left out; take \
                 them out of the text, or use a tokenizer that has them"
            )
            .into());
        }
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.model.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.model.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.model.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.model.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        self.model.save(folder, prefix)
    }

    fn get_trainer(&self) -> Self::Trainer {
        self.model.get_trainer()
    }
}
