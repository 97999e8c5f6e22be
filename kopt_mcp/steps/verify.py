"""Is the candidate right? If not, it is taken back at once."""

from __future__ import annotations

from dataclasses import replace

from kopt_mcp.arguments import check
from kopt_mcp.events import VerifyData
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.results import VerifyResult
from kopt_mcp.steps.call import Call, few, lines, workloads


def act(call: Call, sanitize: bool = False) -> VerifyData:
    """Check the candidate on every workload; a wrong one is replaced on disk by what it was made from.

    Args:
        sanitize: also have compute-sanitizer watch it on the smallest workloads; a finding is a failure.
    """
    check(sanitize=sanitize)
    state = call.state
    call.watch.stage(0.05, 1.0, "verifying the candidate")
    evaluation, held = call.evaluate("verify", state.current)
    runs = call.sanitize(state.current) if sanitize and evaluation.status == "PASSED" else ()
    if found := next((run for run in runs if run.status == "failed"), None):
        evaluation = replace(evaluation, status="RUNTIME_ERROR", detail=f"compute-sanitizer: {found.words()}")
    if evaluation.status != "PASSED":
        call.put(state.base)
    return VerifyData(sha256=state.current, evaluation=evaluation, sanitizer=runs, held=held)


def answer(state: Experiment, data: VerifyData) -> VerifyResult:
    """What the agent is told."""
    evaluation = data.evaluation
    wrong = [r for r in evaluation.workloads if r.status != "PASSED"]
    return VerifyResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        notes=few(evaluation.notes),
        iteration=len(state.iterations),
        status=evaluation.status,
        correct=evaluation.status == "PASSED",
        detail=evaluation.detail[:1000],
        reverted=evaluation.status != "PASSED",
        checks=sum(r.checks for r in evaluation.workloads),
        sanitizer="; ".join(run.words() for run in data.sanitizer)[:400],
        workloads=lines(
            state.setup.target_metric, workloads(state.setup), wrong or evaluation.workloads, evaluation.detail
        ),
    )
