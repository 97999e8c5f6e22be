"""The ladder: the best instrument first, the next one where it may not be used, and always the word which it was."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from kopt_mcp.errors import EvaluatorFailed, InputRefused, ToolUnavailable
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.records import Job, Timing, WorkloadInfo
from kopt_mcp.models import Device, Profile
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.launching import Launch, scratch
from kopt_mcp.platforms.launching import launch as launch_process
from kopt_mcp.platforms.reports import Launched
from kopt_mcp.profiling.access import CounterAccess
from kopt_mcp.profiling.amd import rocprof_rung, rocprofv3_rung
from kopt_mcp.profiling.answer import read_answer, told_number
from kopt_mcp.profiling.compiler import Compiled, Compiler, StaticProfile, authored_kernels, with_report
from kopt_mcp.profiling.cpu import perf_rung, vectorization
from kopt_mcp.profiling.nvidia import ncu_rung
from kopt_mcp.profiling.request import Request, Tools, artifacts_folder, from_timing
from kopt_mcp.source import is_triton
from kopt_mcp.static import static_profile
from kopt_mcp.watch import Watch

SHORT_US = 50.0
"""Kernels that run longer hide what it costs to launch them: only below is that measured."""
HOST_CALLS = 15
REASON = 300
"""Characters of each reason for not taking a rung."""


Rung = Callable[[Request, Tools], Profile]
"""One instrument. Raises `ToolUnavailable` where it may not be used, with the remedy."""


class Ladder:
    """The loop's `Profiler`."""

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        python: str | Callable[[], str],
        cache: Path,
        host: Host | None = None,
        launch: Launch = launch_process,
        static: StaticProfile = static_profile,
    ) -> None:
        """Build the rungs.

        Args:
            evaluator: for the rung that needs no permission.
            python: the user's interpreter, which runs what is profiled; a function where it is not known yet.
            cache: where it is remembered that counters may (not) be read.
            host: where profilers are looked for; tests give recorded answers.
            launch: starts a profiler with the candidate under it.
            static: what compiles the candidate beside the profiler.
        """
        host = host or Host()
        self.access = CounterAccess(cache, host)
        interpreter: Callable[[], str] = python if callable(python) else lambda: str(python)
        self._tools = Tools(interpreter, host, launch, self.access)
        self._compiler = Compiler(interpreter, launch, static)
        self._evaluator = evaluator
        torch_profiler = ("torch.profiler", self._torch_rung)
        self._rungs: dict[str, tuple[tuple[str, Rung], ...]] = {
            "nvidia": (("ncu", ncu_rung), torch_profiler),
            "amd": (("rocprofv3", rocprofv3_rung), torch_profiler, ("rocprof", rocprof_rung)),
            "cpu": (torch_profiler, ("perf", perf_rung)),
        }

    def __call__(
        self,
        *,
        device: Device,
        job: Job,
        workload: WorkloadInfo,
        timing: Timing | None,
        depth: str,
        artifacts: Path,
        watch: Watch,
    ) -> Profile:
        """Profile one workload of `job.candidate`; see `kopt_mcp.steps.call.Profiler`.

        Raw reports and `metrics.json` lie in a folder of their own under `artifacts`; their paths are absolute.

        Raises:
            ProblemInvalid, WorkspaceFailed, Cancelled: there is no profile; a missing or forbidden instrument is no
                reason, it leads to a lower rung.
        """
        request = Request(
            device=device,
            job=job,
            workload=workload,
            timing=timing,
            full=depth == "full",
            artifacts=artifacts_folder(artifacts, job, workload.name, depth),
            watch=watch,
            authored=authored_kernels(Path(job.candidate)),
        )
        compiling = self._compiler.start(request)
        profile = self._climb(request, compiling)
        profile = self._with_host_time(request, profile)
        profile = self._with_vectorization(request, profile)
        if timing is not None:
            profile = _measured(profile, latency_us=timing.latency_us)
        kept = request.keep("metrics.json", profile.model_dump_json(indent=1))
        return profile.model_copy(update={"artifacts": [*profile.artifacts, kept]})

    def _climb(self, request: Request, compiling: Future[Compiled]) -> Profile:
        """The highest rung that holds, with the compiler's word; else that alone, else the time alone."""
        passed: list[str] = []
        for name, rung in self._rungs[request.device.platform]:
            request.watch.progress(0.1, f"profiling with {name}")
            try:
                profile = rung(request, self._tools)
            except (ToolUnavailable, EvaluatorFailed, InputRefused) as error:
                passed.append(f"{name}: {str(error).removeprefix(name + ': ')[:REASON]}")
                continue
            why = "; ".join([*passed, profile.why])
            return with_report(profile.model_copy(update={"why": why}), compiling.result())
        request.watch.progress(0.8, "compiling")
        compiled = compiling.result()
        profile = from_timing(request.workload.name, request.timing, "; ".join(passed))
        if compiled.kernels:
            profile = profile.model_copy(update={"rung": "static"})
        return with_report(profile, compiled)

    def _torch_rung(self, request: Request, _: Tools) -> Profile:
        """Kernels (on a CPU: operators) and times by torch.profiler in the evaluator's sandbox; needs no permission."""
        if request.native_on_cpu:
            raise ToolUnavailable("it sees torch's operators, and this kernel is C")
        if request.device.platform == "cpu" and is_triton(request.candidate.read_text("utf-8", "replace")):
            raise ToolUnavailable("without a GPU Triton runs under its interpreter, whose times say nothing")
        times = self._evaluator.kernel_times(request.job, request.workload.name, request.watch)
        launches = [
            Launched(time.name, {"duration_us": time.total_us}, calls=time.calls) for time in times if time.calls
        ]
        return request.profile("torch_profiler", launches, "torch.profiler lists kernel times")

    def _with_host_time(self, request: Request, profile: Profile) -> Profile:
        """What one call costs the host, where the kernels are so short that it matters."""
        times = [kernel.metrics.get("duration_us") for kernel in profile.kernels]
        known = [time for time in times if time is not None]
        launches = sum(kernel.calls for kernel in profile.kernels)
        if request.device.platform == "cpu" or not known or sum(known) / launches > SHORT_US:
            return profile
        with scratch() as folder:
            job = request.target_job(op="call", calls=HOST_CALLS)
            command = job.command(self._tools.python(), folder)
            self._tools.launch(command, folder=folder, timeout_s=job.timeout_s, watch=request.watch)
            host_us = told_number(read_answer(folder), "host_us")
        return profile if host_us is None else _measured(profile, launch_us=host_us)

    def _with_vectorization(self, request: Request, profile: Profile) -> Profile:
        if not request.native_on_cpu:
            return profile
        facts, kept = vectorization(request, self._tools)
        rung = "static" if kept and profile.rung == "timing" else profile.rung
        update = {"rung": rung, "facts": {**profile.facts, **facts}, "artifacts": [*profile.artifacts, *kept]}
        return profile.model_copy(update=update)


def _measured(profile: Profile, **metrics: float) -> Profile:
    return profile.model_copy(update={"metrics": {**profile.metrics, **metrics}})
