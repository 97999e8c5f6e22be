"""The skill documents: every name and link resolves, every change applies to our own kernels and keeps them right.

The kernels' own skills have their changes checked in test_kernels.py; here are those of the loop's procedure. Triton
decides when it is imported whether it compiles or interprets, so changed kernels run in a child process with
TRITON_INTERPRET=1: this file again, as a script that reads one line of JSON a change.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args
from zlib import crc32

import pytest
import skills_ref

from kopt_mcp import diagnosis, results, skills
from kopt_mcp.diagnosis import ideas
from kopt_mcp.diagnosis.scheduling import STALLS
from kopt_mcp.edit import apply_diff
from kopt_mcp.evaluator.records import Status
from kopt_mcp.models import Bound, Profile, StaticKernel

ROOT = Path(__file__).resolve().parent.parent
SKILLS = ROOT / "skills"
EVERY = sorted(SKILLS.rglob("SKILL.md"))
PROCEDURE = sorted(SKILLS.glob("*/SKILL.md"))
PAGES = sorted(page for skill in PROCEDURE for page in skill.parent.rglob("*.md"))
MOST_LINES = 200
MOST_DESCRIPTION = 1024
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`((?:skills|examples)/[\w./-]+\.(?:py|cu|c))`")
COMPILED = re.compile(r"a\s+complete\s+step\s+\(compiled\s+for\s+(\w+)")
COMPLETE = re.compile(r"a\s+complete\s+step")


@dataclass(frozen=True)
class Change:
    """A change that a skill shows: the page, the file it is of, what it turns into."""

    page: Path
    file: Path
    intro: str
    diff: str

    @property
    def skill(self) -> str:
        return self.page.relative_to(SKILLS).parts[0]

    @property
    def name(self) -> str:
        return f"{self.skill}-{self.file.parent.name}-{crc32(self.diff.encode()) % 1000}"

    @property
    def source(self) -> str:
        return apply_diff(self.file.read_text(encoding="utf-8"), self.diff, self.file.name)

    @property
    def problem(self) -> Path:
        """The `test_*.py` that says what the file must compute."""
        if self.file.parent.name == "triton_softmax":
            return SKILLS / "kernels/softmax/test_softmax.py"
        return next(iter(sorted(self.file.parent.glob("test_*.py"))))

    @property
    def target(self) -> str:
        """The architecture it is compiled for; empty where the interpreter is enough."""
        found = COMPILED.search(self.intro)
        return found.group(1) if found else "sm_90" if self.file.suffix == ".cu" and self.complete else ""

    @property
    def complete(self) -> bool:
        return COMPLETE.search(self.intro) is not None


def changes() -> list[Change]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in FENCE.finditer(text):
            if fence.group(1) != "diff":
                continue
            intro, diff = text[: fence.start()].rstrip().rsplit("\n\n", 1)[-1], fence.group(2)
            named = FILE.findall(intro)
            assert named, f"{page}: no file is named before the diff {diff[:200]!r}"
            found.append(Change(page, ROOT / named[-1], intro, diff))
    return found


CHANGES = changes()
RUN = [c for c in CHANGES if c.complete and c.file.suffix == ".py" and "autotune" not in c.diff]
"""The interpreter has no driver, which an autotuner asks for the time."""
WRONG = [c for c in CHANGES if re.search(r"is\s+wrong", c.intro)]
"""Shown as a warning: they apply, and must be caught."""
BUILT = [c for c in CHANGES if c.complete and c.file.suffix == ".c"]
COMPILE = [c for c in CHANGES if c.target]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def name_of(one: Change | Path) -> str:
    return one.name if isinstance(one, Change) else one.relative_to(SKILLS).as_posix()


def table_rows(text: str) -> list[tuple[str, str]]:
    """(first cell of the head, first cell of the row) of every row of every table."""
    rows, head = [], ""
    for line in text.splitlines():
        if not line.startswith("|"):
            head = ""
            continue
        first = re.split(r"(?<!\\)\|", line)[1].strip()
        if not head:
            head = first
        elif not set(first) <= set("-: "):
            rows.append((head, first))
    return rows


@cache
def known_names() -> frozenset[str]:
    """What `profile`, `diagnose`, `verify` and `benchmark` may say: metrics, facts, findings, bounds, statuses."""
    about = inspect.getsource(Profile) + inspect.getsource(StaticKernel)
    names = set(re.findall(r"`([\w]+)`", about)) | {f"stall_{reason}_pct" for reason in STALLS}
    names |= {f"stall-{reason}" for reason in STALLS} | set(get_args(Status)) | set(get_args(Bound))
    for answer in (getattr(results, name) for name in dir(results) if name.endswith(("Result", "Line"))):
        names |= set(answer.model_fields)
    for module in sorted(Path(diagnosis.__file__).parent.glob("*.py")):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        words = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        names |= {word for word in words if re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)+|\w+", word)}
    return frozenset(names)


def test_every_skill_that_a_diagnosis_can_name_exists() -> None:
    named = diagnosis.all_skill_names()
    assert named == {path.parent.name for path in PROCEDURE}
    for entry in ideas.table():
        for platform in entry.platforms:
            if entry.tier in ideas.TIER_SKILLS or platform in ideas.ARCH_SKILLS:
                assert ideas.skill_of(entry.tier, platform) in named


def test_every_idea_is_explained_in_its_skill() -> None:
    for entry in ideas.table():
        for platform in entry.platforms:
            skill = ideas.skill_of(entry.tier, platform)
            pages = (SKILLS / skill).rglob("*.md")
            assert any(f"`{entry.id}`" in page.read_text(encoding="utf-8") for page in pages), (entry.id, skill)


@pytest.mark.parametrize("path", EVERY, ids=name_of)
def test_a_skill_is_valid_short_and_named_like_its_folder(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    about = skills.frontmatter(path)
    assert skills_ref.validate(path.parent) == []
    assert about["name"] == path.parent.name
    assert len(about["description"]) <= MOST_DESCRIPTION
    assert len(text.splitlines()) <= MOST_LINES
    long = [line for line in text.split("---\n", 2)[2].splitlines() if len(line) > 145 and not line.startswith("|")]
    assert long == []


@pytest.mark.parametrize("path", sorted(SKILLS.rglob("*.md")), ids=name_of)
def test_every_link_in_a_skill_resolves(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    served = {file.uri for file in skills.files(SKILLS)}
    for uri in re.findall(r"skill://[\w./<>-]+", text):
        assert "<" in uri or uri.rstrip(".") in served, uri
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    for link in re.findall(r"\]\((?!\w+:)([^)#]+)", prose):
        assert (path.parent / link).exists(), link
    for named in re.findall(r"`((?:experiments|examples|skills|tests)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_name_in_a_decision_table_is_one_that_a_tool_returns(path: Path) -> None:
    every_idea = {entry.id for entry in ideas.table()}
    for head, first in table_rows(path.read_text(encoding="utf-8")):
        names = re.findall(r"`([^`]+)`", first)
        if head.startswith("evidence"):
            assert names, f"no name in {first!r}"
            assert [n for n in names if n not in known_names()] == [], first
        if head.startswith("idea"):
            assert [n for n in names if n not in every_idea] == [], first


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_python_in_a_skill_parses(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for language, code in FENCE.findall(text):
        if language == "python":
            ast.parse(code)


@pytest.mark.parametrize("change", CHANGES, ids=name_of)
def test_a_change_applies_to_the_kernel_as_it_is(change: Change) -> None:
    changed = change.source
    assert changed != change.file.read_text(encoding="utf-8")
    if change.file.suffix == ".py":
        ast.parse(changed)


def test_every_tier_shows_a_change_that_runs() -> None:
    shown = {change.skill for change in CHANGES if change.complete}
    assert {name for name in diagnosis.all_skill_names() if name.startswith("tier")} <= shown


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """What is wrong with each change of `RUN` and `WRONG` when it is interpreted, "" if nothing is."""
    asked = "".join(json.dumps([str(c.problem), c.source]) + "\n" for c in (*RUN, *WRONG))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        input=asked,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_triton
@pytest.mark.parametrize("number", range(len(RUN)), ids=lambda number: RUN[number].name)
def test_a_complete_step_keeps_the_kernel_right(complaints: list[str], number: int) -> None:
    assert complaints[number] == ""


@needs_triton
def test_a_change_that_is_shown_as_wrong_is_caught(complaints: list[str]) -> None:
    assert WRONG
    assert all("INCORRECT_NUMERICAL" in complaint for complaint in complaints[len(RUN) :])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Future[str]]:
    """What the compiler says about each change of `COMPILE`; two at a time."""
    folder = tmp_path_factory.mktemp("changed")
    pool = ThreadPoolExecutor(2)
    found = [pool.submit(compiler_says, change, folder / str(n)) for n, change in enumerate(COMPILE)]
    pool.shutdown(wait=False)
    return found


def compiler_says(change: Change, folder: Path) -> str:
    """Problems that the compiler names, and "" where there are none."""
    from kopt_mcp.evaluator.harness import load_problem
    from kopt_mcp.evaluator.target import describe_arguments
    from kopt_mcp.static import static_profile

    folder.mkdir()
    kernel = folder / change.file.name
    kernel.write_text(change.source, encoding="utf-8")
    if kernel.suffix == ".cu":
        found = static_profile(kernel, entry="", arguments=[], target=change.target, python=sys.executable)
    else:
        problem = load_problem(change.problem.read_bytes(), str(change.problem))
        timed = [workload for workload in problem.for_device("cuda") if workload.timed]
        smallest = min(timed, key=lambda one: problem.case(one).bytes).name
        about = describe_arguments(problem, smallest)
        entry, arguments = about["entry"], about["arguments"]
        found = static_profile(kernel, entry=entry, arguments=arguments, target=change.target, python=sys.executable)
    assert found
    wanted = re.search(r"`(wgmma|tma|mfma)`", change.intro)
    if wanted:
        assert wanted.group(1) in {word for one in found for word in (one.mma, one.async_copy)}
    assert all(one.registers for one in found)
    return " ".join(text for one in found for text in one.problems if text.startswith(("cannot", "compile timed")))


@needs_triton
@pytest.mark.parametrize("number", range(len(COMPILE)), ids=lambda number: COMPILE[number].name)
def test_a_complete_step_compiles_for_its_architecture(compiled: list[Future[str]], number: int) -> None:
    if COMPILE[number].file.suffix == ".cu" and shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    assert compiled[number].result() == ""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("change", BUILT, ids=name_of)
def test_a_complete_step_in_c_keeps_the_kernel_right(change: Change, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from test_kernels import load, verdicts_of

    from kopt_mcp.evaluator.native import bind, build

    source = tmp_path / change.file.name
    source.write_text(change.source, encoding="utf-8")
    problem = load(change.problem).PROBLEM
    kernel = bind(build(source, tmp_path, 60.0), problem.entry, problem.arguments, on_gpu=False)

    def softmax(x, rows, cols):
        out = x.new_empty(rows, cols)
        kernel({"in0": x, "out0": out, "rows": rows, "cols": cols})
        return out

    small = [workload for workload in problem.workloads if not workload.timed]
    assert [verdict for verdict in verdicts_of(problem, softmax, small) if verdict[1]] == []


def complaint_of(problem_file: Path, source: str) -> str:
    """In the child process: a changed kernel on the cheapest workloads of its problem."""
    import tempfile

    from test_kernels import complaint, load

    problem = load(problem_file).PROBLEM
    cheapest = sorted(problem.for_device("cpu"), key=lambda w: problem.case(w).bytes)[:3]
    with tempfile.TemporaryDirectory() as folder:
        kernel = Path(folder) / "changed.py"
        kernel.write_text(source, encoding="utf-8")
        return complaint(problem, kernel, cheapest)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(complaint_of(*(lambda asked: (Path(asked[0]), asked[1]))(json.loads(line)))), flush=True)
