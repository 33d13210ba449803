"""Kills trainings at random moments and compares what becomes of them with a run that nobody touched.

    python3 reference/kills.py target/release/limpid --kills 200

A quarter of the kills falls on runs that `--resume-step` takes back, a quarter on runs whose files are moved or removed
while they train. After every kill the run is resumed, until it ends: its weights must be those of the undisturbed run,
and metrics.jsonl must have every step once. Where files were taken away, limpid may instead end with an error that
names what is gone: that is counted, too. Prints a table; exits with 1 if bytes differ or something was lost and not
said. Standard library only.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEXT = "Tom has a red ball. Ann has a blue kite. The cat sat in the tree, and the dog ran home. " * 60
TINY = "--tokenizer char --d-model 32 --n-head 2 --n-layer 2 --context-length 16 --batch-size 4 --sample 0 --threads 1"
STEPS = 120
RECIPES = {
    "adamw": "--optimizer adamw",
    "muon": "--optimizer muon",
    "dropout, accumulation": "--dropout 0.1 --accumulate 2",
    "bf16": "--precision bf16",
    "average": "--ema 0.99",
}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Limpid:
    def __init__(self, binary, folder):
        self.binary, self.folder = Path(binary).resolve(), folder

    def start(self, arguments):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([self.binary, "train", *arguments.split()], cwd=self.folder, **quiet)

    def ends(self, arguments):
        child = self.start(arguments)
        told = child.communicate(timeout=300)[1]
        return child.returncode, told


def steps_logged(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "train_loss" in line or "loss" in line]


def differs(run, whole):
    """What differs between a run and the one that nobody touched."""
    if digest(run / "model.safetensors") != digest(whole / "model.safetensors"):
        return "other weights"
    if steps_logged(run) != steps_logged(whole):
        return "other lines in metrics.jsonl"
    return None


def killed(child, seconds):
    """Whether the process lived long enough to be killed."""
    try:
        child.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()
        return True


def take_away(draw, run):
    """Moves or removes something of a run; says what."""
    names = ["metrics.jsonl", "model.safetensors", "state/last.safetensors", "state", "limpid.toml", "config.json", ""]
    name = draw.choice(names)
    path, aside = run / name if name else run, run.parent / "aside"
    if not path.exists():
        return None
    shutil.rmtree(aside, ignore_errors=True)
    aside.unlink(missing_ok=True)
    if draw.random() < 0.5:
        path.rename(aside)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
    return name or "the folder"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="limpid-kills-"))
    (folder / "text.txt").write_text(TEXT)
    limpid = Limpid(asked.binary, folder)
    flags = f"--data text.txt {TINY} --steps {STEPS} --save-every 7 --eval-every 10 --eval-tokens 200 --keep 4 --json"
    wholes, seconds = {}, {}
    for name, recipe in RECIPES.items():
        whole, began = folder / f"whole-{len(wholes)}", time.time()
        code, told = limpid.ends(f"{flags} {recipe} --out {whole.name}")
        assert code == 0, told
        wholes[name], seconds[name] = whole, time.time() - began
    bad, counts, words = [], {"plain": 0, "rewind": 0, "taken": 0}, {}
    wanted = {"rewind": asked.kills // 4, "taken": asked.kills // 4}
    wanted["plain"] = asked.kills - sum(wanted.values())

    def check(kind, name, run):
        difference = differs(run, wholes[name])
        words[f"{kind}: {difference or 'the same bytes'}"] = words.get(f"{kind}: {difference or 'the same bytes'}",
            0) + 1
        if difference:
            bad.append(f"{kind}, {name}: {difference} in {run}")

    n = 0
    while any(counts[kind] < wanted[kind] for kind in wanted):
        kind = next(kind for kind in ["plain", "rewind", "taken"] if counts[kind] < wanted[kind])
        name = list(RECIPES)[n % len(RECIPES)]
        n += 1
        line, run = f"{flags} {RECIPES[name]}", folder / f"run-{n}"
        moment = lambda: draw.uniform(0, 1.1) * seconds[name]
        if kind == "plain":
            for _ in range(4):
                counts[kind] += killed(limpid.start(f"{line} --out {run.name} --resume auto"), moment())
            code, told = limpid.ends(f"{line} --out {run.name} --resume auto")
        elif kind == "rewind":
            shutil.copytree(wholes[name], run)
            for _ in range(4):
                kept = sorted(int(path.stem.split("-")[1]) for path in (run / "state").glob("step-*.safetensors"))
                back = f"--resume-step {draw.choice(kept)}" if kept else ""
                # most fall into the first moments, in which the run is taken back
                within = draw.choice([draw.uniform(0, 0.1), moment()])
                counts[kind] += killed(limpid.start(f"--resume {run.name} {back} --json"), within)
            code, told = limpid.ends(f"--resume {run.name} --json")
        else:
            child = limpid.start(f"{line} --out {run.name} --resume auto")
            time.sleep(moment())
            gone = take_away(draw, run) if run.exists() else None
            if child.poll() is not None:
                shutil.rmtree(run, ignore_errors=True)
                continue  # it had ended before
            if draw.random() < 0.5:
                counts[kind] += killed(child, draw.uniform(0, 0.5) * seconds[name])
                told = ""
            else:
                told, counts[kind] = child.communicate(timeout=300)[1], counts[kind] + 1
            code = child.returncode
            if code not in (0, -signal.SIGKILL) and "error" in told:
                words["taken: a named loss"] = words.get("taken: a named loss", 0) + 1
                continue
            if not run.exists():
                words["taken: nothing is left"] = words.get("taken: nothing is left", 0) + 1
                if code == 0:
                    bad.append(f"{kind}, {name}: {gone} was taken, nothing is left, exit 0")
                continue
            code, told = limpid.ends(f"{line} --out {run.name} --resume auto")
            if code != 0 and "error" in told:
                words["taken: refused when resumed"] = words.get("taken: refused when resumed", 0) + 1
                continue
        if code != 0:
            bad.append(f"{kind}, {name}: exit {code}: {told.strip().splitlines()[-1:]} ({run})")
            continue
        check(kind, name, run)
        if not bad:
            shutil.rmtree(run, ignore_errors=True)
    print(f"kills: {counts}")
    for what, times in sorted(words.items()):
        print(f"{times:5}  {what}")
    for line in bad:
        print(line)
    if not bad:
        shutil.rmtree(folder)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
