//! The two matches: which kernels an op is, forward and backward, and with which numbers.

use crate::adapter::GpuMatrices;
use crate::device::GpuDevice;
use crate::kernels::{self, GpuKernel, Variant};
use crate::lists::{List, MOST_WORK, MOVED, Word, words};
use crate::memory::{STEP, Space, Window, words_of};
use crate::rows::{GpuRows, ITEM, NONE};
use limpid_core::backend::Result;
use limpid_core::config::{Activation, Constants, Heads, Mask, NormKind};
use limpid_core::kernels::activate;
use limpid_core::kernels::dropout::Draws;
use limpid_core::matrix::Precision;
use limpid_core::ops::{BLOCK, Back, DropoutSpec, MemorySpace, Op, Region, Scoring, qk_norms, qk_widths};
use std::ops::Range;

/// Elements that a workgroup of an elementwise kernel takes (`SHARE` of common.wgsl).
pub const SHARE: usize = 256;
/// The side of a tile of a product; a tall one has twice as many rows.
const TILE: usize = 64;
/// Rows of a product of which each weight is read once (`thin` of linear.wgsl), and columns of its workgroups.
const FEW: usize = 8;
/// Workgroups that keep a device busy, for sums over rows that are cut to get as many.
const BUSY: usize = 256;

/// Numbers of kernels' flags.
mod flag {
    pub const BIAS: u32 = 1;
    pub const ADD: u32 = 2;
    pub const BOTH: [u32; 4] = [1, 2, 4, 8]; // there is a first, and it is added to; likewise a second
    pub const SUMS: u32 = 4;
    pub const SHARES: u32 = 8;
    pub const NORM: [u32; 6] = [1, 2, 4, 8, 16, 32]; // gain, key gain, offset, less one, add, dx
    pub const ATTEND: [u32; 3] = [1, 2, 4]; // drops, add, cached
    pub const CLASSIFY: [u32; 4] = [1, 2, 4, 8]; // tokens, soft, gradient, seen
}

/// The flags that are on.
fn flags<const N: usize>(names: [u32; N], on: [bool; N]) -> u32 {
    names.into_iter().zip(on).filter(|(_, on)| *on).map(|(name, _)| name).sum()
}

/// What the kernels of a model share.
pub struct Memory<'a> {
    pub device: &'a GpuDevice,
    pub spaces: [&'a Space; MemorySpace::ALL.len()],
    pub rows: &'a GpuRows,
    /// Partial sums.
    pub scratch: &'a Window,
    /// A chunk of logits, in rows of [`logits_row`] elements.
    pub logits: &'a Window,
    /// Attention's sums of dy y.
    pub dots: &'a Window,
    /// Rows of a chunk of logits.
    pub chunk: usize,
    /// What operands of products are rounded to.
    pub precision: Precision,
    /// Whether the cache has bf16.
    pub halves: bool,
}

/// What both operands of a product are rounded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounding {
    None,
    Bf16,
    /// By these matrices; `lift` is a power of two that multiplies a before, and divides the sums.
    F16 {
        matrices: GpuMatrices,
        lift: f32,
    },
}

/// One operand of a product: a window, elements from a row of it to the next, and the first column. Four elements are
/// read at once where both numbers are multiples of four; what pads rows to be that is zero.
#[derive(Clone, Copy)]
pub struct Factor<'a> {
    pub window: &'a Window,
    pub row: usize,
    pub at: usize,
}

impl<'a> Factor<'a> {
    /// All of a matrix.
    pub fn whole(window: &'a Window, row: usize) -> Factor<'a> {
        Factor { window, row, at: 0 }
    }
}

/// What goes with a product: a bias that is added to each row, or the sums of a's columns that are added to this.
#[derive(Clone, Copy)]
pub enum ProductExtra<'a> {
    Nothing,
    Bias(&'a Window),
    Sums(&'a Window),
}

/// Elements from a row of logits to the next, a multiple of four. Nothing writes the padding, which is zero.
pub fn logits_row(vocab: usize) -> usize {
    vocab.next_multiple_of(8)
}

/// c (+)= a b + bias, with (m, n, k); `across` says which of a and b are stored transposed. Where a sum is long and
/// there are few tiles, it is cut in shares of fixed length that are added up in order; they need `room`.
#[allow(clippy::too_many_arguments)] // the operands, and how
pub fn product(
    list: &mut List,
    across: [bool; 2],
    [a, b, c]: [Factor; 3],
    beside: ProductExtra,
    [m, n, k]: [usize; 3],
    add: bool,
    room: Option<&Window>,
    rounding: Rounding,
) -> Result<()> {
    let (bias, sums) = match beside {
        ProductExtra::Nothing => (None, None),
        ProductExtra::Bias(bias) => (Some(bias), None),
        ProductExtra::Sums(sums) => (Some(sums), Some(sums)),
    };
    // a share's elements: c's, and the sums behind them
    let each_room = m * n + if sums.is_some() { m } else { 0 };
    let most = room.map_or(1, |room| (room.len as usize / 4) / each_room.max(1));
    let shares = shares([m, n, k]).min(most).max(1);
    let each = k.div_ceil(shares).next_multiple_of(TILE);
    let shares = k.div_ceil(each).max(1);
    let to = room.filter(|_| shares > 1).map(|room| Window::new(&room.buffer, 0..shares * each_room));
    let to = to.as_ref();
    let on = [bias.is_some() && sums.is_none(), add && to.is_none(), sums.is_some(), to.is_some()];
    let flags = flags([flag::BIAS, flag::ADD, flag::SUMS, flag::SHARES], on);
    let c_row = if to.is_some() { n } else { c.row };
    let windows = [Some(a.window), Some(b.window), bias, Some(to.unwrap_or(c.window))];
    // rows of each dispatch: all, or as many as a device may take at once
    let work = |m: usize| 2.0 * m as f64 * n as f64 * k as f64;
    let once = match to {
        Some(_) => m,
        None => ((MOST_WORK / work(1)) as usize / TILE * TILE).max(TILE),
    };
    for first in (0..m).step_by(once.max(1)) {
        let m = once.min(m - first);
        let a_at = a.at + first * if across[0] { 1 } else { a.row };
        let c_at = if to.is_some() { 0 } else { c.at + first * c.row };
        let sums_at = if to.is_some() { m * n } else { first };
        let fours = [(a.row, a_at), (b.row, 0)].map(|(row, at)| row.is_multiple_of(4) && at.is_multiple_of(4));
        let mut words = words![m, n, k, a.row, b.row, c_row, a_at, c_at, flags, sums_at, each, each_room].to_vec();
        let thin = m <= FEW && across == [false, true] && shares == 1;
        let how = Variant { across, fours, rounds: rounding == Rounding::Bf16, ..Variant::default() };
        // large tiles, if they keep a device busy
        let tiles = |high: usize, wide: usize| m.div_ceil(high) * n.div_ceil(wide).max(1) * shares;
        let (kernel, how, workgroups) = match rounding {
            Rounding::F16 { matrices, lift } => {
                words.extend(words![lift, 1.0 / lift]);
                let rows = if tiles(matrices.tile(4), matrices.tile(4)) >= BUSY / 4 { 4 } else { 1 };
                let side = matrices.tile(rows);
                (&kernels::PRODUCT_F16, Variant { rows, matrices: Some(matrices), ..how }, tiles(side, side))
            }
            _ if thin => (&kernels::THIN, Variant { rows: m.next_power_of_two(), ..how }, n.div_ceil(FEW)),
            _ if tiles(2 * TILE, TILE) >= BUSY / 4 => {
                (&kernels::PRODUCT, Variant { rows: 8, ..how }, tiles(2 * TILE, TILE))
            }
            _ => (&kernels::PRODUCT, Variant { rows: 4, ..how }, tiles(TILE, TILE)),
        };
        list.expect(work(m));
        let beside = if sums.is_some() { m } else { bias.map_or(0, |_| n) };
        list.touches(m * k + k * n + shares * m * n + beside);
        list.run(kernel, how, &windows, &words, workgroups)?;
    }
    let Some(to) = to else { return Ok(()) };
    fold(list, to, c.window, m * n, (shares, each_room, 0), add)?;
    sums.map_or(Ok(()), |sums| fold(list, to, sums, m, (shares, each_room, m * n), true))
}

/// In how many shares a product's sums are cut, if there is room, to keep a device busy with few tiles: what is written
/// and read again is at most half of the operands.
pub fn shares([m, n, k]: [usize; 3]) -> usize {
    let tiles = (m.div_ceil(2 * TILE) * n.div_ceil(2 * TILE)).max(1);
    let most = (k * (m + n) + m * n) / (4 * m * n).max(1);
    (BUSY / tiles).min(k / 256).min(most).max(1)
}

/// to (+)= the sum of `parts` stretches of `from`, `room` apart, of which each has `cols` from `at` on.
fn fold(
    list: &mut List,
    from: &Window,
    to: &Window,
    cols: usize,
    (parts, room, at): (usize, usize, usize),
    add: bool,
) -> Result<()> {
    if cols == 0 {
        return Ok(());
    }
    let stripes = (parts / 4).next_power_of_two().min(16);
    let words = words![cols, parts, room, at, add, stripes];
    list.touches((parts + 1) * cols);
    list.run(&kernels::FOLD, Variant::default(), &[Some(from), Some(to)], words, cols.div_ceil(64 / stripes))
}

/// A power of two that makes a weight about 2^8.
fn lift(weight: f32) -> f32 {
    let exponent = (weight.abs().clamp(1e-9, 1.0).to_bits() >> 23) as i32 - 127;
    2f32.powi(8 - exponent)
}

/// Rows of a partial sum of norms' gains, where a row has so many norms: about 16 norms, so that what is written and
/// read again is little beside x, dy and dx, and many workgroups have work.
pub fn norm_rows(norms: usize) -> usize {
    (16 / norms).max(1)
}

impl Memory<'_> {
    fn window(&self, region: Region) -> Window {
        let region = if self.halves { words_of(region) } else { region };
        let window = self.spaces[region.space as usize].window(region.range());
        debug_assert_eq!(window.shift, 0, "tensors begin at a multiple of {STEP}");
        window
    }
    fn some(&self, region: Option<Region>) -> Option<Window> {
        region.map(|region| self.window(region))
    }
    /// The rows of a table in parts that a kernel can see.
    fn parts(&self, table: Region) -> impl Iterator<Item = (Range<usize>, Region)> + use<> {
        let rows = (self.device.adapter.binding_bytes as usize / 4 / table.cols / STEP * STEP).max(STEP);
        (0..table.rows).step_by(rows).map(move |at| {
            let part = at..(at + rows).min(table.rows);
            (part.clone(), Region { at: table.at + at * table.cols, rows: part.len(), ..table })
        })
    }
    /// How products round, of values or of gradients. Those lie below the range of f16, since each row has the weight
    /// of its loss; as if that were about 2^8 they are far from both ends: no scale must be found, and none be kept
    /// with a run.
    fn rounding(&self, gradients: bool) -> Rounding {
        let lift = if gradients { lift(self.rows.batch.weight) } else { 1.0 };
        match (self.precision, self.device.adapter.matrices) {
            (Precision::Bf16, _) => Rounding::Bf16,
            (Precision::F16, Some(matrices)) => Rounding::F16 { matrices, lift },
            _ => Rounding::None,
        }
    }
    fn draws(&self, drop: Option<DropoutSpec>) -> Option<Draws> {
        drop.map(|drop| Draws::new(drop, self.rows.batch.seed)).filter(|draws| !draws.is_identity())
    }

    /// The forward of one op.
    ///
    /// # Errors
    /// If a kernel does not compile.
    pub fn forward(&self, list: &mut List, op: Op) -> Result<()> {
        let (rows, plain) = (self.rows, Variant::default());
        let batch = rows.window();
        let batch = batch.as_ref();
        match op {
            Op::Embed { table, positions, segments, y, token, position } => {
                self.look(list, table, rows.tokens, [positions, segments], y)?;
                token.map_or(Ok(()), |to| self.look(list, table, rows.tokens, [None; 2], to))?;
                let both = positions.zip(position);
                both.map_or(Ok(()), |(of, to)| self.look(list, of, rows.positions, [None; 2], to))
            }
            Op::Norm { kind, eps, x, gain, offset, less_one, y, stats, normalized, scale } => {
                let one = Norms { heads: None, together: false, kind, eps, less_one };
                self.norm(list, &one, x, [gain, None], offset, y, stats)?;
                let (Some(normalized), Some(scale)) = (normalized, scale) else { return Ok(()) };
                self.norm(list, &one, x, [None; 2], None, normalized, stats)?;
                let windows = [None, Some(&self.window(stats)), None, None, Some(&self.window(scale))];
                list.run(&kernels::NORM_SCALE, plain, &windows, words![x.rows], x.rows.div_ceil(64))
            }
            Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, y, stats, heads } => {
                let two = Norms { heads: Some(heads), together, kind, eps, less_one };
                self.norm(list, &two, x, [q_gain, k_gain], None, y, stats)
            }
            Op::Linear { x, w, b, y } => {
                self.linear(list, &self.window(x), w, b, Factor::whole(&self.window(y), w.rows), x.rows)
            }
            Op::Rotate { x, y, angles, heads } => self.rotate(list, x, angles, heads, 1.0, y, false),
            Op::Attend { qkv, cache, y, lse, heads, scoring, drop, raw, scores, pattern } => {
                let (cache_len, singles) = (cache.map_or(0, |cache| cache.len()), rows.single_count);
                let (x, cache, y) = (self.window(qkv), self.some(cache), self.window(y));
                let how = Variant::heads(heads.d_head, self.halves);
                let words = self.attention(heads, scoring, drop, false, cache.is_some(), pattern);
                let lse = self.window(lse);
                if cache.is_some() {
                    let windows = [Some(&x), batch, None, None, None, None, None, cache.as_ref()];
                    list.run(&kernels::STORE, how, &windows, &words, rows.item_count * 64)?;
                }
                let windows = [Some(&x), batch, None, Some(&y), Some(&lse), None, None, cache.as_ref()];
                let lists = [
                    (&kernels::ATTEND, rows.items, rows.long, BLOCK),
                    (&kernels::ATTEND_ONE, rows.singles, rows.single_count, 1),
                ];
                let all = qkv.len() + heads.query_cols() * qkv.rows + heads.n_head * qkv.rows + cache_len;
                for ((kernel, at, count, queries), n) in lists.into_iter().zip([qkv.rows - singles, singles]) {
                    let cost = (4.0, all * n / qkv.rows);
                    self.attend(list, kernel, how, &windows, &words, (at, count, queries), heads.n_head, cost)?;
                }
                let [Some(raw), Some(scores), Some(pattern)] = [raw, scores, pattern].map(|s| self.some(s)) else {
                    return Ok(());
                };
                let seen = [Some(&raw), Some(&scores), Some(&pattern)];
                let windows = [Some(&x), batch, None, None, Some(&lse), seen[0], seen[1], seen[2]];
                list.run(&kernels::WATCH, how, &windows, &words, rows.item_count * 64 * heads.n_head)
            }
            Op::Activate { f, k, x, y } => {
                let [leak, a, b] = constants(k);
                let windows = [Some(&self.window(x)), Some(&self.window(y))];
                let words = words![x.len(), number(f), false, leak, a, b];
                list.run(&kernels::ACTIVATE, plain, &windows, words, x.len().div_ceil(SHARE))
            }
            Op::Add { a, b, scale, y } => {
                let windows = [Some(&self.window(a)), Some(&self.window(y)), Some(&self.window(b))];
                list.run(&kernels::ADD, plain, &windows, words![y.len(), false, scale], y.len().div_ceil(SHARE))
            }
            Op::Multiply { a, b, y } => self.multiply(list, a, b, y, false),
            Op::Scale { x, y, factor, cap } => {
                let windows = [Some(&self.window(x)), Some(&self.window(y))];
                list.run(&kernels::SCALE, plain, &windows, words![x.len(), false, factor, cap], x.len().div_ceil(SHARE))
            }
            Op::Dropout { x, y, drop } => self.dropout(list, x, drop, y, false),
            Op::Gather { x, y } => {
                let windows = [Some(&self.window(x)), Some(&self.window(y)), batch];
                let words = self.gathered(y, false);
                list.run(&kernels::GATHER, plain, &windows, &words, y.len().div_ceil(SHARE))
            }
            Op::Classify { .. } => self.classify(list, op, None),
        }
    }

    /// The backward of one op.
    ///
    /// # Errors
    /// If a kernel does not compile.
    pub fn backward(&self, list: &mut List, step: Back) -> Result<()> {
        let (rows, plain) = (self.rows, Variant::default());
        let batch = rows.window();
        let batch = batch.as_ref();
        let Some(given) = step.dy else { return self.classify(list, step.op, Some(step)) };
        let dy = self.window(given);
        let [first, second] = step.dx;
        let to = first.map(|dx| (self.window(dx.region), dx.add));
        match step.op {
            Op::Classify { .. } => unreachable!("the loss has no output"),
            Op::Embed { table, positions, segments, .. } => {
                self.embed_back(list, [Some(table), positions, segments], given, step.watched)
            }
            Op::Norm { kind, eps, x, gain, offset, less_one, stats, .. } => {
                let one = Norms { heads: None, together: false, kind, eps, less_one };
                self.norm_back(list, &one, x, [gain, None], offset, &dy, stats, to.as_ref())?;
                let [Some(normalized), Some(scale), _] = step.watched else { return Ok(()) };
                let words = one.words(x, flags(flag::NORM, [gain.is_some(), false, false, less_one, false, false]));
                let gain = self.some(gain);
                let [x_window, stats, scale, normalized] = [x, stats, scale, normalized].map(|s| self.window(s));
                let windows =
                    [Some(&x_window), Some(&stats), gain.as_ref(), Some(&scale), Some(&normalized), Some(&dy)];
                list.run(&kernels::NORM_WATCH, plain, &windows, &words, x.rows)
            }
            Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, stats, heads, .. } => {
                let two = Norms { heads: Some(heads), together, kind, eps, less_one };
                self.norm_back(list, &two, x, [q_gain, k_gain], None, &dy, stats, to.as_ref())
            }
            Op::Linear { x, w, b, .. } => {
                let dy = Factor::whole(&dy, w.rows);
                if let Some((dx, add)) = &to {
                    self.linear_back_x(list, dy, w, dx, x.rows, *add)?;
                }
                self.linear_back_w(list, dy, &self.window(x), w, b, x.rows)
            }
            Op::Rotate { angles, heads, .. } => match first {
                Some(dx) => self.rotate(list, given, angles, heads, -1.0, dx.region, dx.add),
                None => Ok(()),
            },
            Op::Attend { .. } => to.map_or(Ok(()), |to| self.attend_back(list, step, &dy, to)),
            Op::Activate { f, k, x, .. } => {
                let [leak, a, b] = constants(k);
                let Some((dx, add)) = &to else { return Ok(()) };
                let windows = [Some(&self.window(x)), Some(dx), Some(&dy)];
                let words = words![x.len(), number(f), *add, leak, a, b];
                list.run(&kernels::ACTIVATE_BACK, plain, &windows, words, x.len().div_ceil(SHARE))
            }
            Op::Add { scale, y, .. } => {
                let to = [first, second].map(|dx| dx.map(|dx| (self.window(dx.region), dx.add)));
                let adds = to.each_ref().map(|to| to.as_ref().is_some_and(|(_, add)| *add));
                let on = flags(flag::BOTH, [to[0].is_some(), adds[0], to[1].is_some(), adds[1]]);
                let [da, db] = to.each_ref().map(|to| to.as_ref().map(|(dx, _)| dx));
                let words = words![y.len(), on, scale];
                list.run(&kernels::ADD_BACK, plain, &[Some(&dy), da, db], words, y.len().div_ceil(SHARE))
            }
            Op::Multiply { a, b, .. } => {
                for (dx, other) in [first, second].into_iter().zip([b, a]) {
                    dx.map_or(Ok(()), |dx| self.multiply(list, given, other, dx.region, dx.add))?;
                }
                Ok(())
            }
            Op::Scale { y, factor, cap, .. } => {
                let Some((dx, add)) = &to else { return Ok(()) };
                let windows = [Some(&dy), Some(dx), Some(&self.window(y))];
                let words = words![y.len(), *add, factor, cap];
                list.run(&kernels::SCALE_BACK, plain, &windows, words, y.len().div_ceil(SHARE))
            }
            Op::Dropout { drop, .. } => first.map_or(Ok(()), |dx| self.dropout(list, given, drop, dx.region, dx.add)),
            Op::Gather { x, .. } => {
                let Some((dx, add)) = &to else { return Ok(()) };
                let words = self.gathered(x, *add);
                list.run(&kernels::GATHER_BACK, plain, &[Some(&dy), Some(dx), batch], &words, x.len().div_ceil(SHARE))
            }
        }
    }

    /// Adds the gradient of the embedding to the rows of its tables.
    fn embed_back(
        &self,
        list: &mut List,
        tables: [Option<Region>; 3],
        given: Region,
        watched: [Option<Region>; 3],
    ) -> Result<()> {
        let (rows, plain) = (self.rows, Variant::default());
        let (batch, dy) = (rows.window(), self.window(given));
        let batch = batch.as_ref();
        for (table, sorted) in tables.into_iter().zip(rows.sorted) {
            let Some(table) = table.filter(|table| table.learns()) else { continue };
            for (part, grad) in self.parts(table.grad()) {
                let windows = [Some(&self.window(grad)), batch, Some(&dy)];
                let words = words![sorted.ids, table.cols, sorted.at, part.start, part.end];
                let whole = given.len() + sorted.ids * table.cols;
                list.touches(whole * part.len() / table.rows + given.rows + 2 * sorted.ids);
                list.run(&kernels::SPREAD, plain, &windows, words, sorted.ids * table.cols.div_ceil(64))?;
            }
        }
        for seen in watched.into_iter().flatten() {
            self.duplicate(list, &dy, seen)?;
        }
        Ok(())
    }

    /// The gradient of queries, keys and values, and those of scores and weights where they are watched.
    fn attend_back(&self, list: &mut List, step: Back, dy: &Window, (dx, add): (Window, bool)) -> Result<()> {
        let Op::Attend { qkv, y, lse, heads, scoring, drop, .. } = step.op else { unreachable!("it is attention") };
        let rows = self.rows;
        let batch = rows.window();
        let batch = batch.as_ref();
        let (x, y, lse) = (self.window(qkv), self.window(y), self.window(lse));
        let how = Variant::heads(heads.d_head, self.halves);
        let words = self.attention(heads, scoring, drop, add, false, step.watched[0]);
        let (n, dots) = (rows.item_count, Some(self.dots));
        let windows = [Some(&x), batch, Some(&y), Some(&dx), Some(&lse), Some(dy), dots, None];
        let (all, group) = ((rows.items, n, BLOCK), heads.n_head / heads.n_kv_head);
        // both read queries, keys, values, dy, and a number or two for each query of a head; one y too; each writes its
        // own
        let (queries, seen) = (heads.query_cols() * qkv.rows, 2 * heads.n_head * qkv.rows);
        let read = qkv.len() + queries + seen;
        let cost = [(6.0, read + 2 * queries), (8.0 * group as f64, read + qkv.len() - queries)];
        self.attend(list, &kernels::ATTEND_BACK_Q, how, &windows, &words, all, heads.n_head, cost[0])?;
        self.attend(list, &kernels::ATTEND_BACK_KV, how, &windows[..7], &words, all, heads.n_kv_head, cost[1])?;
        let [Some(a), Some(b), Some(c)] = step.watched else { return Ok(()) };
        let [draw, dpattern] = [a, c].map(|s| self.window(s));
        let own = [Some(&x), batch, Some(&draw), None, Some(&lse), Some(dy), dots, Some(&dpattern)];
        list.run(&kernels::WATCH_BACK, how, &own, &words, n * 64 * heads.n_head)?;
        self.duplicate(list, &draw, b)
    }

    fn look(&self, list: &mut List, table: Region, ids: u32, others: [Option<Region>; 2], y: Region) -> Result<()> {
        let [positions, segments] = others.map(|s| self.some(s));
        let (batch, to) = (self.rows.window(), self.window(y));
        let on = flags([1, 2], others.map(|s| s.is_some()));
        for (part, of) in self.parts(table) {
            let windows = [Some(&self.window(of)), positions.as_ref(), segments.as_ref(), batch.as_ref(), Some(&to)];
            let places = [ids, self.rows.positions, self.rows.segments];
            let words = words![y.rows, y.cols, places[0], places[1], places[2], part.start, part.end, on];
            let read = [Some(of), others[0], others[1]].into_iter().flatten().map(|table| table.len().min(y.len()));
            // a part has its share of the ids, by guess
            list.touches((read.sum::<usize>() + y.len()) * part.len() / table.rows + 2 * y.rows);
            list.run(&kernels::LOOK, Variant::default(), &windows, words, y.len().div_ceil(SHARE))?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // the operands of one op
    fn norm(
        &self,
        list: &mut List,
        norms: &Norms,
        x: Region,
        gains: [Option<Region>; 2],
        offset: Option<Region>,
        y: Region,
        stats: Region,
    ) -> Result<()> {
        let on = [gains[0].is_some(), gains[1].is_some(), offset.is_some(), norms.less_one, false, false];
        let words = norms.words(x, flags(flag::NORM, on));
        let [gain, other] = [gains[0], offset.or(gains[1])].map(|s| self.some(s));
        let windows =
            [Some(&self.window(x)), Some(&self.window(stats)), gain.as_ref(), other.as_ref(), Some(&self.window(y))];
        list.run(&kernels::NORM, Variant::default(), &windows, &words, x.rows * norms.workgroups())
    }

    /// dx, and the gradients of gains and offset.
    #[allow(clippy::too_many_arguments)] // the operands of one op
    fn norm_back(
        &self,
        list: &mut List,
        norms: &Norms,
        x: Region,
        gains: [Option<Region>; 2],
        offset: Option<Region>,
        dy: &Window,
        stats: Region,
        to: Option<&(Window, bool)>,
    ) -> Result<()> {
        let add = to.is_some_and(|(_, add)| *add);
        let on = [gains[0].is_some(), gains[1].is_some(), false, norms.less_one, add, to.is_some()];
        let learned = [gains[0], gains[1], offset].map(|s| s.filter(|s| s.learns()));
        if to.is_none() && learned == [None; 3] {
            return Ok(());
        }
        let mut room = 0;
        let places = learned.map(|s| s.map(|s| (room, room += s.len()).0));
        let (each, kinds) = norms.blocks();
        let blocks = x.rows.div_ceil(each);
        let sums = Window::new(&self.scratch.buffer, 0..blocks * room);
        let [a, b, c] = places.map(|place| place.map_or(Word(NONE), Word::from));
        let words = [norms.words(x, flags(flag::NORM, on)), vec![each.into(), room.into(), a, b, c]].concat();
        let [gain, other] = gains.map(|s| self.some(s));
        let (x_window, stats) = (self.window(x), self.window(stats));
        let dx = to.map(|(dx, _)| dx);
        let sums_window = Some(&sums).filter(|_| room > 0);
        let windows = [Some(&x_window), Some(&stats), gain.as_ref(), other.as_ref(), dx, Some(dy), sums_window];
        list.expect(MOVED * x.len() as f64);
        list.run(&kernels::NORM_BACK, Variant::default(), &windows, &words, blocks * kinds)?;
        for (region, place) in learned.into_iter().zip(places) {
            let Some((region, place)) = region.zip(place) else { continue };
            fold(list, &sums, &self.window(region.grad()), region.len(), (blocks, room, place), true)?;
        }
        Ok(())
    }

    /// y = x w' + b
    fn linear(&self, list: &mut List, x: &Window, w: Region, b: Option<Region>, y: Factor, rows: usize) -> Result<()> {
        for (part, of) in self.parts(w) {
            let weight = self.window(of);
            let bias = b.map(|b| self.window(Region { at: b.at + part.start, cols: part.len(), ..b }));
            let to = Factor { at: part.start, ..y };
            let operands = [Factor::whole(x, w.cols), Factor::whole(&weight, w.cols), to];
            let bias = bias.as_ref().map_or(ProductExtra::Nothing, ProductExtra::Bias);
            let size = [rows, part.len(), w.cols];
            product(list, [false, true], operands, bias, size, false, None, self.rounding(false))?;
        }
        Ok(())
    }

    /// dx (+)= dy w
    fn linear_back_x(&self, list: &mut List, dy: Factor, w: Region, dx: &Window, rows: usize, add: bool) -> Result<()> {
        for (part, of) in self.parts(w) {
            let weight = self.window(of);
            let from = Factor { at: part.start, ..dy };
            let operands = [from, Factor::whole(&weight, w.cols), Factor::whole(dx, w.cols)];
            let add = add || part.start > 0;
            let (size, room) = ([rows, w.cols, part.len()], Some(self.scratch));
            product(list, [false; 2], operands, ProductExtra::Nothing, size, add, room, self.rounding(true))?;
        }
        Ok(())
    }

    /// dw += dy' x, db += the columns' sums of dy
    fn linear_back_w(
        &self,
        list: &mut List,
        dy: Factor,
        x: &Window,
        w: Region,
        b: Option<Region>,
        rows: usize,
    ) -> Result<()> {
        let b = b.filter(|b| b.learns());
        // without columns the sums of dy alone
        let cols = if w.learns() { w.cols } else { 0 };
        if cols == 0 && b.is_none() {
            return Ok(());
        }
        for (part, of) in self.parts(w.grad()) {
            // what is frozen has no gradient, and no place for one
            let grad = if w.learns() { self.window(of) } else { Window::no_output(self.device) };
            let from = Factor { at: part.start, ..dy };
            let operands = [from, Factor::whole(x, w.cols), Factor::whole(&grad, w.cols)];
            let sums = b.map(|b| self.window(Region { at: b.at + part.start, cols: part.len(), ..b }.grad()));
            let sums = sums.as_ref().map_or(ProductExtra::Nothing, ProductExtra::Sums);
            let (size, room) = ([part.len(), cols, rows], Some(self.scratch));
            product(list, [true, false], operands, sums, size, true, room, self.rounding(true))?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // the operands of one op
    fn rotate(
        &self,
        list: &mut List,
        x: Region,
        angles: Region,
        heads: Heads,
        sign: f32,
        y: Region,
        add: bool,
    ) -> Result<()> {
        let batch = self.rows.window();
        let windows = [Some(&self.window(x)), Some(&self.window(angles)), batch.as_ref(), Some(&self.window(y))];
        let turned = heads.query_cols() + heads.key_cols();
        let words = words![x.rows, x.cols, heads.d_head, turned, angles.cols, self.rows.positions, sign, add];
        list.run(&kernels::ROTATE, Variant::default(), &windows, words, x.len().div_ceil(SHARE))
    }

    fn multiply(&self, list: &mut List, a: Region, b: Region, y: Region, add: bool) -> Result<()> {
        let windows = [Some(&self.window(a)), Some(&self.window(y)), Some(&self.window(b))];
        list.run(&kernels::MULTIPLY, Variant::default(), &windows, words![y.len(), add], y.len().div_ceil(SHARE))
    }

    /// A copy; wgpu's own goes from one buffer to another only.
    fn duplicate(&self, list: &mut List, of: &Window, to: Region) -> Result<()> {
        let windows = [Some(of), Some(&self.window(to)), None];
        let words = words![to.len(), flag::BOTH[0], 1f32];
        list.run(&kernels::ADD_BACK, Variant::default(), &windows, words, to.len().div_ceil(SHARE))
    }

    fn dropout(&self, list: &mut List, x: Region, drop: DropoutSpec, y: Region, add: bool) -> Result<()> {
        let windows = [Some(&self.window(x)), Some(&self.window(y))];
        let draws = Draws::new(drop, self.rows.batch.seed);
        let stream = [draws.stream as u32, (draws.stream >> 32) as u32];
        let words = words![x.len(), add, 0u32, 0u32, stream[0], stream[1], draws.threshold, draws.kept];
        list.run(&kernels::DROPOUT, Variant::default(), &windows, words, x.len().div_ceil(SHARE))
    }

    fn gathered(&self, of: Region, add: bool) -> Vec<Word> {
        let zero = 0u32;
        let count = self.rows.batch.outputs.len();
        words![of.len(), add, zero, zero, zero, zero, zero, zero, of.cols, self.rows.outputs, count].to_vec()
    }

    /// The numbers of attention's kernels.
    fn attention(
        &self,
        heads: Heads,
        scoring: Scoring,
        drop: Option<DropoutSpec>,
        add: bool,
        cached: bool,
        watched: Option<Region>,
    ) -> Vec<Word> {
        let rows = self.rows;
        let draws = self.draws(drop);
        let on = flags(flag::ATTEND, [draws.is_some(), add, cached]);
        let (stream, threshold, kept) = draws.map_or((0, 0, 1.0), |d| (d.stream, d.threshold, d.kept));
        let mask = match scoring.mask {
            Mask::Causal => 0u32,
            Mask::Bidirectional => 1,
            Mask::None => 2,
        };
        let slopes = if scoring.alibi { rows.slopes_at } else { NONE };
        let wide = watched.map_or(0, |s| s.cols / heads.n_head);
        let [low, high] = [stream as u32, (stream >> 32) as u32];
        [
            words![heads.n_head, heads.n_kv_head, heads.cols(), heads.query_cols(), rows.items, rows.blocks],
            words![mask, scoring.window, scoring.scale, scoring.cap, slopes, rows.item_count],
            words![low, high, threshold, kept, on, wide],
        ]
        .concat()
    }

    /// A kernel of attention on items of so many queries, a workgroup for each of `heads`, that takes `work` operations
    /// for each feature of each query and key, and touches so many elements in all: in as many dispatches as a device
    /// may take at once.
    #[allow(clippy::too_many_arguments)] // a dispatch, and what it is about
    fn attend(
        &self,
        list: &mut List,
        kernel: &'static GpuKernel,
        how: Variant,
        windows: &[Option<&Window>],
        words: &[Word],
        (at, count, queries): (u32, usize, usize),
        heads: usize,
        (work, touched): (f64, usize),
    ) -> Result<()> {
        let work = work * (queries * self.rows.keys * how.d * heads) as f64;
        let once = ((MOST_WORK / work) as usize).max(1);
        let mut words = words.to_vec();
        for first in (0..count).step_by(once) {
            let n = once.min(count - first);
            [words[4], words[11]] = [Word::from(at as usize + ITEM * first), n.into()];
            list.expect(work * n as f64);
            list.touches(touched * n / count + ITEM * n);
            list.run(kernel, how, windows, &words, n * heads)?;
        }
        Ok(())
    }

    /// Head and loss, chunk by chunk; with `back` the gradients too.
    fn classify(&self, list: &mut List, op: Op, back: Option<Back>) -> Result<()> {
        let Op::Classify { x, w, b, cap, losses, logits, probs } = op else {
            unreachable!("only the loss has no output")
        };
        let (rows, v) = (self.rows, w.rows);
        let batch = &rows.batch;
        let [seen, probs] = match back {
            Some(back) => [back.watched[0], None],
            None => [logits, probs],
        }
        .map(|s| self.some(s));
        let given = !batch.soft_targets.is_empty();
        let tokens = !given && rows.targets != NONE;
        let on = flags(flag::CLASSIFY, [tokens, given, back.is_some(), seen.is_some()]);
        let (list_window, soft, to) = (rows.window(), rows.soft(), self.window(losses));
        let (logits, row) = (self.logits, logits_row(v));
        let chunk = Factor::whole(logits, row);
        for first in (0..losses.rows).step_by(self.chunk) {
            let n = self.chunk.min(losses.rows - first);
            let part = |region: Region| Region { at: region.at + first * region.cols, rows: n, ..region };
            let of = self.window(part(x));
            self.linear(list, &of, w, b, chunk, n)?;
            let windows = [Some(logits), list_window.as_ref(), soft.as_ref(), Some(&to), seen.as_ref(), probs.as_ref()];
            let terms = batch.terms;
            let words = words![n, first, v, row, cap, batch.weight, terms.smoothing, terms.z_loss, rows.targets, on];
            list.expect(MOVED * (n * v) as f64);
            let matrices = 1 + [seen.is_some(), probs.is_some(), given].into_iter().filter(|there| *there).count();
            list.touches(matrices * n * v + 2 * n);
            list.run(&kernels::CLASSIFY, Variant::default(), &windows, words, n)?;
            let Some(back) = back else { continue };
            if let Some(dx) = back.dx[0] {
                self.linear_back_x(list, chunk, w, &self.window(part(dx.region)), n, dx.add)?;
            }
            self.linear_back_w(list, chunk, &of, w, b, n)?;
        }
        Ok(())
    }
}

/// Which norms a row has.
struct Norms {
    heads: Option<Heads>,
    together: bool,
    kind: NormKind,
    eps: f32,
    less_one: bool,
}

impl Norms {
    fn words(&self, x: Region, on: u32) -> Vec<Word> {
        let kind = match self.kind {
            NormKind::Layer => 0u32,
            NormKind::LayerStd => 1,
            NormKind::Rms => 2,
        };
        let (parts, queries, [wide, key_wide], key_start, rest) = match self.heads {
            None => (1, 1, [x.cols; 2], 0, x.cols),
            Some(heads) => {
                let queries = if self.together { 1 } else { heads.n_head };
                let widths = qk_widths(heads, self.together);
                (qk_norms(heads, self.together), queries, widths, heads.query_cols(), heads.parts()[2].start)
            }
        };
        words![x.rows, x.cols, parts, queries, wide, key_wide, key_start, rest, kind, self.eps, on].to_vec()
    }

    /// Rows of a workgroup of the backward, and how many workgroups have the same rows: one for queries or all, one for
    /// keys, one for what is copied.
    fn blocks(&self) -> (usize, usize) {
        match self.heads {
            None => (norm_rows(1), 1),
            Some(_) if self.together => (norm_rows(1), 3),
            Some(heads) => (norm_rows(heads.n_head), 3),
        }
    }

    /// A row's: one for each norm, and one for what is copied.
    fn workgroups(&self) -> usize {
        self.heads.map_or(1, |heads| qk_norms(heads, self.together) + 1)
    }
}

/// An activation function's constants as activate.wgsl has them.
fn constants(k: Constants) -> [f32; 3] {
    let [a, b] = activate::gelu(k);
    [k.leak as f32, a as f32, b as f32]
}

/// The number of an activation function in activate.wgsl.
fn number(f: Activation) -> u32 {
    match f {
        Activation::Relu => 0,
        Activation::LeakyRelu => 1,
        Activation::GeluErf => 2,
        Activation::GeluTanh => 3,
        Activation::GeluSigmoid => 4,
        Activation::Silu => 5,
        Activation::Relu2 => 6,
        Activation::Sigmoid => 7,
        Activation::Tanh => 8,
    }
}
