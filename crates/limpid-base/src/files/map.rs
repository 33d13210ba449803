//! A file as memory: weights are read where they lie, page by page, and a model of many gigabytes opens at once.
//! This is the only `unsafe` outside the arithmetic. `checkpoint::store` gives the bytes their names, `data::shards` reads them
//! as tokens.
//!
//! No system promises that a mapped file stays as it is, so [`Map`] holds the file and [`Map::check`] says whether it did; whoever
//! reads asks before each stretch (a tensor, the batch of a step), and after the last. That is why it is mapped all the same, and
//! not copied: weights and shards are files that programs write once (limpid itself, `data prepare` and the hub's clients replace
//! them by renaming, which leaves the old file whole for whoever has it open), a copy would be the model's memory twice and the
//! start of a run over many gigabytes of shards minutes instead of none, and `unsafe` on the function would ask every caller for a
//! promise that only the machine's user can give.

#![allow(unsafe_code)] // one block: the system cannot promise what other programs do to a file

use memmap2::{Mmap, MmapOptions};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::time::SystemTime;

/// The bytes of an open file.
pub struct Map {
    map: Option<Mmap>,
    file: File,
    opened: State,
}

/// What changes when a file is written into or cut: its length, and when it was written.
type State = (u64, Option<SystemTime>);

fn state(about: &Metadata) -> State {
    (about.len(), about.modified().ok())
}

impl Map {
    /// Opens `path` for reading.
    ///
    /// # Errors
    /// If it cannot be opened or is not a regular file (a directory, a pipe).
    pub fn open(path: &Path) -> io::Result<Map> {
        // before it is opened: opening a pipe waits for whoever writes
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let about = file.metadata()?;
        // SAFETY: the map is private and read-only, so nothing here changes the file or the bytes. Another program
        // may: what it writes may show through, which breaks no reader, because offsets are held against the length of
        // the map once and kept, text is copied before it is used, and every pattern of bits is a number; `check` tells
        // then that it was read in vain. Where it cuts the file between a check and the reading of that stretch, the
        // system ends this process (SIGBUS), as it would every program that maps files.
        let map = || unsafe { MmapOptions::new().map_copy_read_only(&file) };
        let map = if about.len() == 0 { None } else { Some(map()?) }; // no system maps nothing
        Ok(Map { map, file, opened: state(&about) })
    }

    /// Whether the file is still what was opened: one that another program has cut must not be read, and what was read of one
    /// that it wrote into is of no use. Costs less than a microsecond.
    ///
    /// # Errors
    /// If it was changed.
    pub fn check(&self) -> io::Result<()> {
        let (is, was) = (state(&self.file.metadata()?), self.opened);
        let how = match () {
            () if is == was => return Ok(()),
            () if is.0 != was.0 => format!("it had {} bytes and has {}", was.0, is.0),
            () => "it was written into".to_string(),
        };
        let mend = "begin again, and have a file that is in use replaced by renaming another";
        Err(io::Error::other(format!("it was changed while it was read ({how}): {mend}")))
    }
}

impl Deref for Map {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_bytes_an_empty_one_none_and_a_folder_is_refused() {
        let dir = std::env::temp_dir().join(format!("limpid-map-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        for bytes in [&b""[..], b"x", &[7; 5000]] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(&*Map::open(&path).unwrap(), bytes);
        }
        let map = Map::open(&path).unwrap();
        assert!(map.check().is_ok());
        // replaced, it is still the file that was opened
        std::fs::write(dir.join("other"), [7; 5000]).unwrap();
        std::fs::rename(dir.join("other"), &path).unwrap();
        assert!(map.check().is_ok() && *map == [7; 5000]);
        let map = Map::open(&path).unwrap();
        // cut, longer, and as long but written at another time
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
        assert!(Map::open(&dir).is_err_and(|e| e.to_string() == "not a regular file"));
        assert!(Map::open(&dir.join("none")).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
