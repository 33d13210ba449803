#!/usr/bin/env python3
"""Make crates/limpid/fixtures/quants.gguf: blocks of every quantised type that limpid reads, and their values by the
`gguf` package.

    python reference/quants.py              # the fixture
    python reference/quants.py --ggml LIB   # also hold ggml's own Q4_K, in the shared library LIB, against the fixture's

Of each type, tensor NAME has blocks of random bytes whose f16 scales are awkward (zeros, subnormals, the largest,
negative, infinite, none) and whose packed scales go through every pattern, and NAME.values what they mean. `x` has rows
to be quantised: NAME.of_x are ggml's blocks of it for the types that limpid writes. (`gguf` cannot quantise to Q4_K:
that one is made by ggml's quantize_row_q4_K_ref, compiled without contraction of multiply and add; --ggml makes it,
without it the old one is kept.)
"""

import ctypes
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

PATH = Path(__file__).resolve().parent.parent / "crates/limpid/fixtures/quants.gguf"
# where the f16s of a block are, and its packed scales
TYPES = {
    T.Q4_0: ([0], None), T.Q4_1: ([0, 2], None), T.Q5_0: ([0], None), T.Q5_1: ([0, 2], None), T.Q8_0: ([0], None),
    T.IQ4_NL: ([0], None), T.Q2_K: ([80, 82], (0, 16)), T.Q3_K: ([108], (96, 108)), T.Q4_K: ([0, 2], (4, 16)),
    T.Q5_K: ([0, 2], (4, 16)), T.Q6_K: ([208], (192, 208)), T.IQ4_XS: ([0], (2, 8)),
}
HALVES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00, 0x2A66, 0x1234, 0x9C01,
          0x7C00, 0xFC00, 0x7E00]


def blocks(kind, n, rng):
    _, size = gguf.GGML_QUANT_SIZES[kind]
    halves, scales = TYPES[kind]
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for i in range(n):
        for j, at in enumerate(halves):
            # the last two blocks alone have what is no number
            half = HALVES[(i + 5 * j) % (len(HALVES) - 3)] if i < n - 2 else HALVES[13 + (i + j) % 3]
            raw[i, at : at + 2] = half & 255, half >> 8
    if scales:
        begin, end = scales
        width = end - begin
        raw[:, begin:end] = ((np.arange(n)[:, None] * width + np.arange(width)) * (256 // (n * width) or 1)) % 256
    raw[0, scales[1] if scales else 4 :][:8] = 0xFF
    return raw


def awkward(rng):
    """Rows for quantisers: ordinary, zeros, one sign, ties, one value alone, tiny, large."""
    x = rng.standard_normal((9, 256)).astype(np.float32)
    x[1] = 0
    x[2] = abs(x[2]) + 0.5
    x[3] = -x[2]
    x[4] = np.arange(-128, 128) / 2
    x[5], x[5, 7] = 0, -3
    x[6] *= np.float32(1e-6)
    x[7] *= np.float32(1e4)
    x[8] = 0.25
    return x


def main():
    rng = np.random.default_rng(4)
    x = awkward(rng)
    tensors = [("x", x, None)]
    for kind in TYPES:
        n = 16 if TYPES[kind][1] else 24
        raw = blocks(kind, n, rng)
        with np.errstate(invalid="ignore"):
            values = gguf.quants.dequantize(raw, kind)
        tensors += [(kind.name, raw, kind), (f"{kind.name}.values", values, None)]
    for kind in (T.Q8_0, T.Q4_0):
        tensors.append((f"{kind.name}.of_x", gguf.quants.quantize(x, kind), kind))
    if "--ggml" in sys.argv:
        lib = ctypes.CDLL(sys.argv[sys.argv.index("--ggml") + 1])
        q4_k = np.zeros((len(x), 144), np.uint8)
        lib.quantize_row_q4_K_ref(x.ctypes.data_as(ctypes.c_void_p), q4_k.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(x.size))
    else:
        old = {t.name: t for t in gguf.GGUFReader(PATH).tensors}
        assert (old["x"].data == x).all(), "x is another than the old one: give --ggml"
        q4_k = np.array(old["Q4_K.of_x"].data)
    tensors.append(("Q4_K.of_x", q4_k, T.Q4_K))

    w = gguf.GGUFWriter(PATH.with_suffix(".new"), "none")
    for name, data, kind in tensors:
        w.add_tensor(name, data, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    PATH.with_suffix(".new").rename(PATH)
    print(f"{PATH.name}: {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
