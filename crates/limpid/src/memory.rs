//! How much memory a model takes, and how much is left to this process, by every limit that the system tells: the
//! machine's own; on Linux also those of the control groups it is in (containers, services), and `ulimit`'s.

use crate::backend::{Cpu, DeviceMemory, TrainingMemory};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::store::Dtype;
use crate::config::{Config, ConfigError};
use crate::device::Device;
use crate::engine::{Decoder, DecoderLimits};
use crate::error::Error;
use crate::machine::Machine;
use crate::model::{MemoryPart, Mode, Model, Param, Tuning};
use crate::train::Recipe;
use crate::train::ranks::cost::{Network, ProcessCost, SharedStep};
use crate::train::ranks::shards::Uses;
use crate::units;
use limpid_core::matrix::codes::Codes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

impl Machine {
    /// A decoder all of whose weights are zero until they are written, if there is room for it.
    ///
    /// # Errors
    /// As [`Machine::start`], and if there is no room.
    pub fn decoder(&self, config: &Config, limits: DecoderLimits) -> Result<Decoder, Error> {
        fits(&limits.model(config)?, None, self)?;
        Ok(Decoder::new(config, limits, |model| self.start(model))?)
    }
}

/// Where a model runs, with which weights, in how many processes: what decides the memory it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The machine.
    pub machine: Machine,
    /// Bytes of those weights that stay quantised: as f32s, and as they are kept.
    pub quantised: [usize; 2],
    /// How many processes train together, and how many of them share this machine.
    pub processes: [usize; 2],
}

impl From<&Machine> for Placement {
    /// With weights that are all f32, in one process.
    fn from(machine: &Machine) -> Placement {
        Placement { machine: machine.clone(), quantised: [0; 2], processes: [1; 2] }
    }
}

impl From<&Placement> for Placement {
    fn from(on: &Placement) -> Placement {
        on.clone()
    }
}

impl Placement {
    /// The same with the weights of a checkpoint, opened for `model`.
    #[must_use]
    pub fn with_weights(self, checkpoint: &Checkpoint, model: &Model) -> Placement {
        if self.machine.device != Device::Cpu || !checkpoint.is_quantised() {
            return self;
        }
        let mut types: HashMap<String, Vec<Dtype>> = HashMap::new();
        checkpoint.stored(model).into_iter().for_each(|(name, _, dtype)| types.entry(name).or_default().push(dtype));
        let stays = Cpu::quantised(model, self.machine.precision);
        let codes = |param: &Param| {
            let blocks = |dtype: &Dtype| if let Dtype::Blocks(quant) = dtype { Some(*quant) } else { None };
            let quants = types.get(&param.name)?.iter().map(blocks).collect::<Option<Vec<_>>>()?;
            let whole = stays.contains(&param.region) && !checkpoint.is_adapted(param);
            Some([4 * param.region.len(), Codes::of(quants).filter(|_| whole)?.bytes_of(param.region.len())])
        };
        let add = |[a, b]: [usize; 2], [c, d]: [usize; 2]| [a + c, b + d];
        Placement { quantised: model.params.iter().filter_map(codes).fold([0; 2], add), ..self }
    }
}

/// Bytes that MPI takes in a process (measured: Open MPI 17 MB, MPICH 17 to 32).
const MPI: u64 = 17_000_000;

/// Bytes of address space left for all that is not counted: text, tokens, buffers. Where those are refused a program
/// ends at once.
const SPARE: u64 = 32 << 20;

/// How often a device has the four bytes in which memory is counted.
fn elements(device: Device) -> usize {
    match device {
        Device::Reference => 2, // f64
        _ => 1,
    }
}

/// What a model takes of a device that has memory of its own; none of one that has not, or that cannot be opened.
fn taken(machine: &Machine, model: &Model, recipe: Option<&Recipe>) -> Option<DeviceMemory> {
    let groups = recipe.map_or(vec![], |recipe| model.update_groups(recipe.weight_decay, recipe.optimizer));
    let training = recipe.map(|recipe| TrainingMemory {
        groups: &groups,
        average: recipe.ema > 0.0,
        aside: recipe.accumulate.max(1).ilog2() as usize,
    });
    machine.takes(model, training.as_ref())?.ok()
}

/// Whether a model's memory on a device is this system's, whose limits are known.
pub fn is_systems(machine: &Machine, model: &Model) -> bool {
    taken(machine, model, None).is_none_or(|own| own.of_system)
}

/// Bytes of each memory that a model takes on a device, to train by a recipe if there is one; of several processes, in
/// each.
pub fn parts(model: &Model, recipe: Option<&Recipe>, on: impl Into<Placement>) -> Vec<(MemoryPart, u64)> {
    let on: Placement = on.into();
    let (&Machine { device, threads, .. }, [wide, kept]) = (&on.machine, on.quantised);
    if let (Some(recipe), processes) = (recipe, on.processes[0])
        && processes > 1
    {
        return parts_among(model, recipe, on, processes);
    }
    if let Some(own) = taken(&on.machine, model, recipe) {
        return own.parts.into_iter().map(|(part, bytes)| (part, bytes as u64)).collect();
    }
    let scratch = if device == Device::Cpu { Cpu::scratch_bytes(model, threads) } else { 0 };
    let parts = model.memory().into_iter().chain(recipe.into_iter().flat_map(|recipe| recipe.memory(model)));
    let stored = |(part, bytes): (MemoryPart, usize)| match part {
        MemoryPart::Parameters => (part, bytes.saturating_sub(wide) + kept),
        _ => (part, bytes),
    };
    let parts = parts.map(stored).map(|(part, bytes)| (part, (bytes * elements(device)) as u64));
    // with the names of the tensors, and what is made of both in training (measured: 2.1 KB an op of 3,000 blocks)
    let lists = if recipe.is_some() { 2200 * (model.ops().len() + model.back().len()) } else { 0 };
    parts.chain([(MemoryPart::ThreadScratch, scratch as u64), (MemoryPart::OpLists, lists as u64)]).collect()
}

/// The bytes of all of [`parts`].
pub fn needed(model: &Model, recipe: Option<&Recipe>, on: impl Into<Placement>) -> u64 {
    parts(model, recipe, on).iter().map(|(_, bytes)| bytes).sum()
}

/// The same for one of several processes that train together, as many as fit the recipe: it keeps moments and average
/// of what it updates, sets fewer gradients aside, and has buffers for what goes to and fro.
pub fn parts_among(
    model: &Model,
    recipe: &Recipe,
    on: impl Into<Placement>,
    processes: usize,
) -> Vec<(MemoryPart, u64)> {
    let groups = model.update_groups(recipe.weight_decay, recipe.optimizer);
    let step = SharedStep::new(&groups, &Uses::default(), recipe.accumulate, (0.0, 0.0));
    let ProcessCost { micros, share, buffers, .. } = step.among(processes, Network::Gigabit10);
    let own_share = share as f64 / step.learning.max(1) as f64;
    let of_one = |(part, bytes): (MemoryPart, u64)| {
        (part, if part.is_divided() { (bytes as f64 * own_share).ceil() as u64 } else { bytes })
    };
    let (own, on) = (Recipe { accumulate: micros, ..*recipe }, Placement { processes: [1; 2], ..on.into() });
    let beside = [(MemoryPart::ExchangeBuffers, buffers), (MemoryPart::Mpi, MPI)];
    parts(model, Some(&own), on).into_iter().map(of_one).chain(beside).collect()
}

/// Bytes that this process holds before a model is made (Linux), with what it grows by in training: code that is not
/// touched yet, buffers for evaluating and saving (measured: 2 to 8 MB).
pub fn program() -> u64 {
    held("VmRSS:").unwrap_or(0) + (5 << 20)
}

/// Those of them that lie beside a model in a device's memory.
pub fn program_on(device: Device) -> u64 {
    if device.has_own_memory() { 0 } else { program() }
}

/// The most bytes that this process ever held, where Linux tells.
pub fn peak_rss() -> Option<u64> {
    held("VmHWM:")
}

/// A number of bytes that Linux tells of this process: `VmRSS:` for what it holds, `VmHWM:` for the most it ever held.
fn held(key: &str) -> Option<u64> {
    Some(number(&std::fs::read_to_string("/proc/self/status").ok()?, key)? * 1024)
}

/// The model to train, where there is memory for the fastest.
///
/// # Errors
/// If it cannot be built.
pub fn outline(config: &Config, recipe: &Recipe, tuning: &Tuning) -> Result<Model, ConfigError> {
    Model::tuned(config, Mode::Train { batch: recipe.batch_size, context: recipe.context }, tuning)
}

/// The model to train: the fastest, or the fastest that keeps within `budget` bytes beside the `program`.
///
/// # Errors
/// If the model cannot be built, or nothing fits the budget.
pub fn trainable(
    config: &Config,
    recipe: &Recipe,
    tuning: &Tuning,
    on: impl Into<Placement>,
    (program, budget): (u64, Option<u64>),
) -> Result<Model, ConfigError> {
    let (mode, on) = (Mode::Train { batch: recipe.batch_size, context: recipe.context }, on.into());
    match budget {
        None => outline(config, recipe, tuning),
        Some(budget) => Model::within(config, mode, tuning, budget, |model| needed(model, Some(recipe), &on) + program),
    }
}

/// The limit that a model and its training do not fit into, if there is one, with what they need of it.
pub fn lacking(model: &Model, recipe: Option<&Recipe>, on: impl Into<Placement>) -> Option<(u64, Limit)> {
    let on: Placement = on.into();
    let (&Machine { device, threads, .. }, [wide, _], [_, here]) = (&on.machine, on.quantised, on.processes);
    if let Some(own) = taken(&on.machine, model, recipe) {
        return over(of_system(&own, |_| true), 0, here);
    }
    // where all weights are packed, their plain places are counted already
    let plain = if matches!(model.mode, Mode::Decode { .. }) { 0 } else { wide };
    let reserved = recipe.map_or(0, |recipe| recipe.untouched(model)) * elements(device) + plain;
    let own = if device == Device::Cpu { Cpu::untouched_bytes(model, threads) } else { 0 };
    // of moments and average all is reserved, and each process touches its part
    let divided = |on: &Placement| {
        let parts = parts(model, recipe, on).into_iter();
        parts.filter(|(part, _)| part.is_divided()).map(|(_, bytes)| bytes).sum::<u64>()
    };
    let others = divided(&Placement { processes: [1; 2], ..on.clone() }) - divided(&on);
    over(needed(model, recipe, &on), (own + reserved) as u64 + others, here)
}

/// Bytes of the system's memory that are taken for a device with memory of its own, where that is no part of the
/// system's: those by way of which values go to and fro.
fn of_system(own: &DeviceMemory, counts: impl Fn(MemoryPart) -> bool) -> u64 {
    let parts = own.parts.iter().filter(|(part, _)| own.of_system && counts(*part));
    (own.staging + parts.map(|(_, bytes)| bytes).sum::<usize>()) as u64
}

/// The limit that is under so many bytes that are touched, and so many that are only reserved, with what they need of
/// it; of as many processes as are `here`, each has its share of what is left.
fn over(touched: u64, untouched: u64, here: usize) -> Option<(u64, Limit)> {
    let needs = |limit: &Limit| if limit.of_addresses { touched + untouched + SPARE } else { touched };
    let limits = limits().into_iter().map(|limit| limit.shared_by(here));
    limits.map(|limit| (needs(&limit), limit)).find(|(needs, limit)| *needs > limit.left)
}

/// Refuses what would not fit, before anything is reserved.
///
/// # Errors
/// [`Error::Memory`].
pub fn fits(model: &Model, recipe: Option<&Recipe>, on: impl Into<Placement>) -> Result<(), Error> {
    let on = on.into();
    refuse(lacking(model, recipe, &on), recipe.is_some(), &on)
}

/// The same of a model that runs on weights that are in memory already.
///
/// # Errors
/// [`Error::Memory`].
pub fn fits_beside(model: &Model, on: impl Into<Placement>) -> Result<(), Error> {
    let on: Placement = on.into();
    let counts = |part: MemoryPart| part != MemoryPart::Parameters;
    if let Some(own) = taken(&on.machine, model, None) {
        return refuse(over(of_system(&own, counts), 0, 1), false, &on);
    }
    let parts = parts(model, None, &on).into_iter().filter(|(part, _)| counts(*part));
    refuse(over(parts.map(|(_, bytes)| bytes).sum(), 0, 1), false, &on)
}

fn refuse(lacking: Option<(u64, Limit)>, training: bool, on: &Placement) -> Result<(), Error> {
    match lacking {
        None => Ok(()),
        Some((needed, Limit { left, said, .. })) => {
            Err(Error::Memory { training, device: on.machine.device, needed, left, said })
        }
    }
}

/// What is left under one limit.
#[derive(Debug, PartialEq)]
#[non_exhaustive]
pub struct Limit {
    /// Bytes.
    pub left: u64,
    /// What follows "1 GB are": "available", or left under which limit.
    pub said: String,
    /// Whether what is reserved and never touched counts too.
    pub of_addresses: bool,
}

impl Limit {
    /// What one of so many processes on this machine has of it. Addresses are each process's own.
    fn shared_by(self, processes: usize) -> Limit {
        if processes <= 1 || self.of_addresses {
            return self;
        }
        let said = format!("each process's share of what is {} ({processes} run on this machine)", self.said);
        Limit { left: self.left / processes as u64, said, ..self }
    }
}

/// All of them.
pub fn limits() -> Vec<Limit> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let available = |left| Limit { left, said: "available".into(), of_addresses: false };
    let machine = machine(&read).map(|[_, left]| available(left));
    machine.into_iter().chain(groups(&read)).chain(own(&read)).collect()
}

/// The machine's memory, in bytes.
pub fn total() -> Option<u64> {
    machine(&|path| std::fs::read_to_string(path).ok()).map(|[total, _]| total)
}

type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The number after a key, in a line of its own.
fn number(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The machine's bytes, and those that are available.
#[cfg(target_os = "linux")]
fn machine(read: Read) -> Option<[u64; 2]> {
    let text = read(Path::new("/proc/meminfo"))?;
    Some([number(&text, "MemTotal:")? * 1024, number(&text, "MemAvailable:")? * 1024])
}

/// The same where there are no such files.
#[cfg(not(target_os = "linux"))]
fn machine(_: Read) -> Option<[u64; 2]> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    // 0 is what a system says that it does not know
    Some([system.total_memory(), system.available_memory()]).filter(|known| !known.contains(&0))
}

/// `ulimit`'s limits, which are of addresses.
fn own(read: Read) -> Vec<Limit> {
    let text = |path: &str| read(Path::new(path)).unwrap_or_default();
    let (limits, status) = (text("/proc/self/limits"), text("/proc/self/status"));
    let limit = |(key, held, name): (&str, &str, &str)| {
        let most = number(&limits, key)?;
        let held = number(&status, held).unwrap_or(0) * 1024;
        let said = format!("left of the {} that {name} allows", units::bytes(most));
        Some(Limit { left: most.saturating_sub(held), said, of_addresses: true })
    };
    let known = [("Max address space", "VmSize:", "ulimit -v"), ("Max data size", "VmData:", "ulimit -d")];
    known.into_iter().filter_map(limit).collect()
}

/// The limits of the control groups this process is in, and of those that they are in.
fn groups(read: Read) -> Vec<Limit> {
    let text = |path: &str| read(Path::new(path)).unwrap_or_default();
    let (memberships, mounts) = (text("/proc/self/cgroup"), text("/proc/self/mountinfo"));
    let mut found = vec![];
    for membership in memberships.lines() {
        let mut parts = membership.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let second = controllers.is_empty();
        if !second && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        // of the second version: files of other names, and no list of controllers
        let names = if second {
            ["memory.max", "memory.current", "inactive_file ", "active_file "]
        } else {
            ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "]
        };
        for (root, place) in mounts.lines().filter_map(|line| mount(line, second)) {
            let Ok(below) = Path::new(group).strip_prefix(root) else { continue };
            let mut folder = place.join(below);
            while folder.starts_with(&place) {
                found.extend(group_limit(read, &folder, names));
                if !folder.pop() {
                    break;
                }
            }
        }
    }
    found
}

/// Which group a line of mountinfo mounts where, if it mounts groups of memory, of the second version or of the first.
fn mount(line: &str, second: bool) -> Option<(&str, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, place) = (mount.next()?, mount.next()?);
    let mut kind = kind.split(' ');
    let (name, options) = (kind.next()?, kind.nth(1)?);
    let memory = if second {
        name == "cgroup2"
    } else {
        name == "cgroup" && options.split(',').any(|option| option == "memory")
    };
    memory.then(|| (root, place.into()))
}

fn group_limit(read: Read, folder: &Path, [most, held, idle, active]: [&str; 4]) -> Option<Limit> {
    let one = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok(); // `max` is no limit
    let most = one(most)?;
    // pages of files are given up for the asking
    let stat = read(&folder.join("memory.stat")).unwrap_or_default();
    let files = number(&stat, idle).unwrap_or(0) + number(&stat, active).unwrap_or(0);
    let held = one(held).unwrap_or(0).saturating_sub(files);
    let said = format!("left of the {} that the control group {} allows", units::bytes(most), folder.display());
    Some(Limit { left: most.saturating_sub(held), said, of_addresses: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A system of these files.
    fn system(files: &[(&str, &str)]) -> impl Fn(&Path) -> Option<String> {
        let files: HashMap<PathBuf, String> =
            files.iter().map(|(path, text)| (path.into(), text.to_string())).collect();
        move |path| files.get(path).cloned()
    }

    #[test]
    fn every_limit_is_read_with_the_figure() {
        // as Linux 6 writes them, shortened
        let second = system(&[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "500\n"),
            ("/sys/fs/cgroup/a/memory.max", "3000000000\n"),
            ("/sys/fs/cgroup/a/memory.current", "1000000000\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300000000\nactive_file 200000000\n"),
        ]);
        let found = groups(&second);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].left, 2_500_000_000, "the parent's limit, less what is held and not of files");
        assert_eq!(found[0].said, "left of the 3.00 GB that the control group /sys/fs/cgroup/a allows");
        // the first version, in a container that sees its own group as the root of its mount
        let first = system(&[
            ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/box/inner\n0::/\n"),
            (
                "/proc/self/mountinfo",
                "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 /box /sys/fs/cgroup/memory rw \
                 shared:1 - cgroup cgroup rw,memory\n",
            ),
            ("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "800000000\n"),
            ("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "900000000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "900000000\n"),
        ]);
        let left: Vec<u64> = groups(&first).iter().map(|limit| limit.left).collect();
        assert_eq!(left, [0, 9_223_372_036_854_771_712 - 900_000_000]);
        // a shell's
        let shell = system(&[
            (
                "/proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\nMax data size             \
                 unlimited            unlimited            bytes\nMax address space         614400000            \
                 unlimited            bytes\n",
            ),
            ("/proc/self/status", "VmSize:\t  100000 kB\nVmData:\t  5 kB\n"),
        ]);
        let said = "left of the 614.4 MB that ulimit -v allows".to_string();
        assert_eq!(own(&shell), [Limit { left: 614_400_000 - 102_400_000, said, of_addresses: true }]);
        // where nothing is told, nothing is refused
        let none = system(&[]);
        assert!(groups(&none).is_empty() && own(&none).is_empty());
    }

    /// On every system that limpid is built for.
    #[test]
    fn the_machine_tells_its_memory() {
        let (total, limits) = (total().expect("how much there is"), limits());
        let machine = limits.iter().find(|limit| limit.said == "available").expect("how much is left");
        assert!((1 << 20..=total).contains(&machine.left) && !machine.of_addresses, "{machine:?} of {total}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_tells_it_in_a_file() {
        let told = system(&[("/proc/meminfo", "MemTotal:       24684092 kB\nMemAvailable:   22496388 kB\n")]);
        assert_eq!(machine(&told), Some([24_684_092 * 1024, 22_496_388 * 1024]));
        assert_eq!(machine(&system(&[])), None);
    }
}
