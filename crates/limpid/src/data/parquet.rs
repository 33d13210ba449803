//! The rows of a parquet file: one column of text, page by page.

use super::corpus_error::{CorpusError, Place, at, bad};
use super::documents::{Input, Unit};
use ::parquet::basic::Type;
use ::parquet::column::reader::ColumnReader;
use ::parquet::data_type::ByteArray;
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use std::collections::VecDeque;
use std::io::{BufRead, Read};

/// Rows decoded at once.
const ROWS: usize = 64;

/// The text column of an open file.
pub struct Rows {
    file: Box<dyn FileReader + Send>,
    column: usize,
    optional: i16,
    group: usize,
    reader: Option<ColumnReader>,
    ready: VecDeque<Option<ByteArray>>,
    row: u64,
}

impl Rows {
    /// Opens `input`; one that is packed again (`.parquet.gz`) is unpacked into memory.
    pub fn open(
        input: &Input,
        field: &str,
        mut source: Box<dyn BufRead + Send>,
        packed: bool,
    ) -> Result<Rows, CorpusError> {
        let path = &input.path;
        let damaged = |e: ParquetError| bad(path, format!("it is not a whole parquet file: {e}"));
        let file: Box<dyn FileReader + Send> = if packed || path.as_os_str() == "-" {
            let mut bytes = vec![];
            at(path, source.read_to_end(&mut bytes))?;
            Box::new(SerializedFileReader::new(bytes::Bytes::from(bytes)).map_err(damaged)?)
        } else {
            Box::new(SerializedFileReader::new(at(path, std::fs::File::open(path))?).map_err(damaged)?)
        };
        let columns = file.metadata().file_metadata().schema_descr().columns().to_vec();
        let text = |i: &usize| columns[*i].physical_type() == Type::BYTE_ARRAY && columns[*i].max_rep_level() == 0;
        let Some(column) = (0..columns.len()).filter(text).find(|i| columns[*i].path().string() == field) else {
            let has = (0..columns.len()).filter(text).map(|i| columns[i].path().string()).collect();
            return Err(CorpusError::Column { path: path.clone(), column: field.into(), has });
        };
        let optional = columns[column].max_def_level();
        Ok(Rows { file, column, optional, group: 0, reader: None, ready: VecDeque::new(), row: 0 })
    }

    /// The next row; a missing text is an empty one.
    pub fn next(&mut self, input: &Input) -> Result<Option<Unit>, CorpusError> {
        while self.ready.is_empty() {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(e) => return Err(bad(&input.path, format!("row {} cannot be read: {e}", self.row + 1))),
            }
        }
        self.row += 1;
        let bytes = self.ready.pop_front().flatten().unwrap_or_else(|| ByteArray::from(vec![]));
        let text = std::str::from_utf8(bytes.data()).map_err(|e| {
            let place = Place { path: input.path.clone(), unit: "row", number: self.row };
            let (byte, found) = (e.valid_up_to() as u64, bytes.data()[e.valid_up_to()]);
            CorpusError::NotUtf8 { place, byte, line: 1, found }
        })?;
        Ok(Some(Unit { place: self.row, text: text.into(), last: true, ..Unit::default() }))
    }

    /// Decodes some rows; false after the last.
    fn fill(&mut self) -> Result<bool, ParquetError> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None if self.group == self.file.num_row_groups() => return Ok(false),
            none => {
                self.group += 1;
                none.insert(self.file.get_row_group(self.group - 1)?.get_column_reader(self.column)?)
            }
        };
        let ColumnReader::ByteArrayColumnReader(reader) = reader else {
            return Err(ParquetError::General("the column is not of text".into()));
        };
        let (mut levels, mut values) = (vec![], vec![]);
        let (rows, ..) = reader.read_records(ROWS, Some(&mut levels), None, &mut values)?;
        if rows == 0 {
            self.reader = None;
            return Ok(true);
        }
        let mut values = values.into_iter();
        if self.optional == 0 {
            self.ready.extend(values.map(Some));
        } else {
            self.ready.extend(levels.iter().map(|l| if *l == self.optional { values.next() } else { None }));
        }
        Ok(true)
    }
}
