//! Texts that are small for their model: how long `train` trains on them where nobody says, and what comes of it.

use crate::common::{Folder, root, text};
use serde_json::json;
use std::fs;

/// Questions that all differ, with an answer each.
fn talks(count: usize) -> Vec<(String, String)> {
    let names = ["Tom", "Anna", "Ben", "Clara", "Leo", "Mia", "Sam", "Ruth", "Max", "Ida", "Finn"];
    let things = ["ball", "kite", "hat", "book", "key", "lamp"];
    let places = ["in the tree", "under the bed", "on the roof", "in the box", "behind the door"];
    let talk = |n: usize| {
        let (name, thing, place) = (names[n % 11], things[n % 6], places[(3 * n + n / 5) % 5]);
        match n % 3 {
            0 => (format!("Where is {name}'s {thing}?"), format!("It is {place}.")),
            1 => (format!("Who saw {name}'s {thing} {place}?"), format!("{} saw it.", names[(5 * n + 2) % 11])),
            _ => (format!("Did {name} find the {thing} {place}?"), format!("Yes, {name} found it.")),
        }
    };
    (0..count).map(talk).collect()
}

fn lines(talks: &[(String, String)]) -> String {
    talks.iter().map(|(asked, answer)| json!({ "prompt": asked, "completion": answer }).to_string() + "\n").collect()
}

/// README's line on 50 conversations: a model that answers each of them, in seconds, without an alarm.
#[test]
#[ignore = "gate"]
fn fifty_conversations_make_a_model_that_answers_them() {
    let f = Folder::new("fifty");
    let talks = talks(50);
    f.file("chat.jsonl", lines(&talks));
    let readme = fs::read_to_string(root("README.md")).unwrap();
    let line = readme.lines().find(|line| line.starts_with("limpid train --data chat.jsonl")).unwrap();
    let line = line.split('#').next().unwrap().trim_end().strip_prefix("limpid ").unwrap();
    let planned = f.ok(&line.replace("train", "plan").replace(" --out chat", ""));
    let (_, said) = f.both(line);
    for told in ["too few to judge by", "the last weights are kept", "300 steps, which pass over it", "times"] {
        assert!(said.contains(told) && planned.contains(told), "{told}: {said}\n{planned}");
    }
    assert!(!said.contains("spike") && !said.contains("validation loss"), "{said}");
    let asked: String = talks.iter().map(|(asked, _)| format!("{asked}\n/reset\n")).collect();
    let asked = fs::File::open(f.file("asked.txt", asked)).unwrap();
    let answers = text(&f.command("chat chat --temperature 0").stdin(asked).output().unwrap().stdout);
    let right = talks.iter().zip(answers.lines()).filter(|((_, answer), line)| answer == line).count();
    assert!(right >= 48, "{right} of 50: {answers}");
}

/// The markers of any template are single tokens of a tokenizer that is learned for it, and so are those that are asked
/// for beside them.
#[test]
#[ignore = "gate"]
fn markers_of_a_template_are_single_tokens() {
    let f = Folder::new("markers");
    f.file("chat.jsonl", lines(&talks(12)));
    let chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor \
                  %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let inst = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content \
                }}</s>{% endif %}{% endfor %}";
    f.file("chatml.jinja", chatml);
    f.file("inst.jinja", inst);
    let small = "--steps 1 --n-layer 1 --d-model 16 --sample 0";
    for (n, (how, written, markers)) in [
        ("", "<|user|>\nWho<|end|>", vec!["<|user|>", "<|end|>"]),
        ("--chat-template chatml.jinja", "<|im_start|>user\nWho<|im_end|>", vec!["<|im_start|>", "<|im_end|>"]),
        ("--chat-template inst.jinja --tokenizer char", "[INST] Who [/INST]</s>", vec!["[INST]", "[/INST]", "</s>"]),
        (
            "--chat-template chatml.jinja --tokenizer word --add-special-tokens '<|im_end|>,<|x|>'",
            "<|im_start|>user <|x|> Who<|im_end|>",
            vec!["<|im_start|>", "<|x|>", "<|im_end|>"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        f.ok(&format!("train --data chat.jsonl {how} {small} --out m{n}"));
        f.file("written.txt", written);
        let pieces = f.ok(&format!("tokenize --model m{n} @written.txt"));
        for marker in markers {
            assert!(pieces.lines().any(|line| line.ends_with(&format!("{marker:?}"))), "{how} {marker}: {pieces}");
        }
    }
}
