//! A time-lapse of training: what a model did inside while it learned, in `timelapse.lpt` beside the other files of a
//! run.
//!
//! Training with [`RunOptions::probe`](crate::train::RunOptions) looks at the model after some steps (`probe.rs` says
//! which) and adds a frame: the scores of each head, norms of the stream, the lens, the loss of each token of a short
//! text (the probe), and a sample. [`Timelapse`] reads them, also while the run still trains. `file` is the format,
//! `probe` makes frames, `told` is JSON.

mod file;
mod probe;
mod told;

pub(crate) use file::cut;
pub use file::{Channel, ChannelValues, Frame, NONE, Timelapse, TimelapseError, TimelapseHeader};
pub(crate) use probe::Probe;
pub use probe::{ProbeSchedule, check};

/// The name of the file in a run's folder.
pub const FILE: &str = "timelapse.lpt";

/// Squares in a row of the picture of a head.
pub const SIDE: usize = 32;

/// The scores of a head, in the order of the channel `scores`.
pub const SCORES: [&str; 8] = ["entropy", "previous", "current", "first", "duplicate", "induction", "distance", "max"];

/// The norms of a layer, in the order of the channel `norms`.
pub const NORMS: [&str; 3] = ["resid", "attn_out", "mlp_out"];
