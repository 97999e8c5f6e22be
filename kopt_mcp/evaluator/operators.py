"""What runs in one call of a candidate: torch's own operators, and the kernels that a profiler sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler_legacy

_NO_WORK = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "set_"}
    | {"resize_", "_unsafe_view", "_reshape_alias", "record_stream", "copy_", "clone", "_to_copy", "fill_", "zero_"}
)
"""Operators that allocate, move or look at data, and compute nothing."""
_MOST_KERNELS = 40
_TIMED_WITH = ("sum", "sum.dim_IntList", "copy_", "clone", "detach", "view", "as_strided", "randn", "normal_")
"""Operators that a runner draws, evicts and keeps with."""
_ON_A_GPU = ("CUDA:", "HIP:", "AutogradCUDA:", "ADInplaceOrView:", "BackendSelect:", "Python:", "PythonDispatcher:")
"""Of the table in which torch finds an operator's code, the lines that a call on a GPU goes by."""
_table = torch._C._dispatch_dump_table
_modes = (torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack)


def computing(call: Callable[[], Any]) -> set[str]:
    """Names of torch's operators that compute during `call`, those left out that only allocate or look differently.

    By the profiler that torch had before Kineto: that one, and a dispatch mode too, import a thousand modules at their
    first use, which takes four seconds in a process that is shut in.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        with profiler_legacy.profile() as seen:  # type: ignore[no-untyped-call]
            call()
    events = seen.function_events or []
    names = {e.name.removeprefix("aten::") for e in events if e.name.startswith("aten::")}
    return {name for name in names - _NO_WORK if _computes(name)}


def _computes(name: str) -> bool:
    """Whether an operator is neither a view of its input nor made of other operators."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return not any(_is_view(s) or _is_composite(s) for s in schemas)


def _is_view(schema: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _is_composite(schema: Any) -> bool:
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))
    except RuntimeError:  # a schema of TorchScript alone
        return False


def dispatched() -> tuple[int | str, ...]:
    """Where the code of our own operators comes from, and how many of torch's modes stand before it."""
    lines = (line for name in _TIMED_WITH for line in _table(f"aten::{name}").splitlines())
    return (*(count() for count in _modes), *(line for line in lines if line.startswith(_ON_A_GPU)))


def kernel_rows(session: Any, on_gpu: bool) -> list[dict[str, Any]]:
    """The kernels of a torch.profiler session with their calls and total time in microseconds, the longest first."""
    rows = []
    for event in session.key_averages():
        us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if us > 0 and (not on_gpu or event.device_type.name != "CPU"):
            rows.append({"name": event.key, "calls": event.count, "total_us": float(us)})
    return sorted(rows, key=lambda r: -float(r["total_us"]))[:_MOST_KERNELS]
