//! New checkpoints of a run take the place of the one that is served.
//!
//! Each checkpoint has an engine and a KV cache of its own. Requests that came earlier finish on the engine that they
//! started with, so no answer mixes two models. If a checkpoint cannot be served, the server reports and counts that,
//! tries once more, and then leaves that checkpoint alone.

use crate::model::{ServedAs, ServedLease, ServedModel};
use crate::options::ServeEvent;
use crate::state::{Phase, ServerState};
use limpid::checkpoint::{self, Checkpoint};
use limpid_base::contain::contain;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

/// Opens a checkpoint anew.
pub type Opener = Box<dyn Fn() -> Result<Checkpoint, Box<dyn Error + Send + Sync>> + Send>;

/// A run to follow.
pub struct Follow {
    /// The folder, or the file.
    pub path: PathBuf,
    /// Opens what is there.
    pub open: Opener,
    /// How it is served.
    pub how: ServedAs,
    /// The time between two looks.
    pub every: Duration,
}

/// The state of a model's files, to see whether they have changed.
type Look = BTreeMap<PathBuf, (SystemTime, u64)>;

fn look(path: &Path) -> Look {
    let is_part = |name: &str| checkpoint::is_part(name) || name.starts_with("adapter_");
    let mut files = vec![path.to_path_buf()];
    if let Ok(folder) = path.read_dir() {
        let names = folder.filter_map(|file| Some(file.ok()?.file_name()));
        files = names.filter(|name| name.to_str().is_some_and(is_part)).map(|name| path.join(name)).collect();
    }
    let seen = |file: PathBuf| {
        let about = file.metadata().ok()?;
        Some((file, (about.modified().ok()?, about.len())))
    };
    files.into_iter().filter_map(seen).collect()
}

/// Looks for checkpoints until the server stops.
pub fn run(shared: &ServerState, follow: Option<Follow>) {
    let Some(follow) = follow else { return };
    // what was served first may be older than what is there by now
    let mut known = Look::new();
    let mut failed = None;
    let mut served = shared.model().fingerprint.clone();
    while *shared.phase.borrow() == Phase::Serving {
        let seen = look(&follow.path);
        if !seen.is_empty() && seen != known {
            let count = |result| shared.metrics.add("limpid_reloads_total", &[("result", result)], 1);
            // what is there may be anything, and so may be what reads it
            let swapped = contain(|| swap(shared, &follow, &served).map_err(|error| error.to_string()));
            match swapped.and_then(|swapped| swapped) {
                Ok(model) => {
                    known = seen;
                    if let Some(model) = model {
                        served.clone_from(&model.fingerprint);
                        count("ok");
                        (shared.tell)(ServeEvent::Reloaded { step: model.step, fingerprint: served.clone() });
                    }
                }
                // it was replaced while it was read
                Err(_) if look(&follow.path) != seen => {}
                // another try, unless this was it
                Err(what) if failed.as_ref() == Some(&(seen.clone(), what.clone())) => known = seen,
                Err(what) => {
                    failed = Some((seen, what.clone()));
                    count("failed");
                    (shared.tell)(ServeEvent::NotReloaded { what });
                }
            }
        }
        sleep(follow.every);
    }
}

/// Serves what is there now, unless it is what is served.
fn swap(
    shared: &ServerState,
    follow: &Follow,
    served: &str,
) -> Result<Option<ServedLease>, Box<dyn Error + Send + Sync>> {
    let checkpoint = (follow.open)()?;
    checkpoint.check_sum()?;
    let model = ServedModel::new(checkpoint, &follow.how)?;
    if model.fingerprint == served {
        return Ok(None);
    }
    model.check()?;
    let engine = model.engine(&shared.options.engine)?;
    let model = Arc::new(Arc::new(model));
    shared.queue.serve(&model, engine);
    shared.set_model(model.clone());
    Ok(Some(model))
}
