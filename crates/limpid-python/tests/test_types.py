"""Uses that mypy checks (`mypy --strict tests/test_types.py`); pytest runs them too."""

import limpid
import numpy as np


def test_types(lm: limpid.Lm) -> None:
    sample: limpid.Sample = lm.generate("Once", max_tokens=2, stop=["x"])
    text: str = sample.text
    pieces: list[str] = list(lm.stream("Once", max_tokens=2))
    trace: limpid.Trace = lm.trace("Once upon")
    tensor: limpid.Tensor = trace["logits"]
    shape: tuple[int, ...] = tensor.shape
    array = np.asarray(tensor[0])
    missing: limpid.Tensor | None = trace.get("no")
    changed: limpid.Lm = lm.intervene([{"scale": "blocks.0.hook_attn_out", "by": 0.5}])
    slopes: dict[str, limpid.Tensor] = lm.gradients("Once upon", ["blocks.0.hook_resid_post"])
    total: float = sum(changed.score("Once", " upon"))
    assert text and pieces and shape and array.size and missing is None and slopes and total < 0
