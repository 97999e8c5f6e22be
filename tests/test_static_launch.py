"""What cannot launch, and what is bound to be slow, is said before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kopt_mcp.devices.arch import arch_of
from kopt_mcp.models import StaticKernel
from kopt_mcp.static.assembly import Instructions
from kopt_mcp.static.launch import Launch, endless_compile, static_kernel

GOOD = Launch(
    name="kernel",
    grid=(132 * 8 * 10, 1, 1),
    block_threads=256,
    registers=32,
    spills=0,
    shared_bytes=0,
    instructions=Instructions(16, 16, None, None),
)


def profiled(target: str = "sm_90", units: int | None = None, **changes: object) -> StaticKernel:
    launch = replace(GOOD, **changes)  # type: ignore[arg-type]
    return static_kernel(launch, arch_of(target), target=target, units=units)


def test_a_good_launch_has_no_problems_and_keeps_what_the_compiler_said():
    found = profiled()

    assert found.problems == []
    assert (found.registers, found.load_bytes, found.occupancy_pct, found.limiter, found.waves) == (
        32,
        16,
        100,
        "warps",
        10,
    )


@pytest.mark.parametrize(
    ("target", "changes", "problem"),
    [
        (
            "sm_86",
            {"shared_bytes": 131072},
            "cannot launch: 131072 B of shared memory per block, sm_86 allows 101376 B",
        ),
        ("gfx942", {"shared_bytes": 98304}, "cannot launch: 98304 B of LDS per block, gfx942 allows 65536 B"),
        ("sm_90", {"block_threads": 2048}, "cannot launch: 2048 threads per block, sm_90 allows 1024"),
        (
            "sm_90",
            {"registers": 128, "block_threads": 1024},
            "cannot launch: 128 registers x 1024 threads exceed the register file of one SM",
        ),
        ("sm_100", {"tensor_columns": 1024}, "cannot launch: 1024 columns of tensor memory, sm_100 has 512"),
        ("sm_90", {"grid": (8, 70000, 1)}, "cannot launch: the grid (8, 70000, 1) exceeds 65535 in y or z"),
        ("sm_90", {"grid": (0, 1, 1)}, "cannot launch: the grid (0, 1, 1) is empty"),
    ],
)
def test_what_cannot_launch_is_said_with_the_limit(target, changes, problem):
    assert problem in profiled(target, **changes).problems


def test_a_tile_that_fits_the_larger_lds_of_gfx950_is_no_problem_there():
    assert profiled("gfx950", shared_bytes=98304).problems == []


def test_a_grid_smaller_than_the_device_names_the_part_it_was_counted_on():
    assert profiled(grid=(8, 1, 1)).problems == ["small grid: 8 blocks on 132 SMs (H100 SXM, H200), 124 stay idle"]


def test_waves_are_counted_on_the_callers_device_when_it_is_known():
    found = profiled(units=78, grid=(8 * 78 + 1, 1, 1))

    assert found.problems == ["tail: 1.00 waves on 78 SMs, 50 % of the block slots stay idle"]


def test_a_last_wave_that_is_nearly_full_is_not_called_a_tail():
    assert profiled(grid=(132 * 8 * 2 - 3, 1, 1)).problems == []


def test_spills_and_narrow_loads_are_bound_to_be_slow():
    found = profiled(spills=6, instructions=Instructions(2, 2, None, None))

    assert found.problems == [
        "6 words per thread spill to memory: the tile is too large for its warps",
        "the widest global load is 2 B per thread: not vectorised",
    ]


def test_what_the_compiler_did_not_say_stays_unknown():
    found = profiled(registers=None, spills=None)

    assert (found.registers, found.spills, found.occupancy_pct, found.limiter, found.waves) == (None,) * 5


def test_a_compile_that_never_ends_is_a_finding_with_no_numbers():
    found = static_kernel(endless_compile("huge", 128, 120), arch_of("gfx942"), target="gfx942")

    assert found.problems == ["compile timed out after 120 s: the tile is too large for this target"]
    assert (found.registers, found.shared_bytes, found.occupancy_pct, found.grid) == (None, None, None, [])
