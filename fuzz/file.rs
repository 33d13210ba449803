//! For functions that read files: one that holds these bytes.
use std::path::PathBuf;

/// A file of that name, in a folder of this process.
pub fn holding(bytes: &[u8], name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("limpid-fuzz-{}", std::process::id()));
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap_or(&folder)).expect("a folder for temporary files");
    std::fs::write(&path, bytes).expect("room for a temporary file");
    path
}
