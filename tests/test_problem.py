"""What a problem declares, and what each wrong field is told."""

from typing import Any

import pytest
import torch

from kopt_mcp.problem import Make, Problem, ProblemError, Spec, Tolerance, Workload

RIGHT: dict[str, Any] = {
    "name": "row-sum",
    "reference": lambda x: x.sum(dim=-1),
    "inputs": lambda make, rows, cols: [make.normal(rows, cols)],
    "workloads": [Workload({"rows": 4, "cols": 8}), Workload({"rows": 2, "cols": 3}, "float16", ("cuda",))],
    "bytes": "rows * cols * itemsize + rows * itemsize",
    "flops": "rows * cols",
    "bound": "memory",
}


def problem(**changed: Any) -> Problem:
    return Problem(**{**RIGHT, **changed})


def test_a_problem_knows_its_cost_and_its_entry() -> None:
    made = problem()
    case = made.case(made.workloads[0])
    assert (made.entry, case.bytes, case.flops) == ("row_sum", (32 + 4) * 4, 32)
    assert case.inputs == (Spec("normal", (4, 8), "float32", {"scale": 1.0, "shift": 0.0}),)
    assert made.case(made.workloads[1]).bytes == (6 + 2) * 2


def test_numbers_texts_none_and_lists_of_these_are_arguments_too() -> None:
    given = [1, 0.5, True, "tanh", None, [1, 2], (3, (4,))]
    made = problem(inputs=lambda make, rows, cols: [make.normal(rows, cols), *given], mutates=(0,))
    assert list(made.case(made.workloads[0]).inputs[1:]) == given


def test_single_params_can_be_replaced() -> None:
    made = problem()
    case = made.case(made.workloads[0], rows=7)
    assert case.params == {"rows": 7, "cols": 8}
    assert case.inputs[0].shape == (7, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"workloads": []}, "Problem.workloads is empty"),
        ({"workloads": [Workload({"rows": 1, "cols": 1}, name="a")] * 2}, r"two workloads named \['a'\]"),
        ({"distributions": ["normal", "odd"]}, r"Problem.distributions holds \['odd'\]"),
        ({"layouts": ["diagonal"]}, r"Problem.layouts holds \['diagonal'\]"),
        ({"bound": "disk"}, "Problem.bound is 'disk'"),
        ({"bytes": "rows * depth"}, "Problem.bytes uses 'depth', which is not a param"),
        ({"bytes": "rows *"}, "Problem.bytes = 'rows \\*' is not a formula"),
        ({"bytes": "rows / 0"}, "is not a formula"),
        ({"bytes": "-rows"}, "gives -4; expected a number of at least 0"),
        ({"bytes": "1e400 * rows"}, "gives inf"),
        ({"bytes": "'a' * rows"}, "expected a number"),
        ({"flops": "__import__('os').getpid()"}, "Problem.flops uses '__import__'"),
        ({"flops": "rows.__class__"}, "gives <class 'int'>"),
        ({"inputs": lambda make, rows: []}, "Problem.inputs failed for workload '4x8-fp32'"),
        ({"inputs": lambda make, rows, cols: {}["a"]}, "Problem.inputs failed .*: KeyError: 'a'"),
        ({"inputs": lambda make, rows, cols: make.normal(rows)}, "Problem.inputs returns a Spec .*; expected a list"),
        ({"inputs": lambda make, rows, cols: None}, "Problem.inputs returns a NoneType"),
        ({"inputs": lambda make, rows, cols: [torch.ones(rows)]}, r"argument 0 is a Tensor .*make.literal"),
        ({"inputs": lambda make, rows, cols: [1, torch.float16]}, "argument 1 is a dtype"),
        ({"inputs": lambda make, rows, cols: [make.integers(2, low=5, high=5)]}, "no such integers"),
        ({"inputs": lambda make, rows, cols: [make.integers(2, high=256, dtype="int8")]}, r"within \[-128, 128\]"),
        ({"inputs": lambda make, rows, cols: [make.integers(2, high=3, dtype="bool")]}, r"within \[0, 2\]"),
        ({"workloads": Workload({"rows": 1, "cols": 1})}, "Problem.workloads is Workload.*; expected a list"),
        ({"workloads": [{"rows": 1, "cols": 1}]}, r"Problem.workloads is \[\{.*; expected a list of Workload"),
        ({"mutates": 0}, r"Problem.mutates is 0; expected positions of inputs, as in \(0,\)"),
        ({"mutates": (1,)}, "Problem.mutates names input 1; there are 1, counted from 0"),
        ({"scratch": (-1,)}, "Problem.scratch names input -1"),
        ({"arguments": ("in0", "out0", "depth")}, r"Problem.arguments names 'depth'.*\['cols', 'in0', 'rows'\]"),
        ({"tolerance": 1e-3}, "Problem.tolerance is 0.001; expected a Tolerance for a dtype"),
        ({"tolerance": {"float32": 1e-3}}, "Problem.tolerance is .* in rounding errors"),
        ({"vary": {"rows": 8}}, r"Problem.vary\['rows'\] is 8; expected \(lowest, highest\)"),
        ({"vary": {"rows": (8, 1)}}, "the lower one first"),
        ({"bytes": 1024}, "Problem.bytes is 1024; expected a formula as a text"),
        ({"inputs": lambda make, rows, cols: [make.normal((rows, cols))]}, "given one by one"),
        ({"inputs": lambda make, rows, cols: [make.normal(-rows)]}, "non-negative integers"),
        ({"inputs": lambda make, rows, cols: [make.normal(rows, dtype="float4")]}, "dtype 'float4' is not known"),
    ],
    ids=lambda v: "" if isinstance(v, dict) else v[:30],
)
def test_a_wrong_field_is_named_with_what_was_expected(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ProblemError, match=words):
        problem(**changed)


def test_a_workload_says_which_device_it_does_not_know() -> None:
    with pytest.raises(ProblemError, match=r"Workload.devices holds \['tpu'\]"):
        Workload({"n": 1}, devices=("tpu",))
    with pytest.raises(ProblemError, match="dtype 'fp8' is not known"):
        Workload({"n": 1}, "fp8")


@pytest.mark.parametrize("factor", [0.0, -1.0, 65.0, float("nan")])
def test_a_tolerance_that_would_accept_anything_or_nothing_is_refused(factor: float) -> None:
    with pytest.raises(ProblemError, match=r"Tolerance\.factor"):
        Tolerance(factor)


def test_workloads_are_chosen_by_device_and_by_name() -> None:
    made = problem()
    assert [w.name for w in made.for_device("cpu")] == ["4x8-fp32"]
    assert [w.name for w in made.for_device("cuda", ["2x3-fp16"])] == ["2x3-fp16"]
    with pytest.raises(ProblemError, match="has no cpu workload '2x3-fp16'"):
        made.for_device("cpu", ["2x3-fp16"])
    with pytest.raises(ProblemError, match="has no workload for cpu"):
        problem(workloads=[Workload({"rows": 1, "cols": 1}, devices=("cuda",))]).for_device("cpu")


def test_tolerances_and_reduction_lengths_have_defaults() -> None:
    made = problem(tolerance={"float16": Tolerance(8)}, reduction="max(rows, ceil(cols / 2)) + log2(cols)")
    assert made.tolerance_for("float16").factor == 8
    assert made.tolerance_for("float32").factor == 4
    assert made.reduction_length({"rows": 2, "cols": 8}) == 7
    assert problem().reduction_length({"rows": 2}) == 0


def test_a_problem_without_large_values_has_no_single_large_row_either() -> None:
    assert problem(distributions=["normal", "mixed", "sorted"]).distributions == ("normal", "sorted")


def test_recipes_of_every_kind_are_described() -> None:
    make = Make("float16")
    table = torch.arange(3, dtype=torch.int32)
    assert make.uniform(2, low=1.0, high=3.0) == Spec("uniform", (2,), "float16", {"low": 1.0, "high": 3.0})
    assert make.integers(4, high=9) == Spec("integers", (4,), "int64", {"low": 0, "high": 9})
    assert make.literal(table) == Spec("literal", (3,), "int32", {"index": 0})
    assert make.literals[0].equal(table)
