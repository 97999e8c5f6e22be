"""Find the skill documents that ship with the package, and read their frontmatter.

Format: Agent Skills (a folder with `SKILL.md`, YAML frontmatter with `name` and `description`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kopt_mcp.errors import WorkspaceFailed
from kopt_mcp.models import Record

SCHEME = "skill://"


class SkillFile(Record):
    """One file of a skill, as a resource."""

    uri: str
    name: str
    description: str
    mime_type: str
    path: Path


def folder() -> Path:
    """Where the skills are: inside an installed package, or beside it in a checkout.

    Raises:
        WorkspaceFailed: neither is there; the installation is incomplete.
    """
    package = Path(__file__).resolve().parent
    for place in (package / "_skills", package.parent / "skills"):
        if place.is_dir():
            return place
    raise WorkspaceFailed("the skill documents are missing from this installation; install kopt-mcp again.")


def files(root: Path | None = None) -> list[SkillFile]:
    """Every file of every skill, in a stable order.

    Raises:
        WorkspaceFailed: a `SKILL.md` has no usable frontmatter.
    """
    root = root or folder()
    return [file for skill in sorted(root.rglob("SKILL.md")) for file in _files_of(skill, root)]


def frontmatter(skill: Path) -> dict[str, str]:
    """`name`, `description` and what else stands between the two `---` lines of a `SKILL.md`.

    Raises:
        WorkspaceFailed: there is none, or it lacks one of the two.
    """
    import yaml  # late: it is not needed to import the server

    text = skill.read_text(encoding="utf-8")
    parts = text.split("---\n", 2)
    found = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    if not isinstance(found, dict) or not found.get("name") or not found.get("description"):
        raise WorkspaceFailed(f"{skill} has no frontmatter with name and description; correct the file.")
    return found


def _files_of(skill: Path, root: Path) -> Iterator[SkillFile]:
    about = frontmatter(skill)
    for path in sorted(skill.parent.rglob("*")):
        if not path.is_file() or path.suffix not in (".md", ".py"):
            continue
        inner = path.relative_to(root).as_posix()
        is_skill = path == skill
        yield SkillFile(
            uri=SCHEME + inner,
            name=about["name"] if is_skill else f"{about['name']}/{path.relative_to(skill.parent).as_posix()}",
            description=about["description"] if is_skill else _about(path, about["name"]),
            mime_type="text/markdown" if path.suffix == ".md" else "text/x-python",
            path=path,
        )


def _about(path: Path, skill: str) -> str:
    if path.name.startswith("test_"):
        return f"The problem that a {skill} kernel must solve: reference, inputs, workloads, bytes and FLOPs."
    if path.name.startswith("triton_"):
        return f"A correct Triton {skill} kernel to start from."
    return f"Further reading for the skill {skill}."
