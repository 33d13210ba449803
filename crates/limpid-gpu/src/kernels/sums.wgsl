// Sums over rows, in order: the gradient of a bias, and shares of what is summed.

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;

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
