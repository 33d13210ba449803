//! [`Log`] writes `metrics.jsonl`, and the two files derived from it. The derived files are rebuilt whenever a folder
//! is opened.

use super::events::Events;
use super::table::Table;
use super::{LONGEST, METRICS, read};
use limpid_base::files::{self, OutputFile};
use limpid_checkpoint::{CheckpointError, at};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A run's log, open to write.
pub struct Log {
    folder: PathBuf,
    lines: OutputFile,
    /// Where the last whole line ends, and the checksum of the file up to that point.
    end: u64,
    sum: Xxh3,
    /// Whether part of a line may follow that point.
    torn: bool,
    /// Lines that could not be written yet.
    waiting: Vec<Value>,
    /// The derived files; none if one of them could not be written, and then both are rebuilt.
    derived: Option<(Table, Events)>,
    /// Why they could not be written.
    fault: Option<CheckpointError>,
    /// Whether the file has a line, and so its time.
    timed: bool,
    /// Whether the file was put back since [`Log::was_put_back`] was last called.
    put_back: bool,
    /// The folder's lock, which is held while lines may be added.
    _lock: Option<OutputFile>,
}

/// A position in a log, with the checksum of the lines before it. Every saved state holds one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Bytes before it.
    pub bytes: u64,
    /// Their checksum, XXH3 in hex.
    pub xxh3: String,
}

impl Log {
    /// Opens a folder's log at `mark`. The lines after the mark are dropped when the next line is written. Without a
    /// mark, begins a new log.
    ///
    /// # Errors
    /// If the lines before the mark have changed, or the file system fails.
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

    /// Returns to an earlier position.
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

    /// Adds a line: an object with a `step`, whose other values are numbers, objects of numbers, or texts.
    ///
    /// # Errors
    /// If the line cannot be written; it then waits, and is written with the next one.
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
            let _ = self.cut(); // so that no part of a line stays
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

    /// Syncs every line to disk and returns the position.
    ///
    /// # Errors
    /// As [`Log::add`].
    pub fn mark(&mut self) -> Result<Mark, CheckpointError> {
        self.flush()?;
        at(&self.folder.join(METRICS), self.lines.sync())?;
        Ok(Mark { bytes: self.end, xxh3: format!("{:016x}", self.sum.digest()) })
    }

    /// Takes the reason why metrics.csv or the events could not be written, if they could not.
    pub(crate) fn take_fault(&mut self) -> Option<CheckpointError> {
        self.fault.take()
    }

    /// Rebuilds metrics.csv and the events if they are not up to date. If somebody removed metrics.jsonl, it is put
    /// back first.
    ///
    /// # Errors
    /// If a file cannot be written; the next call tries again.
    pub fn derive(&mut self) -> Result<(), CheckpointError> {
        if !self.is_there() {
            self.put_back()?;
        }
        if self.derived.is_none() || !self.folder.join("metrics.csv").exists() {
            self.flush()?;
            let lines = read(&self.folder)?;
            let build = || Ok((Table::new(&self.folder, &lines)?, Events::new(&self.folder, &lines)?));
            self.derived = Some(at(&self.folder.join("metrics.csv"), build())?);
        }
        Ok(())
    }

    /// The same log, which now also holds the folder's lock.
    pub(crate) fn holding(self, lock: Option<OutputFile>) -> Log {
        Log { _lock: lock, ..self }
    }

    /// Whether its file is still in its place.
    pub(crate) fn is_there(&self) -> bool {
        self.lines.is_at(&self.folder.join(METRICS))
    }

    /// Whether another file in its place holds the same lines.
    pub(crate) fn is_copied(&self) -> bool {
        let bytes = files::read_small(&self.folder.join(METRICS), LONGEST).unwrap_or_default();
        let whole = bytes.get(..self.end as usize).filter(|whole| !whole.is_empty());
        whole.is_some_and(|whole| xxh3_64(whole) == self.sum.digest())
    }

    /// Whether the file was removed and put back since the last call.
    pub(crate) fn was_put_back(&mut self) -> bool {
        std::mem::take(&mut self.put_back)
    }

    /// Writes the file again after somebody removed it: the open file still has everything it held.
    ///
    /// # Errors
    /// If it cannot be written, as when the folder is gone too.
    pub(crate) fn put_back(&mut self) -> Result<(), CheckpointError> {
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
        self.torn = true; // the position in either file is lost
        self.lines = lines?;
        let waiting = std::mem::take(&mut self.waiting);
        let found = self.rewind(&mark);
        self.waiting = waiting;
        found
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
        json!({
            "step": n, "train_loss": 1.0 / n as f64, "grad_norm": 0.5, "learning_rate": 1e-3, "tokens": 10 * n,
            "seconds": 0.5 * n as f64
        })
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
            "step,train_loss,val_loss,grad_norm,learning_rate,tokens,seconds,val_tokens\n1,1,,0.5,0.001,10,0.5,\n2,0.\
             5,0.75,0.5,0.001,20,1,7\n3,0.3333333333333333,,0.5,0.001,30,1.5,\n"
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
        assert!(read(&folder).unwrap_err().to_string().contains("metrics.jsonl: line 2: it is not JSON"));
        Log::open(&folder, None).unwrap();
        assert_eq!(read(&folder).unwrap(), Vec::<Value>::new());
        fs::remove_dir_all(folder).unwrap();
    }
}
