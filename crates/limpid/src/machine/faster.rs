//! The device `auto`: the faster of this processor and the first real GPU, by running two blocks of the model on each.

use super::Machine;
use crate::config::Config;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::model::{Mode, Model};
use crate::ops::{Batch, Span};
use std::time::Instant;

impl Machine {
    /// The same machine with the device that is measured to be the faster for a model, and why it is. In a build
    /// without GPUs, or where there is none, it is the processor.
    pub fn faster(&self, config: &Config, mode: Mode) -> (Machine, String) {
        let on = |device| Machine { device, ..self.clone() };
        let (name, is_software) = match self.gpu_in_use() {
            Ok(gpu) => gpu,
            Err(why) => return (on(Device::Cpu), why),
        };
        if is_software {
            return (on(Device::Cpu), format!("the only GPU, {name}, is emulated by this processor"));
        }
        match [Device::Cpu, Device::Gpu].map(|device| seconds(config, mode, &on(device))) {
            [Ok(cpu), Ok(gpu)] => {
                let device = if gpu < cpu { Device::Gpu } else { Device::Cpu };
                (on(device), format!("two blocks take {:.1} ms on {name}, {:.1} ms on the cpu", 1e3 * gpu, 1e3 * cpu))
            }
            [_, Err(error)] => (on(Device::Cpu), format!("{name}: {error}")),
            [Err(error), _] => (on(Device::Gpu), error.to_string()),
        }
    }

    /// The GPU that is meant: what it is called, and whether this processor emulates it.
    ///
    /// # Errors
    /// Why there is none.
    #[cfg(feature = "gpu")]
    pub fn gpu_in_use(&self) -> std::result::Result<(String, bool), String> {
        let choice = self.gpu.parse().expect("every text is a choice");
        let device = crate::gpu::GpuDevice::shared(&choice).map_err(|error| error.to_string())?;
        Ok((device.adapter.to_string(), device.adapter.is_software))
    }
    /// A build without GPUs.
    ///
    /// # Errors
    /// Always: says so.
    #[cfg(not(feature = "gpu"))]
    pub fn gpu_in_use(&self) -> std::result::Result<(String, bool), String> {
        Err("this limpid was built without the feature `gpu`".into())
    }
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
        _ => return Err(Error::Refused("only training and decoding are measured".into())),
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

#[cfg(feature = "gpu")]
#[cfg(test)]
mod tests {
    use super::*;

    /// What `auto` measures, on both devices and for both uses.
    #[test]
    fn both_devices_are_measured() {
        let machine = Machine::cpu(2);
        if let Err(error) = machine.gpu_in_use() {
            assert!(std::env::var_os("GPU_REQUIRED").is_none(), "{error}");
            return; // there is none
        }
        let config = Config { vocab_size: 65, ..Config::preset("nano").unwrap() };
        for mode in [Mode::Train { batch: 1, context: 16 }, Mode::Decode { rows: 1, outputs: 1, blocks: 1 }] {
            for device in [Device::Cpu, Device::Gpu] {
                assert!(seconds(&config, mode, &Machine { device, ..machine.clone() }).unwrap() > 0.0);
            }
        }
        assert!(seconds(&config, Mode::Score { batch: 1, context: 8 }, &machine).is_err());
    }
}
