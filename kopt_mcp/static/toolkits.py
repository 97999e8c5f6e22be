"""What the vendors' compilers have in common: the job they get, how they are found, and what their failures mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kopt_mcp.devices.arch import Arch
from kopt_mcp.errors import InputRefused, ToolUnavailable
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.static.process import run

NO_BLOCK = "the kernel has no launch bounds: declare __launch_bounds__ to get the occupancy"


@dataclass(frozen=True)
class Compilation:
    """A CUDA C++ or HIP file to compile into `folder`."""

    source: Path
    arch: Arch
    target: str
    folder: Path
    timeout_s: float
    python: str
    """The user's interpreter; Triton ships a disassembler into it."""

    def run(self, compiler: str, *options: str) -> Ran | None:
        """Compile; None when it ran out of time.

        Raises:
            InputRefused: the file does not compile.
            ToolUnavailable: the compiler does not know the target.
        """
        ran = run([compiler, *options, str(self.source)], folder=self.folder, timeout_s=self.timeout_s)
        if ran.failure == "timeout":
            return None
        if not ran.ok:
            raise _refusal(ran, self.source, Path(compiler).name)
        return ran


def _refusal(ran: Ran, source: Path, compiler: str) -> InputRefused | ToolUnavailable:
    lines = [line.strip() for line in (ran.stderr + ran.stdout).splitlines() if line.strip()]
    last = lines[-1] if lines else f"status {ran.returncode}"
    error = next((line for line in lines if re.search(r"\berror\b|\bfatal\b", line)), last)
    if re.search(r"unsupported gpu architecture|invalid target id|unsupported hip gpu", error, re.IGNORECASE):
        return ToolUnavailable(f"this {compiler} does not know the target ({error}). Install a toolkit that does.")
    return InputRefused(f"{compiler} refuses {source.name}: {error}. Correct the file.")


def find_program(name: str, folders: Sequence[str], remedy: str, host: Host | None = None) -> str:
    """A compiler on PATH, else in one of `folders`; see `Host.which`.

    Raises:
        ToolUnavailable: it is nowhere.
    """
    if found := (host or Host()).which(name, *folders):
        return found
    raise ToolUnavailable(f"{name} is not on PATH. To compile this file, {remedy}.")


def plain_name(symbol: str) -> str:
    """A function's own name out of a mangled one (Itanium C++ ABI, 5.1): the last of its nested names."""
    if not symbol.startswith("_Z"):
        return symbol
    rest, name = re.sub(r"^_ZN?K?", "", symbol), ""
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        name, rest = rest[match.end() : end], rest[end:]
    return name or symbol
