//! The log of a run, in its folder: `metrics.jsonl` is the source, one JSON object a line, each with its `step`. `metrics.csv` (a row
//! a step) and the events that TensorBoard reads (`events.rs`) are derived from it and rebuilt whenever a folder is opened. The first
//! line carries `time`, the clock when it was written, so that the derived files are a function of `metrics.jsonl` alone.

use super::events::Events;
use limpid_base::files::{self, OutputFile};
use limpid_checkpoint::{CheckpointError, at};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The name of the log in a run's folder.
pub const METRICS: &str = "metrics.jsonl";

/// Bytes of a log that are read at most: some ten million steps.
const LONGEST: u64 = 2 << 30;

/// A run's log, open to write.
pub struct Log {
    folder: PathBuf,
    lines: OutputFile,
    /// Where the last whole line ends, and the checksum of the file up to there.
    end: u64,
    sum: Xxh3,
    /// Whether there may be a part of a line after the end.
    torn: bool,
    /// Lines that could not be written yet.
    waiting: Vec<Value>,
    /// None if one of them could not be written: both are then rebuilt.
    derived: Option<(Table, Events)>,
    /// Why they could not be written.
    fault: Option<CheckpointError>,
    timed: bool,
    /// Whether the file was put back since that was asked for.
    put_back: bool,
    /// The folder's lock, as long as lines may be added.
    _lock: Option<OutputFile>,
}

/// A position in a log, with the checksum of the lines before it: a state holds one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Its length.
    pub bytes: u64,
    /// Its checksum.
    pub xxh3: String,
}

impl Log {
    /// Opens a folder's log at `mark`: lines after it are dropped when the next is written. Without a mark, begins a new one.
    ///
    /// # Errors
    /// If the lines before the mark have changed; whatever the file system says.
    pub fn open(folder: &Path, mark: Option<&Mark>) -> Result<Log, CheckpointError> {
        let path = folder.join(METRICS);
        let none = Mark { bytes: 0, xxh3: format!("{:016x}", Xxh3::new().digest()) };
        let mut log = Log {
            folder: folder.into(),
            lines: at(&path, OutputFile::open(&path))?,
            end: 0,
            sum: Xxh3::new(),
            torn: true,
            waiting: vec![],
            derived: None,
            fault: None,
            timed: false,
            put_back: false,
            _lock: None,
        };
        log.rewind(mark.unwrap_or(&none))?;
        if mark.is_none() {
            at(&path, log.cut())?;
        }
        Ok(log)
    }

    /// Goes back to an earlier position.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn rewind(&mut self, mark: &Mark) -> Result<(), CheckpointError> {
        let path = self.folder.join(METRICS);
        let mut bytes = vec![];
        at(&path, self.lines.seek(SeekFrom::Start(0)))?;
        at(&path, (&mut self.lines).take(mark.bytes).read_to_end(&mut bytes))?;
        let mut sum = Xxh3::new();
        sum.update(&bytes);
        if bytes.len() as u64 != mark.bytes || format!("{:016x}", sum.digest()) != mark.xxh3 {
            let what =
                format!("its first {} bytes are not those that the run wrote: it was changed or damaged", mark.bytes);
            return Err(CheckpointError::Format { path, what });
        }
        self.timed = !bytes.is_empty();
        (self.end, self.sum, self.torn, self.derived) = (mark.bytes, sum, true, None);
        self.waiting.clear();
        Ok(())
    }

    /// Cuts the file after its last whole line.
    fn cut(&mut self) -> io::Result<()> {
        if self.torn {
            self.lines.rewind(self.end)?;
            self.torn = false;
        }
        Ok(())
    }

    /// Adds a line: an object with a `step`, whose other keys are numbers, objects of numbers, or texts.
    ///
    /// # Errors
    /// Whatever the file system says; the line waits then, and is written with the next.
    pub fn add(&mut self, mut line: Value) -> Result<(), CheckpointError> {
        if !self.timed {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
            line["time"] = now.into();
            self.timed = true;
        }
        self.waiting.push(line);
        self.flush()
    }

    /// Writes the lines that wait.
    fn flush(&mut self) -> Result<(), CheckpointError> {
        let text: String = self.waiting.iter().map(|line| format!("{line}\n")).collect();
        let written = self.cut().and_then(|()| self.lines.write_all(text.as_bytes()));
        if written.is_err() {
            self.torn = true;
            let _ = self.cut(); // no part of a line stays
        }
        at(&self.folder.join(METRICS), written)?;
        self.end += text.len() as u64;
        self.sum.update(text.as_bytes());
        let lines = std::mem::take(&mut self.waiting);
        if let Some((table, events)) = &mut self.derived {
            let add = |line| table.add(&self.folder, line).and_then(|()| events.add(&self.folder, line));
            if let Err(error) = at(&self.folder.join("metrics.csv"), lines.iter().try_for_each(add)) {
                (self.derived, self.fault) = (None, Some(error));
            }
        }
        Ok(())
    }

    /// Syncs every line to the disk and returns the position.
    ///
    /// # Errors
    /// As [`Log::add`].
    pub fn mark(&mut self) -> Result<Mark, CheckpointError> {
        self.flush()?;
        at(&self.folder.join(METRICS), self.lines.sync())?;
        Ok(Mark { bytes: self.end, xxh3: format!("{:016x}", self.sum.digest()) })
    }

    /// Why metrics.csv and the events could not take the last line, if so.
    pub(super) fn fault(&mut self) -> Option<CheckpointError> {
        self.fault.take()
    }

    /// Rebuilds metrics.csv and the events, if they are not up to date; first the lines, if somebody removed them.
    ///
    /// # Errors
    /// Whatever the file system says; the next call tries again.
    pub fn derive(&mut self) -> Result<(), CheckpointError> {
        if !self.is_there() {
            self.put_back()?;
        }
        if self.derived.is_none() || !self.folder.join("metrics.csv").exists() {
            self.flush()?;
            let lines = read(&self.folder)?;
            self.derived = Some(at(&self.folder.join("metrics.csv"), derive(&self.folder, &lines))?);
        }
        Ok(())
    }

    /// The same log, with the folder's lock.
    pub(super) fn holding(self, lock: Option<OutputFile>) -> Log {
        Log { _lock: lock, ..self }
    }

    /// Whether its file is still where it was.
    pub(super) fn is_there(&self) -> bool {
        self.lines.is_at(&self.folder.join(METRICS))
    }

    /// Whether another file in its place holds the same lines.
    pub(super) fn is_copied(&self) -> bool {
        let bytes = files::read_small(&self.folder.join(METRICS), LONGEST).unwrap_or_default();
        let whole = bytes.get(..self.end as usize).filter(|whole| !whole.is_empty());
        whole.is_some_and(|whole| xxh3_64(whole) == self.sum.digest())
    }

    /// Whether the file was removed and put back since the last call.
    pub(super) fn was_put_back(&mut self) -> bool {
        std::mem::take(&mut self.put_back)
    }

    /// Writes the file again where it was removed: all that it held can still be read.
    ///
    /// # Errors
    /// Whatever the file system says; if the folder is gone too.
    pub(super) fn put_back(&mut self) -> Result<(), CheckpointError> {
        let path = self.folder.join(METRICS);
        let mark = Mark { bytes: self.end, xxh3: format!("{:016x}", self.sum.digest()) };
        let mut put = || {
            let mut bytes = vec![];
            self.lines.seek(SeekFrom::Start(0))?;
            (&mut self.lines).take(mark.bytes).read_to_end(&mut bytes)?;
            files::replace(&path, |beside| OutputFile::create(beside)?.write_all(&bytes))?;
            OutputFile::open(&path)
        };
        let lines = at(&path, put());
        self.put_back = lines.is_ok();
        self.torn = true; // whichever file it is, the place to write at is to be found again
        self.lines = lines?;
        let waiting = std::mem::take(&mut self.waiting);
        let found = self.rewind(&mark);
        self.waiting = waiting;
        found
    }
}

/// The files derived from the lines.
fn derive(folder: &Path, lines: &[Value]) -> io::Result<(Table, Events)> {
    Ok((Table::new(folder, lines)?, Events::new(folder, lines)?))
}

/// Reads a folder's lines. A last line without a newline is still being written, or was cut off, and is left out.
///
/// # Errors
/// Names the file, and the line that is no JSON object with a `step`.
pub fn read(folder: &Path) -> Result<Vec<Value>, CheckpointError> {
    let path = folder.join(METRICS);
    let text = at(&path, files::read_text(&path, LONGEST))?;
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let parse = |(n, line): (usize, &str)| {
        let bad =
            |what: String| CheckpointError::Format { path: path.clone(), what: format!("line {}: {what}", n + 1) };
        let value: Value = serde_json::from_str(line).map_err(|e| bad(format!("it is no JSON ({e})")))?;
        let has_step = value["step"].is_u64();
        if has_step { Ok(value) } else { Err(bad("it has no `step`, which every line has".into())) }
    };
    whole.enumerate().map(parse).collect()
}

/// Every number of a line with its name, those of nested objects as `key/sub`; without `step` and `time`.
pub fn numbers(line: &Value) -> Vec<(String, f64)> {
    fn into(found: &mut Vec<(String, f64)>, name: &str, value: &Value) {
        if let Some(number) = value.as_f64() {
            found.push((name.to_string(), number));
        }
        for (key, value) in value.as_object().into_iter().flatten() {
            match name {
                "" if key == "step" || key == "time" => {}
                "" => into(found, key, value),
                _ => into(found, &format!("{name}/{key}"), value),
            }
        }
    }
    let mut found = vec![];
    into(&mut found, "", line);
    found
}

/// Tokens a second, from lines that have both `tokens` and `seconds`: what was done since the line before.
#[derive(Default)]
pub struct Speed {
    tokens: f64,
    seconds: f64,
}

impl Speed {
    /// The speed at a line, if it has both numbers.
    pub fn of(&mut self, line: &Value) -> Option<f64> {
        let (tokens, seconds) = (line["tokens"].as_f64()?, line["seconds"].as_f64()?);
        let before = std::mem::replace(self, Speed { tokens, seconds });
        Some((tokens - before.tokens) / (seconds - before.seconds)).filter(|speed| speed.is_finite())
    }
}

/// `metrics.csv`: a row a step, a column for every number but those of layers, empty where a step has none.
struct Table {
    file: OutputFile,
    columns: Vec<String>,
    /// The step of the last row and its cells: they grow with each line of the step.
    step: Option<u64>,
    cells: Vec<Option<f64>>,
    /// The last row as it stands in the file, and where it begins there.
    row: String,
    start: usize,
}

/// Columns that every run has, in this order.
const COLUMNS: [&str; 6] = ["train_loss", "val_loss", "grad_norm", "learning_rate", "tokens", "seconds"];

fn cells(line: &Value) -> Vec<(String, f64)> {
    numbers(line).into_iter().filter(|(name, _)| !name.starts_with("layers/")).collect()
}

impl Table {
    fn new(folder: &Path, lines: &[Value]) -> io::Result<Table> {
        let mut columns: Vec<String> = COLUMNS.map(String::from).into();
        for (name, _) in lines.iter().flat_map(cells) {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        let mut text = format!("step,{}\n", columns.join(","));
        let file = OutputFile::create(&folder.join("metrics.csv"))?;
        let mut table = Table { file, columns, step: None, cells: vec![], row: String::new(), start: text.len() };
        for line in lines {
            table.put(line);
            text.truncate(table.start);
            text += &table.row;
        }
        table.file.write_all(text.as_bytes())?;
        Ok(table)
    }

    /// Puts a line's numbers into the last row, or a new one. Returns whether there is a column for each.
    fn put(&mut self, line: &Value) -> bool {
        let found = cells(line);
        let step = line["step"].as_u64();
        if self.step != step && !found.is_empty() {
            self.start += std::mem::take(&mut self.row).len();
            self.step = step;
            self.cells = vec![None; self.columns.len()];
        }
        for (name, value) in &found {
            let Some(column) = self.columns.iter().position(|c| c == name) else { return false };
            self.cells[column] = Some(*value);
        }
        if let Some(step) = self.step {
            let cells = self.cells.iter().map(|cell| cell.map_or(String::new(), |v| v.to_string()));
            self.row = format!("{step},{}\n", cells.collect::<Vec<_>>().join(","));
        }
        true
    }

    fn add(&mut self, folder: &Path, line: &Value) -> io::Result<()> {
        if !self.put(line) {
            *self = Table::new(folder, &read(folder).map_err(io::Error::other)?)?;
            return Ok(());
        }
        self.file.rewind(self.start as u64)?;
        self.file.write_all(self.row.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("limpid-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn step(n: u64) -> Value {
        json!({ "step": n, "train_loss": 1.0 / n as f64, "grad_norm": 0.5, "learning_rate": 1e-3, "tokens": 10 * n, "seconds": 0.5 * n as f64 })
    }

    /// The derived files, and the time they begin with.
    fn derived(folder: &Path) -> (String, Vec<u8>) {
        let mut events = fs::read_dir(folder).unwrap().flatten().map(|e| e.path());
        let events = events.find(|p| p.to_str().unwrap().contains("events.out.tfevents.")).unwrap();
        (fs::read_to_string(folder.join("metrics.csv")).unwrap(), fs::read(events).unwrap())
    }

    #[test]
    fn a_row_holds_a_steps_lines_and_late_columns() {
        let folder = folder("rows");
        let mut log = Log::open(&folder, None).unwrap();
        log.derive().unwrap();
        for line in [
            step(1),
            step(2),
            json!({ "step": 2, "val_loss": 0.75, "val_tokens": 7 }),
            json!({ "step": 2, "layers": { "embed": { "grad_norm": 0.25 } } }),
            step(3),
            json!({ "step": 3, "sample": "a\nb", "prompt": "" }),
        ] {
            log.add(line).unwrap();
        }
        let (table, events) = derived(&folder);
        assert_eq!(
            table,
            "step,train_loss,val_loss,grad_norm,learning_rate,tokens,seconds,val_tokens\n\
             1,1,,0.5,0.001,10,0.5,\n2,0.5,0.75,0.5,0.001,20,1,7\n3,0.3333333333333333,,0.5,0.001,30,1.5,\n"
        );
        assert!(events.windows(15).any(|w| w == b"grad_norm/embed"));
        let mark = log.mark().unwrap();
        drop(log);
        // what is derived is a function of the lines
        Log::open(&folder, Some(&mark)).unwrap().derive().unwrap();
        assert_eq!(derived(&folder), (table, events));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn torn_and_later_lines_are_forgotten() {
        let folder = folder("torn");
        let mut log = Log::open(&folder, None).unwrap();
        (1..=2).for_each(|n| log.add(step(n)).unwrap());
        let mark = log.mark().unwrap();
        log.add(step(3)).unwrap();
        let two = read(&folder).unwrap()[..2].to_vec();
        let torn = fs::read_to_string(folder.join(METRICS)).unwrap() + r#"{"step":4,"tra"#;
        fs::write(folder.join(METRICS), &torn).unwrap();
        assert_eq!(read(&folder).unwrap().len(), 3, "a line that is being written is not read");
        let mut log = Log::open(&folder, Some(&mark)).unwrap();
        log.derive().unwrap();
        assert_eq!(read(&folder).unwrap(), two);
        log.add(step(3)).unwrap();
        assert_eq!(read(&folder).unwrap()[2], step(3), "one line only carries the time");
        assert_eq!(derived(&folder).0.lines().count(), 4);
        // a file that does not say what it said is refused, and another run begins without it
        fs::write(folder.join(METRICS), torn.replacen("0.5", "0.4", 1)).unwrap();
        let error = Log::open(&folder, Some(&mark)).err().unwrap().to_string();
        assert!(error.contains("metrics.jsonl: its first"), "{error}");
        fs::write(folder.join(METRICS), "{\"step\":1}\nno\n{\"step\":2}\n").unwrap();
        assert!(read(&folder).unwrap_err().to_string().contains("metrics.jsonl: line 2: it is no JSON"));
        Log::open(&folder, None).unwrap();
        assert_eq!(read(&folder).unwrap(), Vec::<Value>::new());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn speed_is_of_what_was_done_since() {
        let mut speed = Speed::default();
        let of = [step(1), json!({ "step": 1, "val_loss": 1.0 }), step(3)].map(|line| speed.of(&line));
        assert_eq!(of, [Some(20.0), None, Some(20.0)]);
    }
}
