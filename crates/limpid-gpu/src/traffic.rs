//! What a model's ops cost on a GPU, counted from the lists that are written for it: nothing is run.

use crate::Gpu;
use crate::lists::List;
use crate::passes::Memory;
use limpid_core::backend::{Backend, Result};
use limpid_core::model::Model;
use limpid_core::ops::{Batch, Op, Pass, Region};

/// What the ops of one kind cost in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTraffic {
    /// The op, as limpid's list names it.
    pub op: &'static str,
    /// `forward` or `backward`; what is recomputed counts as forward.
    pub way: &'static str,
    /// How many kernels start.
    pub launches: u64,
    /// Bytes that the kernels are shown: each tensor once for each kernel, as if caches held it meanwhile.
    pub bytes: u64,
    /// Bytes that no kernel can do without: each of the op's tensors once.
    pub least: u64,
    /// Floating-point operations of its matrix products.
    pub flops: f64,
}

/// A GPU's roofs, as its maker states them.
#[derive(Clone, Copy, Debug)]
pub struct KnownGpu {
    /// Its name.
    pub name: &'static str,
    /// Floating-point operations a second in f32.
    pub flops: f64,
    /// Bytes a second of its memory.
    pub memory: f64,
}

/// A large GPU, one of a notebook, and one that shares a processor's memory.
pub const KNOWN: [KnownGpu; 3] = [
    KnownGpu { name: "RTX 4090", flops: 82.6e12, memory: 1008e9 },
    KnownGpu { name: "M2 Pro", flops: 6.8e12, memory: 200e9 },
    KnownGpu { name: "Iris Xe 96", flops: 2.4e12, memory: 68e9 },
];

/// Seconds in which the known GPUs start a kernel: a common figure, not measured on them.
pub const LAUNCH: f64 = 5e-6;

impl OpTraffic {
    /// Seconds that a GPU takes at least, by its roofs and by the start of kernels.
    pub fn floor(&self, gpu: &KnownGpu) -> f64 {
        (self.flops / gpu.flops).max(self.least as f64 / gpu.memory).max(self.launches as f64 * LAUNCH)
    }
}

impl Gpu {
    /// What a step of `batch` costs, by kinds of ops; rows see `keys` keys on average.
    ///
    /// # Errors
    /// As [`feed`](limpid_core::backend::Backend::feed), and if a kernel does not compile.
    pub fn traffic(&mut self, model: &Model, batch: &Batch, keys: usize) -> Result<Vec<OpTraffic>> {
        self.feed(batch)?;
        let mut found: Vec<OpTraffic> = vec![];
        let mut add = |op: &Op, way, regions: Vec<Region>, times: f64, [launches, bytes]: [u64; 2]| {
            let place = found.iter().position(|t| (t.op, t.way) == (op.name(), way)).unwrap_or_else(|| {
                found.push(OpTraffic { op: op.name(), way, launches: 0, bytes: 0, least: 0, flops: 0.0 });
                found.len() - 1
            });
            let of = &mut found[place];
            of.launches += launches;
            of.bytes += bytes;
            of.least += regions.iter().map(|region| 4 * region.len() as u64).sum::<u64>();
            of.flops += times * op.flops(batch.tokens.len(), keys);
        };
        for op in model.body().iter() {
            let op = op.of(batch);
            let cost = self.cost(|memory, list| memory.forward(list, op))?;
            add(&op, "forward", operands(op), 1.0, cost);
        }
        for pass in model.back().iter() {
            match pass.of(batch) {
                Pass::Recompute(op) => {
                    let cost = self.cost(|memory, list| memory.forward(list, op))?;
                    add(&op, "forward", operands(op), 1.0, cost);
                }
                Pass::Back(back) => {
                    let cost = self.cost(|memory, list| memory.backward(list, back))?;
                    let output = back.op.output();
                    let reads: Vec<Region> = operands(back.op).into_iter().filter(|region| *region != output).collect();
                    let learns = |region: &&Region| model.learning().any(|param| param.region == **region);
                    let grads = reads.iter().filter(learns).map(|region| region.grad());
                    let given = back.dy.into_iter().chain(back.dx.into_iter().flatten().map(|dx| dx.region));
                    let regions = reads.iter().copied().chain(grads).chain(given).collect();
                    // the loss is computed with its gradient
                    let forward = f64::from(u8::from(back.index >= model.body().len()));
                    add(&back.op, "backward", regions, 2.0 + forward, cost);
                }
            }
        }
        Ok(found)
    }

    /// Kernels and bytes of a list that is written and thrown away.
    fn cost(&mut self, write: impl FnOnce(&Memory, &mut List) -> Result<()>) -> Result<[u64; 2]> {
        let dry = |memory: &Memory, list: &mut List| {
            list.dry = true;
            write(memory, list)
        };
        self.written(dry, |list| Ok(list.cost))
    }
}

fn operands(mut op: Op) -> Vec<Region> {
    op.operands().map(|(_, region)| *region).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuChoice, GpuDevice};
    use limpid_core::config::Config;
    use limpid_core::model::Mode;

    /// A list that is counted is the one that runs, and products have their floor's bytes.
    #[test]
    fn a_step_is_counted() {
        let Ok(device) = GpuDevice::open(&GpuChoice::Best) else { return };
        let (batch, context) = (12, 64);
        let model = Model::new(&Config::preset("nano").unwrap(), Mode::Train { batch, context }).unwrap();
        let mut gpu = Gpu::start(&device, &model).unwrap();
        let ids = vec![0; batch * context];
        let rows = Batch::of_sequences(ids.clone(), ids, context);
        let all = gpu.traffic(&model, &rows, context / 2).unwrap();
        for OpTraffic { op, way, launches, bytes, least, flops } in &all {
            let over = *bytes as f64 / *least as f64;
            println!("{op:10} {way:9} {launches:4} kernels {bytes:10} bytes {over:5.2} of the least, {flops:.2e} FLOP");
        }
        let flops: f64 = all.iter().map(|t| t.flops).sum();
        let of_step = model.training_flops(batch * context, context / 2);
        assert!((flops / of_step - 1.0).abs() < 1e-9, "{flops:e} and {of_step:e}");
        let linear = all.iter().find(|t| (t.op, t.way) == ("linear", "forward")).unwrap();
        assert_eq!((linear.launches, linear.bytes), (4 * 4, linear.least));
        assert!(all.iter().all(|t| t.launches > 0 && t.bytes > 0 && t.least > 0), "{all:?}");
    }
}
