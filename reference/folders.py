"""What transformers makes of a model's folder where files beside the vocabulary have a say.

    python reference/folders.py crates/limpid-tokenizer/fixtures/folders.json crates/limpid-checkpoint/fixtures/chat_templates.json

Small vocabularies, and beside each the files that people have: every class with every setting that it reads, tokens in
every place where a file may name them, folders whose files disagree. For each folder the file holds the ids of some
texts, alone and with what the model expects round them, and the tokens that chat templates write by name. The second
file holds which of a folder's chat templates is taken. Nothing is downloaded.
"""

import base64
import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

END = "<|endoftext|>"


def letters():
    """Byte-level byte pairs behind another way of cutting, which only a class that makes its own takes away."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [END, *alphabet, "he", "ll", "Ġhe", "Ġl", "hell"]
    t = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)},
                             merges=[("h", "e"), ("l", "l"), ("Ġ", "he"), ("Ġ", "l"), ("he", "ll")]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    t.add_special_tokens([END])
    return t


def words():
    """BERT's word pieces, case and accents as they are."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abehlo", "##e", "##l", "##o", "he", "##llo", "hello",
        "Hello",
             "HELLO", "é", "hé", "##llé", "中", "##文", "文", "!"]
    t = Tokenizer(models.WordPiece(vocab={name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return t


def marks():
    """A Llama's, as older programs wrote it."""
    names = ["<unk>", "<s>", "</s>", "▁", *"abehlo", *"<>/stxy", "H", "▁h", "he", "▁he", "ll", "llo", "▁hello"]
    merges = [("▁", "h"), ("h", "e"), ("▁h", "e"), ("l", "l"), ("ll", "o"), ("▁he", "llo")]
    t = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges, unk_token="<unk>",
        fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    return t


def pieces():
    """SentencePiece's pieces with scores."""
    names = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<mask>", "▁", "▁he", "llo", "▁hello", "he",
        "é", "e", *"hlo", "H"]
    t = Tokenizer(models.Unigram([(name, -0.5 * (i + 1)) for i, name in enumerate(names)], unk_id=1))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.add_special_tokens(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"])
    return t


BASES = {"letters": letters, "words": words, "marks": marks, "pieces": pieces}
TEXTS = {
    "letters": ["hello he", " he", "12 é e\u0301", f"he{END} he", "a<x> b <y> c<tool>", ""],
    "words": ["hello he", "Hello HELLO!", "héllé hé", "中文 o", "he[MASK]o", "a<x> b <y> o<tool>"],
    "marks": ["hello he", " he", "  he", "a<s>he</s> he", "a<x> b <y> o<tool>"],
    "pieces": ["hello he", " hello  he", "Hello é e", "he</s> he[MASK]", "he<x> he <y> he<tool>"],
}
CLASSES = {
    "letters": ["GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "RobertaTokenizer", "Qwen2Tokenizer",
    "GPTNeoXTokenizerFast",
                "CohereTokenizer", "PreTrainedTokenizerFast", "LlamaTokenizerFast", "NoSuchTokenizer", None],
    "words": ["BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer", "PreTrainedTokenizerFast"],
    "marks": ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "PreTrainedTokenizerFast"],
    "pieces": ["AlbertTokenizer", "CamembertTokenizer", "XLMRobertaTokenizerFast", "PreTrainedTokenizerFast"],
}
# what each kind's classes read, and what they do not
SETTINGS = {
    "letters": [{}, {"add_prefix_space": True}, {"add_bos_token": True}, {"add_bos_token": False,
    "add_eos_token": True}, {"do_lower_case": True}],
    "words": [{}, {"do_lower_case": False}, {"strip_accents": False}, {"do_lower_case": False, "strip_accents": True},
              {"tokenize_chinese_chars": False}, {"add_bos_token": True}],
    "marks": [{}, {"add_prefix_space": False}, {"add_prefix_space": True, "legacy": True}, {"legacy": False},
    {"add_bos_token": False},
              {"add_eos_token": True}],
    "pieces": [{}, {"add_prefix_space": False}, {"do_lower_case": False}, {"keep_accents": True}],
}
USUAL = {"letters": "GPT2Tokenizer", "words": "BertTokenizer", "marks": "LlamaTokenizer", "pieces": "AlbertTokenizer"}
MAP = "special_tokens_map.json"


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
        "special": True} | flags


def places(size):
    """Tokens wherever a file may name them; `size` ids are taken."""
    yield {"added_tokens_decoder": {str(size): token("<x>"), str(size + 1): token("<tool>", special=False,
        normalized=True)}}, {}
    yield {"added_tokens_decoder": {str(size): token("<x>", lstrip=True, rstrip=True), str(size + 1): token("<y>",
        single_word=True)}}, {}
    yield {"added_tokens_decoder": {str(size + 9): token("<y>"), str(size + 4): token("<x>")}, "eos_token": "<x>"}, {}
    yield {"additional_special_tokens": ["<x>", "<y>"]}, {}
    yield {"extra_special_tokens": ["<y>", "<x>"]}, {}
    yield {"extra_special_tokens": {"image_token": "<x>"}}, {}
    yield {"tool_token": "<tool>", "pad_token": "<y>"}, {}
    yield {}, {"added_tokens.json": {"<tool>": size + 1, "<x>": size}}
    yield {"eos_token": "<y>"}, {"added_tokens.json": {"<x>": size, "<y>": size + 1}, MAP: {"eos_token": "<x>"}}
    yield {"additional_special_tokens": ["<y>"]}, {MAP: {"additional_special_tokens": ["<x>"], "bos_token": token("<x>",
        rstrip=True)}}
    yield {}, {MAP: {"additional_special_tokens": ["<x>", "<tool>"]}}
    yield {"added_tokens_decoder": {str(size): token("<y>")}}, {MAP: {"pad_token": "<x>"},
        "added_tokens.json": {"<tool>": size + 1}}
    yield {"split_special_tokens": True}, {}
    yield {"bos_token": None, "eos_token": None, "unk_token": None}, {}


# model_type and the class that the files name: which of them is believed
DISAGREE = [
    ("letters", "llama", "GPT2Tokenizer"), ("letters", "llama", "LlamaTokenizer"), ("letters", "gpt_bigcode",
    "GPT2Tokenizer"),
    ("letters", "qwen2", "GPT2Tokenizer"), ("letters", "qwen3", "GPT2Tokenizer"), ("letters", "gpt_neox", None),
    ("letters", "gpt2", None),
    ("letters", "mistral", "GPT2Tokenizer"), ("letters", "cohere", None), ("letters", "phi", "CodeGenTokenizer"),
    ("letters", "phi", None),
    ("letters", "stablelm", "GPTNeoXTokenizerFast"), ("letters", "olmo2", "GPT2TokenizerFast"), ("letters", "opt",
    None),
    ("letters", "granite", None), ("letters", "starcoder2", None), ("letters", "roberta", None), ("letters", "gpt_neox",
    "GPT2Tokenizer"),
    ("marks", "llama", None), ("marks", "mistral", "LlamaTokenizer"), ("marks", "phi3", "LlamaTokenizer"), ("marks",
    "gemma2", None),
    ("marks", "gemma", "GemmaTokenizerFast"), ("marks", "gemma", "PreTrainedTokenizerFast"), ("words", "bert", None),
    ("words", "distilbert", None), ("words", "electra", "ElectraTokenizerFast"), ("words", "bert",
    "PreTrainedTokenizerFast"),
    ("words", "modernbert", "BertTokenizer"), ("pieces", "albert", None), ("pieces", "camembert", None), ("pieces",
    "xlm-roberta", None),
]


def folders():
    """The vocabulary, tokenizer_config.json and further files of every folder."""
    for base in BASES:
        size = len(json.loads(BASES[base]().to_str())["model"]["vocab"])
        for name in CLASSES[base]:
            for setting in SETTINGS[base]:
                yield base, setting | ({"tokenizer_class": name} if name else {}), {}
        for name in [USUAL[base], "PreTrainedTokenizerFast"] + (["Qwen2Tokenizer"] if base == "letters" else []):
            for setting, files in places(size):
                yield base, setting | {"tokenizer_class": name}, files
    for base, model, name in DISAGREE:
        yield base, {"do_lower_case": False} | ({"tokenizer_class": name} if name
            else {}), {"config.json": {"model_type": model}}
    yield "letters", {}, {"config.json": {"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"}}


NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "he", "##llo", "o"]
VOCABS = {
    "empty lines": "\n".join(NAMES[:5] + ["", ""] + NAMES[5:] + ["", "!"]) + "\n\n",
    "the same twice": "\n".join(NAMES + ["he", "hello", "e"]) + "\n",
    "CR LF": "\r\n".join(NAMES) + "\r\n",
    "blanks at the end": " \n".join(NAMES[:5] + ["", "hello\t", "he ", "##llo", "o"]),
    "CR": "\n".join(NAMES).replace("he\n", "he\ro\n"),
}
# a .tiktoken file by the name of SentencePiece's
RANKS = [bytes([b]) for b in range(256)] + [b"he", b"ll", b" he", b"12", b"34", b"hello"]
RANKED = [
    ({}, {}), ({"add_bos_token": True, "bos_token": "<x>"}, {}), ({"extra_special_tokens": ["<x>", "<y>"]}, {}),
    ({"added_tokens_decoder": {"262": token("<x>"), "265": token("<y>")}, "eos_token": "<y>"}, {}),
    ({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<y>"}, {}),
    ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<x>", "eos_token": "<y>",
    "unk_token": "<x>"}, {}),
]


def vocabularies():
    """The files of folders without a tokenizer.json."""
    for name, text in VOCABS.items():
        yield "words", {"vocab.txt": text, "config.json": {"model_type": "bert"}, "tokenizer_config.json": {}}
    yield "words", {"vocab.txt": VOCABS["empty lines"], "config.json": {"model_type": "bert"},
        "tokenizer_config.json": {"pad_token": "<x>", "do_lower_case": False}}
    ranks = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(RANKS))
    for file in ["tokenizer.model", "tiktoken.model"]:
        for config, more in RANKED if file == "tokenizer.model" else RANKED[:1]:
            yield "letters", {file: ranks, "config.json": {"model_type": "llama"},
                "tokenizer_config.json": config} | more


# chat templates wherever a folder may have them
OWN, MORE = "chat_template.jinja", "additional_chat_templates/"
BY_LIST = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "usual"}]
TEMPLATES = [
    {}, {OWN: "own"}, {None: "config"}, {None: None}, {None: "config", OWN: "own"}, {None: BY_LIST},
    {None: BY_LIST[:1]},
    {None: {"default": "usual", "rag": "rag"}}, {None: {"rag": "rag"}},
    {None: BY_LIST + [{"name": "default", "template": "last"}]},
    {None: "config", MORE + "rag.jinja": "rag"}, {OWN: "own", MORE + "rag.jinja": "rag"},
    {MORE + "default.jinja": "more"},
    {None: "config", MORE + "default.jinja": "more"}, {OWN: "own", MORE + "default.jinja": "more",
    MORE + "rag.jinja": "rag"},
    {None: "config", MORE + "rag.txt": "rag"}, {None: "a\r\nb\r\n", OWN: "own\n"}, {None: {"default": "usual"},
    OWN: "own"},
]


def templates():
    """The files of a folder, and the template that is taken."""
    for case in TEMPLATES:
        files = {name: text for name, text in case.items() if name}
        files["tokenizer_config.json"] = json.dumps({"chat_template": case[None]} if None in case else {})
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, MORE))
            for name, text in (files | {"tokenizer.json": words().to_str(),
                "config.json": '{"model_type": "llama"}'}).items():
                with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as file:
                    file.write(text)
            try:
                taken = AutoTokenizer.from_pretrained(folder).get_chat_template()
            except ValueError:
                taken = None
        yield {"files": files, "taken": taken}


def main(to, templates_to):
    bases = {name: json.loads(make().to_str()) for name, make in BASES.items()}
    found, seen = [], set()
    all_files = [(base, {"config.json": {"model_type": "llama"}, "tokenizer_config.json": config} | more, bases[base])
                 for base, config, more in folders()]
    for base, files, tokenizer in all_files + [(base, files, None) for base, files in vocabularies()]:
        key = json.dumps([base, files], sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (files | ({"tokenizer.json": tokenizer} if tokenizer else {})).items():
                with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as file:
                    file.write(content if isinstance(content, str) else json.dumps(content))
            try:
                t = AutoTokenizer.from_pretrained(folder)
                ids = [[text, t(text, add_special_tokens=False)["input_ids"], t(text)["input_ids"]]
                    for text in TEXTS[base]]
            except Exception as error:
                print("refused:", base, files, repr(error)[:200], file=sys.stderr)
                continue
        about = {"base": base} if tokenizer else {}
        found.append(about | {"files": files, "texts": ids, "roles": dict(t.special_tokens_map)})
    with open(to, "w", encoding="utf-8") as file:
        json.dump({"bases": bases, "folders": found}, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    print(len(found), "folders,", os.path.getsize(to), "bytes")
    with open(templates_to, "w", encoding="utf-8") as file:
        json.dump(list(templates()), file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
