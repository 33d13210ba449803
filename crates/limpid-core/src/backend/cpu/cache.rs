//! The KV cache: f32, or bf16 in half the memory. A value is rounded once, when it is stored, and every row reads what
//! is stored, its own too: so in bf16 as well a row is the same in every run.

use super::{Result, reserve};
use crate::ops::arena::Arena;
use crate::ops::attend::CacheRows;
use crate::ops::element::{Element, nearest_bf16, widen_bf16};
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
    pub fn part(&self, range: Range<usize>) -> CacheRows<'_> {
        match self.element {
            Element::Bf16 => CacheRows::Bf16(&bytemuck::cast_slice(&self.arena)[range]),
            _ => CacheRows::F32(&self.arena[range]),
        }
    }

    /// Stores values.
    pub fn put(&mut self, at: usize, values: &[f32]) {
        let range = at..at + values.len();
        match self.element {
            Element::Bf16 => {
                let to: &mut [u16] = &mut bytemuck::cast_slice_mut(&mut self.arena)[range];
                to.iter_mut().zip(values).for_each(|(to, value)| *to = nearest_bf16(*value));
            }
            _ => self.arena[range].copy_from_slice(values),
        }
    }

    /// Copies some of its elements.
    pub fn copy(&self, range: Range<usize>, to: &mut [f32]) {
        match self.part(range) {
            CacheRows::F32(from) => to.copy_from_slice(from),
            CacheRows::Bf16(from) => to.iter_mut().zip(from).for_each(|(to, from)| *to = widen_bf16(*from)),
        }
    }
}
