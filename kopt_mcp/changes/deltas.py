"""The smallest pieces in which two versions of a statement differ, and what they stand in. Pure."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kopt_mcp.changes import words
from kopt_mcp.source import dotted

OPERATORS = (ast.operator, ast.cmpop, ast.unaryop, ast.boolop)


@dataclass(frozen=True)
class Context:
    """What a difference stands in."""

    target: str = ""
    """What the statement assigns to."""
    keyword: str = ""
    """The argument's name."""
    calls: tuple[str, ...] = ()
    """The functions that it is an argument of, the outermost first."""
    part: str = ""
    """`grid`, `pointer`, `argument`, `function` or empty."""
    kernel: bool = True
    """Whether it runs on the device; what the host works out only serves the launch."""


@dataclass(frozen=True)
class Delta:
    """The smallest piece that differs; None on the side that lacks it."""

    old: ast.AST | None
    new: ast.AST | None
    context: Context


def deltas(old: ast.AST, new: ast.AST, context: Context) -> Iterator[Delta]:
    """The smallest differences between two pieces of syntax."""
    if ast.dump(old) == ast.dump(new):
        return
    if isinstance(old, ast.Call) and isinstance(new, ast.Call) and _comparable(old, new):
        yield from _call_deltas(old, new, context)
    elif isinstance(old, ast.Dict) and isinstance(new, ast.Dict):
        was, now = (
            {ast.unparse(k).strip("'"): v for k, v in zip(d.keys, d.values, strict=True) if k} for d in (old, new)
        )
        yield from _keyword_deltas(was, now, context)
    elif only_wrapped(old, new) or type(old) is not type(new) or not _recursive(old, new):
        yield Delta(old, new, context)
    else:
        for (_, one), (_, other) in zip(ast.iter_fields(old), ast.iter_fields(new), strict=True):
            for before, after in zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]:
                if isinstance(before, ast.AST) and isinstance(after, ast.AST):
                    yield from deltas(before, after, context)


def _comparable(old: ast.Call, new: ast.Call) -> bool:
    one, other = function_of(old), function_of(new)
    if ast.dump(one) == ast.dump(other):
        return True
    names = {dotted(one).split(".")[-1], dotted(other).split(".")[-1]}
    return len(old.args) == len(new.args) and (names <= words.MATH or names <= {"range", "static_range"})


def function_of(call: ast.Call) -> ast.expr:
    """What is called, the grid of a launch left out."""
    return call.func.value if isinstance(call.func, ast.Subscript) else call.func


def _call_deltas(old: ast.Call, new: ast.Call, context: Context) -> Iterator[Delta]:
    name = dotted(function_of(new)).split(".")[-1]
    inner = replace(context, keyword="", calls=(*context.calls, name), part="")
    if ast.dump(function_of(old)) != ast.dump(function_of(new)):
        yield Delta(function_of(old), function_of(new), replace(inner, part="function"))
    if isinstance(old.func, ast.Subscript) and isinstance(new.func, ast.Subscript):
        yield from deltas(old.func.slice, new.func.slice, replace(inner, part="grid"))
    if len(old.args) == len(new.args):
        for at, (one, other) in enumerate(zip(old.args, new.args, strict=True)):
            if name not in words.MATH or not _scaled(one, other):
                yield from deltas(one, other, replace(inner, part=_part(name, at, new)))
    else:
        yield from _arguments(old.args, new.args, inner)
    was, now = ({k.arg or "**": k.value for k in call.keywords} for call in (old, new))
    yield from _keyword_deltas(was, now, inner)


def _keyword_deltas(was: dict[str, ast.expr], now: dict[str, ast.expr], context: Context) -> Iterator[Delta]:
    for keyword in dict.fromkeys([*was, *now]):
        before, after = was.get(keyword), now.get(keyword)
        if before is None or after is None or ast.dump(before) != ast.dump(after):
            yield Delta(before, after, replace(context, keyword=keyword))


def _scaled(old: ast.expr, new: ast.expr) -> bool:
    """Whether one is the other times a constant, as the base of an exponential or a logarithm asks for."""
    for one, other in ((old, new), (new, old)):
        if isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mult):
            sides = (other.left, other.right)
            if ast.dump(one) in map(ast.dump, sides) and any(isinstance(x, (ast.Constant, ast.Name)) for x in sides):
                return True
    return False


def _part(name: str, at: int, call: ast.Call) -> str:
    if name in ("load", "store") and at == 0:
        return "pointer"
    return "argument" if isinstance(call.func, ast.Subscript) else ""


def _arguments(old: Sequence[ast.expr], new: Sequence[ast.expr], context: Context) -> Iterator[Delta]:
    """Arguments that were added or taken away; those that are in both are not looked at."""
    was, now = {ast.dump(a) for a in old}, {ast.dump(a) for a in new}
    here = replace(context, part="argument")
    yield from (Delta(None, a, here) for a in new if ast.dump(a) not in was)
    yield from (Delta(a, None, here) for a in old if ast.dump(a) not in now)


def _recursive(old: ast.AST, new: ast.AST) -> bool:
    """Whether two pieces of the same kind can be compared field by field, and differ in these alone."""
    fields = zip(ast.iter_fields(old), ast.iter_fields(new), strict=True)
    return all(_open(one, other) for (_, one), (_, other) in fields)


def _open(one: Any, other: Any) -> bool:
    """Whether a field is the same, or made of parts that can be compared in turn."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(isinstance(part, ast.AST) for part in [*one, *other])
    if isinstance(one, ast.AST) and isinstance(other, ast.AST):
        return type(one) is type(other) or not isinstance(one, OPERATORS)
    return bool(one == other)


class _Unwrap(ast.NodeTransformer):
    """Takes conversions, or hints to the compiler, off an expression."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = dotted(node.func).split(".")[-1]
        if name not in self._names:
            return node
        if name in ("to", "contiguous") and isinstance(node.func, ast.Attribute):
            return node.func.value
        return node.args[0] if node.args else node


class _Unlaid(ast.NodeTransformer):
    """Takes off what only says along which dimensions an expression lies."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        plain = all(isinstance(p, ast.Slice) or (isinstance(p, ast.Constant) and p.value is None) for p in parts)
        return node.value if plain else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [k for k in node.keywords if k.arg not in words.CARRIERS]
        return node


CASTS = frozenset(["to", "cast"])


def bare(node: ast.AST, names: frozenset[str]) -> str:
    """An expression without the calls of these names around any part of it."""
    return ast.dump(_Unwrap(names).visit(copy.deepcopy(node)))


def flat(node: ast.AST) -> str:
    """An expression without what says along which dimensions it lies."""
    return ast.dump(_Unlaid().visit(copy.deepcopy(node)))


def only_wrapped(old: ast.AST, new: ast.AST) -> bool:
    """Whether two expressions differ in conversions, hints or layout alone."""
    both = isinstance(old, ast.expr) and isinstance(new, ast.expr)
    if both and flat(old) == flat(new):
        return True
    return both and any(
        bare(old, names) == bare(new, names) for names in (CASTS, words.HINTS, frozenset(["contiguous"]))
    )
