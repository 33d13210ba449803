"""limpid beside PyTorch, interleaved, on the same machine, threads, shapes, batch, optimizer and clipping.

  pip install torch
  python benches/compare/compare.py [--limpid target/release/limpid] [--rounds 5] [--threads 2] [nano] [gpt2]

Rounds go A B A B; the medians, their spread and the ratio are printed as a Markdown table. PyTorch runs as people run it
(fused attention, fused AdamW, f32); each side starts afresh every round, warms up, and reports its own median step.
"""
import argparse, json, resource, statistics, subprocess, sys, time

SHAPES = {  # layers, heads, width, vocabulary, positions, batch, tokens, biases
    "nano": (4, 4, 128, 65, 64, 12, 64, False),
    "gpt2": (12, 12, 768, 50257, 1024, 4, 64, True),
}


def torch_step(name, threads, steps):
    """Median milliseconds of a training step in PyTorch, and the peak memory."""
    import torch, torch.nn as nn, torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    layers, heads, width, vocab, positions, batch, length, bias = SHAPES[name]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
            self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (part.view(b, t, heads, c // heads).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(z.transpose(1, 2).reshape(b, t, c))
            gelu = "none" if name == "nano" else "tanh"
            return x + self.down(F.gelu(self.up(self.ln2(x)), approximate=gelu))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(positions, width)
            self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(layers)]), nn.LayerNorm(width, bias=bias)

        def forward(self, ids, targets):
            x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
            logits = F.linear(self.norm(self.blocks(x)), self.tok.weight)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    model = GPT()
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    ids, targets = (torch.randint(vocab, (batch, length)) for _ in range(2))
    times = []
    for step in range(steps + 3):
        start = time.perf_counter()
        model(ids, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= 3:
            times.append(1e3 * (time.perf_counter() - start))
    return {"ms_per_step": statistics.median(times), "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["nano"], metavar="nano|gpt2")
    parser.add_argument("--limpid", default="target/release/limpid")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch-step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    steps = lambda name: 40 if name == "nano" else 4
    if args.torch_step:
        print(json.dumps(torch_step(args.torch_step, args.threads, steps(args.torch_step))))
        return
    run = lambda command: json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print("| train, f32 | limpid ms (range) | PyTorch ms (range) | times as fast | limpid's share of the roof | memory, limpid / PyTorch |\n|---|---|---|---|---|---|")
    for name in args.names:
        batch, length = SHAPES[name][5:7]
        own = [args.limpid, "bench", "train", "--preset", name, "--batch-size", str(batch), "--context", str(length), "--dropout", "0",
               "--threads", str(args.threads), "--steps", str(steps(name)), "--json"]
        other = [sys.executable, __file__, "--torch-step", name, "--threads", str(args.threads)]
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(run(own))
            theirs.append(run(other))
        ms = lambda rows: [row["ms_per_step"] for row in rows]
        text = lambda values: f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"
        share = statistics.median(row["share_of_roof"] for row in ours)
        memory = max(r["peak_rss_bytes"] for r in ours) / max(r["peak_rss_bytes"] for r in theirs)
        ratio = statistics.median(ms(theirs)) / statistics.median(ms(ours))
        print(f"| {name}, B {batch}, T {length} | {text(ms(ours))} | {text(ms(theirs))} | {ratio:.2f} | {100 * share:.0f} % | {memory:.2f} |")


if __name__ == "__main__":
    main()
