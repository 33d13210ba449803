#!/usr/bin/env python3
"""Make the golden fixtures in `crates/limpid/fixtures/` from PyTorch and HuggingFace transformers.

    python reference/make.py                # all of them
    python reference/make.py gpt2 ops       # only these

Every fixture is one safetensors file (`containers` is a GGUF file). All arithmetic is done in float64 on the CPU, from
inputs and parameters that are exactly representable in float32; results are then rounded to float32. So a stored number
is the true value to float32 precision, and not one particular float32 implementation's rounding. Integers are stored as
int32.

Nothing is downloaded: the models are tiny and randomly initialised from fixed seeds. Running this
again with the versions of requirements.txt gives the same bytes. README.md lists the contents.
"""

import json
import math
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# PyTorch picks its kernels by the CPU it runs on, and they differ in the last bits. Ask for the
# plainest ones, so that another machine gives the same bytes as far as that can be had.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
os.environ.setdefault("ATEN_CPU_CAPABILITY", "default")

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from torch import nn

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

FIXTURES = Path(__file__).resolve().parent.parent / "crates/limpid/fixtures"
IGNORE = -100  # the target that cross-entropy leaves out
STEPS = 10  # optimiser steps in every training run
F64 = torch.float64


# ---------------------------------------------------------------------------------------------
# Random numbers and files
# ---------------------------------------------------------------------------------------------


class Random:
    """A seeded source of tensors."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape, std=1.0, mean=0.0):
        """Float64 normals whose values are exactly float32 values."""
        x = torch.randn(shape, generator=self.generator, dtype=F64)
        return as_float32_values(mean + std * x)

    def ids(self, *shape, low=0, high):
        """Integers in low..high (high excluded)."""
        return torch.randint(low, high, shape, generator=self.generator)


def as_float32_values(x):
    return x.to(torch.float32).to(F64)


def save(name, tensors, source="reference/make.py", **metadata):
    """Write crates/limpid/fixtures/<name>.safetensors; metadata values are stored as JSON."""
    stored = {}
    for key, tensor in tensors.items():
        dtype = torch.float32 if tensor.is_floating_point() else torch.int32
        # clone, since safetensors refuses tensors that share memory
        stored[key] = tensor.detach().to(dtype).contiguous().clone()
        assert not tensor.is_floating_point() or stored[key].isfinite().all(), key
    metadata = {key: json.dumps(value, sort_keys=True) for key, value in metadata.items()}
    metadata["torch"] = torch.__version__.split("+")[0]  # without the build, as in +cu132
    metadata["transformers"] = transformers.__version__
    metadata["source"] = f"made by {source}"

    path = FIXTURES / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sort_metadata(safetensors.torch.save(stored, metadata)))
    print(f"{path.relative_to(FIXTURES.parent)}: {path.stat().st_size} bytes, {len(stored)} tensors")


def sort_metadata(file):
    """The same safetensors file with its metadata in sorted order.

    The library writes metadata in the order of a randomly seeded hash map, so its bytes differ
    from run to run. A file is: header length (u64, little endian), header (JSON, padded with
    spaces to a multiple of 8 bytes), data. Data offsets count from the header's end, so they
    stay right.
    """
    length = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


# ---------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------


def gpt2():
    r = Random(1)
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=3,
        n_embd=12,
        n_positions=11,
        n_inner=20,
        vocab_size=23,
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        attn_implementation="eager",
    )
    model = transformers.GPT2LMHeadModel(config)
    inputs = {"input_ids": r.ids(2, 7, high=23)}
    targets = r.ids(2, 7, high=23)
    return config, *model_tensors(model, r, inputs, targets, ["adamw", "adam", "sgd"])


def openai_gpt():
    r = Random(2)
    config = transformers.OpenAIGPTConfig(
        n_layer=2,
        n_head=2,
        n_embd=10,
        n_positions=9,
        vocab_size=19,
        afn="gelu",  # which is the tanh form here: see README.md
        layer_norm_epsilon=1e-5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    model = transformers.OpenAIGPTLMHeadModel(config)
    inputs = {"input_ids": r.ids(3, 5, high=19)}
    targets = r.ids(3, 5, high=19)
    return config, *model_tensors(model, r, inputs, targets, ["adamw"])


def bert():
    r = Random(3)
    config = transformers.BertConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=8,
        intermediate_size=14,
        max_position_embeddings=12,
        type_vocab_size=2,
        vocab_size=21,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
        use_cache=False,
        attn_implementation="eager",
    )
    model = transformers.BertForMaskedLM(config)
    # The second sequence ends in two padding positions. Id 0 is padding and appears nowhere else,
    # because PyTorch gives the padding id's embedding row no gradient from the look-up.
    attention_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    inputs = {
        "input_ids": r.ids(2, 6, low=1, high=21) * attention_mask,
        "token_type_ids": torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]]),
        "attention_mask": attention_mask,
    }
    predicted = torch.tensor([[0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0]], dtype=torch.bool)
    targets = torch.where(predicted, r.ids(2, 6, low=1, high=21), IGNORE)
    return config, *model_tensors(model, r, inputs, targets, ["adamw"])


def model_tensors(model, r, inputs, targets, optimisers):
    """All tensors of one model's fixture, and a description of its training runs."""
    model.double().eval()
    randomise(model, r)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    out = model(**inputs, output_hidden_states=True, output_attentions=True)
    losses = token_losses(out.logits, targets)
    loss = mean_loss(losses, targets)
    loss.backward()

    tensors = {**inputs, "targets": targets}
    tensors |= {"logits": out.logits, "losses": losses, "loss": loss.reshape(1)}
    for i, hidden in enumerate(out.hidden_states):
        tensors[f"hidden/{i}"] = hidden
    for i, attention in enumerate(out.attentions):
        tensors[f"attentions/{i}"] = attention
    for name, p in model.named_parameters():
        tensors[f"param/{name}"] = start[name]
        tensors[f"grad/{name}"] = p.grad.clone()

    training = {}
    for optimiser in optimisers:
        result, training[optimiser] = train(model, start, inputs, targets, optimiser)
        tensors |= result
    return tensors, training


def randomise(model, r):
    """Give every parameter a random value, so that no gain is 1 and no bias 0.

    named_parameters() names a tied parameter once (GPT-2's head is not listed beside wte), which
    is also how the fixture stores it.
    """
    gains = {id(m.weight) for m in model.modules() if isinstance(m, nn.LayerNorm)}
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            if id(p) in gains:
                p.copy_(r.normal(*p.shape, mean=1.0, std=0.2))
            else:
                p.copy_(r.normal(*p.shape, std=0.3))


def token_losses(logits, targets):
    """Cross-entropy of logits[b, t] against targets[b, t] (not shifted); 0 where ignored."""
    flat = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none"
    )
    return flat.view_as(targets)


def mean_loss(losses, targets):
    return losses.sum() / (targets != IGNORE).sum()


def train(model, start, inputs, targets, optimiser, steps=STEPS, **changes):
    """`steps` steps on one batch, from the parameters `start`, with `changes` of AdamW's settings."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(start[name])

    if optimiser == "adamw":
        settings = {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8} | changes
        groups = [
            {"params": [p for p in parameters.values() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        step = torch.optim.AdamW(groups, **settings, foreach=False)
        clip = 1.0
        described = {**settings, "weight_decay": 0.1, "decay": "dim >= 2", "clip_grad_norm": clip}
    elif optimiser == "adam":
        settings = {"lr": 3e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
        step = torch.optim.Adam(parameters.values(), **settings, foreach=False)
        clip = None
        described = {**settings, "decay": "all, added to the gradient", "clip_grad_norm": clip}
    elif optimiser == "sgd":
        settings = {"lr": 0.05, "momentum": 0.9, "dampening": 0.0, "nesterov": False}
        step = torch.optim.SGD(parameters.values(), **settings, foreach=False)
        clip = None
        described = {**settings, "clip_grad_norm": clip}

    losses, grad_norms = [], []
    for i in range(steps + 1):
        loss = mean_loss(token_losses(model(**inputs).logits, targets), targets)
        losses.append(loss.detach())
        if i == steps:
            break
        step.zero_grad()
        loss.backward()
        if clip is not None:
            # g *= min(1, clip / (norm + 1e-6)); returns the norm before clipping
            norm = nn.utils.clip_grad_norm_(parameters.values(), clip, foreach=False)
            grad_norms.append(norm)
        step.step()

    result = {f"{optimiser}_losses": torch.stack(losses)}
    if optimiser == "adamw":
        result["adamw_grad_norms"] = torch.stack(grad_norms)
        for name, p in parameters.items():
            result[f"adamw_param/{name}"] = p.detach().clone()
    return result, described


# ---------------------------------------------------------------------------------------------
# Single operations
# ---------------------------------------------------------------------------------------------


def ops():
    config, tensors = {}, {}
    for part in [activations, norms, attention, rotary, soft_cross_entropy]:
        part_config, part_tensors = part()
        config |= part_config
        tensors |= part_tensors
    return config, tensors


def with_gradients(prefix, function, inputs, r):
    """function(**inputs), and its gradients for a random upstream gradient `dy`."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    y = function(**leaves)
    dy = r.normal(*y.shape)
    y.backward(dy)
    tensors = {f"{prefix}/{name}": x for name, x in inputs.items()}
    tensors |= {f"{prefix}/y": y, f"{prefix}/dy": dy}
    tensors |= {f"{prefix}/d{name}": x.grad for name, x in leaves.items()}
    return tensors


def activations():
    functions = {
        "gelu_erf": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
        "relu": F.relu,
        "leaky_relu": lambda x: F.leaky_relu(x, negative_slope=0.01),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }
    points = torch.linspace(-5, 5, 41, dtype=F64)  # multiples of 1/4, 0 among them
    tensors = {"activation/x": points}
    for name, function in functions.items():
        x = points.clone().requires_grad_()
        y = function(x)
        (derivative,) = torch.autograd.grad(y.sum(), x)
        tensors[f"activation/{name}"] = y
        tensors[f"activation/{name}_derivative"] = derivative
    return {"leaky_relu_slope": 0.01, "gelu_quick_factor": 1.702}, tensors


def norms():
    r = Random(4)
    config = {"layer_norm_eps": 1e-5, "sigma_norm_eps": 1e-2, "rms_norm_eps": 1e-5}
    # Rows of different sizes, some small enough that epsilon matters.
    sizes = torch.tensor([1, 1, 10, 0.1, 0.01, 0.003, 1], dtype=F64).unsqueeze(1)
    x = as_float32_values(r.normal(7, 13) * sizes)
    gain, bias = r.normal(13, mean=1.0, std=0.2), r.normal(13, std=0.3)

    def layer_norm(x, gain, bias):
        return F.layer_norm(x, (13,), gain, bias, config["layer_norm_eps"])

    def sigma_norm(x, gain, bias, unbiased=False):
        """Layer norm dividing by sigma + eps where the usual divides by sqrt(sigma^2 + eps)."""
        centred = x - x.mean(-1, keepdim=True)
        count = x.shape[-1] - 1 if unbiased else x.shape[-1]
        sigma = (centred.square().sum(-1, keepdim=True) / count).sqrt()
        return gain * centred / (sigma + config["sigma_norm_eps"]) + bias

    def sigma_norm_unbiased(x, gain, bias):
        return sigma_norm(x, gain, bias, unbiased=True)

    def rms_norm(x, gain):
        return F.rms_norm(x, (13,), gain, config["rms_norm_eps"])

    affine = {"x": x, "gain": gain, "bias": bias}
    tensors = with_gradients("layer_norm", layer_norm, affine, r)
    tensors |= with_gradients("sigma_norm", sigma_norm, affine, r)
    tensors |= with_gradients("sigma_norm_unbiased", sigma_norm_unbiased, affine, r)
    tensors |= with_gradients("rms_norm", rms_norm, {"x": x, "gain": gain}, r)
    return config, tensors


def attention():
    r = Random(5)
    qkv = {name: r.normal(2, 3, 5, 4) for name in "qkv"}  # batch, head, position, feature

    def full(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def causal(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    tensors = with_gradients("attention_full", full, qkv, r)
    tensors |= with_gradients("attention_causal", causal, qkv, r)
    return {"attention_scale": 1 / math.sqrt(4)}, tensors


def rotary():
    """Each pair (x[2i], x[2i+1]) is turned by the angle t * base^(-2i/d), t = 0, 1, ..."""
    r = Random(6)
    base, (length, heads, d) = 10000.0, (5, 3, 4)
    x = r.normal(length, heads, d)
    t = torch.arange(length, dtype=F64)
    frequency = base ** (-torch.arange(0, d, 2, dtype=F64) / d)
    angle = (t[:, None] * frequency)[:, None, :]  # position, (head), pair
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack(
        [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], dim=-1
    )
    return {"rotary_base": base}, {"rotary/x": x, "rotary/y": turned.flatten(-2)}


def soft_cross_entropy():
    """Mean over rows of -sum(p log softmax(logits)); p are float32 probabilities."""
    r = Random(7)
    logits = r.normal(6, 9, std=2.0).requires_grad_()
    p = as_float32_values(r.normal(6, 9, std=1.5).softmax(-1))
    losses = F.cross_entropy(logits, p, reduction="none")
    loss = losses.mean()
    (gradient,) = torch.autograd.grad(loss, logits)
    return {}, {
        "cross_entropy_soft/logits": logits,
        "cross_entropy_soft/p": p,
        "cross_entropy_soft/losses": losses,
        "cross_entropy_soft/loss": loss.reshape(1),
        "cross_entropy_soft/dlogits": gradient,
    }


# ---------------------------------------------------------------------------------------------
# Containers
# ---------------------------------------------------------------------------------------------


def containers():
    """A GGUF file with a key of every type and one tensor of every type that limpid reads, by ggml's own writer.

    Keys are in alphabetical order, the order in which limpid writes them.
    """
    import gguf
    import numpy as np

    path = FIXTURES / "containers.gguf"
    w = gguf.GGUFWriter(path, "gpt2")
    T = gguf.GGUFValueType
    numbers = [("u8", T.UINT8, 200), ("i8", T.INT8, -100), ("u16", T.UINT16, 60000), ("i16", T.INT16, -30000),
               ("u32", T.UINT32, 4_000_000_000), ("i32", T.INT32, -2_000_000_000), ("f32", T.FLOAT32, 0.1),
               ("u64", T.UINT64, 2**63), ("i64", T.INT64, -2**62), ("f64", T.FLOAT64, 0.1), ("bool", T.BOOL, True)]
    for name, kind, value in sorted(numbers):
        w.add_key_value(f"test.{name}", value, kind)
    w.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    w.add_array("tokenizer.ggml.token_type", [1, 3])
    w.add_array("tokenizer.ggml.tokens", ["a", "é\u0120", "", "<|endoftext|>"])
    x = Random(8).normal(6, 64).float().numpy()
    x[1, :32] = 0  # a block whose scale is 0
    x[2, :32] = np.arange(-16, 16) / 2 * 127 / 8  # quotients that end in a half
    x[3] *= 1e-4  # f16 without a leading 1
    w.add_tensor("x", x)
    w.add_tensor("x.bias", x[0, :5].copy())
    w.add_tensor("x.f16", x.astype(np.float16))
    for kind in (gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0):
        w.add_tensor(f"x.{kind.name.lower()}", gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{path.name}: {path.stat().st_size} bytes")


# ---------------------------------------------------------------------------------------------

MODELS = {"gpt2": gpt2, "openai-gpt": openai_gpt, "bert": bert}


def main(names):
    known = [*MODELS, "ops", "containers"]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no such fixture: {', '.join(unknown)}; there are: {', '.join(known)}")
    for name in names or known:
        if name == "ops":
            config, tensors = ops()
            save(name, tensors, config=config)
        elif name == "containers":
            containers()
        else:
            config, tensors, training = MODELS[name]()
            save(name, tensors, config=config.to_dict(), training=training)


if __name__ == "__main__":
    main(sys.argv[1:])
