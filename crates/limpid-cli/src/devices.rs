//! Devices and roofs: what is said of where a model runs, and what its steps cost there.

use crate::machine::{PASSES, READINGS};
use crate::show;
use anyhow::Result;
use limpid::backend::cpu::roof::Roof;
use limpid::model::Model;
use limpid::ops::Batch;
use limpid::optimizer::ParamGroup;
use limpid::{Device, Machine};
use serde_json::Value;
use std::sync::Once;

/// What a step costs by kinds of ops, where the device is a GPU: which one, a table, and the same as JSON.
pub type Traffic = (String, String, Value);

/// Counts them, without running a step. The batch is made where there is something to count.
#[cfg(feature = "gpu")]
pub fn traffic(
    machine: &Machine,
    model: &Model,
    groups: &[ParamGroup],
    batch: impl FnOnce() -> Result<Batch>,
    keys: usize,
) -> Result<Option<Traffic>> {
    use limpid::gpu::{KNOWN, OpTraffic};
    if machine.device != Device::Gpu {
        return Ok(None);
    }
    let gpu = machine.gpu.parse().expect("every text is a choice");
    let (on, found) = limpid::gpu::traffic(&gpu, model, groups, &batch()?, keys)?;
    let line = |t: &OpTraffic| {
        let own = [
            t.op.into(),
            t.way.into(),
            t.launches.to_string(),
            show::bytes(t.bytes),
            format!("{:.2}", t.bytes as f64 / t.least as f64),
            show::count(t.flops),
        ];
        own.into_iter().chain(KNOWN.iter().map(|gpu| format!("{:.2} ms", 1e3 * t.floor(gpu)))).collect()
    };
    let columns = ["op", "way", "kernels", "bytes", "of the least", "FLOP"].into_iter();
    let columns: Vec<&str> = columns.chain(KNOWN.iter().map(|gpu| gpu.name)).collect();
    let json = |t: &OpTraffic| {
        let floors: serde_json::Map<_, _> = KNOWN.iter().map(|gpu| (gpu.name.into(), t.floor(gpu).into())).collect();
        serde_json::json!({
            "op": t.op, "way": t.way, "kernels": t.launches, "bytes": t.bytes, "least_bytes": t.least, "flops": t.flops,
            "floor_seconds": floors,
        })
    };
    let table = show::columns(&columns, &found.iter().map(line).collect::<Vec<_>>());
    Ok(Some((on.to_string(), table, found.iter().map(json).collect())))
}
#[cfg(not(feature = "gpu"))]
pub fn traffic(
    _: &Machine,
    _: &Model,
    _: &[ParamGroup],
    _: impl FnOnce() -> Result<Batch>,
    _: usize,
) -> Result<Option<Traffic>> {
    Ok(None)
}

/// What the user should know of a device: why it was chosen, or that it is none.
pub fn tell(machine: &Machine, why: Option<&str>) {
    static TOLD: Once = Once::new();
    if let Some(why) = why {
        show::say(format_args!("device: {} ({why})", machine.device));
    } else if machine.device == Device::Gpu
        && let Ok((name, true)) = machine.gpu_in_use()
    {
        TOLD.call_once(|| {
            show::say(format_args!(
                "note: {name} is a GPU emulated by this processor: --device cpu is many times faster"
            ));
        });
    }
}

/// The roofs of this processor as a machine uses it: multiply-adds in FLOP/s, and reads in bytes a second.
pub fn roofs(machine: &Machine) -> Result<[f64; 2]> {
    let mut flops = Roof::multiply_adds(machine.threads, machine.level, machine.precision)?;
    Ok([flops.measure(READINGS), Roof::reads(machine.threads, machine.level)?.measure(PASSES)])
}
