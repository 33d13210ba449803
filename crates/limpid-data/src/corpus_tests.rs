//! Documents in, shards out: every kind of file, every kind of damage, interrupted anywhere, with any number of
//! threads.

use super::*;
use limpid_tokenizer::{Order, Tokenizer, TokenizerKind as Learned};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

#[path = "../../limpid/tests/library/common/folder.rs"]
mod folder;
use folder::Folder;

impl Folder {
    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }
    fn name(&self) -> String {
        self.0.display().to_string()
    }
}

/// A part (`train` or `val`) of a folder that `data prepare` wrote.
fn open_part(folder: impl AsRef<Path>, part: &str) -> Result<Tokens, CorpusError> {
    Manifest::open(folder.as_ref())?.tokens(folder.as_ref(), part, true)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn documents(name: &str, field: &str, skip: bool) -> (Vec<String>, Vec<String>, DocumentReader) {
    let mut read = DocumentReader::new(find(&[name.into()], TextFormat::Text).unwrap().inputs, field, skip);
    let (mut texts, mut errors, mut within) = (vec![], vec![], false);
    for unit in read.by_ref() {
        match unit {
            Ok(unit) => {
                if within {
                    texts.last_mut().map(|t: &mut String| t.push_str(&unit.text))
                } else {
                    texts.push(unit.text);
                    None
                };
                within = !unit.last;
            }
            Err(e) => {
                errors.push(e.to_string());
                break;
            }
        }
    }
    (texts, errors, read)
}

#[test]
fn every_kind_packed_or_not_gives_its_documents() {
    let f = Folder::new("kinds");
    let lines = b"{\"id\":1,\"text\":\"one\\n\"}\n\n{\"text\":\"two \\u00e9\"}\n\"three\"";
    let array = b" [ {\"text\": \"a, ] \\\" }\", \"more\": [1, {\"x\": []}]} ,\n \"b\" ]\n";
    let two = [gzip(b"packed "), gzip(b"twice\n")].concat();
    f.file("a.txt", "\u{feff}text\r\nas it is ");
    f.file("b.jsonl", lines);
    f.file("c/a.json", array);
    f.file("c/b.json", b"{\"text\":\"lines after all\"}\n{\"text\":\"and more\"}");
    f.file("c/c.md.gz", &two);
    f.file("c/d.ndjson.zst", [zstd(b"{\"text\":\"first\"}\n"), zstd(b"{\"text\":\"second frame\"}\n")].concat());
    f.file("c/e.unknown", [0; 9]);
    f.file("c/f.txt", "");
    let (texts, errors, read) = documents(&f.name(), "text", false);
    assert_eq!(errors, Vec::<String>::new());
    let wanted = [
        "text\r\nas it is ",
        "one\n",
        "two é",
        "three",
        "a, ] \" }",
        "b",
        "lines after all",
        "and more",
        "packed twice\n",
        "first",
        "second frame",
    ];
    assert_eq!((texts, read.empty, read.bad), (wanted.map(String::from).to_vec(), 1, 0));
    assert_eq!(read.read(), read.inputs().iter().map(|i| i.bytes).sum::<u64>());
    assert_eq!(documents(&format!("{}/*.jsonl", f.name()), "text", false).0.len(), 3);
    assert_eq!(documents(&f.file("other", "any name is text"), "text", false).0, ["any name is text"]);
}

/// What may stand between packed members and in rows, by gzip's rule, Python's and parquet's.
#[test]
fn padding_is_nothing_and_null_is_empty() {
    let f = Folder::new("padding");
    let (one, two) = (gzip(b"{\"text\":\"one\"}\n"), gzip(b"{\"text\":\"two\"}\n"));
    for (name, zeros) in [("a", 1), ("b", 7), ("c", 511), ("d", 1 << 19)] {
        let zeros_only = vec![0u8; zeros];
        let padded = [&one[..], &zeros_only[..]].concat();
        assert_eq!(documents(&f.file(&format!("{name}.jsonl.gz"), &padded), "text", false).0, ["one"], "{zeros}");
        let more = [&padded[..], &two[..], &zeros_only[..]].concat();
        let (texts, errors, _) = documents(&f.file(&format!("{name}2.jsonl.gz"), more), "text", false);
        assert_eq!((texts, errors.len()), (vec!["one".into(), "two".into()], 0), "{zeros}");
    }
    // what is neither zeros nor a member is damage, and so is a member without its end
    let rests: [(&str, Vec<u8>); 4] = [
        ("x", b"\0\0rubbish".to_vec()),
        ("y", b"rubbish".to_vec()),
        ("z", two[..9].to_vec()),
        ("w", [&[0u8; 3][..], &two[..two.len() - 1]].concat()),
    ];
    for (name, rest) in rests {
        let (texts, errors, _) =
            documents(&f.file(&format!("{name}.jsonl.gz"), [&one[..], &rest[..]].concat()), "text", false);
        assert!(errors.len() == 1 && errors[0].contains("cut short or damaged"), "{name}: {texts:?} {errors:?}");
    }
    for (name, text, want, empty) in [
        (
            "n.jsonl",
            "{\"text\":\"a\"}\n{\"text\":null}\n{\"id\":1,\"text\": null }\n{\"text\":\"b\"}",
            vec!["a", "b"],
            2,
        ),
        ("n.json", "[{\"text\":null},{\"text\":\"a\"},{\"text\":\"\"}]", vec!["a"], 2),
    ] {
        let (texts, errors, read) = documents(&f.file(name, text), "text", false);
        assert_eq!(
            (texts, errors.len(), read.empty),
            (want.into_iter().map(String::from).collect(), 0, empty),
            "{name}"
        );
    }
    // a row that is null, and one that has no such field, are no texts
    is_bad(&f, "m.jsonl", b"{\"text\":\"a\"}\nnull\n{\"text\":\"b\"}", "line 2 is null: expected a text", 2);
    is_bad(&f, "o.jsonl", b"{\"text\":\"a\"}\n{\"id\":null}\n{\"text\":\"b\"}", "it has id", 2);
}

/// A file of which something is bad is an error that names it and says what; where bad documents are left out, `kept`
/// others are read, and it is told.
fn is_bad(f: &Folder, name: &str, bytes: &[u8], said: &str, kept: usize) {
    let path = f.file(name, bytes);
    let (_, errors, _) = documents(&path, "text", false);
    assert!(errors.len() == 1 && errors[0].contains(said) && errors[0].contains(name), "{name}: {errors:?}");
    let (texts, errors, read) = documents(&path, "text", true);
    assert_eq!((texts.len(), errors.len(), read.bad), (kept, 0, 1), "{name}");
    assert!(read.complaints[0].contains(said), "{:?}", read.complaints);
}

#[test]
fn what_is_bad_is_named_and_the_rest_is_kept() {
    let f = Folder::new("bad");
    let mut summed = zstd(&[b'x'; 500]);
    *summed.last_mut().unwrap() ^= 1;
    let cases: &[(&str, &[u8], &str, usize)] = &[
        ("a.txt", b"good\nbad \xE9 here", "is not UTF-8 text: byte 9 (line 2) is 0xE9", 0),
        ("b.txt", b"\xFF\xFEa\0b\0", "UTF-16", 0),
        ("c.txt", b"some\0thing", "binary", 0),
        ("d.txt", b"%PDF-1.4", "a PDF file", 0),
        ("e.jsonl", b"{\"text\":\"a\"}\nnot json\n{\"text\":\"b\"}", "e.jsonl, line 2 is not JSON: expected", 2),
        (
            "f.jsonl",
            b"{\"text\":\"a\"}\n{\"txt\":\"x\",\"n\":1}\n{\"text\":\"b\"}",
            "line 2 has no text in the field `text`; it has n, txt",
            2,
        ),
        ("g.jsonl", b"{\"text\":\"a\"}\n{\"text\":\"\xE9\"}\n{\"text\":\"b\"}", "line 2 is not UTF-8", 2),
        ("h.jsonl", b"{\"text\":\"a\"}\n{\"text\":\"b\"", "line 2 is not JSON: it ends within an object", 1),
        ("i.json", b"[{\"text\":\"a\"}, {\"text\": 5}, \"c\"]", "item 2 has a number in the field `text`", 2),
        ("j.json", b"[{\"text\":\"a\"}, ", "cut short", 1),
        ("k.txt.gz", &gzip(b"some text that is long enough")[..20], "cut short or damaged", 0),
        ("l.txt.zst", &zstd(&[b'x'; 500])[..8], "cut short or damaged", 0),
        ("l2.txt.zst", &summed, "its checksum does not match", 0),
        ("m.parquet", b"PAR1 and nothing", "parquet", 0),
    ];
    cases.iter().for_each(|(name, bytes, said, kept)| is_bad(&f, name, bytes, said, *kept));
    f.file("z.txt", "the last one is still read");
    let (texts, _, read) = documents(&f.name(), "text", true);
    assert_eq!((read.bad, texts.last().unwrap().as_str()), (14, "the last one is still read"));
    let message = |name: &str| find(&[name.into()], TextFormat::Text).unwrap_err().to_string();
    assert!(message("/nowhere/at all").contains("no such file"));
    assert!(message(&format!("{}/*.csv", f.name())).contains("no such file"));
    fs::create_dir(f.0.join("none")).unwrap();
    assert!(message(&f.0.join("none").display().to_string()).contains("has no documents"));
}

/// What `datasets.data_files.resolve_pattern` of datasets 5.2 leaves out: each row is what it gives.
#[test]
fn hidden_files_and_what_describes_a_dataset_are_left_out() {
    let f = Folder::new("left-out");
    let files = [
        "a.txt",
        "b/c.jsonl",
        "b/README.txt",
        "readme.md",
        "_d.txt",
        "b/_e/f.txt",
        // these are left out
        ".g.txt",
        "._a.txt",
        ".git/h.txt",
        ".ipynb_checkpoints/a-checkpoint.txt",
        "__pycache__/i.txt",
        "b/.cache/huggingface/j.json",
        "README.md",
        "b/README.md",
        "dataset_info.json",
        "b/dataset_infos.json",
        "dataset_dict.json",
        "config.json",
    ];
    for file in files {
        f.file(file, "x");
    }
    let read = |pattern: &str| -> Vec<String> {
        let found = find(&[format!("{}{pattern}", f.name())], TextFormat::Text);
        let name = |input: &Input| input.path.strip_prefix(&f.0).unwrap().display().to_string();
        let mut names: Vec<String> = found.map(|found| found.inputs.iter().map(name).collect()).unwrap_or_default();
        names.sort();
        names
    };
    let mut all = files[..6].to_vec();
    all.sort_unstable();
    let cases: &[(&str, &[&str])] = &[
        ("", &all),
        ("/", &all),
        ("/**/*.txt", &["_d.txt", "a.txt", "b/README.txt", "b/_e/f.txt"]),
        ("/*.md", &["readme.md"]),
        ("/README.md", &["README.md"]),
        ("/*/README.md", &["b/README.md"]),
        ("/*.json", &[]),
        ("/.*.txt", &["._a.txt", ".g.txt"]),
        ("/.git", &[".git/h.txt"]),
        ("/.git/*", &[".git/h.txt"]),
        ("/.*/*.txt", &[".git/h.txt", ".ipynb_checkpoints/a-checkpoint.txt"]),
        ("/b/.cache/*/*", &["b/.cache/huggingface/j.json"]),
        ("/__*/*", &["__pycache__/i.txt"]),
        ("/*/i.txt", &[]),
        ("/.g.txt", &[".g.txt"]),
    ];
    for (pattern, wanted) in cases {
        assert_eq!(read(pattern), *wanted, "{pattern}");
    }
    let found = find(&[f.name()], TextFormat::Text).unwrap();
    let said = found.left_out.to_string();
    assert_eq!(found.left_out.names().len(), 12, "a folder counts once: {said}");
    assert!(said.contains("12 files and folders left out") && said.contains(".git"), "{said}");
    // a folder with nothing else says why it has no documents
    f.file("card/README.md", "x");
    let error = find(&[f.name() + "/card"], TextFormat::Text).unwrap_err().to_string();
    assert!(error.contains("has no documents") && error.contains("README.md"), "{error}");
}

/// What PyArrow wrote: nulls, empty texts, several groups and pages, dictionaries.
#[cfg(feature = "parquet")]
#[test]
fn parquet_is_read_row_by_row() {
    let at = |name: &str| format!("{}/fixtures/parquet/{name}", env!("CARGO_MANIFEST_DIR"));
    for name in ["snappy", "gzip-v2", "zstd", "zstd-v2", "lz4"].map(|name| at(&format!("{name}.parquet"))) {
        let (texts, errors, read) = documents(&name, "text", false);
        assert_eq!((texts.len(), errors.len(), read.empty), (498, 0, 2), "{name}: {errors:?}");
        assert_eq!((texts[7].as_str(), texts[497].contains("Row 499:")), ("é ü 猫", true));
    }
    assert_eq!(documents(&at("snappy.parquet"), "url", false).0[8], "https://example.org/1");
    let errors = documents(&at("snappy.parquet"), "body", false).1;
    assert!(errors[0].contains("no column `body` of text; it has text, url"), "{errors:?}");
    let errors = documents(&at("brotli.parquet"), "text", false).1;
    assert!(errors[0].contains("does not read its compression, brotli"), "{errors:?}");
}

/// Whatever is damaged in it, a parquet file gives its rows or an error that names it.
#[cfg(feature = "parquet")]
#[test]
#[ignore = "gate"]
fn damaged_parquet_never_panics() {
    let f = Folder::new("damaged-parquet");
    let (mut errors, mut contained) = (0, 0);
    for name in ["snappy", "gzip-v2", "zstd", "zstd-v2", "lz4"] {
        let at = format!("{}/fixtures/parquet/{name}.parquet", env!("CARGO_MANIFEST_DIR"));
        let good = fs::read(at).unwrap();
        let footer = good.len() - 8 - u32::from_le_bytes(good[good.len() - 8..][..4].try_into().unwrap()) as usize;
        for case in 0..400 {
            let draw = |site: u64, n: usize| limpid_base::random::below(9, site, case, n as u64) as usize;
            let mut bytes = good.clone();
            for change in 0..1 + draw(0, 3) as u64 {
                // mostly in the footer, and there in what can be read
                let from = if case % 4 == 0 { 4 } else { footer };
                let place = from + draw(1 + 3 * change, good.len() - 8 - from);
                bytes[place] =
                    [draw(2 + 3 * change, 256) as u8, bytes[place] ^ 1 << draw(3 + 3 * change, 8)][case as usize % 2];
            }
            let path = f.file("x.parquet", &bytes);
            let (texts, found, _) = documents(&path, "text", false);
            assert!(texts.len() < 100_000);
            errors += found.len();
            contained += usize::from(found.iter().any(|e| e.contains("the reader of parquet failed")));
            assert!(found.iter().all(|e| e.contains("x.parquet")), "{found:?}");
            assert_eq!(documents(&path, "text", true).1, [""; 0]);
        }
    }
    assert!(errors > 200 && contained > 0, "{errors} errors, {contained} panics contained");
}

/// What a file is and is not: NUL bytes wherever they stand, more after an array, parquet that is packed again, pipes.
#[test]
fn what_is_no_text_is_refused_wherever_it_is() {
    let f = Folder::new("zeros");
    let text = |at: usize, size: usize| {
        let mut bytes = "some words of text\n".repeat(size / 19 + 1).into_bytes();
        bytes[at] = 0;
        bytes
    };
    let after = "there is more after the end of its JSON array";
    let row = format!("{}/fixtures/parquet/snappy.parquet", env!("CARGO_MANIFEST_DIR"));
    let row = gzip(&fs::read(row).unwrap());
    let cases: &[(&str, Vec<u8>, &str, usize)] = &[
        ("a.txt", text(8191, 10_000), "binary", 0),
        ("b.txt", text(8192, 10_000), "byte 8192 is 0", 0),
        ("c.txt", text(UNIT + 9000, 3 * UNIT), "byte 1057576 is 0", 1),
        ("d.txt.gz", gzip(&text(99_999, 100_000)), "byte 99999 is 0", 0),
        ("e.jsonl", b"\"a\"\n\"b\\u0000c\"\n\"d\"".into(), "line 2 is not text but binary: byte 1 is 0", 2),
        ("f.json", b"[\"a\", \"\\u0000\", \"b\"]".into(), "item 2 is not text but binary", 2),
        ("g.json", b"[\"a\"] [\"b\"]".into(), after, 1),
        ("h.json", b"[\"a\"\n]\n{\"text\":\"b\"}".into(), after, 1),
        ("i.json", b"[] ]".into(), after, 0),
        ("j.json", [&b"[\"a\"]"[..], &[b' '; 600_000], b"x"].concat(), after, 1),
        ("k.parquet.gz", row.clone(), "the whole parquet file is compressed: decompress it with gunzip", 0),
        ("l.parquet", row, "the whole parquet file is compressed", 0),
    ];
    cases.iter().for_each(|(name, bytes, said, kept)| is_bad(&f, name, bytes, said, *kept));
    assert_eq!(documents(&f.file("m.json", "[\"a\", \"b\",\n]\n \n"), "text", false).0, ["a", "b"]);
    // a pipe may be text, but not parquet
    if cfg!(unix) {
        let pipe = f.0.join("n.parquet").display().to_string();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(documents(&pipe, "text", false).1[0].contains("regular files only"));
    }
    let (whole, zero) = (f.file("o.txt", "ab\ncé"), f.file("p.txt", b"ab\0"));
    let read = |path: &str, limit| read_text(Path::new(path), limit).map_err(|e| e.to_string());
    assert_eq!(read(&whole, 6), Ok("ab\ncé".into()));
    assert!(read_text(Path::new(&whole), 5).is_err() && read(&zero, 5).unwrap_err().contains("byte 2 is 0"));
    assert!(read(&f.file("q.txt", b"ab\nc\xFF"), 9).unwrap_err().contains("byte 4 (line 2) is 0xFF"));
}

/// A line or item that is too long is named or passed over, and what follows is read; other fields may hold anything.
#[test]
#[ignore = "gate"]
fn lines_are_only_so_long() {
    let f = Folder::new("long-lines");
    let long = "x".repeat(LONGEST);
    let least = "y".repeat(LONGEST - 3);
    for (name, text, unit, kept) in [
        ("a.jsonl", format!("\"a\"\n\"{long}\"\n\"b\"\n"), "line", 2),
        ("b.json", format!("[\"a\",\"{long}\",\"b\"]"), "item", 2),
        ("c.jsonl", format!("\"a\"\n\"{long}"), "line", 1),
        ("d.jsonl", format!("\"a\"\n{{\"more\":\"{long}\",\"text\":\"b\"}}\n\"b\"\n\"c\""), "line", 3),
    ] {
        let path = f.file(name, text);
        let (texts, errors, _) = documents(&path, "text", false);
        let said = format!("{name}, {unit} 2 is longer than the 134217728 bytes");
        assert!(texts == ["a"] && errors[0].contains(&said), "{errors:?}");
        let (texts, errors, read) = documents(&path, "text", true);
        assert_eq!((texts.len(), errors.len(), read.bad), (kept, 0, 1), "{name}");
    }
    let (texts, errors, _) = documents(&f.file("e.jsonl", format!("\"{least}\"\n")), "text", false);
    assert!(errors.is_empty() && texts[0].len() == LONGEST - 3);
    let fields = "{\"deep\":[[{\"text\":1}]],\"text\":\"a\",\"n\":1e999}\n{\"text\":{\"text\":\"b\"}}\n{\"text\":\"\",\
                  \"text\":\"c\"}";
    let (texts, _, read) = documents(&f.file("f.jsonl", fields), "text", true);
    assert!(texts == ["a", "c"] || texts == ["c"], "{texts:?}");
    assert!(
        read.complaints.last().unwrap().contains("line 2 has an object in the field `text`"),
        "{:?}",
        read.complaints
    );
    let many = format!("{{{}}}", (10..99).map(|n| format!("\"f{n}\":0")).collect::<Vec<_>>().join(","));
    let errors = documents(&f.file("g.jsonl", many), "text", false).1;
    assert!(errors[0].contains("it has f10, f11, f12, f13, f14, f15, f16, f17 ..."), "{errors:?}");
}

#[test]
#[ignore = "gate"]
fn a_long_text_comes_in_parts_that_change_no_token() {
    let (text, _) = stories::corpus(7, 3 << 20);
    let f = Folder::new("long");
    let path = f.file("long.txt", &text);
    let units: Vec<Unit> =
        DocumentReader::new(find(&[path], TextFormat::Text).unwrap().inputs, "", false).map(Result::unwrap).collect();
    assert!(units.len() >= 3 && units.iter().all(|u| u.text.len() <= UNIT));
    assert!(units.iter().rev().skip(1).all(|u| !u.last) && units.last().unwrap().last);
    assert_eq!(units.iter().map(|u| u.text.as_str()).collect::<String>(), text);
    for name in ["gpt2", "o200k_base"] {
        let tokenizer = Tokenizer::named(name).unwrap();
        let parts: Vec<u32> = units.iter().flat_map(|u| tokenizer.encode(&u.text).unwrap()).collect();
        assert_eq!(parts, tokenizer.encode(&text).unwrap(), "{name}");
    }
    // without lines, without blanks, with characters of several bytes
    for text in ["word ".repeat(UNIT / 2), "猫".repeat(UNIT), "x".repeat(UNIT + 1), "\n".repeat(3 * UNIT)] {
        let (found, errors, _) = documents(&f.file("hard.txt", &text), "", false);
        assert!(errors.is_empty() && found == [text]);
    }
    // no part ends within a word or a character of several
    for text in [
        "слово ".repeat(UNIT / 5),
        "e\u{301}".repeat(UNIT),
        format!("{}👩\u{200d}👧", "🙂".repeat(UNIT / 4 - 1)).repeat(2),
    ] {
        let path = f.file("words.txt", &text);
        let units: Vec<Unit> = DocumentReader::new(find(&[path], TextFormat::Text).unwrap().inputs, "", false)
            .map(Result::unwrap)
            .collect();
        assert!(units.len() > 1 && units.iter().map(|u| u.text.as_str()).collect::<String>() == text);
        for unit in &units[1..] {
            let first = unit.text.chars().next().unwrap();
            assert!(first == ' ' || first == 'e' || "🙂👩".contains(first), "{first:?}");
        }
    }
    let line =
        format!("{{\"text\":\"{}\"}}\n{{\"text\":\"end\"}}\n", "a line of a hundred megabytes ".repeat(3_400_000));
    let (found, ..) = documents(&f.file("wide.jsonl", &line), "text", false);
    assert_eq!((found[0].len(), found[1].as_str()), (102_000_000, "end"));
}

/// A folder of every kind, a long text among them, and its tokenizer.
fn mixed(f: &Folder) -> (String, Tokenizer) {
    let (text, _) = stories::corpus(3, 2_500_000);
    f.file("in/a.txt", &text);
    let line = |i: usize| format!("{}\n", serde_json::json!({ "text": &text[300 * i..300 * i + 1 + i * 7 % 290] }));
    f.file("in/b.jsonl", (0..2000).map(line).collect::<String>());
    f.file("in/c.txt.gz", gzip(&text.as_bytes()[..1_200_000]));
    f.file("in/d.txt", &text[..100]);
    let tokenizer = Tokenizer::train(Learned::Char, &text, Order::Sorted, &["<|endoftext|>"]).unwrap();
    (f.0.join("in").display().to_string(), tokenizer)
}

fn plan<'a>(input: &str, tokenizer: &'a Tokenizer, threads: usize) -> Plan<'a> {
    Plan {
        inputs: find(&[input.into()], TextFormat::Text).unwrap().inputs,
        field: "text",
        skip_bad: false,
        parse_special: true,
        tokenizer,
        tokenizer_name: "own",
        val_fraction: 0.1,
        shard_tokens: 700_000,
        threads,
    }
}

fn bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let one = |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    fs::read_dir(folder).unwrap().map(|entry| one(entry.unwrap())).collect()
}

#[test]
fn interrupted_anywhere_and_with_any_threads_the_bytes_are_the_same() {
    let f = Folder::new("same");
    let (input, tokenizer) = mixed(&f);
    let (whole, mut calls) = (f.0.join("whole"), 0);
    let (manifest, _) = prepare(&plan(&input, &tokenizer, 2), &whole, &mut |_| {
        calls += 1;
        true
    })
    .unwrap();
    assert!(manifest.train.shards.len() > 3 && manifest.val.all.parts > 100 && manifest.complete);
    let wanted = bytes(&whole);
    manifest.check(&whole, &mut |_, _| {}).unwrap();
    for threads in [1, 5] {
        let other = f.0.join(format!("threads{threads}"));
        prepare(&plan(&input, &tokenizer, threads), &other, &mut |_| true).unwrap();
        assert!(bytes(&other) == wanted, "{threads} threads");
    }
    let parts = f.0.join("parts");
    let mut stops = 0;
    // goes a little further each time, then ends; what a kill at the worst moments leaves lies in the way
    loop {
        let mut left = calls * (stops + 1) / 9;
        match prepare(&plan(&input, &tokenizer, 1 + stops % 3), &parts, &mut |_| {
            left -= 1;
            left > 0
        }) {
            Ok(_) => break,
            Err(e) => assert!(matches!(e, CorpusError::Stopped), "{e}"),
        }
        stops += 1;
        let next = Manifest::read(&parts).unwrap().train.shards.len();
        fs::write(parts.join(format!("train_{next:06}.bin")), b"half").unwrap();
        fs::write(parts.join(format!("train_{next:06}.bin.partial")), b"half").unwrap();
        fs::write(parts.join("manifest.json.partial"), b"{").unwrap();
        let error = open_part(&parts, "train").unwrap_err().to_string();
        assert!(error.contains("interrupted"), "{error}");
        assert!(stops < 20);
    }
    fs::remove_file(parts.join("manifest.json.partial")).ok();
    assert!(stops > 3 && bytes(&parts) == wanted, "after {stops} stops");

    // all text is there, in order
    let (mut text, mut all) = (String::new(), 0);
    for part in ["train", "val"] {
        let tokens = open_part(&whole, part).unwrap();
        tokens.check_ids(tokenizer.vocab_size()).unwrap();
        all += tokens.documents();
        let mut ids = vec![];
        tokens.copy(0..tokens.len(), &mut ids);
        let held =
            Tokens::of_documents(ids.clone(), (0..tokens.documents()).map(|i| tokens.document(i).end).collect(), None);
        for at in (0..ids.len()).step_by(997) {
            assert_eq!((tokens.id(at), tokens.document_at(at)), (ids[at], held.document_at(at)));
            let mut some = vec![];
            tokens.copy(at..(at + 5000).min(ids.len()), &mut some);
            assert_eq!(some, ids[at..(at + 5000).min(ids.len())]);
        }
        text += &tokenizer.decode(&ids).unwrap();
    }
    let (texts, ..) = documents(&input, "text", false);
    assert_eq!(text.replace("<|endoftext|>", "").len(), texts.iter().map(String::len).sum::<usize>());
    assert_eq!(text.matches("<|endoftext|>").count(), texts.len());
    assert_eq!((manifest.all().documents, manifest.all().parts), (texts.len() as u64, all as u64));
    assert!(
        all >= texts.len()
            && manifest.train.all.bytes + manifest.val.all.bytes == texts.iter().map(String::len).sum::<usize>() as u64
    );
}

#[test]
fn a_text_that_is_parted_is_still_one_document() {
    let f = Folder::new("parted");
    let (text, _) = stories::corpus(3, 6 * UNIT);
    let (input, out) = (f.file("x.txt", &text), f.0.join("out"));
    let tokenizer = Tokenizer::train(Learned::Char, &text, Order::Sorted, &[]).unwrap();
    let plan = Plan { val_fraction: 0.5, ..plan(&input, &tokenizer, 2) };
    let all = prepare(&plan, &out, &mut |_| true).unwrap().0.all();
    let parts = ["train", "val"].map(|part| open_part(&out, part).unwrap().documents());
    assert_eq!((all.documents, all.parts, all.bytes), (1, parts.iter().sum::<usize>() as u64, text.len() as u64));
    assert!(all.parts > 2 && parts[1] > 0, "{parts:?}");
}

#[test]
fn damage_and_strangers_are_named() {
    let f = Folder::new("damage");
    let (input, tokenizer) = mixed(&f);
    let out = f.0.join("out");
    let again = |plan: &Plan| prepare(plan, &out, &mut |_| true).map(|_| ()).map_err(|e| e.to_string());
    again(&plan(&input, &tokenizer, 2)).unwrap();
    again(&plan(&input, &tokenizer, 2)).unwrap(); // nothing to do
    let open = || -> Result<(), String> {
        let manifest = Manifest::open(&out).map_err(|e| e.to_string())?;
        manifest.tokenizer(&out).map_err(|e| e.to_string())?;
        manifest.tokens(&out, "train", true).map_err(|e| e.to_string())?;
        manifest.check(&out, &mut |_, _| {}).map_err(|e| e.to_string())
    };
    open().unwrap();
    let damage = |name: &str, change: &dyn Fn(&mut Vec<u8>), said: &str| {
        let path = out.join(name);
        let (good, mut bad) = (fs::read(&path).unwrap(), fs::read(&path).unwrap());
        change(&mut bad);
        fs::write(&path, bad).unwrap();
        let error = open().unwrap_err();
        assert!(error.contains(said) && error.contains(name.trim_end_matches(".idx")), "{name}: {error}");
        fs::write(&path, good).unwrap();
    };
    damage("train_000001.bin", &|b| b.truncate(b.len() - 3), "lost its tail");
    damage("train_000001.bin", &|b| b[2000] ^= 1, "checksum");
    damage("train_000001.bin", &|b| b[0] ^= 1, "not a shard of tokens");
    let shards = Manifest::open(&out).unwrap().train.shards;
    let ended = format!("{}.idx", shards.iter().find(|s| s.counts.parts > 1).unwrap().name);
    damage(&ended, &|b| b.truncate(b.len() - 8), "it was changed");
    damage(&ended, &|b| b[5] = 200, "does not fit");
    damage("tokenizer.json", &|b| *b = Tokenizer::named("gpt2").unwrap().to_json().into(), "it was changed");
    damage("manifest.json", &|b| b.truncate(100), "damaged");
    open().unwrap();

    let other = Tokenizer::named("gpt2").unwrap();
    assert!(again(&plan(&input, &other, 2)).unwrap_err().contains("another tokenizer"));
    let error = again(&Plan { val_fraction: 0.2, ..plan(&input, &tokenizer, 2) }).unwrap_err();
    assert!(error.contains("other settings: val_fraction was 0.1, and is 0.2 now"), "{error}");
    f.file("in/e.txt", "one more");
    assert!(again(&plan(&input, &tokenizer, 2)).unwrap_err().contains("in/e.txt is new"));
    fs::remove_file(f.0.join("in/e.txt")).unwrap();
    // the same size, another text: in every file
    for name in ["a.txt", "b.jsonl", "c.txt.gz", "d.txt"] {
        let path = f.0.join("in").join(name);
        let (good, mut bad) = (fs::read(&path).unwrap(), fs::read(&path).unwrap());
        bad[80] ^= 1;
        fs::write(&path, bad).unwrap();
        let error = again(&plan(&input, &tokenizer, 2)).unwrap_err();
        assert!(error.contains(name) && error.contains("changed since it was prepared: its checksum was"), "{error}");
        fs::write(&path, &good[1..]).unwrap();
        let error = again(&plan(&input, &tokenizer, 2)).unwrap_err();
        assert!(error.contains(&format!("{name} had {} bytes", good.len())), "{error}");
        fs::write(&path, good).unwrap();
    }
    again(&plan(&input, &tokenizer, 2)).unwrap();
    // a name that leads out of the folder
    for name in ["../train_000000", "/train_000000", "train_000001", "val_000000", ""] {
        damage(
            "manifest.json",
            &|b| *b = String::from_utf8_lossy(b).replacen("train_000000", name, 1).into(),
            "where train_000000 must be",
        );
    }
    let error = prepare(&plan(&input, &tokenizer, 2), &f.0, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");

    // two at once
    let busy = f.0.join("busy");
    let mut seen = None;
    prepare(&plan(&input, &tokenizer, 2), &busy, &mut |_| {
        seen.get_or_insert_with(|| {
            prepare(&plan(&input, &tokenizer, 1), &busy, &mut |_| true).unwrap_err().to_string()
        });
        true
    })
    .unwrap();
    assert!(seen.unwrap().contains("it is being prepared already"));
    assert!(bytes(&busy) == bytes(&out));

    // a file that changed between an interruption and going on, its size the same
    let parts = f.0.join("parts");
    let stopped = prepare(&plan(&input, &tokenizer, 2), &parts, &mut |p| p.shards < 2);
    assert!(matches!(stopped, Err(CorpusError::Stopped)));
    let mut text = fs::read(f.0.join("in/a.txt")).unwrap();
    text[1000] ^= 1;
    f.file("in/a.txt", text);
    let error = prepare(&plan(&input, &tokenizer, 2), &parts, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("changed since"), "{error}");
}

#[test]
fn what_the_tokenizer_has_no_words_for_is_named_or_left_out() {
    let f = Folder::new("words");
    let tokenizer = Tokenizer::train(Learned::Char, "abc\n", Order::Sorted, &[]).unwrap();
    let input = f.file("x.jsonl", "{\"text\":\"abc\"}\n{\"text\":\"abx\"}\n\"\"\n{\"text\":\"cab\"}\n");
    let error = prepare(&plan(&input, &tokenizer, 2), &f.0.join("a"), &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("x.jsonl, line 2"), "{error}");
    let skip = Plan { skip_bad: true, val_fraction: 0.0, ..plan(&input, &tokenizer, 2) };
    let (manifest, said) = prepare(&skip, &f.0.join("b"), &mut |_| true).unwrap();
    assert_eq!((manifest.bad, manifest.empty, manifest.train.all.documents, said.len()), (1, 1, 2, 1));
    assert_eq!(open_part(f.0.join("b"), "train").unwrap().document(1), 3..6);
}

#[test]
fn large_vocabularies_have_wide_ids_and_shards_are_cut_and_ended_anew() {
    let f = Folder::new("wide");
    let tokenizer = Tokenizer::named("o200k_base").unwrap();
    let input = f.file("x.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two and 猫\"}\n{\"text\":\"three\"}\n".repeat(50));
    let plan = Plan { shard_tokens: 100, val_fraction: 0.0, ..plan(&input, &tokenizer, 1) };
    prepare(&plan, &f.0.join("o"), &mut |_| true).unwrap();
    let tokens = open_part(f.0.join("o"), "train").unwrap();
    assert_eq!((tokens.documents(), tokens.id(tokens.len() - 1)), (150, 199_999));
    let shard = Shard::open(&f.0.join("o/train_000000.bin"), None).unwrap();
    let header = fs::read(f.0.join("o/train_000000.bin")).unwrap();
    assert_eq!(header[..12], [20240801u32, 7, shard.len() as u32].map(u32::to_le_bytes).concat());
    let (a, b) = shard.clone().split(7);
    let both = Tokens::of_shards(vec![a.ended_by(Some(199_999), false), b.ended_by(Some(199_999), true)]);
    let whole = Tokens::of_shards(vec![shard.ended_by(Some(199_999), true)]);
    let (mut x, mut y) = (vec![], vec![]);
    both.copy(0..both.len(), &mut x);
    whole.copy(0..whole.len(), &mut y);
    assert_eq!((x, both.documents()), (y, whole.documents()));
    assert!((0..whole.documents()).all(|i| both.document(i) == whole.document(i)));
    assert!(both.check_ids(100_000).unwrap_err().to_string().contains("199999"));
}

/// Files as llm.c's data scripts write them, and what is none of them.
#[test]
fn llm_cs_shards_are_read_and_strangers_named() {
    let f = Folder::new("llmc");
    let file = |numbers: [u32; 3], ids: &[u8]| {
        let mut bytes = numbers.map(u32::to_le_bytes).concat();
        bytes.resize(1024, 0);
        f.file("x.bin", [&bytes, ids].concat())
    };
    let open = |path: String| Shard::open(Path::new(&path), None);
    let ids = |shard: Shard| (0..shard.len()).map(|at| shard.id(at)).collect::<Vec<_>>();
    let shard = open(file([20240520, 1, 4], &[0, 0, 1, 0, 0x50, 0xC4, 0xFF, 0xFF])).unwrap();
    assert_eq!(ids(shard), [0, 1, 50_256, 65_535]);
    assert_eq!(ids(open(file([20240801, 7, 1], &[0x3F, 0x0D, 3, 0])).unwrap()), [199_999]);
    for (numbers, bytes, said) in [
        ([20240326, 3, 4], 8, "not a shard of tokens"),
        ([20240520, 2, 4], 8, "of version 2; limpid reads 1"),
        ([20240520, 1, 4], 7, "its header makes it 1032 bytes and it is 1031: it lost its tail"),
        ([20240520, 1, 4], 9, "its header makes it 1032 bytes and it is 1033: it was changed"),
        ([20240520, 1, i32::MAX as u32], 8, "its header makes it 4294968318 bytes and it is 1032"),
        ([20240801, 7, u32::MAX], 8, "it lost its tail"),
    ] {
        let error = open(file(numbers, &[0; 9][..bytes])).unwrap_err().to_string();
        assert!(error.contains("x.bin") && error.contains(said), "{error}");
    }
    assert!(open(f.file("x.bin", "")).unwrap_err().to_string().contains("not a shard of tokens"));
}
