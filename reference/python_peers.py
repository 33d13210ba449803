"""Holds the Python module against transformers and PyTorch: traces, logits, greedy text, and memory that is shared by
DLPack.

  pip install torch transformers ./crates/limpid-python && python reference/python_peers.py

It prints the largest difference of each comparison, relative to the largest number compared, and fails above 1e-5.
"""

import tempfile
from pathlib import Path

import limpid
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

torch.manual_seed(7)
WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]",
    *"the cat sat on a mat and saw dog run far away from big red house".split()]
SHARED = dict(vocab_size=len(WORDS), hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96)


def tokenizer(folder):
    tokens = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]")
    PreTrainedTokenizerFast(tokenizer_object=tokens, **names).save_pretrained(folder)


def made():
    gpt2 = GPT2Config(vocab_size=len(WORDS), n_positions=32, n_embd=48, n_layer=3, n_head=4, bos_token_id=1,
        eos_token_id=None)
    yield "GPT-2", transformers.GPT2LMHeadModel(gpt2)
    llama = LlamaConfig(**SHARED, num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=None)
    yield "Llama, GQA", transformers.LlamaForCausalLM(llama)
    bert = BertConfig(**SHARED, max_position_embeddings=32, pad_token_id=3)
    yield "BERT", transformers.BertForMaskedLM(bert)


def difference(ours, theirs):
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def compare(name, model, folder):
    model.eval().config._attn_implementation = "eager"
    for parameter in model.parameters():  # larger than they begin, so that heads differ
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    tokenizer(folder)
    lm, ids = limpid.open(folder), [6, 7, 8, 9, 10, 11, 12, 13]
    trace = lm.trace(ids)
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    found = {"logits": difference(np.asarray(trace["logits"]), out.logits)}
    states = ["blocks.0.hook_resid_pre"] + [f"blocks.{layer}.hook_resid_post" for layer in range(3)]
    # the last hidden state of GPT-2 and Llama is that after the final norm
    last = [] if name == "BERT" else ["ln_final.hook_out"]
    states = states[: len(states) - len(last)] + last
    found["hidden states"] = max(difference(np.asarray(trace[state]), h) for state, h in zip(states, out.hidden_states,
        strict=True))
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    found["attentions"] = max(difference(np.asarray(trace[p]), a) for p, a in zip(patterns, out.attentions,
        strict=True))
    if name != "BERT":
        theirs = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=3)[0, len(ids) :]
        ours = lm.generate(ids, max_tokens=12, temperature=0).tokens
        assert ours == theirs.tolist() and len(ours) == 12, (ours, theirs)
        found["greedy tokens equal"] = len(ours)
    print(f"{name:12}", "  ".join(f"{what} {value:.2g}" for what, value in found.items()))
    assert all(value < 1e-5 for what, value in found.items() if "tokens" not in what)
    return trace


def shared(trace):
    tensor = trace["blocks.1.hook_resid_post"]
    there = torch.from_dlpack(tensor)
    assert there.data_ptr() == np.asarray(tensor).__array_interface__["data"][0] == np.from_dlpack(tensor).__array_interface__["data"][0]
    assert there.dtype == torch.float32 and tuple(there.shape) == tensor.shape and not np.from_dlpack(tensor).flags.writeable
    want = there.clone()
    del tensor
    junk = [torch.zeros_like(want) for _ in range(100)]
    assert torch.equal(there, want)
    half = torch.from_dlpack(trace["blocks.1.hook_resid_post"].bfloat16())
    assert half.dtype == torch.bfloat16 and torch.equal(half, want.bfloat16())
    print(f"DLPack: address shared with torch {torch.__version__} and numpy {np.__version__}; read-only in numpy; bfloat16 equal bit for bit")
    del junk
    copied = torch.from_dlpack(trace["blocks.1.hook_resid_post"], copy=True)
    assert copied.data_ptr() != there.data_ptr()
    there[0, 0, 0] = 7  # the last use of this memory
    seen = np.asarray(trace["blocks.1.hook_resid_post"])[0, 0, 0] == 7
    print("torch", "ignores" if seen else "honours", "the read-only flag;", "copy=True gives memory of its own")


with tempfile.TemporaryDirectory() as top:
    traces = [compare(name, model, Path(top) / name.split(",")[0]) for name, model in made()]
    shared(traces[0])
