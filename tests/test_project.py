"""Which folder is the project: what the client says, or where it works, and not its plugin's own folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kopt_mcp.project import project_root

ASK = "from kopt_mcp.project import project_root; print(project_root())"


def root(environment: dict[str, str], cwd: str = "/start") -> str:
    return str(project_root(environment, cwd=lambda: Path(cwd)))


def test_what_the_client_says_wins_over_where_it_started_the_server() -> None:
    assert root({"KOPT_PROJECT": "/a", "CLAUDE_PROJECT_DIR": "/b"}) == "/a"
    assert root({"CLAUDE_PROJECT_DIR": "/b"}) == "/b"
    assert root({}) == "/start"


def test_a_placeholder_that_the_client_left_as_it_is_says_nothing() -> None:
    assert root({"KOPT_PROJECT": "${workspaceFolder}"}) == "/start"
    assert root({"KOPT_PROJECT": "${workspaceFolder}", "CLAUDE_PROJECT_DIR": "/b"}) == "/b"


def test_a_plugin_that_is_started_in_the_project_works_there(tmp_path: Path) -> None:
    assert root({"PLUGIN_ROOT": str(tmp_path)}) == "/start"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("home", [False, True], ids=["in a project", "from the desktop"])
def test_a_plugin_that_is_started_in_its_own_folder_finds_where_the_client_works(tmp_path: Path, home: bool) -> None:
    plugin, project = tmp_path / "plugin", tmp_path / "project"
    plugin.mkdir()
    project.mkdir()
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}], check=True)"
    client = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {launcher!r}], check=True, cwd={str(plugin)!r})"
    )
    environment = {"PLUGIN_ROOT": str(plugin), "HOME": str(project if home else tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", client], cwd=project, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(plugin if home else project)
