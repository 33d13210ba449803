// The small elementwise ops, forward and backward:
//   add       y = a + scale b;                          da (+)= dy, db (+)= scale dy
//   multiply  y = a b;                                  da (+)= dy b, db (+)= dy a
//   scale     y = factor x, or cap tanh(factor x / cap);  dx (+)= factor (1 - (y / cap)^2) dy
//   dropout   y = x times the factors of its draws;     dx (+)= dy times the same
//   gather    y[i] = x[outputs[i]];                     dx[outputs[i]] (+)= dy[i]

struct Words {
    len: u32, add: u32, scale: f32, cap: f32, stream: vec2u, threshold: u32, kept: f32, cols: u32, outputs: u32,
    count: u32,
}
var<immediate> p: Words;

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> batch: array<u32>;

fn put(i: u32, value: f32) {
    if p.add != 0u {
        y[i] += value;
    } else {
        y[i] = value;
    }
}

@compute @workgroup_size(64)
fn add(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        y[i] = fma(p.scale, b[i], a[i]);
    }
}

// both gradients, or the one that there is
@compute @workgroup_size(64)
fn add_back(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        let d = a[i];
        if (p.add & 1u) != 0u {
            y[i] = select(d, y[i] + d, (p.add & 2u) != 0u);
        }
        if (p.add & 4u) != 0u {
            b[i] = select(p.scale * d, fma(p.scale, d, b[i]), (p.add & 8u) != 0u);
        }
    }
}

@compute @workgroup_size(64)
fn multiply(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        put(i, a[i] * b[i]);
    }
}

@compute @workgroup_size(64)
fn scale(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        var value = p.scale * a[i];
        if p.cap > 0.0 {
            value = p.cap * tanh_of(value / p.cap);
        }
        y[i] = value;
    }
}

@compute @workgroup_size(64)
fn scale_back(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        var slope = p.scale;
        if p.cap > 0.0 {
            let t = b[i] / p.cap; // the forward's y
            slope *= 1.0 - t * t;
        }
        put(i, slope * a[i]);
    }
}

@compute @workgroup_size(64)
fn dropout(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    let key = key_of(p.stream, start >> 24u); // that of all of the workgroup's elements
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        put(i, a[i] * factor(key, i & 0xffffffu, p.threshold, p.kept));
    }
}

@compute @workgroup_size(64)
fn gather(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        y[i] = a[batch[p.outputs + i / p.cols] * p.cols + i % p.cols];
    }
}

@compute @workgroup_size(64)
fn gather_back(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        var sum = 0.0;
        for (var k = 0u; k < p.count; k++) {
            if batch[p.outputs + k] == i / p.cols {
                sum += a[k * p.cols + i % p.cols];
            }
        }
        put(i, sum);
    }
}
