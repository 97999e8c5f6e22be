"""What a candidate does wrong is named by its own line; what the machine lacks is a missing tool."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kopt_mcp.errors import InputRefused, ToolUnavailable
from kopt_mcp.models import StaticKernel
from kopt_mcp.static import static_profile

DATA = Path(__file__).parent / "data" / "static"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def faulty(entry: str, **options: Any) -> list[StaticKernel]:
    return static_profile(
        DATA / "faulty.py",
        entry=entry,
        arguments=[{"shape": [8192], "dtype": "float32"}],
        target="sm_90",
        python=sys.executable,
        **options,
    )


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("misspelt", r"faulty\.py:\d+ `misspelt_kernel\[\(1,\)\]\(x\)`: CompilationError.*no attribute 'laod'"),
        ("wrong_shape", r"faulty\.py:\d+ `rows, columns = x\.shape`: ValueError: not enough values to unpack"),
        ("leaves", r"faulty\.py:\d+ `sys\.exit\(\"enough\"\)`: SystemExit: enough"),
        ("launches_nothing", "launched no Triton kernel for these arguments"),
        ("no_such_entry", r"faulty\.py defines no no_such_entry"),
    ],
)
def test_a_failing_kernel_is_named_by_its_own_line(entry, text):
    with pytest.raises(InputRefused, match=text):
        faulty(entry)


def test_a_compile_that_does_not_end_is_a_finding():
    (found,) = faulty("never_compiles", timeout_s=6)

    assert found.name == "huge_kernel"
    assert found.problems == ["compile timed out after 6 s: the tile is too large for this target"]


def test_an_entry_that_does_not_return_is_stopped_and_said_to_be_running():
    with pytest.raises(InputRefused, match="no result after 3 s while running waits_for_ever"):
        faulty("waits_for_ever", timeout_s=3)


def test_an_interpreter_without_triton_is_a_missing_tool(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)

    with pytest.raises(ToolUnavailable, match="No module named 'torch'"):
        static_profile(
            DATA / "matmul.py", entry="matmul", arguments=[], target="sm_90", python=str(tmp_path / "bin" / "python")
        )


def test_an_interpreter_that_is_not_there_is_a_missing_tool():
    with pytest.raises(ToolUnavailable, match="cannot be started"):
        static_profile(DATA / "matmul.py", entry="matmul", arguments=[], target="sm_90", python="/no/python")
