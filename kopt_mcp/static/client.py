"""The server's side of the static profile: starts the worker or a compiler, and believes only what validates.

Never imports torch or triton; they live in the user's interpreter, in another process.
"""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kopt_mcp.devices.arch import BLOCK_THREADS, Arch, arch_of
from kopt_mcp.errors import EvaluatorFailed, InputRefused, ToolUnavailable
from kopt_mcp.models import StaticKernel
from kopt_mcp.platforms.host import Ran
from kopt_mcp.static.assembly import Instructions, read_amdgcn, read_ptx, read_sass
from kopt_mcp.static.hipcc import hip_kernels
from kopt_mcp.static.launch import NOTHING_READ, TENSOR_COLUMNS, Launch, endless_compile, static_kernel
from kopt_mcp.static.nvcc import cuda_kernels
from kopt_mcp.static.process import run
from kopt_mcp.static.toolkits import Compilation

WORKER = Path(__file__).with_name("worker.py")
READERS = {"sass": read_sass, "amdgcn": read_amdgcn, "ptx": read_ptx}
"""By the artefact's suffix, the most truthful first: PTX only where nothing could disassemble."""
LAUNCH = TypeAdapter(Launch)
"""A `launch` line of the worker's report, but for its artefacts."""


def static_profile(
    kernel: Path,
    *,
    entry: str,
    arguments: Sequence[Any],
    target: str,
    python: str,
    timeout_s: float = 120,
    units: int | None = None,
) -> list[StaticKernel]:
    """What the compiler says about the kernels of one file, with no GPU.

    Args:
        kernel: a `.py` file with Triton kernels, a `.cu` or a `.hip` file.
        entry: the function to call; every launch it makes is reported once per specialisation and grid. Triton only.
        arguments: its arguments: scalars, or tensors as `{"shape": [...], "dtype": "bfloat16"}` with `values`
            (`zeros`, or `integers` with `low` and `high`), `stride` and `storage_offset` (elements). Triton only.
        target: `sm_90`, `gfx942`, ...
        python: the user's interpreter, with torch and triton.
        timeout_s: seconds for everything; a compile that takes longer is itself a finding.
        units: SMs (CUs, on RDNA WGPs) of the device, to count waves; the table's well-known part when left out.

    Raises:
        InputRefused: the target is not known, or the kernel does not compile, run or launch anything.
        ToolUnavailable: the interpreter, torch, triton or a compiler is missing or too old.
        EvaluatorFailed: the worker broke.
    """
    arch, kernel = arch_of(target), kernel.resolve()
    if not kernel.is_file():
        raise InputRefused(f"{kernel} does not exist. Give the path of a kernel file.")
    with tempfile.TemporaryDirectory(prefix="kopt-static-") as name:
        folder = Path(name)
        if kernel.suffix == ".py":
            job = _job(kernel, entry, arguments, arch, folder, units)
            launches = _triton_launches(job, arch, python, folder, timeout_s)
        else:
            launches = _compiler(kernel, arch)(Compilation(kernel, arch, target, folder, timeout_s, python))
        return [static_kernel(launch, arch, target=target, units=units) for launch in launches]


def _compiler(kernel: Path, arch: Arch) -> Callable[[Compilation], list[Launch]]:
    compilers = {(".cu", "nvidia"): cuda_kernels, (".hip", "amd"): hip_kernels}
    if (kernel.suffix, arch.vendor) not in compilers:
        raise InputRefused(
            f"{kernel.name} cannot be compiled for {arch.target}: .cu is for sm_, .hip for gfx, .py for both."
        )
    return compilers[kernel.suffix, arch.vendor]


def _job(
    kernel: Path, entry: str, arguments: Sequence[Any], arch: Arch, folder: Path, units: int | None
) -> dict[str, Any]:
    amd = arch.vendor == "amd"
    return {
        "kernel": str(kernel),
        "entry": entry,
        "arguments": list(arguments),
        "folder": str(folder),
        "target": {
            "backend": "hip" if amd else "cuda",
            "arch": arch.target if amd else arch.compute_capability,
            "warp_size": arch.warp_size,
        },
        "limits": {
            "shared_bytes": arch.shared_block_bytes,
            "tensor_columns": TENSOR_COLUMNS,
            "threads": BLOCK_THREADS,
        },
        "device": {
            "name": arch.part,
            "gcnArchName": arch.target if amd else "",
            "capability": arch.torch_capability,
            "multi_processor_count": units or arch.units,
            "warp_size": arch.warp_size,
            "regs_per_multiprocessor": arch.registers,
            "max_threads_per_multi_processor": arch.warps * arch.warp_size,
            "shared_memory_per_block_optin": arch.shared_block_bytes,
            "shared_memory_per_multiprocessor": arch.shared_bytes,
        },
    }


def _triton_launches(job: dict[str, Any], arch: Arch, python: str, folder: Path, timeout_s: float) -> list[Launch]:
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    ran = run([python, "-I", "-B", str(WORKER), str(folder / "job.json")], folder=folder, timeout_s=timeout_s)
    if ran.failure in ("missing", "refused"):
        raise ToolUnavailable(f"{python} cannot be started ({ran.stderr}). Set `python:` or KOPT_PYTHON.")
    events = _events(folder / "report.jsonl")
    last = events[-1] if events else {}
    launches = [_launch(event, folder) for event in events if event.get("event") == "launch"]
    if ran.failure == "timeout" and last.get("event") == "compile":
        threads = int(last.get("num_warps") or 4) * arch.warp_size
        return [*launches, endless_compile(str(last.get("name")), threads, timeout_s)]
    _refuse_failure(ran, last, python, events, timeout_s)
    if not launches:
        raise InputRefused(f"{job['entry']} launched no Triton kernel for these arguments. Name the entry that does.")
    return launches


def _events(report: Path) -> list[dict[str, Any]]:
    """The lines that are whole: a killed worker may leave a torn one."""
    events = []
    for line in report.read_text(encoding="utf-8").splitlines() if report.exists() else ():
        try:
            events.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            break
    return events


def _launch(event: dict[str, Any], folder: Path) -> Launch:
    try:
        seen = LAUNCH.validate_python(event)
    except ValidationError as error:
        raise EvaluatorFailed(f"the static worker wrote a line that does not validate: {error}") from error
    return replace(seen, instructions=_read(folder, Path(str(event.get("artifact"))).name))


def _read(folder: Path, stem: str) -> Instructions:
    for suffix, reader in READERS.items():
        if (path := folder / f"{stem}.{suffix}").exists():
            return reader(path.read_text(encoding="utf-8"))
    return NOTHING_READ


def _refuse_failure(
    ran: Ran, last: dict[str, Any], python: str, events: list[dict[str, Any]], timeout_s: float
) -> None:
    stage = next((event["stage"] for event in reversed(events) if event.get("event") == "stage"), "starting")
    if ran.failure == "timeout":
        raise InputRefused(f"no result after {timeout_s:g} s while {stage}. Make the entry return without a GPU.")
    if last.get("event") == "error":
        if last.get("kind") == "tool":
            raise ToolUnavailable(f"{last.get('text')}. Under {python}: pip install torch 'triton>=3.2'.")
        raise InputRefused(f"{last.get('text')}. Correct the kernel file or the arguments.")
    if last.get("event") != "done":
        raise _crash(ran, last, stage)


def _crash(ran: Ran, last: dict[str, Any], stage: str) -> Exception:
    code = ran.returncode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    tail = " ".join(ran.stderr.strip().splitlines()[-1:])
    if last.get("event") == "compile":
        return InputRefused(f"the compiler {how} on {last.get('name')}: {tail}. Try a smaller tile or fewer stages.")
    return EvaluatorFailed(f"the static worker {how} while {stage}: {tail}")
