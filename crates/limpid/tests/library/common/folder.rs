//! A folder of a test's own, gone at its end. Tests of other crates include this file by its path.
#![allow(dead_code)] // not every program needs both

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A path that no other test has; what is there goes when this is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty folder.
    pub fn new(name: &str) -> Folder {
        let folder = Folder::absent(name);
        fs::create_dir_all(&folder.0).unwrap();
        folder
    }
    /// A path where a folder may be made.
    pub fn absent(name: &str) -> Folder {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (process, n) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("limpid-{name}-{process}-{n}"));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }
    /// A place in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

/// All files of a folder, and of those in it.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
