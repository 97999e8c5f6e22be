"""Every Triton kernel that is shipped compiles for NVIDIA and AMD targets, and the compiler's word can be read."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.target import describe_arguments
from kopt_mcp.models import StaticKernel
from kopt_mcp.static import static_profile

KERNELS = Path(__file__).parents[1] / "skills" / "kernels"
SHIPPED = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.glob("*/triton*template.py"))
OTHERS = ("sm_80", "sm_100")
# Every kernel for one architecture of each vendor, and for one of two more in turn; KOPT_TARGETS=all: for all four.
CASES = [
    (kernel, target)
    for number, kernel in enumerate(SHIPPED)
    for target in (
        "sm_90",
        "gfx942",
        *(OTHERS if os.environ.get("KOPT_TARGETS") == "all" else OTHERS[number % 2 :][:1]),
    )
]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def compiled(kernel: str, target: str) -> list[StaticKernel]:
    """The kernel's launches for the smallest workload that its problem has timed on a GPU."""
    file = KERNELS / kernel
    backward = "_backward" if "backward" in file.name else ""
    test = file.parent / f"test_{file.parent.name.replace('-', '_')}{backward}.py"
    problem = load_problem(test.read_bytes(), str(test))
    timed = [workload for workload in problem.for_device("cuda") if workload.timed]
    described = describe_arguments(problem, min(timed, key=lambda one: problem.case(one).bytes).name)
    return static_profile(
        file, entry=described["entry"], arguments=described["arguments"], target=target, python=sys.executable
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{Path(case[0]).parent}-{Path(case[0]).stem}-{case[1]}")
def test_a_shipped_kernel_compiles_for_the_target_and_can_be_launched(case: tuple[str, str]) -> None:
    found = compiled(*case)

    assert found
    for kernel in found:
        assert (kernel.target, kernel.grid != []) == (case[1], True)
        assert kernel.registers
        assert kernel.occupancy_pct
        assert kernel.load_bytes
        assert [text for text in kernel.problems if text.startswith(("cannot launch", "compile timed out"))] == []
