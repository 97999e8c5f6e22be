"""Run the checks of a candidate, and judge what it returns."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from kopt_mcp.evaluator.checks import PUBLIC_SEED, Check, nearer
from kopt_mcp.evaluator.compare import BadReference, Expected, Verdict
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.records import WorkloadResult
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs, judge_all, refused
from kopt_mcp.problem import Problem, Workload


def verify(
    team: list[CandidateProcess], problem: Problem, groups: list[Piece], device: str, said: Said
) -> list[WorkloadResult]:
    """Run the checks; none is begun once a workload is wrong, which is then the last one of the results.

    Several processes of the candidate share the work: on a GPU most of the time goes into compiling for each shape.
    """
    largest = math.inf if device == "cpu" else torch.cuda.mem_get_info()[1] * _SHARE
    work = _Work(groups if len(team) == 1 else _pieces(groups), largest, said)

    def take_part(process: CandidateProcess) -> None:
        while (piece := work.next(last=process is not team[0])) is not None:
            result = None
            try:
                result = _verify_workload(process, problem, *piece, device)
            finally:
                work.done(piece, result)

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


Piece = tuple[Workload, list[Check]]


class _Work:
    """What is still to be checked, ordered by size, and what came out so far."""

    def __init__(self, pieces: list[Piece], largest: float, said: Said) -> None:
        self._pieces, self._said, self._count = deque(pieces), said, len(pieces)
        self._largest = largest
        self._found: list[WorkloadResult] = []
        self._changed = threading.Condition()
        self._one_is_large = False

    def next(self, last: bool) -> Piece | None:
        """The first piece or the last; None when there is none, or something is wrong already.

        What is wrong mostly shows at the small ones; the large ones take longest, and one that is left for the end
        would have all others wait. No two of those that fill the memory are handed out at a time.
        """
        with self._changed:
            while self._pieces and all(r.status == "PASSED" for r in self._found):
                at = -1 if last and not (self._one_is_large and self._large(self._pieces[-1])) else 0
                piece = self._pieces[at]
                if not (self._one_is_large and self._large(piece)):
                    del self._pieces[at]
                    self._one_is_large = self._one_is_large or self._large(piece)
                    self._said(1 - (len(self._pieces) + 1) / self._count, f"checking {piece[0].name}")
                    return piece
                self._changed.wait()
            return None

    def done(self, piece: Piece, result: WorkloadResult | None) -> None:
        """Add what a piece's checks found; after None, which is a fault of our own, there is no more to do."""
        with self._changed:
            if result is None:
                self._pieces.clear()
            else:
                self._found.append(result)
            self._one_is_large = self._one_is_large and not self._large(piece)
            self._changed.notify_all()

    def _large(self, piece: Piece) -> bool:
        return _bytes(piece[1]) > self._largest

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


def _bytes(checks: list[Check]) -> float:
    """Of the largest call."""
    return max((check.case.bytes for check in checks), default=0.0)


def _pieces(groups: list[Piece]) -> list[Piece]:
    """The groups in smaller pieces, by size: each generated shape, for which there is more to compile, by itself."""
    pieces: list[Piece] = []
    for workload, checks in groups:
        pieces.append((workload, [c for c in checks if not c.generated]))
        pieces += [(workload, [c]) for c in checks if c.generated]
    return sorted(pieces, key=lambda piece: _bytes(piece[1]))


def remarks(process: CandidateProcess, results: list[WorkloadResult]) -> list[str]:
    """What is to be said of a candidate that is right: whose work it is, where torch's own operators compute in it, and
    that an output does not outlive the next call, where all are put into one buffer."""
    if results[-1].status != "PASSED":
        return []
    try:
        told = process.ask("operators", alone=False, seed=PUBLIC_SEED, distribution="normal", layout="contiguous")
    except Fault:
        return []
    names = ", ".join(map(str, told["names"]))
    said = [f"torch's own operators compute in it: {names}"] if names else []
    return [*said, OVERWRITTEN] if told["overwrites"] else said


OVERWRITTEN = "each call puts its output where the last one's was: copy what is to be kept"


Said = Callable[[float, str], None]
_SHARE = 1 / 128
"""Of a GPU's memory, the bytes of a call above which it is checked alone: its references in float64 take many times
as much."""


def _verify_workload(
    process: CandidateProcess, problem: Problem, workload: Workload, checks: list[Check], device: str
) -> WorkloadResult:
    worst, largest, relative, done = 0.0, 0.0, 0.0, 0
    due = list(checks)
    for check in due:
        try:
            with process.spent.on("expected"):
                expected = expected_outputs(problem, check.case, check.seed, device, check.distribution, check.layout)
        except BadReference as error:
            if check.distribution == "normal" and not check.generated:
                return WorkloadResult(workload.name, "INVALID_PROBLEM", f"{workload.name}: {error}", checks=done)
            # The operation is not defined for such values, of which nothing can be said; of several, perhaps for some.
            names = check.distribution.split("+")
            due += [replace(check, distribution=name) for name in names if len(names) > 1]
            due += [replace(check, distribution=near)] if (near := nearer(check.distribution)) else []
            continue
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
            shares=any(one.shares for one in expected),
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
