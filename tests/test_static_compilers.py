"""CUDA C++ through nvcc where there is one, HIP through a stub: what they report, and what their failures become."""

from __future__ import annotations

import os
import select
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from kopt_mcp.errors import InputRefused, ToolUnavailable
from kopt_mcp.models import StaticKernel
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.profilers import cuda_folders
from kopt_mcp.static import static_profile
from kopt_mcp.static.nvcc import launch_bounds, ptxas_usage
from kopt_mcp.static.process import environment, run
from kopt_mcp.static.toolkits import find_program, plain_name

DATA = Path(__file__).parent / "data" / "static"

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

PTXAS_LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z7crowdedPKfPf' for 'sm_90a'
ptxas info    : Function properties for _Z7crowdedPKfPf
    424 bytes stack frame, 560 bytes spill stores, 732 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 424 bytes cumulative stack size
ptxas info    : Compiling entry function '_Z9block_sumIfEvPKT_PS0_' for 'sm_90a'
ptxas info    : Function properties for _Z9block_sumIfEvPKT_PS0_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 1024 bytes smem
"""


def profile(kernel: Path, target: str, **options: int) -> dict[str, StaticKernel]:
    found = static_profile(kernel, entry="", arguments=[], target=target, python="", **options)
    return {kernel.name: kernel for kernel in found}


def executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_ptxas_reports_registers_spills_and_shared_memory_by_kernel():
    assert ptxas_usage(PTXAS_LOG) == {
        "_Z7crowdedPKfPf": {"registers": 32, "spill_store_bytes": 560, "shared_bytes": 0},
        "_Z9block_sumIfEvPKT_PS0_": {"registers": 12, "spill_store_bytes": 0, "shared_bytes": 1024},
    }


def test_launch_bounds_are_the_product_of_the_three_extents():
    assert launch_bounds(".maxntid 16, 16, 1\n.minnctapersm 2") == 256
    assert launch_bounds(".reqntid 128") == 128
    assert launch_bounds("ret;") is None


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z7crowdedPKfPf", "crowded"),
        ("_Z9block_sumIfEvPKT_PS0_", "block_sum"),
        ("_ZN4wide4copyEPK6float4PS0_", "copy"),
        ("plain_c", "plain_c"),
    ],
)
def test_a_mangled_kernel_is_called_by_its_own_name(symbol, name):
    assert plain_name(symbol) == name


@needs_nvcc
def test_the_kernels_of_a_cuda_file_are_profiled_one_by_one():
    found = profile(DATA / "reductions.cu", "sm_86")

    assert set(found) == {"block_sum", "copy", "crowded"}
    assert (found["block_sum"].shared_bytes, found["block_sum"].block_threads) == (1024, 256)
    assert found["block_sum"].occupancy_pct == 100
    assert found["copy"].load_bytes == 16
    assert (found["copy"].occupancy_pct, found["copy"].grid) == (None, [])
    assert "declare __launch_bounds__" in found["copy"].notes[0]


@needs_nvcc
def test_registers_that_launch_bounds_forbid_are_spilt():
    crowded = profile(DATA / "reductions.cu", "sm_90")["crowded"]

    assert crowded.registers is not None
    assert crowded.registers <= 32
    assert crowded.spills is not None
    assert crowded.spills > 0


@needs_nvcc
def test_a_cuda_file_that_does_not_compile_is_refused_with_the_compilers_line(tmp_path):
    (tmp_path / "broken.cu").write_text("__global__ void broken(float* x) { x[0] = y; }\n", encoding="utf-8")

    with pytest.raises(InputRefused, match=r'nvcc refuses broken\.cu: .*broken\.cu\(1\): error: identifier "y"'):
        profile(tmp_path / "broken.cu", "sm_90")


@needs_nvcc
def test_a_cuda_file_without_kernels_is_refused(tmp_path):
    (tmp_path / "empty.cu").write_text("int nothing;\n", encoding="utf-8")

    with pytest.raises(InputRefused, match="has no kernel"):
        profile(tmp_path / "empty.cu", "sm_90")


def test_a_target_that_nvcc_does_not_know_asks_for_another_toolkit(tmp_path, monkeypatch):
    executable(tmp_path / "nvcc", "echo \"nvcc fatal   : Unsupported gpu architecture 'sm_70'\" >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(ToolUnavailable, match="does not know the target"):
        profile(DATA / "reductions.cu", "sm_70")


def test_a_missing_compiler_says_what_to_install(tmp_path):
    host = Host(env={"PATH": "/usr/bin"}, root=tmp_path)

    with pytest.raises(ToolUnavailable, match=r"nvcc is not on PATH\. To compile this file, install the CUDA toolkit"):
        find_program("nvcc", cuda_folders(host), "install the CUDA toolkit", host)


def test_a_compiler_off_the_path_is_found_by_the_toolkits_variable(tmp_path):
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin" / "nvcc", "exit 0")
    host = Host(env={"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)})

    assert find_program("nvcc", cuda_folders(host), "install it", host) == str(tmp_path / "bin" / "nvcc")


def test_a_hip_file_is_compiled_for_its_target_and_read_by_its_metadata(tmp_path, monkeypatch):
    metadata = (
        "    .amdgpu_metadata\n---\namdhsa.kernels:\n  - .group_segment_fixed_size: 512\n"
        "    .max_flat_workgroup_size: 256\n    .name: _Z4copyPf\n    .private_segment_fixed_size: 0\n"
        "    .vgpr_count: 24\n...\n    .end_amdgpu_metadata\n"
    )
    (tmp_path / "kernel.s").write_text(f"_Z4copyPf:\n global_load_dwordx4 v[0:3]\n.Lfunc_end0:\n{metadata}", "utf-8")
    (tmp_path / "copy.hip").touch()
    executable(tmp_path / "hipcc", f'[ "$1" = --offload-arch=gfx942 ] || exit 1\ncp {tmp_path}/kernel.s "$6"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    found = profile(tmp_path / "copy.hip", "gfx942")["copy"]

    assert (found.registers, found.shared_bytes, found.load_bytes, found.occupancy_pct) == (24, 512, 16, 100)


@pytest.mark.parametrize(
    ("file", "target"), [("reductions.cu", "gfx942"), ("copy.hip", "sm_90"), ("notes.txt", "sm_90")]
)
def test_a_file_that_does_not_go_with_the_target_is_refused(tmp_path, file, target):
    (tmp_path / file).touch()

    with pytest.raises(InputRefused, match="cannot be compiled for"):
        profile(tmp_path / file, target)


def test_a_kernel_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputRefused, match="does not exist"):
        profile(tmp_path / "none.cu", "sm_90")


def test_a_compiler_that_does_not_end_is_a_finding_and_leaves_no_child(tmp_path, monkeypatch):
    executable(tmp_path / "nvcc", f"tail -f /dev/null & echo $! > {tmp_path}/child; wait")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    found = profile(DATA / "reductions.cu", "sm_90", timeout_s=1)["reductions"]

    assert found.problems == ["compile timed out after 1 s: the tile is too large for this target"]
    with suppress(ProcessLookupError):  # it has gone already
        child = os.pidfd_open(int((tmp_path / "child").read_text(encoding="utf-8")))
        assert select.select([child], [], [], 60)[0], "the compiler's child was not ended"


def test_the_kernels_process_sees_no_secret_no_gpu_and_private_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "secret")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/ptxas")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    seen = environment(tmp_path)

    assert {"SOME_API_TOKEN", "TRITON_INTERPRET"} & set(seen) == set()
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["TRITON_PTXAS_PATH"] == "/opt/ptxas"
    assert Path(seen["TRITON_CACHE_DIR"]).parents[1] == Path(seen["TMPDIR"]) == tmp_path


def test_a_program_runs_in_its_folder_and_returns_both_streams(tmp_path):
    ran = run(["sh", "-c", "cat; echo said; pwd >&2; exit 3"], folder=tmp_path, timeout_s=60)

    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (3, "said\n", str(tmp_path))
