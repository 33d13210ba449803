#!/usr/bin/env python3
"""What transformers makes of conversations to train on: their ids by a model's own template, and which of them are
answers.

    python reference/taught.py crates/limpid-data/fixtures

writes chat/taught.json, and parquet/messages.parquet with some of the conversations, as PyArrow (and so HuggingFace's
datasets) has them.

Where a template marks answers with `{% generation %}`, the answers are transformers' own mask
(`return_assistant_tokens_mask`). Where it does not, an answer is what follows the ids of the prompt before it
(`add_generation_prompt`), up to the last token that ends a turn.
"""

import json
import pathlib
import sys

import pyarrow
import pyarrow.parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
TEXT = ["Where is the kite? In the tree. Who has the ball? Tom has the ball. Be brief. You are kind. user assistant "
    "system\n" * 3]
LOOP = "{%- for message in messages -%}"
TEMPLATES = {
    "chatml": LOOP + "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endfor "
    "-%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}",
    "chatml-marked": LOOP + "{{ '<|im_start|>' + message.role + '\\n' }}{%- if message.role == 'assistant' -%}"
    "{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{%- else -%}{{ message.content + "
        "'<|im_end|>' }}{%- endif -%}"
    "{{ '\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}",
    "marked-in-lines": """{% for message in messages %}
    {% if message.role == 'assistant' %}
        {% generation %}
{{ message.content }}{{ eos_token }}
        {%- endgeneration +%}
    {% else %}
{{ '[INST] ' + message.content + ' [/INST]' }}
    {% endif %}
{% endfor %}""",
    "inst": "{{ bos_token }}" + LOOP + "{%- if message.role == 'user' -%}{{ '[INST] ' + message.content + ' [/INST]' }}"
    "{%- elif message.role == 'assistant' -%}{{ ' ' + message.content + eos_token }}{%- endif -%}{%- endfor -%}",
    # a turn's end is a text's, and a new line comes after it
    "lines": LOOP + "{{ message.role + ': ' + message.content + eos_token + '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'assistant:' }}{%- endif -%}",
    # no end at all
    "bare": LOOP + "{{ '[INST]' if message.role == 'user' else '[/INST]' }}{{ message.content }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '[/INST]' }}{%- endif -%}",
    # thoughts of the last answer only, as reasoning models have it
    "thoughtful": LOOP + "{{ '<|im_start|>' + message.role + '\\n' }}{%- if message.role == 'assistant' and loop.last "
        "-%}{{ 'think\\n' }}{%- endif -%}"
    "{{ message.content + '<|im_end|>' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' "
        "}}{%- endif -%}",
    # an answer that grows together with its prompt
    "grown": LOOP + "{{ message.role + ':' + message.content }}{%- endfor -%}{%- if add_generation_prompt -%}{{ "
        "'assis' }}{%- endif -%}",
}
TALKS = [
    [("user", "Where is the kite?", 0), ("assistant", "In the tree.", 1)],
    [("system", "Be brief.", 0), ("user", "Who has the ball?", 0), ("assistant", "Tom has the ball.", 1), ("user",
    "Where?", 0), ("assistant", "In the tree, 猫!", 1)],
    [("user", "a", 0), ("assistant", "wrong", 0), ("user", "b", 0), ("assistant", "right", 1)],
    [("user", "a\n", 0), ("assistant", "", 1), ("user", " b", 0), ("assistant", "  x \n\n", 1)],
]


def tokenizer():
    own = Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=340, special_tokens=SPECIALS,
        initial_alphabet=alphabet, show_progress=False))
    return own, PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>", eos_token="</s>")


def taught(fast, template, talk):
    """The ids, and whether each is learned; or nothing, where that cannot be known."""
    messages = [{"role": role, "content": content} for role, content, _ in talk]
    write = lambda messages, ask=False: fast.apply_chat_template(messages, chat_template=template, tokenize=False,
        add_generation_prompt=ask)
    encode = lambda text: fast(text, add_special_tokens=False)["input_ids"]
    text = write(messages)
    ids = encode(text)
    ends = [fast.convert_tokens_to_ids(token) for token in ("<|im_end|>", "</s>")]
    learned = [0] * len(ids)
    if "generation %}" in template and "{% generation" in template:
        found = fast.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True,
            return_assistant_tokens_mask=True)
        assert found["input_ids"] == ids
        mask, runs = found["assistant_masks"], []
        for i, on in enumerate(mask):
            if on and (i == 0 or not mask[i - 1]):
                runs.append([i, i])
            if on:
                runs[-1][1] = i + 1
        answers = [weight for role, _, weight in talk if role == "assistant"]
        assert len(runs) == len(answers), (runs, answers)
        for (start, end), weight in zip(runs, answers):
            learned[start:end] = [weight] * (end - start)
        return ids, learned
    for i, (role, _, weight) in enumerate(talk):
        if weight:
            prompt, after = write(messages[:i], True), write(messages[: i + 1])
            if not (after.startswith(prompt) and text.startswith(after)):
                return None, None
            start, end = len(encode(prompt)), len(encode(after))
            if ids[:start] != encode(prompt) or ids[:end] != encode(after) or start == end:
                return None, None
            last = max((at for at in range(start, end) if ids[at] in ends), default=end - 1)
            learned[start : last + 1] = [1] * (last + 1 - start)
    return ids, learned


def main():
    own, fast = tokenizer()
    cases = []
    for name, template in TEMPLATES.items():
        for talk in TALKS:
            ids, learned = taught(fast, template, talk)
            messages = [{"role": r, "content": c} | ({"weight": w} if r == "assistant" else {}) for r, c, w in talk]
            cases.append({"template": name, "messages": messages, "ids": ids, "learned": learned})
    told = {"tokenizer": json.loads(own.to_str()), "templates": TEMPLATES, "cases": cases}
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    rest = ", ".join(f"{json.dumps(key)}: {json.dumps(told[key], ensure_ascii=False)}" for key in ("tokenizer",
        "templates"))
    folder = pathlib.Path(sys.argv[1])
    rows = [{"id": n, "messages": [{"role": r, "content": c, "weight": w if r == "assistant" else None} for r, c,
        w in talk]} for n, talk in enumerate(TALKS)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "parquet/messages.parquet", row_group_size=3)
    (folder / "chat/taught.json").write_text(f'{{{rest}, "cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases, {sum(case['ids'] is None for case in cases)} of which transformers cannot tell")


if __name__ == "__main__":
    main()
