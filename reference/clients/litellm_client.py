"""litellm against a running `limpid serve`: python reference/clients/litellm_client.py http://127.0.0.1:8080/v1"""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it looks for prices on the internet
from importlib.metadata import version

import litellm

from common import BASE, check, passed, served, talk

model, chats = served()
server = {"api_base": BASE, "api_key": "none"}

text = {**server, "model": f"text-completion-openai/{model}", "prompt": "Once", "max_tokens": 8, "temperature": 0}
whole = litellm.text_completion(**text).choices[0].text
pieces = [chunk.choices[0].text or "" for chunk in litellm.text_completion(**text, stream=True)]
check("".join(pieces) == whole, "pieces are the whole")
check(len(litellm.embedding(**server, model=f"openai/{model}", input=["Once", "There"]).data) == 2)

if chats:
    chat = {**server, "model": f"openai/{model}", "max_tokens": 8, "temperature": 0}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once"}]
    answer = litellm.completion(**chat, messages=messages)
    check(answer.usage.completion_tokens > 0, answer)
    chunks = litellm.completion(**chat, messages=messages, stream=True)
    check("".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content)
    # its own form of a message goes back
    back = litellm.completion(**chat, messages=[*messages, answer.choices[0].message.model_dump(), messages[1]])
    check(back.choices[0].finish_reason in ("stop", "length"), back)

    def turn(messages, bias):
        talking = {**chat, "max_tokens": 6, "temperature": 1, "seed": len(messages), "logit_bias": bias}
        return litellm.completion(**talking, messages=messages).choices[0].message.content

    talk(turn)
passed("litellm", version("litellm"))
