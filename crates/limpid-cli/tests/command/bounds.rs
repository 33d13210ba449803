//! Every verb is bounded (docs/bounds.md): what would not fit is counted before it is made, what never ends is left,
//! and what is accepted has an effect.
#![cfg(unix)]

use crate::common::{Folder, LIMPID, text};
use limpid::checkpoint::safetensors_file;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const TINY: &str = "--tokenizer char --d-model 16 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4 \
                    --warmup-steps 1 --threads 1";
const RHYME: &str = "Twinkle, twinkle, little star, how I wonder what you are.\n";

/// A folder with a text, and a model `m` trained on it.
fn trained(name: &str) -> Folder {
    let f = Folder::new(name);
    f.file("rhyme.txt", RHYME.repeat(60));
    f.ok(&format!("train --data rhyme.txt {TINY} --steps 6 --sample 0 --out m --json"));
    f
}

/// What a shell makes of a command, after some words of its own.
fn shell(f: &Folder, before: &str, arguments: &str) -> Output {
    let mut command = Command::new("sh");
    command.current_dir(&f.0).args(["-c", &format!("ulimit -c 0; {before}; exec {LIMPID} {arguments}")]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Neither a signal nor a panic.
#[track_caller]
fn ended(out: &Output, arguments: &str) -> i32 {
    let said = text(&out.stderr);
    assert!(!said.contains("panicked") && !said.contains("memory allocation of"), "{arguments}: {said}");
    out.status.code().unwrap_or_else(|| panic!("{arguments}: {}: {said}", out.status))
}

#[test]
fn sizes_are_counted_before_anything_is_made() {
    let f = trained("counted");
    let tiny = "--preset nano --n-layer 1 --d-model 16 --n-head 2 --threads 1";
    for (arguments, code, says) in [
        (format!("plan --data rhyme.txt {tiny} --tokenizer char --batch-size 1000000"), 0, ""),
        (format!("plan --data rhyme.txt {tiny} --tokenizer char --batch-size 1000000000"), 0, ""),
        (format!("train --data rhyme.txt {tiny} --tokenizer char --batch-size 1000000"), 1, "needs"),
        (format!("train --data rhyme.txt {tiny} --tokenizer char --batch-size 1000000000"), 1, "needs"),
        (format!("bench train {tiny} --batch-size 1000000"), 1, "needs"),
        (format!("bench decode {tiny} --context-length 1000000000 --tokens 2"), 1, "needs"),
        (format!("bench prefill {tiny} --tokens 2147483648"), 2, "room for 1 to"),
        (format!("inspect {tiny} --context-length 100000000 --positions rotary --tokens 1,2,3"), 0, ""),
        (format!("inspect {tiny} --context-length 100000000 --positions sinusoidal --tokens 1,2,3"), 0, ""),
    ] {
        // less than the batches would take, or the tables
        let out = shell(&f, "ulimit -v 2000000", &arguments);
        let said = text(&out.stderr);
        assert!(ended(&out, &arguments) == code && said.contains(says), "{arguments}: {:?} {said}", out.status);
    }
}

/// Tables of positions are as long as what is run, with the same bits.
#[test]
fn a_context_that_is_only_claimed_costs_nothing() {
    let f = Folder::new("claimed");
    f.file("rhyme.txt", RHYME.repeat(60));
    f.ok(&format!("train --data rhyme.txt {TINY} --positions rotary --steps 4 --sample 0 --out m --json"));
    let asked = "generate --model m --prompt Twi -n 3 --threads 1 --json";
    let want = f.ok(asked);
    let config = text(&f.bytes("m/config.json"));
    let key = "\"context_length\": 16";
    assert!(config.contains(key), "{config}");
    f.file("m/config.json", config.replace(key, "\"context_length\": 100000000"));
    for arguments in [asked, "inspect --model m --prompt Twi --threads 1", "embed Twi --model m --threads 1"] {
        let out = shell(&f, "ulimit -v 1000000", arguments);
        assert_eq!(ended(&out, arguments), 0, "{arguments}: {}", text(&out.stderr));
        assert!(arguments != asked || text(&out.stdout) == want);
    }
}

#[test]
fn many_samples_are_written_one_after_another() {
    let f = trained("samples");
    let samples = |n: usize| {
        f.json(&format!("generate --model m --prompt T -n 2 --threads 1 --num-samples {n} --json"))["samples"].clone()
    };
    let many = samples(300);
    assert_eq!(many.as_array().unwrap().len(), 300);
    assert_eq!(samples(40).as_array().unwrap()[..], many.as_array().unwrap()[..40]);
    let shown = f.ok("generate --model m --prompt T -n 2 --threads 1 --num-samples 100");
    assert_eq!(shown.matches("---------------").count(), 99);
}

/// A receipt says what an answer is, and the file around it must say the same; one token too many ends a replay.
#[test]
fn an_answer_is_replayed_whole() {
    let f = trained("whole");
    let text_of = f.ok("generate --model m --prompt Twi --no-echo -n 5 --receipt r.json --threads 1");
    let answered = text_of.strip_suffix('\n').unwrap();
    let receipt: Value = serde_json::from_slice(&f.bytes("r.json")).unwrap();
    assert_eq!(receipt["answer"]["sha256"].as_str().unwrap().len(), 64);
    let of = |text: &str, finish: &str, tokens: usize| {
        json!({ "choices": [{ "index": 0, "text": text, "finish_reason": finish }], "limpid": { "receipt": receipt },
            "usage": { "prompt_tokens": 3, "completion_tokens": tokens } })
    };
    let chat = json!({ "choices": [{ "message": { "role": "assistant", "content": answered },
        "finish_reason": "length" }],
        "limpid": { "receipt": receipt } });
    let (mut older, mut endless, mut changed) = (receipt.clone(), receipt.clone(), receipt.clone());
    older["answer"].as_object_mut().unwrap().remove("sha256");
    endless["request"]["max_tokens"] = json!(1u64 << 31);
    changed["answer"]["sha256"] = "0".repeat(64).into();
    for (file, says) in [
        (of(answered, "length", 5), ""),
        (of(&format!("Twi{answered}"), "length", 5), ""),
        (chat, ""),
        (older, ""),
        (of(&format!("{answered}!"), "length", 5), "the text of the answer"),
        (of(&format!("No: {answered}"), "length", 5), "the text of the answer"),
        (of("", "length", 5), "the text of the answer"),
        (of(answered, "stop", 5), "finish_reason"),
        (of(answered, "length", 6), "usage.completion_tokens"),
        (json!({ "choices": [], "limpid": { "receipt": receipt } }), "the number of answers"),
        (endless, "token 6 of the answer differs: by the receipt the answer ends there"),
        (changed, "all tokens are the same, the text or why it ended is not"),
    ] {
        f.file("answer.json", file.to_string());
        match says {
            "" => assert_eq!(f.ok("replay answer.json --model m --threads 1"), "the same 5 tokens\n", "{file}"),
            _ => drop(f.fails(1, "replay answer.json --model m --threads 1", &[says])),
        }
    }
}

#[test]
fn what_never_ends_is_left() {
    let f = Folder::new("endless");
    f.file(
        "talk.jsonl",
        r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}"#.to_string() + "\n",
    );
    f.ok(&format!(
        "train --data talk.jsonl {TINY} --context-length 64 --batch-size 1 --val-fraction 0 --steps 2 --sample 0 \
         --out c --json"
    ));
    for arguments in ["chat c", "tokenize --lines -"] {
        let zero = fs::File::open("/dev/zero").unwrap();
        let out = f.command(arguments).stdin(zero).output().unwrap();
        assert!(
            ended(&out, arguments) == 1 && text(&out.stderr).contains("line 1 is longer than"),
            "{}",
            text(&out.stderr)
        );
    }
}

/// The last step's weights are met by no later step: their validation loss decides.
#[test]
fn a_training_that_ends_with_nan_has_failed() {
    let f = trained("ends-with-nan");
    let huge = format!("train --data rhyme.txt {TINY} --steps 1 --warmup-steps 0 --learning-rate 3e38 --sample 0");
    f.fails(1, &format!("{huge} --out n"), &["the validation loss is not finite", "--learning-rate"]);
    assert!(!f.0.join("n/model.safetensors").exists());
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    let f = trained("damaged");
    let path = f.0.join("m/model.safetensors");
    let whole = fs::read(&path).unwrap();
    for (value, name) in
        [(f32::NAN, "embed.weight"), (f32::INFINITY, "blocks.0.mlp.in.weight"), (f32::NAN, "ln_final.weight")]
    {
        let place = {
            let store = safetensors_file::open(&path).unwrap();
            let Some(found) = store.names().find(|own| *own == name).map(String::from) else {
                panic!("no {name}: {:?}", store.names().collect::<Vec<_>>())
            };
            let bytes = store.get(&found).unwrap().bytes.to_vec();
            whole.windows(bytes.len()).position(|window| window == bytes).unwrap()
        };
        let mut bytes = whole.clone();
        bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
        let rows = if name == "embed.weight" { (bytes.len() - place) / 64 } else { 1 };
        // of a table every row, for which of them is looked up is the text's matter
        for row in (0..rows.min(20)).filter(|_| name == "embed.weight") {
            bytes[place + 64 * row..][..4].copy_from_slice(&value.to_le_bytes());
        }
        fs::write(&path, bytes).unwrap();
        for arguments in [
            "embed Twinkle --model m --no-verify",
            "inspect --model m --prompt Twinkle --no-verify",
            "inspect --model m --prompt Twinkle --json --no-verify",
        ] {
            f.fails(1, arguments, &["has NaN or infinite values", name]);
        }
        fs::write(&path, &whole).unwrap();
    }
}

/// The words of every verb, and a use, on a stack of a few pages.
#[test]
#[cfg(target_os = "linux")]
fn a_small_stack_is_enough() {
    let f = trained("stack");
    let verbs = "train generate chat embed serve replay eval inspect walk lesson params report plan check tokenize \
                 data convert bench doctor completions man";
    let all: Vec<String> = verbs.split_whitespace().map(|verb| format!("{verb} --help")).collect();
    let uses = [
        "--version".to_string(),
        format!("train --data rhyme.txt {TINY} --steps 2 --sample 2 --out n"),
        "generate --model m --prompt Twi -n 2 --threads 1".into(),
        "inspect --model m --prompt Twi --threads 1 --table".into(),
        format!("plan --data rhyme.txt {TINY} --json"),
    ];
    for arguments in all.iter().chain(&uses) {
        let out = shell(&f, "ulimit -s 256", arguments);
        assert_eq!(ended(&out, arguments), 0, "{arguments}: {}", text(&out.stderr));
    }
}

/// Every verb, with twice the memory that `plan` says beside the program itself, and little stack: it is done, or says
/// why it is not.
#[test]
#[ignore = "gate"]
#[cfg(target_os = "linux")]
fn no_verb_ends_by_a_signal() {
    let f = trained("bounded");
    f.file("r.json", "{}");
    let plan = f.json(&format!("plan --data rhyme.txt {TINY} --json"));
    // the program's code and libraries count towards the limit, and each build and system has others
    let starts = |kib: &u64| shell(&f, &format!("ulimit -v {kib}"), "--version").status.success();
    let program = (1..).map(|step| step << 12).find(starts).unwrap();
    let kib = program + 2 * plan["total_memory_bytes"].as_u64().unwrap() / 1024;
    let uses = [
        format!("train --data rhyme.txt {TINY} --steps 2 --sample 2 --out n --json"),
        "generate --model m --prompt Twi -n 2 --threads 1".into(),
        "chat m".into(),
        "embed Twi --model m --threads 1".into(),
        "replay r.json --model m".into(),
        "eval --model m --data rhyme.txt --threads 1".into(),
        "inspect --model m --prompt Twi --threads 1".into(),
        "params nano".into(),
        "report m".into(),
        format!("plan --data rhyme.txt {TINY}"),
        format!("check --data rhyme.txt {TINY}"),
        "tokenize Twinkle --model m".into(),
        "data info rhyme.txt".into(),
        "data prepare rhyme.txt --tokenizer m/tokenizer.json --out shards --threads 1".into(),
        "convert m m.gguf --to gguf".into(),
        "bench train --preset nano --n-layer 1 --d-model 16 --n-head 2 --steps 1 --threads 1".into(),
        "doctor".into(),
        "walk s3".into(),
        "lesson mask-fill".into(),
        "completions bash".into(),
        "man".into(),
    ];
    for limits in [format!("ulimit -v {kib}"), "ulimit -s 256".into(), format!("ulimit -v {kib}; ulimit -s 256")] {
        for arguments in &uses {
            let out = shell(&f, &limits, arguments);
            let code = ended(&out, arguments);
            assert!(code == 0 || code == 1, "{limits}: {arguments}: {code}: {}", text(&out.stderr));
        }
    }
}

/// A system that starts no thread, or few, is told in words: a number of threads that would do, or what to allow.
#[test]
#[ignore = "gate"]
#[cfg(target_os = "linux")]
fn few_threads_are_an_error_in_words() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let f = trained("threads");
    // root may start any number of threads: another user, of whom nothing else runs, may not
    let user = 100_000 + std::process::id();
    let as_user = format!("setpriv --reuid={user} --regid={user} --clear-groups");
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let user = if is_root { as_user.as_str() } else { "" };
    let run = |threads: u64, arguments: &str| {
        let script = format!("exec {user} prlimit --nproc={threads}:{threads} {LIMPID} {arguments}");
        let command = Command::new("sh").args(["-c", &script]).current_dir(&f.0).stdin(Stdio::null()).output();
        command.unwrap()
    };
    if !run(1, "--version").status.success() {
        println!("left out: there is no prlimit here, or no setpriv, or another user cannot run {LIMPID}");
        return;
    }
    fs::set_permissions(&f.0, fs::Permissions::from_mode(0o777)).unwrap();
    let uses = [
        format!("train --data rhyme.txt {} --steps 2 --sample 0 --out n", TINY.replace("threads 1", "threads 3")),
        "generate --model m --prompt Twi -n 2 --threads 3".into(),
        "embed Twi --model m --threads 3".into(),
        "eval --model m --data rhyme.txt --threads 3".into(),
        "inspect --model m --prompt Twi --threads 3".into(),
        "data prepare rhyme.txt --tokenizer m/tokenizer.json --out shards --threads 3".into(),
        "bench decode --preset nano --tokens 1 --threads 3".into(),
        "serve --model m --port 0 --threads 3".into(),
    ];
    let before = f.names(".");
    for arguments in &uses {
        let out = run(1, arguments);
        let said = text(&out.stderr);
        let told = said.contains("error: ") && said.contains("thread") && !said.contains("os error");
        assert!(ended(&out, arguments) == 1 && told, "{arguments}: {said}");
    }
    assert_eq!(f.names("."), before, "nothing is left");
    // where no thread can start, the one that asks encodes the text
    let encodes = "race tokens stories-nano --out tokens";
    assert_eq!(ended(&run(1, encodes), encodes), 0);
    // the server goes on where it can
    for (threads, arguments) in (2..7).flat_map(|n| uses[..uses.len() - 1].iter().map(move |uses| (n, uses))) {
        let code = ended(&run(threads, arguments), arguments);
        assert!(code == 0 || code == 1, "{threads} threads: {arguments}: {code}");
    }
}

#[test]
fn flags_without_effect_are_refused() {
    let f = trained("effect");
    for (arguments, says) in [
        ("train --data rhyme.txt --resume-step 3", &["--resume"][..]),
        ("data info rhyme.txt --tokenizer nonsense", &["--tokenizer nonsense", ".bin"]),
        ("tokenize a --special <x>", &["--special", ".tiktoken"]),
        ("tokenize a --split gpt2", &["--split", ".tiktoken"]),
        ("inspect --model m --prompt Twi --context-length 1", &["--context-length is 1", "has 16"]),
        ("inspect --model m --prompt Twi --dropout 0.5", &["--dropout"]),
        ("bench prefill --preset nano --tokens 2147483648", &["--tokens is 2147483648"]),
        ("bench decode --preset nano --tokens 0", &["--tokens is 0"]),
    ] {
        f.fails(2, arguments, says);
    }
    f.fails(1, "plan --data rhyme.txt --activation leaky-relu --leaky-slope 1e308", &["leaky_slope", "1e6"]);
    // what was chosen when a run began holds when it goes on
    assert!(text(&f.bytes("m/limpid.toml")).contains("sample = \"0\""));
    let (shown, said) = f.both("train --resume m");
    assert!(shown.is_empty() && !said.contains("a sample"), "{said}");
}

#[test]
fn what_was_said_wrong_is_named() {
    let f = trained("words");
    let file = f.file("c.toml", "resume = \"m\"\n");
    let said = f.fails(2, &format!("plan --config {file}"), &["c.toml", "`resume`", "--resume"]);
    assert!(!said.contains("did you mean"), "{said}");
    f.file("t.toml", "threads = \"many\"\n");
    f.fails(2, "plan --config t.toml", &["'threads in t.toml'", "many"]);
    for verb in ["generate", "inspect"] {
        let tip = "a text is given with --prompt: --prompt 'Twinkle, twinkle'";
        f.fails(2, &format!("{verb} m 'Twinkle, twinkle'"), &["unexpected argument", tip]);
    }
    let not_unicode = std::ffi::OsStr::from_bytes(b"run\xff");
    let run = |arguments: &str, environment: Option<(&str, &std::ffi::OsStr)>, last: Option<&std::ffi::OsStr>| {
        let mut command = f.command(arguments);
        if let Some((name, value)) = environment {
            command.env(name, value);
        }
        let out = command.args(last).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{arguments}: {}", text(&out.stderr));
        text(&out.stderr)
    };
    let says =
        |said: String, words: &[&str]| words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    says(run("plan --data rhyme.txt", Some(("LIMPID_THREADS", "many".as_ref())), None), &["'LIMPID_THREADS'", "many"]);
    says(run("plan --data rhyme.txt", Some(("LIMPID_SIMD", "".as_ref())), None), &["LIMPID_SIMD"]);
    says(run("plan --data rhyme.txt", Some(("LIMPID_TOKENIZER", not_unicode)), None), &["LIMPID_TOKENIZER", "UTF-8"]);
    says(run("plan --data", None, Some(not_unicode)), &["--data", "UTF-8"]);
    says(run("train --resume", None, Some(not_unicode)), &["--resume", "UTF-8"]);
    // paths may be any
    let out = f
        .command("train --data rhyme.txt --steps 2 --sample 0 --json --out")
        .arg(not_unicode)
        .args(TINY.split(' '))
        .output();
    assert!(out.unwrap().status.success() && f.0.join(Path::new(not_unicode)).join("config.json").exists());
}

/// What is forced replaces a model or a run, nothing else.
#[test]
fn only_a_model_is_replaced_by_force() {
    let f = trained("forced");
    fs::create_dir(f.0.join("papers")).unwrap();
    f.file("papers/thesis.txt", "all of it");
    let train = format!("train --data rhyme.txt {TINY} --steps 2 --sample 0 --json --force --out");
    f.fails(1, &format!("{train} papers"), &["papers", "thesis.txt", "no model or run"]);
    f.fails(1, &format!("{train} /"), &["/"]);
    let out = f.command(&format!("{train} .")).env("HOME", &f.0).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert_eq!(fs::read_dir(f.0.join("papers")).unwrap().count(), 1);
    f.ok(&format!("{train} m"));
}

/// Of a pattern, what has no gradient is left out.
#[test]
fn a_pattern_of_gradients_means_those_that_there_are() {
    let f = trained("gradients");
    let found = f.json("inspect --model m --prompt Twinkle --backward --tensor *.grad --json");
    assert!(found["tensors"].as_array().unwrap().len() > 10);
    f.fails(1, "inspect --model m --prompt Twinkle --backward --tensor input.grad", &["input"]);
}
