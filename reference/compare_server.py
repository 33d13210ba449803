"""Log-probabilities that limpid's server answers beside those of transformers, on the same model.

    python reference/compare_server.py target/release/limpid MODEL --count 40

MODEL is a folder of limpid's that `limpid convert` can write for HuggingFace. Each random text is asked for with `echo`
and `logprobs`, as lm-eval asks; transformers scores the same ids in f32. Exit 1 if the log-probability of a token, or
one of the five greatest at its position, is off by more than 1e-3 nats.
"""
import argparse, json, os, random, re, subprocess, sys, tempfile, urllib.request
import torch, transformers

LIMIT = 1e-3


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("limpid")
    ask.add_argument("model")
    ask.add_argument("--count", type=int, default=40)
    args = ask.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([args.limpid, "convert", args.model, f"{folder}/hf", "--to", "hf"], check=True,
            stderr=subprocess.DEVNULL)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/hf", dtype=torch.float32).eval()
        server = subprocess.Popen([args.limpid, "serve", "--model", args.model, "--port", "0"], stderr=subprocess.PIPE,
            text=True)
        try:
            address = re.search(r"http://[\d.]+:\d+", server.stderr.readline()).group()
            compare(address, theirs, args.count)
        finally:
            server.terminate()


def compare(address, theirs, count):
    draw, worst, checked = random.Random(1), 0.0, 0
    vocabulary, context = theirs.config.vocab_size, theirs.config.n_positions
    for _ in range(count):
        ids = [draw.randrange(vocabulary - 1) for _ in range(draw.randint(2, min(context, 200)))]
        body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 5}
        request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        told = json.load(urllib.request.urlopen(request))["choices"][0]["logprobs"]
        with torch.no_grad():
            want = torch.log_softmax(theirs(torch.tensor([ids])).logits[0].double(), -1)
        for i, token in enumerate(ids[1:]):
            likeliest = sorted(told["top_logprobs"][i + 1].values(), reverse=True)[:5]
            pairs = [(told["token_logprobs"][i + 1], want[i, token].item()), *zip(likeliest,
                want[i].topk(5).values.tolist())]
            worst = max([worst, *(abs(ours - of_theirs) for ours, of_theirs in pairs)])
            checked += len(pairs)
    print(f"{count} texts, {checked} log-probabilities: greatest difference {worst:.2e} nats")
    if not worst <= LIMIT or checked == 0:
        sys.exit(1)


main()
