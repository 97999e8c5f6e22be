"""Pictures and pages over MCP: drawn by another process, kept until the journal grows, and shown as an app."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import Project
from mcp import Client, MCPError
from mcp.types import BlobResourceContents, ImageContent, TextContent, TextResourceContents

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from kopt_mcp.errors import Cancelled, InputRefused, KoptError, ToolUnavailable
from kopt_mcp.server import create_server
from kopt_mcp.server.pictures import APP, Pictures, app
from kopt_mcp.watch import Watch

PNG = b"\x89PNG"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def client_of(project: Project, era: str = "auto") -> AsyncIterator[Client]:
    async with Client(create_server(project), mode=era) as client:
        yield client


async def read(client: Client, uri: str) -> tuple[str, Any]:
    (content,) = (await client.read_resource(uri)).contents
    if isinstance(content, BlobResourceContents):
        return str(content.mime_type), base64.b64decode(content.blob)
    assert isinstance(content, TextResourceContents)
    return str(content.mime_type), content.text


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_the_log_brings_its_chart_when_it_is_asked_to(project: Project, era: str) -> None:
    name = project.baseline().experiment
    async with client_of(project, era) as client:
        result = await client.call_tool("log", {"experiment": name, "chart": True})
        plain = await client.call_tool("log", {"experiment": name})
    text, image = result.content
    assert isinstance(text, TextContent)
    assert isinstance(image, ImageContent)
    assert json.loads(text.text) == result.structured_content == plain.structured_content
    assert (image.mime_type, base64.b64decode(image.data)[:4]) == ("image/png", PNG)
    assert len(plain.content) == 1


async def test_a_chart_of_no_experiment_is_refused(project: Project) -> None:
    async with client_of(project) as client:
        result = await client.call_tool("log", {"chart": True})
    assert result.is_error
    assert "chart is of one experiment and none was named" in str(result.content)


async def test_pages_and_charts_are_resources(project: Project) -> None:
    name = project.baseline().experiment
    async with client_of(project) as client:
        assert (await read(client, f"report://{name}/progress.png"))[1][:4] == PNG
        assert (await read(client, f"report://{name}/roofline.png"))[1][:4] == PNG
        kind, whole = await read(client, f"report://{name}/page.html")
        _, inner = await read(client, f"report://{name}/view.html")
        assert json.loads((await read(client, f"report://{name}/state.json"))[1])["done"] is False
    assert kind == "text/html"
    assert whole.startswith("<!DOCTYPE html>")
    assert inner.strip() in whole


@pytest.mark.parametrize("name", ["nope", "-h", "--root", "..", "%2e%2e"])
async def test_of_an_experiment_that_is_not_there_nothing_is_drawn(project: Project, name: str) -> None:
    project.baseline()
    async with client_of(project) as client:
        for part in ("view.html", "progress.png", "state.json"):
            with pytest.raises(MCPError):
                await client.read_resource(f"report://{name}/{part}")
    with pytest.raises(InputRefused, match="is not known"):
        Pictures(project.root).draw(name, "view")


def test_what_was_drawn_is_kept_until_the_journal_has_grown(project: Project) -> None:
    name = project.diagnosed()
    pictures = Pictures(project.root)
    first = pictures.draw(name, "view")
    assert pictures.draw(name, "view") is first
    project.patch(name, fakes.kernel(1.5), hypothesis="half the loads")
    assert b"half the loads" in pictures.draw(name, "view")


def test_a_call_that_is_given_up_ends_the_process_that_draws(project: Project) -> None:
    name = project.baseline().experiment
    watch = Watch()
    watch.cancel()
    pictures = Pictures(project.root)
    with pytest.raises(Cancelled):
        pictures.draw(name, "progress", watch)
    assert pictures.draw(name, "progress").startswith(PNG)


def test_no_module_of_the_project_is_run_by_the_process_that_draws(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = project.baseline().experiment
    for module in ("matplotlib", "jinja2", "kopt_mcp", "json"):
        (project.root / f"{module}.py").write_text(f"open({str(project.root / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(project.root)
    assert Pictures(project.root).draw(name, "progress").startswith(PNG)
    assert not (project.root / "ran").exists()


def test_without_the_extra_the_refusal_says_which_line_installs_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = project.baseline().experiment
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('not here', name='matplotlib')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ToolUnavailable, match=r"'matplotlib' is not installed here.*kopt-mcp\[report\]"):
        Pictures(project.root).draw(name, "progress")


async def test_the_app_is_served_as_one_and_named_by_the_tools_whose_answers_it_shows(project: Project) -> None:
    async with client_of(project) as client:
        tools = {tool.name: tool.meta for tool in (await client.list_tools()).tools}
        listed = {str(r.uri): r for r in (await client.list_resources()).resources}
        (content,) = (await client.read_resource(APP)).contents
        extensions = client.server_capabilities.extensions
    assert [name for name, meta in tools.items() if meta == {"ui": {"resourceUri": APP}}] == ["baseline", "log"]
    assert listed[APP].mime_type == content.mime_type == "text/html;profile=mcp-app"
    assert extensions is not None
    assert "io.modelcontextprotocol/ui" in extensions


# The app in a browser, inside a client as its specification describes one


CLIENT = """
<!DOCTYPE html><html><body><iframe sandbox="allow-scripts" style="width: 900px; height: 600px"></iframe><script>
const frame = document.querySelector("iframe");
window.heard = [];
window.tell = (method, params) => frame.contentWindow.postMessage({ jsonrpc: "2.0", method, params }, "*");
window.addEventListener("message", async ({ source, data }) => {
  if (source !== frame.contentWindow) return;
  window.heard.push(data.method);
  const answer = (rest) => source.postMessage({ jsonrpc: "2.0", id: data.id, ...rest }, "*");
  if (data.method === "ui/initialize") {
    window.asked = data.params;
    answer({ result: { protocolVersion: "2026-01-26", hostInfo: { name: "a test", version: "1" },
                       hostCapabilities: { serverResources: {} }, hostContext: { theme: "dark" } } });
  } else if (data.method === "resources/read") {
    const text = await window.served(data.params.uri);
    answer(text === null ? { error: { code: -32602, message: "no such experiment" } }
                         : { result: { contents: [{ uri: data.params.uri, text }] } });
  }
});
window.show = (html) => { frame.srcdoc = html; };
</script></body></html>
"""


@pytest.fixture
def shown(project: Project) -> Any:
    """A page with the app in it, whose client reads the project's experiments."""
    import browser

    pictures = Pictures(project.root)

    def served(uri: str) -> str | None:
        name, _, part = uri.removeprefix("report://").partition("/")
        try:
            if part == "state.json":
                done = project.loop.log(name).phase == "done"
                return json.dumps({"tag": pictures.tag(name), "done": done})
            return pictures.draw(name, part.removesuffix(".html")).decode()
        except KoptError:
            return None

    with browser.running() as found:
        opened = browser.Opened(found, color_scheme="light")
        opened.page.clock.install()
        opened.page.expose_function("served", served)
        opened.page.set_content(CLIENT)
        opened.page.evaluate("html => window.show(html)", app().resources()[0].resource.text)
        opened.page.wait_for_function("window.heard.includes('ui/notifications/initialized')")
        yield opened


def test_the_app_shows_the_experiment_that_a_tool_answered_with_and_follows_it(project: Project, shown: Any) -> None:
    name = project.diagnosed(max_iterations=9)
    inside = shown.page.frame_locator("iframe")
    shown.page.evaluate("window.tell('ui/notifications/tool-input', { arguments: {} })")
    shown.page.evaluate(
        "name => window.tell('ui/notifications/tool-result', { content: [], structuredContent: { experiment: name } })",
        name,
    )
    inside.get_by_role("heading", name="softmax on NVIDIA H200").wait_for()
    assert inside.locator("figure svg").count() == 2
    assert inside.locator("html").get_attribute("data-theme") == "dark"
    assert inside.locator("body").evaluate("b => getComputedStyle(b).backgroundColor") == "rgb(16, 19, 22)"
    assert shown.page.evaluate("window.asked.protocolVersion") == "2026-01-26"
    assert "ui/notifications/size-changed" in shown.page.evaluate("window.heard")
    project.patch(name, fakes.kernel(1.5), hypothesis="half the loads")
    shown.page.clock.run_for(5100)
    inside.locator("#iteration-1").wait_for()
    assert shown.complaints == []


def test_the_app_says_what_the_client_refuses(shown: Any) -> None:
    shown.page.evaluate("window.tell('ui/notifications/tool-input', { arguments: { experiment: 'nope' } })")
    shown.page.frame_locator("iframe").get_by_text("no such experiment").wait_for()
    assert shown.complaints == []
