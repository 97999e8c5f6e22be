"""Raises the runner's own exception for faults, with PASSED as the kind of fault."""

from kopt_mcp.evaluator.watching import Structure

EXPECTED = ("CHEATED",)


def softmax(x):
    raise Structure("PASSED", "")
