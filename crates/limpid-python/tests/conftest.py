"""A small model for all tests, trained once in a fraction of a second."""

import limpid
import pytest

SETTINGS = dict(steps=12, batch_size=4, context=32, n_layer=2, d_model=32, n_head=4, d_ff=64, eval_every=6, progress=False)
PROMPT = "Once upon a time there was a little"


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return limpid.train(out=tmp_path_factory.mktemp("runs") / "small", **SETTINGS)


@pytest.fixture(scope="session")
def lm(run):
    return run.lm
