// c[m,n] (+)= sum over k of a[m,k] b[k,n] (+ bias[n])
//   forward y = x w' + b;   dx = dy w;   dw += dy' x;   db += column sums of dy
//
// A workgroup makes 64 x 64 elements, each of its 16 x 16 threads 4 x 4 neighbours; 16 steps of k at a time go through
// the workgroup's memory. An element is a sum over k, ascending, in chains of 64 that are added up: it does not depend on its tile.

struct Words {
    m: u32, n: u32, k: u32, // rows of a and c, columns of b and c, length of the sums
    a_row: u32, b_row: u32, c_row: u32, // elements from a row of the memory to the next
    a_at: u32, c_at: u32, flags: u32,
    each: u32, room: u32, // steps of k of each share of the sum, which goes to a place of its own, `room` after the last
}
var<immediate> p: Words;

const BIAS = 1u;
const ADD = 2u;

override ACROSS_A: bool = false; // a is stored (k,m)
override ACROSS_B: bool = false; // b is stored (n,k)

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;

const SIDE = 64u;
const STEP = 16u;
const CHAIN = 64u;
// steps of k, four neighbouring rows of a or columns of b each
var<workgroup> tile_a: array<vec4f, 256>; // (16, 64)
var<workgroup> tile_b: array<vec4f, 256>;

@compute @workgroup_size(256)
fn product(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) thread: u32) {
    let across = (p.n + SIDE - 1u) / SIDE;
    let down = (p.m + SIDE - 1u) / SIDE;
    let tile = number(id, groups);
    let share = tile / (across * down);
    let m0 = tile / across % down * SIDE;
    let n0 = tile % across * SIDE;
    let tm = thread / 16u;
    let tn = thread % 16u;
    // what this thread brings: neighbours bring neighbours
    let ka = select(tn, tm, ACROSS_A);
    let ma = m0 + 4u * select(tm, tn, ACROSS_A);
    let kb = select(tm, tn, ACROSS_B);
    let nb = n0 + 4u * select(tn, tm, ACROSS_B);
    let start = share * p.each;
    let end = min(start + p.each, p.k);
    var sum = array<vec4f, 4>();
    var part = array<vec4f, 4>();
    for (var k0 = start; k0 < end; k0 += STEP) {
        var left = vec4f(0.0);
        var right = vec4f(0.0);
        for (var i = 0u; i < 4u; i++) {
            if ma + i < p.m && k0 + ka < end {
                left[i] = a[p.a_at + select((ma + i) * p.a_row + k0 + ka, (k0 + ka) * p.a_row + ma + i, ACROSS_A)];
            }
            if nb + i < p.n && k0 + kb < end {
                right[i] = b[select((k0 + kb) * p.b_row + nb + i, (nb + i) * p.b_row + k0 + kb, ACROSS_B)];
            }
        }
        tile_a[ka * 16u + (ma - m0) / 4u] = left;
        tile_b[kb * 16u + (nb - n0) / 4u] = right;
        workgroupBarrier();
        for (var k = 0u; k < STEP; k++) {
            let column = tile_a[k * 16u + tm];
            let row = tile_b[k * 16u + tn];
            part[0] = fma(vec4f(column.x), row, part[0]);
            part[1] = fma(vec4f(column.y), row, part[1]);
            part[2] = fma(vec4f(column.z), row, part[2]);
            part[3] = fma(vec4f(column.w), row, part[3]);
        }
        workgroupBarrier();
        if (k0 - start + STEP) % CHAIN == 0u || k0 + STEP >= end {
            for (var i = 0u; i < 4u; i++) {
                sum[i] += part[i];
                part[i] = vec4f(0.0);
            }
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let m = m0 + 4u * tm + i;
        for (var j = 0u; j < 4u; j++) {
            let n = n0 + 4u * tn + j;
            if m < p.m && n < p.n {
                var value = sum[i][j];
                if (p.flags & BIAS) != 0u {
                    value += bias[n];
                }
                let to = p.c_at + share * p.room + m * p.c_row + n;
                if (p.flags & ADD) != 0u {
                    value = c[to] + value;
                }
                c[to] = value;
            }
        }
    }
}

struct Sums { rows: u32, cols: u32 }
var<immediate> s: Sums;

// partial sums of 64 rows, a lane a column: (blocks, cols) <- (rows, cols)
@compute @workgroup_size(64)
fn column_sums(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let tiles = (s.cols + LANES - 1u) / LANES;
    let block = number(id, groups) / tiles;
    let column = number(id, groups) % tiles * LANES + lane;
    if column >= s.cols || block * 64u >= s.rows {
        return;
    }
    var sum = 0.0;
    for (var n = block * 64u; n < min((block + 1u) * 64u, s.rows); n++) {
        sum += a[n * s.cols + column];
    }
    b[block * s.cols + column] = sum;
}

struct Fold { cols: u32, parts: u32, room: u32, at: u32, add: u32 }
var<immediate> f: Fold;

// to[i] (+)= sum over the parts, ascending: partial is (parts, room), of which `at` to `at + cols` are taken
@compute @workgroup_size(64)
fn fold(@builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = number(id, groups) * LANES + lane;
    if i >= f.cols {
        return;
    }
    var sum = 0.0;
    for (var k = 0u; k < f.parts; k++) {
        sum += a[k * f.room + f.at + i];
    }
    if f.add != 0u {
        sum += b[i];
    }
    b[i] = sum;
}
