"""Real Triton kernels through the real worker, compiled for NVIDIA targets on a machine without a GPU."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kopt_mcp.models import StaticKernel
from kopt_mcp.static import static_profile

DATA = Path(__file__).parent / "data" / "static"
ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


@functools.cache
def softmax(rows: int, columns: int, target: str = "sm_90", *, entry: str = "softmax", dtype: str = "float32"):
    argument = {"shape": [rows, columns], "dtype": dtype}
    return profile("row_softmax.py", entry, [argument], target)


def matmul(entry: str, target: str, **options: Any) -> list[StaticKernel]:
    arguments = [{"shape": [4096, 4096], "dtype": "float16"}] * 2
    return profile("matmul.py", entry, arguments, target, **options)


def profile(file: str, entry: str, arguments: list[Any], target: str, **options: Any) -> list[StaticKernel]:
    return static_profile(
        DATA / file, entry=entry, arguments=arguments, target=target, python=sys.executable, **options
    )


def test_a_good_softmax_loads_sixteen_bytes_a_thread_and_fills_the_device():
    (found,) = softmax(132 * 8 * 4, 4096)

    assert (found.name, found.grid, found.block_threads) == ("softmax_kernel", [4224, 1, 1], 256)
    assert (found.load_bytes, found.store_bytes, found.spills) == (16, 16, 0)
    assert found.registers is not None
    assert 16 <= found.registers <= 64
    assert found.occupancy_pct is not None
    assert found.waves is not None
    assert found.mma is None


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_an_odd_number_of_columns_breaks_the_loads_down_to_single_elements(dtype, width):
    (found,) = softmax(4096, 781, dtype=dtype)

    assert (found.load_bytes, found.store_bytes) == (width, width)


def test_a_pointer_that_is_not_aligned_breaks_the_loads_down_too():
    argument = {"shape": [4096, 1024], "dtype": "float32", "storage_offset": 1}

    (found,) = profile("row_softmax.py", "softmax", [argument], "sm_90")

    assert found.load_bytes == 4


def test_a_row_in_one_warp_spills():
    (found,) = softmax(4096, 8192, entry="softmax_one_warp")

    assert found.spills is not None
    assert found.spills > 0
    assert any("spill to memory" in problem for problem in found.problems)


def test_a_tiny_grid_is_seen():
    (found,) = softmax(8, 4096)

    assert found.grid == [8, 1, 1]
    assert found.waves is not None
    assert found.waves < 0.1
    assert found.problems == ["small grid: 8 blocks on 132 SMs (H100 SXM, H200), 124 stay idle"]


def test_too_many_threads_are_flagged_although_they_compile():
    (found,) = softmax(4096, 4096, entry="softmax_too_many_threads")

    assert found.problems == ["cannot launch: 2048 threads per block, sm_90 allows 1024"]


def test_the_same_launch_twice_is_one_kernel():
    assert len(softmax(4096, 4096, entry="softmax_twice")) == 1


def test_a_kernel_may_ask_torch_for_the_device_it_is_compiled_for():
    (found,) = softmax(4096, 1024, "sm_80", entry="softmax_persistent")

    assert found.grid == [108, 1, 1]


def test_a_kernel_may_size_its_grid_by_its_own_registers():
    (found,) = softmax(4096, 1024, entry="softmax_by_occupancy")

    assert found.registers is not None
    assert found.grid == [132 * (65536 // (found.registers * 32 * 4)), 1, 1]


@pytest.mark.parametrize(
    ("target", "mma", "async_copy"),
    [
        ("sm_80", "mma.sync", "cp.async"),
        ("sm_90", "wgmma", "cp.async"),
        ("sm_100", "tcgen05", "cp.async"),
        ("sm_120", "mma.sync", "cp.async"),
    ],
)
def test_a_matmul_uses_the_matrix_instructions_of_its_target(target, mma, async_copy):
    (found,) = matmul("matmul", target)

    assert (found.mma, found.async_copy, found.load_bytes) == (mma, async_copy, 16)


def test_a_tile_over_the_shared_memory_of_the_target_is_flagged_before_it_is_tried():
    (found,) = matmul("matmul_large_tile", "sm_86")

    assert found.shared_bytes == 131072
    assert found.occupancy_pct == 0
    assert "cannot launch: 131072 B of shared memory per block, sm_86 allows 101376 B" in found.problems


def test_autotuning_takes_the_first_config_that_fits_and_says_which():
    (found,) = matmul("matmul_tuned", "sm_86")

    assert found.grid == [64, 64, 1]
    assert any("config 2 of 3 (TILE_M=64, TILE_N=64, TILE_K=32, num_warps=4" in text for text in found.notes)
    assert found.config["TILE_M"] == "64"
    assert found.problems == []


def test_tensors_larger_than_the_memory_cost_nothing():
    (found,) = softmax(2**24, 65536, dtype="bfloat16")

    assert found.grid == [2**24, 1, 1]


def test_the_interpreter_mode_of_the_server_does_not_reach_the_worker(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    assert matmul("matmul", "sm_80")[0].registers is not None


def test_the_server_side_imports_no_torch():
    code = "import sys, kopt_mcp.static; print({'torch', 'triton', 'numpy'} & set(sys.modules))"

    out = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert out.stdout.strip() == "set()"
