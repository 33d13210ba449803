//! limpid's ops on any GPU, through Vulkan, Metal or Direct3D 12: a [`Backend`] on the crate `wgpu`, whose kernels are
//! WGSL.
//!
//! `device` opens a GPU and keeps compiled kernels, `memory` has a model's tensors, `rows` a batch's ids and lists,
//! `lists` what the device is to do, `passes` the two matches from ops to kernels, `update` the optimizer. A kernel and
//! its formula are in a file of `kernels/`, forward and backward beside each other.
//!
//! Everything is f32; operands of products may be rounded to bf16, and the KV cache may keep bf16. Each sum has one
//! order, so the same device and driver give the same bits, run to run; another driver may give others. A row's result
//! depends on nothing but the row, so decoding gives the bits of the whole forward.
#![cfg(feature = "gpu")]

mod adapter;
mod device;
mod kernels;
mod lists;
mod memory;
mod passes;
mod proof;
mod roofs;
mod rows;
#[cfg(test)]
#[path = "../tests/device/mod.rs"]
mod test_device;
#[cfg(test)]
mod tests;
mod traffic;
mod update;

#[cfg(test)]
extern crate self as limpid_gpu; // for the module that all tests share

pub use adapter::{GpuAdapter, GpuChoice, GpuMatrices, adapters};
pub use device::GpuDevice;
pub use proof::{GpuProof, Proofs, by_op, prove};
pub use roofs::GpuRoofs;
pub use traffic::{KNOWN, KnownGpu, LAUNCH, OpTraffic};

use device::{Buffer, STAGING, rounded};
use limpid_core::backend::{
    Backend, BackendError, BackendOptions, DeviceBytes, DeviceMemory, Result, SharedWeights, ThreadChooser, Ticket,
    TrainingMemory, UpdateReport,
};
use limpid_core::matrix::Precision;
use limpid_core::model::{MemoryPart, Mode, Model};
use limpid_core::numeric::element::{Element, Values};
use limpid_core::ops::limits::Limits;
use limpid_core::ops::{Batch, MemorySpace, Op, Ops, Pass, Passes, Region};
use limpid_core::optimizer::{Change, ParamGroup, Rule};
use lists::{Bindings, List};
use memory::{GpuWeights, STEP, Space, Staged, Window, pages, tensors, words_of};
use passes::Memory;
use rows::GpuRows;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use update::Pending;

/// Memory that grows when more is asked for; its values are then lost.
#[derive(Default)]
struct Growing {
    buffer: Option<Buffer>,
    len: usize,
}

impl Growing {
    fn ensure(&mut self, device: &GpuDevice, op: &'static str, len: usize) -> Result<()> {
        if self.len < len {
            (self.buffer, self.len) = (Some(device.reserve(op, len)?), len);
        }
        Ok(())
    }
    fn window(&self, range: Range<usize>) -> Window {
        Window::new(self.buffer.as_ref().expect("it was asked for"), range)
    }
}

/// How many tickets were given, and what waits to be fetched: ticket, values, how many.
type Requested = (u64, Vec<(u64, Staged, usize)>);

/// The backend of a GPU.
pub struct Gpu {
    device: Arc<GpuDevice>,
    weights: Arc<GpuWeights>,
    /// All spaces but the weights', which are empty here.
    spaces: [Space; MemorySpace::ALL.len()],
    /// The pages of the parameters' spaces, and their elements.
    pages: Vec<Range<usize>>,
    elements: usize,
    /// The stack of pushed gradients: the first `pushed` are in use, the others are kept to be used again.
    aside: Vec<Space>,
    pushed: usize,
    rows: GpuRows,
    scratch: Window,
    logits: Window,
    dots: Window,
    /// Rows of a chunk of logits.
    chunk: usize,
    /// The norm's and the measured sums, and Muon's scratch.
    sums: Growing,
    room: Growing,
    bindings: Bindings,
    program: u64,
    limits: Limits,
    learns: bool,
    precision: Precision,
    /// Whether the cache has bf16, two in a word.
    halves: bool,
    tickets: Mutex<Requested>,
    pending: Option<Pending>,
    reported: Option<(UpdateReport, Vec<Change>)>,
}

/// A backend on a GPU. Before a model trains, the device [proves](prove) its kernels.
///
/// # Errors
/// As [`GpuDevice::open`] and [`Gpu::start`]; for products of int8; and if the device computes wrongly.
pub fn start(
    choice: &GpuChoice,
    model: &Model,
    how: BackendOptions,
    weights: Option<&SharedWeights>,
) -> Result<Box<dyn Backend>> {
    if how.precision == Precision::Int8 {
        let what = "its products take f32, bf16 or f16, not int8".into();
        return Err(BackendError::NotSupported { op: "gpu", what, settings: &["device cpu"] });
    }
    if let Some(weights) = weights {
        return Ok(Box::new(Gpu::start_with(model, weights)?.rounding(how.precision)?));
    }
    let device = GpuDevice::shared(choice)?;
    if matches!(model.mode, Mode::Train { .. }) {
        device.proven()?;
    }
    Ok(Box::new(Gpu::start(&device, model)?.rounding(how.precision)?))
}

/// What a model, and its training if there is one, take of that GPU's memory, or of that of a common one where there is
/// none.
///
/// # Errors
/// As [`GpuAdapter::takes`].
pub fn takes(choice: &GpuChoice, model: &Model, training: Option<&TrainingMemory>) -> Result<DeviceMemory> {
    counted(choice).takes(model, training)
}

/// What a micro-batch of `batch` costs on that GPU, or on a common one where there is none, by kinds of ops; rows see
/// `keys` keys on average. Nothing is reserved, and nothing runs. Also, for which GPU that was counted.
///
/// # Errors
/// If a GPU like that one cannot run the model, or not update these groups of its parameters.
pub fn traffic(
    choice: &GpuChoice,
    model: &Model,
    groups: &[ParamGroup],
    batch: &Batch,
    keys: usize,
) -> Result<(GpuAdapter, Vec<OpTraffic>)> {
    let device = GpuDevice::imagined(counted(choice))?;
    let mut gpu = Gpu::start(&device, model)?;
    gpu.can_update(groups)?;
    Ok((device.adapter.clone(), gpu.traffic(model, batch, keys)?))
}

/// The GPU that is meant, or a common one where there is none.
fn counted(choice: &GpuChoice) -> GpuAdapter {
    GpuDevice::shared(choice).map_or_else(|_| GpuAdapter::common(), |device| device.adapter.clone())
}

/// Elements of a chunk of logits, about: what a kernel sees of a buffer by default, so that the head's weights are read
/// for many rows.
const CHUNK: usize = 32 << 20;

impl Gpu {
    /// Memory for `model` on a GPU, all zero except its constant tables.
    ///
    /// # Errors
    /// If the device has not the memory, or cannot run the model: the error names what it lacks.
    pub fn start(device: &Arc<GpuDevice>, model: &Model) -> Result<Gpu> {
        check(device, model)?; // before memory is taken
        let konst = space(device, model, MemorySpace::Const)?;
        let param = space(device, model, MemorySpace::Param)?;
        let weights = Arc::new(GpuWeights { device: device.clone(), map: model.weight_map(), konst, param });
        Gpu::build(device, model, weights)
    }

    /// [`Gpu::start`] on weights that another of the same device shares.
    ///
    /// # Errors
    /// As [`Gpu::start`], and if the weights are another device's or another model's.
    pub fn start_with(model: &Model, weights: &SharedWeights) -> Result<Gpu> {
        let other = || BackendError::OtherWeights { what: "they are in the memory of another device".into() };
        let weights = weights.held::<GpuWeights>().ok_or_else(other)?;
        match weights.map.difference(&model.weight_map()) {
            Some(what) => Err(BackendError::OtherWeights { what }),
            None => Gpu::build(&weights.device.clone(), model, weights),
        }
    }

    /// The same with products of this precision: operands are rounded to bf16 or f16, sums are f32.
    ///
    /// # Errors
    /// If the device has no matrices of f16.
    pub fn rounding(self, precision: Precision) -> Result<Gpu> {
        if precision == Precision::F16 && self.device.adapter.matrices.is_none() {
            let what = format!(
                "{} offers no square cooperative matrices of f16 with sums in f32: products of bf16 and f32 need none",
                self.device.adapter
            );
            return Err(BackendError::NotSupported { op: "products of f16", what, settings: &["precision bf16"] });
        }
        Ok(Gpu { precision, ..self })
    }

    fn build(device: &Arc<GpuDevice>, model: &Model, weights: Arc<GpuWeights>) -> Result<Gpu> {
        check(device, model)?;
        let mut spaces: [Space; MemorySpace::ALL.len()] = Default::default();
        for (to, of) in spaces.iter_mut().zip(MemorySpace::ALL) {
            if !matches!(of, MemorySpace::Const | MemorySpace::Param | MemorySpace::Average) {
                *to = space(device, model, of)?;
            }
        }
        let Workspace { chunk, logits, scratch, dots } = Workspace::needed(&device.adapter, model);
        let heads = model.config.heads();
        let alibi = |op: &Op| matches!(op, Op::Attend { scoring, .. } if scoring.alibi);
        let slopes = match model.ops().iter().find(|op| alibi(op)) {
            Some(Op::Attend { scoring, .. }) => (0..heads.n_head).map(|h| scoring.slope(h, heads.n_head)).collect(),
            _ => vec![],
        };
        let learns = differentiates(model);
        let mut gpu = Gpu {
            weights,
            spaces,
            pages: pages(
                tensors(model, MemorySpace::Param),
                model.program.size(MemorySpace::Param),
                largest(&device.adapter),
            )?,
            elements: model.program.size(MemorySpace::Param),
            aside: vec![],
            pushed: 0,
            rows: GpuRows::new(device, slopes, rows::most(&model.limits(), learns))?,
            scratch: Window::new(&device.reserve("scratch", scratch)?, 0..scratch),
            logits: Window::new(&device.reserve("scratch", logits)?, 0..logits),
            dots: Window::new(&device.reserve("scratch", dots)?, 0..dots),
            chunk,
            sums: Growing::default(),
            room: Growing::default(),
            bindings: Bindings::default(),
            program: model.program.id(),
            limits: model.limits(),
            learns,
            precision: Precision::F32,
            halves: model.element(MemorySpace::Cache) == Element::Bf16,
            tickets: Mutex::default(),
            pending: None,
            reported: None,
            device: device.clone(),
        };
        gpu.write_tables(model)?;
        Ok(gpu)
    }

    /// The device that it works on.
    pub fn device(&self) -> &Arc<GpuDevice> {
        &self.device
    }

    /// Whether a region has two bf16 in a word. Only kernels read and write those: nobody else has asked for a cache
    /// yet.
    fn in_halves(&self, region: Region) -> bool {
        self.halves && region.space == MemorySpace::Cache
    }
    fn unread(&self, op: &'static str) -> BackendError {
        let what = format!("the cache has bf16 that stays on {}", self.device.adapter);
        BackendError::NotSupported { op, what, settings: &[] }
    }

    fn space(&self, space: MemorySpace) -> &Space {
        match space {
            MemorySpace::Const => &self.weights.konst,
            MemorySpace::Param => &self.weights.param,
            _ => &self.spaces[space as usize],
        }
    }

    /// An error if others hold the weights too.
    fn alone(&self, op: &'static str, changes: Option<(MemorySpace, usize)>) -> Result<()> {
        let others = Arc::strong_count(&self.weights) - 1;
        let Some((space, at)) = changes.filter(|_| others > 0) else { return Ok(()) };
        let tensor = self.weights.map.name_at(space, at).unwrap_or("a table").into();
        Err(BackendError::Shared { op, tensor, others })
    }

    /// Writes a list with what the ops need, and submits it.
    fn run(&mut self, op: &'static str, write: impl FnOnce(&Memory, &mut List) -> Result<()>) -> Result<()> {
        self.written(write, |list| list.submit(op))
    }

    /// Writes a list with what the ops need.
    fn written<T>(
        &mut self,
        write: impl FnOnce(&Memory, &mut List) -> Result<()>,
        then: impl FnOnce(List) -> Result<T>,
    ) -> Result<T> {
        let Gpu { device, weights, spaces, rows, scratch, logits, dots, chunk, bindings, halves, .. } = self;
        let mut all = spaces.each_ref();
        all[MemorySpace::Const as usize] = &weights.konst;
        all[MemorySpace::Param as usize] = &weights.param;
        let (chunk, halves, precision) = (*chunk, *halves, self.precision);
        let memory = Memory { device, spaces: all, rows, scratch, logits, dots, chunk, precision, halves };
        let mut list = List::new(device, bindings);
        write(&memory, &mut list)?;
        then(list)
    }

    fn clear_gradients(&mut self, op: &'static str) -> Result<()> {
        self.run(op, |memory, list| {
            memory.spaces[MemorySpace::Grad as usize].buffers().for_each(|buffer| list.clear(buffer));
            Ok(())
        })
    }

    /// Reserves the average of the weights when it is first needed.
    fn ensure_average(&mut self) -> Result<()> {
        let place = MemorySpace::Average as usize;
        if !self.spaces[place].is_some() {
            self.spaces[place] = Space::new(&self.device, "average", &self.pages)?;
        }
        Ok(())
    }

    /// Adds gradients that were set aside.
    fn add_aside(&mut self, place: usize, range: Range<usize>) -> Result<()> {
        let grad = std::mem::take(&mut self.spaces[MemorySpace::Grad as usize]);
        let aside = std::mem::take(&mut self.aside[place]);
        let done = self.blend(&grad, &aside, range, [1.0, 1.0]);
        (self.spaces[MemorySpace::Grad as usize], self.aside[place]) = (grad, aside);
        done
    }
}

/// The most elements of a buffer.
fn largest(adapter: &GpuAdapter) -> usize {
    (adapter.buffer_bytes / 4) as usize
}

/// Whether a model has a backward pass.
fn differentiates(model: &Model) -> bool {
    !model.back().is_empty()
}

/// The pages of a memory space, as far as a model's runs need it.
fn places(adapter: &GpuAdapter, model: &Model, space: MemorySpace) -> Result<Vec<Range<usize>>> {
    let (wanted, like) = match space {
        MemorySpace::Grad => (differentiates(model), MemorySpace::Param),
        MemorySpace::ActGrad => (differentiates(model), space),
        MemorySpace::Moment1 | MemorySpace::Moment2 => (matches!(model.mode, Mode::Train { .. }), MemorySpace::Param),
        MemorySpace::Average => (true, MemorySpace::Param),
        MemorySpace::Table
        | MemorySpace::Const
        | MemorySpace::Param
        | MemorySpace::Act
        | MemorySpace::Stat
        | MemorySpace::Cache => (true, space),
    };
    let size = if wanted { model.bytes(space).div_ceil(4) } else { 0 };
    let mut tensors = tensors(model, like);
    if model.element(space) == Element::Bf16 {
        tensors.iter_mut().for_each(|region| *region = words_of(*region));
    }
    pages(tensors, size, largest(adapter))
}

/// Memory of one kind.
fn space(device: &GpuDevice, model: &Model, space: MemorySpace) -> Result<Space> {
    Space::new(device, "the model", &places(&device.adapter, model, space)?)
}

/// What a backend has beside a model's tensors, in elements.
struct Workspace {
    /// Rows of a chunk of logits.
    chunk: usize,
    logits: usize,
    scratch: usize,
    dots: usize,
}

impl Workspace {
    fn needed(adapter: &GpuAdapter, model: &Model) -> Workspace {
        let (row, seen) = (passes::logits_row(model.config.vocab_size), adapter.binding_bytes as usize / 4);
        let most = CHUNK.min(seen) / row / STEP * STEP;
        let chunk = most.max(STEP).min(model.rows.next_multiple_of(STEP));
        let logits = if model.losses().is_some() { chunk * row } else { 1 };
        let dots = if differentiates(model) { model.rows * model.config.heads().n_head } else { 1 };
        Workspace { chunk, logits, scratch: scratch(model, chunk).min(seen / STEP * STEP), dots }
    }
}

impl GpuAdapter {
    /// What a model, and its training if there is one, take of its memory: what a backend reserves, to the byte.
    ///
    /// # Errors
    /// If a tensor is larger than a buffer can be.
    pub fn takes(&self, model: &Model, training: Option<&TrainingMemory>) -> Result<DeviceMemory> {
        let bytes = |space: MemorySpace| -> Result<usize> {
            Ok(places(self, model, space)?.iter().map(|page| rounded(page.len())).sum())
        };
        let Workspace { logits, scratch, dots, .. } = Workspace::needed(self, model);
        let rows = rows::room(rows::most(&model.limits(), differentiates(model)));
        let mut all = [scratch, logits, dots, rows, rows::LEAST].map(rounded).iter().sum::<usize>();
        for space in MemorySpace::ALL.into_iter().filter(|space| *space != MemorySpace::Average) {
            all += bytes(space)?;
        }
        let mut parts = model.memory();
        if let Some(TrainingMemory { groups, average, aside }) = training {
            let one = bytes(MemorySpace::Average)?;
            let (average, aside) = (if *average { one } else { 0 }, aside * one);
            all += average
                + aside
                + update::room_of(groups).map(|n| if n == 0 { 0 } else { rounded(n) }).iter().sum::<usize>();
            parts.extend([
                (MemoryPart::Moments, bytes(MemorySpace::Moment1)? + bytes(MemorySpace::Moment2)?),
                (MemoryPart::Average, average),
                (MemoryPart::GradientsAside, aside),
            ]);
        }
        let named: usize = parts.iter().map(|(_, bytes)| bytes).sum();
        parts.push((MemoryPart::KernelScratch, all.saturating_sub(named)));
        // what is written waits in as much, and so does one tensor that is read
        let largest = model.params.iter().map(|param| 4 * param.region.len()).max().unwrap_or(0);
        Ok(DeviceMemory { parts, staging: STAGING + largest, of_system: self.shares_memory() })
    }
}

/// Elements of scratch: the partial sums of ops.
fn scratch(model: &Model, chunk: usize) -> usize {
    // of the gradients of a product's operands
    let back = |w: Region, rows: usize| {
        let of_x = rows * w.cols * passes::shares([rows, w.cols, w.rows]);
        of_x.max((w.len() + w.rows) * passes::shares([w.rows, w.cols, rows]))
    };
    let of = |op: &Op| match *op {
        Op::Classify { w, .. } if differentiates(model) => back(w, chunk),
        Op::Linear { w, .. } if differentiates(model) => back(w, model.rows),
        Op::Norm { x, .. } => model.rows.div_ceil(passes::norm_rows(1)) * 2 * x.cols,
        Op::QkNorm { x, together: true, .. } => model.rows.div_ceil(passes::norm_rows(1)) * x.cols,
        Op::QkNorm { heads, .. } => model.rows.div_ceil(passes::norm_rows(heads.n_head)) * 2 * heads.d_head,
        _ => 0,
    };
    model.ops().iter().map(of).max().unwrap_or(0).max(STEP)
}

/// Refuses what the kernels cannot do.
fn check(device: &GpuDevice, model: &Model) -> Result<()> {
    let refused = |what: String| Err(BackendError::NotSupported { op: "this model", what, settings: &["device cpu"] });
    let fits = |space: MemorySpace| match model.element(space) {
        Element::Bf16 => space == MemorySpace::Cache,
        element => element == Element::F32,
    };
    if let Some(space) = MemorySpace::ALL.into_iter().find(|space| !fits(*space)) {
        let element = model.element(space);
        return refused(format!("{} has no memory of {element}, only of f32", device.adapter));
    }
    let (d, d_v) = (model.config.d_head(), model.config.d_value());
    if d != d_v {
        let what = format!(
            "heads have {d} features of queries and keys and {d_v} of values (d_v), and the kernel of attention takes \
             as many"
        );
        return refused(format!("{what}: the cpu takes both"));
    }
    if d > kernels::MOST_D {
        let most = kernels::MOST_D;
        return refused(format!(
            "heads have {d} features, and the kernel of attention takes {most}: the cpu takes more"
        ));
    }
    let limit = device.adapter.binding_bytes as usize / 4;
    if let Some(Op::Classify { w, .. }) = model.ops().last()
        && STEP * passes::logits_row(w.rows) > limit
    {
        let what = format!(
            "a vocabulary of {} needs {} logits at once, and a kernel of {} sees {limit}: the cpu has room",
            w.rows,
            STEP * w.rows,
            device.adapter
        );
        return refused(what);
    }
    let in_rows: Vec<Region> = model
        .ops()
        .iter()
        .filter_map(|op| match *op {
            Op::Linear { w, .. } | Op::Classify { w, .. } => Some(w),
            Op::Embed { table, .. } => Some(table),
            _ => None,
        })
        .collect();
    for region in MemorySpace::ALL.into_iter().flat_map(|space| tensors(model, space)) {
        let seen = if in_rows.contains(&region) { STEP * region.cols } else { region.len() };
        if seen > limit {
            // recomputing makes no tensor smaller
            let mend = match region.space {
                MemorySpace::Cache => "fewer sequences at once, or shorter ones",
                _ => "a smaller batch (accumulated gradients keep the tokens of a step), or a shorter context",
            };
            let name = model.name_of(region);
            return refused(format!(
                "`{name}` has {seen} elements, and a kernel of {} sees {limit} of one tensor: {mend} would do",
                device.adapter
            ));
        }
    }
    Ok(())
}

impl Backend for Gpu {
    fn feed(&mut self, batch: &Batch) -> Result<()> {
        self.limits.check(batch)?;
        self.rows.feed(&self.device, batch, self.learns)
    }
    fn forward(&mut self, ops: Ops) -> Result<()> {
        BackendError::check_program("forward", ops, self.program)?;
        self.run("forward", |memory, list| {
            ops.iter().try_for_each(|op| memory.forward(list, op.for_batch(&memory.rows.batch)))
        })
    }
    fn backward(&mut self, back: Passes) -> Result<()> {
        BackendError::check_program("backward", back, self.program)?;
        self.run("backward", |memory, list| {
            back.iter().try_for_each(|pass| match pass.for_batch(&memory.rows.batch) {
                Pass::Recompute(op) => memory.forward(list, op),
                Pass::Back(back) => memory.backward(list, back),
            })
        })
    }
    fn can_update(&self, groups: &[ParamGroup]) -> Result<()> {
        self.sees(groups)
    }
    fn begin_update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()> {
        self.begin(groups, rule, watch)
    }
    fn restrict_updates(&mut self) {}
    fn runs_ahead(&self) -> bool {
        true
    }
    fn thread_choosers(&self) -> &[ThreadChooser] {
        &[]
    }
    fn transferred(&self) -> DeviceBytes {
        self.device.transferred()
    }
    fn report(&mut self, watch: &mut [Change]) -> Result<UpdateReport> {
        self.found()?;
        UpdateReport::tell(&self.reported, watch)
    }
    fn push_gradients(&mut self) -> Result<()> {
        if self.aside.len() == self.pushed {
            self.aside.push(Space::new(&self.device, "push_gradients", &self.pages)?);
        }
        let grad = &mut self.spaces[MemorySpace::Grad as usize];
        std::mem::swap(grad, &mut self.aside[self.pushed]);
        self.pushed += 1;
        let cleared = self.clear_gradients("push_gradients");
        if cleared.is_err() {
            self.pushed -= 1;
            std::mem::swap(&mut self.spaces[MemorySpace::Grad as usize], &mut self.aside[self.pushed]);
        }
        cleared
    }
    fn add_pushed(&mut self) -> Result<()> {
        let place = self.pushed.checked_sub(1).ok_or_else(BackendError::nothing_pushed)?;
        self.add_aside(place, 0..self.elements)?;
        self.pushed = place;
        Ok(())
    }
    fn add_pushed_to(&mut self, range: Range<usize>) -> Result<()> {
        (0..self.pushed).rev().try_for_each(|place| self.add_aside(place, range.clone()))
    }
    fn clear(&mut self) -> Result<()> {
        self.pushed = 0;
        self.clear_gradients("clear")
    }
    fn average(&mut self, groups: &[ParamGroup], decay: f64) -> Result<()> {
        self.check_groups("average", groups)?;
        self.ensure_average()?;
        let place = MemorySpace::Average as usize;
        let (average, weights) = (std::mem::take(&mut self.spaces[place]), self.weights.clone());
        let factors = [decay as f32, (1.0 - decay) as f32];
        let done =
            groups.iter().try_for_each(|group| self.blend(&average, &weights.param, group.range.clone(), factors));
        self.spaces[place] = average;
        done
    }
    fn precision(&self) -> Precision {
        self.precision
    }
    fn request(&self, region: Region) -> Result<Ticket> {
        if self.in_halves(region) {
            return Err(self.unread("request"));
        }
        let staged = self.space(region.space).stage(&self.device, region.range())?;
        let mut tickets = self.tickets.lock().unwrap_or_else(|e| e.into_inner());
        tickets.0 += 1;
        let number = tickets.0;
        tickets.1.push((number, staged, region.len()));
        Ok(Ticket(number))
    }
    fn fetch(&self, ticket: Ticket, to: &mut [f32]) -> Result<()> {
        let invalid = |what: String| BackendError::Invalid { op: "fetch", what };
        let (staged, len) = {
            let mut tickets = self.tickets.lock().unwrap_or_else(|e| e.into_inner());
            let place = tickets.1.iter().position(|(number, ..)| *number == ticket.0);
            let place = place.ok_or_else(|| invalid("the ticket is another backend's".into()))?;
            let (_, staged, len) = tickets.1.swap_remove(place);
            (staged, len)
        };
        if len != to.len() {
            return Err(invalid(format!("{len} values for {} places", to.len())));
        }
        staged.take(&self.device, "fetch", to)
    }
    fn share(&mut self) -> Result<SharedWeights> {
        Ok(SharedWeights::new(self.weights.clone()))
    }
    fn upload(&mut self, region: Region, values: Values) -> Result<()> {
        if self.in_halves(region) {
            return Err(self.unread("upload"));
        }
        let given = BackendError::widen(region, values)?;
        if matches!(region.space, MemorySpace::Const | MemorySpace::Param) {
            self.alone("write", Some((region.space, region.at)))?;
        }
        let values = values.major.to_rows(given, region.shape());
        if region.space == MemorySpace::Average {
            self.ensure_average()?;
        }
        self.space(region.space).write(&self.device, region.at, &values)
    }
}
