"""GPU MODE tasks: inputs drawn by their own code under our seeds, outputs judged by their check and by ours."""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from evaluating import running_evaluator
from tasks import Task, load, written

from kopt_mcp.errors import ProblemInvalid
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import gpumode, recognise

TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../shared.py"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "eval.py", "source": "../eval.py"}
lang: "py"
config: {main: "eval.py"}
tests:
  - {"rows": 3, "cols": 17, "seed": 4242, "kind": "ragged"}
  - {"rows": 8, "cols": 64, "seed": 99, "kind": "plain"}
benchmarks:
  - {"rows": 8, "cols": 64, "seed": 7, "kind": "plain"}
  - {"rows": 32, "cols": 96, "seed": 7, "kind": "ragged"}
"""
SHARED = """
import torch

def close(received, expected, rtol):
    return "" if torch.allclose(received, expected, rtol=rtol, atol=1e-6) else "they differ"
"""
REFERENCE = """
import torch
from task import input_t
from utils import close

def generate_input(rows: int, cols: int, seed: int, kind: str) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(rows, cols, device="cuda", dtype=torch.float32, generator=gen)
    lengths = torch.randint(1, cols + 1, (rows,), device="cuda", generator=gen)
    if kind == "plain":
        lengths = torch.full_like(lengths, cols)
    return x, {"lengths": lengths, "scale": 2.0}

def ref_kernel(data):
    x, more = data
    inside = torch.arange(x.shape[1], device=x.device)[None, :] < more["lengths"][:, None]
    return (x * inside).sum(dim=1) * more["scale"]

def check_implementation(data, output):
    return close(output, ref_kernel(data), rtol=1e-4)
"""
FILES = {
    "masked/task.yml": TASK,
    "masked/task.py": "import torch\ninput_t = tuple\n",
    "masked/reference.py": REFERENCE,
    "shared.py": SHARED,
    "eval.py": "raise SystemExit('this is the runner of the competition')\n",
}
HONEST = """
import torch
from task import input_t
from utils import close

def custom_kernel(data: input_t):
    x, more = data
    inside = torch.arange(x.shape[1], device=x.device)[None, :] < more["lengths"][:, None]
    return torch.where(inside, x, 0.0).sum(dim=1) * more["scale"]
"""


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


@pytest.fixture(scope="module")
def masked(evaluator: LocalEvaluator, tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = written(tmp_path_factory.mktemp("masked"), FILES)
    return Task(evaluator, folder / "masked", folder)


def changed(folder: Path, file: str, old: str, new: str) -> Path:
    """The task with one change, which must be one."""
    assert old in FILES[file]
    return written(folder, {**FILES, file: FILES[file].replace(old, new)}) / "masked"


def test_a_task_is_recognised_by_its_folder_and_by_its_file(tmp_path: Path) -> None:
    folder = written(tmp_path, FILES) / "masked"
    found = recognise(folder)
    assert (found.format, found.name, found.missing) == ("gpumode", "masked", ())
    assert found.found == ("3 files", "2 tests", "2 benchmarks")
    assert [p.name for p in found.files] == ["task.yml", "task.py", "shared.py", "reference.py"]
    assert recognise(folder / "task.yml") == found


def test_files_may_be_told_as_a_mapping(tmp_path: Path) -> None:
    text = (
        "files: {submission.py: '@SUBMISSION@', reference.py: reference.py, task.py: task.py, utils.py: ../shared.py}"
    )
    task = re.sub(r"files:\n(  - .*\n)+", f"{text}\n", TASK)
    assert gpumode.recognise(written(tmp_path, {**FILES, "masked/task.yml": task}) / "masked").found[0] == "3 files"


@pytest.mark.parametrize(
    ("file", "old", "new", "missing"),
    [
        (
            "masked/task.yml",
            '"../shared.py"',
            '"../gone.py"',
            r"files\[2\]: field 'source' is '../gone.py', which is not",
        ),
        (
            "masked/task.yml",
            '"../shared.py"',
            '"/etc/passwd"',
            r"files\[2\]: field 'source' is '/etc/passwd'; expected",
        ),
        ("masked/task.yml", '"../shared.py"', '"../../../../a.py"', r"at most 2 folders above"),
        (
            "masked/task.yml",
            '"name": "utils.py"',
            '"name": "../utils.py"',
            r"field 'name' is '../utils.py'; expected a pl",
        ),
        ("masked/task.yml", '"source": "task.py"', '"sauce": "task.py"', r"files\[1\] has no field 'source'"),
        ("masked/task.yml", '"source": "task.py"', "1: x", r"files\[1\] has no field 'source'; .* are \['1', 'name'\]"),
        ("masked/task.yml", 'lang: "py"', 'lang: "cu"', r"field 'lang' is 'cu'; expected 'py'"),
        ("masked/task.yml", "tests:", "trials:", r"task.yml has no field 'tests'; expected a list"),
        (
            "masked/task.yml",
            '"rows": 3',
            '"rows": 2020-01-01',
            r"tests\[0\]: field 'rows' is '2020-01-01'; expected a num",
        ),
        ("masked/task.yml", '"rows": 3', '"rows": .inf', r"tests\[0\]: field 'rows' is 'inf'"),
        ("masked/task.yml", '"rows": 3', '"ro ws": 3', r"tests\[0\] is no object of arguments by name"),
        ("masked/reference.py", "def ref_kernel", "def kernel", r"reference.py defines no ref_kernel"),
        ("masked/reference.py", "def ref_kernel", "def ref_kernel(", r"reference.py line \d+ does not parse"),
    ],
)
def test_a_task_that_is_not_complete_is_told_file_and_field(
    tmp_path: Path, file: str, old: str, new: str, missing: str
) -> None:
    found = gpumode.recognise(changed(tmp_path, file, old, new))
    assert any(re.search(missing, text) for text in found.missing), found.missing


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &x [1]\nfiles: *x\n", "holds an alias"),
        ("files: [", "is not YAML"),
        ("files: !!python/object/apply:os.system ['true']\n", "is not YAML"),
        ("[" * 5000, "nested too deeply"),
        ("name: x\n", "neither 'files' nor 'tests'"),
    ],
)
def test_a_hostile_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    folder = written(tmp_path, {"task.yml": text})
    with pytest.raises(ProblemError, match=why):
        recognise(folder)


def test_tests_that_differ_by_their_seed_only_are_one_workload_and_a_benchmark_is_timed(tmp_path: Path) -> None:
    problem = load(written(tmp_path, FILES) / "masked")
    assert [(w.name, w.timed) for w in problem.workloads] == [
        ("rows8-cols64-kindplain", True),
        ("rows32-cols96-kindragged", True),
        ("rows3-cols17-kindragged", False),
    ]
    case = problem.case(problem.workloads[2])
    assert case.bytes == 4 * 3 * 17 + 8 * 3 + 4 * 3
    assert problem.certain == ()


def test_a_task_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "task", FILES) / "masked"
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    problem = load(folder)
    assert [p.name for p in tmp_path.glob("here/task-*/reference.py")] == ["reference.py"]
    assert problem.reference is not None
    del problem
    gc.collect()
    assert list(tmp_path.glob("here/task-*")) == []
    with pytest.raises(ProblemError):
        load(changed(tmp_path / "task", "masked/reference.py", "from utils import close", "from utils import far"))
    assert list(tmp_path.glob("here/task-*")) == []


def test_the_tasks_own_checks_catch_wrong_implementations(masked: Task) -> None:
    assert masked.weaknesses() == []


def test_an_honest_kernel_is_right_and_may_import_what_lies_beside_it(masked: Task) -> None:
    done = masked.verify(HONEST)
    assert done.status == "PASSED", done.detail
    assert len(done.workloads) == 3


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ('* more["scale"]', "* 1.0", "INCORRECT_NUMERICAL"),
        ("torch.where(inside, x, 0.0)", "x", "INCORRECT_NUMERICAL"),
        ("torch.where(inside, x, 0.0)", "torch.where(inside, x, 0.0).half()", "INCORRECT_DTYPE"),
        ("return torch", "x.zero_()\n    return torch", "INCORRECT_NUMERICAL"),
        ("import torch\n", "import torch\nimport reference\nreference.generate_input = None\n", "PASSED"),
        ("def custom_kernel", "def my_kernel", "COMPILE_ERROR"),
    ],
)
def test_a_candidate_is_judged_by_what_it_returns(masked: Task, old: str, new: str, status: str) -> None:
    assert old in HONEST
    assert masked.verify(HONEST.replace(old, new, 1)).status == status


def test_a_candidate_that_draws_easier_inputs_is_only_wrong(masked: Task) -> None:
    text = HONEST + "\nimport torch\ndef _zeros(*a, **k):\n    return torch.zeros(*a)\ntorch.randn = _zeros\n"
    assert masked.verify(text).status == "INCORRECT_NUMERICAL"


def test_the_tasks_own_check_can_refuse_what_ours_lets_pass(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    folder = changed(
        tmp_path, "masked/reference.py", "return close(", "return 'not today' if output.stride() else close("
    )
    done = Task(evaluator, folder, tmp_path).verify(HONEST)
    assert done.status == "INCORRECT_NUMERICAL"
    assert "the task's own check refuses it: not today" in done.detail


@pytest.mark.parametrize("said", ["True, 'fine'", "True", "None", "''"])
def test_a_check_may_say_yes_in_several_ways(evaluator: LocalEvaluator, tmp_path: Path, said: str) -> None:
    folder = changed(
        tmp_path, "masked/reference.py", "return close(output, ref_kernel(data), rtol=1e-4)", f"return {said}"
    )
    assert Task(evaluator, folder, tmp_path).verify(HONEST, workloads=("rows3-cols17-kindragged",)).status == "PASSED"


def test_memory_that_the_task_lends_may_be_written_and_returned(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    reference = """
import torch

def generate_input(size: int, seed: int):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(size, 8, device="cuda", generator=gen)
    return x, torch.empty_like(x)

def ref_kernel(data):
    x, out = data
    out[...] = x.exp()
    return out

def check_implementation(data, output):
    return "" if torch.allclose(output, data[0].exp(), rtol=1e-3) else "no"
"""
    task = "files: {reference.py: reference.py}\ntests: [{size: 5, seed: 1}, {size: 40, seed: 2}]\n"
    folder = written(tmp_path, {"task.yml": task, "reference.py": reference})
    assert load(folder).scratch == (1,)
    lent = Task(evaluator, folder, tmp_path)
    text = "import torch\ndef custom_kernel(data):\n    x, out = data\n    torch.exp(x, out=out)\n    return out\n"
    assert lent.verify(text).status == "PASSED"
    assert lent.verify(text.replace("return out", "x.zero_()\n    return out")).status == "INCORRECT_NUMERICAL"
    assert lent.verify(text.replace("torch.exp(x, out=out)", "pass")).status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('return x, {"lengths"', 'return open, {"lengths"', r"generate_input\(\): data\[0\] is a builtin_function"),
        (
            'return x, {"lengths"',
            'return x.to(torch.float8_e4m3fn), {"lengths"',
            "of the dtype float8_e4m3fn; expected",
        ),
        (
            "return (x * inside)",
            "raise ValueError('broken')\n    return (x * inside)",
            r"ref_kernel\(\) fails on .*broken",
        ),
        ("return (x * inside)", "return None\n    return (x * inside)", "returns nothing and changes no input"),
        ("from utils import close", "from utils import far", "does not load: line 4: ImportError"),
        ("gen.manual_seed(seed)", "gen.manual_seed(sed)", r"generate_input\(.*\) fails: NameError"),
    ],
)
def test_a_reference_that_does_not_work_is_named_with_its_reason(tmp_path: Path, old: str, new: str, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        load(changed(tmp_path, "masked/reference.py", old, new))


def test_a_reference_that_is_random_is_refused(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    folder = changed(tmp_path, "masked/reference.py", "return (x * inside)", "return (torch.rand_like(x) * inside)")
    with pytest.raises(ProblemInvalid, match="draws random numbers"):
        Task(evaluator, folder, tmp_path).mutants()


def test_a_reference_that_answers_in_float64_asks_for_float32(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    folder = changed(tmp_path, "masked/reference.py", "(x * inside).sum", "(x * inside).double().sum")
    (folder / "reference.py").write_text(
        (folder / "reference.py").read_text().replace("ref_kernel(data), r", "output, r")
    )
    task = Task(evaluator, folder, tmp_path)
    assert task.verify(HONEST).status == "PASSED"
    assert (
        task.verify(HONEST.replace("torch.where(inside, x, 0.0)", "(x * inside).double()")).status == "INCORRECT_DTYPE"
    )


def test_tests_in_bfloat16_are_for_a_gpu_only(tmp_path: Path) -> None:
    problem = load(changed(tmp_path, "masked/reference.py", "return x, {", "return x.bfloat16(), {"))
    assert {w.devices for w in problem.workloads} == {("cuda",)}


def test_inputs_keep_the_order_in_memory_that_the_task_gives_them(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    reference = """
import torch

def generate_input(size: int, seed: int):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(size, 8, device="cuda", generator=gen).T

def ref_kernel(data):
    return data.exp().contiguous()

def check_implementation(data, output):
    return "" if data.stride() == (1, 8) else f"strides {data.stride()}"
"""
    task = "files: {reference.py: reference.py}\ntests: [{size: 5, seed: 1}, {size: 40, seed: 2}]\n"
    transposed = Task(evaluator, written(tmp_path, {"task.yml": task, "reference.py": reference}), tmp_path)
    text = "def custom_kernel(data):\n    assert data.stride() == (1, 8)\n    return data.exp().contiguous()\n"
    assert transposed.verify(text).status == "PASSED"
    assert transposed.verify(text, kind="benchmark").status == "PASSED"


def test_what_must_be_drawn_to_be_described_is_drawn_while_it_is_small(tmp_path: Path) -> None:
    looked_at = FILES["masked/reference.py"].replace("return x, {", "x = x + x.flatten()[0].item()\n    return x, {")
    many = (
        TASK.replace('"rows": 32, "cols": 96', '"rows": 400, "cols": 50000').replace(
            "benchmarks:\n", 'benchmarks:\n  - {"rows": 16, "cols": 96, "seed": 7, "kind": "plain"}\n'
        )
        + '  - {"rows": 40, "cols": 50000, "seed": 7, "kind": "plain"}\n'
    )
    folder = written(tmp_path, {**FILES, "masked/reference.py": looked_at, "masked/task.yml": many}) / "masked"
    names = [w.name for w in load(folder).workloads]
    assert names[:3] == ["rows16-cols96-kindplain", "rows8-cols64-kindplain", "rows400-cols50000-kindragged"]
    assert ("rows40-cols50000-kindplain" in names) is torch.cuda.is_available()
