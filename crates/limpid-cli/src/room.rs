//! How much memory is left to this process, by every limit that the system tells: the machine's own; on Linux also those of the
//! control groups it is in (containers, services), and `ulimit`'s.

use crate::show;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// What is left under one limit.
#[derive(Debug, PartialEq)]
pub struct Limit {
    /// Bytes.
    pub left: u64,
    /// What follows "1 GB are": "available", or left under which limit.
    pub said: String,
    /// Whether what is reserved and never touched counts too.
    pub of_addresses: bool,
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

/// Refuses to encode a text on so many threads where their stacks and heaps would not fit under a limit on addresses: a small
/// allocation that the system refuses ends the program at once.
pub fn for_text(threads: usize) -> Result<()> {
    // glibc gives threads heaps of 64 MiB, eight for each core at most
    let heaps = threads.min(8 * crate::options::cores()) as u64;
    let needed = (96 << 20) + threads as u64 * (3 << 20) + heaps * (64 << 20);
    match limits().into_iter().find(|limit| limit.of_addresses && limit.left < needed) {
        None => Ok(()),
        Some(Limit { left, said, .. }) => bail!(
            "reading a text on {} needs {} of memory and {} are {said}: fewer --threads need less",
            show::plural(threads, "thread"),
            show::bytes(needed),
            show::bytes(left)
        ),
    }
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
        let said = format!("left of the {} that {name} allows", show::bytes(most));
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
        let names = match second {
            true => ["memory.max", "memory.current", "inactive_file ", "active_file "],
            false => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "],
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
    let memory = match second {
        true => name == "cgroup2",
        false => name == "cgroup" && options.split(',').any(|option| option == "memory"),
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
    let said = format!("left of the {} that the control group {} allows", show::bytes(most), folder.display());
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
                "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                 35 31 0:32 /box /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n",
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
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             unlimited            unlimited            bytes\n\
                 Max address space         614400000            unlimited            bytes\n",
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
