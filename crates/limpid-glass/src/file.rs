//! Part of a tensor as a file for other programs.

use crate::asked::refusal;
use crate::{Reply, Result};
use limpid_trace::{NamedTensor, index_of};
use std::ops::Range;

/// `part` as csv, npy or safetensors; `places` say which part of the tensor it is.
pub fn file(format: &str, part: &NamedTensor, places: &[Range<usize>]) -> Result<Reply> {
    let name = format!("{}.{format}", part.name.replace(['(', ')'], "-"));
    let bytes = part.values.iter().flat_map(|v| v.to_le_bytes());
    Ok(match format {
        "csv" => {
            let mut text = part.axes.join(",") + ",value\n";
            for (flat, value) in part.values.iter().enumerate() {
                let index = index_of(flat, &part.shape);
                let place = places.iter().zip(index).map(|(range, i)| (range.start + i).to_string());
                text += &format!("{},{value}\n", place.collect::<Vec<_>>().join(","));
            }
            Reply::File("text/csv; charset=utf-8", name, text.into_bytes())
        }
        "f32" => Reply::File("application/octet-stream", name, bytes.collect()),
        "npy" => {
            let shape: String = part.shape.iter().map(|n| format!("{n}, ")).collect();
            let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
            // the whole header ends at a multiple of 64
            let padded = (10 + header.len() + 1).next_multiple_of(64) - 11;
            header = format!("{header:padded$}\n");
            let length = u16::try_from(header.len()).unwrap_or(u16::MAX).to_le_bytes();
            let file = b"\x93NUMPY\x01\x00".iter().copied().chain(length).chain(header.into_bytes()).chain(bytes);
            Reply::File("application/octet-stream", name, file.collect())
        }
        "safetensors" => {
            let size = 4 * part.values.len();
            let about =
                serde_json::json!({ &part.name: { "dtype": "F32", "shape": part.shape, "data_offsets": [0, size] } });
            let text = about.to_string();
            let header = format!("{text:0$}", text.len().next_multiple_of(8));
            let file = (header.len() as u64).to_le_bytes().into_iter().chain(header.into_bytes()).chain(bytes);
            Reply::File("application/octet-stream", name, file.collect())
        }
        other => return Err(refusal("format", "json, csv, npy, safetensors or f32", other)),
    })
}
