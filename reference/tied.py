#!/usr/bin/env python3
"""Which tensors of transformers' models are stored once for two uses, and what becomes of them where files store them
otherwise.

    python reference/tied.py crates/limpid/fixtures

Of every model in FOLDER/hf it writes the tied parameters, each a copy and what it is a copy of, into FOLDER/tied.json,
and loads the model with the copy alone, with both alike, and with a copy that differs: what the logits are then is what
it prints.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"

import torch
import transformers
from safetensors.torch import load_file, save_file


transformers.utils.logging.disable_progress_bar()


def tensors_of(folder):
    parts = sorted(folder.glob("model*.safetensors"))
    return {name: value for part in parts for name, value in load_file(part).items()}


def load(cls, folder, tensors, tie):
    with tempfile.TemporaryDirectory() as copy:
        config = json.loads((folder / "config.json").read_text())
        if tie is not None:
            config["tie_word_embeddings"] = tie
        Path(copy, "config.json").write_text(json.dumps(config))
        save_file({k: v.clone().contiguous() for k, v in tensors.items()}, Path(copy, "model.safetensors"),
            {"format": "pt"})
        return cls.from_pretrained(copy, dtype=torch.float32).eval()


def main(fixtures):
    found, fixtures = {}, Path(fixtures)
    for folder in sorted((fixtures / "hf").iterdir()):
        config = json.loads((folder / "config.json").read_text())
        cls = getattr(transformers, (config.get("architectures") or [""])[0], None)
        if cls is None:
            continue
        tensors = tensors_of(folder)
        model = load(cls, folder, tensors, None)
        pairs = {copy: of for copy, of in model.all_tied_weights_keys.items() if model.get_parameter(copy) is not None}
        by_name = {name: name for name in tensors}
        for name in list(tensors):  # files of the hub leave prefixes out
            by_name.setdefault(model.base_model_prefix + "." + name, name)
        pairs = {copy: by_name.get(of) for copy, of in pairs.items() if by_name.get(of) in tensors
            and copy not in tensors}
        if not pairs:
            continue
        truth = load_file(folder / "truth.safetensors")
        tokens = truth["tokens"].long()
        logits = lambda m: m(tokens).logits.detach()
        if not hasattr(model(tokens), "logits"):
            continue
        usual = logits(model)
        whole = tensors | {copy: tensors[of] for copy, of in pairs.items()}
        said = []
        for copy, of in pairs.items():
            lone = {name: value for name, value in tensors.items() if name != of} | {copy: tensors[of]}
            other = tensors[of].float().roll(1, 0).to(tensors[of].dtype)
            alone, both, differ = (logits(load(cls, folder, t, None)) for t in [lone, tensors | {copy: tensors[of]},
                tensors | {copy: other}])
            untied = logits(load(cls, folder, whole | {copy: other}, False))
            said.append((copy, of, (alone - usual).abs().max().item(), (both - usual).abs().max().item(),
                         (differ - usual).abs().max().item(), (differ - untied).abs().max().item()))
        found[folder.name] = [[copy, of] for copy, of in pairs.items()]
        for copy, of, *off in said:
            print(f"{folder.name:22} {copy} of {of}: alone {off[0]:.1e}, both {off[1]:.1e}, differing {off[2]:.1e} "
                  f"and {off[3]:.1e} from an untied model")
    (fixtures / "tied.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
