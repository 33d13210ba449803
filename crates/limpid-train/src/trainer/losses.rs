//! The losses of a step's micro-batches. Each is requested when its micro-batch has run and fetched later, so that a
//! device need not wait. They are added up as the gradients are, in a binary tree.

use limpid_core::backend::{self, Backend, Ticket};
use limpid_core::ops::Region;
use std::collections::VecDeque;

/// The most micro-batches whose losses are requested and not fetched. More would keep no device busier, and a backend
/// may hold the losses of each in memory.
const IN_FLIGHT: usize = 4;

/// The losses of micro-batches, in their order.
#[derive(Default)]
pub(super) struct MicroLosses {
    /// Requested, with the number of losses of each.
    requested: VecDeque<(Ticket, usize)>,
    /// The losses of the micro-batch that was fetched last.
    values: Vec<f32>,
    /// The sums of those that were fetched and are not added up.
    sums: Vec<backend::Result<f64>>,
}

impl MicroLosses {
    /// Requests the losses of a micro-batch that has just run.
    pub fn request(&mut self, backend: &dyn Backend, losses: Region) -> backend::Result<()> {
        self.requested.push_back((backend.request(losses)?, losses.len()));
        Ok(())
    }

    /// Fetches the earliest losses if too many are requested.
    pub fn limit_requests(&mut self, backend: &dyn Backend) {
        self.fetch(backend, self.sums.len() + self.requested.len().saturating_sub(IN_FLIGHT));
    }

    /// Fetches losses until there are the sums of `micros` micro-batches.
    pub fn fetch(&mut self, backend: &dyn Backend, micros: usize) {
        while self.sums.len() < micros {
            let (ticket, len) = self.requested.pop_front().expect("a micro-batch requests its losses");
            self.values.resize(len, 0.0);
            let fetched = backend.fetch(ticket, &mut self.values);
            self.sums.push(fetched.map(|()| self.values.iter().map(|loss| f64::from(*loss)).sum()));
        }
    }

    /// The sum of the first `micros` micro-batches' losses, in their order, without taking them; NaN if one could not
    /// be fetched.
    pub fn sum_of_first(&self, micros: usize) -> f64 {
        self.sums[..micros].iter().map(|sum| sum.as_ref().copied().unwrap_or(f64::NAN)).sum()
    }

    /// Takes the losses of the first `micros` micro-batches and adds them up in a binary tree.
    ///
    /// # Errors
    /// If the losses of one could not be fetched.
    pub fn take_sum(&mut self, backend: &dyn Backend, micros: usize) -> backend::Result<f64> {
        self.fetch(backend, micros);
        let mut set_aside = [0.0; u64::BITS as usize]; // as many as a number of micro-batches has bits
        let mut count = 0;
        let mut total = Ok(0.0);
        for (place, sum) in self.sums.drain(..micros).enumerate() {
            let Ok(mut loss) = sum else { return sum };
            for _ in 0..sums_to_add(place as u64, place + 1 == micros) {
                count -= 1;
                loss += set_aside[count];
            }
            set_aside[count] = loss;
            count += 1;
            total = Ok(loss);
        }
        total
    }

    /// Forgets all of them.
    pub fn clear(&mut self, backend: &dyn Backend) {
        self.sums.clear();
        while let Some((ticket, len)) = self.requested.pop_front() {
            self.values.resize(len, 0.0);
            // a ticket is given back by fetching; the values are not used
            drop(backend.fetch(ticket, &mut self.values));
        }
    }
}

/// How many sums that were set aside are added to the micro-batch at this place: as in a binary counter, one for each
/// carry.
pub(super) fn sums_to_add(place: u64, last: bool) -> u32 {
    if last { place.count_ones() } else { place.trailing_ones() }
}
