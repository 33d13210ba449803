//! What was found, in words and as JSON. Every number of a sentence is one that was measured.

use super::{CARRIES, Reason, ReasonPart, WordChange};
use crate::trace::attribution::ModelPart;
use serde_json::{Value, json};

/// What a part is called: `L0H1`, `L2 MLP`.
pub fn part_name(part: ModelPart) -> String {
    match part {
        ModelPart::Head { block, head } => format!("L{block}H{head}"),
        ModelPart::Mlp { block } => format!("L{block} MLP"),
        other => format!("{other:?}"),
    }
}

/// The order in which parts are computed.
fn order(part: ModelPart) -> (usize, usize) {
    match part {
        ModelPart::Head { block, head } => (block, head),
        ModelPart::Mlp { block } => (block, usize::MAX),
        _ => (usize::MAX, 0),
    }
}

/// One, two and three.
fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [many @ .., last] => format!("{} and {last}", many.join(", ")),
    }
}

impl ReasonPart {
    /// Where what it wrote by itself and what it is worth differ in sign or by half: what that means.
    pub fn remark(&self, whole: f64) -> Option<&'static str> {
        let (wrote, worth) = (self.wrote?, self.measured.as_ref()?.broken * whole);
        let alike = (wrote - worth).abs() <= 0.5 * wrote.abs().max(worth.abs());
        match () {
            () if wrote * worth < 0.0 => Some("wrote the other way"),
            () if alike => None,
            () if worth.abs() > wrote.abs() => Some("acts through other parts"),
            () => Some("writes it whatever the words"),
        }
    }
}

impl Reason {
    /// What the difference between both texts is.
    pub fn whole(&self) -> f64 {
        self.difference - self.changed_difference
    }

    /// Whether the changed words turn the answer.
    pub fn turned(&self) -> bool {
        self.changed_difference < 0.0
    }

    /// What was found, in one to three sentences. `word` is a token as it is shown.
    pub fn sentence(&self, word: &dyn Fn(u32) -> String) -> String {
        let [answer, foil] = [self.contest.answer, self.contest.foil].map(word);
        if self.difference <= self.noise {
            return format!("{answer} and {foil} are as likely here, so there is nothing to explain: a tie.");
        }
        let ahead = format!("{answer} is ahead of {foil} by {:.2}", self.difference);
        let froms: Vec<String> = self.changes.iter().map(|change| word(change.from)).collect();
        let tos: Vec<String> = self.changes.iter().map(|change| word(change.to)).collect();
        let (because, instead) = (list(&froms), list(&tos));
        if self.turned() {
            let other = -self.changed_difference;
            let (place, carried) = (if froms.len() > 1 { "their" } else { "its" }, self.carried());
            return format!(
                "{ahead} because of {because}: with {instead} in {place} place, {foil} is ahead by {other:.2}.{carried}"
            );
        }
        let strongest = match &self.changes[..] {
            [] => " No other word that is likely in its place keeps the question.".to_string(),
            _ => format!(
                " The strongest change found, {instead} in the place of {because}, leaves {:.2}.",
                self.changed_difference
            ),
        };
        match self.all_changed {
            Some(left) if left >= 0.5 * self.difference => format!(
                "{ahead}, and the words of the text are not the reason: with every word changed it still leads by \
                 {left:.2}. What is frequent in the training text, or the position, makes it likely.{strongest}"
            ),
            _ => format!(
                "{ahead}, and no change of a few words turned that in {} runs.{strongest}{}",
                self.runs,
                self.carried()
            ),
        }
    }

    /// Which parts carry the difference.
    fn carried(&self) -> String {
        let Some(first) = self.parts.first() else { return String::new() };
        let name = part_name(first.part);
        let mut strong: Vec<(&ReasonPart, f64)> = (self.parts.iter().filter(|part| part.restored >= CARRIES))
            .filter_map(|part| Some((part, part.measured.as_ref()?.broken)))
            .collect();
        strong.sort_by_key(|(part, _)| order(part.part));
        let say = |number: &dyn Fn(&(&ReasonPart, f64)) -> String| list(&strong.iter().map(number).collect::<Vec<_>>());
        match (&strong[..], &self.together) {
            ([_, ..], _) => {
                let (carry, they, restore, take) = match strong.len() {
                    1 => ("carries", "it", "restores", "takes"),
                    _ => ("carry", "they", "restore", "take"),
                };
                format!(
                    " {} {carry} it: put back alone, {they} {restore} {} of the difference; exchanged alone, {they} \
                     {take} {} away.",
                    say(&|(part, _)| part_name(part.part)),
                    say(&|(part, _)| format!("{:.2}", part.restored)),
                    say(&|(_, broken)| format!("{broken:.2}"))
                )
            }
            (_, Some((parts, share))) => {
                let names: Vec<String> = parts.iter().map(|part| part_name(*part)).collect();
                format!(
                    " No single part carries it: {name} restores most, {:.2}; {} together restore {share:.2}.",
                    first.restored,
                    list(&names)
                )
            }
            _ => format!(" No single part carries it: {name} restores most, {:.2}.", first.restored),
        }
    }

    /// All of it. `word` is a token as it is shown.
    pub fn json(&self, word: &dyn Fn(u32) -> String) -> Value {
        let token = |id: u32| json!([id, word(id)]);
        let quoted = |id: u32| format!("“{}”", word(id));
        let together = self.together.as_ref().map(|(parts, share)| {
            json!({ "parts": parts.iter().map(|part| part_name(*part)).collect::<Vec<_>>(), "restored": share })
        });
        json!({
            "sentence": self.sentence(&quoted),
            "position": self.contest.row,
            "answer": token(self.contest.answer),
            "foil": token(self.contest.foil),
            "difference": self.difference,
            "turned": self.turned(),
            "changes": self.changes.iter().map(|change| change.json(word)).collect::<Vec<_>>(),
            "changed": self.changed,
            "changed_difference": self.changed_difference,
            "all_changed": self.all_changed,
            "parts": self.parts.iter().map(|part| part.json(self.whole())).collect::<Vec<_>>(),
            "of_parts": self.of_parts,
            "together": together,
            "runs": self.runs,
        })
    }
}

impl WordChange {
    /// The change with its words.
    pub fn json(&self, word: &dyn Fn(u32) -> String) -> Value {
        let [from, to] = [self.from, self.to].map(|id| json!([id, word(id)]));
        json!({ "from": from, "to": to, "places": self.places, "alone": self.alone })
    }
}

impl ReasonPart {
    /// The part with its numbers; `whole` is the difference between both texts.
    pub fn json(&self, whole: f64) -> Value {
        let measured = self.measured.as_ref();
        json!({
            "name": part_name(self.part),
            "part": self.part,
            "restored": self.restored,
            "broken": measured.map(|one| one.broken),
            "at_end": measured.map(|one| one.at_end),
            "direct": measured.map(|one| one.direct),
            "weight": measured.and_then(|one| one.weight),
            "wrote": self.wrote,
            "remark": self.remark(whole),
        })
    }
}
