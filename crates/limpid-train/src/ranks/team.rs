//! What the processes that train one model do together. They add up gradients, each updates its own parameters and
//! sends them to the others, and process 0 collects what is saved. Sums are added in a fixed order, so the bits are
//! those of one process.
//!
//! Gradients are sent block by block as the backward pass computes them, and parameters are received block by block as
//! the next forward pass reads them ([`Team::carry`]). In between, the processes compute.

use super::courier::{Courier, Parcel, TransferKind, tree};
use super::shards::{BLOCK, Block, Shards, Uses};
use super::{Ranks, Result, check, hear_all};
use crate::error::TrainError;
use limpid_core::backend::Backend;
use limpid_core::ops::{MemorySpace, Region};
use limpid_core::optimizer::{Change, ParamGroup, norm_of};
use std::ops::Range;
use std::sync::MutexGuard;
use std::time::Instant;

/// The most blocks that are on their way at once.
pub(super) const AWAY: usize = 8;

/// This process and its connection to the others.
pub struct Team {
    rank: usize,
    size: usize,
    /// The connection; none if this process is alone.
    courier: Option<Courier>,
    groups: Vec<ParamGroup>,
    shards: Shards,
    /// The blocks in the order in which parameters are read.
    as_read: Vec<usize>,
    /// What is being carried.
    kind: TransferKind,
    /// Blocks of it that were sent.
    sent: usize,
    /// Blocks of it that have arrived.
    arrived: usize,
    /// Seconds that carrying added to steps, since [`Team::take_all_reduce`].
    seconds: f64,
    /// Whether this is process 0 and it is writing files, while the others wait for its orders.
    writes: bool,
}

/// What exchanging gradients and parameters took of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AllReduce {
    /// Seconds that it added to the step, including waiting for other processes.
    pub seconds: f64,
    /// Seconds during which messages were on their way while this process computed.
    pub hidden: f64,
}

/// What process 0 orders the others to do while it writes files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TeamOrder {
    /// Stop waiting for orders.
    Done,
    /// Put the weights' average in their place.
    Average,
    /// Put the weights back.
    Weights,
    /// Send what they hold of this part of a memory.
    Collect(Region),
}

impl Team {
    /// A process alone, which updates `groups`.
    pub fn alone(groups: Vec<ParamGroup>) -> Team {
        let shards = Shards::new(&groups, &Uses::default(), 1, 0);
        Team {
            rank: 0,
            size: 1,
            courier: None,
            groups,
            shards,
            as_read: vec![],
            kind: TransferKind::Gradients,
            sent: 0,
            arrived: 0,
            seconds: 0.0,
            writes: false,
        }
    }

    /// The same process among others. `uses` says when a step needs which parameters.
    pub fn among(self, ranks: Box<dyn Ranks>, uses: &Uses) -> Result<Team> {
        let (rank, size) = (ranks.rank(), ranks.size());
        let shards = Shards::new(&self.groups, uses, size, rank);
        let courier = if size > 1 { Some(Courier::start(ranks)?) } else { None };
        Ok(Team { rank, size, as_read: shards.as_read(), courier, shards, ..self })
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Which of them this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The connection to the others.
    fn ranks(&self) -> Option<MutexGuard<'_, Box<dyn Ranks>>> {
        self.courier.as_ref().map(Courier::ranks)
    }

    /// What exchanging gradients and parameters took since the last call; `None` for a process alone.
    pub fn take_all_reduce(&mut self) -> Option<AllReduce> {
        let hidden = self.courier.as_mut()?.take_hidden();
        Some(AllReduce { seconds: std::mem::take(&mut self.seconds), hidden })
    }

    /// The groups of parameters that all processes together update.
    pub fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    /// The parts of them that this process updates.
    pub fn own(&self) -> &[ParamGroup] {
        &self.shards.own
    }

    /// The micro-batches of a step of `micros` that this process runs: a whole branch of their tree.
    pub fn micros(&self, micros: u64) -> Range<u64> {
        let (rank, size) = (self.rank as u64, self.size as u64);
        rank * micros / size..(rank + 1) * micros / size
    }

    /// The places in a step where blocks are sent or needed, in order, each with the number of blocks up to there. For
    /// gradients these are entries of the backward pass, after which the blocks are final; for parameters, ops of the
    /// forward pass, before which the blocks must have arrived.
    pub fn stops(&self, kind: TransferKind) -> Vec<(usize, usize)> {
        let places: Vec<usize> = match kind {
            TransferKind::Gradients => self.shards.blocks.iter().map(|block| block.last).collect(),
            TransferKind::Parameters => self.as_read.iter().map(|i| self.shards.blocks[*i].first).collect(),
        };
        places.chunk_by(|a, b| a == b).fold(vec![], |mut stops: Vec<(usize, usize)>, same| {
            let before = stops.last().map_or(0, |(_, blocks)| *blocks);
            stops.push((same[0], before + same.len()));
            stops
        })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.shards.blocks.len()
    }

    /// Begins to carry gradients or parameters.
    pub fn begin(&mut self, kind: TransferKind) -> Result<()> {
        if let Some(courier) = &mut self.courier {
            // after an error, some blocks may still be on their way
            while let Some(parcel) = courier.next(true)? {
                courier.recycle(parcel);
            }
        }
        (self.kind, self.sent, self.arrived) = (kind, 0, 0);
        Ok(())
    }

    /// Sends the blocks before `ready`, as many as may be on their way at once, and unpacks those that have arrived.
    /// Waits until the blocks before `needed` have arrived. Each process then has the sums of the gradients that it
    /// updates, added in the tree of micro-batches, or all parameters.
    pub fn carry(&mut self, backend: &mut dyn Backend, ready: usize, needed: usize) -> Result<(), TrainError> {
        let began = Instant::now();
        if let Some(mut courier) = self.courier.take() {
            let carried = self.carry_by(&mut courier, backend, ready, needed);
            self.courier = Some(courier);
            carried?;
        }
        self.seconds += began.elapsed().as_secs_f64();
        Ok(())
    }

    /// [`Team::carry`] by this courier.
    fn carry_by(
        &mut self,
        courier: &mut Courier,
        backend: &mut dyn Backend,
        ready: usize,
        needed: usize,
    ) -> Result<(), TrainError> {
        loop {
            while self.sent < ready && self.sent < self.arrived + AWAY {
                let parcel = self.pack(courier, backend, self.sent)?;
                courier.send(self.kind, parcel)?;
                self.sent += 1;
            }
            let Some(parcel) = courier.next(self.arrived < needed)? else { return Ok(()) };
            self.unpack(&parcel, backend, self.arrived)?;
            courier.recycle(parcel);
            self.arrived += 1;
        }
    }

    /// The block at this place in the order in which they are carried.
    fn block(&self, place: usize) -> &Block {
        &self.shards.blocks[if self.kind == TransferKind::Gradients { place } else { self.as_read[place] }]
    }

    /// Fills a parcel with a block from the backend.
    fn pack(&self, courier: &mut Courier, backend: &mut dyn Backend, place: usize) -> Result<Parcel, TrainError> {
        let Block { of, len, .. } = self.block(place);
        let all = self.size * len;
        match self.kind {
            TransferKind::Gradients => {
                let mut parcel = courier.parcel(all, all);
                for (of, part) in of.iter().zip(parcel.send.chunks_exact_mut(*len)) {
                    for (range, at) in of {
                        backend.add_pushed_to(range.clone())?;
                        let to = &mut part[*at..at + range.len()];
                        backend.read_to(Region::flat(MemorySpace::Grad, range.clone()), to)?;
                    }
                }
                Ok(parcel)
            }
            TransferKind::Parameters => {
                let mut parcel = courier.parcel(*len, all);
                for (range, at) in &of[self.rank] {
                    let to = &mut parcel.send[*at..at + range.len()];
                    backend.read_to(Region::flat(MemorySpace::Param, range.clone()), to)?;
                }
                Ok(parcel)
            }
        }
    }

    /// Writes a block that has arrived to the backend.
    fn unpack(&self, parcel: &Parcel, backend: &mut dyn Backend, place: usize) -> Result<(), TrainError> {
        let Block { of, len, .. } = self.block(place);
        for (rank, (of, part)) in of.iter().zip(parcel.receive.chunks_exact(*len)).enumerate() {
            let (space, part) = match self.kind {
                TransferKind::Gradients if rank == self.rank => (MemorySpace::Grad, &parcel.receive[..*len]),
                TransferKind::Parameters if rank != self.rank => (MemorySpace::Param, part),
                _ => continue,
            };
            for (range, at) in of {
                backend.write(Region::flat(space, range.clone()), &part[*at..at + range.len()])?;
            }
        }
        Ok(())
    }

    /// Adds up the processes' losses, in the tree of micro-batches.
    pub fn add_losses(&mut self, own: f64) -> Result<f64> {
        if self.size == 1 {
            return Ok(own);
        }
        let mut losses = self.gather_all(&[own])?;
        tree(&mut losses, 1);
        Ok(losses[0])
    }

    /// The norm of the whole gradient, each process having a part of it; `None` if this process has all of it.
    pub fn norm(&mut self, backend: &mut dyn Backend) -> Result<Option<f64>, TrainError> {
        if self.size() == 1 {
            return Ok(None);
        }
        let own = backend.squares(&self.shards.own)?;
        let parts: Vec<_> = self.shards.units.iter().map(|unit| (unit.owner, unit.parts())).collect();
        Ok(Some(norm_of(&self.in_order(&own, &parts)?)))
    }

    /// Gathers each process's own numbers and puts them in order: `parts` says whose come next, and how many.
    fn in_order(&self, own: &[f64], parts: &[(usize, usize)]) -> Result<Vec<f64>> {
        let mut counts = vec![0; self.size];
        parts.iter().for_each(|(owner, count)| counts[*owner] += count);
        let most = counts.iter().copied().max().unwrap_or(0);
        let mut padded = own.to_vec();
        padded.resize(most, 0.0);
        let all = self.gather_all(&padded)?;
        let mut next: Vec<usize> = (0..self.size).map(|rank| rank * most).collect();
        let of_part = |(owner, count): &(usize, usize)| {
            next[*owner] += count;
            next[*owner] - count..next[*owner]
        };
        Ok(parts.iter().map(of_part).flat_map(|range| &all[range]).copied().collect())
    }

    /// Gives every process the parameters that the others have updated.
    pub fn spread(&mut self, backend: &mut dyn Backend) -> Result<(), TrainError> {
        self.begin(TransferKind::Parameters)?;
        self.carry(backend, self.blocks(), self.blocks())
    }

    /// Cuts what is to be measured at the borders of units, so that sums have the same summands for any number of
    /// processes. Each piece comes with the process that updates it.
    pub fn cut(&self, watch: &[Change]) -> Vec<(Change, usize)> {
        let pieces = watch.iter().flat_map(|change| self.shards.pieces(&change.range));
        pieces.map(|(range, owner)| (Change::new(range), owner)).collect()
    }

    /// Adds up the measured pieces of all processes.
    pub fn put_together(&self, pieces: &[(Change, usize)], watch: &mut [Change]) -> Result<()> {
        let own = pieces.iter().filter(|(_, owner)| *owner == self.rank);
        let own: Vec<f64> = own.flat_map(|(piece, _)| [piece.gradient, piece.weight, piece.update]).collect();
        let parts: Vec<_> = pieces.iter().map(|(_, owner)| (*owner, 3)).collect();
        let all = self.in_order(&own, &parts)?;
        for ((piece, _), sums) in pieces.iter().zip(all.chunks_exact(3)) {
            let Some(to) = watch.iter_mut().find(|to| to.range.contains(&piece.range.start)) else { continue };
            to.gradient += sums[0];
            to.weight += sums[1];
            to.update += sums[2];
        }
        Ok(())
    }

    /// The numbers of all processes, one process after the other. All have equally many.
    pub fn gather_all<T: bytemuck::Pod>(&self, own: &[T]) -> Result<Vec<T>> {
        let Some(mut ranks) = self.ranks() else { return Ok(own.to_vec()) };
        let mut all = vec![T::zeroed(); own.len() * self.size];
        ranks.all_gather(bytes(own), bytes_mut(&mut all))?;
        Ok(all)
    }

    /// The answer of process 0.
    pub fn agree(&mut self, own: bool) -> Result<bool> {
        let Some(mut ranks) = self.ranks() else { return Ok(own) };
        let mut said = [u8::from(own)];
        ranks.broadcast(&mut said)?;
        Ok(said[0] == 1)
    }

    /// Gives every process a text of process 0.
    pub fn tell(&mut self, text: Option<&str>) -> Result<String> {
        let Some(mut ranks) = self.ranks() else { return Ok(text.unwrap_or_default().into()) };
        let mut length = [text.map_or(0, str::len) as u64];
        ranks.broadcast(bytes_mut(&mut length))?;
        let mut all = vec![0; length[0] as usize];
        if let Some(text) = text {
            all.copy_from_slice(text.as_bytes());
        }
        ranks.broadcast(&mut all)?;
        Ok(String::from_utf8_lossy(&all).into_owned())
    }

    /// Gives every process the texts of all.
    pub fn hear_all(&mut self, own: &str) -> Result<Vec<String>> {
        self.ranks().map_or_else(|| Ok(vec![own.into()]), |mut ranks| hear_all(&mut **ranks, own))
    }

    /// Checks that all processes were started with the same: `facts` are names and values.
    pub fn check(&mut self, facts: &[(String, String)]) -> Result<()> {
        self.ranks().map_or(Ok(()), |mut ranks| check(&mut **ranks, facts))
    }

    /// Gives every process a parameter's values in process 0.
    pub fn broadcast(&mut self, values: &mut [f32]) -> Result<()> {
        let Some(mut ranks) = self.ranks() else { return Ok(()) };
        values.chunks_mut(BLOCK).try_for_each(|part| ranks.broadcast(bytes_mut(part)))
    }

    /// Begins or ends the time in which process 0 writes files and the others follow its orders.
    pub fn files(&mut self, begin: bool) -> Result<()> {
        if !begin {
            self.order(TeamOrder::Done)?;
        }
        self.writes = begin && self.size() > 1;
        Ok(())
    }

    /// Orders the others to do something, while process 0 writes files.
    pub fn order(&mut self, order: TeamOrder) -> Result<()> {
        if !self.writes {
            return Ok(());
        }
        let mut words = match order {
            TeamOrder::Done => [0; 4],
            TeamOrder::Average => [1, 0, 0, 0],
            TeamOrder::Weights => [2, 0, 0, 0],
            TeamOrder::Collect(Region { space, at, rows, cols, .. }) => {
                [3, space as u64, at as u64, (rows * cols) as u64]
            }
        };
        self.ranks().map_or(Ok(()), |mut ranks| ranks.broadcast(bytes_mut(&mut words)))
    }

    /// The next order.
    pub fn next_order(&mut self) -> Result<TeamOrder> {
        let mut words = [0u64; 4];
        if let Some(mut ranks) = self.ranks() {
            ranks.broadcast(bytes_mut(&mut words))?;
        }
        let [what, space, at, len] = words.map(|n| n as usize);
        let spaces = [MemorySpace::Moment1, MemorySpace::Moment2, MemorySpace::Average];
        Ok(match (what, spaces.into_iter().find(|one| *one as usize == space)) {
            (1, _) => TeamOrder::Average,
            (2, _) => TeamOrder::Weights,
            (3, Some(space)) => TeamOrder::Collect(Region::flat(space, at..at + len)),
            _ => TeamOrder::Done,
        })
    }

    /// Collects, in process 0, values of a memory that each process holds for its own parameters (moments, average);
    /// the others [`Team::give`]. Each process sends what it holds and nothing else, one block for each order. So no
    /// process waits long for the next order, and only a process that is stuck times out.
    pub fn collect(&mut self, backend: &dyn Backend, region: Region) -> Result<Vec<f32>, TrainError> {
        let mut values = vec![0.0; region.len()];
        for (at, part) in (region.at..).step_by(BLOCK).zip(values.chunks_mut(BLOCK)) {
            let window = Region::flat(region.space, at..at + part.len());
            self.order(TeamOrder::Collect(window))?;
            self.give_all(backend, window, part)?;
        }
        Ok(values)
    }

    /// Sends process 0 what it collects.
    pub fn give(&mut self, backend: &dyn Backend, window: Region) -> Result<(), TrainError> {
        self.give_all(backend, window, &mut [])
    }

    /// One process after the other sends its stretches of `window`; process 0 puts them into their places in `all`.
    fn give_all(&mut self, backend: &dyn Backend, window: Region, all: &mut [f32]) -> Result<(), TrainError> {
        let pieces: Vec<_> = self.shards.pieces(&window.range()).collect();
        for from in 0..self.size {
            let of: Vec<_> =
                pieces.iter().filter(|(_, owner)| *owner == from).map(|(range, _)| range.clone()).collect();
            if of.is_empty() {
                continue;
            }
            let mut values = vec![];
            if self.rank == from {
                for range in &of {
                    values.extend(backend.read(Region::flat(window.space, range.clone()))?);
                }
            } else if self.rank == 0 {
                values.resize(of.iter().map(Range::len).sum(), 0.0);
            }
            if let (1.., Some(mut ranks)) = (from, self.ranks()) {
                ranks.bring(from, bytes_mut(&mut values))?;
            }
            if self.rank == 0 {
                let mut left = &values[..];
                for range in of {
                    let (part, rest) = left.split_at(range.len());
                    all[range.start - window.at..][..range.len()].copy_from_slice(part);
                    left = rest;
                }
            }
        }
        Ok(())
    }

    /// The stretches of `range` that this process updates.
    pub fn own_of(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let own = |(range, owner): (Range<usize>, usize)| (owner == self.rank()).then_some(range);
        self.shards.pieces(&range).filter_map(own).collect()
    }
}

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn bytes_mut<T: bytemuck::Pod>(values: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(values)
}

#[cfg(test)]
mod tests {
    use super::super::threads::threads;
    use super::*;
    use limpid_core::backend::{
        BackendError, DeviceBytes, Result as Done, SharedWeights, ThreadChooser, Ticket, Tickets, UpdateReport,
    };
    use limpid_core::matrix::Precision;
    use limpid_core::numeric::element::Values;
    use limpid_core::ops::{Batch, Ops, Passes};
    use limpid_core::optimizer::Rule;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Memory alone: gradients and parameters of any number.
    struct Memory {
        grad: Vec<f32>,
        param: Vec<f32>,
        tickets: Tickets,
    }

    fn no<T>() -> Done<T> {
        Err(BackendError::NotSupported { op: "a test's memory", what: "nothing but memory".into(), settings: &[] })
    }

    impl Backend for Memory {
        fn precision(&self) -> Precision {
            Precision::F32
        }
        fn runs_ahead(&self) -> bool {
            false
        }
        fn thread_choosers(&self) -> &[ThreadChooser] {
            &[]
        }
        fn transferred(&self) -> DeviceBytes {
            DeviceBytes::default()
        }
        fn can_update(&self, _: &[ParamGroup]) -> Done<()> {
            no()
        }
        fn restrict_updates(&mut self) {}
        fn share(&mut self) -> Done<SharedWeights> {
            no()
        }
        fn feed(&mut self, _: &Batch) -> Done<()> {
            no()
        }
        fn forward(&mut self, _: Ops) -> Done<()> {
            no()
        }
        fn backward(&mut self, _: Passes) -> Done<()> {
            no()
        }
        fn begin_update(&mut self, _: &[ParamGroup], _: &Rule, _: &[Change]) -> Done<()> {
            no()
        }
        fn report(&mut self, _: &mut [Change]) -> Done<UpdateReport> {
            no()
        }
        fn push_gradients(&mut self) -> Done<()> {
            no()
        }
        fn add_pushed(&mut self) -> Done<()> {
            no()
        }
        fn add_pushed_to(&mut self, _: Range<usize>) -> Done<()> {
            Ok(())
        }
        fn clear(&mut self) -> Done<()> {
            no()
        }
        fn average(&mut self, _: &[ParamGroup], _: f64) -> Done<()> {
            no()
        }
        fn request(&self, region: Region) -> Done<Ticket> {
            let from = if region.space == MemorySpace::Grad { &self.grad } else { &self.param };
            Ok(self.tickets.give(region.len(), |to| to.copy_from_slice(&from[region.range()])))
        }
        fn fetch(&self, ticket: Ticket, to: &mut [f32]) -> Done<()> {
            self.tickets.take(ticket, to)
        }
        fn upload(&mut self, region: Region, values: Values) -> Done<()> {
            let to = if region.space == MemorySpace::Grad { &mut self.grad } else { &mut self.param };
            to[region.range()].copy_from_slice(bytemuck::cast_slice(values.bytes));
            Ok(())
        }
    }

    /// What process `rank` has at `i`: of many sizes, so that another order of adding would be seen.
    fn value(rank: usize, i: usize) -> f32 {
        let bits = limpid_base::random::bits(7, rank as u64, i as u64);
        (bits % 2_000_003) as f32 * 2f32.powi((bits >> 40) as i32 % 20 - 10)
    }

    /// The sum over processes `from..to`, as it is defined.
    fn serial(from: usize, to: usize, i: usize) -> f32 {
        match to - from {
            1 => value(from, i),
            n => serial(from, from + n / 2, i) + serial(from + n / 2, to, i),
        }
    }

    #[test]
    #[ignore = "gate"]
    fn sums_of_any_length_are_those_of_a_serial_tree_and_all_get_them() {
        for n in [1, 2, 4, 8] {
            for length in [0, 1, n - 1, n, n + 1, 7919, 65_535, 65_536, 65_537, 1_000_003, 1 << 20] {
                let groups =
                    [0..length / 3, length / 3..length].map(|range| ParamGroup { range, decay: 0.0, matrix: None });
                let process = |ranks: Box<dyn Ranks>| {
                    let rank = ranks.rank();
                    let mut team = Team::alone(groups.to_vec()).among(ranks, &Uses::default()).unwrap();
                    let grad: Vec<f32> = (0..length).map(|i| value(rank, i)).collect();
                    let mut memory = Memory { grad, param: vec![f32::NAN; length], tickets: Tickets::default() };
                    team.begin(TransferKind::Gradients).unwrap();
                    team.carry(&mut memory, team.blocks(), team.blocks()).unwrap();
                    let loss = team.add_losses(f64::from(value(rank, length))).unwrap();
                    for ParamGroup { range, .. } in team.own() {
                        memory.param[range.clone()].copy_from_slice(&memory.grad[range.clone()]);
                    }
                    team.spread(&mut memory).unwrap();
                    (memory.param, loss)
                };
                let all: Vec<_> = std::thread::scope(|scope| {
                    let start = |rank| scope.spawn(|| process(Box::new(rank)));
                    let started: Vec<_> = threads(n).into_iter().map(start).collect();
                    started.into_iter().map(|process| process.join().unwrap()).collect()
                });
                let losses = (0..n).map(|rank| f64::from(value(rank, length))).collect::<Vec<_>>();
                let whole = |all: &[f64]| all.iter().sum::<f64>();
                for (sums, loss) in &all {
                    let wrong = (0..length).find(|i| sums[*i].to_bits() != serial(0, n, *i).to_bits());
                    assert_eq!(wrong, None, "{n} processes, {length} numbers");
                    assert!((loss - whole(&losses)).abs() <= 1e-12 * whole(&losses), "{n} processes");
                    assert_eq!(loss.to_bits(), all[0].1.to_bits());
                }
            }
        }
    }

    /// Ranks that count the bytes that are brought.
    struct Counted(super::super::threads::ThreadRank, Arc<AtomicUsize>);

    impl Ranks for Counted {
        fn rank(&self) -> usize {
            self.0.rank()
        }
        fn size(&self) -> usize {
            self.0.size()
        }
        fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<()> {
            self.0.all_to_all(send, receive)
        }
        fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
            self.0.all_gather(own, all)
        }
        fn bring(&mut self, from: usize, bytes: &mut [u8]) -> Result<()> {
            if self.0.rank() == from {
                self.1.fetch_add(bytes.len(), Relaxed);
            }
            self.0.bring(from, bytes)
        }
        fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
            self.0.broadcast(bytes)
        }
    }

    #[test]
    fn what_is_saved_goes_to_process_0_once() {
        const LENGTH: usize = 2 * BLOCK + 70_001;
        let matrix = Some((300, 1000));
        let groups = [(0..300_000, matrix), (300_000..LENGTH, None)];
        let groups = groups.map(|(range, matrix)| ParamGroup { range, decay: 0.0, matrix });
        for n in [2, 8] {
            let sent = Arc::new(AtomicUsize::new(0));
            let process = |ranks: Counted| {
                let mut team = Team::alone(groups.to_vec()).among(Box::new(ranks), &Uses::default()).unwrap();
                let mut memory = Memory { grad: vec![], param: vec![f32::NAN; LENGTH], tickets: Tickets::default() };
                let own = team.own_of(0..LENGTH);
                own.iter().cloned().flatten().for_each(|i| memory.param[i] = value(0, i));
                let held = own.iter().map(Range::len).sum::<usize>();
                if team.rank() > 0 {
                    while let TeamOrder::Collect(window) = team.next_order().unwrap() {
                        team.give(&memory, window).unwrap();
                    }
                    return held;
                }
                team.files(true).unwrap();
                let all = team.collect(&memory, Region::flat(MemorySpace::Moment1, 5..LENGTH - 5)).unwrap();
                team.files(false).unwrap();
                let wrong = (0..all.len()).find(|i| all[*i].to_bits() != value(0, i + 5).to_bits());
                assert!(all.len() == LENGTH - 10 && wrong.is_none(), "{wrong:?}");
                held
            };
            let held: Vec<usize> = std::thread::scope(|scope| {
                let start = |rank| scope.spawn(|| process(Counted(rank, sent.clone())));
                let started: Vec<_> = threads(n).into_iter().map(start).collect();
                started.into_iter().map(|process| process.join().unwrap()).collect()
            });
            // but for the ends that were left out, whoever has them
            let others = LENGTH - held[0];
            assert!((others - 10..=others).contains(&(sent.load(Relaxed) / 4)), "{n} processes");
        }
    }
}
