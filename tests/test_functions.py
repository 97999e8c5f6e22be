"""Plain functions as a problem: reference by name, workloads by shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evaluating import evaluate, running_evaluator

from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.problem import Make, Problem, ProblemError, Spec
from kopt_mcp.problems import source
from kopt_mcp.problems.functions import inputs_of, place, recognised
from kopt_mcp.problems.loaders.functions import load

KERNEL = """
import torch


def softmax(x):
    e = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return e / e.sum(dim=-1, keepdim=True)
"""


def problem(reference: str, *shapes: str, dtypes: tuple[str, ...] = ("float32",), path: Path = Path()) -> Problem:
    return load(path, reference=reference, shapes=list(shapes), dtypes=list(dtypes), entry="softmax")


def test_a_function_of_torch_is_the_reference_and_bytes_are_inputs_and_outputs() -> None:
    made = problem("torch:softmax(dim=-1)", "64x128", "3x5", dtypes=("float32", "bfloat16"))
    assert [w.name for w in made.workloads] == ["64x128-fp32", "64x128-bf16", "3x5-fp32", "3x5-bf16"]
    assert [made.case(w).bytes for w in made.workloads] == [65536.0, 32768.0, 120.0, 60.0]
    assert [made.case(w).flops for w in made.workloads] == [0.0] * 4
    assert made.entry == "softmax"


def test_inputs_may_have_their_own_types_and_be_plain_values() -> None:
    make = Make("float16")
    assert inputs_of("4x8, 4:int64<8,16:float32,=1e-5,=true,='sum'", "float16") == (
        "float16",
        [make.normal(4, 8), make.integers(4, high=8), make.normal(16, dtype="float32"), 1e-5, True, "sum"],
    )


def test_without_dtypes_a_workload_is_of_its_first_floating_tensors_type() -> None:
    made = load(Path(), reference="torch:mul", shapes=["8:bfloat16,8", "8,8"], dtypes=[], entry="mul")
    assert [(w.dtype, w.name) for w in made.workloads] == [
        ("bfloat16", "8:bfloat16_8-bf16"),
        ("float32", "8_8-fp32"),
    ]


def test_indices_are_drawn_below_their_end() -> None:
    made = problem("torch.nn.functional:embedding", "7:int64<10,10x4")
    index, table = made.case(made.workloads[0]).inputs
    assert isinstance(index, Spec)
    assert isinstance(table, Spec)
    assert (index.kind, index.dtype, index.args) == ("integers", "int64", {"low": 0, "high": 10})
    assert made.case(made.workloads[0]).bytes == 7 * 8 + 40 * 4 + 28 * 4


def test_a_function_that_needs_values_is_called_on_zeros(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text("def f(x):\n    return x[: int(x.sum()) + 2]\n")
    made = problem("ref.py:f", "4x8", path=tmp_path / "ref.py")
    assert made.case(made.workloads[0]).bytes == 4 * 8 * 4 + 2 * 8 * 4


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no function": ({"reference": "torch"}, "names no function; expected module:function or file.py:function"),
    "a literal that is none": ({"reference": "torch:softmax(dim=x)"}, "arguments cannot be read"),
    "an argument without a name": ({"reference": "torch:softmax(1)"}, "expected named arguments only"),
    "an expression": ({"reference": "torch:softmax(dim=-1).exec()"}, "names no function|cannot be read"),
    "no shape": ({"shapes": []}, "given without shapes"),
    "no size": ({"shapes": ["4096xN"]}, "'4096xN' is no input"),
    "a dtype in a shape": ({"shapes": ["4:half"]}, "dtype 'half' is not known"),
    "a dtype": ({"dtypes": ["fp32"]}, "dtype 'fp32' is not known"),
    "integers without an end": ({"shapes": ["4:int64"]}, "integers need their upper end"),
    "an end of a float": ({"shapes": ["4:float32<3"]}, "only integers have an upper end"),
    "an empty range": ({"shapes": ["4:int64<0"]}, "integers need their upper end"),
    "too large": ({"shapes": ["999999999x999999999"]}, "has more than"),
    "a value that is none": ({"shapes": ["4,=[1]"]}, "is no plain value"),
    "a file that is not there": ({"reference": "nowhere.py:f"}, "'nowhere.py' does not exist"),
    "a command": ({"reference": "os:system", "shapes": ["='touch written'"]}, "is of Python's own library"),
    "a text alone": ({"reference": "numpy.testing:runstring", "shapes": ["='x = 1'"]}, "begins with a plain value"),
    "a kernel in C": ({"kernel": Path("k.c")}, "order of a C function's arguments"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_quoted_with_what_was_expected(name: str, tmp_path: Path) -> None:
    changed, why = WRONG[name]
    arguments: dict[str, Any] = {
        "reference": "torch:softmax(dim=-1)",
        "shapes": ["4x8"],
        "dtypes": [],
        "entry": "softmax",
        "root": tmp_path,
        "kernel": tmp_path / "softmax.py",
    }
    with pytest.raises(ProblemError, match=why):
        recognised(**{**arguments, **changed})


@pytest.mark.parametrize(
    ("reference", "shape", "why"),
    [
        ("torch:no_such_thing", "4", "torch has no function 'no_such_thing'"),
        ("no_such_module:f", "4", "the module 'no_such_module' does not load"),
        ("torch:softmax", "4", r"does not take the inputs '4': TypeError: .*or give it arguments"),
        ("torch:is_floating_point", "4", "the reference returns bool for the inputs '4'; expected tensors"),
        ("torch:save(f='written')", "4", "none of torch's operations on tensors"),
        ("torch.serialization:save", "4,='written'", "none of torch's operations on tensors"),
    ],
)
def test_a_reference_that_cannot_be_used_is_named(reference: str, shape: str, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        problem(reference, shape)


def test_a_reference_of_the_project_is_a_file_of_the_problem(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "ref.py").write_text("def f(x):\n    return x\n")
    kernel = tmp_path / "k.py"
    for reference in ("pkg/ref.py:f", "pkg.ref:f"):
        found = recognised(reference, ["4"], [], "f", tmp_path, kernel)
        assert found.files == (tmp_path / "pkg" / "ref.py",)
    assert recognised("torch:abs", ["4"], [], "f", tmp_path, kernel).files == ()
    assert place("pkg.ref:f(dim=[1, 2])").arguments == {"dim": [1, 2]}


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


def test_functions_are_judged_as_any_problem_is(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    kernel = tmp_path / "softmax.py"
    kernel.write_text(KERNEL)
    found = recognised("torch:softmax(dim=-1)", ["3x257", "64x128"], [], "softmax", tmp_path, kernel)
    file = tmp_path / "problem.py"
    file.write_text(source(found, tmp_path))
    assert evaluate(evaluator, kernel, file).status == "PASSED"
    timed = evaluate(evaluator, kernel, file, "benchmark", kernel, workloads=("64x128-fp32",))
    assert (timed.status, timed.trust) == ("PASSED", "measured")
    kernel.write_text(KERNEL.replace("x - x.max(dim=-1, keepdim=True).values", "x"))
    assert evaluate(evaluator, kernel, file).status == "INCORRECT_NUMERICAL"
