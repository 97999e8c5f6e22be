"""A right and a wrong kernel through the real evaluator: what passes and what is refused is the proof that it works."""

from __future__ import annotations

import tempfile
from hashlib import sha256
from pathlib import Path

from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.records import Evaluation, Job
from kopt_mcp.watch import Watch

PROBLEM = """\
from kopt_mcp.problem import Problem, Workload

PROBLEM = Problem(
    name="doubled",
    reference=lambda x: x + x,
    inputs=lambda make, n: (make.normal(n),),
    workloads=[Workload({"n": 1000})],
    bytes="2 * n * itemsize",
    flops="n",
    bound="memory",
)
"""
RIGHT = """\
def doubled(x):
    return 2 * x
"""
RIGHT_IN_TRITON = """\
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def doubled(x):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out
"""
WRONG = """\
def doubled(x):
    out = 2 * x
    out[-1] = 0
    return out
"""
_TIMEOUT_S = 60.0


def run(evaluator: Evaluator, device: str, triton: bool) -> tuple[Evaluation, Evaluation]:
    """Verify the right kernel (Triton's, if asked) and the wrong one on `device`, `cpu` or `cuda:N`.

    Raises:
        KoptError: the evaluator cannot be asked.
    """
    with tempfile.TemporaryDirectory(prefix="kopt-selftest-") as name:
        folder = Path(name)
        right = _evaluate(evaluator, folder, RIGHT_IN_TRITON if triton else RIGHT, device)
        return right, _evaluate(evaluator, folder, WRONG, device)


def _evaluate(evaluator: Evaluator, folder: Path, kernel: str, device: str) -> Evaluation:
    written = [(folder / "test_doubled.py", PROBLEM), (folder / "doubled.py", kernel)]
    named: list[str] = []
    for path, text in written:
        path.write_text(text, encoding="utf-8")
        named += [str(path), sha256(text.encode()).hexdigest()]
    job = Job("verify", named[0], named[1], named[2], named[3], device, timeout_s=_TIMEOUT_S)
    return evaluator.evaluate(job, Watch())
