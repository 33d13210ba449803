//! Bounds the values of a template: they are checked as the template makes them, so that nothing done with them later
//! goes too deep or takes too long.
//!
//! Jinja's interpreter limits what a template writes and how many steps it takes. But a value may contain itself
//! (`namespace`), or the same list twice, forty levels deep; printing, comparing or dropping it would then overflow the
//! stack or never end. So [`checked`] inserts instructions into the compiled template that check values: after each
//! instruction that makes a value from others, and before those that compare. The compiler itself recurses as deep as
//! the source is long, and visits each expression as often as it has terms; [`read`] bounds that. A step may read a
//! text of many megabytes, so there is a clock too: these checks ask it, and so does a check before each other
//! instruction that reads texts.

use limpid_base::budget::{Budget, Spent};
use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::sync::Arc;
use std::time::Duration;

/// The filter that a template's loops put before what they go over, and the one that stands for `%`.
pub const LOOP: &str = "limpid.loop";
pub const REMAINDER: &str = "limpid.remainder";

/// The longest source. The longest templates in use have about 30 KB.
pub const SOURCE: usize = 1 << 20;
/// The most words and signs between two braces. Templates in use have about 100.
const TOKENS: usize = 4096;
/// Bytes of stack for the text between two braces, and bytes for each byte of source besides. The most that was
/// measured are 1 KB for each token, and 64 bytes for each byte of `{%elif a%}`.
const STACK: [usize; 2] = [8 << 20, 256];
/// How deep values may be nested.
const DEEP: usize = 100;
/// The most values inside one value, and the most bytes of their texts, each counted wherever it occurs.
const VALUES: u64 = 1 << 18;
const BYTES: u64 = 1 << 26;
/// The number of values that are checked in one step.
const A_STEP: u64 = 4;

/// The names of the tests that the instructions call. A template that calls one itself gets a check that is made
/// anyway.
const HELD: &str = "limpid.held";
const APART: &str = "limpid.apart";
const CLOCK: &str = "limpid.clock";

/// How long a template may take. Those in use take a few milliseconds.
const TIME: Duration = Duration::from_secs(8);

/// Why a value is refused.
fn wrong(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is too large or too deep: {why}"))
}

/// Adds the tests for one run, whose time begins now.
pub fn add_tests(jinja: &mut Environment) {
    let budget = Arc::new(Budget::default().time(TIME));
    let clock = move || match budget.take_steps(0) {
        Ok(()) => Ok(true),
        Err(spent) => Err(Error::new(ErrorKind::InvalidOperation, format!("it does not end: {spent}"))),
    };
    // keyword arguments are checked too
    let held = clock.clone();
    jinja.add_test(HELD, move |state: &State, value: ValueOrKwargs| {
        measure(state, &value.into_value())?;
        held()
    });
    jinja.add_test(CLOCK, move |_: &Value| clock());
    jinja.add_test(
        APART,
        |value: &Value| {
            if is_namespace(value) { Err(wrong("a namespace is in a namespace")) } else { Ok(true) }
        },
    );
}

pub fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Visits everything in a value, pays for it in steps, and returns the bytes of its texts.
///
/// # Errors
/// If the value is too deep or too large, or no step is left.
pub fn measure(state: &State, value: &Value) -> Result<u64, Error> {
    if value.as_object().is_none() {
        return Ok(value.as_str().map_or(0, |text| text.len() as u64));
    }
    let budget = Budget::default().steps(VALUES);
    let (mut seen, mut bytes) = (0, 0);
    walk(value, 0, &mut |value| {
        (seen, bytes) = (seen + 1, bytes + value.as_str().map_or(0, |text| text.len() as u64));
        if seen % A_STEP == 0 {
            state.consume_fuel(1)?;
        }
        if bytes > BYTES {
            return Err(wrong(Spent::Bytes { needed: bytes, allowed: BYTES }));
        }
        budget.take_steps(1).map_err(|_| wrong(format_args!("it holds more than {VALUES} values")))
    })?;
    Ok(bytes)
}

fn walk(value: &Value, depth: usize, look: &mut dyn FnMut(&Value) -> Result<(), Error>) -> Result<(), Error> {
    look(value)?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    if depth > 0 && is_namespace(value) {
        return Err(wrong("it holds a namespace"));
    }
    if depth == DEEP {
        return Err(wrong(format_args!("values lie in each other more than {DEEP} deep")));
    }
    for item in value.try_iter()? {
        if kind == ValueKind::Map {
            walk(&value.get_item(&item)?, depth + 1, look)?;
        }
        walk(&item, depth + 1, look)?;
    }
    Ok(())
}

/// Has `jinja` read a template, on a stack that is large enough for its nesting.
///
/// # Errors
/// Why the source is not a template.
pub fn read(mut jinja: Environment<'static>, name: &str, source: String) -> Result<Environment<'static>, String> {
    if source.len() > SOURCE {
        return Err(format!("it has {} bytes, at most {SOURCE} are expected", source.len()));
    }
    if let Some(line) = crowded(&source, jinja.syntax().clone()) {
        return Err(format!("line {line} has more than {TOKENS} words and signs between two braces"));
    }
    let stack = STACK[0] + STACK[1] * source.len();
    let work = move || jinja.add_template_owned(name.to_string(), source).map(|()| jinja);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(stack);
        let thread = thread.spawn_scoped(scope, || limpid_base::contain::contain(work));
        let thread = thread.map_err(|error| format!("no thread could be begun to read it: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("it gave no reason".into()))?.map_err(|error| said(&error))
    })
}

/// An error of the interpreter in words, with its line.
pub fn said(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    error.line().map_or(what.clone(), |line| format!("{what} (line {line})"))
}

/// The first line with too many tokens between two braces, if there is one. The parser reports what is not a token.
fn crowded(source: &str, syntax: SyntaxConfig) -> Option<usize> {
    let mut count = 0;
    tokenize(source, false, syntax).map_while(Result::ok).find_map(|(token, span)| {
        count = match token {
            Token::VariableStart | Token::BlockStart => 0,
            _ => count + 1,
        };
        (count > TOKENS).then_some(span.start_line as usize)
    })
}

/// How many operands of an instruction are checked before it: none, the upper one, or both.
fn compared(instruction: &Instruction, before: Option<&Instruction>) -> usize {
    use Instruction as I;
    let number = |count: &Option<u16>| count.map_or(2, |count| count.clamp(1, 2) as usize);
    match instruction {
        // a comparison with a constant goes no deeper than the constant
        _ if compares(instruction) => {
            if let Some(I::LoadConst(_)) = before {
                0
            } else {
                2
            }
        }
        I::PerformTest(
            "eq" | "equalto" | "==" | "ne" | "!=" | "lt" | "lessthan" | "<" | "le" | "<=" | "gt" | "greaterthan" | ">"
            | "ge" | ">=" | "in",
            count,
            _,
        )
        | I::ApplyFilter(
            "sort" | "unique" | "min" | "max" | "dictsort" | "groupby" | "select" | "reject" | "selectattr"
            | "rejectattr" | "map",
            count,
            _,
        )
        | I::CallMethod("count" | "index", count) => number(count),
        _ => 0,
    }
}

/// Whether an instruction may read all of a text, and is not followed by a check of what it makes.
fn reads(instruction: &Instruction) -> bool {
    compares(instruction)
        || matches!(instruction, Instruction::PerformTest(..) | Instruction::GetItem | Instruction::Slice)
}

/// Whether an instruction compares two values.
fn compares(instruction: &Instruction) -> bool {
    use Instruction as I;
    matches!(instruction, I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_))
}

/// Whether an instruction makes a value that may hold others.
fn makes(instruction: &Instruction) -> bool {
    use Instruction as I;
    matches!(
        instruction,
        I::BuildMap(_)
            | I::BuildList(_)
            | I::BuildTuple(_)
            | I::Add
            | I::Mul
            | I::ApplyFilter(..)
            | I::CallFunction(..)
            | I::CallMethod(..)
            | I::CallObject(_)
    )
}

/// Where an instruction may lead to.
fn goal<'a>(instruction: &'a mut Instruction) -> Option<&'a mut u32> {
    use Instruction as I;
    match instruction {
        I::Iterate(to)
        | I::Jump(to)
        | I::JumpIfFalse(to)
        | I::JumpIfFalseOrPop(to)
        | I::JumpIfTrueOrPop(to)
        | I::BuildMacro(_, to, _) => Some(to),
        _ => None,
    }
}

/// The same instructions, with checks inserted.
pub fn checked<'s>(plain: &Instructions<'s>) -> Instructions<'s> {
    use Instruction as I;
    let all = || (0..).map_while(|at| plain.get(at));
    let goals: std::collections::BTreeSet<u32> = all().filter_map(|plain| goal(&mut plain.clone()).copied()).collect();
    let (mut new, mut places) = (Instructions::new(plain.name(), plain.source()), vec![]);
    let mut before = None;
    for (at, instruction) in (0..).zip(all()) {
        let line = plain.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or_default();
        let mut add = |instruction| new.add_with_line(instruction, line);
        let test = |name| [I::DupTop, I::PerformTest(name, Some(1), !0), I::DiscardTop];
        let mut first = None;
        let mut ahead = vec![];
        match compared(instruction, before.filter(|_| !goals.contains(&at))) {
            0 if reads(instruction) => ahead.extend(test(CLOCK)),
            0 => {}
            1 => ahead.extend(test(HELD)),
            _ => ahead.extend(test(HELD).into_iter().chain([I::Swap]).chain(test(HELD)).chain([I::Swap])),
        }
        if let I::PushLoop(_) = instruction {
            ahead.push(I::ApplyFilter(LOOP, Some(1), !0));
        }
        let instruction = match instruction {
            I::Rem => &I::ApplyFilter(REMAINDER, Some(2), !0),
            other => other,
        };
        if matches!(instruction, I::SetAttr(_)) {
            ahead.extend([I::Swap].into_iter().chain(test(APART)).chain([I::Swap]));
        }
        for instruction in ahead.into_iter().chain([instruction.clone()]) {
            let place = add(instruction);
            first.get_or_insert(place);
        }
        places.extend(first);
        // a map's values by name are an argument, which a namespace may be
        if makes(instruction) {
            for instruction in test(HELD) {
                add(instruction);
            }
        }
        before = Some(instruction);
    }
    let end = new.add(I::PushWith);
    new.add(I::PopFrame);
    for at in 0..end {
        if let Some(to) = new.get_mut(at).and_then(goal) {
            *to = places.get(*to as usize).copied().unwrap_or(end);
        }
    }
    new
}
