//! Why words of a story are there: where the grammar lets an earlier choice decide a word, and which words before it
//! tell that choice. A pronoun follows from a name, a later mention from the first, a verb from the kind of race. So
//! what an explanation of a model names can be compared with what is true.

use super::{Grammar, Hole, Part, SplitMix, Step, Stories, Story, Tie, UNSET, Walk, What};
use std::collections::BTreeSet;
use std::ops::Range;

/// A word that an earlier choice decides: with another choice the grammar writes another word in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Where the word begins in the text, at the blank before it if there is one.
    pub at: usize,
    /// The word, with that blank.
    pub word: String,
    /// The rule of the grammar that the choice decides (`he`, `was`, `raced`); of a later mention of something that was
    /// chosen before, the rule that it was chosen by, after a `+` (`+girl`, `+single`).
    pub kind: String,
    /// Where the words before it are that tell the choice: what was chosen, what decided that, and what agrees with it.
    pub because: Vec<Range<usize>>,
    /// Words that another choice would put in its place, with the blank.
    pub instead: Vec<String>,
}

/// A piece of text that was written for a choice.
struct Written {
    range: Range<usize>,
    tie: Tie,
}

impl Stories {
    /// Story `n`, and its words that earlier choices decide.
    pub fn causes(&self, n: u64) -> (Story, Vec<Cause>) {
        let grammar = &*super::COMPILED;
        let mut draws = SplitMix::at(self.seed, n);
        let (mut walk, mut text) = (Walk::start(grammar.start), String::new());
        let (mut log_probability, mut written, mut causes) = (0.0, vec![], vec![]);
        loop {
            match walk.step(grammar) {
                Step::Write(piece) => {
                    let at = text.len();
                    let first = text.is_empty();
                    piece.append(&mut text, first);
                    let instead = if piece.begins { other_words(grammar, &walk, piece.tie) } else { None };
                    if let Some((kind, own, other)) = instead {
                        let because = tellers(&walk, &written, piece.tie);
                        let end = at + 1 + first_word(&text[at + 1..]).len();
                        let blank = if text[at..].starts_with(' ') { " " } else { "" };
                        let spelled = |word: &String| {
                            let capital = piece.capital && !word.is_empty();
                            let word = if capital { word[..1].to_uppercase() + &word[1..] } else { word.clone() };
                            format!("{blank}{word}")
                        };
                        let instead: Vec<String> = other.difference(&own).map(spelled).collect();
                        if !other.contains(first_word(piece.text)) && !because.is_empty() && !instead.is_empty() {
                            let word = text[at..end].to_string();
                            causes.push(Cause { at, word, kind, because, instead });
                        }
                    }
                    written.push(Written { range: at..text.len(), tie: piece.tie });
                }
                Step::Choose(choice) => {
                    let total = choice.total(grammar, &walk);
                    let option = choice.option_at(grammar, &walk, draws.below(total));
                    log_probability += grammar.log(option.weight) - grammar.log(total);
                    walk.take(choice, option.entry);
                }
                Step::End => break,
            }
        }
        text.push('\n');
        (Story { text, log_probability }, causes)
    }
}

/// The letters that a text begins with.
fn first_word(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len())]
}

/// The kind of what a piece is tied to, the words that it may begin with as the choice was made, and those with another
/// choice; none if nothing decides it.
fn other_words(grammar: &Grammar, walk: &Walk, tie: Tie) -> Option<(String, BTreeSet<String>, BTreeSet<String>)> {
    match tie {
        // the first mention of what was chosen by nothing else is no consequence
        Tie { of: None, by: Some((family, slot)) } => {
            let family = &grammar.families[usize::from(family)];
            let own = family.rule_by(grammar, walk.kept[usize::from(slot)])?;
            let mut other = BTreeSet::new();
            for entry in choices(grammar, walk.drawn[usize::from(slot)]) {
                if let Some(rule) = family.rule_by(grammar, entry).filter(|rule| *rule != own) {
                    words(grammar, rule, 0, &mut other)?;
                }
            }
            let mut same = BTreeSet::new();
            words(grammar, own, 0, &mut same)?;
            Some((family.name.clone(), same, other))
        }
        Tie { of: Some(slot), by: None } => {
            let (entry, rule) = (walk.kept[usize::from(slot)], walk.drawn[usize::from(slot)]);
            if rule == UNSET {
                return None;
            }
            let (mut same, mut other) = (BTreeSet::new(), BTreeSet::new());
            for option in &grammar.rules[usize::from(rule)].options {
                let set = if option.entry == entry { &mut same } else { &mut other };
                words_of(grammar, option.entry, 0, set)?;
            }
            Some((format!("+{}", name_of(grammar, rule)), same, other))
        }
        _ => None,
    }
}

/// What could have been chosen where an entry was drawn from this rule: all options of its family.
fn choices(grammar: &Grammar, rule: u16) -> BTreeSet<u16> {
    let family = grammar.families.iter().find(|family| family.has(rule));
    let rules = family.into_iter().flat_map(|family| family.tagged.iter().map(|(_, rule)| *rule).chain(family.plain));
    let options = rules.flat_map(|rule| &grammar.rules[usize::from(rule)].options);
    options.map(|option| option.entry).collect()
}

/// The family that a rule belongs to.
fn name_of(grammar: &Grammar, rule: u16) -> &str {
    grammar.families.iter().find(|family| family.has(rule)).map_or("", |family| &family.name)
}

/// The words that texts of a rule begin with; none if other choices decide them too.
fn words(grammar: &Grammar, rule: u16, depth: usize, found: &mut BTreeSet<String>) -> Option<()> {
    grammar.rules[usize::from(rule)].options.iter().try_for_each(|option| words_of(grammar, option.entry, depth, found))
}

fn words_of(grammar: &Grammar, entry: u16, depth: usize, found: &mut BTreeSet<String>) -> Option<()> {
    match grammar.entries[usize::from(entry)].parts.first()? {
        Part::Text { text, .. } => {
            let word = first_word(text);
            found.insert(word.to_string());
            (!word.is_empty()).then_some(())
        }
        Part::Hole(Hole { what: What::Draw { family, by: None, .. }, silent: false, capital: false, .. }) => {
            let rule = grammar.families[usize::from(*family)].plain.filter(|_| depth < super::DEPTH)?;
            words(grammar, rule, depth + 1, found)
        }
        Part::Hole(_) => None,
    }
}

/// The words so far that tell the choice a piece is tied to.
fn tellers(walk: &Walk, written: &[Written], tie: Tie) -> Vec<Range<usize>> {
    let mut slots: Vec<u8> = tie.of.or(tie.by.map(|(_, slot)| slot)).into_iter().collect();
    while let Some(by) =
        slots.last().and_then(|slot| walk.drawn_by[usize::from(*slot)]).filter(|by| !slots.contains(by))
    {
        slots.push(by);
    }
    let is_mention = tie.of.is_some();
    // a choice that was made in silence is not told by what decided it
    let told = |one: &Written| {
        one.tie.of == slots.first().copied() || one.tie.by.map(|(_, slot)| slot) == slots.first().copied()
    };
    if !written.iter().any(told) {
        return vec![];
    }
    let tells = |one: &&Written| {
        let own = one.tie.of.is_some_and(|slot| slots.contains(&slot) && (!is_mention || tie.of == Some(slot)));
        own || !is_mention && one.tie.by.is_some_and(|(_, slot)| slots.contains(&slot))
    };
    written.iter().filter(tells).map(|one| one.range.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stories::log_probability;

    /// With another word in its place, or with the words before it changed, the grammar cannot write the story.
    #[test]
    fn a_word_that_is_decided_can_be_no_other() {
        let (stories, mut kinds) = (Stories::new(21), std::collections::BTreeMap::<String, usize>::new());
        for n in 0..600 {
            let (story, causes) = stories.causes(n);
            assert_eq!(story, stories.story(n));
            for Cause { at, word, kind, because, instead } in causes {
                assert!(story.text[at..].starts_with(&word), "{word:?} in {}", story.text);
                assert!(because.iter().all(|range| range.end <= at), "{word:?} in {}", story.text);
                *kinds.entry(kind.clone()).or_default() += 1;
                if n % 20 == 0 {
                    for other in instead {
                        let changed = format!("{}{other}{}", &story.text[..at], &story.text[at + word.len()..]);
                        assert_eq!(log_probability(&changed), None, "{kind}: {changed}");
                    }
                }
            }
        }
        for kind in ["he", "his", "him", "was", "it", "raced", "g_made", "best", "+named", "+single", "+place"] {
            assert!(kinds.get(kind).is_some_and(|n| *n >= 10), "{kind}: {kinds:?}");
        }
    }

    #[test]
    fn a_pronoun_is_told_by_the_name_and_by_what_agrees_with_it() {
        let mut seen = 0;
        for n in 0..200 {
            let (story, causes) = Stories::new(5).causes(n);
            let Some(first) = causes.iter().find(|cause| cause.kind == "his") else { continue };
            let told: Vec<&str> = first.because.iter().map(|range| story.text[range.clone()].trim()).collect();
            assert!(told.iter().any(|word| word.starts_with(char::is_uppercase)), "{told:?} in {}", story.text);
            let other = |word: &String| [" his", " her", " its"].contains(&&word.to_lowercase()[..]);
            assert!(first.instead.iter().any(other), "{first:?}");
            seen += 1;
        }
        assert!(seen > 100);
    }
}
