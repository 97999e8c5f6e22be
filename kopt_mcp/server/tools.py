"""The nine tools. The first paragraph of a docstring is the tool in a sentence, for the README too; all of it is what
an agent reads before it calls the tool."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context, ElicitationResult, Resolve
from mcp.types import CallToolResult, ImageContent, ToolAnnotations
from pydantic import Field

from kopt_mcp.edit import Edit
from kopt_mcp.models import Doubts, Metric, Said
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
from kopt_mcp.server import documents, links, pictures
from kopt_mcp.server.asking import (
    Acceptance,
    Target,
    ask_about_problem,
    ask_about_weaknesses,
    ask_for_target,
    find_doubts,
)
from kopt_mcp.server.place import Workplace
from kopt_mcp.server.running import run
from kopt_mcp.server.schemas import StrictTool
from kopt_mcp.watch import Watch

Experiment = Annotated[str, Field(description="The handle from baseline.", pattern=r"^[A-Za-z0-9_.-]{1,100}$")]


class Tools:
    """The nine tools on one project."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._pictures = pictures.Pictures(place.root)

    async def detect_gpu(self, ctx: Context) -> Annotated[CallToolResult, DetectResult]:
        """List this machine's processors, the one first that `gpu: auto` takes. Call it first.

        Architecture, memory, caches, clocks, nominal peaks and their source, and which profilers may be used.
        """
        return await run(ctx, lambda watch: self._place.loop.detect_gpu(), reads_only=True)

    async def baseline(
        self,
        ctx: Context,
        asked: Annotated[ElicitationResult[Target], Resolve(ask_for_target)],
        doubts: Annotated[Doubts, Resolve(find_doubts)],
        read: Annotated[ElicitationResult[Acceptance], Resolve(ask_about_problem)],
        weak: Annotated[ElicitationResult[Acceptance], Resolve(ask_about_weaknesses)],
        kernel_path: Annotated[str | None, Field(description="The kernel file, relative to the project.")] = None,
        test_path: Annotated[
            str | None, Field(description="The problem file, or a task of another format; found beside the kernel.")
        ] = None,
        format: Annotated[str | None, Field(description="The task's format; recognised by default.")] = None,
        reference: Annotated[
            str | None, Field(description="A function instead of a problem file: torch:softmax(dim=-1).")
        ] = None,
        shapes: Annotated[
            list[str] | None, Field(description="For reference, inputs of each workload: 4096x4096,4096:int64<1000.")
        ] = None,
        dtypes: Annotated[list[str] | None, Field(description="For reference; default float32.")] = None,
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
        """Begin an experiment: check the problem, check and time the kernel as it is, set the target.

        The problem (test_*.py beside the kernel) must refuse wrong kernels, and the kernel must pass it; timing it
        against itself gives `least_gain_pct`, what a change must gain beyond doubt. Returns `experiment`, the handle
        for later calls. Arguments win over kopt.yaml; without a target, 70 % of the measured roof. May take minutes.
        """
        if isinstance(asked, AcceptedElicitation) and asked.data.target_value is not None:
            target_value, target_metric = asked.data.target_value, asked.data.target_metric or target_metric
        said = Said(
            problem=doubts.unread if _accepted(read) else {},
            weaknesses=tuple(name for name, _ in doubts.weaknesses) if _accepted(weak) else (),
        )
        return await run(
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
                format=format,
                reference=reference,
                shapes=shapes,
                dtypes=dtypes,
                said=said,
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
        """Profile the kernel as it stands, with the best instrument that may be used here.

        `rung` names the instrument and `why` says why it is not a better one; metric names are the same for all
        vendors. The raw reports are linked.
        """
        return await run(
            ctx, lambda watch: self._place.loop.profile(experiment, workload, depth, watch=watch), links.of_profile
        )

    async def diagnose(self, ctx: Context, experiment: Experiment) -> Annotated[CallToolResult, DiagnoseResult]:
        """Say what limits the kernel, and what to try first.

        `bound` (memory, compute, latency, balanced, at_roof, unclear) with its evidence, `tiers` and `ideas` in the
        order to try, and in `read` what to read before the next patch (resources, or log(read=...)). Works without a
        profile; knows more with one.
        """
        return await run(ctx, lambda watch: self._place.loop.diagnose(experiment, watch=watch))

    async def apply_patch(
        self,
        ctx: Context,
        experiment: Experiment,
        tier: Annotated[int, Field(ge=1, le=5, description="Tier of the idea, as diagnose lists them.")],
        hypothesis: Annotated[
            str, Field(min_length=1, max_length=300, description="One sentence: what changes and why it should gain.")
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
        """Make the one change of this iteration to the kernel file.

        Give exactly one of edits, diff, content or working_copy=true. Several independent kinds of change at once,
        features that this device has not, and changes that failed before are refused. Every version is kept; decide
        takes back a change that does not pay.
        """
        return await run(
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
            links.of_patch,
        )

    async def verify(
        self,
        ctx: Context,
        experiment: Experiment,
        sanitize: Annotated[bool, Field(description="Also run compute-sanitizer.")] = False,
    ) -> Annotated[CallToolResult, VerifyResult]:
        """Check whether the candidate is right; a wrong one is taken back at once.

        On secret inputs, other distributions and odd shapes, in a process of its own. When `correct` is false, `detail`
        says how it is wrong, the kernel file is the former version again, and decide is next, to record it.
        """
        return await run(ctx, lambda watch: self._place.loop.verify(experiment, sanitize=sanitize, watch=watch))

    async def benchmark(self, ctx: Context, experiment: Experiment) -> Annotated[CallToolResult, BenchmarkResult]:
        """Time the verified candidate in turns with the best version so far.

        `gain_pct` has a 95 % interval, gain_low_pct to gain_high_pct, over paired blocks with cold caches; the outputs
        of timed calls are checked too. Then call decide.
        """
        return await run(ctx, lambda watch: self._place.loop.benchmark(experiment, watch=watch))

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
        """Accept the candidate if it is faster beyond noise, else take it back; write the log.

        `status`: TARGET_MET, IMPROVED, NEUTRAL, REGRESSED, KEPT or FAILED. Ends the experiment when the target is met,
        iterations or ideas are used up, or with `stop`; `ended` then says why, the best kernel is on disk, and
        `confirmed` whether it passed again in a cold process.
        """
        return await run(
            ctx,
            lambda watch: self._place.loop.decide(experiment, keep_reason, stop=stop, reason=reason, watch=watch),
            links.of_decision,
        )

    async def log(
        self,
        ctx: Context,
        experiment: Annotated[str | None, Field(description="The handle; without it, all experiments.")] = None,
        query: Annotated[str | None, Field(description="Find past iterations by their words.")] = None,
        read: Annotated[
            str | None, Field(description="Return a document instead: a skill's name, or a URI that an answer named.")
        ] = None,
        chart: Annotated[bool, Field(description="Add a picture of its progress.")] = False,
    ) -> Annotated[CallToolResult, LogResult]:
        """Say where an experiment stands, or which there are; or return a document.

        Without arguments: all experiments, those first that are not over. With `experiment`: its table, what is legal
        next, tried and left: all that is needed to go on after a context loss. With `read`: a skill or a file that an
        answer linked, where the client shows no resources; start with read="optimize-loop".
        """
        if read is not None:
            return await documents.answer(ctx, read, alone=experiment is None and query is None and not chart)
        drawn: list[ImageContent] = []

        def step(watch: Watch) -> LogResult:
            result = self._place.loop.log(experiment, query)
            drawn.extend(pictures.of_log(self._pictures, result, watch) if chart else ())
            return result

        return await run(ctx, step, lambda result: drawn, reads_only=True)


def _accepted(answer: ElicitationResult[Acceptance]) -> bool:
    return isinstance(answer, AcceptedElicitation) and answer.data.accept


@dataclass(frozen=True)
class Hints:
    """What a client may want to know of a tool before it lets a model call it. True, but no guard: the loop has those.

    `overwrites`: the user's kernel file may be another one afterwards, though every version is kept. `repeatable`: the
    same call once more at once changes nothing (as a rule it is refused), so that nobody need fear to ask again.
    """

    reads_only: bool
    overwrites: bool
    repeatable: bool
    meta: dict[str, Any] = field(default_factory=dict)
    """The tool's `_meta`, for what single clients or extensions look for there (a `ui` entry, for one)."""


HINTS = {
    "detect_gpu": Hints(True, False, True),
    "baseline": Hints(False, False, False, pictures.META),
    "profile": Hints(False, False, True),
    "diagnose": Hints(False, False, True),
    "apply_patch": Hints(False, True, True),
    "verify": Hints(False, True, True),
    "benchmark": Hints(False, True, True),
    "decide": Hints(False, True, True),
    "log": Hints(True, False, True, pictures.META),
}

APPROVAL = {"anthropic/requiresUserInteraction": True}
"""Claude Code asks a person before each such call, even where it asks for nothing else; without a person it refuses."""


def all_tools(place: Workplace, ask_before_patch: bool) -> list[StrictTool]:
    """The nine tools, in the order of the loop.

    Args:
        ask_before_patch: have clients that can ask a person before each `apply_patch`. Not the default, since no agent
            could work unattended then; the `destructive` hint alone lets a client ask by its own rules.
    """
    tools = Tools(place)
    return [
        _tool(tools, name, {**hints.meta, **(APPROVAL if ask_before_patch and name == "apply_patch" else {})})
        for name, hints in HINTS.items()
    ]


def _tool(tools: Tools, name: str, meta: dict[str, Any]) -> StrictTool:
    hints, method = HINTS[name], getattr(tools, name)
    annotations = ToolAnnotations(
        read_only_hint=hints.reads_only,
        destructive_hint=hints.overwrites,
        idempotent_hint=hints.repeatable,
        open_world_hint=False,
    )
    tool = StrictTool.from_function(
        method, annotations=annotations, description=" ".join(doc(name).split()), meta=meta or None
    )
    assert isinstance(tool, StrictTool)
    tool.tighten()
    return tool


def doc(name: str) -> str:
    """The docstring of a tool."""
    return inspect.getdoc(getattr(Tools, name)) or ""
