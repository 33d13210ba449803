//! Documents to ids on all cores, in their order: jobs of a quarter of a megabyte go to the threads, results are put in
//! order again, and no more than a few jobs a thread are ever held. A document longer than a unit is shared out itself.
//! Which thread did what changes nothing.

use super::corpus_error::CorpusError;
use super::documents::{UNIT, Unit};
use crate::tokenizer::{Error, Tokenizer};
use std::collections::BTreeMap;
use std::sync::{Mutex, mpsc};

/// Text of a job.
const JOB: usize = 256 << 10;
/// Jobs held for each thread.
const HELD: usize = 4;

/// Encodes `units` with `threads` threads and gives each with its ids to `sink`, in order. Those that are not `wanted` get
/// no ids. Nothing is given after the first error, of a unit or of the sink; what came before it has been given.
///
/// # Errors
/// The first.
pub fn encode<T: Send>(
    units: &mut dyn Iterator<Item = Result<(Unit, T), CorpusError>>,
    wanted: &(dyn Fn(&T) -> bool + Sync),
    tokenizer: &Tokenizer,
    threads: usize,
    sink: &mut dyn FnMut(Unit, T, Result<Vec<u32>, Error>) -> Result<(), CorpusError>,
) -> Result<(), CorpusError> {
    type Job<T> = (u64, Vec<(Unit, T)>);
    type Done<T> = (u64, Vec<(Unit, T, Result<Vec<u32>, Error>)>);
    let (give, take) = mpsc::channel::<Job<T>>();
    let take = Mutex::new(take);
    let (done, results) = mpsc::channel::<Done<T>>();
    let work = |done: mpsc::Sender<Done<T>>| {
        loop {
            let job = take.lock().map(|take| take.recv());
            let Ok(Ok((number, units))) = job else { return };
            let one = |(mut unit, about): (Unit, T)| {
                let text = std::mem::take(&mut unit.text);
                let on = if text.len() > UNIT { threads } else { 1 };
                let ids = if wanted(&about) { tokenizer.encode_on(on, &text) } else { Ok(vec![]) };
                (unit, about, ids)
            };
            if done.send((number, units.into_iter().map(one).collect())).is_err() {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (work, done) = (&work, done.clone());
            scope.spawn(move || work(done));
        }
        drop(done);
        let give = give; // dropped when this ends, however it does: then the threads end too
        let (mut given, mut taken, mut ready, mut failed, mut ended) = (0, 0, BTreeMap::new(), None, false);
        loop {
            while !ended && given - taken < (HELD * threads.max(1)) as u64 {
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
                    _ = give.send((given, job));
                    given += 1;
                }
            }
            if given == taken {
                return failed.map_or(Ok(()), Err);
            }
            let (number, units) = results.recv().expect("a thread that encodes panicked");
            ready.insert(number, units);
            while let Some(units) = ready.remove(&taken) {
                taken += 1;
                units.into_iter().try_for_each(|(unit, about, ids)| sink(unit, about, ids))?;
            }
        }
    })
}
