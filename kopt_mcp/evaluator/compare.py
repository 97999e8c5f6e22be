"""Decide whether an output is right, against a float64 reference and the rounding that the output's type forces.

Three bounds, all of which must hold, each written so that NaN never passes, but where `ref_lp` itself is not finite:

1. every element: |out - ref64| <= max(2 * max|ref_lp - ref64|, c*max(u, v)*|ref64|, c*|ref64(x + dx) - ref64(x)|, R)
2. all together, of 64 or more: rms(out - ref64) <= 2 * rms(ref_lp - ref64) + u/2 * rms(ref64) + the last two of 1
3. at every magnitude: among elements of about one size, rms(out - ref64) <= 4 * rms(ref_lp - ref64) + rms(ref64)/8 + R

`ref_lp` is the reference in the workload's own dtype: the data say how much rounding is unavoidable (the twofold rule
is the one by which FlashAttention judges itself). In float64, where nothing wider shows it, that is taken to be what
x + dx does. u is the unit roundoff of the output's type. x + dx are the inputs, each off by one rounding error of the
type that is computed in: a result that is exact for such inputs is as good as any. Of few inputs there are several
x + dx, and what strays farthest counts (`reference._farthest`): in one alone, two errors may happen to cancel. Among
many elements some always do: v is how far, relatively, three in four elements stray at most, of all or of a row that
are not zero, and no more than 2^-7.
R = c*u_acc*sqrt(K + 8)*max(|ref64|, S), with u_acc the unit roundoff of the accumulator, K the length of the longest
sum and S the root sum of squares of its terms, which are nothing where the problem does not declare them; the 8 are for
what is not that sum. Bound 2 keeps one precision step down from hiding under the largest element, bound 3 keeps small
elements from being dropped. For an output of 16 bits all of them are computed in float32 once ref64 is known, on half
of the bytes: what that rounds away is 2^-13, or less, of what rounding the output may do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

UNIT_ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
TF32_ROUNDOFF = 2.0**-11
_SAMPLE = 1 << 20
"""Elements looked at for bound 3; more would cost time and tell nothing new."""
_USUAL, _OF_ALL, _OF_A_ROW = 0.75, 1 << 16, 32
"""The share of elements that do not exceed v, and how many are looked at for it, at least: of all, and of a row."""
_MOST_USUAL = 2.0**-7
"""Largest v: where rounding leaves less of most elements than that, one of them could be anything."""
_NEARLY_ZERO = 1e-8
_FEW = 64
"""Elements below which a root mean square says nothing: one unlucky rounding would decide. So it would where nearly
all of the error is in half as many, as among rows of zeros."""
_STEPS = 8
"""Rounding errors of a kernel besides those of its sum: what goes into an exponential, and a device's own functions,
of which each may be off by several (CUDA's programming guide: two units in the last place for `exp2f`, `rsqrtf`,
`__fdividef`)."""
_FLUSHED = 512
"""What an intermediate may be multiplied by that was flushed to zero below the type's smallest normal number."""
_MAGNITUDES = 14
"""Groups of bound 3, each half as large as the one before it."""
_BUCKET = 256
"""Fewest elements of one magnitude for a root mean square to be stable."""


class BadReference(Exception):
    """The reference itself is not usable on these inputs: not finite, or beyond the output type's range."""


@dataclass(frozen=True)
class Verdict:
    """Status of one output and how much of the allowance it used (up to 1 is right)."""

    status: str
    detail: str
    error_ratio: float | None = None
    where: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None
    max_abs_error: float | None = None
    """Largest |out - ref64|, for the record: no bound is drawn from it alone."""
    max_rel_error: float | None = None
    """Largest |out - ref64| / (|ref64| + 1e-8)."""


@dataclass(frozen=True)
class Expected:
    """What one output must be, and how far it may stray; in float64, or in float32 for an output of 16 bits."""

    ref: torch.Tensor
    dtype: torch.dtype
    error_lp: torch.Tensor
    """|ref_lp - ref64|, zero where ref_lp is not finite."""
    overflown: torch.Tensor | None
    """Where ref_lp is not finite although ref64 is: an output may be so too there, as the reference's own would be."""
    sensitivity: torch.Tensor
    """|ref64(x + dx) - ref64(x)|: what one rounding error in each input does to the output, at worst of those tried."""
    usual: torch.Tensor
    """v: that relatively, as three in four elements do not exceed it; one for each row, or for all."""
    terms: torch.Tensor | None
    """S, broadcast to the output's shape."""
    length: float
    """K."""
    factor: float
    precision: str
    shares: bool = False
    """Whether the reference's own output lies in the memory of an input here, as x.t().contiguous() does of one row."""

    @property
    def exact(self) -> bool:
        """Whether the output is of an integer type, where nothing but equality is right."""
        return not self.dtype.is_floating_point


def expect(
    ref64: torch.Tensor,
    ref_lp: torch.Tensor,
    perturbed: torch.Tensor,
    terms: torch.Tensor | None,
    length: float,
    factor: float,
    precision: str,
) -> Expected:
    """Prepare the bounds of one output.

    Raises:
        BadReference: ref64 is not finite, or does not fit the output's type.
    """
    if not ref_lp.dtype.is_floating_point:
        none = torch.zeros_like(ref_lp)
        return Expected(ref_lp, ref_lp.dtype, none, None, none, none, None, 0.0, factor, precision)
    largest = float(torch.linalg.vector_norm(ref64, math.inf)) if ref64.numel() else 0.0
    if not math.isfinite(largest):
        raise BadReference("the float64 reference is not finite")
    if largest > torch.finfo(ref_lp.dtype).max:
        raise BadReference(f"the reference exceeds the range of {ref_lp.dtype}")
    kept = torch.float32 if UNIT_ROUNDOFF[ref_lp.dtype] > UNIT_ROUNDOFF[torch.float32] else torch.float64
    ref = ref64.to(kept)
    error_lp = (ref_lp - ref).abs_()
    overflown = None
    if error_lp.numel() and not bool(error_lp.max().isfinite()):
        overflown = ~error_lp.isfinite()
        error_lp.nan_to_num_(0.0, 0.0)
    sensitivity = (perturbed - ref64).abs_().to(kept).nan_to_num_(0.0, 0.0)
    if ref_lp.dtype == torch.float64:
        error_lp = torch.maximum(error_lp, sensitivity)  # no wider type shows the reference's own rounding errors
    if terms is not None:
        terms = terms.to(kept)
        if kept is torch.float32:
            terms = terms.clamp_max(torch.finfo(kept).max)  # what is beyond it allows much, and not everything
        terms = terms.expand_as(ref)
    usual = _usual(sensitivity, ref)
    return Expected(ref, ref_lp.dtype, error_lp, overflown, sensitivity, usual, terms, length, factor, precision)


def _usual(sensitivity: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """v, of some elements spread over each row and over all."""

    def three_in_four(errors: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        sizes = sizes.abs()
        ordered = (errors / sizes).masked_fill_(sizes == 0, -1.0).sort(dim=-1).values
        there = (ordered >= 0).sum(dim=-1, keepdim=True)  # an element that is nothing says nothing
        at = ordered.shape[-1] - there + (_USUAL * there).ceil().long() - 1
        return ordered.gather(-1, at.clamp_(0, ordered.shape[-1] - 1)).clamp_min_(0.0)

    if not ref.numel():
        return torch.zeros((), device=ref.device)
    step = max(1, ref.numel() // _OF_ALL)
    of_all = three_in_four(sensitivity.flatten()[::step], ref.flatten()[::step]).squeeze()
    if ref.dim() < 2 or ref.shape[-1] < _OF_A_ROW:
        return of_all
    step = ref.shape[-1] // _OF_A_ROW
    return torch.maximum(three_in_four(sensitivity[..., ::step], ref[..., ::step]), of_all)


def judge(out: torch.Tensor, expected: Expected) -> Verdict:
    """Compare one output; shape and dtype first, then the three bounds."""
    if tuple(out.shape) != tuple(expected.ref.shape):
        return Verdict("INCORRECT_SHAPE", f"shape {tuple(out.shape)}, expected {tuple(expected.ref.shape)}")
    if out.dtype != expected.dtype:
        return Verdict("INCORRECT_DTYPE", f"dtype {_name(out.dtype)}, expected {_name(expected.dtype)}")
    if out.numel() == 0:
        return Verdict("PASSED", "empty", 0.0)
    if expected.exact:
        return _judge_exact(out, expected.ref)
    error = (out - expected.ref).abs_()
    if expected.overflown is not None:
        error.masked_fill_(expected.overflown & ~out.isfinite(), 0.0)
    largest, relative = float(error.max()), float((error / (expected.ref.abs() + _NEARLY_ZERO)).max())
    if math.isfinite(largest) and not math.isfinite(relative):  # beyond float32
        relative = float((error.double() / (expected.ref.double().abs() + _NEARLY_ZERO)).max())
    return replace(_judge_float(out, error, expected), max_abs_error=largest, max_rel_error=relative)


def _judge_exact(out: torch.Tensor, reference: torch.Tensor) -> Verdict:
    if out.dtype == torch.bool:  # for torch every byte but zero is true, for who reads the bytes only one
        out, reference = out.view(torch.uint8), reference.view(torch.uint8)
    wrong = out != reference
    count = int(wrong.sum())
    if count == 0:
        return Verdict("PASSED", "equal", 0.0)
    where = _index(int(wrong.flatten().to(torch.uint8).argmax()), out.shape)
    got, expected = float(out[where]), float(reference[where])
    return Verdict("INCORRECT_NUMERICAL", f"{count} of {out.numel()} elements differ", None, where, got, expected)


def _judge_float(out: torch.Tensor, error: torch.Tensor, expected: Expected) -> Verdict:
    ref = expected.ref
    rounding = _steps(expected)
    allowed = _allowed(expected, rounding)
    ratio = (error / allowed).flatten()
    flat = int(ratio.argmax())  # where there is NaN, one of those
    worst = float(error.flatten()[flat]) / float(allowed.flatten()[flat])  # which may be beyond float32
    worst = math.inf if math.isnan(worst) else worst
    where = _index(flat, out.shape)
    got, want = float(out[where]), float(ref[where])
    if not worst <= 1.0:
        count = int((~(error <= allowed)).sum())
        detail = (
            f"{count} of {out.numel()} elements beyond the allowed error; the worst by {_times(worst)} at {list(where)}"
        )
        return Verdict("INCORRECT_NUMERICAL", detail, worst, where, got, want)
    overall = _rms(error) / max(_rms_allowed(expected, rounding), torch.finfo(torch.float64).tiny)
    if not overall <= 1.0 and out.numel() >= _FEW and _count(error) >= _FEW / 2:
        detail = (
            f"every element is near, but the root mean square error is {_times(overall)} what {_name(expected.dtype)} "
            f"rounding explains; is a step computed in a lower precision, or part of the work left out?"
        )
        return Verdict("INCORRECT_NUMERICAL", detail, overall, where, got, want)
    bucket = _worst_magnitude(error, expected, rounding)
    if not bucket <= 1.0:
        detail = (
            f"elements of one magnitude are off by {_times(bucket)} the allowed root mean square error, although the "
            f"large ones are right; are small outputs dropped or rounded away?"
        )
        return Verdict("INCORRECT_NUMERICAL", detail, bucket, where, got, want)
    return Verdict("PASSED", "within the allowed error", worst)


def _allowed(expected: Expected, rounding: torch.Tensor | None) -> torch.Tensor:
    """Bound 1, element by element; `rounding` is R."""
    allowed = expected.ref.abs()
    allowed *= expected.factor * expected.usual.clamp(UNIT_ROUNDOFF[expected.dtype], _MOST_USUAL)
    allowed.clamp_min_(max(2.0 * float(expected.error_lp.max()), _smallest(expected.dtype)))
    torch.maximum(allowed, expected.factor * expected.sensitivity, out=allowed)
    if rounding is not None:
        torch.maximum(allowed, rounding, out=allowed)
    return allowed


def _smallest(dtype: torch.dtype) -> float:
    """The error that is always allowed: the type's own smallest number, and what becomes of one that was flushed."""
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    return max(torch.finfo(dtype).tiny, _FLUSHED * torch.finfo(computed).tiny)


def _steps(expected: Expected) -> torch.Tensor | None:
    """R; None where it is nothing beside one rounding error of the output's type."""
    if expected.terms is not None and expected.length:
        return _reduction(expected, expected.terms)
    if UNIT_ROUNDOFF[expected.dtype] > UNIT_ROUNDOFF[torch.float32]:
        return None
    return expected.ref.abs().mul_(expected.factor * UNIT_ROUNDOFF[expected.dtype] * _STEPS**0.5)


def _reduction(expected: Expected, terms: torch.Tensor) -> torch.Tensor:
    """Rounding error of a sum of K terms and of what else there is to compute: partial sums are of the size of the
    result or of S, whichever is larger."""
    accumulator = UNIT_ROUNDOFF[torch.float64 if expected.dtype == torch.float64 else torch.float32]
    bound: torch.Tensor = torch.maximum(expected.ref.abs(), terms)
    bound *= expected.factor * accumulator * (expected.length + _STEPS) ** 0.5
    if expected.precision == "tf32" and expected.dtype == torch.float32:
        bound += expected.factor * TF32_ROUNDOFF * terms
    return bound


def _rms_allowed(expected: Expected, rounding: torch.Tensor | None) -> float:
    """Bound 2."""
    allowed = 2.0 * _rms(expected.error_lp) + 0.5 * UNIT_ROUNDOFF[expected.dtype] * _rms(expected.ref)
    allowed += expected.factor * _rms(expected.sensitivity) / 2
    return allowed if rounding is None else allowed + _rms(rounding) / 2


def _worst_magnitude(error: torch.Tensor, expected: Expected, rounding: torch.Tensor | None) -> float:
    """Bound 3: largest rms error over its allowance among groups of elements within a factor of two in size."""
    step = max(1, error.numel() // _SAMPLE)
    ref = expected.ref.flatten()[::step].double().abs()
    power = (ref.max().log2() - ref.log2()).clamp(-1, _MAGNITUDES).floor().to(torch.int64)
    group = torch.where(power >= 0, power, _MAGNITUDES)  # zeros, and what is smaller than all groups, are in the last

    def rms(values: torch.Tensor) -> torch.Tensor:
        squares = values.flatten()[::step].double().square()
        return (torch.bincount(group, squares, _MAGNITUDES + 1) / count.clamp_min(1)).sqrt()[:_MAGNITUDES]

    count = torch.bincount(group, minlength=_MAGNITUDES + 1)
    allowed = 4.0 * rms(expected.error_lp) + rms(expected.ref) / 8.0
    if rounding is not None:
        allowed += rms(rounding)
    ratio = rms(error) / allowed.clamp_min(torch.finfo(torch.float64).tiny)
    return float(torch.where(count[:_MAGNITUDES] >= _BUCKET, ratio, 0.0).max())


def _count(errors: torch.Tensor) -> float:
    """How many elements a root mean square is made of: n errors of one size count as n, evenly drawn ones as n / 1.8,
    and those beside which they are nothing do not."""
    scaled = errors / float(errors.max())
    two, four = (torch.linalg.vector_norm(scaled, order, dtype=torch.float64) for order in (2, 4))
    return float(two / four) ** 4


def _rms(values: torch.Tensor) -> float:
    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    return float(norm) / values.numel() ** 0.5 if values.numel() else 0.0


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The position of the `flat`-th element. Torch's own function for it takes a second at its first call."""
    index: list[int] = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        index.insert(0, rest)
    return tuple(index)


def _times(value: float) -> str:
    return "NaN or infinity" if value == float("inf") else f"a factor {value:.3g}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
