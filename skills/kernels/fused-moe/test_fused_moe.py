"""Mixture of experts with SwiGLU experts, the router's choices given: sum over choices of score * expert(x)."""

import functools
from collections.abc import Callable, Iterator

import torch

from kopt_mcp.problem import DISTRIBUTIONS, LAYOUTS, Make, Problem, Spec, Workload

Tensor = torch.Tensor


def _choices(experts: Tensor, count: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each expert that was chosen, with the tokens that chose it and the slots in which they did."""
    for expert in range(count):
        tokens, slots = (experts == expert).nonzero(as_tuple=True)
        if len(tokens):
            yield expert, tokens, slots


def reference(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
    """Expert by expert, in float32 for half precision; hidden values and experts' outputs are rounded to x's dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for expert, tokens, slots in _choices(experts, gate.shape[0]):
        chosen = x[tokens].to(wide)
        gated = chosen @ gate[expert].to(wide).T
        hidden = gated * torch.sigmoid(gated) * (chosen @ up[expert].to(wide).T)
        result = hidden.to(x.dtype).to(wide) @ down[expert].to(wide).T
        out.index_add_(0, tokens, result.to(x.dtype).to(wide) * scores[tokens, slots, None].to(wide))
    return out.to(x.dtype)


def terms(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
    """The size of what is added up in the last products and over the choices, errors of the first two included."""
    out = torch.zeros_like(x)
    for expert, tokens, slots in _choices(experts, gate.shape[0]):
        chosen = x[tokens]
        gated, upped = (chosen @ gate[expert].T).abs(), (chosen @ up[expert].T).abs()
        gate_terms = (chosen.square() @ gate[expert].square().T).sqrt()
        up_terms = (chosen.square() @ up[expert].square().T).sqrt()
        hidden = (gated + gate_terms) * (upped + up_terms)
        result = hidden.square() @ down[expert].square().T
        out.index_add_(0, tokens, result * scores[tokens, slots, None].square())
    return out.sqrt()


def _weight(make: Make, *shape: int) -> Spec:
    """Variance 1 / columns. Uniform, so that the values' distribution varies in x alone: were all of them drawn from
    equal values or with outliers, their product would leave float16's range."""
    high = (3.0 / shape[-1]) ** 0.5
    return make.uniform(*shape, low=-high, high=high)


def inputs(make: Make, tokens: int, width: int, inter: int, experts: int, topk: int) -> list[Spec]:
    return [
        make.normal(tokens, width),
        _weight(make, experts, inter, width),
        _weight(make, experts, inter, width),
        _weight(make, experts, width, inter),
        make.uniform(tokens, topk, low=0.05, dtype="float32"),
        make.integers(tokens, topk, high=experts),  # a token may choose an expert twice: the sum is still defined
    ]


def torch_moe(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
    f = torch.nn.functional
    out = torch.zeros_like(x)
    for expert in range(gate.shape[0]):
        tokens, slots = (experts == expert).nonzero(as_tuple=True)
        chosen = x[tokens]
        hidden = f.silu(f.linear(chosen, gate[expert])) * f.linear(chosen, up[expert])
        out.index_add_(0, tokens, f.linear(hidden, down[expert]) * scores[tokens, slots, None].to(x.dtype))
    return out


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    # A shape that depends on the data cannot be compiled: every expert on every token, weighted, is what compiles.
    def dense(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
        weight = torch.zeros(x.shape[0], gate.shape[0], dtype=torch.float32, device=x.device)
        weight.scatter_add_(1, experts, scores)
        hidden = torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT)
        return torch.einsum("etw,te->tw", hidden @ down.mT, weight.to(x.dtype))

    return torch.compile(dense, mode="max-autotune-no-cudagraphs", dynamic=False)


def shape(tokens: int, width: int, inter: int, experts: int, topk: int) -> dict[str, int]:
    return {"tokens": tokens, "width": width, "inter": inter, "experts": experts, "topk": topk}


def edge(tokens: int, width: int, inter: int, experts: int, topk: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it cannot multiply bfloat16.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload(shape(tokens, width, inter, experts, topk), dtype, devices, timed=False)


def cuda(tokens: int, width: int, inter: int, experts: int, topk: int, dtype: str = "bfloat16") -> Workload:
    return Workload(shape(tokens, width, inter, experts, topk), dtype, devices=("cuda",))


PROBLEM = Problem(
    name="fused-moe",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(2048, 4096, 14336, 8, 2),  # Mixtral 8x7B, prefill
        cuda(16, 4096, 14336, 8, 2),  # the same, decoding
        cuda(4096, 2048, 1408, 64, 6),  # DeepSeek-V2-Lite, prefill: many small experts
        cuda(32, 2048, 1408, 64, 6),  # the same, decoding
        cuda(1024, 2048, 768, 128, 8, "float16"),  # Qwen3 30B-A3B
        Workload(shape(24, 48, 80, 4, 2), "float32", devices=("cpu",)),
        edge(1, 33, 17, 3, 1),
        edge(11, 31, 65, 5, 3),
        edge(7, 40, 24, 4, 2, "float16"),
        edge(67, 129, 70, 8, 2, "bfloat16"),
        edge(5, 64, 33, 16, 4, "bfloat16"),
    ],
    # x in, the output out, scores and choices; and the weights of every expert that is chosen at all, on average.
    bytes="2 * tokens * width * itemsize + tokens * topk * 12"
    " + experts * (1 - (1 - 1 / experts) ** (tokens * topk)) * 3 * width * inter * itemsize",
    flops="6 * tokens * topk * width * inter",
    bound="compute",
    # float32 means float32: torch's default refuses TF32 in cuBLAS as well, so that the comparison is like for like.
    precision="ieee",
    reduction="max(width, inter)",
    scale=terms,
    vary={"tokens": (1, 40), "width": (16, 70), "inter": (8, 70)},
    # `large` scales x by 64 and the hidden values by its square: they leave float16's range, in any model's block too.
    distributions=[d for d in DISTRIBUTIONS if d != "large"],
    layouts=LAYOUTS,
    comparisons={"torch": torch_moe, "torch.compile": lambda *args: _compiled()(*args)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
