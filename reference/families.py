#!/usr/bin/env python3
"""Small random models of every family that limpid opens, saved by transformers, with their truth.

    python reference/families.py make crates/limpid/fixtures/hf               # all cases
    python reference/families.py make /tmp/hf gpt2-plain        # only these
    python reference/families.py train                          # what training does to some of them
    python reference/families.py refuse crates/limpid/fixtures/hf-refused     # configurations limpid must refuse
    python reference/families.py list

`make` writes DIR/CASE/ as `save_pretrained` does (config.json, model.safetensors or shards with
their index, generation_config.json), in some cases rewritten into a shape that older programs or
the hub have, and DIR/CASE/truth.safetensors beside it, all of it float32:

    tokens           (B, T)     token ids, as floats
    segments         (B, T)     BERT only: token_type_ids
    attention_mask   (B, T)     BERT only: 0 is padding, at the end of a row
    logits           (B, T, V)  of the language-model head; absent where the model has none
    hidden           (B, T, C)  the last hidden state: what enters the head (BERT: its transform)
    pooled           (B, C)     BERT with a pooler
    relationship     (B, 2)     BertForPreTraining: the next-sentence scores

Its metadata say what the case tries (`about`), and by how much the same model in float64 differs
(`float64`), which is the noise of float32 to compare a tolerance with. Truth is computed in float32
with eager attention, from the weights as stored (f16 and bf16 ones are rounded first). At padding
positions the numbers mean nothing.

Each case names the configuration keys it is about, with another value for each. `make` puts the
other value in and insists that the logits then move by more than MATTERS, twice what a reader
may differ by: so a reader that ignores the key fails. It also reloads every folder that
transformers itself can read and insists on the same numbers.

`train` writes crates/limpid/fixtures/training/CASE.safetensors: on the same rows, with `targets` of which some are left
out (-100), the `loss`, the `losses` of the rows, `grad/NAME`, and three steps of AdamW with clipping, as make.py has
them. It is computed in float64, from the model as it is stored.

Versions are pinned in requirements.txt; the same versions give the same bytes on the same machine.
Nothing is downloaded.
"""

import argparse
import copy
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

os.environ["HF_HUB_OFFLINE"] = "1"
# As in make.py: PyTorch's plainest kernels, so that another machine gives the same bytes.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
os.environ.setdefault("ATEN_CPU_CAPABILITY", "default")

import safetensors.torch
import torch
import transformers
from make import IGNORE, Random, mean_loss, save, sort_metadata, token_losses
from make import train as optimise
from torch.overrides import TorchFunctionMode

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = 1e-4  # what a reader of these folders may differ by, in logits of order 1
MATTERS = 2e-4  # what ignoring a key must move the logits by (the two gelus are 5e-4 apart)
LARGEST = 40_000  # bytes in one case's folder


@dataclass
class Case:
    """One folder."""

    name: str
    about: str
    model: str  # the class in transformers
    config: dict
    shape: tuple = (2, 9)  # of tokens
    matters: dict = field(default_factory=dict)  # key: another value, which must move the logits
    dtype: torch.dtype = torch.float32
    shard: Optional[str] = None  # max_shard_size
    tensors: Optional[Callable] = None  # rewrites the stored tensors
    keys: Optional[Callable] = None  # rewrites config.json
    extra: Optional[Callable] = None  # writes further files, and says what they hold
    reload: bool = True  # whether transformers reads the rewritten folder
    std: float = 1.0  # of attention's matrices, times 1 / sqrt(inputs)


# ---------------------------------------------------------------------------------------------
# GPT-2
# ---------------------------------------------------------------------------------------------


def gpt2_cases():
    def config(**keys):
        base = dict(n_layer=2, n_head=2, n_embd=12, n_positions=14, vocab_size=31)
        no_specials = dict(bos_token_id=None, eos_token_id=None)
        no_dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        return base | no_specials | no_dropout | keys

    yield Case(
        "gpt2-plain",
        "as save_pretrained writes it: the prefix `transformer.`, no lm_head (tied)",
        "GPT2LMHeadModel",
        config(n_head=3),
        matters={"activation_function": "gelu", "n_head": 2},
    )
    yield Case(
        "gpt2-hub",
        "as the hub's gpt2: no prefix, attn.bias masks (one F32, one BOOL), attn.masked_bias "
        "scalars, n_ctx and the keys of 2019 in config.json",
        "GPT2LMHeadModel",
        config(layer_norm_epsilon=1e-3, n_embd=10),
        matters={"layer_norm_epsilon": 1e-5},
        tensors=gpt2_hub_tensors,
        keys=gpt2_hub_keys,
    )
    yield Case(
        "gpt2-compiled",
        "as nanoGPT's state under torch.compile: `_orig_mod.` before every name, the tied lm_head "
        "stored too, 64 rows in the token table where config.json says 50 (crop them)",
        "GPT2LMHeadModel",
        config(vocab_size=50, n_embd=8),
        tensors=gpt2_compiled_tensors,
        reload=False,
    )
    yield Case(
        "gpt2-untied",
        "a head of its own, n_inner 29, relu",
        "GPT2LMHeadModel",
        config(tie_word_embeddings=False, n_inner=29, activation_function="relu"),
        matters={"tie_word_embeddings": True, "activation_function": "gelu_new"},
    )
    yield Case(
        "gpt2-unscaled",
        "scale_attn_weights false: scores are not divided by the root of the head size",
        "GPT2LMHeadModel",
        config(scale_attn_weights=False, n_head=1, n_layer=1, n_embd=10),
        matters={"scale_attn_weights": True},
        std=0.7,
    )
    yield Case(
        "gpt2-inverse-layer",
        "scale_attn_by_inverse_layer_idx: scores of layer i are divided by i + 1 too; "
        "reorder_and_upcast_attn, which changes nothing in float32; activation gelu (erf)",
        "GPT2LMHeadModel",
        config(
            scale_attn_by_inverse_layer_idx=True,
            reorder_and_upcast_attn=True,
            activation_function="gelu",
            n_layer=3,
            n_embd=8,
        ),
        matters={"scale_attn_by_inverse_layer_idx": False, "activation_function": "gelu_new"},
        std=2.0,
    )
    yield Case(
        "gpt2-f16",
        "stored in F16; activation silu; four heads of odd size 3",
        "GPT2LMHeadModel",
        config(n_head=4, activation_function="silu", n_positions=11),
        shape=(2, 11),
        matters={"activation_function": "gelu_new"},
        dtype=torch.float16,
    )
    yield Case(
        "gpt2-bf16-sharded",
        "stored in BF16 in several files with an index; activation quick_gelu; epsilon 1e-2",
        "GPT2LMHeadModel",
        config(n_embd=16, n_head=4, activation_function="quick_gelu", layer_norm_epsilon=1e-2),
        matters={"activation_function": "gelu", "layer_norm_epsilon": 1e-5},
        dtype=torch.bfloat16,
        shard="6KB",
    )
    yield Case(
        "gpt2-text",
        "a byte-level tokenizer beside it, as tokenizer.json and as vocab.json with merges.txt",
        "GPT2LMHeadModel",
        config(vocab_size=280, n_embd=8, n_layer=1, bos_token_id=0, eos_token_id=0),
        shape=(1, 6),
        extra=byte_level_files,
    )


def gpt2_hub_tensors(tensors, config):
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    mask = torch.tril(torch.ones(1, 1, config.n_positions, config.n_positions))
    for i in range(config.n_layer):
        tensors[f"h.{i}.attn.bias"] = mask.clone() if i == 0 else mask.bool()
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    return tensors


def gpt2_hub_keys(keys):
    kept = "n_layer n_head n_embd n_positions vocab_size layer_norm_epsilon initializer_range"
    kept = {key: keys[key] for key in kept.split()}
    return kept | {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 30,
        "embd_pdrop": 0.1,
        "eos_token_id": 30,
        "model_type": "gpt2",
        "n_ctx": keys["n_positions"],
        "resid_pdrop": 0.1,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    }


def gpt2_compiled_tensors(tensors, config):
    table = tensors["transformer.wte.weight"]
    padding = Random(64).normal(64 - len(table), table.shape[1]).float()
    tensors["transformer.wte.weight"] = torch.cat([table, padding])
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    return {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}


# ---------------------------------------------------------------------------------------------
# GPT-1
# ---------------------------------------------------------------------------------------------


def openai_cases():
    def config(**keys):
        base = dict(n_layer=2, n_head=2, n_embd=12, n_positions=13, vocab_size=29)
        return base | dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0) | keys

    yield Case(
        "openai-gpt-plain",
        "as save_pretrained writes it; afn gelu, which is the tanh form here; with the tokenizer "
        "of GPT-1's kind (vocab.json and merges.txt with </w>)",
        "OpenAIGPTLMHeadModel",
        config(vocab_size=52, n_embd=10),
        matters={"afn": "relu"},
        extra=openai_files,
    )
    yield Case(
        "openai-gpt-hub",
        "as the hub's: no prefix, attn.bias masks; afn silu, epsilon 1e-2",
        "OpenAIGPTLMHeadModel",
        config(afn="silu", n_head=3, n_embd=9, layer_norm_epsilon=1e-2),
        matters={"afn": "gelu", "layer_norm_epsilon": 1e-5},
        tensors=openai_hub_tensors,
    )


def openai_hub_tensors(tensors, config):
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for i in range(config.n_layer):
        ones = torch.ones(1, 1, config.n_positions, config.n_positions)
        tensors[f"h.{i}.attn.bias"] = torch.tril(ones)
    return tensors


# ---------------------------------------------------------------------------------------------
# BERT
# ---------------------------------------------------------------------------------------------


def bert_cases():
    def config(**keys):
        base = dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=12)
        base |= dict(intermediate_size=22, max_position_embeddings=13, vocab_size=37)
        return base | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0) | keys

    yield Case(
        "bert-mlm",
        "BertForMaskedLM: the prefix `bert.`, no pooler, the masked-word head; with vocab.txt",
        "BertForMaskedLM",
        config(num_attention_heads=3),
        shape=(3, 10),
        matters={"hidden_act": "gelu_new"},
        extra=bert_files,
    )
    yield Case(
        "bert-encoder",
        "BertModel alone: no prefix, a pooler, no head; relu; epsilon 1e-2",
        "BertModel",
        config(hidden_act="relu", layer_norm_eps=1e-2, num_hidden_layers=1, hidden_size=14),
        shape=(3, 8),
        matters={"hidden_act": "gelu", "layer_norm_eps": 1e-12},
    )
    yield Case(
        "bert-old",
        "BertForPreTraining as files of 2018 have it: gamma and beta, position_ids (I64), the tied "
        "decoder stored; pooler and seq_relationship; three segments; gelu_new",
        "BertForPreTraining",
        config(hidden_act="gelu_new", type_vocab_size=3, hidden_size=8, intermediate_size=19),
        shape=(3, 12),
        matters={"hidden_act": "relu"},
        tensors=bert_old_tensors,
    )


def bert_old_tensors(tensors, config):
    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )

    tensors = {old(name): tensor for name, tensor in tensors.items()}
    tensors["bert.embeddings.position_ids"] = torch.arange(config.max_position_embeddings)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    return tensors


# ---------------------------------------------------------------------------------------------
# Llama
# ---------------------------------------------------------------------------------------------


def llama_cases():
    def config(**keys):
        base = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=16)
        base |= dict(intermediate_size=22, max_position_embeddings=32, vocab_size=33)
        return base | dict(bos_token_id=None, eos_token_id=None) | keys

    yield Case(
        "llama-gqa",
        "four heads on two keys and values; a head of its own; no biases",
        "LlamaForCausalLM",
        config(num_key_value_heads=2, rms_norm_eps=1e-3, intermediate_size=18),
        matters={"rms_norm_eps": 1e-6, "hidden_act": "gelu", "rope_theta": 1e2},
    )
    yield Case(
        "llama-mqa",
        "all heads on one key and value; tied; rope_theta 500000; attention_bias and mlp_bias",
        "LlamaForCausalLM",
        config(
            num_key_value_heads=1,
            intermediate_size=14,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
            attention_bias=True,
            mlp_bias=True,
        ),
        shape=(2, 12),
        matters={"attention_bias": False, "mlp_bias": False, "rope_theta": 1e4},
    )
    llama3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0)
    llama3 |= dict(original_max_position_embeddings=24, rope_theta=100.0)
    yield Case(
        "llama-llama3-rope",
        "as many keys as heads; rope_scaling of type llama3 with frequencies in each of its three "
        "ranges, spelt as before transformers 5 (rope_theta and rope_scaling)",
        "LlamaForCausalLM",
        config(num_attention_heads=2, intermediate_size=13, rope_parameters=llama3),
        shape=(2, 12),
        matters={"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        keys=old_rope_keys,
    )
    yield Case(
        "llama-head-dim",
        "head_dim 6 where hidden_size / heads is 4; gelu_pytorch_tanh in the gate",
        "LlamaForCausalLM",
        config(
            num_key_value_heads=2,
            head_dim=6,
            hidden_act="gelu_pytorch_tanh",
            num_hidden_layers=1,
        ),
        matters={"hidden_act": "silu"},
    )
    linear = dict(rope_type="linear", factor=2.5, rope_theta=50.0)
    yield Case(
        "llama-linear-rope",
        "rope_scaling {type: linear}, as files of 2023 spell it, with rotary_emb.inv_freq; "
        "stored in BF16",
        "LlamaForCausalLM",
        config(rope_parameters=linear, num_key_value_heads=4, num_hidden_layers=1),
        matters={"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        dtype=torch.bfloat16,
        tensors=llama_old_tensors,
        keys=old_rope_keys,
    )


def old_rope_keys(keys):
    """`rope_theta` and `rope_scaling`, which transformers 5 writes as one `rope_parameters`."""
    rope = keys.pop("rope_parameters")
    keys["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] == "linear":
        rope["type"] = rope.pop("rope_type")
        del keys["head_dim"]
        keys["pretraining_tp"] = 1
    keys["rope_scaling"] = rope
    keys["torch_dtype"] = keys.pop("dtype")
    return keys


def llama_old_tensors(tensors, config):
    inverse = 50.0 ** -(torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    for i in range(config.num_hidden_layers):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = inverse
    return tensors


# ---------------------------------------------------------------------------------------------
# The other families, two models of each
# ---------------------------------------------------------------------------------------------

NO_SPECIALS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA_SIZES = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=16, vocab_size=33)
LLAMA_SIZES |= dict(intermediate_size=18, max_position_embeddings=32) | NO_SPECIALS
GPT_SIZES = dict(n_layer=2, n_head=3, n_embd=12, n_positions=14, vocab_size=31) | NO_SPECIALS
BERT_SIZES = dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=12, intermediate_size=22)
BERT_SIZES |= dict(max_position_embeddings=17, vocab_size=37)


def rope(theta=1e4, **more):
    return dict(rope_type="default", rope_theta=theta) | more


# eight positions became 32; the ramp is from pair 0.7 to pair 2.5 of four
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, rope_theta=100.0)
YARN |= dict(beta_fast=0.6, beta_slow=0.07)
LONG = dict(rope_type="longrope", rope_theta=100.0)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0)
LLAMA3 |= dict(original_max_position_embeddings=24, rope_theta=100.0)


def llama_like():
    """Families of Llama's kind: (name, what it is about, class, keys, what matters)."""
    theta = {"rope_theta": 1e2}
    yield ("qwen2", "biases of queries, keys and values", "Qwen2ForCausalLM",
           dict(num_key_value_heads=2, rms_norm_eps=1e-3), theta | {"rms_norm_eps": 1e-6})
    yield ("qwen2-tied", "tied, one key head, rope_theta 1e6; use_sliding_window false", "Qwen2ForCausalLM",
           dict(num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=rope(1e6), sliding_window=4),
           {"rope_theta": 1e2})
    yield ("seed-oss", "head_dim 6; no bias of the output", "SeedOssForCausalLM",
           dict(num_key_value_heads=2, head_dim=6), theta)
    yield ("seed-oss-out", "a bias of the output too, and of the feed-forward network", "SeedOssForCausalLM",
           dict(num_key_value_heads=4, head_dim=4, attention_out_bias=True, mlp_bias=True),
           {"attention_out_bias": False, "mlp_bias": False})
    yield ("phi3", "queries, keys and values in one matrix, gate and input in another", "Phi3ForCausalLM",
           dict(num_key_value_heads=2), theta)
    yield ("phi3-partial", "half of each head turned, as many key heads, tied; a window as wide as the context",
           "Phi3ForCausalLM",
           dict(num_key_value_heads=4, tie_word_embeddings=True, hidden_size=32, num_hidden_layers=1,
                intermediate_size=14, rope_parameters=rope(500.0, partial_rotary_factor=0.5), sliding_window=32),
           {"rope_theta": 1e4})
    yield ("olmo", "norms without gain and offset", "OlmoForCausalLM", dict(num_key_value_heads=2), theta)
    yield ("olmo-biased", "biases of attention, tied, linear scaling of the angles", "OlmoForCausalLM",
           dict(attention_bias=True, tie_word_embeddings=True,
                rope_parameters=rope(100.0, rope_type="linear", factor=2.0)), {"attention_bias": False})
    yield ("helium", "rotary pairs are neighbours", "HeliumForCausalLM",
           dict(num_key_value_heads=2, head_dim=4), {"rope_theta": 1e2})
    yield ("helium-biased", "biases, but not of attention's output; as many key heads", "HeliumForCausalLM",
           dict(num_key_value_heads=4, head_dim=4, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-2),
           {"attention_bias": False, "rms_norm_eps": 1e-6})
    yield ("ernie4-5", "rotary pairs are neighbours, head_dim 6", "Ernie4_5ForCausalLM",
           dict(num_key_value_heads=2, head_dim=6), {"rope_theta": 1e2})
    yield ("ernie4-5-biased", "biases everywhere, a head of its own", "Ernie4_5ForCausalLM",
           dict(num_key_value_heads=1, head_dim=8, use_bias=True, tie_word_embeddings=False), {"use_bias": False})
    yield ("starcoder2", "layer norms, rotary, not gated", "Starcoder2ForCausalLM",
           dict(num_key_value_heads=2), theta | {"hidden_act": "gelu"})
    yield ("starcoder2-plain", "no biases, a head of its own, relu", "Starcoder2ForCausalLM",
           dict(num_key_value_heads=4, use_bias=False, tie_word_embeddings=False, hidden_act="relu",
                norm_epsilon=1e-2), {"norm_epsilon": 1e-5, "hidden_act": "gelu"})
    # norms and scales
    yield ("qwen3", "a norm of the queries and keys of each head; head_dim 6", "Qwen3ForCausalLM",
           dict(num_key_value_heads=2, head_dim=6), theta)
    yield ("qwen3-biased", "biases of attention, tied, Llama 3's angles", "Qwen3ForCausalLM",
           dict(num_key_value_heads=4, head_dim=4, attention_bias=True, tie_word_embeddings=True,
                rms_norm_eps=1e-2, rope_parameters=LLAMA3),
           {"attention_bias": False, "rms_norm_eps": 1e-6, "rope_parameters": rope(100.0)})
    yield ("nanochat", "norms without gains, of the embedding and of each head's queries and keys too; squared relu; "
        "logits "
           "bounded; turned the other way", "NanoChatForCausalLM", dict(num_key_value_heads=2,
               final_logit_softcapping=1.5),
           theta | {"hidden_act": "relu", "final_logit_softcapping": 15.0})
    yield ("nanochat-biased", "biases of attention, tied, no bound, silu", "NanoChatForCausalLM",
           dict(num_key_value_heads=1, attention_bias=True, tie_word_embeddings=True, final_logit_softcapping=None,
                hidden_act="silu", rms_norm_eps=1e-2), {"attention_bias": False, "rms_norm_eps": 1e-6})
    yield ("gemma", "gains stored less one, the embedding scaled", "GemmaForCausalLM",
           dict(num_key_value_heads=1, head_dim=6), theta | {"hidden_act": "relu"})
    yield ("gemma-untied", "a head of its own, biases of attention", "GemmaForCausalLM",
           dict(num_key_value_heads=2, head_dim=4, tie_word_embeddings=False, attention_bias=True,
                hidden_act="silu"), {"attention_bias": False})
    yield ("olmo2", "norms on what each part adds, and of all queries and keys", "Olmo2ForCausalLM",
           dict(num_key_value_heads=2), theta)
    yield ("olmo2-biased", "biases of attention, tied, epsilon 1e-2", "Olmo2ForCausalLM",
           dict(attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-2),
           {"attention_bias": False, "rms_norm_eps": 1e-5})
    yield ("pythia", "both parts of a block side by side, a quarter of each head turned", "GPTNeoXForCausalLM",
           dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=14),
           theta | {"use_parallel_residual": False, "hidden_act": "relu"})
    yield ("pythia-serial", "one part after the other, half of each head turned, no biases of attention",
           "GPTNeoXForCausalLM",
           dict(use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True,
                rope_parameters=rope(500.0, partial_rotary_factor=0.5)), {"use_parallel_residual": True})
    yield ("phi", "both parts side by side after one norm, half of each head turned, a bias of the head",
           "PhiForCausalLM", dict(num_attention_heads=2), theta | {"hidden_act": "gelu"})
    yield ("phi-gqa", "two key heads, all of each head turned", "PhiForCausalLM",
           dict(num_key_value_heads=2, hidden_act="relu", rope_parameters=rope(500.0, partial_rotary_factor=1.0)),
           {"hidden_act": "gelu_new"})
    yield ("stablelm", "a quarter of each head turned, layer norms, gated", "StableLmForCausalLM",
           dict(num_key_value_heads=1, hidden_size=32, num_attention_heads=2, num_hidden_layers=1,
           intermediate_size=14),
           theta)
    yield ("stablelm-parallel", "both parts side by side, biases of queries, keys and values, half turned",
           "StableLmForCausalLM",
           dict(num_key_value_heads=4, use_parallel_residual=True, use_qkv_bias=True,
                rope_parameters=rope(500.0, partial_rotary_factor=0.5)),
           {"use_parallel_residual": False, "use_qkv_bias": False})
    yield ("smollm3", "every fourth block without positions", "SmolLM3ForCausalLM",
           dict(num_key_value_heads=2, num_hidden_layers=4, hidden_size=12, num_attention_heads=2,
                intermediate_size=14), {"no_rope_layers": [1, 1, 1, 1]})
    yield ("smollm3-pattern", "the first block without positions, biases, a head of its own", "SmolLM3ForCausalLM",
           dict(num_key_value_heads=1, no_rope_layers=[0, 1], attention_bias=True, mlp_bias=True,
                tie_word_embeddings=False), {"no_rope_layers": [1, 1], "mlp_bias": False})
    yield ("cohere", "layer norms without offset, both parts side by side, logits scaled", "CohereForCausalLM",
           dict(num_key_value_heads=2, logit_scale=0.6), {"logit_scale": 0.5, "rope_theta": 1e2})
    yield ("cohere-biased", "biases of attention, a head of its own", "CohereForCausalLM",
           dict(num_key_value_heads=4, logit_scale=1.5, attention_bias=True, tie_word_embeddings=False),
           {"attention_bias": False})
    yield ("glm4", "norms before and after, half of each head turned, neighbours", "Glm4ForCausalLM",
           dict(num_key_value_heads=2, head_dim=8, intermediate_size=12), theta)
    yield ("glm4-plain", "no biases, tied, as many key heads", "Glm4ForCausalLM",
           dict(num_key_value_heads=4, head_dim=4, attention_bias=False, tie_word_embeddings=True,
                rms_norm_eps=1e-2), {"rms_norm_eps": 1e-6})
    yield ("granite", "factors of embedding, residual sums, scores and logits", "GraniteForCausalLM",
           dict(num_key_value_heads=2, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.7,
                logits_scaling=1.5),
           {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 0.5,
           "logits_scaling": 1.0})
    yield ("granite-biased", "biases, tied", "GraniteForCausalLM",
           dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                embedding_multiplier=12.0, attention_multiplier=0.25, residual_multiplier=0.22, logits_scaling=0.9),
           {"attention_bias": False, "mlp_bias": False})
    # windows
    yield ("mistral", "a window of 4, all blocks", "MistralForCausalLM",
           dict(num_key_value_heads=2, sliding_window=4), {"sliding_window": 5})
    yield ("mistral-wide", "head_dim 6, no window, tied", "MistralForCausalLM",
           dict(num_key_value_heads=1, sliding_window=None, head_dim=6, tie_word_embeddings=True),
           {"sliding_window": 3})
    yield ("gemma2", "norms before and after, every second block with a window, soft caps", "Gemma2ForCausalLM",
           dict(num_key_value_heads=2, head_dim=6, intermediate_size=14, sliding_window=4, query_pre_attn_scalar=9,
                attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
           {"sliding_window": 6, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0})
    yield ("gemma2-uncapped", "no soft caps, three blocks", "Gemma2ForCausalLM",
           dict(num_key_value_heads=1, head_dim=4, num_hidden_layers=3, hidden_size=12, num_attention_heads=3,
                intermediate_size=12, sliding_window=3, attn_logit_softcapping=None, final_logit_softcapping=None),
           {"sliding_window": 6, "final_logit_softcapping": 3.0})
    both = {"full_attention": rope(1e3), "sliding_attention": rope(20.0)}
    yield ("gemma3", "queries and keys normalised, angles of their own in blocks with a window", "Gemma3ForCausalLM",
           dict(num_key_value_heads=2, head_dim=6, intermediate_size=14, sliding_window=4, query_pre_attn_scalar=9,
                layer_types=["sliding_attention", "full_attention"], rope_parameters=both),
           {"sliding_window": 6, "query_pre_attn_scalar": 6})
    scaled = both | {"full_attention": rope(1e2, rope_type="linear", factor=3.0)}
    yield ("gemma3-scaled", "linear scaling of the angles of blocks without a window", "Gemma3ForCausalLM",
           dict(num_key_value_heads=1, head_dim=4, num_hidden_layers=2, intermediate_size=12, sliding_window=3,
                layer_types=["full_attention", "sliding_attention"], rope_parameters=scaled),
           {"rope_parameters": both})
    yield ("qwen2-window", "use_sliding_window: a window in blocks from max_window_layers on", "Qwen2ForCausalLM",
           dict(num_key_value_heads=2, use_sliding_window=True, sliding_window=3, max_window_layers=1),
           {"sliding_window": 5, "max_window_layers": 0})
    yield ("cohere2", "blocks with a window have positions, the others none", "Cohere2ForCausalLM",
           dict(num_key_value_heads=2, logit_scale=0.7, sliding_window=4,
                layer_types=["sliding_attention", "full_attention"]), {"sliding_window": 6, "logit_scale": 0.6})
    yield ("cohere2-pattern", "three blocks with a window and one without", "Cohere2ForCausalLM",
           dict(num_key_value_heads=1, num_hidden_layers=4, hidden_size=12, num_attention_heads=2,
                intermediate_size=14, logit_scale=1.0, sliding_window=5), {"sliding_window": 3})


def scaled_cases():
    """Angles for longer contexts than a model was trained on."""
    wide = LLAMA_SIZES | dict(hidden_size=18, num_attention_heads=2, head_dim=8, num_key_value_heads=1)
    plain = {"rope_parameters": rope(100.0)}
    yield Case("qwen3-yarn", "yarn with a ramp that ends between pairs, an attention_factor of its own",
        "Qwen3ForCausalLM",
               wide | dict(rope_parameters=YARN | dict(truncate=False, attention_factor=1.3)),
               matters=plain | {"rope_parameters": YARN | dict(attention_factor=1.3)})
    yield Case("llama-yarn", "yarn as its paper has it, spelt as before transformers 5, beside a rope_parameters that "
        "it replaces",
               "LlamaForCausalLM", wide | dict(rope_parameters=YARN), matters=plain,
               keys=lambda keys: old_rope_keys(keys) | {"rope_parameters": rope(77.0)})
    yield Case("llama-yarn-mscale", "yarn with mscale and mscale_all_dim, the usual betas, no original length, biases",
               "LlamaForCausalLM",
               wide | dict(attention_bias=True, rope_parameters=dict(rope_type="yarn", rope_theta=3.0, factor=2.5,
                                                                      mscale=0.7, mscale_all_dim=1.6)), matters=plain)
    yield Case("stablelm-yarn", "yarn of half of each head", "StableLmForCausalLM",
               LLAMA_SIZES | dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, num_key_value_heads=2,
                                  intermediate_size=14, rope_parameters=YARN | dict(partial_rotary_factor=0.5)),
               matters={"rope_parameters": rope(100.0, partial_rotary_factor=0.5)})
    yield Case("gemma3-yarn", "yarn in the blocks without a window: a rope_scaling that adds to rope_parameters",
               "Gemma3ForCausalLM",
               LLAMA_SIZES | dict(num_key_value_heads=1, head_dim=6, intermediate_size=12, sliding_window=3,
                                  layer_types=["full_attention", "sliding_attention"],
                                  rope_parameters={"full_attention": YARN, "sliding_attention": rope(20.0)}),
               keys=gemma_rope_keys,
               matters={"rope_parameters": {"full_attention": rope(100.0), "sliding_attention": rope(20.0)}})
    yield Case("llama-dynamic", "dynamic: within the context as without, spelt as before transformers 5",
        "LlamaForCausalLM",
               wide | dict(rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, factor=3.0)), shape=(2, 32),
               keys=old_rope_keys, matters={"rope_theta": 1e4})
    # angles of texts of up to 12 tokens by the first list, of longer ones by the second
    lists = dict(short_factor=[1.0, 1.1, 1.4, 2.3], long_factor=[1.2, 1.9, 3.5, 8.25])
    phi3 = wide | dict(original_max_position_embeddings=12, max_position_embeddings=48)
    yield Case("phi3-longrope", "longrope, as Phi-3-mini-128k, of all of each head", "Phi3ForCausalLM",
               phi3 | dict(rope_parameters=LONG | lists), shape=(2, 12),
               matters={"rope_parameters": LONG | lists | dict(short_factor=lists["long_factor"])})
    lists = {name: factors[:3] for name, factors in lists.items()}
    yield Case("phi3-longrope-partial",
        "longrope of three quarters of each head, as Phi-4-mini, spelt as before transformers "
               "5; tokens beyond the original length, which limpid reads only where it is told so", "Phi3ForCausalLM",
               phi3 | dict(rope_parameters=LONG | lists | dict(partial_rotary_factor=0.75)), shape=(2, 21),
               keys=su_rope_keys,
               matters={"rope_parameters": LONG | lists | dict(partial_rotary_factor=0.75,
               long_factor=lists["short_factor"])})
    yield Case("llama-longrope", "longrope of a model that is no Phi, whose lengths are equal", "LlamaForCausalLM",
               wide | dict(rope_parameters=LONG | dict(short_factor=[1.0, 1.1, 1.4, 2.3], long_factor=[1.2, 1.9, 3.5,
               8.25],
                                                       attention_factor=1.15)), matters=plain)


def su_rope_keys(keys):
    """`su` in `rope_scaling`, as Phi-3's first files have it."""
    keys = old_rope_keys(keys)
    keys["rope_scaling"]["type"] = "su"
    del keys["rope_scaling"]["rope_type"]
    keys["partial_rotary_factor"] = keys["rope_scaling"].pop("partial_rotary_factor")
    return keys


def gemma_rope_keys(keys):
    """What scales the angles of blocks without a window, in a `rope_scaling` of its own."""
    full = keys["rope_parameters"]["full_attention"]
    keys["rope_parameters"]["full_attention"] = rope(full.pop("rope_theta"))
    return keys | {"rope_scaling": full}


def other_cases():
    for name, about, model, keys, matters in llama_like():
        yield Case(name, about, model, LLAMA_SIZES | keys, matters=matters)
    opt = dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=12, ffn_dim=22, max_position_embeddings=15)
    opt |= dict(vocab_size=31, word_embed_proj_dim=12, dropout=0.0) | NO_SPECIALS
    yield Case("opt", "positions counted from 2, relu", "OPTForCausalLM", opt, matters={"activation_function": "gelu"})
    yield Case("opt-plain", "no biases, no gains and offsets of norms, a head of its own, gelu", "OPTForCausalLM",
               opt | dict(enable_bias=False, layer_norm_elementwise_affine=False, tie_word_embeddings=False,
                          activation_function="gelu", num_attention_heads=3),
               matters={"activation_function": "relu"})
    none = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    yield Case("gpt-bigcode", "one key head for all", "GPTBigCodeForCausalLM", GPT_SIZES | none,
               matters={"activation_function": "gelu"})
    yield Case("gpt-bigcode-multi", "a key head for each, n_inner 29, a head of its own", "GPTBigCodeForCausalLM",
               GPT_SIZES | none | dict(multi_query=False, n_inner=29, tie_word_embeddings=False,
                                       scale_attn_weights=False, n_embd=9, layer_norm_epsilon=1e-2),
               matters={"scale_attn_weights": True, "layer_norm_epsilon": 1e-5}, std=0.7)
    off = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    for name, kind, headless in [("roberta", "Roberta", "RobertaModel"), ("xlm-roberta", "XLMRoberta",
        "XLMRobertaModel"),
                                 ("camembert", "Camembert", "CamembertModel")]:
        special = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
        yield Case(name, "positions counted from 2, one segment, a head of its own kind", f"{kind}ForMaskedLM",
                   BERT_SIZES | off | special | dict(type_vocab_size=1, layer_norm_eps=1e-5), shape=(3, 10),
                   matters={"layer_norm_eps": 1e-2})
        yield Case(f"{name}-encoder", "no head, a pooler, relu, two segments", headless,
                   BERT_SIZES | off | special | dict(hidden_act="relu", num_hidden_layers=1, hidden_size=14), shape=(3,
                   8),
                   matters={"hidden_act": "gelu"})
    distil = dict(n_layers=2, n_heads=2, dim=12, hidden_dim=22, max_position_embeddings=13, vocab_size=37)
    distil |= dict(dropout=0.0, attention_dropout=0.0)
    yield Case("distilbert", "BERT without segments", "DistilBertForMaskedLM", distil, shape=(3, 10),
               matters={"activation": "relu"})
    yield Case("distilbert-encoder", "no head, relu, sinusoidal_pos_embds", "DistilBertModel",
               distil | dict(activation="relu", n_heads=3, sinusoidal_pos_embds=True), shape=(3, 8),
               matters={"activation": "gelu"})
    electra = BERT_SIZES | off | dict(embedding_size=12)
    yield Case("electra-generator", "the head of the generator", "ElectraForMaskedLM", electra, shape=(3, 10),
               matters={"layer_norm_eps": 1e-2})
    yield Case("electra-discriminator", "the discriminator: its hidden states", "ElectraForPreTraining",
               electra | dict(hidden_act="relu", num_attention_heads=3), shape=(3, 8),
               matters={"hidden_act": "gelu"})
    narrow = BERT_SIZES | off | dict(embedding_size=7)
    yield Case("electra-narrow", "an embedding of its own width, the head of the generator", "ElectraForMaskedLM",
        narrow,
               shape=(3, 10), matters={"layer_norm_eps": 1e-2})
    yield Case("electra-narrow-discriminator", "an embedding of its own width, the discriminator: its hidden states",
               "ElectraForPreTraining", narrow | dict(embedding_size=17, hidden_act="relu", num_attention_heads=3),
               shape=(3, 8), matters={"hidden_act": "gelu"})
    yield Case("albert", "three blocks that are one, an embedding of its own width; with its tokenizer (Unigram, "
        "Precompiled)",
               "AlbertForMaskedLM", narrow | dict(num_hidden_layers=3, intermediate_size=23), shape=(3, 10),
               matters={"hidden_act": "gelu", "num_hidden_layers": 2}, extra=albert_files)
    yield Case("albert-encoder", "no head, a pooler, an embedding as wide as the stream, with its product nevertheless",
               "AlbertModel", narrow | dict(hidden_act="relu", hidden_size=14, embedding_size=14), shape=(3, 8),
               matters={"hidden_act": "gelu"})
    yield Case("albert-pretraining",
        "an embedding wider than the stream; pooler and the head of sentence order, one segment",
               "AlbertForPreTraining",
               narrow | dict(embedding_size=17, hidden_size=10, type_vocab_size=1, layer_norm_eps=1e-2,
               num_hidden_layers=4),
               shape=(3, 9), matters={"layer_norm_eps": 1e-12, "num_hidden_layers": 3})
    neo = dict(num_layers=2, num_heads=2, hidden_size=12, max_position_embeddings=14, vocab_size=31) | NO_SPECIALS
    yield Case("gpt-neo", "scores are not scaled, the second block has a window of 4", "GPTNeoForCausalLM",
               neo | dict(window_size=4, attention_types=[[["global", "local"], 1]]), matters={"window_size": 5},
               std=0.7)
    yield Case("gpt-neo-local", "a window in the first two of three blocks, intermediate_size 19", "GPTNeoForCausalLM",
               neo | dict(num_layers=3, window_size=3, attention_types=[[["local"], 2], [["global"], 1]],
                          intermediate_size=19, hidden_size=10), matters={"window_size": 5}, std=0.7)
    gptj = GPT_SIZES | dict(n_embd=16, n_head=2)
    yield Case("gptj", "rotary pairs are neighbours, half of each head turned, a bias of the head", "GPTJForCausalLM",
               gptj | dict(rotary_dim=4), matters={"rotary_dim": 6})
    yield Case("gptj-whole", "all of each head turned, n_inner 29", "GPTJForCausalLM",
               gptj | dict(rotary_dim=8, n_inner=29, activation_function="relu"), matters={"rotary_dim": 4})
    falcon = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=16, vocab_size=33, ffn_hidden_size=22)
    falcon |= dict(max_position_embeddings=32) | NO_SPECIALS
    yield Case("falcon", "one key head for all, one norm for both parts", "FalconForCausalLM", falcon,
               matters={"activation": "relu", "rope_theta": 1e2})
    yield Case("falcon-new", "two key heads, a norm for each part", "FalconForCausalLM",
               falcon | dict(new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False))
    yield Case("falcon-serial", "a key head for each, one part after the other, biases", "FalconForCausalLM",
               falcon | dict(multi_query=False, parallel_attn=False, bias=True), matters={"bias": False})
    bloom = dict(n_layer=2, n_head=3, hidden_size=12, vocab_size=31) | NO_SPECIALS
    yield Case("bloom", "alibi with three heads, a norm after the embedding", "BloomForCausalLM", bloom,
               matters={"layer_norm_epsilon": 1e-2})
    yield Case("bloom-untied", "four heads, a head of its own", "BloomForCausalLM",
               bloom | dict(n_head=4, tie_word_embeddings=False, layer_norm_epsilon=1e-2),
               matters={"layer_norm_epsilon": 1e-5})
    mpt = dict(n_layers=2, n_heads=3, d_model=12, vocab_size=31, max_seq_len=16) | NO_SPECIALS
    yield Case("mpt", "alibi with three heads, no offsets", "MptForCausalLM", mpt, matters={"layer_norm_epsilon": 1e-2})
    yield Case("mpt-scaled", "a scale of the scores of its own, a head of its own", "MptForCausalLM",
               mpt | dict(n_heads=2, tie_word_embeddings=False, attn_config=dict(softmax_scale=0.8)),
               matters={"attn_config": {}})


# ---------------------------------------------------------------------------------------------
# Tokenizers beside the models
# ---------------------------------------------------------------------------------------------

TEXT = (
    "the cat sat on the mat and the dog sat on the log; the hen ran to the barn. "
    "Then the rain began: the cat, the dog and the hen hid in the hay."
)
SAMPLES = [
    "the cat sat on the hay",
    "Then the rain began: 12 dogs, wet!",
    "naïve café  \n\tx",
    "unseen words",
]


def train_byte_level(size):
    """A byte-level tokenizer of GPT-2's kind with `<|endoftext|>` as id 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    assert tokenizer.get_vocab_size() == size, tokenizer.get_vocab_size()
    return tokenizer


def write_byte_level(folder, size):
    tokenizer = train_byte_level(size)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    tokenizer.model.save(str(folder))  # vocab.json and merges.txt
    write_json(folder / "vocab.json", json.loads((folder / "vocab.json").read_text()))
    keys = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 14}
    keys |= {k: "<|endoftext|>" for k in ("bos_token", "eos_token", "unk_token")}
    write_json(folder / "tokenizer_config.json", keys)
    return tokenizer


def byte_level_files(folder):
    return samples(write_byte_level(folder, 280).encode)


def bert_files(folder):
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on mat and dog log ; hen ran to barn . "
    words += "then rain began : , hid in hay ##s ##n b c un ##seen nai ##ve words !"
    assert len(words.split()) == 37
    (folder / "vocab.txt").write_text("\n".join(words.split()) + "\n")
    keys = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    write_json(folder / "tokenizer_config.json", keys)
    vocab = {word: i for i, word in enumerate(words.split())}
    tokenizer = transformers.BertTokenizer(vocab=vocab, do_lower_case=True)
    return samples(tokenizer._tokenizer.encode)


def albert_files(folder):
    """SentencePiece's Unigram as ALBERT has it: quotes, accents and capitals go, then SentencePiece's own map."""
    from make_tokenizers import charsmap

    pieces = "▁the ▁cat ▁s at ▁on ▁hay ▁then ▁ra in ▁began un seen ▁word s ▁na ive ▁ca fe ▁dog ▁ , ! : x a e n t i".split()
    words = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *pieces, "d", "w", "h"]
    assert len(words) == len(set(words)) == 37, len(words)
    vocab = [(word, 0.0 if i < 5 else -0.3 * i) for i, word in enumerate(words)]
    tokenizer = transformers.AlbertTokenizer(vocab=vocab, _spm_precompiled_charsmap=charsmap())
    tokenizer.save_pretrained(folder)
    return samples(tokenizer._tokenizer.encode)


def openai_files(folder):
    """GPT-1's kind: a letter at the end of a word is a token of its own, written with </w>."""
    letters = ", . : ; a b c d e g h i l m n o r s t y".split()
    merges = "t h|th e</w>|a t</w>|e n</w>|c at</w>|o n</w>|a n|an d</w>|r a|ra in</w>|i n</w>"
    merges = [tuple(merge.split()) for merge in merges.split("|")]
    words = ["<unk>", *letters, *(letter + "</w>" for letter in letters)]
    words += ["".join(merge) for merge in merges]
    vocab = {word: i for i, word in enumerate(words)}
    assert len(vocab) == 52, len(vocab)
    write_json(folder / "vocab.json", vocab)
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "OpenAIGPTTokenizer"})
    return samples(transformers.OpenAIGPTTokenizer(vocab=vocab, merges=merges)._tokenizer.encode)


def samples(encode):
    """What the program's own tokenizer makes of some texts, for text.json."""
    return [{"text": text, "ids": encode(text, add_special_tokens=False).ids} for text in SAMPLES]


# ---------------------------------------------------------------------------------------------
# Making a case
# ---------------------------------------------------------------------------------------------

CASES = [*gpt2_cases(), *openai_cases(), *bert_cases(), *llama_cases(), *scaled_cases(), *other_cases()]


def build(case, r):
    """The random model, with its weights as they will be stored, in float32."""
    model_class = getattr(transformers, case.model)
    config = model_class.config_class(**case.config, attn_implementation="eager")
    model = model_class(config).eval()
    randomise(model, r, case.std)
    for p in model.parameters():  # and not buffers: Llama's frequencies stay as they are
        p.data = p.data.to(case.dtype).float()
    return model


def randomise(model, r, std=1.0):
    """Every parameter random: gains about 1, biases about 0, matrices keeping their input's size,
    tables such that a tied head's logits have a deviation of about 1."""
    with torch.no_grad():
        for path, module in sorted(model.named_modules()):
            for name, p in sorted(module.named_parameters(recurse=False)):
                if p.dim() == 1:
                    kind = type(module).__name__  # Gemma's gains are stored less one
                    gain = "Norm" in kind and name == "weight" and not kind.startswith("Gemma")
                    x = r.normal(*p.shape, std=0.25, mean=float(gain))
                elif isinstance(module, torch.nn.Embedding):
                    x = r.normal(*p.shape, std=p.shape[1] ** -0.5)
                else:
                    inputs = p.shape[0] if type(module).__name__ == "Conv1D" else p.shape[1]
                    attends = any(part in path for part in ["c_attn", "query", "key", "q_proj", "k_proj"])
                    x = r.normal(*p.shape, std=inputs**-0.5 * (std if attends else 1.0))
                p.copy_(x)


def inputs_of(case, config, r):
    B, T = case.shape
    pad = 1 if "oberta" in case.model or "Camembert" in case.model else 0
    inputs = {"input_ids": r.ids(B, T, low=pad + 1, high=config.vocab_size)}
    if case.shape[0] == 3:  # an encoder
        mask = torch.ones(B, T, dtype=torch.long)
        mask[-1, T - 3 :] = 0  # the last row ends in padding
        inputs["input_ids"] = inputs["input_ids"] * mask + pad * (1 - mask)
        inputs["attention_mask"] = mask
    if case.shape[0] == 3 and not case.model.startswith("DistilBert"):
        segments = torch.arange(T)[None, :] * config.type_vocab_size // T
        inputs["token_type_ids"] = segments.expand(B, T) * mask
        inputs["token_type_ids"][0] = 0
    return inputs


@torch.no_grad()
def outputs(model, inputs):
    out = model(**inputs, output_hidden_states=True)
    found = {"hidden": out.hidden_states[-1]}
    for name, key in [
        ("logits", "logits"),
        ("logits", "prediction_logits"),
        ("relationship", "seq_relationship_logits"),
        ("pooled", "pooler_output"),
    ]:
        if getattr(out, key, None) is not None:
            found[name] = getattr(out, key)
    if type(model).__name__ == "BertForPreTraining":
        found["pooled"] = model.bert(**inputs).pooler_output
    if type(model).__name__ == "ElectraForPreTraining":
        del found["logits"]  # one number a token: which of them are replaced
    return found


def differ(a, b, inputs):
    """The greatest difference at positions that are not padding."""
    kept = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    name = "logits" if "logits" in a else "hidden"
    return (a[name].double() - b[name].double())[kept].abs().max().item()


def with_keys(case, model, keys):
    """The same weights under a configuration with other keys."""
    config = copy.deepcopy(case.config)
    for key, value in keys.items():
        if key == "rope_theta":
            rope = config.get("rope_parameters", {"rope_type": "default"})
            key, value = "rope_parameters", rope | {"rope_theta": value}
        config[key] = value
    model_class = type(model)
    other = model_class(model_class.config_class(**config, attn_implementation="eager")).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    if config.get("tie_word_embeddings", True):
        other.tie_weights()
    return other


def in_float64(model):
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if hasattr(module, "reorder_and_upcast_attn"):
            module.reorder_and_upcast_attn = False  # it insists on float32
    return model


def make(case, folder):
    r = Random(sum(case.name.encode()) * 1000 + len(case.name))
    model = build(case, r)
    inputs = inputs_of(case, model.config, r)
    truth = outputs(model, inputs)
    exact = outputs(in_float64(model), inputs)
    noise = differ(truth, exact, inputs)
    assert noise < TOLERANCE / 20, f"{case.name}: float32 alone differs by {noise:.1e}"
    size = (truth["logits"] if "logits" in truth else truth["hidden"]).std().item()
    assert 0.3 < size < 3, f"{case.name}: the numbers' deviation is {size:.2f}"

    moved = {}
    for key, value in case.matters.items():
        moved[key] = differ(truth, outputs(with_keys(case, model, {key: value}), inputs), inputs)
        assert moved[key] > MATTERS, f"{case.name}: {key} moves the logits by {moved[key]:.1e} only"

    shutil.rmtree(folder, ignore_errors=True)
    shard = {"max_shard_size": case.shard} if case.shard else {}
    copy.deepcopy(model).to(case.dtype).save_pretrained(folder, **shard)
    for path in sorted(folder.glob("*.safetensors")):
        tensors = safetensors.torch.load(path.read_bytes())
        if case.tensors:
            tensors = case.tensors(tensors, model.config)
        write_tensors(path, tensors, {"format": "pt"})
    for path in folder.glob("*.json"):
        keys = json.loads(path.read_text())
        keys.pop("attn_implementation", None)
        if case.keys and path.name == "config.json":
            keys = case.keys(keys)
        write_json(path, keys)
    if case.extra:
        write_json(folder / "text.json", case.extra(folder))

    if case.reload:
        again = type(model).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        found = differ(truth, outputs(again.eval(), inputs), inputs)
        assert found == 0, f"{case.name}: transformers reads the folder with a difference of {found:.1e}"

    names = {"input_ids": "tokens", "token_type_ids": "segments"}
    stored = {names.get(name, name): x for name, x in inputs.items()} | truth
    about = {"about": case.about, "model": case.model, "float64": f"{noise:.1e}"}
    about |= {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    about |= {"source": "made by reference/families.py"}
    write_tensors(folder / "truth.safetensors", {k: v.float() for k, v in stored.items()}, about)
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert total <= LARGEST, f"{case.name}: {total} bytes"
    moves = ", ".join(f"{key} {x:.2g}" for key, x in moved.items())
    print(f"{case.name:20} {total:6} bytes  std {size:.2f}  f64 {noise:.0e}  moved by: {moves}")
    return total


def write_tensors(path, tensors, metadata):
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    path.write_bytes(sort_metadata(safetensors.torch.save(tensors, metadata)))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


# ---------------------------------------------------------------------------------------------
# What training does
# ---------------------------------------------------------------------------------------------

# as few as have every axis of limpid's configuration that a family has: crates/limpid/tests/library/parity.rs says
# which has which
TRAINED = """
    qwen3 olmo2 nanochat gemma2 gemma3 cohere pythia phi gptj glm4 granite bloom mpt gpt-neo smollm3 helium-biased
    falcon-new mistral roberta qwen3-yarn phi3-longrope albert electra-narrow
""".split()


class Wide(TorchFunctionMode):
    """Models ask for float32 in norms, softmax and angles, whatever they are in: here they get float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wide(x):
            return torch.float64 if x is torch.float32 else x

        function = torch.Tensor.double if function is torch.Tensor.float else function
        return function(*map(wide, args), **{name: wide(x) for name, x in (kwargs or {}).items()})


def as_saved(model, values):
    """Values of parameters under the names that they have in files."""
    other = copy.deepcopy(model)
    for name, p in other.named_parameters():
        p.data = values[name]
    with tempfile.TemporaryDirectory() as folder:
        other.save_pretrained(folder)
        return safetensors.torch.load_file(Path(folder) / "model.safetensors")


def train(case):
    r = Random(sum(case.name.encode()) * 1000 + len(case.name))
    stored = build(case, r)
    inputs = inputs_of(case, stored.config, r)
    targets = r.ids(*case.shape, high=stored.config.vocab_size)
    left_out = (r.ids(*case.shape, high=4) == 0) | (inputs.get("attention_mask", torch.ones(1)) == 0)
    targets[left_out] = IGNORE
    torch.set_default_dtype(torch.float64)
    with Wide():
        model_class = type(stored)
        model = model_class(model_class.config_class(**case.config, attn_implementation="eager")).eval()
        model.load_state_dict(stored.state_dict())
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        logits = model(**inputs).logits
        assert all(x.dtype == torch.float64 for x in [logits, *model.parameters(), *model.buffers()]
            if x.is_floating_point())
        losses = token_losses(logits, targets)
        loss = mean_loss(losses, targets)
        loss.backward()
        tensors = inputs | {"targets": targets, "losses": losses, "loss": loss.reshape(1)}
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        # with a larger eps than usual a gradient that is nearly zero, of which float32 has no digit, decides no step
        result, described = optimise(model, start, inputs, targets, "adamw", steps=3, eps=1e-4)
    torch.set_default_dtype(torch.float32)
    steps = "adamw_param/"
    trained = {name.removeprefix(steps): result.pop(name) for name in [*result] if name.startswith(steps)}
    for kind, values in [("grad/", gradients), (steps, trained)]:
        result |= {kind + name: x for name, x in as_saved(model, values).items()}
    moved = result["adamw_losses"][0] - result["adamw_losses"][-1]
    assert moved > 0.01, f"{case.name}: three steps change the loss by {moved:.1e}"
    save(f"training/{case.name}", tensors | result, source="reference/families.py", training={"adamw": described})


# ---------------------------------------------------------------------------------------------
# What limpid must refuse
# ---------------------------------------------------------------------------------------------


def refused():
    """(case, why, config.json). The error must name the key, or the value, in `why`'s quotes."""
    gpt2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=31, n_positions=14)
    gpt2 |= dict(n_embd=12, n_layer=2, n_head=2, activation_function="gelu_new")
    openai = dict(model_type="openai-gpt", architectures=["OpenAIGPTLMHeadModel"], vocab_size=31)
    openai |= dict(n_positions=14, n_embd=12, n_layer=2, n_head=2, afn="gelu")
    bert = dict(model_type="bert", architectures=["BertForMaskedLM"], vocab_size=37)
    bert |= dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=22)
    bert |= dict(max_position_embeddings=13, type_vocab_size=2, hidden_act="gelu")
    llama = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=33)
    llama |= dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, hidden_act="silu")
    llama |= dict(num_key_value_heads=2, intermediate_size=22, max_position_embeddings=32)
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8)
    long = dict(rope_type="longrope", short_factor=[1.0, 1.0], long_factor=[2.0, 3.0])

    return [
        ("gpt2-cross-attention", "`add_cross_attention`: has weights that limpid has no place for",
         gpt2 | {"add_cross_attention": True}),
        ("gpt2-mish", "`activation_function` `mish`", gpt2 | {"activation_function": "mish"}),
        ("gpt2-heads", "`n_embd` 12 is not a multiple of `n_head` 5", gpt2 | {"n_head": 5}),
        ("gpt2-quantized", "`quantization_config`: weights are packed integers",
         gpt2 | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}),
        ("gpt2-no-vocabulary", "`vocab_size` is missing, and a default of 50257 would be a guess",
         {key: value for key, value in gpt2.items() if key != "vocab_size"}),
        ("openai-mish", "`afn` `mish`", openai | {"afn": "mish"}),
        ("bert-decoder", "`is_decoder`: causal attention in BERT", bert | {"is_decoder": True}),
        ("bert-relative", "`position_embedding_type` `relative_key`",
         bert | {"position_embedding_type": "relative_key"}),
        ("bert-cross-attention", "`add_cross_attention`",
         bert | {"is_decoder": True, "add_cross_attention": True}),
        ("llama-yarn-factor", "`rope_scaling` of type `yarn` lacks `factor`",
         llama | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 8}}),
        ("llama-linear-factor", "`rope_parameters` of type `linear` lacks `factor`",
         llama | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}),
        ("llama-yarn-bounds", "yarn's beta_fast 1 is not above beta_slow 2: `rotary_scaling_high`",
         llama | {"rope_theta": 1e4, "rope_scaling": yarn | {"beta_fast": 1.0, "beta_slow": 2.0}}),
        ("llama-longrope-lists", "a list of three factors, and there are `2 pairs`",
         llama | {"rope_theta": 1e4, "rope_scaling": long | {"short_factor": [1.0, 1.0, 1.0]}}),
        ("llama-longrope-negative", "`long_factor` has a number below 0",
         llama | {"rope_theta": 1e4, "rope_scaling": long | {"long_factor": [1.0, -1.0]}}),
        ("llama-su", "`rope_scaling` of type `su`, which is Phi-3's alone",
        llama | {"rope_scaling": long | {"rope_type": "su"}}),
        ("llama-proportional", "`rope_parameters` of type `proportional`",
         llama | {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}),
        ("gpt-neox-theta", "`rope_theta`, which GPT-NeoX calls rotary_emb_base and transformers does not read",
         llama | {"model_type": "gpt_neox", "hidden_act": "gelu", "rope_theta": 500.0, "num_key_value_heads": None}),
        ("gemma3-flat", "`rope_parameters` without `full_attention` and `sliding_attention`",
         llama | {"model_type": "gemma3_text", "head_dim": 4, "rope_parameters": {"rope_type": "default",
         "rope_theta": 1e4}}),
        ("llama-partial-rotary", "`partial_rotary_factor`: only part of a head turns",
         llama | {"partial_rotary_factor": 0.5}),
        ("llama-kv-heads", "`num_attention_heads` 4 is not a multiple of `num_key_value_heads` 3",
         llama | {"num_key_value_heads": 3}),
        ("llama-odd-head", "`head_dim` 5 is odd: rotary positions turn pairs",
         llama | {"head_dim": 5}),
        ("llama-xielu", "`hidden_act` `xielu`", llama | {"hidden_act": "xielu"}),
        ("mamba", "`model_type` `mamba`",
         {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "vocab_size": 33,
          "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
        ("t5", "`model_type` `t5`: an encoder and a decoder",
         {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 33,
          "d_model": 16, "num_layers": 2, "is_encoder_decoder": True}),
        ("llama-two-scalings", "`rope_scaling` of type `axial` beside rope_parameters, which it replaces",
         llama | {"rope_scaling": {"rope_type": "axial"}, "rope_parameters": {"rope_type": "default",
         "rope_theta": 1e4}}),
        ("llama-layer-types", "`layer_types` with windows, which Llama has not",
         llama | {"layer_types": ["full_attention", "sliding_attention"]}),
        ("mixtral", "`model_type` `mixtral`: a `mixture of experts`",
         llama | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}),
        ("bart", "`model_type` `bart`: an `encoder and a decoder`",
         {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "vocab_size": 33,
          "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "is_encoder_decoder": True}),
        ("opt-post-norm", "`do_layer_norm_before` false, as OPT 350m",
         {"model_type": "opt", "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2,
          "num_attention_heads": 2, "ffn_dim": 22, "max_position_embeddings": 15, "do_layer_norm_before": False}),
        ("opt-narrow", "`word_embed_proj_dim` `8`",
         {"model_type": "opt", "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2,
          "num_attention_heads": 2, "ffn_dim": 22, "max_position_embeddings": 15, "word_embed_proj_dim": 8}),
        ("olmo-clip", "`clip_qkv`", llama | {"model_type": "olmo", "clip_qkv": 8.0}),
        ("roberta-padding", "`pad_token_id` `0`: positions would be counted from 1",
         bert | {"model_type": "roberta", "pad_token_id": 0}),
        ("albert-groups", "`num_hidden_groups` `2`: blocks of two kinds",
         bert | {"model_type": "albert", "embedding_size": 8, "num_hidden_groups": 2}),
        ("albert-inner", "`inner_group_num` `2`: two layers in a block",
         bert | {"model_type": "albert", "embedding_size": 8, "inner_group_num": 2}),
        ("phi-qk-norm", "`qk_layernorm`", llama | {"model_type": "phi", "qk_layernorm": True}),
        ("cohere-qk-norm", "`use_qk_norm`", llama | {"model_type": "cohere", "use_qk_norm": True}),
        ("falcon-alibi", "`alibi`",
         {"model_type": "falcon", "vocab_size": 33, "hidden_size": 16, "num_hidden_layers": 2,
          "num_attention_heads": 4, "alibi": True}),
        ("gemma3-pictures", "`model_type` `gemma3`: it sees `pictures`",
         {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}}),
        ("no-model-type", "`model_type` is missing",
         {key: value for key, value in gpt2.items() if key not in ("model_type", "architectures")}),
    ]  # fmt: skip


def refuse(directory):
    lines = [
        "# Configurations that limpid refuses",
        "",
        "Made by `reference/families.py refuse`. Opening each folder is an error that names what is "
        "in quotes. There are no weights: the configuration is checked first.",
        "",
        "| folder | why |",
        "| --- | --- |",
    ]
    for name, why, keys in refused():
        (directory / name).mkdir(parents=True, exist_ok=True)
        write_json(directory / name / "config.json", keys)
        lines.append(f"| `{name}` | {why} |")
    (directory / "README.md").write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 6} configurations in {directory}")


# ---------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("make", help="models with their truth")
    command.add_argument("directory", type=Path)
    command.add_argument("cases", nargs="*", help="only these")
    command = commands.add_parser("train", help="what training does to some of them")
    command.add_argument("cases", nargs="*", help="only these")
    command = commands.add_parser("refuse", help="configurations to be refused")
    command.add_argument("directory", type=Path)
    commands.add_parser("list", help="the cases and what each is about")
    options = parser.parse_args()

    if options.command == "refuse":
        return refuse(options.directory)
    if options.command == "list":
        for case in CASES:
            print(f"{case.name:20} {case.about}")
        return
    known = {case.name: case for case in CASES}
    if options.command == "train":
        return [train(known[name]) for name in options.cases or TRAINED]
    unknown = [name for name in options.cases if name not in known]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are: {', '.join(known)}")
    names = options.cases or known
    total = sum(make(known[name], options.directory / name) for name in names)
    print(f"{len(names)} cases, {total} bytes")


if __name__ == "__main__":
    main()
