"""Trainings, pages and the command's verbs, as a notebook shows them."""

from __future__ import annotations

import difflib
import html
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limpid import _limpid
from limpid._limpid import Dataset, LimpidError, Lm


class Page:
    """A page in one HTML file that needs no network. A notebook shows it; `save` writes it."""

    def __init__(self, html: str, height: int = 800) -> None:
        self.html = html
        self.height = height

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file."""
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        # the page's styles and scripts stay inside their frame, and the notebook's outside
        document = html.escape(self.html, quote=True)
        style = f"width:100%;height:{self.height}px;border:0"
        # Jupyter leaves the words alone of a frame in a notebook that is not trusted
        return f'<iframe srcdoc="{document}" style="{style}">Run this cell, or trust the notebook, to see this page.</iframe>'

    def __repr__(self) -> str:
        return f"Page({len(self.html):,} characters of HTML; save(path) writes it)"


class Text(str):
    """What a verb of the command printed. A notebook shows it in a font of equal widths."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class Run:
    """A training that has ended: its folder, its summary, its model."""

    def __init__(self, folder: str | os.PathLike[str], summary: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.summary = summary
        self._lm: Lm | None = None

    @property
    def lm(self) -> Lm:
        """The model of the run: the best by validation loss."""
        if self._lm is None:
            self._lm = Lm.open(self.folder)
        return self._lm

    def log(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`: a dictionary for every step and evaluation."""
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def report(self) -> Page:
        """The page with the run's curves, which `limpid report` writes."""
        return Page((self.folder / "report.html").read_text(encoding="utf-8"))

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def __repr__(self) -> str:
        loss = self.summary.get("val_loss")
        said = "" if loss is None else f", validation loss {loss:.4f}"
        return f"Run({str(self.folder)!r}, {self.summary['steps']:,} steps{said})"


def _text(name: str, value: Any) -> str:
    """A setting's value as a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(_text(name, part) for part in value)
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, (int, float)) or hasattr(value, "__index__") or hasattr(value, "__float__"):
        return str(value)
    raise TypeError(f"{name}: expected a number, a text, True or False, or a list of them, found {value!r}")


def _settings(function: str, data: Any, settings: dict[str, Any]) -> list[tuple[str, str]]:
    """The settings of a training that keyword arguments give."""
    known = dict(_limpid.settings())
    if data is not None:
        settings = {"data": data, **settings}
    for name, value in settings.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean `{near[0]}`?" if near else "; docs/settings.md lists them"
            raise TypeError(f"{function}() got an unexpected keyword argument `{name}`{hint}")
        if not known[name] and not isinstance(value, (bool, type(None))):
            raise TypeError(f"{name}: expected True or False, found {value!r}")
    return [(name, _text(name, value)) for name, value in settings.items() if value is not None]


_MOST = 1 << 20


def _plain(value: Any) -> Any:
    """An array as lists, a range as a list, for JSON."""
    if value[_MOST:] if isinstance(value, range) else math.prod(getattr(value, "shape", ())) > _MOST:
        raise ValueError(f"a step of an intervention holds at most {_MOST:,} numbers, found {value!r:.77}")
    if isinstance(value, range):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a step of an intervention holds numbers, texts, lists and dictionaries, found {value!r}")


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Progress:
    """A line of progress on stderr, or a bar in a notebook."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self.validation: float | None = None
        self.shown = -1.0
        self.display: Any = None
        self.line = sys.stderr is not None and sys.stderr.isatty()
        if _in_notebook():
            shown = importlib.import_module("IPython.display")
            self.html = shown.HTML
            self.display = shown.display(shown.HTML(""), display_id=True)

    def tell(self, event: dict[str, Any]) -> None:
        if event["event"] == "notice":
            print(event["text"], file=sys.stderr)
        elif event["event"] == "validated":
            self.validation = event["loss"]
            self.show(event)
        elif event["event"] == "step":
            loss = event["loss"]
            if loss is not None:
                self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
            done = event["step"] == event["steps"]
            if event["seconds"] - self.shown >= 0.2 or done:
                self.shown = event["seconds"]
                self.show(event)

    def show(self, event: dict[str, Any]) -> None:
        step, steps = event["step"], event["steps"]
        said = f"step {step:,} of {steps:,}"
        said += "" if self.loss is None else f"   loss {self.loss:.4f}"
        said += "" if self.validation is None else f"   validation {self.validation:.4f}"
        if self.display is not None:
            bar = f'<progress value="{step}" max="{steps}" style="width:50%"></progress> <code>{said}</code>'
            self.display.update(self.html(bar))
        elif self.line:
            print(f"\r{said}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.display is None and self.line:
            print(file=sys.stderr)


def train(
    data: str | os.PathLike[str] | None = None,
    *,
    callback: Callable[[dict[str, Any]], Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Trains as `limpid train` does, and gives the run.

    `data` is what --data takes: a file, a folder, `builtin:stories` (the default). Every setting of docs/settings.md is a keyword:
    `train("a.txt", preset="nano", steps=500, learning_rate=3e-3, out="runs/a")`; `resume="runs/a"` goes on.

    `callback` gets every event, a dictionary whose `event` is `step`, `validated`, `saved`, `threads` or `notice`. If it raises, or at
    Ctrl-C, the run is saved and ends, and the exception comes through.
    """
    given = _settings("train", data, settings)
    bar = _Progress() if progress else None

    def tell(event: dict[str, Any]) -> None:
        if bar is not None:
            bar.tell(event)
        if callback is not None:
            callback(event)

    try:
        folder, summary = _limpid.train(given, tell)
    finally:
        if bar is not None:
            bar.end()
    return Run(folder, summary)


def open_dataset(data: str | os.PathLike[str] | None = None, **settings: Any) -> Dataset:
    """The text of a training: its tokenizer, its split, and the windows of every step, as `train` with the same arguments reads them."""
    return _limpid.open_dataset(_settings("open_dataset", data, settings))


def run(*words: str | os.PathLike[str]) -> Text:
    """Runs a verb of the command and gives what it printed: `limpid.run("params", "nano")`. An error of the command is a LimpidError."""
    command = [sys.executable, "-m", "limpid", *(os.fspath(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise LimpidError(done.stderr.strip().removeprefix("error: "))
    return Text(done.stdout)


def walk(document: str, *words: str | os.PathLike[str]) -> Text:
    """Reads a document beside a live model, as `limpid walk` does: docs/walks.md names them."""
    return run("walk", document, *words)


def report(*runs: Run | str | os.PathLike[str]) -> Page:
    """The page that shows runs side by side, as `limpid report` does."""
    folders = [one.folder if isinstance(one, Run) else one for one in runs]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        run("report", *folders, "--out", page)
        return Page(page.read_text(encoding="utf-8"))
