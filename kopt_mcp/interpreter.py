"""The interpreter that has the user's torch: where it is looked for, and which line to run where it has none."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

OWN = "the server's own"


@dataclass(frozen=True)
class Interpreter:
    """A Python, and why it is this one."""

    path: str
    """A path, or a name for PATH to resolve."""
    origin: str


def find(root: Path, named: str | None, environment: Mapping[str, str]) -> Interpreter:
    """The first interpreter that is named or found; it is not run, so nothing is known of what it has.

    In this order: `python:` in kopt.yaml (`named`), KOPT_PYTHON, the project's .venv, the active environment, our own
    if it has torch (`kopt-mcp[torch]`), the `python3` on PATH (a container image that brings torch), our own.
    """
    for origin, given in (("python: in kopt.yaml", named), ("KOPT_PYTHON", environment.get("KOPT_PYTHON"))):
        if given:
            return Interpreter(_named(root, given), origin)
    return next(_found(root, environment))


def install_line(python: str, package: str = "torch", again: bool = False) -> str:
    """What to run so that `python` has `package` (`again`: another build of it), as a command line in backquotes.

    A virtual environment without pip is one that uv made. A system's Python should be left alone, and so should an
    environment that was made for this server alone (uvx, pipx): a .venv for the project is found by itself.
    """
    folder = Path(python).parent.parent
    if (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").exists():
        if any(folder.glob("lib/python3*/site-packages/pip")):
            return f"`{python} -m pip install {'--force-reinstall ' * again}{package}`"
        if python != sys.executable:
            return f"`uv pip install --python {python} {'--reinstall ' * again}{package}`"
    return f"`python3 -m venv .venv && .venv/bin/python -m pip install {package}` in the project's folder"


def _named(root: Path, given: str) -> str:
    """A name stays one, a path is taken from the project, a virtual environment stands for its interpreter."""
    if "/" not in given and not (root / given / "pyvenv.cfg").exists():
        return given
    path = root / Path(given).expanduser()
    return str(path / "bin" / "python" if path.is_dir() else path)


def _found(root: Path, environment: Mapping[str, str]) -> Iterator[Interpreter]:
    places = {"the project's .venv": str(root / ".venv")}
    places |= {variable: environment.get(variable, "") for variable in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    for origin, place in places.items():
        if place and _runs(path := Path(place) / "bin" / "python"):
            yield Interpreter(str(path), origin)
    own = Interpreter(sys.executable, OWN)
    if importlib.util.find_spec("torch") is not None:  # looked for, not imported
        yield own
    for folder in environment.get("PATH", "").split(os.pathsep):
        path = Path(folder) / "python3"
        if folder.startswith("/") and _runs(path) and Path(sys.prefix) not in path.parents:
            yield Interpreter(str(path), "python3 on PATH")
    yield own


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
