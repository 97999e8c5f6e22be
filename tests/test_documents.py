"""What can be read through the server: skills, files of experiments, prompts, and what a client offers while typing."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import Project, kernel
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import PromptReference, ResourceLink, ResourceTemplateReference

from kopt_mcp import skills
from kopt_mcp.models import Profile
from kopt_mcp.server import create_server, documents, pages, resources
from kopt_mcp.server.skills_extension import LEARNED, Skills

ERAS = ["auto", "legacy"]
ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def client_of(project: Project, era: str = "auto") -> AsyncIterator[Client]:
    async with Client(create_server(project), mode=era) as client:
        yield client


async def text_at(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    return str(content.text)  # type: ignore[union-attr]


async def document(client: Client, read: str) -> str:
    answer = await client.call_tool("log", {"read": read})
    assert answer.structured_content is not None
    assert not answer.is_error, answer.structured_content
    return str(answer.structured_content["document"])


async def refused(client: Client, **arguments: Any) -> str:
    answer = await client.call_tool("log", arguments)
    assert answer.is_error
    return str(answer.content[0].text)  # type: ignore[union-attr]


# Skills


@pytest.mark.parametrize("era", ERAS)
async def test_every_skill_file_is_a_resource_that_can_be_read(project: Project, era: str) -> None:
    async with client_of(project, era) as client:
        listed = [r for r in (await client.list_resources()).resources if r.uri.startswith(skills.SCHEME)]
        assert {file.uri for file in skills.files()} | {LEARNED} == {r.uri for r in listed}
        for resource in listed:
            assert resource.description
            assert await text_at(client, resource.uri)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_without_resources_reads_the_same_text_through_log(project: Project, era: str) -> None:
    async with client_of(project, era) as client:
        wanted = await text_at(client, "skill://optimize-loop/SKILL.md")
        for read in ("optimize-loop", "optimize-loop/SKILL.md", "skill://optimize-loop/SKILL.md"):
            assert await document(client, read) == wanted
        assert "# " in await document(client, "softmax")
        assert (await document(client, "learned-patterns")).startswith("---\nname: learned-patterns")


async def test_what_a_skill_links_to_is_read_by_the_path_that_stands_there(project: Project) -> None:
    for file in skills.files():
        for link in re.findall(
            r"\]\(((?:\.\./)*[a-z0-9_/-]+\.(?:md|py|cu|hip|c))\)", file.path.read_text(encoding="utf-8")
        ):
            if not link.endswith("SKILL.md"):
                assert documents.uri_of(link) is not None, (file.uri, link)
    async with client_of(project) as client:
        wanted = await text_at(client, "skill://optimize-loop/references/answers.md")
        for read in ("references/answers.md", "answers.md", "optimize-loop/references/answers.md"):
            assert await document(client, read) == wanted
        for nothing in ("", "SKILL.md", ".md", "../../../etc/passwd"):
            assert "no document has this name; there are" in await refused(client, read=nothing)


def test_every_skill_is_short_enough_to_be_read_whole() -> None:
    assert [f.uri for f in skills.files() if len(f.path.read_text(encoding="utf-8")) > documents.MOST] == []


async def test_a_document_that_is_not_there_is_refused_with_the_nearest_one(project: Project) -> None:
    async with client_of(project) as client:
        text = await refused(client, read="optimise-loop")
        assert text == "read is 'optimise-loop'; no document has this name; did you mean 'optimize-loop'?"
        assert "did you mean 'tier1-block-tiling'?" in await refused(client, read="tier1")
        assert "there are optimize-loop, benchmark," in await refused(client, read="zzz")
        assert (await refused(client, read="skill://nobody/SKILL.md")).startswith("read is 'skill://nobody/SKILL.md': ")
        text = await refused(client, read="benchmark", query="x")
        assert text.startswith("read is given together with experiment or query;")


async def test_a_diagnosis_names_documents_that_can_be_read_by_either_way(project: Project) -> None:
    from kopt_mcp import diagnosis

    async with client_of(project) as client:
        for name in diagnosis.all_skill_names():
            assert await document(client, name) == await text_at(client, f"skill://{name}/SKILL.md")


def test_the_page_on_the_answers_says_what_the_code_says() -> None:
    page = ROOT / "skills" / "optimize-loop" / "references" / "answers.md"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.parent.mkdir(exist_ok=True)
        page.write_text(pages.answers_page(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == pages.answers_page(), "run with UPDATE_SNAPSHOTS=1 if this is expected"
    for name in ("least_gain_pct", "gain_low_pct", "error_ratio", "document"):
        assert f"| `{name}` | " in pages.answers_page()


# Skills as the extension has them


async def ask(method: str, **params: Any) -> dict[str, Any]:
    """A request of the extension, as its answer stands on the wire."""
    extension = Skills(learned=lambda: "---\nname: learned-patterns\ndescription: What was tried.\n---\n")
    binding = {m.method: m for m in extension.methods()}[method]
    answer = await binding.handler(None, binding.params_type.model_validate(params))  # type: ignore[arg-type]
    wire: dict[str, Any] = answer.model_dump(mode="json", by_alias=True)  # type: ignore[union-attr]
    return wire


async def test_a_listed_skill_has_the_digest_and_size_of_every_file_as_it_is_served(project: Project) -> None:
    listed = await ask("skills/list")
    assert listed["ttlMs"] > 0
    async with client_of(project) as client:
        for entry in listed["skills"]:
            assert entry["uri"].split("/")[-2] == entry["frontmatter"]["name"]
            assert (await ask("skills/get", uri=entry["uri"]))["skill"] == entry
            if entry["resources"] == "dynamic":
                assert entry["uri"] == LEARNED
                continue
            assert entry["resources"][0]["uri"] == entry["uri"]
            for file in entry["resources"]:
                data = (await text_at(client, file["uri"])).encode()
                assert (file["size"], file["digest"]) == (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")


async def test_the_frontmatter_of_a_listed_skill_is_the_documents_own() -> None:
    for entry in (await ask("skills/list"))["skills"][:-1]:
        path = skills.folder() / entry["uri"].removeprefix("skill://")
        assert entry["frontmatter"] == skills.frontmatter(path)


async def test_a_folder_of_skills_is_read_one_level_at_a_time() -> None:
    top = (await ask("resources/directory/read", uri="skill://kernels"))["resources"]
    assert {"uri": "skill://kernels/softmax", "name": "softmax", "mimeType": "inode/directory"} in top
    first = (await ask("resources/directory/read", uri="skill://optimize-loop"))["resources"]
    assert [(child["name"], child["mimeType"]) for child in first] == [
        ("SKILL.md", "text/markdown"),
        ("references", "inode/directory"),
    ]
    inside = (await ask("resources/directory/read", uri="skill://kernels/softmax/"))["resources"]
    assert {"uri": "skill://kernels/softmax/SKILL.md", "name": "SKILL.md", "mimeType": "text/markdown"} in inside


@pytest.mark.parametrize("uri", ["skill://optimize-loop/SKILL.md", "skill://nobody", "skill://optimize", "file:///etc"])
async def test_what_is_no_folder_or_skill_is_an_invalid_parameter(uri: str) -> None:
    with pytest.raises(MCPError) as found:
        await ask("resources/directory/read", uri=uri)
    assert (found.value.error.code, found.value.error.data) == (-32602, {"uri": uri})
    with pytest.raises(MCPError):
        await ask("skills/get", uri=uri + "x")


# Files of experiments


@pytest.mark.parametrize("era", ERAS)
async def test_a_patch_links_to_its_diff_and_to_the_whole_kernel(project: Project, era: str) -> None:
    name = project.diagnosed()
    async with client_of(project, era) as client:
        patch = {"experiment": name, "tier": 1, "hypothesis": "faster", "content": kernel(6.0)}
        answer = await client.call_tool("apply_patch", patch)
        diff, whole = [block for block in answer.content if isinstance(block, ResourceLink)]
        assert (diff.name, diff.mime_type) == ("iteration-1.diff", "text/x-diff")
        changed = (await text_at(client, diff.uri)).splitlines()
        assert "-SPEED = 1.0" in changed
        assert "+SPEED = 6.0" in changed
        assert await text_at(client, whole.uri) == kernel(6.0)
        assert await document(client, diff.uri) == await text_at(client, diff.uri)
        assert answer.structured_content is not None
        assert await document(client, answer.structured_content["snapshot"]) == kernel(6.0)


async def test_a_profile_links_to_its_reports_each_of_its_own_type(project: Project) -> None:
    def profile(**request: Any) -> Profile:
        folder = request["artifacts"]
        folder.mkdir()
        (folder / "metrics.json").write_text('{"dram_pct": 40.0}')
        (folder / "report.ncu-rep").write_bytes(b"\xff\x00\xfe")
        paths = [str(folder / file) for file in ("metrics.json", "report.ncu-rep")]
        return Profile(rung="ncu", why="", workload=request["workload"].name, kernels=[], metrics={}, artifacts=paths)

    project.loop = project.reopened(profile=profile)
    name = project.baseline().experiment
    async with client_of(project) as client:
        answer = await client.call_tool("profile", {"experiment": name})
        metrics, report = [block for block in answer.content if isinstance(block, ResourceLink)]
        assert json.loads(await text_at(client, metrics.uri)) == {"dram_pct": 40.0}
        (content,) = (await client.read_resource(metrics.uri)).contents
        assert content.mime_type == metrics.mime_type == "application/json"
        (content,) = (await client.read_resource(report.uri)).contents
        assert content.blob == "/wD+"  # type: ignore[union-attr]
        assert "is no text (3 bytes); open the file where it lies" in await refused(client, read=report.uri)


async def test_a_decision_links_to_what_stands_behind_its_numbers(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(6.0))
    project.loop.verify(name)
    project.loop.benchmark(name)
    async with client_of(project) as client:
        answer = await client.call_tool("decide", {"experiment": name})
        (link,) = [block for block in answer.content if isinstance(block, ResourceLink)]
        benchmarked, cold = json.loads(await text_at(client, link.uri))
        version = hashlib.sha256(kernel(6.0).encode()).hexdigest()
        assert benchmarked["source_sha256"] == cold["source_sha256"] == version
        assert benchmarked["low"] > 5.9
        assert "has no certificate of version '000000000000'" in await refused(
            client, read=f"experiment://{name}/certificates/000000000000"
        )
        journal = project.root / "experiments" / name / "journal.jsonl"
        journal.write_text(journal.read_text().replace('"low":5.', '"low":9.', 1))
        assert "does not verify" in await refused(client, read=link.uri)


@pytest.fixture
def guarded(project: Project) -> str:
    """An experiment in whose folder somebody has put what leads out of it."""
    name = project.baseline().experiment
    folder = project.root / "experiments" / name
    (project.root / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(project.root / "secret.txt")
    (folder / "out").symlink_to(project.root)
    (folder / "large.txt").write_bytes(b"secret" * (resources.MOST_BYTES // 6 + 1))
    os.mkfifo(folder / "pipe")
    (project.root / "experiments" / "empty").mkdir()
    (project.root / "experiments" / "empty" / "secret.txt").write_text("secret")
    (project.root / "experiments" / "aside").symlink_to(folder)
    return name


@pytest.mark.parametrize(
    "path",
    [
        "ID/../../secret.txt",
        "ID/%2e%2e/%2e%2e/secret.txt",
        "ID/..%2F..%2Fsecret.txt",
        "ID/candidates/../../../secret.txt",
        "ID//etc/passwd",
        "ID/%2Fetc%2Fpasswd",
        "ID/link.txt",
        "ID/out/secret.txt",
        "ID/.lock",
        "ID/candidates",
        "ID/pipe",
        "ID/none.txt",
        "ID/nul%00l.txt",
        "ID/large.txt",
        "ID/diffs/000000000000/111111111111",
        "ID/diffs/x/..",
        "empty/secret.txt",
        "aside/journal.jsonl",
        "../secret.txt",
        "%2e%2e/secret.txt",
        "nobody/journal.jsonl",
    ],
)
async def test_nothing_but_the_files_of_an_experiment_is_served(project: Project, guarded: str, path: str) -> None:
    uri = "experiment://" + path.replace("ID", guarded)
    async with client_of(project) as client:
        with pytest.raises(MCPError) as found:
            await client.read_resource(uri)
        assert "secret" not in str(found.value).replace("secret.txt", "")
        assert await refused(client, read=uri)


async def test_a_file_that_is_too_large_is_named_where_it_lies(project: Project, guarded: str) -> None:
    async with client_of(project) as client:
        text = await refused(client, read=f"experiments/{guarded}/large.txt")
    assert f"large.txt has more than {resources.MOST_BYTES} bytes; open {project.root}" in text


async def test_a_long_report_is_cut_in_an_answer_and_says_so(project: Project, guarded: str) -> None:
    (project.root / "experiments" / guarded / "long.csv").write_text("x" * (documents.MOST + 7))
    async with client_of(project) as client:
        assert (await document(client, f"experiments/{guarded}/long.csv")).endswith(
            f"x\n[7 more characters; the whole is experiments/{guarded}/long.csv]"
        )


# Prompts and completions


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_take_short_arguments_and_name_the_tools(project: Project, era: str) -> None:
    async with client_of(project, era) as client:
        found = {
            p.name: [(a.name, a.required) for a in p.arguments or []] for p in (await client.list_prompts()).prompts
        }
        assert found == {
            "optimize": [("kernel", True), ("target", False)],
            "explain-result": [("experiment", True), ("iteration", False)],
        }
        text = await prompted(client, "optimize", kernel="softmax.py", target="800 GBps")
        assert "Optimise the kernel softmax.py with the kopt-mcp tools, to reach 800 GBps." in text
        assert "skill://optimize-loop/SKILL.md" in text
        assert "70 % of what this device was measured at" in await prompted(client, "optimize", kernel="softmax")
        text = await prompted(client, "explain-result", experiment="softmax-1", iteration="2")
        assert "Explain iteration 2 of experiment softmax-1" in text
        assert "log(experiment='softmax-1')" in text


async def prompted(client: Client, name: str, **arguments: str) -> str:
    (message,) = (await client.get_prompt(name, arguments)).messages
    return str(message.content.text)  # type: ignore[union-attr]


OPTIMIZE = PromptReference(type="ref/prompt", name="optimize")
EXPLAIN = PromptReference(type="ref/prompt", name="explain-result")
FILE = ResourceTemplateReference(type="ref/resource", uri="experiment://{experiment}/{+path}")


@pytest.mark.parametrize("era", ERAS)
async def test_kernels_and_experiments_are_offered_while_they_are_typed(project: Project, era: str) -> None:
    first = project.baseline().experiment
    second = project.baseline().experiment
    (project.root / "sub" / "tests").mkdir(parents=True)
    (project.root / "sub" / "gemm.cu").write_text("")
    (project.root / "sub" / "tests" / "test_gemm.py").write_text("")
    (project.root / "alone.py").write_text("")
    (project.root / ".venv").mkdir()
    (project.root / ".venv" / "softmax.py").write_text("")
    (project.root / ".venv" / "test_softmax.py").write_text("")
    async with client_of(project, era) as client:

        async def offered(ref: Any, name: str, typed: str, **before: str) -> list[str]:
            answer = await client.complete(ref, {"name": name, "value": typed}, before or None)
            return list(answer.completion.values)

        assert await offered(OPTIMIZE, "kernel", "") == ["softmax.py", "sub/gemm.cu"]
        assert await offered(OPTIMIZE, "kernel", "GEMM") == ["sub/gemm.cu"]
        assert await offered(OPTIMIZE, "target", "8") == []
        assert sorted(await offered(EXPLAIN, "experiment", "soft")) == [first, second]
        assert await offered(EXPLAIN, "experiment", second) == [second]
        assert await offered(EXPLAIN, "iteration", "", experiment=first) == ["0"]
        assert await offered(EXPLAIN, "iteration", "", experiment="../..") == []
        assert "journal.jsonl" in await offered(FILE, "path", "j", experiment=first)
        assert await offered(FILE, "path", "", experiment="../..") == []
        assert sorted(await offered(FILE, "experiment", "")) == [first, second]


async def test_the_experiment_worked_on_last_is_offered_first(project: Project) -> None:
    first, second = project.baseline().experiment, project.baseline().experiment
    files = resources.ExperimentFiles(project.root)
    for name, when in ((first, 2000), (second, 1000)):
        os.utime(project.root / "experiments" / name / "journal.jsonl", (when, when))
    assert files.names() == [first, second]


def test_the_evaluators_map_names_every_module_once() -> None:
    folder = ROOT / "kopt_mcp" / "evaluator"
    text = (folder / "__init__.py").read_text(encoding="utf-8").split("is about.\n\n")[1]
    listed = re.findall(r"[a-z_]+", re.sub(r"\([^)]*\)|^.*?:", "", text, flags=re.MULTILINE))
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert sorted(word for word in listed if word in modules) == sorted(modules)
