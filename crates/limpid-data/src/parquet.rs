//! The rows of a parquet file: one column of text, or all columns as JSON, page by page and row by row. The crate
//! `parquet` reads metadata, pages and values. Pages are unpacked here, where none can become larger than [`PAGE`]. If
//! a damaged file makes that crate panic, the panic becomes an error of that file.

use super::corpus_error::{CorpusError, at, bad};
use super::inputs::{Input, LONGEST, Unit};
use super::unpack::{Packing, Unpacked};
use ::parquet::basic::{Compression, Type};
use ::parquet::bloom_filter::Sbbf;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::{ColumnReader, get_column_reader};
use ::parquet::data_type::ByteArray;
use ::parquet::errors::{ParquetError, Result as Parquet};
use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use ::parquet::file::reader::RowGroupReader;
use ::parquet::file::serialized_reader::SerializedPageReader;
use ::parquet::record::reader::{ReaderIter, RowIter, TreeBuilder};
use ::parquet::record::{Field, Row};
use ::parquet::schema::types::Type as SchemaType;
use bytes::Bytes;
use limpid_base::contain::contain;
use serde_json::Value;
use std::fs::File;
use std::io::{Cursor, Read};
use std::sync::Arc;

/// Largest page, unpacked.
const PAGE: usize = 1 << 30;
/// Most values in a page.
const VALUES: u32 = 1 << 24;

/// The rows of an open file.
pub(super) struct Rows {
    file: Arc<File>,
    metadata: Arc<ParquetMetaData>,
    /// What is read of each.
    columns: Columns,
    /// The row group that is next.
    group: usize,
    row: u64,
}

/// What is read of the rows, with the reader of the group that is open.
#[expect(clippy::large_enum_variant, reason = "there is one per file")]
enum Columns {
    /// A column of text; its level says whether there is one.
    Text { column: usize, optional: i16, reader: Option<ColumnReader> },
    /// All columns, as JSON.
    All(Option<ReaderIter>),
}

/// Opens a file and reads its footer.
fn open(input: &Input) -> Result<(Arc<File>, Arc<ParquetMetaData>), CorpusError> {
    let file = Arc::new(at(&input.path, File::open(&input.path))?);
    let metadata = guarded(input, || {
        let found = ParquetMetaDataReader::new().parse_and_finish(&*file);
        found.map_err(|e| ParquetError::General(format!("it is not a whole parquet file: {e}")))
    })?;
    Ok((file, Arc::new(metadata)))
}

/// Checks that no two row groups of a column share bytes: the file would give rows twice.
fn apart(input: &Input, metadata: &ParquetMetaData, column: usize) -> Result<(), CorpusError> {
    guarded(input, || {
        let mut places: Vec<_> = metadata.row_groups().iter().map(|group| group.column(column).byte_range()).collect();
        places.sort_unstable();
        if places.windows(2).all(|two| two[0].0.saturating_add(two[0].1) <= two[1].0) {
            Ok(())
        } else {
            Err(ParquetError::General("it is damaged: two of its row groups share bytes".into()))
        }
    })
}

/// What `work` gives; its errors and panics are the file's.
fn guarded<T>(input: &Input, work: impl FnOnce() -> Parquet<T>) -> Result<T, CorpusError> {
    match contain(work) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(ParquetError::General(why))) => Err(bad(&input.path, why)),
        Ok(Err(e)) => Err(bad(&input.path, e.to_string())),
        Err(panic) => Err(bad(&input.path, format!("it is damaged: the reader of parquet failed ({panic})"))),
    }
}

impl Rows {
    /// Opens `input`, which must be a file: parquet is not read from its beginning to its end. Rows are the texts of a
    /// column, or without one all columns as JSON.
    pub fn open(input: &Input, column: Option<&str>) -> Result<Rows, CorpusError> {
        let (file, metadata) = open(input)?;
        let known = metadata.file_metadata().schema_descr().columns();
        let columns = match column {
            Some(name) => {
                let text = |i: &usize| known[*i].physical_type() == Type::BYTE_ARRAY && known[*i].max_rep_level() == 0;
                let Some(column) = (0..known.len()).filter(text).find(|i| known[*i].path().string() == name) else {
                    let has = (0..known.len()).filter(text).map(|i| known[i].path().string()).collect();
                    return Err(CorpusError::Column { path: input.path.clone(), column: name.into(), has });
                };
                apart(input, &metadata, column)?;
                Columns::Text { column, optional: known[column].max_def_level(), reader: None }
            }
            None => {
                (0..known.len()).try_for_each(|column| apart(input, &metadata, column))?;
                Columns::All(None)
            }
        };
        Ok(Rows { file, metadata, columns, group: 0, row: 0 })
    }

    /// The next row; a missing text is an empty one.
    pub fn next(&mut self, input: &Input) -> Result<Option<Unit>, CorpusError> {
        let place = input.place(self.row + 1);
        let found = guarded(input, || {
            self.value().map_err(|e| ParquetError::General(format!("row {} cannot be read: {e}", self.row + 1)))
        })?;
        let Some(found) = found else { return Ok(None) };
        let bytes = found.data();
        self.row += 1;
        if bytes.len() > LONGEST {
            return Err(CorpusError::TooLong { place, limit: LONGEST });
        }
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let (byte, found) = (e.valid_up_to() as u64, bytes[e.valid_up_to()]);
            CorpusError::NotUtf8 { place, byte, line: 1, found }
        })?;
        Ok(Some(Unit { place: self.row, text: text.into(), last: true, ..Unit::default() }))
    }

    /// Decodes a row; nothing after the last.
    fn value(&mut self) -> Parquet<Option<ByteArray>> {
        loop {
            if let Some(row) = self.columns.next()? {
                return Ok(Some(row));
            }
            if self.group == self.metadata.num_row_groups() {
                return Ok(None);
            }
            self.columns.open(&Group { file: &self.file, metadata: &self.metadata, number: self.group })?;
            self.group += 1;
        }
    }
}

impl Columns {
    /// Opens a group.
    fn open(&mut self, group: &Group) -> Parquet<()> {
        let schema = group.metadata.file_metadata().schema_descr_ptr();
        match self {
            Columns::All(rows) => *rows = Some(TreeBuilder::new().as_iter(schema, group)?),
            Columns::Text { column, reader, .. } => {
                let pages = group.get_column_page_reader(*column)?;
                *reader = Some(get_column_reader(schema.column(*column), pages));
            }
        }
        Ok(())
    }

    /// The next row of the group that is open, if one is open and has one.
    fn next(&mut self) -> Parquet<Option<ByteArray>> {
        match self {
            Columns::Text { reader: None, .. } | Columns::All(None) => Ok(None),
            Columns::All(Some(rows)) => {
                Ok(rows.next().transpose()?.map(|row| object(&row).to_string().into_bytes().into()))
            }
            Columns::Text { optional, reader: Some(ColumnReader::ByteArrayColumnReader(reader)), .. } => {
                let (mut levels, mut values) = (vec![], vec![]);
                match reader.read_records(1, Some(&mut levels), None, &mut values)?.0 {
                    0 => Ok(None),
                    _ if *optional > 0 && levels.first() != Some(optional) => Ok(Some("".into())),
                    _ => Ok(Some(values.pop().unwrap_or_else(|| "".into()))),
                }
            }
            Columns::Text { .. } => Err(ParquetError::General("the column is not of text".into())),
        }
    }
}

/// A group of rows whose pages are unpacked here.
struct Group<'a> {
    file: &'a Arc<File>,
    metadata: &'a ParquetMetaData,
    number: usize,
}

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata.row_group(self.number)
    }

    fn num_columns(&self) -> usize {
        self.metadata().num_columns()
    }

    fn get_column_page_reader(&self, column: usize) -> Parquet<Box<dyn PageReader>> {
        let chunk = self.metadata().column(column);
        let codec = chunk.compression();
        if let Compression::BROTLI(_) | Compression::LZO = codec {
            let name = if codec == Compression::LZO { "LZO" } else { "brotli" };
            let mend = "write it again with another, for example snappy or zstd";
            return Err(ParquetError::General(format!("limpid does not read its compression, {name}: {mend}")));
        }
        let raw = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        let pages = SerializedPageReader::new(self.file.clone(), &raw, self.metadata().num_rows() as usize, None)?;
        Ok(Box::new(Pages { pages, codec }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, _: Option<SchemaType>) -> Parquet<RowIter<'_>> {
        Err(ParquetError::NYI("rows are read by `Columns`".into()))
    }
}

fn object(row: &Row) -> Value {
    row.get_column_iter().map(|(name, field)| (name.clone(), json(field))).collect()
}

/// A value of a row: texts, numbers and truth values, and what is made of them. Of other types it is their text; of
/// bytes, nothing.
fn json(field: &Field) -> Value {
    match field {
        Field::Null | Field::Bytes(_) => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(n) => (*n).into(),
        Field::Short(n) => (*n).into(),
        Field::Int(n) => (*n).into(),
        Field::Long(n) => (*n).into(),
        Field::UByte(n) => (*n).into(),
        Field::UShort(n) => (*n).into(),
        Field::UInt(n) => (*n).into(),
        Field::ULong(n) => (*n).into(),
        Field::Float(x) => f64::from(*x).into(),
        Field::Double(x) => (*x).into(),
        Field::Str(text) => text.as_str().into(),
        Field::Group(row) => object(row),
        Field::ListInternal(list) => list.elements().iter().map(json).collect(),
        Field::MapInternal(map) => map.entries().iter().map(|(key, value)| (key.to_string(), json(value))).collect(),
        other => other.to_string().into(),
    }
}

/// Pages as they lie in the file, unpacked.
struct Pages {
    pages: SerializedPageReader<File>,
    codec: Compression,
}

fn unpack(codec: Compression, packed: &Bytes, levels: usize) -> Parquet<Bytes> {
    let levels = levels.min(packed.len());
    let (mut bytes, values) = (packed[..levels].to_vec(), packed.slice(levels..));
    let large = || ParquetError::General(format!("a page is larger than {PAGE} bytes"));
    let damaged = |what: &str| ParquetError::General(format!("a page is no {what}"));
    match codec {
        _ if values.is_empty() => {}
        Compression::ZSTD(_) => {
            let pages = Unpacked::new(Packing::Zstd, Box::new(Cursor::new(values)));
            _ = pages.take(PAGE as u64 + 1).read_to_end(&mut bytes)?;
        }
        Compression::GZIP(_) => {
            _ = flate2::read::MultiGzDecoder::new(&values[..]).take(PAGE as u64 + 1).read_to_end(&mut bytes)?;
        }
        Compression::SNAPPY => {
            if snap::raw::decompress_len(&values).map_err(|_| damaged("snappy"))? > PAGE {
                return Err(large());
            }
            bytes.extend(snap::raw::Decoder::new().decompress_vec(&values).map_err(|_| damaged("snappy"))?);
        }
        Compression::LZ4 => bytes.extend(hadoop(&values).or_else(|| lz4(&values)).ok_or_else(|| damaged("LZ4"))?),
        _ => bytes.extend(lz4(&values).ok_or_else(|| damaged("LZ4"))?),
    }
    if bytes.len() > PAGE { Err(large()) } else { Ok(bytes.into()) }
}

/// A block of LZ4, whose size is not told.
fn lz4(packed: &[u8]) -> Option<Vec<u8>> {
    let most = packed.len().saturating_mul(255).min(PAGE + 1); // what LZ4 can reach
    let mut size = most.min(4 * packed.len());
    loop {
        match lz4_flex::block::decompress(packed, size) {
            Ok(bytes) => return Some(bytes),
            Err(lz4_flex::block::DecompressError::OutputTooSmall { .. }) if size < most => size = most.min(4 * size),
            Err(_) => return None,
        }
    }
}

/// Blocks of LZ4 as Hadoop writes them: the size of each, unpacked and packed, before it.
fn hadoop(mut packed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = vec![];
    while !packed.is_empty() {
        let (sizes, rest) = packed.split_at_checked(8)?;
        let [whole, part] = [0, 4].map(|i| u32::from_be_bytes([sizes[i], sizes[i + 1], sizes[i + 2], sizes[i + 3]]));
        let (block, rest) = rest.split_at_checked(part as usize)?;
        let fits = bytes.len() + whole as usize <= PAGE;
        bytes.extend(lz4_flex::block::decompress(block, fits.then_some(whole as usize)?).ok()?);
        packed = rest;
    }
    Some(bytes)
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Parquet<Option<Page>> {
        let (mut page, codec) = (self.pages.get_next_page()?, self.codec);
        if let Some(values) = page.as_ref().map(Page::num_values).filter(|n| *n > VALUES) {
            return Err(ParquetError::General(format!("a page has {values} values, at most {VALUES} are read")));
        }
        match &mut page {
            _ if codec == Compression::UNCOMPRESSED => {}
            Some(Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. }) => *buf = unpack(codec, buf, 0)?,
            Some(Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed: true, .. }) => {
                *buf = unpack(codec, buf, def_levels_byte_len.saturating_add(*rep_levels_byte_len) as usize)?;
            }
            _ => {}
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Parquet<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Parquet<()> {
        self.pages.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Parquet<Page>;

    fn next(&mut self) -> Option<Parquet<Page>> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page says how large it becomes, or is stopped where it is too large: never more than [`PAGE`] is held.
    #[test]
    fn pages_stay_within_their_limit() {
        let huge = [0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0]; // snappy of 4 GiB less one
        let error = unpack(Compression::SNAPPY, &Bytes::from(huge.to_vec()), 0).unwrap_err().to_string();
        assert!(error.contains("larger than 1073741824 bytes"), "{error}");
        let text = b"some text, some text, some text".repeat(900);
        let packed = lz4_flex::block::compress(&text);
        let sizes = [text.len(), packed.len()].map(|n| (n as u32).to_be_bytes()).concat();
        for (codec, packed) in [
            (Compression::LZ4_RAW, packed.clone()),
            (Compression::LZ4, packed.clone()),
            (Compression::LZ4, [&sizes[..], &packed, &sizes, &packed].concat()),
            (Compression::SNAPPY, snap::raw::Encoder::new().compress_vec(&text).unwrap()),
        ] {
            let found = unpack(codec, &Bytes::from([&b"lv"[..], &packed].concat()), 2).unwrap();
            assert!(found.starts_with(b"lv") && found[2..].chunks(text.len()).all(|part| part == text), "{codec:?}");
            assert!(unpack(codec, &Bytes::from(packed[..packed.len() - 9].to_vec()), 0).is_err());
        }
        let false_size = [&(PAGE as u32 + 1).to_be_bytes()[..], &4u32.to_be_bytes(), b"abcd"].concat();
        assert!(hadoop(&false_size).is_none());
        assert!(lz4(&[0x1F; 40]).is_none());
    }
}
