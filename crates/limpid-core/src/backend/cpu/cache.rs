//! The KV cache: f32, or bf16 in half the memory. A value is rounded once, when it is stored, and every row reads what
//! is stored, its own too: so in bf16 as well a row is the same in every run.
#![allow(unsafe_code)] // tasks write disjoint parts of the cache; the block says why they are disjoint

use super::team::ThreadTeam;
use super::{Result, reserve};
use crate::config::Heads;
use crate::ops::arena::Arena;
use crate::ops::attend::{BLOCK, CacheBlocks};
use crate::ops::element::{Element, nearest_bf16, widen_bf16};
use crate::ops::view::Shared;
use crate::ops::{Batch, Region};
use std::ops::Range;

pub struct Cache {
    arena: Arena,
    element: Element,
}

impl Cache {
    pub fn new(elements: usize, element: Element) -> Result<Cache> {
        Ok(Cache { arena: reserve(element.bytes(elements).div_ceil(4))?, element })
    }

    /// Some of its elements.
    pub fn part(&self, range: Range<usize>) -> CacheBlocks<'_> {
        match self.element {
            Element::Bf16 => CacheBlocks::Bf16(&bytemuck::cast_slice(&self.arena)[range]),
            _ => CacheBlocks::F32(&self.arena[range]),
        }
    }

    /// Stores the keys and values of `batch` in their blocks ([`CacheBlocks`]): `x` is (N, (H + 2K) D).
    pub fn store(&mut self, region: Region, x: &[f32], batch: &Batch, heads: Heads, team: &ThreadTeam) {
        let (d, all, first, element) = (heads.d_head, heads.cols(), heads.query_cols(), self.element);
        let tiles = 2 * heads.key_cols() / d;
        let words = |elements: usize| element.bytes(elements) / 4;
        let range = region.range();
        let blocks = Shared::new(&mut self.arena[words(range.start)..words(range.end)], words(BLOCK * d));
        team.copies(tiles, x.len(), |tile| {
            for span in &batch.spans {
                for i in 0..span.rows {
                    let row = span.cache_row(batch, i);
                    let (at, j) = (row / BLOCK * tiles + tile, row % BLOCK);
                    // SAFETY: each task takes its own matrix of every block.
                    let to = unsafe { blocks.part(at..at + 1, 0..blocks.cols()) }.into_whole();
                    let values = &x[(span.row + i) * all + first + tile * d..][..d];
                    let place = if tile < tiles / 2 { (j, BLOCK) } else { (j * d, 1) };
                    put(element, to, place, values);
                }
            }
        });
    }

    /// Stores values.
    pub fn put(&mut self, at: usize, values: &[f32]) {
        put(self.element, &mut self.arena, (at, 1), values);
    }

    /// Copies some of its elements.
    pub fn copy(&self, range: Range<usize>, to: &mut [f32]) {
        match self.part(range) {
            CacheBlocks::F32(from) => to.copy_from_slice(from),
            CacheBlocks::Bf16(from) => to.iter_mut().zip(from).for_each(|(to, from)| *to = widen_bf16(*from)),
        }
    }
}

/// Stores values as `element`s of `words`, from element `at` on, one in each `step`.
fn put(element: Element, words: &mut [f32], (at, step): (usize, usize), values: &[f32]) {
    match element {
        Element::Bf16 => {
            let to: &mut [u16] = bytemuck::cast_slice_mut(words);
            to[at..].iter_mut().step_by(step).zip(values).for_each(|(to, value)| *to = nearest_bf16(*value));
        }
        _ => words[at..].iter_mut().step_by(step).zip(values).for_each(|(to, value)| *to = *value),
    }
}
