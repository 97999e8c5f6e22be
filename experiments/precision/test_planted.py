"""The problem that planted.py and planted.c solve: a copy."""

from kopt_mcp.problem import Problem, Workload

PROBLEM = Problem(
    name="chain",
    reference=lambda x: x.clone(),
    inputs=lambda make, count: (make.normal(count),),
    arguments=("in0", "out0", "count"),
    workloads=[Workload({"count": 1 << 20}, devices=("cuda",)), Workload({"count": 1 << 15}, devices=("cpu",))],
    bytes="2 * count * itemsize",
    flops="0",
    bound="compute",
)
