"""Every block of Python in docs/python.md and the wheel's README runs, and so does every line of the table."""

import re
from pathlib import Path

import limpid
import pytest

ROOT = Path(__file__).parents[3]
SMALL = dict(n_layer=2, batch_size=4, context=32, eval_every=0, progress=False)


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("page", ["docs/python.md", "README.md", "crates/limpid-python/README.md"])
def test_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = limpid.train
    monkeypatch.setattr(limpid, "train", lambda *args, **settings: train(*args, **{**SMALL, **settings, "steps": 4}))
    found = blocks(page)
    assert found
    names = {}
    for block in found:
        exec(compile(block, page, "exec"), names)


def test_every_line_of_the_table_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limpid.train(out="runs/first", steps=2, **SMALL)
    lm = limpid.open("runs/first")
    names = {"limpid": limpid, "lm": lm, "trace": lm.trace("Once upon")}
    table = (ROOT / "docs/python.md").read_text(encoding="utf-8").split("| there | here |")[1].split("\n\n")[0]
    lines = [line.split(" | ")[-1] for line in table.splitlines()[2:]]
    assert len(lines) > 20
    for line in lines:
        for call in re.findall(r"`([^`]+)`", line):
            exec(call, names)
