//! `doctor`: what limpid finds on this machine and will use.

use crate::machine::{PASSES, READINGS, cores, memory};
use crate::options::MachineOptions;
use crate::show;
use anyhow::{Result, bail};
use limpid::Device;
use limpid::backend::Cpu;
use limpid::backend::cpu::roof::Roof;
use limpid::config::Axis;
use limpid::matrix::Precision;
use limpid::numeric::simd::Level;

/// Show this machine's instruction sets, threads, memory and roofs: what limpid finds and will use.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    /// Test the GPU in use (--device gpu:N|NAME) and its driver: compare every kernel with the reference
    #[arg(long)]
    prove: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

pub fn run(args: Args) -> Result<()> {
    if args.prove {
        return prove(&args);
    }
    let threads = args.machine.threads();
    let level = args.machine.level();
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
    let nano = args.machine.machine().nano_step_times(threads.min(cores()))?;
    let memory = memory();
    let gpus = gpus()?;
    let there: Vec<Device> =
        Device::ALL.iter().copied().filter(|device| !gpus.is_empty() || *device != Device::Gpu).collect();
    let facts = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "cpu": name, "cores": cores(), "threads": threads,
        "simd": level.name(), "simd_available": levels, "roof_flops_f32": all, "roof_flops_f32_one_thread": one,
        "roof_flops_bf16": half, "read_roof_bytes_s": read, "memory_total_bytes": memory.map(|[total, _]| total),
        "memory_available_bytes": memory.map(|[_, available]| available), "device": args.machine.device.to_string(),
        "nano_step": nano, "devices": there, "gpus": gpus.iter().map(|gpu| &gpu.json).collect::<Vec<_>>(),
    });
    let used = show::plural(threads, "thread");
    let mut rows = vec![
        ("limpid", env!("CARGO_PKG_VERSION").to_string()),
        ("processor", name.to_string()),
        ("cores", cores().to_string()),
        ("threads in use", if args.machine.threads.0.is_some() { used.clone() } else { format!("up to {used}") }),
        ("instructions in use", format!("{level} (this processor has: {})", levels.join(", "))),
        ("multiply-add roof, f32", format!("{:.0} GFLOP/s on {used}, {:.0} on one", all / 1e9, one / 1e9)),
        ("multiply-add roof, bf16", format!("{:.0} GFLOP/s on {used}", half / 1e9)),
        ("memory read roof", format!("{:.1} GB/s on {used}", read / 1e9)),
        ("a training step of nano", format!("fastest on {nano}")),
    ];
    if let Some([total, available]) = memory.map(|both| both.map(show::bytes)) {
        rows.push(("memory", format!("{total}, {available} available")));
    }
    let devices = there.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    rows.push(("device in use", format!("{} (available: {devices})", args.machine.device)));
    let mut rows: Vec<(String, String)> = rows.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    if gpus.is_empty() && cfg!(feature = "gpu") {
        rows.push(("gpu".into(), "none: the system has no GPU, or no driver for one (docs/gpu.md)".into()));
    }
    rows.extend(gpus.into_iter().flat_map(|gpu| gpu.rows));
    show::found(args.json, &facts, &rows)
}

/// A GPU, as it is shown.
struct Gpu {
    json: serde_json::Value,
    rows: Vec<(String, String)>,
}

/// All of them; one that does not start says why, and the others are shown.
#[cfg(feature = "gpu")]
fn gpus() -> Result<Vec<Gpu>> {
    use limpid::gpu::{GpuChoice, GpuDevice, GpuRoofs};
    let one = |(n, adapter): (usize, &limpid::gpu::GpuAdapter)| {
        let roofs = GpuDevice::open(&GpuChoice::Number(n)).and_then(|device| GpuRoofs::measure(&device));
        let soft = if adapter.is_software { "; emulated by the processor: for tests, slower than cpu" } else { "" };
        let [least, most] = adapter.subgroup;
        let (buffer, seen) = (show::bytes(adapter.buffer_bytes), show::bytes(adapter.binding_bytes));
        let measured = match &roofs {
            Err(error) => error.to_string(),
            Ok(GpuRoofs { flops, copied, launch, round_trip }) => format!(
                "{:.0} GFLOP/s in f32, copies {:.1} GB/s, {:.1} us to launch a kernel, {:.0} us for a round trip",
                flops / 1e9,
                copied / 1e9,
                1e6 * launch,
                1e6 * round_trip
            ),
        };
        let rows = [
            (format!("gpu:{n}"), format!("{adapter}{soft}")),
            (
                "  memory".into(),
                format!("{buffer} per buffer, {seen} visible to a kernel; subgroups of {least} to {most}"),
            ),
            (
                "  f16".into(),
                match adapter.matrices {
                    Some(matrices) => format!("matrices of {0} x {0}, sums in f32: --precision f16", matrices.side),
                    None => "no f16 matrices with f32 sums: use --precision f32 or bf16".into(),
                },
            ),
            ("  roofs".into(), measured),
        ];
        let roofs = roofs.ok().map(|r| {
            serde_json::json!({
                "flops_f32": r.flops, "copy_bytes_s": r.copied, "launch_seconds": r.launch,
                "round_trip_seconds": r.round_trip
            })
        });
        let json = serde_json::json!({
            "name": adapter.name, "driver": adapter.driver, "api": adapter.api, "software": adapter.is_software,
            "buffer_bytes": adapter.buffer_bytes, "binding_bytes": adapter.binding_bytes,
            "subgroup": adapter.subgroup, "f16_matrices": adapter.matrices.map(|matrices| matrices.side),
            "roofs": roofs,
        });
        Gpu { json, rows: rows.into() }
    };
    Ok(limpid::gpu::adapters()?.iter().enumerate().map(one).collect())
}
#[cfg(not(feature = "gpu"))]
fn gpus() -> Result<Vec<Gpu>> {
    Ok(vec![])
}

/// `--prove`: a line for each op and direction, and an error if one is wrong.
#[cfg(feature = "gpu")]
fn prove(args: &Args) -> Result<()> {
    let choice = args.machine.machine().gpu.parse().expect("every text is a choice");
    let device = limpid::gpu::GpuDevice::shared(&choice)?;
    let proofs = limpid::gpu::prove(&device)?;
    let wrong = proofs.iter().filter(|proof| proof.fault.is_some()).count();
    if args.json {
        let line = |p: &limpid::gpu::GpuProof| {
            serde_json::json!({"op": p.op, "way": p.way, "worst": p.worst,
            "fault": p.fault})
        };
        let lines: Vec<_> = proofs.iter().map(line).collect();
        show::json(&serde_json::json!({"gpu": device.adapter.to_string(), "proofs": lines, "wrong": wrong}))?;
    } else {
        let line = |p: &limpid::gpu::GpuProof| {
            vec![p.op.into(), p.way.into(), format!("{:.1e}", p.worst), p.fault.clone().unwrap_or_else(|| "ok".into())]
        };
        let lines: Vec<Vec<String>> = proofs.iter().map(line).collect();
        show::out(&format!("{}\n\n", device.adapter))?;
        show::out(&show::columns(&["op", "tried", "off by", ""], &lines))?;
    }
    match wrong {
        0 => Ok(()),
        n => bail!(
            "{} computes wrong results in {}: limpid does not train on it; try another version of its driver",
            device.adapter,
            show::plural(n, "place")
        ),
    }
}
#[cfg(not(feature = "gpu"))]
fn prove(_: &Args) -> Result<()> {
    bail!("this limpid was built without GPU support: build it with --features gpu, or use a release")
}
