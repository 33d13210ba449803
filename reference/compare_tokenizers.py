"""Ids of limpid beside those of tiktoken and HuggingFace's tokenizers, on a million generated strings of every kind.

    python reference/compare_tokenizers.py target/release/limpid --count 1000000

Nothing is downloaded: limpid writes its own ranks (.tiktoken) and tokenizer.json, tiktoken gets its own published
regular expressions. Tokenizers trained here on the repository's own text are compared in the same way. Exit 1 if any id
differs.
"""
import argparse, glob, json, os, random, re, subprocess, sys, tempfile, unicodedata
import tiktoken, tokenizers
from tiktoken_ext import openai_public

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORDS = """the of and to in a is that it's don't we'll they've I'm he'd you're THE Dogs camelCase HTTPServer naïve Straße ﬁne
snake_case kebab-case x86_64 3.14159 1,000,000 2026-11-20 $9.99 50% e.g. U.S.A. http://example.com/a?b=c user@host #tag
«Ça» Привет мир ΑΒΓ αβγ שלום مرحبا नमस्ते สวัสดี 안녕하세요 こんにちは 東京都 日本語 ქართული Ⅷ ½ ٣٤ ०१ ＡＢ ǅ ʰ ſ 'ſ 'S 'LL ’s""".split()
EMOJI = ["🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇯🇵", "1️⃣", "❤️", "🧑🏿‍🚀", "\u200d", "\ufe0f", "\U000e0067"]
BLANKS = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b",
    "\x0c", "\u200b", "\x1c"]
MARKS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["'", "'", "...", "--", "//", "/\n", "}\n\n", "…", "“", "”", "\0",
    "\x7f"]
SPECIAL = ["<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|endoftext", "|>", "<|endoftext|>x"]


def categories():
    """Every assigned character of the Unicode of this Python, by category."""
    table = {}
    for code in range(0x110000):
        if not 0xD800 <= code <= 0xDFFF:
            table.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    return list(table.values())


def texts(count, seed):
    draw = random.Random(seed)
    kinds = categories()
    some = lambda: draw.choice(draw.choice(kinds))
    def piece():
        n = draw.random()
        if n < 0.30: return draw.choice(WORDS)
        if n < 0.50: return draw.choice(BLANKS)
        if n < 0.62: return draw.choice(MARKS)
        if n < 0.68: return draw.choice(EMOJI)
        if n < 0.80: return some()
        if n < 0.86: return some() * draw.randint(1, 9)
        if n < 0.90: return str(draw.randrange(10 ** draw.randint(1, 12)))
        if n < 0.93: return draw.choice(SPECIAL)
        if n < 0.96: return "'" + draw.choice(["s", "t", "re", "ve", "m", "ll", "d", "S", "Re", "x"])
        return "".join(draw.choice("abcdefghijklmnopqrstuvwxyzABCXYZ") for _ in range(draw.randint(1, 14)))
    fixed = [""] + [c * n for c in "a \n!0é東🙂" for n in (1, 2, 3, 100, 4000)] + SPECIAL + EMOJI
    for kind in kinds:  # every character once, between others
        fixed += ["a" + "".join(kind[i:i + 40]) + " b" for i in range(0, len(kind), 40)
            if unicodedata.category(kind[0]) != "Cn"]
    yield from fixed[:count]
    for _ in range(count - len(fixed)):
        yield "".join(piece() for _ in range(draw.choice([1, 2, 3, 5, 8, 13])))


def ids_of(limpid, tokenizer, lines, *flags):
    done = subprocess.run([limpid, "tokenize", "--tokenizer", tokenizer, "--lines", lines, *flags], capture_output=True,
        text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.splitlines()


def ranks_of(path):
    import base64
    return {base64.b64decode(t): int(r) for t, r in (line.split() for line in open(path))}


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("limpid")
    a.add_argument("--count", type=int, default=1_000_000)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--only", default="")
    a = a.parse_args()
    work = tempfile.mkdtemp()
    run = lambda *args: subprocess.run([a.limpid, *args], check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    published = open(openai_public.__file__).read()
    gpt4 = re.search(r'cl100k_base.*?"pat_str": r"""(.*?)"""', published, re.S).group(1)
    gpt4o = re.search(r'def o200k_base.*?pat_str = "\|".join\(\s*\[(.*?)\]\s*\)', published, re.S).group(1)
    gpt4o = "|".join(re.findall(r'r"""(.*?)"""', gpt4o))
    patterns = {"gpt2": openai_public.r50k_pat_str, "gpt4": gpt4, "gpt4o": gpt4o}
    pairs = []  # what limpid is asked for, tiktoken's, HuggingFace's
    named = {"gpt2": "gpt2", "cl100k_base": "gpt4", "o200k_base": "gpt4o"}
    for name, split in named.items():
        if a.only not in name: continue
        ranks, whole = f"{work}/{name}.tiktoken", f"{work}/{name}.json"
        run("tokenize", "--tokenizer", name, "--export", ranks, "--force")
        run("tokenize", "--tokenizer", name, "--export", whole, "--force")
        theirs = tokenizers.Tokenizer.from_file(whole)
        special = {t.content: i for i, t in theirs.get_added_tokens_decoder().items()}
        encoding = tiktoken.Encoding(name, pat_str=patterns[split], mergeable_ranks=ranks_of(ranks),
            special_tokens=special)
        pairs.append((name, name, encoding, theirs))
    corpus = sorted(glob.glob(ROOT + "/*.md") + glob.glob(ROOT + "/docs/*.md") + glob.glob(ROOT + "/crates/**/*.rs",
        recursive=True))
    for split in patterns:
        if a.only not in f"trained-{split}": continue
        ranks, whole = f"{work}/{split}.tiktoken", f"{work}/trained-{split}.json"
        for out in (ranks, whole):
            run("tokenize", "train", *corpus, "--vocab-size", "3000", "--split", split, "--out", out, "--force")
        theirs = tokenizers.Tokenizer.from_file(whole)
        encoding = tiktoken.Encoding("t", pat_str=patterns[split], mergeable_ranks=ranks_of(ranks),
            special_tokens={"<|endoftext|>": 2999})
        pairs.append((f"trained with {split}", whole, encoding, theirs))
    if a.only in "wordpiece":
        whole = f"{work}/pieces.json"
        run("tokenize", "train", *corpus, "--kind", "wordpiece", "--lowercase", "--vocab-size", "3000", "--out", whole,
            "--force")
        pairs.append(("trained word pieces", whole, None, tokenizers.Tokenizer.from_file(whole)))

    total, wrong = 0, {name: [0, 0, 0] for name, *_ in pairs}
    batch, seen = 50_000, {}
    strings = texts(a.count, a.seed)
    while chunk := [s for _, s in zip(range(batch), strings)]:
        lines = work + "/lines.jsonl"
        with open(lines, "w") as out:
            out.writelines(json.dumps(text, ensure_ascii=random.Random(total).random() < 0.5) + "\n" for text in chunk)
        for name, asked, encoding, theirs in pairs:
            with_specials = [json.loads(x) for x in ids_of(a.limpid, asked, lines)]
            ordinary = [json.loads(x) for x in ids_of(a.limpid, asked, lines, "--ordinary")]
            if encoding:
                for text, own, plain in zip(chunk, with_specials, ordinary):
                    differs = encoding.encode(text,
                        allowed_special="all") != own or encoding.encode_ordinary(text) != plain
                    wrong[name][0] += differs
                    if differs and len(seen.setdefault((name, 0), [])) < 5: seen[name, 0].append((text, own,
                        encoding.encode(text, allowed_special="all")))
            hf = [e.ids for e in theirs.encode_batch(chunk, add_special_tokens=False)]
            for text, own, other in zip(chunk, with_specials, hf):
                wrong[name][1] += own != other
                if own != other and len(seen.setdefault((name, 1), [])) < 5: seen[name, 1].append((text, own, other))
            if encoding:  # bytes that are no characters: ids in any order, and what comes of them
                draw = random.Random(total)
                broken = [[draw.randrange(min(encoding.n_vocab, 50_000)) % (256 if draw.random() < 0.5
                    else 50_000) % (encoding.n_vocab - 1) for _ in range(draw.randint(0, 9))] for _ in range(2000)]
                with open(lines + ".ids", "w") as out:
                    out.writelines(json.dumps(x) + "\n" for x in broken)
                back = [json.loads(x) for x in ids_of(a.limpid, asked, lines + ".ids", "--decode")]
                wrong[name][2] += sum(encoding.decode_bytes(x).decode("utf-8", "replace") != y for x, y in zip(broken,
                    back))
        total += len(chunk)
        print(total, "strings:", {n: w for n, w in wrong.items()}, file=sys.stderr, flush=True)
    print(f"tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}, {total} strings each; differences:")
    for name, (first, second, third) in wrong.items():
        print(f"  {name:22} tiktoken {first}  HuggingFace {second}  decoded bytes {third}")
    for key, examples in seen.items():
        for text, own, other in examples:
            print("   ", key, repr(text), own, other)
    sys.exit(any(any(w) for w in wrong.values()))


if __name__ == "__main__":
    main()
