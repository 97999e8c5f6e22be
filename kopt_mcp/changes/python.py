"""Where two versions of a Python file differ, from their syntax trees, and what kind of change each place is. Pure."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kopt_mcp.changes.deltas import Context, Delta, deltas, function_of
from kopt_mcp.changes.kinds import kind_of, kind_of_statement
from kopt_mcp.changes.sites import Site, differences
from kopt_mcp.source import parse, undocumented

Unit = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | ast.ClassDef


@dataclass(frozen=True)
class Line:
    """One statement, or the head of one that holds others."""

    text: str
    node: ast.AST
    number: int


def compare(old: str, new: str, name: str) -> tuple[list[Site], frozenset[str], dict[str, frozenset[str]]]:
    """(places that differ, names that only one version has, names that each function mentions).

    Raises:
        InputRefused: a version does not parse.
    """
    before, after = undocumented(parse(old, name)), undocumented(parse(new, name))
    was, now = dict(units(before)), dict(units(after))
    sites = [site for unit in dict.fromkeys([*was, *now]) for site in _compared(unit, was.get(unit), now.get(unit))]
    mentioned = {unit: _names(now.get(unit)) | _names(was.get(unit)) for unit in dict.fromkeys([*now, *was])}
    calls = {unit: frozenset(words | ({unit.split(".")[0]} & set(now))) for unit, words in mentioned.items()}
    return sites, frozenset(_names(before) ^ _names(after)), calls


def units(tree: ast.Module) -> Iterator[tuple[str, Unit]]:
    """The module, its functions and classes, and the methods of these, by their dotted names."""
    yield "", tree
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
            inner = node.body if isinstance(node, ast.ClassDef) else []
            yield from ((f"{node.name}.{m.name}", m) for m in inner if isinstance(m, ast.FunctionDef))


def _compared(unit: str, old: Unit | None, new: Unit | None) -> list[Site]:
    if old is None or new is None:
        present = old or new
        assert present is not None
        if isinstance(present, (ast.ClassDef, ast.Module)):
            return []
        verb = "added" if old is None else "removed"
        return [Site("algorithm", f"{verb} function", unit, present.lineno, frozenset(_names(present)))]
    context, sites = Context(kernel=_on_device(new)), list[Site]()
    for one, other in differences(list(_lines(old)), list(_lines(new)), lambda line: line.text, _same_role):
        if one and other and one is not other:
            sites += _changed(unit, one, other, context)
        elif line := other or one:
            sites.append(_whole(unit, line, context, moved=one is other))
    return sites


def _on_device(unit: Unit) -> bool:
    """Whether a function is compiled for the device, as far as its decorators say; the rest is the host's."""
    decorators = unit.decorator_list if isinstance(unit, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
    return any("jit" in ast.dump(decorator) for decorator in decorators)


def _lines(unit: Unit) -> Iterator[Line]:
    if isinstance(unit, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for decorator in unit.decorator_list:
            yield Line(f"@{ast.unparse(decorator)}", decorator, decorator.lineno)
        arguments = unit.args
        defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
        pairs = [
            *zip(arguments.args, defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            text = f"parameter {ast.unparse(argument)} = {ast.unparse(default) if default else ''}"
            yield Line(text, argument, argument.lineno)
    yield from _statements(unit.body)


def _statements(body: Sequence[ast.stmt]) -> Iterator[Line]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            continue
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # A function inside a function is read where it stands; one of the module is a unit of its own.
            if statement.col_offset:
                yield from _lines(statement)
            continue
        inner = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        if not isinstance(inner[0], list) or not any(inner):
            yield Line(ast.unparse(statement), statement, statement.lineno)
            continue
        yield Line(ast.unparse(_head(statement)).removesuffix("\n    pass"), statement, statement.lineno)
        handlers = [h.body for h in getattr(statement, "handlers", [])]
        for block in (*inner, *handlers):
            yield from _statements(block)


def _head(statement: ast.stmt) -> ast.stmt:
    """The statement with nothing in it."""
    bare = copy.copy(statement)
    blocks: tuple[tuple[str, list[ast.stmt]], ...] = (("body", [ast.Pass()]), ("orelse", []), ("finalbody", []))
    for name, empty in blocks:
        if hasattr(bare, name):
            setattr(bare, name, empty)
    if isinstance(bare, ast.Try):
        bare.handlers = [ast.ExceptHandler(body=[ast.Pass()])]
    return ast.fix_missing_locations(ast.copy_location(bare, statement))


def _same_role(one: Line, other: Line) -> bool:
    if type(one.node) is not type(other.node):
        return False
    if isinstance(one.node, ast.arg) and isinstance(other.node, ast.arg):
        return one.node.arg == other.node.arg
    return _subject(one.node) == _subject(other.node)


def _subject(node: ast.AST) -> str:
    """What a statement is about: what it assigns to, what it calls, what it loops over."""
    if isinstance(node, ast.Assign):
        return " ".join(ast.unparse(target) for target in node.targets)
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
        return ast.unparse(node.target)
    value = node.value if isinstance(node, ast.Expr) else node
    if isinstance(value, ast.Call):
        return ast.unparse(function_of(value))
    return type(node).__name__


def _changed(unit: str, old: Line, new: Line, context: Context) -> Iterator[Site]:
    if isinstance(new.node, ast.arg):
        yield Site(None, f"parameter {new.node.arg}", unit, new.number, frozenset([new.node.arg]))
        return
    before, after = old.node, new.node
    if isinstance(before, ast.stmt) and isinstance(after, ast.stmt) and hasattr(after, "body"):
        before, after = _head(before), _head(after)
    if isinstance(new.node, (ast.Assign, ast.AugAssign)):
        context = replace(context, target=_subject(new.node))
    for delta in deltas(before, after, context):
        yield _site(delta, unit, new.number)


def _site(delta: Delta, unit: str, number: int) -> Site:
    kind, what = kind_of(delta)
    line = getattr(delta.new, "lineno", None)
    names = _names(delta.old) ^ _names(delta.new) | ({delta.context.keyword} if delta.context.keyword else set())
    return Site(kind, what, unit, line or number, frozenset(names | {delta.context.target}))


def _whole(unit: str, line: Line, context: Context, moved: bool) -> Site:
    """A statement that is new, dropped, or only in another place."""
    if moved:
        return Site("scheduling", "order of statements", unit, line.number, frozenset(_names(line.node)))
    if isinstance(line.node, ast.arg):
        return Site(None, f"parameter {line.node.arg}", unit, line.number, frozenset([line.node.arg]))
    node = _head(line.node) if isinstance(line.node, ast.stmt) and hasattr(line.node, "body") else line.node
    kind, what = kind_of_statement(node, context)
    return Site(kind, what, unit, line.number, frozenset(_names(node)))


def _names(node: ast.AST | None) -> set[str]:
    """Names that a piece of syntax mentions or binds, the names of arguments among them."""
    found: set[str] = set()
    for inner in ast.walk(node) if node is not None else ():
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, (ast.arg, ast.keyword)) and inner.arg:
            found.add(inner.arg)
        elif isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
            found.add(inner.name)
    return found
