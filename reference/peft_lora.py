#!/usr/bin/env python3
"""LoRA adapters, limpid's and PEFT's.

    python reference/peft_lora.py make crates/limpid/fixtures/peft          # adapters that PEFT made, with its logits
    python reference/peft_lora.py check target/release/limpid # PEFT reads what limpid trained, and the other way

`make` puts a random adapter on models of crates/limpid/fixtures/hf, saves it with PEFT and writes the logits that it
gives. `check` trains adapters with limpid on every model there that transformers opens as it is and that has a head,
and on limpid's own, which it converts for transformers; PEFT then loads the adapter and must give limpid's logits. Then
limpid reads adapters of PEFT's. Nothing is downloaded.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors.torch
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

FIXTURES = Path(__file__).resolve().parent.parent / "crates/limpid/fixtures"
TOLERANCE = 1e-4  # of logits of order 1
# model, rank, alpha, targets, ranks and alphas of modules that have others
CASES = [
    ("gpt2-plain", 3, 6, ["c_attn", "c_proj", "c_fc"]),
    ("gpt2-untied", 2, 5, ["attn.c_attn"]),
    ("llama-gqa", 3, 4, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    ("llama-head-dim", 2, 4, ["q_proj", "v_proj"]),
    ("openai-gpt-plain", 2, 4, ["c_attn", "mlp.c_proj"]),
    # modules that are several products of limpid's, and names that several families have
    ("phi3", 2, 3, ["qkv_proj", "gate_up_proj"]),
    ("glm4", 2, 3, ["q_proj", "gate_up_proj", "down_proj"]),
    ("pythia", 2, 4, ["query_key_value", "dense_h_to_4h"]),
    ("bloom", 2, 4, ["query_key_value", "dense"]),
    ("mpt", 1, 2, ["Wqkv", "up_proj"]),
    ("falcon-new", 2, 4, ["query_key_value"]),
    ("gpt-bigcode", 2, 4, ["c_attn", "c_fc"]),
    ("ernie4-5", 2, 4, ["q_proj", "k_proj"]),
    ("helium", 2, 4, ["q_proj", "k_proj"]),
    ("nanochat", 2, 4, ["q_proj", "v_proj", "fc1"]),
    ("roberta", 2, 4, ["query", "value"]),
    ("albert", 2, 4, ["query", "ffn"]),
    # ranks and alphas of modules
    ("llama-mqa", 2, 4, ["q_proj", "o_proj"], {"0.self_attn.q_proj": 1}, {"o_proj": 3}),
    ("opt", 2, 4, ["q_proj", "fc1"], {"fc1": 3}, {"layers.1.fc1": 7}),
]


def model(path):
    kind = json.loads((Path(path) / "config.json").read_text())["architectures"][0]
    return getattr(transformers, kind).from_pretrained(path, dtype=torch.float32).eval()


def adapted(name, rank, alpha, targets, ranks=None, alphas=None):
    """A model of crates/limpid/fixtures/hf with a random adapter."""
    torch.manual_seed(len(name))
    plain = model(FIXTURES / "hf" / name)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets,
        rank_pattern=ranks or {},
        alpha_pattern=alphas or {},
        fan_in_fan_out=plain.config.model_type in ("gpt2", "openai-gpt"),
        task_type="CAUSAL_LM" if "CausalLM" in type(plain).__name__ else None,
    )
    made = get_peft_model(plain, config)
    for key, value in made.named_parameters():
        if "lora_" in key:
            torch.nn.init.normal_(value, std=0.3)
    made.peft_config["default"].base_model_name_or_path = f"../../hf/{name}"
    return made.eval()


def logits(m, tokens):
    with torch.no_grad():
        return m(input_ids=torch.tensor([tokens])).logits[0].float()


def tokens_of(m):
    config = m.config if not hasattr(m, "base_model") else m.base_model.config
    ids = [(7 * i + 3) % config.vocab_size for i in range(8)]
    pad = getattr(config, "pad_token_id", None)
    return [token + (token == pad) for token in ids]  # RoBERTa gives padding no position


def make(out):
    for name, *how in CASES:
        folder = Path(out) / name
        if folder.exists():
            continue
        m = adapted(name, *how)
        m.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        tokens = tokens_of(m)
        truth = {"tokens": torch.tensor([tokens], dtype=torch.float32), "logits": logits(m, tokens).contiguous()}
        plain = logits(model(FIXTURES / "hf" / name), tokens)
        assert (plain - truth["logits"]).abs().max() > 0.05, "the adapter does something"
        safetensors.torch.save_file(truth, folder / "truth.safetensors")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


def opens_as_it_is(folder):
    """Whether transformers finds every tensor by its name in the file, and has a head to train."""
    try:
        _, found = model_with_keys(folder)
    except Exception as error:
        print(f"left out: {folder.name}: {type(error).__name__}: {str(error).splitlines()[0][:90]}")
        return False
    if found["missing_keys"] or not any(w in found["kind"] for w in ("LMHead", "CausalLM", "MaskedLM")):
        print(f"left out: {folder.name}: {found['kind']}, {len(found['missing_keys'])} tensors not found")
        return False
    return True


def model_with_keys(folder):
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    made, found = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    return made, {**found, "kind": kind}


def limpid(binary, *args):
    done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"limpid {' '.join(map(str, args))}\n{done.stderr}")
    return done.stdout


def ours(binary, path, tokens, folder, *more):
    saved = folder / "logits.safetensors"
    saved.unlink(missing_ok=True)
    ids = ",".join(map(str, tokens))
    limpid(binary, "inspect", "--model", path, "--tokens", ids, "--tensor", "logits", "--save", saved, *more)
    tensors = safetensors.torch.load_file(saved)
    return tensors["logits"].reshape(len(tokens), -1)


def check(binary):
    failed = 0

    def say(what, a, b, plain):
        nonlocal failed
        apart, moved = (a - b).abs().max().item(), (a - plain).abs().max().item()
        ok = apart < TOLERANCE < moved
        failed += not ok
        print(f"{'ok    ' if ok else 'FAILED'} {what}: differ by {apart:.1e}, the adapter changes logits by {moved:.2f}")

    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        text = tmp / "text.txt"
        text.write_text("a cat and a hat, a bat and a rat. " * 40)
        train = ["--data", text, "--steps", "40", "--learning-rate", "0.03", "--sample", "0", "--eval-every", "0"]
        bases = []
        for folder in sorted((FIXTURES / "hf").iterdir()):
            if not opens_as_it_is(folder):
                continue
            own = any((folder / name).exists() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))
            bases.append((folder.name, folder, folder, [] if own else ["--tokenizer", "char"]))
        small = ["--d-model", "16", "--n-head", "2", "--n-layer", "2", "--context-length", "16"]
        rotary = "--positions rotary --norm rms --bias false --ffn-gated --activation silu --n-kv-head 1".split()
        for name, more in [("limpid's own, as GPT-2", []), ("limpid's own, as Llama", rotary)]:
            base, hf = tmp / f"base{len(bases)}", tmp / f"hf{len(bases)}"
            limpid(binary, "train", "--tokenizer", "char", *small, *more, *train, "--out", base)
            limpid(binary, "convert", base, hf, "--to", "hf")
            bases.append((name, base, hf, []))
        for n, (name, base, hf, more) in enumerate(bases):
            run = tmp / f"run{n}"
            try:
                limpid(binary, "train", "--from", base, "--lora", "2", *train, *more, "--context", "8", "--out", run)
            except SystemExit as error:
                print(f"left out: {name}: {str(error).splitlines()[-1]}")
                continue
            plain = model(hf)
            tokens = tokens_of(plain)
            before = logits(plain, tokens)
            theirs = logits(PeftModel.from_pretrained(plain, run).eval(), tokens)
            say(f"PEFT reads limpid's adapter of {name}", theirs, ours(binary, run, tokens, tmp), before)
            merged = tmp / f"merged{n}"
            limpid(binary, "convert", run, merged, "--to", "hf", "--dtype", "f32")
            say(f"transformers reads it merged, {name}", logits(model(merged), tokens), theirs, before)
        for case in CASES:
            m = adapted(*case)
            folder = tmp / f"peft-{case[0]}"
            m.save_pretrained(folder)
            base, tokens = FIXTURES / "hf" / case[0], tokens_of(m)
            found = ours(binary, base, tokens, tmp, "--adapter", folder)
            say(f"limpid reads PEFT's adapter of {case[0]}", logits(m, tokens), found, logits(model(base), tokens))
    sys.exit(failed > 0)


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2])
