"""Each head's vectors scaled to unit length, where heads and positions may be exchanged in memory."""

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()


def inputs(make: Make, batch: int, heads: int, seq: int, dim: int) -> list[Spec]:
    return [make.normal(batch, heads, seq, dim)]


PROBLEM = Problem(
    name="unit_heads",
    reference=reference,
    inputs=inputs,
    workloads=[
        Workload({"batch": 2, "heads": 4, "seq": 50, "dim": 64}),
        Workload({"batch": 1, "heads": 3, "seq": 7, "dim": 33}, timed=False),
    ],
    bytes="2 * batch * heads * seq * dim * itemsize",
    flops="4 * batch * heads * seq * dim",
    bound="memory",
    reduction="dim",
    vary={"heads": (2, 5), "seq": (2, 40), "dim": (1, 90)},
    layouts=LAYOUTS,
)
