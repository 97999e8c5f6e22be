"""Our own format: a Python file that assigns a `kopt_mcp.problem.Problem` to `PROBLEM`."""

from __future__ import annotations

import ast
from pathlib import Path

from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import Unlike, defined, tree_of

EXPECTED = "a Python file that assigns a kopt_mcp.problem.Problem to PROBLEM"


def recognise(path: Path) -> Recognition:
    """Whether a file assigns `PROBLEM`, or imports it: `from shared import PROBLEM` declares one too."""
    tree = tree_of(path)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.asname or alias.name: node for node in imports for alias in node.names}
    declared = {**imported, **defined(tree)}.get("PROBLEM")
    if declared is None:
        raise Unlike(f"{path.name} assigns nothing to PROBLEM")
    found = (f"PROBLEM, line {declared.lineno}",)
    return Recognition("problem", path, (path,), found, name=path.stem.removeprefix("test_"))
