"""What an MCP client sees: schemas, refusals word for word, both protocol eras, progress, cancellation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from fakes import Project, kernel
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import ElicitResult, ResourceLink, TextContent
from overmcp import ANSWERS

from kopt_mcp.errors import Cancelled
from kopt_mcp.server import INSTRUCTIONS, create_server
from kopt_mcp.server.answers import MOST_BYTES

ERAS = ["auto", "legacy"]
SNAPSHOTS = Path(__file__).parent / "toolsnaps"
TINY = Path(__file__).parent / "data" / "tiny"
TOOLS = ["detect_gpu", "baseline", "profile", "diagnose", "apply_patch", "verify", "benchmark", "decide", "log"]

MOST_LISTED = 14_000
"""Bytes of the whole list of tools, which every session carries along."""

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def client_of(project: Project, era: str = "auto", **options: Any) -> AsyncIterator[Client]:
    async with Client(create_server(project), mode=era, **options) as client:
        yield client


def said(result: Any) -> dict[str, Any]:
    """The structured content, once it is known to equal the text."""
    block, *links = result.content
    assert isinstance(block, TextContent)
    assert all(isinstance(link, ResourceLink) for link in links)
    content: dict[str, Any] = result.structured_content
    if result.is_error:
        assert content["error"]["text"] == block.text
    else:
        assert json.loads(block.text) == content
        assert len(block.text.encode()) <= MOST_BYTES or content.get("document")
    return content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(said(result)["error"]["text"])


# What a client reads first


@pytest.mark.parametrize("era", ERAS)
async def test_the_nine_tools_are_listed_with_typed_input_and_output(project: Project, era: str) -> None:
    async with client_of(project, era) as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == TOOLS
    for tool in tools:
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert tool.annotations is not None
        assert tool.annotations.open_world_hint is False


async def test_a_tools_schema_changes_only_on_purpose(project: Project) -> None:
    async with client_of(project) as client:
        tools = (await client.list_tools()).tools
    for tool in tools:
        found = json.dumps(tool.model_dump(mode="json", by_alias=True, exclude_none=True), indent=1, sort_keys=True)
        snapshot = SNAPSHOTS / f"{tool.name}.json"
        if os.environ.get("UPDATE_SNAPSHOTS"):
            snapshot.write_text(found + "\n", encoding="utf-8")
        assert snapshot.read_text(encoding="utf-8") == found + "\n", "run with UPDATE_SNAPSHOTS=1 if this is expected"


async def test_the_list_of_tools_is_short_enough_to_be_kept_in_mind(project: Project) -> None:
    async with client_of(project) as client:
        listed = await client.list_tools()
    wire = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]
    assert len(json.dumps(wire, separators=(",", ":"), ensure_ascii=False).encode()) <= MOST_LISTED


async def test_what_an_answer_holds_is_what_its_schema_lists(project: Project) -> None:
    async with client_of(project) as client:
        for tool in (await client.list_tools()).tools:
            assert tool.output_schema is not None
            assert list(tool.output_schema["properties"]) == list(ANSWERS[tool.name].model_fields)


GOOD = {
    "baseline": {"kernel_path": "softmax.py", "target_metric": "gbps", "workloads": ["a", "b"], "max_iterations": 3},
    "profile": {"experiment": "softmax-1", "depth": "full"},
    "apply_patch": {"experiment": "x", "tier": 1, "hypothesis": "h", "edits": [{"search": "a", "replace": "b"}]},
    "log": {},
}
BAD = {
    "baseline": [{"kernel": "softmax.py"}, {"target_metric": "fps"}, {"workloads": "a"}, {"max_iterations": "three"}],
    "profile": [{}, {"experiment": "x", "depth": "deep"}, {"experiment": 3}],
    "apply_patch": [
        {"experiment": "x", "tier": 9, "hypothesis": "h"},
        {"experiment": "x", "tier": 1},
        {"experiment": "x", "tier": 1, "hypothesis": "h", "edits": [{"search": "a"}]},
        {"experiment": "x", "tier": 1, "hypothesis": "h", "edits": [{"search": "a", "replace": "b", "all": True}]},
    ],
    "log": [{"experiment": ["x"]}, {"id": "x"}],
}


async def test_the_short_schema_of_arguments_refuses_what_the_tool_refuses(project: Project) -> None:
    async with client_of(project) as client:
        schemas = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        for tool, arguments in GOOD.items():
            jsonschema.validate(arguments, schemas[tool])
        for tool, attempts in BAD.items():
            for arguments in attempts:
                with pytest.raises(jsonschema.ValidationError):
                    jsonschema.validate(arguments, schemas[tool])
                text = await refusal(client, tool, **arguments)
                assert text.startswith(tool), text


# Hints


async def test_a_tool_that_says_it_only_reads_changes_no_file(project: Project) -> None:
    name = project.diagnosed()
    async with client_of(project) as client:
        readers = [t.name for t in (await client.list_tools()).tools if t.annotations and t.annotations.read_only_hint]
        assert readers == ["detect_gpu", "log"]
        before = files_of(project)
        said(await client.call_tool("detect_gpu"))
        for arguments in ({}, {"experiment": name}, {"query": "faster"}, {"read": "optimize-loop"}):
            said(await client.call_tool("log", arguments))
    assert files_of(project) == before


async def test_a_tool_that_says_it_overwrites_nothing_leaves_the_kernel_alone(project: Project) -> None:
    async with client_of(project) as client:
        tools = (await client.list_tools()).tools
        adding = [t.name for t in tools if t.annotations and not t.annotations.destructive_hint]
        assert adding == ["detect_gpu", "baseline", "profile", "diagnose", "log"]
        before = {path: data for path, data in files_of(project).items() if "experiments" not in path}
        name = said(await client.call_tool("baseline", {"kernel_path": "softmax.py", **TARGET}))["experiment"]
        for tool in ("profile", "diagnose"):
            said(await client.call_tool(tool, {"experiment": name}))
    assert {path: data for path, data in files_of(project).items() if "experiments" not in path} == before


async def test_a_tool_that_says_it_can_be_repeated_changes_nothing_the_second_time(project: Project) -> None:
    name = project.baseline().experiment
    patch = {"tier": 1, "hypothesis": "faster", "content": kernel(1.5)}
    loop = [
        ("profile", {}),
        ("diagnose", {}),
        ("apply_patch", patch),
        ("verify", {}),
        ("benchmark", {}),
        ("decide", {}),
    ]
    async with client_of(project) as client:
        tools = (await client.list_tools()).tools
        repeatable = {t.name for t in tools if t.annotations and t.annotations.idempotent_hint}
        assert repeatable == {tool for tool, _ in loop} | {"detect_gpu", "log"}
        for tool, arguments in loop:
            said(await client.call_tool(tool, {"experiment": name, **arguments}))
            once = said(await client.call_tool("log", {"experiment": name})), project.text
            await client.call_tool(tool, {"experiment": name, **arguments})
            twice = said(await client.call_tool("log", {"experiment": name})), project.text
            assert {**twice[0], "refusals": []} == {**once[0], "refusals": []}, tool
            assert twice[1] == once[1]


async def test_a_person_is_asked_before_a_patch_only_where_that_was_asked_for(project: Project) -> None:
    for asked in (False, True):
        async with Client(create_server(project, ask_before_patch=asked)) as client:
            tools = (await client.list_tools()).tools
        marked = [t.name for t in tools if (t.meta or {}).get("anthropic/requiresUserInteraction") is True]
        assert marked == (["apply_patch"] if asked else [])


def files_of(project: Project) -> dict[str, bytes]:
    """Every file of the project, the lock files' signatures excepted."""
    found = (path for path in project.root.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(project.root)): path.read_bytes() for path in found}


def test_the_instructions_are_short_enough_for_every_client() -> None:
    assert len(INSTRUCTIONS.encode()) <= 2048


# The loop, in memory


@pytest.mark.parametrize("era", ERAS)
async def test_an_agent_reaches_its_target_and_every_answer_says_what_is_legal_next(project: Project, era: str) -> None:
    async with client_of(project, era) as client:
        begun = said(await client.call_tool("baseline", {"kernel_path": "softmax.py", **TARGET}))
        assert begun["next"] == ["profile", "diagnose"]
        handle = {"experiment": begun["experiment"]}
        for tool, arguments, following in [
            ("profile", {}, ["diagnose"]),
            ("diagnose", {}, ["profile", "apply_patch"]),
            ("apply_patch", {"tier": 1, "hypothesis": "faster", "content": kernel(6.0)}, ["verify"]),
            ("verify", {}, ["benchmark"]),
            ("benchmark", {}, ["decide"]),
        ]:
            answer = said(await client.call_tool(tool, {**handle, **arguments}))
            assert set(following) <= set(answer["next"]), tool
        decided = said(await client.call_tool("decide", handle))
        assert (decided["status"], decided["ended"], decided["confirmed"]) == ("TARGET_MET", "TARGET_MET", True)
        assert "target met" in said(await client.call_tool("log", handle))["table"]


TARGET = {"target_metric": "gbps", "target_value": 500.0}


# Refusals


async def test_an_argument_that_does_not_exist_is_refused_with_the_nearest_one(project: Project) -> None:
    async with client_of(project) as client:
        text = await refusal(client, "baseline", kernel="softmax.py")
    assert text == "baseline has no argument 'kernel'; did you mean 'kernel_path'?"


async def test_wrong_types_and_missing_arguments_are_each_named(project: Project) -> None:
    async with client_of(project) as client:
        text = await refusal(client, "apply_patch", experiment="softmax-1", tier=9)
    assert text == (
        "apply_patch: tier is 9; input should be less than or equal to 5; correct it. "
        "apply_patch needs 'hypothesis'; not given; call it again with all of them; it takes experiment, tier, "
        "hypothesis, edits, diff, content, working_copy, idea, because."
    )


async def test_an_edit_in_the_words_of_another_tool_is_told_its_own(project: Project) -> None:
    edits = [{"old_string": "a", "new_string": "b"}]
    async with client_of(project) as client:
        text = await refusal(client, "apply_patch", experiment="s-1", tier=1, hypothesis="x", edits=edits)
    assert text == (
        "apply_patch: edits[0] has no argument 'old_string'; it has search, replace. "
        "apply_patch: edits[0] has no argument 'new_string'; it has search, replace. "
        "apply_patch: edits[0] needs 'search' and 'replace'; not given; call it again with all of them; it takes "
        "search, replace."
    )


@pytest.mark.parametrize("experiment", ["../x", "a/b", "", "x" * 200, "a\nb"])
async def test_an_experiment_handle_cannot_be_a_path(project: Project, experiment: str) -> None:
    async with client_of(project) as client:
        assert "experiment is" in await refusal(client, "verify", experiment=experiment)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "kernel_path is missing; nothing to optimise; give it as an argument or in kopt.yaml."),
        ({"kernel_path": "no.py"}, "kernel_path 'no.py' does not exist in the project; check the path."),
        (
            {"kernel_path": "softmax.py", "target_value": -1.0, "target_metric": "gbps"},
            "target_value is -1.0; expected a number above 0.",
        ),
        (
            {"kernel_path": "softmax.py", "target_value": 5.0, "target_pct_of_peak": 0.5, "target_metric": "gbps"},
            "target_value 5.0 and target_pct_of_peak 0.5 are both given; only one can be the target; drop one of them.",
        ),
    ],
)
async def test_each_wrong_configuration_has_its_own_words(
    project: Project, arguments: dict[str, Any], words: str
) -> None:
    async with client_of(project) as client:
        assert await refusal(client, "baseline", **arguments) == words


async def test_a_call_out_of_order_names_what_is_allowed_now(project: Project) -> None:
    name = project.baseline().experiment
    async with client_of(project) as client:
        text = await refusal(client, "benchmark", experiment=name)
    assert text == f"benchmark is not allowed while experiment '{name}' is ready; allowed now: profile or diagnose."


async def test_an_unknown_experiment_is_refused_and_no_folder_appears(project: Project) -> None:
    async with client_of(project) as client:
        assert (await refusal(client, "verify", experiment="nobody")).startswith("experiment 'nobody' is not known;")
    assert not (project.root / "experiments" / "nobody").exists()


async def test_a_fault_of_the_server_itself_is_told_apart_from_the_kernels(project: Project) -> None:
    def fail(job: Any, watch: Any) -> None:
        raise ZeroDivisionError("an accident")

    project.evaluator.before = fail
    async with client_of(project) as client:
        text = await refusal(client, "baseline", kernel_path="softmax.py", **TARGET)
    assert text.startswith("the server failed for a reason of its own (ZeroDivisionError: an accident);")


# A target that the user is asked for


@pytest.mark.parametrize("era", ERAS)
async def test_the_user_is_asked_for_a_target_where_the_client_can(project: Project, era: str) -> None:
    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"target_metric": "gbps", "target_value": 321.0})

    async with client_of(project, era, elicitation_callback=answer) as client:
        begun = said(await client.call_tool("baseline", {"kernel_path": "softmax.py"}))
    assert (begun["target"], begun["metric"]) == (321.0, "gbps")


@pytest.mark.parametrize("era", ERAS)
async def test_a_user_who_declines_gets_a_derived_target(project: Project, era: str) -> None:
    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async with client_of(project, era, elicitation_callback=answer) as client:
        begun = said(await client.call_tool("baseline", {"kernel_path": "softmax.py"}))
    assert (begun["target"], begun["target_source"]) == (700.0, "derived: 70% of peak, the measured roof")


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_ask_gets_a_derived_target(project: Project, era: str) -> None:
    async with client_of(project, era) as client:
        assert said(await client.call_tool("baseline", {"kernel_path": "softmax.py"}))["target"] == 700.0


# Progress and cancellation


async def test_progress_is_a_fraction_with_words_and_always_rises(project: Project) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    def work(job: Any, watch: Any) -> None:
        for fraction in (0.1, 0.5, *[0.2] * 5, 1.0):
            watch.progress(fraction, f"{job.kind} at {fraction}")

    project.evaluator.before = work
    async with client_of(project) as client:
        await client.call_tool("baseline", {"kernel_path": "softmax.py", **TARGET}, progress_callback=on_progress)
    values = [value for value, _, _ in seen]
    words = [message for _, _, message in seen]
    assert values == sorted(set(values))
    assert {total for _, total, _ in seen} == {1.0}
    assert 0 <= values[0] < values[-1] <= 1
    # What a part of the step says of itself is a part of the whole: half way through the verification is not half way.
    half_verified, half_timed = (values[words.index(f"{kind} at 0.5")] for kind in ("verify", "benchmark"))
    assert 0.4 < half_verified < 0.6 < half_timed < 1


async def test_waiting_a_long_time_does_not_look_like_getting_on(project: Project) -> None:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    def work(job: Any, watch: Any) -> None:
        for number in range(600):
            watch.progress(0.0, f"waiting for {number}")
            watch.progress(0.0, f"waiting for {number}")

    name = project.diagnosed()
    project.patch(name, kernel(1.5))
    project.evaluator.before = work
    async with client_of(project) as client:
        await client.call_tool("verify", {"experiment": name}, progress_callback=on_progress)
    assert seen == sorted(set(seen))
    assert len(seen) <= 605  # the same words are not told twice in a row
    assert seen[-1] < 0.2


async def test_a_client_that_does_not_read_does_not_hold_up_a_step(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(1.5))
    done, read = threading.Event(), anyio.Event()

    def work(job: Any, watch: Any) -> None:
        for count in range(1000):
            watch.progress(count / 1000, "on the way")
        done.set()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        await read.wait()

    project.evaluator.before = work
    answers: list[Any] = []
    async with client_of(project) as client:

        async def verify() -> None:
            answers.append(await client.call_tool("verify", {"experiment": name}, progress_callback=on_progress))

        async with anyio.create_task_group() as group:
            group.start_soon(verify)
            assert await anyio.to_thread.run_sync(done.wait, 60)
            assert answers == []
            read.set()
    assert said(answers[0])["correct"] is True


async def test_cancelling_a_call_ends_its_work_and_leaves_the_experiment_where_it_was(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(1.5))
    started, ended = threading.Event(), threading.Event()

    def hang(job: Any, watch: Any) -> None:
        watch.on_cancel(ended.set)
        started.set()
        ended.wait(30)
        raise Cancelled("the call was cancelled")

    project.evaluator.before = hang
    server = create_server(project)
    async with Client(server) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "verify", {"experiment": name})
            await anyio.to_thread.run_sync(started.wait)
            group.cancel_scope.cancel()
        assert ended.is_set()
        project.evaluator.before = lambda job, watch: None
        assert said(await client.call_tool("verify", {"experiment": name}))["correct"] is True


async def test_a_call_that_is_given_up_in_the_queue_never_begins_and_reading_passes_the_queue_by(
    project: Project,
) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(1.5))
    started, release = threading.Event(), threading.Event()

    def hang(job: Any, watch: Any) -> None:
        started.set()
        assert release.wait(60)

    project.evaluator.before = hang
    answers: list[Any] = []
    async with Client(create_server(project, most_steps=1)) as client:

        async def verify() -> None:
            answers.append(await client.call_tool("verify", {"experiment": name}))

        async with anyio.create_task_group() as group:
            group.start_soon(verify)
            await anyio.to_thread.run_sync(started.wait)
            queued = anyio.create_task_group()
            async with queued:
                queued.start_soon(client.call_tool, "baseline", {"kernel_path": "softmax.py", **TARGET})
                for _ in range(3):
                    assert said(await client.call_tool("log", {"experiment": name}))["phase"] == "patched"
                queued.cancel_scope.cancel()
            release.set()
        assert said(answers[0])["correct"] is True
        assert len(said(await client.call_tool("log"))["experiments"]) == 1
        assert [job.kind for job in project.evaluator.jobs].count("verify") == 2  # of the baseline, and this one


# The real thing, over stdio


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_the_whole_loop_runs_over_stdio_with_the_real_evaluator(tmp_path: Path, era: str) -> None:
    for file in TINY.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kopt_mcp", "--root", str(tmp_path)],
        env={
            **os.environ,
            "KOPT_PYTHON": sys.executable,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "KOPT_MEMORY": "project",
        },
    )
    text = (TINY / "scale.c").read_text(encoding="utf-8")
    wrong, right = text.replace("2.0f *", "2.5f *"), text.replace("2.0f * in0[i]", "in0[i] + in0[i]")
    async with Client(server, mode=era) as client:
        target = {"target_metric": "latency_us", "target_value": 1.0, "gpu": "cpu"}
        begun = said(await client.call_tool("baseline", {"kernel_path": "scale.c", **target}))
        assert "experiment" in begun, begun
        handle = {"experiment": begun["experiment"]}
        profiled = said(await client.call_tool("profile", handle))
        assert profiled["metrics"]["latency_us"] > 0
        said(await client.call_tool("diagnose", handle))
        patch = {"tier": 3, "hypothesis": "a larger factor", "content": wrong}
        said(await client.call_tool("apply_patch", {**handle, **patch}))
        verified = said(await client.call_tool("verify", handle))
        assert (verified["correct"], verified["status"]) == (False, "INCORRECT_NUMERICAL")
        assert said(await client.call_tool("decide", handle))["status"] == "FAILED"
        patch = {"tier": 3, "hypothesis": "an addition for a product", "content": right}
        said(await client.call_tool("apply_patch", {**handle, **patch}))
        assert said(await client.call_tool("verify", handle))["correct"] is True
        timed = said(await client.call_tool("benchmark", handle))
        assert timed["status"] in ("PASSED", "INCONCLUSIVE")
        decided = said(await client.call_tool("decide", handle))
        assert decided["status"] in ("IMPROVED", "NEUTRAL", "REGRESSED")
        decided = said(await client.call_tool("decide", {**handle, "stop": True, "reason": "the test is over"}))
        assert (decided["ended"], decided["confirmed"]) == ("STOPPED", True)
    assert "FAIL" in (tmp_path / "experiments" / "README.md").read_text(encoding="utf-8")


def test_the_server_imports_no_torch_no_triton_and_no_numpy() -> None:
    code = (
        "import kopt_mcp.server, kopt_mcp.project, sys; print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
