//! The binary with flags, variables, files and names that it should not be given. Whatever it is: it ends by itself
//! with a code of its own, without a panic, within its address space, and says nothing that a terminal would obey.

use super::Cases::{Listed, Share};
use super::models::{Restored, change, differing, name};
use super::mutate::{Dice, EDGES};
use super::{Came, Subject, Trial, Verdict, skipped};
use limpid::checkpoint::safetensors_file;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const SUBJECTS: &[Subject] = &[
    Subject { name: "run", cases: Share(18), new: runs },
    Subject { name: "prepared", cases: Share(8), new: prepared },
    Subject { name: "report", cases: Share(6), new: reports },
    Subject { name: "configuration", cases: Share(8), new: configurations },
    Subject { name: "flags", cases: Share(24), new: |at| flags(at, false) },
    Subject { name: "variables", cases: Share(6), new: |at| flags(at, true) },
    Subject { name: "names", cases: Share(2), new: names },
    Subject { name: "devices", cases: Listed(48), new: devices },
    Subject { name: "limits", cases: Listed(LIMITS.len() * UNDER.len()), new: limits },
];

/// Address space of a case, in KiB: small models take a tenth of it.
const SPACE: usize = 2 << 20;
/// What does honest work longer than this is told to end. (Not as Ctrl-C does: who starts this test in the background
/// may have SIGINT ignored, and children inherit that.)
const LONG: Duration = Duration::from_secs(10);
/// And what is then still there hangs.
const HANGS: Duration = Duration::from_secs(40);

/// What a command answered.
struct Answer {
    code: i32,
    out: Vec<u8>,
    said: String,
    /// Whether it had to be stopped.
    stopped: bool,
}

/// Runs limpid in `at`.
fn limpid<S: AsRef<OsStr>>(at: &Path, arguments: &[S], variable: Option<(&str, &OsStr)>) -> Result<Answer, String> {
    under(&format!("ulimit -v {SPACE}"), at, arguments, variable)
}

/// Runs limpid in `at` behind what a shell does first.
fn under<S: AsRef<OsStr>>(
    first: &str,
    at: &Path,
    arguments: &[S],
    variable: Option<(&str, &OsStr)>,
) -> Result<Answer, String> {
    let (out, said) = (at.join(".out"), at.join(".said"));
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -c 0; {first} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_limpid")])
        .args(arguments)
        .current_dir(at)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(variable)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).unwrap())
        .stderr(fs::File::create(&said).unwrap());
    let (start, mut stopped) = (Instant::now(), false);
    // what has a zero in it is no argument
    let Ok(mut child) = command.spawn() else {
        return Ok(Answer { code: 2, out: vec![], said: "no argument".into(), stopped });
    };
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > HANGS {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("hangs: it is there after {} seconds, and after SIGTERM", HANGS.as_secs()));
        }
        if start.elapsed() > LONG && !stopped {
            stopped = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let (out, said) = (fs::read(&out).unwrap(), fs::read(&said).unwrap());
    let said = String::from_utf8(said).map_err(|e| format!("stderr is not UTF-8: {e}"))?;
    let wrong = |what: &str| Err(format!("{what}: {}", said.chars().take(700).collect::<String>()));
    if let Some(control) = said.chars().find(|c| c.is_control() && !"\n\t".contains(*c)) {
        return wrong(&format!("stderr has a character that terminals obey, {control:?}"));
    }
    match status.code() {
        None if stopped && status.signal() == Some(15) => Ok(Answer { code: 130, out, said, stopped }),
        None => wrong(&format!("ended by signal {:?}", status.signal())),
        Some(_) if said.contains("panicked") => wrong("panicked"),
        Some(code @ (0 | 1 | 2 | 130)) => Ok(Answer { code, out, said, stopped }),
        Some(code) => wrong(&format!("exit code {code}")),
    }
}

/// Runs what must succeed.
#[track_caller]
fn ok(at: &Path, line: &str) -> Answer {
    let answer = limpid(at, &line.split_whitespace().collect::<Vec<_>>(), None).unwrap();
    assert_eq!(answer.code, 0, "limpid {line}: {}", answer.said);
    answer
}

const TINY: &str = "--data text.txt --tokenizer char --n-layer 1 --d-model 16 --n-head 2 --context-length 8 \
                    --batch-size 2 --schedule constant --learning-rate 0.01 --save-every 2 --eval-every 2 --sample 0 \
                    --threads 1";

fn words() -> String {
    let word = |i: usize| ["the", "cat", "saw", "a", "dog", "and", "ran", "home."][(i * i + i / 7) % 8];
    (0..600).map(|i| format!("{}{}", word(i), if i % 9 == 8 { "\n" } else { " " })).collect()
}

/// A folder with a text, a run of four steps, and the text prepared.
fn furnished(at: &Path) {
    fs::write(at.join("text.txt"), words()).unwrap();
    ok(at, &format!("train {TINY} --steps 4 --out run"));
    ok(at, "data prepare text.txt --tokenizer run/tokenizer.json --val-fraction 0.1 --threads 1 --out prepared");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![];
    for entry in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() { all.extend(files(&entry)) } else { all.push(entry) }
    }
    all.sort();
    all
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let place = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(&file, place).unwrap();
    }
}

/// An error of a case: whether it names anything in `folder`.
fn named(answer: &Answer, folder: &str) -> Verdict {
    if answer.said.contains(folder) {
        Ok(Came::Refused)
    } else {
        Err(format!("the error names no file: {}", answer.said.chars().take(400).collect::<String>()))
    }
}

// -------------------------------------------------------------------------------------------------------- runs

/// All that a run comes to and that is not a time.
fn result(run: &Path) -> Result<Value, String> {
    let untimed = |line: &str| {
        let mut value: Value = serde_json::from_str(line).map_err(|e| format!("metrics.jsonl: {e}: {line:.80}"))?;
        value.as_object_mut().ok_or("metrics.jsonl: not an object")?.retain(|key, _| key != "seconds" && key != "time");
        Ok::<_, String>(value)
    };
    let text = |name: &str| fs::read_to_string(run.join(name)).map_err(|e| format!("{name}: {e}"));
    let metrics: Result<Vec<Value>, String> = text("metrics.jsonl")?.lines().map(untimed).collect();
    let store = safetensors_file::open(&run.join("state/last.safetensors")).map_err(|e| e.to_string())?;
    let mut state: Value = serde_json::from_str(store.fact("limpid").ok_or("no state")?).map_err(|e| e.to_string())?;
    state["seconds"] = Value::Null;
    state["log"] = Value::Null; // what vouches for the log is of its times, too
    let bits =
        |name: &str| -> Vec<u32> { store.get(name).unwrap().values().unwrap().iter().map(|v| v.to_bits()).collect() };
    let tensors: Vec<(&str, Vec<u32>)> = store.names().map(|name| (name, bits(name))).collect();
    let weights = fs::read(run.join("model.safetensors")).map_err(|e| e.to_string())?;
    let config: Value = serde_json::from_str(&text("config.json")?).map_err(|e| e.to_string())?;
    let tokenizer: Value = serde_json::from_str(&text("tokenizer.json")?).map_err(|e| e.to_string())?;
    Ok(serde_json::json!({
        "metrics": metrics?, "state": state, "tensors": tensors, "weights": weights, "config": config,
        "tokenizer": tokenizer
    }))
}

/// A run whose folder was changed at rest goes on to the bytes of the run that was not, or says which file is another.
fn runs(at: &Path) -> Trial {
    furnished(at);
    let on = format!("train {TINY} --steps 6 --out case/run --resume auto");
    let case = at.join("case");
    copy(&at.join("run"), &case.join("run"));
    ok(at, &on);
    let whole = result(&case.join("run")).unwrap();
    // what is made anew of other files, and what is empty
    let left = |f: &PathBuf| {
        !["csv", "html"].contains(&f.extension().and_then(|e| e.to_str()).unwrap_or(""))
            && f.metadata().unwrap().len() > 0
    };
    let all: Vec<PathBuf> = files(&at.join("run")).into_iter().filter(left).collect();
    let at = at.to_path_buf();
    Box::new(move |_, dice| {
        fs::remove_dir_all(&case).unwrap();
        copy(&at.join("run"), &case.join("run"));
        // the state is most of what there is
        let state = at.join("run/state/last.safetensors");
        let file = if dice.one_in(3) { &state } else { dice.of(&all) };
        let file = case.join(file.strip_prefix(&at).unwrap());
        let original = fs::read(&file).unwrap();
        change(&file, &original, &(0..0), dice);
        let answer = limpid(&at, &on.split_whitespace().collect::<Vec<_>>(), None)
            .map_err(|e| format!("{}: {e}", name(&file)))?;
        if answer.code != 0 {
            return named(&answer, "case/run");
        }
        let found = result(&case.join("run")).map_err(|e| format!("{}: accepted, and then: {e}", name(&file)))?;
        if found == whole {
            return Ok(Came::Same);
        }
        let mut places = vec![];
        differing("", &whole, &found, &mut places);
        let places: Vec<&str> = places.iter().take(3).map(|(place, _)| place.as_str()).collect();
        Err(format!("{}: accepted, and another run came of it: {}", name(&file), places.join(", ")))
    })
}

/// A folder of shards that was changed at rest trains the same model, or is refused: by its manifest, or, where bytes
/// of ids were changed, by `data info --check`, which reads them all.
fn prepared(at: &Path) -> Trial {
    furnished(at);
    let on = format!("train {} --steps 2 --out trained --json", TINY.replace("text.txt", "case"));
    let on = on.replace("--tokenizer char ", "");
    let case = at.join("case");
    copy(&at.join("prepared"), &case);
    ok(at, &on);
    let weights = |at: &Path| fs::read(at.join("trained/model.safetensors")).unwrap();
    let whole = weights(at);
    let (all, at) = (files(&at.join("prepared")), at.to_path_buf());
    Box::new(move |_, dice| {
        fs::remove_dir_all(&case).unwrap();
        let _ = fs::remove_dir_all(at.join("trained"));
        copy(&at.join("prepared"), &case);
        let file = case.join(dice.of(&all).file_name().unwrap());
        let original = fs::read(&file).unwrap();
        change(&file, &original, &(0..0), dice);
        let wrong = |e: String| format!("{}: {e}", name(&file));
        let trained = limpid(&at, &on.split_whitespace().collect::<Vec<_>>(), None).map_err(wrong)?;
        if trained.code != 0 {
            return named(&trained, "case");
        }
        if weights(&at) == whole {
            return Ok(Came::Same);
        }
        let checked = limpid(&at, &["data", "info", "--check", "case"], None).map_err(wrong)?;
        match (checked.code, file.extension().and_then(|e| e.to_str())) {
            (1, Some("bin" | "idx")) => named(&checked, "case"),
            (code, _) => Err(wrong(format!("another model came of it; --check exits {code}"))),
        }
    })
}

/// A report of a changed run is refused, or told of what the files say.
fn reports(at: &Path) -> Trial {
    furnished(at);
    let at = at.to_path_buf();
    let all: Vec<PathBuf> =
        ["metrics.jsonl", "summary.json", "config.json", "limpid.toml"].map(|f| at.join("run").join(f)).into();
    let all: Vec<(Vec<u8>, PathBuf)> =
        all.into_iter().filter(|f| f.exists()).map(|f| (fs::read(&f).unwrap(), f)).collect();
    let whole = ok(&at, "report run --json").out;
    Box::new(move |_, dice| {
        let (original, file) = dice.of(&all);
        let _restored = Restored(file, original);
        let (changed, _) = change(file, original, &(0..0), dice);
        let answer = limpid(&at, &["report", "run", "--json"], None).map_err(|e| format!("{}: {e}", name(file)))?;
        let lines = |bytes: &[u8]| -> Option<Vec<Value>> {
            let text = std::str::from_utf8(bytes).ok()?;
            text.lines().filter(|l| !l.trim().is_empty()).map(|l| serde_json::from_str(l).ok()).collect()
        };
        let same = answer.out == whole;
        if answer.code != 0 {
            return named(&answer, "run");
        }
        if same {
            return Ok(Came::Same);
        }
        let is_log = name(file) == "metrics.jsonl" && file.is_file();
        let says_other = lines(&changed).is_some_and(|said| Some(said) != lines(original));
        // the last line may be cut: it is being written
        let whole_lines = &changed[..changed.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1)];
        if !is_log || says_other || lines(whole_lines).is_some() {
            return Ok(Came::Told);
        }
        Err(format!("{}: another report of what is not a log", name(file)))
    })
}

/// A configuration file that was changed is refused by name, or says what its flags would.
fn configurations(at: &Path) -> Trial {
    const TOML: &str = "# settings\nn_layer = 2\nd_model = 32\nn-head = 2\ncontext_length = 16\ndropout = 0.1\nbias = \
                        true\nactivation = \"gelu-tanh\"\nsteps = 3\nlearning_rate = 3e-3\nbeta2 = 0.95\n";
    const JSON: &str = "{\"n_layer\": 2, \"d_model\": 32, \"n_head\": 2, \"context_length\": 16, \"tied_head\": \
                        false,\"positions\": \"rotary\", \"steps\": 3, \"batch_size\": 4, \"seed\": 5, \
                        \"weight_decay\": 0.1}";
    fs::write(at.join("text.txt"), words()).unwrap();
    let mut known = vec![];
    for (file, text) in [("some.toml", TOML), ("some.json", JSON)] {
        let path = at.join(file);
        fs::write(&path, text).unwrap();
        ok(at, &format!("plan --data text.txt --tokenizer char --threads 1 --config {file} --json"));
        known.push((path, text));
    }
    let at = at.to_path_buf();
    Box::new(move |_, dice| {
        let (path, original) = dice.of(&known);
        let _restored = Restored(path, original.as_bytes());
        let (changed, _) = change(path, original.as_bytes(), &(0..0), dice);
        let file = name(path);
        let line = ["plan", "--data", "text.txt", "--tokenizer", "char", "--threads", "1", "--config", &file, "--json"];
        let answer = limpid(&at, &line, None)?;
        let parsed = |bytes: &[u8]| -> Option<Value> {
            let text = std::str::from_utf8(bytes).ok()?;
            if file.ends_with("toml") {
                serde_json::to_value(toml::from_str::<toml::Table>(text).ok()?).ok()
            } else {
                serde_json::from_str(text).ok()
            }
        };
        match (answer.code, parsed(&changed)) {
            (0, None) => Err(format!("{file} is not what its name says, and was read")),
            (0, Some(is)) if Some(&is) == parsed(original.as_bytes()).as_ref() => Ok(Came::Same),
            (0, Some(_)) => Ok(Came::Told),
            // what cannot be together is said by the names of its keys
            (_, Some(is)) if is.as_object().is_some_and(|is| is.keys().any(|key| says(&answer, key))) => {
                Ok(Came::Refused)
            }
            _ => named(&answer, &file),
        }
    })
}

/// Whether an error names a flag.
fn says(answer: &Answer, key: &str) -> bool {
    [key.replace('-', "_"), key.replace('_', "-")].iter().any(|key| answer.said.contains(key))
}

// ------------------------------------------------------------------------------------------------------- flags

/// Verbs with arguments that are quickly done.
const VERBS: [(&str, &str); 15] = [
    ("train", TRAIN),
    ("plan", TRAIN),
    ("generate", "--model run --prompt a -n 3 --threads 1"),
    ("eval", "--model run --data text.txt --threads 1 --batch-size 2"),
    ("inspect", "--model run --prompt a"),
    ("sweep", "--model run --clean ab --corrupt bb --answer a"),
    ("direction", "--model run --positive ab --negative bb"),
    ("params", "nano"),
    ("lesson", "underflow"),
    ("report", "run"),
    ("tokenize", "--tokenizer char abc"),
    ("data prepare", "text.txt --tokenizer run/tokenizer.json --out shards --threads 1"),
    ("data info", "text.txt"),
    ("data stories", "1K"),
    ("convert", "run out"),
];
const TRAIN: &str = "--data text.txt --tokenizer char --n-layer 1 --d-model 16 --n-head 2 --context-length 8 \
                     --batch-size 2 --steps 1 --sample 0 --threads 1";
/// Flags that say how much work is done: a large number is no mistake.
const WORK: [&str; 5] = ["--steps", "--num-samples", "--max-tokens", "--accumulate", "--sample"];

/// Values that a flag should not have.
fn value(dice: &mut Dice) -> OsString {
    const VALUES: [&str; 34] = [
        "",
        " ",
        "0",
        "-0",
        "-1",
        "1",
        "0.5",
        "-0.5",
        "1e308",
        "-1e308",
        "1e999",
        "inf",
        "-inf",
        "NaN",
        "0x10",
        "1_000",
        "1e3",
        "\u{661}\u{662}",
        "--",
        "-",
        "@",
        "@nothing",
        "\u{1b}[31mred\u{1b}]0;x\u{7}",
        "a\nb",
        "\t",
        "\u{202e}abc",
        "\u{65e5}\u{672c}",
        "%s%n",
        "$(id)",
        "null",
        "true",
        "[]",
        "1,2,,3",
        "text.txt",
    ];
    match dice.below(VALUES.len() + EDGES.len() + 3) {
        0 => "x".repeat(100_000).into(),
        1 => OsStr::from_bytes(b"\xff\xfe\x80").into(),
        2 => "1".repeat(400).into(),
        n => VALUES.iter().chain(&EDGES).nth(n - 3).expect("within both").into(),
    }
}

/// The flags of a verb that take a value, with what the value is called.
fn known(at: &Path, verb: &str) -> Vec<(String, String)> {
    let line: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
    let help = String::from_utf8(limpid(at, &line, None).unwrap().out).unwrap();
    let flag = |line: &str| {
        let line = line.trim_start();
        let long = &line[line.find("--").filter(|at| *at < 5)?..];
        let end = long.find([' ', '=', '['])?;
        let value = long.split_once('<')?.1.split_once('>')?.0;
        Some((long[..end].to_string(), value.to_string()))
    };
    help.lines().filter(|line| line.starts_with(' ') && line.trim_start().starts_with('-')).filter_map(flag).collect()
}

fn flags(at: &Path, variables: bool) -> Trial {
    furnished(at);
    let verbs: Vec<_> = VERBS.iter().map(|(verb, base)| (*verb, *base, known(at, verb))).collect();
    assert!(verbs.iter().map(|(.., flags)| flags.len()).sum::<usize>() > 150, "flags were found in --help");
    let (at, case) = (at.to_path_buf(), at.join("case/of/this"));
    Box::new(move |_, dice| {
        let (verb, base, flags) = dice.of(&verbs);
        let (flag, kind) =
            if flags.is_empty() { ("--json".to_string(), String::new()) } else { dice.of(flags).clone() };
        let value = value(dice);
        let number = value.to_str().and_then(|v| v.trim().parse::<f64>().ok()).filter(|v| v.is_finite());
        if WORK.contains(&&flag[..]) && number.is_some_and(|v| v > 100.0) {
            return Ok(Came::Same);
        }
        let _ = fs::remove_dir_all(at.join("case"));
        fs::create_dir_all(&case).unwrap();
        for part in ["run", "prepared"] {
            copy(&at.join(part), &case.join(part));
        }
        fs::copy(at.join("text.txt"), case.join("text.txt")).unwrap();
        let mut line: Vec<OsString> = verb.split(' ').chain(base.split_whitespace()).map(OsString::from).collect();
        let shown = format!("{verb} {base} {flag} {:?}", value.to_string_lossy().chars().take(60).collect::<String>());
        let upper = format!("LIMPID_{}", flag[2..].to_uppercase().replace('-', "_"));
        let variable = if variables {
            // what was typed comes before the environment
            if let Some(place) = line.iter().position(|a| *a == *flag) {
                line.drain(place..place + 2);
            }
            Some((&upper[..], &*value))
        } else {
            // both spellings
            if dice.one_in(2) {
                line.extend([flag.clone().into(), value.clone()]);
            } else {
                let mut joined = OsString::from(format!("{flag}="));
                joined.push(&value);
                line.push(joined);
            }
            None
        };
        let answer = limpid(&case, &line, variable).map_err(|e| format!("{shown}: {e}"))?;
        let numeric = kind.len() == 1 && kind.chars().all(char::is_uppercase);
        match answer.code {
            0 if numeric && number.is_none() && !variables => Err(format!("{shown}: is no number, and was taken")),
            0 => Ok(Came::Told),
            _ if answer.said.trim().is_empty() => Err(format!("{shown}: exit code {} and no word", answer.code)),
            _ => Ok(Came::Refused),
        }
    })
}

/// Texts, runs and models under names that a terminal or a shell would take for something else.
fn names(at: &Path) -> Trial {
    furnished(at);
    const NAMES: [&str; 14] = [
        "a b",
        "a\nb",
        "a\tb",
        "\u{1b}[31mred",
        "\u{1b}]0;title\u{7}",
        "a'b\"c",
        "$(touch pwned)",
        "`id`",
        "-x",
        "--out",
        "@a",
        "*",
        "\u{202e}txt",
        "\u{65e5}\u{672c}",
    ];
    let at = at.to_path_buf();
    Box::new(move |n, dice| {
        let case = at.join("case");
        let _ = fs::remove_dir_all(&case);
        fs::create_dir_all(&case).unwrap();
        let odd: OsString = match n % (NAMES.len() + 2) {
            0 => OsStr::from_bytes(b"\xff\xfe").into(),
            1 => "n".repeat(255).into(),
            n => NAMES[n - 2].into(),
        };
        fs::write(case.join(&odd), words()).unwrap();
        let folder = case.join("in");
        fs::create_dir_all(&folder).unwrap();
        copy(&at.join("run"), &folder.join(&odd));
        let with = |before: &str, after: &str, name: &OsStr| -> Vec<OsString> {
            let mut last: OsString = "./".into(); // a name that begins with a dash is a flag's value all the same
            last.push(name);
            let all = before.split_whitespace().map(OsString::from).chain([last]);
            all.chain(after.split_whitespace().map(OsString::from)).collect()
        };
        let inside = Path::new("in").join(&odd);
        let tiny = TRAIN.replace("--data text.txt ", "");
        let lines = [
            with(&format!("train {tiny} --data"), "", &odd),
            with("train --tokenizer char --steps 0 --data nothing --out", "", &odd),
            with("generate --prompt a -n 2 --model", "", inside.as_os_str()),
            with("generate --prompt a -n 2 --model", "", &odd),
            with("eval --data nothing --model", "", inside.as_os_str()),
            with("report", "", inside.as_os_str()),
            with("data prepare", "--tokenizer gpt2 --threads 1 --out p", &odd),
            with("data info", "", &odd),
            with("convert", "out", inside.as_os_str()),
            with("train --resume", "", inside.as_os_str()),
            with("train --steps 1 --config", "", &odd),
        ];
        let line = dice.of(&lines);
        let answer = limpid(&case, line, None).map_err(|e| format!("{line:?}: {e}"))?;
        let pwned = files(&case).iter().any(|f| f.ends_with("pwned"));
        if pwned {
            Err(format!("{line:?}: a shell ran it"))
        } else {
            Ok(if answer.code == 0 { Came::Same } else { Came::Refused })
        }
    })
}

/// What has no end, gives nothing, or is no file: as every file that a verb reads.
fn devices(at: &Path) -> Trial {
    furnished(at);
    let at = at.to_path_buf();
    Box::new(move |n, _| {
        const READS: [(&str, &str); 12] = [
            ("run/config.json", "generate --model run --prompt a -n 1"),
            ("run/tokenizer.json", "generate --model run --prompt a -n 1"),
            ("run/model.safetensors", "generate --model run --prompt a -n 1"),
            ("model", "generate --model model --prompt a -n 1"),
            ("model.gguf", "generate --model model.gguf --prompt a -n 1"),
            ("text.txt", "train --data text.txt --tokenizer char --steps 1 --threads 1 --out new"),
            ("some.parquet", "data info some.parquet"),
            ("some.toml", "train --config some.toml --steps 1"),
            ("run/metrics.jsonl", "report run"),
            ("run/state/last.safetensors", "train --resume run"),
            ("prepared/manifest.json", "train --data prepared --steps 1 --threads 1 --out new"),
            ("prompt", "generate --model run --prompt @prompt -n 1"),
        ];
        const KINDS: [&str; 4] = ["/dev/zero", "/dev/null", "pipe", "/proc/self/mem"];
        let ((file, line), kind) = (READS[n % READS.len()], KINDS[n / READS.len() % KINDS.len()]);
        let case = at.join("case");
        let _ = fs::remove_dir_all(&case);
        fs::create_dir_all(&case).unwrap();
        for part in ["run", "prepared"] {
            copy(&at.join(part), &case.join(part));
        }
        let place = case.join(file);
        let _ = fs::remove_file(&place);
        match kind {
            "pipe" => assert!(Command::new("mkfifo").arg(&place).status().unwrap().success()),
            device => std::os::unix::fs::symlink(device, &place).unwrap(),
        }
        let answer = limpid(&case, &line.split_whitespace().collect::<Vec<_>>(), None);
        let answer = answer.map_err(|e| format!("{kind} as {file}, {line}: {e}"))?;
        match answer.code {
            // whoever gives a text by a pipe may take any time
            _ if answer.stopped && kind == "pipe" && ["text.txt", "prompt"].contains(&file) => Ok(Came::Same),
            _ if answer.stopped => Err(format!("{kind} as {file}, {line}: it waits without end")),
            // an empty file may do where nothing is asked of it
            0 if kind == "/dev/null" => Ok(Came::Same),
            0 => Err(format!("{kind} as {file}, {line}: done, with exit code 0")),
            _ => Ok(Came::Refused),
        }
    })
}

/// What the system gives too little of.
const LIMITS: [&str; 12] = [
    "ulimit -v 150000",
    "ulimit -v 300000",
    "ulimit -v 600000",
    "ulimit -v 1200000",
    "ulimit -n 8",
    "ulimit -n 12",
    "ulimit -s 256",
    "trap '' XFSZ; ulimit -f 8",
    "trap '' XFSZ; ulimit -f 64",
    "mount -t tmpfs -o size=16k none full",
    "mount -t tmpfs -o size=64k none full",
    "mount -t tmpfs -o size=1m none full",
];
const UNDER: [&str; 6] = [
    "train --data text.txt --preset gpt2 --tokenizer gpt2 --steps 1 --batch-size 4 --out full/new",
    "train --data text.txt --preset gpt2 --tokenizer gpt2 --steps 1 --batch-size 100000 --out full/new",
    "train --data text.txt --tokenizer char --steps 4 --save-every 1 --eval-every 1 --threads 64 --out full/new",
    "eval --model run --data text.txt --threads 64",
    "data prepare text.txt --tokenizer gpt2 --out full/prepared --threads 64",
    "convert run full/model.gguf",
];

/// With less memory, fewer files and threads, and less disk than it takes: done, or an error that says so.
fn limits(at: &Path) -> Trial {
    furnished(at);
    let at = at.to_path_buf();
    Box::new(move |n, _| {
        let (limit, line) = (LIMITS[n % LIMITS.len()], UNDER[n / LIMITS.len() % UNDER.len()]);
        let _ = fs::remove_dir_all(at.join("full"));
        fs::create_dir_all(at.join("full")).unwrap();
        let line: Vec<&str> = line.split(' ').collect();
        let run = |at: &Path| {
            if limit.starts_with("mount") {
                // a mount that nobody else sees, where such may be made
                let able = Command::new("unshare")
                    .args(["-m", "sh", "-c", limit])
                    .current_dir(at)
                    .stderr(Stdio::null())
                    .status();
                if !able.is_ok_and(|status| status.success()) {
                    skipped("no file system may be mounted here: a full disk is not tried");
                    return Ok(Answer { code: 0, out: vec![], said: String::new(), stopped: false });
                }
                let first = format!("unshare -m sh -c '{limit} && exec \"$0\" \"$@\"' \"$0\" \"$@\"; exit $?; :");
                under(&first, at, &line, None)
            } else {
                under(limit, at, &line, None)
            }
        };
        let answer = run(&at).map_err(|e| format!("{limit}: limpid {}: {e}", line.join(" ")))?;
        match answer.code {
            0 => Ok(Came::Same),
            _ if answer.stopped || answer.said.contains("error: ") => Ok(Came::Refused),
            code => Err(format!("{limit}: limpid {}: exit code {code}, and no word of why", line.join(" "))),
        }
    })
}
