"""What the profile target is asked to do; standard library only, since both sides of the border read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

JOB_FILE = "job.json"
ANSWER_FILE = "answer.json"

BOOTSTRAP = """
import importlib.util, sys
root, folder = sys.argv[1:]
spec = importlib.util.spec_from_file_location("kopt_mcp", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["kopt_mcp"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from kopt_mcp.evaluator.target import main
main(folder)
"""
"""As the evaluator's own: under the user's interpreter only `kopt_mcp` is found here, none of the server's packages."""


@dataclass(frozen=True)
class TargetJob:
    """One request to the profile target. Files are named with their SHA-256, and refused when they differ from it."""

    op: Literal["call", "each", "arguments", "vectorization"]
    """`call`: run one workload between the profiler's marks. `each`: call every one of `workloads` once, in memory that
    ends where a tensor ends, for a checker to watch. `arguments`: describe the inputs for the static profile.
    `vectorization`: have the compiler say which loops of a C or C++ kernel it vectorised."""
    problem: str
    problem_sha256: str
    device: str
    """`cpu` or `cuda:N`."""
    candidate: str = ""
    candidate_sha256: str = ""
    workload: str | None = None
    """The device's first one when absent."""
    workloads: tuple[str, ...] = ()
    """For `each`; all of the device's when empty."""
    marks: Literal["none", "cuda", "roctx", "perf"] = "none"
    """How the profiler is told where the call begins and ends."""
    library: str = ""
    """Path of the roctx library, for `roctx`."""
    calls: int = 1
    shut_in: bool = True
    """Whether the whole sandbox may be used; a profiler that injects itself needs files and sockets outside of it."""
    own_network: bool = True
    """Whether that includes a network namespace, in which no tool outside can reach the process."""
    timeout_s: float = 120.0

    def command(self, python: str, folder: Path) -> list[str]:
        """Write the job into `folder` and say how it is run there."""
        (folder / JOB_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")
        package = str(Path(__file__).resolve().parent.parent)
        return [python, "-I", "-B", "-c", BOOTSTRAP, package, str(folder)]


def read_job(folder: Path) -> TargetJob:
    """The job that `TargetJob.command` wrote."""
    written = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    return TargetJob(**{**written, "workloads": tuple(written["workloads"])})
