//! docs/settings.md, made of the library's tables of settings and of the verbs' flags. Whoever changes a setting calls
//! `cargo xtask settings`, and this test fails until then.

use crate::options::Flags;
use clap::{Arg, Command, CommandFactory};
use limpid::config::{Config, Range, ValueKind};
use limpid::draw::view::wrap;
use limpid::settings::{plain, variable};
use limpid::train::{Recipe, RunOptions};

const HEAD: &str = "\
# Settings

`cargo xtask settings` writes this page; a test fails if it is stale.

A setting is a flag, a key of a TOML or JSON file (`--config FILE`), or an environment variable. `learning_rate`, for
example, is typed `--learning-rate 0.001`, written in a file as `learning_rate = 0.001`, and in the environment as
`LIMPID_LEARNING_RATE=0.001`. Its other names work in all three places: `--lr`, `lr`, `LIMPID_LR`. The environment
overrides the file, and typed flags override both ([training](training.md) has the details). An unknown flag or key is
an error; an unknown `LIMPID_...` variable causes a warning.

The defaults are those of the preset `nano`; other [presets](presets.md) have others.
";

#[test]
fn the_page_of_settings_is_not_stale() {
    let (path, page) = (concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md"), page(&crate::Cli::command()));
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(path, page).unwrap();
    } else {
        assert!(std::fs::read_to_string(path).unwrap() == page, "docs/settings.md is stale: run cargo xtask settings");
    }
}

/// The page.
fn page(cli: &Command) -> String {
    let verbs = verbs(cli, "");
    let (recipe, options) = (Recipe::preset("nano").unwrap(), RunOptions::preset("nano").unwrap());
    let mut text = HEAD.to_string();
    text += &section(
        &verbs,
        &Config::preset("nano").unwrap(),
        "The transformer. It is fixed for the whole run; when fine-tuning (`--from`), only the dropout may change.",
    );
    text += &section(
        &verbs,
        &recipe,
        "What decides the numbers of a training. It is fixed for the whole run; when a run is resumed only `steps` \
         may change, and only if the learning rates of the steps already done stay the same.",
    );
    text += &section(&verbs, &options, "How a run is carried out. All of these may change when a run is resumed.");
    text += "\n## All other flags\n\n| flag | environment | verbs | what it is |\n|---|---|---|---|\n";
    let mut rows: Vec<(String, Vec<&str>)> = vec![];
    fn names<S: Flags>() -> Vec<&'static str> {
        S::default().choices().into_iter().map(|(setting, _)| setting.name).collect()
    }
    let settings = [names::<Config>(), names::<Recipe>(), names::<RunOptions>()].concat();
    let is_setting = |arg: &Arg| settings.contains(&arg.get_id().as_str());
    for (name, verb) in &verbs {
        for arg in verb.get_arguments().filter(|arg| !arg.is_hide_set() && !is_setting(arg)) {
            let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else { continue };
            let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            let shown = arg.get_action().takes_values() && !default.is_empty() && !arg.is_hide_default_value_set();
            let default = if shown { format!(" [default: {}]", default.join(",")) } else { String::new() };
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let names = [&[long], &arg.get_all_aliases().unwrap_or_default()[..]].concat().join("`, `--");
            let row = format!("`--{names}` | `{}` | VERBS | {}{default}", variable(long), cell(&help));
            match rows.iter_mut().find(|(known, _)| *known == row) {
                Some((_, verbs)) => verbs.push(name),
                None => rows.push((row, vec![name])),
            }
        }
    }
    rows.sort();
    for (row, verbs) in rows {
        text += &format!("| {} |\n", row.replacen("VERBS", &verbs.join(", "), 1));
    }
    text
}

/// Every verb by its whole name.
fn verbs<'a>(command: &'a Command, before: &str) -> Vec<(String, &'a Command)> {
    let below = command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
    let named = below.map(|verb| (format!("{before}{}", verb.get_name()), verb));
    let leaves = |(name, verb): (String, &'a Command)| {
        if verb.has_subcommands() { verbs(verb, &format!("{name} ")) } else { vec![(name, verb)] }
    };
    named.flat_map(leaves).collect()
}

/// The settings of one kind as a table.
fn section<S: Flags>(verbs: &[(String, &Command)], of: &S, says: &str) -> String {
    let all = of.choices();
    let has = |verb: &Command| verb.get_arguments().any(|arg| arg.get_id() == all[0].0.name);
    let of_verbs: Vec<String> =
        verbs.iter().filter(|(_, verb)| has(verb)).map(|(name, _)| format!("`{name}`")).collect();
    let says = wrap(&format!("{says} Verbs: {}.", of_verbs.join(", ")), 0, 120);
    let mut text = format!("\n## {}\n\n{says}\n", S::HEADING.unwrap_or_default());
    text += "| setting | what it is | values | default | other names |\n|---|---|---|---|---|\n";
    for (setting, value) in all {
        let range = setting.range.said();
        let values = if matches!(setting.range, Range::Whole(1, ..)) {
            format!("at least 1, {range}")
        } else if value.kind() == ValueKind::Switch {
            "true, false".into()
        } else if range.is_empty() {
            value.choices().join(", ")
        } else {
            range.to_string()
        };
        let group = S::groups().iter().find(|group| group.setting.name == setting.name);
        let default = match (group, setting.default_text) {
            (Some(group), _) => format!("sets {}", group.sets.join(", ")),
            (None, Some(text)) => text.into(),
            (None, None) => plain(&value.json()),
        };
        let name = setting.name;
        let help = cell(setting.line());
        let aliases = setting.aliases.join(", ").replace('-', "_");
        text += &format!("| `{name}` | {help} | {values} | {default} | {aliases} |\n");
    }
    text
}

/// A text that fits into a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
