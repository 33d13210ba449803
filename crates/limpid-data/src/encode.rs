//! Encodes documents to ids on all cores, in order. Threads get jobs of a quarter of a megabyte, and the results are
//! put back in order. At most a few jobs per thread are held in memory, with the text of those jobs or of one document.
//! Threads share a document that is longer than a unit. The result does not depend on which thread did what.

use super::corpus_error::CorpusError;
use super::documents::UNIT;
use super::inputs::Unit;
use limpid_tokenizer::{Tokenizer, TokenizerError};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, mpsc};
use std::thread;

/// Bytes of text in a job.
const JOB: usize = 256 << 10;
/// The most jobs that are held for each thread.
const HELD: usize = 4;

/// How texts become ids.
#[derive(Clone, Copy)]
pub struct Encoder<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Whether the text of a special token becomes that token, or is encoded like other text.
    pub parse_special: bool,
    /// Threads that encode.
    pub threads: usize,
}

/// Encodes `units` and passes each with its ids to `sink`, in order. Units that are not `wanted` get no ids. After the
/// first error, of a unit or of the sink, nothing more is passed on; everything before it has been.
///
/// # Errors
/// The first error.
///
/// # Panics
/// If a thread panics, so that nothing is left out unnoticed.
pub fn encode<T: Send>(
    units: &mut dyn Iterator<Item = Result<(Unit, T), CorpusError>>,
    wanted: &(dyn Fn(&T) -> bool + Sync),
    Encoder { tokenizer, parse_special, threads }: Encoder,
    sink: &mut dyn FnMut(Unit, T, Result<Vec<u32>, TokenizerError>) -> Result<(), CorpusError>,
) -> Result<(), CorpusError> {
    type Job<T> = (u64, Vec<(Unit, T)>);
    type Done<T> = (u64, thread::Result<Vec<(Unit, T, Result<Vec<u32>, TokenizerError>)>>);
    let (give, take) = mpsc::channel::<Job<T>>();
    let take = Mutex::new(take);
    let (done, results) = mpsc::channel::<Done<T>>();
    let encoded = |(number, units): Job<T>| {
        let one = |(mut unit, about): (Unit, T)| {
            let text = std::mem::take(&mut unit.text);
            let on = if text.len() > UNIT { threads } else { 1 };
            let ids = if wanted(&about) { tokenizer.encode_on(on, &text, parse_special) } else { Ok(vec![]) };
            (unit, about, ids)
        };
        // a panic is sent as a result, so that the receiver does not wait for ever
        (number, catch_unwind(AssertUnwindSafe(|| units.into_iter().map(one).collect())))
    };
    let work = |done: mpsc::Sender<Done<T>>| {
        loop {
            let job = take.lock().map(|take| take.recv());
            let Ok(Ok(job)) = job else { return };
            if done.send(encoded(job)).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let give = give; // dropped when this closure ends in any way, and then the threads end too
        let start = |_| {
            let (work, done) = (&work, done.clone());
            thread::Builder::new().spawn_scoped(scope, move || work(done)).ok()
        };
        // fewer threads give the same result; where none can be started, as in a page, this one does their work
        let alone = (0..threads.max(1)).map_while(start).count() == 0;
        let own = alone.then(|| done.clone());
        drop(done);
        let (mut given, mut taken, mut ready, mut failed, mut ended) = (0, 0, BTreeMap::new(), None, false);
        let (most, mut held) = (HELD * threads.max(1), 0);
        loop {
            while !ended && given - taken < most as u64 && held < most * JOB {
                let (mut job, mut size) = (vec![], 0);
                while size < JOB && !ended {
                    match units.next() {
                        Some(Ok((unit, about))) => {
                            size += unit.bytes + 64;
                            job.push((unit, about));
                        }
                        other => (ended, failed) = (true, other.and_then(Result::err)),
                    }
                }
                if !job.is_empty() {
                    _ = match &own {
                        Some(own) => own.send(encoded((given, job))).is_ok(),
                        None => give.send((given, job)).is_ok(),
                    };
                    (given, held) = (given + 1, held + size);
                }
            }
            if given == taken {
                return failed.map_or(Ok(()), Err);
            }
            let (number, units) = results.recv().expect("threads end only when nothing is given any more");
            ready.insert(number, units.unwrap_or_else(|panic| resume_unwind(panic)));
            while let Some(units) = ready.remove(&taken) {
                taken += 1;
                held -= units.iter().map(|(unit, ..)| unit.bytes + 64).sum::<usize>();
                units.into_iter().try_for_each(|(unit, about, ids)| sink(unit, about, ids))?;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every text is given, in order, or the panic is heard: none is left out, and nobody waits for ever.
    #[test]
    fn a_thread_that_panics_loses_nothing_silently() {
        let tokenizer = Tokenizer::named("gpt2").unwrap();
        for threads in [1, 2, 5] {
            for bad in [None, Some(0), Some(57), Some(99)] {
                let unit = |n: usize| Unit { text: "x y".into(), bytes: JOB / 2, place: n as u64, ..Unit::default() };
                let mut given = vec![];
                let done = catch_unwind(AssertUnwindSafe(|| {
                    encode(
                        &mut (0..100).map(|n| Ok((unit(n), n))),
                        &|n| {
                            assert!(Some(*n) != bad);
                            true
                        },
                        Encoder { tokenizer: &tokenizer, parse_special: true, threads },
                        &mut |_, n, ids| {
                            assert!(ids.is_ok());
                            given.push(n);
                            Ok(())
                        },
                    )
                }));
                assert_eq!(done.is_err(), bad.is_some(), "{threads} threads");
                assert!(given.iter().enumerate().all(|(i, n)| i == *n) && given.len() <= bad.unwrap_or(100));
            }
        }
    }
}
