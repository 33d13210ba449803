//! Checksums of files: XXH3 of 64 bits.

use super::corpus_error::{CorpusError, at};
use limpid_base::files;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// XXH3 as it is written.
pub(super) fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// XXH3 of a file's bytes.
pub(super) fn file_hash(path: &Path) -> Result<String, CorpusError> {
    stream_hash(path, &mut at(path, files::open_regular(path))?)
}

/// The same of what comes from `path`.
pub(super) fn stream_hash(path: &Path, source: &mut dyn Read) -> Result<String, CorpusError> {
    let (mut hash, mut buffer) = (Xxh3::new(), vec![0; 1 << 18]);
    loop {
        match at(path, source.read(&mut buffer))? {
            0 => return Ok(hex(hash.digest())),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Refuses a file of another checksum than the manifest's.
pub(super) fn same(path: &Path, found: String, wanted: &str) -> Result<(), CorpusError> {
    if found == wanted {
        return Ok(());
    }
    Err(CorpusError::Changed { path: path.into(), found, wanted: wanted.into() })
}
