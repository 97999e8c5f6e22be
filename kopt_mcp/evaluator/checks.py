"""Which calls are made to check a candidate, on inputs that it cannot know.

Every workload is tried with one public seed, whose numbers may be shown, and with secret ones, whose numbers may not.
Over the workloads go the other distributions, layouts and shapes that the problem allows, two patterns of poison in
the memory that outputs are given, a run on another stream, and repeats.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from random import Random

from kopt_mcp.evaluator.inputs import LEAST_DIM
from kopt_mcp.problem import Case, Problem, Spec, Workload

PUBLIC_SEED = 0
POISONS = (0xFF, 0x55)
"""NaN in every floating type, and a plausible finite number."""
_LARGE = {"cpu": 16 << 20, "cuda": 64 << 20}
"""Bytes above which a workload gets few calls: more would cost too much time."""
_CALM = ("tiny", "equal", "alternating", "sorted", "zeros")
"""Distributions that overflow nowhere, so that one call can have them all, each in some of its rows."""
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
    """Of all inputs; with a number behind it (`strided:1`), of the one at that position."""
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
        layout, one, position = self.layout.partition(":")
        if layout != "contiguous":
            parts.append(f"{layout} input {position}" if one else f"{layout} inputs")
        if self.first_seed is not None:
            parts.append("in tensors that held other values at the call before")
        if self.own_stream:
            parts.append("on a stream that is not the default one")
        if self.generated:
            given, now = self.case.workload.params, self.case.params
            shape = ", ".join(f"{k}={v}" for k, v in now.items())
            only_weights = [k for k, v in now.items() if v != given.get(k)] == ["weights"]  # of a module, by their seed
            parts.append("with other weights" if only_weights else f"at the generated shape {shape}")
        return ", ".join(parts)


def plan(problem: Problem, workloads: list[Workload], kind: str) -> list[tuple[Workload, list[Check]]]:
    """All checks, grouped by workload, the cheapest workload first."""
    rng = Random(secrets.randbits(64))
    cases = sorted((problem.case(w) for w in workloads), key=lambda c: c.bytes)
    small = [c for c in cases if c.bytes <= _LARGE[kind]] or cases[:1]
    checks = {c.workload.name: [_check(c, PUBLIC_SEED, 0), _reused(problem, c, c in small, rng)] for c in cases}
    for index, case in enumerate(cases):
        for distribution in _distributions(problem, case, index == 0, case in small, rng):
            checks[case.workload.name].append(Check(case, _secret(), POISONS[index % 2], distribution))
    large = [c for c in cases if c not in small] or small
    most = max(_LARGE[kind], cases[-1].bytes)
    for layout in _layouts(problem, small[0]):
        odd = [_odd(problem, rng.choice(small), most, rng) for _ in range(2)]
        few = [odd[0], rng.choice([odd[1], *small])]  # the first sees normal values, on which what is left out shows
        chosen = zip(_spread(problem, [*few, rng.choice(large)], rng), (True, True, False), strict=True)
        for ((case, distribution), again), inputs in zip(chosen, _one_by_one(layout, small[0], rng), strict=True):
            before = _secret() if again else None  # what was packed once may be kept where rows lie apart only
            checks[case.workload.name].append(
                Check(case, _secret(), POISONS[0], distribution, inputs, first_seed=before)
            )
    first = small[0]
    repeated = _secret()
    checks[first.workload.name] += [_check(first, repeated, n) for n in range(_REPEATS)]
    if kind == "cuda":
        checks[first.workload.name].append(Check(first, _secret(), POISONS[0], own_stream=True))
    for case, distribution in _spread(problem, _generated(problem, small, most, rng), rng):
        checks[case.workload.name].append(Check(case, _secret(), POISONS[0], distribution))
    return [(c.workload, checks[c.workload.name]) for c in cases]


def _check(case: Case, seed: int, poison: int) -> Check:
    return Check(case, seed, POISONS[poison % 2])


def _reused(problem: Problem, case: Case, small: bool, rng: Random) -> Check:
    """New values in old tensors; where a workload sees few distributions, those are of any that tells."""
    distribution = "normal" if small else rng.choice(telling_values(problem, case) or ["normal"])
    return Check(case, _secret(), POISONS[1], distribution, first_seed=_secret())


def _secret() -> int:
    return 1 + secrets.randbits(40)


def _distributions(problem: Problem, case: Case, first: bool, small: bool, rng: Random) -> list[str]:
    """All at the first workload, the calm ones together too; at each other one those on which unsafe shortcuts
    overflow, the calm ones in one call, and what chance adds.

    Were it known which shape sees which values, a kernel could be wrong at the shapes that see only harmless ones.
    """
    others = [d for d in problem.distributions if d != "normal"]
    calm = calm_values(problem, case)
    if first:
        return list(dict.fromkeys([*others, *calm]))
    telling = [d for d in telling_values(problem, case) if d in others][: 2 if small else 1]
    rest = [d for d in others if d not in (*telling, *_CALM)]
    return [*telling, *rng.sample(rest, min(len(rest), 1 if small else 0)), *calm]


def telling_values(problem: Problem, case: Case) -> list[str]:
    """Distributions on which unsafe shortcuts show for such inputs, those first that every workload should see."""
    kinds = {i.kind for i in case.inputs if isinstance(i, Spec)}
    allowed = [d for d in ("mixed", "large", "outlier", "shifted") if "normal" in kinds]
    allowed[1:1] = [d for d in ("equal", "alternating") if "integers" in kinds]
    if all(len(i.shape) < 2 for i in case.inputs if isinstance(i, Spec)):  # of vectors it is as ordinary as any
        allowed = [d for d in allowed if d != "mixed"]
    return [d for d in allowed if d in problem.distributions]


def calm_values(problem: Problem, case: Case) -> list[str]:
    """The calm distributions as one, if there are any and rows for all; those that tell for such inputs are tried by
    themselves."""
    telling = telling_values(problem, case)
    names = [d for d in _CALM if d in problem.distributions and d not in telling]
    rows = max((math.prod(i.shape[:-1]) for i in case.inputs if isinstance(i, Spec) and i.shape), default=0)
    return ["+".join(names)] if names and rows >= len(names) else names


def _spread(problem: Problem, cases: list[Case], rng: Random) -> list[tuple[Case, str]]:
    """Each case with a distribution, for checks of something else: normal, telling, calm, and again some that tell.

    Were a layout or a shape tried on ordinary values only, a kernel could be wrong there on all others.
    """

    def of(number: int, case: Case) -> str:
        named = calm_values(problem, case) if number == 2 else telling_values(problem, case)
        return rng.choice(named or list(problem.distributions) or ["normal"]) if number else "normal"

    return [(case, of(number, case)) for number, case in enumerate(cases)]


def _layouts(problem: Problem, case: Case) -> list[str]:
    """Those besides the plain one in which such inputs can be."""
    return [layout for layout in problem.layouts[1:] if _laid_out(layout, case)]


def _laid_out(layout: str, case: Case) -> list[int]:
    """Positions of the inputs that this layout makes others of."""
    least = LEAST_DIM.get(layout, 0)
    return [position for position, one in enumerate(case.inputs) if isinstance(one, Spec) and len(one.shape) >= least]


def _one_by_one(layout: str, case: Case, rng: Random) -> list[str]:
    """A layout of one input, of another one, and of all: a kernel may look at the first only, and take all to be so.

    Rows that lie apart do so by a whole vector and by less than one.
    """
    kinds = ["strided", "ragged"] if layout == "strided" else [layout, layout]
    rng.shuffle(kinds)
    tensors = _laid_out(layout, case)
    if len(tensors) > 1:
        alone = zip(kinds, rng.sample(tensors, 2), strict=True)
        return [*(f"{kind}:{position}" for kind, position in alone), rng.choice(kinds)]
    return [*kinds, rng.choice(kinds)]


def _generated(problem: Problem, small: list[Case], most: float, rng: Random) -> list[Case]:
    """Workloads at awkward sizes: one, primes, next to powers of two, no multiple of a vector's width.

    Some are of any size instead: the awkward ones are known to whoever reads this. The first, which sees normal values,
    on which what is left out shows best, is as large as may be, and each param is once as small. None takes more bytes
    than `most`.
    """
    if not problem.vary:
        return []
    smallest = {name: rng.randrange(1, _GENERATED_SHAPES) for name in problem.vary}
    made = []
    for number in range(_GENERATED_SHAPES):
        size = _awkward if number % 2 else Random.randint
        override = {name: size(rng, low, high) for name, (low, high) in problem.vary.items()}
        override |= {name: low for name, (low, _) in problem.vary.items() if smallest[name] == number}
        override |= {name: high for name, (_, high) in problem.vary.items() if number == 0}
        made.append(_fitting(problem, rng.choice(small).workload, override, most, rng))
    return made


def _odd(problem: Problem, case: Case, most: float, rng: Random) -> Case:
    """A shape that no vector's width divides, as far as the problem allows: a layout's own path needs an end too."""
    sizes = {name: _next_odd(rng.randint(low, high), low, high) for name, (low, high) in problem.vary.items()}
    return _fitting(problem, case.workload, sizes, most, rng) if sizes else case


def _fitting(problem: Problem, workload: Workload, sizes: dict[str, int], most: float, rng: Random) -> Case:
    """Of these sizes, or smaller in one param after another until it takes no more than `most` bytes.

    Each may be as large as its problem says, and all of them together far larger than any of its workloads.
    """
    case = problem.case(workload, **sizes)
    for name in rng.sample(list(sizes), len(sizes)):
        low = problem.vary[name][0]
        while case.bytes > most and sizes[name] > low:
            sizes[name] = _next_odd(sizes[name] // 2, low, sizes[name] - 1)
            case = problem.case(workload, **sizes)
    return case


def _next_odd(size: int, low: int, high: int) -> int:
    """An odd number beside this one, if there is one from `low` to `high`."""
    size = max(low, size)
    return next((one for one in (size | 1, size - 1) if one % 2 and low <= one <= high), size)


def _awkward(rng: Random, low: int, high: int) -> int:
    powers = [1 << p for p in range(1, 24)]
    candidates = [1, 3, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191]
    candidates += [p + d for p in powers for d in (-1, 1)]
    inside = [c for c in candidates if low <= c <= high]
    return rng.choice(inside) if inside else rng.randint(low, high)
