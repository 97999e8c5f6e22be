"""The trusted half: a warm process that owns seeds, references and verdicts, and never imports a candidate.

Started by `client` (or by a problem file's own command line) under the user's interpreter. It answers requests one at a
time over a private channel: progress messages, then one result or one error.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator import bench, ceilings, device_state, mutants, sandbox, verify
from kopt_mcp.evaluator.bench import Arm, IncumbentFault, PhysicalLimits, WorkloadBench
from kopt_mcp.evaluator.channel import Channel, ChannelClosed
from kopt_mcp.evaluator.compare import BadReference
from kopt_mcp.evaluator.device_state import Observer
from kopt_mcp.evaluator.process import CandidateProcess, Fault, Place, Source
from kopt_mcp.evaluator.records import (
    Ceilings,
    Evaluation,
    Job,
    KernelTime,
    Mutant,
    ProblemInfo,
    TorchDevice,
    WorkloadInfo,
    WorkloadResult,
)
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs
from kopt_mcp.evaluator.timing import clock_for
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import Problem, ProblemError, Workload

Said = Callable[[float, str], None]
_PREPARE_S = 60.0
"""Longest time for building what Triton's launcher needs."""


class HarnessError(Exception):
    """The request cannot be answered; `kind` names the error class of the server that fits."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Harness:
    """Everything that a request needs: the forking process, the shared memory, loaded problems, measured ceilings."""

    def __init__(
        self, device: str, folder: Path, fork: bool = True, observers: Callable[[], Observer] | None = None
    ) -> None:
        """`fork=False` where this process has computed with torch before, see `Zygote`.

        `observers` makes what watches the device during an evaluation; by default, through what the system offers.
        """
        self.device = device
        self._kind = "cpu" if device == "cpu" else "cuda"
        self._zygote = Zygote(self._kind, fork)  # before any CUDA call: a CUDA context does not survive a fork
        sandbox.hide_memory()
        self._problems: dict[str, Problem] = {}
        self._ceilings: Ceilings | None = None
        self.torch_device = _torch_device(device)
        if device != "cpu":
            torch.cuda.set_device(torch.device(device))
        cache = folder / "cache"
        cache.mkdir()
        self._place = Place(self._zygote, folder, self._kind, self.torch_device.l2_bytes, cache)
        self._empty_us: float | None = None
        self._observers = observers or device_state.Observers(self.torch_device.kind, self.torch_device.uuid)
        if device != "cpu":
            self._prepare_triton(folder, cache)

    def close(self) -> None:
        """End the forking process and with it every runner."""
        self._zygote.close()

    def _prepare_triton(self, folder: Path, cache: Path) -> None:
        """Build once what every Triton kernel needs, with a kernel of our own, and start all caches from that."""
        if _version("triton") is None:
            return
        here = self.torch_device
        backend, arch = ("hip", here.arch) if here.kind == "hip" else ("cuda", int(here.arch.removeprefix("sm_")))
        self._zygote.prepare(arch, torch.cuda.get_device_properties(0).warp_size, backend)
        problem = Problem(
            name="trivial",
            reference=torch.clone,
            inputs=lambda make, n: (make.normal(n),),
            workloads=[Workload({"n": 1024})],
            bytes="8 * n",
            flops="0",
            bound="memory",
        )
        content = Path(__file__).with_name("trivial.py").read_bytes()
        source = Source(content, sha256(content).hexdigest(), ".py")
        case = problem.case(problem.workloads[0])
        try:
            with CandidateProcess(self._place, problem, source, _PREPARE_S).start() as process:
                expected = expected_outputs(problem, case, 1, self._kind)
                process.workload(case, describe_outputs(expected))
                process.ask(
                    "sample", seed=1, distribution="normal", layout="contiguous", spin_us=0, warm=True, keep=False
                )
        except Fault:
            return  # the user's kernels may not be Triton's; if they are, they will say what is wrong
        shutil.copytree(folder / f"cache-{source.sha256[:16]}" / "triton", cache / "triton", dirs_exist_ok=True)

    def problem(self, path: str, expected_sha256: str) -> Problem:
        """Load a problem file, once per content.

        Raises:
            HarnessError: the file changed, does not load, or declares no `PROBLEM`.
        """
        content = _read(path, expected_sha256, "problem")
        if expected_sha256 not in self._problems:
            self._problems[expected_sha256] = load_problem(content, path)
        return self._problems[expected_sha256]

    def adopt(self, problem: Problem, key: str) -> None:
        """Use a problem that is already loaded (a problem file run as a script)."""
        self._problems[key] = problem

    def describe(self, problem: Problem) -> ProblemInfo:
        """What the problem declares for this device."""
        infos = []
        for workload in problem.for_device(self._kind):
            case = problem.case(workload)
            certain = "bytes" in problem.certain
            infos.append(WorkloadInfo(workload.name, workload.dtype, workload.timed, case.bytes, case.flops, certain))
        return ProblemInfo(problem.name, problem.entry, problem.bound, tuple(infos))

    def ceilings(self) -> Ceilings:
        """What this device can reach; measured once per process."""
        if self._ceilings is None:
            self._ceilings = ceilings.measure(self._kind, self._place.cache_bytes, self.torch_device.name)
        return self._ceilings

    def adopt_ceilings(self, measured: Ceilings) -> None:
        """Use ceilings that were measured on this device before."""
        self._ceilings = measured

    def check_problem(self, problem: Problem) -> list[Mutant]:
        """Try wrong implementations on the problem's own checks.

        Raises:
            HarnessError: the reference is not usable.
        """
        cases = [problem.case(w) for w in problem.for_device(self._kind)]
        try:
            return mutants.check(problem, cases, self._kind)
        except BadReference as error:
            raise HarnessError("ProblemInvalid", f"{error}; mend the reference or the inputs.") from error

    def evaluate(self, problem: Problem, job: Job, said: Said) -> Evaluation:
        """Check and, if asked, time one candidate."""
        begin = time.perf_counter()
        candidate = _source(job.candidate, job.candidate_sha256)
        workloads = problem.for_device(self._kind, job.workloads)
        try:
            if job.kind == "verify":
                evaluation = self._verify(problem, workloads, candidate, job, said)
            else:
                evaluation = self._benchmark(problem, workloads, candidate, job, said)
                if job.kind == "confirm" and evaluation.status == "PASSED":
                    evaluation = _together(evaluation, self._verify(problem, workloads, candidate, job, said))
        except IncumbentFault as fault:
            evaluation = Evaluation("INCONCLUSIVE", f"the incumbent failed, not the candidate: {fault.detail}")
        except Fault as fault:
            evaluation = Evaluation(fault.status, fault.detail)  # type: ignore[arg-type]
        if evaluation.status in ("RUNTIME_ERROR", "TIMEOUT") and not self._device_healthy():
            evaluation = Evaluation("DEVICE_UNHEALTHY", f"a known good kernel fails too, after: {evaluation.detail}")
        wall = round(time.perf_counter() - begin, 3)
        return replace(evaluation, environment=self.torch_device.versions, wall_s=wall)

    def kernel_times(self, problem: Problem, job: Job, workload: str) -> list[KernelTime]:
        """Device kernels of one call.

        Raises:
            HarnessError: the candidate failed.
        """
        case = problem.case(problem.for_device(self._kind, [workload])[0])
        try:
            outputs = describe_outputs(expected_outputs(problem, case, 1, self._kind))
            with self._process(problem, _source(job.candidate, job.candidate_sha256), job).start() as process:
                process.workload(case, outputs)
                rows = process.ask("profile", seed=1, distribution="normal", layout="contiguous")["kernels"]
        except Fault as fault:
            raise HarnessError("ToolUnavailable", f"torch.profiler saw nothing: {fault.detail}") from fault
        return [KernelTime(str(r["name"]), int(r["calls"]), float(r["total_us"])) for r in rows]

    def _process(self, problem: Problem, source: Source, job: Job) -> CandidateProcess:
        return CandidateProcess(self._place, problem, source, job.timeout_s, cold=job.kind == "confirm")

    def _verify(self, problem: Problem, workloads: list[Workload], source: Source, job: Job, said: Said) -> Evaluation:
        said(0.0, "starting the candidate")
        with self._process(problem, source, job) as process:
            process.start()
            groups = verify.plan(problem, workloads, self._kind)
            results = verify.verify(process, problem, groups, self._kind, said)
            library = verify.library_work(process, results)
            note = process.close()
        last = results[-1]
        status = last.status
        detail = last.detail if status != "PASSED" else f"{sum(r.checks for r in results)} checks passed"
        notes = tuple(text for text in (note, library) if text)
        return Evaluation(status, detail, tuple(results), isolation=process.isolation, notes=notes)

    def _benchmark(
        self, problem: Problem, workloads: list[Workload], source: Source, job: Job, said: Said
    ) -> Evaluation:
        timed = [w for w in workloads if w.timed]
        if not timed:
            raise HarnessError("ProblemInvalid", f"problem {problem.name!r} has no timed workload for {self._kind}.")
        if self._kind == "cpu" and source.suffix == ".py" and b"import triton" in source.content:
            raise HarnessError(
                "ToolUnavailable",
                "this is a Triton kernel and there is no GPU: it ran under Triton's interpreter, whose times say "
                "nothing; verify works here, benchmark needs a machine with a GPU.",
            )
        if self._empty_us is None:
            self._empty_us = clock_for(self._kind, self._place.cache_bytes).empty_us
        limits = PhysicalLimits(self.ceilings(), self._place.cache_bytes, self._kind, self._empty_us)
        said(0.0, "starting the candidate")
        observer = self._observers()
        observer.begin()
        sources = [source]
        if job.incumbent is not None and job.incumbent_sha256 is not None:
            sources.append(_source(job.incumbent, job.incumbent_sha256))
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(self._process(problem, s, job)) for s in sources]
            _start(processes)
            results = self._time(problem, timed, processes, job, limits, observer, said)
            state = observer.after()
            process = processes[0]
            binary = process.binary()
            library = verify.library_work(process, results)
            for one in processes:
                one.leave()
            note = process.close()
        ratio = bench.combine(results)
        detail = f"{sum(r.timing.samples for r in results if r.timing)} calls timed"
        notes = tuple(text for text in (note, library, *device_state.notes(state)) if text)
        return Evaluation(
            "PASSED",
            detail,
            tuple(results),
            ratio,
            process.isolation,
            notes=notes,
            device_state=state,
            binary_sha256=binary,
        )

    def _time(
        self,
        problem: Problem,
        timed: list[Workload],
        processes: list[CandidateProcess],
        job: Job,
        limits: PhysicalLimits,
        observer: Observer,
        said: Said,
    ) -> list[WorkloadResult]:
        benches = [WorkloadBench(problem, w, [Arm(p) for p in processes], self._kind, limits) for w in timed]
        for number, workload_bench in enumerate(benches):
            said(0.3 * number / len(benches), f"warming up {workload_bench.workload.name}")
            workload_bench.warm_up()
        observer.before()
        begin = time.monotonic()
        for number in range(bench.MAX_BLOCKS):
            undecided = [b for b in benches if not b.decided]
            if not undecided or (number >= bench.MIN_BLOCKS and time.monotonic() - begin > bench.BUDGET_S):
                break
            said(0.3 + 0.65 * number / bench.MAX_BLOCKS, f"block {number + 1}: {len(undecided)} workload(s) undecided")
            for workload_bench in undecided:
                workload_bench.block()
                workload_bench.decide(job.floor)
            observer.during()
        return [b.finish() for b in benches]

    def _device_healthy(self) -> bool:
        """Whether a trivial kernel of our own still gives the right answer."""
        try:
            x = torch.arange(1024, device=self._kind, dtype=torch.float32)
            return float((x * 2).sum()) == 1024.0 * 1023.0
        except RuntimeError:
            return False


def _together(timed: Evaluation, checked: Evaluation) -> Evaluation:
    """A confirmation: every workload checked, and the timed ones with their times."""
    if checked.status != "PASSED":
        return checked
    times = {r.workload: r for r in timed.workloads}
    merged = [
        replace(times[r.workload], error_ratio=r.error_ratio, checks=r.checks + times[r.workload].checks)
        if r.workload in times
        else r
        for r in checked.workloads
    ]
    return replace(timed, workloads=tuple(merged), detail=f"{checked.detail}, {timed.detail}")


def _start(processes: list[CandidateProcess]) -> None:
    """Start several runners at once; the first is the candidate, and its fault goes before the incumbent's."""
    with ThreadPoolExecutor(len(processes)) as pool:
        starts = [pool.submit(p.start) for p in processes]
    for number, start in enumerate(starts):
        try:
            start.result()
        except Fault as fault:
            raise fault if number == 0 else IncumbentFault(fault.status, fault.detail) from None


def load_problem(content: bytes, path: str) -> Problem:
    """Execute a problem file and take its `PROBLEM`.

    Raises:
        HarnessError: it does not load, or declares none.
    """
    namespace: dict[str, Any] = {"__name__": "kopt_problem", "__file__": path}
    try:
        exec(compile(content, path, "exec"), namespace)
    except ProblemError as error:
        raise HarnessError("ProblemInvalid", f"{Path(path).name}: {error}") from error
    except Exception as error:
        line = getattr(error, "lineno", None) or _line_in(error, path)
        text = f"{Path(path).name} does not load: line {line}: {type(error).__name__}: {error}"
        raise HarnessError("ProblemInvalid", text) from error
    problem = namespace.get("PROBLEM")
    if not isinstance(problem, Problem):
        raise HarnessError(
            "ProblemInvalid",
            f"{Path(path).name} declares no PROBLEM; assign a kopt_mcp.problem.Problem to that name.",
        )
    return problem


def _line_in(error: BaseException, path: str) -> int | None:
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines[-1] if lines else None


def _read(path: str, expected_sha256: str, what: str) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise HarnessError("WorkspaceFailed", f"the {what} {path!r} cannot be read: {error.strerror}.") from error
    if sha256(content).hexdigest() != expected_sha256:
        raise HarnessError("WorkspaceFailed", f"the {what} {path!r} is not the one that was hashed; call again.")
    return content


def _source(path: str, expected_sha256: str) -> Source:
    return Source(_read(path, expected_sha256, "kernel"), expected_sha256, Path(path).suffix)


def _torch_device(device: str) -> TorchDevice:
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if (triton := _version("triton")) is not None:
        versions["triton"] = triton
    if device == "cpu":
        return TorchDevice(
            kind="cpu",
            index=0,
            name=platform.processor() or platform.machine(),
            arch=platform.machine(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            sm_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            l2_bytes=_last_level_cache(),
            uuid=f"cpu-{platform.node()}",
            versions=versions,
        )
    if not torch.cuda.is_available():
        raise HarnessError("ToolUnavailable", f"torch {torch.__version__} of {sys.executable} sees no GPU.")
    index = torch.device(device).index or 0
    props = torch.cuda.get_device_properties(index)
    hip = torch.version.hip is not None
    versions["rocm" if hip else "cuda"] = str(torch.version.hip if hip else torch.version.cuda)
    arch = props.gcnArchName.split(":")[0] if hip else f"sm_{props.major}{props.minor}"
    return TorchDevice(
        kind="hip" if hip else "cuda",
        index=index,
        name=props.name,
        arch=arch,
        memory_bytes=props.total_memory,
        sm_count=props.multi_processor_count,
        l2_bytes=int(getattr(props, "L2_cache_size", 0)) or (64 << 20),
        uuid=f"GPU-{props.uuid}" if hasattr(props, "uuid") else f"{props.name}-{index}",
        versions=versions,
    )


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _last_level_cache() -> int:
    """Bytes of the largest cache of CPU 0; 32 MiB where the system does not say."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * scale)
    return max(sizes, default=32 << 20)


def answer(harness: Harness, request: dict[str, Any], said: Said) -> Any:
    """Carry out one request; the result is JSON."""
    op = request["op"]
    if op == "torch_device":
        return asdict(harness.torch_device)
    if op == "ceilings":
        if request.get("known"):
            harness.adopt_ceilings(Ceilings(**request["known"]))
        else:
            said(0.1, "measuring what the device can reach")
        return asdict(harness.ceilings())
    if op == "describe":
        return asdict(harness.describe(harness.problem(request["problem"], request["sha256"])))
    if op == "check_problem":
        said(0.0, "trying wrong implementations on the problem")
        return [asdict(m) for m in harness.check_problem(harness.problem(request["problem"], request["sha256"]))]
    job = Job(**{**request["job"], "workloads": _names(request["job"]["workloads"])})
    problem = harness.problem(job.problem, job.problem_sha256)
    if op == "kernel_times":
        return [asdict(k) for k in harness.kernel_times(problem, job, request["workload"])]
    return asdict(harness.evaluate(problem, job, said))


def _names(workloads: list[str] | None) -> tuple[str, ...] | None:
    return None if workloads is None else tuple(workloads)


def serve(channel: Channel, device: str, folder: Path, fork: bool = True) -> None:
    """Answer requests until the server closes the channel; `fork` as for `Harness`."""
    harness: Harness | None = None

    def said(fraction: float, text: str) -> None:
        channel.send({"event": "progress", "fraction": round(fraction, 3), "text": text})

    while True:
        try:
            request = channel.receive()
        except ChannelClosed:
            break
        try:
            harness = harness or Harness(device, folder, fork)
            channel.send({"event": "result", "result": answer(harness, request, said)})
        except HarnessError as error:
            channel.send({"event": "error", "kind": error.kind, "text": str(error)})
        except ProblemError as error:
            channel.send({"event": "error", "kind": "ProblemInvalid", "text": str(error)})
        except ChannelClosed:
            break
        except Exception as error:
            channel.send({"event": "error", "kind": "EvaluatorFailed", "text": f"{type(error).__name__}: {error}"})
    if harness is not None:
        harness.close()


def main(fd: int, device: str, folder: str) -> None:
    """Entry point of the process that `client` starts."""
    import socket

    tempfile.tempdir = folder
    serve(Channel(socket.socket(fileno=fd)), device, Path(folder))
