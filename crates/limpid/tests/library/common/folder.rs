//! A folder of a test's own, gone at its end. Tests of other crates include this file by its path.
#![allow(dead_code)] // not every program needs both

use std::fs;
use std::path::PathBuf;
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
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
