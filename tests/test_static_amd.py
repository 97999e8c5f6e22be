"""Real Triton kernels compiled for AMD targets. Not compared with an AMD device: there was none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from kopt_mcp.models import StaticKernel
from kopt_mcp.static import static_profile
from kopt_mcp.static.hipcc import amd_kernels

DATA = Path(__file__).parent / "data" / "static"
MATRIX = {"shape": [4096, 4096], "dtype": "float16"}

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def profile(file: str, entry: str, arguments: list[object], target: str) -> StaticKernel:
    (found,) = static_profile(DATA / file, entry=entry, arguments=arguments, target=target, python=sys.executable)
    return found


@needs_triton
@pytest.mark.parametrize(
    ("target", "mma", "warp_size"),
    [
        ("gfx90a", "mfma", 64),
        ("gfx942", "mfma", 64),
        ("gfx950", "mfma", 64),
        ("gfx1100", "wmma", 32),
        ("gfx1201", "wmma", 32),
    ],
)
def test_a_matmul_uses_the_matrix_instructions_of_its_target(target, mma, warp_size):
    found = profile("matmul.py", "matmul", [MATRIX, MATRIX], target)

    assert (found.mma, found.block_threads) == (mma, 4 * warp_size)
    assert found.load_bytes == 16
    assert found.registers is not None
    assert found.occupancy_pct is not None
    assert found.waves is not None


@needs_triton
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_a_softmax_reports_for_every_cdna_target(target):
    found = profile("row_softmax.py", "softmax", [{"shape": [4096, 4096], "dtype": "float32"}], target)

    assert (found.load_bytes, found.store_bytes, found.spills, found.mma) == (16, 16, 0, None)


@needs_triton
def test_a_tile_over_the_lds_of_gfx942_is_flagged_before_it_is_tried():
    found = profile("matmul.py", "matmul_large_tile", [MATRIX, MATRIX], "gfx942")

    assert found.occupancy_pct == 0
    assert "cannot launch: 131072 B of LDS per block, gfx942 allows 65536 B" in found.problems


def test_kernels_of_a_hip_assembly_file_are_read_by_their_metadata():
    assembly = """
_Z4copyPKfPf:
	global_load_dwordx4 v[2:5], v[0:1], off
	global_store_dword v[0:1], v2, off
	s_endpgm
.Lfunc_end0:
_Z4holdPf:
	v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[0:15]
.Lfunc_end1:
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count: 0
    .group_segment_fixed_size: 1024
    .max_flat_workgroup_size: 256
    .name: _Z4copyPKfPf
    .private_segment_fixed_size: 8
    .vgpr_count: 12
  - .agpr_count: 16
    .group_segment_fixed_size: 0
    .max_flat_workgroup_size: 1024
    .name: _Z4holdPf
    .private_segment_fixed_size: 0
    .vgpr_count: 44
...
	.end_amdgpu_metadata
"""
    copy, hold = amd_kernels(assembly)

    assert (copy.name, copy.registers, copy.spills, copy.shared_bytes, copy.block_threads) == ("copy", 12, 2, 1024, 256)
    assert (copy.instructions.load_bytes, copy.instructions.store_bytes, copy.instructions.mma) == (16, 4, None)
    assert (hold.name, hold.instructions.mma, hold.block_threads) == ("hold", "mfma", None)
    assert "__launch_bounds__" in hold.remark
