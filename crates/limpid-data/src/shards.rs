//! Shards: files of token ids, mapped. The format is llm.c's: 256 whole numbers of 32 bits, of which the first three
//! say what it is, which version, and how many ids follow.
//!
//! | ids | magic | version | width | |
//! |---|---|---|---|---|
//! | below 65,536 | 20240520 | 1 | 16 bits | llm.c's GPT-2 shards |
//! | any | 20240801 | 7 | 32 bits | llm.c's Llama 3 shards |
//!
//! All numbers are little-endian. Beside `NAME.bin` lies `NAME.idx`: where documents end in it, as 64-bit offsets in
//! ids.

use super::checksum::{hex, same};
use super::corpus_error::{CorpusError, at, bad};
use limpid_base::files::Map;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes before the ids.
pub(super) const START: usize = 1024;
/// Magic, version and bytes of an id, for ids of 16 and of 32 bits.
const FORMS: [(u32, u32, usize); 2] = [(20240520, 1, 2), (20240801, 7, 4)];

/// The header of a shard of `ids` ids.
pub(super) fn header(wide: bool, ids: u32) -> [u8; START] {
    let (magic, version, _) = FORMS[usize::from(wide)];
    let mut bytes = [0; START];
    for (to, number) in bytes.chunks_exact_mut(4).zip([magic, version, ids]) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Maps a file of a prepared folder.
#[allow(unsafe_code)] // what the map asks for, `Shard::open` asks for
fn mapped(path: &Path) -> Result<Map, CorpusError> {
    // SAFETY: `data prepare` writes a file once and never into one that is there; `Shard::open` asks the same of
    // others, and batches find with `Map::check` who does.
    at(path, unsafe { Map::open(path) })
}

/// Ids in a mapped file or in memory, or some of them.
#[derive(Clone)]
pub struct Shard {
    ids: Ids,
    first: usize,
    len: usize,
    ends: Ends,
}

#[derive(Clone)]
enum Ids {
    Held(Arc<Vec<u32>>),
    Mapped { path: PathBuf, map: Arc<Map>, wide: bool },
}

#[derive(Clone)]
enum Ends {
    Held(Vec<usize>),
    Mapped(Arc<Map>),
}

impl Shard {
    /// Ids in memory, and where documents end in them.
    pub(super) fn held(ids: Vec<u32>, ends: Vec<usize>) -> Shard {
        Shard { len: ids.len(), ids: Ids::Held(ids.into()), first: 0, ends: Ends::Held(ends) }
    }

    /// Opens a shard. Where documents end is read from `index`; without one, none does. The files are read in place, so
    /// nobody may write into them meanwhile; replace them by renaming others.
    ///
    /// # Errors
    /// If a file cannot be read, is no shard, or is longer or shorter than its header says.
    pub fn open(path: &Path, index: Option<&Path>) -> Result<Shard, CorpusError> {
        let map = mapped(path)?;
        let number = |i: usize| map.get(4 * i..4 * i + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let Some(form) = FORMS.iter().position(|f| map.len() >= START && f.0 == number(0)) else {
            let what = "it is not a shard of tokens: a shard begins with 20240520 (ids of 16 bits) or 20240801 (32) \
                        and a header of 1024 bytes";
            return Err(bad(path, what));
        };
        let (_, version, width) = FORMS[form];
        if number(1) != version {
            let what = format!("it is a shard of tokens of version {}; limpid reads {version}", number(1));
            return Err(bad(path, what));
        }
        let (len, wanted) = (number(2) as usize, START + width * number(2) as usize);
        if map.len() != wanted {
            let why = if map.len() < wanted { "it lost its tail" } else { "it was changed" };
            return Err(bad(path, format!("its header makes it {wanted} bytes and it is {}: {why}", map.len())));
        }
        let ids = Ids::Mapped { path: path.into(), map: Arc::new(map), wide: width == 4 };
        let mut shard = Shard { ids, first: 0, len, ends: Ends::Held(vec![]) };
        if let Some(index) = index {
            let map = mapped(index)?;
            let is_whole = map.len().is_multiple_of(8);
            shard.ends = Ends::Mapped(Arc::new(map));
            let ascending = (1..shard.documents()).all(|i| shard.end(i - 1) <= shard.end(i));
            if !is_whole || !ascending || shard.documents() > 0 && shard.end(shard.documents() - 1) > len {
                let what = format!("it does not fit the {len} tokens of {}: it was changed", path.display());
                return Err(bad(index, what));
            }
        }
        Ok(shard)
    }

    /// Holds its files, as they were opened, against their checksums: the ids', and the documents' ends'.
    ///
    /// # Errors
    /// Names the one that differs.
    pub(super) fn verify(&self, wanted: [&str; 2]) -> Result<(), CorpusError> {
        let sum = |map: &Map| hex(xxh3_64(map));
        let Ids::Mapped { path, map, .. } = &self.ids else { return Ok(()) };
        same(path, sum(map), wanted[0])?;
        match &self.ends {
            Ends::Mapped(map) => same(&path.with_extension("idx"), sum(map), wanted[1]),
            Ends::Held(_) => Ok(()),
        }
    }

    /// Whether its files are what was opened: one that was cut must not be read.
    ///
    /// # Errors
    /// If one was changed.
    pub(super) fn check(&self) -> Result<(), CorpusError> {
        let Ids::Mapped { path, map, .. } = &self.ids else { return Ok(()) };
        let ends = if let Ends::Mapped(map) = &self.ends { map.check() } else { Ok(()) };
        at(path, map.check().and(ends))
    }

    /// How many ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The id at a place.
    pub fn id(&self, at: usize) -> u32 {
        assert!(at < self.len);
        let at = self.first + at;
        match &self.ids {
            Ids::Held(ids) => ids[at],
            Ids::Mapped { map, wide, .. } => {
                let width = if *wide { 4 } else { 2 };
                let bytes = &map[START + width * at..START + width * (at + 1)];
                bytes.iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte))
            }
        }
    }

    /// Appends the ids of `range`.
    pub fn copy(&self, range: Range<usize>, to: &mut Vec<u32>) {
        assert!(range.end <= self.len);
        let (start, end) = (self.first + range.start, self.first + range.end);
        match &self.ids {
            Ids::Held(ids) => to.extend_from_slice(&ids[start..end]),
            Ids::Mapped { map, wide: true, .. } => {
                let ids = map[START + 4 * start..START + 4 * end].as_chunks().0;
                to.extend(ids.iter().map(|id| u32::from_le_bytes(*id)));
            }
            Ids::Mapped { map, wide: false, .. } => {
                let ids = map[START + 2 * start..START + 2 * end].as_chunks().0;
                to.extend(ids.iter().map(|id| u32::from(u16::from_le_bytes(*id))));
            }
        }
    }

    /// Documents that end in it.
    pub fn documents(&self) -> usize {
        match &self.ends {
            Ends::Held(ends) => ends.len(),
            Ends::Mapped(map) => map.len() / 8,
        }
    }

    /// Where document `i` of them ends.
    pub fn end(&self, i: usize) -> usize {
        match &self.ends {
            Ends::Held(ends) => ends[i],
            Ends::Mapped(map) => u64::from_le_bytes(map.as_chunks().0[i]) as usize,
        }
    }

    /// Documents that end at `at` or before.
    pub fn ends_until(&self, at: usize) -> usize {
        let (mut low, mut high) = (0, self.documents());
        while low < high {
            let middle = (low + high) / 2;
            if self.end(middle) <= at { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The same shard, its documents ending after every `id`, and at its end if it is the `last`.
    pub fn ended_by(mut self, id: Option<u32>, last: bool) -> Shard {
        let mut ends: Vec<usize> = match id {
            Some(id) => (0..self.len).filter(|i| self.id(*i) == id).map(|i| i + 1).collect(),
            None => vec![],
        };
        if last && ends.last() != Some(&self.len) {
            ends.push(self.len);
        }
        self.ends = Ends::Held(ends);
        self
    }

    /// The ids before `at`, and the rest; documents are told anew with [`Shard::ended_by`].
    pub fn split(self, at: usize) -> (Shard, Shard) {
        let at = at.min(self.len);
        let part = |first: usize, len: usize| Shard { first, len, ends: Ends::Held(vec![]), ..self.clone() };
        (part(self.first, at), part(self.first + at, self.len - at))
    }
}

impl PartialEq for Shard {
    fn eq(&self, other: &Shard) -> bool {
        let all = |s: &Shard| (0..s.documents()).map(|i| s.end(i)).collect::<Vec<_>>();
        self.len == other.len && (0..self.len).all(|i| self.id(i) == other.id(i)) && all(self) == all(other)
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Shard({} ids, {} documents)", self.len, self.documents())
    }
}
