//! The account of the KV cache: which block belongs to whom, and what can be used again.
//!
//! A block has room for the keys and values of [`BLOCK`] positions, in all layers. Attention reduces over keys in the
//! same blocks, at absolute multiples of [`BLOCK`], so it reads whole blocks wherever they lie. A sequence has a
//! [`BlockTable`]: its blocks in the order of its positions.
//!
//! What is in a full block depends on its tokens and on all tokens before them, and on nothing else. So full blocks
//! are known by these ([`BlockPool::register`]), and a sequence that begins with the same tokens holds the same blocks
//! and does not compute them. Tokens are compared, not hashes of tokens: a prefix is never taken for another.
//!
//! Blocks that nobody holds stay known until their memory is wanted, the least recently held first. Of one sequence
//! the last block goes first, for it is useless without those before it.

use crate::ops::{BLOCK, cache_blocks};
use std::collections::{BTreeMap, HashMap};

/// What a full block holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Content {
    /// The number of the content before it; 0 at the beginning of a sequence.
    before: u64,
    /// Its tokens.
    tokens: Box<[u32]>,
}

/// One block.
#[derive(Clone, Debug, Default)]
struct Block {
    /// How many tables have it.
    holders: usize,
    /// The number of its content, which no other content ever had, and the content; if it is known.
    content: Option<(u64, Content)>,
    /// When it was let go.
    since: u64,
}

/// The blocks of a KV cache.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    /// Blocks without content and without holders.
    free: Vec<u32>,
    /// Blocks with content and without holders, by the time they were let go.
    idle: BTreeMap<u64, u32>,
    /// Blocks with content.
    known: HashMap<Content, u32>,
    /// Counts contents.
    contents: u64,
    /// Counts blocks let go.
    time: u64,
}

/// A sequence's blocks. It goes back to its pool ([`BlockPool::release`]).
#[derive(Debug)]
#[must_use = "its blocks stay held until it is released"]
pub struct BlockTable {
    blocks: Vec<u32>,
    /// How many of the first blocks are known.
    known: usize,
    /// The number of the last known content; 0 if there is none.
    before: u64,
    /// Whether its blocks are shared with others.
    shares: bool,
    /// How many blocks it found.
    found: usize,
}

impl BlockTable {
    /// The numbers of its blocks, in the order of positions.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }
    /// How many positions it has room for.
    pub fn positions(&self) -> usize {
        self.blocks.len() * BLOCK
    }
    /// How many positions were in the cache when it was reserved: a multiple of [`BLOCK`].
    pub fn found(&self) -> usize {
        self.found * BLOCK
    }
}

impl BlockPool {
    /// A pool of so many blocks.
    pub fn new(blocks: usize) -> BlockPool {
        let count = u32::try_from(blocks).expect("blocks are numbered in 32 bits");
        BlockPool {
            blocks: vec![Block::default(); blocks],
            free: (0..count).rev().collect(),
            idle: BTreeMap::new(),
            known: HashMap::new(),
            contents: 0,
            time: 0,
        }
    }

    /// How many blocks there are.
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }
    /// How many blocks tables hold.
    pub fn held(&self) -> usize {
        self.capacity() - self.free.len() - self.idle.len()
    }
    /// How many blocks nobody holds, whose content can be used again.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }
    /// How many positions of a sequence that begins with `prefix` are in the cache.
    pub fn found(&self, prefix: &[u32]) -> usize {
        self.find(prefix, usize::MAX).0.len() * BLOCK
    }
    /// Whether a sequence of so many positions fits when nobody else holds a block.
    pub fn fits(&self, positions: usize) -> bool {
        cache_blocks(positions) <= self.capacity()
    }

    /// Blocks for `positions` positions. Those of the longest known beginning of `prefix` are shared; without a
    /// `prefix` none are, neither found nor found by others. `None` if there are too few; nothing is then changed.
    ///
    /// `prefix` are the first tokens of the sequence, as far as their logits are not wanted: what is found is not
    /// computed.
    pub fn reserve(&mut self, prefix: Option<&[u32]>, positions: usize) -> Option<BlockTable> {
        let wanted = cache_blocks(positions);
        let (mut blocks, before) = self.find(prefix.unwrap_or_default(), wanted);
        let found = blocks.len();
        let awakened = blocks.iter().filter(|block| self.blocks[**block as usize].holders == 0).count();
        if wanted - found > self.free.len() + self.idle.len() - awakened {
            return None;
        }
        blocks.iter().for_each(|block| self.hold(*block));
        blocks.extend((found..wanted).map(|_| self.take()));
        Some(BlockTable { blocks, known: found, before, shares: prefix.is_some(), found })
    }

    /// Makes the full blocks of a sequence known; `tokens` are those whose keys and values are in the cache. Of
    /// blocks with the same content one is kept: so the table may have other blocks afterwards, with the same bits.
    pub fn register(&mut self, table: &mut BlockTable, tokens: &[u32]) {
        if !table.shares {
            return;
        }
        for tokens in tokens.chunks_exact(BLOCK).skip(table.known) {
            let own = table.blocks[table.known];
            let content = Content { before: table.before, tokens: tokens.into() };
            let kept = self.known.get(&content).copied().unwrap_or(own);
            if kept == own {
                self.contents += 1;
                self.known.insert(content.clone(), own);
                self.blocks[own as usize].content = Some((self.contents, content));
            } else {
                self.hold(kept);
                self.let_go(own);
                table.blocks[table.known] = kept;
            }
            table.before = self.number(kept);
            table.known += 1;
        }
    }

    /// Takes a sequence's blocks back. Known ones stay known while their memory is not wanted.
    pub fn release(&mut self, table: BlockTable) {
        // the last first: it is then the longest idle
        table.blocks.into_iter().rev().for_each(|block| self.let_go(block));
    }

    /// The known blocks of the longest beginning of `tokens`, at most `most`, and the number of the last content.
    fn find(&self, tokens: &[u32], most: usize) -> (Vec<u32>, u64) {
        let (mut blocks, mut before) = (vec![], 0);
        for tokens in tokens.chunks_exact(BLOCK).take(most) {
            let Some(block) = self.known.get(&Content { before, tokens: tokens.into() }) else { break };
            blocks.push(*block);
            before = self.number(*block);
        }
        (blocks, before)
    }

    fn number(&self, block: u32) -> u64 {
        self.blocks[block as usize].content.as_ref().expect("it is known").0
    }

    fn hold(&mut self, block: u32) {
        let one = &mut self.blocks[block as usize];
        if one.holders == 0 {
            self.idle.remove(&one.since);
        }
        one.holders += 1;
    }

    fn let_go(&mut self, block: u32) {
        let one = &mut self.blocks[block as usize];
        one.holders -= 1;
        match (one.holders, &one.content) {
            (0, None) => self.free.push(block),
            (0, Some(_)) => {
                self.time += 1;
                one.since = self.time;
                self.idle.insert(self.time, block);
            }
            _ => {}
        }
    }

    /// A block without content, which there must be: a free one, or the longest idle.
    fn take(&mut self) -> u32 {
        let block = self.free.pop().unwrap_or_else(|| {
            let (_, block) = self.idle.pop_first().expect("counted before");
            let (_, content) = self.blocks[block as usize].content.take().expect("idle blocks are known");
            self.known.remove(&content);
            block
        });
        self.blocks[block as usize].holders = 1;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `blocks` blocks of tokens, different for each `kind`, and `more` tokens.
    fn tokens(kind: u32, blocks: usize, more: usize) -> Vec<u32> {
        (0..(blocks * BLOCK + more) as u32).map(|position| 1000 * kind + position).collect()
    }

    /// Reserves what `tokens` need, keeps them and releases them. Returns the blocks.
    fn passes(pool: &mut BlockPool, tokens: &[u32]) -> Vec<u32> {
        let mut table = pool.reserve(Some(tokens), tokens.len()).expect("there are enough");
        pool.register(&mut table, tokens);
        let blocks = table.blocks().to_vec();
        pool.release(table);
        blocks
    }

    #[test]
    fn full_blocks_of_the_same_beginning_are_found() {
        let mut pool = BlockPool::new(8);
        let first = tokens(1, 2, 10);
        let blocks = passes(&mut pool, &first);
        assert_eq!((blocks.len(), pool.held(), pool.idle()), (3, 0, 2), "the third is not full");
        let mut other = first.clone();
        other[BLOCK] += 1;
        let cases: [(&[u32], usize); 7] = [
            (&first, 2),
            (&first[..2 * BLOCK], 2),
            (&first[..2 * BLOCK - 1], 1),
            (&first[..BLOCK], 1),
            (&first[..BLOCK - 1], 0),
            (&other, 1),
            (&first[BLOCK..], 0), // the same tokens in another place
        ];
        for (prefix, found) in cases {
            let table = pool.reserve(Some(prefix), 2 * BLOCK + 20).unwrap();
            assert_eq!((table.found(), table.positions()), (found * BLOCK, 3 * BLOCK));
            assert_eq!(table.blocks()[..found], blocks[..found]);
            assert!(
                table.blocks()[found..].iter().all(|block| !blocks[..2].contains(block)),
                "taken while others are free"
            );
            pool.release(table);
        }
        assert_eq!(passes(&mut pool, &[&first[..2 * BLOCK], &tokens(2, 1, 0)].concat())[..2], blocks[..2]);
        assert_eq!(pool.idle(), 3, "the two are the same, and a third came after them");
    }

    #[test]
    fn of_two_that_computed_the_same_one_is_kept() {
        let mut pool = BlockPool::new(6);
        let text = tokens(1, 2, 1);
        let [mut a, mut b] = [(); 2].map(|()| pool.reserve(Some(&text), text.len()).unwrap());
        assert!(a.blocks().iter().all(|block| !b.blocks().contains(block)), "nothing is known yet");
        pool.register(&mut a, &text[..BLOCK]);
        pool.register(&mut b, &text);
        pool.register(&mut a, &text);
        assert_eq!(a.blocks()[..2], b.blocks()[..2]);
        assert_ne!(a.blocks()[2], b.blocks()[2], "each writes to its own last block");
        assert_eq!((pool.held(), pool.idle()), (4, 0));
        pool.release(a);
        assert_eq!((pool.held(), pool.idle()), (3, 0), "b holds the others");
        pool.release(b);
        assert_eq!((pool.held(), pool.idle()), (0, 2));
    }

    #[test]
    fn the_longest_idle_goes_first_and_of_a_sequence_the_last_block() {
        let mut pool = BlockPool::new(4);
        passes(&mut pool, &tokens(1, 2, 0));
        passes(&mut pool, &tokens(2, 2, 0));
        let found = |pool: &BlockPool, kind| pool.find(&tokens(kind, 2, 0), 2).0.len();
        passes(&mut pool, &tokens(1, 1, 0)); // the first block of 1 was used again
        let one = pool.reserve(None, 1).unwrap();
        assert_eq!([found(&pool, 1), found(&pool, 2)], [1, 2]);
        let two = pool.reserve(None, 1).unwrap();
        assert_eq!([found(&pool, 1), found(&pool, 2)], [1, 1]);
        let three = pool.reserve(None, 1).unwrap();
        assert_eq!([found(&pool, 1), found(&pool, 2)], [1, 0]);
        for table in [one, two, three] {
            pool.release(table);
        }
        assert_eq!((pool.held(), pool.idle()), (0, 1), "what was not shared is forgotten");
    }

    /// What is found is not given away to make room for the rest; and a refusal changes nothing.
    #[test]
    fn a_reservation_is_whole_or_none() {
        let mut pool = BlockPool::new(4);
        let text = tokens(1, 2, 0);
        passes(&mut pool, &text);
        let held = pool.reserve(None, BLOCK).unwrap();
        assert!(pool.reserve(Some(&text), 3 * BLOCK + 1).is_none(), "4 of 3");
        assert!(pool.reserve(None, 3 * BLOCK + 1).is_none());
        assert_eq!((pool.held(), pool.idle()), (1, 2));
        let table = pool.reserve(Some(&text), 3 * BLOCK).unwrap();
        assert_eq!((table.found(), pool.held(), pool.idle()), (2 * BLOCK, 4, 0));
        assert!(pool.reserve(None, 1).is_none());
        assert_eq!(pool.reserve(None, 0).unwrap().positions(), 0);
        pool.release(table);
        pool.release(held);
        assert!(pool.fits(4 * BLOCK) && !pool.fits(4 * BLOCK + 1));
    }
}
