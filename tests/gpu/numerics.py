"""Does a shipped kernel pass on every draw? python tests/gpu/numerics.py [DEVICE [SECONDS [TEST ...]]]

A check of a candidate is some hundred draws; what is refused once in a thousand shows here. Each template is called on
small and awkward shapes of its problem, on all distributions, of one input alone too, with new seeds, and judged as
`verify` judges it; then kernels of one element each, of the device's own functions, against problems that declare no
sum.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kopt_mcp.evaluator.checks import calm_values, far_values, of_one, positions_alone  # noqa: E402
from kopt_mcp.evaluator.compare import BadReference  # noqa: E402
from kopt_mcp.evaluator.inputs import draw  # noqa: E402
from kopt_mcp.evaluator.reference import as_list, expected_outputs, judge_all  # noqa: E402
from kopt_mcp.problem import Problem, Workload  # noqa: E402

MOST_BYTES = 8 << 20
SIGMOID, SILU, EXP, RSQRT = range(4)


@triton.jit
def _element(x_ptr, out_ptr, count, WHICH: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=1.0).to(tl.float32)
    if WHICH == 0:
        out = 1.0 / (1.0 + tl.exp(-x))
    elif WHICH == 1:
        out = x / (1.0 + tl.exp(-x))
    elif WHICH == 2:
        out = tl.exp(x * 0.015625)
    else:
        out = tl.rsqrt(tl.abs(x) + 1.0)
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


ELEMENTS: dict[str, tuple[int, Callable[[torch.Tensor], torch.Tensor]]] = {
    "sigmoid": (SIGMOID, torch.sigmoid),
    "silu": (SILU, torch.nn.functional.silu),
    "exp": (EXP, lambda x: (x / 64).exp()),
    "rsqrt": (RSQRT, lambda x: (x.abs() + 1).rsqrt()),
}


def element(name: str) -> tuple[Problem, Callable[..., Any]]:
    """A problem of one element each, without `reduction` and `scale`, and its kernel."""
    which, reference = ELEMENTS[name]

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        _element[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), WHICH=which, BLOCK=1024)
        return out

    shapes = [{"rows": 1, "cols": 7}, {"rows": 33, "cols": 31}, {"rows": 64, "cols": 1000}]
    problem = Problem(
        name=name,
        reference=reference,
        inputs=lambda make, rows, cols: [make.normal(rows, cols)],
        workloads=[Workload(shape, dtype) for shape in shapes for dtype in ("float32", "float16")],
        bytes="2 * rows * cols * itemsize",
        flops="rows * cols",
        bound="memory",
        vary={"rows": (1, 64), "cols": (1, 3000)},
    )
    return problem, kernel


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}".replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pairs(names: list[str]) -> Iterator[tuple[str, Problem, Callable[..., Any]]]:
    """The problems with their templates, then the functions of one element."""
    for path in [Path(n) for n in names] or sorted((ROOT / "skills" / "kernels").glob("*/test_*.py")):
        problem = load(path).PROBLEM
        template = "triton_backward_template.py" if "backward" in path.stem else "triton_template.py"
        yield path.stem, problem, getattr(load(path.parent / template), problem.entry)
    for name in () if names else ELEMENTS:
        yield (name, *element(name))


def sizes(problem: Problem, rng: Random) -> dict[str, int]:
    """A shape of the problem: mostly small, where few roundings decide, but for a param now and then."""
    made = {}
    for name, (low, high) in problem.vary.items():
        top = high if rng.random() < 0.2 else min(high, low + 15)
        made[name] = round(math.exp(rng.uniform(math.log(low), math.log(top)))) if low else rng.randint(low, top)
    return made


def tried(problem: Problem, kernel: Callable[..., Any], device: str, seconds: float) -> tuple[int, list[str]]:
    """How many draws were judged, and what was said of those that were refused."""
    rng, count, refused, until = Random(), 0, [], time.perf_counter() + seconds
    kind = "cpu" if device == "cpu" else "cuda"
    while time.perf_counter() < until:
        workload = rng.choice([w for w in problem.for_device(kind) if problem.case(w).bytes <= MOST_BYTES])
        case = problem.case(workload, **(sizes(problem, rng) if rng.random() < 0.8 else {}))
        alone = [of_one(problem, case, at, rng) for at in positions_alone(problem, case)]
        distribution = rng.choice(
            [*problem.distributions, *calm_values(problem, case), *2 * far_values(problem, case, rng), *alone]
        )
        seed = rng.getrandbits(40)
        try:
            expected = expected_outputs(problem, case, seed, device, distribution)
        except BadReference:
            continue
        outputs = as_list(kernel(*draw(case.inputs, case.literals, seed, device, distribution).args))
        verdict = judge_all(outputs, expected)
        count += 1
        if verdict.status != "PASSED":
            refused.append(f"{case.params} {workload.dtype} {distribution}, seed {seed}: {verdict.detail}")
    return count, refused


def main(device: str = "cuda:0", seconds: str = "10", *names: str) -> int:
    """Print a line a problem, and up to five of its refusals; how many had any."""
    with_refusals = 0
    for name, problem, kernel in pairs(list(names)):
        count, refused = tried(problem, kernel, device, float(seconds))
        with_refusals += bool(refused)
        print(f"{name:<32} {count} draws, {len(refused)} refused", *refused[:5], sep="\n    ", flush=True)
    return with_refusals


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
