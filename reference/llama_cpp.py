#!/usr/bin/env python3
"""limpid beside llama.cpp's own test files: vocabularies with the ids that they should give, and chat templates.

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36   # its source; unpack it, nothing is built
    python reference/llama_cpp.py vocabularies target/release/limpid llama_cpp_python-0.3.36/vendor/llama.cpp
    python reference/llama_cpp.py templates target/release/limpid llama_cpp_python-0.3.36/vendor/llama.cpp

`vocabularies` encodes each `models/*.gguf.inp` by the vocabulary beside it and compares the ids with its `.out`.
`templates` has `limpid serve` write conversations by each of `models/templates/*.jinja`, and compares them with what
Jinja2 writes, set up as transformers does. Nothing is kept.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

SEPARATOR = "\n__ggml_vocab_test__\n"
TURNS = [("user", "Who has the ball?"), ("assistant", "Tom has it."), ("user", "Where is he?")]
SYSTEM = ("system", "Be brief.")


def vocabularies(limpid, source):
    right = rows = 0
    for given in sorted((source / "models").glob("*.gguf.inp")):
        texts = given.read_bytes().decode().split(SEPARATOR)
        wanted = [[int(n) for n in line.split()] for line in given.with_suffix(".out").read_text().splitlines()]
        texts = texts[: len(wanted)]
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        command = [limpid, "tokenize", "--tokenizer", given.with_suffix(""), "--lines", "-", "--ordinary"]
        done = subprocess.run(command, input=lines, capture_output=True, text=True)
        name = given.name.removeprefix("ggml-vocab-").removesuffix(".gguf.inp")
        if done.returncode != 0:
            print(f"FAILED {name}: {done.stderr.strip()}")
            rows += len(wanted)
            continue
        found = [json.loads(line) for line in done.stdout.splitlines()]
        equal = sum(a == b for a, b in zip(wanted, found))
        print(f"{'ok  ' if equal == len(wanted) == len(found) else 'WRONG'} {name}: {equal} of {len(wanted)} rows")
        for text, a, b in zip(texts, wanted, found):
            if a != b:
                print(f"  {text!r}: {a}, limpid {b}")
        right, rows = right + equal, rows + len(wanted)
    print(f"{right} of {rows} rows are equal")
    return right == rows


def ask(address, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return {"refused": json.load(error)["error"]["message"]}


def expected(template, messages, tokens, asks):
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        compiled = _compile_jinja_template(template)
        return compiled.render(messages=messages, tools=None, documents=None, add_generation_prompt=asks, **tokens)
    except Exception as error:
        return error


def templates(limpid, source):
    right = cases = 0
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        subprocess.run([limpid, "train", "--steps", "1", "--out", model], check=True, capture_output=True)
        # limpid's own tokenizer names these
        tokens = {"eos_token": "<|endoftext|>"}
        for path in sorted((source / "models/templates").glob("*.jinja")):
            command = [limpid, "serve", model, "--chat-template", path, "--port", "0"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
                said = ""
                for line in server.stdout:
                    said += line
                    if at := re.search(r"http://([\d.]+:\d+)", line):
                        break
                if at:
                    told = ask(at[1], "/tokenizer_info")
                    tokens = {name: told[name] for name in ("bos_token", "eos_token", "pad_token") if told[name]}
                for turns in (TURNS, [SYSTEM, *TURNS]):
                    messages = [{"role": role, "content": content} for role, content in turns]
                    for asks in (False, True):
                        wanted = expected(path.read_text(), messages, tokens, asks)
                        body = {"messages": messages, "add_generation_prompt": asks}
                        # a template that fails on every message is not served
                        found = ask(at[1], "/apply-template", body) if at else {"refused": said.strip()}
                        equal = "refused" in found if isinstance(wanted, Exception) else found.get("prompt") == wanted
                        right, cases = right + equal, cases + 1
                        if not equal:
                            print(f"{path.stem}, {len(messages)} messages: Jinja2 {wanted!r:.300}\n  limpid {found!r:.300}")
                server.terminate()
    print(f"{right} of {cases} conversations are equal")
    return right == cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["vocabularies", "templates"])
    parser.add_argument("limpid")
    parser.add_argument("source", type=pathlib.Path, help="vendor/llama.cpp")
    args = parser.parse_args()
    sys.exit(not (vocabularies if args.what == "vocabularies" else templates)(args.limpid, args.source))


if __name__ == "__main__":
    main()
