// c[m,n] (+)= sum over k of a[m,k] b[k,n] (+ bias[n]) with operands rounded to f16, by the device's cooperative matrices of SIDE x
// SIDE, whose sums are f32. linear.wgsl says what it is for, and has the same numbers and flags; `lift` and `lower` are its own:
// a is multiplied by one before it is rounded, and the sums by the other. Both are powers of two, so that alone moves no digit;
// gradients would be below the range of f16 without.
//
// The order of a sum over k is the device's within SIDE steps, and ascending beyond: an element depends on its row of a and its
// column of b only, so decoding uses this kernel too.
//
// A workgroup makes WIDE x WIDE elements. Four of its subgroups make a quarter each, 2 x 2 matrices. Where subgroups are smaller than
// they may be there are more than four, which make the same again and write it to places of their own (beyond SLOTS to the place of
// one that writes the same): matrices must be worked on by all at once. Bytes as `product`, tiles of WIDE.
//
// `SIDE`, `GROUP` (lanes), `SLOTS` (places of subgroups), `Left`, `Right`, `Sum` and both operands are written before this text, and product.wgsl is.

const STEP = 32u;
const WIDE = 4u * SIDE;

var<workgroup> tile_a: array<f16, WIDE * STEP>; // (m,k)
var<workgroup> tile_b: array<f16, STEP * WIDE>; // (k,n)
var<workgroup> made: array<f32, max(SLOTS * SIDE * SIDE, 4u * GROUP)>;

@compute @workgroup_size(GROUP)
fn product_f16(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_size) lanes: u32,
) {
    let across = max((p.n + WIDE - 1u) / WIDE, 1u); // there may be none but the sums
    let down = (p.m + WIDE - 1u) / WIDE;
    let tile = number(id, groups);
    let share = tile / (across * down);
    let live = is_share(share); // what is beyond has no rows and no k
    let m0 = select(p.m, tile / across % down * WIDE, live);
    let n0 = tile % across * WIDE;
    let quarter = subgroup % 4u;
    let mq = quarter / 2u * 2u * SIDE;
    let nq = quarter % 2u * 2u * SIDE;
    let start = share * p.each;
    let end = select(start, min(start + p.each, p.k), live);
    let sums = (p.flags & SUMS) != 0u && n0 == 0u;
    var column_sum = vec4f(0.0);
    var c00 = Sum();
    var c01 = Sum();
    var c10 = Sum();
    var c11 = Sum();
    for (var k0 = start; k0 < end; k0 += STEP) {
        // four neighbours in memory at a time; where a is stored across, a lane's are always of the same four rows of c
        for (var unit = thread; unit < WIDE * STEP / 4u; unit += GROUP) {
            let along = vec2u(unit / (STEP / 4u), 4u * (unit % (STEP / 4u))); // (m or n, k)
            let beside = vec2u(4u * (unit % SIDE), unit / SIDE);
            let am = select(along, beside, ACROSS_A);
            var four = vec4f(0.0);
            if ACROSS_A {
                if k0 + am.y < end {
                    four = a_four(p.a_at + (k0 + am.y) * p.a_row + m0 + am.x, have(m0 + am.x, p.m));
                }
                column_sum += four;
            } else if m0 + am.x < p.m {
                four = a_four(p.a_at + (m0 + am.x) * p.a_row + k0 + am.y, have(k0 + am.y, end));
            }
            for (var i = 0u; i < 4u; i++) {
                let to = select(am.x * STEP + am.y + i, (am.x + i) * STEP + am.y, ACROSS_A);
                tile_a[to] = f16(four[i] * p.lift);
            }
            let bn = select(beside, along, ACROSS_B);
            four = vec4f(0.0);
            if ACROSS_B {
                if n0 + bn.x < p.n {
                    four = b_four((n0 + bn.x) * p.b_row + k0 + bn.y, have(k0 + bn.y, end));
                }
            } else if k0 + bn.y < end {
                four = b_four((k0 + bn.y) * p.b_row + n0 + bn.x, have(n0 + bn.x, p.n));
            }
            for (var i = 0u; i < 4u; i++) {
                let to = select(bn.y * WIDE + bn.x + i, (bn.y + i) * WIDE + bn.x, ACROSS_B);
                tile_b[to] = f16(four[i]);
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k += SIDE) {
            let a0 = coopLoadT<Left>(&tile_a[mq * STEP + k], STEP);
            let a1 = coopLoadT<Left>(&tile_a[(mq + SIDE) * STEP + k], STEP);
            let b0 = coopLoadT<Right>(&tile_b[k * WIDE + nq], WIDE);
            let b1 = coopLoadT<Right>(&tile_b[k * WIDE + nq + SIDE], WIDE);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c10 = coopMultiplyAdd(a1, b0, c10);
            c11 = coopMultiplyAdd(a1, b1, c11);
        }
        workgroupBarrier();
    }
    if sums {
        for (var i = 0u; i < 4u; i++) {
            made[4u * thread + i] = column_sum[i];
        }
        workgroupBarrier();
        // a lane an element of the tile's rows; who had its four rows are SIDE lanes apart
        for (var i = thread; i < WIDE; i += GROUP) {
            var sum = 0.0;
            for (var other = i / 4u; other < GROUP; other += SIDE) {
                sum += made[4u * other + i % 4u];
            }
            if m0 + i < p.m {
                if (p.flags & SHARES) != 0u {
                    c[p.sums_at + share * p.room + m0 + i] = sum;
                } else {
                    bias[p.sums_at + m0 + i] += sum;
                }
            }
        }
        workgroupBarrier();
    }
    let slot = subgroup % SLOTS * SIDE * SIDE;
    coopStoreT(c00, &made[slot], SIDE);
    workgroupBarrier();
    write(subgroup, lane, lanes, share, m0 + mq, n0 + nq);
    workgroupBarrier();
    coopStoreT(c01, &made[slot], SIDE);
    workgroupBarrier();
    write(subgroup, lane, lanes, share, m0 + mq, n0 + nq + SIDE);
    workgroupBarrier();
    coopStoreT(c10, &made[slot], SIDE);
    workgroupBarrier();
    write(subgroup, lane, lanes, share, m0 + mq + SIDE, n0 + nq);
    workgroupBarrier();
    coopStoreT(c11, &made[slot], SIDE);
    workgroupBarrier();
    write(subgroup, lane, lanes, share, m0 + mq + SIDE, n0 + nq + SIDE);
}

// Writes the matrix that a subgroup of the first four made, whose first element is (m,n).
fn write(subgroup: u32, lane: u32, lanes: u32, share: u32, m: u32, n: u32) {
    if subgroup >= 4u {
        return;
    }
    for (var i = lane; i < SIDE * SIDE; i += lanes) {
        finish(share, m + i / SIDE, n + i % SIDE, made[subgroup * SIDE * SIDE + i] * p.lower);
    }
}
