//! Commands that errors and results print do what they are printed for: each is pasted into a shell, in the folder where it was printed.
//! printed_tests.rs of the sources reads all of them, walks.rs runs those of walks.
#![cfg(unix)]

use crate::common::{Folder, LIMPID, text};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SMALL: &str =
    "--tokenizer char --d-model 32 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4 --steps 2 --sample 0";

/// What a shell that finds `limpid` makes of a line; trainings are short.
fn shell(f: &Folder, line: &str) -> Output {
    let path = format!("{}:{}", Path::new(LIMPID).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(&f.0).env("PATH", path).env_remove("CARGO_MANIFEST_DIR").stdin(Stdio::null());
    let short = [("LIMPID_STEPS", "2"), ("LIMPID_VAL_FRACTION", "0.002"), ("LIMPID_SAMPLE", "0")];
    shell.envs(if line.starts_with("limpid train") { &short[..] } else { &[] }.iter().copied()).output().unwrap()
}

/// The first command in what was printed.
fn printed(said: &str) -> &str {
    let before = ["`limpid ", "(limpid ", "with limpid ", "try: limpid ", "\nlimpid "];
    let start = before.iter().filter_map(|before| Some(said.find(before)? + before.len() - "limpid ".len())).min();
    let command = &said[start.unwrap_or_else(|| panic!("no command is printed: {said}"))..];
    let end = if said[..said.len() - command.len()].ends_with('\n') { &['\n'][..] } else { &['`', ')', '\n', ';'] };
    command.split(end).next().unwrap()
}

/// Runs a line that ends with `code`, then the command that it prints, which must be `follows`.
#[track_caller]
fn leads_on(f: &Folder, line: &str, code: i32, follows: &str) {
    let out = shell(f, line);
    let said = text(&out.stdout) + &text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{line}: {said}");
    let command = printed(&said);
    assert_eq!(command, follows, "{line}: {said}");
    // a model may be named, and the newest run is there
    let command = command.replace("[MODEL] ", "");
    let out = shell(f, &command);
    assert!(out.status.success(), "{line} prints `{command}`: {}", text(&out.stderr));
}

/// A folder with texts and a model of theirs, which is the newest run, and an adapter of it.
fn folder(name: &str) -> Folder {
    let f = Folder::new(name);
    let rhyme = "Twinkle, twinkle, little star, how I wonder - what you are.\nA TEXT: happy or sad, XY.\n".repeat(40);
    ["text.txt", "X", "Y"].iter().for_each(|name| drop(f.file(name, &rhyme)));
    f.file("line.txt", "A TEXT");
    f.ok(&format!("train --data text.txt --out runs/m {SMALL}"));
    f.ok("train --from runs/m --data text.txt --lora 2 --steps 2 --sample 0 --out lora");
    f
}

#[test]
#[ignore = "gate"]
fn what_an_error_says_to_do_can_be_done() {
    let f = folder("printed");
    for (line, code, follows) in [
        ("limpid embed runs/m", 2, "limpid embed runs/m TEXT"),
        ("limpid embed TEXT runs/m", 2, "limpid embed runs/m TEXT"),
        ("limpid tokenize", 2, "limpid tokenize [MODEL] TEXT"),
        ("limpid tokenize 'a TEXT' runs/m", 2, "limpid tokenize runs/m 'a TEXT'"),
        ("limpid chat runs/m", 1, "limpid generate --model runs/m --prompt TEXT"),
        ("limpid inspect line.txt", 1, "limpid inspect --prompt @line.txt"),
        ("limpid eval text.txt", 1, "limpid eval --data text.txt"),
        ("limpid generate --model nano --prompt A", 1, "limpid train --preset nano"),
        ("limpid generate runs/m --prompt A --precision int8", 2, "limpid convert runs/m MODEL.gguf --dtype q8_0"),
        ("limpid train --from lora --lora 2 --data text.txt --out more", 1, "limpid convert lora MERGED --to limpid"),
        ("limpid train --data X --data Y", 2, "limpid data prepare X Y --out DIR"),
        ("limpid data prepare X --tokenizer runs/m/tokenizer.json --out x", 0, "limpid train --data x"),
        ("limpid data info builtin:stories", 1, "limpid data stories"),
        ("limpid convert runs/m m.bin", 1, "limpid train --positions learned --d-ff 128"),
    ] {
        leads_on(&f, line, code, follows);
    }
    let f = Folder::new("printed-empty");
    for (line, code, follows) in [
        ("limpid timelapse", 2, "limpid train --probe"),
        ("rm -r runs; limpid report", 2, "limpid train"),
        ("rm -r runs; limpid generate", 2, "limpid train"),
    ] {
        leads_on(&f, line, code, follows);
    }
}

/// Texts and files that look like flags are none in a command that is printed.
#[test]
#[ignore = "gate"]
fn what_begins_like_a_flag_is_pasted_as_it_is() {
    let f = folder("printed-flags");
    for (line, follows) in [
        ("limpid direction --positive='- a happy' --negative='- a sad' --out=-d.json", " --prompt='- a sad'"),
        ("limpid sweep --clean='- A star' --corrupt='- a star' --answer=-", " --prompt='- a star'"),
    ] {
        let out = shell(&f, line);
        let said = text(&out.stdout);
        assert!(out.status.success(), "{line}: {}", text(&out.stderr));
        let command = printed(&said);
        assert!(command.contains(follows), "{line}: {command}");
        let out = shell(&f, command);
        assert!(out.status.success(), "{line} prints {command}: {}", text(&out.stderr));
    }
}
