"""Inputs that a task's own code draws: the same function under the same seed, in the harness and in the runner.

A task whose inputs have structure (sorted offsets, a positive definite matrix, a mask) brings the code that makes them.
That code runs on both sides, as `inputs.draw` does, so that values never travel: the harness takes it when it loads the
problem, the runner before it imports the candidate. A candidate that tampers with it is given other inputs than those
that its outputs are judged by.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kopt_mcp.problem import DTYPES

SEEDS = 16_777_213
"""How many seeds a task's code is given: small ones, since some tasks compute with the number itself (a float32 holds
them), but too many for a table of what is right for each."""
Source = Callable[[int], Any]
"""Draws the inputs of one call, nested as the task nests them, for one seed."""

_SOURCES: dict[int, Source] = {}


class Unusable(ValueError):
    """A task's inputs cannot be handed over: where in them, what was found, what was expected."""


def key_of(*texts: str) -> int:
    """A number for a source, the same in every process; small enough for a float to hold."""
    return int(sha256("\0".join(texts).encode()).hexdigest()[:12], 16)


def register(key: int, source: Source) -> None:
    """Have `draw` call `source` for the inputs that name `key`."""
    _SOURCES[key] = source


def drawn(key: int, seed: int, device: str) -> list[torch.Tensor]:
    """The tensors of one call, in the order of `flatten`, on `device`."""
    with seeded(seed, device), placed(device):
        made = _SOURCES[key](seed % SEEDS)
    return [t.detach().to(device) for t in flatten(made)[0]]


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """All generators that a task may draw from begin at `seed`, and go on afterwards where they were."""
    numpy: Any = sys.modules.get("numpy")
    own, theirs = random.getstate(), numpy.random.get_state() if numpy else None
    # torch seeds every device that it knows, asked or not.
    on_gpu = device != "cpu" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []):
        torch.manual_seed(seed % SEEDS)
        random.seed(seed % SEEDS)
        if numpy:
            numpy.random.seed(seed % SEEDS)
        try:
            yield
        finally:
            random.setstate(own)
            if numpy:
                numpy.random.set_state(theirs)


@contextmanager
def placed(device: str) -> Iterator[None]:
    """Run a task's code on `device`: what names none goes there, and without a GPU what says "cuda" does too.

    On the device `meta` nothing is drawn and nothing computed: what comes out has a shape and a dtype, no values.
    """
    if device not in ("cpu", "meta"):
        with torch.device(device):
            yield
        return
    # A generator on a device that is not there cannot even be made, and a mode does not see it being made.
    torch.Generator = _CpuGenerator  # type: ignore[misc]
    try:
        with torch.device(device), _Moved(device):
            yield
    finally:
        torch.Generator = _GENERATOR  # type: ignore[misc]


_GENERATOR = torch.Generator


class _CpuGenerator(torch.Generator):
    """A generator that is on the CPU, wherever it is asked to be."""

    def __new__(cls, device: Any = None) -> _CpuGenerator:
        del device
        return super().__new__(cls)


class _Moved(TorchFunctionMode):
    """Reads "cuda" as another device in whatever is asked of torch."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to:
            args = tuple(self._moved(a) for a in args)
        if "device" in kwargs:
            kwargs["device"] = self._moved(kwargs["device"])
        if self._device.type == "meta":
            kwargs.pop("generator", None)
        return function(*args, **kwargs)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, (str, torch.device)) and torch.device(value).type == "cuda":
            return self._device
        return value


def flatten(data: Any) -> tuple[list[torch.Tensor], Any]:
    """The tensors in a nest of tuples, lists and dicts, and the nest as JSON, for `rebuild`.

    Raises:
        Unusable: something in it is neither of these nor a tensor, a number, a text, a dtype or None.
    """
    tensors: list[torch.Tensor] = []
    return tensors, _flat(data, tensors, "data")


def _flat(data: Any, tensors: list[torch.Tensor], where: str) -> Any:
    if isinstance(data, torch.Tensor):
        name = str(data.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise Unusable(f"{where} is of the dtype {name}; expected one of {', '.join(DTYPES)}")
        tensors.append(data)
        return {"tensor": len(tensors) - 1}
    if type(data) in (tuple, list) or type(data).__module__ == "torch.return_types":
        return {
            "list" if type(data) is list else "tuple": [
                _flat(one, tensors, f"{where}[{n}]") for n, one in enumerate(data)
            ]
        }
    if type(data) is dict and all(isinstance(name, (str, int)) for name in data):
        return {"dict": [[name, _flat(one, tensors, f"{where}[{name!r}]")] for name, one in data.items()]}
    if isinstance(data, torch.dtype):
        return {"dtype": str(data).removeprefix("torch.")}
    if type(data) is float and not math.isfinite(data):
        return {"number": str(data)}
    if data is None or type(data) in (bool, int, float, str):
        return {"value": data}
    raise Unusable(
        f"{where} is a {type(data).__name__}; expected tensors, numbers, texts, dtypes and None, in tuples, lists and "
        "dicts"
    )


def rebuild(nest: Any, tensors: Sequence[Any]) -> Any:
    """The nest that `flatten` took apart, around other tensors."""
    ((kind, inner),) = nest.items()
    if kind == "tensor":
        return tensors[inner]
    if kind in ("tuple", "list"):
        made = [rebuild(one, tensors) for one in inner]
        return tuple(made) if kind == "tuple" else made
    if kind == "dict":
        return {name: rebuild(one, tensors) for name, one in inner}
    if kind == "number":
        return float(inner)
    return getattr(torch, inner) if kind == "dtype" else inner
