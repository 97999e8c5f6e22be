"""Where two expressions differ, and what kind of change that is. Pure."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kopt_mcp import features
from kopt_mcp.changes import words
from kopt_mcp.models import ChangeKind
from kopt_mcp.source import dotted


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
        was, now = ({ast.unparse(k).strip("'"): v for k, v in _items(d)} for d in (old, new))
        yield from _keyword_deltas(was, now, context)
    elif _only_wrapped(old, new) or type(old) is not type(new) or not _recursive(old, new):
        yield Delta(old, new, context)
    else:
        yield from _field_deltas(old, new, context)


def kind_of(delta: Delta) -> tuple[ChangeKind | None, str]:
    """The kind of a difference, and what to call it."""
    context = delta.context
    text = f"{_text(delta.old)} {_text(delta.new)}"
    if context.keyword:
        return _kind_of_argument(context.keyword, text), context.keyword
    if context.part == "grid":
        busy = _mentions(delta, words.SCHEDULING_WORDS)
        return ("scheduling" if busy else "launch"), "grid"
    wrapped = _wrapping(delta)
    if wrapped is not None:
        return wrapped
    found = _by_words(delta, text)
    if found is not None:
        return found
    if context.part == "argument":
        return None, f"argument of {context.calls[-1]}"
    if context.target.isupper() and isinstance(delta.new, ast.Constant):
        return None, context.target  # a parameter whose name says nothing
    return _by_place(context) or _by_default(context, delta.new or delta.old)


def _by_default(context: Context, node: ast.AST | None) -> tuple[ChangeKind | None, str]:
    """What nothing tells otherwise is the algorithm, where it runs on the device or calls something that may."""
    called = _called(node) if node is not None else set()
    if not called and any(words.MEMORY_NAMES.fullmatch(name) for name in _identifiers(node)):
        return "memory", _shown(node)  # arithmetic on strides and offsets
    helpers = called <= words.HOST_HELPERS
    return (None if not context.kernel and helpers else "algorithm"), _shown(node)


def kind_of_statement(node: ast.AST, context: Context) -> tuple[ChangeKind | None, str]:
    """The kind of a statement that is new or dropped, and what to call it."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass, ast.Assert, ast.Raise, ast.Global, ast.Return)):
        return None, _shown(node)
    delta = Delta(None, node, replace(context, target=_target(node)))
    found = _by_words(delta, _text(node))
    if found is not None:
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


def _comparable(old: ast.Call, new: ast.Call) -> bool:
    one, other = _function(old), _function(new)
    if ast.dump(one) == ast.dump(other):
        return True
    names = {dotted(one).split(".")[-1], dotted(other).split(".")[-1]}
    return len(old.args) == len(new.args) and (names <= words.MATH or names <= {"range", "static_range"})


def _function(call: ast.Call) -> ast.expr:
    return call.func.value if isinstance(call.func, ast.Subscript) else call.func


def _call_deltas(old: ast.Call, new: ast.Call, context: Context) -> Iterator[Delta]:
    name = dotted(_function(new)).split(".")[-1]
    inner = replace(context, keyword="", calls=(*context.calls, name), part="")
    if ast.dump(_function(old)) != ast.dump(_function(new)):
        yield Delta(_function(old), _function(new), replace(inner, part="function"))
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


def _items(node: ast.Dict) -> list[tuple[ast.expr, ast.expr]]:
    return [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]


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


def _field_deltas(old: ast.AST, new: ast.AST, context: Context) -> Iterator[Delta]:
    for (_, one), (_, other) in zip(ast.iter_fields(old), ast.iter_fields(new), strict=True):
        pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
        for before, after in pairs:
            if isinstance(before, ast.AST) and isinstance(after, ast.AST):
                yield from deltas(before, after, context)


def _recursive(old: ast.AST, new: ast.AST) -> bool:
    """Whether two pieces of the same kind can be compared field by field, and differ in these alone."""
    for (_, one), (_, other) in zip(ast.iter_fields(old), ast.iter_fields(new), strict=True):
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other) or not all(isinstance(x, ast.AST) for x in [*one, *other]):
                return False
        elif isinstance(one, (ast.operator, ast.cmpop, ast.unaryop)) or not isinstance(one, ast.AST):
            if (ast.dump(one) if isinstance(one, ast.AST) else one) != (
                ast.dump(other) if isinstance(other, ast.AST) else other
            ):
                return False
        elif not isinstance(other, ast.AST):
            return False
    return True


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


def _bare(node: ast.AST, names: frozenset[str]) -> str:
    return ast.dump(_Unwrap(names).visit(copy.deepcopy(node)))


def _flat(node: ast.AST) -> str:
    return ast.dump(_Unlaid().visit(copy.deepcopy(node)))


def _only_wrapped(old: ast.AST, new: ast.AST) -> bool:
    both = isinstance(old, ast.expr) and isinstance(new, ast.expr)
    if both and _flat(old) == _flat(new):
        return True
    return both and any(
        _bare(old, names) == _bare(new, names) for names in (CASTS, words.HINTS, frozenset(["contiguous"]))
    )


def _wrapping(delta: Delta) -> tuple[ChangeKind | None, str] | None:
    if delta.old is None or delta.new is None or not _only_wrapped(delta.old, delta.new):
        return None
    if _flat(delta.old) == _flat(delta.new):
        return None, "layout"
    if _bare(delta.old, CASTS) != _bare(delta.new, CASTS):
        return "memory", "hint" if _bare(delta.old, words.HINTS) == _bare(delta.new, words.HINTS) else "contiguous"
    types = set(_identifiers(delta.old)) ^ set(_identifiers(delta.new))
    if types & words.INDEX_TYPES and not types & words.TYPES:
        return "memory", "width of an index"
    return "numerics", "conversion"


def _kind_of_argument(keyword: str, text: str) -> ChangeKind | None:
    known = features.named(keyword)
    if known:
        return known[0].kind
    if words.is_launch_name(keyword):
        return "launch"
    table: tuple[tuple[frozenset[str], ChangeKind | None], ...] = (
        (words.MEMORY_ARGUMENTS, "memory"),
        (words.NUMERIC_ARGUMENTS, "numerics"),
        (words.SCHEDULING_ARGUMENTS | words.SCHEDULING_WORDS, "scheduling"),
        (words.CARRIERS, None),
    )
    for names, kind in table:
        if keyword in names:
            return kind
    return "launch" if keyword in ("configs", "values") else None


def _by_words(delta: Delta, text: str) -> tuple[ChangeKind | None, str] | None:
    """By what the difference itself mentions."""
    target = delta.context.target
    was, now = set(_identifiers(delta.old)), set(_identifiers(delta.new))
    names = was ^ now
    for feature in features.named(text):
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


def _by_substitution(names: set[str], delta: Delta) -> tuple[ChangeKind | None, str] | None:
    """By the words that take the place of others."""
    plain = names - words.MODULES
    if plain and plain <= words.TYPES | words.MATH:
        return "numerics", " to ".join(_shown(node) for node in (delta.old, delta.new))
    if plain <= words.ALLOCATIONS and (plain or delta.context.part == "function"):
        return None, _shown(delta.new)
    return None


def _by_place(context: Context) -> tuple[ChangeKind | None, str] | None:
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


def _mentions(delta: Delta, wanted: frozenset[str]) -> bool:
    return bool({*_identifiers(delta.old), *_identifiers(delta.new)} & wanted)


def _identifiers(node: ast.AST | None) -> Iterator[str]:
    for inner in ast.walk(node) if node is not None else ():
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.keyword) and inner.arg:
            yield inner.arg


def _called(node: ast.AST) -> set[str]:
    return {dotted(_function(n)).split(".")[-1] for n in ast.walk(node) if isinstance(n, ast.Call)}


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
    line = " ".join(_text(node).split())
    return line if len(line) <= 40 else f"{line[:37]}..."
