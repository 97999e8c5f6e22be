"""Rotary position embedding of queries or keys, halves layout (Llama, Qwen, GPT-NeoX): i turns with i + dim/2."""

import functools
from collections.abc import Callable

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (first, second) by its angle; half precision is widened first and rounded once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(wide).chunk(2, dim=-1)
    cos, sin = cos.to(wide), sin.to(wide)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def terms(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The size of the two products of each output, which may cancel."""
    first, second = x.chunk(2, dim=-1)
    one = ((first * cos).square() + (second * sin).square()).sqrt()
    two = ((second * cos).square() + (first * sin).square()).sqrt()
    return torch.cat([one, two], dim=-1)


def inputs(make: Make, batch: int, heads: int, seq: int, dim: int) -> list[Spec]:
    # Any values in [-1, 1) will do for the tables: the turn is linear in them, and the kernel cannot guess them.
    table = (seq, dim // 2)
    return [make.normal(batch, heads, seq, dim), make.uniform(*table, low=-1.0), make.uniform(*table, low=-1.0)]


def torch_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(torch_rotary, mode="max-autotune-no-cudagraphs", dynamic=False)


def edge(batch: int, heads: int, seq: int, dim: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"batch": batch, "heads": heads, "seq": seq, "dim": dim}, dtype, devices, timed=False)


def cuda(batch: int, heads: int, seq: int, dim: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"batch": batch, "heads": heads, "seq": seq, "dim": dim}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="rotary-embedding",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8, 32, 4096, 128),  # Llama 8B, queries
        cuda(8, 8, 4096, 128),  # its keys
        cuda(4, 32, 2048, 80),  # a head size that is no power of two
        cuda(4, 32, 2048, 128, "float32"),
        cuda(64, 32, 1, 128),  # decoding: too small to fill the device
        cuda(4, 32, 4096, 64, "float16"),
        Workload({"batch": 2, "heads": 3, "seq": 16, "dim": 64}, "float32", devices=("cpu",)),
        edge(1, 1, 2, 2),
        edge(2, 3, 7, 80),
        edge(1, 2, 13, 96, "float16"),
        edge(3, 2, 17, 80, "bfloat16"),
    ],
    bytes="(2 * batch * heads * seq * dim + seq * dim) * itemsize",  # x in and out; the tables once, not once per head
    flops="3 * batch * heads * seq * dim",  # two multiplications and an addition each
    bound="memory",
    reduction="2",
    scale=terms,
    vary={"batch": (1, 3), "heads": (1, 5), "seq": (1, 20)},
    layouts=LAYOUTS,
    # Liger's kernel turns queries and keys together and in place, which is another problem.
    comparisons={"torch": torch_rotary, "torch.compile": lambda *args: _compiled()(*args)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
