"""What runs in one call of a candidate: torch's own operators, and the kernels that a profiler sees."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_NO_WORK = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "set_"}
    | {"resize_", "_unsafe_view", "_reshape_alias", "record_stream", "copy_", "clone", "_to_copy", "fill_", "zero_"}
)
"""Operators that allocate, move or look at data, and compute nothing."""
_MOST_KERNELS = 40


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that go through torch's dispatcher, those left out that only allocate or look differently."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).removeprefix("aten.").split(".")[0]
        if name not in _NO_WORK and not function.is_view:
            self.names.add(name)
        return function(*args, **(kwargs or {}))


def kernel_rows(session: Any, on_gpu: bool) -> list[dict[str, Any]]:
    """The kernels of a torch.profiler session with their calls and total time in microseconds, the longest first."""
    rows = []
    for event in session.key_averages():
        us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if us > 0 and (not on_gpu or event.device_type.name != "CPU"):
            rows.append({"name": event.key, "calls": event.count, "total_us": float(us)})
    return sorted(rows, key=lambda r: -float(r["total_us"]))[:_MOST_KERNELS]
