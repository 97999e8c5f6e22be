"""`kopt-mcp doctor`: is everything here that the loop needs, and does the evaluator tell right from wrong?

Each line is one fact with a state: `fine`, `note` (the loop works, but less well) or `fail` (it does not). A line that
is not fine says what to do. What could not be checked counts as failed.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Protocol

from kopt_mcp import __version__, selftest, skills
from kopt_mcp.errors import DeviceBusy, KoptError
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.records import Evaluation, TorchDevice
from kopt_mcp.interpreter import Interpreter, install_line
from kopt_mcp.lock import Locks, runtime_folder
from kopt_mcp.memory import user_folder
from kopt_mcp.models import Device
from kopt_mcp.platforms import PLATFORMS, Host, pci
from kopt_mcp.profiling.access import CounterAccess
from kopt_mcp.project import Project, cache_folder
from kopt_mcp.watch import Watch

State = Literal["fine", "note", "fail"]
WORDS: dict[State, str] = {"fine": "ok", "note": "note", "fail": "FAIL"}
_NAMESPACES = (
    "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0, in a container a seccomp profile that lets unshare through"
)
_ISOLATION = {
    "network": _NAMESPACES,
    "processes": _NAMESPACES,
    "shared memory": _NAMESPACES,
    "landlock": "boot Linux 5.13 or newer with landlock among its lsm=, and let its calls through in a container",
}
_SETTING = "look at the limits of this container or machine"
_COMPILERS = {
    "cpu": (("cc", "gcc", "clang"), "C kernels and Triton need one: install gcc"),
    "nvidia": (("nvcc",), "CUDA C++ kernels need it: install the CUDA toolkit"),
    "amd": (("hipcc",), "HIP kernels need it: install ROCm's hipcc"),
}
_TOOLKITS = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/rocm/bin", "/opt/rocm-*/bin")


@dataclass(frozen=True)
class Check:
    """One line of the screen."""

    name: str
    state: State
    found: str
    todo: str = ""
    """What to do; empty where the state is fine."""


class Place(Protocol):
    """What is examined: `kopt_mcp.project.Project`, or a test's."""

    @property
    def root(self) -> Path: ...

    @property
    def evaluator(self) -> Evaluator: ...

    def interpreter(self) -> Interpreter: ...


class Doctor:
    """One examination. What an earlier check finds, later ones use."""

    def __init__(self, place: Place, host: Host, locks: Locks) -> None:
        """`locks` should not wait long: a device that is held is a finding."""
        self._place = place
        self._host = host
        self._locks = locks
        self._python = ""
        self._cpu: TorchDevice | None = None
        self._gpu: TorchDevice | None = None
        self._devices: list[Device] = []

    def examine(self) -> Iterator[Check]:
        """Every check, each as soon as it is known, the slow ones last."""
        found = f"kopt-mcp {__version__}, mcp {version('mcp')}, {len(skills.files())} skill files"
        yield Check("server", "fine", f"{found}; Python {sys.version.split()[0]}, {sys.executable}")
        yield from self._folders()
        yield from self._interpreter()
        yield from self._gpus()
        yield from self._tools()
        yield from self._self_test()

    def _folders(self) -> Iterator[Check]:
        environment = self._host.env
        needed = {"project": self._place.root, "temporary": Path(tempfile.gettempdir())}
        useful = {"cache": cache_folder(environment), "memory": user_folder(environment)}
        fine = []
        for name, folder in {**needed, **useful}.items():
            if refusal := unwritable(folder):
                why = "nothing can be kept" if name in needed else "nothing is remembered from one run to the next"
                todo = f"set the rights of {folder} so that this user can write, or make room"
                yield Check(f"{name} folder", "fail" if name in needed else "note", f"{folder}: {refusal}; {why}", todo)
            else:
                fine.append(f"{name} {folder}")
        yield Check("folders", "fine", "can be written: " + ", ".join(fine))

    def _interpreter(self) -> Iterator[Check]:
        origin = ""
        try:
            python = self._place.interpreter()
            self._python, origin = python.path, f"{python.path} ({python.origin})"
            self._cpu = self._place.evaluator.torch_device("cpu")
        except KoptError as error:
            yield refused("interpreter", error)
            return
        told = self._cpu.versions
        yield Check("interpreter", "fine", f"{origin}, Python {told['python']}")
        yield Check("torch", "fine", told["torch"])
        if "triton" in told:
            yield Check("triton", "fine", told["triton"])
        else:
            todo = f"for Triton kernels run {install_line(self._python, 'triton')}; other kernels need none"
            yield Check("triton", "note", "not installed", todo)

    def _gpus(self) -> Iterator[Check]:
        found = [detect(self._host) for detect in PLATFORMS]
        self._devices = [device for one in found for device in one.devices]
        remarks = [note for one in found for note in one.notes] + pci.unsupported(self._host)
        gpus = [device for device in self._devices if device.platform != "cpu"]
        for name, count in Counter(_words(device) for device in gpus).items():
            yield Check("GPU", "fine", f"{count} x {name}" if count > 1 else name)
        if not gpus:
            todo = "; ".join(remarks) or "nothing, if there is none: C is timed on the CPU, Triton is only verified"
            yield Check("GPU", "note", f"none; kernels run on {self._devices[-1].name}", todo)
        elif self._cpu is not None:
            yield from self._torch_gpu()

    def _torch_gpu(self) -> Iterator[Check]:
        try:
            self._gpu = self._place.evaluator.torch_device("cuda:0")
        except KoptError as error:
            todo = f"install the build of torch that fits the driver: {install_line(self._python, again=True)}"
            yield Check("torch on GPU", "fail", str(error), todo)
            return
        told = [f"{key} {value}" for key, value in self._gpu.versions.items() if key in ("cuda", "rocm")]
        yield Check("torch on GPU", "fine", ", ".join([self._gpu.name, self._gpu.arch, *told]))

    def _tools(self) -> Iterator[Check]:
        access = CounterAccess(cache_folder(self._host.env), self._host)
        for device in {device.platform: device for device in reversed(self._devices)}.values():
            names, todo = _COMPILERS[device.platform]
            paths = [path for name in names if (path := self._host.which(name, *_TOOLKITS))]
            yield Check(names[0], "fine", paths[0]) if paths else Check(names[0], "note", "not found", todo)
            for tool in access.applied(device).profilers:
                found = f"{tool.version or 'version unknown'}, {tool.path}" if tool.path else "not installed"
                todo = tool.remedy or "install it"
                yield Check(tool.name, "fine", found) if tool.usable else Check(tool.name, "note", found, todo)

    def _self_test(self) -> Iterator[Check]:
        if self._cpu is None:
            yield Check("self-test", "fail", "not run", "give the evaluator an interpreter with torch, see above")
            return
        device = self._devices[0 if self._gpu is not None else -1]
        try:
            with self._locks.device(device.uuid, device.name, Watch()):
                yield Check("lock", "fine", f"{device.name} is free; locks are in {runtime_folder()}")
                triton = self._gpu is not None and "triton" in self._gpu.versions
                done = selftest.run(self._place.evaluator, "cpu" if self._gpu is None else "cuda:0", triton)
        except DeviceBusy as error:
            yield refused("lock", error)
            yield Check("self-test", "fail", "not run: somebody else would be disturbed", "run doctor again then")
        except KoptError as error:
            yield refused("self-test", error)
        else:
            yield from isolation(done[0].isolation)
            yield verdict(*done, "Triton" if triton else "torch", device.name)


def verdict(right: Evaluation, wrong: Evaluation, language: str, where: str) -> Check:
    """Whether the right kernel passed and the wrong one did not."""
    said = f"a right {language} kernel {right.status}, a wrong one {wrong.status}, on {where}"
    if right.status == "PASSED" and wrong.status.startswith("INCORRECT"):
        return Check("self-test", "fine", f"{said}, {right.wall_s + wrong.wall_s:.1f} s")
    about = right.detail if right.status != "PASSED" else wrong.detail
    return Check("self-test", "fail", said, f"mend what the evaluator met, then run doctor again: {about[:400]}")


def isolation(told: dict[str, str]) -> Iterator[Check]:
    """How far a candidate was shut in, as its evaluation said."""
    off = {part: how for part, how in told.items() if how.startswith("off")}
    on = ", ".join(f"{part} {how}" for part, how in told.items() if part not in off)
    yield Check("isolation", "fine", on or "none is reported")
    for part, how in off.items():
        yield Check("isolation", "note", f"{part} {how}", _ISOLATION.get(part, _SETTING))


def refused(name: str, error: KoptError) -> Check:
    """A refusal (fact; cause; next step) as a line."""
    fact, _, todo = str(error).rpartition("; ")
    return Check(name, "fail", fact or todo, todo)


def unwritable(folder: Path) -> str:
    """Why nothing can be written to a folder, or to where it would be made; empty if it can."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"kopt-mcp doctor")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _words(device: Device) -> str:
    memory = [f"{device.memory_bytes / 1e9:.0f} GB"] if device.memory_bytes else []
    driver = [f"driver {device.versions['driver']}"] if "driver" in device.versions else []
    return ", ".join([device.name, device.arch, *memory, *driver, *device.throttle])


def run(project: Project, *, as_json: bool, locks: Locks | None = None) -> int:
    """Examine and print; 0 if the loop can be used."""
    checks: list[Check] = []
    try:
        for check in Doctor(project, Host(), locks or Locks(bound_s=0.0)).examine():
            checks.append(check)
            if not as_json:
                print(shown(check), flush=True)
    finally:
        project.close()
    failed = list(dict.fromkeys(check.name for check in checks if check.state == "fail"))
    if as_json:
        print(json.dumps({"usable": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        print(f"\nnot usable: {', '.join(failed)}" if failed else "\nusable")
    return 1 if failed else 0


def shown(check: Check) -> str:
    """A check as lines of the terminal's width."""
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    indent = " " * 21
    lines = textwrap.wrap(check.found, width - len(indent), break_on_hyphens=False, break_long_words=False)
    todo = textwrap.wrap(check.todo, width - len(indent) - 4, break_on_hyphens=False, break_long_words=False)
    text = [*lines, *(("do: " if number == 0 else "    ") + line for number, line in enumerate(todo))]
    return f"{WORDS[check.state]:<5} {check.name:<15}" + f"\n{indent}".join(text)
