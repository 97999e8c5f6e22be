"""A Python syntax tree in which private names are numbers, so that renaming a variable leaves it as it was. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef


def renamed(tree: ast.Module) -> ast.Module:
    """The tree, changed in place: locals, parameters and private functions are numbered in the order they appear."""
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    private = [
        f.name for f in functions if f.name.startswith("_") or any("jit" in ast.dump(d) for d in f.decorator_list)
    ]
    outer = {name: f"\0f{number}" for number, name in enumerate(dict.fromkeys(private))}
    # A parameter is also a keyword at the call, and a key in the configurations of an autotuner.
    parameters = {f.name: _numbered(_parameters(f)) for f in functions if f.name in outer}
    _Renamer(outer, {}, parameters).visit(tree)
    return tree


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [a.arg for a in every if a is not None]


def _bound(function: Function) -> Iterator[str]:
    """Names that are local to a function, in the order in which they first appear."""
    yield from _parameters(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _numbered(names: list[str]) -> dict[str, str]:
    return {name: f"\0v{number}" for number, name in enumerate(dict.fromkeys(names))}


class _Renamer(ast.NodeTransformer):
    """Carries the names of the scopes that it is in."""

    def __init__(self, outer: dict[str, str], local: dict[str, str], parameters: dict[str, dict[str, str]]) -> None:
        self._outer = outer
        self._local = local
        self._parameters = parameters

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Decorators speak of the parameters by name: autotune's keys and configurations, heuristics.
        words = self._parameters.get(node.name, {})
        for decorator in node.decorator_list:
            for part in ast.walk(decorator):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    part.value = words.get(part.value, part.value)
        declared = {name for n in ast.walk(node) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
        own = _numbered([name for name in _bound(node) if name not in declared])
        inner = _Renamer(self._outer, {**self._local, **own}, self._parameters)
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.name = self._outer.get(node.name, self._local.get(node.name, node.name))
        node.args = inner.visit(node.args)
        node.body = [inner.visit(statement) for statement in node.body]
        node.returns = None
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        taken = len(self._local)
        own = {a.arg: f"\0l{taken + number}" for number, a in enumerate(node.args.args)}
        inner = _Renamer(self._outer, {**self._local, **own}, self._parameters)
        node.args = inner.visit(node.args)
        node.body = inner.visit(node.body)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._local.get(node.id, self._outer.get(node.id, node.id))
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._local.get(node.arg, node.arg)
        if node.annotation is not None:
            node.annotation = self.visit(node.annotation)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func  # kernel[grid](...)
        words = self._parameters.get(called.id, {}) if isinstance(called, ast.Name) else {}
        self.generic_visit(node)
        for keyword in node.keywords:
            keyword.arg = words.get(keyword.arg or "", keyword.arg)
        return node
