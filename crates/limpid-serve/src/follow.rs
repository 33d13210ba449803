//! New checkpoints of a run take the place of the one that is served.
//!
//! Each has an engine and a KV cache of its own. Requests that came before go on with the engine that they began with, so no answer is of
//! two models. A checkpoint that cannot be served is told, counted and left alone.

use crate::model::{ServedAs, ServedModel};
use crate::server::{self, Phase, ServeEvent, ServerState};
use limpid::checkpoint::{Checkpoint, Format, safetensors_file};
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
    /// How long a look follows the one before.
    pub every: Duration,
}

/// Which file it is by the look of it.
type Look = Option<(SystemTime, u64)>;

/// The file of a model's weights, where they are alone in one.
fn weights(path: &Path) -> PathBuf {
    let names = ["adapter_model.safetensors", "model.safetensors"];
    let files = names.iter().map(|name| path.join(name));
    files.into_iter().find(|file| file.exists()).unwrap_or_else(|| path.into())
}

fn look(path: &Path) -> Look {
    let seen = weights(path).metadata().ok()?;
    Some((seen.modified().ok()?, seen.len()))
}

/// Looks for checkpoints until the server stops.
pub fn run(shared: &ServerState, follow: Option<Follow>) {
    let Some(follow) = follow else { return };
    // what was served first may be older than what is there by now
    let mut known: Look = None;
    let mut served = shared.model().fingerprint.clone();
    while *shared.phase.borrow() == Phase::Serving {
        let seen = look(&follow.path);
        if seen.is_some() && seen != known {
            known = seen;
            let result = match swap(shared, &follow, &served) {
                Ok(None) => None,
                Ok(Some(model)) => {
                    served.clone_from(&model.fingerprint);
                    (shared.tell)(ServeEvent::Reloaded { step: model.step, fingerprint: served.clone() });
                    Some("ok")
                }
                Err(error) => {
                    (shared.tell)(ServeEvent::NotReloaded { what: error.to_string() });
                    Some("failed")
                }
            };
            result.into_iter().for_each(|result| shared.metrics.add("limpid_reloads_total", &[("result", result)], 1));
        }
        sleep(follow.every);
    }
}

/// Serves what is there now, unless it is what is served.
fn swap(
    shared: &ServerState,
    follow: &Follow,
    served: &str,
) -> Result<Option<Arc<ServedModel>>, Box<dyn Error + Send + Sync>> {
    let checkpoint = (follow.open)()?;
    let file = weights(&checkpoint.path);
    if checkpoint.format == Format::Limpid && file.is_file() {
        safetensors_file::open_summed(&file)?;
    }
    let model = ServedModel::new(checkpoint, &follow.how)?;
    if model.fingerprint == served {
        return Ok(None);
    }
    server::check(&model)?;
    let engine = model.lm.engine(&shared.options.engine)?;
    let model = Arc::new(model);
    shared.queue.serve(&model, engine);
    shared.set_model(model.clone());
    Ok(Some(model))
}
