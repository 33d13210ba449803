"""The command `llm` against a running `limpid serve`: python reference/clients/llm_client.py http://127.0.0.1:8080/v1"""

import json
import os
import pathlib
import tempfile
from importlib.metadata import version

from common import BASE, check, passed, served, talk

name, chats = served()
folder = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = folder.name
entry = {"model_name": name, "api_base": BASE, "api_key_name": "none"}
models = [{**entry, "model_id": "limpid-text", "completion": True}, {**entry, "model_id": "limpid"}]
pathlib.Path(folder.name, "extra-openai-models.yaml").write_text(json.dumps(models))
pathlib.Path(folder.name, "keys.json").write_text(json.dumps({"none": "none"}))
import llm

whole = llm.get_model("limpid-text").prompt("Once", max_tokens=8, temperature=0).text()
check(llm.get_model("limpid-text").prompt("Once", max_tokens=8, temperature=0, stream=False).text() == whole)

if chats:
    chat = llm.get_model("limpid").conversation()
    said = [chat.prompt("Once", system="Be brief.", max_tokens=8, temperature=0, stream=n % 2 == 0).text()
        for n in range(3)]
    check(len(said) == 3, said)

    def turn(messages, bias):
        talking = {"max_tokens": 6, "seed": len(messages), "logit_bias": json.dumps(bias)}
        return talks.prompt(messages[-1]["content"], **talking).text()

    talks = llm.get_model("limpid").conversation()
    talk(turn)
passed("llm", version("llm"))
