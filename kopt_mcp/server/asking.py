"""What the user is asked in the middle of a call, where the client can ask."""

from __future__ import annotations

from typing import Any, Literal

from mcp.server.mcpserver import Context, Elicit
from pydantic import BaseModel, Field

from kopt_mcp.errors import KoptError


class Target(BaseModel):
    """What the user is asked when no target was given; left empty, the target is derived."""

    target_metric: Literal["gbps", "tflops", "latency_us"] | None = Field(
        default=None, description="The unit of the target"
    )
    target_value: float | None = Field(default=None, description="GB/s, TFLOPS or microseconds to reach")


def can_ask(ctx: Context[Any, Any]) -> bool:
    """Whether the client can put a question to its user; a call that needs one would fail where it cannot."""
    capabilities = ctx.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


async def ask_for_target(
    ctx: Context[Any, Any], target_value: float | None, target_pct_of_peak: float | None
) -> Elicit[Target] | Target:
    """Ask the user for a target where none is given anywhere and the client can ask."""
    if target_value is not None or target_pct_of_peak is not None or not can_ask(ctx):
        return Target()
    from kopt_mcp import config  # late: it is not needed to list the tools

    try:
        given = config.read_file(ctx.request_context.lifespan_context.place.root)
    except KoptError:
        return Target()  # baseline itself will say what is wrong with the file
    if given.get("target_value") is not None or given.get("target_pct_of_peak") is not None:
        return Target()
    return Elicit(
        "Which speed should the kernel reach? Leave empty for 70 % of what this device was measured at.", Target
    )
