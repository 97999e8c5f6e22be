"""Kernels that compute in float32 as GPUs do were refused on these draws: what was too strict, each with its draw.

A device's functions are modelled as exact where they are (`ex2` of an integer, the reciprocal of a power of two), and
otherwise as off by no more than the two units in the last place that CUDA's programming guide allows them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator import compare
from kopt_mcp.evaluator.compare import Verdict
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.reference import as_list, expected_outputs, judge_all
from kopt_mcp.problem import Problem, Workload

ROOT = Path(__file__).resolve().parent.parent
Tensor = torch.Tensor
LOG2E, LN2 = (torch.tensor(v, dtype=torch.float32) for v in (1.4426950408889634, 0.6931471805599453))
EPS = 2.0**-23


def off(exact: Tensor, error: float, seed: int = 0) -> Tensor:
    """Values in float64, each off by up to `error` of itself, in float32."""
    random = torch.rand(exact.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (exact * (1 + (2 * random - 1) * error)).float()


def flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, torch.zeros_like(x), x)


def ex2(x: Tensor) -> Tensor:
    exact = x.double().exp2()
    return flushed(torch.where(x == x.round(), exact.float(), off(exact, 2.0**-22.5)))


def lg2(x: Tensor) -> Tensor:
    return off(x.double().log2(), 2.0**-22)


def rcp(x: Tensor) -> Tensor:
    exact = x.double().reciprocal()
    return torch.where(torch.frexp(x).mantissa == 0.5, exact.float(), off(exact, EPS))


def chained(x: Tensor) -> Tensor:
    """The row sums, one term after the other."""
    total = torch.zeros(x.shape[0])
    for column in x.T:
        total = total + column
    return total


def tf32(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def softmax_unfused(x: Tensor) -> Tensor:
    top = x.amax(dim=-1, keepdim=True)
    exp = ex2(x * LOG2E - top * LOG2E)
    return exp * rcp(exp.sum(dim=-1, keepdim=True))


def softmax_by_logarithm(x: Tensor) -> Tensor:
    top = x.amax(dim=-1, keepdim=True)
    total = ex2((x - top) * LOG2E).sum(dim=-1, keepdim=True)
    return ex2((x - (top + lg2(total) * LN2)) * LOG2E)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    top = logits.amax(dim=-1, keepdim=True)
    total = ex2((logits - top) * LOG2E).sum(dim=-1)
    chosen = logits.gather(-1, labels[:, None])[:, 0]
    return lg2(total) * LN2 - (chosen - top[:, 0])


def cross_entropy_backward(logits: Tensor, labels: Tensor, grad: Tensor) -> Tensor:
    """As FlashAttention's kernel does it, from the logarithm of the sum."""
    probability = softmax_by_logarithm(logits)
    return (probability - torch.zeros_like(logits).scatter_(-1, labels[:, None], 1.0)) * grad[:, None]


def cross_entropy_backward_flushed(logits: Tensor, labels: Tensor, grad: Tensor) -> Tensor:
    exp = ex2((logits - logits.amax(dim=-1, keepdim=True)) * LOG2E)
    probability = exp * rcp(exp.sum(dim=-1, keepdim=True))
    return (probability - torch.zeros_like(logits).scatter_(-1, labels[:, None], 1.0)) * grad[:, None]


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    mean = x.square().sum(dim=-1, keepdim=True) * torch.tensor(1 / x.shape[-1])
    return x * off((mean + eps).double().rsqrt(), 2.0**-22.9) * weight


def rmsnorm_by_one_thread(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    mean = chained(x.square())[:, None] / x.shape[-1]
    return x * off((mean + eps).double().rsqrt(), 2.0**-22.9) * weight


def layernorm_by_one_thread(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - chained(x)[:, None] / x.shape[-1]
    variance = chained(centred.square())[:, None] / x.shape[-1]
    return centred * off((variance + eps).double().rsqrt(), 2.0**-22.9) * weight + bias


def gemm_of_three(a: Tensor, b: Tensor) -> Tensor:
    """`input_precision="tf32x3"` of Triton: the rest of each factor in TF32 too, but not the product of both rests."""
    large, small = (tf32(a), tf32(b)), (tf32(a - tf32(a)), tf32(b - tf32(b)))
    return small[0] @ large[1] + large[0] @ small[1] + large[0] @ large[1]


def moe_without_rounding_each_expert(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, scores: Tensor, experts: Tensor
) -> Tensor:
    out = torch.zeros(x.shape)
    for expert in range(gate.shape[0]):
        tokens, slots = (experts == expert).nonzero(as_tuple=True)
        chosen = x[tokens].float()
        gated = chosen @ gate[expert].float().T
        hidden = gated * rcp(1 + ex2(-gated * LOG2E)) * (chosen @ up[expert].float().T)
        result = hidden.to(x.dtype).float() @ down[expert].float().T
        out.index_add_(0, tokens, result * scores[tokens, slots, None])
    return out.to(x.dtype)


def judged(
    folder: str, function: Callable[..., Any], dtype: str, distribution: str, seed: int, **sizes: int
) -> Verdict:
    name = (
        "cross_entropy_backward" if function.__name__.startswith("cross_entropy_backward") else folder.replace("-", "_")
    )
    file = ROOT / "skills" / "kernels" / folder / f"test_{name}.py"
    problem = load_problem(file.read_bytes(), str(file))
    case = problem.case(next(w for w in problem.workloads if w.dtype == dtype), **sizes)
    args = draw(case.inputs, case.literals, seed, "cpu", distribution).args
    return judge_all(as_list(function(*args)), expected_outputs(problem, case, seed, "cpu", distribution))


HONEST = [
    # The size of x and of the maximum, each off by a rounding, were not in the problem's scale.
    ("softmax", softmax_unfused, "float32", "large", [0, 6], {"rows": 32, "cols": 1000}),
    ("softmax", softmax_by_logarithm, "float32", "large", [4, 16], {"rows": 6, "cols": 2}),
    ("cross-entropy", cross_entropy_backward, "float32", "large", [0, 5], {"rows": 33, "vocab": 110}),
    # A sum of few terms allowed for no rounding but its own.
    ("softmax", softmax_by_logarithm, "float32", "equal", [2, 3], {"rows": 31, "cols": 7}),
    ("cross-entropy", cross_entropy, "float32", "tiny", [0, 22], {"rows": 33, "vocab": 3}),
    ("gemm", gemm_of_three, "float32", "large", [1, 2], {"m": 89, "n": 129, "k": 1}),
    # A probability below the smallest normal number was flushed before the gradient made it a larger one.
    ("cross-entropy", cross_entropy_backward_flushed, "float32", "large", [64, 185], {"rows": 1, "vocab": 18}),
    # Equal terms are rounded the same way, which is no random walk.
    ("reduce", chained, "float32", "equal", [0, 3], {"rows": 37, "cols": 1023}),
    ("reduce", chained, "float32", "equal", [0, 3], {"rows": 37, "cols": 16384}),
    ("rmsnorm", rmsnorm_by_one_thread, "float32", "equal", [0, 3], {"rows": 37, "cols": 1000}),
    ("rmsnorm", rmsnorm_by_one_thread, "float32", "equal", [0, 3], {"rows": 37, "cols": 8192}),
    ("layernorm", layernorm_by_one_thread, "float32", "equal", list(range(8)), {"rows": 1, "cols": 257}),
    # Most rows were zeros: the root mean square was that of the few elements of one row.
    (
        "fused-moe", moe_without_rounding_each_expert, "float16", "zeros", [64],
        {"tokens": 7, "width": 40, "inter": 24, "experts": 4, "topk": 2},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "function", "dtype", "distribution", "seeds", "sizes"), HONEST)
def test_a_kernel_that_computes_in_float32_as_gpus_do_is_right(
    folder: str, function: Callable[..., Any], dtype: str, distribution: str, seeds: list[int], sizes: dict[str, int]
) -> None:
    for seed in seeds:
        verdict = judged(folder, function, dtype, distribution, seed, **sizes)
        assert verdict.status == "PASSED", (seed, verdict.detail)


def softmax_of_a_logarithm(x: Tensor) -> Tensor:
    return torch.exp(x - torch.logsumexp(x, dim=-1, keepdim=True))


@pytest.mark.parametrize("function", [softmax_unfused, softmax_of_a_logarithm])
@pytest.mark.parametrize("distribution", ["large", "mixed", "sorted+large", "far", "mixed-far"])
def test_what_is_rounded_before_an_exponential_is_right_where_the_problem_declares_nothing_of_it(
    function: Callable[..., Any], distribution: str
) -> None:
    """Of two large elements of a row both may have been moved the same way, as if their rounding meant nothing."""
    file = ROOT / "tests" / "cheats" / "problems" / "softmax.py"
    problem = load_problem(file.read_bytes(), str(file))
    case = problem.case(problem.workloads[0])
    for seed in range(30):
        (x,) = draw(case.inputs, case.literals, seed, "cpu", distribution).args
        expected = expected_outputs(problem, case, seed, "cpu", distribution)
        verdict = judge_all([function(x)], expected)
        assert verdict.status == "PASSED", (seed, verdict.detail)
        assert judge_all([function(x.half().float())], expected).status != "PASSED", "a step down"


def softmax_of_a_tf32_argument(x: Tensor) -> Tensor:
    exp = tf32(x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


def gradient_of_logits_in_tf32(logits: Tensor, labels: Tensor, grad: Tensor) -> Tensor:
    return cross_entropy_backward(tf32(logits), labels, grad)


gradient_of_logits_in_tf32.__name__ = "cross_entropy_backward_of_logits_in_tf32"


def gemm_of_one(a: Tensor, b: Tensor) -> Tensor:
    return tf32(a) @ tf32(b)


def chained_in_half(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0], dtype=torch.float16)
    for column in x.T:
        total = total + column.half()
    return total.float()


def norm_in_half(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rmsnorm(x, weight, eps).half().float()


@pytest.mark.parametrize(
    ("folder", "function", "distribution", "sizes"),
    [
        ("softmax", softmax_of_a_tf32_argument, "normal", {"rows": 6, "cols": 2}),
        ("softmax", softmax_of_a_tf32_argument, "mixed", {"rows": 31, "cols": 7}),
        ("softmax", softmax_of_a_tf32_argument, "large", {"rows": 32, "cols": 1000}),
        ("cross-entropy", gradient_of_logits_in_tf32, "large", {"rows": 33, "vocab": 110}),
        ("gemm", gemm_of_one, "large", {"m": 89, "n": 129, "k": 1}),
        ("gemm", gemm_of_one, "zeros", {"m": 89, "n": 129, "k": 127}),
        ("reduce", chained_in_half, "equal", {"rows": 37, "cols": 1023}),
        ("rmsnorm", norm_in_half, "tiny", {"rows": 33, "cols": 1}),
    ],
)
def test_the_same_a_precision_step_down_is_refused(
    folder: str, function: Callable[..., Any], distribution: str, sizes: dict[str, int]
) -> None:
    for seed in range(4):
        assert judged(folder, function, "float32", distribution, seed, **sizes).status == "INCORRECT_NUMERICAL", seed


def sigmoid(x: Tensor) -> Tensor:
    return off((1 + ex2(-x * LOG2E)).double().reciprocal(), EPS)


def silu(x: Tensor) -> Tensor:
    return off(x.double() / (1 + ex2(-x * LOG2E)), EPS)


def inverse_root(x: Tensor) -> Tensor:
    return off((x.abs() + 1.0).double().rsqrt(), EPS)


REFERENCES: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    sigmoid: torch.sigmoid,
    silu: torch.nn.functional.silu,
    inverse_root: lambda x: (x.abs() + 1.0).rsqrt(),
}


@pytest.mark.parametrize("function", REFERENCES)
def test_where_no_sum_is_declared_a_devices_own_functions_are_right_and_half_precision_is_not(
    function: Callable[[Tensor], Tensor],
) -> None:
    problem = Problem(
        name="element",
        reference=REFERENCES[function],
        inputs=lambda make, n: [make.normal(n)],
        workloads=[Workload({"n": 4099})],
        bytes="8 * n",
        flops="4 * n",
        bound="memory",
    )
    case = problem.case(problem.workloads[0])
    for seed in range(8):
        for distribution in ("normal", "large", "tiny"):
            x = draw(case.inputs, case.literals, seed, "cpu", distribution).args[0]
            expected = expected_outputs(problem, case, seed, "cpu", distribution)
            right, wrong = judge_all([function(x)], expected), judge_all([function(x).half().float()], expected)
            assert right.status == "PASSED", (seed, distribution, right.detail)
            assert wrong.status == "INCORRECT_NUMERICAL", (seed, distribution)


def test_many_small_errors_are_not_few() -> None:
    """One element of a hundred thousand carries the output, all others a rounding of a lower precision."""
    ref = torch.full((100_000,), 1e-3, dtype=torch.float64)
    ref[0] = 1.0
    low = ref.float()
    low[0] += 2.0**-13
    expected = compare.expect(ref, low, ref, None, 0.0, 4.0, "ieee")
    out = (ref * (1 + 2.0**-6)).float()
    out[0] = 1.0
    assert compare.judge(out, expected).status == "INCORRECT_NUMERICAL"
