//! The KV cache: f32, or bf16 in half the memory. A value is rounded once, when it is stored, and every row reads what
//! is stored, its own too: so in bf16 as well a row is the same in every run.
#![allow(unsafe_code)] // tasks write disjoint parts of the cache; the block says why they are disjoint

use super::team::ThreadTeam;
use super::{Result, reserve};
use crate::config::Heads;
use crate::kernels::attend::CacheBlocks;
use crate::matrix::arena::Arena;
use crate::matrix::view::Shared;
use crate::numeric::element::Element;
use crate::numeric::half::{nearest_bf16, widen_bf16};
use crate::ops::{BLOCK, Batch, Region};
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

    /// Stores the keys and values of `batch` in their blocks ([`CacheBlocks`]): `x` is (N, (H + K) D + K D_v).
    pub fn store(&mut self, region: Region, x: &[f32], batch: &Batch, heads: Heads, team: &ThreadTeam) {
        let (all, first, keys, element) = (heads.cols(), heads.query_cols(), heads.n_kv_head, self.element);
        let words = |elements: usize| element.bytes(elements) / 4;
        let range = region.range();
        let block = words(BLOCK * heads.cache_cols());
        let blocks = Shared::new(&mut self.arena[words(range.start)..words(range.end)], block);
        team.copies(2 * keys, x.len(), |tile| {
            // of its matrix, the first column in a row of keys and values, and how many it has
            let (start, d) = match tile.checked_sub(keys) {
                None => (tile * heads.d_head, heads.d_head),
                Some(value) => (heads.key_cols() + value * heads.d_value, heads.d_value),
            };
            for span in &batch.spans {
                for i in 0..span.rows {
                    let row = span.cache_row(batch, i);
                    let (at, j) = (row / BLOCK, row % BLOCK);
                    // SAFETY: each task takes its own matrix of every block.
                    let to = unsafe { blocks.part(at..at + 1, words(BLOCK * start)..words(BLOCK * (start + d))) };
                    let values = &x[(span.row + i) * all + first + start..][..d];
                    let place = if tile < keys { (j, BLOCK) } else { (j * d, 1) };
                    put(element, to.into_whole(), place, values);
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
