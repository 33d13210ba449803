//! The rows of the next run on the device: ids, and lists that kernels walk over, in one buffer of words; the places of
//! the lists are numbers of the dispatches. It is written in one go, before the run that reads it.

use crate::device::{Buffer, GpuDevice};
use crate::memory::Window;
use limpid_core::backend::Result;
use limpid_core::ops::limits::Limits;
use limpid_core::ops::{BLOCK, Batch, Span};

/// Where a kernel finds no list.
pub const NONE: u32 = u32::MAX;

/// A table's ids in order, for the gradient of the table: each different id with the end of its rows, then all rows, id
/// by id.
#[derive(Clone, Copy, Default)]
pub struct Sorted {
    pub at: u32,
    pub ids: usize,
}

/// Rows of a span whose queries attend one by one: so few would leave most lanes of a block idle.
pub const FEW: usize = 8;
/// Numbers of a block of queries.
pub const ITEM: usize = 6;
/// Words of the smallest buffer.
pub const LEAST: usize = 256;

/// Words of the buffer for so many.
pub fn room(words: usize) -> usize {
    words.next_power_of_two().max(LEAST)
}

/// The most words of a batch's lists, but for the slopes and for blocks of the cache that several sequences have.
pub fn most(limits: &Limits, learns: bool) -> usize {
    // ids, positions, segments, targets; blocks of at least one query; three tables' ids with their ends
    let each = 4 + 6 + if learns { 9 } else { 0 };
    each * limits.rows + limits.outputs + limits.blocks.unwrap_or(0)
}

/// A batch, and where its lists are.
#[derive(Default)]
pub struct GpuRows {
    pub batch: Batch,
    words: Vec<u32>,
    buffer: Option<Buffer>,
    soft: Option<Buffer>,
    room: [usize; 2],
    /// ALiBi's slopes, head by head; none without them.
    slopes: Vec<f32>,
    pub tokens: u32,
    pub positions: u32,
    pub segments: u32,
    pub targets: u32,
    pub outputs: u32,
    pub blocks: u32,
    pub slopes_at: u32,
    /// Blocks of 64 queries: each the span's numbers and its first row of the span. First those of spans of more than
    /// [`FEW`] rows, `long` of them.
    pub items: u32,
    pub item_count: usize,
    pub long: usize,
    /// The queries of all other spans, one by one, like blocks.
    pub singles: u32,
    pub single_count: usize,
    /// The most keys of a span.
    pub keys: usize,
    /// Tokens, positions, segments.
    pub sorted: [Sorted; 3],
}

impl GpuRows {
    /// No rows yet, with room for so many words.
    ///
    /// # Errors
    /// If the device has no memory for them.
    pub fn new(device: &GpuDevice, slopes: Vec<f32>, words: usize) -> Result<GpuRows> {
        let room = [room(words), LEAST];
        let [buffer, soft] = room.map(|words| device.reserve("feed", words).map(Some));
        Ok(GpuRows { slopes, buffer: buffer?, soft: soft?, room, ..GpuRows::default() })
    }

    /// Takes a batch and writes it.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn feed(&mut self, device: &GpuDevice, batch: &Batch, learns: bool) -> Result<()> {
        self.batch.copy_from(batch);
        let (rows, words) = (batch.tokens.len(), &mut self.words);
        words.clear();
        let mut put = |list: &[u32]| {
            let at = if list.is_empty() { NONE } else { words.len() as u32 };
            words.extend_from_slice(list);
            at
        };
        self.tokens = put(&batch.tokens);
        self.positions = put(&batch.positions);
        self.segments = put(&batch.segments);
        self.targets = put(&batch.targets);
        self.outputs = put(&batch.outputs);
        self.blocks = put(&batch.blocks);
        self.slopes_at = put(bytemuck::cast_slice(&self.slopes));
        let block = |span: &Span, first: usize| {
            [span.row, span.rows, span.past, span.table, span.valid, first].map(|n| n as u32)
        };
        let long = || batch.spans.iter().filter(|span| span.rows > FEW);
        let few = || batch.spans.iter().filter(|span| span.rows <= FEW);
        let blocks = |span: &'_ Span, step: usize| {
            let span = *span;
            (0..span.rows).step_by(step).flat_map(move |first| block(&span, first))
        };
        let mut items: Vec<u32> = long().flat_map(|span| blocks(span, BLOCK)).collect();
        self.long = items.len() / ITEM;
        items.extend(few().flat_map(|span| blocks(span, BLOCK)));
        let singles: Vec<u32> = few().flat_map(|span| blocks(span, 1)).collect();
        (self.items, self.item_count) = (put(&items), items.len() / ITEM);
        (self.singles, self.single_count) = (put(&singles), singles.len() / ITEM);
        self.keys = batch.spans.iter().map(|span| span.past + span.rows).max().unwrap_or(0);
        if learns {
            for (to, ids) in self.sorted.iter_mut().zip([&batch.tokens, &batch.positions, &batch.segments]) {
                let id = |n: u32| ids.get(n as usize).copied().unwrap_or(0);
                let mut order: Vec<u32> = (0..rows as u32).collect();
                order.sort_by_key(|n| id(*n)); // equal ids stay in the order of rows
                let ends = (1..=rows).filter(|i| *i == rows || id(order[*i]) != id(order[i - 1]));
                let mut list: Vec<u32> = ends.flat_map(|end| [id(order[end - 1]), end as u32]).collect();
                to.ids = list.len() / 2;
                list.extend(order);
                to.at = put(&list);
            }
        }
        let soft: &[u32] = bytemuck::cast_slice(&batch.soft_targets);
        for (list, buffer, i) in [(&self.words[..], &mut self.buffer, 0), (soft, &mut self.soft, 1)] {
            let most = &mut self.room[i];
            if list.len() > *most {
                *most = room(list.len());
                *buffer = Some(device.reserve("feed", *most)?);
            }
            if let (Some(buffer), false) = (buffer, list.is_empty()) {
                device.send(buffer, 0, bytemuck::cast_slice(list));
            }
        }
        device.check("feed")
    }

    /// All lists.
    pub fn window(&self) -> Option<Window> {
        self.buffer.as_ref().map(|buffer| Window::new(buffer, 0..self.room[0]))
    }

    /// The distributions that are the targets.
    pub fn soft(&self) -> Option<Window> {
        self.soft.as_ref().map(|buffer| Window::new(buffer, 0..self.room[1]))
    }
}
