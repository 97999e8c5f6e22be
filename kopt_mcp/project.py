"""Put the parts together for one project on this machine: the loop with its real evaluator, devices and profilers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kopt_mcp import config, interpreter
from kopt_mcp.errors import WorkspaceFailed
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.interpreter import Interpreter
from kopt_mcp.models import Device

if TYPE_CHECKING:
    from kopt_mcp.loop import Loop

MOST_ANCESTORS = 4
"""Processes between the client and this one: uvx, a shell or two."""


class Project:
    """A folder with kernels, and everything that works on them."""

    def __init__(self, root: Path, environment: Mapping[str, str] | None = None) -> None:
        self.root = root.resolve()
        self._environment = os.environ if environment is None else environment
        self.evaluator = LocalEvaluator(self.python, cache_folder(self._environment))

    @cached_property
    def loop(self) -> Loop:
        """The loop on this project."""
        # Imported late: most of the package hangs on it, and a client waits for the server to start, not for this.
        from kopt_mcp.evaluator.script_run import ScriptProcess
        from kopt_mcp.loop import Loop
        from kopt_mcp.memory import user_folder
        from kopt_mcp.platforms import detect_all
        from kopt_mcp.platforms.present import Present
        from kopt_mcp.profiling import Ladder
        from kopt_mcp.profiling.sanitizer import Sanitizer

        return Loop(
            self.root,
            evaluator=self.evaluator,
            detect=detect_all,
            present=Present(),
            profile=Ladder(self.evaluator, python=self.python, cache=cache_folder(self._environment)),
            sanitize=Sanitizer(self.python),
            scripts=ScriptProcess(self.python),
            user_memory=user_folder(self._environment),
        )

    def python(self) -> str:
        """The interpreter that has the user's torch; see `interpreter`."""
        return self.interpreter().path

    def interpreter(self) -> Interpreter:
        """The user's interpreter and where it was found.

        Raises:
            InputRefused: kopt.yaml cannot be read.
        """
        named = config.read_file(self.root).get("python")
        return interpreter.find(self.root, None if named is None else str(named), self._environment)

    def devices(self) -> list[Device]:
        """The machine's devices."""
        from kopt_mcp.platforms import detect_all

        return detect_all()

    def close(self) -> None:
        """End the evaluator's processes."""
        self.evaluator.close()


def project_root(environment: Mapping[str, str] | None = None, cwd: Callable[[], Path] = Path.cwd) -> Path:
    """The project that a client works on: what the client says, else the folder that the server was started in.

    A client that loads this as an Agent Plugin starts it in the plugin's own folder and names no other; the project is
    then the folder of the nearest process above that works elsewhere.
    """
    environment = os.environ if environment is None else environment
    for variable in ("KOPT_PROJECT", "CLAUDE_PROJECT_DIR"):
        told = environment.get(variable)
        if told and "${" not in told:  # a client that does not know ${workspaceFolder} hands it on as it is
            return Path(told)
    here = cwd()
    plugin = environment.get("PLUGIN_ROOT")
    return _folder_above(here) if plugin and here.resolve() == Path(plugin).resolve() else here


def root_of(given: Path | None) -> Path:
    """The project's folder: the one that was given on the command line, else as the client says.

    Raises:
        WorkspaceFailed: there is no such folder.
    """
    root = (given or project_root()).resolve()
    if not root.is_dir():
        raise WorkspaceFailed(f"the project {root} is no folder; nothing can be kept there; name one (--root FOLDER).")
    return root


def _folder_above(plugin: Path) -> Path:
    """Where the client was started, as /proc tells; the plugin's folder where it does not, or where that is no project
    (the root, or the user's home, from which graphical programs are started)."""
    pid = "self"
    for _ in range(MOST_ANCESTORS):
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            pid = status.split("\nPPid:\t", 1)[1].split("\n", 1)[0]
            folder = Path(f"/proc/{pid}/cwd").readlink()
        except (OSError, IndexError):
            break
        if folder != plugin:
            return plugin if folder in (Path("/"), Path.home()) else folder
    return plugin


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where measured ceilings are kept between runs."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kopt-mcp"
