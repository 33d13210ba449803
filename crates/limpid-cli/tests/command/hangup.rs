//! A terminal that is closed: what runs in it saves and ends, with the code that the guides name, whether the
//! terminal controls the process, so that the system sends SIGHUP, or is only where it reads and writes.
#![cfg(all(target_os = "linux", feature = "chat", feature = "serve", feature = "ui"))]

use crate::common::{Folder, LIMPID, last_holds, text, within, words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TINY: &str =
    "--tokenizer char --d-model 16 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4 --threads 1";

/// A terminal that someone looks at, and what runs in it.
struct Terminal {
    keyboard: File,
    child: Child,
    seen: String,
}

impl Terminal {
    /// Runs limpid in a new terminal, which controls it or does not.
    fn run(f: &Folder, arguments: &str, controls: bool) -> Terminal {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).and_then(|()| unlockpt(&main)).unwrap();
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&main, size).unwrap();
        let path = PathBuf::from(ptsname(&main, vec![]).unwrap().into_string().unwrap());
        let open = || Stdio::from(OwnedFd::from(File::options().read(true).write(true).open(&path).unwrap()));
        // where the tests run under nohup, what they start would ignore a closed terminal, too
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP"]).args(["setsid", "--ctty"].iter().filter(|_| controls)).arg(LIMPID);
        command.args(last_holds(words(arguments))).current_dir(&f.0);
        command.env("TERM", "xterm-256color").env("BROWSER", "true").env_remove("DISPLAY");
        let child = command.stdin(open()).stdout(open()).stderr(open()).spawn().unwrap();
        Terminal { keyboard: main.into(), child, seen: String::new() }
    }

    /// Reads what is shown until `word` is.
    fn until(&mut self, word: &str) {
        let begin = Instant::now();
        while !self.seen.contains(word) {
            let patience = Timespec { tv_sec: 180, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&self.keyboard, PollFlags::IN)], Some(&patience)).unwrap_or(0);
            assert!(ready > 0 && begin.elapsed() < Duration::from_secs(180), "no {word:?} in {:?}", self.seen);
            let mut bytes = [0; 4096];
            let n = self.keyboard.read(&mut bytes).unwrap_or_else(|e| panic!("{e}: no {word:?} in {:?}", self.seen));
            self.seen += &text(&bytes[..n]);
        }
    }

    /// Closes the terminal: the exit code of what ran in it, and how long it took.
    fn close(self) -> (Option<i32>, Duration) {
        let Terminal { keyboard, mut child, .. } = self;
        let begin = Instant::now();
        drop(keyboard);
        let ended = within(Duration::from_secs(180), || child.try_wait().unwrap().is_some());
        let took = begin.elapsed();
        if !ended {
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        assert!(ended, "it goes on in a closed terminal");
        (status.code(), took)
    }
}

/// What goes wrong after some of a text is told on a line of its own.
#[test]
fn an_error_stands_below_the_text_before_it() {
    let f = Folder::new("below");
    f.file("rhyme.txt", "Twinkle, twinkle, little star.\n".repeat(60));
    f.ok(&format!("train --data rhyme.txt {TINY} --steps 1 --sample 0 --out m --json"));
    let step = r#"{"scale":"blocks.0.hook_resid_post","by":1e38,"pos":"generated"}"#;
    let line = format!("generate m --prompt Twinkle -n 9 --intervene '[{step},{step}]'");
    let mut terminal = Terminal::run(&f, &line, true);
    terminal.until("error: step 2");
    let (text, _) = terminal.seen.split_once("error:").unwrap();
    assert!(text.starts_with("Twinkle") && text.ends_with('\n'), "{text:?}");
    assert_eq!(terminal.close().0, Some(1));
}

#[test]
#[ignore = "gate"]
fn a_closed_terminal_ends_what_runs_in_it() {
    let f = Folder::new("hangup");
    f.file("rhyme.txt", "Twinkle, twinkle, little star, how I wonder what you are.\n".repeat(60));
    let talk = r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]}"#;
    f.file("talk.jsonl", format!("{talk}\n").repeat(30));
    f.ok(&format!(
        "train --data talk.jsonl {TINY} --context-length 2048 --steps 1 --batch-size 1 --sample 0 --out m --json"
    ));
    // a text that nothing ends
    f.ok(&format!("train --data rhyme.txt {TINY} --steps 1 --sample 0 --out plain --json"));
    let train = format!(
        "train --data rhyme.txt {TINY} --steps 100000000 --schedule constant --warmup-steps 0 --save-every 100000000 \
         --sample 0"
    );
    let (both, controlled) = (&[true, false][..], &[true][..]);
    let cases = [
        // what runs, what is seen when it does, what is typed then, in which terminals it ends, with which code
        (format!("{train} --ui"), "save and stop", "", both, 130),
        (format!("{train} --ui"), "tok/s", "x\x1b[A", both, 130),
        (train.clone(), "tok/s", "", controlled, 130),
        ("chat m".into(), "> ", "", both, 130),
        ("chat m --max-tokens 100000 --temperature 1".into(), "> ", "hi\r", both, 130),
        ("generate --model plain --prompt Twinkle --max-tokens 100000000".into(), "Twinkle", "", both, 130),
        ("serve --model m --port 0".into(), "is served at", "", controlled, 0),
        ("inspect --model m --prompt hi --open --port 0".into(), "look inside at", "", controlled, 0),
    ];
    for (arguments, shown, typed, terminals, code) in cases {
        for controls in terminals {
            let case = format!("{arguments}, {typed:?}, controlled: {controls}");
            println!("{case}");
            let out = if arguments.starts_with("train") { " --out run" } else { "" };
            let mut terminal = Terminal::run(&f, &format!("{arguments}{out}"), *controls);
            terminal.until(shown);
            if !typed.is_empty() {
                terminal.keyboard.write_all(typed.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(300));
            }
            let (found, took) = terminal.close();
            assert_eq!(found, Some(code), "{case}");
            println!("  {took:?}");
            if !out.is_empty() {
                // it saved, and the folder is free
                let summary: serde_json::Value = serde_json::from_slice(&f.bytes("run/summary.json")).unwrap();
                let done = summary["steps"].as_u64().unwrap();
                assert!(summary["stopped"] == true && done > 0, "{case}: {summary}");
                let more = format!("train --resume run --steps {} --sample 0 --json", done + 2);
                assert_eq!(f.json(&more)["steps"], done + 2, "{case}");
                fs::remove_dir_all(f.0.join("run")).unwrap();
            }
        }
    }
}
