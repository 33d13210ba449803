//! Byte pairs by rank: of all neighbours in a piece of text, the two whose union ranks lowest are joined, and again.
//!
//! This is what OpenAI's encodings are, and any byte-level list of merges in which each token has one way to be made (see
//! `byte_letters`). A piece that is a token needs no joining; others are remembered, since texts repeat themselves.

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
        match piece.len() <= SHORT {
            true => self.scan(piece, &mut scratch.parts, out),
            false => self.heap(piece, out),
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

    /// The same for pieces so long that looking through them each time would take too long.
    fn heap(&self, piece: &[u8], out: &mut Vec<u32>) {
        let n = piece.len();
        // Where the part that begins here ends, and where the one before it begins; 0 ends a part that is gone.
        let (mut ends, mut before): (Vec<usize>, Vec<usize>) = (0..n).map(|at| (at + 1, at.wrapping_sub(1))).unzip();
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, at: usize, end: usize| {
            let rank = self.rank(&piece[at..end]);
            if rank != NONE {
                heap.push(Reverse((rank, at, end)));
            }
        };
        (0..n - 1).for_each(|at| offer(&mut heap, at, at + 2));
        while let Some(Reverse((_, at, end))) = heap.pop() {
            let half = ends[at];
            if half == 0 || half >= end || ends[half] != end {
                continue; // one of the two has been joined with another since
            }
            (ends[at], ends[half]) = (end, 0);
            if end < n {
                before[end] = at;
                offer(&mut heap, at, ends[end]);
            }
            if at > 0 {
                offer(&mut heap, before[at], end);
            }
        }
        let mut at = 0;
        while at < n {
            out.push(self.ids[self.rank(&piece[at..ends[at]]) as usize]);
            at = ends[at];
        }
    }
}

impl Scratch {
    /// For a text of that many bytes: short ones are not worth remembering pieces of.
    pub(super) fn new(size: usize) -> Scratch {
        let memory = if size < 1 << 16 { vec![] } else { vec![Remembered::default(); REMEMBERED] };
        Scratch { parts: vec![], memory }
    }
}
