"""The problem that planted.py and planted.c solve: a copy."""

from kopt_mcp.problem import Problem, Workload

PROBLEM = Problem(
    name="chain",
    reference=lambda x: x.clone(),
    inputs=lambda make, count: (make.normal(count),),
    arguments=("in0", "out0", "count"),
    workloads=[
        Workload({"count": 1 << 20}, devices=("cuda",)),
        *(Workload({"count": count}, devices=("cpu",)) for count in (1 << 15, 1 << 17)),
    ],
    bytes="2 * count * itemsize",
    flops="0",
    bound="compute",
)
