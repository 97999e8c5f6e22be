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

from kopt_mcp.evaluator.inputs import LEAST_DIM, NEARER
from kopt_mcp.problem import Case, Problem, Spec, Workload

PUBLIC_SEED = 0
POISONS = (0xFF, 0x55)
"""NaN in every floating type, and a plausible finite number."""
_LARGE = {"cpu": 16 << 20, "cuda": 64 << 20}
"""Bytes above which a workload gets few calls: more would cost too much time."""
_CALM = ("tiny", "equal", "alternating", "sorted", "zeros")
"""Distributions that overflow nowhere, so that one call can have them all, each in some of its rows."""
_FARTHER = {near: far for far, near in NEARER.items()}
"""By a distribution, the one farther from zero, where there is any."""
_ALONE = 4
"""Most inputs that get a distribution by themselves in one verification."""
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
    """Both of all inputs; with a number behind it (`large:0`, `strided:1`), of the one at that position."""
    own_stream: bool = False
    first_seed: int | None = None
    """Seed of a call on the same tensors, made before: what was remembered of it is now wrong."""

    @property
    def generated(self) -> bool:
        """Whether its shape is none that the problem declares."""
        return self.case.params != dict(self.case.workload.params)

    def words(self) -> str:
        """What was special about the inputs, for a failure's text."""
        values, one, position = self.distribution.partition(":")
        parts = [f"{values} values" if values != "normal" else "normally distributed values"]
        if one:
            parts[0] += f" of input {position} only"
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
    for distribution in _of_one(problem, small[0], rng):
        case = rng.choice(small)
        checks[case.workload.name].append(Check(case, _secret(), POISONS[0], distribution))
    for check in _in_layouts(problem, small, rng.choice(large), most, rng):
        checks[check.case.workload.name].append(check)
    first = small[0]
    repeated = _secret()
    checks[first.workload.name] += [_check(first, repeated, n) for n in range(_REPEATS)]
    if kind == "cuda":
        checks[first.workload.name].append(Check(first, _secret(), POISONS[0], own_stream=True))
    generated = _generated(problem, small, most, rng)
    for number, case in enumerate(generated):
        for distribution in _turn(problem, case, number, rng):
            checks[case.workload.name].append(Check(case, _secret(), POISONS[0], distribution))
    if generated and (layouts := _layouts(problem, small[0])):
        case, layout = rng.choice(generated), _kind_of(rng.choice(layouts), rng)
        distribution = rng.choice(["normal", *telling_values(problem, case)])
        checks[case.workload.name].append(Check(case, _secret(), POISONS[0], distribution, layout))
    return [(c.workload, checks[c.workload.name]) for c in cases]


def _check(case: Case, seed: int, poison: int) -> Check:
    return Check(case, seed, POISONS[poison % 2])


def _reused(problem: Problem, case: Case, small: bool, rng: Random) -> Check:
    """New values in old tensors; where a workload sees few distributions, those are of all that tell and that it does
    not see otherwise, each in some of the rows."""
    others = [] if small else _by_rows(telling_values(problem, case)[1:], case) or telling_values(problem, case)
    distribution = rng.choice(others or ["normal"])
    return Check(case, _secret(), POISONS[1], distribution, first_seed=_secret())


def _secret() -> int:
    return 1 + secrets.randbits(40)


def _distributions(problem: Problem, case: Case, first: bool, small: bool, rng: Random) -> list[str]:
    """All at the first workload, the calm ones together too; at each other one all that tell, or where it is large the
    first of them (see `_reused`), and the calm ones in one call. At each one that is far from zero is among them.

    Were it known which shape sees which values, a kernel could be wrong at the shapes that see only harmless ones.
    """
    others = [d for d in problem.distributions if d != "normal"]
    calm = calm_values(problem, case)
    if first:
        return list(dict.fromkeys([*others, *calm, *_far_from_zero(problem, case, rng)]))
    telling = telling_values(problem, case)[: None if small else 1]
    if not small and len(_normal(case)) == 1:  # one call for both: what overflows nearer does so farther
        return [*(_FARTHER.get(d, d) for d in telling), *calm]
    return [*telling, *_far_from_zero(problem, case, rng), *calm]


def telling_values(problem: Problem, case: Case) -> list[str]:
    """Distributions on which unsafe shortcuts show for such inputs, those first that every workload should see."""
    kinds = {i.kind for i in case.inputs if isinstance(i, Spec)}
    allowed = [d for d in ("mixed", "large", "outlier", "shifted") if "normal" in kinds]
    allowed[1:1] = [d for d in ("equal", "alternating") if "integers" in kinds]
    if all(len(i.shape) < 2 for i in case.inputs if isinstance(i, Spec)):  # of vectors it is as ordinary as any
        allowed = [d for d in allowed if d != "mixed"]
    return [d for d in allowed if d in problem.distributions]


def positions_alone(problem: Problem, case: Case) -> list[int]:
    """Of the inputs of which one alone can have values that tell: none, unless there are several.

    A kernel may look at one of its inputs to choose its way, and be wrong where only another one is large.
    """
    found = [n for n in _normal(case) if _spec(case, n).shape]
    telling = {"mixed", "large", "outlier", "shifted"} & {*problem.distributions}
    return found if len(found) > 1 and telling else []


def _normal(case: Case) -> list[int]:
    """Positions of the inputs that are drawn from distributions."""
    return [n for n, one in enumerate(case.inputs) if isinstance(one, Spec) and one.kind == "normal"]


def of_one(problem: Problem, case: Case, position: int, rng: Random) -> str:
    """A distribution that tells, of the input at this position only."""
    telling = [d for d in ("large", "outlier", "shifted") if d in problem.distributions]
    if "mixed" in problem.distributions and len(_spec(case, position).shape) > 1:
        telling.append("mixed")
    return f"{rng.choice(telling or ['normal'])}:{position}"


def far_values(problem: Problem, case: Case, rng: Random, position: int | None = None) -> list[str]:
    """Distributions farther from zero than the others, of one input (where there are several): of products of two such,
    what rounding does to one would be more than what tells right from wrong."""
    positions = _normal(case)
    if not positions or "large" not in problem.distributions:
        return []
    position = rng.choice(positions) if position is None else position
    names = ["far"] if len(_spec(case, position).shape) < 2 or "mixed" not in problem.distributions else [*NEARER]
    return [name if len(positions) == 1 else f"{name}:{position}" for name in names]


def nearer(distribution: str) -> str:
    """The one to be tried instead of one far from zero; nothing instead of any other."""
    name, one, position = distribution.partition(":")
    return NEARER[name] + one + position if name in NEARER else ""


def _spec(case: Case, position: int) -> Spec:
    found = case.inputs[position]
    assert isinstance(found, Spec)
    return found


def calm_values(problem: Problem, case: Case) -> list[str]:
    """The calm distributions, if there are any, as many in one as there are rows for; those that tell for such inputs
    are tried by themselves."""
    telling = telling_values(problem, case)
    names = [d for d in _CALM if d in problem.distributions and d not in telling]
    return _by_rows(names, case)


def _by_rows(names: list[str], case: Case) -> list[str]:
    """As many distributions in one as there are rows for, each in some of them."""
    rows = max((math.prod(i.shape[:-1]) for i in case.inputs if isinstance(i, Spec) and i.shape), default=1) or 1
    return ["+".join(names[first : first + rows]) for first in range(0, len(names), rows)]


def _turn(problem: Problem, case: Case, number: int, rng: Random) -> list[str]:
    """The distributions of one of several checks of something else: normal, all that tell, all calm ones (in several
    calls where there are too few rows for one), one far from zero, and again all that tell.

    Were a layout or a shape tried on ordinary values only, or on some that chance chooses, a kernel could be wrong
    there on all others.
    """
    if number == 0:
        return ["normal"]
    named = {2: calm_values(problem, case), 3: _far_from_zero(problem, case, rng)}.get(number)
    return named or telling_values(problem, case) or [rng.choice(list(problem.distributions) or ["normal"])]


def _layouts(problem: Problem, case: Case) -> list[str]:
    """Those besides the plain one in which such inputs can be."""
    return [layout for layout in problem.layouts[1:] if _laid_out(layout, case)]


def _laid_out(layout: str, case: Case) -> list[int]:
    """Positions of the inputs that this layout makes others of."""
    least = LEAST_DIM.get(layout, 0)
    return [position for position, one in enumerate(case.inputs) if isinstance(one, Spec) and len(one.shape) >= least]


_KINDS = ["strided", "ragged", "cut"]
"""What is meant by `strided`, for rows of any tensor: see `inputs.GAPS`."""


def _kind_of(layout: str, rng: Random) -> str:
    return rng.choice(_KINDS) if layout == "strided" else layout


def _in_layouts(problem: Problem, small: list[Case], large: Case, most: float, rng: Random) -> list[Check]:
    """Checks of each layout: of one input, of another one, and of all twice: a kernel may look at the first only, and
    take all to be so.

    The first two see normal values, on which what is left out shows, at sizes that no vector's width divides: odd ones,
    and even ones that are no multiple of four. Then come all values that tell, at shapes of any kind, and calm ones.
    """
    made: list[Check] = []

    def add(case: Case, layout: str, distribution: str = "normal", again: bool = False) -> None:
        before = _secret() if again else None  # what was packed once may be kept where rows lie apart only
        made.append(Check(case, _secret(), POISONS[0], distribution, layout, first_seed=before))

    def sized(step: int, rest: int) -> Case:
        return _sized(problem, rng.choice(small), most, rng, step, rest)

    for layout in _layouts(problem, small[0]):
        kinds = [*_KINDS, rng.choice(_KINDS)] if layout == "strided" else [layout] * 4
        kinds[:3] = rng.sample(kinds[:3], 3)
        tensors = _laid_out(layout, small[0])
        if len(tensors) > 1:
            kinds[:2] = [f"{kind}:{at}" for kind, at in zip(kinds[:2], rng.sample(tensors, 2), strict=True)]
        any_size = [sized(2, 1), sized(8, 4), sized(8, 0), *small]
        add(sized(2, 1), kinds[0], again=True)
        add(sized(4, 2), kinds[1], again=True)
        for distribution in _turn(problem, large, 1, rng):
            add(rng.choice(any_size), kinds[2], distribution, again=True)
        first, *others = _turn(problem, large, 2, rng)
        add(large, kinds[3], first)
        for distribution in others:  # of a few rows or one, as a vector is
            add(sized(2, 1), kinds[3], distribution)
        if layout == "strided" and (slabs := _laid_out("sliced", small[0])):
            alone = [f"sliced:{at}" for at in slabs] if len(tensors) > 1 else []
            add(sized(2, 1), rng.choice(["sliced", *alone]))
    return made


def _of_one(problem: Problem, case: Case, rng: Random) -> list[str]:
    """Of each input by itself, or of some of very many, a distribution that tells in all of its rows."""
    positions = positions_alone(problem, case)
    surely = [d for d in ("large", "shifted") if d in problem.distributions]
    return [
        f"{rng.choice(surely)}:{at}" if surely else of_one(problem, case, at, rng)
        for at in rng.sample(positions, min(len(positions), _ALONE))
    ]


def _far_from_zero(problem: Problem, case: Case, rng: Random) -> list[str]:
    """One such distribution, if there is any."""
    found = far_values(problem, case, rng)
    return [rng.choice(found)] if found else []


def _generated(problem: Problem, small: list[Case], most: float, rng: Random) -> list[Case]:
    """Workloads at awkward sizes: one, primes, next to powers of two, no multiple of a vector's width.

    Some are of any size instead: the awkward ones are known to whoever reads this. The first, which sees normal values,
    on which what is left out shows best, is as large as may be. Each param is once as small, and where it is the other
    of two shapes that see the same values makes up for it: of a single column little shows. None takes more bytes than
    `most`.
    """
    if not problem.vary:
        return []
    smallest = {name: rng.choice((1, _GENERATED_SHAPES - 1)) for name in problem.vary}
    made = []
    for number in range(_GENERATED_SHAPES):
        size = _awkward if number % 2 else Random.randint
        override = {name: size(rng, min(low + 1, high), high) for name, (low, high) in problem.vary.items()}
        override |= {name: low for name, (low, _) in problem.vary.items() if smallest[name] == number}
        override |= {name: high for name, (_, high) in problem.vary.items() if number == 0}
        made.append(_fitting(problem, rng.choice(small).workload, override, most, rng))
    return made


def _sized(problem: Problem, case: Case, most: float, rng: Random, step: int, rest: int) -> Case:
    """A shape each of whose params leaves this rest, as far as the problem allows, and is not one unless it must be:
    a layout's own path needs an end too, and of a single row no gap shows."""
    sizes = {
        name: _beside(rng.randint(max(low, min(high, 2)), high), max(low, min(high, 2)), high, step, rest)
        for name, (low, high) in problem.vary.items()
    }
    return _fitting(problem, case.workload, sizes, most, rng, step, rest) if sizes else case


def _fitting(
    problem: Problem, workload: Workload, sizes: dict[str, int], most: float, rng: Random, step: int = 2, rest: int = 1
) -> Case:
    """Of these sizes, or smaller in one param after another until it takes no more than `most` bytes.

    Each may be as large as its problem says, and all of them together far larger than any of its workloads.
    """
    case = problem.case(workload, **sizes)
    for name in rng.sample(list(sizes), len(sizes)):
        low = problem.vary[name][0]
        while case.bytes > most and sizes[name] > low:
            sizes[name] = _beside(sizes[name] // 2, low, sizes[name] - 1, step, rest)
            case = problem.case(workload, **sizes)
    return case


def _beside(size: int, low: int, high: int, step: int = 2, rest: int = 1) -> int:
    """A number beside this one, if there is one from `low` to `high`, that leaves `rest` when divided by `step`."""
    size = max(low, size)
    above = size + (rest - size) % step
    return next((one for one in (above, above - step) if low <= one <= high), size)


def _awkward(rng: Random, low: int, high: int) -> int:
    powers = [1 << p for p in range(1, 24)]
    candidates = [1, 3, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191]
    candidates += [p + d for p in powers for d in (-1, 1)]
    inside = [c for c in candidates if low <= c <= high]
    return rng.choice(inside) if inside else rng.randint(low, high)
