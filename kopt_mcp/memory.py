"""Where lessons are kept: this project's journals, and a store of the user's own that every project shares.

The store holds copies; losing it loses nothing that a journal does not have. Who may use it is said by `memory` in
kopt.yaml, or by KOPT_MEMORY, which wins: `user` (both), `project` (journals only) or `off`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from kopt_mcp import config, lessons
from kopt_mcp.disk import Disk, digest
from kopt_mcp.errors import InputRefused, KoptError
from kopt_mcp.experiments import Experiments
from kopt_mcp.lessons import Lesson
from kopt_mcp.lock import Locks
from kopt_mcp.models import Bound
from kopt_mcp.phases import Experiment
from kopt_mcp.watch import Watch

Scope = Literal["user", "project", "off"]
VARIABLE = "KOPT_MEMORY"
FILE = "lessons.jsonl"
LARGEST_BYTES = 2 * 2**20
"""Of the store; beyond it the older half is let go."""


def user_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The user's folder for what outlives projects: `$XDG_DATA_HOME/kopt-mcp`, or `~/.local/share/kopt-mcp`."""
    given = (environment if environment is not None else os.environ).get("XDG_DATA_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".local" / "share"
    return base / "kopt-mcp"


class Memory:
    """The lessons that one project may see.

    Args:
        store: the user's folder; None leaves all to the project.
        environment: of the process, unless given.
    """

    def __init__(
        self,
        root: Path,
        experiments: Experiments,
        locks: Locks,
        disk: Disk,
        store: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root
        self._experiments = experiments
        self._locks = locks
        self._disk = disk
        self._store = store
        self._environment = environment if environment is not None else os.environ
        self._known: tuple[tuple[int, ...], list[Lesson]] = ((), [])  # which file was read, and what it held
        self._project = digest(str(root).encode(errors="replace"))[:12]

    def scope(self) -> Scope:
        """How far memory reaches.

        Raises:
            InputRefused: the variable or kopt.yaml says something that is not known.
        """
        given = self._environment.get(VARIABLE) or config.read_file(self._root).get("memory", "user")
        for known in get_args(Scope):
            if given == known:
                return known  # type: ignore[no-any-return]
        raise InputRefused(f"memory is {given!r}; expected user, project or off; correct {VARIABLE} or {config.FILE}.")

    def lessons(self, apart_from: str = "") -> list[Lesson]:
        """All lessons within reach, those of one experiment left out; none where memory is off or not readable."""
        try:
            scope = self.scope()
            if scope == "off":
                return []
            ours = [x for state in self._experiments.states() for x in lessons.of(self._project, state)]
            theirs = self._stored() if scope == "user" else []
        except KoptError:
            return []
        known = {lesson.key: lesson for lesson in (*theirs, *ours)}
        return [x for x in known.values() if (x.project, x.experiment) != (self._project, apart_from)]

    def relevant(self, state: Experiment, bound: Bound | None = None) -> tuple[str, ...]:
        """What other experiments say to this one, in a few lines."""
        setup = state.setup
        return lessons.relevant(
            self.lessons(apart_from=state.id), setup.problem.name, setup.device.platform, setup.device.arch, bound
        )

    def twin(self, of: Experiment, sha256: str, normal: str, shape: str) -> Experiment | None:
        """Another experiment of the project whose best version is, whole, the kernel described."""
        for state in self._experiments.states() if self._reaches() else ():
            versions = {i.patch.sha256: (i.patch.normal, i.patch.shape) for i in state.iterations}
            best = versions.get(state.best)
            if state.id != of.id and best and (state.best == sha256 or best[0] == normal or best[1] == shape):
                return state
        return None

    def remember(self, state: Experiment, watch: Watch) -> tuple[str, ...]:
        """Copy an experiment's lessons into the user's store; a failure is a note, as the journal has them."""
        if self._store is None:
            return ()
        try:
            if self.scope() == "user":
                self._disk.make_folder(self._store)
                with self._locks.folder(self._store, "the user's memory", watch):
                    self._add(lessons.of(self._project, state))
        except KoptError as error:
            return (f"the user's memory was not updated: {error}",)
        return ()

    def _reaches(self) -> bool:
        try:
            return self.scope() != "off"
        except KoptError:
            return False

    def _add(self, new: list[Lesson]) -> None:
        assert self._store is not None
        known = self._stored()
        missing = [lesson for lesson in new if lesson.key not in {x.key for x in known}]
        if not missing:
            return
        kept = [*known, *missing]
        data = _encoded(kept)
        while len(data) > LARGEST_BYTES:
            kept = kept[len(kept) // 2 :]
            data = _encoded(kept)
        self._disk.replace(self._store / FILE, data, mode=0o600)

    def _stored(self) -> list[Lesson]:
        """What the store holds; lines that cannot be read are passed over."""
        if self._store is None:
            return []
        path = self._store / FILE
        try:
            found = path.stat()
            which = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if self._known[0] != which:
                self._known = which, _decoded(path.read_bytes()[: 2 * LARGEST_BYTES])
        except OSError:
            return []
        return self._known[1]


def _decoded(data: bytes) -> list[Lesson]:
    found = []
    for line in filter(None, data.split(b"\n")):
        try:
            found.append(Lesson.model_validate_json(line))
        except ValidationError:
            continue
    return found


def _encoded(kept: list[Lesson]) -> bytes:
    return b"".join(lesson.model_dump_json().encode(errors="replace") + b"\n" for lesson in kept)
