"""What a user does first, with NumPy and nothing else installed: train, generate, trace, intervene, look, and the command."""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import limpid
import numpy as np

assert importlib.util.find_spec("torch") is None
with tempfile.TemporaryDirectory() as folder:
    run = limpid.train(steps=20, n_layer=2, out=Path(folder) / "run", progress=False)
    lm, prompt = run.lm, "Once upon a time"
    text = lm.generate(prompt, max_tokens=10).text
    pattern = lm.trace(prompt)["blocks.0.attn.hook_pattern"]
    silenced = lm.intervene([{"ablate": "blocks.0.attn.hook_z", "head": 0}])
    lm.look(prompt).save(Path(folder) / "look.html")
    said = subprocess.run(
        [Path(sys.executable).with_name("limpid"), "generate", run.folder, "--prompt", prompt, "--max-tokens", "10", "--no-echo"],
        capture_output=True, text=True, check=True,
    )
    assert said.stdout.rstrip("\n") == text.rstrip("\n"), (said.stdout, text)
    assert np.asarray(pattern).shape == (1, 2, 4, 4) and silenced.score("Once", " upon") != lm.score("Once", " upon")
    print("limpid", limpid.__version__, "on Python", sys.version.split()[0], "with NumPy", np.__version__)
