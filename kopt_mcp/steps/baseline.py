"""Iteration 0: the problem is sound, the kernel is right, and this is how fast it is."""

from __future__ import annotations

import json
import shlex

from kopt_mcp import config as configuration
from kopt_mcp import metrics, optlog
from kopt_mcp.certificate import issue
from kopt_mcp.config import Config
from kopt_mcp.errors import InputRefused, ProblemInvalid, ToolUnavailable
from kopt_mcp.evaluator.records import Evaluation, Mutant, WorkloadInfo
from kopt_mcp.evaluator.strictness import too_strict
from kopt_mcp.events import BaselineData, Measurement
from kopt_mcp.models import Metric
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.platforms.interface import with_ceilings
from kopt_mcp.results import BaselineResult
from kopt_mcp.stats import least_gain
from kopt_mcp.steps import provenance
from kopt_mcp.steps.call import Subject, Tools, evaluate, few, lines, rounded, torch_name, workloads
from kopt_mcp.steps.plan import Plan
from kopt_mcp.steps.plan import evaluator as evaluator_for
from kopt_mcp.watch import Watch
from kopt_mcp.workspace import Candidates, Workspace

DERIVED = 0.7
"""Share of the measured roof that is aimed at where no target is given."""
NOISY = 0.05


def act(tools: Tools, planned: Plan, candidates: Candidates, watch: Watch) -> BaselineData:
    """Measure the device, try the problem on wrong kernels, verify the kernel, and time it against itself.

    Raises:
        ProblemInvalid: the problem would accept a wrong kernel.
        InputRefused: the kernel fails its own problem, or no target can be derived.
    """
    config, space = planned.config, tools.workspace
    sha256 = candidates.store(planned.data)
    infos = metrics.chosen(planned.problem, config.workloads)
    with tools.locks.device(planned.device.uuid, planned.device.name, watch):
        begun = tools.clock()
        watch.stage(0.05, 0.2, "measuring what the device can reach")
        device = with_ceilings(planned.device, tools.evaluator.ceilings(torch_name(planned.device), watch))
        task = planned.task.settled(space, candidates.path(sha256).parent.parent)
        test = space.relative(task.test)
        problem_sha256 = task.files[test]
        evaluator = evaluator_for(tools, task, planned.kernel, watch)
        subject = Subject(task.test, problem_sha256, device, config.workloads, tuple(infos))
        watch.stage(0.2, 0.4, "trying wrong kernels on the problem")
        mutants = evaluator.check_problem(task.test, problem_sha256, torch_name(device), watch)
        weak = _weaknesses(mutants, config.accept_weaknesses)
        watch.stage(0.4, 0.6, "verifying the kernel")
        path = candidates.path(sha256)
        _must_pass(evaluate(evaluator, subject, subject.job("verify", path, sha256), watch), planned.kernel, space)
        watch.stage(0.6, 1.0, "timing the kernel against itself")
        twice = subject.job("benchmark", path, sha256, (path, sha256))
        try:
            evaluation = evaluate(evaluator, subject, twice, watch)
        except ToolUnavailable as reason:
            raise ToolUnavailable(
                f"{planned.kernel} is right, but {reason} No experiment was begun. To check a change here: kopt-mcp "
                f"evaluate {shlex.quote(planned.kernel)} --problem {shlex.quote(test)}"
            ) from reason
        held = (begun, tools.clock())
    measured = _timed(evaluation, planned, infos, space)
    floor = metrics.noise_floor(evaluation)
    roof = metrics.roof(planned.metric, planned.problem, infos, device)
    target, source = _target(config, planned.metric, roof)
    return BaselineData(
        kernel=planned.kernel,
        test=test,
        sha256=sha256,
        normal=planned.normal,
        shape=planned.shape,
        problem_files=dict(sorted({**task.seen, **task.files}.items())),
        task=task.format,
        trust=task.trust,
        problem_review=planned.review,
        accepted_by=planned.accepted_by,
        problem=planned.problem,
        workloads=config.workloads,
        device=device,
        target_metric=planned.metric,
        target_value=target,
        target_source=source,
        roof=roof,
        max_iterations=config.max_iterations,
        floor=floor,
        measurement=measured,
        mutants=sum(m.caught for m in mutants),
        weaknesses=weak,
        evaluation=evaluation,
        certificate=None
        if task.trust == "reported"
        else issue(
            evaluation,
            source_sha256=sha256,
            incumbent_sha256=sha256,
            problem_sha256=problem_sha256,
            problem=planned.review,
            weaknesses=weak,
            device=device,
            floor=floor,
            at=held[1],
        ),
        held=held,
    )


def answer(state: Experiment, extra: tuple[str, ...], space: Workspace) -> BaselineResult:
    """What the agent is told."""
    setup = state.setup
    start = setup.measurement.value
    notes = [*extra, *setup.evaluation.notes]
    if metrics.reached(setup.target_metric, start, setup.target_value):
        notes.append("the baseline meets the target already; call baseline with a higher one, or decide(stop=true).")
    elif setup.roof is not None and not metrics.reached(setup.target_metric, setup.roof, setup.target_value):
        notes.append(
            f"the target {setup.target_value:.5g} lies beyond the roof {setup.roof:.5g}, which is what this device was "
            "measured at for the bytes and operations that the problem declares; tell the user."
        )
    if setup.floor > NOISY:
        notes.append(
            f"timing is noisy: gains under {200 * setup.floor:.0f} % cannot be told from chance; quiet the machine."
        )
    if only := optlog.narrowed(state):
        notes.append(f"measured and checked {only}; say so, or leave workloads out.")
    standing = provenance.standing(space, setup)
    return BaselineResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        notes=few(notes),
        kernel=setup.kernel,
        test=setup.test,
        device=setup.device.name,
        arch=setup.device.arch,
        metric=setup.target_metric,
        baseline=rounded(start) or 0.0,
        target=rounded(setup.target_value) or 0.0,
        target_source=setup.target_source,
        gap_pct=rounded(100 * metrics.gap(setup.target_metric, start, setup.target_value) / setup.target_value) or 0.0,
        roof=rounded(setup.roof),
        noise_pct=rounded(100 * setup.floor) or 0.0,
        least_gain_pct=rounded(100 * least_gain(setup.floor)) or 0.0,
        max_iterations=setup.max_iterations,
        trust=setup.trust,
        problem=standing,
        to_accept=provenance.to_accept(space, setup) if standing == "unreviewed" else "",
        mutants_caught=setup.mutants,
        weaknesses=setup.weaknesses[:10],
        workloads=tuple(
            line.model_copy(update={"gain_pct": None})
            for line in lines(setup.target_metric, workloads(setup), setup.evaluation.workloads)
        ),
    )


def _weaknesses(mutants: list[Mutant], accepted: tuple[str, ...]) -> tuple[str, ...]:
    alive = [m for m in mutants if not m.caught]
    open_ones = tuple((m.name, m.why) for m in alive if m.name not in accepted)
    if open_ones:
        name, why = open_ones[0]
        raise ProblemInvalid(
            f"the problem accepts a wrong kernel ({name}): {why}; no result on it would mean anything; strengthen the "
            f"test, or have a person write into {configuration.FILE}: accept_weaknesses: "
            f"[{', '.join(json.dumps(n) for n, _ in open_ones)}]; every result then says so.",
            open_ones,
        )
    return tuple(m.name for m in alive)


def _must_pass(evaluation: Evaluation, kernel: str, space: Workspace) -> None:
    if evaluation.status == "COMPILE_ERROR" and (own := space.own_imports(space.root / kernel)):
        raise InputRefused(
            f"{kernel} could not be loaded: {evaluation.detail}; it imports {', '.join(own)}, and a kernel is tried as "
            "one file, away from its project, whose other files could change behind a measurement; put what it needs "
            "into the file, or install those modules, then call baseline again."
        )
    if evaluation.status != "PASSED":
        strict = too_strict(evaluation)
        raise InputRefused(
            f"{kernel} fails its own problem ({evaluation.status}): {evaluation.detail}; there is nothing right to "
            f"start from; make the kernel right first, then call baseline again{f'; {strict}' if strict else ''}."
        )


def _timed(evaluation: Evaluation, planned: Plan, infos: list[WorkloadInfo], space: Workspace) -> Measurement:
    if evaluation.status != "INCONCLUSIVE":
        _must_pass(evaluation, planned.kernel, space)
    measured = metrics.measurement(planned.metric, infos, evaluation)
    if measured is None or evaluation.ratio is None:
        why = "; ".join([evaluation.detail, *evaluation.notes[:2]])
        raise InputRefused(
            f"{planned.kernel} could not be timed ({evaluation.status}): {why}; without a time there is "
            "no baseline; quiet the machine or change the workloads, then call baseline again."
        )
    return measured


def _target(config: Config, metric: Metric, roof: float | None) -> tuple[float, str]:
    if config.target_value is not None:
        return float(config.target_value), "given"
    share = config.target_pct_of_peak or DERIVED
    if roof is None:
        raise InputRefused(
            f"no target_value is given, and this device's roof for {metric} was not measured; there is nothing to "
            "derive a target from; give target_metric and target_value."
        )
    target = roof / share if metric == "latency_us" else roof * share
    why = f"{100 * share:g}% of peak, the measured roof"
    return target, why if config.target_pct_of_peak else f"derived: {why}"
