"""PyTorch as people run it: fused attention, fused AdamW, autocast for bf16. compare.py calls this; one JSON line comes
out.

  python benches/compare/torch_peer.py step --size nano --dtype bf16 --batch 12 --time 64 --steps 40
  python benches/compare/torch_peer.py step --size gpt2 --dtype f16 --batch 8 --time 1024 --device cuda --compile
  python benches/compare/torch_peer.py decode --size gpt2 --device cuda
  python benches/compare/torch_peer.py recipe --text FILE
"""
import argparse, json, math, resource, statistics, time
import torch, torch.nn as nn, torch.nn.functional as F

SIZES = {  # layers, heads, width, positions, vocabulary (GPT-2's padded, as nanoGPT does for speed), biases, GELU
    "nano": (4, 4, 128, 64, 65, False, "none"),
    "baby": (6, 6, 384, 256, 65, False, "none"),
    "8m": (8, 4, 256, 128, 2048, False, "none"),
    "gpt2": (12, 12, 768, 1024, 50304, True, "tanh"),
}


class Block(nn.Module):
    def __init__(self, heads, width, bias, gelu, dropout):
        super().__init__()
        self.heads, self.gelu, self.p = heads, gelu, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).chunk(3, -1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0)
        x = x + self.drop(self.out(z.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln2(x)), approximate=self.gelu)))


class GPT(nn.Module):
    def __init__(self, size, vocab=None, dropout=0.0):
        super().__init__()
        layers, heads, width, positions, own_vocab, bias, gelu = SIZES[size]
        self.tok, self.pos, self.drop = nn.Embedding(vocab or own_vocab, width), nn.Embedding(positions,
            width), nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(heads, width, bias, gelu, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, bias=bias)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight"))
                    else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, targets):
        x = self.drop(self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device)))
        logits = F.linear(self.norm(self.blocks(x)), self.tok.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def adamw(model, rate):
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)


def draw(ids, batch, length):
    at = torch.randint(len(ids) - length, (batch,)).tolist()
    return torch.stack([ids[i:i + length] for i in at]), torch.stack([ids[i + 1:i + length + 1] for i in at])


TYPES = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}


def update(model, run, optimizer, ids, batch, length, dtype, scaler=None):
    x, y = draw(ids, batch, length)
    with torch.autocast(ids.device.type, dtype=TYPES[dtype] or torch.bfloat16, enabled=dtype != "f32"):
        loss = run(x, y)
    (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer) if scaler else optimizer.step()
    if scaler:
        scaler.update()
    optimizer.zero_grad(set_to_none=True)


def finish(device):
    """Waits for what the device was given, so that a clock tells its time."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def step(args):
    """The median step, warm-up left out."""
    model = GPT(args.size, dropout=args.dropout).to(args.device)
    run = torch.compile(model) if args.compile else model
    optimizer, times = adamw(model, 1e-4), []
    ids = torch.randint(min(SIZES[args.size][4], 50257), (args.batch * args.time + 10_000,)).to(args.device)
    scaler = torch.amp.GradScaler(args.device) if args.dtype == "f16" else None
    for _ in range(args.warmup + args.steps):
        start = time.perf_counter()
        update(model, run, optimizer, ids, args.batch, args.time, args.dtype, scaler)
        finish(args.device)
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms_per_step": statistics.median(times[args.warmup:]), "first_ms": times[0], "peak_rss_bytes": peak()}


def decode(args):
    """transformers' GPT-2 with its cache: a prompt at once, then tokens one by one, the likeliest each time."""
    from transformers import GPT2Config, GPT2LMHeadModel
    kind = TYPES[args.dtype] or torch.float32
    model = GPT2LMHeadModel(GPT2Config()).to(args.device, kind).eval()

    def seconds(work):
        finish(args.device)
        start = time.perf_counter()
        out = work()
        finish(args.device)
        return time.perf_counter() - start, out

    with torch.inference_mode():
        ids = torch.randint(50257, (1, args.time), device=args.device)
        prompts = [seconds(lambda: model(ids))[0] for _ in range(args.warmup + 5)][args.warmup:]
        out, steps = model(ids[:, :8], use_cache=True), []
        for _ in range(args.warmup + args.steps):
            next_one, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            taken, out = seconds(lambda: model(next_one, past_key_values=cache, use_cache=True))
            steps.append(taken)
    return {"prefill_tok_s": args.time / statistics.median(prompts),
        "tok_s": 1 / statistics.median(steps[args.warmup:])}


def roofs(args):
    """A large copy, and a large product in each type."""
    a = torch.randn(8192, 8192, device=args.device)
    big = torch.randn(1 << 28, device=args.device)

    def best(work, times=10):
        taken = []
        for _ in range(3 + times):
            finish(args.device)
            start = time.perf_counter()
            work()
            finish(args.device)
            taken.append(time.perf_counter() - start)
        return min(taken[3:])

    out = {"copy_gb_s": 8e-9 * len(big) / best(big.clone)}
    for name, kind in TYPES.items():
        b = a.to(kind or torch.float32)
        out[f"{name}_tflop_s"] = 2e-12 * 8192**3 / best(lambda: b @ b)
    return out


def set_rate(optimizer, step, steps, peak=1e-3, warmup=100):
    """nanoGPT's schedule, at a step from 0: a warm-up, then half a cosine to a tenth."""
    share = (step - warmup) / (steps - warmup)
    rate = peak * (step + 1) / (warmup + 1) if step < warmup else peak * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
    for group in optimizer.param_groups:
        group["lr"] = rate


def loss_of_all(model, ids, length):
    """The mean over all of the text, in windows that do not overlap, the last one shorter."""
    model.eval()
    total, whole = 0.0, (len(ids) - 1) // length
    with torch.no_grad():
        x, y = ids[:whole * length].view(whole, length), ids[1:whole * length + 1].view(whole, length)
        for a, b in zip(x.split(64), y.split(64)):
            total += model(a, b).item() * a.numel()
        if rest := len(ids) - 1 - whole * length:
            total += model(ids[None, whole * length:-1], ids[None, whole * length + 1:]).item() * rest
    model.train()
    return total / (len(ids) - 1)


def recipe(args):
    """nanoGPT's recipe for characters on a CPU, its evaluations on the way, and all of the validation text at the end."""
    text = open(args.text, encoding="utf-8").read()
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([index[c] for c in text])
    train, val = ids[:int(0.9 * len(ids))], ids[int(0.9 * len(ids)):]
    batch, length = 12, 64
    model = GPT("nano", len(index))
    optimizer = adamw(model, 1e-3)
    for it in range(args.steps):
        if it % 250 == 0:
            model.eval()
            with torch.no_grad():
                [[model(*draw(part, batch, length)).item() for _ in range(20)] for part in (train, val)]
            model.train()
        set_rate(optimizer, it, args.steps)
        update(model, model, optimizer, train, batch, length, args.dtype)
    return {"val_loss": loss_of_all(model, val, length), "peak_rss_bytes": peak()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["step", "decode", "roofs", "recipe"])
    parser.add_argument("--size", default="nano", choices=SIZES)
    parser.add_argument("--dtype", default="f32", choices=TYPES)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--time", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    print(json.dumps({"step": step, "decode": decode, "roofs": roofs, "recipe": recipe}[args.what](args)))
