"""The clock of a GPU where there is none: what it asks of the driver, and that it does without one."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from kopt_mcp.evaluator import timing
from kopt_mcp.evaluator.timing import EventClock


def clock(monkeypatch: pytest.MonkeyPatch, log: list[str], libraries: dict[str, Any]) -> EventClock:
    """One that was made without a device, where these are the libraries; `log` gets what is done to the device."""

    def opened(name: str) -> Any:
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return libraries[name]

    monkeypatch.setattr(ctypes, "CDLL", opened)
    made = object.__new__(EventClock)
    made._driver = timing._driver()
    made._buffer = SimpleNamespace(sum=lambda: log.append("read"))  # type: ignore[assignment]
    return made


def test_what_was_to_persist_in_the_cache_is_forgotten_before_it_is_read_full(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    driver = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: log.append("forget"))
    clock(monkeypatch, log, {"libcuda.so.1": driver}).evict()
    assert log == ["forget", "read"]


def test_without_cudas_driver_as_on_an_amd_gpu_the_cache_is_read_full_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    clock(monkeypatch, log, {}).evict()
    assert log == ["read"]
