//! One flat memory: zero at first, reserved once; the system provides a page when it is first touched. It begins on
//! a page boundary, so rows of whole cache lines share no line with their neighbours (two threads that write one
//! line wait for each other: docs/decisions.md#threads-never-share-a-cache-line). It asks for huge pages where the
//! system has them.

#[cfg(any(unix, windows))]
use memmap2::MmapMut;
use std::io;
use std::ops::{Deref, DerefMut};

/// The system refuses memory.
#[derive(Debug, thiserror::Error)]
#[error("the system refuses {:.1} MB of memory: {source}", *.bytes as f64 / 1e6)]
pub struct Refused {
    /// How much was asked for.
    pub bytes: usize,
    source: io::Error,
}

impl Refused {
    /// The system's answer.
    pub fn answer(&self) -> String {
        self.source.to_string()
    }
}

/// Some f32s, aligned to a page.
#[derive(Default)]
pub struct Arena {
    map: Option<MmapMut>,
}

/// Where no system provides pages (browsers): zeros from the allocator, from a page's boundary on.
#[cfg(not(any(unix, windows)))]
struct MmapMut {
    zeros: Vec<u8>,
    bytes: usize,
}

#[cfg(not(any(unix, windows)))]
impl MmapMut {
    const PAGE: usize = 4096;

    fn map_anon(bytes: usize) -> io::Result<MmapMut> {
        let mut zeros = Vec::new();
        zeros.try_reserve_exact(bytes.saturating_add(Self::PAGE)).map_err(io::Error::other)?;
        zeros.resize(bytes + Self::PAGE, 0);
        Ok(MmapMut { zeros, bytes })
    }

    fn start(&self) -> usize {
        self.zeros.as_ptr().align_offset(Self::PAGE)
    }
}

#[cfg(not(any(unix, windows)))]
impl Deref for MmapMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.zeros[self.start()..][..self.bytes]
    }
}

#[cfg(not(any(unix, windows)))]
impl DerefMut for MmapMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.start();
        &mut self.zeros[start..][..self.bytes]
    }
}

impl Arena {
    /// `len` zeros.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn reserve(len: usize) -> Result<Arena, Refused> {
        if len == 0 {
            return Ok(Arena::default());
        }
        let bytes = len.saturating_mul(4);
        let map = MmapMut::map_anon(bytes).map_err(|source| Refused { bytes, source })?;
        #[cfg(target_os = "linux")]
        if len >= 1 << 19 {
            let _ = map.advise(memmap2::Advice::HugePage); // without, it is slower and as correct
        }
        Ok(Arena { map: Some(map) })
    }

    /// Asks for small pages, for an arena of which much will not be touched.
    pub fn small_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            let _ = map.advise(memmap2::Advice::NoHugePage);
        }
    }
}

impl Deref for Arena {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        self.map.as_deref().map_or(&[], bytemuck::cast_slice)
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.map.as_deref_mut().map_or(&mut [], bytemuck::cast_slice_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_is_an_error() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 60] {
            let error = Arena::reserve(len).err().expect("no machine has it").to_string();
            assert!(error.starts_with("the system refuses ") && error.contains(" MB of memory: "), "{error}");
        }
    }

    #[test]
    fn it_is_zero_aligned_and_as_long_as_asked() {
        for len in [0, 1, 1000, 1 << 20] {
            let mut arena = Arena::reserve(len).unwrap();
            assert!(arena.len() == len && arena.iter().all(|v| *v == 0.0));
            assert!(len == 0 || (arena.as_ptr() as usize).is_multiple_of(4096));
            arena.fill(1.5);
            assert_eq!(arena.iter().sum::<f32>(), 1.5 * len as f32);
        }
    }
}
