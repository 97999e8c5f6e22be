"""Who stands for the problem: git, a person, or nobody; and what every result says of it."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakes import Project, kernel
from mcp import Client
from mcp.types import ElicitResult

from kopt_mcp.errors import GuardRefused, InputRefused, ProblemInvalid
from kopt_mcp.evaluator.records import Mutant
from kopt_mcp.events import BaselineData
from kopt_mcp.server import create_server

ERAS = ["auto", "legacy"]
WEAK = Mutant("mean", False, "all outputs are nearly equal; draw inputs with more spread")
TARGET = {"target_metric": "gbps", "target_value": 500.0}


def git(project: Project, *words: str) -> None:
    git = ["git", "-C", str(project.root), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    subprocess.run([*git, *words], check=True, capture_output=True)


@pytest.fixture
def tracked(project: Project) -> Project:
    """A project whose problem is committed."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    git(project, "init", "-q")
    git(project, "add", "test_softmax.py")
    git(project, "commit", "-q", "-m", "the problem")
    return project


def digest(project: Project) -> str:
    return hashlib.sha256((project.root / "test_softmax.py").read_bytes()).hexdigest()


def accept(project: Project, sha256: str) -> None:
    (project.root / "kopt.yaml").write_text(f"accepted_problems: {{test_softmax.py: {sha256}}}\n")


# git


def test_a_problem_that_git_has_as_it_is_is_tracked(tracked: Project) -> None:
    begun = tracked.baseline()
    assert (begun.problem, begun.to_accept) == ("tracked", "")


def test_a_changed_one_is_not(tracked: Project) -> None:
    (tracked.root / "test_softmax.py").write_text("# declares an easier problem\n")
    assert tracked.baseline().problem == "unreviewed"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_change_that_git_was_told_to_overlook_is_seen(tracked: Project, flag: str) -> None:
    git(tracked, "update-index", flag, "test_softmax.py")
    (tracked.root / "test_softmax.py").write_text("# declares an easier problem\n")
    assert tracked.baseline().problem == "unreviewed"


def test_what_git_was_told_to_show_in_a_files_place_is_not_what_was_committed(tracked: Project) -> None:
    problem = tracked.root / "test_softmax.py"
    problem.write_text("# declares an easier problem\n")
    git(tracked, "hash-object", "-w", "test_softmax.py")
    git(tracked, "replace", "HEAD:test_softmax.py", hash_of_blob(problem.read_bytes()))
    assert tracked.baseline().problem == "unreviewed"


def hash_of_blob(data: bytes) -> str:
    """Git's name for these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def test_a_problem_that_is_only_staged_is_not_tracked(tracked: Project) -> None:
    (tracked.root / "test_softmax.py").write_text("# declares another problem\n")
    git(tracked, "add", "test_softmax.py")
    assert tracked.baseline().problem == "unreviewed"


def test_other_ends_of_lines_in_the_working_copy_are_no_change(tracked: Project) -> None:
    (tracked.root / "test_softmax.py").write_bytes(b"# declares a problem\r\n")
    assert tracked.baseline().problem == "tracked"


def test_what_the_problem_imports_counts_too(tracked: Project) -> None:
    (tracked.root / "shapes.py").write_text("ROWS = 4\n")
    (tracked.root / "test_softmax.py").write_text("import shapes\n")
    git(tracked, "commit", "-q", "-a", "-m", "the problem imports")
    begun = tracked.baseline()
    assert begun.problem == "unreviewed"
    assert '"shapes.py": ' in begun.to_accept
    assert '"test_softmax.py": ' not in begun.to_accept


def test_what_the_problem_was_seen_to_import_counts_too_and_must_stay_as_it_is(tracked: Project) -> None:
    own = tracked.root / "src" / "own_reference.py"
    own.parent.mkdir()
    own.write_text("# an easier reference\n")
    seen = {str(own): hashlib.sha256(own.read_bytes()).hexdigest(), "/elsewhere/library.py": "0" * 64}
    tracked.evaluator.problem = dataclasses.replace(tracked.evaluator.problem, files=seen)
    begun = tracked.baseline()
    assert begun.problem == "unreviewed"
    assert "src/own_reference.py" in begun.to_accept
    own.write_text("# the easiest reference\n")
    with pytest.raises(GuardRefused, match=r"src/own_reference\.py was"):
        tracked.loop.diagnose(begun.experiment)
    own.write_text("# an easier reference\n")
    git(tracked, "add", "src")
    git(tracked, "commit", "-q", "-m", "the reference")
    assert tracked.loop.diagnose(begun.experiment).problem == "tracked"


def test_a_problem_that_imports_the_kernel_is_refused(tracked: Project) -> None:
    seen = {str(tracked.kernel): hashlib.sha256(tracked.kernel.read_bytes()).hexdigest()}
    tracked.evaluator.problem = dataclasses.replace(tracked.evaluator.problem, files=seen)
    with pytest.raises(
        ProblemInvalid, match=r"test_softmax\.py imports or reads softmax\.py, which is the kernel that is judged"
    ):
        tracked.baseline()


@pytest.mark.parametrize("place", ["softmax.py", "experiments/softmax-h200-1/candidates/{sha}.py"])
def test_what_a_patch_wrote_is_not_run_as_a_problem(tracked: Project, place: str) -> None:
    name = tracked.diagnosed()
    tracked.patch(name, f"PROBLEM = 1\n{kernel(1.5)}")
    (tracked.root / "other.py").write_text(kernel())
    sha = hashlib.sha256(tracked.kernel.read_bytes()).hexdigest()[:12]
    for problem in ({"test_path": place.format(sha=sha)}, {"reference": "softmax:softmax", "shapes": ["4x4"]}):
        with pytest.raises(ProblemInvalid, match=f"a patch in {name} wrote, and would run as a part of the problem"):
            tracked.loop.baseline("other.py", target_metric="gbps", target_value=500, **problem)
    git(tracked, "add", "-f", place.format(sha=sha))
    git(tracked, "commit", "-q", "-m", "a person has read it")
    assert tracked.loop.baseline("other.py", test_path=place.format(sha=sha), target_metric="gbps", target_value=500)


def test_no_experiment_begins_with_what_a_patch_made_slow(tracked: Project) -> None:
    name = tracked.diagnosed()
    tracked.patch(name, kernel(0.5))
    with pytest.raises(InputRefused, match=f"what iteration 1 of '{name}' made of it"):
        tracked.baseline()
    tracked.loop.verify(name)
    tracked.loop.benchmark(name)
    tracked.loop.decide(name, "it may pay later")
    with pytest.raises(InputRefused, match=f"what iteration 1 of '{name}' made of it"):
        tracked.baseline()
    tracked.iterate(name, kernel(1.5))
    assert tracked.baseline()


def test_an_experiment_becomes_tracked_when_its_problem_is_committed(tracked: Project) -> None:
    (tracked.root / "test_softmax.py").write_text("# declares another problem\n")
    name = tracked.baseline().experiment
    assert tracked.loop.diagnose(name).problem == "unreviewed"
    git(tracked, "commit", "-q", "-a", "-m", "somebody has read it")
    tracked.patch(name, kernel(1.5))
    assert tracked.loop.verify(name).problem == "tracked"


# kopt.yaml


def test_the_answer_gives_the_line_that_accepts_a_problem_and_the_line_works(project: Project) -> None:
    begun = project.baseline()
    line = begun.to_accept.rpartition("kopt.yaml: ")[2]
    assert (begun.problem, line) == ("unreviewed", f'accepted_problems: {{"test_softmax.py": "{digest(project)}"}}')
    (project.root / "kopt.yaml").write_text(line + "\n")
    again = project.baseline()
    assert (again.problem, again.to_accept) == ("accepted", "")


def test_the_line_also_holds_for_an_experiment_that_has_begun(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(1.5))
    assert project.loop.verify(name).problem == "unreviewed"
    accept(project, digest(project))
    timed = project.loop.benchmark(name)
    assert (timed.problem, "(accepted)" in timed.certificate) == ("accepted", True)
    assert project.loop.log(name).problem == "accepted"


def test_a_line_for_other_bytes_accepts_nothing(project: Project) -> None:
    accept(project, "a" * 64)
    assert project.baseline().problem == "unreviewed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accepted_problems: [test_softmax.py]", "expected paths, each with the file's SHA-256"),
        ("accepted_problems: {test_softmax.py: yes}", "expected paths, each with the file's SHA-256"),
        ("accepted_problems: {test_softmax.py: abc}", "'abc' for 'test_softmax.py'; expected a SHA-256"),
    ],
)
def test_a_line_that_is_none_is_refused_in_words(project: Project, text: str, words: str) -> None:
    (project.root / "kopt.yaml").write_text(text)
    with pytest.raises(InputRefused, match=words):
        project.baseline()


def test_a_damaged_kopt_yaml_accepts_nothing_in_an_experiment_that_has_begun(project: Project) -> None:
    name = project.diagnosed()
    (project.root / "kopt.yaml").write_text("accepted_problems: {")
    project.patch(name, kernel(1.5))
    assert project.loop.verify(name).problem == "unreviewed"


# Weaknesses


def test_a_refused_weakness_names_its_line_and_every_result_carries_an_accepted_one(project: Project) -> None:
    project.evaluator.mutants = [WEAK, Mutant("off by one", False, "nothing visible")]
    with pytest.raises(ProblemInvalid) as refused:
        project.baseline()
    line = 'accept_weaknesses: ["mean", "off by one"]'
    assert line in str(refused.value)
    (project.root / "kopt.yaml").write_text(line + "\n")
    name = project.baseline().experiment
    project.loop.diagnose(name)
    project.patch(name, kernel(1.5))
    assert project.loop.verify(name).weaknesses == ("mean", "off by one")
    timed = project.loop.benchmark(name)
    assert timed.weaknesses == ("mean", "off by one")
    assert "accepts mean, off by one" in timed.certificate
    assert project.loop.decide(name).weaknesses == ("mean", "off by one")
    assert project.loop.log(name).weaknesses == ("mean", "off by one")
    log = (project.root / "experiments" / "README.md").read_text()
    assert "- Problem lets pass: mean, off by one\n" in log
    assert "- Problem: unreviewed (" in log


# A person who is asked


@asynccontextmanager
async def asking(project: Project, era: str, yes: bool) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client whose user says yes or no to every question, and the questions."""
    asked: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"accept": True}) if yes else ElicitResult(action="decline")

    async with Client(create_server(project), mode=era, elicitation_callback=answer) as client:  # type: ignore[arg-type]
        yield client, asked


async def begin(client: Client) -> dict[str, Any]:
    result = await client.call_tool("baseline", {"kernel_path": "softmax.py", **TARGET})
    content: dict[str, Any] = result.structured_content  # type: ignore[assignment]
    return content


def setup_of(project: Project, name: str) -> BaselineData:
    state = project.loop._experiments.replay(name)
    assert state is not None
    return state.setup


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_a_person_who_is_asked_can_accept_the_very_bytes_once_and_for_all(project: Project, era: str) -> None:
    async with asking(project, era, yes=True) as (client, asked):
        begun = await begin(client)
        assert (begun["problem"], begun["to_accept"]) == ("accepted", "")
        assert setup_of(project, begun["experiment"]).accepted_by == "elicitation"
        assert [digest(project)[:12] in question for question in asked] == [True]
        again = await begin(client)
        assert (again["problem"], len(asked)) == ("accepted", 1)
        assert setup_of(project, again["experiment"]).accepted_by == "earlier"
        (project.root / "test_softmax.py").write_text("# declares an easier problem\n")
        await begin(client)
        assert len(asked) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_a_person_who_declines_leaves_it_unreviewed(project: Project, era: str) -> None:
    async with asking(project, era, yes=False) as (client, _):
        begun = await begin(client)
    assert begun["problem"] == "unreviewed"
    assert "accepted_problems" in begun["to_accept"]


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_nobody_is_asked_about_a_problem_that_git_has(tracked: Project, era: str) -> None:
    async with asking(tracked, era, yes=True) as (client, asked):
        assert (await begin(client))["problem"] == "tracked"
    assert asked == []


@pytest.mark.anyio
async def test_a_client_that_cannot_ask_is_not_asked(project: Project) -> None:
    async with Client(create_server(project)) as client:  # type: ignore[arg-type]
        assert (await begin(client))["problem"] == "unreviewed"


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_a_person_can_accept_a_named_weakness_at_the_call_after_the_refusal(tracked: Project, era: str) -> None:
    tracked.evaluator.mutants = [WEAK]
    async with asking(tracked, era, yes=True) as (client, asked):
        refused = await begin(client)
        assert (refused["error"]["kind"], asked) == ("ProblemInvalid", [])
        begun = await begin(client)
        assert begun["weaknesses"] == ["mean"]
        (question,) = asked
        assert "mean: all outputs are nearly equal" in question


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_a_person_who_declines_a_weakness_leaves_the_problem_refused(tracked: Project, era: str) -> None:
    tracked.evaluator.mutants = [WEAK]
    async with asking(tracked, era, yes=False) as (client, asked):
        await begin(client)
        assert (await begin(client))["error"]["kind"] == "ProblemInvalid"
        assert len(asked) == 1


@pytest.mark.parametrize("change", [lambda p: p.kernel.unlink(), lambda p: (p.root / "test_softmax.py").unlink()])
def test_where_baseline_will_refuse_nothing_is_asked(project: Project, change: Callable[[Project], None]) -> None:
    change(project)
    assert project.loop.doubts("softmax.py").unread == {}
