//! Encodes text with byte-level byte pairs: special tokens, pieces, merges, on any number of threads.

use std::{
    ops::Range,
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use super::{
    byte_letters,
    markers::{Marker, Markers},
    ranks::{Ranks, Scratch},
    spec::{Merge, Spec, Vocab},
    split::Split,
    steps,
};

/// A byte-level tokenizer.
pub(super) struct Pairs {
    pub split: Split,
    pub ranks: Ranks,
    pub markers: Markers,
}

impl Pairs {
    /// What a tokenizer.json says, if it is this and nothing more: the same ids for every text as HuggingFace's.
    pub(super) fn from_spec(spec: &Spec) -> Option<Pairs> {
        let model = &spec.model;
        let bare = |first: bool| {
            spec.added_tokens.iter().all(|a| !(a.single_word || a.lstrip || a.rstrip) && a.normalized == first)
        };
        let (Vocab::Ids(vocab), Some(listed)) = (&model.vocab, &model.merges) else { return None };
        let same = spec.kind() == "BPE"
            && spec.version == "1.0"
            && spec.normalizer.is_null()
            && spec.is_unmarked()
            && (bare(true) || bare(false));
        let split = steps::split(&spec.pre_tokenizer).filter(|_| same)?;
        let mut ids: std::collections::HashMap<&str, u64> =
            vocab.iter().map(|(token, id)| (token.as_str(), *id)).collect();
        let mut tokens: Vec<(String, u32)> = Vec::with_capacity(ids.len());
        let mut take = |token: &str| {
            tokens.push((token.into(), u32::try_from(ids.remove(token)?).ok()?));
            Some(())
        };
        (0..=255u8).try_for_each(|byte| take(&byte_letters::letters_of(&[byte])))?;
        // A second merge that makes the same token finds it gone.
        listed.iter().try_for_each(|Merge(a, b)| take(&[a.as_str(), b].concat()))?;
        if model.ignore_merges == Some(true) {
            let mut rest: Vec<_> = ids.iter().map(|(token, id)| (*id, token.to_string())).collect();
            rest.retain(|(_, token)| !spec.added_tokens.iter().any(|added| added.content == *token));
            rest.sort();
            tokens.extend(rest.into_iter().map(|(id, token)| (token, id as u32)));
        }
        let bytes: Vec<_> = tokens.iter().map(|(token, _)| byte_letters::bytes_of(token)).collect();
        if bytes.iter().any(Option::is_none) {
            return None;
        }
        let made = byte_letters::merges(&bytes);
        let name = |rank: u32| tokens[rank as usize].0.as_str();
        let listed = listed.iter().map(|Merge(a, b)| Some((a.as_str(), b.as_str())));
        let listed = std::iter::repeat_n(None, 256).chain(listed).chain(std::iter::repeat(None));
        if !made.iter().zip(listed).all(|(made, listed)| made.map(|(a, b)| (name(a), name(b))) == listed) {
            return None;
        }
        let ranks = Ranks::new(bytes.iter().flatten().zip(&tokens).map(|(bytes, (_, id))| (bytes.as_slice(), *id)))?;
        Some(Pairs { split, ranks, markers: Markers::new(spec.added_tokens.iter().map(Marker::from)) })
    }

    /// The ids of `text`.
    pub(super) fn encode(&self, text: &str, specials: bool, threads: usize) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 4 + 1);
        for (plain, marker) in self.markers.cut(text, specials) {
            self.ordinary(&text[plain], threads, &mut out);
            out.extend(marker.map(|marker| marker.id));
        }
        out
    }

    fn ordinary(&self, text: &str, threads: usize, out: &mut Vec<u32>) {
        const PART: usize = 1 << 18;
        if threads < 2 || text.len() < 2 * PART {
            let mut scratch = Scratch::new(text.len());
            return self.split.pieces(text, |piece| self.ranks.encode(piece, &mut scratch, out));
        }
        let parts = parts(text, PART, Split::cut);
        let mut done = share(threads, &parts, |parts| {
            let (mut done, mut scratch) = (Vec::new(), Scratch::new(text.len()));
            for (i, part) in parts {
                let mut ids = Vec::with_capacity(part.len() / 4 + 1);
                self.split.pieces(part, |piece| self.ranks.encode(piece, &mut scratch, &mut ids));
                done.push((i, ids));
            }
            done
        })
        .concat();
        done.sort_unstable_by_key(|(i, _)| *i);
        out.reserve(done.iter().map(|(_, ids)| ids.len()).sum());
        done.iter().for_each(|(_, ids)| out.extend(ids));
    }
}

/// What `work` makes of some of the tasks, each with its number, on every thread. Who panics is heard.
pub(super) fn share<T: Sync, R: Send>(
    threads: usize,
    tasks: &[T],
    work: impl Fn(&mut dyn Iterator<Item = (usize, &T)>) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let own =
        || work(&mut std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)).and_then(|i| Some((i, tasks.get(i)?)))));
    thread::scope(|scope| {
        // a thread that cannot be started leaves its tasks to the others
        let start = |_| thread::Builder::new().spawn_scoped(scope, own).ok();
        let others: Vec<_> = (1..threads.min(tasks.len())).filter_map(start).collect();
        let own = own();
        let joined = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.chain([own]).collect()
    })
}

/// `text` in parts of about that size, cut where `cut` says; larger ones where there is no such place.
pub(super) fn parts(text: &str, size: usize, cut: impl Fn(&str, Range<usize>) -> Option<usize>) -> Vec<&str> {
    let (mut parts, mut from, mut to) = (vec![], 0, size);
    while to < text.len() {
        let mut end = to;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        match cut(text, to - size..end).filter(|&cut| cut > from) {
            Some(cut) => {
                parts.push(&text[from..cut]);
                (from, to) = (cut, cut + size);
            }
            None => to += size,
        }
    }
    parts.push(&text[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_all_done_or_the_panic_is_heard() {
        let tasks: Vec<usize> = (0..200).collect();
        for threads in [1, 2, 7] {
            let mut done = share(threads, &tasks, |some| some.map(|(i, task)| i + task).collect::<Vec<_>>()).concat();
            done.sort();
            assert!(done.iter().enumerate().all(|(i, sum)| *sum == 2 * i) && done.len() == 200);
            for bad in [0, 100, 199] {
                let heard = std::panic::catch_unwind(|| {
                    share(threads, &tasks, |some| some.for_each(|(i, _)| assert_ne!(i, bad)))
                });
                assert!(heard.is_err(), "{threads} threads, task {bad}");
            }
        }
    }
}
