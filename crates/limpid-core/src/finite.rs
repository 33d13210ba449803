//! The first tensor of a run that is not finite, by name: what a trainer asks whose loss is not a number, and a trace
//! of whoever looks.

use crate::backend::{self, Backend};
use crate::model::Model;
use crate::ops::{Access, Batch, Op, Region};

/// The first tensor that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    /// Its name.
    pub name: String,
    /// The op that computed it, or `parameter`.
    pub op: &'static str,
    /// The row of its first element that is not finite, in the tensor as it is stored.
    pub row: usize,
    /// The column of that element.
    pub column: usize,
    /// The element.
    pub value: f32,
    /// How many elements are not finite.
    pub count: usize,
}

impl std::fmt::Display for NotFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NotFinite { name, op, row, column, value, count } = self;
        write!(
            f,
            "`{name}` (made by {op}) has {count} elements that are not finite, the first {value} at row {row}, column \
             {column}"
        )
    }
}

fn bad(values: &[f32], cols: usize, masked: bool) -> Option<NotFinite> {
    let is_bad = |v: &f32| !(v.is_finite() || masked && *v == f32::NEG_INFINITY);
    let first = values.iter().position(is_bad)?;
    let (value, count) = (values[first], values.iter().filter(|v| is_bad(v)).count());
    Some(NotFinite { name: String::new(), op: "", row: first / cols, column: first % cols, value, count })
}

/// How a tensor is read.
pub type Read<'a> = &'a dyn Fn(Region) -> backend::Result<Vec<f32>>;

/// The first parameter that is not finite.
///
/// # Errors
/// If a tensor cannot be read.
pub fn bad_params(model: &Model, read: Read) -> backend::Result<Option<NotFinite>> {
    for p in &model.params {
        if let Some(bad) = bad(&read(p.region)?, p.region.cols, false) {
            return Ok(Some(NotFinite { name: p.name.clone(), op: "parameter", ..bad }));
        }
    }
    Ok(None)
}

/// The first output of an op that is not finite; its intermediate tensors come first.
///
/// # Errors
/// If a tensor cannot be read.
pub fn bad_output(op: &Op, read: Read) -> backend::Result<Option<(Region, NotFinite)>> {
    let masked = if let Op::Attend { scores, .. } = op { *scores } else { None };
    let mut copy = *op;
    let watched: Vec<Region> =
        copy.operands().filter(|(access, _)| *access == Access::Watched).map(|(_, region)| *region).collect();
    for region in watched.into_iter().chain([op.output()]) {
        if let Some(bad) = bad(&read(region)?, region.cols, masked == Some(region)) {
            return Ok(Some((region, NotFinite { op: op.name(), ..bad })));
        }
    }
    Ok(None)
}

/// Runs `batch` again, op by op, and names the first tensor that is not finite; parameters are checked first. It
/// works for every mode, also where tensors share memory: a trainer calls it when the loss or the norm of the
/// gradient is not finite.
///
/// # Errors
/// If the backend cannot run it.
pub fn find_not_finite(model: &Model, backend: &mut dyn Backend, batch: &Batch) -> backend::Result<Option<NotFinite>> {
    if let Some(bad) = bad_params(model, &|region| backend.read(region))? {
        return Ok(Some(bad));
    }
    backend.feed(batch)?;
    for (i, (op, alone)) in model.ops().each().enumerate() {
        backend.forward(alone)?;
        if let Some((region, bad)) = bad_output(op, &|region| backend.read(region.for_batch(batch)))? {
            let name = if region == op.output() { model.output_name(i).to_string() } else { model.name_of(region) };
            return Ok(Some(NotFinite { name, ..bad }));
        }
    }
    Ok(None)
}
