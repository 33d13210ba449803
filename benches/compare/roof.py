"""limpid's roofs beside what PyTorch reaches on the same threads: no product and no sum may go above them.

  pip install torch
  cargo build --release
  python benches/compare/roof.py [--rounds 5]

Both sides in turns, the best of many short readings each; on a machine that other programs share, the best is what
counts. Exits 1 where PyTorch is above a roof: a matrix unit that limpid does not use (AMX) is one way to that, and then
the share of the roof is one of the instructions in use.
"""
import argparse, json, subprocess, sys, time
from pathlib import Path

import torch

SHAPES = [(256, 256, 256), (512, 512, 512), (768, 768, 768), (1024, 1024, 1024), (2048, 2048, 2048), (256, 3072, 768),
    (384, 512, 2048)]


def best(work, amount, seconds):
    """The best rate of `work`, called for some seconds."""
    work()
    reached, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        reached = max(reached, amount / (time.perf_counter() - start))
    return reached


def products(dtype, seconds):
    rates = {}
    for m, n, k in SHAPES:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        c = torch.empty(m, n, dtype=dtype)
        rates[f"{m} x {n} x {k}"] = best(lambda: torch.mm(a, b, out=c), 2 * m * n * k, seconds)
    return max(rates.items(), key=lambda item: item[1])


def reads(seconds):
    x = torch.ones(128 << 20)
    ways = {"sum": x.sum, "max": x.max, "dot": lambda: torch.dot(x[: x.numel() // 2], x[x.numel() // 2 :])}
    return max(((name, best(way, 4 * x.numel(), seconds)) for name, way in ways.items()), key=lambda item: item[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).parents[2]
    parser.add_argument("--limpid", default=root / "target/release/limpid")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each shape in each round")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keys = {"f32 products": "roof_flops_f32", "bf16 products": "roof_flops_bf16", "reads": "read_roof_bytes_s"}
    roofs, peers = dict.fromkeys(keys, 0.0), {name: ("", 0.0) for name in keys}
    for _ in range(args.rounds):
        doctor = subprocess.run([args.limpid, "doctor", "--threads", str(args.threads), "--json"], capture_output=True,
            check=True)
        doctor = json.loads(doctor.stdout)
        for name, key in keys.items():
            roofs[name] = max(roofs[name], doctor[key])
        torch_side = {
            "f32 products": lambda: products(torch.float32, args.seconds),
            "bf16 products": lambda: products(torch.bfloat16, args.seconds),
            "reads": lambda: reads(args.seconds),
        }
        for name, measure in torch_side.items():
            peers[name] = max(peers[name], measure(), key=lambda item: item[1])
    print(f"{doctor['cpu']}, {args.threads} threads, {doctor['simd']}; PyTorch {torch.__version__}\n")
    print("| | roof, G/s | PyTorch's best, G/s | share | of |\n|---|---|---|---|---|")
    for name in keys:
        shape, reached = peers[name]
        print(f"| {name} | {roofs[name] / 1e9:.1f} | {reached / 1e9:.1f} | {100 * reached / roofs[name]:.0f} % | {shape} |")
    above = [name for name in keys if peers[name][1] > roofs[name]]
    if above:
        sys.exit(f"above the roof: {', '.join(above)}")


if __name__ == "__main__":
    main()
