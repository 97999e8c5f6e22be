"""The README's generated tables say what the code says, and its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kopt_mcp import phases
from kopt_mcp.server.pages import tools_table

README = Path(__file__).resolve().parent.parent / "README.md"
TABLES = {"tools": tools_table, "phases": phases.markdown}


@pytest.mark.parametrize("name", TABLES)
def test_a_generated_table_equals_what_the_code_says(name: str) -> None:
    text = README.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- generated: {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    wanted = TABLES[name]().strip() + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        README.write_text(pattern.sub(lambda m: m[1] + wanted + m[3], text), encoding="utf-8")
        return
    found = pattern.search(text)
    assert found is not None
    assert found[2] == wanted, "run UPDATE_SNAPSHOTS=1 pytest tests/test_readme.py if this is expected"


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_a_problem_is_a_command_where_only_torch_and_this_package_are_installed(tmp_path: Path) -> None:
    problem = README.parent / "examples" / "cpu_softmax" / "test_softmax.py"
    alone = (
        "import runpy, sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pydantic', 'mcp', 'yaml', 'anyio'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [sys.executable, "-c", alone, str(problem), "--json", "--correctness"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(README.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert (done.returncode, '"status": "pass"' in done.stdout) == (0, True), done.stderr
