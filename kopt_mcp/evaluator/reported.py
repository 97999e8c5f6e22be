"""An `Evaluator` for scripts that check and time a kernel themselves: it runs them, takes their word, and says so.

What is known after a run is what the script printed: nothing was checked and nothing was timed by us.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from kopt_mcp import stats
from kopt_mcp.errors import ProblemInvalid, ToolUnavailable, WorkspaceFailed
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.records import (
    Bound,
    Ceilings,
    Evaluation,
    Job,
    KernelTime,
    Mutant,
    ProblemInfo,
    Ratio,
    Status,
    Timing,
    TorchDevice,
    WorkloadInfo,
    WorkloadResult,
)
from kopt_mcp.evaluator.script_report import Line, Report, parse
from kopt_mcp.evaluator.script_run import RunScript, Script
from kopt_mcp.platforms.host import Ran
from kopt_mcp.problems.script import HOW_TO_MEASURE
from kopt_mcp.watch import Watch

PAIRS = 6
"""Runs of the candidate, each beside one of the incumbent. The middle of six draws lies between the smallest and the
largest with a probability of 1 - 2 * 0.5**6 = 97 %."""
CONFIRMING = 3
"""Runs for a final figure."""
NOMINAL_BYTES, NOMINAL_FLOPS = 1e6, 1e9
"""The work that stands for a workload of which only a rate is reported; only its ratios mean anything. So few bytes fit
any cache: nothing is known that would make a rate impossible."""
LEAST_S = 300.0
"""Shortest time that a run of a script is given: it may compile, warm up and time several sizes."""
TRUST = f"trust: reported. The test script judged and timed the kernel itself. {HOW_TO_MEASURE}"


class ReportedEvaluator:
    """See the module, and `Evaluator` for what its methods answer."""

    def __init__(
        self, inner: Evaluator, run: RunScript, script: Script, watch: Watch | None = None, least_s: float = LEAST_S
    ) -> None:
        """For one script.

        Args:
            inner: says what the device is and can reach.
            watch: follows `describe`, which runs the script too.
        """
        self._inner = inner
        self._run = run
        self._script = script
        self._watch = watch or Watch()
        self._least_s = least_s

    def torch_device(self, device: str) -> TorchDevice:
        """As it is."""
        return self._inner.torch_device(device)

    def ceilings(self, device: str, watch: Watch) -> Ceilings:
        """These are measured."""
        return self._inner.ceilings(device, watch)

    def describe(self, problem: Path, sha256: str, device: str) -> ProblemInfo:
        """What a run on the kernel as it lies in the project reports.

        Raises:
            ProblemInvalid: it does not pass, or reports no figure.
        """
        del problem, sha256
        kernel = self._script.root / self._script.kernel
        with _folder() as folder:
            report, _ = self._once(kernel, device, Path(folder).resolve(), self._least_s, self._watch)
        if report.status != "PASSED":
            raise ProblemInvalid(
                f"{self._script.path} does not pass on {self._script.kernel} ({report.status}): {report.detail}; there "
                "is nothing right to start from."
            )
        if not report.lines:
            raise ProblemInvalid(
                f"{self._script.path} reports no latency_us, gbps or tflops; there is nothing to make smaller or "
                "larger; have it print one of them."
            )
        name = report.kernel or Path(self._script.path).stem.removeprefix("test_")
        return ProblemInfo(name, kernel.stem, _bound(report.lines), tuple(map(_info, report.lines)))

    def check_problem(self, problem: Path, sha256: str, device: str, watch: Watch) -> list[Mutant]:
        """None, since a script keeps its reference to itself."""
        del problem, sha256, device, watch
        return []

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        """Never possible.

        Raises:
            ToolUnavailable: always; a call of the kernel cannot be told from the rest of the script.
        """
        del job, workload, watch
        raise ToolUnavailable(f"a script's calls of the kernel cannot be told from its own work. {HOW_TO_MEASURE}")

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        """Each run is a process of its own, candidate and incumbent in turns."""
        self._require_unchanged()
        versions = [Path(job.candidate)]
        if job.kind == "benchmark" and job.incumbent is not None:
            versions.append(Path(job.incumbent))
        count = {"verify": 1, "benchmark": PAIRS, "confirm": CONFIRMING}[job.kind]
        runs: list[list[Report]] = [[] for _ in versions]
        timeout_s = max(job.timeout_s, self._least_s)
        with _folder() as name:
            folders = [Path(name).resolve() / str(which) for which in range(len(versions))]
            for number in range(count):
                for which in sorted(range(len(versions)), reverse=number % 2 == 1):
                    folders[which].mkdir(exist_ok=True)
                    watch.progress(number / count, f"run {number + 1} of {count}")
                    report, isolation = self._once(versions[which], job.device, folders[which], timeout_s, watch)
                    if report.status != "PASSED":
                        return _failed(report, which, isolation)
                    runs[which].append(_only(report, job.workloads))
        return _evaluation(job, runs, isolation)

    def _require_unchanged(self) -> None:
        for name, expected in self._script.files.items():
            if sha256((self._script.root / name).read_bytes()).hexdigest() != expected:
                raise WorkspaceFailed(f"{name} is not the file that was hashed; restore it, or call baseline.")

    def _once(
        self, version: Path, device: str, folder: Path, timeout_s: float, watch: Watch
    ) -> tuple[Report, dict[str, str]]:
        ran, isolation = self._run(self._script, version, device, folder=folder, timeout_s=timeout_s, watch=watch)
        return _report(ran, timeout_s), isolation


def _folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder."""
    return tempfile.TemporaryDirectory(prefix="kopt-script-", ignore_cleanup_errors=True)


def _only(report: Report, workloads: tuple[str, ...] | None) -> Report:
    return replace(report, lines=tuple(o for o in report.lines if workloads is None or o.workload in workloads))


def _report(ran: Ran, timeout_s: float) -> Report:
    if ran.failure == "timeout":
        return Report("TIMEOUT", f"the script did not end within {timeout_s:g} s; it was ended")
    if ran.failure or ran.returncode is None:
        raise ToolUnavailable(f"the script's interpreter cannot be started: {ran.reason}; set python in kopt.yaml.")
    report = parse(ran.stdout, ran.returncode)
    last = ran.stderr.strip().rpartition("\n")[2]
    if report.status == "RUNTIME_ERROR" and last:
        return replace(report, detail=f"{report.detail}: {last[:300]}")
    return report


def _failed(report: Report, which: int, isolation: dict[str, str]) -> Evaluation:
    status, detail = report.status, report.detail
    if which == 1:
        status, detail = "INCONCLUSIVE", f"the incumbent failed, not the candidate: {detail}"
    return Evaluation(status, detail, isolation=isolation, notes=(TRUST,), trust="reported")


def _evaluation(job: Job, runs: list[list[Report]], isolation: dict[str, str]) -> Evaluation:
    """What the runs say together; without times where only the verdict was asked for."""
    first = runs[0][0]
    times = [[{line.workload: _latency(line) for line in report.lines} for report in one] for one in runs]
    results = tuple(_result(line.workload, job, times) for line in first.lines)
    figures = [line.speedup for line in runs[0][-1].lines if line.speedup is not None]
    notes = [TRUST]
    if figures:
        notes.append(f"the script reports {stats.geometric_mean(figures):.3g}x of what it compares with, on its word")
    if any(line.latency_us is None for line in first.lines):
        notes.append("the script reports a rate and no time; latency_us stands for a nominal amount of work")
    status: Status = "PASSED" if all(r.status == "PASSED" for r in results) else "INCONCLUSIVE"
    detail = f"{first.detail}, in {sum(map(len, runs))} run(s)"
    return Evaluation(status, detail, results, _ratio(times), isolation, notes=tuple(notes), trust="reported")


def _result(name: str, job: Job, times: list[list[dict[str, float]]]) -> WorkloadResult:
    """One workload, by name, over all runs."""
    count = len(times[0])
    if any(name not in run for one in times for run in one):
        return WorkloadResult(name, "INCONCLUSIVE", "not every run reports it", checks=count)
    if job.kind == "verify":
        return WorkloadResult(name, "PASSED", checks=1)
    own = [[{name: run[name]} for run in one] for one in times]
    timings = [_timing([run[name] for run in one]) for one in times]
    incumbent = timings[1] if len(timings) > 1 else None
    return WorkloadResult(name, "PASSED", "", None, count, timings[0], incumbent, _ratio(own))


def _timing(values: Sequence[float]) -> Timing:
    low, high = stats.quantile(values, 0.1), stats.quantile(values, 0.9)
    return Timing(stats.median(values), low, high, len(values), "reported", "unknown")


def _ratio(times: list[list[dict[str, float]]]) -> Ratio | None:
    """The middle over pairs of runs, each the geometric mean over the workloads that both report."""
    if len(times) == 1:
        return None
    pairs = [[other[name] / mine[name] for name in mine if name in other] for mine, other in zip(*times, strict=True)]
    means = [stats.geometric_mean(pair) for pair in pairs if pair]
    return Ratio(stats.median(means), min(means), max(means), len(means)) if means else None


def _latency(line: Line) -> float:
    """The time of a workload; where only a rate is reported, that of a nominal amount of work."""
    if line.latency_us is not None:
        return line.latency_us
    return NOMINAL_BYTES / line.gbps / 1e3 if line.gbps is not None else NOMINAL_FLOPS / (line.tflops or 1.0) / 1e6


def _info(line: Line) -> WorkloadInfo:
    """Bytes and operations as the script counts them: its rate times its time."""
    us = _latency(line)
    return WorkloadInfo(line.workload, "unknown", True, (line.gbps or 0.0) * us * 1e3, (line.tflops or 0.0) * us * 1e6)


def _bound(lines: Sequence[Line]) -> Bound:
    """By what the script counts."""
    if all(line.gbps is not None for line in lines):
        return "memory"
    return "compute" if all(line.tflops is not None for line in lines) else "latency"
