//! The rows of a parquet file: one column of text, page by page. The crate unpacks all codecs but zstd (it would need C)
//! and brotli; pages of zstd are taken as they lie and unpacked here.

use super::corpus_error::{CorpusError, Place, at, bad};
use super::documents::{Input, LONGEST, Unit, Zstd};
use ::parquet::basic::{Compression, Type};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::{ColumnReader, get_column_reader};
use ::parquet::data_type::ByteArray;
use ::parquet::errors::{ParquetError, Result as Parquet};
use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use ::parquet::file::reader::ChunkReader;
use ::parquet::file::serialized_reader::SerializedPageReader;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::{BufRead, Cursor, Read};
use std::sync::Arc;

/// Rows decoded at once.
const ROWS: usize = 64;

/// The text column of an open file.
pub struct Rows {
    metadata: Arc<ParquetMetaData>,
    /// The pages of a group's column.
    pages: Box<dyn Fn(usize) -> Parquet<Box<dyn PageReader>> + Send>,
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
        if packed || path.as_os_str() == "-" {
            let mut bytes = vec![];
            at(path, source.read_to_end(&mut bytes))?;
            Rows::of(input, field, Bytes::from(bytes))
        } else {
            Rows::of(input, field, at(path, std::fs::File::open(path))?)
        }
    }

    fn of<R: ChunkReader + 'static>(input: &Input, field: &str, file: R) -> Result<Rows, CorpusError> {
        let (path, file) = (&input.path, Arc::new(file));
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&*file);
        let metadata = Arc::new(metadata.map_err(|e| bad(path, format!("it is not a whole parquet file: {e}")))?);
        let columns = metadata.file_metadata().schema_descr().columns().to_vec();
        let text = |i: &usize| columns[*i].physical_type() == Type::BYTE_ARRAY && columns[*i].max_rep_level() == 0;
        let Some(column) = (0..columns.len()).filter(text).find(|i| columns[*i].path().string() == field) else {
            let has = (0..columns.len()).filter(text).map(|i| columns[i].path().string()).collect();
            return Err(CorpusError::Column { path: path.clone(), column: field.into(), has });
        };
        let optional = columns[column].max_def_level();
        let known = metadata.clone();
        let pages = Box::new(move |group: usize| -> Parquet<Box<dyn PageReader>> {
            let rows = known.row_group(group).num_rows() as usize;
            let chunk = known.row_group(group).column(column);
            Ok(match chunk.compression() {
                Compression::ZSTD(_) => {
                    let raw = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
                    Box::new(Unpacked(SerializedPageReader::new(file.clone(), &raw, rows, None)?))
                }
                Compression::BROTLI(_) | Compression::LZO => {
                    let codec = if matches!(chunk.compression(), Compression::LZO) { "LZO" } else { "brotli" };
                    let mend = "write it anew with another, for example snappy or zstd";
                    return Err(ParquetError::General(format!(
                        "limpid does not read its compression, {codec}: {mend}"
                    )));
                }
                _ => Box::new(SerializedPageReader::new(file.clone(), chunk, rows, None)?),
            })
        });
        Ok(Rows { metadata, pages, column, optional, group: 0, reader: None, ready: VecDeque::new(), row: 0 })
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
    fn fill(&mut self) -> Parquet<bool> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None if self.group == self.metadata.num_row_groups() => return Ok(false),
            none => {
                self.group += 1;
                let column = self.metadata.file_metadata().schema_descr().column(self.column);
                none.insert(get_column_reader(column, (self.pages)(self.group - 1)?))
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

/// Pages whose values are still packed with zstd, unpacked.
struct Unpacked<R: ChunkReader>(SerializedPageReader<R>);

fn unpack(packed: &Bytes, levels: u32) -> Parquet<Bytes> {
    let levels = (levels as usize).min(packed.len());
    let mut bytes = packed[..levels].to_vec();
    Zstd::new(Box::new(Cursor::new(packed.slice(levels..)))).take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

impl<R: ChunkReader> PageReader for Unpacked<R> {
    fn get_next_page(&mut self) -> Parquet<Option<Page>> {
        let mut page = self.0.get_next_page()?;
        match &mut page {
            Some(Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. }) => *buf = unpack(buf, 0)?,
            Some(Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed: true, .. }) => {
                *buf = unpack(buf, def_levels_byte_len.saturating_add(*rep_levels_byte_len))?;
            }
            _ => {}
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Parquet<Option<PageMetadata>> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Parquet<()> {
        self.0.skip_next_page()
    }
}

impl<R: ChunkReader> Iterator for Unpacked<R> {
    type Item = Parquet<Page>;

    fn next(&mut self) -> Option<Parquet<Page>> {
        self.get_next_page().transpose()
    }
}
