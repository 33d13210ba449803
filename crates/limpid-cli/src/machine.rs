//! What verbs ask of the machine and the system: memory, cores, and how often roofs are read.

use crate::show;
use anyhow::{Result, bail};
use limpid::memory::{self, Limit};

/// Readings of a roof of multiply-adds, a millisecond each: other programs disturb some of them.
pub const READINGS: usize = 60;

/// Readings of a roof of reads, a pass over half a gigabyte each.
pub const PASSES: usize = 6;

/// The middle one of some times.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A rate as a share of a roof that was measured beside it. None where it is above that roof: other programs disturbed
/// the measurement.
pub fn share(rate: f64, roof: f64) -> Option<f64> {
    Some(rate / roof).filter(|share| *share <= 1.0)
}

/// Refuses to encode a text on so many threads where their stacks and heaps would not fit under a limit on addresses: a
/// small allocation that the system refuses ends the program at once.
pub fn fits_text(threads: usize) -> Result<()> {
    // glibc gives threads heaps of 64 MiB, eight for each core at most
    let heaps = threads.min(8 * cores()) as u64;
    let needed = (96 << 20) + threads as u64 * (3 << 20) + heaps * (64 << 20);
    let limit = memory::limits().into_iter().find(|limit| limit.of_addresses && limit.left < needed);
    if let Some(Limit { left, said, .. }) = limit {
        let threads = show::plural(threads, "thread");
        let needed = show::bytes(needed);
        let left = show::bytes(left);
        bail!("reading a text on {threads} needs {needed} of memory and {left} are {said}: fewer --threads need less");
    }
    Ok(())
}

/// Bytes of memory, in all and free for the asking, where the system says it.
pub fn memory() -> Option<[u64; 2]> {
    let available = memory::limits().iter().map(|limit| limit.left).min()?;
    Some([memory::total()?, available])
}

/// The most bytes that the stack of the first thread may have, where Linux says so.
pub fn stack() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max stack size"))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

/// Whether a terminal that is closed stops nothing (nohup).
#[cfg(unix)]
pub fn ignores_closed_terminal() -> bool {
    // Linux says what is ignored: a mask, with the first signal as its lowest bit
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal_hook::consts::SIGHUP - 1) & 1 == 1)
}

#[cfg(not(unix))]
pub fn ignores_closed_terminal() -> bool {
    false
}

/// Cores that this process may use.
pub fn cores() -> usize {
    limpid::Machine::default().threads
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_share_above_the_roof_is_none() {
        for (rate, want) in [(0.0, Some(0.0)), (50.0, Some(0.5)), (100.0, Some(1.0)), (100.1, None), (522.0, None)] {
            assert_eq!(share(rate, 100.0), want);
        }
        assert_eq!((share(1.0, 0.0), share(0.0, 0.0)), (None, None));
    }
}
