"""What a device can reach, with times that are made up."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator import ceilings


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device on which everything takes a thousand microseconds; the precisions in which products were asked for."""
    precisions: list[str] = []

    def fastest(device: str, cache_bytes: int, call: Callable[[], Any]) -> float:
        precisions.append(torch.get_float32_matmul_precision())
        call()
        return 1000.0

    monkeypatch.setattr(ceilings, "_fastest", fastest)
    return precisions


def test_copies_and_products_are_rates_of_what_they_move_and_compute(
    monkeypatch: pytest.MonkeyPatch, timed: list[str]
) -> None:
    arrays: list[int] = []
    rand = torch.rand

    def few(count: int, **how: Any) -> torch.Tensor:
        arrays.append(count)
        return rand(8, **how)

    monkeypatch.setattr(torch, "rand", few)
    found = ceilings.measure("cpu", 1 << 20, "a slow machine")
    assert arrays == [(64 << 20) // 4] * 3, "far more than the cache holds"
    assert found.copy_gbps == pytest.approx(2 * (64 << 20) / 1e6)
    assert found.triad_gbps == pytest.approx(3 * (64 << 20) / 1e6)
    assert found.tflops == {"fp32": pytest.approx(2 * 1024**3 / 1e9)}
    assert found.measured_on.startswith(f"a slow machine, torch {torch.__version__}, ")


def test_a_type_that_a_device_cannot_multiply_has_no_ceiling_and_the_others_have(
    monkeypatch: pytest.MonkeyPatch, timed: list[str]
) -> None:
    kinds = [("fp32", torch.float32, "highest"), ("tf32", torch.float32, "high"), ("bool", torch.bool, "medium")]
    monkeypatch.setattr(ceilings, "_matmul_kinds", lambda device: kinds)
    monkeypatch.setattr(ceilings, "_bandwidths", lambda device, cache_bytes: (1.0, 2.0))
    before = torch.get_float32_matmul_precision()
    found = ceilings.measure("cpu", 1 << 20, "a slow machine")
    assert set(found.tflops) == {"fp32", "tf32"}
    assert timed == ["highest", "high", "medium"], "each as it is to be measured"
    assert torch.get_float32_matmul_precision() == before
    assert (found.copy_gbps, found.triad_gbps) == (1.0, 2.0)
