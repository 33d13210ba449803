//! Byte pairs by rank: of all neighbours in a piece of text, the two whose union ranks lowest are joined, and again.
//!
//! This is what OpenAI's encodings are, and any byte-level list of merges in which each token has one way to be made
//! (see `byte_letters`). A piece that is a token needs no joining; others are remembered, since texts repeat
//! themselves.

use std::{cmp::Reverse, collections::BinaryHeap};

/// No rank.
const NONE: u32 = u32::MAX;
/// Pieces of more bytes are joined by a heap.
const SHORT: usize = 96;
/// Pieces remembered, a power of two, and the longest of them.
const REMEMBERED: usize = 1 << 14;
const LONGEST: usize = 24;

/// Tokens by rank.
pub(super) struct Ranks {
    /// The tokens' bytes, one after the other, and where each begins.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    ids: Vec<u32>,
    /// Hash and rank of each token, at its hash's place or the next free one.
    regions: Vec<(u32, u32)>,
    longest: usize,
}

/// What encoding needs besides the ranks; kept from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    parts: Vec<(u32, u32)>,
    memory: Vec<Remembered>,
}

#[derive(Clone, Copy, Default)]
struct Remembered {
    piece: [u8; LONGEST],
    size: u8,
    count: u8,
    ids: [u32; 8],
}

fn hash(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |h: u64, word: u64| {
        let wide = u128::from(h ^ word) * u128::from(K | 1 << 63);
        (wide as u64) ^ ((wide >> 64) as u64)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut h = bytes.len() as u64 ^ K;
    for word in words {
        h = mix(h, u64::from_le_bytes(*word));
    }
    let last = match rest {
        [] => 0,
        [a] => u64::from(*a),
        [a, .., b] if rest.len() < 4 => u64::from(*a) | u64::from(*b) << 8 | u64::from(rest[1]) << 16,
        [a, b, c, d, ..] => {
            let end = rest.last_chunk::<4>().map_or(0, |end| u32::from_le_bytes(*end));
            u64::from(u32::from_le_bytes([*a, *b, *c, *d])) | u64::from(end) << 32
        }
        _ => 0,
    };
    mix(h, last)
}

impl Ranks {
    /// Of distinct `tokens`, by rank, each with its id. Every byte must be among them; none otherwise.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (&'a [u8], u32)>) -> Option<Ranks> {
        let mut new = Ranks { bytes: vec![], starts: vec![0], ids: vec![], regions: vec![], longest: 0 };
        for (token, id) in tokens {
            new.bytes.extend(token);
            new.starts.push(u32::try_from(new.bytes.len()).ok()?);
            new.ids.push(id);
            new.longest = new.longest.max(token.len());
        }
        new.regions = vec![(0, NONE); (2 * new.ids.len()).next_power_of_two().max(512)];
        for rank in 0..new.ids.len() as u32 {
            let h = hash(new.token(rank));
            let mut at = h as usize & (new.regions.len() - 1);
            while new.regions[at].1 != NONE {
                at = (at + 1) & (new.regions.len() - 1);
            }
            new.regions[at] = ((h >> 32) as u32, rank);
        }
        (0..=255u8).all(|byte| new.rank(&[byte]) != NONE).then_some(new)
    }

    fn token(&self, rank: u32) -> &[u8] {
        &self.bytes[self.starts[rank as usize] as usize..self.starts[rank as usize + 1] as usize]
    }

    /// The bytes and ids of all, by rank.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (&[u8], u32)> {
        (0..).zip(&self.ids).map(|(rank, id)| (self.token(rank), *id))
    }

    #[inline]
    fn rank(&self, bytes: &[u8]) -> u32 {
        if bytes.len() > self.longest {
            return NONE;
        }
        self.find(bytes, hash(bytes))
    }

    #[inline]
    fn find(&self, bytes: &[u8], h: u64) -> u32 {
        let mut at = h as usize & (self.regions.len() - 1);
        loop {
            let (tag, rank) = self.regions[at];
            if rank == NONE || (tag == (h >> 32) as u32 && self.token(rank) == bytes) {
                return rank;
            }
            at = (at + 1) & (self.regions.len() - 1);
        }
    }

    /// Adds the ids of one piece of text.
    #[inline]
    pub(super) fn encode(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let h = hash(piece);
        let rank = if piece.len() <= self.longest { self.find(piece, h) } else { NONE };
        if rank != NONE {
            return out.push(self.ids[rank as usize]);
        }
        let at = h as usize & (REMEMBERED - 1);
        if let Some(known) = scratch.memory.get(at)
            && known.size as usize == piece.len()
            && known.piece[..piece.len()] == *piece
        {
            return out.extend(&known.ids[..known.count as usize]);
        }
        let from = out.len();
        if piece.len() <= SHORT {
            self.scan(piece, &mut scratch.parts, out);
        } else {
            // (nobody has the memory for a piece longer than LARGEST)
            piece.chunks(LARGEST).for_each(|piece| self.heap(piece, out));
        }
        let count = out.len() - from;
        if let Some(known) = scratch.memory.get_mut(at)
            && piece.len() <= LONGEST
            && count <= known.ids.len()
        {
            (known.size, known.count) = (piece.len() as u8, count as u8);
            known.piece[..piece.len()].copy_from_slice(piece);
            known.ids[..count].copy_from_slice(&out[from..]);
        }
    }

    /// Joins by looking for the lowest rank each time.
    fn scan(&self, piece: &[u8], parts: &mut Vec<(u32, u32)>, out: &mut Vec<u32>) {
        let n = piece.len();
        parts.clear();
        parts.extend((0..n - 1).map(|at| (at as u32, self.rank(&piece[at..at + 2]))));
        parts.extend([(n as u32 - 1, NONE), (n as u32, NONE)]);
        loop {
            let (mut best, mut rank) = (0, NONE);
            for (i, part) in parts.iter().enumerate() {
                if part.1 < rank {
                    (best, rank) = (i, part.1);
                }
            }
            if rank == NONE {
                break;
            }
            parts.remove(best + 1);
            let joined = |i: usize| match parts.get(i + 2) {
                Some(after) => self.rank(&piece[parts[i].0 as usize..after.0 as usize]),
                None => NONE,
            };
            let (own, before) = (joined(best), if best > 0 { joined(best - 1) } else { NONE });
            parts[best].1 = own;
            if best > 0 {
                parts[best - 1].1 = before;
            }
        }
        out.extend(parts.windows(2).map(|w| self.ids[self.rank(&piece[w[0].0 as usize..w[1].0 as usize]) as usize]));
    }

    /// The same for pieces so long that looking through them each time would take too long: 12 bytes for each of
    /// theirs, beside the ids.
    fn heap(&self, piece: &[u8], out: &mut Vec<u32>) {
        let n = piece.len();
        // Where a part begins: where it ends; where it ends, if it has more than one byte: where it begins.
        let mut cells: Vec<Cell> = (1..=n as Cell).collect();
        let end_of = |cells: &[Cell], at: usize| Some(cells[at] as usize).filter(|end| *end > at);
        // A token's bytes say where what is joined to it ends.
        let end = |offer: Offer| offer.at() + self.token(offer.rank()).len();
        let waits = |cells: &[Cell], offer: Offer| {
            let half = end_of(cells, offer.at()).filter(|half| *half < end(offer));
            half.is_some_and(|half| end_of(cells, half) == Some(end(offer)))
        };
        let pair = |at: usize, end: usize| Some(self.rank(&piece[at..end])).filter(|rank| *rank != NONE);
        let mut heap = BinaryHeap::with_capacity(n);
        heap.extend((0..n - 1).filter_map(|at| Some(Reverse(Offer::new(pair(at, at + 2)?, at)))));
        while let Some(Reverse(offer)) = heap.pop() {
            if !waits(&cells, offer) {
                continue; // one of the two has been joined with another since
            }
            let (at, end) = (offer.at(), end(offer));
            let half = cells[at] as usize;
            cells[half] = 0;
            (cells[at], cells[end - 1]) = (end as Cell, at as Cell);
            if heap.len() + 2 > heap.capacity() {
                heap.retain(|Reverse(offer)| waits(&cells, *offer));
            }
            if end < n {
                heap.extend(pair(at, cells[end] as usize).map(|rank| Reverse(Offer::new(rank, at))));
            }
            if at > 0 {
                let before = (cells[at - 1] as usize).min(at - 1);
                heap.extend(pair(before, end).map(|rank| Reverse(Offer::new(rank, before))));
            }
        }
        let mut at = 0;
        while at < n {
            let end = cells[at] as usize;
            out.push(self.ids[self.rank(&piece[at..end]) as usize]);
            at = end;
        }
    }
}

/// A place in a piece of up to [`LARGEST`] bytes.
type Cell = u32;

/// Most bytes that are joined as one.
const LARGEST: usize = Cell::MAX as usize;

/// That what begins at a place and what follows it be joined to the token of that rank; ordered by rank, then by place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Offer(u64);

impl Offer {
    fn new(rank: u32, at: usize) -> Offer {
        Offer(u64::from(rank) << 32 | at as u64)
    }

    fn rank(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn at(self) -> usize {
        self.0 as u32 as usize
    }
}

impl Scratch {
    /// For a text of that many bytes: short ones are not worth remembering pieces of.
    pub(super) fn new(size: usize) -> Scratch {
        let memory = if size < 1 << 16 { vec![] } else { vec![Remembered::default(); REMEMBERED] };
        Scratch { parts: vec![], memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long words are joined as short ones are, whatever the tokens, in 12 bytes for each of theirs.
    #[test]
    fn long_words_are_joined_as_short_ones_in_little_memory() {
        assert_eq!(size_of::<Cell>() + size_of::<Reverse<Offer>>(), 12);
        let mut draw = 7u64;
        let mut next = |below: u64| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) % below
        };
        for letters in [1, 2, 3, 26] {
            // tokens that are put together of others, and by chance of none
            let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
            for _ in 0..60 {
                let size = 2 + next(6);
                let token: Vec<u8> = (0..size).map(|_| b'a' + next(letters) as u8).collect();
                let two = [&tokens[next(tokens.len() as u64) as usize][..], &[b'a' + next(letters) as u8]].concat();
                [token, two].into_iter().for_each(|token| {
                    if !tokens.contains(&token) {
                        tokens.push(token);
                    }
                });
            }
            let ranks = Ranks::new(tokens.iter().map(Vec::as_slice).zip(1000..)).unwrap();
            for size in (2..40).chain([95, 96, 97, 500, 3000]) {
                let piece: Vec<u8> = (0..size).map(|_| b'a' + next(letters) as u8).collect();
                let (mut short, mut long) = (vec![], vec![]);
                ranks.scan(&piece, &mut vec![], &mut short);
                ranks.heap(&piece, &mut long);
                assert_eq!(short, long, "{letters} letters, {size} bytes");
            }
        }
    }
}
