//! The steps of a path in words: one or two sentences each, made from the numbers of the run. A number stands behind
//! the name that it belongs to.

use super::{LensWords, PathBar, PathStep, StepKind};
use limpid_base::plural::plural;

/// Parts that a sentence names.
const NAMED: usize = 3;

/// A number with its sign and as many digits as help.
fn signed(value: f64) -> String {
    format!("{}{}", if value < 0.0 { '-' } else { '+' }, size(value))
}

fn size(value: f64) -> String {
    let value = value.abs();
    match value {
        v if v >= 0.0995 => format!("{v:.2}"),
        v if v >= 0.00995 => format!("{v:.3}"),
        v if v >= 0.0005 => format!("{v:.4}"),
        0.0 => "0".into(),
        v => format!("{v:.1e}"),
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

impl PathStep {
    /// What there is to see, in words. `word` is a token as it is shown.
    pub fn sentence(&self, word: &dyn Fn(u32) -> String) -> String {
        if !self.value.is_finite() || self.bars.iter().any(|bar| !bar.value.is_finite()) {
            return "Numbers of this run are NaN or infinite, so nothing adds up: the weights are damaged or too \
                    large."
                .into();
        }
        let here = word(self.token);
        let wrote = || list(&self.named(|bar| format!("{} {}", bar.name, signed(bar.value))));
        match self.kind {
            StepKind::Logit => {
                let target = word(self.asked.target);
                let what = match self.asked.foil {
                    Some(foil) => {
                        let side = if self.value < 0.0 { "behind" } else { "ahead of" };
                        format!("{target} is {side} {} by {} (difference of logits)", word(foil), size(self.value))
                    }
                    None => format!("The logit of {target} is {}", signed(self.value)),
                };
                let parts = if self.bars.len() == 1 { "part is" } else { "parts are" };
                format!("{what}. The largest {parts} {}{}.", wrote(), self.others())
            }
            StepKind::Head { block, head } => self.looked(word, (block, head)),
            StepKind::Carried { block, head } => {
                let words = self.in_words(word, "what it carried");
                format!(
                    "From {here}, L{block}H{head} carried {}{}.{words} It comes from {}{}.",
                    signed(self.value),
                    self.aim(word),
                    wrote(),
                    self.others()
                )
            }
            StepKind::Mlp { block } => {
                let of = self.units;
                let alone = |bar: &PathBar| raised(&bar.words, word, &format!(" By itself {}", bar.name));
                let words = self.bars.first().map(alone).unwrap_or_default();
                format!(
                    "At {here}, L{block} MLP wrote {}{}. The largest parts of its {} are {}{}.{words}",
                    signed(self.value),
                    self.aim(word),
                    plural(of, "unit"),
                    wrote(),
                    self.others()
                )
            }
            StepKind::Unit { block, unit } => {
                let (into, gives) =
                    if self.gated { ("the gate of unit", ", which gave") } else { ("unit", " and gave") };
                let with = if self.gated { " with the unit's other factor" } else { "" };
                let after = self.after.map_or(String::new(), |v| format!("{gives} {}{with}", signed(v.into())));
                let words = self.in_words(word, "what it writes");
                format!(
                    "At {here}, {} went into {into} {unit} of L{block} MLP{after}.{words} What went in was written by \
                     {}{}.",
                    signed(self.value),
                    wrote(),
                    self.others()
                )
            }
            StepKind::Stream { block } => {
                format!(
                    "Before block {block} the stream at {here} held {}{}. It was written by {}{}.",
                    signed(self.value),
                    self.aim(word),
                    wrote(),
                    self.others()
                )
            }
            StepKind::Word => {
                let place = self.position;
                format!(
                    "The word {here} itself, at position {place}, wrote {}{}: its row of the token table. The path \
                     ends here.",
                    signed(self.value),
                    self.aim(word)
                )
            }
        }
    }

    /// Where a head looked, and what came of it.
    fn looked(&self, word: &dyn Fn(u32) -> String, (block, head): (usize, usize)) -> String {
        let here = word(self.token);
        let looked = |bar: &PathBar| {
            let (id, weight) = bar.looked.unwrap_or_default();
            format!("{} {}", word(id), size(f64::from(weight)))
        };
        let at = list(&self.named(looked));
        let most = self.bars.iter().max_by(|a, b| a.value.abs().total_cmp(&b.value.abs()));
        let came = most.and_then(|bar| Some((bar.looked?.0, bar.value)));
        let came = came.map_or(String::new(), |(id, value)| {
            format!("; from {} came {} of its {}", word(id), signed(value), signed(self.value))
        });
        let alone = if self.weights.len() == 1 { ", the one token that there is" } else { "" };
        format!("At {here}, L{block}H{head} looked at {at}{alone}{came}.")
    }

    /// The first bars.
    fn named(&self, say: impl Fn(&PathBar) -> String) -> Vec<String> {
        self.bars.iter().take(NAMED).map(say).collect()
    }

    /// What the bars that are not named add.
    fn others(&self) -> String {
        let count = self.bars.len().saturating_sub(NAMED) + self.rest.count;
        let value = self.bars.iter().skip(NAMED).map(|bar| bar.value).sum::<f64>() + self.rest.value;
        if count == 0 { String::new() } else { format!("; {} {}", plural(count, "other part"), signed(value)) }
    }

    /// Towards what a part counts.
    fn aim(&self, word: &dyn Fn(u32) -> String) -> String {
        match (self.toward, self.asked.foil) {
            (Some((block, unit)), _) => format!(" to what went into unit {unit} of L{block} MLP"),
            (None, Some(foil)) => format!(" for {} over {}", word(self.asked.target), word(foil)),
            (None, None) => format!(" for {}", word(self.asked.target)),
        }
    }

    fn in_words(&self, word: &dyn Fn(u32) -> String, what: &str) -> String {
        raised(&self.words, word, &format!(" Read by the head alone, {what}"))
    }
}

/// The tokens that something raises and lowers most; nothing where the head does not read it.
fn raised(words: &LensWords, word: &dyn Fn(u32) -> String, what: &str) -> String {
    let say = |of: &[(u32, f32)], n: usize| -> Vec<String> {
        of.iter().take(n).map(|(id, by)| format!("{} {}", word(*id), signed(f64::from(*by)))).collect()
    };
    let (up, down) = (say(&words.raised, 2), say(&words.lowered, 1));
    if up.is_empty() {
        String::new()
    } else {
        format!("{what} moves the logits of {} up, and of {} down.", list(&up), list(&down))
    }
}
