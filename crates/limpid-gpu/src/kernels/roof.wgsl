// The most multiply-adds that the device does: eight chains of vectors in a lane's registers.
//   y[lane] = a sum of all chains, so that none can be left out

struct Words { times: u32 }
var<immediate> p: Words;

@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn multiply_adds(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let place = number(id, groups) * LANES + lane;
    let x = vec4f(y[place]);
    let factor = vec4f(0.999);
    var s0 = x;
    var s1 = x + 0.1;
    var s2 = x + 0.2;
    var s3 = x + 0.3;
    var s4 = x + 0.4;
    var s5 = x + 0.5;
    var s6 = x + 0.6;
    var s7 = x + 0.7;
    for (var i = 0u; i < p.times; i++) {
        s0 = fma(s0, factor, x);
        s1 = fma(s1, factor, x);
        s2 = fma(s2, factor, x);
        s3 = fma(s3, factor, x);
        s4 = fma(s4, factor, x);
        s5 = fma(s5, factor, x);
        s6 = fma(s6, factor, x);
        s7 = fma(s7, factor, x);
    }
    let sum = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
    y[place] = sum.x + sum.y + sum.z + sum.w;
}
