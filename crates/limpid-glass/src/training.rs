//! The log of the run whose model is looked at. A page that follows a training asks for the lines from a place on.

use crate::asked::AskedQuery;
use crate::{GlassError, Query, Reply, Result, Subject};
use limpid::train::log::METRICS;
use limpid_base::files;
use serde_json::{Map, Value, json};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Bytes of the log that one answer is made of.
const MOST: u64 = 1 << 20;

/// What a line has for a page.
const KEPT: [&str; 7] = ["step", "train_loss", "val_loss", "tokens", "seconds", "prompt", "sample"];

/// Where the log of a model's run is, if its folder has one.
pub fn log(subject: &Subject) -> Option<std::path::PathBuf> {
    let path = subject.lm.checkpoint()?.path.join(METRICS);
    path.is_file().then_some(path)
}

/// Whether a time-lapse was recorded while the model was trained.
pub fn has_timelapse(subject: &Subject) -> bool {
    subject.lm.checkpoint().is_some_and(|files| files.path.join(limpid::timelapse::FILE).is_file())
}

/// `training`: lines of the log from a byte on, as many as one answer takes, and where the next ones begin. A log that
/// is shorter by now, because its run went back, is read from its beginning.
pub fn answer(subjects: &[Subject], query: &Query) -> Result<Reply> {
    let from = AskedQuery::read(query, &["from"])?.number("from", 0, usize::MAX)? as u64;
    let none = GlassError::NotThis("there is no log of a training beside this model");
    let Some(subject) = subjects.first() else { return Err(none) };
    let Some(path) = log(subject) else { return Err(none) };
    let (from, bytes, end) = read(&path, from).map_err(|error| GlassError::Log(error.to_string()))?;
    let line = |line: &[u8]| {
        let line: Map<String, Value> = serde_json::from_slice(line).ok()?;
        line.contains_key("step").then(|| line.into_iter().filter(|(key, _)| KEPT.contains(&&**key)).collect())
    };
    // a line that is not one was cut off by a kill, and is written again
    let rows: Vec<Map<String, Value>> = bytes.split(|byte| *byte == b'\n').filter_map(line).collect();
    let next = from + bytes.len() as u64;
    // what a run came to, where it has ended or was stopped
    let summary = files::read_text(&path.with_file_name("summary.json"), MOST).unwrap_or_default();
    let summary: Value = serde_json::from_str(&summary).unwrap_or_default();
    Ok(json!({
        "from": from, "next": next, "more": next < end && !bytes.is_empty(), "rows": rows, "step": subject.step,
        "timelapse": has_timelapse(subject), "floor": summary["entropy_floor"],
    })
    .into())
}

/// Whole lines from a byte on, at most [`MOST`] bytes of them; where they begin, and the length of the file.
fn read(path: &Path, from: u64) -> io::Result<(u64, Vec<u8>, u64)> {
    let mut file = files::open_regular(path)?;
    let end = file.metadata()?.len();
    let from = if from > end { 0 } else { from };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = vec![];
    file.take(MOST).read_to_end(&mut bytes)?;
    bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
    Ok((from, bytes, end))
}
