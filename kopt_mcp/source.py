"""What can be read off a kernel's or a test's text without running it: does it parse, is it the same program. Pure."""

from __future__ import annotations

import ast
import hashlib
import warnings

from kopt_mcp import csource
from kopt_mcp.errors import InputRefused
from kopt_mcp.renaming import renamed


def parse(text: str, name: str) -> ast.Module:
    """The syntax tree of a Python file.

    Raises:
        InputRefused: it does not parse; the text quotes the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # the user's style is not our business
            return ast.parse(text)
    except SyntaxError as error:
        line = (error.text or "").strip()[:120]
        raise InputRefused(
            f"{name} line {error.lineno} does not parse: {line!r}: {error.msg}; nothing changed."
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputRefused(f"{name} does not parse: {error or 'nested too deeply'}; nothing changed.") from error


def normal_form(text: str, name: str) -> str:
    """Hash of the program without comments, docstrings and formatting.

    Raises:
        InputRefused: a Python file does not parse.
    """
    if not name.endswith(".py"):
        return csource.normal(text)
    return _hashed(undocumented(parse(text, name)), name)


def shape(text: str, name: str) -> str:
    """Hash of the program whatever its local variables and private functions are called.

    Raises:
        InputRefused: a Python file does not parse.
    """
    if not name.endswith(".py"):
        return csource.shape(text)
    return _hashed(renamed(undocumented(parse(text, name))), name)


def undocumented(tree: ast.Module) -> ast.Module:
    """The tree, its docstrings taken out."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and _documented(node):
            node.body = node.body[1:]
    return tree


def dotted(node: ast.AST) -> str:
    """`tl.load` for the syntax of it; what is not a name at the front is left out."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else node.attr
    return ""


def is_triton(text: str) -> bool:
    """Whether a Python kernel uses triton."""
    return "import triton" in text or "from triton" in text


def entry_of(text: str, name: str) -> tuple[str, tuple[str, ...]]:
    """The function that a caller would call, and its arguments: the first public one that is not compiled by triton.

    Where none is found, the file's stem and no arguments.
    """
    stem = name.rsplit("/", 1)[-1].split(".")[0]
    if not name.endswith(".py"):
        return stem, ()
    functions = [node for node in parse(text, name).body if isinstance(node, ast.FunctionDef)]
    public = [
        f for f in functions if not f.name.startswith("_") and not any("jit" in ast.dump(d) for d in f.decorator_list)
    ]
    if not public:
        return stem, ()
    chosen = next((f for f in public if f.name in (stem, f"{stem}_forward")), public[0])
    return chosen.name, tuple(a.arg for a in chosen.args.args[: len(chosen.args.args) - len(chosen.args.defaults)])


def imports_of(text: str, name: str) -> list[str]:
    """The modules that a Python file imports, dotted, as written."""
    found: list[str] = []
    for node in ast.walk(parse(text, name)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [base, *(f"{base}{'' if base.endswith('.') else '.'}{alias.name}" for alias in node.names)]
    return found


def _hashed(tree: ast.Module, name: str) -> str:
    try:
        return hashlib.sha256(ast.dump(tree).encode(errors="replace")).hexdigest()
    except RecursionError as error:
        raise InputRefused(f"{name} is nested too deeply to be read; nothing changed.") from error


def _documented(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
