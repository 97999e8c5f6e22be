"""What the profile target told, which the candidate may have written: nothing of it is believed unseen."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from kopt_mcp.evaluator.target_job import ANSWER_FILE
from kopt_mcp.platforms.launching import read_text


def read_answer(folder: Path) -> dict[str, Any]:
    """What the target told, empty where it told nothing. The candidate may have written it: check what is used."""
    with contextlib.suppress(ValueError):
        told = json.loads(read_text(folder / ANSWER_FILE))
        return told if isinstance(told, dict) else {}
    return {}


def told_text(answer: dict[str, Any], name: str) -> str:
    """A text that the target told, shortened; empty where it is none."""
    value = answer.get(name)
    return value[:600] if isinstance(value, str) else ""


def told_number(answer: dict[str, Any], name: str) -> float | None:
    """A positive number that the target told; None where it is none."""
    value = answer.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
