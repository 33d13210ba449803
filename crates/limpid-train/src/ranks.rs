//! Processes that train one model together. [`Ranks`] carries bytes between them. `team` decides what is sent and in
//! which order it is added up; `shards` decides which process updates which parameters.
//!
//! A step has M micro-batches, and process r of n runs those from r M/n to (r+1) M/n. Sums over micro-batches are added
//! in a binary tree, and n and M are powers of two. So each process has one whole branch of the tree, and 1, 2, 4 or 8
//! processes come to the same bits.

pub mod cost;
pub(crate) mod courier;
mod error;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod shards;
pub(crate) mod team;
pub mod threads;

pub use error::RanksError;
pub(crate) use error::Result;

/// The processes that train one model together. Every call is collective: all processes make the same calls in the same
/// order, with buffers of the same size. [`Solo`] is one process.
pub trait Ranks: Send {
    /// The number of this process, from 0.
    fn rank(&self) -> usize;
    /// How many there are.
    fn size(&self) -> usize;
    /// How many of them share this machine and its memory; 1 if that is not known.
    fn here(&self) -> usize {
        1
    }
    /// Sends block i of `send` to process i, and receives block i of `receive` from process i. All blocks have the same
    /// length.
    ///
    /// # Errors
    /// [`RanksError::Lost`], as in all methods.
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<()>;
    /// Gives every process the blocks of all processes.
    ///
    /// # Errors
    /// As [`Ranks::all_to_all`].
    fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()>;
    /// Gives process 0 the bytes of process `from`. The other processes send nothing, and may pass no bytes.
    ///
    /// # Errors
    /// As [`Ranks::all_to_all`].
    fn bring(&mut self, from: usize, bytes: &mut [u8]) -> Result<()>;
    /// Gives every process the bytes of process 0.
    ///
    /// # Errors
    /// As [`Ranks::all_to_all`].
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()>;
}

/// A single process, which has everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl Ranks for Solo {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<()> {
        receive.copy_from_slice(send);
        Ok(())
    }
    fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<()> {
        all.copy_from_slice(own);
        Ok(())
    }
    fn bring(&mut self, _: usize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn broadcast(&mut self, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
}

/// Checks that `processes` can share out a step's micro-batches of `batch_size` sequences.
///
/// # Errors
/// [`RanksError::Micros`] if a number is not a power of two, or there are fewer micro-batches than processes.
pub fn check_micros(processes: usize, micros: u64, batch_size: usize) -> Result<()> {
    if processes <= 1 || processes.is_power_of_two() && micros.is_power_of_two() && processes as u64 <= micros {
        return Ok(());
    }
    let fewer = 1 << processes.ilog2();
    let accumulate = (fewer as u64).max(1 << micros.ilog2());
    let batch_size = (batch_size as u64).saturating_mul(micros).div_ceil(accumulate) as usize;
    Err(RanksError::Micros { processes, micros, accumulate, batch_size, fewer })
}

/// Gives every process the texts of all processes.
///
/// # Errors
/// As [`Ranks::all_to_all`].
pub fn hear_all(ranks: &mut dyn Ranks, own: &str) -> Result<Vec<String>> {
    let n = ranks.size();
    let mut lengths = vec![0u64; n];
    ranks.all_gather(&(own.len() as u64).to_ne_bytes(), bytemuck::cast_slice_mut(&mut lengths))?;
    let most = lengths.iter().copied().max().unwrap_or(0) as usize;
    let (mut padded, mut all) = (own.as_bytes().to_vec(), vec![0; most * n]);
    padded.resize(most, 0);
    ranks.all_gather(&padded, &mut all)?;
    let text = |(i, length): (usize, &u64)| String::from_utf8_lossy(&all[i * most..][..*length as usize]).into_owned();
    Ok(lengths.iter().enumerate().map(text).collect())
}

/// Checks what all processes must have in common before anything else is exchanged: the program, and whether there is a
/// run to resume.
///
/// # Errors
/// As [`check`].
pub fn check_start(ranks: &mut dyn Ranks, resumes: bool) -> Result<()> {
    let state = if resumes { "the run in its folder" } else { "no run that it sees" };
    let facts = [("version of limpid", env!("CARGO_PKG_VERSION")), ("state to resume from", state)];
    check(ranks, &facts.map(|(name, value)| (name.into(), value.into())))
}

/// Checks that all processes have the same `facts`, which are names and values.
///
/// # Errors
/// [`RanksError::Differs`], in all processes, names the first one that differs.
pub fn check(ranks: &mut dyn Ranks, facts: &[(String, String)]) -> Result<()> {
    let own = serde_json::to_string(facts).expect("texts are JSON");
    let all = hear_all(ranks, &own)?;
    let read = |text: &String| serde_json::from_str::<Vec<(String, String)>>(text).unwrap_or_default();
    let first = all.first().map(read).unwrap_or_default();
    for (rank, text) in all.iter().enumerate().skip(1) {
        for (i, (what, found)) in read(text).into_iter().enumerate() {
            let expected = first.get(i).filter(|(name, _)| *name == what).map(|(_, value)| value.clone());
            if expected.as_ref() != Some(&found) {
                let expected = expected.unwrap_or_else(|| "unknown".into());
                return Err(RanksError::Differs { rank, what, found, expected });
            }
        }
    }
    Ok(())
}
