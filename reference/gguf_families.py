"""Models of reference/families.py as llama.cpp's own converter makes them, without their tokenizers (random models have none). Made with the packages of
requirements.txt and a checkout of llama.cpp (2026-11, with `conversion/` and `gguf-py/`):

    python reference/gguf_families.py PATH/TO/llama.cpp

writes crates/limpid/fixtures/gguf/NAME.gguf from crates/limpid/fixtures/hf/NAME, of F32 so that numbers can be compared.
"""

import json
import pathlib
import shutil
import sys
import tempfile

LLAMA_CPP = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf
from conversion import get_model_class
from conversion.base import ModelBase, ModelType, get_model_architecture

FIXTURES = pathlib.Path(__file__).parent.parent / "crates/limpid/fixtures"
# two of a family where two differ in what its keys or its tensors say
NAMES = """bert-mlm bloom bloom-untied cohere distilbert falcon falcon-new gemma gemma2 gemma3 gpt-bigcode gpt2-plain granite llama-gqa
llama-llama3-rope llama-mqa mpt olmo olmo2 phi phi3 phi3-partial pythia pythia-serial qwen2 qwen2-tied qwen3 stablelm stablelm-parallel
starcoder2"""


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
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    class Bare(kind):
        model_arch = kind.model_arch

        def set_vocab(self):
            self._set_vocab_none()
            if "type_vocab_size" in self.hparams:
                self.gguf_writer.add_token_type_count(self.hparams["type_vocab_size"])

    out = FIXTURES / "gguf" / f"{name}.gguf"
    Bare(folder, gguf.LlamaFileType.ALL_F32, out, eager=True, model_name=name, hparams=hparams).write()


for name in sys.argv[2:] or NAMES.split():
    with tempfile.TemporaryDirectory() as folder:
        write(name, pathlib.Path(folder))
