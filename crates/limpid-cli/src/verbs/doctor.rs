//! `doctor`: what limpid finds on this machine and will use.

use crate::machine::{PASSES, READINGS, memory};
use crate::options::{MachineOptions, cores};
use crate::show;
use anyhow::Result;
use limpid::backend::cpu::roof::Roof;
use limpid::backend::{Cpu, Device};
use limpid::config::Axis;
use limpid::ops::linear::Precision;
use limpid::ops::simd::Level;

/// CPU, instruction sets, threads, memory, roofs: what limpid finds and will use.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

pub fn run(args: Args) -> Result<()> {
    let (threads, level) = (args.machine.threads(), args.machine.level());
    Cpu::can_start(threads)?;
    let levels: Vec<&str> = Level::available().iter().map(|l| l.name()).collect();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok();
    let name = cpu
        .as_deref()
        .and_then(|t| t.lines().find(|l| l.starts_with("model name"))?.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    let roof =
        |threads, precision| Roof::multiply_adds(threads, level, precision).map(|mut roof| roof.measure(READINGS));
    let (one, all, half) = (roof(1, Precision::F32)?, roof(threads, Precision::F32)?, roof(threads, Precision::Bf16)?);
    let read = Roof::reads(threads, level)?.measure(PASSES);
    let memory = memory();
    let there: Vec<Device> =
        Device::ALL.iter().copied().filter(|device| cfg!(feature = "gpu") || *device != Device::Gpu).collect();
    if args.json {
        return show::json(&serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "cpu": name, "cores": cores(), "threads": threads,
            "simd": level.name(), "simd_available": levels, "roof_flops_f32": all, "roof_flops_f32_one_thread": one,
            "roof_flops_bf16": half,
            "read_roof_bytes_s": read, "memory_total_bytes": memory.as_ref().map(|m| m.total),
            "memory_available_bytes": memory.as_ref().map(|m| m.available), "device": args.machine.device, "devices": there,
        }));
    }
    let used = show::plural(threads, "thread");
    let mut rows = vec![
        ("limpid", env!("CARGO_PKG_VERSION").to_string()),
        ("processor", name.to_string()),
        ("cores", cores().to_string()),
        ("threads in use", threads.to_string()),
        ("instructions in use", format!("{level} (this processor has: {})", levels.join(", "))),
        ("multiply-add roof, f32", format!("{:.0} GFLOP/s on {used}, {:.0} on one", all / 1e9, one / 1e9)),
        ("multiply-add roof, bf16", format!("{:.0} GFLOP/s on {used}", half / 1e9)),
        ("memory read roof", format!("{:.1} GB/s on {used}", read / 1e9)),
    ];
    if let Some(memory) = memory {
        rows.push(("memory", format!("{}, {} available", show::bytes(memory.total), show::bytes(memory.available))));
    }
    let devices = there.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    rows.push(("device in use", format!("{} (there are: {devices})", args.machine.device)));
    #[cfg(feature = "gpu")]
    rows.extend(limpid::gpu::adapters()?.iter().enumerate().map(|(i, adapter)| {
        let soft = if adapter.is_software { "; this processor plays it: for tests, slower than cpu" } else { "" };
        let (buffer, seen) = (show::bytes(adapter.buffer_bytes), show::bytes(adapter.binding_bytes));
        (
            if i == 0 { "gpu in use" } else { "gpu" },
            format!("{adapter}, {buffer} at once, of which a kernel sees {seen}{soft}"),
        )
    }));
    let rows: Vec<(String, String)> = rows.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    show::out(&show::pairs(&rows))
}
