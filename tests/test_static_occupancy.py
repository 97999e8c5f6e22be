"""The occupancy calculator against NVIDIA's own calculator, ncu on an H200 and LLVM's AMD back end."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kopt_mcp.devices.arch import ARCHITECTURES, SCHEDULERS, arch_of
from kopt_mcp.devices.occupancy import occupancy, waves
from kopt_mcp.errors import InputRefused

DATA = Path(__file__).parent / "data" / "static"


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_resident_blocks_equal_those_of_cuda_occupancy_h():
    """The file was written by a C++ program around `cuda_occupancy.h` of CUDA 13.0, shared memory preferred."""
    wrong = []
    for row in rows("occupancy_cuda_13_0.csv"):
        found = occupancy(
            arch_of(f"sm_{row['capability']}"),
            threads=int(row["threads"]),
            registers=int(row["registers"]),
            shared_bytes=int(row["shared_bytes"]),
        )
        if found.blocks != int(row["blocks"]):
            wrong.append((row, found))
    assert wrong == []


def test_limits_and_waves_equal_those_that_ncu_printed_on_an_h200():
    """ncu 2025.3, a Triton softmax: 256 threads, 32 registers, 32 B dynamic shared memory, 32,768 blocks on 132 SMs."""
    found = occupancy(arch_of("sm_90"), threads=256, registers=32, shared_bytes=32)

    assert found.limits["warps"] == 8
    assert found.limits["blocks"] == 32
    assert found.limits["registers"] == 8
    assert found.pct == 100
    assert found.limiter == "warps"
    filled = waves(32768, found.blocks, 132)
    assert filled is not None
    assert round(filled.count, 2) == 31.03


@pytest.mark.parametrize("row", rows("waves_llvm.csv"), ids=lambda row: f"{row['target']}-{row['vgprs']}")
def test_waves_per_simd_equal_the_occupancy_that_llvm_writes_into_the_assembly(row):
    """From `; Occupancy:` of kernels that Triton 3.9 compiled; one-wave blocks without LDS meet no other limit."""
    arch = arch_of(row["target"])

    found = occupancy(arch, threads=arch.warp_size, registers=int(row["vgprs"]), shared_bytes=0)

    assert found.warps == SCHEDULERS * int(row["waves"])


def test_shared_memory_limits_a_matmul_tile_to_one_block_a_multiprocessor():
    found = occupancy(arch_of("sm_90"), threads=128, registers=128, shared_bytes=131072)

    assert (found.blocks, found.limiter) == (1, "shared_memory")
    assert found.pct == pytest.approx(6.25)


def test_blocks_of_one_wave_need_no_barrier_and_larger_ones_do():
    cdna = arch_of("gfx942")

    assert occupancy(cdna, threads=64, registers=32, shared_bytes=0).blocks == 32
    assert occupancy(cdna, threads=128, registers=32, shared_bytes=0).limits["blocks"] == 16


def test_what_exceeds_a_limit_of_the_block_has_no_occupancy():
    ada = arch_of("sm_89")

    assert occupancy(ada, threads=2048, registers=16, shared_bytes=0).blocks == 0
    assert occupancy(ada, threads=1024, registers=128, shared_bytes=0).limiter == "registers"
    assert occupancy(ada, threads=1024, registers=128, shared_bytes=0).blocks == 0
    assert occupancy(ada, threads=128, registers=16, shared_bytes=101377).limiter == "shared_memory"


def test_a_block_may_have_all_the_shared_memory_that_the_opt_in_allows():
    """Opt-in limits as `cudaDevAttrMaxSharedMemoryPerBlockOptin` reports them."""
    limits = {"sm_70": 98304, "sm_75": 65536, "sm_80": 166912, "sm_86": 101376, "sm_90": 232448, "sm_120": 101376}
    for target, limit in limits.items():
        arch = arch_of(target)
        assert arch.shared_block_bytes == limit
        assert occupancy(arch, threads=32, registers=16, shared_bytes=limit).blocks == 1


def test_a_grid_that_just_misses_a_full_wave_leaves_most_of_the_last_one_idle():
    filled = waves(133, 1, 132)

    assert filled is not None
    assert filled.count == pytest.approx(133 / 132)
    assert filled.idle_pct == pytest.approx(49.6, abs=0.1)
    full = waves(264, 1, 132)
    assert full is not None
    assert full.idle_pct == 0


def test_waves_are_unknown_where_no_block_fits():
    assert waves(100, 0, 132) is None


def test_targets_are_known_by_their_plain_and_their_decorated_names():
    assert arch_of("sm_90a") is arch_of("sm_90")
    assert arch_of("sm_100f") is arch_of("sm_100")
    assert arch_of("gfx942:sramecc+:xnack-") is arch_of("gfx942")


@pytest.mark.parametrize("target", ["sm_89x", "gfx900", "hopper", "sm_", ""])
def test_an_unknown_target_is_refused_with_the_known_ones(target):
    with pytest.raises(InputRefused, match="sm_90, sm_100"):
        arch_of(target)


def test_every_row_holds_at_least_one_full_block():
    for arch in ARCHITECTURES.values():
        assert occupancy(arch, threads=1024, registers=32, shared_bytes=0).blocks >= 1, arch.target


def test_torch_names_capabilities_of_both_vendors():
    assert arch_of("sm_120").torch_capability == (12, 0)
    assert arch_of("gfx90a").torch_capability == (9, 0)
    assert arch_of("gfx942").torch_capability == (9, 4)
    assert arch_of("gfx1201").torch_capability == (12, 0)
