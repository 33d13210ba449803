//! An open device with its queue and its compiled kernels. wgpu reports faults through callbacks; [`GpuDevice::check`]
//! makes errors of them, after every verb.

use crate::adapter::{
    ALIGN, BINDINGS, GpuAdapter, GpuChoice, GpuMatrices, WORDS, all, described, lacks, listed, no_gpu, pick, wait,
};
use crate::kernels::{COMMON, GpuKernel, Variant};
use limpid_base::contain::contain;
use limpid_base::units;
use limpid_core::backend::{BackendError, DeviceBytes, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, ThreadId};

/// The leave to use cooperative matrices, which wgpu calls experimental.
fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: nothing is asked of the caller but to know that wgpu may have faults there. One kernel uses them, whose
    // indices are in bounds by its constants; a device proves it before it trains.
    #[allow(unsafe_code)]
    unsafe {
        wgpu::ExperimentalFeatures::enabled()
    }
}

/// What a device reports.
#[derive(Debug)]
enum Fault {
    Memory(String),
    Other(String),
}

/// What a device has reported: that it is lost, to all; and to each thread the first fault of its own calls since it
/// asked last, for the library tells them in the call that is at fault.
#[derive(Debug, Default)]
struct Reported {
    lost: Option<String>,
    faults: HashMap<ThreadId, Fault>,
}

/// Memory of the device, with a number that no other has.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub id: u64,
    pub raw: wgpu::Buffer,
    _counted: Option<Arc<Counted>>,
}

/// Bytes of a buffer, which are counted as long as somebody holds it.
#[derive(Debug)]
struct Counted(u64, Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0, Relaxed);
    }
}

/// Bytes that may be on their way to the device: wgpu copies what is written to memory of the system, and keeps that
/// until it is submitted.
pub const STAGING: usize = 64 << 20;

/// A list that a device was given.
pub struct Submitted {
    index: wgpu::SubmissionIndex,
    number: u64,
}

/// An open GPU. Several backends may work on it.
pub struct GpuDevice {
    /// What was opened.
    pub adapter: GpuAdapter,
    /// Whether it is no device: lists are counted, and memory is not reserved.
    pub(crate) imagined: bool,
    pub(crate) raw: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Bindings by their number, and for pipelines.
    layouts: Vec<(wgpu::BindGroupLayout, wgpu::PipelineLayout)>,
    compiled: Mutex<HashMap<(&'static str, Variant), wgpu::ComputePipeline>>,
    reported: Arc<Mutex<Reported>>,
    /// How many lists it was given, and how often somebody waited for the last of them.
    submitted: AtomicU64,
    stalls: AtomicU64,
    /// Bytes to the device and from it.
    sent: AtomicU64,
    received: AtomicU64,
    /// What its proofs found, once they were run.
    pub(crate) proven: OnceLock<Result<()>>,
    /// Bytes of all buffers, and the most that they may have.
    reserved: Arc<AtomicU64>,
    most: AtomicU64,
    /// Bytes that were written since all was last submitted.
    written: AtomicUsize,
    /// What is bound where an operand is missing.
    pub(crate) nothing: Buffer,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl GpuDevice {
    /// A GPU that is opened once in a process, so that its kernels are compiled once; and again if it was lost.
    ///
    /// # Errors
    /// As [`GpuDevice::open`].
    pub fn shared(choice: &GpuChoice) -> Result<Arc<GpuDevice>> {
        static OPEN: Mutex<Vec<(GpuChoice, Arc<GpuDevice>)>> = Mutex::new(vec![]);
        let mut open = locked(&OPEN);
        let known = open.iter().find(|(own, device)| own == choice && device.check("gpu").is_ok());
        if let Some((_, device)) = known {
            return Ok(device.clone());
        }
        let device = GpuDevice::open(choice)?;
        open.retain(|(own, _)| own != choice);
        open.push((choice.clone(), device.clone()));
        Ok(device)
    }

    /// Opens a GPU.
    ///
    /// # Errors
    /// If there is none, none of that name or number, or it lacks what the kernels need.
    pub fn open(choice: &GpuChoice) -> Result<Arc<GpuDevice>> {
        GpuDevice::open_within(choice, [u64::MAX; 2])
    }

    /// [`GpuDevice::open`] that takes no buffer of more bytes than `most` says, and shows a kernel no more of one: what
    /// a lesser GPU would do.
    ///
    /// # Errors
    /// As [`GpuDevice::open`].
    pub fn open_within(choice: &GpuChoice, most: [u64; 2]) -> Result<Arc<GpuDevice>> {
        let found = all()?;
        let named: Vec<GpuAdapter> = found.iter().map(described).collect();
        let place = pick(choice, &named).map_err(no_gpu)?;
        let mut described = named[place].clone();
        described.buffer_bytes = described.buffer_bytes.min(most[0]);
        described.binding_bytes = described.binding_bytes.min(most[1]).min(described.buffer_bytes);
        GpuDevice::start(&found[place], described, false)
    }

    /// A GPU with an adapter's limits that holds nothing and computes nothing: what a model takes of such a one, and
    /// what its kernels move, can be counted on it.
    ///
    /// # Errors
    /// If the library that drives GPUs fails.
    pub fn imagined(adapter: GpuAdapter) -> Result<Arc<GpuDevice>> {
        let found = listed(wgpu::Backends::NOOP)?;
        let any = found.first().ok_or_else(|| no_gpu("none can be imagined".into()))?;
        GpuDevice::start(any, GpuAdapter { matrices: None, ..adapter }, true)
    }

    fn start(adapter: &wgpu::Adapter, described: GpuAdapter, imagined: bool) -> Result<Arc<GpuDevice>> {
        if !adapter.features().contains(wgpu::Features::IMMEDIATES) {
            return Err(no_gpu(format!("{described} takes no immediate data; the cpu runs every model")));
        }
        let own = adapter.limits();
        if let Some(what) = lacks(&own) {
            return Err(no_gpu(format!("{described} {what}; the cpu runs every model")));
        }
        let required_limits = wgpu::Limits {
            max_buffer_size: own.max_buffer_size,
            max_storage_buffer_binding_size: own.max_storage_buffer_binding_size,
            max_compute_workgroup_storage_size: described.matrices.map_or(16 << 10, |_| GpuMatrices::SHARED),
            max_immediate_size: WORDS,
            ..wgpu::Limits::default().or_worse_values_from(&own) // of what draws pictures, it may have less
        };
        let how = wgpu::DeviceDescriptor {
            label: Some("limpid"),
            required_features: wgpu::Features::IMMEDIATES
                | described.matrices.map_or(wgpu::Features::empty(), |_| GpuMatrices::FEATURES),
            experimental_features: described
                .matrices
                .map_or(wgpu::ExperimentalFeatures::disabled(), |_| experimental()),
            required_limits,
            memory_hints: wgpu::MemoryHints::Performance,
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = contain(|| wait(adapter.request_device(&how))).map_err(no_gpu)?;
        let (raw, queue) = opened.map_err(|error| no_gpu(format!("{described}: {error}")))?;
        let reported: Arc<Mutex<Reported>> = Arc::default();
        let (to, lost) = (reported.clone(), reported.clone());
        raw.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let first = match &error {
                wgpu::Error::OutOfMemory { .. } => Fault::Memory(error.to_string()),
                _ => Fault::Other(error.to_string()),
            };
            locked(&to).faults.entry(thread::current().id()).or_insert(first);
        }));
        raw.set_device_lost_callback(move |_, what| {
            let what = if what.is_empty() { "it was ended".into() } else { what };
            locked(&lost).lost = Some(what);
        });
        let layouts = (0..=BINDINGS).map(|n| layout(&raw, n)).collect();
        let nothing = raw.create_buffer(&storage(ALIGN * BINDINGS as u64));
        let device = GpuDevice {
            adapter: described,
            imagined,
            raw,
            queue,
            layouts,
            compiled: Mutex::default(),
            reported,
            submitted: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            proven: OnceLock::new(),
            reserved: Arc::default(),
            most: AtomicU64::new(u64::MAX),
            written: AtomicUsize::new(0),
            nothing: Buffer { id: 0, raw: nothing, _counted: None },
        };
        device.check("gpu")?;
        Ok(Arc::new(device))
    }

    /// The first fault of this thread's calls since its last check. A lost device stays lost.
    ///
    /// # Errors
    /// That fault.
    pub fn check(&self, op: &'static str) -> Result<()> {
        // a loss is told to whoever asks what is done
        drop(self.poll(wgpu::PollType::Poll));
        let fault = locked(&self.reported).faults.remove(&thread::current().id());
        if fault.is_some() {
            // what a device lost while a list was written says first is of the list, and of the loss when its work is
            // done, perhaps by a thread that is about to tell it
            for _ in 0..50 {
                drop(self.poll(wgpu::PollType::wait_indefinitely()));
                if locked(&self.reported).lost.is_some() {
                    break;
                }
                thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        if let Some(what) = &locked(&self.reported).lost {
            return Err(self.lost(op, what));
        }
        match fault {
            None => Ok(()),
            Some(Fault::Memory(what)) => Err(BackendError::Memory { op, bytes: 0, what }),
            Some(Fault::Other(what)) => Err(BackendError::Invalid { op, what }),
        }
    }

    /// Bytes that went to the device and came from it, since it was opened.
    pub fn transferred(&self) -> DeviceBytes {
        DeviceBytes { to: self.sent.load(Relaxed), from: self.received.load(Relaxed) }
    }

    /// Writes to memory of the device, after what was submitted.
    pub(crate) fn send(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        if self.imagined {
            return;
        }
        self.sent.fetch_add(bytes.len() as u64, Relaxed);
        self.queue.write_buffer(&to.raw, at, bytes);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
    }

    /// Waits until all that was submitted is done.
    ///
    /// # Errors
    /// If the device fails meanwhile.
    pub fn finish(&self, op: &'static str) -> Result<()> {
        self.waited(op, wgpu::PollType::wait_indefinitely())
    }

    /// Waits until what was submitted is done up to there.
    ///
    /// # Errors
    /// If the device fails meanwhile.
    pub(crate) fn finish_to(&self, op: &'static str, last: &Submitted) -> Result<()> {
        if last.number == self.submitted.load(Relaxed) {
            self.stalls.fetch_add(1, Relaxed);
        }
        self.waited(op, wgpu::PollType::Wait { submission_index: Some(last.index.clone()), timeout: None })
    }

    /// How often somebody waited for the last thing that it was given: it had nothing more to do then.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Relaxed)
    }

    /// Gives it a list.
    pub(crate) fn submit(&self, list: wgpu::CommandEncoder) -> Submitted {
        let index = self.queue.submit([list.finish()]);
        Submitted { index, number: 1 + self.submitted.fetch_add(1, Relaxed) }
    }

    fn waited(&self, op: &'static str, until: wgpu::PollType) -> Result<()> {
        let done = self.poll(until);
        self.check(op)?;
        done.map_err(|what| self.lost(op, &what))
    }

    /// Asks what is done; why it does not answer. wgpu panics where a driver fails in a way that it does not know.
    fn poll(&self, how: wgpu::PollType) -> std::result::Result<(), String> {
        match contain(|| self.raw.poll(how)) {
            Ok(done) => done.map(drop).map_err(|error| error.to_string()),
            Err(what) => {
                locked(&self.reported).lost.get_or_insert(what.clone());
                Err(what)
            }
        }
    }

    /// The error of a device that does not answer.
    pub(crate) fn lost(&self, op: &'static str, what: &str) -> BackendError {
        BackendError::Lost { op, what: format!("{}: {what}", self.adapter) }
    }

    /// Ends the device, with all that is in its memory, as a driver does that loses it: every verb that comes after
    /// fails.
    pub fn lose(&self) {
        self.raw.destroy();
        drop(self.poll(wgpu::PollType::wait_indefinitely())); // it hears of it when its work is done
    }

    /// Refuses more than so many bytes of memory from now on: what a lesser GPU would do.
    pub fn refuse_beyond(&self, bytes: u64) {
        self.most.store(bytes, Relaxed);
    }

    /// Bytes that its backends hold of its memory.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Replaces values.
    ///
    /// # Errors
    /// What the device reports.
    pub(crate) fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        for (i, part) in bytes.chunks(STAGING).enumerate() {
            self.send(to, at + (i * STAGING) as u64, part);
            if self.written.fetch_add(part.len(), Relaxed) + part.len() >= STAGING {
                self.written.store(0, Relaxed);
                self.queue.submit([]);
                self.finish("write")?;
            }
        }
        self.check("write")
    }

    /// New memory, all zero.
    ///
    /// # Errors
    /// If the device has not as much.
    pub fn reserve(&self, op: &'static str, elements: usize) -> Result<Buffer> {
        let bytes = if self.imagined { ALIGN } else { rounded(elements) as u64 };
        self.allocate(op, storage(bytes))
    }

    pub(crate) fn allocate(&self, op: &'static str, how: wgpu::BufferDescriptor) -> Result<Buffer> {
        static BUFFERS: AtomicU64 = AtomicU64::new(1);
        let bytes = how.size as usize;
        if how.size > self.adapter.buffer_bytes {
            let what = format!(
                "{} takes {} bytes at once: a smaller batch may do, and the cpu does",
                self.adapter, self.adapter.buffer_bytes
            );
            return Err(BackendError::Memory { op, bytes, what });
        }
        // what is read by the host is in its memory
        let counts = how.usage.contains(wgpu::BufferUsages::STORAGE);
        let refused = |what: &str| {
            let what = format!(
                "{}, which holds {} already, refuses it ({}): a smaller batch takes less, and so does recomputing \
                 activations in training",
                self.adapter,
                units::bytes(self.reserved()),
                what.trim()
            );
            BackendError::Memory { op, bytes, what }
        };
        if counts && self.reserved() + how.size > self.most.load(Relaxed) {
            return Err(refused("it was told to"));
        }
        let raw = self.raw.create_buffer(&how);
        match self.check(op) {
            Err(BackendError::Memory { what, .. }) => return Err(refused(&what)),
            checked => checked?,
        }
        let counted = counts.then(|| {
            self.reserved.fetch_add(how.size, Relaxed);
            Arc::new(Counted(how.size, self.reserved.clone()))
        });
        Ok(Buffer { id: BUFFERS.fetch_add(1, Relaxed), raw, _counted: counted })
    }

    /// The layout of a kernel's bindings.
    pub(crate) fn bindings(&self, kernel: &GpuKernel) -> &wgpu::BindGroupLayout {
        &self.layouts[kernel.bindings].0
    }

    /// Puts another kernel in the place of one: a driver that computes wrongly.
    #[cfg(test)]
    pub(crate) fn replace(&self, (kernel, how): (&'static GpuKernel, Variant), by: &'static GpuKernel) {
        assert_eq!(kernel.bindings, by.bindings);
        let other = self.compiled(by, how).expect("it compiles");
        locked(&self.compiled).insert((kernel.entry, how), other);
    }
    #[cfg(test)]
    pub(crate) fn has_compiled(&self, entry: &str) -> bool {
        locked(&self.compiled).keys().any(|(kernel, _)| *kernel == entry)
    }

    /// A kernel's text, read. wgpu adds a counter to every loop to end loops that never do; drivers then keep a
    /// kernel's registers in memory, which made a step of GPT-2 5.5 times as slow on an H200
    /// (docs/decisions.md#gpu-loops-end-by-themselves).
    fn module(&self, label: &'static str, text: String) -> wgpu::ShaderModule {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let checks = wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
        // SAFETY: all loops end. Every kernel is a text of this crate, and each of its loops counts, by a step that is
        // at least one, to a bound far below the largest u32.
        #[allow(unsafe_code)]
        unsafe {
            self.raw.create_shader_module_trusted(wgpu::ShaderModuleDescriptor { label: Some(label), source }, checks)
        }
    }

    /// A kernel, compiled.
    ///
    /// # Errors
    /// If the driver does not compile it.
    pub(crate) fn compiled(&self, kernel: &'static GpuKernel, how: Variant) -> Result<wgpu::ComputePipeline> {
        let mut compiled = locked(&self.compiled);
        if let Some(pipeline) = compiled.get(&(kernel.entry, how)) {
            return Ok(pipeline.clone());
        }
        let text = format!("{}{COMMON}{}", how.lines(), kernel.text);
        let made = contain(|| {
            let module = self.module(kernel.entry, text);
            self.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(kernel.entry),
                layout: Some(&self.layouts[kernel.bindings].1),
                module: &module,
                entry_point: Some(kernel.entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    // every kernel writes the workgroup's memory before it reads it
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            })
        });
        let pipeline = made.map_err(|what| BackendError::NotSupported { op: kernel.entry, what, settings: &[] })?;
        self.check(kernel.entry)?;
        compiled.insert((kernel.entry, how), pipeline.clone());
        Ok(pipeline)
    }
}

/// Bytes that are reserved for so many elements.
pub fn rounded(elements: usize) -> usize {
    (4 * elements).next_multiple_of(ALIGN as usize).max(ALIGN as usize)
}

fn storage(size: u64) -> wgpu::BufferDescriptor<'static> {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false }
}

/// `n` bindings that a kernel may read and write: tensors of one buffer may be read and written by one kernel.
fn layout(device: &wgpu::Device, n: usize) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
    let entry = |binding| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: false },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let entries: Vec<_> = (0..n as u32).map(entry).collect();
    let group = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&group)],
        immediate_size: WORDS,
    });
    (group, pipeline)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault is told to the thread whose call it is, once.
    #[test]
    fn a_thread_hears_of_its_own_faults() {
        let Some(device) = crate::test_device::device() else { return };
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE; // which do not go together
        let wrong = wgpu::BufferDescriptor { usage, ..storage(256) };
        let other = thread::scope(|scope| {
            let at_fault = scope.spawn(|| {
                drop(device.raw.create_buffer(&wrong));
                assert!(thread::scope(|inner| inner.spawn(|| device.check("other")).join().unwrap()).is_ok());
                [device.check("own"), device.check("again")]
            });
            at_fault.join().unwrap()
        });
        assert!(matches!(other[0], Err(BackendError::Invalid { op: "own", .. })), "{other:?}");
        assert!(other[1].is_ok() && device.check("main").is_ok(), "{other:?}");
    }
}
