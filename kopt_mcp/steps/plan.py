"""What a baseline is asked for: found, read and checked before anything runs on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kopt_mcp import config as configuration
from kopt_mcp import metrics
from kopt_mcp.certificate import Review
from kopt_mcp.config import Config
from kopt_mcp.errors import InputRefused, ProblemInvalid
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.own_files import JUDGED
from kopt_mcp.evaluator.records import ProblemInfo
from kopt_mcp.models import Device, Doubts, Metric, Said
from kopt_mcp.phases import Experiment
from kopt_mcp.source import normal_form, shape
from kopt_mcp.steps import provenance
from kopt_mcp.steps.call import Tools, torch_name
from kopt_mcp.steps.task import Task, take
from kopt_mcp.steps.task import evaluator as evaluator_for
from kopt_mcp.watch import Watch
from kopt_mcp.workspace import Workspace, decode

Accepted = Literal["", "kopt.yaml", "elicitation", "earlier"]
"""How a person accepted a problem."""
HOST_LANGUAGES = (".c", ".cc", ".cpp")
GPU_LANGUAGES = (".cu", ".hip")


@dataclass(frozen=True)
class Plan:
    """A configuration that has been found to be usable, before anything ran on the device."""

    config: Config
    kernel: str
    data: bytes
    normal: str
    shape: str
    task: Task
    problem: ProblemInfo
    device: Device
    metric: Metric
    notes: tuple[str, ...]
    review: Review
    accepted_by: Accepted


def doubts(
    space: Workspace,
    arguments: Mapping[str, Any],
    earlier: Mapping[str, str],
    survivors: Mapping[str, tuple[tuple[str, str], ...]],
) -> Doubts:
    """What a person should be asked. `survivors`: what was found out about problems, by the hash of their file.

    Raises:
        InputRefused, WorkspaceFailed: there is nothing to be asked about yet.
    """
    config = configuration.load(space.root, arguments)
    kernel, data = space.kernel(config.kernel_path)
    task = take(space, config, kernel, decode(data, space.relative(kernel)).body)
    standing = provenance.review(space, task.files, {**earlier, **config.accepted_problems})
    found = survivors.get(task.sha256, ())
    return Doubts(
        unread=provenance.unread(space, task.files) if standing == "unreviewed" else {},
        weaknesses=tuple(one for one in found if one[0] not in config.accept_weaknesses),
    )


def plan(
    tools: Tools,
    arguments: Mapping[str, Any],
    said: Said,
    earlier: Mapping[str, str],
    states: Sequence[Experiment],
    watch: Watch,
) -> Plan:
    """Read and check everything that can be checked without the device; a script has to be run once for that.

    Args:
        earlier: problem files that a person accepted for an earlier experiment, with their hashes.
        states: the experiments that there are.

    Raises:
        InputRefused, ProblemInvalid: what is wrong, and what to do about it.
    """
    space = tools.workspace
    config = configuration.load(space.root, arguments)
    config = config.model_copy(update={"accept_weaknesses": (*config.accept_weaknesses, *said.weaknesses)})
    kernel, data = space.kernel(config.kernel_path)
    shown = space.relative(kernel)
    body = decode(data, shown).body
    try:
        normal, shaped = normal_form(body, shown), shape(body, shown)
    except RecursionError as error:
        raise InputRefused(f"{shown} is nested too deeply to be read; nothing was created.") from error
    _not_on_trial(space, kernel, states)
    task = take(space, config, kernel, body)
    patched = {i.patch.sha256: state.id for state in states for i in state.iterations}
    _not_patched(space, task, kernel, patched, {**earlier, **config.accepted_problems, **said.problem})
    device, problem, notes = _place(tools, config, kernel, task, watch)
    task, problem = _with_seen(space, task, problem, kernel)
    infos = metrics.chosen(problem, config.workloads)
    metric = config.target_metric or metrics.default_metric(problem)
    metrics.check_countable(metric, infos)
    accepted: dict[Accepted, Mapping[str, str]] = {"kopt.yaml": config.accepted_problems, "elicitation": said.problem}
    review, accepted_by = _review(space, {**task.seen, **task.files}, {**accepted, "earlier": earlier})
    if task.format == "functions" or not task.files:  # what it is stands in no file that somebody could have read
        review, accepted_by = "unreviewed", ""
    return Plan(config, shown, data, normal, shaped, task, problem, device, metric, notes, review, accepted_by)


def evaluator(tools: Tools, task: Task, kernel: str, watch: Watch) -> Evaluator:
    """Who judges and times a kernel for a task; a script does both itself."""
    space = tools.workspace
    test = space.relative(task.test)
    return evaluator_for(tools.evaluator, tools.scripts, space.root, kernel, task.trust, test, task.files, watch)


def _place(
    tools: Tools, config: Config, kernel: Path, task: Task, watch: Watch
) -> tuple[Device, ProblemInfo, tuple[str, ...]]:
    """The device to run on, and the problem as it is declared for it."""
    devices = tools.detect()
    first = _device(devices, config.gpu, kernel)
    shown = tools.workspace.relative(kernel)
    try:
        return _with_versions(tools, first), _describe(tools, task, shown, first, watch), ()
    except ProblemInvalid as error:
        if task.doubt and "declares no PROBLEM" in str(error):
            raise ProblemInvalid(f"{error} It was taken for a problem file because {task.doubt}") from error
        host = next((d for d in devices if d.platform == "cpu"), None)
        if config.gpu != "auto" or first.platform == "cpu" or host is None:
            raise
        try:
            problem = _describe(tools, task, shown, host, watch)
        except ProblemInvalid:
            raise error from None
        note = f"the problem has workloads for the CPU only; running there, not on {first.name}."
        return _with_versions(tools, host), problem, (note,)


def _not_on_trial(space: Workspace, kernel: Path, states: Sequence[Experiment]) -> None:
    """See that no experiment begins with a version that another one's patch wrote and that was not found to be better:
    who makes a kernel slow, and begins again, could call it a gain to take that back.

    Raises:
        InputRefused: it would.
    """
    shown = space.relative(kernel)
    sha256 = space.hash(shown)
    known = {version for state in states for version in state.bests}  # the first kernel of each is among them
    for state in states:
        made = next((i.patch for i in state.iterations if i.patch.sha256 == sha256), None)
        if made and sha256 not in known and not space.reviewed(kernel):
            raise InputRefused(
                f"{shown} is what iteration {made.iteration} of {state.id!r} made of it, which was not found to be "
                "better; a gain over it would be none over the user's kernel; end that experiment with "
                "decide(stop=true), which restores the best version, or have a person commit this one."
            )


def _not_patched(
    space: Workspace, task: Task, kernel: Path, patched: Mapping[str, str], accepted: Mapping[str, str]
) -> None:
    """See that no problem is run that an agent wrote by way of a patch, which no person saw; `patched` names the
    experiment in which one wrote a version, by the version's hash.

    A kernel is shut in, and a problem is not: whoever could make the one of the other had the run of the machine.

    Raises:
        ProblemInvalid: one of its files is a version that a patch wrote, and git has it not.
    """
    own = task.foreign is not None and kernel in [path.resolve() for path in task.foreign.files]
    for path in (*task.files, *([space.relative(kernel)] if own else [])):
        sha256 = space.hash(path) or ""
        if sha256 in patched and accepted.get(path) != sha256 and not space.reviewed(space.root / path):
            raise ProblemInvalid(
                f"{path} is a version of a kernel that a patch in {patched[sha256]} wrote, and would run as a part of "
                "the problem, where nothing shuts it in; have a person read and commit it, or name another problem."
            )


def _with_seen(space: Workspace, task: Task, problem: ProblemInfo, kernel: Path) -> tuple[Task, ProblemInfo]:
    """What the problem was seen to import or read is a part of it, wherever in the project it lies.

    Raises:
        ProblemInvalid: the kernel is among it.
    """
    seen = {Path(path).resolve(): sha256 for path, sha256 in problem.files.items()}
    if kernel in seen:
        raise ProblemInvalid(f"{task.test.name} imports or reads {kernel.name}, which {JUDGED}.")
    inside = {space.relative(path): sha256 for path, sha256 in seen.items() if path.is_relative_to(space.root)}
    others = {path: sha256 for path, sha256 in inside.items() if path not in task.files}
    return replace(task, seen=others), replace(problem, files={})


def _describe(tools: Tools, task: Task, kernel: str, device: Device, watch: Watch) -> ProblemInfo:
    """The problem as it is declared for a device; a script is run for that, with the device held."""
    judge = evaluator(tools, task, kernel, watch)
    with task.opened(tools.workspace) as (file, sha256):
        if task.trust == "measured":
            return judge.describe(file, sha256, torch_name(device))
        with tools.locks.device(device.uuid, device.name, watch):
            return judge.describe(file, sha256, torch_name(device))


def _with_versions(tools: Tools, device: Device) -> Device:
    seen = tools.evaluator.torch_device(torch_name(device))
    return device.model_copy(update={"versions": {**device.versions, **seen.versions}})


def _device(devices: list[Device], gpu: str, kernel: Path) -> Device:
    if gpu == "auto" and kernel.suffix in HOST_LANGUAGES:
        gpu = "cpu"
    fitting = [d for d in devices if gpu in ("auto", d.platform)]
    if not fitting:
        names = ", ".join(f"{d.name} ({d.platform})" for d in devices) or "no device at all"
        raise InputRefused(f"gpu is {gpu!r}, but this machine shows {names}; set gpu to one of these, or to auto.")
    found = next((d for d in fitting if d.platform != "cpu"), fitting[0])
    if found.platform == "cpu" and kernel.suffix in GPU_LANGUAGES:
        raise InputRefused(
            f"{kernel.name} is written for a GPU, and {found.name} is none; nothing of it can run there; choose a "
            "machine or a device with one."
        )
    return found


def _review(
    space: Workspace, files: Mapping[str, str], ways: Mapping[Accepted, Mapping[str, str]]
) -> tuple[Review, Accepted]:
    """Who stands for the problem, and by which way a person came to; several ways together count too."""
    together: dict[str, str] = {}
    for way, accepted in ways.items():
        together |= accepted
        found = provenance.review(space, files, together)
        if found != "unreviewed":
            return found, way if found == "accepted" else ""
    return "unreviewed", ""
