"""Is the candidate right? If not, it is taken back at once."""

from __future__ import annotations

from kopt_mcp.events import VerifyData
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.results import VerifyResult
from kopt_mcp.steps.call import Call, lines, workloads


def act(call: Call) -> VerifyData:
    """Check the candidate on every workload; a wrong one is replaced on disk by what it was made from."""
    state = call.state
    call.watch.stage(0.05, 1.0, "verifying the candidate")
    evaluation, held = call.evaluate("verify", state.current)
    if evaluation.status != "PASSED":
        call.put(state.base)
    return VerifyData(sha256=state.current, evaluation=evaluation, held=held)


def answer(state: Experiment, data: VerifyData) -> VerifyResult:
    """What the agent is told."""
    evaluation = data.evaluation
    wrong = [r for r in evaluation.workloads if r.status != "PASSED"]
    return VerifyResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        notes=tuple(n[:300] for n in evaluation.notes[:6]),
        iteration=len(state.iterations),
        status=evaluation.status,
        correct=evaluation.status == "PASSED",
        detail=evaluation.detail[:1000],
        reverted=evaluation.status != "PASSED",
        checks=sum(r.checks for r in evaluation.workloads),
        workloads=lines(state.setup.target_metric, workloads(state.setup), wrong or evaluation.workloads),
    )
