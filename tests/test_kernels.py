"""The ten kernels without a GPU: every template is right under Triton's interpreter, every problem catches the mutants,
and every change that a SKILL.md shows applies to its template and keeps it right.

Triton decides when it is imported whether it compiles or interprets, so all kernels run in one child process with
TRITON_INTERPRET=1: this file again, as a script. It prints one line of JSON per problem.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "skills" / "kernels"
CPU_EXAMPLE = ROOT / "examples" / "cpu_softmax"
PROBLEMS = sorted(KERNELS.glob("*/test_*.py"))
CHANGES = re.compile(r"^```diff ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A fenced diff, and the template it changes (triton_template.py if not named); hunks are parted by lines of `@@`."""

Verdicts = list[list[str]]
"""Pairs of what was tried and what was wrong with it, "" if nothing was."""


def ident(path: Path) -> str:
    return path.stem.removeprefix("test_")


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, Any]]:
    """What the child process found, by problem."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["problem"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("path", PROBLEMS, ids=ident)
def test_the_template_is_right_under_the_interpreter(report: dict[str, Any], path: Path) -> None:
    verdicts: Verdicts = report[ident(path)]["template"]
    assert len(verdicts) >= 8
    assert [v for v in verdicts if v[1]] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", PROBLEMS, ids=ident)
def test_the_problem_catches_every_mutant(report: dict[str, Any], path: Path) -> None:
    verdicts: Verdicts = report[ident(path)]["mutants"]
    assert len(verdicts) >= 8
    assert [v for v in verdicts if v[1]] == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(p.parent.name for p in KERNELS.glob("*/SKILL.md")))
def test_each_change_shown_in_a_skill_applies_and_keeps_the_kernel_right(report: dict[str, Any], folder: str) -> None:
    verdicts = [v for line in report.values() if line["folder"] == folder for v in line["changes"]]
    assert verdicts
    assert [v for v in verdicts if v[1]] == []


def test_a_problem_file_needs_only_torch_and_kopt_mcp() -> None:
    for path in PROBLEMS:
        imports = re.findall(r"^(?:from|import) +(\S+)", path.read_text(), re.MULTILINE)
        assert set(imports) <= {"functools", "collections.abc", "importlib.util", "torch", "kopt_mcp.problem"}, path


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("source", [CPU_EXAMPLE / "softmax.c", *sorted(CPU_EXAMPLE.glob("patches/*.c"))], ids=ident)
def test_the_demo_kernels_in_c_are_what_they_are_meant_to_be(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from kopt_mcp.evaluator.native import bind, build

    problem = load(CPU_EXAMPLE / "test_softmax.py").PROBLEM
    kernel = bind(build(source, tmp_path, 60.0), problem.entry, problem.arguments, on_gpu=False)

    def softmax(x: Any, rows: int, cols: int) -> Any:
        out = x.new_empty(rows, cols)
        kernel({"in0": x, "out0": out, "rows": rows, "cols": cols})
        return out

    small = [w for w in problem.workloads if not w.timed]
    wrong = [v for v in verdicts_of(problem, softmax, small) if v[1]]
    assert bool(wrong) == source.name.startswith("2_")


def test_the_demo_patches_are_all_described() -> None:
    described = json.loads((CPU_EXAMPLE / "patches" / "patches.json").read_text())
    assert [d["file"] for d in described] == sorted(p.name for p in CPU_EXAMPLE.glob("patches/*.c"))
    assert all(1 <= d["tier"] <= 5 and d["hypothesis"] for d in described)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}".replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdicts_of(problem: Any, function: Any, workloads: list[Any], thorough: bool = True) -> Verdicts:
    """Compare with the reference: all distributions and layouts on the first workload, a few generated shapes."""
    from kopt_mcp.evaluator.inputs import GAPS

    found = []
    for number, workload in enumerate(workloads):
        tries = [("normal", "contiguous")]
        if thorough and number == 0:
            tries += [(d, "contiguous") for d in problem.distributions if d != "normal"]
            tries += [("normal", layout) for layout in problem.layouts if layout != "contiguous"]
            tries += [("normal", layout) for layout in GAPS if "strided" in problem.layouts]
            tries += [(d, "contiguous") for d in far_from_zero(problem, problem.case(workload))]
        case = problem.case(workload)
        found += [[f"{workload.name} {d} {layout}", wrong(problem, case, function, d, layout)] for d, layout in tries]
    for shape in ({n: low for n, (low, _) in problem.vary.items()}, {n: awkward(*r) for n, r in problem.vary.items()}):
        if thorough:
            case = problem.case(workloads[0], **shape)
            found.append([f"{shape}", wrong(problem, case, function, "normal", "contiguous")])
    return found


def far_from_zero(problem: Any, case: Any) -> list[str]:
    """Such values of each input by itself, where they tell anything."""
    from random import Random

    from kopt_mcp.evaluator.checks import far_values
    from kopt_mcp.evaluator.compare import BadReference
    from kopt_mcp.evaluator.reference import expected_outputs

    rng, found = Random(0), []
    positions = [n for n, one in enumerate(case.inputs) if getattr(one, "kind", "") == "normal"]
    for distribution in {d for n in positions for d in far_values(problem, case, rng, n)}:
        with suppress(BadReference):
            expected_outputs(problem, case, 7, "cpu", distribution)
            found.append(distribution)
    return sorted(found)


def awkward(low: int, high: int) -> int:
    return max([low, *(n for n in (7, 31, 61, 127) if n <= high)])


def wrong(problem: Any, case: Any, function: Any, distribution: str, layout: str) -> str:
    """What is wrong with the outputs for one case, "" if nothing is."""
    import torch

    from kopt_mcp.evaluator.inputs import draw
    from kopt_mcp.evaluator.reference import as_list, expected_outputs, judge_all

    expected = expected_outputs(problem, case, 7, "cpu", distribution, layout)
    drawn = draw(case.inputs, case.literals, 7, "cpu", distribution, layout)
    before = [t.clone() for t in drawn.tensors()]
    verdict = judge_all(as_list(function(*drawn.args)), expected)
    if verdict.status != "PASSED":
        return f"{verdict.status}: {verdict.detail}"
    if not all(torch.equal(a, b) for a, b in zip(before, drawn.tensors(), strict=True)):
        return "an input was changed"
    return "" if drawn.guards_intact() else "memory around an input was written"


def changes_of(folder: Path, template: str) -> Iterator[tuple[str, str]]:
    """Each change to a template that the folder's SKILL.md shows: its first new line, and the changed source."""
    skill = folder / "SKILL.md"
    for name, diff in CHANGES.findall(skill.read_text() if skill.is_file() else ""):
        if (name or "triton_template.py") == template:
            title = next(line for line in diff.splitlines() if line.startswith("+"))
            yield title, applied((folder / template).read_text(), diff)


def applied(source: str, diff: str) -> str:
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in "- ")
        new = "".join(f"{line[1:]}\n" for line in lines if line[:1] in "+ ")
        assert source.count(old) == 1, f"{source.count(old)} places for:\n{old}"
        source = source.replace(old, new)
    return source


def examine(path: Path) -> dict[str, Any]:
    """In the child process: everything that the tests above want to know of one problem."""
    from kopt_mcp.evaluator.mutants import check

    problem = load(path).PROBLEM
    template = "triton_backward_template.py" if "backward" in path.stem else "triton_template.py"
    workloads = problem.for_device("cpu")
    cheapest = sorted(workloads, key=lambda w: problem.case(w).bytes)[:3]
    mutants = check(problem, [problem.case(w) for w in workloads], "cpu")
    changes = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, source) in enumerate(changes_of(path.parent, template)):
            changed = Path(folder) / f"change{number}.py"
            changed.write_text(source)
            changes.append([title, complaint(problem, changed, cheapest)])
        return {
            "problem": ident(path),
            "folder": path.parent.name,
            "template": verdicts_of(problem, getattr(load(path.parent / template), problem.entry), workloads),
            "mutants": [[m.name, "" if m.caught else m.why] for m in mutants],
            "changes": changes,
        }


def complaint(problem: Any, kernel: Path, workloads: list[Any]) -> str:
    try:
        tried = verdicts_of(problem, getattr(load(kernel), problem.entry), workloads, thorough=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "; ".join(f"{what}: {why}" for what, why in tried if why)


if __name__ == "__main__":
    for problem_file in PROBLEMS:
        print(json.dumps(examine(problem_file)), flush=True)
