"""Makes crates/limpid-tokenizer/fixtures/tokenizers.json: small tokenizers trained here, and the ids HuggingFace gives
texts.

    python reference/make_tokenizers.py

Each entry holds the files of one model folder, and for every text: its ids, its ids between the post-processor's
tokens, its ids where special tokens are ordinary text, and what the ids decode to (each left out where it is the plain
ids or the text itself). crates/limpid/src/tokenizer/tests.rs compares all of them. `like` names the entry whose files
are shared.
"""

import io
import json
import os
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, OpenAIGPTTokenizer

CORPUS = [
    "The lighthouse keeper's daughter counted 1,204 gulls before breakfast, and she didn't believe the number.",
    "Every evening the lamp turned; every morning the sea had moved a little closer to the kitchen door.",
    "\"We'll need sandbags,\" he said. \"They're in the shed, aren't they?\" They weren't.",
    "Été, naïveté, über, Ångström, façade: words that wander from one language to another.",
    "def count(gulls):\n    total = 0\n    for gull in gulls:\n        total += 1\n    return total\n",
    "In 2024 the tide reached 3.14 metres; in 1987 it was 2.71 metres, or so the logbook says.",
    "東京の朝は早い。Москва не сразу строилась. Η θάλασσα είναι βαθιά.",
    "the keeper the daughter the lamp the sea the door the number the morning the evening closer closer closer",
]

TEXTS = [
    "",
    " ",
    "a",
    "The keeper's lamp turned.",
    "the THE The tHe",
    "  two  spaces   three\tand\ttabs \n\n new lines\r\n\r\n end  ",
    "don't DON'T they're THEY'RE we'll I'd 'tis ''",
    "1 12 123 1234 12345 3.14 1,204 ½ ² ٣ Ⅷ",
    "Été naïve cafe\u0301 ÅNGSTRÖM façade ß ẞ ſ İ ı ﬁ",
    "東京の朝 Москва θάλασσα שלום مرحبا हिन्दी 한국어",
    "🙂 👩‍👩‍👧 🇫🇷 ❤️",
    "\u00a0nbsp\u2003em\u200bzero\u3000wide\ufeffbom",
    "!!! ... ?!?! --- ___ *** (a)[b]{c} <d> $5 50% a@b.c #x",
    "x = {'key': [1, 2, 3]}\n\tif x:\n\t\treturn 'no'\n",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|> c",
    "[CLS] a [MASK] b [SEP] [PAD][UNK]",
    "<s>a</s> <unk> <|user|>b <|user|>",
    "\u0000\u0001\u001f\u007f control",
    "aaaaaaaaaaaaaaaaaaa",
    "Unbelievably, the daughter's daughter counted 98765 sandbags!",
]

ADDED = [
    "a <mask> b<mask>. <pad></s> <x>a <tool> b<tool>c",
    "<|im_start|>user\nA\u030angstro\u0308m e\u0301 가 2024<|im_end|>\n",
]

GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return t


def gpt4():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(GPT4), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False,
        use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(["<|endoftext|>", "<s>"])
    t.add_tokens([AddedToken("<|user|>", normalized=False, rstrip=True)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    return t


def llama():
    byte = [f"<0x{b:02X}>" for b in range(256)]
    specials = ["<unk>", "<s>", "</s>"]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # only to train: words are short
    t.train_from_iterator(CORPUS[:6], trainers.BpeTrainer(vocab_size=360, special_tokens=specials + byte,
        show_progress=False))
    made = json.loads(t.to_str())
    made["pre_tokenizer"] = None
    made["added_tokens"] = [a for a in made["added_tokens"] if a["content"] in specials]
    t = Tokenizer.from_str(json.dumps(made))
    t.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=130, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False))
    return t


# what becomes what: several letters of one, one of several, nothing of one, blanks
RULES = [("ﬁ", "fi"), ("A", "a"), ("e\u0301", "é"), ("½", " 1/2"), ("\u200b", ""), ("\u00a0", " "), ("™", "TM"),
         ("\u3000", " "), ("\U0001d400", "A"), ("\u0001", "")]


def charsmap():
    """SentencePiece's own map of these rules, as T5's and XLM-R's tokenizers have one of 240 kB."""
    from sentencepiece import SentencePieceTrainer
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    model, hexes = io.BytesIO(), lambda text: " ".join(f"{ord(c):X}" for c in text)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write("".join(f"{hexes(a)}\t{hexes(b)}\n" for a, b in RULES))
        rules.flush()
        SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=120, hard_vocab_limit=False, minloglevel=2,
            normalization_rule_tsv=rules.name)
    return ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap


def precompiled():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=130, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(name, t.token_to_id(name)) for name in ["<s>", "</s>"]])
    return t


def wordlevel():
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=80, special_tokens=["[UNK]", "[PAD]"],
        show_progress=False))
    return t


def pairs_of(t):
    """vocab.json and merges.txt."""
    model = json.loads(t.to_str())["model"]
    merges = "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"])
    return {"vocab.json": json.dumps(model["vocab"], ensure_ascii=False), "merges.txt": merges}


def gpt1_files():
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
    return pairs_of(t)


def roberta_files():
    """As RoBERTa was published: the class is told by config.json alone."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return pairs_of(t) | {"config.json": json.dumps({"model_type": "roberta"})}


def saved(lstrip=False, **keys):
    """A token as transformers saved it."""
    return {"lstrip": lstrip, "normalized": False, "rstrip": False, "single_word": False} | keys


def qwen2_files():
    """As Qwen2 was published: special tokens are in no vocab.json."""
    files = pairs_of(gpt2())
    vocab = json.loads(files["vocab.json"])
    del vocab["<|endoftext|>"]
    vocab = {token: i for i, token in enumerate(sorted(vocab, key=vocab.get))}
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
    added = {str(len(vocab) + i): saved(content=name, special=name != "<tool>") for i, name in enumerate(names)}
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    return files | {"vocab.json": json.dumps(vocab, ensure_ascii=False), "tokenizer_config.json": json.dumps(config)}


def opt_files():
    """Tokens as transformers 4 and earlier saved them: some with ids of their own, some that get the next."""
    files = pairs_of(gpt2())
    size = len(json.loads(files["vocab.json"]))
    return {
        "vocab.json": files["vocab.json"], "merges.txt": files["merges.txt"],
        "tokenizer_config.json": json.dumps({"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True,
        "bos_token": "<pad>"}),
        "special_tokens_map.json": json.dumps({
            "bos_token": "</s>", "pad_token": "<pad>", "mask_token": saved(content="<mask>", lstrip=True),
            "additional_special_tokens": ["<x>"]}),
        "added_tokens.json": json.dumps({"<pad>": size, "<tool>": size + 1})}


def bert_files():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    vocab = sorted(t.get_vocab().items(), key=lambda pair: pair[1])
    return {"vocab.txt": "".join(token + "\n" for token, _ in vocab)}


def in_folder(kind, files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        return kind.from_pretrained(folder)._tokenizer


def cases(t, texts=TEXTS):
    found = []
    for text in texts:
        t.encode_special_tokens = False
        ids = t.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        if (decoded := t.decode(ids, skip_special_tokens=False)) != text:
            case["decoded"] = decoded
        if len(text) < 30 and (framed := t.encode(text).ids) != ids:
            case["framed"] = framed
        t.encode_special_tokens = True
        if (ordinary := t.encode(text, add_special_tokens=False).ids) != ids:
            case["ordinary"] = ordinary
        found.append(case)
    return found


def main():
    out = {}
    for name, t in [("byte-level", gpt2()), ("gpt-4", gpt4()), ("byte-fallback", llama()), ("unigram", unigram()),
                    ("words", wordlevel()), ("precompiled", precompiled())]:
        out[name] = {"files": {"tokenizer.json": t.to_str()}, "cases": cases(t)}
    files = pairs_of(gpt2())
    out["gpt2-files"] = {"files": files, "cases": cases(in_folder(GPT2Tokenizer, files))}
    assert out["gpt2-files"]["cases"] == out["byte-level"]["cases"]
    # vocab.json is in its model
    out["gpt2-files"] = {"files": {"merges.txt": files["merges.txt"]}, "like": "byte-level"}
    files = gpt1_files()
    out["gpt1-files"] = {"files": files, "cases": cases(in_folder(OpenAIGPTTokenizer, files))}
    files = bert_files()
    out["bert-files"] = {"files": files, "cases": cases(in_folder(BertTokenizer, files))}
    cased = {"tokenizer_config.json": json.dumps({"do_lower_case": False})}
    out["bert-cased-files"] = {"files": cased, "like": "bert-files",
        "cases": cases(in_folder(BertTokenizer, files | cased))}
    masked = {"special_tokens_map.json": json.dumps({"mask_token": saved(content="<mask>", lstrip=True)}),
              "tokenizer_config.json": json.dumps({"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True})}
    for name, files in [("roberta-files", roberta_files()), ("qwen2-files", qwen2_files()), ("opt-files", opt_files())]:
        out[name] = {"files": files, "cases": cases(in_folder(AutoTokenizer, files), TEXTS + ADDED)}
    files = out["roberta-files"]["files"] | masked
    out["roberta-masked-files"] = {"files": masked, "like": "roberta-files",
        "cases": cases(in_folder(AutoTokenizer, files), TEXTS + ADDED)}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "crates", "limpid-tokenizer", "fixtures",
        "tokenizers.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, separators=(",", ":"))
    print(os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
