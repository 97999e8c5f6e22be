"""The real server against the MCP Inspector and the conformance suite, where they are installed.

    npm install --no-save @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/conformance@0.2.0-alpha.12

KOPT_NODE and KOPT_NODE_MODULES name node (22 or newer) and the folder of the packages, where they lie elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NODE = os.environ.get("KOPT_NODE") or shutil.which("node") or ""
PACKAGES = Path(os.environ.get("KOPT_NODE_MODULES", ROOT / "node_modules")) / "@modelcontextprotocol"
INSPECTOR = PACKAGES / "inspector" / "clients" / "launcher" / "build" / "index.js"
CONFORMANCE = PACKAGES / "conformance" / "dist" / "index.js"
ANY_VALUE = "Schema carries no validation keyword at all, so it accepts any value"
COLOUR = re.compile(r"\x1b\[\d+m")


def node_is_usable() -> bool:
    if not NODE or not INSPECTOR.exists() or not CONFORMANCE.exists():
        return False
    said = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=False).stdout
    return int(said.lstrip("v").split(".")[0] or 0) >= 22


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not node_is_usable(), reason="needs node 22 and the packages of this file's docstring"),
]


def node(script: Path, *words: str, home: Path) -> tuple[int, str, str]:
    """Run a tool; its status, and what it said without colours."""
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [NODE, str(script), *words], capture_output=True, text=True, env=environment, cwd=home, timeout=300, check=False
    )
    return done.returncode, COLOUR.sub("", done.stdout), COLOUR.sub("", done.stderr)


def inspector(home: Path, *words: str) -> tuple[int, str, str]:
    server = [sys.executable, "-m", "kopt_mcp", "--root", str(home)]
    return node(INSPECTOR, "--cli", *server, *words, home=home)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_finds_nothing_to_say_of_the_tools(tmp_path: Path, era: str) -> None:
    options = ("--strict", "--format", "json", "--protocol-era", era)
    status, out, err = inspector(tmp_path, "--method", "tools/list", *options)
    assert status == 0, err
    assert len(json.loads(out)["result"]["tools"]) == 9
    # What may be null is published without a type (see schemas.outline), which it mentions; of nothing else.
    said = re.findall(r"^(?:Warning|Error): tool \"\w+\"\n  Path: (\S+)\n  Issue: (.*)$", err, re.MULTILINE)
    assert f"0 errors, {len(said)} warnings" in err
    assert all(issue.startswith(ANY_VALUE) for _, issue in said)
    assert all(path.startswith("outputSchema.properties.") for path, _ in said)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_calls_a_tool_reads_a_skill_and_gets_a_prompt(tmp_path: Path, era: str) -> None:
    options = ("--format", "json", "-q", "--protocol-era", era)
    status, out, err = inspector(tmp_path, "--method", "tools/call", "--tool-name", "log", *options)
    assert (status, json.loads(out)["result"]["structuredContent"]["experiments"]) == (0, []), err
    call = ("--method", "tools/call", "--tool-name", "log", "--tool-arg", "experimnt=x")
    status, out, err = inspector(tmp_path, *call, *options)
    assert status == 5
    assert "did you mean 'experiment'?" in out
    uri = "skill://optimize-loop/SKILL.md"
    status, out, err = inspector(tmp_path, "--method", "resources/read", "--uri", uri, *options)
    assert (status, "name: optimize-loop" in out) == (0, True), err
    prompt = ("--method", "prompts/get", "--prompt-name", "optimize", "--prompt-args", "kernel=softmax.py")
    status, out, err = inspector(tmp_path, *prompt, *options)
    assert (status, "Optimise the kernel softmax.py" in out) == (0, True), err


def test_the_inspector_verifies_every_skill(tmp_path: Path) -> None:
    status, out, err = inspector(tmp_path, "--method", "skills/list", "--verify", "--protocol-era", "modern", "-q")
    assert status == 0, err
    skills = [json.loads(line) for line in out.splitlines()]
    outcomes = {skill["name"]: skill["outcome"] for skill in skills}
    assert outcomes.pop("learned-patterns") == "unverifiable"  # it is written as experiments go
    assert set(outcomes.values()) == {"verified"}
    assert len(outcomes) >= 21


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server over HTTP, as the command serves it."""
    root = tmp_path_factory.mktemp("project")
    command = [sys.executable, "-m", "kopt_mcp", "--root", str(root), "serve", "--http", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        yield first.split()[3].rstrip(";")
        process.send_signal(signal.SIGINT)
        drain.join()


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
def test_the_server_conforms_in_all_that_needs_no_fixture(url: str, version: str, tmp_path: Path) -> None:
    expected = Path(__file__).parent / "data" / "conformance" / f"{version}.yml"
    options = ("--requirements", version, "--expected-failures", str(expected))
    status, out, err = node(CONFORMANCE, "server", "--url", url, *options, home=tmp_path)
    assert status == 0, out[-3000:] + err[-3000:]
    assert "Baseline check passed: all failures are expected." in out
    passed = set(re.findall(r"^✓ ([a-z0-9-]+):", out, re.MULTILINE))
    assert {"tools-list", "completion-complete", "resources-list", "prompts-list", "dns-rebinding-protection"} <= passed


@pytest.mark.parametrize("part", ["enumeration", "manifest", "directory"])
def test_the_skills_extension_conforms(url: str, part: str, tmp_path: Path) -> None:
    scenario = ("--scenario", f"sep-2640-skills-{part}")
    status, out, err = node(CONFORMANCE, "server", "--url", url, *scenario, home=tmp_path)
    assert status == 0, out[-3000:] + err[-3000:]
    assert re.search(r"Passed: (\d+)/\1, 0 failed, 0 warnings", out), out[-3000:]
    assert "SKIPPED" not in out
