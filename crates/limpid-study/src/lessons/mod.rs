//! Lessons: what is said of transformers, measured. A lesson makes its own small runs, shows what it found as
//! [`View`]s, and says of each claim whether it holds on this run. `limpid lesson NAME` prints one; docs/lessons.md
//! explains them.
//!
//! ```
//! use limpid_study::lessons::Topic;
//! use limpid::train::Control;
//!
//! let lesson = Topic::named("underflow")?.run(1, |_| Control::Continue)?;
//! assert!(lesson.claims.iter().all(|claim| claim.holds));
//! # Ok::<(), limpid::Error>(())
//! ```
//!
//! A run has one thread, runs have as many as there are cores, and numbers are the same with any number of them. Read
//! `training` next, what the lessons share that train.

mod agreement;
mod depth;
mod embedding;
mod gelu_fit;
mod gradients;
mod induction;
mod one_step;
mod positions;
mod regularisation;
mod sizes;
mod softmax;
mod stability;
mod steering;
mod training;
mod underflow;

use crate::grid;
use limpid::{Error, Machine};
use limpid_base::units::short;
use limpid_core::backend::{BackendError, Cpu};
use limpid_core::config::{ConfigError, unknown};
use limpid_core::numeric::random;
use limpid_draw::view::View;
use limpid_train::Control;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::{iter, thread};

/// What a lesson is about; [`Topic::run`] measures it.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// Its name: `heads`.
    pub name: &'static str,
    /// What it asks, in a line.
    pub title: &'static str,
    /// What it does.
    pub about: &'static str,
    teach: fn(&mut Class) -> Result<(), Error>,
}

/// All lessons, in the order in which to read them.
pub const ALL: &[Topic] = &[
    one_step::TOPIC,
    underflow::TOPIC,
    softmax::SHARPNESS,
    softmax::FILL,
    gelu_fit::TOPIC,
    embedding::TOPIC,
    positions::TOPIC,
    sizes::HEADS,
    sizes::WIDTH,
    sizes::DEPTH,
    gradients::TOPIC,
    depth::TOPIC,
    stability::TOPIC,
    regularisation::TOPIC,
    induction::TOPIC,
    induction::FORMATION,
    agreement::TOPIC,
    steering::TOPIC,
];

/// What a lesson found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lesson {
    /// Its name.
    pub name: &'static str,
    /// What it asks.
    pub title: &'static str,
    /// What it did.
    pub about: &'static str,
    /// What decided its random numbers.
    pub seed: u64,
    /// What was measured: tables and heat maps.
    pub views: Vec<View>,
    /// What is claimed, and whether it holds.
    pub claims: Vec<Claim>,
}

/// Something that is said, and the numbers that it rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// What is said.
    pub text: String,
    /// Whether all numbers are within their bounds.
    pub holds: bool,
    /// What was measured.
    pub numbers: Vec<Measured>,
}

/// A number with its bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// What was measured.
    pub what: String,
    /// What it came to; an infinity or a NaN (`null` in JSON) where a run broke.
    pub value: f64,
    /// The claim holds from here; minus infinity (`null` in JSON) for no bound.
    pub least: f64,
    /// The claim holds up to here; infinity (`null` in JSON) for no bound.
    pub most: f64,
}

/// Where a lesson stands.
#[derive(Clone, Debug, PartialEq)]
pub struct LessonEvent {
    /// What is done, of [`LessonEvent::total`]: steps of training, or rows of a table.
    pub done: u64,
    /// All that there is to do.
    pub total: u64,
    /// The run that is a step further.
    pub run: String,
}

impl Topic {
    /// The lesson of that name.
    ///
    /// # Errors
    /// If there is none; it names the nearest.
    pub fn named(name: &str) -> Result<&'static Topic, ConfigError> {
        let names: Vec<&str> = ALL.iter().map(|topic| topic.name).collect();
        ALL.iter().find(|topic| topic.name == name).ok_or_else(|| unknown("lesson", name, &names))
    }

    /// Gives the lesson, with random numbers decided by `seed`.
    ///
    /// # Errors
    /// [`Error::Stopped`] if `progress` says stop; if the system refuses threads or memory.
    pub fn run(&self, seed: u64, mut progress: impl FnMut(LessonEvent) -> Control) -> Result<Lesson, Error> {
        let mut class = Class { seed, progress: &mut progress, views: vec![], claims: vec![] };
        (self.teach)(&mut class)?;
        let Class { views, claims, .. } = class;
        Ok(Lesson { name: self.name, title: self.title, about: self.about, seed, views, claims })
    }
}

impl Claim {
    /// It as a sentence, with what was measured.
    pub fn view(&self) -> View {
        let numbers: Vec<String> = self.numbers.iter().map(Measured::text).collect();
        View::Sentence { text: format!("{} ({})", self.text, numbers.join("; ")), holds: Some(self.holds) }
    }
}

impl Measured {
    fn text(&self) -> String {
        let [value, least, most] = [self.value, self.least, self.most].map(number);
        let bounds = match (self.least.is_finite(), self.most.is_finite()) {
            (true, true) if least == most => format!("expected {least}"),
            (true, true) => format!("from {least} to {most}"),
            (true, false) => format!("at least {least}"),
            (false, _) => format!("at most {most}"),
        };
        format!("{}: {value}, {bounds}", self.what)
    }
}

/// A number to read: `short` without zeros at its end.
fn number(v: f64) -> String {
    if !v.is_finite() {
        return "not finite".into();
    }
    let text = short(v);
    let (digits, exponent) = text.find('e').map_or((&*text, ""), |at| text.split_at(at));
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{exponent}")
}

// ---- what lessons are made of

/// The geometric mean of three draws, number by number.
fn means(draws: &[Vec<f64>; 3]) -> Vec<f64> {
    let [a, b, c] = draws;
    a.iter().zip(b).zip(c).map(|((a, b), c)| ((a.ln() + b.ln() + c.ln()) / 3.0).exp()).collect()
}

/// A lesson under way: its seed, who hears of it and may stop it, and what it has shown and claimed.
struct Class<'a> {
    seed: u64,
    progress: &'a mut dyn FnMut(LessonEvent) -> Control,
    views: Vec<View>,
    claims: Vec<Claim>,
}

/// Says that a run is a step further.
///
/// # Errors
/// [`Error::Stopped`] if the lesson is to stop.
type Tick<'a> = &'a dyn Fn() -> Result<(), Error>;

impl Class<'_> {
    fn show(&mut self, view: View) {
        self.views.push(view);
    }

    fn table<H: Into<String>>(
        &mut self,
        title: impl Into<String>,
        headers: impl IntoIterator<Item = H>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) {
        self.show(grid(title, headers, rows));
    }

    /// A claim; the numbers that it rests on follow.
    fn claim(&mut self, text: impl Into<String>) {
        self.claims.push(Claim { text: text.into(), holds: true, numbers: vec![] });
    }
    fn between(&mut self, what: impl Into<String>, value: f64, least: f64, most: f64) {
        let claim = self.claims.last_mut().expect("a claim comes before its numbers");
        claim.holds &= (least..=most).contains(&value);
        claim.numbers.push(Measured { what: what.into(), value, least, most });
    }
    fn at_least(&mut self, what: impl Into<String>, value: f64, least: f64) {
        self.between(what, value, least, f64::INFINITY);
    }
    fn at_most(&mut self, what: impl Into<String>, value: f64, most: f64) {
        self.between(what, value, f64::NEG_INFINITY, most);
    }

    /// Seeds of three draws, whose geometric mean says more than one.
    fn draws(&self) -> [u64; 3] {
        [0, 1, 2].map(|draw| random::bits(self.seed, random::site("draw"), draw))
    }

    /// Applies `f` to each, which has a name, on as many threads as there are cores; results come in order. `f` calls
    /// its second operand after each of its steps, `total` times in all.
    fn each<T: Sync, R: Send>(
        &mut self,
        of: &[(String, T)],
        total: u64,
        f: impl Fn(&T, Tick) -> Result<R, Error> + Sync,
    ) -> Result<Vec<R>, Error> {
        let workers = Machine::default().threads.min(of.len());
        Cpu::can_start(workers)?;
        let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (told, heard) = mpsc::sync_channel(0); // nobody is a step ahead of who hears of it
        let work = |told: mpsc::SyncSender<usize>| {
            let run = |i: usize, one: &T| {
                let tick = || {
                    let _ = told.send(i); // whoever hears it outlives the run
                    if stopped.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
                };
                // where one fails, no other begins
                f(one, &tick).inspect_err(|_| next.store(of.len(), Ordering::Relaxed))
            };
            let begin = || {
                let i = next.fetch_add(1, Ordering::Relaxed);
                of.get(i).map(|(_, one)| (i, run(i, one)))
            };
            iter::from_fn(begin).collect::<Vec<_>>()
        };
        let mut done = thread::scope(|scope| -> Result<Vec<_>, Error> {
            let work = &work;
            let start = |told| thread::Builder::new().spawn_scoped(scope, move || work(told));
            // fewer are slower; with none nothing is done
            let (running, refused): (Vec<_>, Vec<_>) =
                iter::repeat_n(told, workers).map(start).partition(std::result::Result::is_ok);
            if let (true, Some(Err(error))) = (running.is_empty(), refused.into_iter().next()) {
                let what = error.to_string();
                return Err(BackendError::Thread { thread: 1, threads: workers, what }.into());
            }
            for (done, i) in (1..).zip(heard) {
                let event = LessonEvent { done, total, run: of[i].0.clone() };
                if (self.progress)(event) == Control::Stop {
                    stopped.store(true, Ordering::Relaxed);
                }
            }
            Ok(running.into_iter().flatten().flat_map(|run| run.join().expect("a run returns")).collect())
        })?;
        done.sort_by_key(|(i, _)| *i);
        done.into_iter().map(|(_, found)| found).collect()
    }

    /// [`Class::each`] of what takes one step.
    fn map<T: Sync, R: Send>(
        &mut self,
        of: &[(String, T)],
        f: impl Fn(&T) -> Result<R, Error> + Sync,
    ) -> Result<Vec<R>, Error> {
        self.each(of, of.len() as u64, |one, tick| f(one).and_then(|found| tick().map(|()| found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a lesson claims that does this, and whether it holds.
    pub(super) fn claims(teach: impl FnOnce(&mut Class) -> Result<(), Error>) -> Vec<(String, bool)> {
        let mut class = Class { seed: 1, progress: &mut |_| Control::Continue, views: vec![], claims: vec![] };
        teach(&mut class).unwrap();
        class.claims.into_iter().map(|claim| (claim.text, claim.holds)).collect()
    }

    /// The claim of a lesson that does this.
    fn claimed(teach: impl FnOnce(&mut Class)) -> Claim {
        let mut class = Class { seed: 1, progress: &mut |_| Control::Continue, views: vec![], claims: vec![] };
        teach(&mut class);
        class.claims.remove(0)
    }

    #[test]
    fn a_claim_holds_where_all_its_numbers_are_within_their_bounds() {
        let nothing = f64::NAN;
        for (value, holds) in
            [(0.5, true), (1.0, true), (1.5, false), (0.0, false), (nothing, false), (f64::INFINITY, false)]
        {
            let claim = claimed(|class| {
                class.claim("It is so");
                class.at_least("a", 1.0, 0.0);
                class.between("b", value, 0.25, 1.0);
            });
            let said = if value.is_finite() { value.to_string() } else { "not finite".into() };
            assert_eq!(claim.holds, holds, "{value}");
            assert_eq!(
                claim.view(),
                View::Sentence {
                    text: format!("It is so (a: 1, at least 0; b: {said}, from 0.25 to 1)"),
                    holds: Some(holds)
                }
            );
        }
        let alone = |number: fn(&mut Class)| {
            claimed(|class| {
                class.claim("");
                number(class);
            })
        };
        assert!(!alone(|class| class.at_most("a", 1.5, 1.0)).holds);
        assert!(!alone(|class| class.at_least("a", -1.5, -1.0)).holds);
    }

    #[test]
    fn numbers_are_short() {
        for (v, text) in [
            (1e-5, "1e-5"),
            (3.25e8, "3.25e8"),
            (0.5, "0.5"),
            (-0.02, "-0.02"),
            (10.0, "10"),
            (1.0 / 3.0, "0.3333"),
            (0.0, "0"),
        ] {
            assert_eq!(number(v), text);
        }
    }

    #[test]
    fn what_fails_first_ends_a_lesson() {
        let mut told = 0;
        let mut class = Class {
            seed: 1,
            progress: &mut |_| {
                told += 1;
                Control::Continue
            },
            views: vec![],
            claims: vec![],
        };
        let of: Vec<(String, u64)> = (0..200).map(|i| (i.to_string(), i)).collect();
        let fails = class.map(&of, |i| if *i == 3 { Err(Error::Empty) } else { Ok(*i) });
        assert!(matches!(fails, Err(Error::Empty)));
        assert_eq!(class.map(&of, |i| Ok(2 * i)).unwrap(), (0..200).map(|i| 2 * i).collect::<Vec<_>>());
        assert!((200..400).contains(&told), "{told}");
    }
}
