//! PNG: the file, and cells as pixels of a palette.

use crate::palette::Palette;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use miniz_oxide::deflate::compress_to_vec_zlib;

/// A PNG of one pixel a cell, in rows of `columns`: entries of a palette; `None` is transparent.
pub fn cells(columns: usize, cells: &[Option<u8>], palette: Palette) -> Vec<u8> {
    let colours: Vec<u8> = (0..=255).flat_map(|entry| palette.colour(entry)).collect();
    let size = [columns, cells.len() / columns.max(1)];
    if cells.iter().all(Option::is_some) {
        let bytes: Vec<u8> = cells.iter().map(|cell| cell.unwrap_or_default()).collect();
        return file(size, 3, &[(*b"PLTE", &colours)], bytes.chunks(columns.max(1)));
    }
    let pixel = |cell: &Option<u8>| match cell {
        Some(entry) => palette.colour(*entry).into_iter().chain([255]).collect::<Vec<u8>>(),
        None => vec![0; 4],
    };
    let bytes: Vec<u8> = cells.iter().flat_map(pixel).collect();
    file(size, 6, &[], bytes.chunks(4 * columns.max(1)))
}

/// A file: `kind` of pixels, chunks before them, and rows of their bytes.
pub(super) fn file<'a>(
    [wide, high]: [usize; 2],
    kind: u8,
    before: &[([u8; 4], &[u8])],
    rows: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |name: [u8; 4], data: &[u8]| {
        out.extend((data.len() as u32).to_be_bytes());
        let from = out.len();
        out.extend(name.iter().chain(data));
        let sum = crc(&out[from..]);
        out.extend(sum.to_be_bytes());
    };
    let mut head = [wide, high].map(|n| (n as u32).to_be_bytes()).concat();
    head.extend([8, kind, 0, 0, 0]);
    chunk(*b"IHDR", &head);
    before.iter().for_each(|(name, data)| chunk(*name, data));
    // each row begins with its filter: none
    let raw: Vec<u8> = rows.flat_map(|row| [0].iter().chain(row)).copied().collect();
    chunk(*b"IDAT", &compress_to_vec_zlib(&raw, 6));
    chunk(*b"IEND", &[]);
    out
}

/// The checksum of PNG and zip.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc: u32, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// Bytes as letters, for `data:` addresses.
pub fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// The program that drew it.
pub(super) const SOFTWARE: &[u8] = b"Software\0limpid";
