"""The process that is profiled: load a candidate, warm it up, call it once between two marks.

Runs under the user's interpreter, in a folder of its own that is thrown away, most often below a profiler. It is
trusted with nothing: it draws one workload's inputs from a public seed, holds no expected output, and what it answers
(and what a profiler saw of it) is advice that no verdict rests on. Where the profiler allows it the whole sandbox of a
runner is in force; ncu and rocprofv3 need files and sockets outside of it, there only the resource limits are.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator import native, sandbox
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.loading import imported
from kopt_mcp.evaluator.reference import outputs_of
from kopt_mcp.evaluator.target_job import ANSWER_FILE, TargetJob, read_job
from kopt_mcp.problem import Case, Problem, Spec

SEED = 1
WARM_UPS = 3
FILE_BYTES = 2 << 30
OPEN_FILES = 4096
REPORT_FLAG = "-fopt-info-vec-optimized-missed="
REPORT_FILE = "vectorization.txt"
LINE_FLAG = "-lineinfo"
"""Of nvcc: line numbers in the machine code, which stays as it is."""
_CFLAGS = re.compile(r"^\s*(//|/\*)\s*kopt:\s*cflags\s*=")


class Answer:
    """What is told so far, on disk at once: a target that is killed still says how far it came."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ANSWER_FILE
        self._told: dict[str, Any] = {}

    def tell(self, **fields: Any) -> None:
        """Add fields and write them all."""
        self._told |= fields
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._told), encoding="utf-8")
        beside.replace(self._path)


def main(folder_name: str) -> None:
    """Run the job in `folder_name`; the exit status is 0 only when it was done."""
    folder = Path(folder_name)
    answer = Answer(folder)
    try:
        job = read_job(folder)
        answer.tell(stage="loading the problem")
        problem = load_problem(_content(job.problem, job.problem_sha256), job.problem)
        if job.op == "arguments":
            answer.tell(**describe_arguments(problem, job.workload))
        elif job.op == "vectorization":
            answer.tell(**vectorization(job, folder))
        elif job.op == "each":
            each(job, problem, folder, answer)
        else:
            call(job, problem, folder, answer)
        answer.tell(stage="done")
    except BaseException as error:  # a candidate may raise SystemExit or KeyboardInterrupt too
        answer.tell(error=_explain(error, folder))
        sys.stderr.write(traceback.format_exc())
        raise SystemExit(1) from None


def call(job: TargetJob, problem: Problem, folder: Path, answer: Answer) -> None:
    """Load the candidate, warm it up (autotuning included), and call it between the marks."""
    kind = "cpu" if job.device == "cpu" else "cuda"
    workload = problem.for_device(kind, [job.workload] if job.workload else None)[0]
    source = _copy_of(job, folder)
    marks = MARKS[job.marks](job, folder)
    answer.tell(stage="loading the kernel", isolation=_shut_in(job, folder))
    if kind == "cuda":
        torch.cuda.set_device(torch.device(job.device))
    case = problem.case(workload)
    arguments = draw(case.inputs, case.literals, SEED, kind).args
    function = load(source, problem, case, arguments, kind, job.timeout_s)
    answer.tell(stage="warming up")
    for _ in range(WARM_UPS):
        function(*arguments)
    _synchronise(kind)
    answer.tell(stage="in the profiled call")
    marks.start()
    times = [_host_us(function, arguments, kind) for _ in range(job.calls)]
    marks.stop()
    answer.tell(calls=job.calls, host_us=statistics.median(times), warm_ups=WARM_UPS)


def each(job: TargetJob, problem: Problem, folder: Path, answer: Answer) -> None:
    """Call the candidate once on every workload asked for, each tensor in an allocation of exactly its size.

    The guard bands of a verification would hide what is read behind an input. Everything else is done on the CPU: each
    of torch's own kernels that a checker has to instrument costs time. A CUDA kernel is built with line numbers,
    `shift` is by how many lines its copy is longer.
    """
    kind = "cpu" if job.device == "cpu" else "cuda"
    source = _copy_of(job, folder)
    shift = _with_flag(source, LINE_FLAG) if source.suffix == ".cu" else 0
    answer.tell(stage="loading the kernel", shift=shift, isolation=_shut_in(job, folder))
    if kind == "cuda":
        torch.cuda.set_device(torch.device(job.device))
    function: Callable[..., Any] | None = None
    for workload in problem.for_device(kind, list(job.workloads) or None):
        case = problem.case(workload)
        drawn = [_copied(a) for a in draw(case.inputs, case.literals, SEED, "cpu").args]
        if function is None or source.suffix != ".py":  # a C function is bound to the outputs of one workload
            function = load(source, problem, case, drawn, kind, job.timeout_s)
        answer.tell(stage=f"making room for {workload.name}")
        arguments = [a.to(kind) if isinstance(a, torch.Tensor) else a for a in drawn]
        answer.tell(stage=f"calling {workload.name}")
        function(*arguments)
        _synchronise(kind)


def load(
    source: Path, problem: Problem, case: Case, arguments: list[Any], kind: str, timeout_s: float
) -> Callable[..., Any]:
    """The candidate's entry; a C function is given outputs shaped like the reference's on `arguments`."""
    if source.suffix == ".py":
        return imported(source, problem.entry, problem.adapter, {**problem.adapter_spec, "device": kind})
    library = native.build(source, source.parent, timeout_s)
    function = native.bind(library, problem.entry, problem.arguments, kind != "cpu")
    expected = outputs_of(problem, problem.reference, [_copied(a) for a in arguments], problem.precision)
    params = {name: value for name, value in case.params.items() if isinstance(value, (int, float))}
    outputs = [torch.empty_like(one, device=kind) for one in expected[len(problem.mutates) :]]

    def native_call(*args: Any) -> None:
        inputs = {f"in{position}": value for position, value in enumerate(args)}
        function({**params, **inputs, **{f"out{position}": value for position, value in enumerate(outputs)}})

    return native_call


def describe_arguments(problem: Problem, name: str | None) -> dict[str, Any]:
    """Entry and arguments of a GPU workload, as `kopt_mcp.static.static_profile` takes them; no value is drawn."""
    if problem.adapter not in ("", "autokernel"):
        raise RuntimeError(
            f"a kernel of the format {problem.adapter} is called through an adapter, and not compiled by itself; "
            "profile it on a GPU"
        )
    workload = problem.for_device("cuda", [name] if name else None)[0]
    case = problem.case(workload)
    arguments = [_described(one, case) if isinstance(one, Spec) else one for one in case.inputs]
    return {"entry": problem.entry, "workload": workload.name, "arguments": arguments}


def vectorization(job: TargetJob, folder: Path) -> dict[str, Any]:
    """Build the kernel with its own flags and GCC's report; `shift` is by how many lines the copy is longer."""
    source = _copy_of(job, folder)
    shift = _with_flag(source, f"{REPORT_FLAG}{folder / REPORT_FILE}")
    native.build(source, folder, job.timeout_s)
    return {"shift": shift}


def _with_flag(source: Path, flag: str) -> int:
    """Add a compiler flag to the file's own; by how many lines it has become longer."""
    first, _, rest = source.read_text(encoding="utf-8", errors="replace").partition("\n")
    own = _CFLAGS.match(first) is not None
    with_flag = (
        re.sub(r"\s*(\*/)?\s*$", rf" {flag} \1", first, count=1) if own else f"// kopt: cflags = {flag}\n{first}"
    )
    source.write_text(f"{with_flag}\n{rest}", encoding="utf-8")
    return 0 if own else 1


class NoMarks:
    """For a run that no profiler watches, or that is recorded as a whole."""

    def __init__(self, job: TargetJob, folder: Path) -> None:
        del job, folder

    def start(self) -> None:
        """Nothing to tell."""

    def stop(self) -> None:
        """Nothing to tell."""


class CudaMarks(NoMarks):
    """ncu with --profile-from-start off."""

    def start(self) -> None:
        torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]


class RoctxMarks(NoMarks):
    """rocprofv3 with --selected-regions."""

    def __init__(self, job: TargetJob, folder: Path) -> None:
        super().__init__(job, folder)
        self._library = ctypes.CDLL(job.library)

    def start(self) -> None:
        self._library.roctxProfilerResume(0)

    def stop(self) -> None:
        self._library.roctxProfilerPause(0)


class PerfMarks(NoMarks):
    """perf stat with its counters off until it is told otherwise, through two pipes in the folder."""

    def __init__(self, job: TargetJob, folder: Path) -> None:
        super().__init__(job, folder)
        self._control = os.open(folder / "control", os.O_RDWR)
        self._answer = os.open(folder / "ack", os.O_RDWR)

    def start(self) -> None:
        self._ask(b"enable\n")

    def stop(self) -> None:
        self._ask(b"disable\n")

    def _ask(self, command: bytes) -> None:
        os.write(self._control, command)
        while os.read(self._answer, 1) != b"\n":  # perf ends its answer with a NUL besides, which is skipped next time
            pass


MARKS: dict[str, type[NoMarks]] = {"none": NoMarks, "cuda": CudaMarks, "roctx": RoctxMarks, "perf": PerfMarks}


def _host_us(function: Callable[..., Any], arguments: list[Any], kind: str) -> float:
    """Host time of one call with nothing queued before it: what launching costs; on a CPU the call itself."""
    begin = time.perf_counter_ns()
    function(*arguments)
    took = (time.perf_counter_ns() - begin) / 1e3
    _synchronise(kind)
    return took


def _synchronise(kind: str) -> None:
    if kind != "cpu":
        torch.cuda.synchronize()


def _shut_in(job: TargetJob, folder: Path) -> str:
    cpu_s = int(job.timeout_s * (os.cpu_count() or 1)) + 10
    if job.shut_in:
        limits, readable = sandbox.Limits(cpu_s=cpu_s), sandbox.interpreter_folders()
        report = sandbox.restrict(readable, [str(folder)], limits, own_network=job.own_network)
        return ", ".join(f"{name} {state}" for name, state in report.items())
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    return "resource limits only: the profiler needs files and sockets that the sandbox forbids"


def _content(path: str, expected: str) -> bytes:
    data = Path(path).read_bytes()
    if sha256(data).hexdigest() != expected:
        raise RuntimeError(f"{path} is not the file that was hashed")
    return data


def _copy_of(job: TargetJob, folder: Path) -> Path:
    source = folder / f"kernel{Path(job.candidate).suffix}"
    source.write_bytes(_content(job.candidate, job.candidate_sha256))
    return source


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _described(spec: Spec, case: Case) -> dict[str, Any]:
    tensor: dict[str, Any] = {"shape": list(spec.shape), "dtype": spec.dtype}
    if spec.kind == "integers":
        return {**tensor, "values": "integers", "low": int(spec.args["low"]), "high": int(spec.args["high"])}
    literal = case.literals[int(spec.args["index"])] if spec.kind == "literal" else None
    if literal is not None and literal.numel() and not literal.dtype.is_floating_point:
        # The host's code may size a grid by these values: keep them in their range.
        return {**tensor, "values": "integers", "low": int(literal.min()), "high": int(literal.max()) + 1}
    return tensor


def _explain(error: BaseException, folder: Path) -> str:
    """The error and the candidate's own line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(folder))]
    place = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{type(error).__name__}: {str(error)[-500:]}{place}".replace(f"{folder}{os.sep}", "")
