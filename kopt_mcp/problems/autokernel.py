"""AutoKernel: a `kernel.py` with a `KERNEL_TYPE` and `kernel_fn`; its type says which of our problems it must solve.

The kernel is the task, so that nothing of it may describe the problem: the type is read once, when the task is taken
in, and with it the shapes that AutoKernel extracted from a model. What is computed, and how it is judged, is ours.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import Unlike, constant, defined, tree_of

EXPECTED = 'a Python file with KERNEL_TYPE = "..." and a function kernel_fn'
FUNCTION = "kernel_fn"
TYPES: dict[str, tuple[str, dict[str, str]]] = {
    "matmul": ("gemm", {"M": "m", "N": "n", "K": "k"}),
    "softmax": ("softmax", {"rows": "rows", "cols": "cols"}),
    "layernorm": ("layernorm", {"batch": "rows", "dim": "cols"}),
    "rmsnorm": ("rmsnorm", {"M": "rows", "N": "cols"}),
    "flash_attention": ("flash-attention", {"batch": "batch", "heads": "heads", "seq_len": "seq", "head_dim": "dim"}),
    "fused_mlp": ("fused-mlp", {"batch": "tokens", "dim": "width", "hidden": "inter"}),
    "cross_entropy": ("cross-entropy", {"batch": "rows", "vocab": "vocab"}),
    "rotary_embedding": (
        "rotary-embedding",
        {"batch": "batch", "heads": "heads", "seq_len": "seq", "head_dim": "dim"},
    ),
    "reduce": ("reduce", {"M": "rows", "N": "cols"}),
}
"""Their types, our problem for each, and what we call their sizes."""
HELPER = "kernels/cuda/_compile.py"
"""What AutoKernel's CUDA kernels import to be compiled."""
_LARGEST = 1 << 24
_MOST = 20


def recognise(path: Path) -> Recognition:
    """Whether a file assigns a `KERNEL_TYPE`."""
    tree = tree_of(path)
    there = defined(tree)
    if "KERNEL_TYPE" not in there:
        raise Unlike(f"{path.name} assigns no KERNEL_TYPE")
    line, kind = there["KERNEL_TYPE"].lineno, str(constant(there["KERNEL_TYPE"]))
    missing = []
    if kind not in TYPES:
        missing.append(
            f"{path.name} line {line}: KERNEL_TYPE is {kind[:40]!r}, for which there is no problem; expected one "
            f"of {', '.join(TYPES)}; write a problem file for it, with {FUNCTION} as its entry"
        )
    if FUNCTION not in there:
        missing.append(f"{path.name} defines no {FUNCTION}; expected the function that is to be made faster")
    module = HELPER.removesuffix(".py").replace("/", ".")
    needs_helper = any(isinstance(n, ast.ImportFrom) and n.module == module for n in ast.walk(tree))
    helper = helper_of(path) if needs_helper else None
    if needs_helper and helper is None:
        missing.append(
            f"{path.name} imports {HELPER}, which is in none of the folders above it; expected AutoKernel's own"
        )
    shapes = [] if missing else _shapes(there, TYPES[kind][1])
    return Recognition(
        format="autokernel",
        path=path,
        files=(helper,) if helper else (),
        found=(f"KERNEL_TYPE = {kind[:40]!r}, line {line}", f"{len(shapes)} shapes of its own"),
        missing=tuple(missing),
        name=f"autokernel-{kind[:40].replace('_', '-')}",
        options={"kernel_type": kind, "shapes": shapes, "helper": needs_helper},
        kernel=path,
    )


def helper_of(path: Path) -> Path | None:
    """AutoKernel's compile helper, in the nearest folder above the kernel."""
    return next((f / HELPER for f in path.resolve().parents if (f / HELPER).is_file()), None)


def _shapes(there: Mapping[str, ast.stmt], names: Mapping[str, str]) -> list[dict[str, int]]:
    """The shapes that an extracted kernel carries, in our names; those that are none of its type's are left out."""
    listed = [constant(there.get("MODEL_SHAPES"))]
    sizes = constant(there.get("TEST_SIZES"))
    if isinstance(sizes, (tuple, list)):
        listed += [one[1] for one in sizes if isinstance(one, (tuple, list)) and len(one) == 2]
    made: list[dict[str, int]] = []
    for shape in listed:
        if not isinstance(shape, dict) or set(shape) != set(names):
            continue
        ours = {names[name]: value for name, value in shape.items()}
        if all(type(n) is int and 0 < n <= _LARGEST for n in ours.values()) and ours not in made:
            made.append(ours)
    return made[:_MOST]
