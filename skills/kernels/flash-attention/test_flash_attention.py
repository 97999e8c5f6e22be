"""Causal attention, with grouped key and value heads: softmax(q k^T / sqrt(dim), keys up to the query) v."""

import functools
from collections.abc import Callable, Iterator

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def _heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """One (seq, dim) triple per batch and query head: all scores at once would not fit the memory in float64."""
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            yield q[b, h], k[b, h // group], v[b, h // group]


def _weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.T) * q.shape[-1] ** -0.5
    future = torch.ones_like(scores, dtype=torch.bool).triu(diagonal=1)
    scores = scores.masked_fill(future, -torch.inf)
    exp = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Head by head, in float32 for half precision; the weights are rounded to the inputs' dtype, for tensor cores."""
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for row, (qh, kh, vh) in zip(out.flatten(0, 1), _heads(q, k, v), strict=True):
        weights = _weights(qh.to(wide), kh.to(wide))
        row.copy_(weights.to(q.dtype).to(wide) @ vh.to(wide))
    return out


def terms(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The size of what is added up; a rounding error of a score, itself a sum, is a relative error of its weight."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for row, (qh, kh, vh) in zip(out.flatten(0, 1), _heads(q, k, v), strict=True):
        score = (qh.square() @ kh.square().T).sqrt().amax(dim=-1, keepdim=True) * q.shape[-1] ** -0.5
        row.copy_((1.0 + score) * (_weights(qh, kh).square() @ vh.square()).sqrt())
    return out


def inputs(make: Make, batch: int, heads: int, kv_heads: int, seq: int, dim: int) -> list[Spec]:
    return [
        make.normal(batch, heads, seq, dim),
        make.normal(batch, kv_heads, seq, dim),
        make.normal(batch, kv_heads, seq, dim),
    ]


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    grouped = q.shape[1] != k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def sdpa_with(backend: str) -> Callable[..., torch.Tensor]:
    """torch's attention held to one backend of `torch.nn.attention.SDPBackend`; raises where it cannot run."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel([getattr(SDPBackend, backend)]):
            return sdpa(q, k, v)

    return run


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group, seq = q.shape[1] // k.shape[1], q.shape[2]
        scores = q @ k.repeat_interleave(group, dim=1).mT * q.shape[-1] ** -0.5
        future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu(diagonal=1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return weights @ v.repeat_interleave(group, dim=1)

    return torch.compile(plain, mode="max-autotune-no-cudagraphs", dynamic=False)


def shape(batch: int, heads: int, kv_heads: int, seq: int, dim: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq": seq, "dim": dim}


def edge(batch: int, heads: int, kv_heads: int, seq: int, dim: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it cannot multiply bfloat16.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload(shape(batch, heads, kv_heads, seq, dim), dtype, devices, timed=False)


def cuda(batch: int, heads: int, kv_heads: int, seq: int, dim: int, dtype: str = "bfloat16") -> Workload:
    return Workload(shape(batch, heads, kv_heads, seq, dim), dtype, devices=("cuda",))


PROBLEM = Problem(
    name="flash-attention",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(4, 32, 32, 4096, 128),  # Llama 2 7B, prefill
        cuda(4, 32, 8, 4096, 128),  # Llama 3 8B: four query heads share a key head
        cuda(1, 32, 8, 16384, 128),  # a long context
        cuda(16, 16, 16, 1024, 64, "float16"),  # a small head
        cuda(2, 16, 16, 1024, 64, "float32"),
        Workload(shape(1, 2, 1, 96, 32), "float32", devices=("cpu",)),
        edge(1, 1, 1, 2, 16),
        edge(1, 2, 1, 67, 24),
        edge(2, 2, 2, 65, 16, "float16"),
        edge(1, 4, 2, 129, 80, "bfloat16"),
        edge(2, 3, 1, 1000, 64, "bfloat16"),
    ],
    bytes="(2 * heads + 2 * kv_heads) * batch * seq * dim * itemsize",  # q, k, v in, the output out; no scores
    flops="4 * batch * heads * (seq * (seq + 1) / 2) * dim",  # two products, only over keys up to the query
    bound="compute",
    # float32 means float32, as in torch's default; the half precision types are what attention is run in.
    precision="ieee",
    reduction="max(seq, dim)",
    scale=terms,
    vary={"batch": (1, 2), "seq": (1, 200)},
    layouts=LAYOUTS,
    comparisons={
        "torch": sdpa,
        "torch.compile": lambda *args: _compiled()(*args),
        "flash": sdpa_with("FLASH_ATTENTION"),
        "cudnn": sdpa_with("CUDNN_ATTENTION"),
    },
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
