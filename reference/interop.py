#!/usr/bin/env python3
"""limpid's files against the programs they are for: transformers, llama.cpp, llm.c.

    python reference/interop.py hf target/release/limpid
    python reference/interop.py gguf target/release/limpid
    python reference/interop.py llmc target/release/limpid --source LLM.C
    python reference/interop.py all target/release/limpid --source LLM.C

`hf`    every folder of crates/limpid/fixtures/hf is opened by limpid and compared with its truth; then converted
        (limpid convert FOLDER OUT --to hf) and what transformers makes of OUT is compared with it.
        It may warn of nothing that it does not warn of where it wrote the folder itself.
        Then limpid's own models in many variants, with every weight random, are converted, and
        transformers' logits compared with limpid's. A variant that HuggingFace's configurations
        cannot express must be refused. Folders of crates/limpid/fixtures/hf-refused must be refused too.
`gguf`  models of GPT-2's and Llama's kind with a byte-level tokenizer are converted to GGUF in f32,
        f16, bf16 and q8_0; llama.cpp and limpid then open the same file, continue the same prompts
        greedily by 64 tokens, and must agree, and on the ids of some texts too. Then the other way:
        GGUF files made with the `gguf` package, as llama.cpp's converter makes them, are opened by
        limpid and compared with the model in transformers, after llama.cpp has opened them too.
`llmc`  model files go both ways, and llm.c itself, compiled from LLM.C (a checkout or a bare
        repository), runs them. First it runs crates/limpid/fixtures/llmc, which proves those.

Every line is a case; exit 1 if any of them fails. `--only TEXT` keeps the cases with TEXT in their
name, `--keep DIR` leaves the files there. Nothing is downloaded. Of limpid this uses

    limpid inspect --model M --tokens 1,2 [--segments 0,1] --tensor logits --save FILE
    limpid generate --model M --tokens 1,2 --max-tokens N --temperature 0 --overflow stop --json
    limpid tokenize --model M --json TEXT
    limpid train --preset P [...] --steps 1 --out DIR
    limpid convert FROM TO --to FORMAT [--dtype D] --verify
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import safetensors.torch
import torch
import transformers
from families import CASES, SAMPLES, TOLERANCE, randomise, write_byte_level, write_tensors
from make import Random

import llmc

torch.set_num_threads(1)
torch.use_deterministic_algorithms(False)
transformers.logging.set_verbosity_warning()
transformers.logging.disable_progress_bar()

FIXTURES = Path(__file__).resolve().parent.parent / "crates/limpid/fixtures"
LENGTH = 64  # of greedy continuations


# ---------------------------------------------------------------------------------------------
# limpid, and the table of results
# ---------------------------------------------------------------------------------------------


class Refused(Exception):
    """limpid ended with its one clear line and status 1."""


class Wrong(Exception):
    """A case fails, and this is why."""


class Limpid:
    def __init__(self, binary, work):
        self.binary, self.work = str(Path(binary).resolve()), work

    def run(self, *args):
        args = [str(arg) for arg in args]
        done = subprocess.run([self.binary, *args], capture_output=True, text=True, timeout=300)
        if done.returncode == 1:
            raise Refused(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "(no message)")
        if done.returncode != 0:
            first = (done.stderr.strip().splitlines() or ["(no message)"])[0]
            raise Wrong(f"status {done.returncode}: {first} <- limpid {' '.join(args)}")
        return done.stdout

    def tensor(self, model, tokens, name="logits", segments=None):
        """One sequence's activations, (T, ...)."""
        file = self.work / "tensor.safetensors"
        file.unlink(missing_ok=True)
        args = ["inspect", "--model", model, "--tokens", listed(tokens), "--tensor", name]
        args += ["--segments", listed(segments)] if segments is not None else []
        self.run(*args, "--save", file)
        return safetensors.torch.load_file(file)[name][0]

    def logits(self, model, batch):
        """(B, T, V)."""
        return torch.stack([self.tensor(model, row) for row in batch])

    def greedy(self, model, prompt, count=LENGTH):
        args = ["generate", "--model", model, "--tokens", listed(prompt), "--max-tokens", count]
        out = self.run(*args, "--temperature", 0, "--overflow", "stop", "--json")
        return json.loads(out)["samples"][0]["tokens"]

    def ids(self, model, text):
        return json.loads(self.run("tokenize", "--model", model, "--json", text))["ids"]

    def convert(self, source, target, form, dtype=None):
        extra = ["--dtype", dtype] if dtype else []
        self.run("convert", source, target, "--to", form, *extra, "--verify")


def listed(ids):
    return ",".join(str(int(i)) for i in ids)


class Results:
    def __init__(self, only):
        self.only, self.failed, self.count = only, 0, 0

    def case(self, name, body):
        """Run body(), which returns (difference, limit) or a remark, and print a line."""
        if self.only and self.only not in name:
            return
        self.count += 1
        try:
            found = body()
            if isinstance(found, tuple):
                difference, limit = found
                good = difference <= limit  # and so a NaN fails
                text = f"differs by {difference:.1e}, allowed {limit:.0e}"
            else:
                good, text = True, found
        except (Refused, Wrong) as error:
            good, text = False, f"{type(error).__name__}: {error}"
        except Exception as error:  # the other program's, most likely
            good, text = False, f"{type(error).__name__}: {str(error)[:300]}"
            if os.environ.get("TRACE"):
                traceback.print_exc()
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name:44} {text}", flush=True)


def must_refuse(body):
    try:
        body()
    except Refused as refused:
        return f"refused: {refused}"
    raise Wrong("opened, where it must be refused")


def greatest(a, b):
    if a.shape != b.shape:
        raise Wrong(f"shapes {tuple(a.shape)} and {tuple(b.shape)}")
    return (a.double() - b.double()).abs().max().item()


# ---------------------------------------------------------------------------------------------
# transformers
# ---------------------------------------------------------------------------------------------

# limpid's own models: (name, flags of `limpid train`, what HuggingFace calls it; None: it cannot).
SIZE = ["--d-model", "24", "--n-head", "3", "--n-layer", "2", "--d-ff", "40", "--context-length", "16"]
OPENAI = ["--norm-place", "post", "--final-norm", "false", "--activation", "gelu-tanh", "--bias", "true"]
OPENAI += ["--d-ff", "96"]  # four times the width, always
LLAMA = ["--preset", "nano-llama", "--d-model", "24", "--n-head", "6", "--n-kv-head", "2", "--n-layer", "2"]
LLAMA += ["--d-ff", "40", "--context-length", "16"]
YARN = ["--rotary-scaling-kind", "yarn", "--rotary-scaling-factor", "2", "--rotary-scaling-context", "8"]
YARN += ["--rotary-scaling-high", "0.6", "--rotary-scaling-low", "0.07", "--rotary-scaling-attention", "1.2"]
BERT = ["--preset", "bert-base-uncased", "--d-model", "24", "--n-head", "3", "--n-layer", "2"]
BERT += ["--d-ff", "40", "--context-length", "16"]
OWN = [
    ("nano", [], "gpt2"),
    ("nano-biases", ["--bias", "true"], "gpt2"),
    ("nano-ffn-bias-only", ["--ffn-bias", "true"], "gpt2"),
    ("nano-untied", ["--tied-head", "false"], "gpt2"),
    ("nano-unscaled", ["--attention-scale", "false", "--bias", "true"], "gpt2"),
    ("nano-no-gain", ["--norm-gain", "false"], "opt"),
    ("nano-epsilon", ["--norm-eps", "0.01"], "gpt2"),
    ("nano-sinusoidal", ["--positions", "sinusoidal"], "gpt2"),
    ("nano-one-based", ["--positions", "sinusoidal-one-based"], "gpt2"),
    *(
        (f"nano-{activation}", ["--activation", activation], "gpt2")
        for activation in ["relu", "gelu-erf", "gelu-tanh", "gelu-sigmoid", "silu", "tanh", "sigmoid"]
    ),
    ("nano-leaky-relu", ["--activation", "leaky-relu"], "gpt2"),
    ("openai", OPENAI, "openai-gpt"),
    ("openai-relu", [*OPENAI, "--activation", "relu"], "openai-gpt"),
    ("openai-silu", [*OPENAI, "--activation", "silu"], "openai-gpt"),
    ("openai-no-biases", [*OPENAI, "--bias", "false"], "openai-gpt"),
    ("bert", BERT, "bert"),
    ("bert-relu", [*BERT, "--activation", "relu"], "bert"),
    ("electra-narrow", [*BERT, "--d-embed", "7"], "electra"),
    ("albert", [*BERT, "--d-embed", "7", "--shared-blocks", "true", "--activation", "gelu-tanh"], "albert"),
    ("albert-equal", [*BERT, "--d-embed", "24", "--shared-blocks", "true"], "albert"),
    ("llama", LLAMA, "llama"),
    ("llama-mqa", [*LLAMA, "--n-kv-head", "1", "--tied-head", "false"], "llama"),
    ("llama-biases", [*LLAMA, "--attention-bias", "true", "--ffn-bias", "true"], "llama"),
    ("llama-head", [*LLAMA, "--d-head", "8", "--rotary-base", "500"], "llama"),
    ("llama-linear", [*LLAMA, "--rotary-scaling-factor", "3"], "llama"),
    ("llama-3", [*LLAMA, "--rotary-scaling-factor", "3", "--rotary-scaling-context", "8"], "llama"),
    ("llama-yarn", [*LLAMA, *YARN], "llama"),
    ("llama-dynamic", [*LLAMA, "--rotary-scaling-kind", "dynamic", "--rotary-scaling-factor", "2"], "llama"),
    ("llama-gelu", [*LLAMA, "--activation", "gelu-erf"], "llama"),
    ("nano-rotary", ["--positions", "rotary", "--bias", "true"], "starcoder2"),
    # What HuggingFace has no configuration for.
    ("llama-ungated", [*LLAMA, "--ffn-gated", "false"], None),
    ("llama-learned", [*LLAMA, "--positions", "learned"], None),
    ("llama-offset", [*LLAMA, "--norm-offset", "true"], None),
    ("nano-leaky-slope", ["--activation", "leaky-relu", "--leaky-slope", "0.2"], None),
    ("nano-layer-std", ["--norm", "layer-std"], None),
    ("nano-head-bias", ["--head-bias", "true"], None),
    ("nano-embedding-norm", ["--embedding-norm", "true"], None),
    ("nano-rms", ["--norm", "rms"], None),
    ("nano-d-embed", ["--d-embed", "7", "--tied-head", "false"], None),
    ("nano-shared", ["--shared-blocks", "true"], None),
    ("bert-shared", [*BERT, "--shared-blocks", "true"], None),
    ("albert-unshared", [*BERT, "--d-embed", "7", "--activation", "gelu-tanh"], None),
    ("nano-no-final-norm", ["--final-norm", "false"], None),
    ("openai-erf", [*OPENAI, "--activation", "gelu-erf"], None),
]  # fmt: skip


def hf(limpid, results, options):
    for case in CASES:
        folder = FIXTURES / "hf" / case.name
        if case.name == "phi3-longrope-partial":
            continue  # its texts are longer than the original length: tests/library/interop.rs tells limpid to go on
        results.case(f"read {case.name}", lambda: read_fixture(limpid, folder))
    for case in CASES:
        folder = FIXTURES / "hf" / case.name
        results.case(f"write {case.name}", lambda: write_fixture(limpid, folder))
    for folder in sorted((FIXTURES / "hf-refused").iterdir()):
        if folder.is_dir():
            results.case(
                f"refuse {folder.name}",
                lambda: must_refuse(lambda: limpid.run("inspect", "--model", folder, "--listing")),
            )
    for name, flags, family in OWN:
        results.case(f"own {name}", lambda: own(limpid, name, flags, family))


def rows(truth):
    """Each sequence of a truth without its padding: (index, tokens, segments)."""
    for b, tokens in enumerate(truth["tokens"]):
        mask = truth.get("attention_mask", torch.ones_like(truth["tokens"]))[b]
        length = int(mask.sum())
        segments = truth["segments"][b, :length] if "segments" in truth else None
        yield b, tokens[:length], segments


def read_fixture(limpid, folder):
    """limpid's numbers for a folder against its truth."""
    truth = safetensors.torch.load_file(folder / "truth.safetensors")
    name, wanted = "logits", "logits"
    if "logits" not in truth:  # an encoder alone
        config = json.loads((folder / "config.json").read_text())
        layers = config.get("num_hidden_layers") or config["n_layers"]  # DistilBERT's
        name, wanted = f"blocks.{layers - 1}.hook_resid_post", "hidden"
    worst = 0.0
    for b, tokens, segments in rows(truth):
        found = limpid.tensor(folder, tokens, name, segments)
        worst = max(worst, greatest(found, truth[wanted][b, : len(tokens)]))
    if (folder / "text.json").exists():
        for sample in json.loads((folder / "text.json").read_text()):
            if limpid.ids(folder, sample["text"]) != sample["ids"]:
                raise Wrong(f"ids of {sample['text']!r}: {limpid.ids(folder, sample['text'])}")
    return worst, TOLERANCE


class Said(logging.Handler):
    """What transformers logs."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def heard(body):
    """What body() gives, and the warnings of transformers and of Python while it ran."""
    said, logger = Said(), transformers.logging.get_logger("transformers")
    transformers.utils.logging.warning_once.cache_clear()
    others, logger.handlers = logger.handlers, [said]
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            given = body()
    finally:
        logger.handlers = others
    return given, said.lines + [f"{w.category.__name__}: {w.message}" for w in warned]


def silently(opens, folder, source=None):
    """What opens(folder) gives, of which transformers warns no more than of `source`, which it wrote itself."""
    given, lines = heard(lambda: opens(folder))
    known = heard(lambda: opens(source))[1] if lines and source else []
    lines = [line for line in lines if line not in known]
    if lines:
        raise Wrong(f"transformers warns: {' | '.join(lines)[:600]}")
    return given


def write_fixture(limpid, folder):
    """transformers' numbers for limpid's copy of a folder against its truth."""
    out = limpid.work / "hf" / folder.name
    limpid.convert(folder, out, "hf")
    truth = safetensors.torch.load_file(folder / "truth.safetensors")
    model = silently(load, out, folder)
    worst = 0.0
    for b, tokens, segments in rows(truth):
        found = run(model, tokens, segments)
        if "logits" in truth:
            expected, found = truth["logits"], found.logits if hasattr(found, "logits") else found.prediction_logits
        else:
            expected, found = truth["hidden"], found.last_hidden_state
        worst = max(worst, greatest(found[0], expected[b, : len(tokens)]))
    if (folder / "text.json").exists():
        tokenizer = silently(transformers.AutoTokenizer.from_pretrained, out, folder)
        for sample in json.loads((folder / "text.json").read_text()):
            found = tokenizer(sample["text"], add_special_tokens=False)["input_ids"]
            if found != sample["ids"]:
                raise Wrong(f"transformers' ids of {sample['text']!r}: {found}")
    return worst, TOLERANCE


def load(folder):
    """The model in a folder, by the class its configuration names; every weight must be there."""
    keys = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, keys["architectures"][0])
    # limpid leaves the pooler out, and says so; nothing that is compared goes through it
    encoders = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "AlbertModel")
    extra = {"add_pooling_layer": False} if model_class.__name__ in encoders else {}
    model, report = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **extra
    )
    lost = {key: sorted(report[key]) for key in ("missing_keys", "unexpected_keys") if report[key]}
    lost |= {"mismatched": report["mismatched_keys"]} if report["mismatched_keys"] else {}
    if lost:
        raise Wrong(f"transformers says {lost}")
    return model.eval()


@torch.no_grad()
def run(model, tokens, segments=None):
    extra = {} if segments is None else {"token_type_ids": segments.long()[None]}
    return model(torch.as_tensor(tokens).long()[None], **extra)


def own(limpid, name, flags, family):
    """A variant of limpid's own, all weights random, through HuggingFace's folder."""
    model, out = limpid.work / "own" / name, limpid.work / "own-hf" / name
    train(limpid, model, flags)
    if family is None:
        return must_refuse(lambda: limpid.convert(model, out, "hf"))
    limpid.convert(model, out, "hf")
    there = json.loads((out / "config.json").read_text())
    if there["model_type"] != family:
        raise Wrong(f"model_type is {there['model_type']}, not {family}")
    theirs = silently(load, out)
    r, worst = Random(9), 0.0
    for tokens in r.ids(2, 13, high=theirs.config.vocab_size):
        segments = (torch.arange(13) > 6).long() if family in ("bert", "electra", "albert") else None
        ours = limpid.tensor(model, tokens, segments=segments)
        worst = max(worst, greatest(run(theirs, tokens, segments).logits[0], ours))
    return worst, TOLERANCE


def train(limpid, out, flags, tokenizer="char"):
    """A model directory of limpid's with the given configuration and every weight random."""
    shutil.rmtree(out, ignore_errors=True)
    preset = [] if "--preset" in flags else ["--preset", "nano", *SIZE]
    small = ["--steps", 1, "--batch-size", 1, "--eval-tokens", 16, "--sample", 0, "--threads", 1]
    given, flags = {}, [*preset, *flags]
    for flag, value in zip(flags[::2], flags[1::2]):  # a later one counts
        given[flag] = value
    flags = [word for pair in given.items() for word in pair]
    limpid.run("train", *flags, *small, "--tokenizer", tokenizer, "--out", out)
    path, r = out / "model.safetensors", Random(10)
    tensors = safetensors.torch.load_file(path)
    for key, x in sorted(tensors.items()):
        if x.dim() == 1:
            gain = "ln" in key and key.endswith("weight")
            tensors[key] = r.normal(*x.shape, std=0.25, mean=float(gain)).float()
        else:
            tensors[key] = r.normal(*x.shape, std=x.shape[1] ** -0.5).float()
    write_tensors(path, tensors, {"format": "pt"})


# ---------------------------------------------------------------------------------------------
# llama.cpp
# ---------------------------------------------------------------------------------------------

# llama.cpp rounds activations to the weights' type before each product, and its gelu is a table of
# f16, so its logits are only so near. Continuations are compared where the likeliest token leads
# the second by more than LEAD, which is far more.
LEAD = 4.0
NEAR = {"f32": 0.01, "f16": 0.03, "bf16": 0.3, "q8_0": 0.8}


def gguf_models():
    """(name, class, configuration): rows are multiples of 32, as Q8_0 wants."""
    base = dict(vocab_size=300, bos_token_id=0, eos_token_id=0)
    gpt2 = base | dict(n_embd=64, n_head=4, n_layer=2, n_positions=256)
    llama = base | dict(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    llama |= dict(intermediate_size=96, max_position_embeddings=256)
    llama3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
    llama3 |= dict(original_max_position_embeddings=64, rope_theta=1e4)
    wide = {"rope_type": "default", "rope_theta": 5e5}
    return [
        ("gpt2", "GPT2LMHeadModel", gpt2),
        ("gpt2-untied", "GPT2LMHeadModel",
         gpt2 | dict(tie_word_embeddings=False, n_inner=160, layer_norm_epsilon=1e-3)),
        ("llama-gqa", "LlamaForCausalLM", llama | dict(num_key_value_heads=2)),
        ("llama-mqa-tied", "LlamaForCausalLM",
         llama | dict(num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=wide)),
        ("llama-llama3-rope", "LlamaForCausalLM", llama | dict(rope_parameters=llama3)),
        ("llama-linear-rope", "LlamaForCausalLM",
         llama | dict(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})),
        ("llama-head-dim", "LlamaForCausalLM",
         llama | dict(num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-3)),
        ("llama-biases", "LlamaForCausalLM",
         llama | dict(num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    ]  # fmt: skip


def gguf(limpid, results, options):
    folders = {}
    for name, model_class, keys in gguf_models():
        if results.only and results.only not in f"gguf {name} theirs":
            if not any(results.only in f"gguf {name} {dtype}" for dtype in NEAR):
                continue
        folders[name] = gguf_folder(limpid.work / "gguf-hf" / name, model_class, keys)
    for name, (folder, model, prompts) in folders.items():
        for dtype in NEAR:
            results.case(
                f"gguf {name} {dtype}", lambda: write_gguf(limpid, folder, model, prompts, dtype)
            )
    for name, (folder, model, prompts) in folders.items():
        for dtype in ["f32", "f16", "bf16", "q8_0"]:
            results.case(
                f"gguf {name} {dtype} theirs",
                lambda: read_gguf(limpid, folder, model, prompts, dtype, options),
            )
    results.case("gguf own nano", lambda: own_gguf(limpid))


def gguf_folder(folder, model_class, keys):
    """A model from random weights with its tokenizer, and prompts that it continues by heart."""
    model_class = getattr(transformers, model_class)
    config = model_class.config_class(**keys, attn_implementation="eager")
    model = model_class(config).eval()
    randomise(model, Random(11))
    prompts = learn_by_heart(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_byte_level(folder, config.vocab_size)
    return folder, model, prompts


def learn_by_heart(model, count=3, start=5):
    """Train until every token of `count` random sequences leads the second likeliest by LEAD.

    Two programs that round differently part at the first near-tie, which says nothing of either; a
    random model has one every few tokens. These sequences use few distinct tokens, so the next one
    cannot be told from the last alone: attention and positions must be right. Returns
    (prompt, continuation, least lead) of each.
    """
    r = Random(12)
    some = r.ids(24, low=1, high=model.config.vocab_size)
    ids = some[r.ids(count, start + LENGTH, high=len(some))]
    step = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for i in range(1000):
        logits = model(ids[:, :-1]).logits[:, start - 1 :]
        targets = ids[:, start:]
        if i % 20 == 0:
            right = logits.gather(2, targets[..., None])[..., 0]
            others = logits.scatter(2, targets[..., None], -torch.inf)
            leads = (right - others.max(-1).values).amin(1)
            if leads.min() > LEAD:
                return [
                    (row[:start].tolist(), row[start:].tolist(), lead.item())
                    for row, lead in zip(ids, leads)
                ]
        # the margin itself, so that no token is left behind
        right = logits.gather(2, targets[..., None])
        loss = (logits - right + LEAD + 1).logsumexp(-1).mean()
        step.zero_grad()
        loss.backward()
        step.step()
    raise Wrong(f"no lead of {LEAD} in {i} steps: {leads.tolist()}")


class LlamaCpp:
    def __init__(self, path):
        import llama_cpp

        self.model = llama_cpp.Llama(
            str(path),
            n_ctx=256,
            n_batch=128,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            verbose=False,
            flash_attn=False,
            type_k=llama_cpp.GGML_TYPE_F32,  # f16 by default
            type_v=llama_cpp.GGML_TYPE_F32,
        )

    def logits(self, tokens):
        self.model.reset()
        self.model.eval([int(t) for t in tokens])
        return torch.tensor(np.array(self.model.scores[: len(tokens)]))

    def greedy(self, prompt, count=LENGTH):
        self.model.reset()
        self.model.eval(prompt)
        tokens = []
        while len(tokens) < count:
            tokens.append(int(np.argmax(self.model.scores[self.model.n_tokens - 1])))
            self.model.eval(tokens[-1:])
        return tokens

    def ids(self, text):
        return self.model.tokenize(text.encode(), add_bos=False, special=False)


def same_greedy(ours, theirs, prompt, lead, what):
    if ours != theirs:
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b),
            min(len(ours), len(theirs)),
        )
        raise Wrong(
            f"{what} of {prompt} part at token {at} of {len(ours)} and {len(theirs)}: "
            f"{ours[at : at + 3]} and {theirs[at : at + 3]} (least lead {lead:.3f})"
        )


def write_gguf(limpid, folder, model, prompts, dtype):
    """limpid's GGUF in llama.cpp and in limpid: the same logits, continuations and ids."""
    file = limpid.work / f"{folder.name}-{dtype}.gguf"
    limpid.convert(folder, file, "gguf", dtype)
    there, worst = LlamaCpp(file), 0.0
    if dtype == "f32":
        with torch.no_grad():
            for prompt, _, _ in prompts:
                truth = model(torch.tensor([prompt])).logits[0]
                difference = greatest(limpid.tensor(file, prompt), truth)
                if difference > 3 * TOLERANCE:  # these logits are three times the fixtures'
                    raise Wrong(f"limpid differs from transformers by {difference:.1e}")
    for prompt, _, lead in prompts:
        tokens = [*prompt, *there.greedy(prompt)]
        worst = max(worst, greatest(there.logits(tokens), limpid.tensor(file, tokens)))
        same_greedy(limpid.greedy(file, prompt), tokens[len(prompt) :], prompt, lead, "continuations")
    for text in SAMPLES:
        if limpid.ids(file, text) != there.ids(text) or limpid.ids(folder, text) != there.ids(text):
            raise Wrong(f"ids of {text!r}: limpid {limpid.ids(file, text)}, llama.cpp {there.ids(text)}")
    return worst, NEAR[dtype]


def read_gguf(limpid, folder, model, prompts, dtype, options):
    """A GGUF made with the `gguf` package: limpid against transformers with the same weights."""
    file = limpid.work / f"{folder.name}-{dtype}-theirs.gguf"
    rounded = make_gguf(file, folder, model, dtype)
    there = LlamaCpp(file)
    worst, near = 0.0, 0.0
    for prompt, greedy, lead in prompts:
        tokens = [*prompt, *greedy]
        with torch.no_grad():
            truth = rounded(torch.tensor([tokens])).logits[0]
        near = max(near, greatest(there.logits(tokens), truth))
        if near > NEAR[dtype]:
            raise Wrong(f"llama.cpp differs from transformers by {near:.2e}: the file is wrong")
        if options.without_limpid:
            same_greedy(there.greedy(prompt), greedy, prompt, lead, "continuations")
            continue
        worst = max(worst, greatest(limpid.tensor(file, tokens), truth))
    if options.without_limpid:
        leads = min(lead for _, _, lead in prompts)
        return f"llama.cpp is within {near:.1e} of transformers; least lead {leads:.3f}"
    return worst, 3 * TOLERANCE


def own_gguf(limpid):
    """A model of limpid's own, with a home-trained byte-level tokenizer."""
    tokenizer = limpid.work / "bytes"
    tokenizer.mkdir(exist_ok=True)
    write_byte_level(tokenizer, 300)
    model, file = limpid.work / "own-bytes", limpid.work / "own-bytes.gguf"
    flags = ["--d-model", "64", "--n-head", "4", "--context-length", "256", "--activation", "gelu-tanh"]
    train(limpid, model, flags, tokenizer / "tokenizer.json")
    limpid.convert(model, file, "gguf", "f32")
    there, tokens = LlamaCpp(file), [5, 6, 7, 8, 9, 10, 200, 201, 299]
    for text in SAMPLES:
        if limpid.ids(model, text) != there.ids(text):
            raise Wrong(f"ids of {text!r}: limpid {limpid.ids(model, text)}, llama.cpp {there.ids(text)}")
    return greatest(there.logits(tokens), limpid.tensor(model, tokens)), NEAR["f32"]


def make_gguf(path, folder, model, dtype):
    """Write `model` as llama.cpp's convert_hf_to_gguf.py would, and return it with its weights as
    rounded. Norms, biases and the position table stay f32; q and k of Llama are permuted, for ggml
    turns neighbouring pairs where transformers turns halves."""
    from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, TokenType, quants

    c, kind = model.config, model.config.model_type
    w = GGUFWriter(path, kind)
    w.add_name(folder.name)
    w.add_vocab_size(c.vocab_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_head_count(c.num_attention_heads)
    w.add_file_type({"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}[dtype])
    factors = None
    if kind == "gpt2":
        w.add_feed_forward_length(c.n_inner or 4 * c.n_embd)
        w.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        w.add_feed_forward_length(c.intermediate_size)
        w.add_head_count_kv(c.num_key_value_heads)
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
        rope = c.rope_parameters
        w.add_rope_freq_base(rope["rope_theta"])
        w.add_rope_dimension_count(c.head_dim)
        if c.head_dim * c.num_attention_heads != c.hidden_size:
            w.add_key_length(c.head_dim)
            w.add_value_length(c.head_dim)
        if rope["rope_type"] == "linear":
            w.add_rope_scaling_type(RopeScalingType.LINEAR)
            w.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "llama3":  # ggml divides the plain frequencies by these
            plain = rope["rope_theta"] ** -(torch.arange(0, c.head_dim, 2).double() / c.head_dim)
            factors = (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()

    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=vocab.get)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([TokenType.CONTROL if t in special else TokenType.NORMAL for t in tokens])
    merges = tokenizer["model"]["merges"]
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)

    tensors = {}
    for name, p in model.named_parameters():
        x = p.detach().float().numpy()
        x = x.T if kind == "gpt2" and ".h." in name and x.ndim == 2 else x
        heads = {"q_proj": c.num_attention_heads}
        heads["k_proj"] = getattr(c, "num_key_value_heads", 0)
        for part, n in heads.items():
            if f".{part}." in name:
                x = interleave(x, n)
        tensors[name] = x
    kinds = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
    rounded = {}
    if factors is not None:
        w.add_tensor("rope_freqs.weight", factors)
    for name, x in tensors.items():
        plain = x.ndim == 1 or name.endswith("wpe.weight")
        quant = GGMLQuantizationType["F32" if plain else kinds[dtype]]
        data = quants.quantize(np.ascontiguousarray(x), quant)
        back = quants.dequantize(data, quant).astype(np.float32).reshape(x.shape)
        w.add_tensor(gguf_name(name), data, raw_dtype=quant)
        heads = c.num_attention_heads if ".q_proj." in name else 0
        heads = c.num_key_value_heads if ".k_proj." in name else heads
        back = halves(back, heads) if heads else back
        rounded[name] = torch.tensor(back.T if kind == "gpt2" and ".h." in name and x.ndim == 2 else back)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()

    other = type(model)(model.config).eval()
    other.load_state_dict(rounded, strict=False)
    if c.tie_word_embeddings:
        other.tie_weights()
    return other


def interleave(x, heads):
    """Rows of each head from halves (0, 1, ... | d/2, ...) to pairs (0, d/2, 1, d/2 + 1, ...)."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def halves(x, heads):
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def gguf_name(name):
    whole = {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    parts = {
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    module, leaf = name.rsplit(".", 1)
    if module in whole:
        return f"{whole[module]}.{leaf}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{parts[part]}.{leaf}"


# ---------------------------------------------------------------------------------------------
# llm.c
# ---------------------------------------------------------------------------------------------


class LlmC:
    """llm.c's own train_gpt2.c behind llmc_run.c."""

    def __init__(self, source, work):
        if not (source / "train_gpt2.c").exists():  # a repository
            copy = work / "llm.c"
            copy.mkdir()
            git = ["git", "--git-dir", str(source), "archive", "HEAD", "train_gpt2.c", "llmc"]
            files = subprocess.run(git, check=True, capture_output=True).stdout
            subprocess.run(["tar", "x", "-C", str(copy)], check=True, input=files)
            source = copy
        self.program, self.work = work / "llmc_run", work
        harness = Path(__file__).resolve().parent / "llmc_run.c"
        compiler = ["gcc", "-O2", "-w", "-I", str(source), str(harness), "-o", str(self.program), "-lm"]
        subprocess.run(compiler, check=True)

    def run(self, model, state):
        """(logits, loss, gradients) as one array, for the tokens of a state file."""
        out = self.work / "llmc_out.bin"
        done = subprocess.run([self.program, model, state, out], capture_output=True, text=True)
        if done.returncode != 0:
            raise Wrong(f"llm.c: {(done.stderr + done.stdout).strip()[-300:]}")
        return torch.tensor(np.fromfile(out, "<f4"))


def llmc_cases(limpid, results, options):
    if options.source is None:
        sys.exit("llmc wants --source: a checkout or bare repository of karpathy/llm.c")
    program = LlmC(options.source, limpid.work)
    here = FIXTURES / "llmc"
    state = (here / "debug_state.bin").read_bytes()
    B, T = np.frombuffer(state[8:16], "<i4")
    expected = torch.tensor(np.frombuffer(state[1024 + 8 * B * T :], "<f4"))
    truth = safetensors.torch.load_file(here / "truth.safetensors")

    results.case(
        "llmc debug_state by llm.c itself",
        lambda: (greatest(program.run(here / "model.bin", here / "debug_state.bin"), expected), 1e-5),
    )
    if options.without_limpid:
        return
    for name, key in [("model.bin", "logits"), ("model_bf16.bin", "logits_bf16")]:
        results.case(
            f"llmc read {name}",
            lambda: (greatest(limpid.logits(here / name, truth["tokens"]), truth[key]), TOLERANCE),
        )

    def there_and_back(name):
        """The same bytes, but for the rows beyond the vocabulary."""
        out, back = limpid.work / f"{name}-hf", limpid.work / name
        limpid.convert(here / name, out, "hf")
        limpid.convert(out, back, "llmc", "bf16" if "bf16" in name else "f32")
        a, b = llmc.read_model(here / name), llmc.read_model(back)
        return max(greatest(p, q) for p, q in zip(a.parameters(), b.parameters())), 0.0

    for name in ["model.bin", "model_bf16.bin"]:
        results.case(f"llmc through hf {name}", lambda: there_and_back(name))

    def written(folder, dtype):
        """A GPT-2 of HuggingFace's, written by limpid, run by llm.c (bf16: by our reader)."""
        out = limpid.work / f"{folder.name}-{dtype}.bin"
        limpid.convert(folder, out, "llmc", dtype)
        model = load(folder)
        tokens = Random(13).ids(2, 9, high=model.config.vocab_size)
        if dtype == "bf16":
            for p in model.parameters():
                p.data = p.data.bfloat16().float()
        with torch.no_grad():
            expected = model(tokens).logits
            if dtype == "bf16":
                return greatest(llmc.read_model(out)(tokens).logits, expected), TOLERANCE
        request = limpid.work / "request.bin"
        ids = llmc.as_bytes(tokens, torch.int32)
        request.write_bytes(llmc.header(llmc.STATE, 2, 2, 9) + ids + ids)
        found = program.run(out, request)[: expected.numel()].view(expected.shape)
        return greatest(found, expected), TOLERANCE

    for dtype in ["f32", "bf16"]:
        for name in ["gpt2-plain", "gpt2-text"]:
            results.case(f"llmc write {name} {dtype}", lambda: written(FIXTURES / "hf" / name, dtype))
    for name in ["gpt2-untied", "gpt2-unscaled", "gpt2-hub", "llama-gqa", "bert-mlm"]:
        folder, out = FIXTURES / "hf" / name, limpid.work / "refused.bin"
        results.case(
            f"llmc refuse {name}", lambda: must_refuse(lambda: limpid.convert(folder, out, "llmc"))
        )

    def tokenizer():
        """The tokenizer beside a model file: what tokenizer.bin holds, as bytes."""
        out = limpid.work / "gpt2-text-f32.bin"
        limpid.convert(FIXTURES / "hf" / "gpt2-text", out, "llmc", "f32")
        beside = out.with_name("gpt2_tokenizer.bin")
        if not beside.exists():
            return "no tokenizer file beside the model"
        tokens, end = llmc.read_tokenizer(beside)
        texts = [sample["text"] for sample in texts_of("gpt2-text")]
        ids = [sample["ids"] for sample in texts_of("gpt2-text")]
        for text, row in zip(texts, ids):
            if b"".join(tokens[i] for i in row) != text.encode():
                raise Wrong(f"ids of {text!r} decode to something else")
        return f"{len(tokens)} tokens, end of text {end}"

    results.case("llmc tokenizer", tokenizer)


def texts_of(name):
    return json.loads((FIXTURES / "hf" / name / "text.json").read_text())


# ---------------------------------------------------------------------------------------------

COMMANDS = {"hf": hf, "gguf": gguf, "llmc": llmc_cases}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("limpid", help="the binary")
    parser.add_argument("--source", type=Path, help="llm.c: a checkout or a bare repository")
    parser.add_argument("--only", help="cases with this in their name")
    parser.add_argument("--keep", type=Path, help="leave the files in this folder")
    parser.add_argument(
        "--without-limpid", action="store_true", help="gguf, llmc: only check what is ours by theirs"
    )
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        limpid, results = Limpid(options.limpid, work), Results(options.only)
        for name, command in COMMANDS.items():
            if options.command in (name, "all"):
                command(limpid, results, options)
    print(f"{results.count} cases, {results.failed} failed")
    sys.exit(1 if results.failed or not results.count else 0)


if __name__ == "__main__":
    main()
