//! Commands that errors and results print do what they are printed for: each is pasted into a shell, in the folder
//! where it was printed. printed_tests.rs of the sources reads all of them, walks.rs runs those of walks.
#![cfg(unix)]

use crate::common::{Folder, LIMPID, printed, text};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SMALL: &str =
    "--tokenizer char --d-model 32 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4 --steps 2 --sample 0";

/// Commands of the sources with a line that makes limpid print them, its exit code, and the command then. Further lines
/// of a command name no file.
const FOLLOWED: &[(&str, &str, i32, &str)] = &[
    ("limpid-cli/src/lib.rs: limpid train", "limpid --help", 0, "limpid train"),
    (
        "limpid-cli/src/lib.rs: limpid data prepare X Y --out DIR",
        "limpid train --data X --data Y",
        2,
        "limpid data prepare X Y --out DIR",
    ),
    (
        "limpid-cli/src/live.rs: limpid serve RUN --follow --host {host} --api-key-file FILE",
        "limpid train --serve 0.0.0.0:0",
        2,
        "limpid serve RUN --follow --host 0.0.0.0 --api-key-file FILE",
    ),
    (
        "limpid-cli/src/models.rs: limpid convert {} MODEL.gguf --dtype q8_0",
        "limpid generate runs/m --prompt A --precision int8",
        2,
        "limpid convert runs/m MODEL.gguf --dtype q8_0",
    ),
    (
        "limpid-cli/src/models.rs: limpid train --preset {name}",
        "limpid generate --model nano --prompt A",
        1,
        "limpid train --preset nano",
    ),
    ("limpid-cli/src/models.rs: limpid train", "limpid generate nowhere", 1, "limpid train"),
    (
        "limpid-cli/src/models.rs: limpid {verb} {flag} {from}{}",
        "limpid inspect line.txt",
        1,
        "limpid inspect --prompt @line.txt",
    ),
    ("", "limpid eval text.txt", 1, "limpid eval --data text.txt"),
    (
        "limpid-cli/src/models.rs: limpid {verb} {second} {first}",
        "limpid embed TEXT runs/m",
        2,
        "limpid embed runs/m TEXT",
    ),
    ("", "limpid tokenize 'a TEXT' runs/m", 2, "limpid tokenize runs/m 'a TEXT'"),
    (
        "limpid-cli/src/models.rs: limpid train",
        "mv runs was; limpid generate; code=$?; mv was runs; exit $code",
        2,
        "limpid train",
    ),
    (
        "limpid-cli/src/models.rs: limpid generate --model {quoted} --prompt TEXT",
        "limpid chat runs/m",
        1,
        "limpid generate --model runs/m --prompt TEXT",
    ),
    (
        "limpid-cli/src/options.rs: limpid train {}",
        "limpid convert runs/m m.bin",
        1,
        "limpid train --positions learned --d-ff 128",
    ),
    (
        "limpid-cli/src/ranks.rs: limpid {verb}",
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 limpid report",
        2,
        "limpid report",
    ),
    (
        "limpid-cli/src/ranks.rs: limpid train",
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 limpid report",
        2,
        "limpid train",
    ),
    (
        "limpid-cli/src/training.rs: limpid convert {from} MERGED --to limpid",
        "limpid train --from lora --lora 2 --data text.txt --out more",
        1,
        "limpid convert lora MERGED --to limpid",
    ),
    ("limpid-cli/src/verbs/chat.rs: limpid generate", "limpid chat bert", 1, "limpid generate"),
    (
        "limpid-cli/src/verbs/convert.rs: limpid train --{flag}",
        "limpid train --data text.txt --tokenizer word --out words; limpid convert words words.gguf",
        1,
        "limpid train --tokenizer bpe",
    ),
    (
        "limpid-cli/src/verbs/data.rs: limpid train --data {word}",
        "limpid data prepare X --tokenizer runs/m/tokenizer.json --out x",
        0,
        "limpid train --data x",
    ),
    ("limpid-cli/src/verbs/embed.rs: limpid embed {given} TEXT", "limpid embed runs/m", 2, "limpid embed runs/m TEXT"),
    (
        "limpid-cli/src/verbs/inspect.rs: limpid inspect --help-model",
        "limpid inspect --help",
        0,
        "limpid inspect --help-model",
    ),
    ("limpid-cli/src/verbs/report.rs: limpid report runs/*", "limpid report --help", 0, "limpid report runs/*"),
    (
        "limpid-cli/src/verbs/report.rs: limpid train",
        "mv runs was; limpid report; code=$?; mv was runs; exit $code",
        2,
        "limpid train",
    ),
    (
        "limpid-cli/src/verbs/timelapse.rs: limpid train --probe",
        "mv runs was; limpid timelapse; code=$?; mv was runs; exit $code",
        2,
        "limpid train --probe",
    ),
    (
        "limpid-cli/src/verbs/tokenize.rs: limpid tokenize [MODEL] TEXT",
        "limpid tokenize",
        2,
        "limpid tokenize [MODEL] TEXT",
    ),
    (
        "limpid-cli/src/verbs/train.rs: limpid timelapse {run}",
        "limpid train --data text.txt --probe --out 'runs/a b' --tokenizer char",
        0,
        "limpid timelapse 'runs/a b'",
    ),
    (
        "limpid-cli/src/verbs/timelapse.rs: limpid timelapse runs/x --score repeated --above 0.5",
        "mv 'runs/a b' runs/x; limpid timelapse --help",
        0,
        "limpid timelapse runs/x --score repeated --above 0.5",
    ),
    (
        "limpid-cli/src/verbs/train.rs: limpid train --resume {word}",
        "limpid train --data text.txt --steps 1000000 --out y & until [ -s y/metrics.jsonl ]; do sleep 0.1; done; \
         kill -INT $!; wait $!",
        130,
        "limpid train --resume y",
    ),
    (
        "limpid-cli/src/verbs/train.rs: limpid generate --model {word} {how} TEXT",
        "limpid train --data text.txt --out=-run --tokenizer char",
        0,
        "limpid generate --model ./-run --prompt TEXT",
    ),
    (
        "limpid-data/src/corpus_error.rs: limpid data stories",
        "limpid data info builtin:stories",
        1,
        "limpid data stories",
    ),
    ("limpid-serve/src/options.rs: limpid generate", "limpid serve bert", 1, "limpid generate"),
    (
        "limpid-trace/src/arrays.rs: limpid inspect --table",
        "limpid inspect runs/m --tensor 'blocks.*.zzz'",
        1,
        "limpid inspect --table",
    ),
    ("limpid/src/training.rs: limpid train --config FILE", "cat runs/m/limpid.toml", 0, "limpid train --config FILE"),
    (
        "limpid-cli/src/verbs/direction.rs: {program} generate{model} {prompt} --intervene {steps}",
        "limpid direction runs/m --positive='- a happy' --negative='- a sad' --out=-d.json",
        0,
        "limpid generate runs/m --prompt='- a sad' --intervene ./-d.json",
    ),
    (
        "limpid-cli/src/verbs/sweep.rs: {} inspect{model} {prompt} --intervene {steps}{measured}",
        "limpid sweep runs/m --clean='- A star' --corrupt='- a star' --answer=-",
        0,
        "limpid inspect runs/m --prompt='- a star' --intervene",
    ),
];

/// What names a verb or a flag, or runs elsewhere.
const OTHERS: &[(&str, &str)] = &[
    ("limpid-python/src/training.rs: limpid train", "Python says it, of flags that are for a terminal"),
    ("limpid-cli/src/models.rs: limpid {verb} [MODEL] {what}", "embed says it in its own words first"),
    ("limpid-cli/src/options.rs: limpid plan", "it names the verb, where memory ran out after all"),
    ("limpid-cli/src/source.rs: limpid data prepare {name} --out DIR", "it wants a text of over a gigabyte"),
    ("limpid-cli/src/verbs/chat.rs: limpid train --data", "it names the flag"),
    (
        "limpid-cli/src/verbs/convert.rs: limpid convert gpt2 mine",
        "an example of the help; models.rs converts each way",
    ),
    ("limpid-cli/src/verbs/convert.rs: limpid convert runs/1 out --to hf", "the same"),
    ("limpid-cli/src/verbs/convert.rs: limpid convert runs/1 model.gguf --dtype f16 --verify", "the same"),
    ("limpid-cli/src/verbs/convert.rs: limpid convert gpt2_124M.bin gpt2 --to hf", "the same"),
    ("limpid-cli/src/verbs/convert.rs: limpid convert gpt2 merged --adapter lora", "the same"),
    ("limpid-cli/src/verbs/data.rs: limpid data prepare", "it names the verb"),
    (
        "limpid-cli/src/verbs/inspect/changes.rs: limpid params --check",
        "it names the flag; models.rs runs it on such weights",
    ),
    ("limpid-cli/src/verbs/inspect/changes.rs: limpid generate --intervene", "it names the flag"),
    ("limpid-cli/src/verbs/inspect/why.rs: limpid params --check", "as above"),
    (
        "limpid-cli/src/verbs/pages.rs: limpid completions bash > ~/.local/share/bash-completion/completions/limpid",
        "it writes into the home folder",
    ),
    ("limpid-cli/src/verbs/pages.rs: limpid completions zsh > DIR/_limpid (DIR: a folder in $fpath", "the same"),
    ("limpid-cli/src/verbs/pages.rs: limpid completions fish > ~/.config/fish/completions/limpid.fish", "the same"),
    (
        "limpid-cli/src/verbs/serve.rs: limpid serve takes this processor's fastest instruction set: leave --simd out",
        "a sentence",
    ),
    ("limpid-cli/src/verbs/site.rs: limpid site index.html", "an example of the help; site.spec.js opens such a page"),
    ("limpid-cli/src/verbs/train.rs: {} inspect{named} --open", "it opens a browser; the tests of the page drive one"),
    ("limpid-gpu/src/proof.rs: limpid doctor", "it names the verb, where a GPU is faulty"),
    ("limpid-serve/src/docs.rs: limpid generate --num-samples", "it names the flag"),
    ("limpid-serve/src/docs.rs: limpid generate", "it names the verb"),
    ("limpid-serve/src/docs.rs: limpid serve", "a title"),
    ("limpid-serve/src/docs.rs: limpid serve", "a title"),
    ("limpid-serve/src/openapi.rs: limpid serve", "a title"),
    ("limpid-serve/src/openapi.rs: limpid replay", "it names the verb"),
    ("limpid-serve/src/parameters.rs: limpid replay", "it names the verb"),
    ("limpid-serve/src/refusal.rs: limpid serve", "it names the verb, to who asks `inspect --open` for a text"),
    ("limpid/src/interventions/files.rs: limpid direction", "it names the verb"),
];

/// A command that is new in the sources is run by the test below, or it says here why it is not.
#[test]
fn every_printed_command_is_followed_or_says_why_not() {
    let mut found: Vec<String> =
        printed::commands().into_iter().map(|(file, command)| format!("{file}: {command}")).collect();
    let known = FOLLOWED.iter().map(|row| row.0).chain(OTHERS.iter().map(|row| row.0)).filter(|row| !row.is_empty());
    let mut known: Vec<&str> = known.collect();
    found.sort_unstable();
    known.sort_unstable();
    let lacks: Vec<&String> = found.iter().filter(|one| !known.contains(&one.as_str())).collect();
    assert!(lacks.is_empty(), "printed, and in no table: {lacks:#?}");
    assert_eq!(found, known);
}

/// What a shell that finds `limpid` makes of a line; trainings are short.
fn shell(f: &Folder, line: &str) -> Output {
    let path = format!("{}:{}", Path::new(LIMPID).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(&f.0).env("PATH", path).env_remove("CARGO_MANIFEST_DIR").stdin(Stdio::null());
    let short = [("LIMPID_STEPS", "2"), ("LIMPID_VAL_FRACTION", "0.002"), ("LIMPID_SAMPLE", "0")];
    shell.envs(if line.starts_with("limpid train") { &short[..] } else { &[] }.iter().copied()).output().unwrap()
}

/// The command of a text that begins so, up to the sentence around it.
fn begun<'a>(said: &'a str, follows: &str) -> Option<&'a str> {
    let all = said.match_indices(follows).map(|(at, _)| &said[at..]);
    let mut whole = all.filter(|rest| {
        follows.ends_with("--intervene") || rest[follows.len()..].starts_with(['`', ')', '\n', ';', ' '])
    });
    let rest = whole.next()?;
    Some(if follows.ends_with("--intervene") { rest.lines().next()? } else { &rest[..follows.len()] })
}

#[test]
#[ignore = "gate"]
fn what_is_printed_is_pasted_and_runs() {
    let f = Folder::new("printed");
    let rhyme = "Twinkle, twinkle, little star, how I wonder - what you are.\nA TEXT: happy or sad, XY.\n".repeat(40);
    ["text.txt", "X", "Y"].iter().for_each(|name| drop(f.file(name, &rhyme)));
    f.file("line.txt", "A TEXT");
    f.ok(&format!("train --data text.txt --out bert --mask bidirectional {SMALL}"));
    f.ok(&format!("train --data text.txt --out runs/m {SMALL}"));
    f.ok("train --from runs/m --data text.txt --lora 2 --steps 2 --sample 0 --out lora");
    for (_, line, code, follows) in FOLLOWED {
        let out = shell(&f, line);
        let said = text(&out.stdout) + &text(&out.stderr);
        assert_eq!(out.status.code(), Some(*code), "{line}: {said}");
        let command = begun(&said, follows).unwrap_or_else(|| panic!("{line} does not print `{follows}`: {said}"));
        // a model may be named, and what stands for a run or a file is one
        let command = command.replace("[MODEL] ", "").replace("RUN", "runs/m");
        f.file("FILE", if command.contains("--config") { said.as_str() } else { "key" });
        let endless = command.contains(" serve ") || command.contains("--resume");
        let stopped = if endless { "timeout -s INT --preserve-status 2 " } else { "" };
        let out = shell(&f, &format!("{stopped}{command}"));
        let ended = out.status.success() || endless && out.status.code() == Some(130);
        assert!(ended, "{line} prints `{command}`: {}", text(&out.stderr));
    }
}
