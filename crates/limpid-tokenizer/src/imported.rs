//! Tokenizers that other programs trained. HuggingFace's crate `tokenizers` runs them (feature `huggingface`);
//! byte-level BPE needs no crate.
//!
//! The crate pre-tokenizes and merges. The special tokens around a text and the decoding of ids to bytes are done here,
//! because text is streamed token by token and the crate decodes whole texts only. If a file is GPT-2's or another of
//! OpenAI's vocabularies, the built-in encoding does the work: the ids are the same, and it is several times as fast.
//!
//! Read `spec` for what a file may say, `files` for where files lie.

use super::{
    Encoding, TokenizerError, byte_letters,
    engine::Engines,
    pairs::Pairs,
    scored::{SCORED, Scored},
    spec::{Added, Merge, Spec, not_supported, parse, part, shown, steps},
    steps::{byte, split},
};
use serde_json::{Value, json};

/// A tokenizer from another program's files. See [`Tokenizer::open`](super::Tokenizer::open).
pub struct ImportedTokenizer {
    kind: &'static str,
    /// The tokenizer.json, byte for byte where it was read from one.
    source: String,
    engine: Engine,
    decoder: Decoder,
    /// The tokens by id.
    tokens: Vec<Option<String>>,
    /// The added tokens, ascending, and whether each is special.
    added: Vec<(u32, bool)>,
    /// The special tokens that its model expects before and after a text.
    frame: (Vec<u32>, Vec<u32>),
    /// What the files beside it say.
    pub(super) told: Told,
    /// The token for text that the vocabulary lacks.
    pub(super) unknown: Option<u32>,
}

/// What other files than its own say of a tokenizer.
#[derive(Clone, Default)]
pub(super) struct Told {
    /// The token that begins a text.
    pub begin: Option<u32>,
    /// The token that ends one.
    pub end: Option<u32>,
    /// All that end a text or a turn by the model's own files.
    pub ends: Vec<u32>,
    /// The tokens in a role; nothing if they name none.
    pub names: Vec<(String, String)>,
    /// Whether the text of a special token is text like any other, always.
    pub splits_specials: bool,
}

#[expect(clippy::large_enum_variant, reason = "there is one per model")]
enum Engine {
    BuiltIn(Encoding),
    Bytes(Pairs),
    Scored(Scored),
    Crate(Engines),
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
    /// From what was put together here; its tokenizer.json is written now.
    pub(super) fn made(spec: Spec) -> Result<ImportedTokenizer, TokenizerError> {
        let source = serde_json::to_string(&spec).map_err(|error| TokenizerError::Json(error.to_string()))? + "\n";
        ImportedTokenizer::new(spec, source)
    }

    /// What `source` says, a tokenizer.json.
    pub(super) fn new(spec: Spec, source: String) -> Result<ImportedTokenizer, TokenizerError> {
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
        let unknown = spec.unknown(&tokens);
        let engine = match built_in(&spec, &tokens).filter(|_| decoder == Decoder::Letters) {
            Some(encoding) => Engine::BuiltIn(encoding),
            None => match (Pairs::from_spec(&spec), Scored::from_spec(&spec)?) {
                (Some(pairs), _) => Engine::Bytes(pairs),
                (None, Some(scored)) => Engine::Scored(scored),
                (None, None) => Engine::Crate(Engines::new(kind, spec, &tokens)?),
            },
        };
        Ok(ImportedTokenizer { kind, source, engine, decoder, tokens, added, frame, told: Told::default(), unknown })
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
        (made.told, made.frame) = (self.told.clone(), self.frame.clone());
        Ok(made)
    }

    /// The tokenizer.json.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The tokenizer.json again, as parts.
    pub(super) fn spec(&self) -> Result<Spec, TokenizerError> {
        parse(&self.source)
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
            Engine::Scored(_) | Engine::Crate(_) => None,
        }
    }

    /// The engine, if it is HuggingFace's crate.
    pub(super) fn engines(&self) -> Option<&Engines> {
        if let Engine::Crate(engines) = &self.engine { Some(engines) } else { None }
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
        let specials = specials && !self.told.splits_specials;
        match &self.engine {
            Engine::BuiltIn(encoding) => Ok(encoding.encode(text, specials, threads)),
            Engine::Bytes(pairs) => Ok(pairs.encode(text, specials, threads)),
            Engine::Scored(scored) => scored.encode(text, specials),
            Engine::Crate(engines) => engines.encode(text, specials),
        }
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
                let mut text = match byte(token) {
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
        let (told, its) = (&self.told, &other.told);
        (&self.source, &self.frame) == (&other.source, &other.frame)
            && (told.begin, told.end, &told.ends) == (its.begin, its.end, &its.ends)
            && told.splits_specials == its.splits_specials
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

fn decoder(value: &Value) -> Result<Decoder, TokenizerError> {
    const NAME: &str = "the decoder";
    let list = steps(NAME, value)?;
    let string = |value: &Value| value.as_str().map(str::to_string);
    const KNOWN: &str =
        "ByteLevel, WordPiece, BPEDecoder, Metaspace, or Replace, ByteFallback, Fuse and Strip of blanks";
    let unknown = || not_supported(NAME, shown(value), KNOWN);
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
                        return Err(not_supported(NAME, format!("{all} ids or more around a text"), "at most 1,024"));
                    }
                }
            }
            _ => {
                const KNOWN: &str = "ByteLevel, BertProcessing, RobertaProcessing and TemplateProcessing";
                return Err(not_supported(NAME, format!("the step {kind:?}"), KNOWN));
            }
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
    let split = split(&spec.pre_tokenizer)?;
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
        && spec.is_unmarked()
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
