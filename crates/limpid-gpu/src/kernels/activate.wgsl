// y = f(x);   dx (+)= dy f'(x)

struct Words { len: u32, f: u32, add: u32, leak: f32, a: f32, b: f32 }
var<immediate> p: Words;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>; // or dx
@group(0) @binding(2) var<storage, read_write> dy: array<f32>;

const QUICK = 1.702;

// the standard normal distribution function, by the complementary error function as t exp(-z^2 + polynomial of t)
fn normal(x: f32) -> f32 {
    let z = abs(x) * 0.70710678;
    let t = 1.0 / fma(0.5, z, 1.0);
    var q = fma(0.17087277, t, -0.8221522);
    q = fma(q, t, 1.4885159);
    q = fma(q, t, -1.135204);
    q = fma(q, t, 0.27886807);
    q = fma(q, t, -0.18628806);
    q = fma(q, t, 0.09678418);
    q = fma(q, t, 0.37409196);
    q = fma(q, t, 1.0000237);
    q = fma(q, t, -1.2655122);
    let tail = 0.5 * t * exp_of(fma(-z, z, q));
    return select(tail, 1.0 - tail, x > 0.0);
}

// sigmoid(x) and 1 - sigmoid(x), neither by subtraction
fn both_sides(x: f32) -> vec2f {
    let e = exp_of(-abs(x));
    let near = 1.0 / (1.0 + e);
    return select(vec2f(near, e * near), vec2f(e * near, near), x < 0.0);
}

// the slope of x sigmoid(k x)
fn swish_slope(k: f32, x: f32) -> f32 {
    let s = both_sides(k * x);
    return s.x * (1.0 + k * x * s.y);
}

fn value_of(x: f32) -> f32 {
    switch p.f {
        case 0u: { return select(x, 0.0, x < 0.0); } // relu
        case 1u: { return select(x, p.leak * x, x < 0.0); } // leaky relu
        case 2u: { return x * normal(x); } // gelu
        case 3u: { return x * sigmoid(p.a * (x + p.b * x * x * x)); } // gelu by tanh
        case 4u: { return x * sigmoid(QUICK * x); } // gelu by sigmoid
        case 5u: { return x * sigmoid(x); } // silu
        case 6u: { return select(x * x, 0.0, x < 0.0); } // relu squared
        case 7u: { return sigmoid(x); }
        default: { return tanh_of(x); }
    }
}

fn slope_of(x: f32) -> f32 {
    switch p.f {
        case 0u: { return select(0.0, 1.0, x > 0.0); }
        case 1u: { return select(p.leak, 1.0, x > 0.0); }
        case 2u: { return normal(x) + x * 0.3989423 * exp_of(-0.5 * x * x); }
        case 3u: {
            let s = both_sides(p.a * (x + p.b * x * x * x));
            return s.x + x * s.x * s.y * p.a * (1.0 + 3.0 * p.b * x * x);
        }
        case 4u: { return swish_slope(QUICK, x); }
        case 5u: { return swish_slope(1.0, x); }
        case 6u: { return select(0.0, 2.0 * x, x > 0.0); }
        case 7u: { let s = both_sides(x); return s.x * s.y; }
        default: { let s = both_sides(2.0 * x); return 4.0 * s.x * s.y; }
    }
}

@compute @workgroup_size(64)
fn activate(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        y[i] = value_of(x[i]);
    }
}

@compute @workgroup_size(64)
fn activate_back(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = number(id, groups) * SHARE + lane;
    for (var i = start; i < min(start - lane + SHARE, p.len); i += LANES) {
        let value = dy[i] * slope_of(x[i]);
        if p.add != 0u {
            y[i] += value;
        } else {
            y[i] = value;
        }
    }
}
