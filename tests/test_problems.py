"""Tasks are recognised without running them, and every way in which they can be wrong is named."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt_mcp import problems
from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition, complete, functions, opened, recognise, source
from kopt_mcp.problems.loaders import executed
from kopt_mcp.problems.reading import field, json_of, text_of, tree_of

OWN = """
from kopt_mcp.problem import Problem, Workload
raise SystemExit("recognising a file must not run it")
PROBLEM = Problem(...)
"""
PROBLEM = """
import torch
from kopt_mcp.problem import Problem, Workload
from shared import FACTOR
PROBLEM = Problem(
    name="scale", reference=lambda x: x * FACTOR, inputs=lambda make, n: (make.normal(n),),
    workloads=[Workload({"n": 64})], bytes="8 * n", flops="n", bound="memory",
)
"""


def test_our_own_format_is_recognised_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "test_scale.py").write_text(OWN)
    found = recognise(tmp_path / "test_scale.py")
    assert (found.format, found.name, found.trust, found.missing) == ("problem", "scale", "measured", ())
    assert found.found == ("PROBLEM, line 4",)


def test_a_problem_that_is_imported_from_another_file_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "test_scale.py").write_text("from elsewhere import SCALE as PROBLEM\n")
    assert recognise(tmp_path / "test_scale.py").format == "problem"


def test_what_nobody_recognises_is_refused_with_every_formats_reason(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("# hello\n")
    with pytest.raises(ProblemError, match=r"readme\.md is of no format that is known") as refused:
        recognise(tmp_path / "readme.md")
    assert all(f"{name}: " in str(refused.value) for name in problems.FORMATS)
    assert ".;" not in str(refused.value)


def test_two_formats_at_once_are_listed_and_one_must_be_told(tmp_path: Path) -> None:
    file = tmp_path / "test_both.py"
    file.write_text("PROBLEM = 1\nif '--json' in argv: print(dict(correctness=True))\n")
    with pytest.raises(ProblemError, match=r"several formats: problem \(.*\); script \(.*\); say which with format="):
        recognise(file)
    assert recognise(file, "script").format == "script"


def test_a_format_that_is_told_is_not_second_guessed_but_must_fit(tmp_path: Path) -> None:
    (tmp_path / "test_scale.py").write_text(OWN)
    with pytest.raises(ProblemError, match=r"script: test_scale\.py does not take '--json'"):
        recognise(tmp_path / "test_scale.py", "script")
    with pytest.raises(ProblemError, match=r"format 'scripts' is not known; .*; did you mean 'script'"):
        recognise(tmp_path / "test_scale.py", "scripts")


def test_a_half_recognised_task_is_shown_but_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("import sys\nif '--json' in sys.argv: pass\n")
    found = recognise(tmp_path / "test_x.py")
    with pytest.raises(ProblemError, match=r"was recognised as script .* not complete: .*neither 'correctness' nor"):
        complete(found)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "binary": (lambda p: p.write_bytes(b"PROBLEM = 1\0"), "is binary"),
    "not UTF-8": (lambda p: p.write_bytes(b"PROBLEM = '\xff'\n"), "is not UTF-8 at byte 11"),
    "huge": (lambda p: p.write_text("#" * (2 << 20)), "has more than 1048576 bytes"),
    "no syntax": (lambda p: p.write_text("def f(:\n"), "line 1 does not parse"),
    "nested": (lambda p: p.write_text("(" * 100_000), "does not parse"),
    "a long chain": (lambda p: p.write_text("x = " + "-" * 100_000 + "1"), "does not parse"),
    "a number without end": (lambda p: p.write_text("x = " + "9" * 10_000), "does not parse"),
    "a pipe": (_fifo, "is not a regular file"),
    "a folder": (lambda p: p.mkdir(), "is not a regular file"),
    "missing": (lambda p: None, "cannot be read: No such file"),
    "a loop of links": (lambda p: p.symlink_to(p), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_named_and_read_no_further(name: str, tmp_path: Path) -> None:
    make, why = HOSTILE[name]
    file = tmp_path / "test_x.py"
    make(file)
    with pytest.raises(ProblemError, match=why):
        recognise(file)
    for read in (tree_of, json_of):
        with pytest.raises(ProblemError) as refused:
            read(file)
        assert str(refused.value).count("test_x.py") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ('{"a": 1, "a": 2}', "the field 'a' is given twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "is not JSON: .*recursion"),
        ("1" * 10_000, "is not JSON: Exceeds the limit"),
    ],
)
def test_json_that_is_none_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text(text)
    with pytest.raises(ProblemError, match=rf"task\.json.*{why}"):
        json_of(tmp_path / "task.json")


def test_a_field_is_named_with_its_place_and_what_was_expected() -> None:
    assert field({"a": 1}, "a", int, "x.json") == 1
    with pytest.raises(ProblemError, match=r"x\.json has no field 'b'; expected a list; there are \['a'\]"):
        field({"a": 1}, "b", list, "x.json")
    with pytest.raises(ProblemError, match=r"x\.json: field 'a' is True; expected a whole number"):
        field({"a": True}, "a", int, "x.json")
    with pytest.raises(ProblemError, match=r"x\.json: tests\[0\] is \[3\]; expected an object with a"):
        field([3], "a", int, "x.json: tests[0]")
    with pytest.raises(ProblemError, match=r"has no field 'a'; .* there are \['2', 'b'\]"):
        field({"b": 1, 2: 1}, "a", int, "x.yml")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"\xef\xbb\xbfPROBLEM = 1\n")
    assert text_of(tmp_path / "x.py") == "PROBLEM = 1\n"


def test_a_task_is_executed_with_its_own_neighbours_which_are_then_forgotten(tmp_path: Path) -> None:
    for name, factor in (("one", 2.0), ("two", 3.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shared.py").write_text(f"FACTOR = {factor}\n")
        (tmp_path / name / "test_scale.py").write_text(PROBLEM)
        assert executed(tmp_path / name / "test_scale.py").PROBLEM.reference(1.0) == factor
    assert "shared" not in sys.modules


def test_a_task_that_fails_when_it_is_executed_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("x = 1\nraise ValueError('no such device')\n")
    with pytest.raises(ProblemError, match=r"task\.py does not load: line 2: ValueError: no such device"):
        executed(tmp_path / "task.py")


def test_the_problem_file_of_a_task_refuses_it_once_it_changed(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "ref.py").write_text("from shared import FACTOR\n\ndef scale(x):\n    return x * FACTOR\n")
    found = functions.recognised("ref.py:scale", ["64"], [], "scale", tmp_path, tmp_path / "kernel.py")
    text = source(replace(found, files=(*found.files, tmp_path / "shared.py")), tmp_path / "below")
    assert "path='../ref.py'" in text
    (tmp_path / "below").mkdir()
    file = tmp_path / "below" / "problem.py"
    file.write_text(text)
    assert executed(file).PROBLEM.reference(1.0) == 2.0
    (tmp_path / "shared.py").write_text("FACTOR = 3.0\n")
    with pytest.raises(ProblemError, match=r"shared\.py was \w{12} when the task was taken in and is \w{12}"):
        executed(file)


def test_a_name_cannot_write_code_into_the_problem_file(tmp_path: Path) -> None:
    task = tmp_path / 'x""";import os;os.abort()#\n\'.py'
    task.write_text("")
    options = {"reference": "torch:abs", "shapes": ["8"], "dtypes": [], "entry": "'\"\n\\"}
    (tmp_path / "problem.py").write_text(source(Recognition("functions", task, (task,), (), options=options), tmp_path))
    assert executed(tmp_path / "problem.py").PROBLEM.entry == options["entry"]


def test_a_task_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"gone\.py cannot be read"):
        opened(str(tmp_path / "p.py"), format="kernelbench", path="gone.py", files={"gone.py": "0" * 64})


def test_a_format_that_nothing_is_loaded_of_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="format 'script' is not known; expected one of kernelbench, gpumode"):
        opened(str(tmp_path / "p.py"), format="script", path="x.py", files={})


NAMES = ("test_x.py", "kernel.py", "task.yml", "task.yaml", "reference.py", "definition.json", "workload.jsonl")
NAMES += ("solution.json", "x.json", "x.cu", "x")
PIECES = (
    "PROBLEM = 1\n", "import json\n'--json correctness'\n", "'--json'\n'correctness'\n", "class Model:\n    pass\n",
    "class Model(nn.Module):\n    def forward(self, x): return x\n", "def get_inputs(): return []\n",
    "def get_init_inputs(): return []\n", "get_inputs = 3\n", "KERNEL_TYPE = 'softmax'\n", "KERNEL_TYPE = f()\n",
    "def kernel_fn(x): return x\n", "class ModelNew: pass\n", "def custom_kernel(data): return data\n",
    "def ref_kernel(data): return data\n", "def generate_input(**k): pass\n", "check_implementation = 1\n",
    "files:\n  - {name: reference.py, source: reference.py}\n", "lang: py\n", "tests:\n  - {n: 1, seed: 2}\n",
    "benchmarks: 7\n", "a: &a [*a]\n", "a: &b [1]\nc: [*b, *b]\n", "? [x]\n", "!!python/object:os.system [x]\n",
    "- " * 50 + "\n", '{"name": "x", "axes": {}, "inputs": {}, "outputs": {}, "reference": "def run(): pass"}\n',
    '{"name": 3}\n', '{"axes": []}\n', "[]\n", "null\n", '{"definition": "x", "workload": {}}\n', '"' * 3, "{" * 9,
    "\0", "\udcff", "\r", "'" * 3, "#\n", "\\\n", "async def get_inputs(): pass\n", "9" * 20 + "\n", "\u2028", "\ufeff",
)  # fmt: skip
"""What the formats look for, in the right shape and in wrong ones."""


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.lists(st.sampled_from(PIECES), max_size=6)), max_size=4))
@settings(max_examples=300)
def test_whatever_lies_in_a_folder_is_recognised_or_refused_and_never_crashes_or_runs(files: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, pieces in files:
            (folder / file).write_bytes("".join(pieces).encode(errors="surrogateescape"))
        for path in (folder, *(folder / file for file, _ in files)):
            for told in (None, *problems.FORMATS):
                try:
                    found = recognise(path, told)
                except ProblemError:
                    continue
                assert found.format in problems.FORMATS
                assert set(found.files) <= set(folder.iterdir()), "a task is made of files that are there"
                json.dumps(dict(found.options))


def test_every_format_has_its_modules_and_its_page() -> None:
    package, pages = problems.__name__, Path(__file__).parents[1] / "docs" / "formats"
    for name in problems.FORMATS:
        module = importlib.import_module(f"{package}.{name}")
        assert isinstance(module.EXPECTED, str)
        assert callable(module.recognise)
        assert name == "problem" or (pages / f"{name}.md").is_file()
        assert f"`{name}`" in (pages / "README.md").read_text(encoding="utf-8")
    for name in problems.LOADED:
        assert callable(importlib.import_module(f"{package}.loaders.{name}").load)
    assert set(problems.LOADED) == {*problems.FORMATS, "functions"} - {"problem", "script"}


def test_recognising_loads_neither_torch_nor_yaml_nor_the_task(tmp_path: Path) -> None:
    (tmp_path / "test_scale.py").write_text(OWN)
    code = (
        "import sys; from pathlib import Path; from kopt_mcp.problems import recognise; "
        f"recognise(Path({str(tmp_path / 'test_scale.py')!r})); "
        "print([m for m in ('torch', 'triton', 'numpy', 'mcp', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
