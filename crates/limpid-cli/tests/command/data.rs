//! Text in, as a user meets it: the documents' vocabularies by commands, and files that would take all memory.

use crate::common::{self, Folder, LIMPID, text};
use std::process::{Command, Output};

/// S0's three sentences, its vocabulary of three words, and S3's corpus: exactly their words, without a file by hand.
#[test]
fn toy_vocabularies_are_made_by_commands() {
    let f = Folder::new("toys");
    for (corpus, words) in [
        ("cat eat mouse\ndog chase cat\nmouse eat cheese\n", &["cat", "eat", "mouse", "dog", "chase", "cheese"][..]),
        ("cat dog mouse\n", &["cat", "dog", "mouse"]),
        ("dog jumps around cat\nman is helping cat\n", &["dog", "jumps", "around", "cat", "man", "is", "helping"]),
    ] {
        f.file("corpus.txt", corpus);
        f.ok("tokenize train corpus.txt --kind word --unk false --newlines false --out words.json --force");
        let all = f.json("tokenize --tokenizer words.json --vocab --json @corpus.txt");
        assert_eq!(all["vocab"]["tokens"], serde_json::json!(words));
        let place = |word: &str| words.iter().position(|w| *w == word).unwrap();
        let ids: Vec<usize> = corpus.split_whitespace().map(place).collect();
        assert_eq!(all["ids"], serde_json::json!(ids), "{corpus:?}");
        f.fails(1, "tokenize --tokenizer words.json 'cat\nbread'", &["\"bread\" at byte 4 (line 2, column 1)"]);
    }
    f.ok("tokenize train corpus.txt --kind word --out usual.json");
    let usual = f.json("tokenize --tokenizer usual.json --vocab --json 'cat bread'");
    assert_eq!(usual["vocab"]["tokens"][0], "<UNK>");
    assert_eq!(usual["vocab"]["tokens"].as_array().unwrap().len(), 9, "and the newline");
    f.fails(2, "tokenize train corpus.txt --kind char --unk false --out x.json", &["--kind word"]);
    f.fails(2, "tokenize train corpus.txt --vocab-size 300 --newlines false --out x.json", &["--kind word"]);
}

/// The documents' examples by name: their words and nothing else, for a model of the next word and one of masked words,
/// in order.
#[test]
fn the_documents_examples_are_trained_on_by_name() {
    let f = Folder::new("examples-by-name");
    assert_eq!(f.json("tokenize --tokenizer s3 --json 'man is helping cat'")["ids"], serde_json::json!([4, 5, 6, 0]));
    f.fails(1, "tokenize --tokenizer s0 'cat eat lion'", &["\"lion\" at byte 8"]);
    f.fails(1, "train --data builtin:s2", &["`s2`", "builtin:stories", "builtin:s0-three"]);

    // S3's eight words are two windows of four words; the sample goes on from the first two
    let train = "train --preset decoder-readme --data builtin:s3 --windows sequential --val-fraction 0 --threads 1";
    let (sample, said) = f.both(&format!(
        "{train} --steps 400 --batch-size 2 --learning-rate 0.01 --preflight false --sample 3 --out s3"
    ));
    assert!(sample.starts_with("dog jumps ") && sample.split_whitespace().count() == 5, "{sample}");
    assert!(said.contains("8 tokens to train on, 0 to validate; tokenizer s3"), "{said}");
    for text in ["dog jumps around cat", "man is helping cat"] {
        let first = text.split(' ').next().unwrap();
        assert_eq!(
            f.ok(&format!("generate --model s3 --prompt {first} --temperature 0 --max-tokens 3")),
            format!("{text}\n")
        );
    }
    f.fails(1, "generate --model s3", &["--prompt", "newline"]);
    assert_eq!(f.json("eval --model s3 --data builtin:s3 --json")["tokens"], 7);

    // the folder s3 is not what the tokenizer's name stands for
    f.ok(&format!("{train} --steps 2 --sample 0 --json --out again"));
    assert!(text(&f.bytes("again/limpid.toml")).contains("\ntokenizer = \"s3\"\n"));
    f.ok("train --config again/limpid.toml --steps 3 --sample 0 --json --out third");
    f.ok("train --resume again --json");

    let bert = "--d-model 8 --n-head 2 --n-layer 1 --context-length 3 --val-fraction 0 --steps 2 --json";
    f.ok(&format!("train --preset formulated-bert --data builtin:s0 --windows sequential {bert} --out bert"));
    let words = ["cat", "eat", "mouse", "dog", "chase", "cheese", "[MASK]"];
    assert_eq!(f.json("tokenize --model bert --vocab --json")["vocab"]["tokens"], serde_json::json!(words));
}

/// `train` and `tokenize train` learn the same words and characters of the same text.
#[test]
fn a_tokenizer_is_the_same_whoever_learns_it() {
    let f = Folder::new("same-words");
    f.file("a.txt", "Up above the world, so high; like a diamond in the sky.\nHow I wonder what you are!\n".repeat(30));
    for (kind, flags) in [("word", ""), ("char", "")] {
        f.ok(&format!("tokenize train a.txt --kind {kind} {flags} --out own.json --force"));
        f.ok(&format!(
            "train --data a.txt --tokenizer {kind} --out {kind} --steps 1 --d-model 8 --n-head 1 --n-layer 1 \
             --context-length 8 --batch-size 2 --sample 0"
        ));
        assert_eq!(text(&f.bytes("own.json")), text(&f.bytes(&format!("{kind}/tokenizer.json"))), "{kind}");
    }
}

/// limpid with this much address space, in KiB.
#[cfg(unix)]
fn within(f: &Folder, kib: u64, arguments: &str) -> Output {
    let script = format!("ulimit -v {kib} && exec {LIMPID} {arguments}");
    Command::new("sh").args(["-c", &script]).current_dir(&f.0).output().unwrap()
}

#[cfg(unix)]
fn sh(f: &Folder, script: &str) {
    assert!(Command::new("sh").args(["-c", script]).current_dir(&f.0).status().unwrap().success(), "{script}");
}

/// A small file that unpacks to much, and a line that is too long, are read in little memory.
#[cfg(unix)]
#[test]
#[ignore = "gate"]
fn what_unpacks_to_much_needs_little_memory() {
    let f = Folder::new("bombs");
    sh(&f, "yes 'one more line of the same text' | head -c 1000000000 | gzip -1 > bomb.txt.gz");
    let out = within(&f, 300_000, "data info bomb.txt.gz --json");
    let (found, said) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success() && found.contains("\"bytes\":1000000000"), "{found} {said}");

    let line = "head -c 300000000 /dev/zero | tr '\\0' x";
    sh(&f, &format!("{{ echo '\"a\"'; printf '\"'; {line}; printf '\"\\n\"b\"\\n'; }} | gzip -1 > long.jsonl.gz"));
    sh(&f, &format!("{{ printf '[\"a\",\"'; {line}; printf '\",\"b\"]'; }} | gzip -1 > long.json.gz"));
    for (file, place) in [("long.jsonl.gz", "line 2"), ("long.json.gz", "item 2")] {
        let out = within(&f, 900_000, &format!("data info {file}"));
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("{file}, {place} is longer than the 134217728 bytes")), "{said}");
        let out = within(&f, 900_000, &format!("data info {file} --skip-bad --json"));
        let found = text(&out.stdout);
        assert!(found.contains("\"documents\":2") && found.contains("\"bad\":1"), "{found} {}", text(&out.stderr));
    }
}

/// A damaged footer that makes the reader of parquet panic is an error of the file, and nothing else is printed.
#[test]
#[ignore = "gate"]
fn a_damaged_footer_is_an_error_of_its_file() {
    let f = Folder::new("footer");
    let good = std::fs::read(common::root("crates/limpid-data/fixtures/parquet/snappy.parquet")).unwrap();
    let footer = good.len() - 8 - u32::from_le_bytes(good[good.len() - 8..][..4].try_into().unwrap()) as usize;
    // the lowest bit of a number there is its sign
    let contained = (footer..good.len() - 8).find(|place| {
        let mut bytes = good.clone();
        bytes[*place] ^= 1;
        f.file("x.parquet", bytes);
        let out = f.run("data info x.parquet");
        let said = text(&out.stderr);
        assert!(matches!(out.status.code(), Some(0 | 1)) && !said.contains("panicked"), "byte {place}: {said}");
        said.contains("x.parquet: it is damaged: the reader of parquet failed")
    });
    assert!(contained.is_some(), "no byte makes it panic: is the test still needed?");
}

#[test]
fn nothing_is_fetched() {
    let f = Folder::new("fetch");
    f.fails(2, "data fetch tinyshakespeare", &["unrecognized subcommand"]);
    assert!(!f.ok("data --help").contains("etch"));
}
