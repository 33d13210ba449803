"""Models of reference/families.py as llama.cpp has them: names by the `gguf` package's own table, metadata by its writer, Gemma's gains plus one as
its converter stores them. Made with the packages of requirements.txt:

    python reference/gguf_families.py

writes crates/limpid/fixtures/gguf/NAME.gguf from crates/limpid/fixtures/hf/NAME.
"""

import json
import pathlib

import gguf
import numpy
from safetensors.numpy import load_file

FIXTURES = pathlib.Path(__file__).parent.parent / "crates/limpid/fixtures"
ARCHITECTURES = {"qwen2": "QWEN2", "qwen3": "QWEN3", "gemma": "GEMMA", "starcoder2": "STARCODER2"}


def write(name):
    folder = FIXTURES / "hf" / name
    config = json.loads((folder / "config.json").read_text())
    arch = getattr(gguf.MODEL_ARCH, ARCHITECTURES[config["model_type"]])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    (FIXTURES / "gguf").mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(FIXTURES / "gguf" / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config["norm_epsilon"])
    for stored, values in load_file(folder / "model.safetensors").items():
        found = names.get_name(stored, try_suffixes=(".weight", ".bias"))
        values = values.astype(numpy.float32)
        if config["model_type"] == "gemma" and stored.endswith("norm.weight"):
            values = values + numpy.float32(1)
        writer.add_tensor(found, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for name in ["qwen2", "qwen2-tied", "qwen3", "gemma", "starcoder2"]:
    write(name)
