"""A GPT that you can see through: train, run and inspect transformers.

    import limpid

    run = limpid.train(steps=200)
    print(run.lm.generate("Once upon a time", max_tokens=40))
    pattern = run.lm.trace("Once upon a time")["blocks.0.attn.hook_pattern"]

docs/python.md says the rest.
"""

from collections.abc import Mapping as _Mapping

from limpid._limpid import (
    Dataset,
    LimpidError,
    Lm,
    Parameters,
    Sample,
    Stream,
    Sweep,
    Tensor,
    Tokenizer,
    Trace,
    __version__,
)
from limpid._run import Page, Run, Text, open_dataset, report, run, train, walk

_Mapping.register(Trace)
_Mapping.register(Parameters)

open = Lm.open

__all__ = [
    "Dataset",
    "LimpidError",
    "Lm",
    "Page",
    "Parameters",
    "Run",
    "Sample",
    "Stream",
    "Sweep",
    "Tensor",
    "Text",
    "Tokenizer",
    "Trace",
    "__version__",
    "open",
    "open_dataset",
    "report",
    "run",
    "train",
    "walk",
]
