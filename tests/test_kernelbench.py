"""KernelBench problems: taken as they are, with weights and inputs that a candidate cannot guess."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from evaluating import running_evaluator
from tasks import Task, load, written

from kopt_mcp.errors import ProblemInvalid
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.evaluator.generated import drawn
from kopt_mcp.problem import ProblemError, Spec
from kopt_mcp.problems import Recognition, kernelbench, recognise
from kopt_mcp.problems.loaders.exact import spread

SCALED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width, out, slope):
        super().__init__()
        self.dense = nn.Linear(width, out)
        self.norm = nn.LayerNorm(out)
        self.slope = slope

    def forward(self, x):
        return torch.nn.functional.leaky_relu(self.norm(self.dense(x)), self.slope)

rows = 24
width = 40
out = 48

def get_inputs():
    return [torch.rand(rows, width)]

def get_init_inputs():
    return [width, out, 0.1]
"""
HONEST = SCALED.split("rows = 24")[0].replace("class Model(", "class ModelNew(")
SOFTMAX = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

rows, cols = 12, 300

def get_inputs():
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


@pytest.fixture(scope="module")
def scaled(evaluator: LocalEvaluator, tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = written(tmp_path_factory.mktemp("scaled"), {"7_Scaled.py": SCALED})
    return Task(evaluator, folder / "7_Scaled.py", folder)


def answer(folder: Path, text: str) -> Recognition:
    return kernelbench.recognise(written(folder, {"9_x.py": text}) / "9_x.py")


def test_a_problem_is_recognised_by_its_three_names(tmp_path: Path) -> None:
    found = recognise(written(tmp_path, {"7_Scaled.py": SCALED}) / "7_Scaled.py")
    assert (found.format, found.name, found.missing) == ("kernelbench", "7-scaled", ())
    assert found.found == ("Model, line 5", "get_inputs, line 19", "get_init_inputs, line 22")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (SOFTMAX.replace("get_init_inputs", "other"), r"9_x.py has no get_init_inputs\(\); expected a list"),
        (SOFTMAX.replace("forward", "call"), r"9_x.py line 4: class Model has no forward\(\)"),
        (SOFTMAX.replace("get_inputs()", "get_inputs(n)"), r"9_x.py line 10: get_inputs\(\) takes \['n'\]"),
        ("Model = 3\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n", "line 1: Model is not a class"),
    ],
)
def test_a_half_written_problem_is_told_what_it_lacks(tmp_path: Path, text: str, missing: str) -> None:
    found = answer(tmp_path, text)
    assert re.search(missing, found.missing[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HONEST, "defines ModelNew, a candidate; name the problem's file"),
        ("import torch\n", "defines no Model and no get_inputs and no get_init_inputs"),
        ("class Model: pass\n", "defines no get_inputs and no get_init_inputs"),
    ],
)
def test_what_is_no_problem_is_told_why(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        recognise(written(tmp_path, {"9_x.py": text}) / "9_x.py")


def test_recognising_executes_nothing(tmp_path: Path) -> None:
    assert isinstance(answer(tmp_path, f"raise SystemExit\n{SOFTMAX}"), Recognition)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SOFTMAX + "\n1 / 0\n", "does not load: ZeroDivisionError"),
        (SOFTMAX.replace("return [torch.randn(rows, cols)]", "return [open]"), r"get_inputs\(\): data\[0\] is a"),
        (SOFTMAX.replace("return [torch.randn(rows, cols)]", "return []"), "returns no tensor; expected a list that"),
        (SOFTMAX.replace("torch.randn(rows, cols)", "torch.randn(rows, colz)"), r"get_inputs\(\) fails: NameError"),
        (SOFTMAX.replace("torch.randn(rows, cols)", "torch.randn(2, 2).cfloat()"), "of the dtype complex64; expected"),
        (SOFTMAX.replace("return []", "return [1]"), r"Model\(\*get_init_inputs\(\)\) fails: TypeError"),
        (SOFTMAX.replace("torch.nn.Module", "object"), "Model is not a torch.nn.Module"),
    ],
)
def test_a_problem_that_does_not_work_is_named_with_its_reason(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        load(written(tmp_path, {"9_x.py": text}) / "9_x.py")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sizes": [{"depth": 3}]}, "names 'depth', which the file does not assign"),
        ({"dtype": "int8"}, "option dtype is 'int8'; expected one of"),
        ({"precision": "fast"}, "option precision is 'fast'"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(tmp_path: Path, options: dict[str, object], why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        load(written(tmp_path, {"9_x.py": SCALED}) / "9_x.py", **options)


def test_what_rand_draws_becomes_a_recipe_and_all_else_is_drawn_by_the_problem(tmp_path: Path) -> None:
    text = SOFTMAX.replace(
        "return [torch.randn(rows, cols)]",
        "a = torch.rand(3, 4)\n    b = torch.rand(3, 4)\n    b.mul_(2)\n"
        "    return [a, torch.randint(2, 7, (3,)), torch.randn(5), b, torch.tril(torch.rand(4, 4)), 3]",
    )
    problem = load(written(tmp_path, {"9_x.py": text}) / "9_x.py")
    specs = [i for i in problem.case(problem.workloads[0]).inputs if isinstance(i, Spec)]
    assert [s.kind for s in specs] == ["uniform", "integers", "normal", "generated", "generated"]
    assert specs[1].args == {"low": 2, "high": 7}
    assert [s.shape for s in specs] == [(3, 4), (3,), (5,), (3, 4), (4, 4)]
    assert problem.certain == ()  # the lower triangle's upper half need not be read


def test_inputs_of_one_problem_in_two_types_are_drawn_in_the_type_of_each(tmp_path: Path) -> None:
    text = SOFTMAX.replace("torch.randn(rows, cols)", "torch.randn(rows, cols).exp()")
    path = written(tmp_path, {"9_x.py": text}) / "9_x.py"
    wide, narrow = load(path), load(path, dtype="float16")
    for problem, dtype in ((wide, torch.float32), (narrow, torch.float16)):
        (spec, *_) = problem.case(problem.workloads[0]).inputs
        assert isinstance(spec, Spec)
        assert drawn(int(spec.args["key"]), 1, "cpu")[0].dtype == dtype


def test_bytes_operations_and_the_longest_sum_are_counted_on_shapes(tmp_path: Path) -> None:
    problem = load(written(tmp_path, {"9_x.py": SCALED}) / "9_x.py")
    case = problem.case(problem.workloads[0])
    assert case.bytes == 4 * (24 * 40 + 40 * 48 + 48 + 2 * 48 + 24 * 48)
    assert case.flops >= 2 * 24 * 40 * 48
    assert problem.reduction_length(case.params) == 40
    assert problem.certain == ("bytes",)


def test_weights_that_a_model_makes_constant_are_drawn_anew_and_keep_their_sign(tmp_path: Path) -> None:
    problem = load(written(tmp_path, {"9_x.py": SCALED}) / "9_x.py")
    first, second = (problem.case(problem.workloads[0], weights=n).literals for n in (0, 1))
    scale, shift = first[2], first[3]
    assert bool((scale > 0).all())
    assert scale.std() > 0.1
    assert shift.std() > 0.1
    assert not torch.equal(first[0], second[0])
    given = load(tmp_path / "9_x.py", weights="given")
    assert bool((given.case(given.workloads[0]).literals[2] == 1).all())


def test_the_problems_own_checks_catch_wrong_implementations(scaled: Task) -> None:
    assert scaled.weaknesses() == []


def test_the_same_module_is_right(scaled: Task) -> None:
    done = scaled.verify(HONEST)
    assert done.status == "PASSED", done.detail
    assert done.workloads[0].checks > 5


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ("torch.zeros(x.shape[0], 48)", "INCORRECT_NUMERICAL"),
        (
            "torch.nn.functional.leaky_relu(torch.nn.functional.layer_norm(self.dense(x), (48,)), self.slope)",
            "INCORRECT_NUMERICAL",  # a norm without its weight and bias is right only while they are 1 and 0
        ),
        (
            "torch.nn.functional.leaky_relu(self.norm(x.half().float() @ self.dense.weight.T + self.dense.bias), 0.1)",
            "INCORRECT_NUMERICAL",
        ),
        ("self.norm(self.dense(x))[:, :1]", "INCORRECT_SHAPE"),
        ("self.norm(self.dense(x)).half()", "INCORRECT_DTYPE"),
        ("self.missing(x)", "RUNTIME_ERROR"),
    ],
)
def test_a_wrong_module_is_refused(scaled: Task, wrong: str, status: str) -> None:
    text = HONEST.replace("torch.nn.functional.leaky_relu(self.norm(self.dense(x)), self.slope)", wrong)
    assert scaled.verify(text).status == status


def test_weights_are_matched_by_order_where_only_the_names_differ(scaled: Task) -> None:
    assert scaled.verify(HONEST.replace("self.dense", "self.linear")).status == "PASSED"


def test_a_module_that_has_other_state_is_told_which(scaled: Task) -> None:
    done = scaled.verify(HONEST.replace("nn.LayerNorm(out)", "nn.LayerNorm(out, bias=False)"))
    assert done.status == "RUNTIME_ERROR"
    assert "the state of ModelNew is not that of Model" in done.detail
    assert "norm.bias[48]" in done.detail


def test_a_candidate_without_the_class_is_told_so(scaled: Task) -> None:
    done = scaled.verify("import torch\n\ndef ModelNew(*args):\n    return torch.relu\n")
    assert (done.status, "no class 'ModelNew'" in done.detail) == ("COMPILE_ERROR", True)


def test_weights_packed_at_the_first_call_are_no_lie(scaled: Task) -> None:
    text = HONEST.replace("self.slope = slope", "self.slope = slope\n        self.packed = None").replace(
        "return torch.nn.functional.leaky_relu(self.norm(self.dense(x)), self.slope)",
        "if self.packed is None:\n            self.packed = self.dense.weight.T.contiguous()\n"
        "        return torch.nn.functional.leaky_relu(self.norm(x @ self.packed + self.dense.bias), self.slope)",
    )
    assert scaled.verify(text).status == "PASSED"


def test_a_result_kept_from_the_last_call_is_wrong(scaled: Task) -> None:
    text = HONEST.replace("self.slope = slope", "self.slope = slope\n        self.kept = None").replace(
        "return torch.nn.functional.leaky_relu(self.norm(self.dense(x)), self.slope)",
        "if self.kept is None:\n            self.kept = torch.nn.functional.leaky_relu(self.norm(self.dense(x)), 0.1)\n"
        "        return self.kept.clone()",
    )
    assert scaled.verify(text).status == "INCORRECT_NUMERICAL"


def test_a_problem_whose_answer_is_always_the_same_is_found_out(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    text = SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.relu(x - x)")
    task = Task(evaluator, written(tmp_path, {"9_x.py": text}) / "9_x.py", tmp_path)
    assert task.weaknesses() == ["stale output"]


def test_a_reference_that_is_random_is_refused(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    text = SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.nn.functional.dropout(x, 0.5, self.training)")
    task = Task(evaluator, written(tmp_path, {"9_x.py": text}) / "9_x.py", tmp_path)
    with pytest.raises(ProblemInvalid, match=r"draws random numbers \(dropout\?\)"):
        task.mutants()
    still = Task(evaluator, tmp_path / "9_x.py", tmp_path, mode="eval")
    assert still.verify(text.replace("class Model(", "class ModelNew(")).status != "INVALID_PROBLEM"


def test_a_problem_is_tried_at_other_sizes_too(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    folder = written(tmp_path, {"9_x.py": SCALED})
    task = Task(evaluator, folder / "9_x.py", folder, sizes=[{"rows": 5, "width": 33, "out": 48}])
    assert [w.workload for w in task.verify(HONEST).workloads] == ["5x33-fp32", "24x40-fp32"]
    fixed = HONEST.replace("self.dense(x)", "self.dense(x[:24])[:5] if x.shape[0] == 5 else self.dense(x) * 1.5")
    assert task.verify(fixed).status == "INCORRECT_NUMERICAL"


def test_counters_and_running_statistics_are_state_too(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    text = SCALED.replace("nn.LayerNorm", "nn.BatchNorm1d")
    task = Task(evaluator, written(tmp_path, {"9_x.py": text}) / "9_x.py", tmp_path)
    honest = HONEST.replace("nn.LayerNorm", "nn.BatchNorm1d")
    assert task.verify(honest).status == "PASSED"
    still = Task(evaluator, tmp_path / "9_x.py", tmp_path, mode="eval")
    assert still.verify(honest).status == "PASSED"
    assert still.verify(honest.replace("self.norm(self.dense(x))", "self.norm.train()(self.dense(x))")).status == (
        "INCORRECT_NUMERICAL"
    )


def test_a_problem_that_is_too_large_for_the_device_is_told_so(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    text = SOFTMAX.replace("return torch.softmax(x, dim=1)", "raise torch.cuda.OutOfMemoryError('70 GiB')")
    task = Task(evaluator, written(tmp_path, {"9_x.py": text}) / "9_x.py", tmp_path)
    with pytest.raises(ProblemInvalid, match=r"too little memory to check this problem.*smaller workloads.*70 GiB"):
        task.mutants()


def test_the_spread_of_a_product_is_the_size_of_its_terms() -> None:
    a, b = torch.randn(20, 300, dtype=torch.float64), torch.randn(300, 30, dtype=torch.float64)
    found = spread(lambda x, y: [x @ y])(a, b)[0]
    terms = (2 * a.square() @ b.square()).sqrt()
    assert 0.8 < float((found.square().mean() / terms.square().mean()).sqrt()) < 1.2


def test_a_problem_that_is_too_large_for_a_cpu_says_what_to_do(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    text = SOFTMAX.replace("rows, cols = 12, 300", "rows, cols = 30000, 3000")
    task = Task(evaluator, written(tmp_path, {"9_x.py": text}) / "9_x.py", tmp_path)
    with pytest.raises(ProblemInvalid, match=r"no workload for cpu; .* give it smaller ones, or use a GPU"):
        task.mutants()


def test_weights_that_are_written_into_the_kernel_are_right_for_one_set_only(scaled: Task) -> None:
    text = HONEST.replace("self.slope = slope", "self.slope = slope\n        self.kept = KEPT").replace(
        "self.norm(self.dense(x))", "self.norm(x @ self.first(self.dense.weight).T + self.dense.bias)"
    ) + (
        "\n\nKEPT = []\n\n\ndef first(self, weight):\n    if not self.kept:\n        self.kept.append(weight.clone())\n"
        "    return self.kept[0]\n\n\nModelNew.first = first\n"
    )
    done = scaled.verify(text)
    assert done.status == "INCORRECT_NUMERICAL"
    assert "with other weights" in done.detail
