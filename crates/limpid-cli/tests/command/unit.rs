//! `limpid inspect --unit`: what is printed, as text and as JSON, and what is refused.

use crate::common::Folder;

#[test]
#[ignore = "gate"]
fn a_unit_has_words() {
    let f = Folder::new("unit");
    f.ok("train --n-layer 2 --n-head 2 --steps 8 --sample 0 --out m");
    f.file("text.txt", "the boy and the girl and the boy and the girl went to the river.\n".repeat(3));
    let shown = f.ok("inspect m --unit L1U3 --width 100");
    for says in ["L1U3, unit 3 of layer 1's MLP, is positive at", "4,096 tokens of stories that no training has seen"] {
        assert!(shown.replace('\n', " ").contains(says), "no `{says}` in\n{shown}");
    }
    assert_eq!(shown.lines().filter(|line| line.contains('«')).count(), 8, "{shown}");
    assert!(shown.contains("At the first of these it makes likelier:") && shown.contains("less likely:"), "{shown}");
    assert!(f.0.join("m/units.json").exists());
    let own = f.json("inspect m --unit L1U3 --data text.txt --json");
    assert_eq!((&own["unit"], &own["text"]), (&"L1U3".into(), &"text.txt".into()));
    for context in own["contexts"].as_array().unwrap() {
        let at = context["at"].as_u64().unwrap() as usize;
        assert!(at < context["tokens"].as_array().unwrap().len() && context["value"].is_number(), "{context}");
    }
    for (flags, code, says) in [
        ("--unit 3", 2, "a unit is named like L0U63"),
        ("--unit L2U3", 2, "the model has 2 layers of"),
        ("--unit L0U9999", 2, "counted from 0"),
        ("--unit L0U3 --prompt a", 2, "cannot be used with"),
        ("--unit L0U3 --data none.txt", 1, "none.txt"),
    ] {
        f.fails(code, &format!("inspect m {flags}"), &[says]);
    }
}
