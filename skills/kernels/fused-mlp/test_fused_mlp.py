"""SwiGLU block of a transformer: (silu(x Wg^T) * (x Wu^T)) Wd^T, weights laid out as in nn.Linear."""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch

from kopt_mcp.problem import DISTRIBUTIONS, LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """In float32 for half precision; the hidden values are rounded to x's dtype, as tensor cores need."""
    wide = torch.promote_types(x.dtype, torch.float32)
    xw = x.to(wide)
    gated = xw @ gate.to(wide).T
    hidden = gated * torch.sigmoid(gated) * (xw @ up.to(wide).T)
    return (hidden.to(x.dtype).to(wide) @ down.to(wide).T).to(x.dtype)


def terms(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The size of what is added up in the last product, errors of the first two included."""
    gated, upped = (x @ gate.T).abs(), (x @ up.T).abs()
    gate_terms, up_terms = (x.square() @ gate.square().T).sqrt(), (x.square() @ up.square().T).sqrt()
    hidden = (gated + gate_terms) * (upped + up_terms)
    return (hidden.square() @ down.square().T).sqrt()


def _weight(make: Make, *shape: int) -> Spec:
    """Variance 1 / columns. Uniform, so that the values' distribution varies in x alone: were all of them drawn from
    equal values or with outliers, their product would leave float16's range."""
    high = (3.0 / shape[-1]) ** 0.5
    return make.uniform(*shape, low=-high, high=high)


def inputs(make: Make, tokens: int, width: int, inter: int) -> list[Spec]:
    return [
        make.normal(tokens, width),
        _weight(make, inter, width),
        _weight(make, inter, width),
        _weight(make, width, inter),
    ]


def torch_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    f = torch.nn.functional
    return f.linear(f.silu(f.linear(x, gate)) * f.linear(x, up), down)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(torch_mlp, mode="max-autotune-no-cudagraphs", dynamic=False)


def liger_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    f = torch.nn.functional
    return f.linear(LigerSiLUMulFunction.apply(f.linear(x, gate), f.linear(x, up)), down)


def edge(tokens: int, width: int, inter: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it cannot multiply bfloat16.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"tokens": tokens, "width": width, "inter": inter}, dtype, devices, timed=False)


def cuda(tokens: int, width: int, inter: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"tokens": tokens, "width": width, "inter": inter}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="fused-mlp",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(4096, 4096, 11008),  # Llama 2 7B
        cuda(4096, 4096, 14336),  # Llama 3 8B
        cuda(16, 4096, 14336),  # decoding: reads the weights once, bound by memory
        cuda(2048, 2048, 5504, "float16"),
        cuda(1024, 1024, 2752, "float32"),
        Workload({"tokens": 64, "width": 96, "inter": 160}, "float32", devices=("cpu",)),
        edge(1, 33, 65),
        edge(67, 31, 129),
        edge(65, 64, 70, "float16"),
        edge(67, 129, 131, "bfloat16"),
    ],
    bytes="(2 * tokens * width + 3 * width * inter) * itemsize",  # the hidden values need not leave the chip
    flops="6 * tokens * width * inter",
    bound="compute",
    # float32 means float32: torch's default refuses TF32 in cuBLAS as well, so that the comparison is like for like.
    precision="ieee",
    reduction="max(width, inter)",
    scale=terms,
    vary={"tokens": (1, 130), "width": (1, 130), "inter": (1, 200)},
    # `large` scales x by 64 and the hidden values by its square: they leave float16's range, in any model's block too.
    distributions=[d for d in DISTRIBUTIONS if d != "large"],
    layouts=LAYOUTS,
    comparisons={
        "torch": torch_mlp,
        "torch.compile": lambda *args: _compiled()(*args),
        **({"liger": liger_mlp} if find_spec("liger_kernel") else {}),
    },
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
