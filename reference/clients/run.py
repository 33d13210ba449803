"""Every client of docs/serve.md against a running `limpid serve`, a line for each:

    python reference/clients/run.py http://127.0.0.1:8080/v1 --node FOLDER

Needs `pip install openai langchain-openai litellm llm 'lm-eval[api]'` and, in FOLDER, `npm install openai ai
@ai-sdk/openai-compatible`. A client that is not there is left out, and its line says so. Exit 1 if one fails.
"""

import argparse
import importlib.util
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PYTHON = [
    ("openai_python.py", "openai"),
    ("langchain_client.py", "langchain_openai"),
    ("litellm_client.py", "litellm"),
    ("llm_client.py", "llm"),
    ("lm_eval_client.py", "lm_eval"),
]
NODE = [("openai_node.mjs", "openai"), ("ai_sdk.mjs", "@ai-sdk/openai-compatible")]

wish = argparse.ArgumentParser()
wish.add_argument("base", help="http://127.0.0.1:8080/v1")
wish.add_argument("--node", default=".", help="a folder with node_modules")
args = wish.parse_args()
jobs = [(script, importlib.util.find_spec(name), [sys.executable, str(HERE / script), args.base], None) for script,
    name in PYTHON]
node = shutil.which("node")
for script, name in NODE:
    there = node and pathlib.Path(args.node, "node_modules", name).is_dir()
    jobs.append((script, there, [node, "--input-type=module", "-", args.base], (HERE / script).read_bytes()))
failed = 0
for script, there, command, text in jobs:
    if not there:
        print(f"{script:20} left out: its package is not there")
        continue
    folder = args.node if text else None
    done = subprocess.run(command, input=text, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines = done.stdout.decode().strip().splitlines() or [""]
    if done.returncode == 0:
        print(f"{script:20} {lines[-1]}")
    else:
        failed += 1
        print(f"{script:20} FAILS\n{done.stderr.decode()[-1500:]}")
sys.exit(1 if failed else 0)
