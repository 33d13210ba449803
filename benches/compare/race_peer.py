"""nanoGPT's recipe in PyTorch on a track of `limpid race`, and its record, of the kind `peer`.

  limpid race tokens stories-nano --out tokens
  python benches/compare/race_peer.py tokens --size nano --out docs/race/stories-nano-nanogpt.json

AdamW 1e-3 to 1e-4, warm-up of 100 steps, 2,000 steps of 12 sequences, in f32, fused attention and optimizer: nanoGPT's
settings for characters on a CPU, with the model of its `train_shakespeare_char` (`baby`), of its README for a CPU
(`nano`), or of 8 blocks of 256 (`8m`).
"""
import argparse, hashlib, json, os, time
import numpy as np, torch
import torch_peer as peer


def main(args):
    track = json.load(open(os.path.join(args.tokens, "track.json")))
    train, val = (torch.from_numpy(np.fromfile(os.path.join(args.tokens, f"{part}.bin"), np.uint16).astype(np.int64))
        for part in ("train", "val"))
    layers, heads, width, length, *_ = peer.SIZES[args.size]
    model = peer.GPT(args.size, track["vocab_size"], args.dropout)
    optimizer = peer.adamw(model, args.rate)
    parameters = sum(p.numel() for p in model.parameters())
    losses, seconds, begin = [], 0.0, time.perf_counter()
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        peer.set_rate(optimizer, step - 1, args.steps, args.rate, args.warmup)
        peer.update(model, model, optimizer, train, args.batch, length, args.dtype)
        seconds += time.perf_counter() - start
        if step % track["eval_every"] == 0 or step == args.steps:
            losses.append({"step": step, "loss": round(peer.loss_of_all(model, val, length), 6)})
            print(f"step {step}: {losses[-1]['loss']:.4f}, {seconds:.1f} s", flush=True)
            if losses[-1]["loss"] <= track["target"] and not args.whole:
                break
    # as `limpid race` counts: products of forward and backward; a row attends to half of the window on average
    flops = step * args.batch * length * 6.0 * (layers * (12 * width**2 + length * width) + track["vocab_size"] * width)
    record = {
        "format": 1, "kind": "peer", "program": f"PyTorch {torch.__version__.split('+')[0]}",
        "name": f"nanoGPT's, {args.size}, {args.dtype}",
        "track": track["name"], "corpus": track["sha256"], "target": track["target"], "tuning": track["tuning"],
        "config": None, "recipe": None,
        "precision": args.dtype, "parameters": parameters,
        "reached": any(at["loss"] <= track["target"] for at in losses), "steps": step,
        "losses": losses, "weights": None, "flops": flops, "seconds": round(seconds, 3),
        "seconds_all": round(time.perf_counter() - begin, 3),
        "machine": {"threads": args.threads, "simd": args.isa, "roof_flops": float(args.roof),
        "read_roof_bytes_s": 0.0},
    }
    # keys in order and no spaces, as limpid hashes a record; no number here is written differently by Rust
    text = json.dumps({**record, "sha256": ""}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    record["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    with open(args.out, "x") as out:
        json.dump(record, out, indent=2)
        out.write("\n")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("tokens", help="what `limpid race tokens` wrote")
parser.add_argument("--out", required=True)
parser.add_argument("--size", default="nano", choices=peer.SIZES)
parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--warmup", type=int, default=100)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--seed", type=int, default=1337)
parser.add_argument("--whole", action="store_true", help="train to the last step, also below the target")
parser.add_argument("--isa", default="all", help="what the record says of the processor")
parser.add_argument("--roof", type=float, default=0.0, help="operations a second, of `limpid doctor`")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(args.seed)
main(args)
