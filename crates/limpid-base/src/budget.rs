//! What may be spent on work that somebody else asks for: bytes, steps, time. Whoever does such work takes from its
//! [`Budget`] before it allocates or goes on, and stops with a [`Spent`] that says what ran out. One budget may be
//! shared by threads.

use crate::units;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is left to be spent. [`Budget::default`] has no bounds.
#[derive(Debug, Default)]
pub struct Budget {
    bytes: Option<Amount>,
    steps: Option<Amount>,
    time: Option<(Instant, Duration)>,
    cancelled: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Amount {
    allowed: u64,
    used: AtomicU64,
}

impl Amount {
    fn new(allowed: u64) -> Amount {
        Amount { allowed, used: AtomicU64::new(0) }
    }

    /// Takes `n`, or nothing if there is less: then it says what would have been used.
    fn take(&self, n: u64) -> Result<(), u64> {
        let more = |used: u64| used.checked_add(n).filter(|used| *used <= self.allowed);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|used| used.saturating_add(n))
    }
}

/// What ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    /// More bytes are `needed` than are `allowed`.
    Bytes {
        /// With those that are taken already.
        needed: u64,
        /// In all.
        allowed: u64,
    },
    /// It takes more steps than are `allowed`.
    Steps {
        /// In all.
        allowed: u64,
    },
    /// It takes longer than is `allowed`.
    Time {
        /// From when the budget was made.
        allowed: Duration,
    },
    /// Whoever asked for it has gone.
    Cancelled,
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Spent::Bytes { needed, allowed } => {
                write!(f, "it needs {} or more, {} are allowed", units::bytes(*needed), units::bytes(*allowed))
            }
            Spent::Steps { allowed } => write!(f, "it takes more than {} steps", units::commas(*allowed)),
            Spent::Time { allowed } => write!(f, "it takes longer than {}", units::duration(allowed.as_secs_f64())),
            Spent::Cancelled => write!(f, "it was cancelled"),
        }
    }
}

impl std::error::Error for Spent {}

impl Budget {
    /// The same with at most `allowed` bytes held at a time.
    #[must_use]
    pub fn bytes(self, allowed: u64) -> Budget {
        Budget { bytes: Some(Amount::new(allowed)), ..self }
    }

    /// The same with at most `allowed` steps; what a step is, the work says.
    #[must_use]
    pub fn steps(self, allowed: u64) -> Budget {
        Budget { steps: Some(Amount::new(allowed)), ..self }
    }

    /// The same with an end `allowed` from now.
    #[must_use]
    pub fn time(self, allowed: Duration) -> Budget {
        Budget { time: Instant::now().checked_add(allowed).map(|end| (end, allowed)), ..self }
    }

    /// The same, until the flag is set.
    #[must_use]
    pub fn unless(self, cancelled: Arc<AtomicBool>) -> Budget {
        Budget { cancelled: Some(cancelled), ..self }
    }

    /// Takes bytes that are about to be allocated.
    ///
    /// # Errors
    /// If fewer are left: then none is taken.
    pub fn take_bytes(&self, n: u64) -> Result<(), Spent> {
        let Some(bytes) = &self.bytes else { return Ok(()) };
        bytes.take(n).map_err(|needed| Spent::Bytes { needed, allowed: bytes.allowed })
    }

    /// Gives back bytes that were taken and are free again.
    pub fn give_bytes(&self, n: u64) {
        if let Some(bytes) = &self.bytes {
            let less = |used: u64| Some(used.saturating_sub(n));
            let _ = bytes.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Takes `n` steps that are about to be done, and asks whether there is time and somebody waits for them.
    ///
    /// # Errors
    /// What ran out.
    pub fn take_steps(&self, n: u64) -> Result<(), Spent> {
        if let Some(steps) = &self.steps {
            steps.take(n).map_err(|_| Spent::Steps { allowed: steps.allowed })?;
        }
        if self.cancelled.as_ref().is_some_and(|cancelled| cancelled.load(Ordering::Relaxed)) {
            return Err(Spent::Cancelled);
        }
        match self.time {
            Some((end, allowed)) if Instant::now() >= end => Err(Spent::Time { allowed }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_named_and_what_does_not_fit_is_not_taken() {
        let budget = Budget::default().bytes(10).steps(3);
        assert_eq!(budget.take_bytes(6), Ok(()));
        assert_eq!(budget.take_bytes(u64::MAX), Err(Spent::Bytes { needed: u64::MAX, allowed: 10 }));
        assert_eq!(budget.take_bytes(5), Err(Spent::Bytes { needed: 11, allowed: 10 }));
        assert_eq!(budget.take_bytes(4), Ok(()));
        budget.give_bytes(6);
        assert_eq!(budget.take_bytes(6), Ok(()));
        assert_eq!((budget.take_steps(3), budget.take_steps(1)), (Ok(()), Err(Spent::Steps { allowed: 3 })));
        let cancelled = Arc::new(AtomicBool::new(false));
        let budget = Budget::default().unless(cancelled.clone()).time(Duration::MAX);
        assert_eq!((budget.take_steps(u64::MAX), budget.take_bytes(u64::MAX)), (Ok(()), Ok(())));
        cancelled.store(true, Ordering::Relaxed);
        assert_eq!(budget.take_steps(0), Err(Spent::Cancelled));
        let none = Duration::ZERO;
        assert_eq!(Budget::default().time(none).take_steps(1), Err(Spent::Time { allowed: none }));
        assert_eq!(
            Spent::Bytes { needed: 2_000_000, allowed: 10 }.to_string(),
            "it needs 2.0 MB or more, 10 bytes are allowed"
        );
    }

    /// Threads that take at the same time never take more than there is.
    #[test]
    fn threads_share_a_budget() {
        let budget = Budget::default().bytes(1000);
        let taken: usize = std::thread::scope(|scope| {
            let take = || (0..400).filter(|_| budget.take_bytes(1).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1000);
    }
}
