//! What a sweep found, in words.

use super::{NOTHING, Sweep, SweepPeak};

impl Sweep {
    /// Those peaks whose part is not said as 0.00.
    pub fn strong(&self) -> impl Iterator<Item = &SweepPeak> {
        self.peaks.iter().filter(|peak| peak.recovered.abs() >= NOTHING)
    }

    /// What is to be said of the grid before its peaks, where no cell restores anything.
    pub fn nothing_restored(&self) -> Option<&'static str> {
        match self.strong().next() {
            Some(peak) if peak.recovered > 0.0 => None,
            Some(_) => {
                Some("No cell restores any of the difference: patches lead away from the clean run, or change nothing.")
            }
            None => Some("No cell changes the metric by 0.5 % of the difference."),
        }
    }

    /// What a peak is, in a sentence; `words` are the corrupt prompt's tokens.
    pub fn sentence(&self, peak: &SweepPeak, words: &[String]) -> String {
        let mut places = vec![];
        for (axis, at) in self.recovered.axes.iter().zip(&peak.index) {
            let word = || words.get(*at).map_or(String::new(), |word| format!(" ({word})"));
            match *axis {
                "pos" => places.insert(0, format!("position {at}{}", word())),
                "query_pos" => places.push(format!("query {at}{}", word())),
                "key_pos" => places.push(format!("key {at}{}", word())),
                other => places.push(format!("{other} {at}")),
            }
        }
        let (places, size) = (places.join(", "), peak.recovered.abs());
        let text = match peak.recovered {
            v if v <= -NOTHING => format!("{places} leads away from the clean run, by {size:.2} of the difference."),
            _ => format!("{places} restores {:.2} of the difference.", peak.recovered),
        };
        text[..1].to_uppercase() + &text[1..]
    }
}
