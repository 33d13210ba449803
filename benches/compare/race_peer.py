"""nanoGPT's recipe in PyTorch on a track of `limpid race`, and its record, of the kind `peer`.

  limpid race tokens stories-nano --out tokens
  python benches/compare/race_peer.py tokens --size nano --out docs/race/stories-nano-nanogpt.json

AdamW 1e-3 to 1e-4, warm-up of 100 steps, 2,000 steps of 12 sequences, in f32, fused attention and optimizer: nanoGPT's settings for characters
on a CPU, with the model of its `train_shakespeare_char` (`baby`), of its README for a CPU (`nano`), or of 8 blocks of 256 (`8m`).
"""
import argparse, hashlib, json, math, os, time
import numpy as np, torch
import torch_peer as peer

peer.SIZES["8m"] = (8, 4, 256, 128, 2048, False, "none")


def loss_of_all(model, ids, length):
    """The mean over all of the text, in windows that do not overlap, the last one shorter."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        whole = (len(ids) - 1) // length
        x, y = ids[:whole * length].view(whole, length), ids[1:whole * length + 1].view(whole, length)
        for a, b in zip(x.split(64), y.split(64)):
            total += model(a, b).item() * a.numel()
        if rest := len(ids) - 1 - whole * length:
            total += model(ids[None, whole * length:-1], ids[None, whole * length + 1:]).item() * rest
    model.train()
    return total / (len(ids) - 1)


def main(args):
    track = json.load(open(os.path.join(args.tokens, "track.json")))
    train, val = (torch.from_numpy(np.fromfile(os.path.join(args.tokens, f"{part}.bin"), np.uint16).astype(np.int64)) for part in ("train", "val"))
    layers, heads, width, length, *_ = peer.SIZES[args.size]
    model = peer.GPT(args.size, track["vocab_size"], args.dropout)
    optimizer = peer.adamw(model, args.rate)
    parameters = sum(p.numel() for p in model.parameters())
    flops, losses, seconds, begin = 0.0, [], 0.0, time.perf_counter()
    # as `limpid race` counts: matrix products of forward and backward, and attention in full
    per_step = args.batch * length * (6.0 * (layers * 12 * width**2 + track["vocab_size"] * width) + 12.0 * layers * length * width)
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        share = (step - 1 - args.warmup) / (args.steps - args.warmup)
        rate = args.rate * step / (args.warmup + 1) if step <= args.warmup else args.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        peer.update(model, model, optimizer, train, args.batch, length, args.dtype)
        seconds, flops = seconds + time.perf_counter() - start, flops + per_step
        if step % track["eval_every"] == 0 or step == args.steps:
            losses.append({"step": step, "loss": round(loss_of_all(model, val, length), 6)})
            print(f"step {step}: {losses[-1]['loss']:.4f}, {seconds:.1f} s", flush=True)
            if losses[-1]["loss"] <= track["target"] and not args.whole:
                break
    record = {
        "format": 1, "kind": "peer", "program": f"PyTorch {torch.__version__.split('+')[0]}", "name": f"nanoGPT's, {args.size}, {args.dtype}",
        "track": track["name"], "corpus": track["sha256"], "target": track["target"], "tuning": track["tuning"], "config": None, "recipe": None,
        "precision": args.dtype, "parameters": parameters, "reached": any(at["loss"] <= track["target"] for at in losses), "steps": step,
        "losses": losses, "weights": None, "flops": float(round(flops)), "seconds": round(seconds, 3),
        "seconds_all": round(time.perf_counter() - begin, 3),
        "machine": {"threads": args.threads, "simd": args.isa, "roof_flops": float(args.roof), "read_roof_bytes_s": 0.0},
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
