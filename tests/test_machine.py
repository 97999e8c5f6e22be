"""The device as the user's torch sees it, where something is missing."""

import sys
from importlib import metadata

import pytest
import torch

from kopt_mcp.evaluator import machine
from kopt_mcp.evaluator.files import HarnessError


def test_a_package_that_is_not_installed_has_no_version_and_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_triton(package: str) -> str:
        if package == "triton":
            raise metadata.PackageNotFoundError(package)
        return metadata.version(package)

    monkeypatch.setattr("kopt_mcp.evaluator.machine._installed", without_triton)
    assert machine.version("triton") is None
    assert machine.version("pytest") == pytest.__version__
    assert set(machine.torch_device("cpu").versions) == {"python", "torch"}


def test_a_torch_that_sees_no_gpu_is_told_by_its_interpreter_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HarnessError, match="sees no GPU; take the device cpu, or a torch built for it") as caught:
        machine.torch_device("cuda:0")
    assert sys.executable in str(caught.value)
    assert caught.value.kind == "ToolUnavailable"
