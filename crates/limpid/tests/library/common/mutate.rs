//! Files as they should not be: seeded changes of bytes, of JSON and of lines of text. The same seed makes the same
//! file.
#![allow(dead_code)] // each test uses its own part

use limpid::numeric::random;
use serde_json::{Value, json};

/// Draws, each a function of the seed and of how many came before.
pub struct Dice {
    seed: u64,
    drawn: u64,
}

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice { seed, drawn: 0 }
    }
    /// A number below `n`; 0 where there is none.
    pub fn below(&mut self, n: usize) -> usize {
        self.drawn += 1;
        (random::bits(self.seed, 1, self.drawn) % n.max(1) as u64) as usize
    }
    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Numbers that make arithmetic go wrong.
pub const AWKWARD: [u64; 14] =
    [0, 1, 2, 5, 31, 33, 255, 1 << 16, 1 << 31, u32::MAX as u64, 1 << 40, 1 << 61, i64::MAX as u64, u64::MAX];

/// One to four changes: bits, numbers, digits, pieces moved, cut, doubled or added.
pub fn bytes(original: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = original.to_vec();
    let changes = if dice.one_in(2) { 1 } else { 1 + dice.below(4) };
    for _ in 0..changes {
        // most of what can go wrong is near the beginning
        let len = bytes.len().max(1);
        let at = if dice.below(4) > 0 { dice.below(len.min(400)) } else { dice.below(len) };
        let width = [1, 2, 4, 8][dice.below(4)].min(bytes.len().saturating_sub(at));
        match dice.below(10) {
            0 | 1 if width > 0 => bytes[at] ^= 1 << dice.below(8),
            2 | 3 => bytes[at..at + width].copy_from_slice(&dice.of(&AWKWARD).to_le_bytes()[..width]),
            4 => {
                if let Some(digit) = bytes[at..].iter_mut().find(|b| b.is_ascii_digit()) {
                    *digit = *dice.of(b"0123456789-.e]");
                }
            }
            5 => bytes.truncate(at),
            6 => {
                let piece = bytes[at..(at + dice.below(64)).min(bytes.len())].to_vec();
                let to = dice.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            7 => drop(bytes.drain(at..(at + dice.below(16)).min(bytes.len()).max(at))),
            8 => {
                let (long, to) = (dice.below(32).min(len / 2), dice.below(len / 2));
                let (from, to) = (at.min(len.saturating_sub(long)), to.min(len.saturating_sub(long)));
                if long > 0 && bytes.len() == len && from.abs_diff(to) >= long {
                    (0..long).for_each(|i| bytes.swap(from + i, to + i));
                }
            }
            9 => {
                let more = dice.below(40);
                bytes.extend((0..more).map(|i| [0, b' ', b'\n', 0xff, 0x1b][(i + at) % 5]));
            }
            _ => {}
        }
    }
    bytes
}

/// Whole numbers at the ends of what 16, 31, 32, 53, 62, 63 and 64 bits hold.
pub const EDGES: [&str; 11] = [
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "4611686018427387904",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
];

/// What no value should be, as JSON: numbers out of every range, texts, shapes, and what is no JSON.
fn hostile(dice: &mut Dice) -> String {
    const PLAIN: [&str; 27] = [
        "0",
        "-1",
        "1",
        "2",
        "3",
        "0.5",
        "-0.0",
        "1e-308",
        "1e308",
        "-1e308",
        "1e999",
        "NaN",
        "Infinity",
        "\"\"",
        "null",
        "[]",
        "{}",
        "[[]]",
        "true",
        "false",
        "\"\\u0000\"",
        "\"\\u001b[31m\\u001b]0;x\\u0007\"",
        "\"\\ud800\"",
        "\"../../x\"",
        "\"/dev/null\"",
        "\"0\"",
        "",
    ];
    match dice.below(PLAIN.len() + EDGES.len() + 4) {
        0 => format!("{}{}", "[".repeat(100), "]".repeat(100)),
        1 => format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
        2 => format!("\"{}\"", "x".repeat(100_000)),
        3 => "{\"a\":".repeat(200),
        n => PLAIN.iter().chain(&EDGES).nth(n - 4).expect("within both").to_string(),
    }
}

/// A text of JSON with one value changed, taken out, doubled, or under another name.
pub fn json(original: &str, dice: &mut Dice) -> String {
    const MARK: &str = "\"@here@\"";
    let Ok(mut whole) = serde_json::from_str::<Value>(original) else { return words(original, dice) };
    let mut node = &mut whole;
    // down from the root, at each step to any of what is there
    loop {
        let deeper = match node {
            Value::Object(fields) => fields.values().any(|v| v.is_object() || v.is_array()),
            Value::Array(items) => items.iter().any(|v| v.is_object() || v.is_array()),
            _ => false,
        };
        if !deeper || dice.one_in(3) {
            break;
        }
        let inner: Vec<&mut Value> = match node {
            Value::Object(fields) => fields.values_mut().filter(|v| v.is_object() || v.is_array()).collect(),
            Value::Array(items) => items.iter_mut().filter(|v| v.is_object() || v.is_array()).collect(),
            _ => unreachable!("it goes deeper"),
        };
        let n = dice.below(inner.len());
        node = inner.into_iter().nth(n).expect("below its length");
    }
    let mut raw = hostile(dice);
    match node {
        Value::Object(fields) if !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = dice.of(&keys).clone();
            match dice.below(8) {
                0 => drop(fields.remove(&key)),
                1 => {
                    let value = fields.remove(&key).unwrap_or_default();
                    let mut name = key.clone();
                    name.insert(if dice.one_in(2) { 0 } else { name.len() }, *dice.of(&['_', 'x', '\u{1b}']));
                    fields.insert(name, value);
                }
                2 => {
                    let other = fields[dice.of(&keys)].clone();
                    fields.insert(key, other);
                }
                3 if fields[&key].is_number() => {
                    let n = fields[&key].as_f64().unwrap_or_default();
                    raw = dice.of(&[n + 1.0, n * 2.0, -n, n / 3.0]).to_string();
                    fields.insert(key, json!("@here@"));
                }
                _ => drop(fields.insert(key, json!("@here@"))),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = dice.below(items.len());
            match dice.below(4) {
                0 => drop(items.remove(at)),
                1 => items.insert(at, items[at].clone()),
                2 => items.swap(at, 0),
                _ => items[at] = json!("@here@"),
            }
        }
        _ => *node = json!("@here@"),
    }
    let pretty = if dice.one_in(2) { whole.to_string() } else { format!("{whole:#}") };
    pretty.replace(MARK, &raw)
}

/// A text with a word or a line changed: another value, taken out, doubled, moved, cut.
pub fn words(original: &str, dice: &mut Dice) -> String {
    let within = |c: char| c.is_alphanumeric() || "._-+".contains(c);
    let mut starts: Vec<usize> = vec![];
    let mut before = ' ';
    for (i, c) in original.char_indices() {
        if within(c) && !within(before) {
            starts.push(i);
        }
        before = c;
    }
    let mut lines: Vec<&str> = original.split_inclusive('\n').collect();
    let line = dice.below(lines.len());
    match dice.below(8) {
        0 if !lines.is_empty() => drop(lines.remove(line)),
        1 if !lines.is_empty() => lines.insert(line, lines[line]),
        2 if !lines.is_empty() => lines.swap(line, 0),
        3 => {
            let at = original.char_indices().map(|(i, _)| i).nth(dice.below(original.len())).unwrap_or(0);
            let more =
                *dice.of(&["\0", "\u{1b}[2J", "\r", "\u{feff}", "\u{202e}", "\"", "\\", "\n", "{", "]", "\u{85}"]);
            return format!("{}{more}{}", &original[..at], &original[at..]);
        }
        4 => {
            let at = original.char_indices().map(|(i, _)| i).nth(dice.below(original.len())).unwrap_or(0);
            return original[..at].into();
        }
        _ if !starts.is_empty() => {
            let start = *dice.of(&starts);
            let end = original[start..].find(|c| !within(c)).map_or(original.len(), |n| start + n);
            return format!("{}{}{}", &original[..start], hostile(dice), &original[end..]);
        }
        _ => {}
    }
    lines.concat()
}

/// A file's bytes changed in one of the ways that suit what it holds.
pub fn file(original: &[u8], dice: &mut Dice) -> Vec<u8> {
    match std::str::from_utf8(original) {
        Ok(text) if !text.contains('\0') => match dice.below(4) {
            0 => bytes(original, dice),
            1 => words(text, dice).into(),
            _ => json(text, dice).into(),
        },
        _ => bytes(original, dice),
    }
}
