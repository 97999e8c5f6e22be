"""Whatever a task's file holds, recognising it ends in a recognition or in a refusal that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tasks import written
from test_autokernel import SOFTMAX
from test_flashinfer import DEFINITION, SOLUTION, WORKLOAD
from test_gpumode import FILES, TASK
from test_kernelbench import SCALED

from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition, autokernel, flashinfer, gpumode, kernelbench, solutions

TIMES = 150
PIECES = [
    "[",
    "{",
    "}",
    "]",
    "'",
    '"',
    "\n",
    ":",
    "1e999",
    "-1",
    "null",
    "NaN",
    "!!set ",
    "&a",
    "*a",
    "..",
    "/",
    "def ",
    "- ",
]
VALUES: list[Any] = [None, True, 0, -1, 2**70, 1.5, "", "..", [], {}, [[]], {"a": 1}, "rows"]


def cut_up(text: str, random: Random) -> str:
    """The text with pieces taken out, put in, or doubled."""
    for _ in range(random.randint(1, 4)):
        at, to = sorted(random.randrange(len(text) + 1) for _ in range(2))
        text = random.choice(
            [
                text[:at] + text[at + random.randint(1, 12) :],
                text[:at] + random.choice(PIECES) + text[at:],
                text[:at] + text[at : min(to, at + 200)] + text[at:],
            ]
        )
    return text


def rearranged(value: Any, random: Random) -> Any:
    """JSON with fields left out, or of another kind."""
    made = json.loads(json.dumps(value))
    for _ in range(random.randint(1, 3)):
        places = list(_places(made))
        holder, name = random.choice(places)
        if random.random() < 0.2:
            del holder[name]
        else:
            holder[name] = deepcopy(random.choice(VALUES))
    return made


def _places(value: Any) -> Any:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in list(inner):
        yield value, name
        yield from _places(one)


def solution(path: Path) -> solutions.Solution:
    return solutions.solution_of(path / "solution.json")


def kernelbench_file(random: Random) -> dict[str, str]:
    return {"9_x.py": cut_up(SCALED, random)}


def autokernel_file(random: Random) -> dict[str, str]:
    return {"kernel.py": cut_up(SOFTMAX, random)}


def gpumode_files(random: Random) -> dict[str, str]:
    return {**FILES, "masked/task.yml": cut_up(TASK, random)}


def definition_files(random: Random) -> dict[str, str]:
    definition, workload = json.dumps(DEFINITION), json.dumps(WORKLOAD)
    if random.random() < 0.5:
        definition = random.choice([cut_up(definition, random), json.dumps(rearranged(DEFINITION, random))])
    else:
        workload = random.choice([cut_up(workload, random), json.dumps(rearranged(WORKLOAD, random))])
    return {"definition.json": definition, "workload.jsonl": workload}


def solution_files(random: Random) -> dict[str, str]:
    return {"solution.json": json.dumps(rearranged(SOLUTION, random))}


@pytest.mark.parametrize(
    ("files", "read"),
    [
        (kernelbench_file, lambda folder: kernelbench.recognise(folder / "9_x.py")),
        (autokernel_file, lambda folder: autokernel.recognise(folder / "kernel.py")),
        (gpumode_files, lambda folder: gpumode.recognise(folder / "masked")),
        (definition_files, flashinfer.recognise),
        (solution_files, solution),
    ],
    ids=["kernelbench", "autokernel", "gpumode", "flashinfer", "solution"],
)
def test_a_file_of_any_shape_is_read_or_refused(
    tmp_path: Path, files: Callable[[Random], dict[str, str]], read: Callable[[Path], Any]
) -> None:
    random = Random(20_261_130)
    ends = {"read": 0, "refused": 0}
    for _ in range(TIMES):
        folder = written(tmp_path, files(random))
        try:
            found = read(folder)
        except ProblemError:
            ends["refused"] += 1
        else:
            whole = not (isinstance(found, Recognition) and found.missing)
            ends["read" if whole else "refused"] += 1
    assert ends["read"] > 0
    assert ends["refused"] > TIMES / 4
