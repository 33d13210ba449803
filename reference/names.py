#!/usr/bin/env python3
"""Every name of docs/names.md beside what transformers and TransformerLens have there, in every model of
crates/limpid/fixtures/hf.

    python reference/names.py target/debug/limpid                     # compares, and prints docs/names-checked.md
    python reference/names.py target/debug/limpid gemma2 olmo2        # only these models
    python reference/names.py --fixtures crates/limpid/fixtures/names # writes the truth for crates/limpid/tests/library/names.rs

Each model runs in transformers in float64. Hooks on its modules (`FAMILIES` says which module is which), and on the
product and the softmax of its attention, keep tensors and their gradients. What no module gives is computed here from
what one gives (`Kept.own`), and the table says so. Where TransformerLens opens the family and gives the same logits,
its cache and its parameters are compared too, each under the name that docs/names.md has for it.

A tensor's difference is the largest of its elements', over its largest element. The run fails where one is above BOUND,
where limpid has a tensor without a truth or lacks one, and where a name of docs/names.md was compared in no model and
is not in `ELSEWHERE`.
"""

import argparse
import contextlib
import copy
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from families import CASES, Wide, build, write_tensors
from make import IGNORE, Random

HERE = Path(__file__).resolve().parent.parent
MODELS = HERE / "crates/limpid/fixtures/hf"
BOUND = 1e-5
ROWS, LENGTH = 2, 7
# what tests read: one model of each family, more of one where blocks or matrices differ
FIXTURES = """
    albert bert-mlm bloom camembert cohere-biased cohere2 distilbert electra-narrow ernie4-5-biased falcon falcon-new falcon-serial gemma
    gemma2 gemma3 glm4 gpt-bigcode gpt-bigcode-multi gpt-neo gpt2-hub gptj granite-biased helium-biased llama-mqa mistral mpt
    nanochat-biased olmo-biased olmo2-biased openai-gpt-hub opt phi phi3 pythia pythia-serial qwen2 qwen3-biased roberta seed-oss
    smollm3-pattern stablelm-parallel starcoder2 xlm-roberta
""".split()
SHORT = 5  # tokens of it
GRADIENTS = "W_Q W_K b_Q q_norm k_norm".split()  # of its parameters
MASKS = {"bert-mlm": 4, "albert": 4}  # [MASK], where there is a tokenizer

# ---------------------------------------------------------------------------------------------
# Which module of transformers is which
# ---------------------------------------------------------------------------------------------

LLAMA = """
    embed=embed_tokens layers=model.layers ln1=input_layernorm q=self_attn.q_proj k=self_attn.k_proj v=self_attn.v_proj
    q_norm=self_attn.q_norm k_norm=self_attn.k_norm out=self_attn.o_proj ln2=post_attention_layernorm
    gate=mlp.gate_proj in=mlp.up_proj act=mlp.act_fn mlp=mlp.down_proj ln_final=model.norm head=lm_head
"""
GPT = """
    embed=wte pos=wpe layers=transformer.h ln1=ln_1 qkv=attn.c_attn out=attn.c_proj ln2=ln_2 in=mlp.c_fc mlp=mlp.c_proj
    ln_final=ln_f head=lm_head
"""
BERT = """
    embed=word_embeddings pos=position_embeddings seg=token_type_embeddings embed_norm=embeddings.LayerNorm project=embeddings_project
    layers=encoder.layer q=attention.self.query k=attention.self.key v=attention.self.value out=attention.output.dense
    ln1=attention.output.LayerNorm in=intermediate.dense mlp=output.dense ln2=output.LayerNorm
    dense=predictions.transform.dense head_ln=predictions.transform.LayerNorm head=predictions.decoder
"""
ROBERTA = BERT + "dense=lm_head.dense head_ln=lm_head.layer_norm head=lm_head.decoder"
PLAIN = " gate= act="  # a feed-forward network without a gate
BETWEEN = LLAMA + "ln1_post=post_attention_layernorm ln2=pre_feedforward_layernorm ln2_post=post_feedforward_layernorm"
FUSED = " gate= in= gate_in=mlp.gate_up_proj act=mlp.activation_fn"
NEOX = """
    embed=embed_in|word_embeddings embed_norm=word_embeddings_layernorm layers=gpt_neox.layers|transformer.h ln1=input_layernorm|ln_attn
    ln2=post_attention_layernorm|ln_mlp qkv=attention.query_key_value|self_attention.query_key_value
    out=attention.dense|self_attention.dense in=mlp.dense_h_to_4h mlp=mlp.dense_4h_to_h
    ln_final=gpt_neox.final_layer_norm|ln_f head=lm_head|embed_out
"""
# `a|b`: whichever the model has. Modules outside the blocks by the end of their path; a later word overrides an earlier
# one.
FAMILIES = {
    **dict.fromkeys("llama mistral qwen2 qwen3 seed_oss smollm3 helium ernie4_5 olmo gemma granite stablelm".split(),
    LLAMA),
    **dict.fromkeys("cohere cohere2".split(), LLAMA),
    "phi3": LLAMA + "q= k= v= qkv=self_attn.qkv_proj" + FUSED,
    "glm4": LLAMA + "ln1_post=post_self_attn_layernorm ln2_post=post_mlp_layernorm" + FUSED,
    "gemma2": BETWEEN,
    "gemma3_text": BETWEEN,
    "olmo2": BETWEEN + " ln1= ln2= mid=mlp",
    "starcoder2": LLAMA + PLAIN + " in=mlp.c_fc mlp=mlp.c_proj",
    "nanochat": LLAMA + PLAIN + " in=mlp.fc1 mlp=mlp.fc2 embed_norm=model.norm",
    "phi": LLAMA + PLAIN + " out=self_attn.dense in=mlp.fc1 mlp=mlp.fc2 ln_final=final_layernorm",
    **dict.fromkeys("gpt_neox falcon bloom".split(), NEOX),
    "mpt": GPT + "layers=transformer.blocks ln1=norm_1 qkv=attn.Wqkv out=attn.out_proj ln2=norm_2 in=ffn.up_proj "
    "mlp=ffn.down_proj ln_final=norm_f",
    **dict.fromkeys("gpt2 gpt_bigcode".split(), GPT),
    "openai-gpt": GPT + "embed=tokens_embed pos=positions_embed",
    "gptj": GPT + "qkv= q=attn.q_proj k=attn.k_proj v=attn.v_proj out=attn.out_proj in=mlp.fc_in mlp=mlp.fc_out",
    "gpt_neo": GPT + "qkv= q=attn.attention.q_proj k=attn.attention.k_proj v=attn.attention.v_proj "
    "out=attn.attention.out_proj",
    "opt": LLAMA + PLAIN + """ pos=embed_positions layers=decoder.layers ln1=self_attn_layer_norm out=self_attn.out_proj
        ln2=final_layer_norm in=fc1 mlp=fc2 ln_final=decoder.final_layer_norm""",
    "bert": BERT,
    **dict.fromkeys("roberta xlm-roberta camembert".split(), ROBERTA),
    "electra": BERT + "dense=generator_predictions.dense head_ln=generator_predictions.LayerNorm "
    "head=generator_lm_head",
    "distilbert": BERT + """layers=transformer.layer q=attention.q_lin k=attention.k_lin v=attention.v_lin out=attention.out_lin
        ln1=sa_layer_norm in=ffn.lin1 mlp=ffn.lin2 ln2=output_layer_norm dense=vocab_transform head_ln=vocab_layer_norm
        head=vocab_projector""",
    "albert": BERT + """project=embedding_hidden_mapping_in layers=albert_layers q=attention.query k=attention.key v=attention.value
        out=attention.dense ln1=attention.LayerNorm in=ffn mlp=ffn_output ln2=full_layer_layer_norm dense=predictions.dense
        head_ln=predictions.LayerNorm head=predictions.decoder""",
}  # fmt: skip
POST = "openai-gpt bert roberta xlm-roberta camembert electra distilbert albert".split()  # norms after the sums
# Each head's queries, keys and values side by side; in the other fused matrices all queries come first
BY_HEAD = "gpt_neox bloom".split()


def words(text):
    return dict(word.split("=") for word in text.split())


class Roles:
    """The modules of a model by what they do, and the sizes that are read off them."""

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.kind = model.config.model_type
        self.paths = dict(model.named_modules())
        roles = words(FAMILIES[self.kind])
        stack = self.outside(roles.pop("layers"))
        self.n_layer = self.config.num_hidden_layers
        self.shared = len(stack) == 1 < self.n_layer
        inside = dict(stack[0].named_modules())
        self.inner = {}  # role: path in a block
        self.outer = {}  # role: module
        for role, path in roles.items():
            for one in path.split("|") if path else []:
                # a word that a later one replaces may be a path of nothing here
                if one in inside and role not in ("embed", "pos", "seg", "embed_norm", "ln_final", "head", "dense",
                    "head_ln", "project"):
                    self.inner[role] = one
                elif role not in self.inner and self.outside(one) is not None:
                    self.outer[role] = self.outside(one)
        self.blocks = [stack[0 if self.shared else i] for i in range(self.n_layer)]
        self.post = self.kind in POST
        c = self.config
        self.heads = c.num_attention_heads
        out = self.block(0, "out")
        width = out.weight.shape[0 if type(out).__name__ == "Conv1D" else 1]
        self.d_head = width // self.heads
        self.parallel = self.is_parallel()

    def outside(self, path):
        found = [m for name, m in self.paths.items() if any(name == p or name.endswith("." + p)
            for p in path.split("|"))]
        found = [m for m in found if not any(m is x for x in found[: found.index(m)])] if found else []
        assert len(found) < 2, (path, len(found))
        return found[0] if found else None

    def block(self, i, role):
        path = self.inner.get(role)
        return self.blocks[i].get_submodule(path) if path is not None else None

    def is_parallel(self):
        c = self.config
        return {
            "gpt_neox": lambda: c.use_parallel_residual,
            "stablelm": lambda: c.use_parallel_residual,
            "falcon": lambda: c.parallel_attn or c.new_decoder_architecture,
            **dict.fromkeys("gptj phi cohere cohere2".split(), lambda: True),
        }.get(self.kind, lambda: False)()

    def split(self, x, axis):
        """Queries, keys and values (head, d_head) out of an axis of a fused product."""
        x, d, h = x.movedim(axis, -1), self.d_head, self.heads
        if self.kind == "falcon" and self.config.new_decoder_architecture:
            x = x.unflatten(-1, (self.config.num_kv_heads, -1, d))
            parts = x[..., :-2, :].flatten(-3, -2), x[..., -2, :], x[..., -1, :]
        elif self.kind == "falcon" and self.config.multi_query:
            x = x.unflatten(-1, (-1, d))
            parts = x[..., :-2, :], x[..., -2:-1, :], x[..., -1:, :]
        elif self.kind in BY_HEAD + ["falcon"] or self.kind == "gpt_bigcode" and not self.config.multi_query:
            parts = x.unflatten(-1, (h, 3, d)).unbind(-2)
        else:
            kv = (x.shape[-1] - h * d) // 2
            parts = [part.unflatten(-1, (-1, d)) for part in x.split([h * d, kv, kv], -1)]
        return dict(zip("qkv", parts))


# ---------------------------------------------------------------------------------------------
# A run, and what is kept of it
# ---------------------------------------------------------------------------------------------


class Watch(Wide):
    """Keeps the operands of the products of queries and keys, and what goes into softmax and comes out of it."""

    def __init__(self, length):
        super().__init__()
        self.length, self.products, self.softmaxes = length, [], []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        y = super().__torch_function__(function, types, args, kwargs)
        if getattr(function, "__name__", "") in ("matmul", "__matmul__") and y.dim() == 4:
            if y.shape[-2:] == (self.length, self.length):
                self.products.append((args[0], args[1]))
        if getattr(function, "__name__", "") == "softmax" and y.dim() == 4:
            self.softmaxes.append((self.products[-1] if self.products else None, args[0], y))
        return y


def float64_model(case):
    """The model in the folder in float64, its tensors as transformers reads them."""
    r = Random(sum(case.name.encode()) * 1000 + len(case.name))
    torch.set_default_dtype(torch.float32)
    cls = getattr(transformers, case.model)
    stored = build(case, r)
    if case.reload:
        stored = cls.from_pretrained(MODELS / case.name, dtype=torch.float32, attn_implementation="eager").eval()
    torch.set_default_dtype(torch.float64)
    with Wide():
        config = cls.config_class(**case.config, attn_implementation="eager")
        if getattr(config, "reorder_and_upcast_attn", False):
            config.reorder_and_upcast_attn = False  # it insists on float32, and changes nothing else
        model = cls(config).eval()
        model.load_state_dict(stored.state_dict())
        model.tie_weights()
    keys = json.loads((MODELS / case.name / "config.json").read_text())
    for key in ["embd_pdrop", "resid_pdrop"]:
        if key in keys:
            setattr(model.config, key, keys[key])
    return model


class Kept:
    """Tensors of the graph under limpid's names, each what a hook saw and how that is laid out under the name; and
    those computed here."""

    def __init__(self):
        self.seen, self.own, self.own_gradients, self.sizes = {}, {}, {}, {}

    def put(self, name, tensor, layout=lambda x: x, summed=None):
        """`layout` is linear, and lays out gradients as well, but for keys that were repeated: theirs are `summed`."""
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.retain_grad()
        self.seen[name] = (tensor, layout, summed or layout)

    def get(self, name):
        if name in self.own:
            return self.own[name].detach()
        tensor, layout, _ = self.seen[name]
        return layout(tensor).detach()

    def gradient(self, name):
        tensor, _, layout = self.seen[name]
        return layout(tensor.grad)

    def __contains__(self, name):
        return name in self.seen or name in self.own


def first(x):
    return x[0] if isinstance(x, (tuple, list)) else x


class Run:
    """A run of a model, with all that its names hold in `kept`, and gradients where it has a loss."""

    def __init__(self, model, inputs, mask=None):
        self.model, self.c, self.roles, self.kept = model, model.config, Roles(model), Kept()
        self.ids = inputs["input_ids"]
        self.B, self.T = self.ids.shape
        self.calls = defaultdict(list)  # module: (input, output) of each call
        self.norms, self.steepness = {}, {}

        def hook(module, args, kwargs, output):
            x = args[0] if args else next(iter(kwargs.values()))
            self.calls[module].append((first(x), first(output)))
            return output.clone() if isinstance(output, torch.Tensor) else None  # Falcon adds to it in place

        hooks = [module.register_forward_hook(hook, with_kwargs=True) for module in model.modules()]
        self.watch = Watch(self.T)
        with self.watch:
            out = model(**inputs)
        [one.remove() for one in hooks]
        self.embedding()
        for i in range(self.roles.n_layer):
            self.block(i)
        self.head(out, mask)

    def rows(self, x):
        return x.reshape(self.B, self.T, -1)

    def heads(self, x):
        return x.reshape(self.B, self.T, -1, self.roles.d_head)

    def norm(self, name, module, call):
        x, y = self.calls[module][call]
        self.kept.put(f"{name}.hook_out", y, self.rows)
        self.kept.own |= {f"{name}.{what}": value for what, value in statistics(module, self.rows(x).detach()).items()}
        self.norms[name] = module

    def embedding(self):
        k, outer = self.kept, self.roles.outer
        stream = self.calls[self.roles.blocks[0]][0][0]
        k.put("input", self.ids.double())
        token = self.calls[outer["embed"]][0][1]
        k.put("hook_embed", token)
        k.put("hook_embed_sum", self.calls[outer["embed_norm"]][0][0] if "embed_norm" in outer else stream, self.rows)
        factor = embedding_factor(self.c)
        if factor != 1.0:
            k.own["hook_embed_unscaled"] = k.own["hook_embed_sum_unscaled"] = F.embedding(self.ids,
                outer["embed"].weight)
        if self.c.model_type == "granite":
            k.own["hook_embed"] = token * factor
        if "pos" in outer:
            k.put("hook_pos_embed", self.calls[outer["pos"]][0][1], lambda x: x.expand(self.B, self.T, -1))
        if "embed_norm" in outer:
            self.norm("embed_norm", outer["embed_norm"], 0)
        if "project" in outer:
            k.put("hook_embed_projected", self.calls[outer["project"]][0][1])
        if dropped(self.c, "embd_pdrop"):
            k.put("hook_embed_dropped", stream, self.rows)

    def block(self, i):
        call = i if self.roles.shared else 0

        def has(role):
            return self.roles.block(i, role) is not None

        def at(role):
            return self.calls[self.roles.block(i, role)][call]

        before, after = map(self.rows, self.calls[self.roles.blocks[i]][call])
        for name, x in zip(["pre", "post"], self.calls[self.roles.blocks[i]][call]):
            self.kept.put(f"blocks.{i}.hook_resid_{name}", x, self.rows)
        for name in ["ln1", "ln2", "ln1_post", "ln2_post"]:
            if has(name):
                self.norm(f"blocks.{i}.{name}", self.roles.block(i, name), call)
        self.attention(i, f"blocks.{i}.attn", has, at)
        self.feed_forward(f"blocks.{i}.mlp", has, at)
        self.added(f"blocks.{i}", before, after, has, at)

    def attention(self, i, name, has, at):
        k, roles, heads = self.kept, self.roles, self.heads
        for part in "qkv":
            if has("qkv"):
                k.put(f"{name}.hook_{part}", at("qkv")[1], lambda x, p=part: roles.split(self.rows(x), -1)[p])
            else:
                k.put(f"{name}.hook_{part}", at(part)[1], heads)
        n_kv = k.get(f"{name}.hook_k").shape[2]
        operands, scores, pattern = self.watch.softmaxes[i]
        q, k_name = f"{name}.hook_q", f"{name}.hook_k"
        if has("q_norm"):
            q, k_name = f"{name}.hook_norm_q", f"{name}.hook_norm_k"
            for part, own in [("q", q), ("k", k_name)]:
                if roles.kind == "nanochat":
                    # turned first there, and then normalised: the same, for a rotation keeps lengths
                    x = k.get(f"{name}.hook_{part}")
                    k.own[own] = x / rms(x, roles.block(i, "q_norm").eps)
                else:
                    x = at(f"{part}_norm")[1]
                    k.put(own, x, to_heads if x.dim() == 4 and x.shape[1] != self.T else heads)
        if rotates(roles, i):
            q, k_name = f"{name}.hook_rot_q", f"{name}.hook_rot_k"
            # the keys lie as columns, repeated for each head that reads them
            repeated = lambda x: x.movedim(-1, -2).unflatten(1, (n_kv, -1))
            k.put(q, operands[0], to_heads)
            k.put(k_name, operands[1], lambda x: to_heads(repeated(x)[:, :, 0]), lambda x: to_heads(repeated(x).sum(2)))

        hidden = scores.detach() < -5e3  # GPT-1 writes -10000, the others the least number that there is
        k.put(f"{name}.hook_attn_scores", scores, lambda x: x.masked_fill(hidden, -torch.inf), lambda x: x)
        k.put(f"{name}.hook_pattern", pattern)
        k.put(f"{name}.hook_z", at("out")[0], heads)
        keys = k.get(k_name).repeat_interleave(roles.heads // n_kv, 2)
        unscaled = torch.einsum("bqhd,bkhd->bhqk", k.get(q), keys).requires_grad_()
        raw = bounded(unscaled * scale_of(roles, i), getattr(self.c, "attn_logit_softcapping", None)) + alibi(roles,
            self.T)
        self.steepness[name] = torch.autograd.grad(raw.sum(), unscaled)[0]
        k.own[f"{name}.hook_unscaled_scores"], k.own[f"{name}.hook_raw_scores"] = unscaled.detach(), raw.detach()
        own = raw.detach().masked_fill(hidden, -torch.inf)
        if roles.kind in ("bloom", "mpt"):
            # there a key's place is added, here its distance taken off: scores differ by what is the same for a whole
            # row
            k.own[f"{name}.hook_attn_scores"] = own
        k.own[f"{name}.hook_lse"] = own.logsumexp(-1).transpose(1, 2)
        near(own.softmax(-1), pattern.detach(), f"{self.c.model_type}: the pattern of own scores")

    def feed_forward(self, name, has, at):
        k = self.kept
        k.put(f"{name}.hook_post", at("mlp")[0], self.rows)
        if has("gate_in"):
            for half, what in enumerate(["pre", "pre_linear"]):
                k.put(f"{name}.hook_{what}", at("gate_in")[1], lambda x, half=half: self.rows(x).chunk(2, -1)[half])
        else:
            k.put(f"{name}.hook_pre", at("gate" if has("gate") else "in")[1], self.rows)
        if has("gate"):
            k.put(f"{name}.hook_pre_linear", at("in")[1], self.rows)
        if has("gate") or has("gate_in"):
            k.put(f"{name}.hook_gate", at("act")[1], self.rows)

    def added(self, name, before, after, has, at):
        """The stream within a block, and what each part adds to it."""
        k, rows = self.kept, self.rows
        if self.roles.post:
            k.put(f"{name}.hook_attn_sum", at("ln1")[0], rows)
            k.put(f"{name}.hook_resid_mid", at("ln1")[1], rows)
            k.put(f"{name}.hook_mlp_sum", at("ln2")[0], rows)
            added = rows(at("ln1")[0]) - before, rows(at("ln2")[0] - at("ln1")[1])
        elif self.roles.parallel:
            k.own[f"{name}.hook_attn_sum"] = before + rows(at("out")[1])
            added = rows(at("out")[1]), after - k.own[f"{name}.hook_attn_sum"]
        else:
            mid = at("mid" if has("mid") else "ln2")[0]
            k.put(f"{name}.hook_resid_mid", mid, rows)
            added = rows(mid) - before, after - rows(mid)
        for part, product, norm, difference in [("attn", "out", "ln1_post", added[0]), ("mlp", "mlp", "ln2_post",
            added[1])]:
            own = f"{name}.hook_{part}_out"
            k.put(own, at(norm if has(norm) else product)[1], rows)
            if self.c.model_type == "granite":
                k.own[own] = k.get(own) * self.c.residual_multiplier
            if has(norm) or own in k.own:
                k.put(f"{name}.{part}.hook_out", at(product)[1], rows)
            if dropped(self.c, "resid_pdrop") or dropped(self.c, "residual_dropout"):
                k.own[f"{own}_dropped"] = k.get(own)  # as outside training
            near(k.get(own), difference.detach(), f"{self.c.model_type}: what {part} adds to the stream")

    def head(self, out, mask):
        k, outer = self.kept, self.roles.outer
        if "ln_final" in outer:
            self.norm("ln_final", outer["ln_final"], -1)
        if "dense" in outer:
            k.put("head.hook_pre", self.calls[outer["dense"]][0][1])
            k.put("head.hook_post", self.calls[outer["head_ln"]][0][0])
            self.norm("head.ln", outer["head_ln"], 0)
        logits = getattr(out, "prediction_logits", getattr(out, "logits", None))
        if logits is None or logits.shape[-1] != self.c.vocab_size:
            return
        k.put("logits", logits)
        factor = head_factor(self.c)
        if factor != 1.0:
            k.own["hook_head_scaled"] = k.get("ln_final.hook_out") * factor
        probs = k.own["probs"] = logits.detach().softmax(-1)
        targets = targets_of(self.roles, self.ids, mask)
        losses = F.cross_entropy(logits.movedim(-1, 1), targets, ignore_index=IGNORE, reduction="none")
        k.own["losses"] = losses.detach()
        weight = (targets != IGNORE) / (targets != IGNORE).sum()
        (losses * weight).sum().backward()

        # the gradients of what was computed here
        k.own_gradients["losses"] = weight
        k.own_gradients["probs"] = F.one_hot(targets.clamp(min=0), self.c.vocab_size) * -weight[..., None] / probs
        for name, module in self.norms.items():
            self.norm_gradients(name, module)
        if "hook_embed_unscaled" in k:
            slopes = k.gradient("hook_embed_sum") * embedding_factor(self.c)
            k.own_gradients["hook_embed_unscaled"] = k.own_gradients["hook_embed_sum_unscaled"] = slopes
        if "hook_head_scaled" in k:
            k.own_gradients["hook_head_scaled"] = k.gradient("ln_final.hook_out") / factor
        for name, steepness in self.steepness.items():
            if f"{name}.hook_norm_q" in k.own:
                k.own_gradients |= {f"{name}.hook_norm_{part}": self.turned_back(name, part) for part in "qk"}
            k.own_gradients[f"{name}.hook_unscaled_scores"] = k.gradient(f"{name}.hook_attn_scores") * steepness
            # the operands' gradients are sums over positions whose terms may cancel
            turned = "rot_" if f"{name}.hook_rot_q" in k else ""
            if turned or f"{name}.hook_norm_q" not in k:
                slopes = k.own_gradients[f"{name}.hook_unscaled_scores"].abs()
                q, keys = (k.get(f"{name}.hook_{turned}{part}").abs() for part in "qk")
                sizes = torch.einsum("bhqk,bkhd->bqhd", slopes, keys.repeat_interleave(q.shape[2] // keys.shape[2], 2))
                for x in {"", turned} if f"{name}.hook_norm_q" not in k else {turned}:
                    k.sizes[f"{name}.hook_{x}q"] = sizes
            products = k.get(f"{name}.hook_pattern") * k.gradient(f"{name}.hook_pattern")
            k.own_gradients[f"{name}.hook_lse"] = -products.sum(-1).transpose(1, 2)

    def norm_gradients(self, name, module):
        """From the gradient of what leaves a norm, y = n w + b with n = (x - mean) / s, those of n, s and the mean."""
        k = self.kept
        gain = getattr(module, "weight", None)
        gain = 1.0 if gain is None else gain.detach() + (1.0 if type(module).__name__.startswith("Gemma") else 0.0)
        slopes, scale = k.gradient(f"{name}.hook_out") * gain, k.own[f"{name}.hook_scale"]
        k.own_gradients[f"{name}.hook_normalized"] = slopes
        products = slopes * k.own[f"{name}.hook_normalized"]
        k.own_gradients[f"{name}.hook_scale"] = -products.sum(-1, keepdim=True) / scale
        if f"{name}.hook_mean" in k.own:
            k.own_gradients[f"{name}.hook_mean"] = -slopes.sum(-1, keepdim=True) / scale
            k.sizes[f"{name}.hook_mean"] = slopes.abs().sum(-1, keepdim=True) / scale

    def turned_back(self, name, part):
        """NanoChat: the gradient of what is normalised before it is turned, from that of what attention reads."""
        x = to_heads(self.kept.own[f"{name}.hook_norm_{part}"]).requires_grad_()
        turn = inspect.getmodule(type(self.model)).apply_rotary_pos_emb
        with Wide():
            y, _ = turn(x, x, *self.model.model.rotary_emb(x, torch.arange(self.T)[None]))
        near(to_heads(y), self.kept.get(f"{name}.hook_rot_{part}"), "turned behind the norm")
        return to_heads(torch.autograd.grad(y, x, to_heads(self.kept.gradient(f"{name}.hook_rot_{part}")))[0])


def to_heads(x):
    return x.transpose(1, 2)


def targets_of(roles, ids, mask):
    """The next token; of an encoder the token itself, but for the one that stands for what is hidden."""
    if roles.post and roles.kind != "openai-gpt":
        return ids if mask is None else ids.masked_fill(ids == mask, IGNORE)
    return torch.cat([ids[:, 1:], torch.full((len(ids), 1), IGNORE)], 1)


def near(a, b, what):
    assert (a - b).abs().max() < 1e-9, f"{what}: {(a - b).abs().max()}"


def rms(x, eps):
    return (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def eps_of(module):
    return next(getattr(module, name) for name in ["eps", "variance_epsilon"] if hasattr(module, name))


def statistics(module, x):
    """What a norm divides by, what is left before gain and offset, and the mean where it takes one away."""
    kind = type(module).__name__
    eps = 1e-5 if kind == "OlmoLayerNorm" else eps_of(module)
    if "RMS" in kind:
        return {"hook_scale": rms(x, eps), "hook_normalized": x / rms(x, eps)}
    mean = x.mean(-1, keepdim=True)
    scale = ((x - mean).pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return {"hook_mean": mean, "hook_scale": scale, "hook_normalized": (x - mean) / scale}


def rotates(roles, i):
    if roles.kind == "smollm3":
        return bool(roles.config.no_rope_layers[i])
    if roles.kind == "cohere2":
        return roles.config.layer_types[i] == "sliding_attention"
    return roles.kind not in "gpt2 openai-gpt gpt_bigcode gpt_neo opt bloom mpt".split() and not (roles.post)


def scale_of(roles, i):
    c = roles.config
    if roles.kind == "gpt2":
        scale = roles.d_head**-0.5 if c.scale_attn_weights else 1.0
        return scale / (i + 1) if c.scale_attn_by_inverse_layer_idx else scale
    if roles.kind == "gpt_bigcode":
        return roles.d_head**-0.5 if c.scale_attn_weights else 1.0
    if roles.kind == "gpt_neo":
        return 1.0
    if roles.kind == "granite":
        return c.attention_multiplier
    if roles.kind in ("gemma2", "gemma3_text"):
        return c.query_pre_attn_scalar**-0.5
    if roles.kind == "mpt" and c.attn_config.softmax_scale is not None:
        return c.attn_config.softmax_scale
    return roles.d_head**-0.5


def bounded(x, cap):
    return cap * (x / cap).tanh() if cap else x


def alibi(roles, T):
    """Less the slope of the head times the distance; slopes as ALiBi's paper has them for any number of heads."""
    if roles.kind not in ("bloom", "mpt"):
        return 0.0
    whole = 2 ** (roles.heads - 1).bit_length() if roles.kind == "mpt" else 2 ** (roles.heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
    if whole > roles.heads:  # MPT takes every second one first
        slopes = (slopes[1::2] + slopes[::2])[: roles.heads]
    else:
        slopes += [2 ** (-4 * (2 * h + 1) / whole) for h in range(roles.heads - whole)]
    t = torch.arange(T, dtype=torch.float64)
    return -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * (t[:, None] - t[None, :]).abs()


def embedding_factor(c):
    if c.model_type == "granite":
        return c.embedding_multiplier
    return c.hidden_size**0.5 if c.model_type.startswith("gemma") else 1.0


def dropped(c, setting):
    """Whether limpid has a dropout there, which changes nothing outside training."""
    return getattr(c, setting, 0.0) > 0.0


def head_factor(c):
    return {"cohere": lambda: c.logit_scale, "cohere2": lambda: c.logit_scale,
        "granite": lambda: 1 / c.logits_scaling}.get(
        c.model_type, lambda: 1.0
    )()


# ---------------------------------------------------------------------------------------------
# Parameters
# ---------------------------------------------------------------------------------------------


def parameters(roles):
    """The parameters of the model, under limpid's names, each as limpid lays it out: (tensor, layout)."""
    found = {}

    def put(name, tensor, layout=lambda x: x):
        if tensor is not None:
            found[name] = (tensor, layout)

    def matrix(name, module):
        if module is not None:
            turned = (lambda x: x.T) if type(module).__name__ == "Conv1D" else (lambda x: x)
            put(f"{name}.weight", module.weight, turned)
            put(f"{name}.bias", module.bias)

    def norm(name, module):
        if module is not None:
            put(f"{name}.weight", getattr(module, "weight", None))
            put(f"{name}.bias", getattr(module, "bias", None))

    outer = roles.outer
    put("embed.weight", outer["embed"].weight)
    if "pos" in outer:
        skipped = {"opt": 2, **dict.fromkeys(["roberta", "xlm-roberta", "camembert"], 2)}.get(roles.kind, 0)
        put("pos_embed.weight", outer["pos"].weight, lambda x: x[skipped:])
    if "seg" in outer:
        put("segment_embed.weight", outer["seg"].weight)
    norm("embed_norm", outer.get("embed_norm"))
    matrix("embed.project", outer.get("project"))
    for i in range(1 if roles.shared else roles.n_layer):
        name = lambda rest: f"blocks.{i}.{rest}"
        block = lambda role: roles.block(i, role)
        for one in ["ln1", "ln2", "ln1_post", "ln2_post"]:
            norm(name(one), block(one))
        for one in ["q_norm", "k_norm"]:
            norm(name(f"attn.{one}"), block(one))
        for kind, letter in [("weight", "W"), ("bias", "b")]:
            if block("qkv") is not None:
                fused = getattr(block("qkv"), kind)
                across = 1 if type(block("qkv")).__name__ == "Conv1D" and kind == "weight" else 0
                layouts = {p: (fused, lambda x, p=p, a=across: roles.split(x, a)[p])
                    for p in "qkv"} if fused is not None else {}
                # (in, head, d_head) of a matrix, (head, d_head) of a bias
            else:
                layouts = {p: getattr(block(p), kind) for p in "qkv"}
                layouts = {
                    p: (x, lambda x: x.movedim(0, -1).unflatten(-1, (-1, roles.d_head)))
                    for p, x in layouts.items()
                    if x is not None
                }
            for p, (tensor, layout) in layouts.items():
                heads = (lambda x, f=layout: f(x).transpose(0, 1)) if kind == "weight" else layout
                put(name(f"attn.{letter}_{p.upper()}"), tensor, heads)
        matrix(name("attn.out"), block("out"))
        if block("gate_in") is not None:
            for at, one in enumerate(["gate", "in"]):
                put(name(f"mlp.{one}.weight"), block("gate_in").weight, lambda x, at=at: x.chunk(2)[at])
        matrix(name("mlp.gate"), block("gate"))
        matrix(name("mlp.in"), block("in"))
        matrix(name("mlp.out"), block("mlp"))
    norm("ln_final", outer.get("ln_final"))
    if "dense" in outer:
        matrix("head.dense", outer["dense"])
        norm("head.ln", outer["head_ln"])
    head = outer.get("head")
    if head is not None:
        if head.weight is not outer["embed"].weight:
            put("unembed.weight", head.weight)
        put("unembed.bias", head.bias)
    return found


# ---------------------------------------------------------------------------------------------
# Everything that a model's names hold
# ---------------------------------------------------------------------------------------------

# Each of these is added to the stream, or is another form of the next: one gradient for both.
SAME_GRADIENT = {
    "hook_pos_embed": ["hook_embed_sum"],
    "hook_embed": ["hook_embed_sum"],
    "hook_embed_dropped": ["blocks.0.hook_resid_pre"],
    "blocks.{i}.hook_attn_sum": ["blocks.{i}.hook_attn_sum", "blocks.{i}.hook_resid_post"],
    "blocks.{i}.hook_attn_out": ["blocks.{i}.hook_attn_sum", "blocks.{i}.hook_resid_mid", "blocks.{i}.hook_resid_post"],
    "blocks.{i}.hook_mlp_out": ["blocks.{i}.hook_mlp_sum", "blocks.{i}.hook_resid_post"],
    "blocks.{i}.hook_attn_out_dropped": ["blocks.{i}.hook_attn_out"],
    "blocks.{i}.hook_mlp_out_dropped": ["blocks.{i}.hook_mlp_out"],
    "blocks.{i}.attn.hook_raw_scores": ["blocks.{i}.attn.hook_attn_scores"],
}
FUSED_NAMES = {"attn.hook_qkv": "q k v", "attn.hook_qk_normed": "norm_q norm_k v", "attn.hook_rotated": "rot_q rot_k v"}


@dataclass
class Truth:
    """A tensor, whether it was computed here, and what its rounding is measured by, where its terms cancel."""

    value: torch.Tensor
    own: bool
    size: Optional[torch.Tensor] = None


def truths(case, model, inputs, mask=None):
    """Every name of the model with its tensor: activations, their gradients, parameters and theirs."""
    run = Run(model, inputs, mask)
    roles, k = run.roles, run.kept
    found = {}
    for name, (tensor, _, _) in k.seen.items():
        found[name] = Truth(k.get(name), False)
        if tensor.grad is not None:
            found[f"{name}.grad"] = Truth(k.gradient(name), False, k.sizes.get(name))
    for name, value in k.own.items():
        found[name] = Truth(value.detach(), True)
    for name, value in k.own_gradients.items():
        found[f"{name}.grad"] = Truth(value.detach(), True, k.sizes.get(name))
    for name, (tensor, layout) in parameters(roles).items():
        found[name] = Truth(layout(tensor).detach(), False)
        if tensor.grad is not None:
            found[f"{name}.grad"] = Truth(layout(tensor.grad), False)
    for name, others in SAME_GRADIENT.items():
        for i in range(roles.n_layer):
            same = [found[x] for x in (f"{other.replace('{i}', str(i))}.grad" for other in others) if x in found]
            if same and name.replace("{i}", str(i)) in found:
                found[f"{name.replace('{i}', str(i))}.grad"] = same[0]
    for i in range(roles.n_layer):
        for end in ["", ".grad"]:
            for fused, parts in FUSED_NAMES.items():
                parts = [f"blocks.{i}.attn.hook_{part}{end}" for part in parts.split()]
                if all(part in found for part in parts):
                    value = torch.cat([found[part].value.flatten(2) for part in parts], -1)
                    found[f"blocks.{i}.{fused}{end}"] = Truth(value, any(found[part].own for part in parts))
            for kind, letter in [("weight", "W"), ("bias", "b")]:
                parts = [f"blocks.{i}.attn.{letter}_{part}{end}" for part in "QKV"]
                if all(part in found for part in parts):
                    stored = [found[part].value.movedim(1, -1).flatten(0, 1) for part in parts]
                    found[f"blocks.{i}.attn.qkv.{kind}{end}"] = Truth(torch.cat(stored), False)
            # softmax ignores what is added to all scores, so without positions the gradient of the keys' offset is
            # rounding alone
            if (offset := f"blocks.{i}.attn.b_K{end}") in found:
                found[offset].size = found[f"blocks.{i}.attn.qkv.bias{end}"].value
    return found


# ---------------------------------------------------------------------------------------------
# TransformerLens
# ---------------------------------------------------------------------------------------------


def lens(case, model, inputs, table, logits):
    """What TransformerLens has under the names that docs/names.md has for it, under limpid's; or why it has nothing."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge

    words = Tokenizer(models.WordLevel({str(i): i for i in range(model.config.vocab_size)}, unk_token="0"))
    special = dict.fromkeys(["unk_token", "pad_token", "bos_token", "eos_token"], "0")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    folder = tempfile.TemporaryDirectory()
    tokenizer.save_pretrained(folder.name)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder.name)
    model = copy.deepcopy(model)
    model.config.architectures = [type(model).__name__]
    try:
        with Wide(), quiet():
            bridge = TransformerBridge.boot_transformers(
                str(MODELS / case.name), hf_model=model, device="cpu", dtype=torch.float64, tokenizer=tokenizer
            )
            more = {name: x for name, x in inputs.items() if name != "input_ids"}
            got, cache = bridge.run_with_cache(inputs["input_ids"], **more)
    except Exception as e:
        return {}, "it refuses them" if "Could not determine" in str(e) or "only supports" in str(e) else "it fails while it opens or runs them"
    if not isinstance(got, torch.Tensor) or logits is None or got.shape != logits.shape:
        return {}, "it gives no logits"
    apart = difference(got.detach(), logits)
    if apart > BOUND:
        return {}, f"its logits are not those of transformers"
    found = {"logits": got.detach()}
    for name, theirs in table.items():
        if not theirs or " " in theirs:
            continue
        for i in range(model.config.num_hidden_layers) if "{i}" in name else [0]:
            path = theirs.replace("{i}", str(i))
            value = cache.get(path) if hasattr(cache, "get") else cache.cache_dict.get(path)
            if value is None:
                value = at_path(bridge, path)
                if value is not None:
                    value = as_stored(path, value)
            if value is not None and name.endswith("hook_attn_scores"):
                value = value.masked_fill(value < -5e3, -torch.inf)
            if any(name.startswith(other) and model.config.model_type in kinds for other, kinds, _ in OTHERWISE):
                continue
            if value is not None:
                value = value.reshape(-1, inputs["input_ids"].shape[1],
                    value.shape[-1]) if "hook_" in name and value.dim() == 2 else value
                found[name.replace("{i}", str(i))] = value.detach()
    return found, ""


@contextlib.contextmanager
def quiet():
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield


def at_path(bridge, path):
    x = bridge
    for part in path.split("."):
        try:
            x = x[int(part)] if part.isdigit() else getattr(x, part)
        except Exception:
            return None
    return x if isinstance(x, torch.Tensor) else None


def as_stored(path, value):
    """A matrix as limpid stores it, (out, in)."""
    last = path.split(".")[-1]
    if last == "W_O":
        return value.flatten(0, 1).T
    return value.T if last in ("W_in", "W_out", "W_gate", "W_U") else value


# What TransformerLens 4.3 has under a name in some models that is not what transformers computes there, or not what the
# name says
ENCODERS = "bert roberta".split()
OTHERWISE = [
    ("hook_embed", [*ENCODERS, "bloom"],
    "what leaves the embedding's norm, our `embed_norm.hook_out`; its `embed.hook_out` is our `hook_embed`"),
    ("blocks.{i}.hook_attn_out", ENCODERS, "what leaves the first norm, our `hook_resid_mid`"),
    ("blocks.{i}.hook_resid_mid", ENCODERS, "what enters the second norm, our `hook_mlp_sum`"),
    ("blocks.{i}.attn.hook_attn_scores", [*ENCODERS, "opt", "gpt_neo", "gptj", "nanochat"], "the pattern"),
    ("blocks.{i}.attn.hook_attn_scores", ["bloom", "mpt"],
    "as in transformers, ALiBi by the key's place: another constant in each row, so the same pattern"),
    ("pos_embed.weight", ["opt", "roberta"], "also the two rows before the first position's, which limpid leaves out"),
    ("ln_final.", ENCODERS, "the head's norm, our `head.ln`"),
    ("blocks.{i}.attn.hook_rot_q", [],
    "also in blocks without positions (SmolLM3, Cohere 2), where limpid has none: `hook_q`; so `hook_rot_k`"),
    ("blocks.{i}.attn.hook_out", [], "also where limpid has none, because it is `hook_attn_out`; so `mlp.hook_out`"),
]  # fmt: skip
OWN_WAY = ("hook_rot_q", "hook_rot_k", "attn.hook_out", "mlp.hook_out")


# ---------------------------------------------------------------------------------------------
# limpid
# ---------------------------------------------------------------------------------------------


def limpid(binary, case, inputs):
    """All tensors and parameters of the run, and the gradients of all that have one."""

    def ids(x):
        return ";".join(",".join(map(str, row)) for row in x.tolist())

    command = [binary, "inspect", "--model", str(MODELS / case.name), "--tokens", ids(inputs["input_ids"])]
    if "token_type_ids" in inputs:
        command += ["--segments", ids(inputs["token_type_ids"])]
    with tempfile.TemporaryDirectory() as folder:

        def saved(*names):
            file = Path(folder) / "names.safetensors"
            asked = [word for name in names for word in ("--tensor", name)]
            done = subprocess.run([*command, *asked, "--save", str(file)], capture_output=True, text=True)
            assert done.returncode == 0, f"{case.name}: {done.stderr[-500:]}"
            return safetensors.torch.load_file(file)

        found = saved("*")
        if "losses" in found:
            found |= saved(*[f"{name}.grad" for name in found if name != "input"])
    return {name: x.double() for name, x in found.items()}


def difference(a, b, beside=None):
    """The largest difference over the largest element (of `beside`, if given); infinite where other elements are
    infinite."""
    if a.shape != b.shape or not torch.equal(a.isinf(), b.isinf()) or b.isnan().any() or a.isnan().any():
        return float("inf")
    kept = ~b.isinf()
    if not kept.any():
        return 0.0
    a, b = a[kept], b[kept]
    largest = (b if beside is None else beside).abs().max().item()
    apart = (a - b).abs().max().item()
    return apart / largest if largest > 0 else apart


# ---------------------------------------------------------------------------------------------


def table_of_names():
    """The rows of docs/names.md that say what a name is: name, TransformerLens's name where there is one."""
    text = (HERE / "docs/names.md").read_text()
    cells = [line.split(" | ") for line in text[text.index("## Tensors of a run") :].splitlines()
        if line.startswith("| `")]
    return {row[0].strip("| `"): row[2].strip() for row in cells}


def is_parameter(name):
    last = name.removesuffix(".grad").split(".")[-1]
    return last in ("weight", "bias") or last[:2] in ("W_", "b_")


def pattern(name):
    return re.sub(r"\.\d+\.", ".{i}.", name)


class Row:
    """What is known of a name: the worst difference, and the models that were compared with each program."""

    def __init__(self):
        self.worst, self.where = 0.0, ""
        self.transformers, self.own, self.lens = set(), set(), set()

    def see(self, apart, where):
        if apart > self.worst:
            self.worst, self.where = apart, where


def compare(case, binary, table, rows, notes, without):
    model = float64_model(case)
    inputs = inputs_of(case, ROWS, LENGTH)
    found = truths(case, model, inputs, MASKS.get(case.name))
    got = limpid(binary, case, inputs)
    for name, x in got.items():
        row = rows[pattern(name)]
        if pattern(name).removesuffix(".grad") not in table:
            notes.append(f"{case.name}: docs/names.md does not have `{name}`")
        if name not in found:
            notes.append(f"{case.name}: limpid has `{name}`, of which there is no truth")
            continue
        (row.own if found[name].own else row.transformers).add(case.name)
        row.see(difference(x, found[name].value, found[name].size), f"{case.name} {name}")
    for name in found:
        if name not in got and not (name.endswith(".grad") and name.removesuffix(".grad") not in got):
            notes.append(f"{case.name}: limpid has no `{name}`")
    logits = found["logits"].value if "logits" in found else None
    theirs, why = lens(case, model, inputs, table, logits)
    if why:
        without[why].append(f"`{case.name}`")
    for name, x in theirs.items():
        if name not in got and (is_parameter(name) or name.endswith(OWN_WAY)):
            continue  # a tied head has a matrix of its own there, and biases that a model lacks are zeros
        if name not in got:
            notes.append(f"{case.name}: TransformerLens has `{name}`, limpid not")
            continue
        row = rows[pattern(name)]
        row.lens.add(case.name)
        row.see(difference(got[name], x), f"{case.name} {name} (TransformerLens)")
    torch.set_default_dtype(torch.float32)


# Names that no run of a model of another program has: who checks them
ELSEWHERE = {
    "hook_outputs": "decoding only: limpid's test `names`, as rows of the last block's `hook_resid_post`",
    "hook_unbounded": "decoding only: limpid's test `names`, by the formula of `logits`",
    "hook_pos_embed_unscaled": "no family: limpid's test `names`, by the formula",
    **{f"blocks.{{i}}.{part}.hook_out_dropped": "no family: limpid's test `names`" for part in ["attn", "mlp"]},
    **{f"blocks.{{i}}.ln{n}_post.{x}": "no family: limpid's test `names`, by the formula" for n in [1, 2]
    for x in ["hook_mean", "bias"]},
}  # fmt: skip


def page(table, rows, without):
    """docs/names-checked.md."""
    lines = f"""# Names, checked

`reference/names.py` runs the {len(CASES)} models of `crates/limpid/fixtures/hf` (all families that limpid opens) in limpid (f32, CPU),
in transformers {transformers.__version__} (f64) and in TransformerLens {importlib.metadata.version("transformer-lens")} (f64) where it gives the same logits. It compares every tensor
under every name and every gradient, and prints this page. The test `names` of the library does the same with {len(FIXTURES)} of the models.

A tensor's difference is that of its worst element, relative to its largest element; the column shows the worst of all models and
programs. For gradients whose terms cancel (of a mean, of queries, of the keys' offset) it is relative to the terms' size.

The other columns count models by who says what the tensor is: transformers (inputs and outputs of modules, parameters, the operands and
results of attention, autograd), TransformerLens (its cache and parameters), or a formula that the script applies to tensors of transformers.
""".splitlines()
    for title, ends in [("Tensors and parameters", ""), ("Gradients", ".grad")]:
        lines += ["", f"## {title}", "", "| name | worst difference | transformers | TransformerLens | formula |",
            "|---|---|---|---|---|"]
        for name in table:
            row = rows.get(name + ends)
            if row is not None:
                counts = [len(x) or "" for x in (row.transformers, row.lens, row.own)]
                lines.append(f"| `{name}{ends}` | {row.worst:.0e} | {counts[0]} | {counts[1]} | {counts[2]} |")
            elif not ends:
                lines.append(f"| `{name}` | {ELSEWHERE.get(name, 'NOT CHECKED')} |  |  |  |")
    lines += [
        "",
        "## Where TransformerLens has something else",
        "",
        "| TransformerLens's name for our | in | holds |",
        "|---|---|---|",
        *[f"| `{name.rstrip('.')}` | {', '.join(kinds) or 'all families'} | {what} |" for name, kinds,
        what in OTHERWISE],
        "",
        "## Not compared with TransformerLens",
        "",
        *[f"- {why}: {', '.join(cases)}" for why, cases in without.items()],
    ]
    return "\n".join(lines)


def inputs_of(case, rows, length):
    stored = safetensors.torch.load_file(MODELS / case.name / "truth.safetensors")
    inputs = {"input_ids": stored["tokens"][:rows, :length].long()}
    if "segments" in stored:
        inputs["token_type_ids"] = stored["segments"][:rows, :length].long()
    return inputs


def make_fixtures(folder):
    """Files with every tensor and parameter, and of the gradients those that autograd gives; what is side by side is
    there once."""
    folder.mkdir(exist_ok=True)
    total = 0
    twice = (*FUSED_NAMES, "attn.qkv.weight", "attn.qkv.bias")
    for case in (case for case in CASES if case.name in FIXTURES):
        model = float64_model(case)
        inputs = inputs_of(case, 1, SHORT)
        found = truths(case, model, inputs, MASKS.get(case.name))
        torch.set_default_dtype(torch.float32)
        tensors = {"tokens": inputs["input_ids"].float()}
        if "token_type_ids" in inputs:
            tensors["segments"] = inputs["token_type_ids"].float()
        for name, x in found.items():
            tensor, gradient, _ = name.partition(".grad")
            told = not gradient or not x.own and (not is_parameter(tensor) or any(part in tensor for part in GRADIENTS))
            if told and not tensor.endswith(twice):
                tensors[name] = x.value.float()
        file = folder / f"{case.name}.safetensors"
        write_tensors(file, tensors, {"source": "made by reference/names.py", "transformers": transformers.__version__})
        total += file.stat().st_size
    print(f"{len(FIXTURES)} files, {total} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", help="limpid")
    parser.add_argument("cases", nargs="*", help="only these models")
    parser.add_argument("--fixtures", type=Path, metavar="DIR",
        help="writes the truth of one model of each family instead")
    options = parser.parse_args()
    if options.fixtures:
        return make_fixtures(options.fixtures)
    table = table_of_names()
    rows, notes, without = defaultdict(Row), [], defaultdict(list)
    for case in CASES:
        if not options.cases or case.name in options.cases:
            compare(case, options.binary, table, rows, notes, without)
    worse = [f"{name}: {row.worst:.1e} in {row.where}" for name, row in rows.items() if not row.worst <= BOUND]
    if not options.cases:
        notes += [f"{name} was compared in no model" for name in table if name not in rows and name not in ELSEWHERE]
    print(page(table, rows, without))
    print(*worse, *notes, sep="\n", file=sys.stderr)
    sys.exit(bool(worse or notes))


if __name__ == "__main__":
    main()
