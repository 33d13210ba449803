//! `builtin:stories`, a corpus that needs no download: small English stories from a probabilistic grammar, with the
//! exact log-probability of every story. People, pronouns, objects, places and outcomes agree across sentences. The
//! mean of `-log_probability` is the entropy: no model can reach a lower loss.
//!
//! [`GRAMMAR`] is text (stories.txt), compiled once. A `Walk` steps through it and leaves the choices to its caller: a
//! seed ([`Stories`]), a given text ([`log_probability`]), or, in the tests, all choices in turn. The recogniser sums
//! over all derivations of a text. The tests find exactly one for every story tried, so the probability that the
//! generator adds up is that of the text. `causes` says which words earlier ones decide.

mod causes;

pub use causes::Cause;
use limpid_base::random::mix;
use std::collections::HashMap;
use std::sync::LazyLock;

/// One story: its text (one line, ends with `"\n"`) and the natural log of the exact probability that the generator
/// writes this text.
#[derive(Clone, PartialEq, Debug)]
pub struct Story {
    /// The line, with its `"\n"`.
    pub text: String,
    /// ln p(text), at most 0.
    pub log_probability: f64,
}

/// An endless stream of stories decided by a seed: story `n` is a pure function of (seed, n).
#[derive(Clone, Debug)]
pub struct Stories {
    seed: u64,
    next: u64,
}

impl Stories {
    /// The stream of `seed`, at story 0.
    pub fn new(seed: u64) -> Stories {
        Stories { seed, next: 0 }
    }

    /// Story `n`; does not move the stream.
    pub fn story(&self, n: u64) -> Story {
        let mut text = String::with_capacity(512);
        let log_probability = self.append(n, &mut text);
        Story { text, log_probability }
    }

    /// Story `n` written behind `text`; its log-probability.
    fn append(&self, n: u64, text: &mut String) -> f64 {
        let grammar = &*COMPILED;
        let mut draws = SplitMix::at(self.seed, n);
        let mut walk = Walk::start(grammar.start);
        let mut log_probability = 0.0;
        let start = text.len();
        while let Some(choice) = walk.write_to_choice(grammar, text, start) {
            let total = choice.total(grammar, &walk);
            let option = choice.option_at(grammar, &walk, draws.below(total));
            log_probability += grammar.log(option.weight) - grammar.log(total);
            walk.take(choice, option.entry);
        }
        text.push('\n');
        log_probability
    }
}

impl Iterator for Stories {
    type Item = Story;

    fn next(&mut self) -> Option<Story> {
        let story = self.story(self.next);
        self.next = self.next.wrapping_add(1);
        Some(story)
    }
}

/// Stories 0, 1, 2 ... of `seed` until there are at least `bytes` bytes, and the sum of their log-probabilities.
pub fn corpus(seed: u64, bytes: usize) -> (String, f64) {
    let stories = Stories::new(seed);
    let mut text = String::with_capacity(bytes.saturating_add(1024).min(1 << 28));
    let (mut sum, mut n) = (0.0, 0);
    while text.len() < bytes {
        sum += stories.append(n, &mut text);
        n += 1;
    }
    (text, sum)
}

/// The natural log of the exact probability that the generator writes this one line (with or without its `"\n"`);
/// `None` where the grammar cannot write it. Scores a model's own stories.
pub fn log_probability(text: &str) -> Option<f64> {
    COMPILED.recognise(text.strip_suffix('\n').unwrap_or(text)).map(|(log_probability, _)| log_probability)
}

/// The grammar, for reading. `rule: 3 an option | another` draws the first with probability 3/4; `_` writes nothing.
/// A hole `<rule>` draws from that rule, `<S:rule>` also keeps the option as S (one capital), `<-S:rule>` keeps
/// without writing, `<S>` writes what was kept, `<^...>` begins with a capital letter. `<rule@S>` draws from the rule
/// named `rule.tag`, where the tags of S are its words joined by `-` and those in brackets, or else from plain
/// `rule`: so verbs, pronouns, places and endings agree. `<rule!S>` leaves out the option kept as S. `=rule` takes
/// over that rule's options.
pub const GRAMMAR: &str = include_str!("stories.txt");

static COMPILED: LazyLock<Grammar> = LazyLock::new(|| Grammar::compile(GRAMMAR, "story"));

/// The slots `A` to `Z`.
const SLOTS: usize = 26;
/// How deep holes nest; a test measures the grammar.
const DEPTH: usize = 8;
/// No entry is kept in this slot.
const UNSET: u16 = u16::MAX;

/// One part of an option's text.
#[derive(Clone, Debug)]
enum Part {
    Text { text: String, glued: bool },
    Hole(Hole),
}

/// `<^-slot:rule@by!not>`; `glued` when no space stands before it.
#[derive(Clone, Copy, Debug)]
struct Hole {
    glued: bool,
    capital: bool,
    silent: bool,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Kept(u8),
    Draw { family: u16, keep: Option<u8>, by: Option<u8>, except: Option<u8> },
}

/// The text of one option, shared by all rules that took it over.
#[derive(Clone, Debug, Default)]
struct Entry {
    parts: Vec<Part>,
    tags: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Weighted {
    weight: u32,
    entry: u16,
}

#[derive(Clone, Debug, Default)]
struct Rule {
    options: Vec<Weighted>,
    total: u32,
}

/// A rule and its dependent sisters `rule.tag`, by tag.
#[derive(Clone, Debug, Default)]
struct Family {
    name: String,
    plain: Option<u16>,
    tagged: Vec<(u16, u16)>,
}

impl Family {
    /// The rule of the first tag of an entry that the family knows, or else the plain one.
    fn rule_by(&self, grammar: &Grammar, entry: u16) -> Option<u16> {
        let tags = &grammar.entries[usize::from(entry)].tags;
        let rule_of = |tag: &u16| self.tagged.iter().find(|(of, _)| of == tag).map(|(_, rule)| *rule);
        tags.iter().find_map(rule_of).or(self.plain)
    }

    fn has(&self, rule: u16) -> bool {
        self.plain == Some(rule) || self.tagged.iter().any(|(_, tagged)| *tagged == rule)
    }
}

#[derive(Clone, Debug, Default)]
struct Grammar {
    entries: Vec<Entry>,
    rules: Vec<Rule>,
    families: Vec<Family>,
    /// ln of every weight and total, by value.
    logs: Vec<f64>,
    /// A one-hole entry that draws the first rule.
    start: u16,
}

impl Grammar {
    /// Panics on a malformed grammar: the only one is the constant above, and a test compiles it.
    fn compile(source: &str, start: &str) -> Grammar {
        let lines = rule_lines(source);
        let mut grammar = Grammar::default();
        let mut names = Names::default();
        let mut rules: HashMap<&str, u16> = HashMap::new();
        for line in &lines {
            let (head, body) = line.split_once(": ").unwrap_or_else(|| panic!("no rule in {line:?}"));
            let (name, shared) = split_tags(head);
            let mut rule = Rule::default();
            for option in body.split('|') {
                grammar.add_option(&mut rule, option, &shared, &rules, &mut names);
            }
            rule.total = rule.options.iter().map(|option| option.weight).sum();
            let id = grammar.rules.len() as u16;
            assert!(rules.insert(name, id).is_none(), "rule {name:?} twice");
            grammar.rules.push(rule);
        }
        let first = Entry { parts: parse(&format!("<{start}>"), &mut names), tags: Vec::new() };
        grammar.start = grammar.entries.len() as u16;
        grammar.entries.push(first);
        grammar.families = names.families.iter().map(|name| family(name, &rules, &names.tags)).collect();
        let most = grammar.rules.iter().map(|rule| rule.total).max().unwrap_or(0);
        grammar.logs = (0..=most).map(|weight| f64::from(weight).ln()).collect();
        grammar
    }

    /// Adds one option of a rule, or the options of the rule that it takes over; `shared` are the rule's tags.
    fn add_option(
        &mut self,
        rule: &mut Rule,
        option: &str,
        shared: &[&str],
        rules: &HashMap<&str, u16>,
        names: &mut Names,
    ) {
        let (option, own) = split_tags(option.trim());
        let (weight, text) = match option.split_once(' ') {
            Some((weight, text)) if weight.bytes().all(|b| b.is_ascii_digit()) => (weight.parse().unwrap_or(1), text),
            _ => (1, option),
        };
        if let Some(other) = text.strip_prefix('=') {
            let other = rules.get(other).unwrap_or_else(|| panic!("{other:?} is not known yet in {option:?}"));
            let taken = &self.rules[usize::from(*other)].options;
            rule.options.extend(taken.iter().map(|o| Weighted { weight: weight * o.weight, ..*o }));
            return;
        }
        let mut tags: Vec<u16> = own.iter().chain(shared).map(|tag| names.tag(tag)).collect();
        tags.push(names.tag(&text.replace(' ', "-")));
        let text = if text == "_" { "" } else { text };
        rule.options.push(Weighted { weight, entry: self.entries.len() as u16 });
        self.entries.push(Entry { parts: parse(text, names), tags });
    }

    fn log(&self, weight: u32) -> f64 {
        self.logs[weight as usize]
    }

    /// The log of the summed probability of all derivations of `text`, and their number.
    fn recognise(&self, text: &str) -> Option<(f64, usize)> {
        let text = text.as_bytes();
        let mut found: Vec<f64> = Vec::new();
        let mut open = vec![(Walk::start(self.start), 0, 0.0)];
        while let Some((mut walk, mut at, log_probability)) = open.pop() {
            loop {
                match walk.step(self) {
                    Step::Write(piece) => match piece.matches(text, at) {
                        Some(next) => at = next,
                        None => break,
                    },
                    Step::Choose(choice) => {
                        let log_total = self.log(choice.total(self, &walk));
                        for option in choice.options(self, &walk) {
                            let mut fork = walk;
                            fork.take(choice, option.entry);
                            open.push((fork, at, log_probability + self.log(option.weight) - log_total));
                        }
                        break;
                    }
                    Step::End => {
                        found.extend((at == text.len() && at > 0).then_some(log_probability));
                        break;
                    }
                }
            }
        }
        let top = found.iter().copied().reduce(f64::max)?;
        let sum: f64 = found.iter().map(|log| (log - top).exp()).sum();
        Some((top + sum.ln(), found.len()))
    }
}

/// The lines of a grammar, each with the lines that continue it; comments are left out.
fn rule_lines(source: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in source.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        match lines.last_mut().filter(|_| line.starts_with(' ')) {
            Some(last) => last.push_str(line),
            None => lines.push(line.to_owned()),
        }
    }
    lines
}

/// The rule of this name and its sisters `name.tag`.
fn family(name: &str, rules: &HashMap<&str, u16>, tags: &HashMap<String, u16>) -> Family {
    let tagged = rules.iter().filter_map(|(rule, id)| {
        let tag = rule.strip_prefix(name)?.strip_prefix('.')?;
        Some((*tags.get(tag).unwrap_or_else(|| panic!("nothing has the tag of {rule:?}")), *id))
    });
    let tagged: Vec<_> = tagged.collect();
    let plain = rules.get(name).copied();
    assert!(plain.is_some() || !tagged.is_empty(), "no rule {name:?}");
    Family { name: name.to_owned(), plain, tagged }
}

/// Names met while compiling, numbered.
#[derive(Default)]
struct Names {
    tags: HashMap<String, u16>,
    families: Vec<String>,
}

impl Names {
    fn tag(&mut self, name: &str) -> u16 {
        let next = self.tags.len() as u16;
        *self.tags.entry(name.to_owned()).or_insert(next)
    }

    fn family(&mut self, name: &str) -> u16 {
        let known = self.families.iter().position(|family| family == name);
        known.unwrap_or_else(|| {
            self.families.push(name.to_owned());
            self.families.len() - 1
        }) as u16
    }
}

/// `text [tag,tag]` -> text, tags.
fn split_tags(text: &str) -> (&str, Vec<&str>) {
    match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        Some((text, tags)) => (text.trim(), tags.split(',').map(str::trim).collect()),
        None => (text, Vec::new()),
    }
}

/// An option's text in parts; what has no space before it in the grammar has none in the story.
fn parse(text: &str, names: &mut Names) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut rest, mut spaced) = (text, true);
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('<') {
            let (hole, tail) = inside.split_once('>').unwrap_or_else(|| panic!("a hole without an end in {text:?}"));
            parts.push(Part::Hole(parse_hole(hole, !spaced, names)));
            (rest, spaced) = (tail, false);
        } else {
            let (literal, tail) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
            let glued = !spaced && !literal.starts_with(' ');
            let text = literal.trim();
            if !text.is_empty() {
                parts.push(Part::Text { text: text.to_owned(), glued });
            }
            (rest, spaced) = (tail, literal.ends_with(' '));
        }
    }
    parts
}

fn parse_hole(hole: &str, glued: bool, names: &mut Names) -> Hole {
    let slot = |text: &str| match text.as_bytes() {
        [letter @ b'A'..=b'Z'] => Some(letter - b'A'),
        _ => None,
    };
    let strip = |text, mark| match str::strip_prefix(text, mark) {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (rest, capital) = strip(hole, '^');
    let (rest, silent) = strip(rest, '-');
    let what = if let Some(kept) = slot(rest) {
        What::Kept(kept)
    } else {
        let part = |rest, mark| match str::split_once(rest, mark) {
            Some((rest, name)) => (rest, Some(slot(name).unwrap_or_else(|| panic!("no slot in <{hole}>")))),
            None => (rest, None),
        };
        let (rest, except) = part(rest, '!');
        let (rest, by) = part(rest, '@');
        let (keep, rule) = match rest.split_once(':') {
            Some((keep, rule)) => (slot(keep), rule),
            None => (None, rest),
        };
        What::Draw { family: names.family(rule), keep, by, except }
    };
    Hole { glued, capital, silent, what }
}

/// The choices that a text was written for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tie {
    /// The slot whose entry it is.
    of: Option<u8>,
    /// The family whose rule a slot's tags chose, and that slot.
    by: Option<(u16, u8)>,
}

/// A place in the grammar: plain data, so that a recogniser may fork it.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// (entry, next part), innermost last.
    frames: [(u16, u16); DEPTH],
    ties: [Tie; DEPTH],
    depth: usize,
    kept: [u16; SLOTS],
    /// The rule that each slot's entry was drawn from.
    drawn: [u16; SLOTS],
    /// The slot whose tags chose that rule.
    drawn_by: [Option<u8>; SLOTS],
    glued: bool,
    capital: bool,
    /// A slot was read before it was written, or a tag has no rule: a fault of the grammar, which a test excludes.
    faulty: bool,
}

enum Step<'g> {
    Write(Piece<'g>),
    Choose(Choice),
    End,
}

/// A draw that is due.
#[derive(Clone, Copy, Debug)]
struct Choice {
    rule: u16,
    keep: Option<u8>,
    silent: bool,
    except: Option<u8>,
    by: Option<(u16, u8)>,
}

impl Choice {
    /// The options left, each with its weight.
    fn options<'g>(&self, grammar: &'g Grammar, walk: &Walk) -> impl Iterator<Item = Weighted> + 'g {
        let out = self.except.map_or(UNSET, |slot| walk.kept[usize::from(slot)]);
        let options = &grammar.rules[usize::from(self.rule)].options;
        options.iter().copied().filter(move |option| option.entry != out)
    }

    /// The option whose share of the total weight `place` lies in.
    fn option_at(&self, grammar: &Grammar, walk: &Walk, place: u32) -> Weighted {
        let mut left = place;
        for option in self.options(grammar, walk) {
            if left < option.weight {
                return option;
            }
            left -= option.weight;
        }
        unreachable!("a place is below the total of the weights")
    }

    /// The sum of their weights.
    fn total(&self, grammar: &Grammar, walk: &Walk) -> u32 {
        match self.except {
            None => grammar.rules[usize::from(self.rule)].total,
            Some(_) => self.options(grammar, walk).map(|option| option.weight).sum(),
        }
    }
}

impl Walk {
    fn start(entry: u16) -> Walk {
        let mut walk = Walk {
            frames: [(0, 0); DEPTH],
            ties: [Tie::default(); DEPTH],
            depth: 0,
            kept: [UNSET; SLOTS],
            drawn: [UNSET; SLOTS],
            drawn_by: [None; SLOTS],
            glued: false,
            capital: false,
            faulty: false,
        };
        walk.enter(entry, Tie::default());
        walk
    }

    fn enter(&mut self, entry: u16, tie: Tie) {
        (self.frames[self.depth], self.ties[self.depth]) = ((entry, 0), tie);
        self.depth += 1;
    }

    /// Answers a [`Step::Choose`].
    fn take(&mut self, choice: Choice, entry: u16) {
        if let Some(slot) = choice.keep {
            self.kept[usize::from(slot)] = entry;
            self.drawn[usize::from(slot)] = choice.rule;
            self.drawn_by[usize::from(slot)] = choice.by.map(|(_, slot)| slot);
        }
        if !choice.silent {
            self.enter(entry, Tie { of: choice.keep, by: choice.by });
        }
    }

    /// Appends the text up to the next choice to `text`, in which the story begins at `start`. None at the end of the
    /// story.
    fn write_to_choice(&mut self, grammar: &Grammar, text: &mut String, start: usize) -> Option<Choice> {
        loop {
            debug_assert!(self.depth < DEPTH, "holes nest too deep after {text:?}");
            match self.step(grammar) {
                Step::Write(piece) => piece.append(text, text.len() == start),
                Step::Choose(choice) => return Some(choice),
                Step::End => return None,
            }
        }
    }

    /// Continues to the next text or the next choice. A rule of one option is not a choice.
    fn step<'g>(&mut self, grammar: &'g Grammar) -> Step<'g> {
        while self.depth > 0 {
            let (entry, at) = &mut self.frames[self.depth - 1];
            let parts = &grammar.entries[usize::from(*entry)].parts;
            let Some(part) = parts.get(usize::from(*at)) else {
                self.depth -= 1;
                continue;
            };
            *at += 1;
            let (begins, tie) = (*at == 1, self.ties[self.depth - 1]);
            if usize::from(*at) == parts.len() {
                self.depth -= 1;
            }
            let hole = match part {
                Part::Text { text, glued } => {
                    let piece = Piece { text, glued: *glued || self.glued, capital: self.capital, begins, tie };
                    (self.glued, self.capital) = (false, false);
                    return Step::Write(piece);
                }
                Part::Hole(hole) => hole,
            };
            self.glued |= hole.glued;
            self.capital |= hole.capital;
            match hole.what {
                What::Kept(slot) => match self.kept[usize::from(slot)] {
                    UNSET => self.faulty = true,
                    entry => self.enter(entry, Tie { of: Some(slot), by: None }),
                },
                What::Draw { family, keep, by, except } => {
                    let Some(rule) = self.rule_for(grammar, family, by) else {
                        self.faulty = true;
                        continue;
                    };
                    let by = by.map(|slot| (family, slot));
                    let choice = Choice { rule, keep, silent: hole.silent, except, by };
                    match grammar.rules[usize::from(rule)].options[..] {
                        [only] => self.take(choice, only.entry),
                        _ => return Step::Choose(choice),
                    }
                }
            }
        }
        Step::End
    }

    /// The rule of the first tag of slot `by` that the family knows, or else the plain one.
    fn rule_for(&mut self, grammar: &Grammar, family: u16, by: Option<u8>) -> Option<u16> {
        let family = &grammar.families[usize::from(family)];
        let Some(slot) = by else { return family.plain };
        let kept = self.kept[usize::from(slot)];
        if kept == UNSET {
            self.faulty = true;
            return family.plain;
        }
        family.rule_by(grammar, kept)
    }
}

/// Text that is due, with the space and the capital it wants.
struct Piece<'g> {
    text: &'g str,
    glued: bool,
    capital: bool,
    /// Whether an option's text begins with it.
    begins: bool,
    tie: Tie,
}

impl Piece<'_> {
    fn append(&self, text: &mut String, first: bool) {
        if !self.glued && !first {
            text.push(' ');
        }
        let at = text.len();
        text.push_str(self.text);
        if self.capital {
            text[at..].get_mut(..1).into_iter().for_each(str::make_ascii_uppercase);
        }
    }

    /// Where the text goes on behind this piece, if it stands at `at`.
    fn matches(&self, text: &[u8], at: usize) -> Option<usize> {
        let space = usize::from(!self.glued && at > 0);
        let rest = text.get(at..)?;
        let rest = if space == 1 { rest.strip_prefix(b" ")? } else { rest };
        let (piece, end) = (self.text.as_bytes(), at + space + self.text.len());
        let same = match (self.capital, piece, rest) {
            (true, [a, piece @ ..], [b, rest @ ..]) => a.to_ascii_uppercase() == *b && rest.starts_with(piece),
            _ => rest.starts_with(piece),
        };
        same.then_some(end)
    }
}

/// Counter-based: draw `i` of story `n` is a hash of (seed, n, i).
struct SplitMix(u64);

impl SplitMix {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

    fn at(seed: u64, n: u64) -> SplitMix {
        SplitMix(mix((mix(seed) ^ n.wrapping_mul(Self::GOLDEN)).wrapping_sub(Self::GOLDEN)))
    }

    /// Below `total`, uniform to within 2^-64 for each number.
    fn below(&mut self, total: u32) -> u32 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(Self::GOLDEN);
        ((u128::from(bits) * u128::from(total)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every text a rule can write with its summed probability and number of derivations; `None` beyond `limit`.
    fn all_texts(grammar: &Grammar, start: u16, limit: usize) -> Option<(HashMap<String, f64>, usize)> {
        let (mut texts, mut derivations) = (HashMap::new(), 0);
        let mut open = vec![(Walk::start(start), String::new(), 1.0)];
        while let Some((mut walk, mut text, p)) = open.pop() {
            if let Some(choice) = walk.write_to_choice(grammar, &mut text, 0) {
                let total = f64::from(choice.total(grammar, &walk));
                for option in choice.options(grammar, &walk) {
                    let mut fork = walk;
                    fork.take(choice, option.entry);
                    open.push((fork, text.clone(), p * f64::from(option.weight) / total));
                }
            } else if walk.faulty {
                return None;
            } else {
                derivations += 1;
                *texts.entry(text).or_insert(0.0) += p;
            }
            if derivations + open.len() > limit {
                return None;
            }
        }
        Some((texts, derivations))
    }

    #[test]
    fn a_small_grammar_by_hand() {
        let source = "boy [m]: 2 Tom | Ben\ngirl [f]: Ann\nname: =boy | =girl\nhe.m: he\nhe.f: she\nvery: 3 _ | \
                      very\ns: <A:name> met <B:name!A>. \"<^he@A> was <very> glad,\" said <B>.";
        let grammar = Grammar::compile(source, "s");
        let (texts, derivations) = all_texts(&grammar, grammar.start, 1000).unwrap();
        assert_eq!((texts.len(), derivations), (12, 12));
        assert!((texts.values().sum::<f64>() - 1.0).abs() < 1e-12);
        // Tom 2/4, then Ann 1/2 of those left, then no "very" 3/4.
        let text = "Tom met Ann. \"He was glad,\" said Ann.";
        assert!((texts[text] - 0.5 * 0.5 * 0.75).abs() < 1e-12);
        for (text, p) in &texts {
            let (log, derivations) = grammar.recognise(text).unwrap();
            assert!((log - p.ln()).abs() < 1e-12 && derivations == 1, "{text}");
        }
        assert_eq!(grammar.recognise("Tom met Ann. \"She was glad,\" said Ann."), None); // the pronoun is Tom's
        assert_eq!(grammar.recognise("Tom met Tom. \"He was glad,\" said Tom."), None);
    }

    #[test]
    fn an_ambiguous_grammar_is_seen_and_summed() {
        let grammar = Grammar::compile("s: 1 <a> c | 2 x y c\na: x y | z", "s");
        let (log, derivations) = grammar.recognise("x y c").unwrap();
        assert_eq!(derivations, 2);
        assert!((log.exp() - (1.0 / 6.0 + 2.0 / 3.0)).abs() < 1e-12);
    }

    /// Each rule that can be enumerated: its probabilities sum to one, and no text has two derivations.
    #[test]
    #[ignore = "gate"]
    fn every_small_rule_sums_to_one_and_is_unambiguous() {
        let mut grammar = Grammar::compile(GRAMMAR, "story");
        let (mut checked, rules) = (0, grammar.families.len());
        for family in 0..rules {
            if grammar.families[family].plain.is_none() {
                continue;
            }
            let draw = What::Draw { family: family as u16, keep: None, by: None, except: None };
            let hole = Hole { glued: false, capital: false, silent: false, what: draw };
            grammar.entries.push(Entry { parts: vec![Part::Hole(hole)], tags: Vec::new() });
            let start = grammar.entries.len() as u16 - 1;
            let Some((texts, derivations)) = all_texts(&grammar, start, 60_000) else { continue };
            let name = texts.keys().next();
            assert!((texts.values().sum::<f64>() - 1.0).abs() < 1e-9, "{name:?}");
            assert_eq!(texts.len(), derivations, "{name:?} and others are ambiguous");
            checked += 1;
        }
        assert!(checked > 60, "only {checked} of {rules} rules could be enumerated");
    }

    #[test]
    fn weights_are_positive_and_options_differ() {
        let grammar = &*COMPILED;
        for rule in &grammar.rules {
            assert!(rule.options.iter().all(|option| option.weight > 0));
            assert_eq!(rule.options.iter().map(|option| option.weight).sum::<u32>(), rule.total);
            let parts = rule.options.iter().map(|o| format!("{:?}", grammar.entries[usize::from(o.entry)].parts));
            let distinct: HashSet<String> = parts.collect();
            assert_eq!(distinct.len(), rule.options.len(), "{distinct:?}");
        }
    }

    /// Every slot is written before it is read, every tag has its rule, nesting fits, and every rule is used.
    #[test]
    fn the_grammar_has_no_faults() {
        let grammar = &*COMPILED;
        let mut used = HashSet::new();
        for n in 0..20_000 {
            let mut walk = Walk::start(grammar.start);
            let mut draws = SplitMix::at(99, n);
            let mut text = String::new();
            while let Some(choice) = walk.write_to_choice(grammar, &mut text, 0) {
                assert!(!walk.faulty, "after {text:?}");
                let options: Vec<Weighted> = choice.options(grammar, &walk).collect();
                // evenly, to meet the rare ones
                let option = options[draws.below(options.len() as u32) as usize];
                used.insert(option.entry);
                walk.take(choice, option.entry);
                assert!(walk.depth < DEPTH, "after {text:?}");
            }
            assert!(!walk.faulty, "after {text:?}");
        }
        let rules = grammar.rules.iter().filter(|rule| rule.options.len() > 1);
        let unused = rules.flat_map(|rule| &rule.options).filter(|option| !used.contains(&option.entry));
        let unused: Vec<_> = unused.map(|option| &grammar.entries[usize::from(option.entry)].parts).collect();
        assert!(unused.is_empty(), "never used: {unused:?}");
    }

    #[test]
    fn every_story_has_one_derivation_and_the_stated_probability() {
        for (n, story) in Stories::new(7).take(4000).enumerate() {
            let (log, derivations) =
                COMPILED.recognise(story.text.trim_end()).unwrap_or_else(|| panic!("{}", story.text));
            assert_eq!(derivations, 1, "story {n}: {}", story.text);
            assert!((log - story.log_probability).abs() < 1e-9, "story {n}: {log} and {}", story.log_probability);
        }
    }

    #[test]
    fn a_wrong_pronoun_or_word_has_no_probability() {
        let (mut swapped, mut n) = (0, 0);
        for story in Stories::new(3).take(500) {
            assert!(log_probability(&story.text).is_some());
            if let Some(at) = story.text.find(" he ") {
                let wrong = format!("{} she {}", &story.text[..at], &story.text[at + 4..]);
                assert_eq!(log_probability(&wrong), None, "{wrong}");
                swapped += 1;
            }
            n += usize::from(log_probability(&story.text.replace(". ", ".  ")).is_some());
        }
        assert!(swapped > 50 && n == 0);
        for text in
            ["", "\n", " ", "Once", "Once there was", "\u{e9}t\u{e9}", "Once there was a kind boy called Tom.\n\n"]
        {
            assert_eq!(log_probability(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_seed_and_the_number_decide_everything() {
        let stories = Stories::new(1);
        assert_eq!(stories.story(5), stories.story(5));
        assert_eq!(stories.clone().nth(5), Some(stories.story(5)));
        assert_ne!(stories.story(5), stories.story(6));
        assert_ne!(stories.story(5), Stories::new(2).story(5));
        let (text, sum) = corpus(1, 5000);
        assert!(text.len() >= 5000 && text.ends_with('\n'));
        let lines: Vec<Story> = stories.take(text.lines().count()).collect();
        assert_eq!(text, lines.iter().map(|story| story.text.as_str()).collect::<String>());
        assert!((sum - lines.iter().map(|story| story.log_probability).sum::<f64>()).abs() < 1e-9);
        assert_eq!(corpus(1, 0), (String::new(), 0.0));
    }

    /// Checked on the text alone: articles, and the hero's pronoun right after the first sentence.
    #[test]
    fn articles_and_pronouns_agree() {
        let mut seen = [0; 2];
        for Story { text, .. } in Stories::new(13).take(5000) {
            let words: Vec<&str> = text.split([' ', '\n']).map(|word| word.trim_matches('"')).collect();
            for pair in words.windows(2) {
                let vowel = pair[1].starts_with(['a', 'e', 'i', 'o', 'u']);
                match pair[0] {
                    "a" | "A" => assert!(!vowel, "{text}"),
                    "an" | "An" => assert!(vowel, "{text}"),
                    _ => {}
                }
            }
            let Some((first, rest)) = text.split_once(". ") else { continue };
            let boy = first.split(' ').any(|word| word == "boy" || word == "boy,");
            for (i, pronouns) in [["He ", "His "], ["She ", "Her "]].into_iter().enumerate() {
                if pronouns.iter().any(|pronoun| rest.starts_with(pronoun)) {
                    assert_eq!(boy, i == 0, "{text}");
                    seen[i] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&n| n > 500), "{seen:?}");
    }

    /// What a word-level tokenizer leans on.
    #[test]
    fn spacing_is_regular() {
        for Story { text, .. } in Stories::new(11).take(3000) {
            let line = text.strip_suffix('\n').unwrap();
            assert!(line.bytes().all(|b| b.is_ascii_alphabetic() || b" .,!?\"'-".contains(&b)), "{line}");
            let mut open = false;
            let bytes = [b" ", line.as_bytes(), b" "].concat();
            for near in bytes.windows(3) {
                let &[before, it, after] = near else { unreachable!() };
                let fits = match it {
                    b' ' => before != b' ' && after != b' ',
                    b'.' | b',' | b'!' | b'?' => before.is_ascii_alphabetic() && (after == b' ' || after == b'"'),
                    b'"' => {
                        open = !open;
                        if open {
                            before == b' ' && after.is_ascii_alphabetic()
                        } else {
                            b".,!?".contains(&before) && after == b' '
                        }
                    }
                    b'\'' | b'-' => before.is_ascii_alphabetic() && after.is_ascii_alphabetic(),
                    _ => true,
                };
                assert!(fits, "{line}");
            }
            assert!(!open, "{line}");
            let begins = line.split(['.', '!', '?']).map(|s| s.trim_start()).filter(|s| !s.is_empty());
            assert!(
                begins.into_iter().next().is_some_and(|s| s.starts_with(|c: char| c.is_ascii_uppercase() || c == '"'))
            );
            let (words, ends) = (line.split(' ').count(), line.matches(['.', '!', '?']).count());
            assert!((25..=110).contains(&words) && (4..=16).contains(&ends), "{words} words, {ends} ends: {line}");
        }
    }

    /// What measures and prints, for those who ask for it by name.
    mod measures {
        use super::*;

        /// `cargo test --release -- --ignored --nocapture stories::tests::measures`
        #[test]
        #[ignore = "prints figures"]
        fn report() {
            for story in Stories::new(2024).take(10) {
                println!("{:7.2}  {}", story.log_probability, story.text.trim_end());
            }
            let start = std::time::Instant::now();
            let (text, sum) = corpus(5, 64 << 20);
            let seconds = start.elapsed().as_secs_f64();
            let (stories, bytes) = (text.lines().count() as f64, text.len() as f64);
            let words: Vec<&str> = text.split_whitespace().map(|w| w.trim_matches(['.', ',', '!', '?', '"'])).collect();
            let distinct: HashSet<&str> = words.iter().copied().collect();
            let lines: HashSet<&str> = text.lines().collect();
            let n = words.len() as f64;
            println!("{:.1} MB/s; {stories} stories, {} distinct", bytes / seconds / 1e6, lines.len());
            println!(
                "per story: {:.1} words, {:.1} bytes, {:.3} nats; {:.4} nats/word, {:.5} nats/byte, {:.4} bits/byte",
                n / stories,
                bytes / stories,
                -sum / stories,
                -sum / n,
                -sum / bytes,
                -sum / bytes / 2f64.ln()
            );
            let lower: HashSet<String> = distinct.iter().map(|word| word.to_lowercase()).collect();
            println!("{} distinct words, {} without case", distinct.len(), lower.len());
            let mut shape: Vec<usize> = text.lines().take(100_000).map(|line| line.split(' ').count()).collect();
            shape.sort_unstable();
            println!(
                "words: least {}, 5% {}, median {}, 95% {}, most {}",
                shape[0], shape[5000], shape[50_000], shape[95_000], shape[99_999]
            );
            let start = std::time::Instant::now();
            let derived =
                text.lines().filter(|line| COMPILED.recognise(line).is_some_and(|(_, derivations)| derivations == 1));
            let derived = derived.count() as f64;
            println!("{derived} have one derivation, {:.1} us each", start.elapsed().as_secs_f64() / stories * 1e6);
        }
    }
}
