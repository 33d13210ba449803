"""limpid beside PyTorch and llama.cpp: the same work, machine and threads, taken in turns, printed as a Markdown table.

  pip install torch llama-cpp-python gguf
  cargo build --release
  python benches/compare/compare.py s1 s4 --rounds 5
  python benches/compare/compare.py s6 --text FILE.txt

Without names it runs all eleven, the longest of them (s3, s6) for minutes. A missing peer leaves its rows out.

Every round starts each side afresh, one after the other (A B A B); a side warms up and reports its own median. The
table has the medians of the rounds, their range, and how many times as good limpid is. Training rows come twice: as
people run PyTorch, and "tuned", with glibc's malloc told to keep memory, for both sides. Tokens, batch, dropout, GELU,
optimizer and clipping are the same; PyTorch's GPT-2 has its vocabulary padded to 50,304, which is faster for it.
"Share" is of the roof that limpid measures in the same run: multiply-adds, or bytes read a second for decoding. Some
processors (Sapphire Rapids without AMX) do bf16 at half the speed of f32; there PyTorch's f32 is the rival to beat, and
--best takes it.

--isa avx2 holds every side to AVX2, on any x86-64: what most processors have. llama.cpp decides that when it is built
(CMAKE_ARGS="-DGGML_NATIVE=OFF" pip install --no-binary :all: llama-cpp-python); a build with more is left out.
"""
import argparse, datetime, importlib.metadata, importlib.util, itertools, json, os, platform, shlex, statistics
import subprocess, sys, tempfile
from pathlib import Path

HERE = Path(__file__).parent
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
# the measures of training: id, preset, limpid's precision, PyTorch's, batch, tokens, dropout, steps, floor, aim
TRAIN = [
    ("S1", "nano", "f32", ["f32"], 12, 64, 0, 60, 2, 3),
    ("S2", "nano", "bf16", ["f32", "bf16"], 12, 64, 0, 60, 3, 5),
    ("S3", "baby", "bf16", ["bf16"], 64, 256, 0.2, 2, 2.5, 4),
    ("S4", "gpt2", "f32", ["f32"], 4, 64, 0, 5, 2, 3),
    ("S4", "gpt2", "bf16", ["bf16"], 4, 64, 0, 5, 1.3, 1.8),
    ("S5", "gpt2", "bf16", ["bf16"], 1, 1024, 0, 3, 1.4, 2),
]
# what holds PyTorch and the libraries that it calls to an instruction set
ISA = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
# limpid's preset of a model, where it has another name or recipe: what is compared is nanoGPT's, not limpid's own
PRESETS = {"nano": ["nanogpt-cpu"], "baby": ["baby", "--positions", "learned", "--optimizer", "adamw"]}
# limpid's way to 1.90: with its wider initial weights it bears a higher learning rate than the recipe's 1e-3, and then
# needs fewer steps than its 2,000; the row with 2,000 steps each compares the programs alone
TO_190, TO_190_RATE = 850, 6e-3
NAMES = [f"s{i}" for i in range(1, 12)]
HEADER = ("| id | what; against | limpid (range) | peer (range) | ratio | floor | aim | share |\n"
          "|---|---|---|---|---|---|---|---|")


class Compare:
    def __init__(self, args, folder):
        self.args, self.folder, self.rows, self.notes = args, folder, [], []
        self.wrap = shlex.split(args.wrap)
        self.has = {name: importlib.util.find_spec(name) is not None for name in ("torch", "llama_cpp", "gguf")}
        if args.isa and self.has["llama_cpp"]:
            facts = self.run([sys.executable, HERE / "llama_peer.py", "built"]) or {"built": ""}
            if "AVX512 = 1" in facts["built"]:
                self.has["llama_cpp"] = False
                self.note("llama.cpp: left out, this one was built with AVX-512 (see --help)")

    # ---- running

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def missing(self, what, *packages):
        absent = [p for p in packages if not self.has[p]]
        if absent:
            wanted = " ".join("llama-cpp-python" if p == "llama_cpp" else p for p in absent)
            self.note(f"{what}: left out, it needs `pip install {wanted}`")
        return bool(absent)

    def run(self, command, env=None, timed=False):
        """The JSON that a command prints, or None, with the reason noted; `timed`: clock.py's, with what was printed in
        "out"."""
        command = [str(part) for part in (command() if callable(command) else command)]
        clock = [sys.executable, str(HERE / "clock.py")] if timed else []
        env = {**os.environ, "OMP_NUM_THREADS": str(self.args.threads), **ISA.get(self.args.isa, {}), **(env or {})}
        done = subprocess.run(self.wrap + clock + command, capture_output=True, text=True, env=env)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it failed"]
            # a program says what is wrong first, a Python traceback last
            self.note(f"`{Path(command[0]).name} {' '.join(command[1:])}`: {lines[-1 if 'Traceback' in lines[0] else 0]}")
            return None
        return json.loads(done.stdout)

    def turns(self, sides, rounds=None):
        """Runs every side once a round. `sides`: name -> (command or what makes it, environment, whether the clock
        times it)."""
        results = {name: [] for name in sides}
        for i in range(rounds or self.args.rounds):
            for name, side in sides.items():
                if i > 0 and not results[name]:
                    continue  # refused the first time
                result = self.run(*side)
                if result is not None:
                    results[name].append(result)
        return results

    def limpid(self, *words, precision="f32"):
        named = [] if precision == "f32" else ["--precision", precision]
        held = ["--simd", self.args.isa] if self.args.isa else []
        return [self.args.limpid, *words, "--threads", self.args.threads, *held, *named]

    def torch(self, *words):
        return [sys.executable, HERE / "torch_peer.py", *words, "--threads", self.args.threads]

    # ---- the table

    def row(self, id, what, own, peer, key, floor, aim, more_is_better=False):
        """One line: `own` and `peer` are lists of results, `key` what to take from them."""
        def values(results):
            return [r[key] for r in results]

        def text(values):
            if not values:
                return "-"
            digits = 0 if max(values) >= 1000 else 1
            short = lambda v: f"{v:,.{digits}f}"
            return f"{short(statistics.median(values))} ({short(min(values))}-{short(max(values))})"

        a, b = values(own), values(peer)
        ratio = "-"
        if a and b:
            a_mid, b_mid = statistics.median(a), statistics.median(b)
            ratio = f"{a_mid / b_mid if more_is_better or key == 'peak_mb' else b_mid / a_mid:.2f}"
        shares = [r["share_of_roof"] for r in own if r.get("share_of_roof") is not None]
        share = f"{100 * statistics.median(shares):.0f} %" if shares else "-"
        line = f"| {id} | {what} | {text(a)} | {text(b)} | {ratio} | {floor} | {aim} | {share} |"
        print(line if self.rows else f"{HEADER}\n{line}", flush=True)
        self.rows.append(line)

    # ---- the measures

    def train(self, id, preset, precision, rivals, batch, tokens, dropout, steps, floor, aim):
        if self.missing(id, "torch"):
            return
        own = self.limpid("bench", "train", "--preset", *PRESETS.get(preset, [preset]), "--batch-size", batch,
            "--context", tokens, "--dropout", dropout,
                          "--steps", steps, "--json", precision=precision)
        # warm-up: PyTorch's first step is slow, its second is not
        peer = ["step", "--size", preset, "--batch", batch, "--time", tokens, "--dropout", dropout, "--steps", steps,
                "--warmup", 1 if preset == "baby" else 3]
        sides, rivals = {}, sorted({*rivals, "f32"} if self.args.best else rivals)
        for how, env in (("", {}), (", tuned", TUNED)):
            sides["limpid" + how] = (own, env)
            for dtype in rivals:
                sides[f"PyTorch {dtype}{how}"] = (self.torch(*peer, "--dtype", dtype), env)
                if self.args.compile:
                    sides[f"PyTorch {dtype} compiled{how}"] = (self.torch(*peer, "--dtype", dtype, "--compile"), env)
        rounds = min(self.args.rounds, 3) if preset == "baby" else None
        results = self.turns(sides, rounds)
        for how in ("", ", tuned"):
            peers = {n: r for n, r in results.items() if n.startswith("PyTorch") and n.endswith("tuned") == bool(how)
                and r}
            middle = lambda name: statistics.median(r["ms_per_step"] for r in peers[name])
            best = min(peers, key=middle, default=None)
            if len(peers) > 1:
                self.note(f"{id}{how}: " + ", ".join(f"{name} {middle(name):.1f} ms" for name in peers))
            what = f"train {preset} {precision}, B {batch}, T {tokens}, dropout {dropout}: ms a step; {best or 'PyTorch'}"
            limits = (f"{floor}x", f"{aim}x") if not how else ("1x", "-")
            self.row(id, what, results["limpid" + how], peers.get(best, []), "ms_per_step", *limits)

    def recipe(self):
        if self.missing("S6", "torch"):
            return
        if not self.args.text:
            return self.note("S6: left out, it needs --text FILE, tinyshakespeare")
        precision = self.args.recipe_precision
        sides, folders = {}, (self.folder / f"recipe-{i}" for i in itertools.count())

        def own(steps, rate=1e-3):
            return lambda: self.limpid("train", "--preset", *PRESETS["nano"], "--data", self.args.text, "--tokenizer",
                "char",
                                       "--steps", steps, "--learning-rate", rate, "--sample", 0, "--json", "--out",
                                       next(folders), precision=precision)

        for how, env in (("", {}), (", tuned", TUNED)):
            sides["to" + how] = (own(TO_190, TO_190_RATE), env, True)
            sides["PyTorch" + how] = (self.torch("recipe", "--text", self.args.text, "--steps", 2000), env, True)
            sides["same" + how] = (own(2000), env, True)
        results = self.turns(sides)
        for runs in results.values():
            for run in runs:
                run["val_loss"] = json.loads(run["out"])["val_loss"]
        losses = lambda name: "/".join(sorted({f"{r['val_loss']:.3f}" for r in results[name]})) or "-"
        if any(r["val_loss"] > 1.90 for r in results["PyTorch"]):
            self.note("S6: PyTorch did not reach 1.90 in 2,000 steps, so its time is less than it needs")
        for how, limits in (("", ("3x", "6x")), (", tuned", ("1x", "-"))):
            for name, steps in (("to", TO_190), ("same", 2000)):
                if results[name + how] and max(r["val_loss"] for r in results[name + how]) > 1.90:
                    self.note(f"S6: limpid did not reach 1.90 in {steps} steps")
                what = (f"character recipe {precision}, whole command: s; limpid {steps:,} steps to {losses(name + how)}, "
                        f"PyTorch f32{how} 2,000 to {losses('PyTorch' + how)}")
                due = limits if name == "to" else ("-", "-")
                self.row("S6", what, results[name + how], results["PyTorch" + how], "seconds", *due)

    def memory(self):
        if self.missing("S7", "torch"):
            return
        own = self.limpid("bench", "train", "--preset", "gpt2", "--batch-size", 4, "--context", 64, "--dropout", 0,
                          "--steps", 1, "--json")
        peer = self.torch("step", "--size", "gpt2", "--batch", 4, "--time", 64, "--steps", 2, "--warmup", 1)
        results = self.turns({"limpid": (own,), "PyTorch": (peer,)}, min(self.args.rounds, 3))
        for run in results["limpid"] + results["PyTorch"]:
            run["peak_mb"] = run["peak_rss_bytes"] / 1e6
            run.pop("share_of_roof", None)
        self.row("S7", "peak memory, train gpt2 f32, B 4, T 64: MB; PyTorch f32", results["limpid"], results["PyTorch"],
            "peak_mb",
                 "<= 0.75x", "<= 0.6x")

    def weights(self, dtype):
        """A GGUF file for llama.cpp, written once."""
        file = self.folder / f"gpt2-{dtype}.gguf"
        if not file.exists():
            self.run([sys.executable, HERE / "llama_peer.py", "write", file, "--dtype", dtype])
        return file

    def tokens(self, id, verb, count, limits):
        if self.missing(id, "llama_cpp", "gguf"):
            return
        for dtype in ("f32", "bf16"):
            own = self.limpid("bench", verb, "--preset", "gpt2", "--tokens", count, "--json", precision=dtype)
            peer = [sys.executable, HERE / "llama_peer.py", verb, self.weights(dtype), "--tokens", count,
                    "--threads", self.args.threads]
            results = self.turns({"limpid": (own,), "llama.cpp": (peer,)})
            work = "decode" if verb == "decode" else f"prefill {count} tokens,"
            self.row(id, f"{work} gpt2 {dtype}: tok/s; llama.cpp {dtype.upper()}", results["limpid"],
                results["llama.cpp"], "tok_s",
                     *limits[dtype], more_is_better=True)

    def quantised(self):
        """Decode and prefill from files of blocks: GPT-2 of random weights, or the file given by --model."""
        if self.missing("S11", "llama_cpp", "gguf"):
            return
        source = self.args.model or self.weights("f32")
        for dtype in ("q8_0", "q4_0", "q4_k"):
            file = self.folder / f"{Path(source).stem}-{dtype}.gguf"
            done = subprocess.run([self.args.limpid, "convert", source, file, "--dtype", dtype], capture_output=True,
                text=True)
            if done.returncode:
                self.note(f"S11 {dtype}: {done.stderr.strip()}")
                continue
            for verb, count in (("decode", 64), ("prefill", 256)):
                words = ["bench", verb, "--model", file, "--tokens", count, "--json"]
                peer = [sys.executable, HERE / "llama_peer.py", verb, file, "--tokens", count, "--threads",
                    self.args.threads]
                results = self.turns({"f32": (self.limpid(*words),), "llama.cpp": (peer,),
                    "int8": (self.limpid(*words, precision="int8"),)})
                for precision in ("f32", "int8"):
                    self.row("S11", f"{verb} {Path(source).stem} {dtype}, {precision}: tok/s; llama.cpp",
                        results[precision], results["llama.cpp"], "tok_s",
                             "1x", "1.2x", more_is_better=True)

    def start(self):
        model = self.folder / "nano"
        data = ["--data", self.args.text, "--tokenizer", "char"] if self.args.text else []
        if self.run(self.limpid("train", "--preset", *PRESETS["nano"], "--steps", 5, *data, "--sample", 0, "--out",
            model, "--json")) is None:
            return
        # without a prompt, the first byte on stdout is of the first sampled token
        side = (self.limpid("generate", "--model", model, "--max-tokens", 1), {}, True)
        results = self.turns({"limpid": side}, 4 * self.args.rounds)
        self.row("S10", "process start to first sampled token, nano: ms", results["limpid"], [], "first_byte_ms",
            "100 ms", "30 ms")

    def all(self):
        for id in [name.upper() for name in self.args.names or NAMES]:
            for measure in TRAIN:
                if measure[0] == id:
                    self.train(*measure)
            if id == "S6":
                self.recipe()
            elif id == "S7":
                self.memory()
            elif id == "S8":
                self.tokens(id, "decode", 64, {p: ("1x, 75 %", "1.15x, 90 %") for p in ("f32", "bf16")})
            elif id == "S9":
                self.tokens(id, "prefill", 256, {"f32": ("-", "-"), "bf16": ("1x", "1.4x")})
            elif id == "S10":
                self.start()
            elif id == "S11":
                self.quantised()

    def record(self):
        """When, where and with what: the line above a recorded table."""
        def version(package):
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                return "-"

        a, facts = self.args, {}
        if Path("/proc/cpuinfo").exists():
            pairs = (line.partition(":")[::2] for line in Path("/proc/cpuinfo").read_text().splitlines())
            facts = {key.strip(): value.strip() for key, value in pairs}
        sets = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f in facts.get("flags",
            "").split()]
        typed = ["compare.py", *a.names, f"--rounds {a.rounds} --threads {a.threads}"]
        typed += [f"--{name}" for name in ("compile", "best") if getattr(a, name)] + ([f"--isa {a.isa}"] if a.isa
            else [])
        own = subprocess.run([a.limpid, "--version"], capture_output=True, text=True).stdout.strip()
        cpu = f"{facts.get('model name', platform.processor())}, family {facts.get('cpu family')}, model {facts.get('model')}"
        return (f"{datetime.date.today()} · {cpu} ({' '.join(sets)}) · {own}, torch {version('torch')}, llama-cpp-python "
                f"{version('llama_cpp_python')}, Python {platform.python_version()} · `{' '.join(typed)}`")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="s1 ... s11", help="which measures [default: all]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limpid", default="target/release/limpid", help="the binary")
    parser.add_argument("--text", help="tinyshakespeare, for s6")
    parser.add_argument("--model", help="a GGUF in f32, for s11 [default: GPT-2 of random weights]")
    parser.add_argument("--compile", action="store_true",
        help="PyTorch compiled too (needs a C++ compiler; slow to begin)")
    parser.add_argument("--best", action="store_true", help="bf16 rows against the faster of PyTorch's bf16 and f32")
    parser.add_argument("--isa", choices=ISA, help="hold every side to this instruction set")
    parser.add_argument("--recipe-precision", default="f32", help="limpid's in s6")
    parser.add_argument("--wrap", default="", help="put before every command, such as 'taskset -c 0,1'")
    parser.add_argument("--record", metavar="FILE", help="append the table to FILE, with date, processor and versions")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name.lower() not in NAMES]:
        parser.error(f"no measure is called {', '.join(unknown)}: they are {' '.join(NAMES)}")
    if not Path(args.limpid).is_file():
        parser.error(f"{args.limpid} is not there: cargo build --release makes it, --limpid names another")
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        compare = Compare(args, Path(folder))
        compare.all()
    notes = "".join(f"\n* {note}" for note in compare.notes)
    print(notes)
    if args.record:
        table = "\n".join([HEADER, *compare.rows]) if compare.rows else "nothing measured"
        with open(args.record, "a", encoding="utf-8") as file:
            file.write(f"\n{compare.record()}\n\n{table}\n{notes}\n")


if __name__ == "__main__":
    main()
