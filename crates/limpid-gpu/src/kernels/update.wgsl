// The norm of the gradient, the update rules of limpid-core's optimizer/adamw.rs, and Muon's momentum. All guard
// themselves: where the norm is not finite, nothing but the gradients changes.

struct Words {
    at: u32, len: u32, method: u32, sums: u32, // from which element of the binding on; where measured sums go
    rate: f32, beta1: f32, beta2: f32, rest1: f32,
    rest2: f32, correct1: f32, correct2: f32, eps: f32,
    decay: f32, own: f32, part: f32, x_at: u32,
}
var<immediate> p: Words;

const BLOCK = 4096u; // elements of a workgroup
// the factor that clips, whether something changes, whether the losses hold it back
@group(0) @binding(0) var<storage, read_write> state: array<f32>;
@group(0) @binding(1) var<storage, read_write> g: array<f32>;
@group(0) @binding(2) var<storage, read_write> w: array<f32>;
@group(0) @binding(3) var<storage, read_write> m: array<f32>;
@group(0) @binding(4) var<storage, read_write> v: array<f32>; // or Muon's orthogonal matrix
@group(0) @binding(5) var<storage, read_write> sums: array<f32>;

// sums[block] = sum of squares
@compute @workgroup_size(64)
fn squares(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = number(id, groups);
    if block * BLOCK >= p.len {
        return;
    }
    var sum = 0.0;
    for (var i = block * BLOCK + lane; i < min((block + 1u) * BLOCK, p.len); i += LANES) {
        sum = fma(g[p.at + i], g[p.at + i], sum);
    }
    sum = total(lane, sum);
    if lane == 0u {
        state[p.sums + block] = sum;
    }
}

struct Norm { parts: u32, at: u32, most: f32, given: f32, how: u32 }
var<immediate> q: Norm;

// the sum of all parts
fn sum_of_parts(lane: u32) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < q.parts; i += LANES) {
        sum += g[q.at + i];
    }
    return total(lane, sum);
}

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// of all parts: state = the factor that clips (how = 0; how = 1 where the norm is given), or 1 / (norm + eps) (how = 2)
@compute @workgroup_size(64)
fn norm_of(@builtin(local_invocation_index) lane: u32) {
    let sum = sum_of_parts(lane);
    if lane == 0u {
        let norm = select(sqrt(sum), q.given, q.how == 1u);
        if q.how == 2u {
            state[0] = 1.0 / (norm + q.most);
        } else {
            let limit = norm + 1.0e-6;
            state[0] = select(1.0, q.most / limit, q.most < limit);
            state[1] = select(0.0, 1.0, is_finite(norm));
            state[2] = 0.0;
        }
    }
}

// the losses: state[1] = 0 and state[2] = 1 if their sum is above the most, or is not finite
@compute @workgroup_size(64)
fn hold(@builtin(local_invocation_index) lane: u32) {
    let sum = sum_of_parts(lane);
    if lane == 0u && (!is_finite(sum) || sum > q.most) {
        state[1] = 0.0;
        state[2] = 1.0;
    }
}

@compute @workgroup_size(64)
fn update(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = number(id, groups);
    if block * BLOCK >= p.len {
        return;
    }
    let clip = state[0];
    let finite = state[1] != 0.0;
    var measured = vec3f(0.0); // squares of gradient, weight and change
    for (var i = p.at + block * BLOCK + lane; i < p.at + min((block + 1u) * BLOCK, p.len); i += LANES) {
        let before = w[i];
        var after = before;
        if p.method == 0u { // sgd
            let moment = fma(p.beta1, m[i], fma(p.decay, before, clip * g[i]));
            after = fma(-p.rate, moment, before);
            if finite {
                m[i] = moment;
            }
        } else if p.method == 3u { // along Muon's matrix
            after = fma(p.own, before, p.part * v[i - p.at + p.x_at]);
        } else { // adam, adamw
            let mixed = select(0.0, p.decay, p.method == 1u);
            let apart = p.decay - mixed;
            let gradient = fma(mixed, before, clip * g[i]);
            let moment = fma(p.beta1, m[i], p.rest1 * gradient);
            let second = fma(p.beta2, v[i], p.rest2 * gradient * gradient);
            let step = moment * p.correct1 / (sqrt(second * p.correct2) + p.eps);
            after = fma(-p.rate, fma(apart, before, step), before);
            if finite {
                m[i] = moment;
                v[i] = second;
            }
        }
        if finite {
            w[i] = after;
        }
        let change = after - before;
        measured = fma(vec3f(g[i], after, change), vec3f(g[i], after, change), measured);
    }
    if p.sums != NONE {
        for (var i = 0u; i < 3u; i++) {
            let sum = total(lane, measured[i]);
            if lane == 0u {
                sums[p.sums + 3u * block + i] = sum;
            }
        }
    }
}

// Muon: m = beta m + rest clip g;   v = beta m + rest clip g, from `x_at` on
@compute @workgroup_size(64)
fn momentum(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    let finite = state[1] != 0.0;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        let gradient = p.rest1 * state[0] * g[p.at + i];
        let moment = fma(p.beta1, m[p.at + i], gradient);
        v[p.x_at + i] = fma(p.beta1, moment, gradient);
        if finite {
            m[p.at + i] = moment;
        }
    }
}

// g = own g + part w;   how 1: g = own g times state[0]
@compute @workgroup_size(64)
fn blend(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        if p.method == 1u {
            g[p.at + i] *= state[0];
        } else {
            g[p.at + i] = fma(p.own, g[p.at + i], p.part * w[p.x_at + i]);
        }
    }
}
