"""Memory that others read in place: it is shared, cannot be changed, and stays as long as somebody reads it."""

import ctypes
import gc
import operator
import sys

import limpid
import numpy as np
import pytest
from conftest import PROMPT


@pytest.fixture
def tensor(lm):
    return lm.trace(PROMPT)["blocks.0.hook_resid_post"]


def address(array):
    return array.__array_interface__["data"][0]


def test_numpy_reads_it_in_place(tensor):
    a, b, c = np.asarray(tensor), np.from_dlpack(tensor), np.frombuffer(tensor, np.float32)
    assert address(a) == address(b) == address(c)
    assert a.shape == tensor.shape == b.shape and a.dtype == np.float32 and np.array_equal(a, b)
    assert not a.flags.writeable and not b.flags.writeable and a.flags.c_contiguous
    with pytest.raises(ValueError):
        a[0, 0, 0] = 1
    assert address(tensor[0]) == address(a) and address(tensor[0, 1]) == address(a) + a.strides[1]
    assert len(tensor) == 1 and tensor.ndim == 3 and tensor.size == a.size and tensor.tolist() == a.tolist()


def test_a_copy_is_a_copy(tensor):
    a = np.asarray(tensor)
    for copy in (np.array(tensor), np.from_dlpack(tensor, copy=True), np.asarray(tensor, np.float64)):
        assert address(copy) != address(a) and copy.flags.writeable and np.array_equal(copy, a)


def test_the_buffer_says_what_it_is(tensor):
    view = memoryview(tensor)
    assert (view.format, view.itemsize, view.ndim, view.readonly, view.shape) == ("f", 4, 3, True, tensor.shape)
    assert view.strides == (tensor.shape[1] * 32 * 4, 32 * 4, 4) and view.c_contiguous
    assert bytes(view) == np.asarray(tensor).tobytes() == bytes(tensor)


def name_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule)


def flags_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # version: two u32; manager_ctx; deleter; flags
    return ctypes.c_uint64.from_address(get(capsule, b"dltensor_versioned") + 24).value


def test_dlpack(tensor):
    assert tensor.__dlpack_device__() == (1, 0)
    assert name_of(tensor.__dlpack__()) == b"dltensor"
    versioned = tensor.__dlpack__(max_version=(1, 1))
    assert name_of(versioned) == b"dltensor_versioned" and flags_of(versioned) == 1  # read-only
    assert flags_of(tensor.__dlpack__(max_version=(1, 0), copy=True)) == 2  # copied, and so writable
    assert name_of(tensor.__dlpack__(max_version=(0, 8))) == b"dltensor"
    assert tensor.__dlpack__(max_version=(1, 0), dl_device=(1, 0)) is not None
    for refused in [dict(dl_device=(2, 0)), dict(copy=False), dict(max_version=(0, 8), copy=False)]:
        with pytest.raises(BufferError):
            tensor.__dlpack__(**refused)
    with pytest.raises(ValueError, match="stream"):
        tensor.__dlpack__(stream=1)


def test_nothing_outlives_its_memory(run):
    lm = limpid.open(run.folder)
    trace = lm.trace(PROMPT)
    tensor = trace["blocks.1.hook_resid_post"]
    want = np.array(tensor)
    readers = [np.asarray(tensor), np.from_dlpack(tensor), tensor[0], memoryview(tensor)]
    capsules = [tensor.__dlpack__(max_version=(1, 0)), tensor.__dlpack__()]
    trace.close()
    lm.close()
    del lm, trace, tensor
    gc.collect()
    junk = [np.full(want.shape, 7.0, np.float32) for _ in range(50)]  # what would be written over memory that was let go
    for reader in readers:
        assert np.array_equal(np.asarray(reader).reshape(want.shape), want)
    del capsules, readers, junk
    gc.collect()


def test_dropped_readers_let_memory_go(lm):
    """The tensor's count of references is what it was once its readers are gone."""
    tensor = lm.trace(PROMPT)["logits"]
    before = sys.getrefcount(tensor)
    readers = [np.asarray(tensor) for _ in range(10)] + [memoryview(tensor)]
    assert sys.getrefcount(tensor) > before
    del readers
    gc.collect()
    assert sys.getrefcount(tensor) == before


def test_bfloat16_is_rounded_to_the_nearest_even(lm):
    tensor = lm.parameters["embed.weight"]
    half = tensor.bfloat16()
    assert (half.dtype, half.shape, half.axes) == ("bfloat16", tensor.shape, tensor.axes)
    bits = np.asarray(tensor).view(np.uint32).astype(np.uint64)
    want = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    capsule = half.__dlpack__(max_version=(1, 0))
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = get(capsule, b"dltensor_versioned")
    data = ctypes.c_void_p.from_address(managed + 32).value
    code, width = ctypes.c_uint8.from_address(managed + 32 + 20).value, ctypes.c_uint8.from_address(managed + 32 + 21).value
    assert (code, width) == (4, 16)  # kDLBfloat
    found = np.frombuffer((ctypes.c_uint16 * want.size).from_address(data), np.uint16).reshape(want.shape)
    assert np.array_equal(found, want)
    with pytest.raises(BufferError, match="torch.from_dlpack"):
        memoryview(half)
    with pytest.raises(TypeError, match="bfloat16"):
        half.bfloat16()


def test_arithmetic_and_comparisons_are_numpys(lm):
    trace = lm.trace(PROMPT)
    tensor, other = trace["blocks.0.hook_resid_post"], trace["blocks.1.hook_resid_post"]
    a, b = np.asarray(tensor), np.asarray(other)
    two = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"]
    for name in two:
        with np.errstate(all="ignore"):
            call = getattr(operator, name)
            for mine, theirs in [((tensor, 2), (a, 2)), ((3.5, tensor), (3.5, a)), ((tensor, other), (a, b)), ((tensor, b), (a, b)),
                                 ((a, other), (a, b)), ((tensor, b[0, 0]), (a, b[0, 0])), ((tensor, None), (a, None))]:
                if theirs[1] is None and name not in ("eq", "ne"):
                    continue
                found, want = call(*mine), call(*theirs)
                assert type(found) is type(want) and found.dtype == want.dtype and np.array_equal(found, want, equal_nan=True), name
    weight = lm.parameters["blocks.0.attn.out.weight"]
    w = np.asarray(weight)
    assert np.array_equal(tensor @ weight, a @ w) and np.array_equal(w @ weight, w @ w) and np.array_equal(weight @ w, w @ w)
    for call in (operator.neg, operator.pos, abs, np.exp, lambda t: t.mean(), lambda t: t.mean(-1), lambda t: t.sum(0), lambda t: t.max(),
                 lambda t: t.std(axis=1), lambda t: t.argmax(-1), lambda t: t.T, lambda t: t.reshape(-1), lambda t: t.astype(np.float64),
                 lambda t: np.mean(t), lambda t: np.concatenate([t, t]), lambda t: t.clip(0, 1), lambda t: t[0, 0, 0] in t):
        assert np.array_equal(call(tensor), call(a))
    one = tensor[0, 0, :1]
    assert float(one[0]) == float(a[0, 0, 0]) and (tensor == tensor).all() and not (tensor == other).all()
    for refused in (lambda: bool(tensor), lambda: float(tensor), lambda: hash(tensor), lambda: tensor + "x", lambda: pow(tensor, 2, 3)):
        with pytest.raises((ValueError, TypeError)):
            refused()
    for name in ("meen", "_private", "__array_interface__"):
        assert not hasattr(tensor, name)


def test_numpy_is_told_that_it_has_no_bfloat16(lm):
    half = lm.parameters["embed.weight"].bfloat16()
    for read in (np.asarray, np.array, np.mean, lambda t: t + 1, lambda t: 1 + t, lambda t: t == t, lambda t: t.mean(), lambda t: t[0],
                 lambda t: np.stack([t, t]), lambda t: np.zeros(3) * t):
        with pytest.raises(TypeError, match="torch.from_dlpack"):
            read(half)
    assert not hasattr(half, "meen")


def test_ids_are_int64(run):
    data = limpid.open_dataset(n_layer=2)
    train = np.asarray(data.train)
    assert train.dtype == np.int64 and data.train.axes == ("pos",) and memoryview(data.train).format == "q"
    assert 0 <= train.min() and train.max() < data.tokenizer.vocab_size
    assert "int64" in data.train._repr_html_()
