"""What only some devices have: what of it a kernel uses, whether a device has it. Pure, from the table beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from kopt_mcp import csource
from kopt_mcp.models import ChangeKind, Device, Platform, Record
from kopt_mcp.source import dotted, parse

TABLE = Path(__file__).with_name("features.yaml")
ELSEWHERE = re.compile(
    r"(?i)hip|rocm|cuda|amd|nvidia|gfx|sm_?\d\d|capability|hopper|blackwell|arch|platform|backend|supports|has_"
)
"""A condition with one of these words asks what it runs on, and what it guards may be for another device."""
GUARDED = re.compile(r"#\s*(?:if|ifdef|ifndef|elif)\b.*(?:__CUDA_ARCH__|__HIP|__NVCC__|__CUDACC__|__gfx|__AVX|__ARM)")


class Feature(Record):
    """One row of the table."""

    id: str
    what: str
    reason: str
    source: str
    """Where the row can be looked up."""
    platforms: tuple[Platform, ...]
    min_sm: int = 0
    max_sm: int = 9999
    archs: tuple[str, ...] = ()
    kind: ChangeKind = "arch"
    names: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    asm: str = ""
    code: str = ""

    def on(self, device: Device) -> bool:
        """Whether a device has it; taken to be so where the architecture cannot be read."""
        if device.platform not in self.platforms:
            return False
        if device.platform == "nvidia":
            number = re.match(r"sm_(\d+)", device.arch)
            return number is None or self.min_sm <= int(number.group(1)) <= self.max_sm
        return not self.archs or device.arch.startswith(self.archs)


@dataclass(frozen=True)
class Use:
    """A feature, and the line where a kernel uses it."""

    feature: Feature
    line: int


@cache
def table() -> tuple[Feature, ...]:
    """All rows."""
    return tuple(TypeAdapter(list[Feature]).validate_python(yaml.safe_load(TABLE.read_text(encoding="utf-8"))))


def uses(text: str, name: str) -> list[Use]:
    """The features that a kernel uses, each once, at its first line; what a condition keeps for others is left out.

    Raises:
        InputRefused: a Python file does not parse.
    """
    found = _python(parse(text, name)) if name.endswith(".py") else _code(text)
    first: dict[str, Use] = {}
    for use in sorted(found, key=lambda use: use.line):
        first.setdefault(use.feature.id, use)
    return list(first.values())


def foreign(old: Sequence[Use], new: Sequence[Use], device: Device) -> list[Use]:
    """What a new version uses, its predecessor did not, and the device has not."""
    before = {use.feature.id for use in old}
    return [use for use in new if use.feature.id not in before and not use.feature.on(device)]


def named(text: str) -> list[Feature]:
    """The features whose names occur among the words of a piece of Python."""
    words = set(re.findall(r"\w+", text))
    return [f for f in table() if words & {*f.keywords, *(n for n in f.names if "." not in n)}]


def coded(text: str) -> list[Feature]:
    """The features that a piece of C++ shows."""
    strings = "\n".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text))
    return [f for f in table() if (f.code and re.search(f.code, text)) or (f.asm and _assembly(f, strings))]


def _python(tree: ast.Module) -> Iterator[Use]:
    for node in _walk(tree):
        for feature in table():
            if _is_use(feature, node):
                yield Use(feature, getattr(node, "lineno", 0))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node, except what stands under a condition on the platform."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.If, ast.IfExp)) and ELSEWHERE.search(ast.unparse(child.test)):
            continue
        yield from _walk(child)


def _is_use(feature: Feature, node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in feature.keywords and not _off(node.value)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return any(isinstance(k, ast.Constant) and k.value in feature.keywords and not _off(v) for k, v in pairs)
    if isinstance(node, (ast.Attribute, ast.Name)):
        return _ends_with(dotted(node), feature.names)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        base = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
        return any(_module(base + alias.name, feature.names) for alias in node.names)
    if isinstance(node, ast.Call) and "asm" in dotted(node.func) and feature.asm:
        strings = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        return bool(_assembly(feature, "\n".join(strings)))
    return False


def _assembly(feature: Feature, text: str) -> bool:
    return re.search(feature.asm, text) is not None


def _off(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is not True and value.value in (0, 1, None)


def _ends_with(given: str, names: Sequence[str]) -> bool:
    return any(f".{given}".endswith(f".{name}") for name in names)


def _module(given: str, names: Sequence[str]) -> bool:
    return any(f".{name}." in f".{given}." for name in names)


def _code(text: str) -> Iterator[Use]:
    for number, line in _lines_for_all(text):
        for feature in coded(line):
            yield Use(feature, number)


def _lines_for_all(text: str) -> Iterator[tuple[int, str]]:
    """Lines of code outside conditions of the preprocessor that ask what it compiles for."""
    guarded: list[bool] = []
    for number, line in csource.code_lines(text):
        if re.match(r"#\s*if", line):
            guarded.append(GUARDED.match(line) is not None)
        elif re.match(r"#\s*elif", line) and guarded:
            guarded[-1] = guarded[-1] or GUARDED.match(line) is not None
        elif re.match(r"#\s*endif", line) and guarded:
            guarded.pop()
        elif not any(guarded):
            yield number, line
