"""What the user is asked in the middle of a call, where the client can ask."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, Elicit, Resolve
from pydantic import BaseModel, Field

from kopt_mcp.errors import KoptError
from kopt_mcp.models import Doubts


class Target(BaseModel):
    """What the user is asked when no target was given; left empty, the target is derived."""

    target_metric: Literal["gbps", "tflops", "latency_us"] | None = Field(
        default=None, description="The unit of the target"
    )
    target_value: float | None = Field(default=None, description="GB/s, TFLOPS or microseconds to reach")


class Acceptance(BaseModel):
    """A person's word on a doubt; left off, the call goes on without it."""

    accept: bool = Field(default=False, description="Yes, I have looked at it and accept it")


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


def find_doubts(
    ctx: Context[Any, Any], kernel_path: str | None, test_path: str | None, reference: str | None
) -> Doubts:
    """What a person should be asked about the problem's file, where there is one and the client can ask."""
    if reference is not None or not can_ask(ctx):
        return Doubts()
    return ctx.request_context.lifespan_context.place.loop.doubts(kernel_path, test_path)  # type: ignore[no-any-return]


async def ask_about_problem(doubts: Annotated[Doubts, Resolve(find_doubts)]) -> Elicit[Acceptance] | Acceptance:
    """Ask whether somebody has read a problem that git does not have as it is: an agent may have written it."""
    if not doubts.unread:
        return Acceptance()
    files = ", ".join(f"{path} (sha256 {sha256[:12]})" for path, sha256 in doubts.unread.items())
    return Elicit(
        f"{files} decides which kernels count as right, and git does not have it as it is: nobody may have read it. "
        "Have you, and does it say what the kernel must compute? Without your word every result is marked unreviewed.",
        Acceptance,
    )


async def ask_about_weaknesses(doubts: Annotated[Doubts, Resolve(find_doubts)]) -> Elicit[Acceptance] | Acceptance:
    """Ask whether a problem that was refused, because it lets wrong kernels pass, may be used all the same."""
    if not doubts.weaknesses:
        return Acceptance()
    wrong = "; ".join(f"{name}: {why}" for name, why in doubts.weaknesses)
    return Elicit(
        f"The problem lets wrong kernels pass ({wrong}). It is better to strengthen the test. Shall it be used as it "
        "is? Every result will then name what it does not catch.",
        Acceptance,
    )
