// What all kernels of products have: their numbers, what goes with a product, and how an element is written. `ACROSS_A`
// (a is stored (k,m)), `ACROSS_B` (b is stored (n,k)) and both operands are written before this text.

struct Words {
    m: u32, n: u32, k: u32, // rows of a and c, columns of b and c, length of the sums
    a_row: u32, b_row: u32, c_row: u32, // elements from a row of the memory to the next
    a_at: u32, c_at: u32, flags: u32,
    sums_at: u32, // where the first row's sum is
    // steps of k of each share of the sum, which goes to a place of its own, `room` after the last
    each: u32, room: u32,
    lift: f32, lower: f32, // of linear_f16.wgsl alone
}
var<immediate> p: Words;

const BIAS = 1u; // is added to each row
const ADD = 2u;
const SUMS = 4u; // the columns' sums of a, which is stored across, are wanted too
const SHARES = 8u; // there are several, so those go to c's room

@group(0) @binding(2) var<storage, read_write> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;

// how many of the four from `i` on there are
fn have(i: u32, len: u32) -> u32 {
    return min(max(len, i) - i, 4u);
}

fn finish(share: u32, m: u32, n: u32, sum: f32) {
    if m >= p.m || n >= p.n {
        return;
    }
    var value = sum;
    if (p.flags & BIAS) != 0u {
        value += bias[n];
    }
    let to = p.c_at + share * p.room + m * p.c_row + n;
    if (p.flags & ADD) != 0u {
        value = c[to] + value;
    }
    c[to] = value;
}

// Whether there is such a share: the rectangle of workgroups may be larger than the list.
fn is_share(share: u32) -> bool {
    return share < max((p.k + p.each - 1u) / max(p.each, 1u), 1u);
}
