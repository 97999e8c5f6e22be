"""What a problem may be too strict about, where it refuses a kernel that its owner takes for right. Pure."""

from __future__ import annotations

import re

from kopt_mcp.evaluator.records import Evaluation

_ROUNDING = 16.0
"""Times the allowance: within it an error may be the rounding of a long sum in another order, beyond it hardly."""
_FEW = 0.1
"""Share of integers that differ where only those do that are ties or lie between two."""
_DIFFER = re.compile(r"\b(\d+) of (\d+) elements differ")


def too_strict(evaluation: Evaluation) -> str:
    """What to look at in the problem before the kernel is called wrong; empty where nothing points at it.

    A kernel may break ties otherwise than the reference, round what lies between two integers the other way, or add up
    in another order than a problem without `reduction` allows for.
    """
    if evaluation.status != "INCORRECT_NUMERICAL" or not evaluation.workloads:
        return ""
    result = evaluation.workloads[-1]
    if differ := _DIFFER.search(result.detail):
        few = int(differ[1]) < max(2.0, _FEW * int(differ[2]))
        if few or ", equal values" in result.detail:
            return (
                "these must be equal; if they are ties, or lie between two integers, and the kernel may go the other "
                "way, have the reference go it too, or leave such values out of the problem's distributions"
            )
        return ""
    if result.error_ratio is not None and 1.0 < result.error_ratio <= _ROUNDING:
        return (
            "if it only adds up a long sum in another order, have the problem's reduction (its length) and scale (root "
            "sum of squares of its terms) say so; where both do, raise the factor of its tolerance"
        )
    return ""
