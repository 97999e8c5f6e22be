"""Real clients, Claude Code and Codex, load the server as the README says and take a kernel through the loop.

Each runs with an empty home and no account. Its model is a script on loopback (`scripted_model`), which is also its
proxy for every other address, so that nothing leaves the machine. Needs the npm packages @anthropic-ai/claude-code and
@openai/codex: on PATH, or in the folder that `KOPT_CLIENTS` names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Call, Conversation, Script, playing
from test_manifests import block, load

from kopt_mcp.journal import Journal

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "cpu_softmax"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLUGIN_FILES = (
    ".claude-plugin",
    ".cursor-plugin",
    ".mcp.json",
    "plugin.json",
    "mcp.json",
    "skills",
    "README.md",
    "LICENSE",
)
FINISHED = "softmax-h200-2"
TOOLS = {"detect_gpu", "baseline", "profile", "diagnose", "apply_patch", "verify", "benchmark", "decide", "log"}
ASKED = "optimize softmax"
SMALL, WORKLOAD = "cpu(61, 1021)", "61x1021-fp32"
"""A workload of the example that is quickly checked; it is timed in its copy."""

pytestmark = pytest.mark.slow


def executable(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("KOPT_CLIENTS", ""), os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip(f"needs {name} on PATH or in KOPT_CLIENTS")
    return found


@dataclass(frozen=True)
class Desk:
    """An empty home, a project with its own interpreter, and a `uvx` that starts this checkout."""

    home: Path
    project: Path
    bin: Path

    def run(
        self, command: list[str], model: str = "", *, timeout_s: float = 60, succeeds: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a client's command in the project; `model` is the address of its model and of its proxy."""
        nowhere = model or "http://127.0.0.1:9"
        environment = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "TERM": "dumb",
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1",
            "ANTHROPIC_BASE_URL": nowhere,
            "ANTHROPIC_API_KEY": "none",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS": "600000",  # a call of two minutes would be answered later
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "SCRIPTED_KEY": "none",
        }
        done = subprocess.run(
            command,
            cwd=self.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert (done.returncode == 0) is succeeds, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "home", tmp_path / "project", tmp_path / "bin")
    for folder in (desk.home, desk.project, desk.bin):
        folder.mkdir()
    shutil.copy(EXAMPLE / "softmax.c", desk.project)
    problem = (EXAMPLE / "test_softmax.py").read_text(encoding="utf-8")
    assert SMALL in problem
    (desk.project / "test_softmax.py").write_text(problem.replace(SMALL, SMALL[:-1] + ", timed=True)"))
    (desk.project / ".venv").symlink_to(sys.prefix)
    uvx = desk.bin / "uvx"
    python = shlex.quote(sys.executable)
    uvx.write_text(
        f'#!/bin/sh\n[ "$1" = kopt-mcp ] || exit 64\nshift\nKOPT_MEMORY=off exec {python} -m kopt_mcp "$@"\n'
    )
    uvx.chmod(0o755)
    return desk


# How a client is set up, and how it is asked


def documented(pattern: str) -> list[str]:
    """A command line of the README."""
    found = re.search(rf"^    ({pattern}.*)$", README, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


def claude_by_its_command(desk: Desk) -> None:
    desk.run([executable("claude"), *documented("claude mcp add")[1:]])


def claude_by_the_plugin(desk: Desk) -> None:
    """`/plugin install kopt --marketplace kopt-mcp/kopt-mcp`, with this checkout for the repository."""
    desk.run([executable("claude"), "plugin", "marketplace", "add", str(plugin(desk))])
    desk.run([executable("claude"), "plugin", "install", "kopt@kopt-mcp"])


def codex_by_its_file(desk: Desk) -> None:
    (desk.home / ".codex").mkdir()
    approved = 'default_tools_approval_mode = "approve"'
    assert approved in README
    (desk.home / ".codex" / "config.toml").write_text(block("Codex", "toml") + approved + "\n")


def codex_by_its_command(desk: Desk) -> None:
    found = re.search(r"`codex (mcp add kopt [^`]*)`", README)
    assert found is not None
    desk.run([executable("codex"), *shlex.split(found[1])])


def codex_by_the_plugin(desk: Desk) -> None:
    desk.run([executable("codex"), "plugin", "marketplace", "add", str(plugin(desk))])
    desk.run([executable("codex"), "plugin", "add", "kopt@kopt-mcp"])


def plugin(desk: Desk) -> Path:
    """The files of the plugin without the rest of this checkout."""
    folder = desk.home / "marketplace"
    folder.mkdir()
    for name in PLUGIN_FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def ask_claude(desk: Desk, model: str) -> str:
    tools = ["mcp__kopt", "mcp__plugin_kopt_kopt", "ReadMcpResourceTool"]
    command = [executable("claude"), "-p", ASKED, "--output-format", "json", "--allowedTools", *tools]
    answer: dict[str, Any] = json.loads(desk.run(command, model, timeout_s=400).stdout)
    assert answer["is_error"] is False
    return str(answer["result"])


def ask_codex(desk: Desk, model: str) -> str:
    provider = {"name": "script", "base_url": f"{model}/v1", "wire_api": "responses", "env_key": "SCRIPTED_KEY"}
    told = [f"model_providers.script.{key}={json.dumps(value)}" for key, value in provider.items()]
    options = [word for one in ["model_provider=script", "model=script", *told] for word in ("-c", one)]
    last = desk.home / "last.txt"
    desk.run(
        [executable("codex"), "exec", "--skip-git-repo-check", "-o", str(last), *options, ASKED], model, timeout_s=400
    )
    return last.read_text(encoding="utf-8")


# What the agent does


def said(result: str) -> dict[str, Any]:
    """A tool's answer, whatever the client wrote around it."""
    answer: dict[str, Any] = json.JSONDecoder().raw_decode(result[result.index("{") :])[0]
    return answer


def patch(number: int) -> dict[str, Any]:
    chosen: dict[str, Any] = json.loads((EXAMPLE / "patches" / "patches.json").read_text(encoding="utf-8"))[number]
    content = (EXAMPLE / "patches" / chosen.pop("file")).read_text(encoding="utf-8")
    return {**chosen, "content": content}


def optimise() -> Script:
    """Read the skill, then once round the loop with a wrong kernel and once with a better one."""
    yield Call(uri="skill://optimize-loop/SKILL.md")
    yield Call("detect_gpu")
    target = {"target_metric": "gbps", "target_value": 1e6}
    begun = said(
        (yield Call("baseline", {"kernel_path": "softmax.c", "gpu": "cpu", "workloads": [WORKLOAD], **target}))
    )
    handle = {"experiment": begun["experiment"]}
    yield Call("profile", handle)
    yield Call("diagnose", handle)
    for number in (1, 0):
        yield Call("apply_patch", {**handle, **patch(number)})
        if said((yield Call("verify", handle)))["correct"]:
            yield Call("benchmark", handle)
        yield Call("decide", handle)
    yield Call("decide", {**handle, "stop": True, "reason": "the script has no further patch"})
    return str(said((yield Call("log", handle)))["table"])


def look() -> Script:
    """Read the skill and list the experiments."""
    yield Call(uri="skill://optimize-loop/SKILL.md")
    return str(said((yield Call("log")))["experiments"][0]["experiment"])


def answers(conversation: Conversation, tool: str) -> list[dict[str, Any]]:
    return [said(result) for call, result in conversation.turns if call.tool == tool]


@pytest.mark.parametrize(
    ("set_up", "ask"), [(claude_by_its_command, ask_claude), (codex_by_its_file, ask_codex)], ids=["claude", "codex"]
)
def test_a_client_takes_a_kernel_from_the_baseline_to_a_decision(
    desk: Desk, set_up: Callable[[Desk], None], ask: Callable[[Desk, str], str]
) -> None:
    set_up(desk)
    with playing(optimise()) as conversation:
        words = ask(desk, conversation.url)
    assert conversation.failure == ""
    assert set(conversation.offered) >= TOOLS
    assert "name: optimize-loop" in conversation.turns[0][1]
    assert [answer["correct"] for answer in answers(conversation, "verify")] == [False, True]
    first, second, ended = answers(conversation, "decide")
    assert (first["status"], first["reverted"]) == ("FAILED", True)
    assert (second["status"], second["reverted"]) == ("IMPROVED", False)
    assert ended["ended"] == "STOPPED"
    assert (desk.project / "softmax.c").read_text(encoding="utf-8") == patch(0)["content"]
    (journal,) = desk.project.glob("experiments/*/journal.jsonl")
    assert Journal(journal).read()
    assert words.strip() == said(conversation.turns[-1][1])["table"].strip()
    assert "IMPROVED" in words


@pytest.mark.parametrize(
    ("set_up", "ask"),
    [(claude_by_the_plugin, ask_claude), (codex_by_the_plugin, ask_codex), (codex_by_its_command, ask_codex)],
)
def test_a_client_is_served_the_project_that_it_works_in(
    desk: Desk, set_up: Callable[[Desk], None], ask: Callable[[Desk, str], str]
) -> None:
    shutil.copytree(ROOT / "experiments" / FINISHED, desk.project / "experiments" / FINISHED)
    set_up(desk)
    with playing(look()) as conversation:
        words = ask(desk, conversation.url)
    assert conversation.failure == ""
    assert words.strip() == FINISHED


def test_claude_code_finds_no_fault_with_plugin_and_marketplace(desk: Desk) -> None:
    folder = plugin(desk)
    for path in (folder, folder / ".claude-plugin" / "plugin.json", folder / "skills"):
        desk.run([executable("claude"), "plugin", "validate", "--strict", str(path)])
    misspelt = {**load(".claude-plugin/plugin.json"), "nmae": "x"}
    (folder / ".claude-plugin" / "plugin.json").write_text(json.dumps(misspelt), encoding="utf-8")
    refused = desk.run([executable("claude"), "plugin", "validate", "--strict", str(folder)], succeeds=False)
    assert "nmae" in refused.stdout + refused.stderr


def test_claude_code_connects_to_what_its_command_added(desk: Desk) -> None:
    claude_by_its_command(desk)
    assert "Connected" in desk.run([executable("claude"), "mcp", "get", "kopt"]).stdout
