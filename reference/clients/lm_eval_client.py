"""lm-eval against a running `limpid serve`: python reference/clients/lm_eval_client.py http://127.0.0.1:8080/v1

Four choices of a small task, whose log-likelihoods lm-eval asks for; they are those that the server gives to the ids.
"""

import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from importlib.metadata import version

from common import BASE, ask, check, passed, served

TASK = """task: own
dataset_path: json
dataset_kwargs: {data_files: {test: own.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}]
"""
name, _ = served()
context = ask("/v1/models")["data"][0]["max_model_len"]
questions = [("Once", [" there", " one"]), ("There", [" was", " saw"])]
with tempfile.TemporaryDirectory() as folder:
    lines = [json.dumps({"context": context, "choices": choices, "label": 0}) for context, choices in questions]
    pathlib.Path(folder, "own.jsonl").write_text("\n".join(lines) + "\n")
    pathlib.Path(folder, "own.yaml").write_text(TASK)
    arguments = f"model={name},base_url={BASE}/completions,num_concurrent=2,max_length={context}"
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks",
        "own"]
    command += ["--include_path", ".", "--output_path", "out", "--log_samples"]
    own = {"HF_HOME": f"{folder}/hf", "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True)
    check(done.returncode == 0, done.stderr[-2000:])
    for file in glob.glob(f"{folder}/out/**/samples_*.jsonl", recursive=True):
        for line in open(file):
            sample = json.loads(line)
            for n, response in enumerate(sample["resps"]):
                start, end = (sample["arguments"][f"gen_args_{n}"][f"arg_{i}"] for i in (0, 1))
                whole, before = (ask("/tokenize", {"prompt": text})["tokens"] for text in (start + end, start))
                body = {"prompt": whole, "max_tokens": 0, "echo": True, "logprobs": 1}
                likely = ask("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"]
                want = sum(likely[len(before):])
                check(abs(float(response[0][0]) - want) < 1e-9 * abs(want), sample)
check(True)
passed("lm-eval", version("lm-eval"))
