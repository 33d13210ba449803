#!/usr/bin/env python3
"""What transformers makes of limpid's chat template.

    python reference/chat.py FOLDER crates/limpid-data/fixtures/chat/template.json

FOLDER is a model that limpid trained on conversations, as `limpid convert --to hf` writes it: its tokenizer.json and
its chat_template.jinja are read by AutoTokenizer. The file holds the template, and conversations with their text:
`text` of the whole, `asked` of what an answer comes after. `limpid` holds its own text to it. Nothing is downloaded.
"""

import json
import sys

from transformers import AutoTokenizer

CASES = [
    [("user", "Who has the ball?"), ("assistant", "Tom has the ball.")],
    [("system", "Be brief."), ("user", "Where is the kite?"), ("assistant", "In the tree.")],
    [("user", " a \n\n b "), ("assistant", ""), ("user", "{{ messages }} é 🙂 <b>\n"), ("assistant", "{% if %}\n")],
    [("assistant", "I begin."), ("system", "Twice."), ("assistant", "And again.")],
]


def main(folder, to):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = lambda messages, ask: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
    cases = []
    for case in CASES:
        messages = [{"role": role, "content": content} for role, content in case]
        cases.append({"messages": messages, "text": text(messages, False), "asked": text(messages[:-1], True)})
    with open(to, "w", encoding="utf-8") as file:
        json.dump({"template": tokenizer.chat_template, "cases": cases}, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
