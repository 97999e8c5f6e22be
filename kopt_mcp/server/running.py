"""Run a step of the loop for a call: in a worker thread, with progress on the way, and an end when it is cancelled."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ContentBlock

from kopt_mcp.errors import KoptError
from kopt_mcp.models import Record
from kopt_mcp.server.answers import failure, success
from kopt_mcp.watch import Watch

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)
SAME_AGAIN_S = 5.0
"""After how long the same news is told again: often enough for a client that gives up on a silent server."""


async def run(
    ctx: Context[Any, Any],
    step: Callable[[Watch], R],
    beside: Callable[[R], Sequence[ContentBlock]] = lambda result: (),
    *,
    reads_only: bool = False,
) -> CallToolResult:
    """Run one step in a worker thread; when the call is cancelled, end what it started and wait until it has ended.

    Args:
        beside: what goes with the result for clients that show it; see `answers.success`.
        reads_only: it waits for no device, and must not wait behind steps that do.
    """
    limiter = None if reads_only else ctx.request_context.lifespan_context.steps
    news, told = anyio.create_memory_object_stream[tuple[float, str]](16)
    watch = Watch(_Progress(news.send_nowait).report)
    ended = threading.Event()
    begun = threading.Lock()  # whoever takes it first has decided: the step runs, or it never does

    def work() -> CallToolResult:
        if not begun.acquire(blocking=False):
            return failure("Cancelled", "the call was cancelled before anything ran.")
        try:
            result = step(watch)
            return success(result, beside(result))
        except KoptError as error:
            return failure(type(error).__name__, str(error))
        except Exception as error:
            logger.exception("a tool failed for a reason that nobody foresaw")
            return failure("Unforeseen", _unforeseen(error))
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_tell, ctx, told)
        try:
            with news:
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
        except anyio.get_cancelled_exc_class():
            watch.cancel()
            with anyio.CancelScope(shield=True):
                while not begun.acquire(blocking=False) and not ended.is_set():
                    await anyio.sleep(0.01)
            raise
    raise AssertionError("the group swallows nothing")


def _unforeseen(error: Exception) -> str:
    return (
        f"the server failed for a reason of its own ({type(error).__name__}: {str(error)[:200]}); this says nothing of "
        f"the kernel; the journal holds every finished step: call log, then go on, and report the server's output."
    )


async def _tell(ctx: Context, told: Any) -> None:
    with told:
        async for fraction, text in told:
            await ctx.report_progress(fraction, 1.0, text)


class _Progress:
    """Hands progress over to the event loop, always rising, as the protocol wants it.

    It never waits for the client: a step that holds a device must not stand still because somebody does not read.
    """

    def __init__(
        self, hand_over: Callable[[tuple[float, str]], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._hand_over = hand_over
        self._monotonic = monotonic
        self._last, self._text, self._then = -1.0, "", 0.0

    def report(self, fraction: float, text: str) -> None:
        """Called in the worker thread; what cannot be handed over is left out, newer news will follow."""
        now, is_news = self._monotonic(), fraction > self._last or text != self._text
        if not is_news and now - self._then < SAME_AGAIN_S:
            return
        creeping = self._last + (1 - self._last) * 1e-5
        self._last, self._text, self._then = (fraction if fraction > self._last else creeping), text, now
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            anyio.from_thread.run_sync(self._hand_over, (self._last, text))
