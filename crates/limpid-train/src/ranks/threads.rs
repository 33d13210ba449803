//! Ranks as threads of one process, for tests and for trying out what several processes would do.

use super::{Ranks, RanksError, Result};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// One of several threads that train one model.
pub struct ThreadRank {
    rank: usize,
    meeting: Arc<Meeting>,
}

struct Meeting {
    size: usize,
    table: Mutex<Table>,
    changed: Condvar,
}

/// What the threads exchange: the bytes that each has put on the table, and how many have taken the others' bytes.
#[derive(Default)]
struct Table {
    laid: Vec<Option<Vec<u8>>>,
    taken: usize,
    left: bool,
}

/// `size` ranks that train together.
pub fn threads(size: usize) -> Vec<ThreadRank> {
    let table = Mutex::new(Table { laid: vec![None; size], ..Table::default() });
    let meeting = Arc::new(Meeting { size, table, changed: Condvar::new() });
    (0..size).map(|rank| ThreadRank { rank, meeting: meeting.clone() }).collect()
}

impl ThreadRank {
    /// Puts bytes on the table, waits for those of all others, and passes all to `take`.
    fn meet(&self, own: &[u8], take: impl FnOnce(&[Option<Vec<u8>>])) -> Result<()> {
        let Meeting { size, table, changed } = &*self.meeting;
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = || Err(RanksError::Lost("another of them has ended".into()));
        while table.laid[self.rank].is_some() {
            if table.left {
                return lost();
            }
            table = changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        table.laid[self.rank] = Some(own.to_vec());
        changed.notify_all();
        while table.laid.iter().any(Option::is_none) {
            if table.left {
                return lost();
            }
            table = changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        take(&table.laid);
        table.taken += 1;
        if table.taken == *size {
            table.laid.fill(None);
            table.taken = 0;
            changed.notify_all();
        } else {
            // nobody lays anything before all have taken
            while table.laid[self.rank].is_some() && !table.left {
                table = changed.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
        }
        Ok(())
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.meeting.table.lock().unwrap_or_else(PoisonError::into_inner).left = true;
        self.meeting.changed.notify_all();
    }
}

/// The blocks of all, one after the other.
fn all_of(laid: &[Option<Vec<u8>>]) -> impl Iterator<Item = &[u8]> {
    laid.iter().map(|own| own.as_deref().unwrap_or_default())
}

impl Ranks for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.meeting.size
    }
    fn here(&self) -> usize {
        self.meeting.size
    }
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<()> {
        let block = send.len() / self.size();
        self.meet(send, |laid| {
            for (i, from) in all_of(laid).enumerate() {
                receive[i * block..][..block].copy_from_slice(&from[self.rank * block..][..block]);
            }
        })
    }
    fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
        self.meet(own, |laid| {
            for (i, from) in all_of(laid).enumerate() {
                all[i * own.len()..][..own.len()].copy_from_slice(from);
            }
        })
    }
    fn bring(&mut self, from: usize, bytes: &mut [u8]) -> Result<()> {
        let own = if self.rank == from { bytes.to_vec() } else { vec![] };
        let rank = self.rank;
        self.meet(&own, |laid| {
            if rank == 0 {
                bytes.copy_from_slice(laid[from].as_deref().unwrap_or_default());
            }
        })
    }
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        let own = bytes.to_vec();
        self.meet(&own, |laid| bytes.copy_from_slice(all_of(laid).next().unwrap_or_default()))
    }
}
