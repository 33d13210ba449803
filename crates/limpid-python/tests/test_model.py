"""What `Lm` does, against the command and against itself by another way."""

import json
import os
import subprocess
import sys
import threading
import time

import limpid
import numpy as np
import pytest
from conftest import PROMPT, SETTINGS


def command(*words, **options):
    return subprocess.run([sys.executable, "-m", "limpid", *map(str, words)], capture_output=True, text=True, **options)


def test_the_command_says_the_same(run, lm):
    for settings in [{}, {"temperature": 0.0}, {"temperature": 1.3, "top_k": 5, "seed": 7}, {"stop": ["and"]}]:
        words = [word for name, value in settings.items() for one in (value if isinstance(value, list) else [value])
                 for word in (f"--{name.replace('_', '-')}", one)]
        said = command("generate", "--model", run.folder, "--prompt", PROMPT, "--max-tokens", 30, "--json", *words)
        assert said.returncode == 0, said.stderr
        sample = json.loads(said.stdout)["samples"][0]
        mine = lm.generate(PROMPT, max_tokens=30, **settings)
        assert (mine.text, mine.tokens) == (sample["text"], sample["tokens"])


def test_a_training_is_the_commands(run, tmp_path):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items() if name != "progress"]
    said = command("train", "--out", tmp_path / "a", "--json", *words)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "a/model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()
    assert json.loads(said.stdout)["val_loss"] == run.summary["val_loss"]


def test_exit_codes_are_the_commands():
    assert (command("params", "nano").returncode, command("trian").returncode, command("params", "no").returncode) == (0, 2, 1)


def test_a_stream_is_the_sample_in_pieces(lm):
    pieces = list(lm.stream(PROMPT, max_tokens=20))
    assert len(pieces) > 3 and "".join(pieces) == lm.generate(PROMPT, max_tokens=20).text
    stream = lm.stream(PROMPT, max_tokens=20)
    assert next(stream) == pieces[0]
    stream.close()
    with pytest.raises(limpid.LimpidError, match="closed"):
        next(stream)
    assert "".join(lm.stream(PROMPT, max_tokens=20)) == "".join(pieces)


def test_ids_are_a_prompt_too(lm):
    ids = lm.tokenizer.encode(PROMPT)
    assert lm.generate(ids, max_tokens=5).tokens == lm.generate(PROMPT, max_tokens=5).tokens
    assert lm.generate(np.array(ids), max_tokens=5).tokens == lm.generate(PROMPT, max_tokens=5).tokens


def test_scores_are_the_softmax_of_the_traced_logits(lm):
    ids, more = lm.tokenizer.encode(PROMPT), lm.tokenizer.encode(" girl and")
    logits = np.asarray(lm.trace(ids + more)["logits"])[0].astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    want = [log_probs[len(ids) - 1 + i, id] for i, id in enumerate(more)]
    assert np.allclose(lm.score(PROMPT, " girl and"), want, atol=1e-5)


def test_probabilities_of_attention_add_to_one(lm):
    trace = lm.trace(PROMPT)
    for layer in range(2):
        pattern = np.asarray(trace[f"blocks.{layer}.attn.hook_pattern"])
        assert pattern.shape[1] == 4 and np.allclose(pattern.sum(-1), 1, atol=1e-5) and not np.triu(pattern[0, 0], 1).any()


def test_the_stream_adds_up(lm):
    trace = lm.trace(PROMPT)
    get = lambda hook: np.asarray(trace[f"blocks.1.{hook}"])
    assert np.allclose(get("hook_resid_pre") + get("hook_attn_out"), get("hook_resid_mid"), atol=1e-5)
    assert np.array_equal(get("hook_resid_pre"), np.asarray(trace["blocks.0.hook_resid_post"]))


def test_a_trace_is_a_mapping(lm):
    trace = lm.trace(PROMPT)
    assert len(trace) == len(list(trace)) == len(trace.keys()) > 40
    assert trace.tokens == lm.tokenizer.encode(PROMPT)
    assert "blocks.0.attn.hook_z" in trace and "no" not in trace and 3 not in trace
    assert trace.get("no") is None and trace.get("no", 5) == 5
    with pytest.raises(KeyError, match="did you mean `blocks.0.attn.hook_z`"):
        trace["blocks.0.attn.hook_zz"]
    assert dict(trace.items()).keys() == set(trace)
    assert "blocks.1" in trace._repr_html_() and "data:image/svg+xml" in trace["blocks.0.attn.hook_pattern"]._repr_html_()


def test_parameters(run, lm):
    total = sum(tensor.size for tensor in lm.parameters.values())
    said = command("params", run.folder, "--json")
    assert total == json.loads(said.stdout)["total"], said.stdout
    embed = np.asarray(lm.parameters["embed.weight"])
    ids = lm.tokenizer.encode(PROMPT)
    assert np.array_equal(np.asarray(lm.trace(PROMPT)["hook_embed"])[0], embed[ids])
    with pytest.raises(KeyError):
        lm.parameters["embed.weigh"]
    assert lm.parameters.get("no") is None and "embed.weight" in lm.parameters and 3 not in lm.parameters


def test_parts_of_parameters_have_names_of_their_own(lm):
    """docs/names.md: they are in no list, and are read like any other."""
    trace, parameters = lm.trace(PROMPT), lm.parameters
    for block in range(2):
        fused = np.asarray(parameters[f"blocks.{block}.attn.qkv.weight"]).reshape(3, 4, 8, 32)
        for at, letter in enumerate("QKV"):
            name = f"blocks.{block}.attn.W_{letter}"
            part = parameters[name]
            assert part.axes == ("head", "d_model", "d_head") and np.array_equal(part, fused[at].transpose(0, 2, 1))
            assert np.array_equal(part, trace[name]) and np.array_equal(part, parameters.get(name))
            assert name in parameters and name in trace and name not in list(parameters)
    for name in ("blocks.2.attn.W_K", "blocks.0.attn.W_k", "W_K", "blocks.0.attn.hook_z", ""):
        assert name not in parameters and parameters.get(name) is None
        with pytest.raises(KeyError):
            parameters[name]


def test_interventions_change_one_model_and_not_the_other(lm):
    before = lm.generate(PROMPT, max_tokens=10, temperature=0).text
    steps = [{"ablate": "blocks.0.attn.hook_z", "head": [1]}]
    silenced = lm.intervene(steps)
    z = np.asarray(silenced.trace(PROMPT)["blocks.0.attn.hook_z"])
    own = np.asarray(lm.trace(PROMPT)["blocks.0.attn.hook_z"])
    assert not z[0, :, 1].any() and np.array_equal(z[0, :, 0], own[0, :, 0]) and own[0, :, 1].any()
    assert silenced.interventions == steps and lm.interventions == []
    assert lm.generate(PROMPT, max_tokens=10, temperature=0).text == before
    assert silenced.without_interventions().score(PROMPT, " girl") == lm.score(PROMPT, " girl") != silenced.score(PROMPT, " girl")
    with pytest.raises(limpid.LimpidError, match="did you mean `blocks.0.attn.hook_z`"):
        lm.intervene([{"ablate": "blocks.0.attn.hook_zz"}])


def test_a_unit_is_what_the_command_says(run, lm):
    text = "Once upon a time there was a little boy and a little girl."
    mine = lm.unit(1, 3, text)
    ids = lm.tokenizer.encode(text)
    post = np.concatenate([np.asarray(lm.trace(ids[at:at + 32])["blocks.1.mlp.hook_post"])[0, :, 3]
                           for at in range(0, len(ids), 32)])
    order = sorted(range(len(ids)), key=lambda at: (-abs(post[at]), at))[:8]
    assert [one["position"] for one in mine["contexts"]] == order
    assert [one["value"] for one in mine["contexts"]] == [float(post[at]) for at in order]
    assert mine["fires"] == (post > 0).sum() and mine["unit"] == "L1U3" and len(mine["raised"]) == 8
    said = command("inspect", run.folder, "--unit", "L1U3", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == lm.unit(1, 3)
    with pytest.raises(Exception, match="there is no unit 999"):
        lm.unit(1, 999, text)


def test_a_direction_shows_what_it_does(run, lm):
    words = [("a boy", "a girl"), ("the boy", "the girl"), ("one boy", "one girl"), ("his boy", "her girl")]
    pairs = [(f"Once there was {a}", f"Once there was {b}") for a, b in words]
    mine = lm.direction(pairs, write=5)
    assert (mine["pairs"], mine["held_out"], mine["chance"]) == (3, 1, 0.5)
    assert [one["name"] for one in mine["effects"]] == ["as it is", "by 0.5", "by 1", "by 2", "projected out"]
    for effect in mine["effects"]:
        changed = lm.intervene(effect["steps"]) if effect["steps"] else lm
        assert changed.generate(pairs[0][1], max_tokens=5, temperature=0.0).text == effect["text"]
    flags = [word for a, b in pairs for word in ("--positive", a, "--negative", b)]
    said = command("direction", run.folder, *flags, "--write", 5, "--json")
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert [told[name] for name in ("layers", "best", "effects")] == [mine[name] for name in ("layers", "best", "effects")]
    # what it tells apart it was not made from
    own = lm.direction(pairs[:3], test_pairs=pairs[3:])
    assert own["layers"] == mine["layers"]


def test_a_sweep_is_a_loop_of_single_runs(lm):
    clean, corrupt = "Once upon a time there was a cat", "Once upon a time there was a dog"
    ids = [lm.tokenizer.encode(text) for text in (clean, corrupt)]
    answer = 5
    sweep = lm.sweep(clean, corrupt, by="position", answer=answer)
    assert sweep.recovered.axes == ("layer", "pos") and sweep.recovered.shape == (2, len(ids[0]))

    def metric(model, prompt):
        logits = np.asarray(model.trace(prompt)["logits"])[0, -1].astype(np.float64)
        return logits[answer] - np.log(np.exp(logits).sum())

    ends = metric(lm, ids[0]), metric(lm, ids[1])
    assert np.allclose((sweep.clean, sweep.corrupt), ends, atol=1e-5)
    for layer in range(2):
        for pos in range(len(ids[0])):
            steps = [{"patch": f"blocks.{layer}.hook_resid_pre", "pos": [pos], "from": {"tokens": ids[0]}}]
            want = (metric(lm.intervene(steps), ids[1]) - ends[1]) / (ends[0] - ends[1])
            assert abs(sweep.recovered[layer, pos] - want) < 1e-2, (layer, pos)
    assert "data:image/svg+xml" in sweep._repr_html_()


def test_gradients_are_slopes(lm):
    name, at = "blocks.1.hook_resid_pre", (0, -1, 3)
    slope = np.asarray(lm.gradients(PROMPT, [name], answer=7)[name])[at]
    size = 1e-1

    def log_prob(by):
        direction = [0.0] * 32
        direction[3] = by
        moved = lm.intervene([{"steer": name, "add": {"vector": direction}, "pos": -1}])
        logits = np.asarray(moved.trace(PROMPT)["logits"])[0, -1].astype(np.float64)
        return logits[7] - np.log(np.exp(logits).sum())

    assert abs((log_prob(size) - log_prob(-size)) / (2 * size) - slope) < 0.02 * max(abs(slope), 1e-2)


def test_tokens_have_places(lm):
    for text in [PROMPT, "a cat, a dog.", "é 🙂 x", ""]:
        tokens = lm.tokenizer.tokens(text)
        assert [id for id, *_ in tokens] == lm.tokenizer.encode(text)
        assert all(0 <= begin < end <= len(text) for _, _, begin, end in tokens)
        covered = {at for _, _, begin, end in tokens for at in range(begin, end)}
        assert covered == set(range(len(text)))
    assert lm.tokenizer.decode(lm.tokenizer.encode(PROMPT)) == PROMPT


def test_places_in_a_long_text(lm):
    """A long text takes no longer for each token than a short one: the place of a token follows from that of the one before."""
    for unit in ["a", "é", "🙂", " b", "日本 x\n", "e\u0301"]:
        text = unit * (60_000 // len(unit))
        tokens = lm.tokenizer.tokens(text)
        assert [id for id, *_ in tokens] == lm.tokenizer.encode(text)
        first, *_, last = tokens
        assert first[2] == 0 and last[3] == len(text)
        # a token begins where the last one ended, or in its last character
        assert all(after[2] in (before[3], before[3] - 1) for before, after in zip(tokens, tokens[1:]))
        middle = tokens[len(tokens) // 2]
        assert middle[1] in text[middle[2] : middle[3]] or "\\x" in middle[1]


def test_an_answer_is_one_token_by_its_text_or_its_number(tmp_path):
    """The command's rule: a text that is one token, or else a number; the unknown token stands for no other text."""
    lm = limpid.train(out=tmp_path / "words", **{**SETTINGS, "tokenizer": "word"}).lm
    clean, corrupt = "Once upon a time", "Once upon a girl"
    ((unknown, mark, *_),) = lm.tokenizer.tokens("xyzzy")

    def measured(answer, **more):
        return lm.sweep(clean, corrupt, answer=answer, **more).clean

    for id in range(0, lm.tokenizer.vocab_size, 7):
        word = lm.tokenizer.decode([id])
        if lm.tokenizer.encode(word) == [id] and id != unknown:
            assert measured(word) == measured(id)
    assert measured("27") == measured(27) and measured(mark) == measured(unknown)
    for wrong in ("xyzzy", "nope", "Once upon", "", " ", "-1", "1.5", str(lm.tokenizer.vocab_size)):
        for call in (lambda: measured(wrong), lambda: measured(3, rather_than=wrong),
                     lambda: lm.gradients(clean, ["blocks.0.attn.hook_z"], answer=wrong)):
            with pytest.raises(ValueError, match="answer|rather_than"):
                call()


def test_saved_models_are_the_same(lm, tmp_path):
    want = lm.generate(PROMPT, max_tokens=8, temperature=0).text
    for format, name in [("limpid", "a"), ("hf", "b"), ("gguf", "c.gguf")]:
        lm.save(tmp_path / name, format)
        assert limpid.open(tmp_path / name).generate(PROMPT, max_tokens=8, temperature=0).text == want
    lm.save(tmp_path / "d.gguf", "gguf", "q8_0")
    assert (tmp_path / "d.gguf").stat().st_size < (tmp_path / "c.gguf").stat().st_size


def test_a_changed_model_is_not_saved_as_if_it_were_not(lm, tmp_path):
    changed = lm.intervene([{"ablate": "blocks.0.attn.hook_z", "head": [1]}])
    for format, dtype in [("limpid", None), ("hf", None), ("gguf", "q8_0"), ("llmc", None)]:
        with pytest.raises(limpid.LimpidError, match="interventions"):
            changed.save(tmp_path / format, format, dtype)
    assert not list(tmp_path.iterdir())
    changed.without_interventions().save(tmp_path / "plain")
    assert limpid.open(tmp_path / "plain").score(PROMPT, " girl") == lm.score(PROMPT, " girl")


def test_machines_agree(run, lm):
    want = np.asarray(lm.trace(PROMPT)["logits"])
    for machine in [dict(threads=1), dict(simd="portable"), dict(threads=3, simd="portable")]:
        other = limpid.open(run.folder, **machine)
        assert np.array_equal(np.asarray(other.trace(PROMPT)["logits"]), want), machine
    bf16 = limpid.open(run.folder, precision="bf16")
    assert not np.array_equal(np.asarray(bf16.trace(PROMPT)["logits"]), want)


def test_embed_and_evaluate(run, lm, tmp_path):
    last = np.asarray(lm.trace(PROMPT)["ln_final.hook_out"])[0]
    assert np.allclose(np.asarray(lm.embed(PROMPT)), last.mean(0), atol=1e-6)
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a little girl. " * 40)
    score = lm.evaluate(str(text))
    assert abs(np.exp(score["loss"]) - score["perplexity"]) < 1e-9 and score["tokens"] > 100


def test_the_page_has_the_run(lm, tmp_path):
    page = lm.look(PROMPT)
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page.html and page.html.startswith("<!doctype html>")
    assert page._repr_html_().startswith("<iframe srcdoc=")
    assert lm.intervene([{"scale": "blocks.0.hook_attn_out", "by": 0.5}]).look(PROMPT).html != page.html


def test_chat_needs_a_model_that_was_trained_on_conversations(lm):
    for call in (lm.chat, lm.chat_stream):
        with pytest.raises(limpid.LimpidError, match="conversation"):
            call("Hello")


def test_conversations(tmp_path):
    lines = [{"messages": [{"role": "user", "content": f"Say {word}"}, {"role": "assistant", "content": word}]}
             for word in ["cat", "dog", "sun", "tree"] * 30]
    data = tmp_path / "chat.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)))
    lm = limpid.train(data, out=tmp_path / "run", **{**SETTINGS, "context_length": 64, "context": 64}).lm
    asked = [{"role": "user", "content": "Say dog"}]
    assert lm.chat(asked, max_tokens=8).text == "".join(lm.chat_stream("Say dog", max_tokens=8))
    with pytest.raises(ValueError, match="role"):
        lm.chat([{"role": "robot", "content": "x"}])


def test_masks_are_filled(tmp_path):
    settings = {**SETTINGS, "mask": "bidirectional", "tokenizer": "word", "n_segment": 2}
    bert = limpid.train(out=tmp_path / "bert", **settings).lm
    filled = bert.fill("Once upon a [MASK] there was a girl")
    assert filled.startswith("Once upon a ") and "[MASK]" not in filled
    for refused in (bert.generate, bert.stream):
        with pytest.raises(limpid.LimpidError):
            refused("Once upon a")


def test_many_threads_use_one_model(lm):
    want = lm.generate(PROMPT, max_tokens=12).tokens, np.asarray(lm.trace(PROMPT)["logits"]), lm.score(PROMPT, " girl")
    found, failed = [], []

    def work():
        try:
            for _ in range(3):
                got = lm.generate(PROMPT, max_tokens=12).tokens, np.asarray(lm.trace(PROMPT)["logits"]), lm.score(PROMPT, " girl")
                found.append(got[0] == want[0] and np.array_equal(got[1], want[1]) and got[2] == want[2])
        except Exception as error:  # told below
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(32)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed and found == [True] * 96


def test_others_go_on_while_it_computes(lm):
    """Python never takes its lock away here, so this thread runs during the call only if the call gives the lock up."""
    started, done, turns = threading.Event(), [], 0

    def work():
        started.set()
        lm.generate(PROMPT, max_tokens=2000)
        done.append(True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        while not done:
            turns += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert turns > 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_told_to_open_its_own(run):
    code = f"""
import limpid, os, sys
lm = limpid.open({str(run.folder)!r}); trace = lm.trace("Once upon"); stream = lm.stream("Once upon"); next(stream)
data = limpid.open_dataset(**{ {k: v for k, v in SETTINGS.items() if k != 'progress'} !r})
pid = os.fork()
if pid == 0:
    for call in (lambda: lm.generate("Once"), lambda: trace["logits"], lambda: next(stream), lambda: data.batch(0), lambda: lm.config):
        try:
            call()
        except limpid.LimpidError as error:
            assert "fork" in str(error), error
        else:
            sys.exit(3)
    own = limpid.open({str(run.folder)!r})
    assert own.generate("Once", max_tokens=3).tokens
    del lm, trace, stream, data
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert lm.generate("Once", max_tokens=3).tokens and trace["logits"].size
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_stream_may_be_open_at_the_end(run):
    code = f"import limpid; lm = limpid.open({str(run.folder)!r}); s = lm.stream('Once', max_tokens=1000); print(next(s))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_generation(run):
    code = f"""
import limpid, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have inherited that it is ignored
lm, ended = limpid.open({str(run.folder)!r}), threading.Event()

def press():
    while not ended.wait(0.5):
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press, daemon=True).start()
try:
    while True:
        lm.generate("Once", max_tokens=100000)
except KeyboardInterrupt:
    ended.set()
print("ended", len(lm.generate("Once", max_tokens=3).tokens))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "ended 3\n", done.stderr
