"""The test of the test: wrong implementations that a problem must catch."""

from typing import Any

import pytest
import torch
from evaluating import PROBLEMS

from kopt_mcp.evaluator import mutants
from kopt_mcp.evaluator.compare import BadReference
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.records import Mutant
from kopt_mcp.evaluator.reference import expected_outputs
from kopt_mcp.problem import Problem, Tolerance, Workload


def check(problem: Problem) -> dict[str, Mutant]:
    cases = [problem.case(w) for w in problem.for_device("cpu")]
    return {m.name: m for m in mutants.check(problem, cases, "cpu")}


def problem(**changed: Any) -> Problem:
    declared: dict[str, Any] = {
        "name": "twice",
        "reference": lambda x: 2 * x,
        "inputs": lambda make, n: [make.normal(8, n)],
        "workloads": [Workload({"n": 64})],
        "bytes": "n",
        "flops": "n",
        "bound": "memory",
    }
    return Problem(**{**declared, **changed})


@pytest.mark.parametrize("name", ["softmax", "matmul", "row_sum", "scaled_add", "softmax_c"])
def test_a_sound_problem_catches_every_mutant(name: str) -> None:
    file = PROBLEMS / f"{name}.py"
    found = check(load_problem(file.read_bytes(), str(file)))
    assert {m.name for m in found.values() if not m.caught} == set()
    assert {"zeros", "NaN", "stale output", "one precision lower"} <= set(found)


def test_an_operation_that_does_next_to_nothing_lets_its_input_through() -> None:
    found = check(problem(reference=lambda x: x * 1.0023, workloads=[Workload({"n": 64}, "bfloat16")]))
    assert not found["input returned"].caught
    assert "hardly differ from an input" in found["input returned"].why


def test_constant_inputs_make_a_stale_output_right() -> None:
    table = torch.linspace(1, 2, 64).expand(8, 64)
    found = check(problem(inputs=lambda make, n: [make.literal(table)]))
    assert "stale output" not in found, "equal to the right output: nothing to catch, and nothing caught"


def test_a_tolerance_wider_than_the_next_type_is_told_so() -> None:
    found = check(
        problem(
            workloads=[Workload({"n": 4}, "bfloat16")],
            tolerance={"bfloat16": Tolerance(64)},
        )
    )
    assert not found["one precision lower"].caught
    assert "lower Tolerance.factor" in found["one precision lower"].why


def test_a_problem_that_updates_in_place_is_not_offered_its_input_back() -> None:
    def reference(x: torch.Tensor) -> None:
        x.mul_(2)

    assert "input returned" not in check(problem(reference=reference, mutates=(0,)))


def test_what_a_reference_updates_in_place_is_no_measure_of_rounding() -> None:
    """In float64 nothing has to be widened: the copies that rounding is judged by must be copies all the same."""
    file = PROBLEMS / "step_double.py"
    step = load_problem(file.read_bytes(), str(file))
    (expected,) = expected_outputs(step, step.case(step.workloads[0]), 5, "cpu")
    assert float(expected.sensitivity.max()) < 1e-14
    assert all(m.caught for m in check(step).values())


def test_integer_outputs_have_mutants_too() -> None:
    found = check(problem(reference=lambda x: x.argsort(dim=-1)))
    assert found["zeros"].caught
    assert "NaN" not in found


def test_an_operation_whose_rows_have_one_element_leaves_none_out() -> None:
    found = check(problem(inputs=lambda make, n: [make.normal(n, 1)]))
    assert not {"off by one", "99 % of the work"} & set(found), "they would be right"
    assert all(m.caught for m in found.values())
    assert "zeros" in found


def test_elements_are_left_out_of_the_first_input_that_has_some() -> None:
    found = check(problem(inputs=lambda make, n: [2, make.normal(8, n)], reference=lambda factor, x: factor * x))
    assert found["off by one"].caught
    assert found["99 % of the work"].caught


def test_a_single_number_has_no_rows_and_columns_to_drop() -> None:
    found = check(problem(reference=lambda x: x.sum()))
    assert not {"last row dropped", "last columns dropped", "input returned"} & set(found)
    assert found["zeros"].caught
    assert found["stale output"].caught


def test_a_reference_that_is_nan_on_ordinary_inputs_names_the_workload() -> None:
    with pytest.raises(BadReference, match="workload '64-fp32': the float64 reference is not finite"):
        check(problem(reference=lambda x: x.sqrt()))
