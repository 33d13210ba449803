// One row of logits: the loss, and in its place the softmax or the gradient.
//
//   loss = mass lse - sum of wanted logits + z lse^2;   dlogits = weight (softmax (mass + 2 z lse) - wanted) slope of
//   the bound
// with wanted = (1 - smoothing) target + smoothing mass / V. The logits themselves are a `product`.

struct Words {
    // rows of the chunk, the first one's number in the batch, elements from one to the next
    rows: u32, first: u32, v: u32, row: u32,
    cap: f32, weight: f32, smoothing: f32, z_loss: f32, targets: u32,
    flags: u32,
}
var<immediate> p: Words;

const TOKENS = 1u; // a target is a token
const SOFT = 2u; // a target is a distribution
const GRADIENT = 4u; // leave the gradient in the logits' place
const SEEN = 8u; // copy the bounded logits and the softmax, or the gradient before the bound's slope

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> soft: array<f32>;
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;
@group(0) @binding(4) var<storage, read_write> seen: array<f32>;
@group(0) @binding(5) var<storage, read_write> probs: array<f32>;

@compute @workgroup_size(64)
fn classify(
    @builtin(workgroup_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = number(id, groups);
    if row >= p.rows {
        return;
    }
    let n = p.first + row;
    let at = row * p.row;
    let whole = n * p.v;
    var top = LEAST;
    for (var i = lane; i < p.v; i += LANES) {
        var value = logits[at + i];
        if p.cap > 0.0 {
            value = p.cap * tanh_of(value / p.cap);
            logits[at + i] = value;
        }
        top = max(top, value);
    }
    top = greatest(lane, top);
    var token = NONE;
    if (p.flags & TOKENS) != 0u {
        token = batch[p.targets + n];
    }
    var mass = 0.0;
    var own = 0.0;
    var z = 0.0;
    var all = 0.0;
    for (var i = lane; i < p.v; i += LANES) {
        let value = logits[at + i] - top;
        z += exp_of(value);
        all += value;
        if (p.flags & SOFT) != 0u {
            let y = soft[whole + i];
            mass += y;
            if y != 0.0 {
                own = fma(y, value, own);
            }
        } else if i == token {
            mass = 1.0;
            own = value;
        }
    }
    z = total(lane, z);
    mass = total(lane, mass);
    own = total(lane, own);
    all = total(lane, all);
    let kept = 1.0 - p.smoothing;
    let even = p.smoothing * mass / f32(p.v);
    // each logit less the top, so that nothing cancels
    own = fma(kept, own, even * all);
    let log_z = ln_of(z);
    let lse = top + log_z;
    let z_loss = select(p.z_loss, 0.0, mass == 0.0);
    let counted = (p.flags & SOFT) != 0u || token != NONE;
    if lane == 0u {
        losses[n] = select(0.0, mass * log_z - own + z_loss * lse * lse, counted);
    }
    let grow = mass + 2.0 * z_loss * lse;
    for (var i = lane; i < p.v; i += LANES) {
        let value = logits[at + i];
        let share = exp_of(value - top) / z;
        if (p.flags & GRADIENT) == 0u {
            if (p.flags & SEEN) != 0u {
                seen[whole + i] = value;
                probs[whole + i] = share;
            }
            continue;
        }
        var wanted = 0.0;
        if (p.flags & SOFT) != 0u {
            wanted = soft[whole + i];
        } else if i == token {
            wanted = 1.0;
        }
        let back = select(0.0, p.weight * (share * grow - kept * wanted - even), counted);
        if (p.flags & SEEN) != 0u {
            seen[whole + i] = back;
        }
        let bound = value / max(p.cap, 1.0e-30);
        logits[at + i] = select(back, back * (1.0 - bound * bound), p.cap > 0.0);
    }
}
