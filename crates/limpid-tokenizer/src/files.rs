//! Where a model's folder keeps its tokenizer, and the older files it may be written in.
//!
//! Each reader makes the tokenizer.json that transformers would make of the same files.

use std::{collections::HashMap, path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{
    Encoding, Tokenizer, TokenizerError,
    beside::{TokenizerFiles, bytes, text, utf8},
    classes::{self, Class, WHOLE},
    imported::{ImportedTokenizer, Told},
    spec::{Added, Merge, Model, Pairs, Spec, Vocab, parse, part},
    split::Split,
    table,
};
use limpid_base::files::replace;

/// llm.c's: a header of 256 numbers, of which these are the first two.
const LLMC: [u32; 2] = [20_240_328, 2];

/// Whether these are lines of tokens in base64 and their ranks, whatever the file is called.
fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).find(|line| !line.is_empty());
    let parts = line.and_then(|line| str::from_utf8(line).ok()?.split_once(' '));
    parts.is_some_and(|(token, rank)| STANDARD.decode(token).is_ok() && rank.trim().parse::<u32>().is_ok())
}

/// Writes a file, whole or not at all.
pub(super) fn write(path: &Path, text: &str) -> Result<(), TokenizerError> {
    replace(path, |beside| std::fs::write(beside, text))
        .map_err(|fault| TokenizerError::Io { path: path.into(), fault })
}

impl Tokenizer {
    /// Writes a tokenizer.json, whole or not at all.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), TokenizerError> {
        write(path.as_ref(), &self.to_json())
    }

    /// Reads a tokenizer.json, OpenAI's .tiktoken or llm.c's .bin: what a file is, its content says and not its name.
    pub fn load(path: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::load_with(path.as_ref(), None, &[])
    }

    /// The same, with what a .tiktoken file does not say: how text is cut, if its ranks are not OpenAI's, and special
    /// tokens, which get the ids that follow.
    pub fn load_with(path: &Path, split: Option<Split>, special: &[String]) -> Result<Tokenizer, TokenizerError> {
        let bytes = bytes(path)?;
        let ends = |end: &str| path.extension().is_some_and(|own| own == end);
        let by_content = || match &bytes[..] {
            _ if bytes.starts_with(&LLMC[0].to_le_bytes()) => llm_c(&bytes),
            _ if bytes.starts_with(b"GGUF") => Err(TokenizerError::Gguf),
            _ if is_tiktoken(&bytes) => tiktoken(&bytes, split, special),
            _ if bytes.trim_ascii_start().starts_with(b"{") => super::json::read(utf8(bytes.clone())?),
            // a list of pieces, each of which begins with its text
            [0x0a, _, first, ..] if *first == 0x0a || str::from_utf8(&bytes).is_err() => {
                Err(TokenizerError::SentencePiece)
            }
            _ if ends("tiktoken") => tiktoken(&bytes, split, special),
            _ if ends("bin") => llm_c(&bytes),
            _ => super::json::read(utf8(bytes.clone())?),
        };
        by_content().map_err(|error| error.at(path))
    }

    /// The tokenizer in a model's folder: tokenizer.json, or else vocab.json with merges.txt, vocab.txt (BERT),
    /// gpt2_tokenizer.bin (llm.c) or OpenAI's ranks (tokenizer.model, tiktoken.model), as transformers' classes read
    /// these and the files beside them (docs/formats.md). `None` if there is none of them.
    ///
    /// Padding, truncation and dropout that a file asks for are not done: a text has the same ids always, all of them.
    pub fn open(dir: &Path) -> Result<Option<Tokenizer>, TokenizerError> {
        let [json, vocab, merges, lines, llmc] =
            ["tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "gpt2_tokenizer.bin"]
                .map(|name| dir.join(name));
        let ranks = ["tokenizer.model", "tiktoken.model"].map(|name| dir.join(name));
        let ranks = ranks.iter().find(|path| path.exists());
        let beside = TokenizerFiles::read(dir)?;
        let mut class = &WHOLE;
        let tokenizer = if json.exists() {
            let source = text(&json)?;
            class = classes::choose(&beside, source.contains("\"ByteLevel\"")).unwrap_or(&WHOLE);
            let change = |spec: &mut Spec| class.make(spec, &beside, true);
            super::json::read_changed(source, change).map_err(|error| error.at(&json))?
        } else if vocab.exists() && merges.exists() {
            let pairs = parse::<Pairs<u64>>(&text(&vocab)?);
            let pairs = pairs.map_err(|error| error.at(&vocab))?;
            let lines = text(&merges)?;
            let read = || {
                let spec = byte_pairs(pairs.0, &lines)?;
                class = class_of_pairs(&spec, &beside)?;
                made(spec, class, &beside)
            };
            read().map_err(|error| error.at(&merges))?
        } else if lines.exists() {
            class = classes::bert();
            let read = |text: &str| made(word_pieces(text)?, class, &beside);
            read(&text(&lines)?).map_err(|error| error.at(&lines))?
        } else if llmc.exists() {
            return llm_c(&bytes(&llmc)?).map_err(|error| error.at(&llmc)).map(Some);
        } else if let Some(path) = ranks
            && let bytes = bytes(path)?
            && is_tiktoken(&bytes)
        {
            ranks_beside(&bytes, &beside).map_err(|error| error.at(path))?
        } else {
            return Ok(None);
        };
        Ok(Some(match tokenizer {
            Tokenizer::Imported(mut imported) => {
                if let Some(imported) = Arc::get_mut(&mut imported) {
                    configure(imported, &beside, class);
                }
                Tokenizer::Imported(imported)
            }
            other => other,
        }))
    }

    /// The content of a .tiktoken file: byte-level byte pairs whose ids are in the order of their merges. Special
    /// tokens and the way of cutting have no place in it; [`split`](Tokenizer::split) says the latter.
    pub fn to_tiktoken(&self) -> Result<String, TokenizerError> {
        Ok(in_order(self)?.iter().map(|(token, id)| format!("{} {id}\n", STANDARD.encode(token))).collect())
    }

    /// The content of llm.c's gpt2_tokenizer.bin, version 2.
    pub fn to_llmc(&self) -> Result<Vec<u8>, TokenizerError> {
        let end =
            self.end_of_text().ok_or_else(|| TokenizerError::Format("it has no token that ends a text".into()))?;
        let mut tokens = in_order(self)?;
        tokens.extend(self.specials().into_iter().map(|(text, id)| (text.into(), id)));
        tokens.sort_by_key(|(_, id)| *id);
        let mut header = [0u32; 256];
        header[..4].copy_from_slice(&[LLMC[0], LLMC[1], tokens.len() as u32, end]);
        let mut bytes: Vec<u8> = header.iter().flat_map(|number| number.to_le_bytes()).collect();
        for ((token, id), place) in tokens.iter().zip(0..) {
            let size = u8::try_from(token.len()).ok().filter(|_| *id == place);
            bytes.push(size.ok_or_else(|| {
                TokenizerError::Format(format!("token {id} is longer than 255 bytes, or ids are unused"))
            })?);
            bytes.extend(token);
        }
        Ok(bytes)
    }
}

/// What the files beside a tokenizer say of tokens that its own file does not.
fn configure(imported: &mut ImportedTokenizer, beside: &TokenizerFiles, class: &Class) {
    let size = imported.tokens().len();
    let is_known = |id: &u32| (*id as usize) < size;
    let named = |role| beside.role(role, class).and_then(|name| imported.id(name));
    let end = named("eos_token");
    imported.told = Told {
        begin: named("bos_token"),
        end: end.filter(|_| beside.says("eos_token")).or(beside.end.filter(is_known)).or(end),
        ends: beside.ends.iter().copied().filter(is_known).collect(),
        names: if beside.names_tokens || !class.is_whole() { beside.names(class) } else { vec![] },
        splits_specials: beside.settings.split_special_tokens == Some(true),
    };
}

/// The class's tokenizer of a vocabulary.
fn made(mut spec: Spec, class: &Class, beside: &TokenizerFiles) -> Result<Tokenizer, TokenizerError> {
    class.make(&mut spec, beside, false)?;
    Tokenizer::made(spec)
}

/// The class that reads vocab.json and merges.txt: where nothing names one, GPT-1's by its ends of words, or GPT-2's.
fn class_of_pairs(spec: &Spec, beside: &TokenizerFiles) -> Result<&'static Class, TokenizerError> {
    let words = spec.model.merges.iter().flatten().any(|merge| merge.1.ends_with("</w>"));
    let named = beside.class.is_some() || beside.model_type.is_some();
    let class = match classes::choose(beside, true) {
        // the first models of the kind name none
        None if !named || beside.model_type.as_deref() == Some("gpt_bigcode") => Some(classes::pairs(words)),
        class => class.filter(|class| class.reads_pairs),
    };
    let model = || beside.model_type.as_ref().map(|model| format!("model {model}"));
    class.ok_or_else(|| TokenizerError::Class(beside.class.clone().or_else(model).unwrap_or_default()))
}

/// vocab.json and merges.txt.
fn byte_pairs(pairs: Vec<(String, u64)>, lines: &str) -> Result<Spec, TokenizerError> {
    let lines = lines.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    let merge = |line: &str| Merge::parse(line).ok_or_else(|| part("a line", "two tokens with a blank between", line));
    let merges = lines.map(merge).collect::<Result<Vec<_>, TokenizerError>>()?;
    let (r#type, merges, vocab) = (Some("BPE".into()), Some(merges), Vocab::Ids(pairs));
    Ok(Spec::new(Model { r#type, merges, vocab, ..Model::default() }))
}

/// A .tiktoken file in a model's folder: text is cut as for GPT-4, with numbers of up to three digits, and the special
/// tokens are those beside it.
fn ranks_beside(bytes: &[u8], beside: &TokenizerFiles) -> Result<Tokenizer, TokenizerError> {
    let plain = tiktoken(bytes, Some(Split::Llama3), &[])?;
    let special = beside.after(plain.vocab_size() as u64);
    let Tokenizer::Imported(imported) = tiktoken(bytes, Some(Split::Llama3), &special)? else { return Ok(plain) };
    made(imported.spec()?, &WHOLE, beside)
}

/// BERT's tokenizer of that vocab.txt, with these special tokens.
pub(super) fn learned_pieces(lines: &str, lowercase: bool, special: &[String]) -> Result<Tokenizer, TokenizerError> {
    let mut spec = word_pieces(lines)?;
    classes::bert().make(&mut spec, &TokenizerFiles::with_case(lowercase), false)?;
    spec.added_tokens = Added::specials(special, 0);
    Tokenizer::made(spec)
}

/// BERT's vocab.txt: a token a line, blanks at its end left out. An empty line is a token, too, and of two that are the
/// same the second counts.
fn word_pieces(lines: &str) -> Result<Spec, TokenizerError> {
    let mut ids = HashMap::new();
    lines.lines().zip(0u64..).for_each(|(line, id)| _ = ids.insert(line.trim_end(), id));
    if !["[UNK]", "[CLS]", "[SEP]"].iter().all(|token| ids.contains_key(token)) {
        return Err(part("the vocabulary", "BERT's, with [UNK], [CLS] and [SEP]", "one without"));
    }
    let mut pairs: Vec<(String, u64)> = ids.into_iter().map(|(token, id)| (token.to_string(), id)).collect();
    pairs.sort_by_key(|(_, id)| *id);
    Ok(Spec::new(Model { r#type: Some("WordPiece".into()), vocab: Vocab::Ids(pairs), ..Model::default() }))
}

/// llm.c's file: the bytes of each token, in the order they were merged in.
pub(super) fn llm_c(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let number = |i: usize| bytes.get(4 * i..4 * i + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let header = [number(0), number(1), number(2), number(255)];
    let [Some(magic), Some(version @ 1..=2), Some(count), Some(_)] = header else {
        return Err(part(
            "the header",
            "256 numbers, of version 1 or 2",
            format!("{header:?} in {} bytes", bytes.len()),
        ));
    };
    if magic != LLMC[0] {
        return Err(part("the header", "llm.c's mark 20240328", magic.to_string()));
    }
    let mut rest = &bytes[1024..];
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    for id in 0..count {
        let token = rest.split_first().and_then(|(&len, rest)| rest.split_at_checked(len.into()));
        let Some((token, after)) = token.filter(|(token, _)| !token.is_empty()) else {
            return Err(part("the tokens", "as many as the header says, none empty", format!("an end at token {id}")));
        };
        tokens.push(Some(token.to_vec()));
        rest = after;
    }
    if !rest.is_empty() {
        return Err(part("the file", "an end after its tokens", format!("{} bytes more", rest.len())));
    }
    let end = if version == LLMC[1] { number(3) } else { Some(50_256) };
    if let Some(gpt2) = Encoding::named("gpt2")
        && tokens.len() == gpt2.vocab_size()
        && (0..).zip(&tokens).all(|(id, t)| t.as_deref() == Some(&*gpt2.bytes(&[id])))
    {
        return Ok(Tokenizer::Bpe(gpt2));
    }
    let end = end.filter(|&id| id < count).ok_or_else(|| part("the header", "an end of text among the tokens", "none"));
    let end = end? as usize;
    let special = tokens[end].take().unwrap_or_default();
    let special = String::from_utf8(special).map_err(|_| part("the end of text", "text", "other bytes"))?;
    Tokenizer::made(table::ranked(&tokens, Split::Gpt2, vec![Added::new(end as u32, &special, true)]))
}

/// Each token of a .tiktoken file: its bytes in base64, a blank, its rank.
pub(super) fn tiktoken(bytes: &[u8], split: Option<Split>, special: &[String]) -> Result<Tokenizer, TokenizerError> {
    let text =
        str::from_utf8(bytes).map_err(|error| part("the file", "lines of base64 and ranks", error.to_string()))?;
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (line, n) in text.lines().zip(1..).filter(|(line, _)| !line.is_empty()) {
        let parsed = line.split_once(' ').and_then(|(token, rank)| {
            let rank: usize = rank.trim().parse().ok().filter(|rank| *rank < 1 << 22)?;
            Some((STANDARD.decode(token).ok().filter(|token| !token.is_empty())?, rank))
        });
        let wrong = |expected| part(&format!("line {n}"), expected, super::error::shown(line));
        let (token, rank) = parsed.ok_or_else(|| wrong("a token in base64, a blank and its rank"))?;
        if rank >= tokens.len() {
            tokens.resize(rank + 1, None);
        }
        if !seen.insert(token.clone()) || tokens[rank].replace(token).is_some() {
            return Err(wrong("a token and a rank that no other line has"));
        }
    }
    if !(0..=255u8).all(|byte| seen.contains([byte].as_slice())) {
        return Err(part("the tokens", "all 256 single bytes among them", format!("{} tokens", seen.len())));
    }
    let is = |encoding: &Encoding| {
        let own = tokens.len() == encoding.ranks() || (encoding.is_gpt2() && tokens.len() == 50_281);
        let same = |(id, token): (u32, &Option<Vec<u8>>)| token.as_deref() == Some(&*encoding.bytes(&[id]));
        own && (0..).zip(&tokens[..encoding.ranks()]).all(same)
    };
    let known = Encoding::all().find(is);
    let whole = |encoding: &Encoding| tokens.len() == encoding.ranks();
    let own = known.filter(|encoding| split.is_none_or(|split| split == encoding.split()) && whole(encoding));
    if let Some(encoding) = own.filter(|_| special.is_empty()) {
        return Ok(Tokenizer::Bpe(encoding));
    }
    let split = split.or(known.map(Encoding::split)).ok_or(TokenizerError::NoSplit)?;
    // p50k_base has its end of text where GPT-2 has it, among its tokens.
    let p50k = known.is_some() && own.is_none() && tokens[50_256].is_none() && special.is_empty();
    let mut added = Added::specials(special, tokens.len());
    added.extend(p50k.then(|| Added::new(50_256, "<|endoftext|>", true)));
    Tokenizer::made(table::ranked(&tokens, split, added))
}

/// The tokens of byte-level byte pairs whose ids are in the order of their ranks: bytes and id, special tokens left
/// out.
fn in_order(tokenizer: &Tokenizer) -> Result<Vec<(Vec<u8>, u32)>, TokenizerError> {
    let other = || TokenizerError::Format(format!("it is not byte-level byte pairs but {}", tokenizer.name()));
    let pairs = match tokenizer {
        Tokenizer::Bpe(encoding) => encoding.pairs(),
        Tokenizer::Imported(imported) => imported.pairs().ok_or_else(other)?,
        _ => return Err(other()),
    };
    let mut tokens: Vec<(Vec<u8>, u32)> = pairs.ranks.tokens().map(|(token, id)| (token.to_vec(), id)).collect();
    let joined = tokens.iter().filter(|(token, _)| token.len() > 1).map(|(_, id)| *id);
    if !joined.is_sorted() {
        return Err(TokenizerError::Format("its ids are not in the order of its merges".into()));
    }
    tokens.sort_by_key(|(_, id)| *id);
    Ok(tokens)
}
