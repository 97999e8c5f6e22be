"""What the compiler says of the candidate while a profiler runs: worked out beside it, and never a reason to fail."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kopt_mcp.diagnosis.signals import with_compiled
from kopt_mcp.errors import InputRefused, KoptError, ToolUnavailable
from kopt_mcp.evaluator.target_job import TargetJob
from kopt_mcp.models import Device, Profile, StaticKernel
from kopt_mcp.platforms.launching import Launch, launch, scratch
from kopt_mcp.profiling.answer import read_answer, told_text
from kopt_mcp.profiling.request import Request
from kopt_mcp.source import is_triton
from kopt_mcp.static import static_profile
from kopt_mcp.watch import Watch

DESCRIBE_S = 60.0
COMPILE_S = 60.0
"""Time budget of the compile within a profile; a kernel that needs longer is reported as such."""
JIT_KERNEL = re.compile(r"@(?:\w+\.)*jit\b[^\n]*\n(?:[ \t]*@[^\n]*\n)*?[ \t]*def[ \t]+(\w+)")
GLOBAL_KERNEL = re.compile(r"__global__[^;{]*?\b(\w+)\s*\(", re.DOTALL)
DECORATED = re.compile(r"__launch_bounds__\s*\([^)]*\)")


StaticProfile = Callable[..., list[StaticKernel]]
"""`kopt_mcp.static.static_profile`, or what stands for it in a test."""


@dataclass(frozen=True)
class Compiled:
    """The launched kernels as the compiler sees them, or why it does not."""

    kernels: tuple[StaticKernel, ...] = ()
    remark: str = ""


class Compiler:
    """Compiles candidates for the device's architecture; remembers what it said, by content, workload and target."""

    def __init__(
        self, python: Callable[[], str], launch: Launch = launch, static: StaticProfile = static_profile
    ) -> None:
        self._python = python
        self._launch = launch
        self._static = static
        self._known: dict[tuple[str, ...], Compiled] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kopt-compiler")

    def start(self, request: Request) -> Future[Compiled]:
        """Begin to compile; the result never is an exception."""
        return self._pool.submit(self._compile, request)

    def _compile(self, request: Request) -> Compiled:
        key = (request.job.candidate_sha256, request.job.problem_sha256, request.workload.name, request.device.arch)
        if key not in self._known:
            try:
                found = self._ask(request)
            except KoptError as error:
                found = Compiled(remark=str(error))
            except Exception as error:  # whatever it is, the profile does not need it
                found = Compiled(remark=f"the compiler's report could not be read: {type(error).__name__}: {error}")
            if request.watch.cancelled:
                return found
            self._known[key] = replace(found, remark=found.remark[:400])
        return self._known[key]

    def _ask(self, request: Request) -> Compiled:
        if request.device.platform == "cpu":
            return Compiled()
        kernel = request.candidate
        if kernel.suffix == ".py" and not is_triton(kernel.read_text(encoding="utf-8", errors="replace")):
            return Compiled(remark="the file holds no Triton kernel")
        entry, arguments = "", list[Any]()
        if kernel.suffix == ".py":
            job = replace(request.target_job(op="arguments"), timeout_s=DESCRIBE_S)
            entry, arguments = described_arguments(job, self._python(), self._launch, request.watch)
        kernels = self._static(
            kernel,
            entry=entry,
            arguments=arguments,
            target=request.device.arch,
            python=self._python(),
            timeout_s=COMPILE_S,
            units=_units(request.device),
        )
        return Compiled(tuple(kernels))


def static_profile_json(
    kernel: Path, problem: Path, target: str, python: str, *, workload: str | None = None
) -> list[StaticKernel]:
    """What the compiler says of a kernel for `target`, called with the arguments of a problem's GPU workload.

    Args:
        kernel: a `.py` file with Triton kernels, a `.cu` or a `.hip` file.
        problem: the `test_*.py` that declares the problem.
        target: `sm_90`, `gfx942`, ...
        python: the user's interpreter; the problem is loaded there, never here.
        workload: the problem's first one for a GPU when left out.

    Raises:
        InputRefused: the problem does not load, or see `kopt_mcp.static.static_profile`.
        ToolUnavailable, EvaluatorFailed: see `kopt_mcp.static.static_profile`.
    """
    entry, arguments = "", list[Any]()
    if kernel.suffix == ".py":
        try:
            digest = hashlib.sha256(problem.read_bytes()).hexdigest()
        except OSError as error:
            raise InputRefused(f"{problem} cannot be read: {error.strerror}. Give the path of a test file.") from error
        job = TargetJob("arguments", str(problem.resolve()), digest, "cuda:0", workload=workload, timeout_s=DESCRIBE_S)
        entry, arguments = described_arguments(job, python, launch, Watch())
    return static_profile(kernel, entry=entry, arguments=arguments, target=target, python=python)


def described_arguments(job: TargetJob, python: str, launch: Launch, watch: Watch) -> tuple[str, list[Any]]:
    """Entry and arguments of a problem's workload, asked from the user's interpreter.

    Raises:
        ToolUnavailable: the interpreter cannot be started, or has no torch.
        InputRefused: the problem does not load, or has no such workload.
    """
    with scratch() as folder:
        ran = launch(job.command(python, folder), folder=folder, timeout_s=job.timeout_s, watch=watch)
        answer = read_answer(folder)
    entry, arguments = answer.get("entry"), answer.get("arguments")
    if isinstance(entry, str) and isinstance(arguments, list):
        return entry, arguments
    if ran.failure in ("missing", "refused") or "No module named 'torch'" in ran.stderr:
        raise ToolUnavailable(f"{python} does not run torch ({ran.reason}). Set `python:` or KOPT_PYTHON.")
    why = (told_text(answer, "error") or ran.reason).rstrip(".")
    raise InputRefused(f"{Path(job.problem).name}: {why}. Correct the problem.")


def with_report(profile: Profile, compiled: Compiled) -> Profile:
    """The profile with all that the compiler said, or why it said nothing."""
    remark = {"static": compiled.remark} if compiled.remark else {}
    update = {"compiled": list(compiled.kernels), "facts": {**profile.facts, **remark}}
    return with_compiled(profile.model_copy(update=update), compiled.kernels)


def _units(device: Device) -> int | None:
    """What a block lives on: RDNA's workgroup processors are pairs of compute units."""
    paired = device.arch.startswith(("gfx10", "gfx11", "gfx12"))
    return device.sm_count // 2 if paired and device.sm_count else device.sm_count


def authored_kernels(kernel: Path) -> frozenset[str]:
    """Names of the device kernels that a file defines: Triton's `jit` functions, or `__global__` ones."""
    text = kernel.read_text(encoding="utf-8", errors="replace")
    if kernel.suffix == ".py":
        return frozenset(JIT_KERNEL.findall(text))
    return frozenset(GLOBAL_KERNEL.findall(DECORATED.sub("", text)))
