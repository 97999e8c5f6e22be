"""Where a compiler or the worker runs: no secrets, no interpreter mode, no GPU, caches in the folder of the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kopt_mcp.platforms import launching
from kopt_mcp.platforms.host import Ran
from kopt_mcp.watch import Watch

KEPT = ("VIRTUAL_ENV", "CONDA_PREFIX", "CC", "CXX")
"""What a compiler may need besides what every launched program sees."""
MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def run(command: Sequence[str], *, folder: Path, timeout_s: float) -> Ran:
    """Run `command` with `folder` as its working, home, temporary and cache folder."""
    return launching.launch(command, folder=folder, timeout_s=timeout_s, watch=Watch(), env=environment(folder))


def environment(folder: Path) -> dict[str, str]:
    """A launched program's, with what compilers and Triton read besides, and every GPU hidden."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or (name.startswith("TRITON_") and name != "TRITON_INTERPRET")
    }
    return {**kept, **launching.environment(folder), **dict.fromkeys(MASKS, "")}
