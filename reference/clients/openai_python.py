"""OpenAI's own Python client against a running `limpid serve`: python reference/clients/openai_python.py
http://127.0.0.1:8080/v1

Shapes that are wrong raise in the client's models; what is said here is checked besides. Needs `pip install openai`.
"""

import json
import sys
import urllib.request

import openai

from common import talk

base = sys.argv[1].rstrip("/")
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60)
model = client.models.list().data[0].id
checks = 0


def check(condition, what):
    global checks
    checks += 1
    assert condition, what


def refused(kind, code, param, call):
    try:
        call()
    except kind as error:
        check((error.code, error.param) == (code, param), f"{error.code} {error.param}: {error}")
        check(param is None or param in error.message, error.message)
    else:
        raise AssertionError(f"{code} was expected")


def complete(**more):
    return client.completions.create(**{"model": model, "prompt": "Once", "max_tokens": 8, "seed": 7, **more})


check(client.models.retrieve(model).id == model, "the model is there under its name")

# completions
one = complete()
check(one.object == "text_completion" and one.choices[0].finish_reason in ("stop", "length"), one)
check(one.usage.total_tokens == one.usage.prompt_tokens + one.usage.completion_tokens, one.usage)
check(one.system_fingerprint.startswith("limpid-"), one.system_fingerprint)
check(complete().choices[0].text == one.choices[0].text, "the same seed is the same answer")
three = complete(n=3)
check([choice.index for choice in three.choices] == [0, 1, 2], three)
check(three.choices[0].text == one.choices[0].text, "choice 0 of n is the answer of n = 1")
check(len({choice.text for choice in complete(n=8, temperature=2).choices}) > 1, "choices differ")
greedy = complete(temperature=0, seed=1)
check(greedy.choices[0].text == complete(temperature=0, seed=2).choices[0].text, "greedy has no chance")
several = complete(prompt=["Once", "There"], temperature=0)
check(several.choices[0].text == greedy.choices[0].text, "a prompt beside others has the same answer")

# the four forms of a prompt
root = base.removesuffix("/v1")
ask = urllib.request.Request(f"{root}/tokenize", json.dumps({"prompt": "Once", "add_special_tokens": True}).encode(),
    {"Content-Type": "application/json"})
ids = json.load(urllib.request.urlopen(ask))["tokens"]
for prompt in (ids, ["Once"], [ids]):
    check(complete(prompt=prompt).choices[0].text == one.choices[0].text, f"{prompt}")

# streams
for n in (1, 3):
    pieces, ends, used = [""] * n, [None] * n, None
    for chunk in complete(n=n, stream=True, stream_options={"include_usage": True}):
        used = chunk.usage or used
        for choice in chunk.choices:
            pieces[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    check(pieces == [choice.text for choice in three.choices[:n]], "pieces are the whole")
    check(ends == [choice.finish_reason for choice in three.choices[:n]], "and end as it does")
    check(used.completion_tokens > 0, used)
check(all(chunk.choices for chunk in complete(stream=True)), "usage comes only if asked for")

# stop texts
letter = next(letter for letter in greedy.choices[0].text if letter.strip())
stopped = complete(temperature=0, stop=[letter, "never"])
check(letter not in stopped.choices[0].text and stopped.choices[0].finish_reason == "stop", stopped)
check(greedy.choices[0].text.startswith(stopped.choices[0].text), stopped)

# log-probabilities
scored = complete(echo=True, logprobs=3, max_tokens=0).choices[0]
check(scored.text == "Once" and len(scored.logprobs.tokens) == len(ids), scored)
check(scored.logprobs.token_logprobs[0] is None and all(p <= 0 for p in scored.logprobs.token_logprobs[1:]), scored)
likely = complete(logprobs=3, temperature=0).choices[0].logprobs
for token, own, top in zip(likely.tokens, likely.token_logprobs, likely.top_logprobs):
    check(own == max(top.values()), f"greedy takes the likeliest: {token!r} {own} {top}")

# conversations
message = [{"role": "user", "content": "Once"}]
try:
    whole = client.chat.completions.create(model=model, messages=message, max_completion_tokens=8, seed=7,
        logprobs=True, top_logprobs=2)
except openai.BadRequestError as error:
    check(error.code == "no_chat_template", error)
else:
    check(whole.choices[0].message.role == "assistant" and whole.choices[0].logprobs.content, whole)
    text = ""
    for chunk in client.chat.completions.create(model=model, messages=message, max_completion_tokens=8, seed=7,
        stream=True):
        text += chunk.choices[0].delta.content or ""
    check(text == whole.choices[0].message.content, "pieces are the whole")

    def turn(messages, bias):
        talking = {"max_tokens": 6, "seed": len(messages), "logit_bias": bias}
        answer = client.chat.completions.create(model=model, messages=messages, **talking).choices[0]
        stream = client.chat.completions.create(model=model, messages=messages, stream=True, **talking)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        check(text == answer.message.content, "pieces are the whole")
        return text

    talk(turn)
    # what the client itself makes of an answer goes back
    message.append(whole.choices[0].message.model_dump())
    message.append({"role": "user", "content": [{"type": "text", "text": "Once"}]})
    check(client.chat.completions.create(model=model, messages=message, max_tokens=1).choices, message)

# embeddings: the client asks for base64 and gives numbers
vectors = client.embeddings.create(model=model, input=["Once", "There"]).data
plain = client.embeddings.create(model=model, input=["Once"], encoding_format="float").data[0].embedding
check([f"{x:.6f}" for x in vectors[0].embedding] == [f"{x:.6f}" for x in plain], "base64 and float are the same")
check(abs(sum(x * x for x in plain) - 1) < 1e-5, "vectors have length 1")

# errors, as exceptions of the client's
refused(openai.BadRequestError, "invalid_value", "top_p", lambda: complete(top_p=1.5))
refused(openai.BadRequestError, "invalid_type", "n", lambda: complete(n="two"))
refused(openai.BadRequestError, "unknown_parameter", "temperatur", lambda: complete(extra_body={"temperatur": 1}))
refused(openai.BadRequestError, "unsupported_parameter", "suffix", lambda: complete(suffix="end"))
refused(openai.BadRequestError, "missing_field", "prompt", lambda: client.completions.create(model=model, prompt=None))
refused(openai.NotFoundError, "model_not_found", "model", lambda: complete(model="other"))
try:
    complete(max_tokens=1_000_000)
except openai.BadRequestError as error:
    check(error.code == "context_length_exceeded" and "maximum context length is" in error.message, error)
else:
    raise AssertionError("a context that is exceeded")
print(f"{checks} checks pass with openai {openai.__version__}")
