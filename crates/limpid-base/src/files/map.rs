//! A file as memory: weights are read in place, page by page, so a model of many gigabytes opens at once. This is
//! the only `unsafe` outside the arithmetic, beside the two places that open maps: `checkpoint::store` gives the bytes
//! their names, `data::shards` reads them as tokens.
//!
//! No system guarantees that a mapped file does not change, so [`Map::open`] is `unsafe`. Weights and shards are files
//! that programs write once: limpid itself, `data prepare` and the hub's clients replace them by renaming, which leaves
//! the old file whole for a program that has it open. Whoever opens a map passes the condition on in its own
//! documentation, and finds with [`Map::check`] who broke it: before each part (a tensor, the batch of a step) and
//! after the last. The file is mapped and not copied, because a copy would double the memory of a model, and a run over
//! many gigabytes of shards would take minutes to start. [`Map::copy`] is for callers that cannot keep the condition.

#![allow(unsafe_code)] // the system cannot promise what other programs do to a file, and forgets pages on request

use memmap2::{Mmap, MmapOptions};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;
use std::time::SystemTime;

/// The bytes of an open file.
pub struct Map {
    bytes: Bytes,
    file: File,
    opened: State,
}

enum Bytes {
    Mapped(Mmap),
    Copied(Vec<u8>),
}

/// What changes when a file is written or truncated: its length, and the time of the last write.
type State = (u64, Option<SystemTime>);

fn state(about: &Metadata) -> State {
    (about.len(), about.modified().ok())
}

impl Map {
    /// Opens `path` for reading.
    ///
    /// # Safety
    /// As long as the map is there, nobody may write into the file or cut it, for its bytes are lent as a `&[u8]`.
    /// Replacing it by renaming another file is fine.
    ///
    /// # Errors
    /// If it cannot be opened or is not a regular file (a directory, a pipe).
    pub unsafe fn open(path: &Path) -> io::Result<Map> {
        super::may()?;
        let file = super::open_regular(path)?;
        let about = file.metadata()?;
        // SAFETY: the map is private and read-only, so nothing here changes the file or the bytes, and nobody else
        // does, as the caller promises. Where the promise is broken, little follows: offsets are checked once against
        // the length of the map, text is copied before it is used, and every pattern of bits is a number; `check` then
        // reports that the values read are of no use. If the file is cut between a check and the read that follows, the
        // system ends this process (SIGBUS), as it would any program that maps files.
        let map = || unsafe { MmapOptions::new().map_copy_read_only(&file) };
        // an empty file cannot be mapped
        let bytes = if about.len() == 0 { Bytes::Copied(vec![]) } else { Bytes::Mapped(map()?) };
        Ok(Map { bytes, file, opened: state(&about) })
    }

    /// Reads the whole file into memory, where later changes of the file do not reach.
    ///
    /// # Errors
    /// If it cannot be read, is not a regular file, or changes while it is read.
    pub fn copy(path: &Path) -> io::Result<Map> {
        super::may()?;
        let mut file = super::open_regular(path)?;
        let opened = state(&file.metadata()?);
        let mut bytes = vec![];
        file.read_to_end(&mut bytes)?;
        let map = Map { bytes: Bytes::Copied(bytes), file, opened };
        map.unchanged().map(|()| map)
    }

    /// Gives the memory of some of the bytes back to the system, which reads them from the file again where they are
    /// looked at again: for what was copied elsewhere.
    pub fn release(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes
            && let Some(from) = part.as_ptr().addr().checked_sub(map.as_ptr().addr())
            && from + part.len() <= map.len()
        {
            // SAFETY: neither the map nor the file is written, so a page that is read again has the same bytes.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, part.len()) };
        }
        #[cfg(not(unix))]
        let _ = part;
    }

    /// Checks that the file has not changed since it was opened: a truncated file must not be read, and values read
    /// from one that was written are of no use. It costs less than a microsecond. A copy is not affected.
    ///
    /// # Errors
    /// If it has changed.
    pub fn check(&self) -> io::Result<()> {
        if let Bytes::Mapped(_) = &self.bytes { self.unchanged() } else { Ok(()) }
    }

    fn unchanged(&self) -> io::Result<()> {
        let (is, was) = (state(&self.file.metadata()?), self.opened);
        if is == was {
            return Ok(());
        }
        let how = if is.0 != was.0 {
            format!("it had {} bytes and has {}", was.0, is.0)
        } else {
            "it was written into".to_string()
        };
        let remedy = "start again; to replace a file that is in use, rename another over it";
        Err(io::Error::other(format!("it was changed while it was read ({how}): {remedy}")))
    }
}

impl Deref for Map {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Copied(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> io::Result<Map> {
        // SAFETY: the test looks at no byte of a file that it changed.
        unsafe { Map::open(path) }
    }

    #[test]
    fn a_file_is_its_bytes_an_empty_one_none_and_a_folder_is_refused() {
        let dir = std::env::temp_dir().join(format!("limpid-map-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        for bytes in [&b""[..], b"x", &[7; 5000]] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(&*open(&path).unwrap(), bytes);
        }
        let map = open(&path).unwrap();
        assert!(map.check().is_ok());
        // what is given back is read again
        [&map[..], &map[4097..4999], &map[5000..], &[1, 2]].into_iter().for_each(|part| map.release(part));
        assert_eq!(*map, [7; 5000]);
        // a file that was replaced is still open as it was
        std::fs::write(dir.join("other"), [7; 5000]).unwrap();
        std::fs::rename(dir.join("other"), &path).unwrap();
        assert!(map.check().is_ok() && *map == [7; 5000]);
        let map = open(&path).unwrap();
        let copied = Map::copy(&path).unwrap();
        // shorter, longer, and as long but written at another time
        let file = File::options().write(true).open(&path).unwrap();
        let written = file.metadata().unwrap().modified().unwrap();
        for (len, at, said) in [(10, 0, "5000 bytes and has 10)"), (6000, 0, "has 6000)"), (5000, 1, "written into")] {
            file.set_len(len).unwrap();
            file.set_modified(written + std::time::Duration::from_secs(at)).unwrap();
            let error = map.check().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        file.set_modified(written).unwrap();
        assert!(map.check().is_ok());
        // a copy has what was there
        file.set_len(10).unwrap();
        assert!(copied.check().is_ok() && map.check().is_err() && *copied == [7; 5000]);
        assert!(open(&dir).is_err_and(|e| e.to_string() == "it is a folder, not a regular file"));
        assert!(open(&dir.join("none")).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
