//! Files as everything here needs them: mapped into memory ([`Map`]), and replaced whole or not at all ([`replace`]).

mod map;

pub use map::Map;

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Replaces `path` by what `write` produces: whole, or not at all.
///
/// # Errors
/// Whatever the file system says; the old file is then still there, and nothing is left beside it.
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    let beside = path.with_file_name(name);
    // created here, so that it has the permissions that files get
    let done = File::create(&beside)
        .and_then(|_| write(&beside))
        .and_then(|()| File::open(&beside)?.sync_all())
        .and_then(|()| fs::rename(&beside, path));
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}
