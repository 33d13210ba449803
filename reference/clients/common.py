"""What the Python clients here share: the server's address, checks that are counted, and the conversation that holds
special tokens."""

import json
import sys
import urllib.request

BASE = sys.argv[1].rstrip("/")
ROOT = BASE.removesuffix("/v1")
checks = 0


def check(condition, what=None):
    global checks
    checks += 1
    assert condition, what


def passed(name, version):
    print(f"{checks} checks pass with {name} {version}")


def ask(path, body=None):
    """An answer of the server, without any client."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(ROOT + path, data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def served():
    """The name of the model, and whether it answers conversations."""
    name = ask("/v1/models")["data"][0]["id"]
    return name, ask("/tokenizer_info")["chat_template"] is not None


def biases():
    """What makes a model answer with a special token and a letter, and the token's text; none if the model has no such
    token."""
    for text in ("<|user|>", "<|im_start|>", "<|system|>"):
        ids = ask("/tokenize", {"prompt": text})["tokens"]
        if len(ids) == 1:
            letter = ask("/tokenize", {"prompt": "e"})["tokens"][0]
            return text, {str(ids[0]): 100, str(letter): 100}
    return None


def talk(turn):
    """Five turns; `turn(messages, logit_bias)` gives the text of an answer, which must have no special token and goes
    back as it came."""
    found = biases()
    if found is None:
        return
    special, bias = found
    messages, said = [], ""
    for n in range(5):
        # nor can a user write one
        messages.append({"role": "user", "content": f"and {special} then"})
        text = turn(messages, bias)
        check(special not in text, text)
        messages.append({"role": "assistant", "content": text})
        said += text
    check("e" in said, messages)
