"""Matrix product C = A @ B of row-major matrices."""

import functools
from collections.abc import Callable

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B; half precision is widened first and rounded once, at the end."""
    wide = torch.promote_types(a.dtype, torch.float32)
    return (a.to(wide) @ b.to(wide)).to(a.dtype)


def terms(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The size of what is added up: positive and negative products cancel."""
    return (a.square() @ b.square()).sqrt()


def inputs(make: Make, m: int, n: int, k: int) -> list[Spec]:
    return [make.normal(m, k), make.normal(k, n, scale=k**-0.5)]


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(torch.matmul, mode="max-autotune-no-cudagraphs", dynamic=False)


def edge(m: int, n: int, k: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it cannot multiply bfloat16.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"m": m, "n": n, "k": k}, dtype, devices, timed=False)


def cuda(m: int, n: int, k: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"m": m, "n": n, "k": k}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="gemm",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(4096, 4096, 4096),
        cuda(2048, 2048, 2048),
        cuda(8192, 8192, 8192),
        cuda(4096, 14336, 4096),  # Llama 8B: up projection of 4096 tokens
        cuda(16, 4096, 4096),  # decoding: reads B once, bound by memory
        cuda(4096, 4096, 4096, "float16"),
        cuda(2048, 2048, 2048, "float32"),
        Workload({"m": 128, "n": 96, "k": 160}, "float32", devices=("cpu",)),
        edge(1, 65, 33),
        edge(67, 131, 127),
        edge(65, 63, 31, "float16"),
        edge(130, 70, 257, "bfloat16"),
        edge(67, 131, 127, "bfloat16"),
    ],
    bytes="(m * k + k * n + m * n) * itemsize",
    flops="2 * m * n * k",
    bound="compute",
    # float32 means float32: torch's default refuses TF32 in cuBLAS as well, so that the comparison is like for like.
    precision="ieee",
    reduction="k",
    scale=terms,
    vary={"m": (1, 200), "n": (1, 200), "k": (1, 300)},
    layouts=LAYOUTS,
    comparisons={"torch": torch.matmul, "torch.compile": lambda a, b: _compiled()(a, b)},  # torch's is cuBLAS, rocBLAS
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
