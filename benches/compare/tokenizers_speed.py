"""Encoding and tokenizer training: limpid beside tiktoken and HuggingFace's tokenizers, same machine, same run.

    python benches/compare/tokenizers_speed.py target/release/limpid TEXT [--megabytes 20] [--train 20]

Encoding is in memory, one text; limpid's figure comes from `limpid bench encode`, which reads the file first. The best
of three.
"""
import argparse, json, os, re, subprocess, tempfile, time


def best(work, times=3):
    took = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("limpid"); a.add_argument("text")
    a.add_argument("--megabytes", type=float, default=10)
    a.add_argument("--train", type=float, default=10)
    a.add_argument("--vocab", type=int, default=16384)
    a.add_argument("--only", default="")
    a = a.parse_args()
    os.environ["RAYON_NUM_THREADS"] = "1"
    import tiktoken, tokenizers
    from tiktoken_ext import openai_public
    published = open(openai_public.__file__).read()
    gpt4 = re.search(r'cl100k_base.*?"pat_str": r"""(.*?)"""', published, re.S).group(1)
    gpt4o = re.search(r'def o200k_base.*?pat_str = "\|".join\(\s*\[(.*?)\]\s*\)', published, re.S).group(1)
    patterns = {"gpt2": openai_public.r50k_pat_str, "cl100k_base": gpt4,
        "o200k_base": "|".join(re.findall(r'r"""(.*?)"""', gpt4o))}
    import base64
    work = tempfile.mkdtemp()
    raw = open(a.text, "rb").read()
    whole = (raw * (int(a.megabytes * 1e6) // len(raw) + 1))[: int(a.megabytes * 1e6)].decode("utf-8", "ignore")
    size = len(whole.encode()) / 1e6
    sample = work + "/text.txt"
    open(sample, "w", newline="").write(whole)
    documents = [d + "\n" for d in whole.split("\n")]
    for name, pattern in patterns.items():
        if a.only not in name: continue
        for form in ("tiktoken", "json"):
            subprocess.run([a.limpid, "tokenize", "--tokenizer", name, "--export", f"{work}/{name}.{form}", "--force"],
                check=True, stdout=subprocess.DEVNULL)
        ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in open(f"{work}/{name}.tiktoken"))}
        theirs = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        hf = tokenizers.Tokenizer.from_file(f"{work}/{name}.json")
        own = json.loads(subprocess.run([a.limpid, "bench", "encode", sample, "--tokenizer", name, "--json"],
            check=True, capture_output=True, text=True).stdout)
        first = best(lambda: theirs.encode_ordinary(whole))
        lines = best(lambda: [theirs.encode_ordinary(d) for d in documents])
        second = best(lambda: hf.encode_batch_fast(documents[: len(documents) // 4], add_special_tokens=False), 1) * 4
        print(f"{name:12} limpid {own['one_thread_mb_s']:6.1f} MB/s, {own['threads']} threads {own['all_threads_mb_s']:6.1f};  tiktoken {size / first:5.1f} ({size / lines:.1f} by line);  tokenizers {size / second:5.1f} (by line)", flush=True)
    if a.train:
        part = work + "/train.txt"
        open(part, "w", newline="").write(whole[: int(a.train * 1e6)])
        for threads in (1, os.cpu_count()):
            out = f"{work}/own{threads}.json"
            own = best(lambda: subprocess.run([a.limpid, "tokenize", "train", part, "--vocab-size", str(a.vocab),
                "--threads", str(threads), "--out", out, "--force", "--quiet"], check=True, stdout=subprocess.DEVNULL),
                1)
            code = f"import tokenizers as t; k=t.Tokenizer(t.models.BPE()); k.pre_tokenizer=t.pre_tokenizers.ByteLevel(add_prefix_space=False); k.train(['{part}'], t.trainers.BpeTrainer(vocab_size={a.vocab - 1}, min_frequency=2, show_progress=False, initial_alphabet=t.pre_tokenizers.ByteLevel.alphabet())); k.save('{work}/hf.json')"
            env = dict(os.environ, RAYON_NUM_THREADS=str(threads))
            hf = best(lambda: subprocess.run(["python3" if False else os.sys.executable, "-c", code], check=True,
                env=env), 1)
            same = json.load(open(out))["model"]["merges"] == [x if isinstance(x, list) else x.split(" ")
                for x in json.load(open(work + "/hf.json"))["model"]["merges"]]
            print(f"training {a.vocab} tokens on {a.train:g} MB, {threads} thread(s): limpid {own:.2f} s, tokenizers {hf:.2f} s; the same merges: {same}", flush=True)


if __name__ == "__main__":
    main()
