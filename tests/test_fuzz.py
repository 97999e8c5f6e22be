"""Hostile calls: whatever is handed in, there is an answer or a refusal, and nothing outside the project is touched.

KOPT_FUZZ says how many calls; KOPT_FUZZ_SEED which.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import Project, WatchedDisk
from hostile import TOOLS, Fuzz, furnish

from kopt_mcp.errors import GuardRefused, InputRefused, KoptError
from kopt_mcp.journal import verify
from kopt_mcp.lock import Locks

CALLS = int(os.environ.get("KOPT_FUZZ", "400"))
SEED = int(os.environ.get("KOPT_FUZZ_SEED", "0"))
KERNELS = ("softmax.py", "bom.py", "crlf.py", "long.py", "empty.py", "softmax.c")
"""What may become the kernel of an experiment, and then be changed by it."""
LONGEST_REFUSAL = 4000


def state_of(folder: Path, *apart: Path) -> str:
    """A hash of every path, its rights and its contents, except below some folders."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not any(path.is_relative_to(other) for other in apart):
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found.append((str(path), path.lstat().st_mode, hashlib.sha256(str(content).encode()).hexdigest()))
    return hashlib.sha256(repr(found).encode()).hexdigest()


def world(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project", disk=WatchedDisk(lambda name: None))
    furnish(project.root)
    return project


def due(project: Project, name: str) -> tuple[str, ...]:
    """The tools that carry an experiment on."""
    with suppress(KoptError):
        return project.loop.log(name).next
    return ("baseline",)


def test_no_call_breaks_anything(tmp_path: Path) -> None:
    project, fuzz = world(tmp_path), Fuzz(SEED)
    locks = tmp_path / "locks"
    apart = [project.root / "experiments", locks, *(project.root / name for name in KERNELS)]
    before = state_of(tmp_path, *apart)
    answers: Counter[str] = Counter()
    refusals: list[str] = []
    for number in range(CALLS):
        if number % 500 == 499:  # another kernel has its turn too, and a new server
            project.loop = project.reopened()
        tool = fuzz.tool(due(project, fuzz.newest))
        positional, named = fuzz.arguments(tool)
        try:
            answer = getattr(project.loop, tool)(*positional, **named)
        except KoptError as error:
            refusals.append(str(error))
        else:
            answers[tool] += 1
            if tool == "baseline":
                fuzz.newest = answer.experiment
            json.dumps(answer.model_dump(mode="json"))
        if fuzz.draw.random() < 0.02:  # somebody edits the kernel
            project.kernel.write_bytes(fakes.kernel(1.9).encode())
    assert set(answers) == set(TOOLS), "some tool was never reached"
    assert all(0 < len(text) <= LONGEST_REFUSAL for text in refusals)
    assert state_of(tmp_path, *apart) == before
    assert {p.suffix for p in locks.iterdir()} == {".lock"}
    for path in project.root.glob("experiments/*/journal.jsonl"):
        verify(path)


def patient(tmp_path: Path) -> Project:
    """A project whose calls wait for one another."""
    project = Project(tmp_path / "project")
    project.loop = project.reopened(locks=Locks(tmp_path / "locks", sleep=lambda seconds: os.sched_yield()))
    return project


def test_two_calls_at_once_are_one_after_the_other_or_one_is_refused(tmp_path: Path) -> None:
    project = patient(tmp_path)
    name = project.diagnosed()
    both = threading.Barrier(2)
    said: list[str] = []

    def call(speed: float) -> None:
        both.wait()
        try:
            project.patch(name, fakes.kernel(speed))
            said.append("done")
        except GuardRefused as error:
            said.append(str(error))

    threads = [threading.Thread(target=call, args=(speed,)) for speed in (1.5, 1.6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(text.split(" holds a change")[0] for text in said) == ["done", "iteration 1 already"]
    assert project.loop.verify(name).correct
    assert verify(project.root / "experiments" / name / "journal.jsonl") == 5


def test_two_baselines_at_once_get_two_names(tmp_path: Path) -> None:
    project = patient(tmp_path)
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(project.baseline().experiment)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names) == ["softmax-h200-1", "softmax-h200-2"]


@pytest.mark.parametrize("depth", [100, 200, 300, 500, 900, 2000, 5000])
@pytest.mark.parametrize("nest", ["-{}", "({},)", "f({})", "[{} for i in x]", "{} + 1"])
def test_a_kernel_nested_however_deeply_is_taken_or_refused(project: Project, depth: int, nest: str) -> None:
    name = project.diagnosed()
    before, after = nest.split("{}")
    deep = fakes.kernel(1.5) + "\n\ndef g(x):\n    return " + before * depth + "x" + after * depth + "\n"
    with suppress(InputRefused):
        project.patch(name, deep)
    project.kernel.write_text(deep)
    with suppress(InputRefused):
        project.baseline()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"experiment": 5}, "experiment is 5; expected the handle that baseline returned; nothing ran."),
        ({"tier": "1"}, "tier is '1'; expected 1 to 5; nothing ran."),
        ({"hypothesis": ["x"]}, "hypothesis is ['x']; expected one sentence; nothing ran."),
        ({"edits": "SPEED"}, "edits is 'SPEED'; expected a list of {search, replace} pairs; nothing ran."),
        ({"edits": [{"search": "a"}]}, "edits[0] is a dict; expected a {search, replace} pair."),
        ({"content": b"x"}, "content is b'x'; expected the whole new text of the kernel; nothing ran."),
        ({"working_copy": "yes"}, "working_copy is 'yes'; expected true or false; nothing ran."),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_in_words(
    project: Project, arguments: dict[str, Any], words: str
) -> None:
    name = project.diagnosed()
    usual = {"experiment": name, "tier": 1, "hypothesis": "it is faster"}
    with pytest.raises(KoptError) as refusal:
        project.loop.apply_patch(**{**usual, **arguments})
    assert str(refusal.value) == words
    project.patch(name, fakes.kernel(1.5))
