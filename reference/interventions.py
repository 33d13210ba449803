#!/usr/bin/env python3
"""Runs of small models with changed tensors, by plain PyTorch hooks on transformers: what limpid's interventions must
give.

    python reference/interventions.py            # writes crates/limpid/fixtures/interventions.json
    python reference/interventions.py --check    # computes the cases in that file again and compares

The file has `cases`. A case has the `model`, a folder of crates/limpid/fixtures/hf; one row of `tokens` (BERT: all of
the first segment, none padded); `do`, the steps, which apply in the order of the list; and 16 of the `logits` that
follow, each as [position, id, value]: the eight that change most and eight others.

A step names a site as TransformerLens does. It changes the columns of `head` or `unit` at the positions `pos`, or all
of them:

    {"ablate": SITE}                                        to zero (also "with": "zero")
    {"ablate": SITE, "with": {"mean_of": {"tokens": IDS}}}  to the means of each column over the positions of another run
    {"patch": SITE, "from": {"tokens": IDS}}                to what another run has there, or at its positions `from_pos`
    {"scale": SITE, "by": F}
    {"steer": SITE, "by": F, "add": {"vector": V}}          adds F times V, which is as long as the columns are many
    {"project_out": SITE, "direction": {"vector": V}}       x - (x·u) u, where u is V of length 1; with "keep_norm" true
                                                            times the length of x over that of what is left
    {"set": SITE, "value": V}                               a number, or one for each column

`"when": {"probe": {"vector": V}, "above": N}` (or "below") changes only the positions whose columns, as the step finds
them, times u are above N.

In attention's pattern `pos` is the query. There `set` has a `row` of weights by key, others being zero, and `scale` may
have a `key`. {"freeze_attention": "all" or {"layer": LAYERS}, "head": HEADS, "from": {"tokens": IDS}} is a `patch` of
whole patterns. Other runs are runs without steps, unless the source has some as `do`. Negative positions count from the
end. No two steps give the same number a new value.

Everything is computed in float64. Each case changes some logit by more than MATTERS, and so does each of its steps. The
same run in float32 differs by less than NOISE. Before the cases, each model runs with hooks that change nothing: its
logits must be exactly those without hooks, and within 1e-5 those of its truth.safetensors.
"""

import argparse
import contextlib
import json
import random
import sys
from collections import Counter
from pathlib import Path

import safetensors.torch
import torch
import transformers
from families import CASES, Wide
from names import MODELS, first, float64_model

FILE = MODELS.parent / "interventions.json"
MATTERS = 1e-3  # what every step must move some logit by
NOISE = 1e-5  # what float32 may differ by
ENTRIES = 16
LISTS = 30  # cases of two or three steps in each model
NESTED = 15  # cases in each model of a patch from a run with steps

# Where the sites of a block are: `<` what enters a module, `>` what leaves it; `.` is the block itself
PRE_NORM = "hook_resid_pre<. hook_resid_post>. "
SITES = {
    "gpt2": PRE_NORM + """
        hook_resid_mid<ln_2 hook_attn_out>attn.c_proj hook_mlp_out>mlp.c_proj attn.hook_q>attn.c_attn attn.hook_k>attn.c_attn
        attn.hook_v>attn.c_attn attn.hook_z<attn.c_proj mlp.hook_pre>mlp.c_fc mlp.hook_post<mlp.c_proj ln1.hook_out>ln_1
        ln2.hook_out>ln_2""",
    "llama": PRE_NORM + """
        hook_resid_mid<post_attention_layernorm hook_attn_out>self_attn.o_proj hook_mlp_out>mlp.down_proj
        attn.hook_q>self_attn.q_proj attn.hook_k>self_attn.k_proj attn.hook_v>self_attn.v_proj attn.hook_z<self_attn.o_proj
        mlp.hook_pre>mlp.gate_proj mlp.hook_post<mlp.down_proj ln1.hook_out>input_layernorm
        ln2.hook_out>post_attention_layernorm""",
    "gpt_neox": PRE_NORM + """
        hook_attn_out>attention.dense hook_mlp_out>mlp.dense_4h_to_h attn.hook_q>attention.query_key_value
        attn.hook_k>attention.query_key_value attn.hook_v>attention.query_key_value attn.hook_z<attention.dense
        mlp.hook_pre>mlp.dense_h_to_4h mlp.hook_post<mlp.dense_4h_to_h ln1.hook_out>input_layernorm
        ln2.hook_out>post_attention_layernorm""",
    "bert": """
        hook_resid_pre<. hook_resid_mid>attention.output.LayerNorm hook_resid_post>output.LayerNorm
        hook_attn_out>attention.output.dense hook_mlp_out>output.dense attn.hook_q>attention.self.query
        attn.hook_k>attention.self.key attn.hook_v>attention.self.value attn.hook_z<attention.output.dense
        mlp.hook_pre>intermediate.dense mlp.hook_post<output.dense""",
}  # fmt: skip
LAYERS = {"gpt2": "transformer.h", "llama": "model.layers", "gpt_neox": "gpt_neox.layers", "bert": "bert.encoder.layer"}
PATTERN = "attn.hook_pattern"
KINDS = ["ablate", "ablate to means", "patch", "patch from_pos", "scale", "steer", "set", "set columns"]
LOOKING = ["project_out", "project_out keep_norm", "scale when above", "steer when below"]  # drawn after the others
PATTERN_KINDS = ["ablate", "patch", "scale", "scale keys", "set row"]
SETTERS = ("ablate", "patch", "set")


# ---------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------


def with_patterns(attention):
    """transformers' own attention, which shows its weights to `module.see`, if there is one, before they meet the
    values."""

    def watched(module, query, key, value, *operands, **settings):
        output, weights = attention(module, query, key, value, *operands, **settings)
        if getattr(module, "see", None) is None:
            return output, weights
        weights = module.see(weights)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    return watched


class Model:
    """A model in float64 and in float32, and its sites."""

    def __init__(self, name):
        (case,) = [case for case in CASES if case.name == name]
        self.name = name
        self.exact = float64_model(case)
        torch.set_default_dtype(torch.float32)
        cls = getattr(transformers, case.model)
        self.single = cls.from_pretrained(MODELS / name, dtype=torch.float32, attn_implementation="eager").eval()
        self.config = self.exact.config
        self.kind, self.heads = self.config.model_type, self.config.num_attention_heads
        self.causal = self.kind != "bert"
        self.paths = {}  # site: module and side
        for layer in range(self.config.num_hidden_layers):
            for word in SITES[self.kind].split():
                side = "<" if "<" in word else ">"
                site, _, path = word.partition(side)
                block = f"{LAYERS[self.kind]}.{layer}"
                self.paths[f"blocks.{layer}.{site}"] = (block if path == "." else f"{block}.{path}", side)
        self.patterns = [f"blocks.{layer}.{PATTERN}" for layer in range(self.config.num_hidden_layers)]
        self.kept = {}
        self.check()

    def check(self):
        """Without steps the runs must be those of transformers, and of the file beside the model."""
        truth = safetensors.torch.load_file(MODELS / self.name / "truth.safetensors")
        inputs = {"input_ids": truth["tokens"].long()}
        if "segments" in truth:
            inputs |= {"token_type_ids": truth["segments"].long(), "attention_mask": truth["attention_mask"].long()}
        before = [self.logits(model, inputs) for model in (self.exact, self.single)]
        modeling = sys.modules[type(self.exact).__module__]
        modeling.eager_attention_forward = with_patterns(modeling.eager_attention_forward)
        after = [self.logits(model, inputs, lambda site, x: None) for model in (self.exact, self.single)]
        assert all(map(torch.equal, before, after)), f"{self.name}: looking at a run changes it"
        seen = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        apart = (after[0] - truth["logits"])[seen].abs().max()
        assert apart < 1e-5, f"{self.name}: truth.safetensors differs by {apart:.1e}"

    def logits(self, model, inputs, see=None):
        """The run's logits; `see(site, x)` may change x (T, columns), the first row's, where it stands."""
        modules, hooks = dict(model.named_modules()), []

        def watch(site, module, side):
            if side == "<":
                show = lambda module, args, kwargs: see(site, first(args or [*kwargs.values()])[0])
                hooks.append(module.register_forward_pre_hook(show, with_kwargs=True))
            else:
                hooks.append(module.register_forward_hook(lambda module, args, output: see(site, first(output)[0])))

        def see_pattern(site, weights):
            rows = weights[0].transpose(0, 1).flatten(1)  # (T, heads of keys), a copy
            see(site, rows)
            rows = rows.unflatten(1, (self.heads, -1)).transpose(0, 1)
            return torch.cat([rows[None], weights[1:]])

        if see is not None:
            for site, (path, side) in self.paths.items():
                watch(site, modules[path], side)
        for module in modules.values():
            if hasattr(module, "scaling"):
                site = self.patterns[module.layer_idx]
                module.see = see and (lambda weights, site=site: see_pattern(site, weights))
        torch.set_default_dtype(model.dtype)
        with torch.no_grad(), Wide() if model is self.exact else contextlib.nullcontext():
            found = model(**inputs).logits
        torch.set_default_dtype(torch.float32)
        for hook in hooks:
            hook.remove()
        assert found.dtype == model.dtype
        return found

    def row(self, model, tokens, see):
        inputs = {"input_ids": torch.tensor([tokens])}
        if self.kind == "bert":
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        return self.logits(model, inputs, see)[0]

    def plain(self, tokens):
        """The tensors of a run without steps, and its logits as "logits"."""
        if tuple(tokens) not in self.kept:
            tensors = {}
            tensors["logits"] = self.row(self.exact, tokens, lambda site, x: tensors.update({site: x.clone()}))
            self.kept[tuple(tokens)] = tensors
        return self.kept[tuple(tokens)]

    def edited(self, tokens, steps, model=None, shaken=0.0, kept=None):
        """The logits of a run with steps; `shaken`: by how much, at most, every number at every site is off; `kept`
        gets the tensors."""
        parts = [(step, self.source(step)) for step in self.parts(steps)]
        random = torch.Generator().manual_seed(1)

        def see(site, x):
            for step, source in parts:
                if site_of(step) == site:
                    change(step, x, self.columns(site, x.shape[1]), source)
            if shaken:
                x *= 1 + shaken * (2 * torch.rand(x.shape, generator=random, dtype=x.dtype) - 1)
            if kept is not None:
                kept[site] = x.clone()

        return self.row(model or self.exact, tokens, see)

    def parts(self, steps):
        """The steps, each at one site."""
        for step in steps:
            if "freeze_attention" not in step:
                yield step
                continue
            layers = step["freeze_attention"]
            layers = range(len(self.patterns)) if layers == "all" else places(layers["layer"], len(self.patterns))
            rest = {key: value for key, value in step.items() if key != "freeze_attention"}
            yield from ({"patch": self.patterns[layer]} | rest for layer in layers)

    def source(self, step):
        """What another run has at the step's site, if the step reads one."""
        asked = step["with"].get("mean_of") if isinstance(step.get("with"), dict) else step.get("from")
        if asked and "do" in asked:
            tensors = {}
            self.edited(asked["tokens"], asked["do"], kept=tensors)
            return tensors[site_of(step)]
        return asked and self.plain(asked["tokens"])[site_of(step)]

    def columns(self, site, width):
        """Which of a tensor's columns belong to the site: a row for each head, or for each unit."""
        whole, part = torch.arange(width), site[-1]
        if site.endswith(PATTERN):
            return whole.view(self.heads, -1)
        if ".attn." not in site:
            return whole.view(-1, 1)
        d = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads
        if part in "qkv" and self.kind == "gpt2":  # all queries, all keys, all values
            return whole.view(3, -1, d)["qkv".index(part)]
        if part in "qkv" and self.kind == "gpt_neox":  # each head's query, key and value
            return whole.view(-1, 3, d)[:, "qkv".index(part)]
        return whole.view(-1, d)


def site_of(step):
    return next(iter(step.values()))


def kind_of(step):
    return next(iter(step))


def places(asked, count):
    """A number or a list, negative ones from the end, or all."""
    if asked is None:
        return [*range(count)]
    return [i % count for i in (asked if isinstance(asked, list) else [asked])]


def selected(step, columns, count):
    """The positions and the columns that a step changes."""
    columns = columns[places(step.get("head", step.get("unit")), len(columns))]
    if "key" in step:
        columns = columns[:, step["key"]]
    return places(step.get("pos"), count), columns.flatten()


def unit(direction, dtype):
    vector = torch.tensor(direction["vector"], dtype=torch.float64)
    return (vector / vector.norm()).to(dtype)


def change(step, x, columns, source):
    """One step on x (T, columns), in place; `source` is the other run's x."""
    rows, picked = selected(step, columns, len(x))
    if "when" in step:
        along, when = x[:, picked] @ unit(step["when"]["probe"], x.dtype), step["when"]
        holds = along > when["above"] if "above" in when else along < when["below"]
        rows = [row for row in rows if holds[row]]
    at = (torch.tensor(rows, dtype=torch.long)[:, None], picked)
    match kind_of(step):
        case "ablate":
            new = torch.zeros(len(picked)) if source is None else source.mean(0)[picked]
        case "patch":
            new = source[places(step.get("from_pos", rows), len(source))][:, picked]
        case "scale":
            new = x[at] * step["by"]
        case "steer":
            new = x[at] + step["by"] * torch.tensor(step["add"]["vector"], dtype=x.dtype)
        case "project_out":
            u = unit(step["direction"], x.dtype)
            new = x[at] - (x[at] @ u)[:, None] * u
            if step.get("keep_norm"):
                new = new * (x[at].norm(dim=1) / new.norm(dim=1))[:, None]
        case "set" if "row" in step:
            row = torch.zeros(len(x), dtype=x.dtype)
            for key, weight in step["row"].items():
                row[int(key)] = weight
            new = row.repeat(len(picked) // len(x))
        case "set":
            new = torch.tensor(step["value"], dtype=x.dtype)
    x[at] = new.to(x.dtype)


# ---------------------------------------------------------------------------------------------
# Drawing cases
# ---------------------------------------------------------------------------------------------


class Draw(random.Random):
    def ids(self, model, length):
        return [self.randrange(model.causal ^ 1, model.config.vocab_size) for _ in range(length)]  # BERT's 0 is padding

    def number(self):
        """From -2 to 3 with two digits, but neither 0 nor 1."""
        return self.choice([i / 100 for i in range(-200, 301) if not -20 < i < 20 and not 80 < i < 120])

    def numbers(self, count):
        return [round(self.gauss(0, 1), 2) + 0.0 for _ in range(count)]

    def some(self, count, most=4):
        """A number below `count` or a list of several, in order."""
        if self.random() < 0.4:
            return self.randrange(count)
        return sorted(self.sample(range(count), self.randint(1, min(count, most))))

    def positions(self, length):
        """As `some`, in any order, and some of them from the end."""
        found = [i - length * (self.random() < 0.3) for i in self.sample(range(length), self.randint(1, length))]
        return found[0] if self.random() < 0.4 else found

    def step(self, model, tokens, kind, site):
        if kind == "freeze":
            count = len(model.patterns)
            layers = self.choice(["all", {"layer": sorted(self.sample(range(count), self.randint(1, count)))}])
            heads = {"head": self.some(model.heads)} if self.random() < 0.5 else {}
            return {"freeze_attention": layers, **heads, "from": {"tokens": self.ids(model, len(tokens))}}
        columns = model.columns(site, model.plain(tokens)[site].shape[1])
        step = {kind.split()[0]: site}
        if self.random() < 0.6:
            step["head" if ".attn." in site else "unit"] = self.some(len(columns))
        if self.random() < 0.7 or kind == "patch from_pos":
            step["pos"] = self.positions(len(tokens))
        rows, picked = selected(step, columns, len(tokens))
        match kind:
            case "ablate" if self.random() < 0.5:
                step["with"] = "zero"
            case "ablate to means":
                step["with"] = {"mean_of": {"tokens": self.ids(model, self.randint(2, 9))}}
            case "patch":
                step["from"] = {"tokens": self.ids(model, len(tokens))}
            case "patch from_pos":
                other = len(tokens) if self.random() < 0.7 else self.randint(3, 9)
                step["from"] = {"tokens": self.ids(model, other)}
                count = self.choice([1, len(rows)])
                step["from_pos"] = [self.randrange(-other, other) for _ in range(count)]
            case "project_out" | "project_out keep_norm":
                step["direction"] = {"vector": self.numbers(len(picked))}
                if kind.endswith("keep_norm"):
                    step["keep_norm"] = True
            case "scale when above" | "steer when below":
                probe = {"vector": self.numbers(len(picked))}
                along = (model.plain(tokens)[site][:, picked] @ unit(probe, torch.float64))[rows]
                between = (along.min() + along.max()).item() / 2  # so that it holds for some
                step |= {"when": {"probe": probe, kind.split()[-1]: round(between, 3)}, "by": self.number()}
                if kind.startswith("steer"):
                    step["add"] = {"vector": self.numbers(len(picked))}
            case "steer":
                step |= {"by": self.number(), "add": {"vector": self.numbers(len(picked))}}
            case "scale" | "scale keys":
                step["by"] = self.number()
                if kind == "scale keys":
                    step["key"] = sorted(self.sample(range(len(tokens)), self.randint(1, 3)))
            case "set row":
                most = min(rows) + 1 if model.causal else len(tokens)
                keys = sorted(self.sample(range(most), self.randint(1, min(most, 3))))
                weights = [self.randint(5, 45) for _ in keys]
                if self.random() < 0.5:  # the others do not add up to 1
                    weights[-1] = 100 - sum(weights[:-1])
                step["row"] = {str(key): weight / 100 for key, weight in zip(keys, weights)}
            case "set":
                step["value"] = self.number()
            case "set columns":
                step["value"] = self.numbers(len(picked))
        return step

    def steps(self, model, tokens, plan):
        """Steps of the kinds in the plan, or two or three of any."""
        if plan == "nested":  # a patch from a run that has steps itself
            while True:
                step = self.step(model, tokens, "patch", self.choice([*model.paths, *model.patterns]))
                inner = self.steps(model, step["from"]["tokens"], None)[: self.randint(1, 2)]
                if not clash(model, step["from"]["tokens"], inner):
                    step["from"]["do"] = inner
                    return [step]
        if plan is not None:
            kind, name = plan
            return [self.step(model, tokens, kind, f"blocks.{self.randrange(len(model.patterns))}.{name}")]
        steps, site = [], None
        for _ in range(self.randint(2, 3)):
            if site is None or self.random() < 0.6:
                site = self.choice([*model.paths, *model.patterns])
            kinds = [*PATTERN_KINDS, "freeze"] if site in model.patterns else KINDS
            steps.append(self.step(model, tokens, self.choice(kinds), site))
        return steps


def clash(model, tokens, steps):
    """Whether two steps give the same number a value, or name one tensor in two ways, which leaves their order open."""
    taken, names = set(), {}
    for step in model.parts(steps):
        site = site_of(step)
        layer, _, name = site.removeprefix("blocks.").partition(".")
        tensor = f"blocks.{int(layer) - 1}.hook_resid_post" if name == "hook_resid_pre" else site
        if names.setdefault(tensor, site) != site:
            return True
        if kind_of(step) in SETTERS:
            rows, picked = selected(step, model.columns(site, model.plain(tokens)[site].shape[1]), len(tokens))
            numbers = {(site, row, column) for row in rows for column in picked.tolist()}
            if taken & numbers:
                return True
            taken |= numbers
    return False


def less(steps):
    """The steps with one of them left out, also one of a source."""
    for i, step in enumerate(steps):
        yield steps[:i] + steps[i + 1 :]
        for inner in less(step.get("from", {}).get("do", [])):
            source = {"tokens": step["from"]["tokens"]} | ({"do": inner} if inner else {})
            yield steps[:i] + [step | {"from": source}] + steps[i + 1 :]


def case(r, model, plan, counts):
    """One case, drawn again until every step matters."""
    for _ in range(500):
        tokens = r.ids(model, r.randint(4, 9))
        steps = r.steps(model, tokens, plan)
        if clash(model, tokens, steps):
            continue
        found = model.edited(tokens, steps)
        if not found.isfinite().all():  # nothing is left of a row of one number, and nothing is stretched again
            continue
        without = [model.edited(tokens, fewer) for fewer in less(steps)]
        if min((found - other).abs().max() for other in [*without, model.plain(tokens)["logits"]]) <= MATTERS:
            counts["drawn again, since a step did nothing"] += 1
            continue
        # the norm of equal numbers, say, is rounding alone, whatever one implementation makes of it
        others = [model.edited(tokens, steps, model.single), model.edited(tokens, steps, shaken=2**-23)]
        noise = max((other - found).abs().max().item() for other in others)
        if noise >= NOISE:
            counts["drawn again, since float32 has too few digits"] += 1
            continue
        counts["noise"] = max(counts["noise"], noise)
        moved = (found - model.plain(tokens)["logits"]).abs().flatten().argsort(descending=True).tolist()
        entries = sorted(moved[: ENTRIES // 2] + r.sample(moved[ENTRIES // 2 :], ENTRIES // 2))
        places = [divmod(i, found.shape[1]) for i in entries]
        logits = [[t, v, float(f"{found[t, v].item():.9g}")] for t, v in places]
        return {"model": model.name, "tokens": tokens, "do": steps, "logits": logits}
    sys.exit(f"{model.name}: no case of {plan} in 500 draws")


def make(models):
    r, counts, cases = Draw(20251127), Counter(), []
    for model in models:
        sites = [word.replace("<", ">").split(">")[0] for word in SITES[model.kind].split()]
        plans = [(kind, site) for site in sites for kind in KINDS]
        plans += [(kind, PATTERN) for kind in [*PATTERN_KINDS, "freeze"]] * 3 + [None] * LISTS
        cases += [case(r, model, plan, counts) for plan in plans]
    r = Draw(20251128)
    cases += [case(r, model, "nested", counts) for model in models for _ in range(NESTED)]
    r = Draw(20251129)
    for model in models:
        sites = [word.replace("<", ">").split(">")[0] for word in SITES[model.kind].split()]
        cases += [case(r, model, (kind, site), counts) for site in sites for kind in LOOKING]
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    about = f"made by reference/interventions.py, which describes it ({versions}); in float32 the same runs differ by at most {counts['noise']:.1e}"
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    FILE.write_text(f'{{"about": {json.dumps(about)},\n"cases": [\n{lines}\n]}}\n')
    print(f"{FILE.name}: {FILE.stat().st_size} bytes, {len(cases)} cases", *counts.items(), sep="\n")
    report(cases)


def report(cases):
    print(*Counter(case["model"] for case in cases).items(), sep="\n")
    steps = Counter()
    for step in [step for case in cases for step in case["do"]]:
        site = "" if "freeze_attention" in step else site_of(step).split(".", 2)[2]
        more = [key for key in ("from_pos", "key", "row") if key in step]
        more += ["means"] if isinstance(step.get("with"), dict) else []
        more += [key for key in ("keep_norm", "when") if key in step]
        more += ["columns"] if isinstance(step.get("value"), list) else []
        steps[" ".join([kind_of(step), *more]), site] += 1
    for kind in sorted({kind for kind, _ in steps}):
        print(f"{kind}:", ", ".join(f"{site} {count}".strip() for (other, site), count in sorted(steps.items())
            if other == kind))


def check(models):
    """The worst difference of the file's logits from what is computed here."""
    models, worst = {model.name: model for model in models}, 0.0
    for case in json.loads(FILE.read_text())["cases"]:
        found = models[case["model"]].edited(case["tokens"], case["do"])
        worst = max(worst, *(abs(found[t, v].item() - value) for t, v, value in case["logits"]))
    print(f"{FILE.name}: the worst difference is {worst:.1e}")
    sys.exit(worst > 1e-7)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compares the file with what is computed here")
    options = parser.parse_args()
    models = [Model(name) for name in ["gpt2-plain", "llama-gqa", "pythia", "bert-mlm"]]
    (check if options.check else make)(models)


if __name__ == "__main__":
    main()
