"""How fast is the candidate, timed in turns with the best version so far?"""

from __future__ import annotations

from kopt_mcp import metrics
from kopt_mcp.events import BenchmarkData
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.results import BenchmarkResult
from kopt_mcp.steps.call import Call, few, lines, rounded, workloads


def act(call: Call) -> BenchmarkData:
    """Time the verified candidate beside the best; one that turns out wrong, or to cheat, is taken back at once."""
    state = call.state
    call.watch.stage(0.05, 1.0, "timing the candidate beside the best version")
    evaluation, held = call.evaluate("benchmark", state.current, incumbent=state.best)
    usable = evaluation.status in ("PASSED", "INCONCLUSIVE")
    if not usable:
        call.put(state.base)
    measured = metrics.measurement(state.setup.target_metric, workloads(state.setup), evaluation) if usable else None
    return BenchmarkData(
        sha256=state.current,
        incumbent=state.best,
        evaluation=evaluation,
        measurement=measured,
        certificate=call.certificate(evaluation, state.current, state.best, held),
        held=held,
    )


def answer(state: Experiment, data: BenchmarkData) -> BenchmarkResult:
    """What the agent is told."""
    evaluation, ratio = data.evaluation, data.evaluation.ratio
    verdict, reason = metrics.judged(evaluation, state.setup.floor, state.setup.evaluation)
    return BenchmarkResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        notes=few(evaluation.notes),
        iteration=len(state.iterations),
        status=evaluation.status,
        detail=evaluation.detail[:1000],
        metric=state.setup.target_metric,
        value=rounded(data.measurement.value) if data.measurement else None,
        best=rounded(state.measured[state.best].value) or 0.0,
        target=rounded(state.setup.target_value) or 0.0,
        gain_pct=rounded(metrics.gain_pct(evaluation)),
        gain_low_pct=rounded(100 * (ratio.low - 1)) if ratio else None,
        gain_high_pct=rounded(100 * (ratio.high - 1)) if ratio and ratio.high < 1e6 else None,
        verdict=verdict,
        reason=reason[:500],
        reverted=state.phase == "failed",
        certificate=data.certificate.short() if data.certificate else "",
        workloads=lines(state.setup.target_metric, workloads(state.setup), evaluation.workloads, evaluation.detail),
    )
