"""Test the test: deliberately wrong implementations that a problem's own checks must catch.

A problem that accepts zeros would accept anything, so before the first iteration each mutant goes through the same
comparison as a candidate, on every workload until one catches it. A mutant that passes everywhere makes the problem
unusable; the text says why it passes and what to change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kopt_mcp.evaluator.compare import BadReference
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.records import Mutant
from kopt_mcp.evaluator.reference import expected_outputs, judge_all, outputs_of
from kopt_mcp.problem import Case, Problem, Spec

_SEED = 20_260_101
Outputs = list[torch.Tensor]

ADVICE = {
    "zeros": "the outputs are so small that the tolerance swallows them; draw larger inputs or lower the tolerance",
    "mean": "all outputs are nearly equal; draw inputs with more spread, or smaller shapes",
    "input returned": "the outputs hardly differ from an input; draw inputs on which the operation does something",
    "one precision lower": "the tolerance is wider than the next lower type's rounding; lower Tolerance.factor",
    "last row dropped": "the outputs have no weight in their last row; draw inputs that matter there",
    "last columns dropped": "the outputs have no weight in their last columns; draw inputs that matter there",
    "off by one": "leaving out one input element changes nothing visible; add a workload with a short last dimension",
    "99 % of the work": "leaving out 1 % of the input changes nothing visible; add a workload with short rows",
    "stale output": "two seeds give nearly the same outputs; draw inputs that differ from call to call",
    "NaN": "NaN was accepted",
}


def check(problem: Problem, cases: list[Case], device: str) -> list[Mutant]:
    """Try every mutant on the cases, cheapest case first.

    Raises:
        BadReference: the reference is not finite on normally distributed inputs of some workload.
    """
    open_mutants = dict(ADVICE)
    caught: dict[str, str] = {}
    changed: set[str] = set()
    for case in sorted(cases, key=lambda c: c.bytes):
        try:
            expected = expected_outputs(problem, case, _SEED, device)
        except BadReference as error:
            raise BadReference(f"workload {case.workload.name!r}: {error} on normally distributed inputs") from error
        right = _reference(problem, case, _SEED, device)
        for name, wrong in _mutants(problem, case, device, right):
            if name not in open_mutants or (_same(wrong, right) and not _stale(name, case, right)):
                continue
            changed.add(name)
            verdict = judge_all(wrong, expected)
            if verdict.status != "PASSED":
                caught[name] = f"{verdict.status} on {case.workload.name}"
                del open_mutants[name]
        if not open_mutants:
            break
    survivors = [Mutant(n, False, why) for n, why in open_mutants.items() if n in changed]
    return [Mutant(n, True, how) for n, how in caught.items()] + survivors


def _mutants(problem: Problem, case: Case, device: str, right: Outputs) -> Iterator[tuple[str, Outputs]]:
    """Wrong outputs for one case; where an operation has no such mutant, it is simply not there."""
    yield "zeros", [torch.zeros_like(t) for t in right]
    yield "mean", [_filled_with_mean(t) for t in right]
    inputs = draw(case.inputs, case.literals, _SEED, device).tensors()
    same = [[t for t in inputs if t.shape == r.shape and t.dtype == r.dtype] for r in right]
    if all(same) and not problem.mutates:
        yield "input returned", [s[0] for s in same]
    yield "one precision lower", _rounded(problem, case, device)
    yield "last row dropped", [_without(t, 0, 1) for t in right]
    yield "last columns dropped", [_without(t, -1, min(16, t.shape[-1] if t.dim() else 1)) for t in right]
    yield "off by one", _on_changed_inputs(problem, case, device, lambda n: 1)
    yield "99 % of the work", _on_changed_inputs(problem, case, device, lambda n: math.ceil(n / 100))
    yield "stale output", _reference(problem, case, _SEED + 1, device)
    floating = [t for t in right if t.dtype.is_floating_point]
    if floating:
        yield "NaN", [torch.full_like(t, math.nan) if t.dtype.is_floating_point else t for t in right]


def _reference(problem: Problem, case: Case, seed: int, device: str) -> Outputs:
    args = draw(case.inputs, case.literals, seed, device).args
    return [t.clone() for t in outputs_of(problem, problem.reference, args, problem.precision)]


def _rounded(problem: Problem, case: Case, device: str) -> Outputs:
    """Inputs and outputs rounded to the next lower type, as a kernel that computes in it would."""
    args = [_one_step_down(a, problem.precision) for a in draw(case.inputs, case.literals, _SEED, device).args]
    return [
        _one_step_down(t, problem.precision) for t in outputs_of(problem, problem.reference, args, problem.precision)
    ]


def _one_step_down(value: Any, precision: str) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    lower = {
        torch.float64: torch.float32,
        torch.float32: torch.bfloat16 if precision == "tf32" else torch.float16,
        torch.float16: torch.bfloat16,
        torch.bfloat16: torch.float8_e4m3fn,
    }[value.dtype]
    return value.to(lower).to(value.dtype)


def _on_changed_inputs(problem: Problem, case: Case, device: str, left_out: Callable[[int], int]) -> Outputs:
    """The reference on inputs whose last elements (in the first tensor's last dimension) are copies of earlier ones."""
    args = draw(case.inputs, case.literals, _SEED, device).args
    for position, value in enumerate(args):
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[-1] > 1:
            count = min(left_out(value.shape[-1]), value.shape[-1] - 1)
            changed = value.clone()
            changed[..., -count:] = value[..., :count]
            args[position] = changed
            break
    return [t.clone() for t in outputs_of(problem, problem.reference, args, problem.precision)]


def _without(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    out = tensor.clone()
    if out.dim() and out.shape[dim]:
        out.narrow(dim, out.shape[dim] - count, count).zero_()
    return out


def _filled_with_mean(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, tensor.double().mean().item()) if tensor.numel() else tensor.clone()


def _stale(name: str, case: Case, right: Outputs) -> bool:
    """Whether outputs that are the same say something: those of two seeds must differ, where inputs do."""
    drawn = any(isinstance(i, Spec) and i.kind != "literal" for i in case.inputs)
    return name == "stale output" and drawn and any(t.numel() for t in right)


def _same(a: Outputs, b: Outputs) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
