//! The file that TensorBoard reads. It holds records, each a protocol buffer `Event` with the scalars or the text of a
//! step.
//!
//! A record is the event's length (8 bytes), the masked CRC-32C of the length, the event, and the masked CRC-32C of the
//! event (tensorflow/core/lib/io/record_writer.h). An event has few fields (tensorflow/core/util/event.proto,
//! summary.proto), so they are written here by hand: a key is the field's number and wire type; a text or message is
//! its length, then its bytes.

use super::{Speed, numbers};
use crc::{CRC_32_ISCSI, Crc};
use limpid_base::files::{OutputFile, remove};
use serde_json::Value;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// The file of events, open to write, with what the next event needs from earlier ones.
#[derive(Default)]
pub struct Events {
    file: Option<OutputFile>,
    speed: Speed,
    /// When the run began, and its seconds since then.
    began: f64,
    seconds: f64,
}

impl Events {
    /// Replaces the folder's events by those of `lines`.
    pub fn new(folder: &Path, lines: &[Value]) -> io::Result<Events> {
        for entry in fs::read_dir(folder)?.flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(|n| n.starts_with(NAME) && n.ends_with(OWN)) {
                remove(&entry.path())?;
            }
        }
        let mut events = Events::default();
        lines.iter().try_for_each(|line| events.add(folder, line))?;
        Ok(events)
    }

    /// Writes a line's event. The first event creates the file, which is named after that event's time.
    pub fn add(&mut self, folder: &Path, line: &Value) -> io::Result<()> {
        self.seconds = line["seconds"].as_f64().unwrap_or(self.seconds);
        let mut records = vec![];
        if self.file.is_none() {
            let time = line["time"].as_f64().unwrap_or_default();
            self.began = time - self.seconds;
            self.file = Some(OutputFile::create(&folder.join(format!("{NAME}{:010}{OWN}", time as u64)))?);
            let mut event = double(1, self.began);
            event.extend(bytes(3, b"brain.Event:2"));
            records.extend(record(&event));
        }
        let speed = self.speed.at(line).map(|speed| ("tokens_per_second".to_string(), speed));
        let mut summary = vec![];
        for (name, value) in numbers(line).into_iter().chain(speed) {
            if name != "seconds" {
                let mut scalar = bytes(1, tag(&name).as_bytes());
                scalar.extend(float(2, value as f32));
                summary.extend(bytes(1, &scalar));
            }
        }
        if let Some(sample) = line["sample"].as_str() {
            let text = format!("{}{sample}", line["prompt"].as_str().unwrap_or_default());
            summary.extend(bytes(1, &text_value("sample", &text)));
        }
        if !summary.is_empty() {
            let mut event = double(1, self.began + self.seconds);
            event.extend(integer(2, line["step"].as_u64().unwrap_or_default()));
            event.extend(bytes(5, &summary));
            records.extend(record(&event));
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(&records))
    }
}

const NAME: &str = "events.out.tfevents.";
const OWN: &str = ".limpid";

/// TensorBoard's name for a number. TensorBoard groups names by the part before the first slash.
fn tag(name: &str) -> String {
    match name.split('/').collect::<Vec<_>>()[..] {
        ["train_loss"] => "loss/train".into(),
        ["val_loss"] => "loss/val".into(),
        ["layers", layer, what] => format!("{what}/{layer}"),
        _ => name.into(),
    }
}

/// A `Summary.Value` for the text plugin: a tensor of one string. The text is indented, because Markdown shows indented
/// text unchanged.
fn text_value(tag: &str, text: &str) -> Vec<u8> {
    const DT_STRING: u64 = 7;
    let lines: String = text.lines().map(|line| format!("    {line}\n")).collect();
    let shape = bytes(2, &integer(1, 1));
    let tensor = [integer(1, DT_STRING), bytes(2, &shape), bytes(8, lines.as_bytes())].concat();
    let plugin = bytes(1, &bytes(1, b"text"));
    [bytes(1, tag.as_bytes()), bytes(8, &tensor), bytes(9, &plugin)].concat()
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length, &masked(&length).to_le_bytes()[..], event, &masked(event).to_le_bytes()].concat()
}

fn masked(data: &[u8]) -> u32 {
    Crc::<u32>::new(&CRC_32_ISCSI).checksum(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = vec![];
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

fn integer(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn double(field: u64, value: f64) -> Vec<u8> {
    [varint(field << 3 | 1), value.to_le_bytes().into()].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.into()].concat()
}

fn float(field: u64, value: f32) -> Vec<u8> {
    [varint(field << 3 | 5), value.to_le_bytes().into()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_and_numbers_are_the_formats() {
        // RFC 3720, B.4: 32 bytes of zeros have the CRC-32C 8a9136aa; rotated right by 15, plus a282ead8
        assert_eq!(masked(&[0; 32]), 0x0fd7_fffa);
        // protobuf's own examples: 150 is 96 01; field 1 of type 0 is 08; field 2 "testing" is 12 07 ...
        assert_eq!(integer(1, 150), [0x08, 0x96, 0x01]);
        assert_eq!(bytes(2, b"testing"), [&[0x12, 0x07], &b"testing"[..]].concat());
        assert_eq!((tag("layers/blocks.0/grad_norm"), tag("z_loss")), ("grad_norm/blocks.0".into(), "z_loss".into()));
    }
}
