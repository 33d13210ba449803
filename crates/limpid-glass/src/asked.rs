//! Reads the parameters of a question by their types: the query string and the fields of a JSON body. Unknown and
//! duplicate parameters, and values of the wrong type, are refused by name, so nothing is ignored silently.

use crate::{GlassError, Query, Result, Subject};
use serde_json::{Map, Value};
use std::ops::Range;

/// Refuses names that nobody knows.
fn known<'a>(names: impl IntoIterator<Item = &'a String>, known: &'static [&'static str]) -> Result<()> {
    match names.into_iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(GlassError::NoParameter { name: shown(name), known }),
        None => Ok(()),
    }
}

/// The parameters of a question.
pub struct AskedQuery<'a>(&'a Query);

impl<'a> AskedQuery<'a> {
    /// Those of `names`, each at most once.
    pub fn read(query: &'a Query, names: &'static [&'static str]) -> Result<AskedQuery<'a>> {
        known(query.iter().map(|(name, _)| name), names)?;
        let again = |(i, (name, _)): &(usize, &(String, String))| query[..*i].iter().any(|(other, _)| other == name);
        match query.iter().enumerate().find(again) {
            Some((_, (name, _))) => Err(GlassError::Twice { name: shown(name) }),
            None => Ok(AskedQuery(query)),
        }
    }

    /// As it stands.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find_map(|(own, value)| (own == name).then_some(value.as_str()))
    }

    /// A whole number below `end`, or the `usual` one.
    pub fn number(&self, name: &'static str, usual: usize, end: usize) -> Result<usize> {
        let Some(found) = self.text(name) else { return Ok(usual) };
        let number = found.parse().ok().filter(|n| *n < end);
        number.ok_or_else(|| refusal(name, &format!("a whole number below {end}"), found))
    }

    /// Whether something is wanted; it is not if it is left out.
    pub fn flag(&self, name: &'static str) -> Result<bool> {
        match self.text(name) {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => Err(refusal(name, "1 or true, 0 or false", other)),
        }
    }
}

/// What of an axis is asked for.
pub fn range(name: &str, axis: &str, size: usize, text: &str) -> Result<Range<usize>> {
    let outside = || GlassError::Outside { name: shown(name), axis: axis.into(), size, found: shown(text) };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| outside());
    let range = match text.trim() {
        "*" => 0..size,
        text => match text.split_once(':') {
            Some((from, to)) => {
                let to = if to.is_empty() { size } else { number(to)?.min(size) };
                (if from.is_empty() { 0 } else { number(from)? })..to
            }
            None => {
                let at = number(text)?;
                at..at.checked_add(1).ok_or_else(outside)?
            }
        },
    };
    if range.start > range.end || range.end > size || range.start >= size { Err(outside()) } else { Ok(range) }
}

/// The fields of an object in JSON. `null` is as good as left out.
pub struct AskedFields<'a>(&'a Map<String, Value>);

impl<'a> AskedFields<'a> {
    /// Those of `names`.
    pub fn read(body: &'a Value, names: &'static [&'static str]) -> Result<AskedFields<'a>> {
        let object = body.as_object().ok_or_else(|| wrong("the body", "an object", body))?;
        known(object.keys(), names)?;
        Ok(AskedFields(object))
    }

    /// The model that `model` names; the first if it names none.
    pub fn subject<'s>(&self, subjects: &'s [Subject]) -> Result<&'s Subject> {
        let names = || subjects.iter().map(|subject| subject.name.as_str()).collect::<Vec<_>>().join(", ");
        let named = self.text("model")?;
        let found = match named {
            None => subjects.first(),
            Some(name) => subjects.iter().find(|subject| *name == subject.name),
        };
        found.ok_or_else(|| GlassError::Model(shown(named.unwrap_or_default()), names()))
    }

    /// As it is.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn parsed<T>(&self, name: &'static str, expected: &str, of: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let one = |value: &'a Value| of(value).ok_or_else(|| wrong(name, expected, value));
        self.get(name).map(one).transpose()
    }

    /// A text.
    pub fn text(&self, name: &'static str) -> Result<Option<&'a str>> {
        self.parsed(name, "a text", Value::as_str)
    }

    /// `true` or `false`; the latter if it is left out.
    pub fn flag(&self, name: &'static str) -> Result<bool> {
        Ok(self.parsed(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// A whole number up to `most`; 0 if it is left out.
    pub fn number(&self, name: &'static str, most: usize) -> Result<usize> {
        let fits = |value: &Value| whole(value).filter(|number| *number <= most);
        Ok(self.parsed(name, &format!("a whole number, at most {most}"), fits)?.unwrap_or(0))
    }

    /// A list of at most so many; empty if it is left out.
    pub fn list(&self, name: &'static str, most: usize) -> Result<&'a [Value]> {
        let fits = |value: &'a Value| value.as_array().map(Vec::as_slice).filter(|all| all.len() <= most);
        Ok(self.parsed(name, &format!("a list of at most {most}"), fits)?.unwrap_or_default())
    }

    /// A list of whole numbers, likewise.
    pub fn numbers(&self, name: &'static str, most: usize) -> Result<Vec<usize>> {
        let one = |value: &Value| whole(value).ok_or_else(|| wrong(name, "a list of whole numbers", value));
        self.list(name, most)?.iter().map(one).collect()
    }
}

/// What a message repeats of what somebody sent.
pub fn shown(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).take(64).collect()
}

/// What a parameter must be, and is not.
pub fn refusal(name: &'static str, expected: &str, found: &str) -> GlassError {
    GlassError::Parameter { name, expected: expected.into(), found: shown(found) }
}

/// What a field must be, and is not.
pub fn wrong(name: &'static str, expected: &str, found: &Value) -> GlassError {
    refusal(name, expected, &found.to_string())
}

fn whole(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}
