// Sums of what workgroups have summed in parts, in order.

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;

struct Fold { cols: u32, parts: u32, room: u32, at: u32, add: u32, stripes: u32 }
var<immediate> f: Fold;

var<workgroup> stripe_sums: array<f32, 64>;

// to[i] (+)= sum over the parts: partial is (parts, room), of which `at` to `at + cols` are taken. `stripes` lanes
// share a column: each has every so manieth part, ascending, and the first adds theirs, ascending.
@compute @workgroup_size(64)
fn fold(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let wide = LANES / f.stripes;
    let i = number(id, groups) * wide + lane % wide;
    var sum = 0.0;
    if i < f.cols {
        for (var k = lane / wide; k < f.parts; k += f.stripes) {
            sum += a[k * f.room + f.at + i];
        }
    }
    stripe_sums[lane] = sum;
    workgroupBarrier();
    if lane < wide && i < f.cols {
        for (var s = 1u; s < f.stripes; s++) {
            sum += stripe_sums[s * wide + lane];
        }
        if f.add != 0u {
            sum += b[i];
        }
        b[i] = sum;
    }
}
