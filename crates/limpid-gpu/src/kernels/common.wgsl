// What every kernel may use. A workgroup has 64 lanes, and sums are chains of one lane each, then a tree: one order,
// whatever runs beside it. Multiply-adds that round once are written out; there are no atomics and no subgroups.

const LANES = 64u;
// how many neighbouring elements a workgroup of an elementwise kernel takes
const SHARE = 256u;
// stands for minus infinity, which WGSL has not
const LEAST = -3.0e38;
// no place, no id
const NONE = 0xffffffffu;

// A workgroup's number: where there are more than a dimension takes, they fill a rectangle.
fn number(id: vec3u, groups: vec3u) -> u32 {
    return id.x + id.y * groups.x;
}

var<workgroup> tree: array<f32, 64>;

// The sum over the lanes.
fn total(lane: u32, value: f32) -> f32 {
    tree[lane] = value;
    workgroupBarrier();
    for (var step = 32u; step > 0u; step /= 2u) {
        if lane < step {
            tree[lane] += tree[lane + step];
        }
        workgroupBarrier();
    }
    let sum = tree[0];
    workgroupBarrier();
    return sum;
}

// The greatest over the lanes.
fn greatest(lane: u32, value: f32) -> f32 {
    tree[lane] = value;
    workgroupBarrier();
    for (var step = 32u; step > 0u; step /= 2u) {
        if lane < step {
            tree[lane] = max(tree[lane], tree[lane + step]);
        }
        workgroupBarrier();
    }
    let top = tree[0];
    workgroupBarrier();
    return top;
}

// The functions of limpid-core's numeric/math.rs: WGSL promises less of its own.

fn exp_of(x: f32) -> f32 {
    let near = min(x, 88.0);
    let n = round(near * 1.44269504);
    // ln 2 in two parts, so that r is exact to the last bit
    var r = fma(n, -0.693359375, near);
    r = fma(n, 2.12194440e-4, r);
    var p = fma(1.9875692e-4, r, 1.3982e-3);
    p = fma(p, r, 8.333452e-3);
    p = fma(p, r, 4.1665796e-2);
    p = fma(p, r, 1.6666666e-1);
    p = fma(p, r, 0.5);
    p = fma(p, r * r, r + 1.0);
    let whole = clamp(i32(n), -126, 127);
    return select(p * bitcast<f32>(u32(whole + 127) << 23u), 0.0, x < -87.0);
}

// ln(m 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1)), with m next to 1
fn ln_of(x: f32) -> f32 {
    let bits = bitcast<u32>(x) + (0x3f800000u - 0x3f3504f3u);
    let e = f32(i32(bits >> 23u) - 127);
    let f = bitcast<f32>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    var p = fma(z, 0.181818182, 0.222222222);
    p = fma(p, z, 0.285714286);
    p = fma(p, z, 0.4);
    p = fma(p, z, 0.666666667);
    let m = fma(s * z, p, 2.0 * s);
    return fma(e, 0.693359375, fma(e, -2.12194440e-4, m));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_of(-x));
}

fn tanh_of(x: f32) -> f32 {
    let z = x * x;
    var p = fma(-5.7049887e-3, z, 2.0639088e-2);
    p = fma(p, z, -5.3739715e-2);
    p = fma(p, z, 1.3331442e-1);
    p = fma(p, z, -3.333328e-1);
    let far = 1.0 - 2.0 / (1.0 + exp_of(2.0 * abs(x)));
    return select(select(far, -far, x < 0.0), fma(p * z, x, x), z < 0.390625);
}

// The nearest bf16s, in the high halves; ties to even, NaN stays NaN.
fn nearest_bf16(v: vec4f) -> vec4u {
    let bits = bitcast<vec4u>(v);
    let near = bits + vec4u(0x7fffu) + ((bits >> vec4u(16u)) & vec4u(1u));
    let nan = (bits & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
    return select(near, bits | vec4u(0x400000u), nan) & vec4u(0xffff0000u);
}

// The draws of limpid-base's random.rs; 64 bits are two words, the low one first.

fn add64(a: vec2u, b: vec2u) -> vec2u {
    let low = a.x + b.x;
    return vec2u(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn times64(a: vec2u, b: vec2u) -> vec2u {
    let al = a.x & 0xffffu;
    let ah = a.x >> 16u;
    let bl = b.x & 0xffffu;
    let bh = b.x >> 16u;
    let middle = ((al * bl) >> 16u) + ((al * bh) & 0xffffu) + ((ah * bl) & 0xffffu);
    let high = ah * bh + ((al * bh) >> 16u) + ((ah * bl) >> 16u) + (middle >> 16u);
    return vec2u(a.x * b.x, high + a.x * b.y + a.y * b.x);
}

fn shifted(a: vec2u, by: u32) -> vec2u {
    return a ^ vec2u((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

fn mix64(bits: vec2u) -> vec2u {
    var z = add64(bits, vec2u(0x7f4a7c15u, 0x9e3779b9u));
    z = times64(shifted(z, 30u), vec2u(0x1ce4e5b9u, 0xbf58476du));
    z = times64(shifted(z, 27u), vec2u(0x133111ebu, 0x94d049bbu));
    return shifted(z, 31u);
}

// The key of the draws of a row of 2^24 elements.
fn key_of(stream: vec2u, row: u32) -> vec2u {
    return mix64(add64(stream, vec2u(row, 0u)));
}

// The factor of a row's element: 0 where it is dropped.
fn factor(key: vec2u, place: u32, threshold: u32, kept: f32) -> f32 {
    var x = place ^ key.x;
    x = (x ^ (x >> 16u)) * 0x7feb352du;
    x = (x ^ (x >> 15u) ^ key.y) * 0x846ca68bu;
    x = x ^ (x >> 16u);
    return select(kept, 0.0, x < threshold);
}
