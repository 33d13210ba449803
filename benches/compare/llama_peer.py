"""llama.cpp, through llama-cpp-python, on a GPT-2 of random weights. compare.py calls this; one JSON line comes out.

  python benches/compare/llama_peer.py write FILE.gguf --dtype bf16
  python benches/compare/llama_peer.py decode FILE.gguf --tokens 64
  python benches/compare/llama_peer.py prefill FILE.gguf --tokens 256
  python benches/compare/llama_peer.py loss FILE.gguf --text TEXT --tokens 512
  python benches/compare/llama_peer.py built
"""
import argparse, json, statistics, time
from pathlib import Path
import numpy as np

LAYERS, HEADS, WIDTH, POSITIONS, VOCAB = 12, 12, 768, 1024, 50257


def write(args):
    """GPT-2 124M as a GGUF file: matrices in the precision asked for, vectors and positions in f32, the head tied."""
    import gguf

    out = gguf.GGUFWriter(args.file, "gpt2")
    out.add_context_length(POSITIONS)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(4 * WIDTH)
    out.add_head_count(HEADS)
    out.add_layer_norm_eps(1e-5)
    kind = gguf.GGMLQuantizationType[args.dtype.upper()]
    out.add_file_type(gguf.LlamaFileType.ALL_F32 if args.dtype == "f32" else gguf.LlamaFileType.MOSTLY_BF16)
    # a vocabulary of numbers, with the two parts of its one merge: ids go in and logits come out, no text
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([f"t{i}" for i in range(VOCAB - 2)] + ["t", "0"])
    out.add_token_types([int(gguf.TokenType.NORMAL)] * VOCAB)
    out.add_token_merges(["t 0"])
    random = np.random.default_rng(1)

    def matrix(name, rows, columns, kind=kind):
        values = 0.02 * random.standard_normal((rows, columns), dtype=np.float32)
        out.add_tensor(name + ".weight", gguf.quants.quantize(values, kind), raw_dtype=kind)

    def linear(name, rows, columns):
        matrix(name, rows, columns)
        out.add_tensor(name + ".bias", np.zeros(rows, np.float32))

    def norm(name):
        out.add_tensor(name + ".weight", np.ones(WIDTH, np.float32))
        out.add_tensor(name + ".bias", np.zeros(WIDTH, np.float32))

    matrix("token_embd", VOCAB, WIDTH)
    matrix("position_embd", POSITIONS, WIDTH, gguf.GGMLQuantizationType.F32)
    for i in range(LAYERS):
        norm(f"blk.{i}.attn_norm")
        linear(f"blk.{i}.attn_qkv", 3 * WIDTH, WIDTH)
        linear(f"blk.{i}.attn_output", WIDTH, WIDTH)
        norm(f"blk.{i}.ffn_norm")
        linear(f"blk.{i}.ffn_up", 4 * WIDTH, WIDTH)
        linear(f"blk.{i}.ffn_down", WIDTH, 4 * WIDTH)
    norm("output_norm")
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return {"file": args.file}


def load(args):
    from llama_cpp import Llama

    return Llama(args.file, n_ctx=POSITIONS, n_batch=512, n_ubatch=512, n_threads=args.threads,
        n_threads_batch=args.threads,
                 logits_all=False, flash_attn=args.flash, verbose=args.verbose)


def decode(args):
    """Tokens one by one after a prompt of eight: the median."""
    model, times = load(args), []
    model.eval(list(range(8)))
    for i in range(args.tokens + 4):
        start = time.perf_counter()
        model.eval([i % model.n_vocab()])
        times.append(time.perf_counter() - start)
    return {"tok_s": 1 / statistics.median(times[4:])}


def prefill(args):
    """A prompt at once, logits of its last token: the median of five."""
    model, times = load(args), []
    for _ in range(6):
        model.reset()
        start = time.perf_counter()
        model.eval([(7919 * i) % model.n_vocab() for i in range(args.tokens)])
        times.append(time.perf_counter() - start)
    return {"tok_s": args.tokens / statistics.median(times[1:])}


def loss(args):
    """The mean loss of a text in windows of so many tokens, each of which predicts the next: what `limpid eval`
    computes."""
    from llama_cpp import Llama

    model = Llama(args.file, n_ctx=args.tokens, n_batch=args.tokens, n_threads=args.threads,
        n_threads_batch=args.threads,
                  logits_all=True, verbose=args.verbose)
    ids, total = model.tokenize(Path(args.text).read_bytes(), add_bos=False), 0.0
    for at in range(0, len(ids) - 1, args.tokens):
        targets = ids[at + 1:at + args.tokens + 1]
        model.reset()
        model.eval(ids[at:at + len(targets)])
        for logits, target in zip(model.scores, targets):
            logits = logits.astype(np.float64)
            total += logits.max() + np.log(np.exp(logits - logits.max()).sum()) - logits[target]
    mean = total / (len(ids) - 1)
    return {"loss": mean, "perplexity": float(np.exp(mean)), "tokens": len(ids) - 1}


def built(args):
    """Which instructions llama.cpp was built for, in its words."""
    import llama_cpp

    return {"built": llama_cpp.llama_print_system_info().decode()}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["write", "decode", "prefill", "loss", "built"])
parser.add_argument("file", nargs="?")
parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--text", help="a text file, for its loss")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--flash", action="store_true", help="llama.cpp's flash attention")
parser.add_argument("--verbose", action="store_true", help="what llama.cpp says about itself")
args = parser.parse_args()
print(json.dumps({"write": write, "decode": decode, "prefill": prefill, "loss": loss, "built": built}[args.what](args)))
