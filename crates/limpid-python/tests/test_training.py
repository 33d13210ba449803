"""`train` and the windows it reads."""

import json
import os
import signal
import subprocess
import sys

import limpid
import numpy as np
import pytest
from conftest import SETTINGS


def test_events(tmp_path):
    events = []
    run = limpid.train(out=tmp_path / "a", callback=events.append, **SETTINGS)
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, 13)) and {event["steps"] for event in steps} == {12}
    assert all(event["loss"] > 0 and event["grad_norm"] > 0 and event["tokens"] == 128 for event in steps)
    assert [event["step"] for event in events if event["event"] == "validated"] == [6, 12]
    assert steps[-1]["loss"] == [line for line in run.log() if "train_loss" in line][-1]["train_loss"]
    assert (run.folder / "report.html").read_text() == run.report().html and run.summary["steps"] == 12
    assert json.loads((run.folder / "summary.json").read_text())["val_loss"] == run.summary["val_loss"]
    assert run.lm is run.lm and "12 steps" in repr(run) and "<iframe" in run._repr_html_()


def test_an_exception_comes_through_and_the_run_goes_on_later(run, tmp_path):
    class Mine(Exception):
        pass

    def callback(event):
        if event["event"] == "step" and event["step"] == 5:
            raise Mine("enough")

    with pytest.raises(Mine, match="enough"):
        limpid.train(out=tmp_path / "a", callback=callback, **SETTINGS)
    assert not (tmp_path / "a/summary.json").exists() or json.loads((tmp_path / "a/summary.json").read_text())["stopped"]
    resumed = limpid.train(resume=tmp_path / "a", progress=False)
    assert (resumed.folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def test_ctrl_c_saves_the_run(run, tmp_path):
    code = f"""
import limpid, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
def callback(event):
    if event["event"] == "step" and event["step"] == 4:
        os.kill(os.getpid(), signal.SIGINT)
limpid.train(out={str(tmp_path / "a")!r}, callback=callback, **{SETTINGS!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "KeyboardInterrupt" in done.stderr and done.returncode in (1, -signal.SIGINT, 130), done.stderr
    resumed = limpid.train(resume=tmp_path / "a", progress=False)
    assert (resumed.folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def test_windows_are_those_of_the_training():
    settings = {name: value for name, value in SETTINGS.items() if name != "progress"}
    data = limpid.open_dataset(**settings)
    (tokens, targets), again = data.batch(3), limpid.open_dataset(**settings).batch(3)
    x, y = np.asarray(tokens), np.asarray(targets)
    assert x.shape == y.shape == (4, 32) and np.array_equal(x[:, 1:], y[:, :-1])
    assert np.array_equal(x, np.asarray(again[0])) and not np.array_equal(x, np.asarray(data.batch(4)[0]))
    other = limpid.open_dataset(**settings, seed=1).batch(3)
    assert not np.array_equal(x, np.asarray(other[0]))
    text = np.asarray(data.train)
    places = np.lib.stride_tricks.sliding_window_view(text, 33)
    assert all((places == np.append(x[i], y[i, -1])).all(1).any() for i in range(4))
    assert data.config["n_layer"] == 2 and data.recipe["batch_size"] == 4 and data.steps == 12


def test_the_first_loss_is_that_of_the_first_windows(tmp_path):
    """The loss that step 1 reports, computed from the initial weights by NumPy's softmax over this library's logits of the same windows."""
    events, settings = [], {**SETTINGS, "steps": 1, "learning_rate": 1e-30, "min_learning_rate": 0, "weight_decay": 0}
    run = limpid.train(out=tmp_path / "a", callback=events.append, **settings)
    settings.pop("progress")
    tokens, targets = (np.asarray(t) for t in limpid.open_dataset(**settings).batch(0))
    losses = []
    for x, y in zip(tokens, targets):
        logits = np.asarray(run.lm.trace(x.tolist())["logits"])[0].astype(np.float64)
        losses += list(np.log(np.exp(logits).sum(-1)) - logits[np.arange(32), y])
    assert abs(np.mean(losses) - next(event["loss"] for event in events if event["event"] == "step")) < 1e-5


def test_other_data_and_tokenizers(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be, that is the question. " * 60)
    run = limpid.train(tmp_path / "a.txt", tokenizer="char", out=tmp_path / "run", **SETTINGS)
    assert run.lm.tokenizer.name == "char" and run.lm.config["vocab_size"] == run.lm.tokenizer.vocab_size < 30
    tuned = limpid.train(tmp_path / "a.txt", out=tmp_path / "tuned", steps=3, progress=False, **{"from": run.folder})
    assert tuned.lm.tokenizer.name == "char" and tuned.summary["steps"] == 3


def test_a_recipe_is_for_a_terminal_wherever_it_is_set(tmp_path, monkeypatch):
    (tmp_path / "a.toml").write_text('recipe = "llmc"\n')
    with pytest.raises(limpid.LimpidError, match="terminal"):
        limpid.train(out=tmp_path / "run", config=tmp_path / "a.toml", **SETTINGS)
    monkeypatch.setenv("LIMPID_RECIPE", "llmc")
    with pytest.raises(limpid.LimpidError, match="terminal"):
        limpid.train(out=tmp_path / "run", **SETTINGS)


def test_the_commands_verbs():
    said = limpid.run("params", "nano")
    assert said.startswith("nano: 2 layers") and said._repr_html_().startswith("<pre>")
    with pytest.raises(limpid.LimpidError, match="tip: a similar subcommand exists: 'train'"):
        limpid.run("trian")
    assert "Scaled Dot-Product" in limpid.walk("s0", "masking")


def test_reports(run, tmp_path):
    other = limpid.train(out=tmp_path / "b", **{**SETTINGS, "steps": 8})
    page = limpid.report(run, other.folder)
    assert page.html.count("<svg") >= 1 and "b" in page.html


def test_progress_is_a_line(tmp_path, capfd):
    limpid.train(out=tmp_path / "a", **{**SETTINGS, "progress": True})
    assert capfd.readouterr().err == ""  # no terminal, no line
