"""The process that a user's own test script runs in: shut in, then replaced by the script. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kopt_mcp.evaluator import sandbox

JOB_FILE = "job.json"
ISOLATION_FILE = "isolation.json"

BOOTSTRAP = """
import importlib.util, sys
root, folder = sys.argv[1:]
spec = importlib.util.spec_from_file_location("kopt_mcp", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["kopt_mcp"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from kopt_mcp.evaluator.shut_in import main
main(folder)
"""


@dataclass(frozen=True)
class ScriptJob:
    """What to run, where, and what it may read and write."""

    arguments: tuple[str, ...]
    """For the interpreter: the script and its own arguments."""
    cwd: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    cpu_s: int
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, python: str, folder: Path) -> list[str]:
        """Write the job into `folder` and say how it is run there."""
        (folder / JOB_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")
        package = str(Path(__file__).resolve().parent.parent)
        return [python, "-I", "-B", "-c", BOOTSTRAP, package, str(folder)]


def main(folder_name: str) -> None:
    """Shut this process in and become the script."""
    folder = Path(folder_name)
    job = ScriptJob(**json.loads((folder / JOB_FILE).read_text(encoding="utf-8")))
    readable = [*sandbox.interpreter_folders(), *job.readable]
    isolation = sandbox.restrict(readable, job.writable, sandbox.Limits(cpu_s=job.cpu_s))
    (folder / ISOLATION_FILE).write_text(json.dumps(isolation), encoding="utf-8")
    os.chdir(job.cwd)
    os.execve(sys.executable, [sys.executable, "-B", *job.arguments], {**os.environ, **job.environment})
