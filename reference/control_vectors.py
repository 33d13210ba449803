#!/usr/bin/env python3
"""Control vectors in both programs: limpid's in llama.cpp, gguf-py's in limpid; and the truth of limpid's directions,
by numpy.

    python reference/control_vectors.py check target/release/limpid     # limpid beside llama.cpp itself
    python reference/control_vectors.py make                            # crates/limpid/fixtures/directions.json, and control.gguf there

`check` needs `xllamacpp` (2026.10.11549, whose extension has llama.cpp's functions) and `gguf`. It lets limpid find a
control vector of a small GPT-2 and of a small Llama, both just trained; lets llama.cpp read and apply it
(`common_control_vector_load`, `llama_set_adapter_cvec`), in all layers and in each one alone; and compares logits and
eight greedy tokens with limpid's `inspect` and `generate --intervene`. Then the same with a vector that gguf-py wrote.
llama.cpp looks a GELU up in a table of f16, so GPT-2's logits may differ by 5e-4, and Llama's by 1e-5.

`make` writes rows of random numbers, and what numpy finds in them: the difference of means, the first right singular
vector of the differences with its share, and a logistic regression with L2 by Newton's method; and a control vector
that gguf-py writes.
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
from safetensors.numpy import load_file

FIXTURES = pathlib.Path(__file__).parent.parent / "crates/limpid/fixtures"
LENGTH = 8
L2 = 1e-3


def write(path, directions, hint):
    """A control vector as repeng and llama.cpp's cvector-generator write one."""
    writer = gguf.GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", hint)
    writer.add_uint32("controlvector.layer_count", len(directions))
    for layer, vector in directions.items():
        writer.add_tensor(f"direction.{layer}", vector.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path):
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "controlvector"
    return {int(tensor.name.split(".")[1]): numpy.array(tensor.data) for tensor in reader.tensors}


# ---- the truth of the arithmetic


def probe(rows, signs):
    """w and b that minimise mean(ln(1 + exp(-y (w x + b)))) + L2/2 |w|^2, of rows that are centred and have a mean
    square length of 1."""
    centre = rows.mean(0)
    scale = numpy.sqrt(((rows - centre) ** 2).sum(1).mean())
    ones = numpy.hstack([(rows - centre) / scale, numpy.ones((len(rows), 1))])
    ridge = numpy.diag([L2] * rows.shape[1] + [0.0])
    at = numpy.zeros(ones.shape[1])
    for _ in range(100):
        right = 1 / (1 + numpy.exp(-ones @ at))
        slope = ones.T @ (right - (signs > 0)) / len(rows) + ridge @ at
        curve = (ones.T * (right * (1 - right))) @ ones / len(rows) + ridge
        at = at - numpy.linalg.solve(curve, slope)
    assert numpy.abs(slope).max() < 1e-12, numpy.abs(slope).max()
    return at[:-1] / numpy.linalg.norm(at[:-1])


def make():
    draw = numpy.random.default_rng(7)
    cases = []
    for pairs, wide, apart in [(1, 3, 1.0), (2, 2, 0.5), (5, 8, 1.0), (9, 4, 0.3), (12, 33, 2.0), (40, 6, 0.0)]:
        sense = draw.normal(size=wide)
        base = draw.normal(size=(pairs, wide))
        positive = base + 0.5 * draw.normal(size=(pairs, wide)) + apart * sense
        negative = base + 0.5 * draw.normal(size=(pairs, wide)) - apart * sense
        positive, negative = positive.astype(numpy.float32).astype(float), negative.astype(numpy.float32).astype(float)
        differences = positive - negative
        between = differences.mean(0)
        _, sizes, axes = numpy.linalg.svd(differences)
        first = axes[0] * (1 if axes[0] @ between >= 0 else -1)
        along = probe(numpy.vstack([positive, negative]), numpy.array([1] * pairs + [-1] * pairs))
        cases.append(
            {
                "positive": positive.tolist(),
                "negative": negative.tolist(),
                "mean": between.tolist(),
                "pca": (first * sizes[0] / numpy.sqrt(pairs)).tolist(),
                "share": float(sizes[0] ** 2 / (sizes**2).sum()),
                "probe": (along * (along @ between)).tolist(),
            }
        )
    (FIXTURES / "directions.json").write_text(json.dumps({"numpy": numpy.__version__, "l2": L2, "cases": cases}) + "\n")
    vectors = {layer: numpy.arange(24, dtype=numpy.float32) / 8 - layer for layer in (1, 2)}
    write(FIXTURES / "control.gguf", vectors, "gpt2")


# ---- both programs


class ContextParams(ctypes.Structure):
    """The beginning of llama_context_params that is set here; what follows stays as llama.cpp makes it."""

    _fields_ = [
        ("n_ctx", ctypes.c_uint32),
        ("sizes", ctypes.c_uint32 * 6),
        ("n_threads", ctypes.c_int32 * 2),
        ("kinds", ctypes.c_int32 * 4),
        ("flash_attn_type", ctypes.c_int32),
        ("factors", ctypes.c_float * 8),
        ("callback", ctypes.c_void_p * 2),
        ("type_k", ctypes.c_int32),
        ("type_v", ctypes.c_int32),
        ("rest", ctypes.c_uint8 * 400),
    ]


class ModelParams(ctypes.Structure):
    _fields_ = [("all", ctypes.c_uint8 * 512)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Name(ctypes.Structure):
    """A std::string of libstdc++'s older form: length, room and references before the characters."""

    _fields_ = [("length", ctypes.c_size_t), ("room", ctypes.c_size_t), ("references", ctypes.c_size_t), ("text",
        ctypes.c_char * 512)]


class Load(ctypes.Structure):
    """common_control_vector_load_info"""

    _fields_ = [("strength", ctypes.c_float), ("name", ctypes.c_void_p)]


class Vector(ctypes.Structure):
    """A std::vector."""

    _fields_ = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p)]


class Loaded(ctypes.Structure):
    """common_control_vector_data"""

    _fields_ = [("n_embd", ctypes.c_int32), ("data", Vector)]


def library():
    """llama.cpp as it lies in xllamacpp's extension, whose C functions are visible."""
    import xllamacpp

    lib = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    of = lambda name, result, *taken: (setattr(getattr(lib, name), "restype", result), setattr(getattr(lib, name),
        "argtypes", taken))
    of("llama_model_default_params", ModelParams)
    of("llama_model_load_from_file", ctypes.c_void_p, ctypes.c_char_p, ModelParams)
    of("llama_model_get_vocab", ctypes.c_void_p, ctypes.c_void_p)
    of("llama_vocab_n_tokens", ctypes.c_int32, ctypes.c_void_p)
    of("llama_context_default_params", ContextParams)
    of("llama_init_from_model", ctypes.c_void_p, ctypes.c_void_p, ContextParams)
    of("llama_batch_init", Batch, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
    of("llama_decode", ctypes.c_int32, ctypes.c_void_p, Batch)
    of("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_int32)
    of("llama_batch_free", None, Batch)
    of("llama_free", None, ctypes.c_void_p)
    of("llama_set_adapter_cvec", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
        *[ctypes.c_int32] * 3)
    lib.load = lib._Z26common_control_vector_loadRKSt6vectorI31common_control_vector_load_infoSaIS0_EE
    lib.load.restype, lib.load.argtypes = None, [ctypes.POINTER(Loaded), ctypes.POINTER(Vector)]
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    lib.llama_log_set(quiet, None)
    lib.quiet = quiet
    lib.llama_backend_init()
    return lib


class Llama:
    """llama.cpp on one sequence at a time, with f32 caches and one thread."""

    def __init__(self, lib, path):
        self.lib = lib
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {path}"
        self.size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def control(self, path):
        """A control vector, read by llama.cpp itself: its numbers from layer 1 on."""
        text = str(path).encode()
        name = Name(len(text), 511, 9, text)
        info = Load(1.0, ctypes.addressof(name) + Name.text.offset)
        end = ctypes.addressof(info) + ctypes.sizeof(info)
        loaded = Loaded()
        self.lib.load(loaded, Vector(ctypes.addressof(info), end, end))
        assert loaded.n_embd > 0, f"llama.cpp does not read {path}"
        count = (loaded.data.end - loaded.data.begin) // 4
        return loaded.n_embd, numpy.ctypeslib.as_array((ctypes.c_float * count).from_address(loaded.data.begin)).copy()

    def logits(self, tokens, control, layers):
        """Logits of each position, with a control vector applied from the first to the last of `layers`."""
        params = self.lib.llama_context_default_params()
        assert (params.n_ctx, params.flash_attn_type, params.type_k, params.type_v) == (512, -1, 1,
            1), "another llama.cpp"
        params.n_ctx, params.flash_attn_type, params.type_k, params.type_v = 64, 0, 0, 0  # all f32
        params.n_threads[0] = params.n_threads[1] = 1
        context = self.lib.llama_init_from_model(self.model, params)
        if control:
            wide, data = control
            assert self.lib.llama_set_adapter_cvec(context, data.ctypes.data, data.size, wide, *layers) == 0
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        assert self.lib.llama_decode(context, batch) == 0
        one = lambda i: numpy.ctypeslib.as_array(self.lib.llama_get_logits_ith(context, i), shape=(self.size,)).copy()
        rows = [one(i) for i in range(len(tokens))]
        self.lib.llama_batch_free(batch)
        self.lib.llama_free(context)
        return numpy.array(rows)


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(limpid):
    prompts = [["ab cab a bad", "a cab dab a"], ["dad bad a", "cab a bad"], ["a bad cab", "dab a dad"]]
    lib = library()
    text = "a bad cab dab dad a cab. " * 80
    for kind, settings in [("gpt2", []), ("llama", ["--preset", "nano-llama"])]:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "text.txt").write_text(text)
            sizes = ["--n-layer", 4, "--d-model", 32, "--n-head", 4, "--context-length", 64, "--steps", 40,
                "--batch-size", 4]
            tokenizer = ["--tokenizer", folder / "bpe.json"]
            run(limpid, "tokenize", "train", folder / "text.txt", "--vocab-size", 270, "--out", folder / "bpe.json")
            shape = settings or ["--preset", "gpt2"]
            run(limpid, "train", "--data", folder / "text.txt", *tokenizer, *shape, *sizes, "--sample", 0, "--json",
                "--out", folder / "run")
            run(limpid, "convert", folder / "run", folder / "model.gguf", "--dtype", "f32")
            sides = [word for pair in prompts for word in ("--positive", pair[0], "--negative", pair[1])]
            vector = folder / "found.gguf"
            run(limpid, "direction", folder / "model.gguf", *sides, "--out", vector)
            found = read(vector)
            assert sorted(found) == [1, 2, 3], sorted(found)
            written = folder / "written.gguf"
            draw = numpy.random.default_rng(3)
            write(written, {layer: draw.normal(size=32) for layer in (1, 3)}, kind)
            compare(limpid, Llama(lib, folder / "model.gguf"), folder, kind, [(vector, found),
                (written, read(written))])


def compare(limpid, llama, folder, kind, vectors):
    tokens = json.loads(run(limpid, "tokenize", "--model", folder / "model.gguf", "a bad cab", "--json"))["ids"]
    plain = llama.logits(tokens, None, None)
    allowed = 5e-4 if kind == "gpt2" else 1e-5
    for path, directions in vectors:
        control = llama.control(path)
        for first, last in [(1, 3)] + [(layer, layer) for layer in directions]:
            layers = [layer for layer in directions if first <= layer <= last]
            steps = json.dumps([{"control_vector": str(path), "by": 1, "layer": layers}])
            ids = ",".join(map(str, tokens))
            out = folder / "run.safetensors"
            run(limpid, "inspect", folder / "model.gguf", "--tokens", ids, "--tensor", "logits", "--intervene", steps,
                "--save", out)
            ours = load_file(out)["logits"][0]
            theirs = llama.logits(tokens, control, (first, last))
            apart, moved = float(numpy.abs(ours - theirs).max()), float(numpy.abs(theirs - plain).max())
            whole = list(tokens)
            for _ in range(LENGTH):
                whole.append(int(llama.logits(whole, control, (first, last))[-1].argmax()))
            made = run(
                limpid, "generate", folder / "model.gguf", "--prompt", "a bad cab", "-n", LENGTH, "--temperature", 0,
                "--json", "--intervene", steps
            )
            made = json.loads(made)
            greedy = made["samples"][0]["tokens"] == whole[len(tokens) :]
            line = {"model": kind, "vector": path.name, "layers": layers, "moved": moved, "apart": apart,
                "greedy": greedy}
            print(json.dumps(line))
            assert moved > 20 * allowed and apart < allowed and greedy, made


if __name__ == "__main__":
    if sys.argv[1:] == ["make"]:
        make()
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        check(sys.argv[2])
    else:
        sys.exit(__doc__)
