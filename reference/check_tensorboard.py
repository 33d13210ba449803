"""Asks TensorBoard itself what it reads in runs' folders, and compares it with their metrics.jsonl.

pip install tensorboard; python reference/check_tensorboard.py RUN...
"""

import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

TAGS = {"train_loss": "loss/train", "val_loss": "loss/val"}
ALL = {"scalars": 0, "tensors": 0}


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def expected(lines):
    """Tag -> [(step, value, wall time)], and the samples."""
    scalars, samples = {}, []
    began = lines[0]["time"] - lines[0]["seconds"]
    tokens = seconds = 0
    for line in lines:
        now = began + line.get("seconds", seconds)
        put = lambda tag, value: scalars.setdefault(tag, []).append((line["step"], f32(value), now))
        for key, value in line.items():
            if key == "layers":
                for layer, told in value.items():
                    for what, number in told.items():
                        put(f"{what}/{layer}", number)
            elif key not in ("step", "time", "seconds") and isinstance(value, (int, float)):
                put(TAGS.get(key, key), value)
        if "tokens" in line:
            put("tokens_per_second", (line["tokens"] - tokens) / (line["seconds"] - seconds))
            tokens, seconds = line["tokens"], line["seconds"]
        if "sample" in line:
            samples.append((line["step"], line["prompt"] + line["sample"]))
    return scalars, samples


def check(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scalars, samples = expected(lines)
    read = EventAccumulator(str(run), size_guidance=ALL).Reload()
    tags = read.Tags()["scalars"]
    assert sorted(tags) == sorted(scalars), (sorted(tags), sorted(scalars))
    for tag in tags:
        found = [(e.step, e.value, e.wall_time) for e in read.Scalars(tag)]
        for a, b in zip(found, scalars[tag], strict=True):
            assert a[:2] == b[:2] and abs(a[2] - b[2]) < 1e-5, (tag, a, b)
    found = [(e.step, make_ndarray(e.tensor_proto)[0].decode()) for e in read.Tensors("sample")] if samples else []
    indented = [(step, "".join(f"    {line}\n" for line in text.splitlines())) for step, text in samples]
    assert found == indented, (found, indented)
    if samples:
        assert read.SummaryMetadata("sample").plugin_data.plugin_name == "text"
    events = len(list(run.glob("events.out.tfevents.*")))
    assert events == 1, f"{events} event files"
    print(f"{run}: {len(tags)} tags, {sum(map(len, scalars.values()))} numbers, {len(samples)} samples: all equal")


for run in sys.argv[1:]:
    check(Path(run))
