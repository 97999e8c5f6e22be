"""What becomes of an iteration, and whether the experiment is over.

The seed's decision with its holes closed: the target is looked at before the budget, a change is judged by a paired
interval against the best and never against an older number, a revert goes to the best, and nothing final is said before
one more evaluation in a cold process.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kopt_mcp import metrics, optlog
from kopt_mcp.arguments import check
from kopt_mcp.errors import InputRefused
from kopt_mcp.evaluator.records import Ratio
from kopt_mcp.events import Confirmation, DecideData
from kopt_mcp.guards import short
from kopt_mcp.models import DecisionStatus, Ending
from kopt_mcp.phases import Experiment, Iteration, legal
from kopt_mcp.results import DecideResult
from kopt_mcp.stats import least_gain
from kopt_mcp.steps.call import Call, rounded, sentence, workloads
from kopt_mcp.steps.diagnose import exhausted, failed_ideas

TRIAL = 2
"""Further iterations in which a kept step has to pay."""


@dataclass(frozen=True)
class Judgement:
    """What is to become of the open iteration, before anything was confirmed."""

    status: DecisionStatus | None
    reason: str
    sha256: str
    """The kernel on disk from here on."""
    base: str
    best: str
    kept_since: int | None
    iteration: int | None = None
    ratio: Ratio | None = None
    target: bool = False
    """The candidate's measured metric meets the target."""


def act(call: Call, keep_reason: str | None, stop: bool, reason: str | None) -> DecideData:
    """Judge the open iteration, and end the experiment where the target, the budget or the ideas say so.

    Raises:
        InputRefused: to stop needs a reason.
        DeviceBusy, EvaluatorFailed, Cancelled: the confirmation did not happen; nothing is decided.
    """
    check(keep_reason=keep_reason, stop=stop, reason=reason)
    keep_reason = sentence(keep_reason, "keep_reason", 500)
    reason = sentence(reason, "reason", 500)
    if stop and reason is None:
        raise InputRefused("stop is given without a reason; the log must say why; give reason, one sentence.")
    judged = judge(call.state, keep_reason)
    confirmations: list[Confirmation] = []
    ended: Ending | None = None
    if judged.target:
        confirmations.append(_confirm(call, judged.sha256))
        judged, met = _after_confirmation(call.state, judged, confirmations[0])
        ended = "TARGET_MET" if met else None
    ended = ended or ending(call, judged, stop)
    confirmed = None
    if ended:
        judged, confirmed = _closed(call, judged, confirmations)
        judged = dataclasses.replace(judged, reason="; ".join(filter(None, (judged.reason, reason if stop else None))))
    call.put(judged.sha256)
    return DecideData(
        iteration=judged.iteration,
        status=judged.status,
        reason=judged.reason,
        ratio=judged.ratio,
        reverted=judged.iteration is not None and judged.sha256 != call.state.iterations[-1].patch.sha256,
        sha256=judged.sha256,
        base=judged.base,
        best=judged.best,
        kept_since=judged.kept_since,
        ended=ended,
        confirmations=tuple(confirmations),
        confirmed=confirmed,
    )


def judge(state: Experiment, keep_reason: str | None) -> Judgement:
    """What the verification and the benchmark say of the open iteration."""
    iteration = state.open_iteration
    if iteration is None:
        return Judgement(None, "", state.base, state.base, state.best, state.kept_since)
    number = iteration.patch.iteration
    if state.phase == "failed":
        return _taken_back(state, number, "FAILED", _why_failed(iteration))
    if iteration.benchmark is None:
        return _taken_back(state, number, None, "stopped before it was measured")
    return _judge_times(state, iteration, keep_reason)


def ending(call: Call, judged: Judgement, stop: bool) -> Ending | None:
    """Whether the experiment is over for another reason than its target."""
    state = call.state
    if stop:
        return "STOPPED"
    if judged.iteration is None:
        return None
    if judged.iteration >= state.setup.max_iterations:
        return "MAX_ITERATIONS"
    candidate = state.iterations[-1].patch
    if judged.sha256 == candidate.sha256:
        return None
    tried = failed_ideas(state) | ({(candidate.tier, candidate.idea)} if candidate.idea else set())
    return "TIERS_EXHAUSTED" if exhausted(call, tried) else None


def answer(state: Experiment, data: DecideData) -> DecideResult:
    """What the agent is told."""
    setup = state.setup
    last = state.iterations[-1] if data.iteration is not None else None
    value = last.benchmark.measurement.value if last and last.benchmark and last.benchmark.measurement else None
    return DecideResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        notes=(optlog.overall(state),) if state.overall else (),
        iteration=data.iteration,
        status=data.status,
        reason=data.reason[:1000],
        metric=setup.target_metric,
        value=rounded(value),
        best=rounded(state.measured[state.best].value) or 0.0,
        best_iteration=best_iteration(state),
        target=rounded(setup.target_value) or 0.0,
        gain_pct=rounded(100 * (data.ratio.value - 1)) if data.ratio else None,
        reverted=data.reverted,
        sha256=short(data.sha256),
        iterations_left=max(0, setup.max_iterations - len(state.iterations)),
        ended=data.ended,
        confirmed=data.confirmed,
        certificate=_certificate(state, data),
        summary=optlog.final(state) if state.ended else "",
    )


def _certificate(state: Experiment, data: DecideData) -> str:
    """Of the evaluation that decided: the cold one where there was one, else the iteration's benchmark."""
    cold = [c.certificate for c in data.confirmations if c.sha256 == data.sha256 and c.certificate]
    if cold:
        return cold[-1].short()
    last = state.iterations[-1] if data.iteration is not None else None
    timed = last.benchmark.certificate if last and last.benchmark else None
    return timed.short() if timed else ""


def best_iteration(state: Experiment) -> int:
    """The iteration that made the best version; 0 for the baseline."""
    made = [i.patch.iteration for i in state.iterations if i.patch.sha256 == state.best]
    return 0 if state.best == state.setup.sha256 or not made else made[-1]


def _judge_times(state: Experiment, iteration: Iteration, keep_reason: str | None) -> Judgement:
    assert iteration.benchmark is not None
    number, candidate = iteration.patch.iteration, iteration.patch.sha256
    evaluation, measured = iteration.benchmark.evaluation, iteration.benchmark.measurement
    verdict, why = metrics.judged(evaluation, state.setup.floor, state.setup.evaluation)
    met = measured is not None and metrics.reached(state.setup.target_metric, measured.value, state.setup.target_value)
    accepted = Judgement("IMPROVED", why, candidate, candidate, candidate, None, number, evaluation.ratio, met)
    if verdict == "better":
        return accepted
    status: DecisionStatus = "REGRESSED" if verdict == "worse" else "NEUTRAL"
    if keep_reason is None:
        return _taken_back(state, number, status, why, evaluation.ratio)
    if verdict == "same" and met:
        return dataclasses.replace(accepted, status="KEPT", reason=f"{why}; kept: {keep_reason}")
    since = state.kept_since or number
    if number >= state.setup.max_iterations:
        return _taken_back(
            state, number, status, f"{why}; no iteration is left in which it could pay", evaluation.ratio
        )
    if number - since >= TRIAL:
        return _taken_back(state, number, status, why, evaluation.ratio)
    reason = f"{why}; kept until iteration {since + TRIAL}: {keep_reason}"
    return Judgement("KEPT", reason, candidate, candidate, state.best, since, number, evaluation.ratio)


def _taken_back(
    state: Experiment, number: int, status: DecisionStatus | None, why: str, ratio: Ratio | None = None
) -> Judgement:
    """Back to the best, or to a kept step as long as its trial lasts."""
    since = state.kept_since
    if since is not None and number - since >= TRIAL:
        why = f"{why}; the step kept in iteration {since} has not paid within {TRIAL} iterations, back to the best"
        return Judgement(status, why, state.best, state.best, state.best, None, number, ratio)
    return Judgement(status, why, state.base, state.base, state.best, since, number, ratio)


def _after_confirmation(state: Experiment, judged: Judgement, seen: Confirmation) -> tuple[Judgement, bool]:
    """Whether the target may be claimed; what is left of the judgement if it may not."""
    setup, evaluation = state.setup, seen.evaluation
    assert judged.iteration is not None
    if evaluation.status not in ("PASSED", "INCONCLUSIVE"):
        why = f"it met the target, but failed in a cold process ({evaluation.status}): {evaluation.detail}"
        return _taken_back(state, judged.iteration, "FAILED", why, judged.ratio), False
    slack = least_gain(setup.floor)
    holds = seen.value is not None and metrics.reached(setup.target_metric, seen.value, setup.target_value, slack)
    if evaluation.status == "PASSED" and holds:
        return dataclasses.replace(judged, status="TARGET_MET"), True
    shown = "no time" if seen.value is None else optlog.show(seen.value, setup.target_metric)
    why = f"{judged.reason}; the target is not claimed: a cold process measured {shown}"
    if judged.status == "KEPT":  # only its meeting the target would have made it the best
        return _taken_back(state, judged.iteration, "NEUTRAL", why, judged.ratio), False
    return dataclasses.replace(judged, reason=why), False


def _closed(call: Call, judged: Judgement, confirmations: list[Confirmation]) -> tuple[Judgement, bool]:
    """The best version that passes in a cold process, and whether there is one; adds the evaluations it took."""
    seen = {c.sha256: c for c in confirmations}
    for sha256 in dict.fromkeys((judged.best, *reversed(call.state.bests))):
        if sha256 not in seen:
            seen[sha256] = _confirm(call, sha256)
            confirmations.append(seen[sha256])
        if not _refused(seen[sha256]):
            return _ended_with(judged, sha256, seen), seen[sha256].evaluation.status == "PASSED"
    return _ended_with(judged, call.state.setup.sha256, seen), False


def _ended_with(judged: Judgement, sha256: str, seen: dict[str, Confirmation]) -> Judgement:
    refused = [f"{short(c.sha256)} {why}" for c in seen.values() if c.sha256 != sha256 and (why := _refused(c))]
    parts = [judged.reason, *refused]
    return dataclasses.replace(
        judged, reason="; ".join(filter(None, parts)), sha256=sha256, base=sha256, best=sha256, kept_since=None
    )


def _refused(seen: Confirmation) -> str:
    """Why a version cannot be the last one."""
    evaluation = seen.evaluation
    if evaluation.status not in ("PASSED", "INCONCLUSIVE"):
        return f"failed in a cold process ({evaluation.status})"
    if evaluation.ratio is not None and evaluation.ratio.high < 1:
        return f"is slower than the first kernel in a cold process ({evaluation.ratio.high:.3g} times as fast at most)"
    return ""


def _confirm(call: Call, sha256: str) -> Confirmation:
    """A version in a cold process, in turns with the kernel that all began with.

    Small gains that were none would add up over the iterations, and a version that has become the incumbent could be
    slow for the next one's sake; the first kernel is the user's own.
    """
    call.watch.stage(0.1, 0.95, f"confirming version {short(sha256)} in a cold process")
    start = call.state.setup.sha256
    beside = start if sha256 != start else None
    evaluation, held = call.evaluate("confirm", sha256, beside)
    if beside and evaluation.status == "INCONCLUSIVE":  # perhaps because of the other: what counts is this one
        beside = None
        evaluation, held = call.evaluate("confirm", sha256)
    measured = None
    if evaluation.status == "PASSED":
        measured = metrics.measurement(call.state.setup.target_metric, workloads(call.state.setup), evaluation)
    return Confirmation(
        sha256=sha256,
        evaluation=evaluation,
        value=measured.value if measured else None,
        certificate=call.certificate(evaluation, sha256, beside, held),
        held=held,
    )


def _why_failed(iteration: Iteration) -> str:
    seen = iteration.benchmark.evaluation if iteration.benchmark else None
    seen = seen or (iteration.verify.evaluation if iteration.verify else None)
    return f"{seen.status}: {seen.detail}" if seen else "not verified"
