"""Calls that nobody should make: each is an exception of Python whose words name what is wrong, never a crash, and never silence."""

import operator

import limpid
import numpy as np
import pytest
from conftest import PROMPT, SETTINGS

L, T, V, K, O = limpid.LimpidError, TypeError, ValueError, KeyError, OverflowError
NAN, INF = float("nan"), float("inf")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def circle():
    value = {"ablate": "blocks.0.attn.hook_z"}
    value["self"] = value
    return [value]


class Liar:
    """Says that it is a number and fails."""

    def __index__(self):
        raise RuntimeError("no number")

    def __len__(self):
        return 3


class Claims:
    """A list that says that it is as long as it is not."""

    def __init__(self, values, length):
        self.values, self.length = values, length

    def __len__(self):
        return self.length

    def __getitem__(self, at):
        return self.values[at]


def generate(**settings):
    return lambda lm: lm.generate(PROMPT, **{"max_tokens": 2, **settings})


def intervene(*steps):
    return lambda lm: lm.intervene(list(steps)).trace(PROMPT)["logits"]


Z = "blocks.0.attn.hook_z"
STEPS = [{"ablate": Z}]
CALLS = [
    # prompts
    (T, "", lambda lm: lm.generate(None)),
    (T, "", lambda lm: lm.generate(3)),
    (T, "", lambda lm: lm.generate(b"Once")),
    (T, "", lambda lm: lm.generate({"a": 1})),
    (T, "", lambda lm: lm.generate([1.5])),
    (T, "", lambda lm: lm.generate([NAN])),
    (T, "", lambda lm: lm.generate(["Once"])),
    (T, "", lambda lm: lm.generate([[1, 2]])),
    ((T, O), "", lambda lm: lm.generate([-1])),
    ((T, O), "", lambda lm: lm.generate([2**40])),
    ((T, O), "", lambda lm: lm.generate([2**400])),
    (L, "vocab_size", lambda lm: lm.generate([10**6])),
    (L, "", lambda lm: lm.generate([])),
    (T, "", lambda lm: lm.generate(np.array([1.0, 2.0]))),
    (T, "", lambda lm: lm.generate(np.array([NAN]))),
    (T, "", lambda lm: lm.generate(np.ones((2, 2), np.int64))),
    (T, "", lambda lm: lm.generate(np.array(["a"]))),
    ((T, UnicodeEncodeError), "", lambda lm: lm.generate("\ud800")),
    ((T, RuntimeError), "", lambda lm: lm.generate([Liar()])),
    (T, "", lambda lm: lm.generate(PROMPT, PROMPT)),
    ((V, T), "1,048,576", lambda lm: lm.generate(range(10**8))),
    ((V, T), "1,048,576", lambda lm: lm.trace(range(10**30))),
    ((V, T), "1,048,576", lambda lm: lm.sweep(PROMPT, PROMPT, to="blocks.1.attn.hook_q", to_heads=range(10**8))),
    (V, "1,048,576", lambda lm: lm.intervene([{"ablate": Z, "pos": range(10**8)}])),
    (V, "1,048,576", lambda lm: lm.intervene([{"ablate": Z, "pos": np.zeros(10**8, np.int8)}])),
    (V, "1,048,576", lambda lm: lm.intervene([{"ablate": Z, "pos": range(10**30)}])),
    # how text is chosen
    (T, "temprature.*temperature", generate(temprature=1)),
    (T, "max_tokens", generate(max_tokens="3")),
    (T, "max_tokens", generate(max_tokens=1.5)),
    (O, "max_tokens", generate(max_tokens=-1)),
    (O, "max_tokens", generate(max_tokens=2**70)),
    (L, "temperature", generate(temperature=-1)),
    (L, "temperature", generate(temperature=NAN)),
    (L, "temperature", generate(temperature=INF)),
    (T, "temperature", generate(temperature="hot")),
    (L, "top.p", generate(top_p=0.0)),
    (L, "top.p", generate(top_p=1.5)),
    (L, "top.p", generate(top_p=NAN)),
    (O, "top_k", generate(top_k=-1)),
    (L, "min.p", generate(min_p=2)),
    (L, "penalty", generate(repetition_penalty=0)),
    (L, "penalty", generate(repetition_penalty=NAN)),
    (L, "penalty", generate(presence_penalty=INF)),
    (O, "seed", generate(seed=-1)),
    (T, "stop", generate(stop=3)),
    (T, "stop", generate(stop=[3])),
    (L, "stop", generate(stop=[""])),
    (V, "overflow.*slide-half", generate(overflow="wrap")),
    (T, "", generate(**{"max tokens": 3})),
    # models
    (L, "no/such", lambda lm: limpid.open("no/such")),
    (L, "", lambda lm: limpid.open("")),
    (L, "", lambda lm: limpid.open("/dev/null")),
    (L, "", lambda lm: limpid.open("/tmp")),
    (T, "", lambda lm: limpid.open(3)),
    (T, "", lambda lm: limpid.open()),
    (L, "NUL", lambda lm: limpid.open("a\0b")),
    (V, "threads", lambda lm: limpid.open(".", threads=0)),
    (O, "", lambda lm: limpid.open(".", threads=-1)),
    (V, "precision", lambda lm: limpid.open(".", precision="f8")),
    (V, "simd.*portable", lambda lm: limpid.open(".", simd="avx9")),
    (V, "device", lambda lm: limpid.open(".", device="tpu")),
    (T, "", lambda lm: limpid.Lm()),
    (V, "format", lambda lm: lm.save("/tmp/x", "onnx")),
    (V, "dtype", lambda lm: lm.save("/tmp/x", "gguf", "f8")),
    (L, "/dev/null", lambda lm: lm.save("/dev/null/x", "limpid")),
    # traces
    (L, "", lambda lm: lm.trace("")),
    (L, "", lambda lm: lm.trace([])),
    (L, "context", lambda lm: lm.trace([1] * 5000)),
    (L, "vocabulary", lambda lm: lm.trace([10**6])),
    (T, "", lambda lm: lm.trace(None)),
    (K, "hook_z", lambda lm: lm.trace(PROMPT)["blocks.0.attn.hook_zz"]),
    (K, "", lambda lm: lm.trace(PROMPT)["blocks.9.attn.hook_z"]),
    (K, "", lambda lm: lm.trace(PROMPT)[""]),
    (T, "", lambda lm: lm.trace(PROMPT)[3]),
    (T, "", lambda lm: lm.trace(PROMPT)[None]),
    ((T, UnicodeEncodeError), "", lambda lm: lm.trace(PROMPT)["\ud800"]),
    (IndexError, "", lambda lm: lm.trace(PROMPT)[Z][99]),
    (T, "", lambda lm: limpid.Tensor()),
    (T, "", lambda lm: limpid.Trace()),
    ((T, AttributeError), "", lambda lm: setattr(lm.trace(PROMPT)[Z], "name", "x")),
    (T, "", lambda lm: operator.setitem(lm.trace(PROMPT)[Z], 0, 1)),
    # interventions
    (L, "hook_z", intervene({"ablate": "blocks.0.attn.hook_zz"})),
    (L, "", intervene({"ablate": Z, "head": [99]})),
    (L, "", intervene({"ablate": Z, "head": "one"})),
    (L, "", intervene({"ablat": Z})),
    (L, "", intervene({})),
    (L, "", intervene("ablate")),
    (V, "float", intervene({"scale": Z, "by": NAN})),
    (L, "", intervene({"scale": Z, "by": "2"})),
    (L, "", intervene({"steer": "blocks.0.hook_resid_pre", "add": {"vector": [1.0]}})),
    (L, "", intervene({"ablate": Z, "pos": [99]})),
    ((L, T, V), "", lambda lm: lm.intervene(None)),
    ((L, T, V), "", lambda lm: lm.intervene(3)),
    ((L, T, V, RecursionError), "", lambda lm: lm.intervene(circle())),
    ((L, T, V, RecursionError), "", lambda lm: lm.intervene(nested(100_000))),
    ((L, T, V), "", lambda lm: lm.intervene([{Z: object()}])),
    ((L, T, V), "", lambda lm: lm.intervene([{3: 4}])),
    # sweeps and gradients
    (L, "length|tokens", lambda lm: lm.sweep("a cat", "a cat and a dog", answer=3)),
    (L, "same", lambda lm: lm.sweep(PROMPT, PROMPT, answer=3)),
    (V, "by.*pair", lambda lm: lm.sweep("a cat", "a dog", by="heads")),
    (V, "metric", lambda lm: lm.sweep("a cat", "a dog", metric="x")),
    (L, "site.*resid_pre", lambda lm: lm.sweep("a cat", "a dog", site="resid")),
    (L, "vocabulary", lambda lm: lm.sweep("a cat", "a dog", answer=10**6)),
    (V, "answer", lambda lm: lm.sweep("a cat", "a dog", answer="a cat and a dog")),
    (T, "answer", lambda lm: lm.sweep("a cat", "a dog", rather_than=3)),
    (L, "position", lambda lm: lm.sweep("a cat", "a dog", answer=3, position=99)),
    (L, "hook_zz", lambda lm: lm.sweep("a cat", "a dog", answer=3, to="blocks.1.attn.hook_zz")),
    (L, "hook_z", lambda lm: lm.gradients(PROMPT, ["blocks.0.attn.hook_zz"])),
    (T, "", lambda lm: lm.gradients(PROMPT, Z)),
    (L, "position", lambda lm: lm.gradients(PROMPT, [Z], answer=3, position=99)),
    (L, "", lambda lm: lm.gradients("", [Z])),
    # scores, embeddings, masks
    (T, "", lambda lm: lm.score(PROMPT)),
    (L, "", lambda lm: lm.score("", "")),
    (L, "pooling|mean", lambda lm: lm.embed(PROMPT, "middle")),
    (L, "", lambda lm: lm.embed("")),
    (L, "", lambda lm: lm.fill("a [MASK] b")),
    (L, "no-such", lambda lm: lm.evaluate("/no-such.txt")),
    (T, "", lambda lm: lm.chat([{"content": "x"}])),
    (T, "", lambda lm: lm.chat(3)),
    # tokenizers
    (T, "", lambda lm: lm.tokenizer.encode(b"x")),
    (L, "", lambda lm: lm.tokenizer.decode([10**6])),
    ((T, O), "", lambda lm: lm.tokenizer.decode([-1])),
    # trainings
    (T, "stepz.*steps", lambda lm: limpid.train(stepz=3)),
    (T, "steps", lambda lm: limpid.train(steps=object())),
    (L, "steps", lambda lm: limpid.train(steps=-3)),
    (L, "steps", lambda lm: limpid.train(steps=1.5)),
    (L, "learning-rate|learning_rate", lambda lm: limpid.train(learning_rate=NAN)),
    (L, "preset|nano", lambda lm: limpid.train(preset="nanoo")),
    (L, "no-such", lambda lm: limpid.train("/no-such.txt")),
    (L, "n_head|n-head|head", lambda lm: limpid.train(**{**SETTINGS, "n_head": 3})),
    (T, "force", lambda lm: limpid.train(force=3)),
    (L, "terminal", lambda lm: limpid.train(ui=True)),
    (L, "terminal", lambda lm: limpid.train(serve="127.0.0.1:0")),
    (L, "terminal", lambda lm: limpid.train(recipe="llmc")),
    (L, "", lambda lm: limpid.train(resume="/no-such")),
    (T, "", lambda lm: limpid.train(callback=3, out="/tmp/limpid-hostile", force=True, **SETTINGS)),
    (T, "batch", lambda lm: limpid.open_dataset(batch=3)),
    ((T, O), "", lambda lm: limpid.open_dataset(n_layer=1).batch(-1)),
]


def test_there_are_a_hundred():
    assert len(CALLS) >= 100


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_call_that_is_refused(lm, number):
    kinds, words, call = CALLS[number]
    with pytest.raises(kinds) as caught:
        call(lm)
    text = str(caught.value)
    assert "Panic" not in type(caught.value).__name__ and text
    if words:
        caught.match("(?is)" + words)


def test_the_model_works_afterwards(run, lm):
    assert lm.generate(PROMPT, max_tokens=5).tokens == limpid.open(run.folder).generate(PROMPT, max_tokens=5).tokens


def test_closed_things(run):
    lm = limpid.open(run.folder)
    trace, parameters, stream = lm.trace(PROMPT), lm.parameters, lm.stream(PROMPT)
    with lm as same:
        assert same is lm
    for call in (lambda: lm.generate("x"), lambda: lm.config, lambda: lm.trace("x"), lambda: lm.intervene(STEPS), lambda: lm.parameters):
        with pytest.raises(limpid.LimpidError, match="closed"):
            call()
    assert repr(lm) == "Lm(closed)" and trace["logits"].size and parameters["embed.weight"].size and next(stream)
    trace.close()
    with pytest.raises(limpid.LimpidError, match="closed"):
        trace["logits"]
    lm.close()


def test_a_list_is_as_long_as_what_it_gives(lm):
    ids = lm.tokenizer.encode(PROMPT)
    want, names = lm.generate(ids, max_tokens=3).tokens, [Z]
    for length in (0, 1, 2**31, 2**62):
        claimed = Claims(ids, length)
        assert lm.generate(claimed, max_tokens=3).tokens == want and lm.trace(claimed).tokens == ids
        assert lm.tokenizer.decode(claimed) == PROMPT and list(lm.gradients(claimed, Claims(names, length))) == names
        assert lm.generate(ids, max_tokens=3, stop=Claims(["zzz"], length)).tokens == want
    steps = [{"ablate": Z, "pos": [0, 1, 2]}]
    assert lm.intervene([{"ablate": Z, "pos": range(3)}]).interventions == lm.intervene(steps).interventions


def test_arrays_of_other_kinds_are_prompts_where_they_are_ids(lm):
    ids = lm.tokenizer.encode(PROMPT)
    want = lm.generate(ids, max_tokens=3).tokens
    for array in [np.array(ids, np.int16), np.array(ids, np.uint64), np.array(ids, ">i4"), np.repeat(ids, 2)[::2]]:
        assert lm.generate(array, max_tokens=3).tokens == want
