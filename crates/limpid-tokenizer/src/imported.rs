//! Tokenizers that other programs trained. HuggingFace's crate `tokenizers` runs them (feature `huggingface`); byte-level BPE needs no
//! crate.
//!
//! The crate pre-tokenizes and merges. The special tokens around a text and the decoding of ids to bytes are done here, because text is
//! streamed token by token and the crate decodes whole texts only. If a file is GPT-2's or another of OpenAI's vocabularies, the
//! built-in encoding does the work: the ids are the same, and it is several times as fast.
//!
//! Read `spec` for what a file may say, `files` for where files lie.

#[cfg(feature = "huggingface")]
use super::TextPart;
#[cfg(feature = "huggingface")]
use super::engine;
use super::{
    Encoding, TokenizerError, byte_letters,
    pairs::Pairs,
    scored::{SCORED, Scored},
    spec::{Added, Merge, Spec, part, shown, steps},
    table,
};
use serde_json::{Value, json};
#[cfg(feature = "huggingface")]
use std::ops::Range;

/// The longest text, in bytes, that the crate encodes in one piece.
#[cfg(feature = "huggingface")]
const WHOLE: usize = 16 << 20;

/// A tokenizer from another program's files. See [`Tokenizer::open`](super::Tokenizer::open).
pub struct ImportedTokenizer {
    kind: &'static str,
    /// The tokenizer.json, byte for byte where it was read from one.
    source: String,
    engine: Engine,
    #[cfg(feature = "huggingface")]
    /// Whether and how a long text is encoded in parts; the crate needs memory of 160 times a text.
    pub(super) parting: Option<Parting>,
    decoder: Decoder,
    /// The tokens by id.
    tokens: Vec<Option<String>>,
    /// The added tokens, ascending, and whether each is special.
    added: Vec<(u32, bool)>,
    /// The special tokens that its model expects before and after a text.
    frame: (Vec<u32>, Vec<u32>),
    pub(super) end: Option<u32>,
    pub(super) begin: Option<u32>,
    /// All that end a text or a turn by the model's own files.
    pub(super) ends: Vec<u32>,
    /// The token for text that the vocabulary lacks.
    pub(super) unknown: Option<u32>,
    /// The tokens in a role, as its files name them; nothing if they name none.
    pub(super) names: Vec<(String, String)>,
    /// Whether the text of a special token is text like any other, always.
    pub(super) splits_specials: bool,
}

#[expect(clippy::large_enum_variant, reason = "there is one per model")]
enum Engine {
    BuiltIn(Encoding),
    Bytes(Pairs),
    Scored(Scored),
    #[cfg(feature = "huggingface")]
    Crate(engine::Engines),
}

#[cfg(feature = "huggingface")]
/// Where a text may be cut so that the ids of its parts are its own: between a letter, a blank and a letter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parting {
    /// Before the blank.
    Before,
    /// Before and after it: the normalizer puts one before every part.
    Within,
}

/// How a token becomes bytes.
#[derive(Debug, PartialEq)]
enum Decoder {
    /// GPT-2's letters.
    Letters,
    /// Its text with replacements (`▁` is a blank); `<0x41>` is a byte if `bytes`, `strip` blanks at the start go.
    Text { replace: Vec<(String, String)>, bytes: bool, strip: usize },
    /// Its text, `▁` a blank, but nothing in the first token.
    Marked { mark: char, first: bool },
    /// A blank before it, unless it begins with the prefix of a continuation.
    Pieces { prefix: String, tidy: bool },
    /// A blank after it if it ends with the suffix and is not the last.
    Ends(String),
    /// A blank between tokens.
    Words,
}

/// The state of decoding, from token to token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seam {
    tokens: usize,
    /// Blanks at the start that were left out.
    stripped: usize,
    /// Text has come.
    begun: bool,
    /// A blank comes if a token does.
    blank: bool,
}

impl ImportedTokenizer {
    pub(super) fn read(source: String) -> Result<ImportedTokenizer, TokenizerError> {
        let spec: Spec = super::json::parse(&source)?;
        ImportedTokenizer::new(spec, source)
    }

    /// The same, where `change` makes another tokenizer of it, if it says so.
    pub(super) fn read_changed(
        source: String,
        change: impl FnOnce(&mut Spec) -> Result<bool, TokenizerError>,
    ) -> Result<ImportedTokenizer, TokenizerError> {
        let mut spec: Spec = super::json::parse(&source)?;
        if change(&mut spec)? { ImportedTokenizer::made(spec) } else { ImportedTokenizer::new(spec, source) }
    }

    /// From what was put together here; its tokenizer.json is written now.
    pub(super) fn made(spec: Spec) -> Result<ImportedTokenizer, TokenizerError> {
        let source = serde_json::to_string(&spec).map_err(|error| TokenizerError::Json(error.to_string()))? + "\n";
        ImportedTokenizer::new(spec, source)
    }

    fn new(spec: Spec, source: String) -> Result<ImportedTokenizer, TokenizerError> {
        let tokens = spec.tokens()?;
        let kind = match spec.kind() {
            "BPE" => "bpe",
            "WordPiece" => "wordpiece",
            "Unigram" => "unigram",
            SCORED => "scored-bpe",
            _ => "wordlevel", // or of no known kind, which `build` refuses
        };
        let mut added: Vec<(u32, bool)> = spec.added_tokens.iter().map(|a| (a.id as u32, a.special)).collect();
        added.sort_unstable();
        added.dedup_by_key(|(id, _)| *id);
        let frame = frame(&spec.post_processor, tokens.len())?;
        let decoder = decoder(&spec.decoder)?;
        #[cfg(feature = "huggingface")]
        let parting = parting(&spec, &tokens)?;
        let unknown = spec.unknown(&tokens);
        let engine = match built_in(&spec, &tokens).filter(|_| decoder == Decoder::Letters) {
            Some(encoding) => Engine::BuiltIn(encoding),
            None => match (Pairs::from_spec(&spec), Scored::from_spec(&spec)?) {
                (Some(pairs), _) => Engine::Bytes(pairs),
                (None, Some(scored)) => Engine::Scored(scored),
                #[cfg(feature = "huggingface")]
                (None, None) => Engine::Crate(engine::Engines::new(spec.build()?)),
                #[cfg(not(feature = "huggingface"))]
                (None, None) => {
                    return Err(TokenizerError::Feature {
                        what: format!("this {kind} tokenizer"),
                        feature: "huggingface",
                    });
                }
            },
        };
        Ok(ImportedTokenizer {
            kind,
            source,
            engine,
            #[cfg(feature = "huggingface")]
            parting,
            decoder,
            tokens,
            added,
            frame,
            end: None,
            begin: None,
            ends: vec![],
            unknown,
            names: vec![],
            splits_specials: false,
        })
    }

    /// The same with these special tokens: see [`Tokenizer::with_specials`](super::Tokenizer::with_specials).
    pub(super) fn with_specials(&self, texts: &[&String]) -> Result<ImportedTokenizer, TokenizerError> {
        let mut spec = self.spec()?;
        let mut next = self.tokens.len() as u32;
        for text in texts {
            spec.added_tokens.retain(|added| added.content != **text);
            let id = self.id(text).unwrap_or(next);
            next += u32::from(id == next);
            spec.added_tokens.push(Added::new(id, text, true));
        }
        let mut made = ImportedTokenizer::made(spec)?;
        (made.begin, made.end, made.ends, made.frame) = (self.begin, self.end, self.ends.clone(), self.frame.clone());
        (made.names, made.splits_specials) = (self.names.clone(), self.splits_specials);
        Ok(made)
    }

    /// The tokenizer.json.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The tokenizer.json again, as parts.
    pub(super) fn spec(&self) -> Result<Spec, TokenizerError> {
        super::json::parse(&self.source)
    }

    pub(super) fn name(&self) -> &'static str {
        self.built_in().map_or(self.kind, Encoding::name)
    }

    /// The encoding it is.
    pub(super) fn built_in(&self) -> Option<Encoding> {
        if let Engine::BuiltIn(encoding) = self.engine { Some(encoding) } else { None }
    }

    /// The engine, if it is ours.
    pub(super) fn pairs(&self) -> Option<&Pairs> {
        match &self.engine {
            Engine::BuiltIn(encoding) => Some(encoding.pairs()),
            Engine::Bytes(pairs) => Some(pairs),
            Engine::Scored(_) => None,
            #[cfg(feature = "huggingface")]
            Engine::Crate(..) => None,
        }
    }

    /// Whether it joins by scores.
    pub(super) fn is_scored(&self) -> bool {
        matches!(self.engine, Engine::Scored(_))
    }

    pub(super) fn tokens(&self) -> &[Option<String>] {
        &self.tokens
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().position(|t| t.as_deref() == Some(token)).map(|id| id as u32)
    }

    pub(super) fn frame(&self) -> (&[u32], &[u32]) {
        (&self.frame.0, &self.frame.1)
    }

    pub(super) fn specials(&self) -> Vec<(&str, u32)> {
        let special = self.added.iter().filter(|(_, special)| *special);
        special.filter_map(|&(id, _)| Some((self.tokens[id as usize].as_deref()?, id))).collect()
    }

    pub(super) fn encode(&self, text: &str, specials: bool, threads: usize) -> Result<Vec<u32>, TokenizerError> {
        let specials = specials && !self.splits_specials;
        match &self.engine {
            Engine::BuiltIn(encoding) => Ok(encoding.encode(text, specials, threads)),
            Engine::Bytes(pairs) => Ok(pairs.encode(text, specials, threads)),
            Engine::Scored(scored) => scored.encode(text, specials),
            #[cfg(feature = "huggingface")]
            Engine::Crate(engines) if specials => self.encode_by_crate(&engines.whole, text),
            #[cfg(feature = "huggingface")]
            Engine::Crate(engines) => self.encode_by_crate(engines.ordinary(), text),
        }
    }

    /// The ids of parts of a text, if HuggingFace's crate gives them.
    #[cfg(feature = "huggingface")]
    pub(super) fn encode_parts_by_crate(&self, parts: &[TextPart]) -> Option<Result<Vec<u32>, TokenizerError>> {
        let Engine::Crate(engines) = &self.engine else { return None };
        let fault = |detail: String| TokenizerError::Encode { name: self.kind, detail };
        let ids = || {
            let marked = engines.marked(|| Ok(self.spec()?.added_tokens)).map_err(|e| fault(e.to_string()))?;
            let mut text = String::new();
            for part in parts {
                match part {
                    TextPart::Plain(plain) if plain.contains(engine::MARK) => {
                        return Err(fault(
"it has the text of a special token, and U+FDD0 or U+FDD1, which limpid then needs for itself: leave \
                             one of them out".into()));
                    }
                    TextPart::Plain(plain) => text += plain,
                    TextPart::Special(id) => text += &engine::mark(u64::from(*id)),
                }
            }
            let ids = self.encode_by_crate(&marked.engine, &text)?;
            Ok(ids.into_iter().map(|id| marked.ids.get(&id).copied().unwrap_or(id)).collect())
        };
        Some(ids())
    }

    /// The ids of HuggingFace's crate, part by part of a long text.
    #[cfg(feature = "huggingface")]
    fn encode_by_crate(&self, engine: &engine::Engine, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if self.parting.is_none() && text.len() > WHOLE {
            let detail = format!(
                "it can only be encoded whole, which needs 160 times its size, and has {} bytes, more than {WHOLE}: \
                 prepare shards, which cuts long texts into parts",
                text.len()
            );
            return Err(TokenizerError::Encode { name: self.kind, detail });
        }
        let mut ids = Vec::new();
        let parts = if self.parting.is_some() { super::pairs::parts(text, 1 << 16, gap) } else { vec![text] };
        for (n, part) in parts.into_iter().enumerate() {
            let own = n > 0 && self.parting == Some(Parting::Within);
            let part = if own { &part[1..] } else { part };
            let found = limpid_base::contain::contain(|| engine::heard(|| engine.encode_fast(part, false)))
                .unwrap_or_else(|panic| Err(panic.into()));
            let found = found.map_err(|error| TokenizerError::Encode { name: self.kind, detail: error.to_string() })?;
            ids.extend(found.get_ids());
        }
        Ok(ids)
    }

    /// One token to look at, as bytes where that is what it stands for.
    pub(super) fn piece(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.tokens[id as usize].as_deref()?;
        Some(match &self.decoder {
            Decoder::Letters | Decoder::Text { .. } | Decoder::Marked { .. } => {
                // Not the first, so that it keeps its blank.
                let mut seam = Seam { tokens: 1, begun: true, stripped: usize::MAX, blank: false };
                let mut bytes = Vec::new();
                self.push(id, &mut seam, &mut bytes);
                bytes
            }
            _ => token.as_bytes().to_vec(),
        })
    }

    /// Adds what `id` gives after all that came before it.
    pub(super) fn push(&self, id: u32, seam: &mut Seam, out: &mut Vec<u8>) {
        let first = seam.tokens == 0;
        seam.tokens += 1;
        let Some(token) = self.tokens[id as usize].as_deref() else {
            out.extend("\u{fffd}".bytes());
            return;
        };
        let added = self.added.binary_search_by_key(&id, |&(id, _)| id).ok().map(|at| self.added[at].1);
        match &self.decoder {
            Decoder::Letters => {
                let bytes = if added.is_some() { None } else { byte_letters::bytes_of(token) };
                out.extend(bytes.unwrap_or_else(|| token.into()));
            }
            Decoder::Text { replace, bytes, strip } => {
                let byte = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).filter(|t| t.len() == 2);
                let mut text = match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) if *bytes => vec![byte],
                    _ if added == Some(true) => token.into(),
                    _ => replace.iter().fold(token.to_string(), |text, (a, b)| text.replace(a, b)).into_bytes(),
                };
                while !seam.begun && seam.stripped < *strip && text.first() == Some(&b' ') {
                    text.remove(0);
                    seam.stripped += 1;
                }
                seam.begun |= !text.is_empty();
                out.extend(text);
            }
            Decoder::Marked { mark, first: kept } => {
                let blank = if first && !kept { "" } else { " " };
                out.extend(token.replace(*mark, blank).bytes());
            }
            Decoder::Pieces { prefix, tidy } => {
                let text = match token.strip_prefix(prefix.as_str()) {
                    _ if first => token.to_string(),
                    Some(rest) => rest.to_string(),
                    None => format!(" {token}"),
                };
                out.extend(if *tidy { tidied(text) } else { text }.bytes());
            }
            Decoder::Ends(suffix) => {
                if std::mem::take(&mut seam.blank) {
                    out.push(b' ');
                }
                let text = token.strip_suffix(suffix.as_str());
                seam.blank = text.is_some();
                out.extend(text.unwrap_or(token).bytes());
            }
            Decoder::Words => {
                if !first {
                    out.push(b' ');
                }
                out.extend(token.bytes());
            }
        }
    }
}

impl PartialEq for ImportedTokenizer {
    fn eq(&self, other: &ImportedTokenizer) -> bool {
        let facts = |f: &ImportedTokenizer| (f.begin, f.end, f.ends.clone(), f.frame.clone(), f.splits_specials);
        self.source == other.source && facts(self) == facts(other)
    }
}

/// Blanks that BERT's decoder leaves out, token by token.
fn tidied(text: String) -> String {
    const TIDY: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    TIDY.iter().fold(text, |text, (a, b)| if text.contains(a) { text.replace(a, b) } else { text })
}

/// The last place in `range` of a blank between letters.
#[cfg(feature = "huggingface")]
fn gap(text: &str, range: Range<usize>) -> Option<usize> {
    let (bytes, letter) = (text.as_bytes(), |at: usize| text.as_bytes()[at].is_ascii_alphabetic());
    (range.start.max(1)..range.end.min(bytes.len() - 1))
        .rev()
        .find(|&at| bytes[at] == b' ' && letter(at - 1) && letter(at + 1))
}

#[cfg(feature = "huggingface")]
/// Whether no step looks past a blank between letters, and either one divides there or no token goes over it.
fn parting(spec: &Spec, tokens: &[Option<String>]) -> Result<Option<Parting>, TokenizerError> {
    let (mut marked, mut own) = (false, false);
    for (kind, step) in steps("the normalizer", &spec.normalizer)? {
        match kind {
            "BertNormalizer" | "Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD" | "StripAccents" => {}
            "Prepend" if step["prepend"] == "▁" && !marked => own = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => marked = true,
            _ => return Ok(None),
        }
    }
    let mut divided = table::split(&spec.pre_tokenizer).is_some();
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
    let plain = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let apart = spec.kind() == "BPE"
        && marked
        && model.ignore_merges != Some(true)
        && plain(&model.continuing_subword_prefix)
        && plain(&model.end_of_word_suffix)
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

fn decoder(value: &Value) -> Result<Decoder, TokenizerError> {
    const NAME: &str = "the decoder";
    let list = steps(NAME, value)?;
    let string = |value: &Value| value.as_str().map(str::to_string);
    let unknown = || part(NAME, "one of a language model's (ByteLevel, Metaspace, WordPiece ...)", shown(value));
    let (mut replace, mut bytes, mut strip) = (Vec::new(), false, 0);
    for &(kind, step) in &list {
        match kind {
            "Fuse" => {}
            "ByteFallback" => bytes = true,
            "Replace" => match (string(&step["pattern"]["String"]), string(&step["content"])) {
                (Some(a), Some(b)) if !a.is_empty() && replace.len() < 4 && b.len() <= 16 => replace.push((a, b)),
                _ => return Err(unknown()),
            },
            "Strip" => match (step["content"].as_str(), step["start"].as_u64(), step["stop"].as_u64()) {
                (Some(" "), Some(start), Some(0)) => strip = start as usize,
                _ => return Err(unknown()),
            },
            _ if list.len() > 1 => return Err(unknown()),
            "ByteLevel" => return Ok(Decoder::Letters),
            "WordPiece" => {
                let prefix = string(&step["prefix"]).unwrap_or_else(|| "##".into());
                return Ok(Decoder::Pieces { prefix, tidy: step["cleanup"].as_bool().unwrap_or(true) });
            }
            "BPEDecoder" => {
                let suffix = string(&step["suffix"]).filter(|suffix| !suffix.is_empty());
                return Ok(Decoder::Ends(suffix.unwrap_or_else(|| "</w>".into())));
            }
            "Metaspace" => {
                let mark = step["replacement"].as_str().and_then(|mark| mark.chars().next()).unwrap_or('▁');
                let first = step["prepend_scheme"] == "never" || step["add_prefix_space"] == false;
                return Ok(Decoder::Marked { mark, first });
            }
            _ => return Err(unknown()),
        }
    }
    Ok(if list.is_empty() { Decoder::Words } else { Decoder::Text { replace, bytes, strip } })
}

/// What a tokenizer.json does to a text beside its vocabulary, in one form for all ways to write it.
pub(super) fn meaning(spec: &Spec) -> Result<Value, TokenizerError> {
    let cut = |(_, step): (&str, &Value)| {
        let mut step = step.clone();
        if let Some(step) = step.as_object_mut() {
            step.remove("trim_offsets");
            step.retain(|key, value| key != "use_regex" || value != true);
        }
        step
    };
    let list = |name, value| Ok::<_, TokenizerError>(steps(name, value)?.into_iter().map(cut).collect::<Vec<_>>());
    let mut added: Vec<&Added> = spec.added_tokens.iter().collect();
    added.sort_by_key(|token| token.id);
    let model = &spec.model;
    let texts = [&model.unk_token, &model.continuing_subword_prefix, &model.end_of_word_suffix];
    let texts = texts.map(|text| text.clone().filter(|text| !text.is_empty()));
    let flags = [model.fuse_unk, model.byte_fallback, model.ignore_merges].map(|flag| flag == Some(true));
    Ok(json!([
        list("the normalizer", &spec.normalizer)?,
        list("the pre_tokenizer", &spec.pre_tokenizer)?,
        format!("{:?}", decoder(&spec.decoder).ok()),
        frame(&spec.post_processor, usize::MAX).ok(),
        added,
        texts,
        [model.unk_id, model.max_input_chars_per_word],
        flags,
    ]))
}

/// The ids that a post_processor puts before and after one text.
fn frame(value: &Value, size: usize) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    const NAME: &str = "the post_processor";
    let wrong = |value: &Value| part(NAME, "special tokens and their ids around a sequence", shown(value));
    let id = |id: &Value| -> Result<u32, TokenizerError> {
        id.as_u64().filter(|&id| id < size as u64).map(|id| id as u32).ok_or_else(|| wrong(id))
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (kind, step) in steps(NAME, value)? {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        match kind {
            "ByteLevel" => {}
            "BertProcessing" | "RobertaProcessing" => {
                left.push(id(&step["cls"][1])?);
                right.push(id(&step["sep"][1])?);
            }
            "TemplateProcessing" => {
                let mut text_seen = false;
                for item in step["single"].as_array().ok_or_else(|| wrong(step))? {
                    let Some(name) = item["SpecialToken"]["id"].as_str() else {
                        text_seen = true;
                        continue;
                    };
                    let ids = step["special_tokens"][name]["ids"].as_array().ok_or_else(|| wrong(item))?;
                    let ids = ids.iter().map(id).collect::<Result<Vec<_>, TokenizerError>>()?;
                    if text_seen {
                        right.extend(ids)
                    } else {
                        left.extend(ids)
                    }
                    let all = left.len() + right.len() + before.len() + after.len();
                    if all > 1024 {
                        return Err(part(NAME, "at most 1,024 ids around a sequence", format!("{all} or more")));
                    }
                }
            }
            _ => return Err(wrong(step)),
        }
        before.splice(0..0, left);
        after.extend(right);
    }
    Ok((before, after))
}

/// The built-in encoding that gives the same ids for every text: the same tokens, merges, splitting and special tokens.
/// Tokens and merges are known by their hash, so that nothing is built to find out.
fn built_in(spec: &Spec, tokens: &[Option<String>]) -> Option<Encoding> {
    let model = &spec.model;
    let plain = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let split = table::split(&spec.pre_tokenizer)?;
    let encoding = Encoding::all().find(|encoding| encoding.split() == split)?;
    let merges = model.merges.as_deref().filter(|_| spec.kind() == "BPE" && spec.version == "1.0")?;
    let alike = |added: &Added| {
        let bare = added.special && !(added.single_word || added.lstrip || added.rstrip);
        bare && encoding.specials().iter().any(|&(name, id)| name == added.content && u64::from(id) == added.id)
    };
    let same = tokens.len() == encoding.vocab_size()
        && spec.added_tokens.len() == encoding.specials().len()
        && spec.added_tokens.iter().all(alike)
        && spec.normalizer.is_null()
        && plain(&model.continuing_subword_prefix)
        && plain(&model.end_of_word_suffix)
        && model.byte_fallback != Some(true)
        && hash(tokens, merges) == encoding.hash();
    same.then_some(encoding)
}

/// FNV-1a over texts, each with a byte after it that no text has.
pub(super) fn hash(tokens: &[Option<String>], merges: &[Merge]) -> u64 {
    let tokens = tokens.iter().map(|token| token.as_deref().unwrap_or(""));
    let texts = tokens.chain(merges.iter().flat_map(|Merge(a, b)| [a.as_str(), b]));
    let bytes = texts.flat_map(|text| text.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
