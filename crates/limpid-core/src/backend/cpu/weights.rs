//! The weights, on which several backends may run: decoders, traces and evaluations of one model, or a trainer and a
//! decoder that samples during training. A backend may write weights that no other holds.

use super::reserve;
use super::team::ThreadTeam;
use crate::backend::{BackendError, Held, Result};
use crate::matrix::Precision;
use crate::matrix::arena::Arena;
use crate::matrix::codes::Codes;
use crate::matrix::gemm::Packed;
use crate::matrix::view::Mat;
use crate::model::{Mode, Model, WeightMap};
use crate::numeric::blocks::Quant;
use crate::numeric::simd::Level;
use crate::ops::{MemorySpace, Op, Region};
use std::collections::HashMap;
use std::ops::Deref;

/// The parameters of a model. No run changes them; only an update or an upload does.
pub struct Weights {
    map: WeightMap,
    how: (Level, Precision),
    pub konst: Arena,
    pub param: Arena,
    /// The weights of products, if all are packed, which needs a model without a backward. A weight that only
    /// products read is stored packed alone: its place among the parameters is never touched.
    multiplied: Vec<Region>,
    /// Packed weights, by their place.
    packed: HashMap<(MemorySpace, usize), Packed>,
    /// Tables that are kept plain, because rows are looked up in them.
    tables: Vec<Region>,
    /// What may stay quantised.
    quantised: Vec<Region>,
}

/// What a run reads and never writes: the weights, and the tables of positions, which are its backend's own.
#[derive(Clone, Copy)]
pub struct Fixed<'a> {
    pub weights: &'a Weights,
    pub tables: &'a Arena,
}

impl<'a> Fixed<'a> {
    /// The plain values of a weight or a table.
    pub fn plain(self, region: Region) -> &'a [f32] {
        if region.space == MemorySpace::Table { &self.tables[region.range()] } else { self.weights.plain(region) }
    }
}

impl Deref for Fixed<'_> {
    type Target = Weights;
    fn deref(&self) -> &Weights {
        self.weights
    }
}

/// A weight, plain or packed.
pub enum WeightRows<'a> {
    Plain(&'a [f32]),
    Packed(&'a Packed),
}

impl WeightRows<'_> {
    /// Copies row `i` to `to`.
    pub fn row(&self, i: usize, to: &mut [f32]) {
        match self {
            WeightRows::Plain(values) => to.copy_from_slice(&values[i * to.len()..][..to.len()]),
            WeightRows::Packed(packed) => to.iter_mut().enumerate().for_each(|(c, to)| *to = packed.at(c, i)),
        }
    }
}

/// The weights of products.
fn multiplied(model: &Model) -> Vec<Region> {
    let weight = |op: &Op| if let Op::Linear { w, .. } | Op::Classify { w, .. } = op { Some(*w) } else { None };
    model.ops().iter().filter_map(weight).collect()
}

/// What may stay quantised: the weights of products and the tables of tokens, of which rows can be made f32s one by
/// one, where all are packed or they are frozen. Not in bf16, whose products are of other numbers.
pub fn quantised(model: &Model, precision: Precision) -> Vec<Region> {
    let table = |op: &Op| if let Op::Embed { table, .. } = op { Some(*table) } else { None };
    let frozen = |region: &Region| !region.learns() && matches!(model.mode, Mode::Train { .. });
    let stays = |region: &Region| precision != Precision::Bf16 && (packs(model, precision) || frozen(region));
    model.ops().iter().filter_map(table).chain(multiplied(model)).filter(stays).collect()
}

/// The parameters that are kept plain because rows are looked up in them. In f32 a tied table is not: its rows can
/// be read from the head's packed weight.
fn tables(ops: &[Op], multiplied: &[Region], precision: Precision) -> Vec<Region> {
    let tables = ops.iter().filter_map(|op| match *op {
        Op::Embed { table, positions, segments, .. } => Some([Some(table), positions, segments]),
        _ => None,
    });
    tables.flatten().flatten().filter(|region| precision == Precision::Bf16 || !multiplied.contains(region)).collect()
}

/// What a weight is packed under.
fn place(region: Region) -> (MemorySpace, usize) {
    (region.space, region.at)
}

impl Weights {
    /// Memory for a model's weights, all zero.
    pub fn new(model: &Model, how: (Level, Precision)) -> Result<Weights> {
        let multiplied = if packs(model, how.1) { multiplied(model) } else { vec![] };
        Ok(Weights {
            map: model.weight_map(),
            how,
            konst: reserve(model.program.size(MemorySpace::Const))?,
            param: reserve(model.program.size(MemorySpace::Param))?,
            tables: tables(&model.ops(), &multiplied, how.1),
            packed: HashMap::new(),
            quantised: quantised(model, how.1),
            multiplied,
        })
    }

    /// Checks that `model` can run on these weights.
    pub fn fit(&self, model: &Model, how: (Level, Precision)) -> Result<()> {
        if let Some(what) = self.map.difference(&model.weight_map()) {
            return Err(BackendError::OtherWeights { what });
        }
        let packed = !self.multiplied.is_empty();
        let what = if packed && matches!(model.mode, Mode::Train { .. }) {
            "they are packed for running: training needs its own".into()
        } else if !self.packed.is_empty() && self.how != how {
            let [(level, precision), (other, others)] = [self.how, how];
            format!("they are packed for {precision} on {level}, not for {others} on {other}")
        } else {
            return Ok(());
        };
        Err(BackendError::NotSupported { op: "shared weights", what, settings: &[] })
    }

    /// The plain values of a parameter.
    pub fn plain(&self, region: Region) -> &[f32] {
        let memory = if region.space == MemorySpace::Const { &self.konst } else { &self.param };
        &memory[region.range()]
    }

    /// The packed form of a parameter, if it has one.
    pub fn packed(&self, region: Region) -> Option<&Packed> {
        self.packed.get(&place(region))
    }

    /// The rows of a parameter or constant.
    pub fn table(&self, region: Region) -> WeightRows<'_> {
        let packed = self.packed(region).filter(|packed| packed.codes().is_some() || !self.tables.contains(&region));
        packed.map_or_else(|| WeightRows::Plain(self.plain(region)), WeightRows::Packed)
    }

    /// Whether the weights are such as the backward needs them: plain, or blocks that are frozen.
    pub fn have_backward(&self) -> bool {
        self.multiplied.is_empty()
    }

    /// Stores a weight, given as (in, out), packed if only products read it. Returns whether it did.
    pub fn pack(&mut self, region: Region, values: Mat, team: &ThreadTeam) -> Result<bool> {
        self.packed.remove(&place(region));
        if !self.multiplied.contains(&region) {
            return Ok(false);
        }
        let alone = !self.tables.contains(&region);
        if alone {
            self.packed.insert(place(region), team.pack(values)?);
        }
        Ok(alone)
    }

    /// Keeps a weight as the blocks that it is given in, part by part some of its rows, if it may stay quantised and
    /// they are of one form. Returns whether it did.
    pub fn keep_quantised(&mut self, region: Region, parts: &[(Quant, &[u8])], team: &ThreadTeam) -> Result<bool> {
        let codes = Codes::of(parts.iter().map(|part| part.0)).filter(|_| self.quantised.contains(&region));
        let Some(codes) = codes else { return Ok(false) };
        self.packed.remove(&place(region));
        self.packed.insert(place(region), team.lay(codes, region.shape(), parts)?);
        Ok(true)
    }

    /// Whether every weight that should be packed is packed.
    pub fn are_packed(&self) -> bool {
        self.multiplied.iter().all(|w| self.packed.contains_key(&place(*w)))
    }

    /// Packs the rest: the weights that are also plain tables, and those that were never written.
    pub fn pack_all(&mut self, team: &ThreadTeam) -> Result<()> {
        for i in 0..self.multiplied.len() {
            let w = self.multiplied[i];
            if !self.packed.contains_key(&place(w)) {
                let packed = team.pack(Mat::new(self.plain(w), w.cols).t())?;
                self.packed.insert(place(w), packed);
            }
        }
        Ok(())
    }
}

/// Whether a model's weights are packed: in decoding, where they are used again and again for few rows, and where
/// products are to be of codes.
pub fn packs(model: &Model, precision: Precision) -> bool {
    matches!(model.mode, Mode::Decode { .. }) || precision == Precision::Int8
}

impl Held for Weights {
    fn weight_map(&self) -> &WeightMap {
        &self.map
    }
    fn read(&self, region: Region, to: &mut [f32]) -> Result<()> {
        self.copy(region, to);
        Ok(())
    }
}

impl Weights {
    /// The values of a parameter, row by row.
    pub fn copy(&self, region: Region, to: &mut [f32]) {
        // it may be some rows of a packed weight
        let holds = |w: &&Region| w.space == region.space && w.range().contains(&region.at);
        let whole = self.multiplied.iter().chain(&self.quantised).find(holds).copied().unwrap_or(region);
        let (table, first) = (self.table(whole), (region.at - whole.at) / region.cols);
        to.chunks_exact_mut(region.cols).enumerate().for_each(|(i, row)| table.row(first + i, row));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cpu;
    use crate::backend::{Backend, BackendError};
    use crate::config::Config;
    use crate::matrix::Precision;
    use crate::model::{Lora, Mode, Model, ParamRole, Tuning};
    use crate::numeric::blocks::Quant;
    use crate::numeric::element::{Element, Major, Values};
    use crate::numeric::simd::Level;

    /// Frozen blocks have no other place in memory, in f32; what learns and products of bf16 have values.
    #[test]
    fn what_is_frozen_stays_quantised_where_it_is_multiplied() {
        let config =
            Config { vocab_size: 64, context_length: 8, d_model: 32, n_head: 2, d_ff: 64, ..Config::default() };
        let targets = vec!["attention".into()];
        let lora = Tuning { lora: Some(Lora { rank: 2, alpha: 2.0, dropout: 0.0, targets }), ..Tuning::default() };
        let mode = Mode::Train { batch: 1, context: 8 };
        for (tuning, precision) in
            [(&lora, Precision::F32), (&lora, Precision::Bf16), (&Tuning::default(), Precision::F32)]
        {
            let model = Model::tuned(&config, mode, tuning).unwrap();
            let mut cpu = Cpu::with(&model, 2, Level::best(), precision);
            for param in model.params.iter().filter(|p| p.is_matrix() && p.region.cols >= 32 && !p.is_adapter()) {
                let block = |i: usize| [0, 0x38].into_iter().chain((0..32).map(move |q| (3 * i + q) as u8));
                let bytes: Vec<u8> = (0..param.region.len() / 32).flat_map(block).collect();
                let element = Element::Blocks(Quant::Q8_0);
                cpu.upload(param.region, Values { element, bytes: &bytes, major: Major::Rows }).unwrap();
                let stays = tuning == &lora && precision == Precision::F32 && param.role != ParamRole::Position;
                let codes = cpu.weights.packed(param.region).and_then(|packed| packed.codes());
                assert_eq!(codes.is_some(), stays, "{} in {precision}", param.name);
                assert_eq!(cpu.weights.plain(param.region).iter().all(|v| *v == 0.0), stays, "{}", param.name);
                let values = cpu.read(param.region).unwrap();
                assert!(values == Quant::Q8_0.widen(&bytes), "{}", param.name);
                let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
                assert_eq!(cpu.sum(param.region).unwrap(), sum, "{}", param.name);
            }
            if precision == Precision::F32 && tuning == &lora {
                // who shares them reads them as they lie
                let shared = cpu.share().unwrap();
                let other = |precision| Cpu::start_with(&model, 1, Level::best(), precision, &shared).map(drop);
                assert!(other(Precision::F32).is_ok());
                assert!(matches!(other(Precision::Bf16), Err(BackendError::NotSupported { .. })));
                drop(shared);
                // other values take their place
                let region = model.param("embed.weight").unwrap().region;
                cpu.write(region, &vec![0.25; region.len()]).unwrap();
                assert!(cpu.weights.packed(region).is_none() && cpu.read(region).unwrap() == vec![0.25; region.len()]);
            }
        }
    }
}
