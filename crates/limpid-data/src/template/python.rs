//! What Jinja2 has and its Rust twin has not, or has otherwise: tests, filters, Python's methods of strings, and what
//! loops and `%` do with texts. reference/jinja.py holds all of them against Jinja2.
//!
//! Whatever makes a text longer than what it was given pays for it first.

use super::held;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, tests};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::fmt::Write as _;

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// Pays for so many bytes.
fn pay(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(bytes as u64 / 64)
}

/// An argument by its place, or else by its name.
macro_rules! named {
    ($given:expr, $kwargs:ident, $name:literal, $kind:ty) => {
        match $given {
            Some(given) => Some(given),
            None => $kwargs.get::<Option<$kind>>($name)?,
        }
    };
}

pub fn add(jinja: &mut Environment) {
    jinja.add_test("iterable", iterable);
    jinja.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    });
    jinja.add_test("lower", |value: &Value| cased(&value.to_string(), char::is_lowercase, char::is_uppercase));
    jinja.add_test("upper", |value: &Value| cased(&value.to_string(), char::is_uppercase, char::is_lowercase));
    jinja.add_test("callable", |value: &Value| match value.kind() {
        ValueKind::Undefined => true,
        ValueKind::Plain => value.as_object().is_some(),
        _ => false,
    });
    jinja.add_test("filter", |state: &State, name: &Value| {
        name.as_str().is_some_and(|name| tests::is_filter(state, name))
    });
    jinja.add_test("test", |state: &State, name: &Value| name.as_str().is_some_and(|name| tests::is_test(state, name)));
    jinja.add_filter("abs", |value: Value| match truth(&value) {
        Some(n) => Ok(n.into()),
        None => filters::abs(value),
    });
    jinja.add_filter("attr", attr);
    jinja.add_filter("center", |state: &State, value: &Value, width: Option<i64>, kwargs: Kwargs| {
        let width = named!(width, kwargs, "width", i64).unwrap_or(80);
        kwargs.assert_all_used()?;
        padded(state, &value.to_string(), width, ' ', Side::Both)
    });
    for name in ["default", "d"] {
        jinja.add_filter(name, default);
    }
    jinja.add_filter("dictsort", dictsort);
    for (name, again) in [("escape", false), ("e", false), ("forceescape", true)] {
        let escape = move |state: &State, value: Value| escape(state, value, again);
        jinja.add_filter(name, escape);
    }
    jinja.add_filter("filesizeformat", filesizeformat);
    jinja.add_filter("float", float);
    jinja.add_filter("indent", indent);
    jinja.add_filter("int", int);
    jinja.add_filter("round", round);
    jinja.add_filter("striptags", |value: &Value| striptags(&value.to_string()));
    jinja.add_filter("truncate", truncate);
    jinja.add_filter("unique", unique);
    jinja.add_filter("urlencode", urlencode);
    jinja.add_filter("wordcount", |value: &Value| {
        let text = value.to_string();
        text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
    });
    jinja.add_filter("xmlattr", xmlattr);
    jinja.add_filter(held::LOOP, each);
    jinja.add_filter(held::REMAINDER, remainder);
}

// ---- tests, and what instructions do

fn iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::None => false,
        ValueKind::Undefined => true,
        _ => value.try_iter().is_ok(),
    }
}

/// Whether a text has letters with capitals, all of them of one kind.
fn cased(text: &str, own: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(own) && !text.chars().any(other)
}

/// 0 or 1 of a truth value, which Python takes for numbers.
fn truth(value: &Value) -> Option<i64> {
    (value.kind() == ValueKind::Bool).then(|| value.is_true().into())
}

/// What a loop goes over: the characters of a text are as many as it has, and none has no items at all.
fn each(state: &State, value: Value) -> Result<Value, Error> {
    match (value.as_str(), value.is_none()) {
        (Some(text), _) => {
            pay(state, 24 * text.len())?;
            Ok(text.chars().map(|c| Value::from(c.to_string())).collect::<Vec<_>>().into())
        }
        (None, true) => Err(wrong("none is not iterable")),
        _ => Ok(value),
    }
}

/// `left % right`: a text with values in its places, or the remainder with the divisor's sign.
fn remainder(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    if left.as_str().is_some() {
        let tuple = right.downcast_object_ref::<Tuple>().is_some();
        let args = if tuple { right.try_iter()?.collect() } else { vec![right] };
        return state.apply_filter("format", &[vec![left], args].concat());
    }
    let whole = |value: &Value| {
        truth(value).map(i128::from).or_else(|| i128::try_from(value.clone()).ok().filter(|_| value.is_integer()))
    };
    let number = |value: &Value| {
        truth(value).map(|n| n as f64).or_else(|| f64::try_from(value.clone()).ok().filter(|_| value.is_number()))
    };
    match (whole(&left), whole(&right), number(&left), number(&right)) {
        (_, Some(0), ..) => Err(wrong("a remainder of a division by zero")),
        (.., Some(0.0)) => Err(wrong("a remainder of a division by zero")),
        (Some(a), Some(b), ..) => {
            let rest = a.wrapping_rem(b);
            Ok(Value::from(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        (.., Some(a), Some(b)) => {
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest.abs().copysign(b) }))
        }
        _ => Err(wrong(format!("% of {} and {}", left.kind(), right.kind()))),
    }
}

// ---- filters

/// A map's items are no attributes.
fn attr(value: &Value, name: &str) -> Value {
    let is_map = value.kind() == ValueKind::Map && !held::is_namespace(value);
    if is_map { Value::UNDEFINED } else { value.get_attr(name).unwrap_or(Value::UNDEFINED) }
}

fn default(value: Value, other: Option<Value>, boolean: Option<bool>, kwargs: Kwargs) -> Result<Value, Error> {
    let other = named!(other, kwargs, "default_value", Value).unwrap_or_else(|| "".into());
    let boolean = named!(boolean, kwargs, "boolean", bool).unwrap_or(false);
    kwargs.assert_all_used()?;
    Ok(if value.is_undefined() || boolean && !value.is_true() { other } else { value })
}

fn dictsort(
    value: &Value,
    case_sensitive: Option<bool>,
    by: Option<String>,
    reverse: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let by = named!(by, kwargs, "by", String).unwrap_or_else(|| "key".into());
    let flags = [
        ("case_sensitive", named!(case_sensitive, kwargs, "case_sensitive", bool)),
        ("reverse", named!(reverse, kwargs, "reverse", bool)),
    ];
    kwargs.assert_all_used()?;
    let flags = flags.map(|(name, on)| (name, Value::from(on.unwrap_or(false))));
    filters::dictsort(value, flags.into_iter().chain([("by", by.into())]).collect())
}

/// A text with the signs of HTML written out; what is safe already stays, but for `again`.
fn escape(state: &State, value: Value, again: bool) -> Result<Value, Error> {
    if value.is_safe() && !again {
        return Ok(value);
    }
    let text = value.to_string();
    pay(state, 5 * text.len())?;
    Ok(Value::from_safe_string(escaped(&text)))
}

fn escaped(text: &str) -> String {
    const SIGNS: [(char, &str); 5] = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")];
    SIGNS.iter().fold(text.to_string(), |text, (sign, name)| text.replace(*sign, name))
}

fn filesizeformat(value: &Value, binary: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let binary = named!(binary, kwargs, "binary", bool).unwrap_or(false);
    kwargs.assert_all_used()?;
    let bytes = python_float(value).ok_or_else(|| wrong("a size is a number"))?;
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc() + 0.0));
    }
    let large = "kMGTPEZY".chars().zip(2..).find(|(_, power)| bytes < base.powi(*power) || *power == 9);
    let (unit, power) = large.expect("the last unit takes any size");
    let unit = if binary { format!("{}iB", unit.to_ascii_uppercase()) } else { format!("{unit}B") };
    Ok(format!("{:.1} {unit}", base * bytes / base.powi(power)))
}

/// `float(value)`, if Python can.
fn python_float(value: &Value) -> Option<f64> {
    if let Some(n) = truth(value) {
        return Some(n as f64);
    }
    match value.as_str() {
        Some(text) => text.trim().replace('_', "").parse().ok(),
        None => f64::try_from(value.clone()).ok().filter(|_| value.is_number()),
    }
}

fn float(value: &Value, other: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let other = named!(other, kwargs, "default", Value).unwrap_or_else(|| 0.0.into());
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    Ok(python_float(value).map_or(other, Value::from))
}

fn int(value: &Value, other: Option<Value>, base: Option<u32>, kwargs: Kwargs) -> Result<Value, Error> {
    let other = named!(other, kwargs, "default", Value).unwrap_or_else(|| 0.into());
    let base = named!(base, kwargs, "base", u32).unwrap_or(10);
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if !(2..=36).contains(&base) {
        return Err(wrong("a base is a number from 2 to 36"));
    }
    if value.is_integer() {
        return Ok(value.clone());
    }
    let digits = |text: &str| {
        let text = text.trim().to_lowercase().replace('_', "");
        let (sign, digits) = text.strip_prefix('-').map_or(("", text.trim_start_matches('+')), |digits| ("-", digits));
        let prefix = [(2, "0b"), (8, "0o"), (16, "0x")].into_iter().find(|(of, _)| *of == base).map_or("", |own| own.1);
        i128::from_str_radix(&format!("{sign}{}", digits.strip_prefix(prefix).unwrap_or(digits)), base).ok()
    };
    if let Some(whole) = value.as_str().and_then(digits) {
        return Ok(whole.into());
    }
    let fits = |x: &f64| x.is_finite() && x.abs() < 1e38;
    Ok(python_float(value).filter(fits).map_or(other, |x| Value::from(x as i128)))
}

/// The arguments of a filter that has more than the interpreter can take apart.
fn all(args: Rest<ValueOrKwargs>) -> Vec<Value> {
    args.0.into_iter().map(ValueOrKwargs::into_value).collect()
}

fn indent(state: &State, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    type Given = (Value, Option<Value>, Option<bool>, Option<bool>, Kwargs);
    let (value, width, first, blank, kwargs): Given = from_args(&all(args))?;
    let width = named!(width, kwargs, "width", Value).unwrap_or_else(|| 4.into());
    let first = named!(first, kwargs, "first", bool).unwrap_or(false);
    let blank = named!(blank, kwargs, "blank", bool).unwrap_or(false);
    kwargs.assert_all_used()?;
    let text = value.as_str().ok_or_else(|| wrong(format!("indent is for texts, not for {}", value.kind())))?;
    let lines = lines(&format!("{text}\n"), false);
    let before = match width.as_str() {
        Some(before) => before.to_string(),
        None => {
            let width = usize::try_from(i64::try_from(width)?.max(0)).unwrap_or(usize::MAX);
            pay(state, width.saturating_mul(lines.len()))?;
            " ".repeat(width)
        }
    };
    pay(state, before.len().saturating_mul(lines.len()))?;
    let mut written = if first { before.clone() } else { String::new() };
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            written.push('\n');
            written += if blank || !line.is_empty() { &before } else { "" };
        }
        written += line;
    }
    Ok(written)
}

/// The lines of a text, as Python cuts them.
fn lines(text: &str, keep: bool) -> Vec<String> {
    const ENDS: [char; 11] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}', '\n'];
    let (mut found, mut rest) = (vec![], text);
    while let Some(at) = rest.find(ENDS) {
        let end = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        found.push(rest[..if keep { at + end } else { at }].to_string());
        rest = &rest[at + end..];
    }
    found.extend((!rest.is_empty()).then(|| rest.to_string()));
    found
}

fn round(value: &Value, precision: Option<i32>, method: Option<String>, kwargs: Kwargs) -> Result<Value, Error> {
    let precision = named!(precision, kwargs, "precision", i32).unwrap_or(0);
    let method = named!(method, kwargs, "method", String).unwrap_or_else(|| "common".into());
    kwargs.assert_all_used()?;
    if precision.abs() > 300 {
        return Err(wrong("a precision is a number from -300 to 300"));
    }
    let whole = truth(value).map(Value::from).or_else(|| value.is_integer().then(|| value.clone()));
    let x = python_float(value).filter(|_| value.as_str().is_none());
    let x = x.ok_or_else(|| wrong(format!("cannot round {}", value.kind())))?;
    let unit = 10f64.powi(precision);
    Ok(match (method.as_str(), whole) {
        // Python rounds to a whole number, which is never -0
        ("ceil", _) => (((x * unit).ceil() + 0.0) / unit).into(),
        ("floor", _) => (((x * unit).floor() + 0.0) / unit).into(),
        ("common", Some(whole)) if precision >= 0 => whole,
        ("common", Some(_)) => (((x * unit).round_ties_even() / unit) as i128).into(),
        // the decimal digits of the number as it is, the last rounded to even, as Python has them
        ("common", None) if precision >= 0 => {
            let digits = format!("{x:.*}", precision as usize);
            digits.parse::<f64>().map_err(|error| wrong(error.to_string()))?.into()
        }
        ("common", None) => ((x * unit).round_ties_even() / unit).into(),
        _ => return Err(wrong("the method is common, ceil or floor")),
    })
}

fn striptags(text: &str) -> String {
    const NAMES: [(&str, &str); 6] =
        [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    let plain = without(&without(text, "<!--", "-->"), "<", ">");
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    NAMES.iter().fold(plain, |text, (name, sign)| text.replace(name, sign))
}

/// A text without what is between two marks, and without them.
fn without(text: &str, open: &str, close: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, within)) = rest.split_once(open)
        && let Some((_, after)) = within.split_once(close)
    {
        plain += before;
        rest = after;
    }
    plain + rest
}

fn truncate(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    type Given = (Option<usize>, Option<bool>, Option<String>, Option<usize>, Kwargs);
    let (length, killwords, end, leeway, kwargs): Given = from_args(&all(args))?;
    let length = named!(length, kwargs, "length", usize).unwrap_or(255);
    let killwords = named!(killwords, kwargs, "killwords", bool).unwrap_or(false);
    let end = named!(end, kwargs, "end", String).unwrap_or_else(|| "...".into());
    let leeway = named!(leeway, kwargs, "leeway", usize).unwrap_or(5);
    kwargs.assert_all_used()?;
    let kept =
        length.checked_sub(end.chars().count()).ok_or_else(|| wrong("the length is less than that of its end"))?;
    let has = if value.is_undefined() { Some(0) } else { value.len() };
    let has = has.ok_or_else(|| wrong(format!("{} has no length", value.kind())))?;
    if has <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let text = value.as_str().ok_or_else(|| wrong("truncate is for texts"))?;
    let start: String = text.chars().take(kept).collect();
    let start = if killwords { &start } else { start.rsplit_once(' ').map_or(start.as_str(), |(words, _)| words) };
    Ok(format!("{start}{end}").into())
}

fn unique(
    state: &State,
    values: Value,
    case_sensitive: Option<bool>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let case_sensitive = named!(case_sensitive, kwargs, "case_sensitive", bool).unwrap_or(false);
    let attribute = named!(attribute, kwargs, "attribute", Value);
    kwargs.assert_all_used()?;
    let more = attribute.map(|attribute| ("attribute", attribute));
    let kwargs = [("case_sensitive", Value::from(case_sensitive))].into_iter().chain(more).collect();
    filters::unique(state, values, kwargs)
}

fn urlencode(state: &State, value: &Value) -> Result<String, Error> {
    let quoted = |value: &Value, query: bool| {
        let mut text = String::new();
        for byte in value.to_string().bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => text.push(byte.into()),
                b'/' if !query => text.push('/'),
                b' ' if query => text.push('+'),
                _ => _ = write!(text, "%{byte:02X}"),
            }
        }
        text
    };
    pay(state, (3 * held::measure(state, value)?) as usize)?;
    if value.as_str().is_some() || !iterable(value) {
        return Ok(quoted(value, false));
    }
    let mut pairs = vec![];
    for item in value.try_iter()? {
        let pair = match value.kind() {
            ValueKind::Map => vec![item.clone(), value.get_item(&item)?],
            _ => item.try_iter()?.take(3).collect(),
        };
        let [key, own] = &pair[..] else { return Err(wrong("urlencode is for texts, maps and lists of pairs")) };
        pairs.push(format!("{}={}", quoted(key, true), quoted(own, true)));
    }
    Ok(pairs.join("&"))
}

fn xmlattr(state: &State, value: &Value, autospace: Option<bool>, kwargs: Kwargs) -> Result<Value, Error> {
    let autospace = named!(autospace, kwargs, "autospace", bool).unwrap_or(true);
    kwargs.assert_all_used()?;
    if value.kind() != ValueKind::Map {
        return Err(wrong(format!("xmlattr is for maps, not for {}", value.kind())));
    }
    pay(state, (6 * held::measure(state, value)?) as usize)?;
    let mut written = vec![];
    for key in value.try_iter()? {
        let own = value.get_item(&key)?;
        if own.is_none() || own.is_undefined() {
            continue;
        }
        let key = key.to_string();
        if key.contains(|c: char| c.is_whitespace() || "/>=".contains(c)) {
            return Err(wrong(format!("{key:?} is no name of an attribute")));
        }
        written.push(format!("{}=\"{}\"", escaped(&key), escaped(&own.to_string())));
    }
    let space = if autospace && !written.is_empty() { " " } else { "" };
    Ok(Value::from_safe_string(format!("{space}{}", written.join(" "))))
}

// ---- methods

/// Where blanks, or other letters, go.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
    Both,
}

/// A text with letters beside it, up to `width` characters.
fn padded(state: &State, text: &str, width: i64, fill: char, side: Side) -> Result<String, Error> {
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let lacks = width.saturating_sub(text.chars().count());
    pay(state, lacks.saturating_mul(fill.len_utf8()))?;
    let left = match side {
        Side::Left => lacks,
        Side::Right => 0,
        Side::Both => lacks / 2 + (lacks & width & 1),
    };
    let fill = fill.to_string();
    Ok(fill.repeat(left) + text + &fill.repeat(lacks - left))
}

/// The methods that strings, lists and maps have in Python. Each is paid for before it runs.
pub fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let bytes = match (value.as_str(), name, args) {
        (Some(between), "join", [list]) => {
            let between = between.len() as u64;
            held::measure(state, list)?.saturating_add(between.saturating_mul(list.len().unwrap_or(0) as u64))
        }
        (Some(format), "format", _) => widths(format),
        (Some(text), "replace", [old, new, ..]) => match (old.as_str(), new.as_str()) {
            (Some(old), Some(new)) => (text.matches(old).count() as u64).saturating_mul(new.len() as u64),
            _ => 0,
        },
        (Some(text), "split" | "rsplit", _) => {
            let at = args.first().and_then(Value::as_str);
            48 * at.map_or_else(|| text.split_whitespace().count(), |at| text.matches(at).count()) as u64
        }
        (Some(text), "splitlines", _) => 48 * text.lines().count() as u64,
        (Some(text), "expandtabs", _) => 64 * text.matches('\t').count() as u64,
        _ => 0,
    };
    state.consume_fuel(bytes / 64)?;
    if let Some(text) = value.as_str()
        && let Some(made) = of_text(state, text, name, args)?
    {
        return Ok(made);
    }
    match (value.kind(), name) {
        (ValueKind::Seq | ValueKind::Map, "copy") => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        (ValueKind::Seq, "index") => {
            let (what,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *what);
            at.map(Value::from).ok_or_else(|| wrong(format!("{what} is not in the list")))
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// The methods of texts that are not in `pycompat`, or are otherwise there.
fn of_text(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let found = |at: Option<usize>| at.map(|at| Value::from(text[..at].chars().count()));
    let none = || wrong("the part is not in the text");
    Ok(Some(match name {
        "center" | "ljust" | "rjust" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            let fill = fill.and_then(|fill| fill.chars().next()).unwrap_or(' ');
            let side = match name {
                "center" => Side::Both,
                "ljust" => Side::Right,
                _ => Side::Left,
            };
            padded(state, text, width, fill, side)?.into()
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..(text.len() - digits.len()).min(1)];
            format!("{sign}{}", padded(state, &text[sign.len()..], width - sign.len() as i64, '0', Side::Left)?).into()
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            found(if name == "index" { text.find(part) } else { text.rfind(part) }).ok_or_else(none)?
        }
        "removeprefix" => {
            let (part,): (&str,) = from_args(args)?;
            text.strip_prefix(part).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            text.strip_suffix(part).unwrap_or(text).into()
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap =
                |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
            text.chars().map(swap).collect::<String>().into()
        }
        "casefold" => {
            let () = from_args(args)?;
            text.to_lowercase().replace('ß', "ss").replace('ς', "σ").into()
        }
        "title" => {
            let () = from_args(args)?;
            title(text).into()
        }
        "istitle" => {
            let () = from_args(args)?;
            (text == title(text) && text.chars().any(char::is_uppercase)).into()
        }
        "isdecimal" => {
            let () = from_args(args)?;
            (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())).into()
        }
        "expandtabs" => {
            let (width,): (Option<usize>,) = from_args(args)?;
            let width = width.unwrap_or(8).min(64);
            let (mut written, mut column) = (String::new(), 0);
            for c in text.chars() {
                let blanks = if width == 0 { 0 } else { width - column % width };
                match c {
                    '\t' => (written, column) = (written + &" ".repeat(blanks), column + blanks),
                    _ => {
                        (written, column) =
                            (written + c.encode_utf8(&mut [0; 4]), if c == '\n' || c == '\r' { 0 } else { column + 1 })
                    }
                }
            }
            written.into()
        }
        _ => return cut(text, name, args),
    }))
}

/// The methods that cut a text.
fn cut(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "partition" | "rpartition" => {
            let (part,): (&str,) = from_args(args)?;
            let (cut, first) =
                if name == "partition" { (text.split_once(part), true) } else { (text.rsplit_once(part), false) };
            let three = match cut {
                Some((before, after)) => [before, part, after],
                None if first => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(three.map(Value::from)))
        }
        "rsplit" | "split" => {
            let (part, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let part = named!(part, kwargs, "sep", Value).filter(|part| !part.is_none());
            let most = named!(most, kwargs, "maxsplit", i64).unwrap_or(-1);
            kwargs.assert_all_used()?;
            let part =
                part.as_ref().map(|part| part.as_str().ok_or_else(|| wrong("a separator is a text"))).transpose()?;
            split(text, part, usize::try_from(most).ok(), name == "rsplit")?.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = named!(keep, kwargs, "keepends", bool).unwrap_or(false);
            kwargs.assert_all_used()?;
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        _ => return Ok(None),
    }))
}

/// Every letter after one that is none is a capital.
fn title(text: &str) -> String {
    let (mut written, mut within) = (String::new(), false);
    for c in text.chars() {
        let upper: String = c.to_uppercase().collect();
        if within {
            written.extend(c.to_lowercase());
        } else {
            let mut letters = upper.chars();
            written.extend(letters.next());
            written.extend(letters.flat_map(char::to_lowercase));
        }
        within = c.is_lowercase() || c.is_uppercase();
    }
    written
}

/// The parts of a text between separators, or blanks: at most so many cuts, counted from the end if `last`.
fn split(text: &str, part: Option<&str>, most: Option<usize>, last: bool) -> Result<Vec<String>, Error> {
    let own = |parts: Vec<&str>| parts.into_iter().map(String::from).collect();
    let count = most.map_or(usize::MAX, |most| most.saturating_add(1));
    Ok(match part {
        Some("") => return Err(wrong("an empty separator")),
        Some(part) if last => {
            let mut parts: Vec<&str> = text.rsplitn(count, part).collect();
            parts.reverse();
            own(parts)
        }
        Some(part) => own(text.splitn(count, part).collect()),
        None => {
            let (mut parts, mut rest) = (vec![], if last { text.trim_end() } else { text.trim_start() });
            while !rest.is_empty() {
                let at = if last { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
                let Some(at) = at.filter(|_| parts.len() + 1 < count) else {
                    parts.push(if last { rest.trim_start() } else { rest });
                    break;
                };
                let (before, after) = rest.split_at(at);
                let (word, more) =
                    if last { (after.trim_start(), before.trim_end()) } else { (before, after.trim_start()) };
                parts.push(word);
                rest = more;
            }
            parts.retain(|part| !part.is_empty());
            if last {
                parts.reverse();
            }
            own(parts)
        }
    })
}

/// The sum of all widths in a format: the numbers behind the colons in its braces.
fn widths(format: &str) -> u64 {
    let braces = format.split('{').skip(1).filter_map(|part| part.split('}').next()?.split_once(':'));
    let numbers = braces.flat_map(|(_, spec)| spec.split(|c: char| !c.is_ascii_digit()));
    let long = |digits: &str| if digits.is_empty() { 0 } else { digits.parse::<u64>().unwrap_or(u64::MAX) };
    numbers.map(long).fold(0, u64::saturating_add)
}
