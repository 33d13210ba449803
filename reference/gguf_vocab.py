#!/usr/bin/env python3
"""What llama.cpp makes of vocabularies in GGUF files: ids that files lack, tokens that end a generation, texts.

    python reference/gguf_vocab.py LLAMA_CPP

LLAMA_CPP is a checkout of llama.cpp, or `vendor/llama.cpp` of llama-cpp-python's source (0.3.36). Compiles
gguf_vocab.cpp with the parts of llama.cpp that it needs (g++, a minute), writes a GGUF file for each case below, and
keeps what llama.cpp says of it in crates/limpid-checkpoint/fixtures/gguf_vocab.json.
"""

import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import gguf
import sentencepiece

HERE = pathlib.Path(__file__).parent
OUT = HERE.parent / "crates/limpid-checkpoint/fixtures/gguf_vocab.json"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
C = ["ggml.c", "ggml-alloc.c", "ggml-quants.c"]
CPP = ["ggml-backend.cpp", "ggml-threading.cpp", "gguf.cpp", "ggml.cpp"]
LLAMA = "vocab model-loader arch impl hparams mmap".split()


def build(source, folder):
    for name, at in (("llama", "src"), ("ggml", "ggml/src")):
        (folder / f"{name}-version.h").write_text(f'#define {name.upper()}_VERSION "x"\n#define {name.upper()}_COMMIT "x"\n')
    includes = [folder, *(source / at for at in ("include", "src", "ggml/include", "ggml/src"))]
    flags = ["-O1", "-w", "-ffunction-sections", "-fdata-sections", "-D_GNU_SOURCE",
        *(f"-I{path}" for path in includes)]
    objects = []
    files = [(source / "ggml/src" / name) for name in C + CPP]
    files += [source / f"src/llama-{name}.cpp" for name in LLAMA] + [source / "src/unicode.cpp",
        source / "src/unicode-data.cpp"]
    for file in [*files, HERE / "gguf_vocab.cpp"]:
        objects.append(folder / (file.name + ".o"))
        compiler = ["gcc"] if file.suffix == ".c" else ["g++", "-std=c++17"]
        subprocess.run([*compiler, *flags, "-c", file, "-o", objects[-1]], check=True)
    program = folder / "gguf_vocab"
    subprocess.run(["g++", *objects, "-o", program, "-Wl,--gc-sections", "-lpthread", "-ldl"], check=True)
    return program


def spm(tokens, scores=None, extra=(), types=True, **keys):
    """SentencePiece's table: three special tokens, bytes, `tokens` with their scores, then `extra`: (token, type,
    score)."""
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    rows = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    rows += [(token, BYTE, 0.0) for token in bytes_]
    scores = scores or [-float(i) for i in range(len(tokens))]
    rows += [(token, NORMAL, score) for token, score in zip(tokens, scores)] + list(extra)
    found = {"model": "llama", "tokens": [row[0] for row in rows], "scores": [row[2] for row in rows]}
    if types:
        found["token_type"] = [row[1] for row in rows]
    return found | keys


WORDS = ["ll", "he", "llo", "▁w", "or", "ld", "hello", "orld", "▁hello", "▁world", "▁", *"helowrd"]


def bpe(extra=(), letters=True, merges=("h e", "l l", "he ll", "hell o", "Ġ w"), **keys):
    """GPT-2's letters of bytes, the tokens of merges, then `extra`: (token, type)."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letter = {b: chr(b) for b in visible}
    letter |= {b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in letter)}
    rows = [(letter[b], NORMAL) for b in range(256)] if letters else []
    rows += [(merge.replace(" ", ""), NORMAL) for merge in merges] + list(extra)
    return {"model": "gpt2", "tokens": [row[0] for row in rows], "token_type": [row[1] for row in rows],
        "merges": list(merges)} | keys


def marked(extra=(), merges=("h e", "l l", "he ll", "hell o", "▁ w", "▁ ▁", "\n \n", "\n\n \n\n", "\n\n \n"), **keys):
    """Gemma 4's table: special tokens, bytes, letters, the tokens of merges, then `extra`: (token, type)."""
    rows = [(token, CONTROL) for token in ("<pad>", "<eos>", "<bos>", "<unk>")] + [(f"<0x{b:02X}>", BYTE)
        for b in range(256)]
    rows += [(letter, NORMAL) for letter in "helowrd▁\n\t.é"] + [(merge.replace(" ", ""), NORMAL)
        for merge in merges] + list(extra)
    keys = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "scores": [0.0] * len(rows)} | keys
    return {"model": "gemma4", "tokens": [row[0] for row in rows], "token_type": [row[1] for row in rows],
        "merges": list(merges)} | keys


def field(message, number):
    """The bytes of a field of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        size = {0: 0, 1: 8, 2: None, 5: 4}[tag & 7]
        if size == 0:
            varint()
        size = varint() if size is None else size
        if tag >> 3 == number:
            return message[at : at + size]
        at += size


def charsmap(rules):
    """SentencePiece's map of characters for pairs of texts."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        codes = ["\t".join(" ".join(f"{ord(letter):X}" for letter in text) for text in rule) for rule in rules]
        file.write("\n".join(codes) + "\n")
        file.flush()
        model = io.BytesIO()
        options = dict(vocab_size=20, model_type="unigram", normalization_rule_tsv=file.name, hard_vocab_limit=False,
            minloglevel=2)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["hello world he lo wor ld"] * 50),
            model_writer=model, **options)
    return list(field(field(model.getvalue(), 3), 2))


MAP = [("\t", " "), ("\n", " "), ("\u00a0", " "), ("\uff21", "A"), ("e\u0301", "é"), ("\ufb01", "fi"), ("\u338f", "kg"),
    ("\u200b", "")]
PIECES = {"▁": -2.0, "▁he": -4.0, "llo": -4.5, "▁hello": -7.0, "▁w": -4.0, "or": -4.2, "ld": -4.1, "▁world": -8.5,
    "<|x|>": -3.0} | {
    letter: -5.0 - i / 8 for i, letter in enumerate("helowrdéAfikg.")
}


def ugm(pieces=PIECES, extra=(), mapped=True, **keys):
    """Unigram's table: special tokens, pieces with their scores, then `extra`: (token, type, score)."""
    rows = [("<pad>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("<unk>", UNKNOWN, 0.0)]
    rows += [(piece, NORMAL, score) for piece, score in pieces.items()] + list(extra)
    found = {"model": "t5", "tokens": [row[0] for row in rows], "token_type": [row[1] for row in rows],
        "scores": [row[2] for row in rows]}
    return found | ({"precompiled_charsmap": charsmap(MAP)} if mapped else {}) | {"add_space_prefix": True,
        "remove_extra_whitespaces": True} | keys


def unigrams(seed):
    """Unigram's table of few letters, one of which has no token, with equal scores among others."""
    draw = random.Random(seed)
    letters = "ab▁é"
    pieces = {"".join(draw.choices(letters, k=draw.randint(2, 4))): float(draw.choice([-1, -2, -2.5, -4]))
        for _ in range(14)}
    return pieces | {letter: -3.0 - draw.random() for letter in letters if draw.random() < 0.75 or letter == "a"}


def wpm(count, **keys):
    tokens = ["[PAD]", *(f"[unused{i}]" for i in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁hello", "▁wor",
        "ld"][:count]
    types = [CONTROL if token[0] == "[" else NORMAL for token in tokens]
    return {"model": "bert", "tokens": tokens, "token_type": types} | keys


def drawn(seed):
    """A table of few letters, some of which have no token, with equal scores among others."""
    draw = random.Random(seed)
    letters = "ab▁é"
    known = [letter for letter in letters if draw.random() < 0.6]
    tokens = {"".join(draw.choices(letters, k=draw.randint(2, 5))) for _ in range(14)}
    tokens = sorted(tokens) + known
    scores = [float(draw.choice([-1, -2, -2.5, -7, 0])) for _ in tokens]
    words = {"".join(draw.choices("ab", k=draw.randint(2, 3))) for _ in range(2)}
    extra = [(token, draw.choice([USER, CONTROL]), -1000.0) for token in sorted(words - set(tokens))]
    return spm(tokens, scores, extra, add_space_prefix=draw.random() < 0.7)


TEXTS = ["hello world", " hello  world", "", "hello</s>world<s>", "wörld", "lllll hehe"]
DRAWN = ["abba", "a b ab", "éaébb aab", "aaaaaaa", "bababab", "  b  a ", "ab</s>ba"]
MARKED = [*TEXTS, "he\n\n\nhe\n\n\n\n\n\nhe \n he", "\t\t wörld…🙂", "  he   hello\n", "ル hello.hello",
    "<bos>he<eos>\n\n<unk>"]
SPACED = [*TEXTS, "he\tllo\n\nworld \n", "caf\u00e9 cafe\u0301 \uff21\ufb01 5\u338f", "   ", "a\u00a0b\u200bc",
    "😀😀 hello 😀world", "he<unk>he  <pad> ld", "world</s> world", "<|x|>"]
MARKS = [*TEXTS, "he\u0301llo n\u0303", "हिन्दी में", "  \u0301he'LL 12", "สวัสดี กำลัง\n\n he",
    "a\u0301\u0302b .\u0301. \u20dd"]
CASES = {
    "spm": (spm(WORDS, bos_token_id=1, eos_token_id=2), TEXTS),
    "spm-without-ids": (spm(WORDS), TEXTS),
    "spm-character-gone": (spm([word for word in WORDS if word != "w"]), TEXTS),
    "spm-characters-gone": (spm([word for word in WORDS if len(word) > 1]), TEXTS),
    "spm-one-score": (spm(WORDS, [-1000.0] * len(WORDS)), TEXTS),
    "spm-whole-scores": (spm(WORDS) | {"scores": [-(i % 7) for i in range(259 + len(WORDS))]}, TEXTS),
    "spm-without-types": (spm(WORDS, types=False), TEXTS),
    "spm-ids-beyond": (spm(WORDS, eos_token_id=9999, bos_token_id=8888), TEXTS),
    "spm-ends": (spm(WORDS, extra=[("<end>", CONTROL, 0.0), ("<call>", CONTROL, 0.0)], eot_token_id=277,
    eom_token_id=278), TEXTS),
    "spm-end-by-text": (spm(WORDS, extra=[("<|im_end|>", NORMAL, 0.0), ("<|eom_id|>", USER, 0.0)]), [*TEXTS,
    "he<|im_end|>he<|eom_id|>"]),
    "spm-end-of-message": (spm(WORDS, extra=[("<|end|>", CONTROL, 0.0), ("<|return|>", CONTROL, 0.0),
    ("<|call|>", CONTROL, 0.0)]), [*TEXTS, "he<|end|>he"]),
    "spm-plain-end": (spm(WORDS, extra=[("<|tool_response>", CONTROL, 0.0)], eos_token_id=277), TEXTS),
    "spm-blanks": (spm([*WORDS, "▁▁", "▁▁▁", "▁▁▁▁", "▁▁▁▁▁"], extra=[("\n\n", USER, -1000.0)]), [*TEXTS, "he     he",
    "a\n\n\n\nhe          "]),
    "spm-no-prefix": (spm(WORDS, add_space_prefix=False, add_bos_token=False, add_eos_token=True), TEXTS),
    "bpe-without-ids": (bpe(pre="gpt-2"), TEXTS),
    "bpe-few-tokens": (bpe(letters=False, merges=("a b",), extra=[(letter, NORMAL) for letter in "abĊ"], pre="gpt-2"),
    ["ab"]),
    "bpe-fills": (bpe([("<|endoftext|>", CONTROL), ("[PAD]", CONTROL), ("<|file_sep|>", NORMAL), ("<|repo_name|>",
    USER)], pre="qwen2"), [*TEXTS, "he<|file_sep|>he"]),
    "bpe-named-fill": (bpe([("<x>", CONTROL), ("[PAD]", CONTROL)], pre="qwen2", fim_pad_token_id=261, eos_token_id=261),
    TEXTS),
    "bpe-llama3": (bpe([("<|begin_of_text|>", CONTROL), ("<|eot_id|>", CONTROL)], pre="falcon-h1", bos_token_id=261,
    eos_token_id=262), TEXTS),
    "bpe-old": (bpe(), TEXTS),
    "bpe-unknown": (bpe(pre="nobodys"), TEXTS),
    "wpm-without-ids": (wpm(107), ["hello world", "Wor ld x"]),
    "wpm-other-ids": (wpm(107, bos_token_id=5, seperator_token_id=6, unknown_token_id=7, eos_token_id=8),
    ["hello world", "Wor ld x"]),
    "bpe-marks": (bpe([("<|endoftext|>", CONTROL)], pre="qwen35", eos_token_id=261, merges=("h e", "l l", "he ll",
    "Ì ģ", "à ¤", "Ġ à¤", "Ġ w")), MARKS),
    "gemma4": (marked(add_bos_token=True, add_space_prefix=False), MARKED),
    "gemma4-without-bos": (marked(add_bos_token=False, pre="default"), MARKED),
    "gemma4-turns": (marked([("<turn|>", CONTROL), ("<|tool_response>", USER), ("</s>", NORMAL), ("[multimodal]",
    USER)]), [*MARKED, "he<turn|>\n</s>[multimodal]he"]),
    "ugm": (ugm(), SPACED),
    "ugm-named": (ugm(extra=[("<s>", CONTROL, 0.0), ("<mask>", USER, 0.0), ("[PAD]", UNUSED, -10000.0)],
    bos_token_id=26, eos_token_id=1, unknown_token_id=2, add_bos_token=True, add_eos_token=False), [*SPACED,
    "<s>he <mask> [PAD]"]),
    "ugm-plain": (ugm(mapped=False), SPACED),
    "ugm-blanks": (ugm(remove_extra_whitespaces=False), [text for text in SPACED if text.strip()]),
    "ugm-no-prefix": (ugm(add_space_prefix=False, remove_extra_whitespaces=False), SPACED),
} | {f"spm-drawn-{seed}": (drawn(seed), DRAWN) for seed in range(8)} | {
    f"ugm-drawn-{seed}": (ugm(unigrams(seed), mapped=seed % 2 == 0, remove_extra_whitespaces=seed % 3 > 0), DRAWN[:-1])
    for seed in range(6)
}


def write(path, keys):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        key = f"tokenizer.ggml.{key}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _ if key == "tokenizer.ggml.precompiled_charsmap":
                writer.add_precompiled_charsmap(bytes(value))
            case _:
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    (source,) = map(pathlib.Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        program, told = build(source, folder), []
        for name, (keys, texts) in CASES.items():
            write(folder / "x.gguf", keys)
            said = json.loads(subprocess.run([program, folder / "x.gguf", *texts], check=True, capture_output=True,
                text=True).stdout)
            for text, ids in zip(texts, said.get("texts", [])):
                ids["text"] = text
                del ids["n"]
            told.append({"name": name, "keys": keys, "llama.cpp": said})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in told)
    OUT.write_text(f"[\n{lines}\n]\n")
    print(f"{len(told)} cases in {OUT}")


if __name__ == "__main__":
    main()
