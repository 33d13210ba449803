// c[m,n] (+)= sum over k of a[m,k] b[k,n] (+ bias[n])
//   forward y = x w' + b;   dx = dy w;   dw += dy' x;   db is in sums.wgsl
//
// The order of each sum, in both kernels: chains of CHAIN multiply-adds over k, ascending, each from zero; then the
// chains are added up, ascending. So an element depends neither on its tile, nor on how many rows there are, nor on
// which kernel makes it. Missing elements are zeros, which change no sum: a sum that begins with +0 never is -0.
//
// `product`: a workgroup makes HIGH x 64 elements, each of its 16 x 16 threads ROWS x 4 of them, and 16 steps of k at a
// time go through its memory. Bytes from the device's memory, with no cache at all, in each of the shares that k is cut
// into:
//   4 (m k ceil(n / 64) + k n ceil(m / HIGH) + m n (1, or 2 where it adds)), and of `fold` 4 m n (shares + 2) where k
//   is cut
// `thin`: for at most 8 rows of a and b stored (n,k), which is decoding: a workgroup makes 8 columns, and reads each
// weight once, side by side. Bytes: 4 (n k + m k + m n); the few rows of a are read again by each workgroup, from a
// cache.
//
// `ROWS` and `ROUNDS` are written before this text, and product.wgsl is.

const CHAIN = 32u;
const STEP = 16u;
const SIDE = 64u;
const UP = ROWS / 4u;
const HIGH = 16u * ROWS;

// an operand, rounded to bf16 where that is asked
fn held(v: vec4f) -> vec4f {
    if ROUNDS {
        return bitcast<vec4f>(nearest_bf16(v));
    }
    return v;
}

// Steps of k, four neighbouring rows of a or columns of b each. Indices are checked dimension by dimension: the checks
// of these are outside of the loop over k.
var<workgroup> tile_a: array<array<vec4f, HIGH / 4u>, STEP>;
var<workgroup> tile_b: array<array<vec4f, SIDE / 4u>, STEP>;

@compute @workgroup_size(256)
fn product(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let across = max((p.n + SIDE - 1u) / SIDE, 1u); // there may be none but the sums
    let down = (p.m + HIGH - 1u) / HIGH;
    let tile = number(id, groups);
    let share = tile / (across * down);
    if !is_share(share) {
        return;
    }
    let m0 = tile / across % down * HIGH;
    let n0 = tile % across * SIDE;
    let tm = thread / 16u;
    let tn = thread % 16u;
    // what this thread brings, 4 x 4 elements: neighbours bring neighbours
    let mine = thread < HIGH;
    let turned = select(ACROSS_B, !ACROSS_A, mine); // k runs along the rows of the memory
    let high = select(SIDE, HIGH, mine) / 4u;
    let unit = select(thread - HIGH, thread, mine);
    let ku = select(unit / high, unit % 4u, turned);
    let iu = select(unit % high, unit / 4u, turned);
    let start = share * p.each;
    let end = min(start + p.each, p.k);
    var sum = array<vec4f, ROWS>();
    var part = array<vec4f, ROWS>();
    let sums = (p.flags & SUMS) != 0u && n0 == 0u;
    var column_sum = vec4f(0.0);
    var column_part = vec4f(0.0);
    for (var k0 = start; k0 < end; k0 += STEP) {
        if thread < HIGH + SIDE {
            let k = k0 + 4u * ku;
            let i = select(n0, m0, mine) + 4u * iu;
            let len = select(p.n, p.m, mine);
            var four = array<vec4f, 4>();
            for (var j = 0u; j < 4u; j++) {
                let row = select(k, i, turned) + j;
                let column = select(i, k, turned);
                if row < select(end, len, turned) {
                    let there = have(column, select(len, end, turned));
                    if mine {
                        four[j] = a_four(p.a_at + row * p.a_row + column, there);
                    } else {
                        four[j] = b_four(row * p.b_row + column, there);
                    }
                }
            }
            if sums {
                column_part += ((four[0] + four[1]) + four[2]) + four[3];
            }
            if turned {
                let other = transpose(mat4x4f(four[0], four[1], four[2], four[3]));
                four = array<vec4f, 4>(other[0], other[1], other[2], other[3]);
            }
            for (var j = 0u; j < 4u; j++) {
                if mine {
                    tile_a[4u * ku + j][iu] = held(four[j]);
                } else {
                    tile_b[4u * ku + j][iu] = held(four[j]);
                }
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k++) {
            let row = tile_b[k][tn];
            for (var u = 0u; u < UP; u++) {
                let column = tile_a[k][16u * u + tm];
                part[4u * u] = fma(vec4f(column.x), row, part[4u * u]);
                part[4u * u + 1u] = fma(vec4f(column.y), row, part[4u * u + 1u]);
                part[4u * u + 2u] = fma(vec4f(column.z), row, part[4u * u + 2u]);
                part[4u * u + 3u] = fma(vec4f(column.w), row, part[4u * u + 3u]);
            }
        }
        workgroupBarrier();
        if (k0 - start + STEP) % CHAIN == 0u || k0 + STEP >= end {
            for (var i = 0u; i < ROWS; i++) {
                sum[i] += part[i];
                part[i] = vec4f(0.0);
            }
            column_sum += column_part;
            column_part = vec4f(0.0);
        }
    }
    if sums {
        if mine {
            tile_a[ku][iu] = column_sum; // of every fourth four rows
        }
        workgroupBarrier();
        if thread < HIGH / 4u {
            let all = ((tile_a[0][thread] + tile_a[1][thread]) + tile_a[2][thread]) + tile_a[3][thread];
            for (var j = 0u; j < 4u; j++) {
                let m = m0 + 4u * thread + j;
                if m < p.m && (p.flags & SHARES) != 0u {
                    c[p.sums_at + share * p.room + m] = all[j];
                } else if m < p.m {
                    bias[p.sums_at + m] += all[j];
                }
            }
        }
    }
    for (var i = 0u; i < ROWS; i++) {
        for (var j = 0u; j < 4u; j++) {
            finish(share, m0 + i / 4u * SIDE + 4u * tm + i % 4u, n0 + 4u * tn + j, sum[i][j]);
        }
    }
}

// chains of 8 columns, 8 each, with a vector between them for the banks of the memory
var<workgroup> weights: array<vec4f, 64 * 9>;
var<workgroup> chains: array<f32, 64 * ROWS>;

@compute @workgroup_size(64)
fn thin(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let n0 = 8u * number(id, groups);
    var sum = 0.0;
    for (var k0 = 0u; k0 < p.k; k0 += 8u * CHAIN) {
        let k = k0 + 4u * lane;
        for (var i = 0u; i < 8u; i++) {
            var four = vec4f(0.0);
            if n0 + i < p.n {
                four = held(b_four((n0 + i) * p.b_row + k, have(k, p.k)));
            }
            weights[(8u * i + lane / 8u) * 9u + lane % 8u] = four;
        }
        workgroupBarrier();
        // a lane a chain
        var part = array<f32, ROWS>();
        for (var e = 0u; e < 8u; e++) {
            let w = weights[lane * 9u + e];
            let at = k0 + lane % 8u * CHAIN + 4u * e;
            for (var m = 0u; m < ROWS; m++) {
                if m < p.m {
                    let x = held(a_four(p.a_at + m * p.a_row + at, have(at, p.k)));
                    part[m] = fma(x.w, w.w, fma(x.z, w.z, fma(x.y, w.y, fma(x.x, w.x, part[m]))));
                }
            }
        }
        for (var m = 0u; m < ROWS; m++) {
            chains[64u * m + lane] = part[m];
        }
        workgroupBarrier();
        // a lane an element
        if lane < 8u * ROWS {
            for (var chain = 0u; chain < 8u; chain++) {
                sum += chains[8u * lane + chain];
            }
        }
    }
    if lane < 8u * ROWS {
        finish(0u, lane / 8u, n0 + lane % 8u, sum);
    }
}
