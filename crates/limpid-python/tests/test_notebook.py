"""The tutorial notebook runs from its first cell to its last."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

PAGE = Path(__file__).parents[3] / "docs/tutorial.ipynb"


def test_the_tutorial_runs(tmp_path):
    notebook = nbformat.read(PAGE, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    for cell in notebook.cells:  # the same cells on a shorter training
        cell.source = cell.source.replace("steps=600", "steps=20")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    pages = [data["text/html"] for data in shown if "<iframe" in data.get("text/html", "")]
    maps = [data["text/html"] for data in shown if data.get("text/html", "").startswith("<img")]
    assert len(pages) == 2 and len(maps) >= 2, [list(data) for data in shown]
