//! A thread that exchanges blocks with the other processes while this process computes. It also adds up the blocks of
//! gradients that it receives, so a block arrives as a sum.

use super::{Ranks, RanksError, Result};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// What blocks hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TransferKind {
    /// Gradients: each process receives the sums for the parameters that it updates.
    Gradients,
    /// Parameters: all processes receive those that each has updated.
    Parameters,
}

/// A block on its way.
#[derive(Debug, Default)]
pub struct Parcel {
    /// What is sent: a part of the gradients for each process, or this process's own parameters.
    pub send: Vec<f32>,
    /// What was received: the sum of the gradients, or the parameters of each process.
    pub receive: Vec<f32>,
}

/// The thread, and the blocks that are with it.
pub struct Courier {
    ranks: Arc<Mutex<Box<dyn Ranks>>>,
    out: Option<Sender<(TransferKind, Parcel)>>,
    back: Receiver<(Parcel, Result<f64>)>,
    thread: Option<JoinHandle<()>>,
    away: usize,
    free: Vec<Parcel>,
    /// Seconds that blocks took, and how many of them this process waited.
    seconds: (f64, f64),
}

/// Locks the connection to the other processes. Only one thread uses it at a time, because all processes must make the
/// same calls in the same order.
fn reach(ranks: &Mutex<Box<dyn Ranks>>) -> MutexGuard<'_, Box<dyn Ranks>> {
    ranks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Courier {
    /// Starts the thread.
    pub fn start(ranks: Box<dyn Ranks>) -> Result<Courier> {
        let ranks = Arc::new(Mutex::new(ranks));
        let (out, jobs) = channel::<(TransferKind, Parcel)>();
        let (done, back) = channel();
        let own = ranks.clone();
        let carry = move || {
            while let Ok((kind, mut parcel)) = jobs.recv() {
                let began = Instant::now();
                let sent = exchange(&mut **reach(&own), kind, &mut parcel);
                if done.send((parcel, sent.map(|()| began.elapsed().as_secs_f64()))).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("courier".into()).spawn(carry);
        let thread = thread.map_err(|error| RanksError::Lost(error.into()))?;
        Ok(Courier { ranks, out: Some(out), back, thread: Some(thread), away: 0, free: vec![], seconds: (0.0, 0.0) })
    }

    /// The connection to the other processes, when no block is on its way.
    pub fn ranks(&self) -> MutexGuard<'_, Box<dyn Ranks>> {
        reach(&self.ranks)
    }

    /// A parcel to be filled, with room for this many numbers to send and to receive.
    pub fn parcel(&mut self, send: usize, receive: usize) -> Parcel {
        let mut parcel = self.free.pop().unwrap_or_default();
        parcel.send.resize(send, 0.0);
        parcel.receive.resize(receive, 0.0);
        parcel
    }

    /// Sends a parcel.
    pub fn send(&mut self, kind: TransferKind, parcel: Parcel) -> Result<()> {
        let sent = self.out.as_ref().map(|out| out.send((kind, parcel)));
        self.away += 1;
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(ended()) }
    }

    /// The first parcel that was sent, if it is back. With `wait`, waits until it is.
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

    /// Keeps an empty parcel for the next use.
    pub fn recycle(&mut self, parcel: Parcel) {
        self.free.push(parcel);
    }

    /// Seconds that blocks took while this process did not wait, since the last call.
    pub fn take_hidden(&mut self) -> f64 {
        let (carried, waited) = std::mem::take(&mut self.seconds);
        (carried - waited).max(0.0)
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.out = None;
        // a thread that still waits for lost processes is not joined
        if self.away == 0 {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

fn ended() -> RanksError {
    RanksError::Lost("the thread that carries messages has ended".into())
}

fn exchange(ranks: &mut dyn Ranks, kind: TransferKind, parcel: &mut Parcel) -> Result<()> {
    let Parcel { send, receive } = parcel;
    match kind {
        TransferKind::Gradients => {
            ranks.all_to_all(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(receive))?;
            tree(receive, send.len() / ranks.size());
            Ok(())
        }
        TransferKind::Parameters => ranks.all_gather(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(receive)),
    }
}

/// Adds up blocks of `k` numbers into the first block. Neighbours are added first: ((0 + 1) + (2 + 3)). The number of
/// blocks is a power of two.
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
