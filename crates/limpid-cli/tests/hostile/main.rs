//! Hostile input: every kind of file that limpid reads, changed at random, and every flag with values that it should
//! not have. Nothing may panic, abort, hang or take more than twice the memory it states; and nothing is accepted
//! silently: what was changed is refused with an error that names the file, gives the same result, or says that it is
//! something else.
//!
//! ```text
//! cargo test --test hostile                         2,000 cases
//! LIMPID_CASES=50000 cargo test --test hostile      more
//! cargo test --test hostile -- gguf                 one subject
//! cargo test --test hostile -- gguf:123             one case alone, with what came of it
//! ```
//!
//! A case is a function of its subject's name and its number. Cases run in processes of their own (this program again),
//! so that one that aborts or hangs is found, named, and passed over. `models`, `texts` and `binary` say what is tried.

mod binary;
#[path = "../../../limpid/tests/library/common/counting.rs"]
mod counting;
mod models;
#[path = "../../../limpid/tests/library/common/mutate.rs"]
mod mutate;
mod texts;

use limpid::numeric::random;
use mutate::Dice;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

#[global_allocator]
static COUNTING: counting::Counting = counting::Counting;

/// What came of a case that is as it should be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Came {
    /// An error that names the file.
    Refused,
    /// What the whole file gives.
    Same,
    /// Another result, which says that it is another: settings or a vocabulary that are told as they were changed.
    Told,
}

/// What came of a case, or what is wrong with it.
pub type Verdict = Result<Came, String>;

/// What is tried.
pub struct Subject {
    /// What it is called on the command line.
    pub name: &'static str,
    /// How many cases there are.
    pub cases: Cases,
    /// Makes what its cases share, in an empty folder of its own.
    /// Makes what its cases share, in an empty folder of its own.
    pub new: fn(&Path) -> Trial,
}

/// How many cases a subject has.
pub enum Cases {
    /// As many as are asked for: its part among all such subjects.
    Share(usize),
    /// A list, made whole each time.
    Listed(usize),
}

/// A case by its number and its draws.
pub type Trial = Box<dyn FnMut(usize, &mut Dice) -> Verdict>;

fn subjects() -> impl Iterator<Item = &'static Subject> {
    [models::SUBJECTS, texts::SUBJECTS, binary::SUBJECTS].into_iter().flatten()
}

/// Cases where no number was asked for: what the gate makes.
const CASES: usize = 2_000;
/// A case that has said nothing for so long hangs.
const HANGS: Duration = Duration::from_secs(60);
/// A process's address space, in KiB: what asks for more than the machine has is found out.
const SPACE: usize = 8 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, from, to] = &arguments[..]
        && flag == "--work"
    {
        work(name, from.parse().unwrap(), to.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    let all: Vec<&Subject> = subjects().collect();
    // flags are the test harness's
    let wanted: Vec<(&str, Option<usize>)> = arguments
        .iter()
        .filter(|a| !a.starts_with('-'))
        .map(|a| a.split_once(':').map_or((&a[..], None), |(name, n)| (name, n.parse().ok())))
        .collect();
    let cases = std::env::var("LIMPID_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES);
    let (mut shares, mut listed) = (0, 0);
    for subject in &all {
        match subject.cases {
            Cases::Share(n) => shares += n,
            Cases::Listed(n) => listed += n,
        }
    }
    let mut jobs = vec![];
    for subject in &all {
        match wanted.iter().find(|(name, _)| *name == subject.name) {
            None if !wanted.is_empty() => {}
            Some((_, Some(one))) => jobs.push((subject.name, *one..one + 1)),
            _ => {
                let n = match subject.cases {
                    Cases::Share(share) => (cases.saturating_sub(listed) * share).div_ceil(shares),
                    Cases::Listed(n) => n,
                };
                let parts = (0..n).step_by(500).map(|from| (subject.name, from..n.min(from + 500)));
                jobs.extend(parts);
            }
        }
    }
    run(jobs)
}

/// What is known of a subject's cases.
#[derive(Default)]
struct Tally {
    came: BTreeMap<&'static str, usize>,
    failed: Vec<(usize, String)>,
    skipped: BTreeSet<String>,
    seconds: f64,
}

/// Runs stretches of cases in processes, as many at once as there are processors, and tells.
fn run(jobs: Vec<(&'static str, std::ops::Range<usize>)>) -> ExitCode {
    let start = Instant::now();
    let order: Vec<&str> = jobs.iter().map(|(name, _)| *name).collect();
    let (jobs, tallies) = (Mutex::new(jobs.into_iter()), Mutex::new(BTreeMap::<&str, Tally>::new()));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some((name, range)) = jobs.lock().unwrap().next() else { return };
                    let (start, mut from, mut found) = (Instant::now(), range.start, Tally::default());
                    while from < range.end {
                        from = drive(name, from..range.end, &mut found);
                    }
                    let mut tallies = tallies.lock().unwrap();
                    let tally = tallies.entry(name).or_default();
                    found.came.into_iter().for_each(|(came, n)| *tally.came.entry(came).or_default() += n);
                    tally.failed.extend(found.failed);
                    tally.skipped.extend(found.skipped);
                    tally.seconds += start.elapsed().as_secs_f64();
                }
            });
        }
    });
    let (tallies, mut failures, mut cases) = (tallies.into_inner().unwrap(), 0, 0);
    println!(
        "{:<22}{:>8}{:>9}{:>8}{:>8}{:>8}{:>9}",
        "subject", "cases", "refused", "same", "told", "failed", "seconds"
    );
    let mut seen = vec![];
    for name in order {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let tally = &tallies[name];
        let [refused, same, told] = ["Refused", "Same", "Told"].map(|k| tally.came.get(k).copied().unwrap_or(0));
        let (failed, all) = (tally.failed.len(), refused + same + told + tally.failed.len());
        println!("{name:<22}{all:>8}{refused:>9}{same:>8}{told:>8}{failed:>8}{:>9.1}", tally.seconds);
        (failures, cases) = (failures + failed, cases + all);
    }
    println!("{cases} cases in {:.1} s, {failures} failed", start.elapsed().as_secs_f64());
    for (name, tally) in &tallies {
        tally.skipped.iter().for_each(|why| println!("{name}: SKIPPED: {why}"));
        // failures that differ in numbers and places alone are one
        let mut kinds: BTreeMap<String, Vec<&(usize, String)>> = BTreeMap::new();
        for failure in &tally.failed {
            kinds.entry(kind(&failure.1)).or_default().push(failure);
        }
        for same in kinds.values() {
            let (number, what) = same[0];
            let more = if same.len() > 1 { format!(" (and {} more like it)", same.len() - 1) } else { String::new() };
            println!("\n{name}:{number}, seed {:016x}{more}\n  {what}", seed(name, *number));
            println!("  alone: cargo test --test hostile -- {name}:{number}");
        }
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn kind(what: &str) -> String {
    let mut kind: String = what.chars().filter(|c| c.is_alphabetic() || *c == ' ').take(90).collect();
    kind.retain(|c| c != 'x');
    kind
}

fn seed(name: &str, number: usize) -> u64 {
    random::bits(number as u64, random::site(name), 0)
}

/// Has another process run the cases of `range`. Returns where to go on: its end, or behind a case that ended the
/// process.
fn drive(name: &str, range: std::ops::Range<usize>, found: &mut Tally) -> usize {
    // a folder whose name no other process of this test has; cases that go two up from their own stay in it
    let top = std::env::temp_dir().join(format!("limpid-hostile-{}-{name}-{}", std::process::id(), range.start));
    let (folder, said) = (top.join("a/b"), top.join("stderr"));
    fs::create_dir_all(&folder).unwrap();
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -c 0; ulimit -v {SPACE}; exec \"$0\" \"$@\"")])
        .arg(me)
        .args(["--work", name, &range.start.to_string(), &range.end.to_string()])
        .env("LIMPID_HOSTILE_FOLDER", &folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (tell, hear) = mpsc::channel();
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(tell.send(line))));
    let (mut now, mut begun) = (range.start, false);
    let fault = loop {
        match hear.recv_timeout(HANGS) {
            Ok(line) => match line.split_at_checked(2) {
                Some(("@ ", n)) => (now, begun) = (n.parse().unwrap(), true),
                Some(("! ", what)) => found.failed.push((now, what.replace("\\n", "\n  "))),
                Some(("~ ", why)) => drop(found.skipped.insert(why.into())),
                Some(("= ", came)) => {
                    let came = ["Refused", "Same", "Told"].into_iter().find(|c| *c == came).unwrap();
                    *found.came.entry(came).or_default() += 1;
                }
                _ => {}
            },
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill().unwrap();
                break Some(format!("hangs: nothing came of it in {} seconds", HANGS.as_secs()));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break None,
        }
    };
    let status = child.wait().unwrap();
    reader.join().unwrap();
    let last = fs::read_to_string(&said).unwrap_or_default();
    let _ = fs::remove_dir_all(&top);
    let end = || {
        let tail: Vec<&str> = last.lines().rev().take(4).collect();
        format!("ended the process ({status}): {}", tail.into_iter().rev().collect::<Vec<_>>().join(" / "))
    };
    match fault.or_else(|| (!status.success()).then(end)) {
        None => range.end,
        Some(what) => {
            found.failed.push((now, what));
            // without what its cases share, there is none
            if begun { now + 1 } else { range.end }
        }
    }
}

/// Runs cases and says what comes of each: the other side of [`drive`].
fn work(name: &str, from: usize, to: usize) {
    let folder = PathBuf::from(std::env::var_os("LIMPID_HOSTILE_FOLDER").expect("who began this says where"));
    let subject = subjects().find(|s| s.name == name).expect("a subject");
    let mut out = std::io::stdout();
    let mut say = |line: String| drop(out.write_all(line.as_bytes()).and_then(|()| out.flush()));
    let mut trial = (subject.new)(&folder);
    static PANIC: Mutex<String> = Mutex::new(String::new());
    std::panic::set_hook(Box::new(|info| *PANIC.lock().unwrap() = format!("panicked: {info}")));
    for n in from..to {
        say(format!("@ {n}\n"));
        let mut dice = Dice::new(seed(name, n));
        let verdict = catch_unwind(AssertUnwindSafe(|| trial(n, &mut dice)));
        match verdict.unwrap_or_else(|_| Err(std::mem::take(&mut *PANIC.lock().unwrap()))) {
            Ok(came) => say(format!("= {came:?}\n")),
            Err(what) => say(format!("! {}\n", shown(&what))),
        }
    }
}

/// Says once that something cannot be tried on this machine.
pub fn skipped(why: &str) {
    println!("~ {why}");
}

/// On one line, and nothing that a terminal obeys.
fn shown(text: &str) -> String {
    text.trim()
        .chars()
        .take(1500)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}
