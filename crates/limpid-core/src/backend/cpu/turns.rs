//! When the number of threads may change: between turns. A turn is a training step, or a run of a model that does not
//! train. [`Cpu::choose_threads`] has each turn timed and lets [`ThreadChooser`]s choose: one for training steps, and
//! otherwise one for runs of 1, of 2 and 3, of 4 to 7, ... rows, because the best number depends on the rows.
//!
//! The backend takes memory for all threads, and cuts a batch into shards for all of them. Fewer threads use a part of
//! that memory and take several shards each, so a change moves nothing and allocates nothing.

use super::{Cpu, Result, ThreadChooser};
use crate::model::{Mode, Model};

/// A clock: the seconds since some moment, which it chooses. It must not go back.
#[derive(Clone, Copy, Debug)]
pub struct Clock(pub fn() -> f64);

impl PartialEq for Clock {
    fn eq(&self, other: &Clock) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for Clock {}

/// The turn that has begun, and who chooses the threads of the next.
pub struct Turns {
    clock: Clock,
    choosers: Vec<ThreadChooser>,
    trains: bool,
    /// Rows that were fed, and what working on them took.
    rows: usize,
    seconds: f64,
    /// Whether there was a backward pass.
    has_gradient: bool,
}

impl Turns {
    fn reset(&mut self) {
        (self.rows, self.seconds, self.has_gradient) = (0, 0.0, false);
    }
    /// Who chooses for runs of so many rows.
    fn chooser(&mut self, rows: usize) -> &mut ThreadChooser {
        let place = if self.trains { 0 } else { rows.max(1).ilog2() as usize };
        let last = self.choosers.len() - 1;
        &mut self.choosers[place.min(last)]
    }
}

impl Cpu {
    /// The same backend, which uses fewer threads where that is faster by `clock`. A model that is built to show its
    /// inside ([`Mode::Inspect`], [`Mode::Layers`]) runs too rarely to learn from, on all threads. Results are the
    /// same.
    #[must_use]
    pub fn choose_threads(mut self, model: &Model, clock: Clock) -> Cpu {
        let trains = matches!(model.mode, Mode::Train { .. });
        let kinds = match model.mode {
            _ if self.threads() == 1 => 0,
            Mode::Train { .. } => 1,
            Mode::Score { .. } | Mode::Decode { .. } => 1 + model.rows.max(1).ilog2() as usize,
            Mode::Inspect { .. } | Mode::Layers { .. } => 0,
        };
        if kinds > 0 {
            let tasks = if self.shards.len() > 1 { self.shards.len() } else { self.threads() };
            let chooser = ThreadChooser::new(self.threads(), tasks);
            let choosers = vec![chooser; kinds];
            self.turns = Some(Turns { clock, choosers, trains, rows: 0, seconds: 0.0, has_gradient: false });
        }
        self
    }

    /// Who chooses the threads.
    pub(super) fn choosers(&self) -> &[ThreadChooser] {
        self.turns.as_ref().map_or(&[], |turns| &turns.choosers)
    }

    /// Does a part of the turn.
    pub(super) fn timed<T>(&mut self, work: impl FnOnce(&mut Cpu) -> Result<T>) -> Result<T> {
        let Some(Clock(clock)) = self.turns.as_ref().map(|turns| turns.clock) else { return work(self) };
        let start = clock();
        let done = work(self);
        if let Some(turns) = &mut self.turns {
            turns.seconds += clock() - start;
        }
        done
    }

    /// Notes that so many rows were fed: the next run, or the next micro-batch of a step.
    pub(super) fn turn_takes(&mut self, rows: usize) {
        if self.turns.as_ref().is_some_and(|turns| !turns.trains) {
            self.end_turn();
        }
        let Some(turns) = &mut self.turns else { return };
        if !turns.has_gradient {
            turns.reset(); // in training: an evaluation came before
        }
        turns.rows += rows;
        if !turns.trains {
            let threads = turns.chooser(rows).threads();
            self.team.pool.use_threads(threads);
        }
    }

    /// Notes that the turn has a gradient.
    pub(super) fn turn_has_gradient(&mut self) {
        if let Some(turns) = &mut self.turns {
            turns.has_gradient = true;
        }
    }

    /// Notes that the gradient was discarded.
    pub(super) fn turn_is_void(&mut self) {
        if let Some(turns) = self.turns.as_mut().filter(|turns| turns.trains) {
            turns.reset();
        }
    }

    /// Ends the turn: with the update, or with the next run.
    pub(super) fn end_turn(&mut self) {
        let Some(turns) = &mut self.turns else { return };
        let (rows, seconds) = (turns.rows, turns.seconds);
        if seconds > 0.0 && (turns.has_gradient || !turns.trains) {
            turns.chooser(rows).report(rows as f64, seconds);
        }
        turns.reset();
        if turns.trains {
            let threads = turns.chooser(rows).threads();
            self.team.pool.use_threads(threads);
        }
    }
}
