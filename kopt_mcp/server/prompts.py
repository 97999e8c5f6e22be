"""What a person may start with a slash, and what a client offers while it is typed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from mcp.server import MCPServer
from mcp.types import Completion, PromptReference, ResourceTemplateReference
from pydantic import Field

from kopt_mcp.server.place import App, Workplace
from kopt_mcp.server.resources import ExperimentFiles

MOST_VALUES = 100
"""The protocol's own limit of one completion."""
MOST_FOLDERS = 2000
"""Folders that are looked through for kernels; a keystroke must not wait for a whole disk."""
SKIPPED = {"node_modules", "experiments", "build", "dist", "venv"}


def register(server: MCPServer[App], place: Workplace) -> None:
    """The two prompts, and completions for their arguments and for the files of experiments."""
    server.prompt(name="optimize", title="Optimise a kernel")(optimize)
    server.prompt(name="explain-result", title="Explain an experiment")(explain_result)

    async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
        before = (context.arguments if context else None) or {}
        values = await anyio.to_thread.run_sync(_offered, place, ref, argument, before)
        fitting = [value for value in values if argument.value.lower() in value.lower()]
        fitting.sort(key=lambda value: not value.lower().startswith(argument.value.lower()))
        return Completion(values=fitting[:MOST_VALUES], total=len(fitting), has_more=len(fitting) > MOST_VALUES)

    server.completion()(complete)  # type: ignore[no-untyped-call]


def optimize(
    kernel: Annotated[str, Field(description="The kernel's file or name, e.g. softmax.py")],
    target: Annotated[str, Field(description='How fast, e.g. "800 GBps", "2x" or "70% of peak"')] = "",
) -> str:
    """Make a kernel faster, measured and verified: /optimize softmax.py "800 GBps"."""
    wish = f"to reach {target}" if target else "as far as the default target (70 % of what this device was measured at)"
    return (
        f"Optimise the kernel {kernel} with the kopt-mcp tools, {wish}.\n\n"
        "Read the resource skill://optimize-loop/SKILL.md first (or log(read='optimize-loop')) and follow it. Find the "
        "kernel file in the project, take the target from the user's words (metric gbps, tflops or latency_us), call "
        "detect_gpu, then baseline, and go on with the calls that each answer names in `next`. Report the final table "
        "from `log` with its intervals, and what was tried and did not work."
    )


def explain_result(
    experiment: Annotated[str, Field(description="The experiment's handle, e.g. softmax-h200-1")],
    iteration: Annotated[str, Field(description="Number of one iteration; all by default")] = "",
) -> str:
    """Explain what an experiment found, and how sure that is: /explain-result softmax-h200-1 2."""
    what = f"iteration {iteration} of experiment {experiment}" if iteration else f"experiment {experiment}"
    return (
        f"Explain {what} to somebody who knows the kernel but has not followed the work. Call "
        f"log(experiment='{experiment}'); change nothing. Say what limited the kernel, what each change was meant to "
        "do, what it gained with its 95 % interval, and why it was kept or taken back. Say how the numbers were taken "
        "(device, workloads, cold caches, in turns with the best version) and what they do not show: other shapes, "
        "other devices, and gains within the noise. Quote numbers as they stand; guess none."
    )


def kernels(root: Path) -> list[str]:
    """Files of the project that a `test_*.py` beside them or in `tests/` makes a kernel of, relative to the project."""
    return sorted(path.relative_to(root).as_posix() for path in _kernels(root))


def _kernels(root: Path) -> Iterator[Path]:
    from kopt_mcp.workspace import LANGUAGES  # late: it is not needed to list the prompts

    for count, (folder, folders, names) in enumerate(os.walk(root)):
        if count >= MOST_FOLDERS:
            return
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith((".", "_")))
        here, present = Path(folder), set(names)
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix not in LANGUAGES or stem.startswith("test_"):
                continue
            test = f"test_{stem}.py"
            if test in present or any((place / "tests" / test).is_file() for place in (here, root)):
                yield here / name


def _offered(place: Workplace, ref: Any, argument: Any, before: dict[str, str]) -> list[str]:
    """All values of one argument, whatever has been typed of it."""
    files, experiment = ExperimentFiles(place.root), before.get("experiment", "")
    if not isinstance(ref, (PromptReference, ResourceTemplateReference)):
        return []
    match argument.name:
        case "kernel":
            return kernels(place.root)
        case "experiment":
            return files.names()
        case "path":
            return files.of(experiment)
        case "iteration" if experiment in files.names():
            table = place.loop.log(experiment).table
            numbers = (line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|"))
            return [number for number in numbers if number.isdigit()]
    return []
