#!/usr/bin/env python3
"""What explains a changed run, by plain PyTorch hooks on transformers in float64: parts of logits, likelihoods, and
sweeps.

    python reference/changed_runs.py            # writes crates/limpid/fixtures/changed_runs.json
    python reference/changed_runs.py --check    # computes the file again and compares

Steps are those of interventions.py, whose hooks these are. The file has

    why      one logit (the last position's, of `target`) in parts: every vector that was written into the residual stream is followed forward,
             block by block, through the steps, and read by the final norm (its mean and scale as they are) and the head. What a step sets takes
             the place of all that was there; a factor stretches it; what a step sets or adds is a part called "step N".
    score    the log-probability of `continuation` after `prompt`: `pos` counts the prompt's tokens as "prompt", the others as "generated".
    scaled   logits of Granite with steps at hook_attn_out and hook_mlp_out: there these are the module's output times residual_multiplier.
    sweep    the recovered fraction of each layer and head, where no patch restores anything.
"""

import json
import sys

import interventions
import torch
from interventions import FILE, LAYERS, SITES, Draw, Model, change, site_of

HERE = FILE.parent / "changed_runs.json"
LAYERS["granite"] = "model.layers"
SITES["granite"] = SITES["llama"].replace("hook_attn_out", "attn.hook_out").replace("hook_mlp_out", "mlp.hook_out")


def columns(model, site, width):
    """The rows of columns that `head` or `unit` names."""
    return torch.arange(width).view(-1, 1) if site.endswith("attn.hook_out") else model.columns(site, width)


def run(model, tokens, steps):
    """Every site of a run before the steps and after them, and its logits."""
    parts = [(n + 1, step, model.source(step)) for n, step in enumerate(steps)]
    before, after = {}, {}

    def see(site, x):
        before[site] = x.clone()
        for _, step, source in parts:
            if site_of(step) == site:
                change(step, x, columns(model, site, x.shape[1]), source)
        after[site] = x.clone()

    return before, after, model.row(model.exact, tokens, see), parts


def moved(model, parts, site, before, written):
    """What steps at a site make of the parts `written` (name: rows) of what was there; a step's own part is added."""
    for n, step, source in parts:
        if site_of(step) != site:
            continue
        picked = columns(model, site, before.shape[1])
        ones, zeros = torch.ones_like(before), torch.zeros_like(before)
        kind = next(iter(step))
        if kind == "scale":
            change(step, ones, picked, None)
        elif kind == "steer":
            change(step, zeros, picked, None)
        else:
            change({**{"set": site, "value": 0.0}, **{k: v for k, v in step.items() if k in ("head", "unit", "pos")}},
                ones, picked, None)
            change(step, zeros, picked, source)
        written = {name: rows * ones for name, rows in written.items()}
        written[f"step {n}"] = written.get(f"step {n}", 0) + zeros
    return written


def why(model, tokens, steps, target):
    before, after, logits, steps = run(model, tokens, steps)
    named = dict(model.exact.named_modules())
    config, granite = model.config, model.kind == "granite"
    factor = config.residual_multiplier if granite else 1.0
    attn_out, mlp_out = ("attn.hook_out", "mlp.hook_out") if granite else ("hook_attn_out", "hook_mlp_out")
    stream = moved(model, steps, "blocks.0.hook_resid_pre", before["blocks.0.hook_resid_pre"],
        {"embed": before["blocks.0.hook_resid_pre"]})
    for layer in range(config.num_hidden_layers):
        block = f"blocks.{layer}"
        if layer:  # the stream between two blocks is the site behind one and before the next
            stream = moved(model, steps, f"{block}.hook_resid_pre", before[f"{block}.hook_resid_pre"], stream)
        for out, hidden, name, back in [(attn_out, "attn.hook_z", "attention", "hook_resid_mid"), (mlp_out,
            "mlp.hook_post", "MLP", "hook_resid_post")]:
            path = f"{LAYERS[model.kind]}.{layer}.{interventions_path(model, out)}"
            product = named[path]
            weight = product.weight.T if product.weight.shape[0] != before[f"{block}.{out}"].shape[1] or model.kind == "gpt2" else product.weight
            inner = moved(model, steps, f"{block}.{hidden}", before[f"{block}.{hidden}"],
                {"own": before[f"{block}.{hidden}"]})
            wrote = {f"L{layer} {name}" if key == "own" else key: rows @ weight.T for key, rows in inner.items()}
            if product.bias is not None:
                wrote[f"L{layer} {name}"] = wrote[f"L{layer} {name}"] + product.bias
            assert torch.allclose(sum(wrote.values()), before[f"{block}.{out}"], atol=1e-10)
            for key, rows in moved(model, steps, f"{block}.{out}", before[f"{block}.{out}"], wrote).items():
                stream[key] = stream.get(key, 0) + factor * rows
            stream = moved(model, steps, f"{block}.{back}", before[f"{block}.{back}"], stream)
        assert torch.allclose(sum(stream.values()), after[f"{block}.hook_resid_post"], atol=1e-9), block
    norm = named["transformer.ln_f" if model.kind == "gpt2" else "model.norm"]
    head = named["lm_head"].weight[target] / (config.logits_scaling if granite else 1.0)
    last = sum(stream.values())[-1]
    if model.kind == "gpt2":
        scale = (last.var(unbiased=False) + norm.eps).sqrt()
        read = lambda v: float(((v - v.mean()) / scale * norm.weight) @ head)
    else:
        scale = (last.pow(2).mean() + norm.variance_epsilon).sqrt()
        read = lambda v: float((v / scale * norm.weight) @ head)
    found = {name: read(rows[-1]) for name, rows in stream.items()}
    if model.kind == "gpt2":
        found["ln_final offset"] = float(norm.bias @ head)
    value = float(logits[-1, target])
    assert abs(sum(found.values()) - value) < 1e-6, (sum(found.values()), value)
    return value, found


def interventions_path(model, out):
    word = next(word for word in SITES[model.kind].split() if word.startswith(out + ">"))
    return word.split(">")[1]


def likelihood(model, prompt, continuation, steps):
    tokens, n = prompt + continuation, len(prompt)
    named = {"prompt": list(range(n)), "generated": list(range(n, len(tokens) - 1)),
        "all": list(range(len(tokens) - 1))}

    def place(step):
        at = step.get("pos", "all")
        at = named[at] if isinstance(at, str) else [i % n if i < 0 else i
            for i in (at if isinstance(at, list) else [at])]
        return {**step, "pos": at}

    logits = run(model, tokens[:-1], [place(step) for step in steps])[2]
    logs = torch.log_softmax(logits, -1)
    return float(sum(logs[n - 1 + i, id] for i, id in enumerate(continuation)))


def sweep(model, clean, corrupt, answer):
    """Of `k`, head by head: (m - corrupt) / (clean - corrupt) of the answer's log-probability."""
    measure = lambda logits: float(torch.log_softmax(logits[-1], -1)[answer])
    ends = [measure(model.plain(ids)["logits"]) for ids in (clean, corrupt)]
    heads = getattr(model.config, "num_key_value_heads", model.heads)
    patch = lambda layer, head: [{"patch": f"blocks.{layer}.attn.hook_k", "head": head, "from": {"tokens": clean}}]
    if abs(ends[0] - ends[1]) < 0.1:
        return [[0.0]]  # too little to divide by in float32
    part = lambda m: (m - ends[1]) / (ends[0] - ends[1])
    return [[part(measure(run(model, corrupt, patch(layer, head))[2])) for head in range(heads)]
        for layer in range(model.config.num_hidden_layers)]


def cases():
    draw = Draw(51)
    models = {name: Model(name) for name in ["gpt2-plain", "llama-gqa", "granite"]}
    # where values are in a llama: after rotation queries and keys are other sites
    whys, scores, scaled = [], [], []
    for name, model in models.items():
        tokens = draw.ids(model, 7)
        other = {"tokens": draw.ids(model, 7)}
        wide = model.config.hidden_size
        vector = draw.numbers(wide)
        last = model.config.num_hidden_layers - 1
        attn_out = "attn.hook_out" if name == "granite" else "hook_attn_out"
        for steps in [
            [{"patch": f"blocks.{last}.hook_resid_pre", "from": other}],
            [{"ablate": f"blocks.0.{attn_out}"}, {"steer": "blocks.0.hook_resid_mid", "by": 1.5,
            "add": {"vector": vector}}],
            [{"set": f"blocks.{last}.attn.hook_z", "head": 1, "value": 0.75},
            {"scale": f"blocks.{last}.hook_resid_post", "by": -0.5}],
            [{"patch": f"blocks.{last}.mlp.hook_post", "unit": [0, 3, 5], "pos": [6], "from": other},
            {"scale": f"blocks.0.{attn_out}", "by": 0.0}],
            [{"scale": "blocks.0.attn.hook_pattern", "head": [0], "key": [1], "by": 3.0},
            {"set": "blocks.0.hook_resid_post", "unit": [1, 2, 7], "value": 1.25}],
        ]:
            target = draw.randrange(model.config.vocab_size)
            value, parts = why(model, tokens, steps, target)
            whys.append({"model": name, "tokens": tokens, "do": steps, "target": target, "value": value,
                "parts": parts})
        prompt, continuation = tokens[:4], draw.ids(model, 3)
        for pos in ["prompt", -1, "generated", [0, -2], "all"]:
            steps = [{"steer": "blocks.0.hook_resid_post", "by": 2.0, "add": {"vector": vector}, "pos": pos},
                {"scale": "blocks.1.attn.hook_z", "head": 1, "by": -1.5, "pos": pos}]
            total = likelihood(model, prompt, continuation, steps)
            scores.append({"model": name, "prompt": prompt, "continuation": continuation, "do": steps, "total": total})
    granite = models["granite"]
    tokens, m = draw.ids(granite, 6), granite.config.residual_multiplier
    vector, other = draw.numbers(granite.config.hidden_size), draw.ids(granite, 6)
    for site, own in [("hook_attn_out", "attn.hook_out"), ("hook_mlp_out", "mlp.hook_out")]:
        there = lambda step, site: {next(iter(step)): f"blocks.1.{site}", **{k: v for k, v in list(step.items())[1:]}}
        for step, same in [
            ({"ablate": ""}, {"ablate": ""}),
            ({"scale": "", "by": 0.3, "pos": [2, 5]}, {"scale": "", "by": 0.3, "pos": [2, 5]}),
            ({"set": "", "value": 0.5, "unit": [1, 4]}, {"set": "", "value": 0.5 / m, "unit": [1, 4]}),
            ({"steer": "", "by": 2.0, "add": {"vector": vector}}, {"steer": "", "by": 2.0 / m,
            "add": {"vector": vector}}),
            ({"patch": "", "from": {"tokens": other}}, {"patch": "", "from": {"tokens": other}}),
        ]:
            logits = run(granite, tokens, [there(same, own)])[2]
            scaled.append({"model": "granite", "tokens": tokens, "do": [there(step, site)],
                "logits": logits[-1].tolist()})
    sweeps, model = [], models["llama-gqa"]
    for _ in range(4000):
        clean, corrupt = draw.ids(model, 3), draw.ids(model, 3)
        grid = sweep(model, clean, corrupt, answer := draw.randrange(model.config.vocab_size))
        flat = sum(grid, [])
        if max(flat) < -0.001 and min(flat) < -0.05 and len(sweeps) < 2:
            sweeps.append({"model": "llama-gqa", "clean": clean, "corrupt": corrupt, "answer": answer,
                "recovered": grid})
        if len(sweeps) == 2:
            break
    assert len(sweeps) == 2
    return {"why": whys, "score": scores, "scaled": scaled, "sweep": sweeps}


def close(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return abs(a - b) < 1e-9 if isinstance(a, float) else a == b


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 10) + 0.0 if isinstance(value, float) else value


if __name__ == "__main__":
    with torch.no_grad():
        found = rounded(cases())
    if "--check" in sys.argv:
        assert close(found, json.loads(HERE.read_text())), "the file has other numbers"
    else:
        HERE.write_text("{\n" + ",\n".join(f'"{kind}": [\n' + ",\n".join(map(json.dumps, some)) + "\n]" for kind,
            some in found.items()) + "\n}\n")
    print(", ".join(f"{len(some)} of {kind}" for kind, some in found.items()))
