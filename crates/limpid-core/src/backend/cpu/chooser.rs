//! How many threads to use: [`ThreadChooser`] tries numbers of threads while a model runs and keeps the fastest. More
//! threads are not always faster: small ops end before all threads are awake, other programs take cores, and two
//! threads may share one core. No bit depends on the choice, so it may change between any two runs.
//!
//! The chooser has no clock: its caller reports what each run took. It compares the time for a unit of work (a row),
//! and drops the first run after each change, which finds cold caches. `turns` reports to it.
//!
//! 1. **Search.** All threads are measured, then as many as there are tasks (a shard of the batch each), then halves
//!    of the least while that may still help; then numbers between the best one and its neighbours, until they are a
//!    sixteenth of it apart.
//! 2. **Looks.** Later one other number at a time is tried for a few runs: one that is near, the tasks, all. A better
//!    one, or a change of the chosen one's own time, begins a search around it.
//!
//! What trials lose is paid from a credit that grows by 1 % of the time. The first search alone is free, and only if
//! there are more than two threads: with two there is little to gain.

use limpid_base::plural::plural;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The share of the time that trials may lose.
const DISTURBANCE: f64 = 0.01;

/// Seconds that a measurement lasts at least. Shorter runs are measured several at a time.
const SHORTEST: f64 = 1e-3;

/// Measurements that are kept of the chosen number; their median counts. Others that last longer, because other
/// programs ran for a moment, are rarely half of so many.
const KEPT: usize = 15;

/// Measurements of a trial at most; their median counts.
const MOST: usize = 5;

/// Measurements of a trial if it is not [`CLOSE`].
const USUAL: usize = 3;

/// Two times are close if they differ by less than this share.
const CLOSE: f64 = 0.05;

/// A trial ends after two measurements that are this many times as long as the chosen number's.
const HOPELESS: f64 = 1.1;

/// A search goes on beyond a number that takes at most this many times as long as the best.
const LEADS_ON: f64 = 1.25;

/// By which share a search's next number must be faster.
const MARGIN: f64 = 0.01;

/// By which share a number must be faster, beside the noise, that is chosen after the search.
const LATER_MARGIN: f64 = 0.03;

/// Measurements of the chosen number between two looks.
const CALM: usize = 20;

/// By which share the chosen number's time may drift before a new search.
const DRIFT: f64 = 0.2;

/// How many threads were chosen, and what each number that was tried gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadTimes {
    /// The number that was chosen.
    pub chosen: usize,
    /// The most that could be chosen.
    pub most: usize,
    /// Numbers of threads, ascending, and the seconds of a run with each.
    pub seconds: Vec<(usize, f64)>,
}

impl fmt::Display for ThreadTimes {
    /// As in `8 of 16 threads (4: 2.4 ms, 8: 1.9 ms, 16: 3.5 ms)`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} of {}", self.chosen, plural(self.most, "thread"))?;
        for (i, (threads, seconds)) in self.seconds.iter().enumerate() {
            let milliseconds = 1e3 * seconds;
            let digits = if milliseconds < 1.0 { 3 } else { 1 };
            write!(f, "{}{threads}: {milliseconds:.digits$} ms", if i == 0 { " (" } else { ", " })?;
        }
        f.write_str(if self.seconds.is_empty() { "" } else { ")" })
    }
}

/// What is known of a number of threads.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Seconds for a unit of work; 0 if it was never tried.
    time: f64,
    /// Whether it was measured in the present search.
    fresh: bool,
}

/// The last measurements of one number of threads.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    last: [f64; KEPT],
    count: usize,
}

impl Samples {
    fn add(&mut self, time: f64) {
        self.last[self.count % KEPT] = time;
        self.count += 1;
    }
    /// The time that is longer than so many quarters of the others; of two median ones, the lower.
    fn quartile(&self, quarters: usize) -> f64 {
        let (mut sorted, n) = (self.last, self.count.min(KEPT));
        sorted[..n].sort_unstable_by(f64::total_cmp);
        sorted[n.saturating_sub(1) * quarters / 4]
    }
    fn median(&self) -> f64 {
        self.quartile(2)
    }
    /// How far the middle half is apart, as a share of the median.
    fn noise(&self) -> f64 {
        (self.quartile(3) - self.quartile(1)) / self.median()
    }
}

/// Chooses how many threads work.
#[derive(Clone, Debug)]
pub struct ThreadChooser {
    /// What is known of 1, 2, ... threads.
    known: Vec<Known>,
    /// A number that is always tried.
    tasks: usize,
    chosen: usize,
    /// Measurements of the chosen number since the last trial.
    own: Samples,
    /// The number on trial, with its measurements.
    trial: Option<(usize, Samples)>,
    searching: bool,
    /// Whether the search that runs is free.
    free: bool,
    /// Whether the next run is the first one with its number of threads.
    changed: bool,
    /// Work and seconds of the measurement that has begun.
    work: f64,
    seconds: f64,
    /// Seconds that a measurement of the chosen number takes.
    measurement: f64,
    /// Seconds that trials may lose now.
    credit: f64,
    /// Counts the looks at other numbers.
    looks: usize,
}

impl ThreadChooser {
    /// Chooses from 1 to `most` threads and begins with `most`, at least 1. A run has that many `tasks` that one thread
    /// does alone, at least 1: as many threads are tried early, because the time need not fall or rise evenly there.
    pub fn new(most: usize, tasks: usize) -> ThreadChooser {
        let most = most.max(1);
        ThreadChooser {
            known: vec![Known::default(); most],
            tasks: tasks.clamp(1, most),
            chosen: most,
            own: Samples::default(),
            trial: None,
            searching: true,
            free: most > 2,
            changed: true,
            work: 0.0,
            seconds: 0.0,
            measurement: 0.0,
            credit: 0.0,
            looks: 0,
        }
    }

    /// How many threads the next run should use.
    pub fn threads(&self) -> usize {
        self.trial.map_or(self.chosen, |(threads, _)| threads)
    }

    /// The number that was fastest so far: all threads before there is another.
    pub fn chosen(&self) -> usize {
        self.chosen
    }

    /// The most threads it may choose.
    pub fn most(&self) -> usize {
        self.known.len()
    }

    /// Whether it has ended its first search. It may still change its choice.
    pub fn is_settled(&self) -> bool {
        !self.free
    }

    /// The choice, and what so much work took with each number of threads when it was measured last.
    pub fn times(&self, work: f64) -> ThreadTimes {
        let tried = (1..).zip(&self.known).filter(|(_, known)| known.time > 0.0);
        let seconds = tried.map(|(threads, known)| (threads, work * known.time)).collect();
        ThreadTimes { chosen: self.chosen, most: self.most(), seconds }
    }

    /// Takes what the last run took: `seconds` for so much `work`.
    pub fn report(&mut self, work: f64, seconds: f64) {
        if self.most() == 1 || work <= 0.0 {
            return;
        }
        self.account(work, seconds);
        if std::mem::take(&mut self.changed) {
            return;
        }
        self.work += work;
        self.seconds += seconds;
        if self.seconds < SHORTEST {
            return;
        }
        let (work, seconds) = (std::mem::take(&mut self.work), std::mem::take(&mut self.seconds));
        match &mut self.trial {
            Some((threads, samples)) => {
                samples.add(seconds / work);
                let (threads, samples) = (*threads, *samples);
                if self.has_enough(&samples) {
                    self.judge(threads, &samples);
                }
            }
            None => {
                self.measurement = seconds;
                self.own.add(seconds / work);
                if self.own.count >= if self.free { USUAL } else { MOST } {
                    self.refresh();
                    self.look();
                }
            }
        }
    }

    /// Adds to the credit, and takes from it what a trial, or the first run after one, lost.
    fn account(&mut self, work: f64, seconds: f64) {
        let usual = work * self.known[self.chosen - 1].time;
        if self.free || usual == 0.0 {
            return;
        }
        let lost = if self.trial.is_some() || self.changed { (seconds - usual).max(0.0) } else { 0.0 };
        self.credit += DISTURBANCE * seconds - lost;
    }

    /// Seconds that a unit of work takes with the chosen number now.
    fn own_time(&self) -> f64 {
        if self.own.count > 0 { self.own.median() } else { self.known[self.chosen - 1].time }
    }

    /// Whether a trial can be judged.
    fn has_enough(&self, samples: &Samples) -> bool {
        let own = self.own_time();
        match samples.count {
            0 | 1 => false,
            2 => samples.median() > HOPELESS * own || self.free && samples.median() < own / HOPELESS,
            USUAL.. => self.free || samples.count >= MOST || (samples.median() / own - 1.0).abs() > CLOSE,
        }
    }

    /// Ends a trial.
    fn judge(&mut self, threads: usize, samples: &Samples) {
        let (own, time) = (self.own_time(), samples.median());
        let margin = if self.searching { MARGIN } else { LATER_MARGIN + self.own.noise() };
        self.known[threads - 1] = Known { time, fresh: true };
        self.trial = None;
        if time < own * (1.0 - margin) {
            if !self.searching {
                self.search_around(threads);
                self.known[self.chosen - 1] = Known { time: own, fresh: true };
            }
            (self.chosen, self.own) = (threads, *samples);
        } else {
            self.changed = true;
            if !self.free {
                self.own = Samples::default();
            }
        }
        self.look();
    }

    /// Takes the chosen number's time of late; if it has drifted, other programs or the work have changed.
    fn refresh(&mut self) {
        let (before, time) = (self.known[self.chosen - 1].time, self.own.median());
        if before == 0.0 || self.own.count >= KEPT && (time / before - 1.0).abs() > DRIFT {
            self.search_around(self.chosen);
            self.known[self.chosen - 1].time = time;
        }
    }

    /// Begins a search around a number that was just measured.
    fn search_around(&mut self, threads: usize) {
        self.searching = true;
        self.known.iter_mut().for_each(|known| known.fresh = false);
        self.known[threads - 1].fresh = true;
    }

    /// Begins the next trial, if there is one that the credit pays.
    fn look(&mut self) {
        if self.searching {
            match self.next_in_search() {
                Some(threads) if self.free || self.pays(threads) => {
                    return self.try_threads(threads);
                }
                Some(_) => return,
                None => (self.searching, self.free, self.changed) = (false, false, true),
            }
        }
        if self.own.count >= CALM {
            let (own, most) = (self.chosen, self.most());
            let near = [own / 2, 2 * own, 3 * own / 4, (3 * own).div_ceil(2), self.tasks, most];
            let other = |at: usize| Some(near[at % near.len()]).filter(|n| *n != own && (1..=most).contains(n));
            let Some(at) = (self.looks..self.looks + near.len()).find(|at| other(*at).is_some()) else { return };
            if let Some(threads) = other(at).filter(|threads| self.pays(*threads)) {
                self.looks = at + 1;
                self.try_threads(threads);
            }
        }
    }

    /// Whether the credit pays a trial, of which the first run and some measurements are lost in part. A number that
    /// was never tried is taken to be half as fast.
    fn pays(&self, threads: usize) -> bool {
        let [own, other] = [self.chosen, threads].map(|n| self.known[n - 1].time);
        let ratio = if other > 0.0 { other / own } else { 2.0 };
        let runs = if ratio > HOPELESS { 3.0 } else { 1.0 + MOST as f64 };
        self.credit >= self.measurement * runs * (ratio - 1.0).max(0.1)
    }

    /// The number that the search tries next.
    fn next_in_search(&self) -> Option<usize> {
        let best = self.chosen;
        let is_fresh = |n: &usize| self.known[n - 1].fresh;
        let may_lead_on = |n: &usize| self.known[n - 1].time < LEADS_ON * self.known[best - 1].time;
        if self.free && !is_fresh(&self.tasks) {
            return Some(self.tasks);
        }
        let first = (1..=best).find(is_fresh)?;
        let last = (best..=self.most()).rev().find(is_fresh)?;
        if first > 1 && may_lead_on(&first) {
            return Some(first.div_ceil(2));
        }
        if last < self.most() && may_lead_on(&last) {
            return Some((2 * last).min(self.most()));
        }
        // the wider gap beside the best first, and of two the one to the faster neighbour
        let beside = [(1..best).rev().find(is_fresh), (best + 1..=self.most()).find(is_fresh)];
        let gaps = beside.into_iter().flatten().map(|n| (n.abs_diff(best), n));
        let wide = gaps.filter(|(gap, _)| *gap > (best / 16).max(1));
        let order = |a: &(usize, usize), b: &(usize, usize)| {
            let [a_time, b_time] = [a, b].map(|(_, n)| self.known[n - 1].time);
            a.0.cmp(&b.0).then(b_time.total_cmp(&a_time))
        };
        wide.max_by(order).map(|(_, n)| (n + best) / 2)
    }

    fn try_threads(&mut self, threads: usize) {
        (self.trial, self.changed) = (Some((threads, Samples::default())), true);
    }
}

#[cfg(test)]
#[path = "chooser_tests.rs"]
mod tests;
