"""What a workload's outputs must be: the reference in float64 and in the workload's own dtype.

Runs in the harness only. The runner's process never holds any of this.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from kopt_mcp.evaluator.compare import UNIT_ROUNDOFF, BadReference, Expected, Verdict, expect, judge
from kopt_mcp.evaluator.inputs import NEARER, draw
from kopt_mcp.problem import Case, Problem, ProblemError

_ALONE = threading.Lock()
"""References are computed one at a time: the precision of matrix products is a setting of the whole process."""

_MUCH = 0.25
"""Share of the device's memory; below this, having to ask the driver anew costs more than the candidate gains."""

_FEW = 1 << 13
"""Elements of inputs and outputs together, below which several patterns of rounding errors are tried."""
_STEADY = 2.0**-5
"""Share of the largest output that one rounding error in each input, or the reference's own where it computes in
float32, may move an output by where values are far from zero. Beyond it right kernels differ: nothing can be said."""
_SORTED = 1 << 26
"""Most elements that are sorted: their places alone, as torch has them, are eight bytes each, twice."""
_TURNS = 6
"""Patterns besides the random one: as many bits as the numbers of 64 elements have."""


def expected_outputs(
    problem: Problem, case: Case, seed: int, device: str, distribution: str = "normal", layout: str = "contiguous"
) -> list[Expected]:
    """The outputs for one seed, mutated inputs first.

    Raises:
        BadReference: the reference is not finite on these inputs, or out of the output type's range; or they are far
            from zero, and the rounding of a single one may change all.
    """
    name, _, _ = distribution.partition(":")
    with _ALONE:
        args = draw(case.inputs, case.literals, seed, device, distribution, layout).args
        found = _expected(problem, case, args, "sorted" in name or name == "equal", name in NEARER)
    if name in NEARER and not all(map(_steady, found)):
        raise BadReference("values so far from zero leave nothing of the outputs but rounding errors")
    give_back()
    return found


def _steady(expected: Expected) -> bool:
    """Whether rounding leaves this output where it is, but for a little; and none of it is infinite in its own type."""
    if expected.exact or expected.ref.numel() == 0:
        return True
    moved = float(expected.sensitivity.max())
    if UNIT_ROUNDOFF[expected.dtype] <= UNIT_ROUNDOFF[torch.float32]:
        moved = max(moved, float(expected.error_lp.max()))
    return expected.overflown is None and moved <= _STEADY * float(expected.ref.abs().max())


def give_back() -> None:
    """Free device memory that torch holds without using it, once it is much: the candidate needs it more.

    Half a dozen float64 copies of 8192x128256 values had left it 2 of 140 GB.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if unused > _MUCH * torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory:
        torch.cuda.empty_cache()


def _expected(problem: Problem, case: Case, args: list[Any], steady: bool, far: bool) -> list[Expected]:
    fresh = _fresh(args)
    before = _random_state()
    low = outputs_of(problem, problem.reference, fresh, problem.precision)
    if not _same(before, _random_state()):
        again = outputs_of(problem, problem.reference, _fresh(args), problem.precision)
        _require_the_same(low, again)
    own = {a.untyped_storage().data_ptr() for a in fresh if isinstance(a, torch.Tensor)}
    shares = [n >= len(problem.mutates) and t.untyped_storage().data_ptr() in own for n, t in enumerate(low)]
    high = outputs_of(problem, problem.reference, [_widen(a) for a in args], "ieee")
    moved = _farthest(problem, args, high, far)
    terms: list[torch.Tensor | None] = [None] * len(low)
    if problem.scale is problem.reference and not problem.mutates:
        terms = list(high)  # where all terms have one sign, the sum is its own scale
    elif problem.scale is not None:
        terms = list(_called("scale", problem.scale, [_widen(a) for a in args]))
    length = problem.reduction_length(case.params)
    factor = problem.tolerance_for(case.workload.dtype).factor
    if steady:
        signed = problem.scale is not problem.reference
        terms = [
            None if s is None else _of_steady(s, ref, length, factor, signed)
            for s, ref in zip(terms, high, strict=True)
        ]
    expected = [
        expect(ref64, ref_lp, perturbed, term, length, factor, problem.precision)
        for ref64, ref_lp, perturbed, term in zip(high, low, moved, terms, strict=True)
    ]
    return [replace(one, shares=True) if shared else one for one, shared in zip(expected, shares, strict=True)]


def _of_steady(terms: torch.Tensor, ref64: torch.Tensor, length: float, factor: float, signed: bool) -> torch.Tensor:
    """S where terms are in order or all equal: as large as it takes for R to allow what that does to a sum.

    Of terms in order, partial sums grow until the signs turn: to half of all together, at most sqrt(K) * S. Where all
    are equal and added one after the other they are rounded the same way, which is no random walk: K / 2 rounding
    errors of the sum, at worst.
    """
    if signed:
        terms = terms * max(1.0, length**0.5 / 2)
    return torch.maximum(terms.abs(), ref64.abs() * (length**0.5 / (2 * factor)))


def describe_outputs(expected: list[Expected]) -> list[dict[str, Any]]:
    """Shapes, dtypes and sizes, for a runner that must allocate or poison them."""
    return [
        {
            "shape": list(e.ref.shape),
            "dtype": str(e.dtype).removeprefix("torch."),
            "bytes": e.ref.numel() * e.dtype.itemsize,
        }
        for e in expected
    ]


def judge_all(outputs: list[torch.Tensor], expected: list[Expected]) -> Verdict:
    """The first wrong output's verdict, or the one that used most of its allowance."""
    if len(outputs) != len(expected):
        return Verdict("INCORRECT_SHAPE", f"{len(outputs)} outputs, expected {len(expected)}")
    worst = Verdict("PASSED", "no outputs", 0.0)
    errors: list[tuple[float, float]] = []
    for out, want in zip(outputs, expected, strict=True):
        verdict = judge(out, want)
        give_back()
        errors.append((verdict.max_abs_error or 0.0, verdict.max_rel_error or 0.0))
        if verdict.status != "PASSED":
            return verdict
        if (verdict.error_ratio or 0.0) >= (worst.error_ratio or 0.0):
            worst = verdict
    if not errors:
        return worst
    return replace(worst, max_abs_error=max(a for a, _ in errors), max_rel_error=max(r for _, r in errors))


def refused(problem: Problem, outputs: list[torch.Tensor], case: Case, seed: int, device: str, *how: str) -> str:
    """What the task's own check says against outputs that ours let pass; `how` is distribution and layout."""
    if problem.check is None:
        return ""
    with _ALONE:
        args = draw(case.inputs, case.literals, seed, device, *how).args
    try:
        return str(problem.check(args, [t.clone() for t in outputs]) or "")
    except Exception as error:  # a check that fails on an output has not accepted it
        return f"it fails with {type(error).__name__}: {error}"


def outputs_of(problem: Problem, function: Any, args: list[Any], precision: str) -> list[torch.Tensor]:
    """Call a trusted implementation: mutated inputs first, then what it returns.

    Raises:
        ProblemError: it fails, or there is nothing in it to compare a kernel with.
    """
    with _matmul_precision(precision):
        outputs = [*(args[i] for i in problem.mutates), *_called("reference", function, args)]
    if not outputs:
        raise ProblemError(
            "Problem.reference returns nothing, and `mutates` names no input that it changes; any kernel would be "
            "right; return what the kernel must compute."
        )
    return outputs


def _called(name: str, function: Any, args: list[Any]) -> list[torch.Tensor]:
    """What one of the problem's own functions returns for these inputs.

    Raises:
        ProblemError: it fails, or returns something else than tensors of real numbers.
    """
    try:
        returned = as_list(function(*args))
    except (BadReference, ProblemError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        wide = any(isinstance(a, torch.Tensor) and a.dtype == torch.float64 for a in args)
        how = " on float64 inputs, with which the expected outputs are computed" if wide else ""
        raise ProblemError(
            f"Problem.{name} fails{how}: {_place_of(error, function)}{type(error).__name__}: {str(error)[:300]}; mend "
            "it; it has to take its inputs in float64 too."
        ) from error
    for one in returned:
        if not isinstance(one, torch.Tensor):
            raise ProblemError(
                f"Problem.{name} returns a {type(one).__name__}; nothing but tensors can be compared; return a tensor, "
                "or a tuple of them."
            )
        if one.dtype.is_complex:
            raise ProblemError(
                f"Problem.{name} returns {one.dtype}; a tolerance is known for real numbers only; return "
                "torch.view_as_real of it, in the kernel too."
            )
    return returned


def _random_state() -> list[torch.Tensor]:
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]


def _same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit by bit, as far as both go: a GPU may have been started in between."""
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=False))


def _require_the_same(low: list[torch.Tensor], again: list[torch.Tensor]) -> None:
    """See that a reference that draws random numbers, perhaps under a seed of its own, computes the same each time.

    Raises:
        ProblemError: it does not; the difference would count as rounding, and almost any kernel be right.
    """
    if not _same(low, again):
        raise ProblemError(
            "Problem.reference draws random numbers and answers differently each time, so that no kernel can agree "
            "with it; have it take them as an input, or seed them itself."
        )


def _place_of(error: Exception, function: Any) -> str:
    """The line of the function's own file that an error came from, where that is known."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"line {lines[-1]}: " if lines else ""


def as_list(returned: Any) -> list[torch.Tensor]:
    """One tensor or several, as a list."""
    if returned is None:
        return []
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _fresh(args: list[Any]) -> list[Any]:
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]


def _widen(value: Any) -> Any:
    """A copy, in float64 where it is floating: a reference that works in place must not change what comes after."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(torch.float64, copy=True) if value.dtype.is_floating_point else value.clone()


def _farthest(problem: Problem, args: list[Any], high: list[torch.Tensor], far: bool) -> list[torch.Tensor]:
    """The outputs for inputs that are off by a rounding error each; of several such inputs, what lies farthest from
    `high`: where they are few, and where values are far from zero. There all but the largest elements of a row may be
    nothing, so that none tells of an error that two have hidden: in another pattern a row's largest go up and down by
    turns.

    Two elements that both go up may leave a result where it is, and move it far if they go apart. Among many that evens
    out; among few it is luck, by which a kernel that was right has been refused. So any two of up to 64 elements go the
    same way in one pattern of signs and part in another: the random one, and it turned where a bit of their numbers is
    set.
    """
    farthest = outputs_of(problem, problem.reference, [_perturb(a, n) for n, a in enumerate(args)], "ieee")
    turns = [_by_turns(a) for a in args] if far else []
    if any(one is not None for one in turns):
        apart = [_perturb(a, n, up=up) for n, (a, up) in enumerate(zip(args, turns, strict=True))]
        outputs = outputs_of(problem, problem.reference, apart, "ieee")
        farthest = [_farther(*three) for three in zip(high, farthest, outputs, strict=True)]
    count = sum(a.numel() for a in args if _floating(a))
    if count < 2 or count + sum(t.numel() for t in high) > _FEW or not any(_floating(t) for t in high):
        return farthest
    numbers = _numbers(args, count)
    for bit in range(min(_TURNS, (count - 1).bit_length())):
        turned = [None if of is None else (of >> bit & 1).bool() for of in numbers]
        off = [_perturb(a, n, turn) for n, (a, turn) in enumerate(zip(args, turned, strict=True))]
        outputs = outputs_of(problem, problem.reference, off, "ieee")
        farthest = [_farther(*three) for three in zip(high, farthest, outputs, strict=True)]
    return farthest


def _numbers(args: list[Any], count: int) -> list[torch.Tensor | None]:
    """Each element of the floating inputs gets one of the numbers below `count`, in an order that follows no shape."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    parts = iter(torch.split(order, [a.numel() for a in args if _floating(a)]))
    return [next(parts).view(a.shape).to(a.device) if _floating(a) else None for a in args]


def _farther(high: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of two results, element by element, the one that lies farther from `high`, if it is finite."""
    if not _floating(high):
        return one
    return torch.where(other.isfinite() & ((other - high).abs() > (one - high).abs()), other, one)


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _by_turns(value: Any) -> torch.Tensor | None:
    """Whether elements are at odd places of their row, the largest first; None where there is nothing to sort, or too
    much."""
    if not _floating(value) or value.dim() == 0 or value.numel() > _SORTED:
        return None
    places: torch.Tensor = value.argsort(dim=-1, descending=True).argsort(dim=-1)
    return places.remainder_(2).bool()


def _perturb(value: Any, position: int, turned: torch.Tensor | None = None, up: torch.Tensor | None = None) -> Any:
    """A float64 copy, each element off by one rounding error, up or down, of the type that kernels compute in.

    At random unless said otherwise; where `turned` is set, up and down are exchanged.
    """
    if not _floating(value):
        return _widen(value)
    roundoff = UNIT_ROUNDOFF[torch.float64 if value.dtype == torch.float64 else torch.float32]
    generator = torch.Generator(device=value.device).manual_seed(position)
    if up is None:
        drawn = torch.randint(0, 2, value.shape, generator=generator, device=value.device, dtype=torch.int8)
        up = drawn.view(torch.bool)
    if turned is not None:
        up ^= turned
    more, less = torch.tensor([1.0 + roundoff, 1.0 - roundoff], dtype=torch.float64, device=value.device)
    return torch.where(up, more, less).mul_(value)


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
