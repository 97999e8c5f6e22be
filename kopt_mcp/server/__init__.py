"""The MCP skin: nine tools, the skills as resources, one prompt. It adds no rule of its own.

Each tool runs a method of the loop in a worker thread; progress goes out as it comes, and cancelling a call ends the
processes that it started. A `KoptError` becomes a tool error whose text and structured content say the same.
"""

from __future__ import annotations

import difflib
import inspect
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp import Client
from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Resolve
from mcp.server.mcpserver.resources import FunctionResource
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from kopt_mcp import __version__, skills
from kopt_mcp.edit import Edit
from kopt_mcp.errors import KoptError
from kopt_mcp.models import Metric, Record
from kopt_mcp.results import (
    BaselineResult,
    BenchmarkResult,
    DecideResult,
    DetectResult,
    DiagnoseResult,
    LogResult,
    PatchResult,
    ProfileResult,
    VerifyResult,
)
from kopt_mcp.watch import Watch

if TYPE_CHECKING:
    from kopt_mcp.loop import Loop

logger = logging.getLogger(__name__)

INSTRUCTIONS = """\
kopt-mcp makes a GPU or CPU kernel faster, one guarded step at a time. You decide what to try; the server decides what \
is true: whether the kernel is right, how fast it is, and whether a change may stay.

The loop: detect_gpu, baseline (returns the `experiment` handle), then per iteration profile, diagnose, apply_patch, \
verify, benchmark, decide. Each answer lists `next`: the tools that are legal now. A refusal says what is wrong and \
what to do next. Change the kernel only through apply_patch, one change per iteration; never edit the test file.

Read the resource skill://optimize-loop/SKILL.md before the first iteration, and those that `diagnose` names in `read` \
before each patch. kernel_path is relative to the project; the problem (test_*.py) is found beside it. After a context \
loss, `log` with the experiment returns all that is needed to go on. The user's log is experiments/README.md.

Numbers: times are medians with caches cold, the candidate timed in turns with the best version so far. A gain within \
the noise is NEUTRAL and is taken back. Report numbers to the user as they stand in the answers, with their interval."""

Experiment = Annotated[str, Field(description="The handle that baseline returned.", pattern=r"^[A-Za-z0-9_.-]{1,100}$")]


class Target(BaseModel):
    """What the user is asked when no target was given; left empty, the target is derived."""

    target_metric: Literal["gbps", "tflops", "latency_us"] | None = Field(
        default=None, description="The unit of the target"
    )
    target_value: float | None = Field(default=None, description="GB/s, TFLOPS or microseconds to reach")


async def ask_for_target(
    ctx: Context[Any, Any], target_value: float | None, target_pct_of_peak: float | None
) -> Elicit[Target] | Target:
    """Ask the user for a target where none is given anywhere and the client can ask."""
    capabilities = ctx.client_capabilities
    can_ask = capabilities is not None and capabilities.elicitation is not None
    if target_value is not None or target_pct_of_peak is not None or not can_ask:
        return Target()
    from kopt_mcp import config  # late: it is not needed to list the tools

    try:
        given = config.read_file(ctx.request_context.lifespan_context.root)
    except KoptError:
        return Target()  # baseline itself will say what is wrong with the file
    if given.get("target_value") is not None or given.get("target_pct_of_peak") is not None:
        return Target()
    return Elicit(
        "Which speed should the kernel reach? Leave empty for 70 % of what this device was measured at.", Target
    )


class StrictTool(Tool):
    """A tool that refuses arguments that it does not have, in words rather than in a validator's report."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Check the arguments, then run."""
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            return failure("InputRefused", _explain(self.name, error, list(self.parameters["properties"])))
        return await super().run(arguments, context, convert_result)


class Workplace(Protocol):
    """What the server works on: `kopt_mcp.project.Project`, or a test's."""

    @property
    def root(self) -> Path: ...

    @property
    def loop(self) -> Loop:
        """Made at the first call of a tool: a client that only lists the tools does not wait for it."""


class Tools:
    """The nine tools on one project."""

    def __init__(self, place: Workplace) -> None:
        self._place = place

    async def detect_gpu(self, ctx: Context) -> Annotated[CallToolResult, DetectResult]:
        """List the processors of this machine: architecture, memory, caches, clocks, nominal peaks with their source,
        and which profilers may be used. The first one is what `gpu: auto` takes. Read-only; call it first."""
        return await _run(ctx, lambda watch: self._place.loop.detect_gpu())

    async def baseline(
        self,
        ctx: Context,
        asked: Annotated[ElicitationResult[Target], Resolve(ask_for_target)],
        kernel_path: Annotated[str | None, Field(description="The kernel file, relative to the project.")] = None,
        test_path: Annotated[str | None, Field(description="The problem file; found beside the kernel.")] = None,
        target_metric: Annotated[Metric | None, Field(description="latency_us: lower is better.")] = None,
        target_value: Annotated[float | None, Field(description="In the metric's unit.")] = None,
        target_pct_of_peak: Annotated[
            float | None, Field(description="Fraction of the measured roof, 0 to 1, instead of target_value.")
        ] = None,
        max_iterations: Annotated[int | None, Field(description="Default 5.")] = None,
        gpu: Annotated[Literal["auto", "nvidia", "amd", "cpu"] | None, Field(description="Default auto.")] = None,
        workloads: Annotated[
            list[str] | None, Field(description="Names of the problem's workloads to use; all by default.")
        ] = None,
    ) -> Annotated[CallToolResult, BaselineResult]:
        """Begin an experiment: check the problem with wrong kernels, check the kernel, time it against itself for the
        noise floor, and set the target. Returns the `experiment` handle that every later call takes. Keys may also
        stand in kopt.yaml; arguments win. Takes up to a few minutes; reports progress."""
        if isinstance(asked, AcceptedElicitation) and asked.data.target_value is not None:
            target_value, target_metric = asked.data.target_value, asked.data.target_metric or target_metric
        return await _run(
            ctx,
            lambda watch: self._place.loop.baseline(
                kernel_path,
                test_path=test_path,
                target_metric=target_metric,
                target_value=target_value,
                target_pct_of_peak=target_pct_of_peak,
                max_iterations=max_iterations,
                gpu=gpu,
                workloads=workloads,
                watch=watch,
            ),
        )

    async def profile(
        self,
        ctx: Context,
        experiment: Experiment,
        workload: Annotated[str | None, Field(description="One timed workload; the largest by default.")] = None,
        depth: Annotated[Literal["quick", "full"], Field(description="full: every counter, slower.")] = "quick",
    ) -> Annotated[CallToolResult, ProfileResult]:
        """Profile the kernel as it stands with the best instrument that may be used here; `rung` names it and `why`
        says why not a better one."""
        return await _run(ctx, lambda watch: self._place.loop.profile(experiment, workload, depth, watch=watch))

    async def diagnose(self, ctx: Context, experiment: Experiment) -> Annotated[CallToolResult, DiagnoseResult]:
        """Say what limits the kernel, with the numbers and thresholds, which tiers and ideas to try first, and which
        skills to read before the next patch."""
        return await _run(ctx, lambda watch: self._place.loop.diagnose(experiment, watch=watch))

    async def apply_patch(
        self,
        ctx: Context,
        experiment: Experiment,
        tier: Annotated[int, Field(ge=1, le=5, description="Tier of the idea, as diagnose lists them.")],
        hypothesis: Annotated[
            str, Field(min_length=1, max_length=500, description="One sentence: what changes and why it should gain.")
        ],
        edits: Annotated[
            list[Edit] | None, Field(description="Exact search/replace pairs, each matching exactly once.")
        ] = None,
        diff: Annotated[str | None, Field(description="A unified diff; line numbers may be off.")] = None,
        content: Annotated[str | None, Field(description="The whole new file.")] = None,
        working_copy: Annotated[bool, Field(description="Adopt the file as your own editor left it.")] = False,
        idea: Annotated[str | None, Field(description="Id of the idea from diagnose, if it is one.")] = None,
        because: Annotated[
            str | None, Field(description="Written reason for a change that would be refused as more than one.")
        ] = None,
    ) -> Annotated[CallToolResult, PatchResult]:
        """Make the one change of this iteration to the kernel file: exactly one of edits, diff, content or
        working_copy=true. The old version is kept; a change that does not pay is taken back by decide."""
        return await _run(
            ctx,
            lambda watch: self._place.loop.apply_patch(
                experiment,
                tier,
                hypothesis,
                edits=edits,
                diff=diff,
                content=content,
                working_copy=working_copy,
                idea=idea,
                because=because,
                watch=watch,
            ),
        )

    async def verify(self, ctx: Context, experiment: Experiment) -> Annotated[CallToolResult, VerifyResult]:
        """Check the candidate on secret inputs, other distributions and odd shapes. A wrong one is taken back at once;
        then call decide to record it."""
        return await _run(ctx, lambda watch: self._place.loop.verify(experiment, watch=watch))

    async def benchmark(self, ctx: Context, experiment: Experiment) -> Annotated[CallToolResult, BenchmarkResult]:
        """Time the verified candidate in turns with the best version so far, and check outputs of the timed calls."""
        return await _run(ctx, lambda watch: self._place.loop.benchmark(experiment, watch=watch))

    async def decide(
        self,
        ctx: Context,
        experiment: Experiment,
        keep_reason: Annotated[
            str | None, Field(description="Keep a step that gained nothing: what it will enable.")
        ] = None,
        stop: Annotated[bool, Field(description="End the experiment now.")] = False,
        reason: Annotated[str | None, Field(description="Why to stop; needed with stop.")] = None,
    ) -> Annotated[CallToolResult, DecideResult]:
        """Accept the candidate if it is faster beyond noise, else take it back; write the log; end the experiment when
        the target is met, the iterations or ideas are used up, or `stop` asks for it. The best kernel is then on disk,
        confirmed in a cold process."""
        return await _run(
            ctx, lambda watch: self._place.loop.decide(experiment, keep_reason, stop=stop, reason=reason, watch=watch)
        )

    async def log(
        self,
        ctx: Context,
        experiment: Annotated[str | None, Field(description="The handle; without it, all experiments.")] = None,
        query: Annotated[str | None, Field(description="Find past iterations by their words.")] = None,
    ) -> Annotated[CallToolResult, LogResult]:
        """Where an experiment stands: its table, and all that is needed to go on after a context loss. Read-only."""
        return await _run(ctx, lambda watch: self._place.loop.log(experiment, query))


_HINTS: dict[str, tuple[str, bool, bool, bool]] = {
    # title, read-only, destructive (overwrites the user's file, though every version is kept), idempotent
    "detect_gpu": ("Detect processors", True, False, True),
    "baseline": ("Begin an experiment", False, False, False),
    "profile": ("Profile the kernel", False, False, True),
    "diagnose": ("Diagnose the kernel", False, False, True),
    "apply_patch": ("Change the kernel", False, True, False),
    "verify": ("Check the candidate", False, True, False),
    "benchmark": ("Time the candidate", False, True, False),
    "decide": ("Accept or take back", False, True, False),
    "log": ("Read the log", True, False, True),
}


@dataclass(frozen=True)
class App:
    """What a request may need besides the tools."""

    root: Path


def create_server(place: Workplace) -> MCPServer[App]:
    """The MCP server for one project."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[App]) -> AsyncIterator[App]:
        yield App(place.root)

    tools = Tools(place)
    server = MCPServer(
        "kopt-mcp",
        title="Kernel optimisation",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        tools=[_tool(getattr(tools, name), *hints) for name, hints in _HINTS.items()],
    )
    for file in skills.files():
        server.add_resource(
            FunctionResource(
                uri=file.uri,
                name=file.name,
                description=file.description,
                mime_type=file.mime_type,
                fn=partial(file.path.read_text, encoding="utf-8"),
            )
        )
    server.add_resource(
        FunctionResource(
            uri="skill://learned-patterns/SKILL.md",
            name="learned-patterns",
            description="What was tried on kernels here, what it gained and what failed. Read it after diagnose.",
            mime_type="text/markdown",
            fn=lambda: place.loop.learned_patterns(),
        )
    )
    server.prompt(name="optimize", title="Optimise a kernel")(optimize)
    return server


def optimize(request: str) -> str:
    """Make a kernel faster. `request` in your own words, e.g. "softmax to 800 GBps"."""
    return (
        f"Optimise a kernel with the kopt-mcp tools. The user asks: {request}\n\n"
        "Read the resource skill://optimize-loop/SKILL.md first and follow it. Find the kernel file in the project, "
        "take the target from the user's words (metric gbps, tflops or latency_us), call detect_gpu, then baseline, "
        "and go on with the calls that each answer names in `next`. Report the final table from `log` with its "
        "intervals, and what was tried and did not work."
    )


def failure(kind: str, text: str) -> CallToolResult:
    """A tool error that says the same in both channels: some clients show the model one, some the other."""
    return CallToolResult(
        is_error=True,
        content=[TextContent(type="text", text=text)],
        structured_content={"error": {"kind": kind, "text": text}},
    )


def success(result: Record) -> CallToolResult:
    """A result as compact JSON, the same in both channels; null means that something was not measured."""
    content = result.model_dump(mode="json")
    return CallToolResult(
        content=[TextContent(type="text", text=json.dumps(content, separators=(",", ":"), ensure_ascii=False))],
        structured_content=content,
    )


def _tool(method: Callable[..., Any], title: str, read_only: bool, destructive: bool, idempotent: bool) -> StrictTool:
    hints = ToolAnnotations(
        title=title,
        read_only_hint=read_only,
        destructive_hint=destructive,
        idempotent_hint=idempotent,
        open_world_hint=False,
    )
    tool = StrictTool.from_function(method, annotations=hints, description=inspect.getdoc(method))
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool  # type: ignore[return-value]


async def _run(ctx: Context, step: Callable[[Watch], Record]) -> CallToolResult:
    """Run one step in a worker thread; when the call is cancelled, end what it started and wait until it has ended."""
    ended = threading.Event()
    progress = _Progress(ctx)
    watch = Watch(progress.report)
    progress.watch = watch

    def work() -> CallToolResult:
        try:
            return success(step(watch))
        except KoptError as error:
            return failure(type(error).__name__, str(error))
        except Exception as error:
            logger.exception("a tool failed for a reason that nobody foresaw")
            return failure("Unforeseen", _unforeseen(error))
        finally:
            ended.set()

    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        watch.cancel()
        with anyio.CancelScope(shield=True):
            while not ended.is_set():
                await anyio.sleep(0.01)
        raise


def _unforeseen(error: Exception) -> str:
    return (
        f"the server failed for a reason of its own ({type(error).__name__}: {str(error)[:200]}); this says nothing of "
        f"the kernel; the journal holds every finished step: call log, then go on, and report the server's output."
    )


class _Progress:
    """Passes progress on to the client, always rising, as the protocol wants it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._last = 0.0
        self.watch: Watch | None = None

    def report(self, fraction: float, text: str) -> None:
        """Called in the worker thread."""
        if self.watch is not None and self.watch.cancelled:
            return
        self._last = max(self._last + 0.001, fraction)
        anyio.from_thread.run(self._ctx.report_progress, self._last, None, text)


def _explain(tool: str, error: ValidationError, known: list[str]) -> str:
    """One sentence a problem: what, why, and what there is instead."""
    sentences = []
    for problem in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(where, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
            sentences.append(f"{tool} has no argument {where!r}; {hint}")
        elif problem["type"] == "missing":
            sentences.append(f"{tool} needs the argument {where!r}; it was not given; call it again with it.")
        else:
            given = json.dumps(problem["input"], default=str)[:120]
            sentences.append(
                f"{tool}: {where} is {given}; {problem['msg'][0].lower()}{problem['msg'][1:]}; correct it."
            )
    return " ".join(sentences)


async def call_tool(place: Workplace, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    """Call one tool as a client would; its text, and whether it is an error."""
    async with Client(create_server(place)) as client:
        if name not in _HINTS:
            return f"there is no tool {name!r}; the tools are {', '.join(_HINTS)}.", True
        result = await client.call_tool(name, arguments)
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    return "\n".join(texts), bool(result.is_error)


def tools_table() -> str:
    """The tools as a Markdown table, for the README."""
    lines = ["| tool | what it does |", "|---|---|"]
    for name in _HINTS:
        text = " ".join((inspect.getdoc(getattr(Tools, name)) or "").split())
        lines.append(f"| `{name}` | {text} |")
    return "\n".join(lines)
