// y = (x - mean) r gain + offset, row by row, with r = 1 / deviation; stats are mean and r
// dx = r (g - mean(g) - k n mean(g n)) with g = dy gain, n = (x - mean) r
// dgain += sum of dy n, doffset += sum of dy, in two steps: partial sums over `each` rows with their dx, then `fold`
//
// A row may have several norms (queries and keys): norm i of a row is at column i wide, or of all queries and of all
// keys.

struct Words {
    rows: u32, cols: u32, parts: u32, queries: u32, // parts of a row, and how many of these are queries'
    // columns of a part, of a key's; where keys begin, and what is no part
    wide: u32, key_wide: u32, key_start: u32, rest: u32,
    kind: u32, eps: f32, flags: u32, // kind: 0 layer, 1 layer-std, 2 rms
    each: u32, room: u32, // rows of a partial sum, and its columns
    gains: u32, key_gains: u32, offsets: u32, // where in it dgain, dgain of keys and doffset are, or NONE
}
var<immediate> p: Words;

const GAIN = 1u; // of queries, or of all
const KEY_GAIN = 2u;
const OFFSET = 4u;
const LESS_ONE = 8u;
const ADD = 16u;
const DX = 32u;

struct Part { n: u32, at: u32, wide: u32, key: bool, stats: u32, copies: bool }

fn part_of(number: u32) -> Part {
    let each = p.parts + select(0u, 1u, p.rest < p.cols);
    let n = number / each;
    let i = number % each;
    var part = Part(n, n * p.cols, p.wide, i >= p.queries, (n * p.parts + i) * 2u, i == p.parts);
    part.at += select(i * p.wide, p.key_start + (i - p.queries) * p.key_wide, part.key);
    part.wide = select(p.wide, p.key_wide, part.key);
    if part.copies {
        part.at = n * p.cols + p.rest;
        part.wide = p.cols - p.rest;
    }
    return part;
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> stats: array<f32>;
@group(0) @binding(2) var<storage, read_write> gain: array<f32>;
@group(0) @binding(3) var<storage, read_write> other: array<f32>; // the offset, or the gain of keys
@group(0) @binding(4) var<storage, read_write> y: array<f32>; // or dx
@group(0) @binding(5) var<storage, read_write> dy: array<f32>;

fn gain_of(key: bool, i: u32) -> f32 {
    var g = 1.0;
    if key && (p.flags & KEY_GAIN) != 0u {
        g = other[i];
    } else if !key && (p.flags & GAIN) != 0u {
        g = gain[i];
    } else {
        return 1.0;
    }
    return select(g, 1.0 + g, (p.flags & LESS_ONE) != 0u);
}

@compute @workgroup_size(64)
fn norm(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let part = part_of(number(id, groups));
    if part.n >= p.rows {
        return;
    }
    if part.copies {
        for (var i = lane; i < part.wide; i += LANES) {
            y[part.at + i] = x[part.at + i];
        }
        return;
    }
    let width = f32(part.wide);
    var sum = 0.0;
    var mean = 0.0;
    if p.kind != 2u {
        for (var i = lane; i < part.wide; i += LANES) {
            sum += x[part.at + i];
        }
        mean = total(lane, sum) / width;
    }
    sum = 0.0;
    for (var i = lane; i < part.wide; i += LANES) {
        let u = x[part.at + i] - mean;
        sum = fma(u, u, sum);
    }
    let variance = total(lane, sum) / width;
    let deviation = select(sqrt(variance + p.eps), sqrt(variance) + p.eps, p.kind == 1u);
    let r = 1.0 / deviation;
    if lane == 0u {
        stats[part.stats] = mean;
        stats[part.stats + 1u] = r;
    }
    for (var i = lane; i < part.wide; i += LANES) {
        var value = (x[part.at + i] - mean) * r * gain_of(part.key, i);
        if (p.flags & OFFSET) != 0u {
            value += other[i];
        }
        y[part.at + i] = value;
    }
}

fn put(i: u32, value: f32) {
    if (p.flags & ADD) != 0u {
        y[i] += value;
    } else {
        y[i] = value;
    }
}

@group(0) @binding(6) var<storage, read_write> partial: array<f32>; // (rows / each, room)

// adds to the partial sum of column i, of which the first term replaces what is there
fn take(place: u32, i: u32, first: bool, value: f32) {
    if place == NONE {
        return;
    }
    if first {
        partial[place + i] = value;
    } else {
        partial[place + i] += value;
    }
}

// a workgroup for all norms of queries, of keys, or what is copied, of `each` rows
@compute @workgroup_size(64)
fn norm_back(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let kinds = 1u + select(0u, 1u, p.parts > p.queries) + select(0u, 1u, p.rest < p.cols);
    let block = number(id, groups) / kinds;
    let kind = number(id, groups) % kinds;
    let each = p.parts + select(0u, 1u, p.rest < p.cols);
    let begin = select(select(p.parts, p.queries, kind == 1u), 0u, kind == 0u);
    let end = select(select(each, p.parts, kind == 1u), p.queries, kind == 0u);
    let own = select(p.gains, p.key_gains, kind == 1u);
    let gains = select(block * p.room + own, NONE, own == NONE);
    let offsets = select(block * p.room + p.offsets, NONE, p.offsets == NONE);
    let last = min((block + 1u) * p.each, p.rows);
    for (var n = block * p.each; n < last; n++) {
        for (var i = begin; i < end; i++) {
            let part = part_of(n * each + i);
            if part.copies {
                for (var i = lane; i < part.wide && (p.flags & DX) != 0u; i += LANES) {
                    put(part.at + i, dy[part.at + i]);
                }
            } else {
                back(part, lane, n == block * p.each && i == begin, gains, offsets);
            }
        }
    }
}

fn back(part: Part, lane: u32, first: bool, gains: u32, offsets: u32) {
    let width = f32(part.wide);
    let mean = stats[part.stats];
    let r = stats[part.stats + 1u];
    var g_sum = 0.0;
    var gn_sum = 0.0;
    for (var i = lane; i < part.wide; i += LANES) {
        let n = (x[part.at + i] - mean) * r;
        let d = dy[part.at + i];
        let g = d * gain_of(part.key, i);
        g_sum += g;
        gn_sum = fma(g, n, gn_sum);
        take(gains, i, first, d * n);
        take(offsets, i, first, d);
    }
    if (p.flags & DX) == 0u {
        return;
    }
    var g_mean = total(lane, g_sum) / width;
    let gn_mean = total(lane, gn_sum) / width;
    if p.kind == 2u {
        g_mean = 0.0;
    }
    var k = 1.0;
    if p.kind == 1u {
        // 1 - eps r = standard deviation r, which cancels where the deviation is nearly eps
        k = 1.0 / (1.0 - p.eps * r);
    }
    for (var i = lane; i < part.wide; i += LANES) {
        let n = (x[part.at + i] - mean) * r;
        let g = dy[part.at + i] * gain_of(part.key, i);
        let along = select(k * n * gn_mean, 0.0, n == 0.0);
        put(part.at + i, r * (g - g_mean - along));
    }
}

// watched: normal = dy gain, and the slope of the scale, -sum(dy gain n) r
@compute @workgroup_size(64)
fn norm_watch(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let n = number(id, groups);
    if n >= p.rows {
        return;
    }
    let mean = stats[2u * n];
    let r = stats[2u * n + 1u];
    var sum = 0.0;
    for (var i = lane; i < p.cols; i += LANES) {
        let g = dy[n * p.cols + i] * gain_of(false, i);
        y[n * p.cols + i] = g;
        sum = fma(g, (x[n * p.cols + i] - mean) * r, sum);
    }
    let slope = total(lane, sum);
    if lane == 0u {
        other[n] = -slope * r;
    }
}

// watched: the deviation
@compute @workgroup_size(64)
fn norm_scale(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let n = number(id, groups) * LANES + lane;
    if n < p.rows {
        y[n] = 1.0 / stats[2u * n + 1u];
    }
}
