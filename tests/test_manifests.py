"""The ready files for clients: they agree with the code, with each other and with the README, and ship in the wheel."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from kopt_mcp import __version__, skills

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MANIFESTS = (".claude-plugin/plugin.json", ".cursor-plugin/plugin.json", "plugin.json")
PUBLISHED = {
    "plugin.json": "agent-plugins.org/schemas/1.0.0/plugin.schema.json",
    "mcp.json": "agent-plugins.org/schemas/1.0.0/mcp.schema.json",
    "server.json": "static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    ".cursor-plugin/plugin.json": "cursor.com/schemas/cursor-plugin/plugin.json",
    ".cursor-plugin/marketplace.json": "cursor.com/schemas/cursor-plugin/marketplace.json",
}
"""Where each file's schema is published; `KOPT_SCHEMAS` names a folder that holds copies under these paths."""


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / name).read_text(encoding="utf-8"))
    return content


def block(client: str, language: str) -> str:
    """The fenced block of a client's part of the README."""
    part = README.split(f"\n### {client}\n", 1)[1].split("\n### ", 1)[0]
    found = re.search(rf"^```{language}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def link(host: str) -> dict[str, list[str]]:
    found = re.search(rf"\((https://{re.escape(host)}/[^)]+)\)", README)
    assert found is not None
    return parse_qs(urlsplit(found[1]).query)


def test_every_file_names_the_version_of_the_package() -> None:
    files = [*MANIFESTS, "server.json"]
    assert {load(name)["version"] for name in files} == {__version__}
    assert load("server.json")["packages"][0]["version"] == __version__
    assert load(".claude-plugin/marketplace.json")["plugins"][0]["version"] == __version__


def test_the_three_plugin_manifests_say_the_same_of_the_plugin() -> None:
    fields = ("name", "description", "author", "homepage", "repository", "license", "keywords")
    told = [{field: load(name)[field] for field in fields} for name in MANIFESTS]
    assert told[0] == told[1] == told[2]
    assert told[0]["license"] == PROJECT["license"]
    assert told[0]["keywords"] == PROJECT["keywords"]
    assert all(
        load(f"{folder}/marketplace.json")["plugins"][0]["source"] == "./"
        for folder in (".claude-plugin", ".cursor-plugin")
    )


def test_every_client_is_told_to_start_the_same_command() -> None:
    started = [
        load(".mcp.json")["mcpServers"]["kopt"],
        load("mcp.json")["mcpServers"]["kopt"],
        load(".cursor/mcp.json")["mcpServers"]["kopt"],
        load(".vscode/mcp.json")["servers"]["kopt"],
        tomllib.loads(block("Codex", "toml"))["mcp_servers"]["kopt"],
    ]
    assert {(server["command"], *server["args"]) for server in started} == {("uvx", PROJECT["name"])}
    assert PROJECT["name"] in PROJECT["scripts"]  # what uvx runs is named like the package
    assert "claude mcp add kopt -- uvx kopt-mcp" in README


@pytest.mark.parametrize(("client", "file"), [("Cursor", ".cursor/mcp.json"), ("VS Code", ".vscode/mcp.json")])
def test_the_readme_shows_the_very_file(client: str, file: str) -> None:
    assert json.loads(block(client, "json")) == load(file)


def test_the_links_carry_the_very_configuration() -> None:
    cursor, vscode = link("cursor.com"), link("vscode.dev")
    assert cursor["name"] == vscode["name"] == ["kopt"]
    assert json.loads(base64.b64decode(cursor["config"][0])) == load(".cursor/mcp.json")["mcpServers"]["kopt"]
    assert json.loads(vscode["config"][0]) == load(".vscode/mcp.json")["servers"]["kopt"]


@pytest.mark.parametrize("name", MANIFESTS[:2])
def test_a_plugin_brings_every_skill_of_the_project(name: str) -> None:
    folders = [(ROOT / path).resolve() for path in load(name)["skills"]]
    brought = {skill for folder in folders for skill in folder.glob("*/SKILL.md")}
    assert brought == set((ROOT / "skills").rglob("SKILL.md"))


def test_the_portable_plugin_holds_to_the_closed_formats() -> None:
    plugin, servers = load("plugin.json"), load("mcp.json")
    metadata = {"version", "description", "author", "homepage", "repository", "license", "keywords", "extensions"}
    assert set(plugin) <= metadata | {"$schema", "name"}
    assert set(servers) == {"$schema", "mcpServers"}
    assert all(set(one) <= {"type", "command", "args", "env", "cwd"} for one in servers["mcpServers"].values())
    for file, content in (("plugin.json", plugin), ("mcp.json", servers)):
        assert content["$schema"] == f"https://{PUBLISHED[file]}"
    assert any((ROOT / "skills").glob("*/SKILL.md"))  # the one place where such a plugin's skills are looked for


def test_the_registrys_entry_is_the_package_and_its_readme() -> None:
    entry = load("server.json")
    assert entry["$schema"] == f"https://{PUBLISHED['server.json']}"
    assert f"<!-- mcp-name: {entry['name']} -->" in README
    assert len(entry["description"]) <= 100  # the registry takes no more
    assert [package["identifier"] for package in entry["packages"]] == [PROJECT["name"]]
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kopt_mcp").rglob("*.py"))
    for variable in entry["packages"][0]["environmentVariables"]:
        assert f'"{variable["name"]}"' in code, "the server reads no such variable"


@pytest.mark.parametrize("file", PUBLISHED)
def test_a_file_is_valid_by_its_published_schema(file: str) -> None:
    published = Path(os.environ.get("KOPT_SCHEMAS", "")) / PUBLISHED[file]
    if not published.is_file():
        pytest.skip(f"needs a copy of https://{PUBLISHED[file]} below KOPT_SCHEMAS")
    jsonschema.validate(load(file), json.loads(published.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is installed: built, and unpacked."""
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = builder.build(directory=str(folder / "dist"), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.anyio
async def test_an_installed_server_without_torch_lists_its_tools_and_reads_its_skills(
    wheel: Path, anyio_backend: str
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r})\n"
        "sys.modules.update(dict.fromkeys(('torch', 'triton', 'numpy', 'matplotlib')))  # their import now fails\n"
        "from kopt_mcp.__main__ import main; sys.exit(main([]))"
    )
    installed = StdioServerParameters(command=sys.executable, args=["-I", "-c", code], cwd=wheel)
    async with Client(installed) as client:
        assert len((await client.list_tools()).tools) == 9
        uris = {resource.uri for resource in (await client.list_resources()).resources}
        assert {file.uri for file in skills.files(ROOT / "skills")} <= uris
        (content,) = (await client.read_resource("skill://optimize-loop/SKILL.md")).contents
    assert content.text == (ROOT / "skills/optimize-loop/SKILL.md").read_text(encoding="utf-8")  # type: ignore[union-attr]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_wheel_holds_no_tests_and_no_journals(wheel: Path) -> None:
    files = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    assert "kopt_mcp/_skills/kernels/softmax/test_softmax.py" in files
    assert [f for f in files if f.startswith(("tests/", "experiments/"))] == []
