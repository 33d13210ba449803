//! docs/tutorial.md, run as it is written: every `sh` block in its order in one empty folder, by a shell that finds
//! `limpid`. A `text` block after it is what is seen: each of its lines must be there, in that order. What may differ
//! between machines does not count: numbers, bars, blanks, and what stands for `...`.
#![cfg(unix)]

use crate::common::{Folder, blocks, missing, text};

#[test]
fn what_is_missing_is_found() {
    let seen = "step  20: loss 1.50\n  the end of it all, 3 words\n";
    assert_eq!(missing("step 500: loss 0.1\n\nthe end ... 9 words", seen), None);
    assert_eq!(missing("...\nthe end", seen), None);
    assert_eq!(missing("the end\nstep 20: loss 1.50", seen), Some("step 20: loss 1.50"), "the order counts");
    assert_eq!(missing("the end of all", seen), Some("the end of all"));
    assert_eq!(missing("step 20: val 1.50", seen), Some("step 20: val 1.50"));
}

#[test]
#[ignore = "gate"]
fn the_tutorial_says_what_is_seen() {
    let f = Folder::new("tutorial");
    let (mut last, mut ran) = (String::new(), 0);
    for (kind, block) in blocks("tutorial.md", "# Tutorial") {
        match kind.as_str() {
            "sh" => {
                let out = f.shell(&block).env("COLUMNS", "120").output().unwrap();
                last = text(&out.stdout);
                println!("$ {block}{last}");
                assert!(out.status.success(), "{}:\n{block}\n{last}", out.status);
                ran += 1;
            }
            "text" => {
                let line = missing(&block, &last);
                assert_eq!(line, None, "the tutorial says that this is seen:\n{block}\nwhat was seen:\n{last}");
            }
            _ => {}
        }
    }
    assert!(ran >= 12, "only {ran} blocks were run");
}
