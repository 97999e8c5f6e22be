"""Find the skill documents that ship with the package, and read their frontmatter.

Format: Agent Skills (a folder with `SKILL.md`, YAML frontmatter with `name` and `description`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kopt_mcp.errors import WorkspaceFailed
from kopt_mcp.models import Record

SCHEME = "skill://"
FIRST = "optimize-loop"
MIME_TYPES = {
    ".md": "text/markdown",
    ".py": "text/x-python",
    ".cu": "text/x-c++",
    ".hip": "text/x-c++",
    ".c": "text/x-c",
}
"""The files of a skill that are served, by suffix; others (caches, binaries) are not a part of it."""


class SkillFile(Record):
    """One file of a skill, as a resource."""

    uri: str
    name: str
    description: str
    mime_type: str
    path: Path


class Skill(Record):
    """A skill: its own document first, then what that refers to."""

    path: str
    """Of its folder below the skills' root: `optimize-loop`, `kernels/softmax`."""
    frontmatter: dict[str, Any]
    """As it stands in the document."""
    files: tuple[SkillFile, ...]

    @property
    def uri(self) -> str:
        """Of its SKILL.md."""
        return self.files[0].uri


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


def find(root: Path | None = None) -> list[Skill]:
    """Every skill, the one to begin with first, the others in alphabetical order.

    Raises:
        WorkspaceFailed: a `SKILL.md` has no usable frontmatter.
    """
    root = root or folder()
    documents = sorted(root.rglob("SKILL.md"), key=lambda path: (path.parent.name != FIRST, path))
    return [_skill(document, root) for document in documents]


def files(root: Path | None = None) -> list[SkillFile]:
    """Every file of every skill, in a stable order.

    Raises:
        WorkspaceFailed: a `SKILL.md` has no usable frontmatter.
    """
    return [file for skill in find(root) for file in skill.files]


def frontmatter(skill: Path) -> dict[str, Any]:
    """`name`, `description` and what else stands between the two `---` lines of a `SKILL.md`.

    Raises:
        WorkspaceFailed: there is none, or it lacks one of the two.
    """
    return parsed(skill.read_text(encoding="utf-8"), str(skill))


def parsed(text: str, where: str) -> dict[str, Any]:
    """The frontmatter of a text; `where` is for the message.

    Raises:
        WorkspaceFailed: there is none, or it lacks name or description.
    """
    import yaml  # late: it is not needed to import the server

    parts = text.split("---\n", 2)
    found = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    if not isinstance(found, dict) or not found.get("name") or not found.get("description"):
        raise WorkspaceFailed(f"{where} has no frontmatter with name and description; correct the file.")
    return found


def _skill(document: Path, root: Path) -> Skill:
    about = frontmatter(document)
    others = sorted(p for p in document.parent.rglob("*") if p.suffix in MIME_TYPES and p.is_file() and p != document)
    return Skill(
        path=document.parent.relative_to(root).as_posix(),
        frontmatter=about,
        files=tuple(_files(document, others, root, about)),
    )


def _files(document: Path, others: list[Path], root: Path, about: dict[str, Any]) -> Iterator[SkillFile]:
    for path in (document, *others):
        is_document = path == document
        yield SkillFile(
            uri=SCHEME + path.relative_to(root).as_posix(),
            name=about["name"] if is_document else f"{about['name']}/{path.relative_to(document.parent).as_posix()}",
            description=about["description"] if is_document else _about(path, about["name"]),
            mime_type=MIME_TYPES[path.suffix],
            path=path,
        )


def _about(path: Path, skill: str) -> str:
    if path.name.startswith("test_"):
        return f"The problem that a {skill} kernel must solve: reference, inputs, workloads, bytes and FLOPs."
    if path.name.startswith("triton_"):
        return f"A correct Triton {skill} kernel to start from."
    return f"Further reading for the skill {skill}."
