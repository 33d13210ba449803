//! What a model's ops cost on a GPU, counted from the lists that are written for it: nothing is run.

use crate::Gpu;
use crate::lists::List;
use crate::passes::Memory;
use limpid_core::backend::{Backend, Result};
use limpid_core::model::Model;
use limpid_core::ops::{Access, Back, Batch, Op, Pass, Region};

/// What the ops of one kind cost in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTraffic {
    /// The op, as limpid's list names it.
    pub op: &'static str,
    /// `forward` or `backward`; what is recomputed counts as forward.
    pub way: &'static str,
    /// How many kernels start.
    pub launches: u64,
    /// Bytes that the kernels read and write: each tensor once for each kernel, as if caches held it meanwhile.
    pub bytes: u64,
    /// Bytes that the op's sums read and write, each tensor once for each sum. Most ops are one: y = f(x). Others are
    /// several over different things, which no kernel does in one pass without adding in memory in an order of chance:
    /// a linear layer's backward are two products; attention's a sum over keys (dq) and one over queries (dk, dv); a
    /// lookup's one for each table; the loss is a product and a softmax, and its backward two products more, each for
    /// as many rows as there is room for logits.
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
        let chunk = self.chunk;
        let mut add = |op: &Op, way, least: usize, times: f64, [launches, bytes]: [u64; 2]| {
            let place = found.iter().position(|t| (t.op, t.way) == (op.name(), way)).unwrap_or_else(|| {
                found.push(OpTraffic { op: op.name(), way, launches: 0, bytes: 0, least: 0, flops: 0.0 });
                found.len() - 1
            });
            let of = &mut found[place];
            of.launches += launches;
            of.bytes += bytes;
            of.least += 4 * least as u64;
            of.flops += times * op.flops(batch.tokens.len(), keys);
        };
        for op in model.body().iter() {
            let op = op.for_batch(batch);
            let cost = self.cost(|memory, list| memory.forward(list, op))?;
            add(&op, "forward", forward(op, chunk), 1.0, cost);
        }
        for pass in model.back().iter() {
            match pass.for_batch(batch) {
                Pass::Recompute(op) => {
                    let cost = self.cost(|memory, list| memory.forward(list, op))?;
                    add(&op, "forward", forward(op, chunk), 1.0, cost);
                }
                Pass::Back(back) => {
                    let cost = self.cost(|memory, list| memory.backward(list, back))?;
                    // the loss is computed with its gradient
                    let first = f64::from(u8::from(back.index >= model.body().len()));
                    let ids = self.rows.sorted.map(|sorted| sorted.ids);
                    add(&back.op, "backward", backward(&back, chunk, ids), 2.0 + first, cost);
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

/// Elements of those tensors that there are.
fn len<const N: usize>(regions: [Option<Region>; N]) -> usize {
    regions.into_iter().flatten().map(|region| region.len()).sum()
}

/// Elements that an op's forward reads and writes, each once for each of its sums; logits come in chunks of so many
/// rows.
fn forward(mut op: Op, chunk: usize) -> usize {
    let all = op.operands().map(|(_, region)| region.len()).sum();
    match op {
        // of a table the rows that are looked up
        Op::Embed { table, positions, segments, y, token, position } => {
            let tables = [Some(table), positions, segments].into_iter().flatten();
            tables.map(|table| table.len().min(y.len())).sum::<usize>() + len([Some(y), token, position])
        }
        // the logits are made, then read
        Op::Classify { x, w, logits, .. } => {
            let made = if logits.is_none() { 2 * x.rows * w.rows } else { 0 };
            all + made + (x.rows.div_ceil(chunk) - 1) * w.len()
        }
        _ => all,
    }
}

/// Elements that an op's backward reads and writes, each once for each of its sums; batches have so many different
/// tokens, positions and segments.
fn backward(back: &Back, chunk: usize, ids: [usize; 3]) -> usize {
    let grads: [Option<Region>; 2] = back.dx.map(|dx| dx.map(|dx| dx.region));
    let (dy, dx) = (len([back.dy]), len(grads));
    let learned = |of: Option<Region>| of.filter(|of| of.learns());
    match back.op {
        Op::Embed { table, positions, segments, .. } => {
            let tables = [Some(table), positions, segments].into_iter().zip(ids);
            let tables = tables.filter_map(|(table, ids)| Some((table.filter(|table| table.learns())?, ids)));
            tables.map(|(table, ids)| dy + ids * table.cols).sum()
        }
        Op::Norm { x, gain, offset, stats, .. } => {
            x.len() + stats.len() + dy + dx + len([gain, learned(gain), learned(offset)])
        }
        Op::QkNorm { x, q_gain, k_gain, stats, .. } => {
            x.len() + stats.len() + dy + dx + len([q_gain, k_gain, learned(q_gain), learned(k_gain)])
        }
        Op::Linear { x, w, b, .. } => {
            let of_x = if dx > 0 { dy + w.len() + dx } else { 0 };
            let of_w = if w.learns() { dy + x.len() + w.len() } else { 0 };
            of_x + of_w + len([learned(b)])
        }
        Op::Attend { qkv, y, lse, heads, .. } => {
            let queries = heads.query_cols() * qkv.rows;
            let of_queries = qkv.len() + y.len() + dy + lse.len() + queries;
            let of_keys = qkv.len() + dy + lse.len() + (qkv.len() - queries);
            of_queries + of_keys
        }
        Op::Classify { x, w, b, losses, .. } => {
            let logits = x.rows * w.rows;
            let weights = w.len() * x.rows.div_ceil(chunk);
            let made = x.len() + weights + len([b]) + logits;
            let of_x = if dx > 0 { logits + weights + dx } else { 0 };
            let of_w = if w.learns() { logits + x.len() + weights } else { 0 };
            made + logits + losses.len() + of_x + of_w + len([learned(b)])
        }
        // what the op saved, and its tables
        mut op @ (Op::Rotate { .. }
        | Op::Activate { .. }
        | Op::Scale { .. }
        | Op::Add { .. }
        | Op::Dropout { .. }
        | Op::Gather { .. }
        | Op::Multiply { .. }) => {
            let again =
                |access| matches!(access, Access::Own | Access::Read { saved: true } | Access::Write { saved: true });
            dy + dx + op.operands().filter(|(access, _)| again(*access)).map(|(_, region)| region.len()).sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_core::config::Config;
    use limpid_core::model::Mode;

    /// A list that is counted is the one that runs; and no op moves more than 1.3 times what it must, in a small model,
    /// and in a layer of GPT-2 with its head, whose logits come in chunks.
    #[test]
    fn no_op_moves_much_more_than_it_must() {
        let Some(device) = crate::test_device::device() else { return };
        let layer = Config { n_layer: 1, ..Config::preset("gpt2").unwrap() };
        for (config, batch, context) in [(Config::preset("nano").unwrap(), 12, 64), (layer, 2, 1024)] {
            let model = Model::new(&config, Mode::Train { batch, context }).unwrap();
            let mut gpu = Gpu::start(&device, &model).unwrap();
            // some tokens come again and again
            let ids: Vec<u32> = (0..(batch * context) as u32).map(|i| i * i % 301 % config.vocab_size as u32).collect();
            let rows = Batch::of_sequences(ids.clone(), ids, context);
            let all = gpu.traffic(&model, &rows, context / 2).unwrap();
            for OpTraffic { op, way, launches, bytes, least, flops } in &all {
                let over = *bytes as f64 / *least as f64;
                println!(
                    "{op:10} {way:9} {launches:4} kernels {bytes:10} bytes {over:5.2} of the least, {flops:.2e} FLOP"
                );
                assert!((0.95..=1.3).contains(&over), "{op} {way}: {bytes} bytes, {over:.2} times {least}");
            }
            let flops: f64 = all.iter().map(|t| t.flops).sum();
            let of_step = model.training_flops(batch * context, context / 2);
            assert!((flops / of_step - 1.0).abs() < 1e-9, "{flops:e} and {of_step:e}");
            assert!(all.iter().all(|t| t.launches > 0), "{all:?}");
        }
    }
}
