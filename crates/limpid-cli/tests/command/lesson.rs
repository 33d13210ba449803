//! `limpid lesson` as a user meets it: the list, the text at any width, JSON, wrong names, Ctrl-C; and that every claim
//! holds from the usual seed. Other seeds are for tests/study/lessons.rs of limpid-study.

use crate::common::{Folder, blocks_of, missing, text};
use std::process::Stdio;

/// Lessons that take no time.
const QUICK: [&str; 5] = ["one-step", "underflow", "scale-and-sharpness", "mask-fill", "gelu-fit"];

#[test]
fn without_a_name_the_lessons_are_listed() {
    let f = Folder::new("lesson-list");
    let (listed, json) = (f.ok("lesson"), f.json("lesson --json"));
    let names: Vec<&str> = json.as_array().unwrap().iter().map(|topic| topic["name"].as_str().unwrap()).collect();
    let first: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first, names);
    assert!(QUICK.iter().all(|quick| names.contains(quick)), "{names:?}");
}

#[test]
fn a_wrong_name_is_wrong_usage_with_the_nearest() {
    let f = Folder::new("lesson-wrong");
    f.fails(2, "lesson position", &["unknown lesson `position`", "did you mean `positions`?"]);
    f.fails(2, "lesson xyzzy", &["it is one of: one-step, "]);
    f.fails(2, "lesson heads --seed -1", &["--seed"]);
    f.fails(2, "lesson heads 3", &["unexpected argument"]);
}

#[test]
#[ignore = "gate"]
fn lines_are_as_wide_as_asked() {
    let f = Folder::new("lesson-width");
    let every = QUICK.into_iter().flat_map(|name| [40, 60, 80, 200].map(|width| (name, width)));
    // these train
    for (name, width) in every.chain([("gradients", 40), ("embedding-dimension", 60)]) {
        let out = f.command(&format!("lesson {name}")).env("COLUMNS", width.to_string()).output().unwrap();
        let shown = text(&out.stdout);
        assert!(out.status.success() && shown.contains("holds  "), "{name}: {}", text(&out.stderr));
        let wide = shown.lines().find(|line| line.chars().count() > width);
        assert_eq!(wide, None, "{name} at {width}");
    }
}

#[test]
#[ignore = "gate"]
fn json_has_what_the_text_says() {
    let f = Folder::new("lesson-json");
    for name in QUICK {
        let (lesson, shown) =
            (f.json(&format!("lesson {name} --seed 3 --json")), f.ok(&format!("lesson {name} --seed 3")));
        assert_eq!((lesson["name"].as_str(), lesson["seed"].as_u64()), (Some(name), Some(3)));
        assert!(!lesson["views"].as_array().unwrap().is_empty());
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        for claim in lesson["claims"].as_array().unwrap() {
            let verdict = if claim["holds"] == true { "holds" } else { "fails" };
            let said = format!("{verdict} {}", claim["text"].as_str().unwrap());
            assert!(shown.contains(&said), "{said}\n{shown}");
        }
    }
    f.ok("lesson one-step --seed 18446744073709551615");
}

/// Ctrl-C while it trains: at once, with nothing on stdout.
#[cfg(unix)]
#[test]
#[ignore = "gate"]
fn an_interrupted_lesson_ends() {
    use crate::common::kill;
    use std::io::{BufRead, BufReader, Read};
    let f = Folder::new("lesson-stop");
    let mut child = f.command("lesson regularisation").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("10 %: "), "{line}");
    assert!(kill("-INT", child.id()));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(130), ""), "{rest}");
    assert!(!rest.contains("90 %"), "{rest}");
}

/// docs/lessons.md shows what its commands print, whatever the numbers, and every claim holds.
mod page {
    use super::*;

    /// The commands of the page, each with what the page shows of its output.
    fn commands() -> Vec<(String, String)> {
        let blocks = blocks_of("docs/lessons.md", None);
        let command = |block: &str| block.trim().strip_prefix("limpid ").expect("a command of limpid").to_string();
        let pairs = blocks.chunks_exact(2).map(|pair| (command(&pair[0].1), pair[1].1.clone()));
        assert!(blocks.iter().map(|(kind, _)| kind.as_str()).eq(["sh", "text"].into_iter().cycle().take(blocks.len())));
        pairs.collect()
    }

    /// What a command prints, as the page shows it.
    fn shown(arguments: &str) -> String {
        let f = Folder::new("lesson-page");
        let out = f.command(arguments).env("COLUMNS", "100").output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        let (_, block) = commands().into_iter().find(|(command, _)| command == arguments).expect("it is on the page");
        let shown = text(&out.stdout);
        assert_eq!(missing(&block, &shown), None, "{arguments}\n{shown}");
        shown
    }

    fn holds(lesson: &str) {
        let shown = shown(&format!("lesson {lesson}"));
        let claims = |verdict: &str| shown.lines().filter(|line| line.starts_with(verdict)).count();
        assert!(claims("fails  ") == 0 && claims("holds  ") > 0, "{shown}");
    }

    /// A test for each lesson, of its name.
    macro_rules! tests {
        ($($lesson:ident)*) => {
            const TESTED: &[&str] = &[$(stringify!($lesson)),*];
            $(
                #[test]
                #[ignore = "gate"]
                fn $lesson() {
                    holds(&stringify!($lesson).replace('_', "-"));
                }
            )*
        };
    }

    tests! {
        one_step underflow scale_and_sharpness mask_fill gelu_fit embedding_dimension positions heads feed_forward_width
        depth_of_a_model gradients depth stability regularisation induction induction_forms subject_verb steering
    }

    #[test]
    fn it_has_the_list_and_every_lesson() {
        shown("lesson");
        let json = Folder::new("lesson-page").json("lesson --json");
        let names = json.as_array().unwrap().iter().map(|topic| topic["name"].as_str().unwrap());
        assert!(names.clone().map(|name| name.replace('-', "_")).eq(TESTED.iter().copied()), "each has a test here");
        let expected: Vec<_> =
            ["lesson".into()].into_iter().chain(names.map(|name| format!("lesson {name}"))).collect();
        assert_eq!(commands().into_iter().map(|(command, _)| command).collect::<Vec<_>>(), expected);
    }
}
