//! `metrics.csv`: a row for each step, a column for every number except those of layers. A cell is empty if its step
//! has no such number.

use super::{numbers, read};
use limpid_base::files::OutputFile;
use serde_json::Value;
use std::io::{self, Write};
use std::path::Path;

/// The table, open to write.
pub(super) struct Table {
    file: OutputFile,
    columns: Vec<String>,
    /// The step of the last row, and its cells, which fill up as the step's lines come.
    step: Option<u64>,
    cells: Vec<Option<f64>>,
    /// The last row as it is in the file, and where it begins there.
    row: String,
    start: usize,
}

/// Columns that every run has, in this order.
const COLUMNS: [&str; 6] = ["train_loss", "val_loss", "grad_norm", "learning_rate", "tokens", "seconds"];

/// The numbers of a line that have columns.
fn cells(line: &Value) -> Vec<(String, f64)> {
    numbers(line).into_iter().filter(|(name, _)| !name.starts_with("layers/")).collect()
}

impl Table {
    /// Writes the table of `lines` into the folder.
    pub fn new(folder: &Path, lines: &[Value]) -> io::Result<Table> {
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

    /// Puts a line's numbers into the last row or a new one. Returns whether every number has a column.
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

    /// Adds a line's numbers. A number without a column needs a new table.
    pub fn add(&mut self, folder: &Path, line: &Value) -> io::Result<()> {
        if !self.put(line) {
            *self = Table::new(folder, &read(folder).map_err(io::Error::other)?)?;
            return Ok(());
        }
        self.file.rewind(self.start as u64)?;
        self.file.write_all(self.row.as_bytes())
    }
}
