// y = softmax(scores) v, head by head; score = c(scale q k') - slope |t - j| with c(s) = cap tanh(s / cap), then the
// mask. Backward, with P the weights from lse, F dropout's factors and D = sum of dy y:
//   dv += (P F)' dy;   dP = (dy v') F;   dS = P (dP - D);   dq += slope dS k;   dk += slope dS' q
//
// A workgroup has 64 neighbouring queries, and two lanes for each, because more than two rows of a head do not fit in a
// lane's registers: they divide the products with the keys of a tile, and then the features of the sums. Keys and
// values come in tiles through the workgroup's memory, from the sequence's first key on, so a row depends only on its
// own query and keys. In the backward of keys a workgroup has 64 keys, and queries come in tiles. Where a sequence has
// few queries, `attend_one` makes one a workgroup, whose lanes share the keys.
//
// The order of a row's sums, in `attend` and `attend_one`: over the keys in tiles of TILE, which begin at multiples of
// TILE. A tile makes the sums smaller by how much its greatest score is above all before, then adds its keys,
// ascending.
//
// Bytes from the device's memory: of `attend` 4 (queries + y + lse) and, for each 64 queries of a sequence, the keys
// and values that they see, for each query head (heads that share them run side by side and find them in a cache);
// `attend_one` likewise for each query. `D`, `TILE` and `HALVES` are written before this text.

struct Words {
    heads: u32, kv_heads: u32, cols: u32, y_cols: u32, // columns of qkv, and of y
    // where the batch lists blocks of queries and the cache's blocks; 0 causal, 1 bidirectional
    items: u32, blocks: u32, mask: u32, window: u32,
    // where the batch lists ALiBi's slopes, if it has them; how many blocks of queries
    scale: f32, cap: f32, slopes: u32, count: u32,
    stream: vec2u, threshold: u32, kept: f32,
    flags: u32, wide: u32, // columns of a head's watched scores
}
var<immediate> p: Words;

const DROPS = 1u;
const ADD = 2u;
const CACHED = 4u;
const WIDE = (D + 3u) / 4u; // vectors of a row

@group(0) @binding(0) var<storage, read_write> x: array<f32>; // (N, (H + 2K) D)
@group(0) @binding(1) var<storage, read_write> batch: array<u32>;
// (blocks of 64 positions, 2K D), the bits of f32s or of two bf16s
@group(0) @binding(7) var<storage, read_write> cache: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // or dqkv
@group(0) @binding(4) var<storage, read_write> lse: array<f32>; // (N,H)

struct Item { row: u32, rows: u32, past: u32, table: u32, valid: u32, first: u32 }

fn item(number: u32) -> Item {
    let at = p.items + 6u * number;
    return Item(batch[at], batch[at + 1u], batch[at + 2u], batch[at + 3u], batch[at + 4u], batch[at + 5u]);
}

// the end of the keys that row i of a sequence sees, and their beginning
fn end_of(s: Item, i: u32) -> u32 {
    return select(select(s.past + s.rows, s.valid, p.mask == 1u), s.past + i + 1u, p.mask == 0u);
}

fn begin_of(s: Item, i: u32) -> u32 {
    let end = end_of(s, i);
    return select(0u, end - min(p.window, end), p.window > 0u && p.mask == 0u);
}

fn slope_of(head: u32) -> f32 {
    if p.slopes == NONE {
        return 0.0;
    }
    return bitcast<f32>(batch[p.slopes + head]);
}

// a score, and its derivative by the product
fn score_of(product: f32, slope: f32, t: u32, j: u32) -> vec2f {
    var score = p.scale * product;
    var steep = p.scale;
    if p.cap > 0.0 {
        let bound = tanh_of(score / p.cap);
        score = p.cap * bound;
        steep *= 1.0 - bound * bound;
    }
    return vec2f(fma(-slope, f32(max(t, j) - min(t, j)), score), steep);
}

fn added(v: vec4f) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

// four features of a row of qkv
fn loaded(at: u32, i: u32) -> vec4f {
    var v = vec4f(0.0);
    for (var e = 0u; e < 4u; e++) {
        if 4u * i + e < D {
            v[e] = x[at + 4u * i + e];
        }
    }
    return v;
}

fn put(at: u32, i: u32, v: vec4f) {
    for (var e = 0u; e < 4u; e++) {
        if 4u * i + e < D {
            if (p.flags & ADD) != 0u {
                y[at + 4u * i + e] += v[e];
            } else {
                y[at + 4u * i + e] = v[e];
            }
        }
    }
}

// A tile of two operands: keys and values, or queries and dy.
var<workgroup> tiles: array<array<array<vec4f, WIDE>, TILE>, 2>;
var<workgroup> products: array<array<f32, LANES>, TILE>; // of the 64 rows with those of a tile

const HALF = (WIDE + 1u) / 2u;
const PART = TILE / 2u; // of a tile, where two products with each row are kept

// a vector of one half of a row's features
fn of_half(half: u32, e: u32) -> u32 {
    return min(half * HALF + e, WIDE - 1u);
}

fn key_column(head: u32) -> u32 {
    return p.heads * D + head / (p.heads / p.kv_heads) * D;
}

// where a key of the sequence is; its value is kv_heads * D elements behind it
fn key_at(s: Item, head: u32, key: u32) -> u32 {
    if (p.flags & CACHED) != 0u {
        let row = batch[p.blocks + s.table + key / 64u] * 64u + key % 64u;
        return row * 2u * p.kv_heads * D + key_column(head) - p.heads * D;
    }
    return (s.row + key) * p.cols + key_column(head);
}

// an element of keys and values
fn kept(at: u32) -> f32 {
    if (p.flags & CACHED) == 0u {
        return x[at];
    }
    if HALVES {
        return bitcast<f32>((cache[at / 2u] >> (16u * (at % 2u))) << 16u);
    }
    return bitcast<f32>(cache[at]);
}

fn kept_four(at: u32, i: u32) -> vec4f {
    var v = vec4f(0.0);
    for (var e = 0u; e < 4u; e++) {
        if 4u * i + e < D {
            v[e] = kept(at + 4u * i + e);
        }
    }
    return v;
}

// Brings so many keys and values.
fn bring(s: Item, head: u32, from_key: u32, count: u32, thread: u32) {
    for (var i = thread; i < count * WIDE; i += 2u * LANES) {
        let key = from_key + i / WIDE;
        var both = array<vec4f, 2>();
        if key < s.past + s.rows {
            let at = key_at(s, head, key);
            both = array<vec4f, 2>(kept_four(at, i % WIDE), kept_four(at + p.kv_heads * D, i % WIDE));
        }
        tiles[0][i / WIDE][i % WIDE] = both[0];
        tiles[1][i / WIDE][i % WIDE] = both[1];
    }
}

// Stores the keys and values of the batch in the cache: a workgroup for each row.
@compute @workgroup_size(64)
fn store(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let work = number(id, groups);
    let which = work / 64u;
    if which >= p.count {
        return;
    }
    let s = item(which);
    let i = s.first + work % 64u;
    if i >= s.rows {
        return;
    }
    let width = 2u * p.kv_heads * D;
    let key = s.past + i;
    let row = batch[p.blocks + s.table + key / 64u] * 64u + key % 64u;
    let source = (s.row + i) * p.cols + p.heads * D;
    if HALVES {
        for (var e = lane; e < width / 2u; e += LANES) {
            let bits = nearest_bf16(vec4f(x[source + 2u * e], x[source + 2u * e + 1u], 0.0, 0.0));
            cache[row * width / 2u + e] = (bits.x >> 16u) | bits.y;
        }
    } else {
        for (var e = lane; e < width; e += LANES) {
            cache[row * width + e] = bitcast<u32>(x[source + e]);
        }
    }
}

@compute @workgroup_size(128)
fn attend(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let work = number(id, groups);
    if work >= p.count * p.heads {
        return;
    }
    let s = item(work / p.heads);
    let head = work % p.heads;
    let lane = thread % LANES;
    let half = thread / LANES;
    let i = min(s.first + lane, s.rows - 1u); // lanes without a query do the last one's work and keep it
    let row = s.row + i;
    let begin = begin_of(s, i);
    let end = end_of(s, i);
    let slope = slope_of(head);
    let key = key_of(p.stream, row * p.heads + head);
    var q = array<vec4f, WIDE>();
    for (var e = 0u; e < WIDE; e++) {
        q[e] = loaded(row * p.cols + head * D, e);
    }
    var sum = array<vec4f, HALF>();
    var top = LEAST;
    var l = 0.0;
    let stop = end_of(s, min(s.first + 63u, s.rows - 1u));
    for (var k0 = begin_of(s, s.first) / TILE * TILE; k0 < stop; k0 += TILE) {
        bring(s, head, k0, TILE, thread);
        workgroupBarrier();
        for (var n = 0u; n < PART; n++) {
            let j = half * PART + n;
            var dot = vec4f(0.0);
            for (var e = 0u; e < WIDE; e++) {
                dot = fma(q[e], tiles[0][j][e], dot);
            }
            products[j][lane] = score_of(added(dot), slope, s.past + i, k0 + j).x;
        }
        workgroupBarrier();
        var high = top;
        for (var j = 0u; j < TILE; j++) {
            if k0 + j >= begin && k0 + j < end {
                high = max(high, products[j][lane]);
            }
        }
        let fade = exp_of(top - high);
        top = high;
        var own = 0.0;
        for (var e = 0u; e < HALF; e++) {
            sum[e] *= fade;
        }
        for (var j = 0u; j < TILE; j++) {
            if k0 + j >= begin && k0 + j < end {
                var weight = exp_of(products[j][lane] - top);
                own += weight;
                if (p.flags & DROPS) != 0u {
                    weight *= factor(key, k0 + j, p.threshold, p.kept);
                }
                for (var e = 0u; e < HALF; e++) {
                    sum[e] = fma(vec4f(weight), tiles[1][j][of_half(half, e)], sum[e]);
                }
            }
        }
        l = fma(l, fade, own);
        workgroupBarrier();
    }
    if s.first + lane < s.rows {
        for (var e = 0u; e < HALF; e++) {
            put(row * p.y_cols + head * D, half * HALF + e, sum[e] / l);
        }
        lse[row * p.heads + head] = top + ln_of(l);
    }
}

const KEYS = 64u; // of which the lanes take one each
const EACH = (D + KEYS - 1u) / KEYS; // features of a lane
var<workgroup> scores_of: array<f32, KEYS>;
var<workgroup> weights_of: array<vec2f, KEYS>; // without dropout and with it

// one query: `items` lists them one by one
@compute @workgroup_size(64)
fn attend_one(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let work = number(id, groups);
    if work >= p.count * p.heads {
        return;
    }
    let s = item(work / p.heads);
    let head = work % p.heads;
    let i = s.first;
    let row = s.row + i;
    let begin = begin_of(s, i);
    let end = end_of(s, i);
    let slope = slope_of(head);
    let key = key_of(p.stream, row * p.heads + head);
    for (var e = lane; e < WIDE; e += LANES) {
        tiles[0][0][e] = loaded(row * p.cols + head * D, e);
    }
    workgroupBarrier();
    var sum = array<f32, EACH>();
    var top = LEAST;
    var l = 0.0;
    for (var k0 = begin / TILE * TILE; k0 < end; k0 += KEYS) {
        // a lane a key: its score, and when all have one, its weight below the greatest up to its tile's end
        let j = k0 + lane;
        let seen = j >= begin && j < end;
        var score = LEAST;
        if seen {
            let at = key_at(s, head, j);
            var dot = vec4f(0.0);
            for (var e = 0u; e < WIDE; e++) {
                dot = fma(tiles[0][0][e], kept_four(at, e), dot);
            }
            score = score_of(added(dot), slope, s.past + i, j).x;
        }
        scores_of[lane] = score;
        workgroupBarrier();
        var high = top;
        for (var n = 0u; n < (lane / TILE + 1u) * TILE; n++) {
            high = max(high, scores_of[n]);
        }
        if seen {
            let weight = exp_of(score - high);
            var dropped = weight;
            if (p.flags & DROPS) != 0u {
                dropped *= factor(key, j, p.threshold, p.kept);
            }
            weights_of[lane] = vec2f(weight, dropped);
        }
        workgroupBarrier();
        // a lane a feature
        for (var t0 = 0u; t0 < KEYS && k0 + t0 < end; t0 += TILE) {
            var now = top;
            for (var n = t0; n < t0 + TILE; n++) {
                now = max(now, scores_of[n]);
            }
            let fade = exp_of(top - now);
            top = now;
            var own = 0.0;
            for (var f = 0u; f < EACH; f++) {
                sum[f] *= fade;
            }
            for (var n = max(k0 + t0, begin); n < min(k0 + t0 + TILE, end); n++) {
                let weight = weights_of[n - k0];
                let at = key_at(s, head, n) + p.kv_heads * D;
                own += weight.x;
                for (var f = 0u; f < EACH; f++) {
                    if lane + KEYS * f < D {
                        sum[f] = fma(weight.y, kept(at + lane + KEYS * f), sum[f]);
                    }
                }
            }
            l = fma(l, fade, own);
        }
        workgroupBarrier();
    }
    for (var f = 0u; f < EACH; f++) {
        if lane + KEYS * f < D {
            y[row * p.y_cols + head * D + lane + KEYS * f] = sum[f] / l;
        }
    }
    if lane == 0u {
        lse[row * p.heads + head] = top + ln_of(l);
    }
}

@group(0) @binding(2) var<storage, read_write> out: array<f32>; // the forward's y
@group(0) @binding(5) var<storage, read_write> dy: array<f32>;
@group(0) @binding(6) var<storage, read_write> dots: array<f32>; // (N,H): D of each row

fn given(at: u32, i: u32) -> vec4f {
    var v = vec4f(0.0);
    for (var e = 0u; e < 4u; e++) {
        if 4u * i + e < D {
            v[e] = dy[at + 4u * i + e];
        }
    }
    return v;
}

// dq and D: one lane of a query has q, the other dy
@compute @workgroup_size(128)
fn attend_back_q(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let work = number(id, groups);
    if work >= p.count * p.heads {
        return;
    }
    let s = item(work / p.heads);
    let head = work % p.heads;
    let lane = thread % LANES;
    let half = thread / LANES;
    let i = min(s.first + lane, s.rows - 1u);
    let row = s.row + i;
    let begin = begin_of(s, i);
    let end = end_of(s, i);
    let slope = slope_of(head);
    let key = key_of(p.stream, row * p.heads + head);
    let lse_row = lse[row * p.heads + head];
    var own = array<vec4f, WIDE>();
    var gradient = array<vec4f, HALF>();
    var both = vec4f(0.0);
    for (var e = 0u; e < WIDE; e++) {
        let d = given(row * p.y_cols + head * D, e);
        var made = vec4f(0.0);
        for (var f = 0u; f < 4u; f++) {
            if 4u * e + f < D {
                made[f] = out[row * p.y_cols + head * D + 4u * e + f];
            }
        }
        both = fma(d, made, both);
        own[e] = select(loaded(row * p.cols + head * D, e), d, half == 1u);
    }
    let dot_row = added(both);
    let stop = end_of(s, min(s.first + 63u, s.rows - 1u));
    for (var k0 = begin_of(s, s.first) / PART * PART; k0 < stop; k0 += PART) {
        bring(s, head, k0, PART, thread);
        workgroupBarrier();
        for (var n = 0u; n < PART; n++) {
            var product = vec4f(0.0);
            for (var e = 0u; e < WIDE; e++) {
                product = fma(own[e], tiles[half][n][e], product);
            }
            products[PART * half + n][lane] = added(product);
        }
        workgroupBarrier();
        for (var n = 0u; n < PART; n++) {
            let j = k0 + n;
            if j >= begin && j < end {
                let score = score_of(products[n][lane], slope, i, j);
                var dp = products[PART + n][lane];
                if (p.flags & DROPS) != 0u {
                    dp *= factor(key, j, p.threshold, p.kept);
                }
                let ds = exp_of(score.x - lse_row) * (dp - dot_row) * score.y;
                for (var e = 0u; e < HALF; e++) {
                    gradient[e] = fma(vec4f(ds), tiles[0][n][of_half(half, e)], gradient[e]);
                }
            }
        }
        workgroupBarrier();
    }
    if s.first + lane < s.rows {
        for (var e = 0u; e < HALF; e++) {
            put(row * p.cols + head * D, half * HALF + e, gradient[e]);
        }
        dots[row * p.heads + head] = dot_row;
    }
}

var<workgroup> query_sums: array<vec2f, PART>; // lse and D

// dk and dv over the query heads that a key serves: one lane of a key has k and dk, the other v and dv
@compute @workgroup_size(128)
fn attend_back_kv(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let work = number(id, groups);
    if work >= p.count * p.kv_heads {
        return;
    }
    let s = item(work / p.kv_heads);
    let shared_head = work % p.kv_heads;
    let lane = thread % LANES;
    let half = thread / LANES;
    let j = min(s.first + lane, s.rows - 1u);
    let group = p.heads / p.kv_heads;
    let at = (s.row + j) * p.cols + key_column(shared_head * group) + half * p.kv_heads * D;
    var own = array<vec4f, WIDE>();
    var gradient = array<vec4f, WIDE>();
    for (var e = 0u; e < WIDE; e++) {
        own[e] = loaded(at, e);
    }
    // the queries that see any of these keys
    let start = select(0u, s.first, p.mask == 0u);
    let stop = select(s.rows, min(s.rows, s.first + 63u + p.window), p.window > 0u && p.mask == 0u);
    for (var head = shared_head * group; head < (shared_head + 1u) * group; head++) {
        let slope = slope_of(head);
        for (var i0 = start; i0 < stop; i0 += PART) {
            for (var n = thread; n < PART * WIDE; n += 2u * LANES) {
                let i = s.row + min(i0 + n / WIDE, stop - 1u);
                tiles[0][n / WIDE][n % WIDE] = loaded(i * p.cols + head * D, n % WIDE);
                tiles[1][n / WIDE][n % WIDE] = given(i * p.y_cols + head * D, n % WIDE);
            }
            if thread < PART {
                let which = (s.row + min(i0 + thread, stop - 1u)) * p.heads + head;
                query_sums[thread] = vec2f(lse[which], dots[which]);
            }
            workgroupBarrier();
            for (var n = 0u; n < PART; n++) {
                var product = vec4f(0.0);
                for (var e = 0u; e < WIDE; e++) {
                    product = fma(tiles[half][n][e], own[e], product);
                }
                products[PART * half + n][lane] = added(product);
            }
            workgroupBarrier();
            for (var n = 0u; n < PART; n++) {
                let i = i0 + n;
                if i < stop && j >= begin_of(s, i) && j < end_of(s, i) {
                    let score = score_of(products[n][lane], slope, i, j);
                    let weight = exp_of(score.x - query_sums[n].x);
                    var kept = 1.0;
                    if (p.flags & DROPS) != 0u {
                        kept = factor(key_of(p.stream, (s.row + i) * p.heads + head), j, p.threshold, p.kept);
                    }
                    let ds = weight * (products[PART + n][lane] * kept - query_sums[n].y) * score.y;
                    let share = select(ds, weight * kept, half == 1u);
                    for (var e = 0u; e < WIDE; e++) {
                        gradient[e] = fma(vec4f(share), tiles[half][n][e], gradient[e]);
                    }
                }
            }
            workgroupBarrier();
        }
    }
    if s.first + lane < s.rows {
        for (var e = 0u; e < WIDE; e++) {
            put(at, e, gradient[e]);
        }
    }
}

// what a workgroup of watch and watch_back is for: row i of a sequence and a head; or nothing, behind the last row
struct Watched { here: bool, s: Item, i: u32, head: u32 }

fn watched(work: u32) -> Watched {
    let which = work / (64u * p.heads);
    if which >= p.count {
        return Watched();
    }
    let s = item(which);
    let i = s.first + work / p.heads % 64u;
    return Watched(i < s.rows, s, i, work % p.heads);
}

@group(0) @binding(5) var<storage, read_write> raw: array<f32>; // (N, H wide)
@group(0) @binding(6) var<storage, read_write> scores_seen: array<f32>;
@group(0) @binding(7) var<storage, read_write> pattern: array<f32>;

// watched: scores before and after the mask, and weights; a lane a key
@compute @workgroup_size(64)
fn watch(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let one = watched(number(id, groups));
    if !one.here {
        return;
    }
    let s = one.s;
    let i = one.i;
    let head = one.head;
    let row = s.row + i;
    for (var j = lane; j < p.wide; j += LANES) {
        let to = (row * p.heads + head) * p.wide + j;
        raw[to] = 0.0;
        scores_seen[to] = bitcast<f32>(0xff800000u + p.flags - p.flags);
        pattern[to] = 0.0;
        if j < s.past + s.rows {
            var dot = vec4f(0.0);
            for (var e = 0u; e < WIDE; e++) {
                dot = fma(loaded(row * p.cols + head * D, e), loaded((s.row + j) * p.cols + key_column(head), e), dot);
            }
            let score = score_of(added(dot), slope_of(head), s.past + i, j).x;
            raw[to] = score;
            if j >= begin_of(s, i) && j < end_of(s, i) {
                scores_seen[to] = score;
                pattern[to] = exp_of(score - lse[row * p.heads + head]);
            }
        }
    }
}

@group(0) @binding(2) var<storage, read_write> draw: array<f32>; // gradients of the scores, and of the weights
@group(0) @binding(7) var<storage, read_write> dpattern: array<f32>;

// watched: gradients of the scores and of the weights
@compute @workgroup_size(64)
fn watch_back(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let one = watched(number(id, groups));
    if !one.here {
        return;
    }
    let s = one.s;
    let i = one.i;
    let head = one.head;
    let row = s.row + i;
    let key = key_of(p.stream, row * p.heads + head);
    for (var j = lane; j < p.wide; j += LANES) {
        let to = (row * p.heads + head) * p.wide + j;
        draw[to] = 0.0;
        dpattern[to] = 0.0;
        if j >= begin_of(s, i) && j < end_of(s, i) {
            var dot = vec4f(0.0);
            var back = vec4f(0.0);
            for (var e = 0u; e < WIDE; e++) {
                let at = (s.row + j) * p.cols + key_column(head);
                dot = fma(loaded(row * p.cols + head * D, e), loaded(at, e), dot);
                back = fma(given(row * p.y_cols + head * D, e), loaded(at + p.kv_heads * D, e), back);
            }
            var dp = added(back);
            if (p.flags & DROPS) != 0u {
                dp *= factor(key, j, p.threshold, p.kept);
            }
            let score = score_of(added(dot), slope_of(head), i, j).x;
            draw[to] = exp_of(score - lse[row * p.heads + head]) * (dp - dots[row * p.heads + head]);
            dpattern[to] = dp;
        }
    }
}
