//! HuggingFace's crate with guards: a regular expression that gives up is an error (the crate leaves the rest of the text
//! uncut), and so are letters that a vocabulary lacks and no unknown token stands for (the crate leaves them out).

use std::{
    cell::RefCell,
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use super::spec::Added;
use fancy_regex::Regex;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, NormalizedString, Normalizer, Offsets, PostProcessorWrapper,
    PreTokenizedString, PreTokenizer, Result, SplitDelimiterBehavior, Token, TokenizerImpl,
    tokenizer::pattern::{Invert, Pattern},
};

/// The crate's tokenizer.
pub(super) type Engine =
    TokenizerImpl<Whole, Steps<dyn Normalizer + Send + Sync>, Steps<Cutting>, PostProcessorWrapper, DecoderWrapper>;

/// A step that cuts text.
pub(super) type Cutting = dyn PreTokenizer + Send + Sync;

/// The crate's tokenizer three times over; the last two are made when they are first asked for.
pub(super) struct Engines {
    /// Finds special tokens by their text.
    pub whole: Engine,
    ordinary: OnceLock<Box<Engine>>,
    marked: OnceLock<Box<Marked>>,
}

impl Engines {
    pub(super) fn new(whole: Engine) -> Engines {
        Engines { whole, ordinary: OnceLock::new(), marked: OnceLock::new() }
    }

    /// Takes the text of a special token for text like any other.
    pub(super) fn ordinary(&self) -> &Engine {
        self.ordinary.get_or_init(|| {
            let mut other = self.whole.clone();
            other.set_encode_special_tokens(true);
            Box::new(other)
        })
    }

    /// Finds these added tokens, where they are special, by their marks alone.
    pub(super) fn marked(&self, added: impl FnOnce() -> Result<Vec<Added>>) -> Result<&Marked> {
        if let Some(made) = self.marked.get() {
            return Ok(made);
        }
        let made = Box::new(Marked::new(self.ordinary().clone(), &added()?)?);
        Ok(self.marked.get_or_init(|| made))
    }
}

/// An engine that takes a [`mark`] for the special token that it stands for, and the text of that token for text like any other.
pub(super) struct Marked {
    pub engine: Engine,
    /// The tokens that the engine's own ids of marks stand for.
    pub ids: HashMap<u32, u32>,
}

/// Begins and ends a mark; Unicode keeps these characters for use within a program.
pub(super) const MARK: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// What stands for a special token.
pub(super) fn mark(id: u64) -> String {
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
pub(super) fn heard<T>(encode: impl FnOnce() -> Result<T>) -> Result<T> {
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
                format!("its regular expression {pattern:?} gives up on it ({e}): shorten its longest runs of blanks or marks")
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
