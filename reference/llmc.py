#!/usr/bin/env python3
"""The files of llm.c, read and written, and small ones of each kind for `crates/limpid/fixtures/llmc/`.

    python reference/llmc.py make crates/limpid/fixtures/llmc
    python reference/llmc.py train crates/limpid/fixtures/llmc LLM.C
    python reference/llmc.py programs crates/limpid/fixtures/llmc LLM.C

Every file begins with 256 int32s, the first of them a magic number, and is little endian:

    model.bin        20240326, version 3: float32.  maxT, V, L, H, C, Vp follow the version
    model_bf16.bin   20240326, version 5: bfloat16, and otherwise the same
    debug_state.bin  20240327, version 2: B, T; then x, y (int32), logits (B, T, V), the mean loss,
                     and the gradient of every parameter, in the order and shapes of model.bin
    tokens.bin       20240520, version 1: the number of tokens, then uint16s
    tokenizer.bin    20240328, version 2: V, the end-of-text id; then for each token a byte of
                     length and its bytes
    truth.safetensors  float32: tokens, targets (B, T), logits and loss as in the state, and
                     logits_bf16 and loss_bf16, of model_bf16.bin's rounded weights in float32
    train.json       of `train`: the losses of llm.c's own first steps from model.bin on tokens.bin, which llmc_train.c takes,
                     compiled with LLM.C (a checkout); more steps than an epoch has batches
    train_gpt2.txt   of `programs`: what llm.c's own train_gpt2.c prints of model.bin, with B = 4 as there and T = 9, trained on
                     tokens.bin and validated on its last 120 tokens
    acts.safetensors every activation that llm.c has after a forward and a backward pass of model.bin on debug_state.bin's batch, and its
                     gradient (grads_acts.NAME); without the scores above the diagonal, which it never writes
    test_gpt2.txt    what its test_gpt2.c prints of model.bin and debug_state.bin (the ten losses it holds are GPT-2's)

A model is a GPT-2 with gelu_new, epsilon 1e-5 and the head tied. Its matrices are (out, in), where
HuggingFace's are (in, out); all layers' ln_1 gains stand together, then their offsets, and so on;
the token table has Vp rows, V rounded up to a multiple of 128, of which the last Vp - V are zero in
the debug state and arbitrary in a model. The text is ours, after llm.c's train_gpt2.py, data_common.py
and tokenizer.h; interop.py llmc proves it by running llm.c itself on these files.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from families import randomise, write_tensors
from make import Random

MODEL, STATE, SHARD, TOKENIZER = 20240326, 20240327, 20240520, 20240328
VERSION = {torch.float32: 3, torch.bfloat16: 5}

# (name in HuggingFace, whether llm.c has it transposed); those with a `{}` are one for each layer.
ORDER = [
    ("transformer.wte.weight", False),
    ("transformer.wpe.weight", False),
    ("transformer.h.{}.ln_1.weight", False),
    ("transformer.h.{}.ln_1.bias", False),
    ("transformer.h.{}.attn.c_attn.weight", True),
    ("transformer.h.{}.attn.c_attn.bias", False),
    ("transformer.h.{}.attn.c_proj.weight", True),
    ("transformer.h.{}.attn.c_proj.bias", False),
    ("transformer.h.{}.ln_2.weight", False),
    ("transformer.h.{}.ln_2.bias", False),
    ("transformer.h.{}.mlp.c_fc.weight", True),
    ("transformer.h.{}.mlp.c_fc.bias", False),
    ("transformer.h.{}.mlp.c_proj.weight", True),
    ("transformer.h.{}.mlp.c_proj.bias", False),
    ("transformer.ln_f.weight", False),
    ("transformer.ln_f.bias", False),
]


def order(layers):
    """(name, transposed) of every tensor, in the file's order."""
    for name, transposed in ORDER:
        for i in range(layers) if "{}" in name else [0]:
            yield name.format(i), transposed


def header(*values):
    return np.array([*values, *[0] * (256 - len(values))], dtype="<i4").tobytes()


def padded(vocab):
    return -(-vocab // 128) * 128


def as_bytes(tensor, dtype):
    tensor = tensor.detach().to(dtype).contiguous()
    return (tensor.view(torch.int16) if dtype == torch.bfloat16 else tensor).numpy().tobytes()


def pack(tensors, layers, vocab, dtype, padding=None):
    """The tensors (named as in HuggingFace) in llm.c's order and shapes."""
    parts = []
    for name, transposed in order(layers):
        x = tensors[name]
        if name.endswith("wte.weight"):
            rows = padding if padding is not None else torch.zeros(padded(vocab) - vocab, x.shape[1])
            x = torch.cat([x, rows])
        parts.append(as_bytes(x.T if transposed else x, dtype))
    return b"".join(parts)


def write_model(path, model, dtype):
    c, tensors = model.config, dict(model.named_parameters())
    rows = padded(c.vocab_size) - c.vocab_size
    padding = Random(rows).normal(rows, c.n_embd).float()  # must not matter
    top = header(
        MODEL, VERSION[dtype], c.n_positions, c.vocab_size, c.n_layer, c.n_head, c.n_embd,
        padded(c.vocab_size),
    )  # fmt: skip
    path.write_bytes(top + pack(tensors, c.n_layer, c.vocab_size, dtype, padding))


def read_model(path):
    """The GPT-2 of a version 3 or 5 file, in float32, checked to its last byte."""
    file = path.read_bytes()
    magic, version, T, V, L, H, C, Vp = np.frombuffer(file, "<i4", 8)
    assert magic == MODEL and version in (3, 5), (magic, version)
    assert Vp == padded(V), (V, Vp)
    dtype = torch.float32 if version == 3 else torch.bfloat16
    values = torch.frombuffer(bytearray(file[1024:]), dtype=dtype).float()
    model = gpt2(int(T), int(V), int(L), int(H), int(C))
    at, tensors = 0, dict(model.named_parameters())
    with torch.no_grad():
        for name, transposed in order(L):
            p = tensors[name]
            shape = p.T.shape if transposed else p.shape
            if name.endswith("wte.weight"):
                shape = (Vp, C)
            x = values[at : at + int(np.prod(shape))].view(*map(int, shape))
            at += x.numel()
            p.copy_(x.T if transposed else x[: p.shape[0]])
    assert at == values.numel(), f"{path}: {values.numel()} values, {at} expected"
    return model


def gpt2(T, V, L, H, C):
    config = transformers.GPT2Config(
        n_positions=T, vocab_size=V, n_layer=L, n_head=H, n_embd=C, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def forward(model, x, y):
    logits = model(x).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def write_state(path, model, x, y):
    model.zero_grad()
    logits, loss = forward(model, x, y)
    loss.backward()
    c = model.config
    grads = {name: p.grad for name, p in model.named_parameters()}
    parts = [header(STATE, 2, *x.shape)]
    parts += [as_bytes(ids, torch.int32) for ids in (x, y)]
    parts += [as_bytes(logits, torch.float32), as_bytes(loss.reshape(1), torch.float32)]
    path.write_bytes(b"".join(parts) + pack(grads, c.n_layer, c.vocab_size, torch.float32))


def write_shard(path, tokens):
    path.write_bytes(header(SHARD, 1, len(tokens)) + np.array(tokens, "<u2").tobytes())


def write_tokenizer(path, tokens, end):
    body = b"".join(struct.pack("<B", len(token)) + token for token in tokens)
    path.write_bytes(header(TOKENIZER, 2, len(tokens), end) + body)


def read_tokenizer(path):
    """(tokens, end-of-text id)."""
    file = path.read_bytes()
    magic, version, count, end = np.frombuffer(file, "<i4", 4)
    assert magic == TOKENIZER and version == 2, (magic, version)
    tokens, at = [], 1024
    for _ in range(count):
        tokens.append(file[at + 1 : at + 1 + file[at]])
        at += 1 + file[at]
    assert at == len(file)
    return tokens, int(end)


def make(directory):
    directory.mkdir(parents=True, exist_ok=True)
    r = Random(20240326)
    model = gpt2(T=12, V=40, L=2, H=2, C=16)
    randomise(model, r)
    x, y = r.ids(2, 9, high=40), r.ids(2, 9, high=40)

    write_model(directory / "model.bin", model, torch.float32)
    write_model(directory / "model_bf16.bin", model, torch.bfloat16)
    write_state(directory / "debug_state.bin", model, x, y)
    write_shard(directory / "tokens.bin", r.ids(301, high=40).tolist())
    # Not valid UTF-8, a zero byte, blanks, a long one: 40 in all, the last the end of text.
    tokens = [bytes([b]) for b in [0, 10, 32, 128, 255]] + [b" the", "é".encode(), b"x" * 255]
    tokens += [bytes([97 + i]) for i in range(26)] + [b" " + bytes([97 + i]) for i in range(5)]
    write_tokenizer(directory / "tokenizer.bin", [*tokens, b"<|endoftext|>"], 39)

    with torch.no_grad():
        logits, loss = forward(model, x, y)
        rounded = read_model(directory / "model_bf16.bin")
        logits_bf16, loss_bf16 = forward(rounded, x, y)
        again, _ = forward(read_model(directory / "model.bin"), x, y)
        assert torch.equal(again, logits)
    truth = {"tokens": x.float(), "targets": y.float(), "logits": logits, "loss": loss.reshape(1)}
    truth |= {"logits_bf16": logits_bf16, "loss_bf16": loss_bf16.reshape(1)}
    write_tensors(directory / "truth.safetensors", truth, {"source": "made by reference/llmc.py"})
    for path in sorted(directory.iterdir()):
        print(f"{path.name:20} {path.stat().st_size:6} bytes")


def train(directory, source, batch_size=4, context=9, steps=12):
    """llm.c's losses. 301 tokens are 8 batches of 36 and 13 tokens more, so its DataLoader begins anew at the ninth."""
    harness = Path(__file__).resolve().parent / "llmc_train.c"
    with tempfile.TemporaryDirectory() as work:
        program = Path(work) / "llmc_train"
        subprocess.run(["gcc", "-O2", "-w", "-I", source, harness, "-o", program, "-lm"], check=True)
        args = [program, directory / "model.bin", directory / "tokens.bin", batch_size, context, steps]
        done = subprocess.run([str(arg) for arg in args], check=True, capture_output=True, text=True)
    run = {"batch_size": batch_size, "context": context, "losses": [float(line) for line in done.stderr.split()]}
    (directory / "train.json").write_text(json.dumps(run) + "\n")


def activations(directory, source, work):
    """llm.c's activations and their gradients, as they lie in its memory; logits and probabilities without the columns
    of padding."""
    program, out, acts = work / "llmc_run", work / "out.bin", work / "acts.bin"
    harness = Path(__file__).resolve().parent / "llmc_run.c"
    subprocess.run(["gcc", "-O2", "-w", "-I", source, harness, "-o", program, "-lm"], check=True)
    run = [program, directory / "model.bin", directory / "debug_state.bin", out, acts]
    subprocess.run(run, check=True, capture_output=True)
    T, V, L, H, C, Vp = np.frombuffer((directory / "model.bin").read_bytes(), "<i4", 6, offset=8).tolist()
    B, T = np.frombuffer((directory / "debug_state.bin").read_bytes(), "<i4", 2, offset=8).tolist()
    row, block, one = (B, T, C), (L, B, T, C), (L, B, T)
    shapes = {
        "encoded": row, "ln1": block, "ln1_mean": one, "ln1_rstd": one, "qkv": (L, B, T, 3 * C), "atty": block,
        "preatt": (L, B, H, T, T), "att": (L, B, H, T, T), "attproj": block, "residual2": block, "ln2": block,
        "ln2_mean": one, "ln2_rstd": one, "fch": (L, B, T, 4 * C), "fch_gelu": (L, B, T, 4 * C), "fcproj": block,
        "residual3": block, "lnf": row, "lnf_mean": (B, T), "lnf_rstd": (B, T), "logits": (B, T, Vp),
        "probs": (B, T, Vp), "losses": (B, T),
    }  # fmt: skip
    values, at, tensors = torch.from_numpy(np.fromfile(acts, "<f4")), 0, {}
    for prefix in ["", "grads_acts."]:
        for name, shape in shapes.items():
            x = values[at : at + int(np.prod(shape))].view(shape)
            at += x.numel()
            if shape[-1] == Vp:
                x = x[..., :V]
            if name == "preatt":
                x = x.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), 0.0)
            tensors[prefix + name] = x.contiguous()
    assert at == values.numel()
    write_tensors(directory / "acts.safetensors", tensors, {"source": "llm.c itself, by reference/llmc.py"})


def programs(directory, source):
    """What llm.c's two programs print, as they are but for the sizes that this model is too small for."""
    tokens = np.fromfile(directory / "tokens.bin", "<u2", offset=1024)
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        activations(directory, source, work)
        data = work / "dev/data/tinyshakespeare"
        data.mkdir(parents=True)
        for name, at in [
            ("gpt2_124M.bin", "model.bin"),
            ("gpt2_124M_debug_state.bin", "debug_state.bin"),
            ("gpt2_tokenizer.bin", "tokenizer.bin"),
        ]:
            (work / name).write_bytes((directory / at).read_bytes())
        write_shard(data / "tiny_shakespeare_train.bin", tokens)
        write_shard(data / "tiny_shakespeare_val.bin", tokens[-120:])
        text = (Path(source) / "train_gpt2.c").read_text()
        for was, now in [("int T = 64;", "int T = 9;"), ("const int genT = 64;", "const int genT = 9;")]:
            assert text.count(was) == 1, was
            text = text.replace(was, now)
        (work / "train_gpt2.c").write_text(text)
        (work / "test_gpt2.c").write_text((Path(source) / "test_gpt2.c").read_text())
        for name in ["train_gpt2", "test_gpt2"]:
            build = ["gcc", "-O2", "-w", "-I", work, "-I", source, work / f"{name}.c", "-o", work / name, "-lm"]
            subprocess.run(build, check=True)
            done = subprocess.run([work / name], check=True, capture_output=True, cwd=work)
            printed = re.sub(r"took [0-9.]+ ms", "took 0 ms", done.stdout.decode("utf-8", "replace"))
            (directory / f"{name}.txt").write_text(printed)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("make", help="small files of each kind")
    command.add_argument("directory", type=Path)
    command = commands.add_parser("train", help="the losses of llm.c itself")
    command.add_argument("directory", type=Path)
    command.add_argument("source", type=Path, help="a checkout of llm.c")
    command = commands.add_parser("programs", help="what llm.c's own programs print")
    command.add_argument("directory", type=Path)
    command.add_argument("source", type=Path, help="a checkout of llm.c")
    args = parser.parse_args()
    if args.command == "make":
        make(args.directory)
    else:
        {"train": train, "programs": programs}[args.command](args.directory, args.source)


if __name__ == "__main__":
    main()
