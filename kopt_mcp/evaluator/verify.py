"""Check a candidate on inputs that it cannot know.

Every workload is tried with one public seed, whose numbers may be shown, and with secret ones, whose numbers may not.
Over the workloads go the other distributions, layouts and shapes that the problem allows, two patterns of poison in
the memory that outputs are given, a run on another stream, and repeats.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random

import torch

from kopt_mcp.evaluator.compare import BadReference, Expected, Verdict
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.records import WorkloadResult
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs, judge_all, refused
from kopt_mcp.problem import Case, Problem, Workload

PUBLIC_SEED = 0
POISONS = (0xFF, 0x55)
"""NaN in every floating type, and a plausible finite number."""
_LARGE = {"cpu": 16 << 20, "cuda": 64 << 20}
"""Bytes above which a workload gets one distribution besides the normal one: more would cost too much time."""
_GENERATED_SHAPES = 5
_REPEATS = 3


@dataclass(frozen=True)
class Check:
    """One call to make and to compare."""

    case: Case
    seed: int
    poison: int
    distribution: str = "normal"
    layout: str = "contiguous"
    own_stream: bool = False
    first_seed: int | None = None
    """Seed of a call on the same tensors, made before: what was remembered of it is now wrong."""

    @property
    def generated(self) -> bool:
        """Whether its shape is none that the problem declares."""
        return self.case.params != dict(self.case.workload.params)

    def words(self) -> str:
        """What was special about the inputs, for a failure's text."""
        parts = [f"{self.distribution} values" if self.distribution != "normal" else "normally distributed values"]
        if self.layout != "contiguous":
            parts.append(f"{self.layout} inputs")
        if self.first_seed is not None:
            parts.append("in tensors that held other values at the call before")
        if self.own_stream:
            parts.append("on a stream that is not the default one")
        if self.generated:
            shape = ", ".join(f"{k}={v}" for k, v in self.case.params.items())
            parts.append(f"at the generated shape {shape}")
        return ", ".join(parts)


def plan(problem: Problem, workloads: list[Workload], kind: str) -> list[tuple[Workload, list[Check]]]:
    """All checks, grouped by workload, the cheapest workload first."""
    rng = Random(secrets.randbits(64))
    cases = sorted((problem.case(w) for w in workloads), key=lambda c: c.bytes)
    small = [c for c in cases if c.bytes <= _LARGE[kind]] or cases[:1]
    checks = {c.workload.name: [_check(c, PUBLIC_SEED, 0), _reused(c)] for c in cases}
    for index, case in enumerate(cases):
        for distribution in _distributions(problem, index == 0, case in small, rng):
            checks[case.workload.name].append(Check(case, _secret(), POISONS[index % 2], distribution))
    for layout in problem.layouts[1:]:
        for case in rng.sample(small, min(2, len(small))):
            checks[case.workload.name].append(Check(case, _secret(), POISONS[0], layout=layout))
    first = small[0]
    repeated = _secret()
    checks[first.workload.name] += [_check(first, repeated, n) for n in range(_REPEATS)]
    if kind == "cuda":
        checks[first.workload.name].append(Check(first, _secret(), POISONS[0], own_stream=True))
    for case in _generated(problem, small, rng):
        checks[case.workload.name].append(_check(case, _secret(), 0))
    return [(c.workload, checks[c.workload.name]) for c in cases]


def verify(
    team: list[CandidateProcess], problem: Problem, groups: list[tuple[Workload, list[Check]]], device: str, said: Said
) -> list[WorkloadResult]:
    """Run the checks; none is begun once a workload is wrong, which is then the last one of the results.

    Several processes of the candidate share the work: on a GPU most of the time goes into compiling for each shape.
    """
    work = _Work(groups if len(team) == 1 else _pieces(groups), said)

    def take_part(process: CandidateProcess) -> None:
        for workload, checks in iter(work.next, None):
            work.done(_verify_workload(process, problem, workload, checks, device))

    if len(team) == 1:
        take_part(team[0])
    else:
        gpu = None if device == "cpu" else torch.cuda.current_device()
        with ThreadPoolExecutor(len(team), initializer=_use, initargs=(gpu,)) as pool:
            for part in [pool.submit(take_part, process) for process in team]:
                part.result()
    return work.results([workload for workload, _ in groups])


def _use(gpu: int | None) -> None:
    """The current device is one of each thread."""
    if gpu is not None:
        torch.cuda.set_device(gpu)


class _Work:
    """What is still to be checked, and what came out so far."""

    def __init__(self, pieces: list[tuple[Workload, list[Check]]], said: Said) -> None:
        self._pieces, self._said, self._count = deque(pieces), said, len(pieces)
        self._found: list[WorkloadResult] = []
        self._lock = threading.Lock()

    def next(self) -> tuple[Workload, list[Check]] | None:
        """The next piece; None when there is none, or something is wrong already."""
        with self._lock:
            if not self._pieces or any(r.status != "PASSED" for r in self._found):
                return None
            self._said(1 - len(self._pieces) / self._count, f"checking {self._pieces[0][0].name}")
            return self._pieces.popleft()

    def done(self, result: WorkloadResult) -> None:
        """Add what a piece's checks found."""
        with self._lock:
            self._found.append(result)

    def results(self, order: list[Workload]) -> list[WorkloadResult]:
        """By workload, up to the first that is wrong."""
        results: list[WorkloadResult] = []
        for workload in order:
            parts = [r for r in self._found if r.workload == workload.name]
            if not parts:
                continue
            wrong = next((r for r in parts if r.status != "PASSED"), None)
            worst = max((r.error_ratio or 0.0 for r in parts), default=0.0)
            whole = wrong or replace(parts[0], error_ratio=worst)
            results.append(replace(whole, checks=sum(r.checks for r in parts)))
            if wrong is not None:
                break
        return results


def _pieces(groups: list[tuple[Workload, list[Check]]]) -> list[tuple[Workload, list[Check]]]:
    """The groups in smaller pieces: each generated shape, for which there is more to compile, by itself."""
    pieces: list[tuple[Workload, list[Check]]] = []
    for workload, checks in groups:
        pieces.append((workload, [c for c in checks if not c.generated]))
        pieces += [(workload, [c]) for c in checks if c.generated]
    return pieces


def library_work(process: CandidateProcess, results: list[WorkloadResult]) -> str:
    """A note where torch's own operators compute in the candidate: right, but whose work is it?"""
    if results[-1].status != "PASSED":
        return ""
    try:
        names = process.ask("operators", seed=PUBLIC_SEED, distribution="normal", layout="contiguous")["names"]
    except Fault:
        return ""
    return f"torch's own operators compute in it: {', '.join(map(str, names))}" if names else ""


Said = Callable[[float, str], None]


def _verify_workload(
    process: CandidateProcess, problem: Problem, workload: Workload, checks: list[Check], device: str
) -> WorkloadResult:
    worst, largest, relative, done = 0.0, 0.0, 0.0, 0
    for check in checks:
        try:
            with process.spent.on("expected"):
                expected = expected_outputs(problem, check.case, check.seed, device, check.distribution, check.layout)
        except BadReference as error:
            if check.distribution == "normal" and not check.generated:
                return WorkloadResult(workload.name, "INVALID_PROBLEM", f"{workload.name}: {error}", checks=done)
            continue  # the operation is not defined for such values; nothing can be said about the candidate
        try:
            verdict = _made(process, problem, check, expected, device)
        except Fault as fault:
            detail = f"{workload.name}, {check.words()}: {fault.detail}"
            return WorkloadResult(workload.name, fault.status, detail, checks=done + 1)  # type: ignore[arg-type]
        done += 1
        if verdict.status != "PASSED":
            detail = f"{workload.name}, {check.words()}: {verdict.detail}{_example(check, verdict)}"
            return WorkloadResult(
                workload=workload.name,
                status=verdict.status,  # type: ignore[arg-type]
                detail=detail,
                error_ratio=_finite(verdict.error_ratio),
                checks=done,
                max_abs_error=_finite(verdict.max_abs_error),
                max_rel_error=_finite(verdict.max_rel_error),
            )
        worst = max(worst, verdict.error_ratio or 0.0)
        largest = max(largest, verdict.max_abs_error or 0.0)
        relative = max(relative, verdict.max_rel_error or 0.0)
    return WorkloadResult(workload.name, "PASSED", "", worst, done, max_abs_error=largest, max_rel_error=relative)


def _made(process: CandidateProcess, problem: Problem, check: Check, expected: list[Expected], device: str) -> Verdict:
    """Have one check's call made, and judge it.

    Raises:
        Fault: it could not be made.
    """
    process.workload(check.case, describe_outputs(expected), alone=False)
    with process.spent.on("calls"):
        reply = process.ask(
            "call",
            alone=False,
            seed=check.seed,
            distribution=check.distribution,
            layout=check.layout,
            poison=check.poison,
            own_stream=check.own_stream,
            first_seed=check.first_seed,
        )
    for part in ("draw", "run", "store"):
        process.spent.add(f"calls: {part}", reply["parts"].get(part, 0.0))
    outputs = process.outputs(reply)
    with process.spent.on("judge"):
        verdict = judge_all(outputs, expected)
    if verdict.status == "PASSED":
        said = refused(problem, outputs, check.case, check.seed, device, check.distribution, check.layout)
        shown = f": {said[:200]}" if check.seed == PUBLIC_SEED else ""
        verdict = Verdict("INCORRECT_NUMERICAL", f"the task's own check refuses it{shown}") if said else verdict
    if verdict.status == "PASSED" and reply["violations"]:
        status, text = reply["violations"][0]
        return Verdict(str(status), str(text)[:300])
    return verdict


def _finite(ratio: float | None) -> float | None:
    """A ratio that JSON can hold: an output of NaN has none."""
    return ratio if ratio is not None and math.isfinite(ratio) else None


def _example(check: Check, verdict: Verdict) -> str:
    """Expected and got, only where the seed is public."""
    if check.seed != PUBLIC_SEED or verdict.expected is None:
        return ""
    return f" (public seed: expected {verdict.expected:.6g}, got {verdict.got:.6g})"


def _check(case: Case, seed: int, poison: int) -> Check:
    return Check(case, seed, POISONS[poison % 2])


def _reused(case: Case) -> Check:
    return Check(case, _secret(), POISONS[1], first_seed=_secret())


def _secret() -> int:
    return 1 + secrets.randbits(40)


def _distributions(problem: Problem, first: bool, small: bool, rng: Random) -> list[str]:
    """All at the first workload; at each other one those on which unsafe shortcuts overflow, and what chance adds.

    Were it known which shape sees which values, a kernel could be wrong at the shapes that see only harmless ones.
    """
    others = [d for d in problem.distributions if d != "normal"]
    if first:
        return others
    telling = [d for d in ("mixed", "large") if d in others][: 2 if small else 1]
    rest = [d for d in others if d not in telling]
    return telling + rng.sample(rest, min(len(rest), 1 if small else 1 - len(telling)))


def _generated(problem: Problem, small: list[Case], rng: Random) -> list[Case]:
    """Workloads at awkward sizes: one, primes, next to powers of two, no multiple of a vector's width."""
    if not problem.vary:
        return []
    made = []
    for _ in range(_GENERATED_SHAPES):
        base = rng.choice(small)
        override = {name: _awkward(rng, low, high) for name, (low, high) in problem.vary.items()}
        made.append(problem.case(base.workload, **override))
    return made


def _awkward(rng: Random, low: int, high: int) -> int:
    powers = [1 << p for p in range(1, 24)]
    candidates = [1, 3, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191]
    candidates += [p + d for p in powers for d in (-1, 1)]
    inside = [c for c in candidates if low <= c <= high]
    return rng.choice(inside) if inside else rng.randint(low, high)
