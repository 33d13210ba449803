//! Tokens that are found in a text before it is cut and joined: special tokens, and whatever else a vocabulary has of
//! whole texts.

use std::{cmp::Reverse, ops::Range};

use super::spec::Added;

/// A token that is found in text before all else.
pub(super) struct Marker {
    pub text: String,
    pub id: u32,
    /// Only where special tokens are asked for.
    pub special: bool,
}

impl From<&Added> for Marker {
    fn from(added: &Added) -> Marker {
        Marker { text: added.content.clone(), id: added.id as u32, special: added.special }
    }
}

/// Markers by their first byte, the longest first.
pub(super) struct Markers(Vec<Vec<Marker>>);

impl Markers {
    /// Those of the markers that have a text.
    pub(super) fn new(markers: impl IntoIterator<Item = Marker>) -> Markers {
        let mut groups: Vec<Vec<Marker>> = (0..256).map(|_| vec![]).collect();
        for marker in markers {
            if let Some(first) = marker.text.bytes().next() {
                groups[usize::from(first)].push(marker);
            }
        }
        groups.iter_mut().for_each(|group| group.sort_by_key(|marker| Reverse(marker.text.len())));
        Markers(groups)
    }

    /// Every plain part of `text` with the marker after it; the last part, which may be empty as any other may, has
    /// none. Where several markers begin at one place, the longest counts.
    pub(super) fn cut(&self, text: &str, specials: bool) -> impl Iterator<Item = (Range<usize>, Option<&Marker>)> {
        let is_sought = move |marker: &&Marker| specials || !marker.special;
        let is_any = self.0.iter().flatten().any(|marker| is_sought(&marker));
        let bytes = text.as_bytes();
        let mut rest = Some(0);
        std::iter::from_fn(move || {
            let start = rest?;
            let mut from = if is_any { start } else { bytes.len() };
            while let Some(place) = bytes[from..].iter().position(|byte| !self.0[usize::from(*byte)].is_empty()) {
                let at = from + place;
                let mut group = self.0[usize::from(bytes[at])].iter().filter(is_sought);
                if let Some(found) = group.find(|marker| bytes[at..].starts_with(marker.text.as_bytes())) {
                    rest = Some(at + found.text.len());
                    return Some((start..at, Some(found)));
                }
                from = at + 1;
            }
            rest = None;
            Some((start..bytes.len(), None))
        })
    }
}
