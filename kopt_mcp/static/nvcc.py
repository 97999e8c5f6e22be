"""CUDA C++ through nvcc: the kernels of a `.cu` file as ptxas reports them. Nothing is launched."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from kopt_mcp.errors import InputRefused
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.profilers import cuda_folders
from kopt_mcp.static.assembly import read_ptx, read_sass
from kopt_mcp.static.launch import Launch, endless_compile
from kopt_mcp.static.process import run
from kopt_mcp.static.toolkits import NO_BLOCK, Compilation, find_program, plain_name

DUMP_TIMEOUT_S = 60


def cuda_kernels(job: Compilation) -> list[Launch]:
    """Every kernel of a `.cu` file, with an empty grid.

    Targets from `sm_90` on are compiled as `sm_90a` and so on, as Triton does, or wgmma and tcgen05 would be refused; a
    suffix of the caller's own (`sm_100f`) is kept.

    Raises:
        InputRefused: the file does not compile or has no kernel.
        ToolUnavailable: there is no nvcc, or it does not know the target.
    """
    nvcc = find_program("nvcc", cuda_folders(Host()), "install the CUDA toolkit")
    plain = job.target == job.arch.target and job.arch.compute_capability >= 90
    target, cubin = f"{job.target}{'a' if plain else ''}", job.folder / "kernel.cubin"
    ran = job.run(nvcc, "-cubin", f"-arch={target}", "-Xptxas", "-v", "--keep", "-o", str(cubin))
    if ran is None:
        return [endless_compile(job.source.stem, None, job.timeout_s)]
    usage = ptxas_usage(ran.stderr + ran.stdout)
    if not usage:
        raise InputRefused(f"{job.source.name} has no kernel: declare a __global__ function or instantiate a template.")
    ptx = _by_kernel((job.folder / f"{job.source.stem}.ptx").read_text(encoding="utf-8"), r"\.entry\s+(\w+)")
    sass = _sass(cubin, nvcc, job)
    return [_kernel(symbol, usage[symbol], ptx.get(symbol, ""), sass.get(symbol)) for symbol in usage]


def _kernel(symbol: str, usage: dict[str, int], ptx: str, sass: str | None) -> Launch:
    threads = launch_bounds(ptx)
    return Launch(
        name=plain_name(symbol),
        block_threads=threads,
        registers=usage["registers"],
        spills=usage["spill_store_bytes"] // 4,
        shared_bytes=usage["shared_bytes"],
        instructions=read_sass(sass) if sass else read_ptx(ptx),
        remark="" if threads else NO_BLOCK,
    )


def ptxas_usage(log: str) -> dict[str, dict[str, int]]:
    """Registers, spill stores and static shared memory by mangled kernel name, from the log of `ptxas -v`."""
    usage: dict[str, dict[str, int]] = {}
    for section in re.split(r"Compiling entry function ", log)[1:]:
        symbol = re.match(r"'([^']+)'", section)
        if symbol is not None:
            usage[symbol[1]] = {
                "registers": _number(r"Used (\d+) registers", section),
                "spill_store_bytes": _number(r"(\d+) bytes spill stores", section),
                "shared_bytes": _number(r"(\d+) bytes smem", section),
            }
    return usage


def _number(pattern: str, text: str) -> int:
    """ptxas leaves out what is zero."""
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def launch_bounds(ptx: str) -> int | None:
    """Threads of `__launch_bounds__`; None without."""
    match = re.search(r"\.(?:max|req)ntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", ptx)
    if match is None:
        return None
    x, y, z = (int(size or 1) for size in match.groups())
    return x * y * z


def _by_kernel(text: str, header: str) -> dict[str, str]:
    parts = re.split(header, text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _sass(cubin: Path, nvcc: str, job: Compilation) -> dict[str, str]:
    """Machine code by kernel; empty without a disassembler."""
    shipped = Path(job.python).parent.parent.glob("lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump")
    places = [Path(nvcc).resolve().with_name("cuobjdump"), *(shipped if job.python else ())]
    tool = shutil.which("cuobjdump") or next((str(path) for path in places if path.exists()), None)
    if tool is None:
        return {}
    ran = run([tool, "-sass", str(cubin)], folder=job.folder, timeout_s=DUMP_TIMEOUT_S)
    return _by_kernel(ran.stdout, r"Function : (\S+)")
