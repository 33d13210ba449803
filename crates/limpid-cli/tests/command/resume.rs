//! `--resume auto`: which run it goes on with, and what is needed to begin one where there is none.

use crate::common::{Folder, text};
use std::fs;

const TINY: &str =
    "--tokenizer char --d-model 16 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4 --steps 3 --sample 0";
const BEGINS: &str = "holds no run to resume: a new one begins";
/// What every line of the tables ends with, so that none of them trains: it is refused after the folder was looked at.
const LAST: &str = "--steps none";

/// A folder with a text, a file of settings, and no run.
fn empty(name: &str) -> Folder {
    let f = Folder::new(name);
    f.file("text.txt", "Twinkle, twinkle, little star, how I wonder what you are.\n".repeat(60));
    f.file("settings.toml", "d_model = 32\n");
    f
}

/// What `--resume auto` says with more words and variables.
fn said(f: &Folder, words: &str, variables: &[(&str, &str)]) -> String {
    let out = f.command(&format!("train {words} {LAST}")).envs(variables.iter().copied()).output().unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{words} {variables:?}: {said}");
    said
}

/// Without a word on what a new run is, none begins: it would be of another text and the newest from then on.
#[test]
fn no_run_begins_where_none_is_to_be_resumed() {
    let f = empty("resume-none");
    let folders: [(&str, &dyn Fn()); 5] = [
        ("no runs/", &|| ()),
        ("an empty runs/", &|| fs::create_dir(f.0.join("runs")).unwrap()),
        ("a folder without a run", &|| fs::create_dir(f.0.join("runs/notes")).unwrap()),
        ("a file", &|| drop(f.file("runs/notes/limpid.md", "none"))),
        ("settings without a run", &|| drop(f.file("runs/notes/limpid.toml", "d_model = 32\n"))),
    ];
    for (what, make) in folders {
        make();
        for (words, variables) in [
            ("--resume auto", &[][..]),
            ("--resume=auto --sample 0 --threads 1 --eval-every 5 --save-every 2 --keep 1", &[]),
            ("", &[("LIMPID_RESUME", "auto")]),
            ("--resume auto", &[("LIMPID_EVAL_EVERY", "5"), ("LIMPID_THREADS", "1")]),
        ] {
            let said = said(&f, words, variables);
            let refused = said.starts_with("error: --resume auto: the folder runs/ here holds no run to resume: name");
            assert!(
                refused && said.contains("--resume DIR") && said.contains("--data FILE"),
                "{what}: {words}: {said}"
            );
        }
        for (words, variables) in [
            ("--resume auto --data text.txt", &[][..]),
            ("--resume auto text.txt", &[]),
            ("--resume auto --d-model 32", &[]),
            ("--resume auto --preset nano", &[]),
            ("--resume auto --learning-rate 1e-3", &[]),
            ("--resume auto --tokenizer char", &[]),
            ("--resume auto --from model", &[]),
            ("--resume auto --config settings.toml", &[]),
            ("--resume auto", &[("LIMPID_D_MODEL", "32")]),
            ("--resume auto", &[("LIMPID_CONFIG", "settings.toml")]),
            ("--d-model 32", &[("LIMPID_RESUME", "auto")]),
        ] {
            let said = said(&f, words, variables);
            assert!(said.starts_with(&format!("note: the folder runs/ here {BEGINS}\n")), "{what}: {words}: {said}");
            assert!(said.contains("'--steps <N>'"), "{what}: {words}: {said}");
        }
        for out in ["model", "runs/model"] {
            let refused = said(&f, &format!("--resume auto --out {out}"), &[]);
            assert!(refused.starts_with(&format!("error: --resume auto: {out} holds no run")), "{what}: {refused}");
            let begins = said(&f, &format!("--resume auto --out {out} --d-model 32"), &[]);
            assert!(begins.starts_with(&format!("note: {out} {BEGINS}\n")), "{what}: {begins}");
        }
    }
    assert_eq!(f.names("runs"), ["notes"], "nothing was begun");
    for (words, refused) in [("--resume runs", "no limpid.toml"), ("--resume gone", "there is no such folder")] {
        for more in ["", "--data text.txt", "--config settings.toml"] {
            f.fails(1, &format!("train {words} {more} {LAST}"), &["cannot be resumed", refused]);
        }
    }
}

/// With settings a run begins; the same words then go on with it, and without any they end where it ended.
#[test]
fn a_run_that_began_so_is_the_one_that_goes_on() {
    let f = empty("resume-begun");
    let begin = format!("train --resume auto --data text.txt {TINY}");
    assert!(f.both(&begin).1.starts_with(&format!("note: the folder runs/ here {BEGINS}\n")));
    let run = f.names("runs").remove(0);
    let weights = f.bytes(&format!("runs/{run}/model.safetensors"));
    for again in [&begin, "train --resume auto", &format!("train --resume auto --out runs/{run}")] {
        let said = f.both(again).1;
        assert!(said.contains(&format!("resuming runs/{run} after step 3\n")) && !said.contains(BEGINS), "{said}");
        assert_eq!(f.bytes(&format!("runs/{run}/model.safetensors")), weights, "{again}");
    }
    // another folder has no run, whatever runs/ holds
    let refused = said(&f, "--resume auto --out model", &[]);
    assert!(refused.starts_with("error: --resume auto: model holds no run to resume"), "{refused}");
    assert_eq!(f.names("runs"), [run]);
}

/// What was chosen when a run went on before stands in its state: one that is broken is not passed over.
#[test]
fn a_state_that_cannot_be_read_is_named() {
    let f = empty("resume-broken");
    f.both(&format!("train --data text.txt {TINY} --save-every 1 --keep 2 --out m"));
    for (place, more) in [("m/state/last.safetensors", ""), ("m/state/step-00000002.safetensors", "--resume-step 2")] {
        let whole = f.bytes(place);
        let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let (facts, tensors) = whole[8..].split_at(header);
        let facts = text(facts);
        let with = |was: &str, is: &str| {
            assert!(facts.contains(was), "{facts}");
            let facts = facts.replacen(was, is, 1);
            [&(facts.len() as u64).to_le_bytes()[..], facts.as_bytes(), tensors].concat()
        };
        for (broken, says) in [
            (whole[..header / 2].to_vec(), "it was cut short"),
            (b"none of this is a tensor".to_vec(), "it is not a safetensors file"),
            (with(r#""limpid":"#, r#""other":"#), "it is not a training state"),
            (with(r#"\"steps\":3"#, r#"\"steps\":true"#), "its state cannot be read"),
            (with(r#"\"format\":"#, r#"\"format\":9"#), "resume the run with the later limpid"),
        ] {
            f.file(place, broken);
            for verb in ["plan", "check", "train"] {
                f.fails(1, &format!("{verb} --resume m {more}"), &[place, says]);
            }
        }
        f.file(place, whole);
    }
    f.both("plan --resume m");
}
