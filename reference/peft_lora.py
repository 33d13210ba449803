#!/usr/bin/env python3
"""LoRA adapters, limpid's and PEFT's.

    python reference/peft_lora.py make crates/limpid/fixtures/peft          # adapters that PEFT made, with its logits
    python reference/peft_lora.py check target/release/limpid # PEFT reads what limpid trained, and the other way

`make` puts a random adapter on models of crates/limpid/fixtures/hf, saves it with PEFT and writes the logits that it gives. `check` trains
adapters with limpid on the same models, and on limpid's own, which it converts for transformers; PEFT then loads the adapter
and must give limpid's logits. Then limpid reads adapters of PEFT's. Nothing is downloaded.
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
# model, rank, alpha, targets
CASES = [
    ("gpt2-plain", 3, 6, ["c_attn", "c_proj", "c_fc"]),
    ("gpt2-untied", 2, 5, ["attn.c_attn"]),
    ("llama-gqa", 3, 4, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    ("llama-head-dim", 2, 4, ["q_proj", "v_proj"]),
    ("openai-gpt-plain", 2, 4, ["c_attn", "mlp.c_proj"]),
]


def model(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def adapted(name, rank, alpha, targets):
    """A model of crates/limpid/fixtures/hf with a random adapter."""
    torch.manual_seed(len(name))
    transposed = "gpt" in name
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=targets, fan_in_fan_out=transposed, task_type="CAUSAL_LM"
    )
    made = get_peft_model(model(FIXTURES / "hf" / name), config)
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
    return [(7 * i + 3) % config.vocab_size for i in range(8)]


def make(out):
    for name, rank, alpha, targets in CASES:
        folder = Path(out) / name
        m = adapted(name, rank, alpha, targets)
        m.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        tokens = tokens_of(m)
        truth = {"tokens": torch.tensor([tokens], dtype=torch.float32), "logits": logits(m, tokens).contiguous()}
        plain = logits(model(FIXTURES / "hf" / name), tokens)
        assert (plain - truth["logits"]).abs().max() > 0.05, "the adapter does something"
        safetensors.torch.save_file(truth, folder / "truth.safetensors")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


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
        for name, *_ in CASES:
            folder = FIXTURES / "hf" / name
            own = (folder / "vocab.json").exists()
            bases.append((name, folder, folder, [] if own else ["--tokenizer", "char"]))
        small = ["--d-model", "16", "--n-head", "2", "--n-layer", "2", "--context-length", "16"]
        rotary = "--positions rotary --norm rms --bias false --ffn-gated --activation silu --n-kv-head 1".split()
        for name, more in [("limpid's own, as GPT-2", []), ("limpid's own, as Llama", rotary)]:
            base, hf = tmp / f"base{len(bases)}", tmp / f"hf{len(bases)}"
            limpid(binary, "train", "--tokenizer", "char", *small, *more, *train, "--out", base)
            limpid(binary, "convert", base, hf, "--to", "hf")
            bases.append((name, base, hf, []))
        for n, (name, base, hf, more) in enumerate(bases):
            run = tmp / f"run{n}"
            limpid(binary, "train", "--from", base, "--lora", "2", *train, *more, "--context", "8", "--out", run)
            plain = model(hf)
            tokens = tokens_of(plain)
            before = logits(plain, tokens)
            theirs = logits(PeftModel.from_pretrained(plain, run).eval(), tokens)
            say(f"PEFT reads limpid's adapter of {name}", theirs, ours(binary, run, tokens, tmp), before)
            merged = tmp / f"merged{n}"
            limpid(binary, "convert", run, merged, "--to", "hf")
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
