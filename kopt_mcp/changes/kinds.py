"""What kind of change a difference is: by its words, by what takes whose place, by where it stands. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kopt_mcp import features
from kopt_mcp.changes import words
from kopt_mcp.changes.deltas import CASTS, Context, Delta, bare, flat, function_of, only_wrapped
from kopt_mcp.changes.sites import shown
from kopt_mcp.models import ChangeKind
from kopt_mcp.source import dotted

Read = tuple[ChangeKind | None, str]
"""A kind, and what to call it."""


ARGUMENTS: Mapping[ChangeKind, frozenset[str]] = {
    "memory": words.MEMORY_ARGUMENTS,
    "numerics": words.NUMERIC_ARGUMENTS,
    "scheduling": words.SCHEDULING_ARGUMENTS | words.SCHEDULING_WORDS,
}


def kind_of(delta: Delta) -> Read:
    """The kind of a difference, and what to call it."""
    context = delta.context
    if context.keyword:
        return _kind_of_argument(context.keyword), context.keyword
    if context.part == "grid":
        busy = {*_identifiers(delta.old), *_identifiers(delta.new)} & words.SCHEDULING_WORDS
        return ("scheduling" if busy else "launch"), "grid"
    if found := _wrapping(delta) or _by_words(delta):
        return found
    if context.part == "argument":
        return None, f"argument of {context.calls[-1]}"
    if context.target.isupper() and isinstance(delta.new, ast.Constant):
        return None, context.target  # a parameter whose name says nothing
    return _by_place(context) or _by_default(context, delta.new or delta.old)


def _by_default(context: Context, node: ast.AST | None) -> Read:
    """What nothing tells otherwise is the algorithm, where it runs on the device or calls something that may."""
    called = _called(node) if node is not None else set()
    if not called and any(words.MEMORY_NAMES.fullmatch(name) for name in _identifiers(node)):
        return "memory", _shown(node)  # arithmetic on strides and offsets
    helpers = called <= words.HOST_HELPERS
    return (None if not context.kernel and helpers else "algorithm"), _shown(node)


def kind_of_statement(node: ast.AST, context: Context) -> Read:
    """The kind of a statement that is new or dropped, and what to call it."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass, ast.Assert, ast.Raise, ast.Global, ast.Return)):
        return None, _shown(node)
    delta = Delta(None, node, replace(context, target=_target(node)))
    if found := _by_words(delta):
        return found
    called = _called(node)
    if called & words.LAUNCH_CALLS:
        return "launch", _shown(node)
    if isinstance(node, ast.If):
        asked = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        # A constant of the compilation only says which of two versions it is.
        return (None if not context.kernel or all(n.isupper() for n in asked) else "algorithm"), _shown(node)
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call) and (context.kernel or not called <= words.HOST_HELPERS):
        return _kind_of_call(dotted(value.func).split(".")[-1], called), _shown(node)
    if not called and not _computes(node):
        return None, _shown(node)
    return _by_place(delta.context) or _by_default(context, node)


def _kind_of_call(name: str, called: set[str]) -> ChangeKind | None:
    if name in words.EMPTY_CALLS or name in words.ALLOCATIONS:
        return None
    if called == {"to"}:
        return "numerics"
    return "memory" if called <= words.MEMORY_CALLS | {"arange", "to", "cdiv"} else "algorithm"


def _wrapping(delta: Delta) -> Read | None:
    if delta.old is None or delta.new is None or not only_wrapped(delta.old, delta.new):
        return None
    if flat(delta.old) == flat(delta.new):
        return None, "layout"
    if bare(delta.old, CASTS) != bare(delta.new, CASTS):
        return "memory", "hint" if bare(delta.old, words.HINTS) == bare(delta.new, words.HINTS) else "contiguous"
    types = set(_identifiers(delta.old)) ^ set(_identifiers(delta.new))
    if types & words.INDEX_TYPES and not types & words.TYPES:
        return "memory", "width of an index"
    return "numerics", "conversion"


def _kind_of_argument(keyword: str) -> ChangeKind | None:
    if known := features.named(keyword):
        return known[0].kind
    if words.is_launch_name(keyword) or keyword in ("configs", "values"):
        return "launch"
    return next((kind for kind, names in ARGUMENTS.items() if keyword in names), None)


def _by_words(delta: Delta) -> Read | None:
    """By what the difference itself mentions."""
    target = delta.context.target
    was, now = set(_identifiers(delta.old)), set(_identifiers(delta.new))
    names = was ^ now
    for feature in features.named(f"{_text(delta.old)} {_text(delta.new)}"):
        if names & {*feature.names, *feature.keywords}:
            return feature.kind, feature.what
    if names & words.ASSEMBLY:
        return "arch", "inline assembly"
    if words.are_launch_names(target) and not names & words.SCHEDULING_WORDS:
        return "launch", target
    # A program's own number says what it works on: any change of what is made of it is one of schedule.
    if found := sorted(names & words.SCHEDULING_WORDS or (was | now) & words.PROGRAM):
        return "scheduling", found[0]
    if words.SCHEDULING_NAMES.fullmatch(target):
        return "scheduling", target
    if delta.old is None or delta.new is None:
        return None
    return _by_substitution(names, delta)


def _by_substitution(names: set[str], delta: Delta) -> Read | None:
    """By the words that take the place of others."""
    plain = names - words.MODULES
    if plain and plain <= words.TYPES | words.MATH:
        return "numerics", " to ".join(_shown(node) for node in (delta.old, delta.new))
    if plain <= words.ALLOCATIONS and (plain or delta.context.part == "function"):
        return None, _shown(delta.new)
    return None


def _by_place(context: Context) -> Read | None:
    """By where the difference stands, where its own words say nothing."""
    if context.part == "pointer":
        return "memory", f"pointer of {context.calls[-1]}"
    if context.calls and context.calls[-1] in words.PROGRAM:
        return "scheduling", context.calls[-1]
    if context.calls and context.calls[-1] in words.ALLOCATIONS:
        return None, f"shape of {context.calls[-1]}"
    if any(name in words.LAUNCH_CALLS for name in context.calls):
        return "launch", context.calls[-1]
    if words.MEMORY_NAMES.fullmatch(context.target):
        return "memory", context.target
    if context.calls and context.calls[-1] in words.HINTS:
        return "memory", context.calls[-1]
    return None


def _identifiers(node: ast.AST | None) -> Iterator[str]:
    for inner in ast.walk(node) if node is not None else ():
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.keyword) and inner.arg:
            yield inner.arg


def _called(node: ast.AST) -> set[str]:
    return {dotted(function_of(n)).split(".")[-1] for n in ast.walk(node) if isinstance(n, ast.Call)}


def _computes(node: ast.AST) -> bool:
    """Whether there is arithmetic in it, or a loop."""
    return any(isinstance(n, (ast.BinOp, ast.AugAssign, ast.For, ast.While)) for n in ast.walk(node))


def _target(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else ""


def _text(node: ast.AST | None) -> str:
    return ast.unparse(node) if node is not None else ""


def _shown(node: ast.AST | None) -> str:
    return shown(_text(node))
