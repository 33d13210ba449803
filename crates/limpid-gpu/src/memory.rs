//! The memory of a model on a device. A memory space is one buffer, or where it is larger than the device's largest,
//! several (pages), cut where no tensor lies. A kernel sees a [`Window`] of a buffer, which may be smaller than the
//! buffer: tables that are larger than the largest window are taken in rows.

use crate::adapter::ALIGN;
use crate::device::{Buffer, GpuDevice, Submitted};
use limpid_core::backend::{BackendError, Held, Result};
use limpid_core::model::{Model, WeightMap};
use limpid_core::ops::{Access, MemorySpace, Pass, Region};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Elements of whose multiples windows begin; those of tensors are aligned likewise (`plan::ALIGN`).
pub const STEP: usize = ALIGN as usize / 4;

/// How long values that are ready may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a kernel sees of a buffer.
#[derive(Clone, Debug)]
pub struct Window {
    pub buffer: Buffer,
    /// Bytes before it.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// Elements of it before those that are meant.
    pub shift: u32,
}

impl Window {
    /// Some elements of a buffer.
    pub fn new(buffer: &Buffer, range: Range<usize>) -> Window {
        let from = range.start / STEP * STEP;
        let len = (4 * (range.end - from) as u64).max(4);
        Window { buffer: buffer.clone(), at: 4 * from as u64, len, shift: (range.start - from) as u32 }
    }
    /// What is bound as a product's output where only what goes with it is wanted.
    pub fn no_output(device: &GpuDevice) -> Window {
        Window::new(&device.nothing, 3 * (ALIGN as usize / 4)..ALIGN as usize)
    }
    /// Memory of its own, with these values.
    pub fn filled(device: &GpuDevice, op: &'static str, values: &[f32]) -> Result<Window> {
        let buffer = device.reserve(op, values.len())?;
        device.write(&buffer, 0, bytemuck::cast_slice(values))?;
        Ok(Window::new(&buffer, 0..values.len()))
    }
    /// The first of its values, once they are there.
    pub fn first(&self, device: &GpuDevice, op: &'static str, len: usize) -> Result<Vec<f32>> {
        let at = self.at + 4 * u64::from(self.shift);
        let staged = Staged::new(device, Staged::room(device, len)?, vec![(at, 4 * len as u64, self.buffer.clone())])?;
        let mut values = vec![0.0; len];
        staged.take(device, op, &mut values)?;
        Ok(values)
    }
}

/// Some neighbouring elements of a memory space.
struct Page {
    range: Range<usize>,
    buffer: Buffer,
}

/// A memory space: its pages, in order.
#[derive(Default)]
pub struct Space(Vec<Page>);

impl Space {
    /// Memory for these pages.
    pub fn new(device: &GpuDevice, op: &'static str, pages: &[Range<usize>]) -> Result<Space> {
        let page = |range: &Range<usize>| Ok(Page { range: range.clone(), buffer: device.reserve(op, range.len())? });
        pages.iter().map(page).collect::<Result<_>>().map(Space)
    }
    /// Whether it has memory.
    pub fn is_some(&self) -> bool {
        !self.0.is_empty()
    }
    /// Its buffers.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.0.iter().map(|page| &page.buffer)
    }
    /// A range in parts that lie in one page and have at most `most` elements.
    pub fn pieces(&self, range: Range<usize>, most: usize) -> Vec<Range<usize>> {
        let overlaps = self.0.iter().map(|page| page.range.start.max(range.start)..page.range.end.min(range.end));
        let cut = |part: Range<usize>| {
            let end = part.end;
            part.step_by(most).map(move |at| at..at.saturating_add(most).min(end))
        };
        overlaps.filter(|part| part.start < part.end).flat_map(cut).collect()
    }
    /// A range that lies in one page.
    pub fn window(&self, range: Range<usize>) -> Window {
        let place = self.0.partition_point(|page| page.range.end <= range.start).min(self.0.len().saturating_sub(1));
        let page = &self.0[place];
        assert!(page.range.start <= range.start && range.end <= page.range.end, "{range:?} crosses pages");
        Window::new(&page.buffer, range.start - page.range.start..range.end - page.range.start)
    }
    /// Replaces values.
    pub fn write(&self, device: &GpuDevice, at: usize, values: &[f32]) -> Result<()> {
        for part in self.pieces(at..at + values.len(), usize::MAX) {
            let to = self.window(part.clone());
            let bytes = bytemuck::cast_slice(&values[part.start - at..part.end - at]);
            device.write(&to.buffer, to.at + 4 * u64::from(to.shift), bytes)?;
        }
        Ok(())
    }
    /// Begins to copy values to where the host can read them.
    pub fn stage(&self, device: &GpuDevice, range: Range<usize>) -> Result<Staged> {
        let parts = self.pieces(range.clone(), usize::MAX).into_iter().map(|part| self.window(part));
        let start = |window: Window| {
            (window.at + 4 * u64::from(window.shift), window.len - 4 * u64::from(window.shift), window.buffer)
        };
        Staged::new(device, Staged::room(device, range.len())?, parts.map(start).collect())
    }
}

/// Values on their way to the host.
pub struct Staged {
    raw: wgpu::Buffer,
    copied: Submitted,
    mapped: Receiver<std::result::Result<(), wgpu::BufferAsyncError>>,
}

impl Staged {
    /// Room for values that the host is to read.
    pub fn room(device: &GpuDevice, len: usize) -> Result<wgpu::Buffer> {
        let size = 4 * len.max(1) as u64;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let how = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        Ok(device.allocate("request", how)?.raw)
    }
    /// Copies parts of buffers (from, bytes) there, one after another; what they leave stays zero.
    pub fn new(device: &GpuDevice, raw: wgpu::Buffer, parts: Vec<(u64, u64, Buffer)>) -> Result<Staged> {
        let mut encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut to = 0;
        for (at, bytes, buffer) in parts {
            encoder.copy_buffer_to_buffer(&buffer.raw, at, &raw, to, bytes);
            to += bytes;
        }
        let copied = device.submit(encoder);
        let (tell, mapped) = channel();
        // nobody hears it where the values are not wanted any more
        raw.map_async(wgpu::MapMode::Read, .., move |done| drop(tell.send(done)));
        device.check("request")?;
        Ok(Staged { raw, copied, mapped })
    }
    /// The values, once they are there: what was submitted after them may still run.
    pub fn take(&self, device: &GpuDevice, op: &'static str, to: &mut [f32]) -> Result<()> {
        device.finish_to(op, &self.copied)?;
        let lost = |what: String| device.lost(op, &what);
        // another thread that waits for the device may be the one that is told
        let mapped = self.mapped.recv_timeout(PATIENCE).map_err(|e| lost(e.to_string()))?;
        mapped.map_err(|e| lost(e.to_string()))?;
        device.received(4 * to.len() as u64);
        let view = self.raw.get_mapped_range(..4 * to.len() as u64).map_err(|e| lost(e.to_string()))?;
        to.copy_from_slice(bytemuck::cast_slice(&view));
        Ok(())
    }
}

/// Where the words of a region of the cache are that has two bf16 in each; others stay. Rows have both keys and values,
/// so an even number of elements.
pub fn words_of(region: Region) -> Region {
    match region.space {
        MemorySpace::Cache => Region { at: region.at / 2, cols: region.cols / 2, ..region },
        _ => region,
    }
}

/// The pages of a space of `size` elements: none has more than `most`, and no tensor lies in two.
pub fn pages(mut tensors: Vec<Region>, size: usize, most: usize) -> Result<Vec<Range<usize>>> {
    if size <= most {
        return Ok((size > 0).then_some(0..size).into_iter().collect());
    }
    tensors.sort_by_key(|region| region.at);
    let (mut pages, mut start, mut end) = (vec![], 0, 0);
    let mut gap = 0..0; // the last place where a page may end and the next begin
    for region in tensors.iter().map(|region| region.range()) {
        if region.start >= end && region.start.is_multiple_of(STEP) {
            gap = end..region.start;
        }
        end = end.max(region.end);
        if end - start > most {
            if end - gap.end > most {
                let what = format!(
                    "tensors of {} elements lie together, and a buffer has room for {most}: the cpu has room for more",
                    end - gap.end
                );
                return Err(BackendError::NotSupported { op: "this model", what, settings: &["device cpu"] });
            }
            pages.push(start..gap.start);
            start = gap.end;
        }
    }
    pages.push(start..end);
    Ok(pages)
}

/// All tensors of a memory space that a model's lists name.
pub fn tensors(model: &Model, space: MemorySpace) -> Vec<Region> {
    let mut found = vec![];
    let mut take = |region: Region| {
        if region.space == space {
            found.push(region);
        }
    };
    let recomputed = model.back().iter().map(|pass| match pass {
        Pass::Recompute(op) => *op,
        Pass::Back(back) => back.op,
    });
    for mut op in model.ops().iter().copied().chain(recomputed) {
        op.operands().for_each(|(_, region): (Access, _)| take(*region));
    }
    for back in model.back().iter().filter_map(Pass::back) {
        let grads = back.dx.iter().flatten().map(|dx| dx.region);
        back.dy.into_iter().chain(grads).chain(back.watched.into_iter().flatten()).for_each(&mut take);
    }
    model.params.iter().map(|param| param.region).for_each(take);
    found
}

/// The weights, on which several backends may run.
pub struct GpuWeights {
    pub device: Arc<GpuDevice>,
    pub map: WeightMap,
    pub konst: Space,
    pub param: Space,
}

impl Held for GpuWeights {
    fn weight_map(&self) -> &WeightMap {
        &self.map
    }
    fn read(&self, region: Region, to: &mut [f32]) -> Result<()> {
        let space = if region.space == MemorySpace::Const { &self.konst } else { &self.param };
        space.stage(&self.device, region.range())?.take(&self.device, "read", to)
    }
}
