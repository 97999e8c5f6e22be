"""Pages that are rendered from the code, so that they cannot say something else: for the README and for the skills."""

from __future__ import annotations

from typing import Any

from kopt_mcp import results
from kopt_mcp.models import Described
from kopt_mcp.server.tools import HINTS, doc

ANSWERS: dict[str, type[Described]] = {
    "detect_gpu": results.DetectResult,
    "baseline": results.BaselineResult,
    "profile": results.ProfileResult,
    "diagnose": results.DiagnoseResult,
    "apply_patch": results.PatchResult,
    "verify": results.VerifyResult,
    "benchmark": results.BenchmarkResult,
    "decide": results.DecideResult,
    "log": results.LogResult,
}
ANSWERS_HEAD = """\
# What the answers hold

The list of tools names the fields of each answer and their types only; this says what those mean whose name does not.
`null` means "not measured", never zero. Units are in the names: `_us` microseconds, `_bytes`, `_gbps` 1e9 bytes per
second, `_tflops` 1e12 operations per second, `_pct` percent. Rendered from the code.
"""


def tools_table() -> str:
    """The tools as a Markdown table: of each description the first paragraph."""
    rows = [f"| `{name}` | {' '.join(doc(name).split(chr(10) * 2)[0].split())} |" for name in HINTS]
    return "\n".join(["| tool | what it does |", "|---|---|", *rows])


def answers_page() -> str:
    """What the fields of the answers mean, as far as their names do not say it, and those of the records in them."""
    common = described(results.StepResult)
    parts = [ANSWERS_HEAD, section("Every step", common)]
    for tool, model in ANSWERS.items():
        own = {name: text for name, text in described(model).items() if common.get(name) != text}
        parts.append(section(f"`{tool}`", own))
    inner = {name: record for model in ANSWERS.values() for name, record in nested(model).items()}
    parts += [section(f"Each {name}", fields) for name, fields in sorted(inner.items())]
    return "\n".join(part for part in parts if part)


def described(model: type[Described]) -> dict[str, str]:
    """The fields of a record that say what they are."""
    return _described(model.model_json_schema())


def nested(model: type[Described]) -> dict[str, dict[str, str]]:
    """The same of the records inside it, by their class."""
    found = {name: _described(schema) for name, schema in model.model_json_schema().get("$defs", {}).items()}
    return {name: fields for name, fields in found.items() if fields}


def section(title: str, fields: dict[str, str]) -> str:
    """A heading and a table; nothing where no field needs a word."""
    if not fields:
        return ""
    rows = [f"| `{name}` | {' '.join(text.split())} |" for name, text in fields.items()]
    return "\n".join([f"## {title}\n", "| field | meaning |", "|---|---|", *rows, ""])


def _described(schema: dict[str, Any]) -> dict[str, str]:
    fields = schema.get("properties", {})
    return {name: inner["description"] for name, inner in fields.items() if "description" in inner}
