//! What a device is to do: dispatches of kernels, and clears, in order, in command buffers that are submitted without
//! waiting; a buffer ends where it has enough to do ([`MOST_WORK`]). Each run writes its list anew, because counts of
//! rows and draws are numbers in it; what costs time, kernels and bindings, is kept.

use crate::adapter::{ALIGN, BINDINGS, WORDS};
use crate::device::{Buffer, GpuDevice};
use crate::kernels::{GpuKernel, Variant};
use crate::memory::Window;
use limpid_core::backend::Result;
use std::collections::HashMap;

/// A number that a kernel is given: 32 bits of any type.
#[derive(Clone, Copy, Debug)]
pub struct Word(pub u32);

impl From<u32> for Word {
    fn from(value: u32) -> Word {
        Word(value)
    }
}
impl From<usize> for Word {
    fn from(value: usize) -> Word {
        Word(u32::try_from(value).expect("a binding has fewer elements"))
    }
}
impl From<f32> for Word {
    fn from(value: f32) -> Word {
        Word(value.to_bits())
    }
}
impl From<bool> for Word {
    fn from(value: bool) -> Word {
        Word(value.into())
    }
}

/// The numbers of a dispatch.
macro_rules! words {
    ($($word:expr),* $(,)?) => { &[$($crate::lists::Word::from($word)),*][..] };
}
pub(crate) use words;

/// The buffer, place and length of each binding.
type Key = [(u64, u64, u64); BINDINGS];

/// Bindings that were made before.
#[derive(Default)]
pub struct Bindings(HashMap<Key, wgpu::BindGroup>);

/// More than a model's lists have, even where update and chunks vary.
const KEPT: usize = 1 << 14;

/// Operations of one submit, about, and of one dispatch of a kernel that can be cut. Systems take a device away that
/// does not answer: Windows after 2 seconds, macOS after some 5, Linux after 10; and a screen that the device draws
/// waits meanwhile. A slow device, an old integrated one of 300 GFLOP/s, of which plain kernels get a third, does these
/// in half a second; a fast one has some milliseconds of them, a hundred times what a submit costs.
pub const MOST_WORK: f64 = 5e10;
/// Operations of an element that is read, changed and written, for kernels whose time is memory's: a slow device moves
/// 20 GB/s, so some bytes take as long as so many.
pub const MOVED: f64 = 100.0;
/// Operations that are counted for each workgroup: most take 256 elements or less.
const PLAIN_WORK: f64 = 256.0 * MOVED;

/// A list while it is written.
pub struct List<'a> {
    device: &'a GpuDevice,
    bindings: &'a mut Bindings,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
    /// Kernels, and bytes that they are shown.
    pub cost: [u64; 2],
    /// Operations since the last submit, and of the next dispatch; and its elements, where it needs not all that it is
    /// shown.
    work: f64,
    next: f64,
    touched: Option<usize>,
    /// Whether nothing is to be run, only counted.
    pub dry: bool,
}

impl<'a> List<'a> {
    /// An empty list.
    pub fn new(device: &'a GpuDevice, bindings: &'a mut Bindings) -> List<'a> {
        if bindings.0.len() > KEPT {
            bindings.0.clear();
        }
        let encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let dry = device.imagined;
        List { device, bindings, encoder, pass: None, cost: [0; 2], work: 0.0, next: 0.0, touched: None, dry }
    }

    /// Says how many operations the next dispatch has, beside what is counted for each workgroup.
    pub fn expect(&mut self, work: f64) {
        self.next += work;
    }

    /// Says how many elements the next dispatch reads and writes, each counted once, where its windows show more.
    pub fn touches(&mut self, elements: usize) {
        self.touched = Some(elements);
    }

    /// Submits what is there if the next dispatch would be too much for one submit with it.
    fn make_room(&mut self, workgroups: usize) {
        let next = std::mem::take(&mut self.next) + PLAIN_WORK * workgroups as f64;
        if self.work > 0.0 && self.work + next > MOST_WORK {
            self.pass = None;
            let empty = self.device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            self.device.submit(std::mem::replace(&mut self.encoder, empty));
            self.work = 0.0;
        }
        self.work += next;
    }

    /// Adds a kernel with its bindings (`None`: it does not use this one) and numbers, on so many workgroups.
    ///
    /// # Errors
    /// If the driver does not compile it.
    pub fn run(
        &mut self,
        kernel: &'static GpuKernel,
        how: Variant,
        windows: &[Option<&Window>],
        words: &[Word],
        workgroups: usize,
    ) -> Result<()> {
        if workgroups == 0 {
            return Ok(());
        }
        assert_eq!(windows.len(), kernel.bindings, "bindings of `{}`", kernel.entry);
        let shown = windows.iter().flatten().map(|window| window.len - 4 * u64::from(window.shift)).sum::<u64>();
        let touched = self.touched.take().map_or(shown, |elements| 4 * elements as u64);
        self.cost = [self.cost[0] + 1, self.cost[1] + touched];
        if self.dry {
            return Ok(());
        }
        let pipeline = self.device.compiled(kernel, how)?;
        let group = self.bound(kernel, windows);
        self.make_room(workgroups);
        let pass = self.pass.get_or_insert_with(|| {
            self.encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
        });
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        let mut all = [0u32; WORDS as usize / 4];
        all.iter_mut().zip(words).for_each(|(to, word)| *to = word.0);
        pass.set_immediates(0, bytemuck::cast_slice(&all));
        // a dimension takes 65,535 workgroups: more fill a rectangle
        let across = workgroups.min(1 << 15);
        pass.dispatch_workgroups(across as u32, workgroups.div_ceil(across) as u32, 1);
        Ok(())
    }

    fn bound(&mut self, kernel: &GpuKernel, windows: &[Option<&Window>]) -> wgpu::BindGroup {
        let mut key = [(u64::MAX, 0, 0); BINDINGS];
        for (key, window) in key.iter_mut().zip(windows) {
            *key = window.map_or((0, 0, 0), |w| (w.buffer.id, w.at, w.len));
        }
        let device = self.device;
        let make = || {
            let place = |(i, window): (usize, &Option<&Window>)| match window {
                Some(w) => (w.buffer.raw.clone(), w.at, w.len),
                // places of their own: bindings that are written must not overlap
                None => (device.nothing.raw.clone(), i as u64 * ALIGN, ALIGN),
            };
            let places: Vec<_> = windows.iter().enumerate().map(place).collect();
            let bound = places.iter().map(|(buffer, offset, size)| {
                let size = wgpu::BufferSize::new(*size);
                wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: *offset, size })
            });
            let entries: Vec<_> =
                (0..).zip(bound).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
            let layout = device.bindings(kernel);
            device.raw.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
        };
        self.bindings.0.entry(key).or_insert_with(make).clone()
    }

    /// Sets a buffer to zero.
    pub fn clear(&mut self, buffer: &Buffer) {
        self.pass = None;
        self.encoder.clear_buffer(&buffer.raw, 0, None);
    }

    /// Gives the list to the device.
    ///
    /// # Errors
    /// What the device reports, of this list or of what ran before it.
    pub fn submit(mut self, op: &'static str) -> Result<()> {
        self.pass = None;
        self.device.submit(self.encoder);
        self.device.check(op)
    }
}
