"""Models of reference/families.py as llama.cpp's own converter makes them, without their tokenizers (random models have
none). Made with the packages of requirements.txt and a checkout of llama.cpp (2026-11, with `conversion/` and
`gguf-py/`):

    python reference/gguf_families.py PATH/TO/llama.cpp

writes crates/limpid/fixtures/gguf/NAME.gguf from crates/limpid/fixtures/hf/NAME, of F32 so that numbers can be
compared.
"""

import json
import pathlib
import shutil
import sys
import tempfile

LLAMA_CPP = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from conversion import get_model_class
from conversion.base import ModelBase, ModelType, get_model_architecture

FIXTURES = pathlib.Path(__file__).parent.parent / "crates/limpid/fixtures"
# two of a family where two differ in what its keys or its tensors say
NAMES = """bert-mlm bloom bloom-untied cohere distilbert falcon falcon-new gemma gemma2 gemma3 gpt-bigcode gpt2-plain granite llama-gqa
llama-mqa mpt olmo olmo2 phi phi3 phi3-partial pythia qwen2 qwen2-tied qwen3 stablelm stablelm-parallel
starcoder2"""


# what llama.cpp takes for given, and has no key for
ASSUMED = {
    "gemma2": {"query_pre_attn_scalar": 6},
    "gemma3": {"query_pre_attn_scalar": 6, "layer_types": ["sliding_attention"] * 2},
}


def truth(name, folder):
    """The numbers of the changed model, as reference/families.py has them of the others."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    tokens = load_file(FIXTURES / "hf" / name / "truth.safetensors")["tokens"]
    with torch.no_grad():
        out = model(tokens.long(), output_hidden_states=True)
    found = {"tokens": tokens, "logits": out.logits, "hidden": out.hidden_states[-1]}
    save_file({key: value.contiguous().float() for key, value in found.items()},
        FIXTURES / "gguf" / f"{name}.safetensors")


def write(name, folder):
    shutil.copytree(FIXTURES / "hf" / name, folder, dirs_exist_ok=True)
    hparams = ModelBase.load_hparams(folder, False)
    if hparams["model_type"] == "falcon" and hparams["multi_query"] and not hparams["new_decoder_architecture"]:
        del hparams["num_kv_heads"]  # as the files of the first models have it: one for all
    # keys as files of older transformers have them, which the converter knows
    hparams.setdefault("n_ctx", hparams.get("n_positions"))
    hparams.setdefault("rotary_pct", hparams.get("rope_parameters", {}).get("partial_rotary_factor", 1.0))
    hparams["architectures"] = [name.replace("Mpt", "MPT") for name in hparams["architectures"]]
    # the converter of Gemma 3 counts the tokens
    vocab = {str(i): i for i in range(hparams["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    config = json.loads((folder / "config.json").read_text())
    own = {key: value for key, value in ASSUMED.get(name, {}).items() if config[key] != value}
    if own:
        (folder / "config.json").write_text(json.dumps(config | own))
        hparams |= own
        truth(name, folder)
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    class Bare(kind):
        model_arch = kind.model_arch

        def set_vocab(self):
            self._set_vocab_none()
            if "type_vocab_size" in self.hparams:
                self.gguf_writer.add_token_type_count(self.hparams["type_vocab_size"])

        def set_gguf_parameters(self):
            super().set_gguf_parameters()
            # some converters write 4 d_model whatever the model has
            if width := self.find_hparam(["ffn_hidden_size", "intermediate_size", "n_inner"], optional=True):
                self.gguf_writer.add_feed_forward_length(width)

    out = FIXTURES / "gguf" / f"{name}.gguf"
    Bare(folder, gguf.LlamaFileType.ALL_F32, out, eager=True, model_name=name, hparams=hparams).write()


for name in sys.argv[2:] or NAMES.split():
    with tempfile.TemporaryDirectory() as folder:
        write(name, pathlib.Path(folder))
