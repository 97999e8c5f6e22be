"""The loop: one method a tool, all steps through `_step`: lock, replay, guards, act, journal.

Everything that can differ from machine to machine is handed in, so that a test can run the whole loop without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from kopt_mcp import exports, guards, lessons
from kopt_mcp.arguments import check
from kopt_mcp.certificate import Review
from kopt_mcp.diagnosis import diagnose as diagnose_purely
from kopt_mcp.disk import Disk
from kopt_mcp.edit import Edit
from kopt_mcp.errors import GuardRefused, InputRefused, KoptError, ProblemInvalid, WorkspaceFailed
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.script_run import RunScript
from kopt_mcp.events import RefusalData
from kopt_mcp.experiments import Experiments
from kopt_mcp.lock import Locks
from kopt_mcp.memory import Memory
from kopt_mcp.models import Device, Diagnosis, Doubts, Metric, Record, Said, Tool
from kopt_mcp.phases import Experiment
from kopt_mcp.results import (
    BaselineResult,
    BenchmarkResult,
    DecideResult,
    DetectResult,
    DiagnoseResult,
    LogResult,
    PatchResult,
    ProfileResult,
    StepResult,
    VerifyResult,
)
from kopt_mcp.steps import apply_patch, baseline, benchmark, decide, diagnose, log, plan, profile, provenance, verify
from kopt_mcp.steps.call import Call, Profiler, Sanitize, Tools
from kopt_mcp.watch import Watch
from kopt_mcp.workspace import Candidates, Workspace, problem_copies

D = TypeVar("D", bound=Record)
R = TypeVar("R", bound=StepResult)


@dataclass(frozen=True)
class Step(Generic[D]):
    """A step that was done and journalled."""

    state: Experiment
    data: D
    candidates: Candidates
    recovered: str
    notes: tuple[str, ...]

    problem: Review

    def told(self, result: R) -> R:
        """An answer with what happened on the way, and who stands for the problem."""
        setup = self.state.setup
        return result.model_copy(
            update={
                "recovered": self.recovered,
                "notes": (*result.notes, *self.notes),
                "trust": setup.trust,
                "problem": self.problem,
                "weaknesses": setup.weaknesses[:10],
            }
        )


class Loop:
    """The nine tools on the experiments of one project. May be called from several threads.

    Args:
        root: the project; nothing outside it is written, locks excepted.
        detect: the machine's devices, with what there is to say about them now.
        present: those that are here; `detect`, unless something quicker is given.
        profile: how to profile; without it, times are all that is known.
        sanitize: how to have a candidate watched for accesses outside of memory; without it, that is not run.
        scripts: how to run test scripts that judge the kernel themselves; without it, they are refused.
        user_memory: the folder where the user's lessons are kept; without it, memory ends at the project.
        clock: seconds since the epoch, for the journal's reader.
    """

    def __init__(
        self,
        root: Path,
        *,
        evaluator: Evaluator,
        detect: Callable[[], list[Device]],
        present: Callable[[], list[Device]] | None = None,
        profile: Profiler | None = None,
        diagnose: Callable[..., Diagnosis] = diagnose_purely,
        clock: Callable[[], float] = time.time,
        locks: Locks | None = None,
        disk: Disk | None = None,
        sanitize: Sanitize | None = None,
        scripts: RunScript | None = None,
        user_memory: Path | None = None,
    ) -> None:
        self._space = Workspace(root, disk)
        self._experiments = Experiments(self._space)
        self._locks = locks or Locks()
        self._clock = clock
        self._tools = Tools(
            workspace=self._space,
            evaluator=evaluator,
            detect=detect,
            present=present or detect,
            profile=profile,
            diagnose=diagnose,
            locks=self._locks,
            clock=clock,
            sanitize=sanitize,
            scripts=scripts,
        )
        self._survivors: dict[str, tuple[tuple[str, str], ...]] = {}
        self._memory = Memory(self._space.root, self._experiments, self._locks, self._space.disk, user_memory)

    def detect_gpu(self) -> DetectResult:
        """The processors of this machine, the one that `gpu: auto` would take first."""
        devices = sorted(self._tools.detect(), key=lambda device: device.platform == "cpu")
        lines = tuple(f"{d.index}: {d.name}, {d.arch}, {d.platform}" for d in devices)
        return DetectResult(processors=lines, devices=tuple(devices), next=("baseline", "log"))

    def baseline(
        self,
        kernel_path: str | None = None,
        *,
        test_path: str | None = None,
        target_metric: Metric | None = None,
        target_value: float | None = None,
        target_pct_of_peak: float | None = None,
        max_iterations: int | None = None,
        gpu: Literal["auto", "nvidia", "amd", "cpu"] | None = None,
        workloads: Sequence[str] | None = None,
        format: str | None = None,
        reference: str | None = None,
        shapes: Sequence[str] | None = None,
        dtypes: Sequence[str] | None = None,
        said: Said | None = None,
        watch: Watch | None = None,
    ) -> BaselineResult:
        """Begin an experiment: its own folder, its own journal; arguments win over `kopt.yaml`.

        Args:
            said: what a person answered to `doubts`, where one was asked.

        Raises:
            InputRefused, ProblemInvalid: something has to be put right first; nothing was created.
            DeviceBusy, EvaluatorFailed, ToolUnavailable, WorkspaceFailed, Cancelled: nothing was created.
        """
        given = {
            "kernel_path": kernel_path,
            "test_path": test_path,
            "target_metric": target_metric,
            "target_value": target_value,
            "target_pct_of_peak": target_pct_of_peak,
            "max_iterations": max_iterations,
            "gpu": gpu,
            "workloads": workloads,
            "format": format,
            "reference": reference,
            "shapes": shapes,
            "dtypes": dtypes,
        }
        watch = watch or Watch()
        self._memory.scope()
        planned = plan.plan(
            self._tools, given, said or Said(), self._accepted(), list(self._experiments.states()), watch
        )
        with self._experiments.claim(planned.problem.name, planned.device) as name:
            candidates = Candidates(self._space, name, Path(planned.kernel).suffix)
            try:
                data = baseline.act(self._tools, planned, candidates, watch)
            except ProblemInvalid as error:
                self._survivors[planned.task.sha256] = error.survivors
                raise
            provenance.keep(self._space, name, data.problem_files)
            journal = self._experiments.journal(name)
            journal.append("baseline", "ok", data, self._clock())
        state = self._experiments.replay(name)
        assert state is not None
        notes = (*planned.notes, *self._beside(state), *self._write_log(state, watch))
        result = baseline.answer(state, notes, self._space)
        return result.model_copy(update={"remembered": self._memory.relevant(state)})

    def _beside(self, state: Experiment) -> tuple[str, ...]:
        """A word on experiments with the same kernel file that are not over: an agent may have lost its context."""
        others = [s for s in self._experiments.states() if s.setup.kernel == state.setup.kernel and s.id != state.id]
        names = [s.id for s in others if s.phase != "done"]
        if not names:
            return ()
        return (
            f"{state.setup.kernel} is in {' and '.join(names[-2:])} too, not over yet; once one changes the file, the "
            "others refuse; go on in one only (log shows each).",
        )

    def doubts(self, kernel_path: str | None = None, test_path: str | None = None) -> Doubts:
        """What only a person can settle before a baseline; nothing where baseline itself will refuse."""
        try:
            return plan.doubts(
                self._space, {"kernel_path": kernel_path, "test_path": test_path}, self._accepted(), self._survivors
            )
        except KoptError:
            return Doubts()

    def _accepted(self) -> dict[str, str]:
        """Problem files that a person accepted for an earlier experiment here, with their hashes."""
        states = [s for s in self._experiments.states() if s.setup.problem_review == "accepted"]
        return {path: sha256 for state in states for path, sha256 in state.setup.problem_files.items()}

    def profile(
        self, experiment: str, workload: str | None = None, depth: str = "quick", *, watch: Watch | None = None
    ) -> ProfileResult:
        """Profile one workload of the kernel as it stands; the largest when none is named.

        Raises:
            GuardRefused, InputRefused, ToolUnavailable, DeviceBusy, EvaluatorFailed, WorkspaceFailed, Cancelled
        """
        step = self._step("profile", experiment, watch, lambda call: profile.act(call, workload, depth))
        return step.told(profile.answer(step.state, step.data))

    def diagnose(self, experiment: str, *, watch: Watch | None = None) -> DiagnoseResult:
        """Say what limits the kernel as it stands, and what to try.

        Raises:
            GuardRefused, WorkspaceFailed
        """
        step = self._step("diagnose", experiment, watch, diagnose.act)
        remembered = self._memory.relevant(step.state, step.data.diagnosis.bound)
        return step.told(diagnose.answer(step.state, step.data)).model_copy(update={"remembered": remembered})

    def apply_patch(
        self,
        experiment: str,
        tier: int,
        hypothesis: str,
        *,
        edits: Sequence[Edit] | None = None,
        diff: str | None = None,
        content: str | None = None,
        working_copy: bool = False,
        idea: str | None = None,
        because: str | None = None,
        watch: Watch | None = None,
    ) -> PatchResult:
        """Make the one change of the next iteration.

        Raises:
            GuardRefused, InputRefused, WorkspaceFailed: the kernel is as it was.
        """
        patch = apply_patch.Patch(tier, hypothesis, edits, diff, content, working_copy, idea, because)
        step = self._step(
            "apply_patch",
            experiment,
            watch,
            lambda call: apply_patch.act(call, patch, self._memory.twin),
            adopt=working_copy,
        )
        return step.told(apply_patch.answer(step.state, step.data, step.candidates))

    def verify(self, experiment: str, *, sanitize: bool = False, watch: Watch | None = None) -> VerifyResult:
        """Check the candidate; a wrong one is taken back at once.

        Args:
            sanitize: also under compute-sanitizer, on the smallest workloads.

        Raises:
            GuardRefused, InputRefused, ProblemInvalid, DeviceBusy, EvaluatorFailed, ToolUnavailable, WorkspaceFailed,
            Cancelled
        """
        step = self._step("verify", experiment, watch, lambda call: verify.act(call, sanitize))
        return step.told(verify.answer(step.state, step.data))

    def benchmark(self, experiment: str, *, watch: Watch | None = None) -> BenchmarkResult:
        """Time the verified candidate in turns with the best version so far.

        Raises:
            GuardRefused, ProblemInvalid, DeviceBusy, EvaluatorFailed, ToolUnavailable, WorkspaceFailed, Cancelled
        """
        step = self._step("benchmark", experiment, watch, benchmark.act)
        return step.told(benchmark.answer(step.state, step.data))

    def decide(
        self,
        experiment: str,
        keep_reason: str | None = None,
        *,
        stop: bool = False,
        reason: str | None = None,
        watch: Watch | None = None,
    ) -> DecideResult:
        """Accept or take back the candidate, and end the experiment where it is over.

        Args:
            keep_reason: why a step that gained nothing is to stay: what it will enable.
            stop: end the experiment now, for `reason`.

        Raises:
            GuardRefused, InputRefused, DeviceBusy, EvaluatorFailed, ToolUnavailable, WorkspaceFailed, Cancelled
        """
        step = self._step(
            "decide", experiment, watch, lambda call: decide.act(call, keep_reason, stop, reason), stop=stop
        )
        forgotten = self._memory.remember(step.state, watch or Watch())
        result = step.told(decide.answer(step.state, step.data))
        return result.model_copy(update={"notes": (*result.notes, *forgotten)})

    def log(self, experiment: str | None = None, query: str | None = None) -> LogResult:
        """Where an experiment stands, or which there are; `query` finds past iterations by their words.

        Raises:
            GuardRefused: no such experiment.
            JournalCorrupt: its journal does not verify.
        """
        check(query=query)
        if experiment is None:
            past = self._memory.lessons() if query else []
            return log.overview(self._experiments, query, past)
        check(experiment=experiment)
        state = self._known(experiment)
        return log.one(state, self._experiments.journal(experiment).read(), self._space, query)

    def learned_patterns(self) -> str:
        """All that memory holds, as the text of a SKILL.md."""
        return lessons.skill(self._memory.lessons())

    def _step(
        self,
        tool: Tool,
        name: str,
        watch: Watch | None,
        act: Callable[[Call], D],
        *,
        stop: bool = False,
        adopt: bool = False,
    ) -> Step[D]:
        """Every step that changes an experiment goes through here, and only here."""
        watch = watch or Watch()
        check(experiment=name)
        self._known(name)
        with self._locks.experiment(self._experiments.folder / name, watch):
            state = self._known(name)
            candidates = Candidates(self._space, name, Path(state.setup.kernel).suffix)
            recovered = self._recover(state, candidates, adopt is True)
            facts = self._facts(tool, state, candidates, stop is True, adopt is True)
            call = Call(self._tools, state, candidates, facts, watch)
            journal = self._experiments.journal(name)
            with self._refusals_journalled(tool, state, recovered, watch):
                guards.check(facts)
                data = act(call)
            journal.append(tool, "ok", data, self._clock())
            state = self._known(name)
            call.put(state.current)
            notes = (*call.notes, *self._write_log(state, watch))
            problem = provenance.standing(self._space, state.setup)
        return Step(state, data, candidates, recovered, notes, problem)

    @contextmanager
    def _refusals_journalled(self, tool: Tool, state: Experiment, recovered: str, watch: Watch) -> Iterator[None]:
        try:
            yield
        except KoptError as error:
            outcome: Literal["refused", "failed"] = (
                "refused" if isinstance(error, (GuardRefused, InputRefused)) else "failed"
            )
            data = RefusalData(kind=type(error).__name__, text=str(error)[:2000])
            with suppress(WorkspaceFailed):  # a full disk must not hide why the call was refused
                self._experiments.journal(state.id).append(tool, outcome, data, self._clock())
            self._write_log(state, watch)  # completes what a killed call left out
            if recovered:
                raise type(error)(f"{error} Before that, {recovered}") from error
            raise

    def _known(self, name: str) -> Experiment:
        state = self._experiments.replay(name) if self._experiments.has(name) else None
        if state is None:
            known = [other for other in self._experiments.names() if other != name]
            raise GuardRefused(guards.not_known(name, known))
        return state

    def _recover(self, state: Experiment, candidates: Candidates, adopt: bool) -> str:
        """Put the kernel file back where a call that was killed, or an undo, left a version that the journal knows."""
        kernel = state.setup.kernel
        found = self._space.hash(kernel)
        # A working copy may equal an older version on purpose; only what a killed call left is put right then.
        ours = state.hashes if not adopt else {state.previous}
        if found == state.current or (found is not None and found not in ours):
            return ""
        self._space.replace(kernel, candidates.load(state.current))
        was = f"was at version {guards.short(found)}" if found else "was missing"
        return (
            f"{kernel} {was}, left by a call that did not finish or by an undo; version {guards.short(state.current)}, "
            "which the journal names, is restored."
        )

    def _facts(self, tool: Tool, state: Experiment, candidates: Candidates, stop: bool, adopt: bool) -> guards.Facts:
        return guards.Facts(
            tool=tool,
            experiment=state,
            kernel_sha256=self._space.hash(state.setup.kernel),
            problem_files={path: self._space.hash(path) for path in state.setup.problem_files},
            stop=stop,
            adopt=adopt,
            snapshot=candidates.shown(state.current),
            kept=self._kept(state),
        )

    def _kept(self, state: Experiment) -> dict[str, str]:
        """Where the baseline's versions of the problem's files are kept; an older experiment has none."""
        files = state.setup.problem_files.items()
        found = {path: (problem_copies(self._space, state.id, path), sha256) for path, sha256 in files}
        return {path: c.shown(sha256) for path, (c, sha256) in found.items() if c.path(sha256).is_file()}

    def _write_log(self, state: Experiment, watch: Watch) -> tuple[str, ...]:
        """Render the log; it can always be rendered again, so that its failure is a note and not an error."""
        try:
            with self._locks.folder(self._experiments.folder, "the log", watch):
                exports.write(self._experiments.folder, state, self._space.disk, self._experiments.states())
        except KoptError as error:
            return (f"the log was not updated: {error}",)
        return ()
