"""The comparison: what passes, what fails, and by which of the bounds."""

import math

import pytest
import torch

from kopt_mcp.evaluator.compare import BadReference, Expected, Verdict, expect, judge
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.reference import expected_outputs, judge_all
from kopt_mcp.problem import Problem, Workload

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LOWER = {torch.float64: torch.float32, torch.float32: torch.float16, torch.float16: torch.bfloat16}


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def verdict(
    out: torch.Tensor,
    ref64: torch.Tensor,
    ref_lp: torch.Tensor | None = None,
    terms: torch.Tensor | None = None,
    length: float = 0.0,
    precision: str = "ieee",
    moved: torch.Tensor | None = None,
) -> Verdict:
    low = ref64.to(out.dtype) if ref_lp is None else ref_lp
    return judge(out, expect(ref64, low, ref64 if moved is None else moved, terms, length, 4.0, precision))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_itself_rounded_to_the_type_passes(dtype: torch.dtype) -> None:
    ref = normal(64, 64)
    result = verdict(ref.to(dtype), ref)
    assert result.status == "PASSED"
    assert result.error_ratio is not None
    assert result.error_ratio <= 1


@pytest.mark.parametrize("dtype", LOWER)
def test_one_precision_step_down_fails(dtype: torch.dtype) -> None:
    ref = normal(64, 64)
    assert verdict(ref.to(LOWER[dtype]).to(dtype), ref).status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_few_units_in_the_last_place_pass(dtype: torch.dtype) -> None:
    ref = normal(64, 64)
    near = ref * (1 + torch.finfo(dtype).eps / 2 * torch.sign(normal(64, 64, seed=2)))
    assert verdict(near.to(dtype), ref).status == "PASSED"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e6, 0.0])
def test_one_wrong_element_fails_whatever_it_holds(value: float) -> None:
    ref = normal(64, 64).abs() + 1
    out = ref.float()
    out[13, 17] = value
    result = verdict(out, ref)
    assert result.status == "INCORRECT_NUMERICAL"
    assert result.where == (13, 17)
    assert result.expected == pytest.approx(float(ref[13, 17]))


def test_nan_never_passes_even_where_the_reference_rounds_to_nothing() -> None:
    assert verdict(torch.full((4,), math.nan), torch.zeros(4, dtype=torch.float64)).status == "INCORRECT_NUMERICAL"


def test_a_reference_that_is_nan_is_an_error_of_the_problem_and_no_wildcard() -> None:
    with pytest.raises(BadReference, match="not finite"):
        verdict(torch.zeros(3), torch.tensor([1.0, math.nan, 2.0], dtype=torch.float64))


def test_an_output_may_overflow_only_where_the_reference_does_in_its_own_type() -> None:
    ref = normal(64, 64).abs() + 1
    low = ref.to(torch.float16)
    low[3] = math.nan
    low[5] = math.inf
    assert verdict(low, ref, low).status == "PASSED", "the reference's own output"
    assert verdict(ref.to(torch.float16), ref, low).status == "PASSED", "one that avoids it"
    for row, value in ((4, math.nan), (4, math.inf), (3, 0.0)):
        out = low.clone()
        out[row] = value
        assert verdict(out, ref, low).status == "INCORRECT_NUMERICAL"


def test_a_plain_sum_of_values_in_order_is_right_and_one_in_tf32_is_not() -> None:
    """A chain of float32 additions was refused on an H200, where the reference adds in another order."""
    problem = Problem(
        name="product",
        reference=lambda a, b: (a.double() @ b.double()).to(a.dtype),
        inputs=lambda make, m, n, k: (make.normal(m, k), make.normal(k, n)),
        workloads=[Workload({"m": 67, "n": 131, "k": 127}, "float32")],
        bytes="4 * (m * k + k * n + m * n)",
        flops="2 * m * n * k",
        bound="compute",
        precision="ieee",
        reduction="k",
        scale=lambda a, b: (a.square() @ b.square()).sqrt(),
    )
    case = problem.case(problem.workloads[0])
    a, b = draw(case.inputs, case.literals, 3, "cpu", "sorted").args
    chain = torch.zeros(67, 131)
    for k in range(127):
        chain = (chain.double() + a[:, k : k + 1].double() * b[k : k + 1].double()).float()
    expected = expected_outputs(problem, case, 3, "cpu", "sorted")
    assert judge_all([chain], expected).status == "PASSED"
    lower = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a.contiguous(), b.contiguous())]
    assert judge_all([lower[0] @ lower[1]], expected).status == "INCORRECT_NUMERICAL"


def test_a_reference_beyond_the_types_range_is_an_error_of_the_problem() -> None:
    with pytest.raises(BadReference, match=r"range of torch\.float16"):
        verdict(torch.zeros(2, dtype=torch.float16), torch.tensor([1.0, 1e6], dtype=torch.float64))


def test_a_systematic_bias_within_every_elements_allowance_fails_by_the_root_mean_square() -> None:
    ref = normal(256, 256).abs() + 1
    out = (ref * (1 + 8.0 * 2.0**-24)).float()
    result = verdict(out, ref)
    assert result.status == "INCORRECT_NUMERICAL"
    assert "root mean square" in result.detail


def test_small_outputs_flushed_to_zero_fail_although_the_large_ones_are_right() -> None:
    ref = torch.cat([normal(4096), normal(4096) * 1e-3])
    base = ref.float() + torch.cat([torch.full((4096,), 2e-3), torch.zeros(4096)])
    out = torch.cat([ref[:4096].float(), torch.zeros(4096)])
    result = verdict(out, ref, ref_lp=base)
    assert result.status == "INCORRECT_NUMERICAL"
    assert "one magnitude" in result.detail


def test_zeros_fail_however_small_the_outputs_are() -> None:
    ref = torch.softmax(normal(8, 4096), dim=-1) * 1e-6
    assert verdict(torch.zeros(8, 4096), ref).status == "INCORRECT_NUMERICAL"


def test_a_sum_that_cancels_is_judged_by_what_was_added_up() -> None:
    a, b = normal(64, 4096), normal(4096, 64, seed=2)
    ref = a.float().double() @ b.float().double()
    terms = (a.square() @ b.square()).sqrt()
    out = sum(x @ y for x, y in zip(a.float().split(512, dim=1), b.float().split(512, dim=0), strict=True))
    assert isinstance(out, torch.Tensor)
    assert verdict(out, ref, ref.float(), terms, 4096).status == "PASSED"
    assert verdict(out, ref, ref.float()).status == "INCORRECT_NUMERICAL"


def _tf32(x: torch.Tensor) -> torch.Tensor:
    return ((x.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(("precision", "status"), [("ieee", "INCORRECT_NUMERICAL"), ("tf32", "PASSED")])
def test_tf32_passes_only_where_the_problem_allows_it(precision: str, status: str) -> None:
    a, b = normal(64, 512).float(), normal(512, 64, seed=2).float()
    ref, terms = a.double() @ b.double(), (a.double().square() @ b.double().square()).sqrt()
    out = (_tf32(a).double() @ _tf32(b).double()).float()
    assert verdict(out, ref, a @ b, terms, 512, precision).status == status


def test_even_tf32_does_not_allow_bfloat16() -> None:
    a, b = normal(64, 512).float(), normal(512, 64, seed=2).float()
    ref, terms = a.double() @ b.double(), (a.double().square() @ b.double().square()).sqrt()
    out = (a.bfloat16().double() @ b.bfloat16().double()).float()
    assert verdict(out, ref, a @ b, terms, 512, "tf32").status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize("shape", [(1,), (5, 1), (1, 5), (25,), (5, 5, 1), ()])
def test_a_shape_that_would_broadcast_fails(shape: tuple[int, ...]) -> None:
    assert verdict(torch.ones(shape), torch.ones(5, 5, dtype=torch.float64), torch.ones(5, 5)).status == (
        "INCORRECT_SHAPE"
    )


def test_another_dtype_fails_even_where_the_values_are_better() -> None:
    ref = normal(5, 5)
    result = verdict(ref, ref, ref.float())
    assert result.status == "INCORRECT_DTYPE"
    assert result.detail == "dtype float64, expected float32"


def test_an_empty_output_passes_only_where_it_must_be_empty() -> None:
    empty = torch.empty(0, 4, dtype=torch.float64)
    assert verdict(empty.float(), empty).status == "PASSED"
    assert verdict(empty.float(), normal(1, 4), normal(1, 4).float()).status == "INCORRECT_SHAPE"


def test_integers_must_be_equal() -> None:
    ref = torch.arange(12).reshape(3, 4)
    assert verdict(ref.clone(), ref).status == "PASSED"
    wrong = ref.clone()
    wrong[2, 1] += 1
    result = verdict(wrong, ref)
    assert result.status == "INCORRECT_NUMERICAL"
    assert (result.where, result.got, result.expected) == ((2, 1), 10.0, 9.0)


def test_booleans_must_be_equal() -> None:
    ref = torch.tensor([True, False, True])
    assert verdict(ref.clone(), ref).status == "PASSED"
    assert verdict(~ref, ref).status == "INCORRECT_NUMERICAL"


def test_a_scalar_output_is_judged_too() -> None:
    ref = torch.tensor(2.0, dtype=torch.float64)
    assert verdict(torch.tensor(2.0), ref).status == "PASSED"
    assert verdict(torch.tensor(2.1), ref).status == "INCORRECT_NUMERICAL"


def test_a_wider_factor_allows_more() -> None:
    ref = torch.full((64,), 3.0, dtype=torch.float64)
    out = ref.float()
    out[0] += 16 * 2.0**-24
    one = expect(ref, ref.float(), ref, None, 0.0, 1.0, "ieee")
    eight = expect(ref, ref.float(), ref, None, 0.0, 8.0, "ieee")
    assert judge(out, one).status == "INCORRECT_NUMERICAL"
    assert judge(out, eight).error_ratio < judge(out, one).error_ratio  # type: ignore[operator]


def expected_of(seed: int) -> Expected:
    ref = normal(3, seed=seed)
    return expect(ref, ref.float(), ref, None, 0.0, 4.0, "ieee")


def test_a_result_that_is_exact_for_inputs_off_by_a_rounding_passes() -> None:
    x = normal(64, 64)
    ref, moved = (1000 * x).sin(), (1000 * x * (1 + 2.0**-24)).sin()
    out = (1000 * x * (1 - 2.0**-24)).sin().float()
    assert verdict(out, ref).status == "INCORRECT_NUMERICAL"
    assert verdict(out, ref, moved=moved).status == "PASSED"


def test_what_hides_in_one_element_is_told_by_those_of_its_row_that_are_not_zero() -> None:
    """In the first of each row two errors have cancelled; most of a row is nothing, and says nothing."""
    ref = torch.zeros(8, 64, dtype=torch.float64)
    ref[:, ::8] = normal(8, 8).abs() + 1.0
    moved = ref * (1 + 100 * 2.0**-24)
    moved[:, 0] = ref[:, 0]
    out = (ref * (1 + 90 * 2.0**-24)).float()
    assert verdict(out, ref, moved=moved).status == "PASSED"
    assert verdict(out, ref).status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize("value", [0.0, 500.0, math.nan])
def test_where_rounding_leaves_nothing_of_most_elements_another_may_still_not_be_wrong(value: float) -> None:
    ref = normal(30, 30)
    ref[3, 0] = 1000.0
    moved = ref * 2.9
    moved[3, 0] = 1000.0
    out = ref.float()
    out[3, 0] = value
    assert verdict(out, ref, moved=moved).status == "INCORRECT_NUMERICAL"
    out[3, 0] = 1000.0
    assert verdict(out, ref, moved=moved).status == "PASSED"


def test_in_float64_the_references_own_rounding_errors_are_those_of_inputs_off_by_one() -> None:
    x = normal(1000)
    exact, moved = 1e3 * x, 1e3 * x * (1 - 2.0**-53)
    expected = expect(exact, exact, moved, None, 0.0, 4.0, "ieee")
    small = exact.abs() < 100
    twice = torch.where(small, exact * (1 + 6 * 2.0**-52), exact)
    assert judge(twice, expected).status == "PASSED", "more than four roundings of a small one, few of a large one"
    assert judge(exact.float().double(), expected).status == "INCORRECT_NUMERICAL"


def test_the_number_of_outputs_counts() -> None:
    ref = expected_of(1)
    assert judge_all([], [ref]).status == "INCORRECT_SHAPE"
    assert judge_all([normal(3).float()] * 2, [ref]).status == "INCORRECT_SHAPE"
    assert judge_all([normal(3).float()], [ref]).status == "PASSED"


def test_of_several_outputs_the_wrong_one_is_named_and_else_the_worst() -> None:
    right = [expected_of(seed) for seed in (1, 2)]
    assert judge_all([normal(3).float(), torch.zeros(3)], right).status == "INCORRECT_NUMERICAL"
    assert judge_all([normal(3).float(), normal(3, seed=2).float()], right).status == "PASSED"


def test_bounds_of_16_bits_hold_beyond_float32_too() -> None:
    huge = torch.full((512,), 1e38, dtype=torch.float64)
    zero = torch.zeros(512, dtype=torch.bfloat16)
    left_out = verdict(zero, huge, terms=10 * huge, length=1024.0)
    assert left_out.status == "INCORRECT_NUMERICAL", "terms beyond float32 do not allow everything"
    far = zero.clone()
    far[3] = 3000
    assert "infinity" not in verdict(far, zero.double()).detail
    ref = torch.randn(512, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 1e35
    ref[0] = 0.0
    low = ref.bfloat16()
    low[0] = 1e32
    right = verdict(low, ref, ref_lp=low)
    assert right.status == "PASSED"
    assert right.max_rel_error is not None
    assert math.isfinite(right.max_rel_error)
