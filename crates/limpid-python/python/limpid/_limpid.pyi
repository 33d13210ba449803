import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, final, overload

from limpid import Page

_Prompt = str | Sequence[SupportsIndex]
_Token = str | int
_Step = Mapping[str, Any]
_Overflow = Literal["slide-half", "crop", "stop"]

__all__ = [
    "Dataset",
    "LimpidError",
    "Lm",
    "Parameters",
    "Sample",
    "Stream",
    "Sweep",
    "Tensor",
    "Tokenizer",
    "Trace",
    "__version__",
    "command",
    "open_dataset",
    "settings",
    "train",
]
__version__: str

class LimpidError(Exception): ...

@final
class Tensor:
    @property
    def name(self) -> str: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Literal["float32", "bfloat16", "int64"]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    def bfloat16(self) -> Tensor: ...
    def tolist(self) -> Any: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: object | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def _repr_html_(self) -> str: ...

@final
class Trace(Mapping[str, Tensor]):
    @property
    def tokens(self) -> list[int]: ...
    def keys(self) -> list[str]: ...  # type: ignore[override]
    def values(self) -> list[Tensor]: ...  # type: ignore[override]
    def items(self) -> list[tuple[str, Tensor]]: ...  # type: ignore[override]
    @overload
    def get(self, name: str) -> Tensor | None: ...
    @overload
    def get(self, name: str, default: Any) -> Any: ...
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...
    def _repr_html_(self) -> str: ...

@final
class Parameters(Mapping[str, Tensor]):
    def keys(self) -> list[str]: ...  # type: ignore[override]
    def values(self) -> list[Tensor]: ...  # type: ignore[override]
    def items(self) -> list[tuple[str, Tensor]]: ...  # type: ignore[override]
    @overload
    def get(self, name: str) -> Tensor | None: ...
    @overload
    def get(self, name: str, default: Any) -> Any: ...
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...

@final
class Sweep:
    @property
    def recovered(self) -> Tensor: ...
    @property
    def clean(self) -> float: ...
    @property
    def corrupt(self) -> float: ...
    def _repr_html_(self) -> str: ...

@final
class Sample:
    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str: ...

@final
class Stream(Iterator[str]):
    def __iter__(self) -> Stream: ...
    def __next__(self) -> str: ...
    def close(self) -> None: ...

@final
class Tokenizer:
    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[SupportsIndex]) -> str: ...
    def tokens(self, text: str) -> list[tuple[int, str, int | None, int | None]]: ...
    def __len__(self) -> int: ...

@final
class Dataset:
    @property
    def steps(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def train(self) -> Tensor: ...
    @property
    def validation(self) -> Tensor: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def recipe(self) -> dict[str, Any]: ...
    def batch(self, step: SupportsIndex) -> tuple[Tensor, Tensor]: ...

@final
class Lm:
    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        precision: str = "f32",
        simd: str | None = None,
        device: str = "cpu",
    ) -> Lm: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def parameters(self) -> Parameters: ...
    @property
    def interventions(self) -> list[dict[str, Any]]: ...
    def generate(
        self,
        prompt: _Prompt = "",
        *,
        max_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 1337,
        sample: int = 0,
        stop: str | Sequence[str] = (),
        overflow: _Overflow = "slide-half",
    ) -> Sample: ...
    def stream(
        self,
        prompt: _Prompt = "",
        *,
        max_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 1337,
        sample: int = 0,
        stop: str | Sequence[str] = (),
        overflow: _Overflow = "slide-half",
    ) -> Stream: ...
    def chat(
        self,
        messages: str | Sequence[Mapping[str, str]],
        *,
        max_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 1337,
        sample: int = 0,
        stop: str | Sequence[str] = (),
        overflow: _Overflow = "slide-half",
    ) -> Sample: ...
    def chat_stream(
        self,
        messages: str | Sequence[Mapping[str, str]],
        *,
        max_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 1337,
        sample: int = 0,
        stop: str | Sequence[str] = (),
        overflow: _Overflow = "slide-half",
    ) -> Stream: ...
    def score(self, prompt: str, continuation: str) -> list[float]: ...
    def evaluate(self, data: str) -> dict[str, Any]: ...
    def embed(self, text: str, pooling: str = "mean") -> Tensor: ...
    def fill(self, text: str) -> str: ...
    def save(self, path: str | os.PathLike[str], format: str = "limpid", dtype: str | None = None) -> None: ...
    def trace(self, prompt: _Prompt) -> Trace: ...
    def gradients(
        self,
        prompt: _Prompt,
        names: Sequence[str],
        *,
        answer: _Token | None = None,
        rather_than: _Token | None = None,
        position: int = -1,
    ) -> dict[str, Tensor]: ...
    def intervene(self, steps: Sequence[_Step]) -> Lm: ...
    def without_interventions(self) -> Lm: ...
    def sweep(
        self,
        clean: _Prompt,
        corrupt: _Prompt,
        *,
        site: str = "resid_pre",
        by: Literal["head", "position", "pair"] = "head",
        answer: _Token | None = None,
        rather_than: _Token | None = None,
        metric: Literal["kl", "loss"] = "kl",
        position: int = -1,
        to: str | None = None,
        to_heads: Sequence[int] | None = None,
        estimate: bool = False,
        confirm: bool = False,
    ) -> Sweep: ...
    def look(self, prompt: str, max_bytes: int = 10_000_000) -> Page: ...
    def close(self) -> None: ...
    def __enter__(self) -> Lm: ...
    def __exit__(self, *_error: object) -> None: ...

def command(words: Sequence[str]) -> int: ...
def settings() -> list[tuple[str, bool]]: ...
def train(words: Sequence[str], tell: Callable[[dict[str, Any]], object]) -> tuple[str, dict[str, Any]]: ...
def open_dataset(words: Sequence[str]) -> Dataset: ...
