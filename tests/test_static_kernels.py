"""Every Triton kernel that is shipped compiles for NVIDIA and AMD targets, and the compiler's word can be read."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.target import describe_arguments
from kopt_mcp.models import StaticKernel
from kopt_mcp.static import static_profile

KERNELS = Path(__file__).parents[1] / "skills" / "kernels"
SHIPPED = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.glob("*/triton*template.py"))
# Every kernel for one architecture of each vendor; KOPT_TARGETS=all adds two more, and two minutes.
TARGETS = ("sm_90", "gfx942") if os.environ.get("KOPT_TARGETS") != "all" else ("sm_80", "sm_90", "sm_100", "gfx942")
CASES = [(kernel, target) for kernel in SHIPPED for target in TARGETS]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

Compiling = dict[tuple[str, str], "Future[list[StaticKernel]]"]


@pytest.fixture(scope="module")
def compiling(request: pytest.FixtureRequest) -> Iterator[Compiling]:
    """The wanted compiles, a process each, as many at once as there are cores."""
    wanted = [item.callspec.params["case"] for item in request.session.items if item.module is request.module]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            yield {case: pool.submit(compiled, *case) for case in wanted}
        finally:
            pool.shutdown(cancel_futures=True)


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
def test_a_shipped_kernel_compiles_for_the_target_and_can_be_launched(case: tuple[str, str], compiling: Compiling):
    found = compiling[case].result()

    assert found
    for kernel in found:
        assert (kernel.target, kernel.grid != []) == (case[1], True)
        assert kernel.registers
        assert kernel.occupancy_pct
        assert kernel.load_bytes
        assert [text for text in kernel.problems if text.startswith(("cannot launch", "compile timed out"))] == []
