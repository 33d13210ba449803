#!/usr/bin/env python3
"""llama.cpp itself on GGUF files that limpid writes: its logits beside transformers' of the same random models.

    python reference/llama_logits.py target/release/limpid [CASE ...]

Needs `llama-cpp-python` (0.3.36) beside requirements.txt. Each model of crates/limpid/fixtures/hf that GGUF can say is
converted as F32 without its tokenizer. Where llama.cpp computes a GELU it looks it up in a table of f16, and has the
tanh form only: there 3e-3 is what is asked, elsewhere 1e-5.
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile

import llama_cpp as llama
import numpy
from safetensors.numpy import load_file

FIXTURES = pathlib.Path(__file__).parent.parent / "crates/limpid/fixtures/hf"
QUIET = llama.llama_log_callback(lambda *_: None)


def logits(path, rows):
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp does not load {path}"
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    found = []
    for row in rows:
        params = llama.llama_context_default_params()
        # all f32
        params.n_ctx, params.n_threads, params.flash_attn_type, params.type_k, params.type_v = 256, 1, 0, 0, 0
        context = llama.llama_init_from_model(model, params)
        batch = llama.llama_batch_init(len(row), 0, 1)
        batch.n_tokens = len(row)
        for i, token in enumerate(row):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama.llama_decode(context, batch) == 0
        one = lambda i: numpy.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), shape=(size,)).copy()
        found.append([one(i) for i in range(len(row))])
        llama.llama_batch_free(batch)
        llama.llama_free(context)
    llama.llama_model_free(model)
    return numpy.array(found)


def main():
    limpid, *cases = sys.argv[1:]
    llama.llama_log_set(QUIET, ctypes.c_void_p(0))
    llama.llama_backend_init()
    compared = 0
    for case in sorted(FIXTURES.iterdir()):
        truth = load_file(case / "truth.safetensors")
        if "logits" not in truth or cases and case.name not in cases:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "model.gguf"
            done = subprocess.run(
                [limpid, "convert", case, out, "--dtype", "f32", "--tokenizer", "none", "--json"], capture_output=True,
                text=True
            )
            if done.returncode:
                print(f"{case.name}: {done.stderr.strip()}")
                continue
            found = logits(out, truth["tokens"].astype(int))
        apart = float(numpy.abs(found - truth["logits"]).max())
        gelu = "gelu" in (case / "config.json").read_text() or "bloom" in case.name or "mpt" in case.name
        greedy = bool((found.argmax(-1) == truth["logits"].argmax(-1)).all())
        print(json.dumps({"case": case.name, "apart": apart, "greedy": greedy}))
        assert apart < (3e-3 if gelu else 1e-5), case.name
        compared += 1
    assert compared, "nothing was compared"


main()
