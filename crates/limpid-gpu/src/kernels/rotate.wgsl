// Pairs of features of queries and keys turn by their position's angle; `sign` -1 turns back. The others are copied.

struct Words { rows: u32, cols: u32, d: u32, turned: u32, wide: u32, positions: u32, sign: f32, add: u32 }
var<immediate> p: Words;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> angles: array<f32>; // (T,R): cosine, sine
@group(0) @binding(2) var<storage, read_write> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn rotate(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    let end = min(start - lane + SHARE, p.rows * p.cols);
    for (var i = start; i < end; i += LANES) {
        let column = i % p.cols;
        let feature = column % p.d;
        var value = x[i];
        if column < p.turned && feature < p.wide {
            let pair = feature / 2u * 2u;
            let at = batch[p.positions + i / p.cols] * p.wide + pair;
            let cosine = angles[at];
            let sine = p.sign * angles[at + 1u];
            if feature == pair {
                value = fma(value, cosine, -(x[i + 1u] * sine));
            } else {
                value = fma(x[i - 1u], sine, value * cosine);
            }
        }
        if p.add != 0u {
            value = y[i] + value;
        }
        y[i] = value;
    }
}
