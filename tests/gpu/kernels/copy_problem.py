"""A copy of known size: 256 MiB read, 256 MiB written, far more than any cache holds."""

import torch

from kopt_mcp.problem import Problem, Workload

PROBLEM = Problem(
    name="copy",
    reference=torch.clone,
    inputs=lambda make, n: [make.normal(n)],
    workloads=[Workload({"n": 1 << 26}, "float32")],
    bytes="2 * n * itemsize",
    flops="0",
    bound="memory",
)
