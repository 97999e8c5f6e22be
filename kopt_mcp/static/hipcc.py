"""HIP through hipcc: the kernels of a `.hip` file by the metadata of its code object. Nothing is launched."""

from __future__ import annotations

import re
from typing import Any

import yaml

from kopt_mcp.devices.arch import BLOCK_THREADS
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.profilers import rocm_folders
from kopt_mcp.static.assembly import read_amdgcn
from kopt_mcp.static.launch import Launch, endless_compile
from kopt_mcp.static.toolkits import NO_BLOCK, Compilation, find_program, plain_name


def hip_kernels(job: Compilation) -> list[Launch]:
    """Every kernel of a `.hip` file, with an empty grid.

    Raises:
        InputRefused: the file does not compile.
        ToolUnavailable: there is no hipcc, or it does not know the target.
    """
    hipcc = find_program("hipcc", rocm_folders(Host()), "install ROCm's hipcc")
    output = job.folder / "kernel.s"
    options = (f"--offload-arch={job.target}", "--cuda-device-only", "-S", "-O3", "-o", str(output))
    if job.run(hipcc, *options) is None:
        return [endless_compile(job.source.stem, None, job.timeout_s)]
    return amd_kernels(output.read_text(encoding="utf-8"))


def amd_kernels(assembly: str) -> list[Launch]:
    """Every kernel of an AMD assembly file (LLVM, "User Guide for AMDGPU Backend", code object metadata)."""
    document = re.search(r"\.amdgpu_metadata\n(.*?)^\s*\.end_amdgpu_metadata", assembly, re.DOTALL | re.MULTILINE)
    metadata = yaml.safe_load(document[1]) if document else {}
    return [_kernel(entry, assembly) for entry in metadata.get("amdhsa.kernels", [])]


def _kernel(entry: dict[str, Any], assembly: str) -> Launch:
    bound = int(entry.get(".max_flat_workgroup_size", BLOCK_THREADS))
    # 1024 is what a kernel without launch bounds gets: it says nothing about the launch.
    threads = bound if bound < BLOCK_THREADS else None
    symbol = str(entry[".name"])
    body = re.search(rf"^{re.escape(symbol)}:.*?^\.Lfunc_end", assembly, re.DOTALL | re.MULTILINE)
    return Launch(
        name=plain_name(symbol),
        block_threads=threads,
        registers=int(entry[".vgpr_count"]),
        spills=int(entry[".private_segment_fixed_size"]) // 4,
        shared_bytes=int(entry[".group_segment_fixed_size"]),
        instructions=read_amdgcn(body[0] if body else ""),
        remark="" if threads else NO_BLOCK,
    )
