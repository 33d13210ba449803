//! Tokenizers and documents in every form that limpid reads, their files changed. What a file of documents holds is
//! said by another reader, a few lines each: limpid refuses the file or says the same.

use super::Cases::{Listed, Share};
use super::models::{Restored, change, copied, name, refused, told};
use super::mutate::{self, Dice};
use super::{Came, Subject, Trial, Verdict, counting};
use limpid::data::chat::{self, Role};
use limpid::data::{DocumentReader, TextFormat, find};
use limpid::tokenizer::{self, Order, Tokenizer};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;

pub const SUBJECTS: &[Subject] = &[
    Subject { name: "tokenizer", cases: Share(16), new: tokenizers },
    Subject { name: "text", cases: Share(3), new: |at| documents(at, "some.txt", plain().into(), 0..0, text) },
    Subject {
        name: "json-lines",
        cases: Share(6),
        new: |at| documents(at, "some.jsonl", lines().into(), 0..0, json_lines),
    },
    Subject {
        name: "json-array",
        cases: Share(6),
        new: |at| documents(at, "some.json", array().into(), 0..0, json_array),
    },
    Subject {
        name: "gzip",
        cases: Share(4),
        new: |at| documents(at, "some.jsonl.gz", gzip(lines().as_bytes()), 0..0, packed),
    },
    Subject {
        name: "zstd",
        cases: Share(4),
        new: |at| documents(at, "some.jsonl.zst", zstd(lines().as_bytes()), 0..0, packed),
    },
    Subject { name: "parquet", cases: Share(8), new: parquet },
    Subject { name: "chat", cases: Share(4), new: conversations },
    Subject { name: "bombs", cases: Listed(6), new: bombs },
];

const TEXT: &str =
    "A dog saw the cat. Once there was\n\t\u{e9}t\u{e9} 12345 \u{1f600} <|endoftext|> [MASK] lower lowest";

// -------------------------------------------------------------------------------------------------- tokenizers

fn tokenizers(at: &Path) -> Trial {
    let mut folders = vec![];
    let all = fs::read_to_string(copied("tokenizers.json", at)).unwrap();
    let all: Value = serde_json::from_str(&all).unwrap();
    for (name, one) in all.as_object().unwrap() {
        let folder = at.join(name);
        fs::create_dir_all(&folder).unwrap();
        let like = one["like"].as_str().map(|like| &all[like]);
        for (file, text) in like.into_iter().chain([one]).flat_map(|one| one["files"].as_object().unwrap()) {
            fs::write(folder.join(file), text.as_str().unwrap()).unwrap();
        }
        folders.push(folder);
    }
    for name in ["gpt2-text", "bert-mlm", "openai-gpt-plain"] {
        let folder = copied(&format!("hf/{name}"), at);
        let _ = fs::remove_file(folder.join("model.safetensors"));
        let _ = (fs::remove_file(folder.join("truth.safetensors")), fs::remove_file(folder.join("text.json")));
        folders.push(folder);
    }
    let own = |name: &str, tokenizer: Tokenizer| {
        let folder = at.join(name);
        fs::create_dir_all(&folder).unwrap();
        tokenizer.save(folder.join("tokenizer.json")).unwrap();
        folder
    };
    for (name, kind) in [("char", tokenizer::TokenizerKind::Char), ("word", tokenizer::TokenizerKind::Word)] {
        folders.push(own(name, Tokenizer::train(kind, TEXT, Order::Sorted, &["<|end|>"]).unwrap()));
    }
    let llmc = at.join("llmc");
    fs::create_dir_all(&llmc).unwrap();
    fs::rename(copied("llmc/tokenizer.bin", at), llmc.join("gpt2_tokenizer.bin")).unwrap();
    folders.push(llmc);

    let mut known = vec![];
    for folder in folders {
        let (whole, most) = counting::most(|| look(&folder).unwrap());
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        let files: Vec<_> = files.into_iter().map(|f| (fs::read(&f).unwrap(), f)).collect();
        known.push((folder, whole, most, files));
    }
    Box::new(move |_, dice| {
        let (folder, whole, most, files) = dice.of(&known);
        let (original, file) = dice.of(files);
        let _restored = Restored(file, original);
        let (_, long) = change(file, original, &(0..0), dice);
        let (found, took) = counting::most(|| look(folder));
        // the greatest id may be 65,536 more than there are tokens, and has a place in a table
        let stated = most * long.div_ceil(original.len()).max(1) + (1 << 20) + 65_536 * 32;
        match found {
            _ if took > 2 * stated => Err(format!("{}: {took} bytes of memory, where {stated} are stated", name(file))),
            Err(Fault::Refused(error)) => refused(&error, folder),
            Err(Fault::Wrong(what)) => Err(format!("{}: {what}", name(file))),
            Ok(found) if found == *whole => Ok(Came::Same),
            // no configuration of another program's says all of itself in tokenizer.json
            Ok(found) if found.json != whole.json || name(file) != "tokenizer.json" => Ok(Came::Told),
            Ok(_) => Err(format!("{}: other ids, and nothing says so", name(file))),
        }
    })
}

/// What a tokenizer is.
#[derive(PartialEq)]
struct Words {
    json: String,
    ids: Vec<u32>,
    text: Vec<u8>,
    specials: Vec<(String, u32)>,
}

#[derive(Debug)]
enum Fault {
    Refused(String),
    Wrong(String),
}

fn look(folder: &Path) -> Result<Words, Fault> {
    let opened = Tokenizer::open(folder).map_err(|e| Fault::Refused(told(&e)))?;
    let Some(opened) = opened else { return Err(Fault::Refused(format!("{} has none", folder.display()))) };
    let said = |t: &Tokenizer| {
        let ids = t.encode(TEXT).unwrap_or_default();
        let text = t.decode_bytes(&ids).unwrap_or_default();
        let specials = t.specials().into_iter().map(|(text, id)| (text.to_string(), id)).collect();
        Words { json: t.to_json(), ids, text, specials }
    };
    let first = said(&opened);
    if let Some(id) = first.ids.iter().find(|id| **id as usize >= opened.vocab_size()) {
        return Err(Fault::Wrong(format!("id {id} of a vocabulary of {}", opened.vocab_size())));
    }
    // a run keeps a copy: it must be read as what it is a copy of
    match Tokenizer::from_json(&first.json) {
        Err(error) => Err(Fault::Wrong(format!("what was read is not readable when it is written: {}", told(&error)))),
        Ok(again) if said(&again).ids != first.ids => Err(Fault::Wrong("its copy gives other ids".into())),
        Ok(_) => Ok(first),
    }
}

// --------------------------------------------------------------------------------------------------- documents

fn plain() -> String {
    (0..200).map(|i| format!("Line {i} of a text, with \u{e9} and \u{1f600}.\n")).collect()
}

fn lines() -> String {
    (0..60)
        .map(|i| json!({ "text": format!("document {i}\nhas \"two\" lines \u{e9}"), "id": i }).to_string() + "\n")
        .collect()
}

fn array() -> String {
    let items: Vec<Value> =
        (0..40).map(|i| json!({ "text": format!("item {i}, [with] {{brackets}}"), "id": [i] })).collect();
    format!("{:#}\n", Value::from(items))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// What a file holds; none if it is not what its name says.
type Reader = fn(&[u8]) -> Option<Vec<String>>;

fn text(bytes: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(vec![text.strip_prefix('\u{feff}').unwrap_or(text).into()])
}

fn field(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(fields) => Some(fields.get("text")?.as_str()?.into()),
        _ => None,
    }
}

fn json_lines(bytes: &[u8]) -> Option<Vec<String>> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let lines = bytes.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    lines.map(|line| field(serde_json::from_slice(line).ok()?)).collect()
}

fn json_array(bytes: &[u8]) -> Option<Vec<String>> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        return json_lines(bytes);
    }
    let items: Vec<Value> = serde_json::from_slice(bytes).ok()?;
    items.into_iter().map(field).collect()
}

/// A packed file has a checksum: what it was packed from, or nothing.
fn packed(_: &[u8]) -> Option<Vec<String>> {
    json_lines(lines().as_bytes())
}

/// All documents that are not empty.
fn read(path: &Path) -> Result<Vec<String>, String> {
    let inputs = find(&[path.display().to_string()], TextFormat::Text).map_err(|e| told(&e))?.inputs;
    let (mut texts, mut within): (Vec<String>, _) = (vec![], false);
    for unit in DocumentReader::new(inputs, "text", false) {
        let unit = unit.map_err(|e| told(&e))?;
        match texts.last_mut() {
            Some(text) if within => text.push_str(&unit.text),
            _ => texts.push(unit.text),
        }
        within = !unit.last;
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

/// What a reader holds beside a document: its buffers and a unit of text, in bytes.
const BUFFERS: usize = 6 << 20;

fn documents(at: &Path, name: &str, original: Vec<u8>, free: std::ops::Range<usize>, reader: Reader) -> Trial {
    let path = at.join(name);
    fs::write(&path, &original).unwrap();
    let whole = read(&path).unwrap();
    assert_eq!(Some(&whole), reader(&original).as_ref(), "{name}");
    Box::new(move |_, dice| one(&path, &original, &free, &whole, reader, dice))
}

fn one(
    path: &Path,
    original: &[u8],
    free: &std::ops::Range<usize>,
    whole: &[String],
    reader: Reader,
    dice: &mut Dice,
) -> Verdict {
    let _restored = Restored(path, original);
    let (changed, long) = change(path, original, free, dice);
    let (found, took) = counting::most(|| read(path));
    let stated = 8 * long + BUFFERS;
    if took > 2 * stated {
        return Err(format!("{took} bytes of memory, where {stated} are stated"));
    }
    let found = match found {
        Err(error) => return refused(&error, path),
        Ok(found) => found,
    };
    if found == whole {
        return Ok(Came::Same);
    }
    let mut said = if path.is_file() { reader(&changed) } else { None };
    said.iter_mut().for_each(|texts| texts.retain(|text| !text.is_empty()));
    match said {
        Some(said) if said == found => Ok(Came::Told),
        Some(said) => {
            let at = said.iter().zip(&found).position(|(a, b)| a != b).unwrap_or(said.len().min(found.len()));
            let what =
                |texts: &[String]| texts.get(at).map_or("none".into(), |t| t.chars().take(60).collect::<String>());
            let (n, m) = (said.len(), found.len());
            Err(format!(
                "{m} documents, where there are {n}; document {at} is {:?}, not {:?}",
                what(&found),
                what(&said)
            ))
        }
        None => Err(format!("{} documents of a file that is not what its name says", found.len())),
    }
}

/// Pages have no checksum: what lies between the first mark and the footer stays as it is. The footer may be changed.
fn parquet(at: &Path) -> Trial {
    let mut known = vec![];
    for name in ["snappy", "gzip-v2", "zstd", "zstd-v2", "lz4"] {
        let path = copied(&format!("parquet/{name}.parquet"), at);
        let bytes = fs::read(&path).unwrap();
        let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        let (whole, most) = counting::most(|| read(&path).unwrap());
        known.push((path, whole, most, 4..bytes.len() - 8 - footer, bytes));
    }
    Box::new(move |_, dice| {
        let (path, whole, most, pages, original) = dice.of(&known);
        let _restored = Restored(path, original);
        let mut bytes = original.clone();
        while bytes == *original {
            // the footer alone, or all of it cut and moved about
            if dice.below(4) > 0 {
                bytes.truncate(pages.end);
                bytes.extend(mutate::bytes(&original[pages.end..], dice));
            } else {
                bytes = mutate::bytes(original, dice);
                if bytes.len() == original.len() {
                    bytes[pages.clone()].copy_from_slice(&original[pages.clone()]);
                }
            }
        }
        fs::remove_file(path).unwrap();
        fs::write(path, &bytes).unwrap();
        let (found, took) = counting::most(|| read(path));
        let stated = most * bytes.len().div_ceil(original.len()) + BUFFERS;
        match found {
            _ if took > 2 * stated => Err(format!("{took} bytes of memory, where {stated} are stated")),
            Err(error) => refused(&error, path),
            Ok(found) if found == *whole => Ok(Came::Same),
            // these files' pages have no checksums: other values there are other values
            Ok(_) if bytes.get(pages.clone()) != Some(&original[pages.clone()]) => Ok(Came::Told),
            Ok(found) => Err(format!("{} documents, where there are {}, or others", found.len(), whole.len())),
        }
    })
}

fn conversations(_: &Path) -> Trial {
    let talk = |i: usize| {
        let said = |role: &str, n: usize| json!({ "role": role, "content": format!("{role} {n} of {i}") });
        json!({ "messages": [said("system", 0), said("user", 1), said("assistant", 2), said("user", 3),
            said("assistant", 4)] })
    };
    let original: String = (0..12).map(|i| talk(i).to_string() + "\n").collect();
    let messages = |text: &str| -> Option<Vec<Vec<(String, String)>>> {
        let lines = text.trim_start_matches('\u{feff}').lines().filter(|l| !l.trim().is_empty());
        lines
            .map(|line| {
                let value: Value = serde_json::from_str(line).ok()?;
                let text = |m: &Value, key: &str| Some(m[key].as_str()?.to_string());
                value["messages"].as_array()?.iter().map(|m| Some((text(m, "role")?, text(m, "content")?))).collect()
            })
            .collect()
    };
    let whole = messages(&original).unwrap();
    Box::new(move |_, dice| {
        let changed = loop {
            let changed = mutate::file(original.as_bytes(), dice);
            match String::from_utf8(changed) {
                Ok(text) if text != original => break text,
                _ => {} // another reader sees to that it is text
            }
        };
        let (found, took) = counting::most(|| chat::read(&changed, false));
        let stated = 16 * changed.len() + (64 << 10);
        if took > 2 * stated {
            return Err(format!("{took} bytes of memory, where {stated} are stated"));
        }
        let Ok(found) = found else { return Ok(Came::Refused) };
        let role = |role| {
            ["system", "user", "assistant"]
                [[Role::System, Role::User, Role::Assistant].iter().position(|r| *r == role).unwrap()]
        };
        let found: Vec<Vec<(String, String)>> = found
            .conversations
            .iter()
            .map(|c| c.messages.iter().map(|m| (role(m.role).into(), m.content.clone())).collect())
            .collect();
        match messages(&changed) {
            _ if found == whole => Ok(Came::Same),
            Some(said) if said == found => Ok(Came::Told),
            _ => Err("conversations that are not in the file".into()),
        }
    })
}

/// Small files that unpack to much: refused, or read in the memory that the longest document may take, 128 MiB: as its
/// line, as JSON, and as its text.
fn bombs(at: &Path) -> Trial {
    const STATED: usize = 3 * (128 << 20);
    let at = at.to_path_buf();
    let repeated = |part: &[u8], times: usize| {
        let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        (0..times).for_each(|_| to.write_all(part).unwrap());
        to
    };
    Box::new(move |n, _| {
        let block = vec![b'x'; 1 << 20];
        let (name, bytes) = match n % 6 {
            0 => {
                let mut line = repeated(b"{\"text\": \"", 1);
                (0..400).for_each(|_| line.write_all(&block).unwrap());
                line.write_all(b"\"}\n").unwrap();
                ("line.jsonl.gz", line.finish().unwrap())
            }
            1 => ("text.txt.gz", repeated(&block, 400).finish().unwrap()),
            2 => ("open.json.gz", repeated(&vec![b'['; 1 << 20], 300).finish().unwrap()),
            3 => ("deep.json", vec![b'['; 4 << 20]),
            4 => ("lines.jsonl.gz", repeated(&vec![b'\n'; 1 << 20], 300).finish().unwrap()),
            _ => ("twice.txt.gz", gzip(&repeated(&block, 300).finish().unwrap())),
        };
        let path = at.join(name);
        fs::write(&path, bytes).unwrap();
        let reads = || {
            let inputs = find(&[path.display().to_string()], TextFormat::Text).map_err(|e| told(&e))?.inputs;
            DocumentReader::new(inputs, "text", false).try_for_each(|unit| unit.map(drop).map_err(|e| told(&e)))
        };
        let (found, took) = counting::most(reads);
        match found {
            _ if took > 2 * STATED => Err(format!("{name}: {took} bytes of memory, where {STATED} are stated")),
            Err(error) => refused(&error, &path),
            Ok(()) => Ok(Came::Same),
        }
    })
}
