//! `tojson` of transformers: Python's `json.dumps`, with its blanks, its order of keys where that is asked for, and
//! ASCII alone if need be.

use super::{STEPS, held};
use limpid_base::budget::{Budget, Spent};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::collections::BTreeMap;
use std::io;

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"))
}

pub fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Value> = options.get("separators")?;
    let [ascii, sorted] = [options.get::<Option<bool>>("ensure_ascii")?, options.get("sort_keys")?];
    options.assert_all_used()?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(text) if text.as_str().is_some_and(|text| text.len() <= 16) => Some(text.to_string()),
        Some(n) => match usize::try_from(n) {
            Ok(n @ 0..=16) => Some(" ".repeat(n)),
            _ => return Err(wrong("indent is more than 16")),
        },
    };
    let usual = [if indent.is_some() { "," } else { ", " }, ": "].map(String::from);
    let signs = match separators.filter(|signs| !signs.is_none()) {
        None => usual,
        Some(two) if two.len() == Some(2) => {
            [two.get_item_by_index(0)?.to_string(), two.get_item_by_index(1)?.to_string()]
        }
        Some(other) => return Err(wrong(format_args!("separators are two texts, not {other}"))),
    };
    let bytes = held::measure(state, value)?;
    let sorted = sorted.unwrap_or(false).then(|| by_key(value));
    state.consume_fuel(bytes / 64)?;
    let mut to = Paid { bytes: vec![], budget: Budget::default().bytes(STEPS * 64), spent: None };
    let form = Python { indent, signs, ascii: ascii.unwrap_or(false), depth: 0, empty: true };
    let done = sorted.as_ref().unwrap_or(value).serialize(&mut Serializer::with_formatter(&mut to, form));
    if to.spent.is_some() {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    done.map_err(wrong)?;
    String::from_utf8(to.bytes).map_err(wrong)
}

/// The same with the keys of every map in order. `value` was measured, so it is not too deep.
fn by_key(value: &Value) -> Value {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Map => {
            let item = |key: Value| (key.clone(), by_key(&value.get_item(&key).unwrap_or_default()));
            items().map(item).collect::<BTreeMap<Value, Value>>().into()
        }
        ValueKind::Seq => items().map(|item| by_key(&item)).collect(),
        _ => value.clone(),
    }
}

/// Bytes within a budget.
struct Paid {
    bytes: Vec<u8>,
    budget: Budget,
    spent: Option<Spent>,
}

impl io::Write for Paid {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.budget.take_bytes(bytes.len() as u64).map_err(|spent| {
            self.spent = Some(spent);
            io::Error::other(spent)
        })?;
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON as Python writes it.
struct Python {
    /// What stands before an item on a line of its own, for each depth; without it all is one line.
    indent: Option<String>,
    /// What is between two items, and between a key and its value.
    signs: [String; 2],
    ascii: bool,
    depth: usize,
    /// Whether the list or the map that is being written has no item yet.
    empty: bool,
}

impl Python {
    fn open<W: ?Sized + io::Write>(&mut self, to: &mut W, sign: &[u8]) -> io::Result<()> {
        (self.depth, self.empty) = (self.depth + 1, true);
        to.write_all(sign)
    }

    fn close<W: ?Sized + io::Write>(&mut self, to: &mut W, sign: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !std::mem::replace(&mut self.empty, false) {
            self.line(to)?;
        }
        to.write_all(sign)
    }

    fn line<W: ?Sized + io::Write>(&self, to: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        to.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| to.write_all(indent.as_bytes()))
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"[")
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"]")
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if !first {
            to.write_all(self.signs[0].as_bytes())?;
        }
        self.empty = false;
        self.line(to)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"{")
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"}")
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(to, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(self.signs[1].as_bytes())
    }
    fn write_f64<W: ?Sized + io::Write>(&mut self, to: &mut W, x: f64) -> io::Result<()> {
        // Rust's digits are Python's; it has no exponent below 1e16, and Python none without a sign
        let text = format!("{x:?}");
        let text = match text.split_once('e') {
            Some((digits, power)) => {
                let (sign, power) = power.strip_prefix('-').map_or(("+", power), |power| ("-", power));
                format!("{}e{sign}{power:0>2}", digits.trim_end_matches(".0"))
            }
            None => text,
        };
        to.write_all(text.as_bytes())
    }
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, part: &str) -> io::Result<()> {
        if !self.ascii {
            return to.write_all(part.as_bytes());
        }
        part.chars().try_for_each(|c| match c {
            c if c.is_ascii() => to.write_all(c.encode_utf8(&mut [0; 4]).as_bytes()),
            c => c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(to, "\\u{unit:04x}")),
        })
    }
}
