"""What a workload's outputs must be: a reference that is called thrice, on inputs that it cannot spoil; its faults."""

import dataclasses
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator.reference import expected_outputs
from kopt_mcp.problem import Problem, ProblemError, Workload


def added(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def in_place(dtype: str) -> Problem:
    return Problem(
        name="added",
        reference=added,
        inputs=lambda make, n: [make.normal(n), make.normal(n)],
        workloads=[Workload({"n": 100}, dtype)],
        bytes="n",
        flops="n",
        bound="memory",
        mutates=(0,),
    )


def test_a_reference_that_works_in_place_leaves_no_room_for_a_kernel_that_does_nothing() -> None:
    for dtype in ("float32", "float64"):
        problem = in_place(dtype)
        (expected,) = expected_outputs(problem, problem.case(problem.workloads[0]), 1, "cpu")
        assert float(expected.sensitivity.max()) < 1e-5, dtype


def test_integers_that_a_reference_counts_up_do_not_reach_its_next_call() -> None:
    def reference(counts: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        counts += 1
        return counts * x

    problem = Problem(
        name="counted",
        reference=reference,
        inputs=lambda make, n: [make.integers(n, high=9), make.normal(n)],
        workloads=[Workload({"n": 100})],
        bytes="n",
        flops="n",
        bound="memory",
        mutates=(0,),
    )
    counts, product = expected_outputs(problem, problem.case(problem.workloads[0]), 1, "cpu")
    assert int(counts.ref64.max()) <= 9
    assert float((product.error_lp).max()) < 1e-5
    assert float(product.sensitivity.max()) < 1e-5


def wrong(**changed: Any) -> str:
    declared: dict[str, Any] = {
        "name": "wrong",
        "inputs": lambda make, n: [make.normal(n, 4)],
        "workloads": [Workload({"n": 4})],
        "bytes": "n",
        "flops": "n",
        "bound": "memory",
    }
    problem = Problem(**{**declared, **changed})
    with pytest.raises(ProblemError) as refusal:
        expected_outputs(problem, problem.case(problem.workloads[0]), 1, "cpu")
    return str(refusal.value)


def test_a_reference_that_fails_is_named_with_its_line() -> None:
    def reference(x: torch.Tensor) -> Any:
        return x.softmux(-1)  # type: ignore[attr-defined]

    line = reference.__code__.co_firstlineno + 1
    assert f"Problem.reference fails: line {line}: AttributeError: " in wrong(reference=reference)


def test_a_reference_with_constants_in_its_own_type_is_told_of_float64() -> None:
    said = wrong(reference=lambda x: x @ torch.ones(4, 4))
    assert "fails on float64 inputs, with which the expected outputs are computed" in said
    assert "RuntimeError" in said


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: None, "Problem.reference returns nothing"),
        (lambda x: float(x.sum()), "Problem.reference returns a float;"),
        (lambda x: {"sum": x.sum()}, "Problem.reference returns a dict;"),
        (lambda x: torch.fft.fft(x), "torch.view_as_real"),
    ],
)
def test_a_reference_must_return_real_tensors(returned: Any, words: str) -> None:
    assert words in wrong(reference=returned)


def test_a_scale_that_fails_is_named() -> None:
    assert "Problem.scale fails" in wrong(reference=lambda x: x.sum(-1), scale=lambda x, y: x, reduction="n")


def test_a_reference_that_draws_random_numbers_is_refused_unless_they_are_the_same_each_time() -> None:
    assert "draws random numbers" in wrong(reference=lambda x: x + torch.rand_like(x))

    def seeded(x: torch.Tensor) -> torch.Tensor:
        weights = torch.randn(4, 4, generator=torch.manual_seed(7))
        return x @ weights.to(x.dtype)

    problem = in_place("float32")
    problem = dataclasses.replace(problem, reference=seeded, inputs=lambda make, n: [make.normal(n, 4)], mutates=())
    (expected,) = expected_outputs(problem, problem.case(problem.workloads[0]), 1, "cpu")
    assert float(expected.error_lp.max()) < 1e-5
