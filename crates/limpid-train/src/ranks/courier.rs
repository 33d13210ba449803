//! A thread that takes blocks to the other processes and back while this process computes. It also adds up what comes: the sums
//! are there when the block is.

use super::{Ranks, RanksError, Result};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Freight {
    /// Gradients: each process gets the sum of what it updates.
    Gradients,
    /// Parameters: all processes get those of each.
    Parameters,
}

/// A block on its way.
#[derive(Debug, Default)]
pub struct Parcel {
    /// What goes out: of gradients a part for each process, of parameters this process's own.
    pub send: Vec<f32>,
    /// What came in: of gradients the sum, of parameters a part of each process.
    pub receive: Vec<f32>,
}

/// The thread, and the blocks that it has.
pub struct Courier {
    ranks: Arc<Mutex<Box<dyn Ranks>>>,
    out: Option<Sender<(Freight, Parcel)>>,
    back: Receiver<(Parcel, Result<f64>)>,
    thread: Option<JoinHandle<()>>,
    away: usize,
    free: Vec<Parcel>,
    /// Seconds that blocks took, and seconds of them that somebody waited.
    seconds: (f64, f64),
}

/// The other processes. Nobody else speaks to them while blocks are on their way: the order in which processes speak is the same
/// in all of them.
fn reach(ranks: &Mutex<Box<dyn Ranks>>) -> MutexGuard<'_, Box<dyn Ranks>> {
    ranks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Courier {
    /// A thread for the messages of this process.
    pub fn start(ranks: Box<dyn Ranks>) -> Result<Courier> {
        let ranks = Arc::new(Mutex::new(ranks));
        let (out, jobs) = channel::<(Freight, Parcel)>();
        let (done, back) = channel();
        let own = ranks.clone();
        let carry = move || {
            while let Ok((freight, mut parcel)) = jobs.recv() {
                let began = Instant::now();
                let sent = exchange(&mut **reach(&own), freight, &mut parcel);
                if done.send((parcel, sent.map(|()| began.elapsed().as_secs_f64()))).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("courier".into()).spawn(carry);
        let thread = thread.map_err(|error| RanksError::Lost(error.into()))?;
        Ok(Courier { ranks, out: Some(out), back, thread: Some(thread), away: 0, free: vec![], seconds: (0.0, 0.0) })
    }

    /// The other processes, when no block is on its way.
    pub fn ranks(&self) -> MutexGuard<'_, Box<dyn Ranks>> {
        reach(&self.ranks)
    }

    /// A parcel to be filled, of so many numbers out and in.
    pub fn parcel(&mut self, send: usize, receive: usize) -> Parcel {
        let mut parcel = self.free.pop().unwrap_or_default();
        parcel.send.resize(send, 0.0);
        parcel.receive.resize(receive, 0.0);
        parcel
    }

    /// Sends a parcel off.
    pub fn send(&mut self, freight: Freight, parcel: Parcel) -> Result<()> {
        let sent = self.out.as_ref().map(|out| out.send((freight, parcel)));
        self.away += 1;
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(ended()) }
    }

    /// The first parcel that is away, if it is back; or when it is, if it is waited for.
    pub fn next(&mut self, wait: bool) -> Result<Option<Parcel>> {
        if self.away == 0 {
            return Ok(None);
        }
        let began = Instant::now();
        let (parcel, seconds) = match self.back.try_recv() {
            Err(TryRecvError::Empty) if !wait => return Ok(None),
            Err(TryRecvError::Empty) => self.back.recv().map_err(|_| ended())?,
            back => back.map_err(|_| ended())?,
        };
        self.away -= 1;
        self.seconds.0 += seconds?;
        self.seconds.1 += began.elapsed().as_secs_f64();
        Ok(Some(parcel))
    }

    /// Takes an empty parcel, for another time.
    pub fn keep(&mut self, parcel: Parcel) {
        self.free.push(parcel);
    }

    /// Seconds that blocks took while nobody waited, since this was asked last.
    pub fn take_hidden(&mut self) -> f64 {
        let (carried, waited) = std::mem::take(&mut self.seconds);
        (carried - waited).max(0.0)
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.out = None;
        // one that waits for processes that are gone is left behind
        if self.away == 0 {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

fn ended() -> RanksError {
    RanksError::Lost("the thread that carries messages has ended".into())
}

fn exchange(ranks: &mut dyn Ranks, freight: Freight, parcel: &mut Parcel) -> Result<()> {
    let Parcel { send, receive } = parcel;
    match freight {
        Freight::Gradients => {
            ranks.all_to_all(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(receive))?;
            tree(receive, send.len() / ranks.size());
            Ok(())
        }
        Freight::Parameters => ranks.all_gather(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(receive)),
    }
}

/// Adds up blocks of `k` numbers, as many as a power of two, into the first: neighbours first, ((0 + 1) + (2 + 3)).
pub fn tree<T: Copy + std::ops::AddAssign>(blocks: &mut [T], k: usize) {
    let mut gap = k;
    while gap < blocks.len() {
        for pair in blocks.chunks_mut(2 * gap) {
            let (left, right) = pair.split_at_mut(gap.min(pair.len()));
            left.iter_mut().zip(right).take(k).for_each(|(to, from)| *to += *from);
        }
        gap *= 2;
    }
}
