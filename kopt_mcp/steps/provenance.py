"""Who stands for the problem: git, a person, or nobody.

An agent may have written the test that its own kernel is judged by. A problem that git tracks and that is as it was
committed has been in somebody's hands. Another one is `unreviewed`, and every result says so, until a person accepts
it: when asked in a call, or by a line in kopt.yaml that names the files with their hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from kopt_mcp import config
from kopt_mcp.certificate import Review
from kopt_mcp.disk import digest
from kopt_mcp.errors import KoptError
from kopt_mcp.events import BaselineData
from kopt_mcp.workspace import Workspace, problem_copies


def review(space: Workspace, files: Mapping[str, str], accepted: Mapping[str, str]) -> Review:
    """How a problem stands; `files` and `accepted` are hashes by path, relative to the project."""
    found = unread(space, files)
    if not found:
        return "tracked"
    return "accepted" if all(accepted.get(path) == sha256 for path, sha256 in found.items()) else "unreviewed"


def unread(space: Workspace, files: Mapping[str, str]) -> dict[str, str]:
    """Those of a problem's files that are not as git has them."""
    return {path: sha256 for path, sha256 in files.items() if not space.reviewed(space.root / path)}


def standing(space: Workspace, setup: BaselineData) -> Review:
    """How an experiment's problem stands now: what was reviewed at its baseline stays so, the rest is looked at again.

    The guards see to it that the files are still those of the baseline.
    """
    if setup.problem_review in ("reviewed", "tracked"):
        return "tracked"
    if setup.problem_review == "accepted":
        return "accepted"
    try:
        accepted = config.read_file(space.root).get("accepted_problems") or {}
    except KoptError:
        return "unreviewed"
    return review(space, written(setup), accepted if isinstance(accepted, dict) else {})


def written(setup: BaselineData) -> dict[str, str]:
    """The files in which somebody wrote down what is to be computed.

    What we wrote for a task of another format follows from its files and says nothing of its own; what was written for
    plain functions is all that there is.
    """
    ours = setup.task not in ("problem", "script", "functions") and set(setup.problem_files) != {setup.test}
    return {path: sha256 for path, sha256 in setup.problem_files.items() if not (ours and path == setup.test)}


def to_accept(space: Workspace, setup: BaselineData) -> str:
    """What a person may do about an unreviewed problem: the line to write, ready to be copied."""
    found = unread(space, written(setup))
    return (
        f"git does not have {', '.join(found)} as it is, and nobody may have read it; every result says `unreviewed` "
        f"until a person has read it and commits it, or writes into {config.FILE}: accepted_problems: "
        f"{json.dumps(found, ensure_ascii=False)}"
    )


def keep(space: Workspace, name: str, files: Mapping[str, str]) -> None:
    """Keep the problem's files with the experiment: git need not have them, and what was edited can be put back.

    Raises:
        WorkspaceFailed: the disk refuses.
    """
    for path, sha256 in files.items():
        data = b"" if path.startswith(f"experiments/{name}/") else space.read(space.root / path)
        if digest(data) == sha256:  # not ours anyway, nor too large to be kept
            problem_copies(space, name, path).store(data)
