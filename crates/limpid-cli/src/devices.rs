//! `--device`: where a model runs, chosen by name or by measurement.

use crate::machine::{PASSES, READINGS};
use crate::show;
use anyhow::Result;
use limpid::backend::cpu::roof::Roof;
use limpid::config::Config;
use limpid::model::{Mode, Model};
use limpid::ops::{Batch, Span};
use limpid::optimizer::ParamGroup;
use limpid::{Device, DeviceName, Machine};
use serde_json::Value;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What `--device` says, and what `auto` came to.
#[derive(Clone, Debug)]
pub struct DeviceChoice {
    name: DeviceName,
    /// Shared by all copies: one of them measures, and all of them go by it.
    measured: Arc<OnceLock<Device>>,
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name.fmt(f)
    }
}

impl DeviceChoice {
    /// The device of this name.
    pub fn new(name: DeviceName) -> DeviceChoice {
        DeviceChoice { name, measured: Arc::default() }
    }

    /// The device; `auto` is the cpu until [`DeviceChoice::measure`] has found another.
    pub fn device(&self) -> Device {
        self.name.device.or(self.measured.get().copied()).unwrap_or(Device::Cpu)
    }

    /// Decides `auto` for a model: two of its blocks run on the cpu and on the first real GPU, and the faster is taken.
    pub fn measure(&self, config: &Config, mode: Mode, machine: &Machine) {
        match self.name.device {
            None => drop(self.measured.get_or_init(|| faster(config, mode, machine))),
            Some(Device::Gpu) => tell_software(&self.name.gpu),
            Some(_) => {}
        }
    }
}

/// What a step costs by kinds of ops, where the device is a GPU: which one, a table, and the same as JSON.
pub type Traffic = (String, String, Value);

/// Counts them, without running a step. The batch is made where there is something to count.
#[cfg(feature = "gpu")]
pub fn traffic(
    choice: &DeviceChoice,
    model: &Model,
    groups: &[ParamGroup],
    batch: impl FnOnce() -> Result<Batch>,
    keys: usize,
) -> Result<Option<Traffic>> {
    use limpid::gpu::{KNOWN, OpTraffic};
    if choice.device() != Device::Gpu {
        return Ok(None);
    }
    let gpu = choice.name.gpu.parse().expect("every text is a choice");
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
    _: &DeviceChoice,
    _: &Model,
    _: &[ParamGroup],
    _: impl FnOnce() -> Result<Batch>,
    _: usize,
) -> Result<Option<Traffic>> {
    Ok(None)
}

/// The GPU that is meant: how it is called, and whether it is one.
#[cfg(feature = "gpu")]
fn in_use(gpu: &str) -> Result<(String, bool), String> {
    let choice = gpu.parse().expect("every text is a choice");
    let device = limpid::gpu::GpuDevice::shared(&choice).map_err(|error| error.to_string())?;
    Ok((device.adapter.to_string(), device.adapter.is_software))
}
#[cfg(not(feature = "gpu"))]
fn in_use(_: &str) -> Result<(String, bool), String> {
    Err("this limpid was built without the feature `gpu`".into())
}

fn tell_software(gpu: &str) {
    static TOLD: OnceLock<()> = OnceLock::new();
    if let Ok((name, true)) = in_use(gpu) {
        TOLD.get_or_init(|| {
            show::say(format_args!(
                "note: {name} is a GPU emulated by this processor: --device cpu is many times faster"
            ));
        });
    }
}

/// The faster device, which is told with the reason.
fn faster(config: &Config, mode: Mode, machine: &Machine) -> Device {
    let (device, why) = match in_use(&machine.gpu) {
        Err(why) => (Device::Cpu, why),
        Ok((name, true)) => (Device::Cpu, format!("the only GPU, {name}, is emulated by this processor")),
        Ok((name, false)) => match [Device::Cpu, Device::Gpu].map(|device| seconds(config, mode, &on(machine, device)))
        {
            [Ok(cpu), Ok(gpu)] => {
                let device = if gpu < cpu { Device::Gpu } else { Device::Cpu };
                (device, format!("two blocks take {:.1} ms on {name}, {:.1} ms on the cpu", 1e3 * gpu, 1e3 * cpu))
            }
            [_, Err(error)] => (Device::Cpu, format!("{name}: {error}")),
            [Err(error), _] => (Device::Gpu, error.to_string()),
        },
    };
    show::say(format_args!("device: {device} ({why})"));
    device
}

/// The same machine with that device.
fn on(machine: &Machine, device: Device) -> Machine {
    Machine { device, ..machine.clone() }
}

/// Seconds of a run of two blocks of a model, with its embeddings and logits: forward, and backward where it trains.
fn seconds(config: &Config, mode: Mode, machine: &Machine) -> Result<f64> {
    let model = Model::new(&Config { n_layer: config.n_layer.min(2), ..config.clone() }, mode)?;
    let mut backend = machine.start(&model)?;
    let zeros = |rows: usize| vec![0; rows];
    let segments = |rows: usize| if config.n_segment > 0 { zeros(rows) } else { vec![] };
    let batch = match mode {
        Mode::Decode { .. } => Batch {
            tokens: zeros(1),
            positions: zeros(1),
            segments: segments(1),
            outputs: zeros(1),
            spans: vec![Span { row: 0, rows: 1, past: 0, table: 0, valid: 1 }],
            blocks: zeros(1),
            ..Batch::default()
        },
        Mode::Train { batch, context } => {
            let rows = batch * context;
            Batch { segments: segments(rows), ..Batch::of_sequences(zeros(rows), zeros(rows), context) }
        }
        _ => anyhow::bail!("only training and decoding are measured"),
    };
    let last = model.losses().or(model.logits()).unwrap_or(model.ops()[model.ops().len() - 1].output());
    let mut run = || -> Result<f64> {
        let start = Instant::now();
        backend.feed(&batch)?;
        backend.forward(model.body())?;
        if let Mode::Train { .. } = mode {
            backend.backward(model.back())?;
        }
        backend.read(last)?; // waits for the device
        Ok(start.elapsed().as_secs_f64())
    };
    run()?; // compiles and touches what it needs
    Ok(run()?.min(run()?))
}

/// The roofs of this processor as a machine uses it: multiply-adds in FLOP/s, and reads in bytes a second.
pub fn roofs(machine: &Machine) -> Result<[f64; 2]> {
    let mut flops = Roof::multiply_adds(machine.threads, machine.level, machine.precision)?;
    Ok([flops.measure(READINGS), Roof::reads(machine.threads, machine.level)?.measure(PASSES)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_choice_share_what_was_measured() {
        let choice = DeviceChoice::new("auto".parse().unwrap());
        assert_eq!(choice.device(), Device::Cpu, "nothing is measured yet");
        choice.clone().measured.set(Device::Reference).unwrap();
        assert_eq!(choice.device(), Device::Reference);
    }

    /// What `auto` measures, on both devices and for both uses.
    #[test]
    #[cfg(feature = "gpu")]
    fn both_devices_are_measured() {
        if let Err(error) = in_use("") {
            assert!(std::env::var_os("GPU_REQUIRED").is_none(), "{error}");
            return; // there is none
        }
        let config = Config { vocab_size: 65, ..Config::preset("nano").unwrap() };
        let machine = Machine::cpu(2);
        for mode in [Mode::Train { batch: 1, context: 16 }, Mode::Decode { rows: 1, outputs: 1, blocks: 1 }] {
            for device in [Device::Cpu, Device::Gpu] {
                assert!(seconds(&config, mode, &on(&machine, device)).unwrap() > 0.0);
            }
        }
        assert!(seconds(&config, Mode::Score { batch: 1, context: 8 }, &machine).is_err());
    }
}
