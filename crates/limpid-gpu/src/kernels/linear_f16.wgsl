// c[m,n] (+)= sum over k of a[m,k] b[k,n] (+ bias[n]) with operands rounded to f16, by the device's cooperative
// matrices of SIDE x SIDE, whose sums are f32. linear.wgsl says what it is for, and has the same numbers and flags;
// `lift` and `lower` are its own: a is multiplied by one before it is rounded, and the sums by the other. Both are
// powers of two, so that alone moves no digit; gradients would be below the range of f16 without.
//
// The order of a sum over k is the device's within SIDE steps, and ascending beyond: an element depends on its row of a
// and its column of b only, so decoding uses this kernel too.
//
// A workgroup makes WIDE x WIDE elements. Four of its subgroups make a quarter each, ROWS x ROWS matrices, 4 x 4 or
// one: they have names, because drivers keep an array of them in memory. Where subgroups are smaller than they may be
// there are more than four, which make the same again: matrices must be worked on by all at once. Bytes as `product`,
// with tiles of WIDE.
//
// `SIDE`, `GROUP` (lanes), `ROWS`, `Left`, `Right` and `Sum` are written before this text, and product.wgsl is.

const STEP = 32u;
const WIDE = 2u * ROWS * SIDE;

// Steps of k of the operands, as they are stored: (k,m) or (m,k), (k,n) or (n,k). Rows have a gap between them, so that
// eight are in different banks of the memory.
const GAP = 8u;
const A_ROW = select(STEP, WIDE, ACROSS_A);
const B_ROW = select(WIDE, STEP, ACROSS_B);
alias Four = array<f16, 4>; // written at once
var<workgroup> tile_a: array<Four, WIDE * STEP / A_ROW * (A_ROW + GAP) / 4u>;
var<workgroup> tile_b: array<Four, WIDE * STEP / B_ROW * (B_ROW + GAP) / 4u>;
var<workgroup> made: array<f32, max(4u * SIDE * SIDE, 4u * GROUP)>;

// fours of a tile, and those that a lane brings
const FOURS = WIDE * STEP / 4u;
const EACH = (FOURS + GROUP - 1u) / GROUP;

// What a lane brings of the tiles from k on; zeros where there is nothing.
fn fetched_a(thread: u32, m0: u32, k: u32, end: u32) -> array<vec4f, EACH> {
    var all = array<vec4f, EACH>();
    let first = select(vec2u(m0, k), vec2u(k, m0), ACROSS_A);
    let ends = select(vec2u(p.m, end), vec2u(end, p.m), ACROSS_A);
    for (var i = 0u; i < EACH; i++) {
        let unit = thread + i * GROUP;
        let at = first + vec2u(unit / (A_ROW / 4u), 4u * (unit % (A_ROW / 4u)));
        all[i] = a_four(p.a_at + at.x * p.a_row + at.y, select(0u, have(at.y, ends.y), at.x < ends.x));
    }
    return all;
}

fn fetched_b(thread: u32, k: u32, n0: u32, end: u32) -> array<vec4f, EACH> {
    var all = array<vec4f, EACH>();
    let first = select(vec2u(k, n0), vec2u(n0, k), ACROSS_B);
    let ends = select(vec2u(end, p.n), vec2u(p.n, end), ACROSS_B);
    for (var i = 0u; i < EACH; i++) {
        let unit = thread + i * GROUP;
        let at = first + vec2u(unit / (B_ROW / 4u), 4u * (unit % (B_ROW / 4u)));
        all[i] = b_four(at.x * p.b_row + at.y, select(0u, have(at.y, ends.y), at.x < ends.x));
    }
    return all;
}

fn rounded(v: vec4f) -> Four {
    return Four(f16(v.x), f16(v.y), f16(v.z), f16(v.w));
}

// where a tile with rows of so many has a four
fn place(unit: u32, row: u32) -> u32 {
    return unit / (row / 4u) * (row + GAP) / 4u + unit % (row / 4u);
}

fn left(m: u32, k: u32) -> Left {
    if ACROSS_A {
        return coopLoad<Left>(&tile_a[(k * (A_ROW + GAP) + m) / 4u][0], A_ROW + GAP);
    }
    return coopLoadT<Left>(&tile_a[(m * (A_ROW + GAP) + k) / 4u][0], A_ROW + GAP);
}

fn right(k: u32, n: u32) -> Right {
    if ACROSS_B {
        return coopLoad<Right>(&tile_b[(n * (B_ROW + GAP) + k) / 4u][0], B_ROW + GAP);
    }
    return coopLoadT<Right>(&tile_b[(k * (B_ROW + GAP) + n) / 4u][0], B_ROW + GAP);
}

@compute @workgroup_size(GROUP)
fn product_f16(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
        @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_size) lanes: u32,
) {
    let across = max((p.n + WIDE - 1u) / WIDE, 1u); // there may be none but the sums
    let down = (p.m + WIDE - 1u) / WIDE;
    let tile = number(id, groups);
    let share = tile / (across * down);
    let live = is_share(share); // what is beyond has no rows and no k
    let m0 = select(p.m, tile / across % down * WIDE, live);
    let n0 = tile % across * WIDE;
    let start = share * p.each;
    let end = select(start, min(start + p.each, p.k), live);
    // where this subgroup's quarter is in the tile
    let mq = subgroup % 4u / 2u * ROWS * SIDE;
    let nq = subgroup % 2u * ROWS * SIDE;
    var c00 = Sum();
    var c01 = Sum();
    var c02 = Sum();
    var c03 = Sum();
    var c10 = Sum();
    var c11 = Sum();
    var c12 = Sum();
    var c13 = Sum();
    var c20 = Sum();
    var c21 = Sum();
    var c22 = Sum();
    var c23 = Sum();
    var c30 = Sum();
    var c31 = Sum();
    var c32 = Sum();
    var c33 = Sum();
    let sums = (p.flags & SUMS) != 0u && n0 == 0u;
    var column_sum = vec4f(0.0);
    var next_a = fetched_a(thread, m0, start, end);
    var next_b = fetched_b(thread, start, n0, end);
    for (var k0 = start; k0 < end; k0 += STEP) {
        for (var i = 0u; i < EACH; i++) {
            let unit = thread + i * GROUP;
            if unit < FOURS {
                column_sum += next_a[i]; // where a is stored across, these are always of the same four rows of c
                tile_a[place(unit, A_ROW)] = rounded(next_a[i] * p.lift);
                tile_b[place(unit, B_ROW)] = rounded(next_b[i]);
            }
        }
        workgroupBarrier();
        next_a = fetched_a(thread, m0, k0 + STEP, end);
        next_b = fetched_b(thread, k0 + STEP, n0, end);
        for (var k = 0u; k < STEP; k += SIDE) {
            let a0 = left(mq, k);
            let b0 = right(k, nq);
            c00 = coopMultiplyAdd(a0, b0, c00);
            if ROWS == 4u {
                let b1 = right(k, nq + 1u * SIDE);
                let b2 = right(k, nq + 2u * SIDE);
                let b3 = right(k, nq + 3u * SIDE);
                c01 = coopMultiplyAdd(a0, b1, c01);
                c02 = coopMultiplyAdd(a0, b2, c02);
                c03 = coopMultiplyAdd(a0, b3, c03);
                let a1 = left(mq + 1u * SIDE, k);
                c10 = coopMultiplyAdd(a1, b0, c10);
                c11 = coopMultiplyAdd(a1, b1, c11);
                c12 = coopMultiplyAdd(a1, b2, c12);
                c13 = coopMultiplyAdd(a1, b3, c13);
                let a2 = left(mq + 2u * SIDE, k);
                c20 = coopMultiplyAdd(a2, b0, c20);
                c21 = coopMultiplyAdd(a2, b1, c21);
                c22 = coopMultiplyAdd(a2, b2, c22);
                c23 = coopMultiplyAdd(a2, b3, c23);
                let a3 = left(mq + 3u * SIDE, k);
                c30 = coopMultiplyAdd(a3, b0, c30);
                c31 = coopMultiplyAdd(a3, b1, c31);
                c32 = coopMultiplyAdd(a3, b2, c32);
                c33 = coopMultiplyAdd(a3, b3, c33);
            }
        }
        workgroupBarrier();
    }
    if sums {
        for (var i = 0u; i < 4u; i++) {
            made[4u * thread + i] = column_sum[i];
        }
        workgroupBarrier();
        // a lane an element of the tile's rows; who had its four rows are WIDE / 4 lanes apart
        for (var i = thread; i < WIDE; i += GROUP) {
            var all = 0.0;
            for (var other = i / 4u; other < GROUP; other += WIDE / 4u) {
                all += made[4u * other + i % 4u];
            }
            if m0 + i < p.m {
                if (p.flags & SHARES) != 0u {
                    c[p.sums_at + share * p.room + m0 + i] = all;
                } else {
                    bias[p.sums_at + m0 + i] += all;
                }
            }
        }
        workgroupBarrier();
    }
    let to = Place(subgroup, lane, lanes, share, m0 + mq, n0 + nq);
    write(c00, to, 0u, 0u);
    if ROWS == 4u {
        write(c01, to, 0u, 1u);
        write(c02, to, 0u, 2u);
        write(c03, to, 0u, 3u);
        write(c10, to, 1u, 0u);
        write(c11, to, 1u, 1u);
        write(c12, to, 1u, 2u);
        write(c13, to, 1u, 3u);
        write(c20, to, 2u, 0u);
        write(c21, to, 2u, 1u);
        write(c22, to, 2u, 2u);
        write(c23, to, 2u, 3u);
        write(c30, to, 3u, 0u);
        write(c31, to, 3u, 1u);
        write(c32, to, 3u, 2u);
        write(c33, to, 3u, 3u);
    }
}

// a lane of a subgroup, and the first element of what that made
struct Place { subgroup: u32, lane: u32, lanes: u32, share: u32, m: u32, n: u32 }

// Writes the matrix in this row and column of a subgroup's.
fn write(matrix: Sum, to: Place, row: u32, column: u32) {
    let at = to.subgroup % 4u * SIDE * SIDE;
    coopStoreT(matrix, &made[at], SIDE);
    workgroupBarrier();
    if to.subgroup < 4u {
        for (var i = to.lane; i < SIDE * SIDE; i += to.lanes) {
            finish(to.share, to.m + row * SIDE + i / SIDE, to.n + column * SIDE + i % SIDE, made[at + i] * p.lower);
        }
    }
    workgroupBarrier();
}
