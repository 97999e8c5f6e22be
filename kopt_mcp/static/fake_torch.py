"""Lets kernel code that asks for a GPU run on CPU tensors. For the worker's throw-away process only: it patches torch.

Standard library and torch only; loaded by path, since this package may be absent from the user's interpreter.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

MAP_NORESERVE = 0x4000
"""Linux's value; the `mmap` module has had the name since Python 3.13 only."""

GPU = torch.device("cuda", 0)


def _getter(attribute: str) -> Any:
    """What a function mode is handed when the attribute of a tensor is read."""
    return getattr(torch.Tensor, attribute).__get__


ANSWERS: dict[Any, Any] = {
    _getter("is_cuda"): True,
    _getter("is_cpu"): False,
    _getter("device"): GPU,
    torch.Tensor.get_device: 0,
}
FACTORIES = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.zeros,
    torch.zeros_like,
    torch.Tensor.new_empty,
    torch.Tensor.new_zeros,
}
"""Their results are zeros that nothing has touched yet, so that an output may be larger than this machine's memory."""
RETURN_SELF = {torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory}


class CpuTensorsAsCuda(TorchFunctionMode):
    """Tensors say that they live on cuda:0; whatever would allocate or copy there stays in host memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in ANSWERS:
            return ANSWERS[func]
        if func in RETURN_SELF:
            return args[0]
        if func is torch.device:
            return func(*args, **kwargs)
        if func in FACTORIES and "out" not in kwargs:
            plan = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
            return untouched(plan.shape, plan.stride(), plan.dtype).requires_grad_(plan.requires_grad)
        return func(*map(_in_host_memory, args), **{name: _in_host_memory(value) for name, value in kwargs.items()})


def untouched(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
    """Zeros in pages that take no memory until they are touched, and are not counted against what there is."""
    elements = storage_offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    pages = mmap.mmap(-1, max(elements, 1) * dtype.itemsize, flags=flags)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).as_strided(shape, stride, storage_offset)


def _in_host_memory(argument: Any) -> Any:
    if isinstance(argument, torch.device) and argument.type == "cuda":
        return torch.device("cpu")
    if isinstance(argument, str) and argument.split(":")[0] == "cuda":
        return "cpu"
    return argument


class _Stream:
    """A stream or an event on which everything has already happened."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def record(self, *args: Any) -> None: ...

    def wait(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, *args: Any) -> None: ...

    def elapsed_time(self, end: object) -> float:
        """One millisecond: benchmark loops divide by it."""
        return 1.0


def install(device: dict[str, Any]) -> CpuTensorsAsCuda:
    """Patch `torch.cuda` and `torch.version` to describe `device`.

    Args:
        device: what `torch.cuda.get_device_properties` shall answer, plus `capability` (major, minor).

    Returns:
        The mode under which the kernel's code must run.
    """
    properties = SimpleNamespace(**device, major=device["capability"][0], minor=device["capability"][1])
    for name, value in _functions(properties).items():
        setattr(torch.cuda, name, value)
    is_amd = device["gcnArchName"].startswith("gfx")
    torch.version.hip = "6.4" if is_amd else None
    torch.version.cuda = None if is_amd else torch.version.cuda or "13.0"
    # A default device is a mode below ours, so that its allocations would not pass through ours.
    torch.set_default_device = lambda device: None
    return CpuTensorsAsCuda()


def _functions(properties: SimpleNamespace) -> dict[str, Any]:
    def nothing(*args: Any, **kwargs: Any) -> None: ...

    def no_context(*args: Any, **kwargs: Any) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: properties.capability >= [8, 0],
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: tuple(properties.capability),
        "get_device_name": lambda device=None: properties.name,
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": _Stream,
        "stream": no_context,
        "device": no_context,
        "device_of": no_context,
        **dict.fromkeys(("init", "synchronize", "set_device", "set_stream", "empty_cache"), nothing),
    }
