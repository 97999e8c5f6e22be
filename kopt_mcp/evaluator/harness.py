"""The trusted half: a warm process that owns seeds, references and verdicts, and never imports a candidate.

Started by `client`, or by a problem file's own command line, under the user's interpreter; `serving` brings requests.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from kopt_mcp.evaluator import bench, ceilings, checks, device_state, mutants, own_files, preparing, sandbox, verify
from kopt_mcp.evaluator.arms import Arm, Sampler
from kopt_mcp.evaluator.audit import Audit
from kopt_mcp.evaluator.bench import WorkloadBench
from kopt_mcp.evaluator.claimed import Claimed
from kopt_mcp.evaluator.compare import BadReference
from kopt_mcp.evaluator.device_state import Observer
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.files import HarnessError, load_problem, read, source
from kopt_mcp.evaluator.gate import Gate
from kopt_mcp.evaluator.held import Held
from kopt_mcp.evaluator.limits import PhysicalLimits
from kopt_mcp.evaluator.line import Line
from kopt_mcp.evaluator.machine import only, torch_device
from kopt_mcp.evaluator.pairs import Pairs, each
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.records import (
    Ceilings,
    Evaluation,
    Job,
    KernelTime,
    Mutant,
    ProblemInfo,
    Ratio,
    WorkloadInfo,
    WorkloadResult,
)
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.spent import Spent
from kopt_mcp.evaluator.timing import EventClock, WallClock
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import Problem, Workload

__all__ = ["Harness", "HarnessError", "load_problem"]

Said = Callable[[float, str], None]
_MOST_TEAM, _CORES_EACH = 6, 3
"""On a GPU: how many runners check one candidate together, and processor cores that there must be for each. As many are
kept ready: a benchmark takes two of them, and what comes after it the others."""
_ROOMY_BYTES = 32 << 30
"""Memory from which a GPU has room for them, and for the references of several checks at a time."""

_RANDOM = SystemRandom()


@dataclass(frozen=True)
class _Loaded:
    """A problem, and what was loaded with it."""

    path: str
    sha256: str
    problem: Problem
    noted: own_files.Noted
    ran: set[str]
    """Hashes of the Python files that have run."""

    def still(self, path: str, sha256: str) -> bool:
        """Whether it is the one in this file, and all that it has imported is as it was."""
        return (path, sha256) == (self.path, self.sha256) and not own_files.changed(self.noted)


class Harness:
    """Everything that a request needs: the forking process, the shared memory, the problem, measured ceilings."""

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
        self._begun = False
        """Whether a problem's code has run here."""
        self._problem: _Loaded | None = None
        self._ceilings: Ceilings | None = None
        self.torch_device = torch_device(device)
        if device != "cpu":
            torch.cuda.set_device(torch.device(device))
        cache = folder / "cache"
        cache.mkdir()
        here = self.torch_device
        self._place = Place(self._zygote, folder, self._kind, here.l2_bytes, cache, only(here))
        self._observers = observers or device_state.Observers(self.torch_device.kind, self.torch_device.uuid)
        self._evictor: WallClock | None = None
        self._empty_us: float | None = None
        roomy = device != "cpu" and self.torch_device.memory_bytes >= _ROOMY_BYTES
        self._team = max(1, min(_MOST_TEAM, _cores() // _CORES_EACH)) if roomy else 1
        self._spares = max(2, self._team) if roomy else 0
        self._event_clock: EventClock | None = None
        self._gate = ""
        """Whether calls can pass a gate here; empty where the harness holds the clock anyway."""
        self._known_us = 0.0
        if device != "cpu":
            self._event_clock = EventClock(here.l2_bytes)
            self._gate = preparing.outputs_on_device(self._place, self._event_clock)
            self._known_us = self._event_clock.known_us
            preparing.triton(self._place, self.torch_device)
            self._place.spares.restock(self._spares)

    def close(self) -> None:
        """End the forking process and with it every runner."""
        self._place.spares.close()
        self._zygote.close()

    def problem(self, path: str, expected_sha256: str, kernel: str | None = None) -> Problem:
        """Load a problem file, once per place and content, and again when a module that it imports has changed.

        Args:
            kernel: hash of what it is to judge.

        Raises:
            HarnessError: the file changed, does not load, declares no `PROBLEM`, or runs the kernel itself.
        """
        content = read(path, expected_sha256, "problem")
        loaded = self._problem
        if loaded is None or not loaded.still(path, expected_sha256):
            self._begun = True
            made, noted = own_files.noting(path, lambda: load_problem(content, path))
            self._problem = loaded = _Loaded(path, expected_sha256, made, noted, own_files.ran())
            if rewritten := own_files.changed(noted):
                raise HarnessError(
                    "ProblemInvalid",
                    f"{Path(path).name} reads {rewritten} and changes it as it loads, so that it is another problem "
                    "each time; keep what it writes outside of the project, or in a folder that begins with a dot.",
                )
        if kernel in loaded.ran or kernel in loaded.noted.values():
            raise HarnessError("ProblemInvalid", f"what {Path(path).name} imports or reads {own_files.JUDGED}.")
        return loaded.problem

    def outlived(self, path: str, expected_sha256: str) -> bool:
        """Whether this problem is one for a fresh process: the code of another, or of an earlier state of it, has run.

        What that did cannot be undone, and would have a say in this one's verdicts: flags and defaults that it set in
        torch, operators that it added, modules and classes that now have the same names.
        """
        return self._begun and not (self._problem and self._problem.still(path, expected_sha256))

    def describe(self, problem: Problem) -> ProblemInfo:
        """What the problem declares for this device."""
        infos = []
        for workload in problem.for_device(self._kind):
            case = problem.case(workload)
            certain = "bytes" in problem.certain
            infos.append(WorkloadInfo(workload.name, workload.dtype, workload.timed, case.bytes, case.flops, certain))
        loaded = self._problem
        files = loaded.noted if loaded is not None and loaded.problem is problem else {}
        return ProblemInfo(problem.name, problem.entry, problem.bound, tuple(infos), files)

    def ceilings(self) -> Ceilings:
        """What this device can reach; measured once per process."""
        if self._ceilings is None:
            self._place.spares.settle()
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
        spent = Spent()
        begin = time.perf_counter()
        candidate = source(job.candidate, job.candidate_sha256)
        workloads = problem.for_device(self._kind, job.workloads)
        try:
            if job.kind == "verify":
                evaluation = self._verify(problem, workloads, candidate, job, said, spent)
            else:
                evaluation = self._benchmark(problem, workloads, candidate, job, said, spent)
                if job.kind == "confirm" and evaluation.status == "PASSED":
                    checked = self._verify(problem, workloads, candidate, job, said, spent)
                    evaluation = _together(evaluation, checked)
        except IncumbentFault as fault:
            evaluation = Evaluation("INCONCLUSIVE", f"the incumbent failed, not the candidate: {fault.detail}")
        except Fault as fault:
            evaluation = Evaluation(fault.status, fault.detail)  # type: ignore[arg-type]
        if evaluation.status in ("RUNTIME_ERROR", "TIMEOUT") and not self._device_healthy():
            evaluation = Evaluation("DEVICE_UNHEALTHY", f"a known good kernel fails too, after: {evaluation.detail}")
        wall = round(time.perf_counter() - begin, 3)
        environment = self.torch_device.versions
        return replace(evaluation, environment=environment, wall_s=wall, spent=spent.rounded())

    def kernel_times(self, problem: Problem, job: Job, workload: str) -> list[KernelTime]:
        """Device kernels of one call.

        Raises:
            HarnessError: the candidate failed.
        """
        case = problem.case(problem.for_device(self._kind, [workload])[0])
        try:
            outputs = describe_outputs(expected_outputs(problem, case, 1, self._kind))
            with self._process(problem, source(job.candidate, job.candidate_sha256), job).start() as process:
                process.workload(case, outputs)
                rows = process.ask("profile", seed=1, distribution="normal", layout="contiguous")["kernels"]
        except Fault as fault:
            raise HarnessError("ToolUnavailable", f"torch.profiler saw nothing: {fault.detail}") from fault
        return [KernelTime(str(r["name"]), int(r["calls"]), float(r["total_us"])) for r in rows]

    def _process(self, problem: Problem, source: Source, job: Job, spent: Spent | None = None) -> CandidateProcess:
        return CandidateProcess(self._place, problem, source, job.timeout_s, job.kind == "confirm", spent)

    def _verify(
        self, problem: Problem, workloads: list[Workload], source: Source, job: Job, said: Said, spent: Spent
    ) -> Evaluation:
        said(0.0, "starting the candidate")
        groups = checks.plan(problem, workloads, self._kind)
        with contextlib.ExitStack() as stack:
            team = [stack.enter_context(self._process(problem, source, job, spent)) for _ in range(self._team)]
            each(team, CandidateProcess.start)
            # Two for a benchmark, which comes next, while nothing is timed. More at once would wait for each other, and
            # it for them: a second, on an H200.
            self._place.spares.restock(min(2, self._spares))
            results = verify.verify(team, problem, groups, self._kind, said)
            with spent.on("end"):
                remarks = verify.remarks(team[0], results)
                notes = _ended(team)
        last = results[-1]
        status = last.status
        if status != "PASSED":
            self._place.spares.restock(self._spares)
        detail = last.detail if status != "PASSED" else f"{sum(r.checks for r in results)} checks passed"
        notes = [text for text in (*notes, *remarks) if text]
        return Evaluation(status, detail, tuple(results), isolation=team[0].isolation, notes=tuple(notes))

    def _benchmark(
        self, problem: Problem, workloads: list[Workload], candidate: Source, job: Job, said: Said, spent: Spent
    ) -> Evaluation:
        timed = [w for w in workloads if w.timed]
        if not timed:
            raise HarnessError(
                "ProblemInvalid",
                f"problem {problem.name!r} has no timed workload for {self._kind}, so that there is nothing to time; "
                "leave timed=False out of one of them.",
            )
        if self._kind == "cpu" and candidate.suffix == ".py" and b"import triton" in candidate.content:
            raise HarnessError(
                "ToolUnavailable",
                "this is a Triton kernel and there is no GPU: it ran under Triton's interpreter, whose times say "
                "nothing; verify works here, benchmark needs a machine with a GPU.",
            )
        said(0.0, "starting the candidate")
        observer = self._observers()
        with spent.on("device state"):
            observer.begin()
        sources = [candidate]
        if job.incumbent is not None and job.incumbent_sha256 is not None:
            sources.append(source(job.incumbent, job.incumbent_sha256))
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(self._process(problem, s, job, spent)) for s in sources]
            with contextlib.ExitStack() as watched:
                audits = None
                if self._gate == "on" and len(processes) == 2:
                    pairs = self._pairs(
                        lambda: [CandidateProcess(self._place, problem, s, job.timeout_s, spent=spent) for s in sources]
                    )
                    pairs.start(processes, watched)
                    audits = partial(self._audit, problem, pairs)
                else:
                    each(processes, CandidateProcess.start)
                if self._gate:
                    processes[0].isolation["outside clock"] = self._gate
                results, seen, ratio = self._time(problem, timed, processes, audits, job, observer, said)
            state = observer.after()
            process = processes[0]
            with spent.on("end"):
                binary = process.binary()
                remarks = verify.remarks(process, results)
                note = _ended(processes)[0]
        self._place.spares.restock(self._spares)
        detail = f"{sum(r.timing.samples for r in results if r.timing)} calls timed"
        notes = tuple(text for text in (note, *remarks, *seen, *device_state.notes(state)) if text)
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
        audits: Callable[[Workload, Sampler], Audit] | None,
        job: Job,
        observer: Observer,
        said: Said,
    ) -> tuple[list[WorkloadResult], list[str], Ratio | None]:
        """Results, what there is to say of how they were made sure of, and the ratio of all."""
        limits = PhysicalLimits(self.ceilings(), self._place.cache_bytes, self._kind)
        checked = _RANDOM.choice(timed)  # the incumbent has been checked before: one look at it is enough
        spent = processes[0].spent
        benches = [
            WorkloadBench(
                problem,
                w,
                [Arm(p) for p in processes],
                sampler,
                limits,
                w is checked,
                spent,
                audits(w, sampler) if audits else None,
            )
            for w, sampler in ((w, self._sampler(problem, w)) for w in timed)
        ]
        for number, workload_bench in enumerate(benches):
            said(0.3 * number / len(benches), f"warming up {workload_bench.workload.name}")
            workload_bench.warm_up()
        with spent.on("settle"):
            self._place.spares.settle()
        observer.before()

        def during(blocks: int, undecided: int) -> None:
            said(0.3 + 0.65 * blocks / bench.MAX_BLOCKS, f"{blocks} block(s) timed, {undecided} workload(s) undecided")
            observer.during()

        results = bench.measure(benches, job.floor, during, thorough=job.kind == "confirm")
        ratio = bench.combine([r.ratio for r in results], [b.seen for b in benches])
        return results, [b.note for b in benches], ratio

    def _sampler(self, problem: Problem, workload: Workload) -> Sampler:
        """How calls are timed here; what an empty one takes is measured by ourselves, on a GPU once."""
        case, rng = problem.case(workload), _RANDOM
        if self._kind != "cpu":
            if self._empty_us is None:
                assert self._event_clock is not None
                self._place.spares.settle()
                self._empty_us = self._event_clock.empty_us
            return Claimed(case, self._empty_us, rng)
        if self._evictor is None:
            self._evictor = WallClock(self._place.cache_bytes)
        # Anew each time: what it took on a busy machine is too much to subtract on a quiet one.
        empty = preparing.empty_call(self._place, self._evictor)
        return Held(problem, case, self._evictor, empty, rng)

    def _pairs(self, made: Callable[[], list[CandidateProcess]]) -> Pairs:
        assert self._event_clock is not None
        return Pairs(self._place, made, self._event_clock, self._known_us, _RANDOM)

    def _audit(self, problem: Problem, pairs: Pairs, workload: Workload, sampler: Sampler) -> Audit:
        """What looks at a claimed gain from outside."""
        driver, clock, case = self._place.driver, self._event_clock, problem.case(workload)
        assert driver is not None
        assert clock is not None

        def opened(line: Line, outputs: list[dict[str, Any]], call_us: float, own_us: float) -> Gate:
            return Gate(line, driver, problem, case, outputs, clock, call_us, own_us)

        return Audit(partial(pairs.nth, sampler), opened, sampler.effect, bench.new_seed, _RANDOM)

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


def _cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ended(processes: list[CandidateProcess]) -> list[str]:
    """What is to be said of how each ended."""
    for one in processes:
        one.leave()
    return [one.close() for one in processes]
