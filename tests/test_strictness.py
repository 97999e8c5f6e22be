"""Where a problem refuses a kernel that may be right, what its owner is told to look at."""

import pytest

from kopt_mcp.evaluator.records import Evaluation, WorkloadResult
from kopt_mcp.evaluator.strictness import too_strict


def refused(detail: str, ratio: float | None = None, status: str = "INCORRECT_NUMERICAL") -> Evaluation:
    result = WorkloadResult("w", status, f"w, {detail}", ratio)  # type: ignore[arg-type]
    return Evaluation(status, result.detail, (result,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("detail", "ratio", "words"),
    [
        ("equal values: 320 of 320 elements differ", None, "if they are ties"),
        ("normally distributed values: 1 of 9900 elements differ", None, "lie between two integers"),
        ("normally distributed values: 1 of 4 elements differ", None, "lie between two integers"),
        ("normally distributed values: 23 of 64 elements beyond the allowed error", 6.3, "reduction (its length)"),
    ],
)
def test_a_refusal_that_may_be_the_problems_fault_says_what_to_look_at(
    detail: str, ratio: float | None, words: str
) -> None:
    assert words in too_strict(refused(detail, ratio))


@pytest.mark.parametrize(
    ("detail", "ratio"),
    [
        ("normally distributed values: 320 of 320 elements differ", None),
        ("normally distributed values: 64 of 64 elements beyond the allowed error", 1e6),
        ("normally distributed values: 64 of 64 elements beyond the allowed error", None),
    ],
)
def test_a_kernel_that_is_simply_wrong_is_no_fault_of_the_problem(detail: str, ratio: float | None) -> None:
    assert too_strict(refused(detail, ratio)) == ""


def test_only_wrong_numbers_can_be_a_matter_of_strictness() -> None:
    assert too_strict(refused("equal values: 320 of 320 elements differ", status="INCORRECT_SHAPE")) == ""
    assert too_strict(Evaluation("INCORRECT_NUMERICAL", "1 of 9900 elements differ")) == ""
