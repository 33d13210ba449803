// y[n] = table[token n] + positions[position n] + segments[segment n]
// dtable[id] += sum of dy[n] over the rows n that read it, ascending

struct Words { rows: u32, cols: u32, tokens: u32, positions: u32, segments: u32, first: u32, end: u32, others: u32 }
var<immediate> p: Words;

@group(0) @binding(0) var<storage, read_write> table: array<f32>;
@group(0) @binding(1) var<storage, read_write> places: array<f32>;
@group(0) @binding(2) var<storage, read_write> kinds: array<f32>;
@group(0) @binding(3) var<storage, read_write> batch: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn id_of(list: u32, n: u32) -> u32 {
    if list == NONE { // without ids, all read row 0
        return 0u;
    }
    return batch[list + n];
}

// rows whose token lies in the part of the table from `first` to `end`; others: 1 positions, 2 segments
@compute @workgroup_size(64)
fn look(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    let end = min(start - lane + SHARE, p.rows * p.cols);
    for (var i = start; i < end; i += LANES) {
        let n = i / p.cols;
        let c = i % p.cols;
        let token = id_of(p.tokens, n);
        if token >= p.first && token < p.end {
            var value = table[(token - p.first) * p.cols + c];
            if (p.others & 1u) != 0u {
                value += places[id_of(p.positions, n) * p.cols + c];
            }
            if (p.others & 2u) != 0u {
                value += kinds[id_of(p.segments, n) * p.cols + c];
            }
            y[i] = value;
        }
    }
}

struct Spread { ids: u32, cols: u32, lists: u32, first: u32, end: u32 }
var<immediate> s: Spread;

@group(0) @binding(0) var<storage, read_write> dtable: array<f32>;
@group(0) @binding(1) var<storage, read_write> lists: array<u32>;
@group(0) @binding(2) var<storage, read_write> dy: array<f32>;

// a workgroup for each id and 64 columns; the batch lists ids with the end of their rows, then all rows id by id
@compute @workgroup_size(64)
fn spread(
    @builtin(workgroup_id) wid: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let tiles = (s.cols + LANES - 1u) / LANES;
    let which = number(wid, groups) / tiles;
    let c = number(wid, groups) % tiles * LANES + lane;
    if which >= s.ids || c >= s.cols {
        return;
    }
    let row = lists[s.lists + 2u * which];
    if row < s.first || row >= s.end {
        return;
    }
    var begin = 0u;
    if which > 0u {
        begin = lists[s.lists + 2u * which - 1u];
    }
    let end = lists[s.lists + 2u * which + 1u];
    let to = (row - s.first) * s.cols + c;
    var sum = dtable[to];
    for (var i = begin; i < end; i++) {
        sum += dy[lists[s.lists + 2u * s.ids + i] * s.cols + c];
    }
    dtable[to] = sum;
}
