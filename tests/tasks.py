"""Small tasks in other people's formats, written for the tests, and a way to try candidates on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluating import digest, evaluate

from kopt_mcp.evaluator.records import Evaluation, Mutant
from kopt_mcp.problem import Problem
from kopt_mcp.problems import complete, opened, recognise, source
from kopt_mcp.watch import Watch

if TYPE_CHECKING:
    from kopt_mcp.evaluator.client import LocalEvaluator


class Task:
    """A task that was taken in: its problem file, and what became of candidates."""

    def __init__(self, evaluator: LocalEvaluator, path: Path, folder: Path, **options: Any) -> None:
        found = recognise(path)
        assert not found.missing, found.missing
        self._evaluator, self._folder = evaluator, folder
        self.file = folder / "problem.py"
        self.file.write_text(source(replace(found, options={**found.options, **options}), folder), encoding="utf-8")

    def mutants(self) -> list[Mutant]:
        """What its checks say of wrong implementations."""
        return self._evaluator.check_problem(self.file, digest(self.file), "cpu", Watch())

    def weaknesses(self) -> list[str]:
        """The wrong implementations that it lets pass."""
        return [m.name for m in self.mutants() if not m.caught]

    def verify(self, text: str, **how: Any) -> Evaluation:
        """The verdict on a candidate of this text."""
        kernel = self._folder / "candidate.py"
        kernel.write_text(text, encoding="utf-8")
        return evaluate(self._evaluator, kernel, self.file, **how)


def load(path: Path, **options: Any) -> Problem:
    """The problem of a task, as the file says that is written for it."""
    found = complete(recognise(path))
    told = {**found.options, **options}
    return opened(str(path), format=found.format, path=str(found.path.resolve()), files={}, options=told)


def written(folder: Path, files: Mapping[str, str]) -> Path:
    """Lay files below `folder`, which is returned."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder
