"""AutoKernel's kernels: their type says which of our problems they must solve, and they say nothing else of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from evaluating import running_evaluator
from tasks import Task, load, written

from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition, autokernel, recognise
from kopt_mcp.problems.loaders import executed
from kopt_mcp.problems.reading import Unlike

SOFTMAX = """
KERNEL_TYPE = "softmax"
MODEL_SHAPES = {"rows": 40, "cols": 96}
TEST_SIZES = [("model_primary", {"rows": 40, "cols": 96}), ("model_half", {"rows": 20, "cols": 48})]

import torch

def kernel_fn(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), dim=-1).to(x.dtype)
"""
LOSS = """
KERNEL_TYPE = "cross_entropy"
import torch

def kernel_fn(logits, targets):
    return torch.nn.functional.cross_entropy(logits.float(), targets)
"""
ROTARY = """
KERNEL_TYPE = "rotary_embedding"
import torch

def kernel_fn(x, cos, sin):
    wide = x.float() if x.dtype != torch.float64 else x
    even, odd = wide[..., ::2], wide[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)
"""


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


def task(evaluator: LocalEvaluator, folder: Path, text: str) -> Task:
    return Task(evaluator, written(folder, {"kernel.py": text}) / "kernel.py", folder)


def answer(folder: Path, text: str) -> Recognition:
    return autokernel.recognise(written(folder, {"kernel.py": text}) / "kernel.py")


def test_a_kernel_is_recognised_by_its_type_and_is_no_part_of_the_task(tmp_path: Path) -> None:
    found = recognise(written(tmp_path, {"kernel.py": SOFTMAX}) / "kernel.py")
    assert (found.format, found.name, found.missing) == ("autokernel", "autokernel-softmax", ())
    assert (found.files, found.kernel) == ((), tmp_path / "kernel.py")
    assert found.options["shapes"] == [{"rows": 40, "cols": 96}, {"rows": 20, "cols": 48}]


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        (
            '"softmax"',
            '"conv2d"',
            "KERNEL_TYPE is 'conv2d', for which there is no problem; expected one of matmul, softmax",
        ),
        ('"softmax"', "TYPES[0]", "KERNEL_TYPE is 'None'"),
        ("def kernel_fn", "def kernel", "kernel.py defines no kernel_fn"),
        (
            "import torch\n",
            "import torch\nfrom kernels.cuda._compile import compile_cuda\n",
            "in none of the folders above",
        ),
    ],
)
def test_a_kernel_that_has_no_problem_is_told_what_is_missing(tmp_path: Path, old: str, new: str, missing: str) -> None:
    found = answer(tmp_path, SOFTMAX.replace(old, new))
    assert missing in found.missing[0]


def test_a_file_without_a_type_is_no_kernel_of_theirs(tmp_path: Path) -> None:
    with pytest.raises(Unlike, match="assigns no KERNEL_TYPE"):
        answer(tmp_path, "import torch\n")


@pytest.mark.parametrize(
    "shapes", ["{'rows': 4}", "{'rows': 'x', 'cols': 2}", "{'rows': 0, 'cols': 2}", "3", "__import__('os')", "[[]]"]
)
def test_shapes_that_are_none_are_left_out(tmp_path: Path, shapes: str) -> None:
    text = SOFTMAX.replace('{"rows": 40, "cols": 96}\n', f"{shapes}\n").replace("TEST_SIZES =", "SIZES =")
    found = answer(tmp_path, text)
    assert found.options["shapes"] == []


@pytest.mark.parametrize("kind", autokernel.TYPES)
def test_every_type_has_a_problem_that_is_called_as_autokernel_calls_it(tmp_path: Path, kind: str) -> None:
    folder = written(tmp_path, {"kernel.py": f"KERNEL_TYPE = {kind!r}\ndef kernel_fn(): ...\n"})
    problem = load(folder / "kernel.py")
    assert (problem.entry, problem.adapter, tuple(problem.layouts)) == ("kernel_fn", "autokernel", ("contiguous",))
    assert problem.for_device("cpu")
    assert problem.for_device("cuda")


def test_a_models_shapes_come_first(tmp_path: Path) -> None:
    problem = load(written(tmp_path, {"kernel.py": SOFTMAX}) / "kernel.py")
    assert [w.name for w in problem.workloads][:2] == ["40x96-fp16", "20x48-fp16"]


def test_a_type_that_changed_since_is_refused_not_followed(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    taken = task(evaluator, tmp_path, SOFTMAX)
    done = taken.verify(SOFTMAX.replace('"softmax"', '"reduce"'))
    assert done.status == "COMPILE_ERROR"
    assert "KERNEL_TYPE is 'reduce'; the problem is 'softmax'" in done.detail


def test_a_right_kernel_passes_and_a_wrong_one_does_not(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    taken = task(evaluator, tmp_path, SOFTMAX)
    assert taken.weaknesses() == []
    assert taken.verify(SOFTMAX).status == "PASSED"
    assert taken.verify(SOFTMAX.replace("dim=-1", "dim=0")).status == "INCORRECT_NUMERICAL"


def test_their_loss_is_one_number(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    taken = task(evaluator, tmp_path, LOSS)
    assert taken.verify(LOSS).status == "PASSED"
    rows = LOSS.replace("targets)\n", "targets, reduction='none')\n")
    assert taken.verify(rows).status == "INCORRECT_SHAPE"


def test_their_pairs_are_neighbours(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    taken = task(evaluator, tmp_path, ROTARY)
    assert taken.weaknesses() == []
    assert taken.verify(ROTARY).status == "PASSED"
    halves = ROTARY.replace("wide[..., ::2], wide[..., 1::2]", "wide.chunk(2, dim=-1)")
    assert taken.verify(halves).status == "INCORRECT_NUMERICAL"


def test_the_compile_helper_lies_beside_a_kernel_that_imports_it(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    helper = {"kernels/cuda/_compile.py": "def compile_cuda(source, name):\n    return source\n"}
    text = SOFTMAX.replace("import torch\n", "import torch\nfrom kernels.cuda._compile import compile_cuda\n", 1)
    folder = written(tmp_path, {**helper, "workspace/kernel.py": text})
    taken = Task(evaluator, folder / "workspace/kernel.py", tmp_path)
    assert taken.verify(text).status == "PASSED"
    (folder / "kernels/cuda/_compile.py").write_text("raise ValueError\n")
    with pytest.raises(Exception, match=r"_compile\.py was [0-9a-f]{12} when the task was taken in"):
        executed(taken.file)


def test_the_reference_of_neighbours_agrees_with_halves(tmp_path: Path) -> None:
    problem = load(written(tmp_path, {"kernel.py": ROTARY}) / "kernel.py")
    x = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
    turned = problem.reference(x, torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    assert turned.flatten().tolist() == [-2.0, 1.0, 3.0, 4.0]


def test_a_type_that_is_not_known_is_refused_by_load_too(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="option kernel_type is 'conv'; expected one of matmul, softmax"):
        load(written(tmp_path, {"kernel.py": SOFTMAX}) / "kernel.py", kernel_type="conv")
