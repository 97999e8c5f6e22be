"""Twice a vector: as small as a problem can be."""

from kopt_mcp.problem import Problem, Workload

PROBLEM = Problem(
    name="scale",
    reference=lambda x: 2 * x,
    inputs=lambda make, n: (make.normal(n),),
    arguments=("in0", "out0", "n"),
    workloads=[Workload({"n": 100_000}, devices=("cpu",)), Workload({"n": 37}, devices=("cpu",), timed=False)],
    bytes="2 * n * itemsize",
    flops="n",
    bound="memory",
)
