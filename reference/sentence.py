"""Makes crates/limpid/fixtures/sentence: a tiny random BERT, and the vectors that sentence-transformers makes of texts
with it.

    python reference/sentence.py

`cases.json` has for each case the files of sentence-transformers that stand beside the model, as that program saves
them or as its older versions did, and the vectors (f32) of the texts. The tests hold `Lm::embed_ids` to them.
"""

import json
import os
import shutil
import tempfile

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer

from make_tokenizers import bert_files

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "crates", "limpid", "fixtures", "sentence")
TEXTS = ["The lamp turned.", "the sea", "a",
    "Every evening the lamp turned; every morning the sea had moved a little closer."]
OLD = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}


def model():
    torch.manual_seed(11)
    files = bert_files()
    size = files["vocab.txt"].count("\n")
    config = BertConfig(
        vocab_size=size, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=40,
        initializer_range=0.5)
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    BertModel(config, add_pooling_layer=False).eval().save_pretrained(FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as file:
            file.write(files["vocab.txt"])
        BertTokenizer.from_pretrained(folder, do_lower_case=False).save_pretrained(FOLDER)
    os.chmod(os.path.join(FOLDER, "model.safetensors"), 0o644)


def beside(folder):
    """The files of a saved folder that are not the model's; the tokenizer's has the most tokens."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(place, name), folder)
            if path == "tokenizer_config.json" or path not in os.listdir(FOLDER) + ["README.md"]:
                with open(os.path.join(folder, path), encoding="utf-8") as file:
                    found[path] = file.read()
    return found


def case(mode, normalize=False, old=False, most=None, **keys):
    lower = keys.pop("lower", False)
    transformer = Transformer(FOLDER, max_seq_length=most, do_lower_case=lower)
    modules = [transformer, Pooling(8, pooling_mode=mode)] + [Normalize()] * normalize
    with tempfile.TemporaryDirectory() as folder:
        SentenceTransformer(modules=modules, device="cpu", **keys).save(folder)
        files = beside(folder)
        if old:  # as versions 2 and 3 wrote it
            flags = {f"pooling_mode_{name}": mode == new for new, name in OLD.items()}
            files["1_Pooling/config.json"] = json.dumps({"word_embedding_dimension": 8} | flags)
            files["sentence_bert_config.json"] = json.dumps({"max_seq_length": most, "do_lower_case": lower})
            kinds = ["Transformer", "Pooling", "Normalize"][: len(modules)]
            paths = ["", "1_Pooling", "2_Normalize"]
            files["modules.json"] = json.dumps([
                {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"} for i,
                kind in enumerate(kinds)])
            for name, text in files.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
        opened = SentenceTransformer(folder, device="cpu")
        vectors = opened.encode(TEXTS, batch_size=1)
    return {"files": files, "texts": TEXTS, "vectors": vectors.tolist()}


def main():
    model()
    cases = [case(mode, normalize=i % 2 == 0, old=old) for i, mode in enumerate(OLD) for old in (False, True)]
    cases.append(case("mean", normalize=True, old=True, most=12))
    cases.append(case("lasttoken", most=9))
    cases.append(case("mean", old=True, lower=True))
    cases.append(case("mean", prompts={"q": "the door the "}, default_prompt_name="q"))
    with open(os.path.join(FOLDER, "cases.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
