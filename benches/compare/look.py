"""How long looking inside a model takes, beside a prompt that is only run.

    python benches/compare/look.py target/release/limpid MODEL --tokens 1024 --rounds 5

Each round takes new tokens at random and asks one server, in turn: for the prompt alone (a completion of one token);
for a trace, with the moment of its first data (the heads of the first block), of all heads and of all predictions; and
for heads of blocks that are not at hand. Medians, least and greatest.
"""
import argparse, json, os, random, re, statistics, subprocess, time, urllib.request


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("limpid")
    ask.add_argument("model")
    ask.add_argument("--tokens", type=int, default=1024)
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--memory", default="512MiB")
    args = ask.parse_args()
    command = [args.limpid, "serve", "--model", args.model, "--port", "0", "--inspect-memory", args.memory]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = ""
        while "http://" not in line:
            line = server.stderr.readline()
        address = re.search(r"http://[\d.]+:\d+", line).group()
        about = json.load(urllib.request.urlopen(f"{address}/inspect/v1/model"))
        before, rows = memory(server.pid), {}
        for n in range(args.rounds + 1):
            ids = [random.randrange(about["vocab_size"] - 1) for _ in range(args.tokens)]
            for name, value in one(address, about, ids).items():
                if n > 0:  # the first warms up
                    rows.setdefault(name, []).append(value)
        for name, all_of in rows.items():
            print(f"{name:34} {statistics.median(all_of):8.3f}  ({min(all_of):.3f} to {max(all_of):.3f})")
        ratios = [look / alone for look, alone in zip(rows["all heads, s"], rows["prompt alone, s"])]
        print(f"{'all heads to the prompt alone':34} {statistics.median(ratios):8.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"{'private memory, MB':34} {before:.0f} before, {memory(server.pid):.0f} after")
    finally:
        server.terminate()


def memory(pid):
    lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1000


def post(address, path, body):
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request)


def one(address, about, ids):
    clock, found = time.perf_counter, {}
    start = clock()
    # one token less: the answer needs a place in the context, and a known prompt would be free
    post(address, "/v1/completions", {"prompt": ids[1:], "max_tokens": 1}).read()
    found["prompt alone, s"] = clock() - start
    start, trace = clock(), ""
    for line in post(address, "/inspect/v1/traces", {"tokens": ids}):
        event = json.loads(line)
        if event["event"] == "start":
            trace = event["id"]
        if event["event"] == "layer" and event["layer"] == 0:
            found["first data, s"] = clock() - start
        if event["event"] == "layer" and event["layer"] == about["n_layer"] - 1:
            found["all heads, s"] = clock() - start
    found["all predictions, s"] = clock() - start
    blocks = random.sample(range(about["n_layer"]), min(5, about["n_layer"]))
    opened, same, cells = [], [], []
    for block in blocks:
        for head, times in ((0, opened), (about["n_head"] - 1, same)):
            name, level = f"blocks.{block}.attn.hook_pattern", max(0, (len(ids) - 1).bit_length() - 9)
            across = -(-len(ids) // (256 << level))
            tiles = [{"name": name, "index": [0, head], "tile": [i, j], "level": level, "pool": "max", "code": "log8"}
                for i in range(across) for j in range(i + 1)]
            start = clock()
            post(address, f"/inspect/v1/traces/{trace}/tiles", {"tiles": tiles}).read()
            times.append(1000 * (clock() - start))
        start = clock()
        urllib.request.urlopen(f"{address}/inspect/v1/traces/{trace}/tensors/{name}?at=0,0,{len(ids) - 1},*").read()
        cells.append(1000 * (clock() - start))
    found["a head of another block, ms"] = statistics.median(opened)
    found["another head of it, ms"] = statistics.median(same)
    found["a row of exact weights, ms"] = statistics.median(cells)
    return found


if __name__ == "__main__":
    main()
