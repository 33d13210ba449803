//! The weights, on which several backends may run: sessions, traces and evaluations of one model; a trainer, and whoever
//! samples meanwhile. Whoever is alone with them may write.

use super::reserve;
use super::team::ThreadTeam;
use crate::backend::{BackendError, Held, Result};
use crate::model::{Mode, Model, WeightMap};
use crate::ops::arena::Arena;
use crate::ops::linear::Precision;
use crate::ops::linear::gemm::Packed;
use crate::ops::simd::Level;
use crate::ops::view::Mat;
use crate::ops::{MemorySpace, Op, Region};
use std::collections::HashMap;

/// What all rows share and no run changes.
pub struct Weights {
    map: WeightMap,
    how: (Level, Precision),
    pub konst: Arena,
    pub param: Arena,
    /// What products multiply by is packed where no backward reads it. What they alone read is kept here and nowhere else: its place
    /// among the parameters is never touched.
    multiplied: Vec<Region>,
    /// By where it lies.
    packed: HashMap<usize, Packed>,
    /// Tables that lie plain, because rows are looked up in them.
    tables: Vec<Region>,
}

/// A weight as it is kept.
pub enum WeightRows<'a> {
    Plain(&'a [f32]),
    Packed(&'a Packed),
}

impl WeightRows<'_> {
    /// Row `i`.
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

/// The parameters in which rows are looked up, and which lie plain for that. In f32 a tied table does not: its rows can be
/// read from what is packed for the head.
fn tables(ops: &[Op], multiplied: &[Region], precision: Precision) -> Vec<Region> {
    let tables = ops.iter().filter_map(|op| match *op {
        Op::Embed { table, positions, segments, .. } => Some([Some(table), positions, segments]),
        _ => None,
    });
    tables.flatten().flatten().filter(|region| precision != Precision::F32 || !multiplied.contains(region)).collect()
}

impl Weights {
    /// Memory for a model's, all zero.
    pub fn new(model: &Model, how: (Level, Precision)) -> Result<Weights> {
        let multiplied = if packs(model) { multiplied(model) } else { vec![] };
        Ok(Weights {
            map: model.weight_map(),
            how,
            konst: reserve(model.program.size(MemorySpace::Const))?,
            param: reserve(model.program.size(MemorySpace::Param))?,
            tables: tables(&model.ops(), &multiplied, how.1),
            packed: HashMap::new(),
            multiplied,
        })
    }

    /// Whether they can be what `model` runs on.
    pub fn fit(&self, model: &Model, how: (Level, Precision)) -> Result<()> {
        if let Some(what) = self.map.difference(&model.weight_map()) {
            return Err(BackendError::OtherWeights { what });
        }
        let packed = !self.multiplied.is_empty();
        let what = match () {
            () if packed && matches!(model.mode, Mode::Train { .. }) => {
                "they are packed for running: training needs its own".into()
            }
            () if packed && self.how != how => {
                let [(level, precision), (other, others)] = [self.how, how];
                format!("they are packed for {precision} on {level}, not for {others} on {other}")
            }
            () => return Ok(()),
        };
        Err(BackendError::NotSupported { op: "shared weights", what })
    }

    /// Where something lies plain.
    pub fn of(&self, region: Region) -> &[f32] {
        let memory = if region.space == MemorySpace::Const { &self.konst } else { &self.param };
        &memory[region.range()]
    }

    /// What a product multiplies by, if it is packed.
    pub fn packed(&self, region: Region) -> Option<&Packed> {
        self.packed.get(&region.at).filter(|_| region.space == MemorySpace::Param)
    }

    /// Rows of a parameter, or of a constant.
    pub fn table(&self, region: Region) -> WeightRows<'_> {
        let packed = self.packed(region).filter(|_| !self.tables.contains(&region));
        packed.map_or_else(|| WeightRows::Plain(self.of(region)), WeightRows::Packed)
    }

    /// Whether gradients can be made of them.
    pub fn are_plain(&self) -> bool {
        self.multiplied.is_empty()
    }

    /// Keeps a weight packed, given as (in, out), where products alone read it. Returns whether that is so.
    pub fn pack(&mut self, region: Region, values: Mat, team: &ThreadTeam) -> Result<bool> {
        if !self.multiplied.contains(&region) {
            return Ok(false);
        }
        self.packed.remove(&region.at);
        let alone = !self.tables.contains(&region);
        if alone {
            self.packed.insert(region.at, team.pack(values)?);
        }
        Ok(alone)
    }

    /// Whether every weight that is to be packed is.
    pub fn are_packed(&self) -> bool {
        self.multiplied.iter().all(|w| self.packed.contains_key(&w.at))
    }

    /// Packs the rest: tables that lie plain, too, and what nobody wrote.
    pub fn pack_all(&mut self, team: &ThreadTeam) -> Result<()> {
        for i in 0..self.multiplied.len() {
            let w = self.multiplied[i];
            if !self.packed.contains_key(&w.at) {
                let packed = team.pack(Mat::new(self.of(w), w.cols).t())?;
                self.packed.insert(w.at, packed);
            }
        }
        Ok(())
    }
}

/// Whether a model's weights are packed: where they are used again and again for few rows.
pub fn packs(model: &Model) -> bool {
    matches!(model.mode, Mode::Decode { .. })
}

impl Held for Weights {
    fn weight_map(&self) -> &WeightMap {
        &self.map
    }
    fn read(&self, region: Region, to: &mut [f32]) {
        let table = self.table(region);
        to.chunks_exact_mut(region.cols).enumerate().for_each(|(i, row)| table.row(i, row));
    }
}
