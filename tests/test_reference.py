"""What a workload's outputs must be: the reference called thrice, on inputs that it cannot spoil, and its own faults."""

import torch

from kopt_mcp.evaluator.reference import expected_outputs
from kopt_mcp.problem import Problem, Workload


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
