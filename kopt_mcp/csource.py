"""C, C++, CUDA and HIP as a stream of tokens: enough to tell a change of the program from one of its looks. Pure."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TOKEN = re.compile(
    r"""
    (?P<comment>//(?:[^\\\n]|\\.)*|/\*.*?(?:\*/|\Z))
  | (?P<splice>\\\n)
  | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
  | (?P<launch><<<|>>>)
  | (?P<mark>\S)
  | (?P<line>\n)
    """,
    re.VERBOSE | re.DOTALL,
)
OPTIONS = re.compile(r"(?://|/\*)\s*kopt:")
"""A comment that the evaluator reads: compiler flags, sources."""
RESERVED = re.compile(
    r"alignas|auto|bool|break|case|char|class|const|constexpr|continue|decltype|default"
    r"|delete|do|double|else|enum|extern|false|float|for|goto|half|if"
    r"|inline|int|long|namespace|new|noexcept|nullptr|operator|private|protected|public|register"
    r"|restrict|return|short|signed|sizeof|static|static_cast|reinterpret_cast|const_cast|struct|switch|template"
    r"|this|true|typedef|typename|union|unsigned|using|virtual|void|volatile|while|threadIdx"
    r"|blockIdx|blockDim|gridDim|warpSize|x|y|z|w"
)
NOT_TYPES = frozenset(["return", "else", "case", "goto", "new", "delete", "sizeof", "operator", "typename", "using"])


@dataclass(frozen=True)
class Token:
    """One word, number, string or mark, and the line that it is on, from 1."""

    text: str
    line: int
    kind: str
    """`name`, `number`, `string`, `launch`, `mark`, or `directive` for a whole preprocessor line."""


def tokens(text: str) -> list[Token]:
    """The tokens without comments and white space; a preprocessor line is one token, as its end has a meaning."""
    found: list[Token] = []
    line = 1
    fresh = True  # nothing but white space on this line so far
    directive: list[str] | None = None
    for match in TOKEN.finditer(text):
        kind, word = match.lastgroup or "", match.group()
        if kind == "line" and directive is not None:
            found.append(Token(" ".join(directive), line, "directive"))
            directive = None
        elif kind == "mark" and word == "#" and fresh and directive is None:
            directive = [word]
        elif kind == "comment" and OPTIONS.match(word):
            found.append(Token(" ".join(word.split()), line, "directive"))
        elif kind not in ("comment", "splice", "line"):
            if directive is None:
                found.append(Token(word, line, kind))
            else:
                directive.append(word)
        fresh = kind == "line" or (fresh and kind == "comment")
        line += word.count("\n")
    if directive is not None:
        found.append(Token(" ".join(directive), line, "directive"))
    return found


def normal(text: str) -> str:
    """Hash of the program without comments and formatting."""
    return _digest(token.text for token in tokens(text))


def shape(text: str) -> str:
    """Hash of the program whatever its variables are called."""
    stream = tokens(text)
    declared = _declared(stream)
    numbers: dict[str, str] = {}
    words = (
        numbers.setdefault(t.text, f"\0{len(numbers)}") if t.kind == "name" and t.text in declared else t.text
        for t in stream
    )
    return _digest(words)


def code_lines(text: str) -> list[tuple[int, str]]:
    """(line number, code) of each line that holds any, comments taken out and runs of white space made one space."""
    bare = TOKEN.sub(_without_comment, text)
    lines = ((number, " ".join(line.split())) for number, line in enumerate(bare.split("\n"), start=1))
    return [(number, line) for number, line in lines if line]


def functions(text: str) -> dict[int, str]:
    """For every line with code inside a function's body or head, the function's name."""
    owner: dict[int, str] = {}
    head: list[Token] = []
    depth, current = 0, ""
    for token in tokens(text):
        if depth == 0 and token.kind != "directive":
            head.append(token)
        if token.text == "{":
            depth += 1
            if depth == 1:
                current = _name(head)
                owner |= {t.line: current for t in head} if current else {}
                depth -= not current  # a namespace, a struct or extern "C": what is in it counts as the outermost
        elif token.text == "}":
            depth = max(0, depth - 1)
        if depth > 0 or (token.text == "}" and current):
            owner[token.line] = current
        if depth == 0 and token.text in ("}", ";", "{"):
            head, current = [], ""
    return owner


def _without_comment(match: re.Match[str]) -> str:
    text = match.group()
    return re.sub(r"[^\n]", " ", text) if match.lastgroup == "comment" and not OPTIONS.match(text) else text


def _name(head: Sequence[Token]) -> str:
    """The word before the first parenthesis that does not belong to an attribute."""
    for word, mark in itertools.pairwise(head):
        if mark.text == "(" and word.kind == "name" and not word.text.startswith("__"):
            return word.text
    return ""


def _declared(stream: Sequence[Token]) -> frozenset[str]:
    found = set()
    for before, token, after in zip(stream, stream[1:], stream[2:], strict=False):
        typed = (before.kind == "name" and before.text not in NOT_TYPES) or before.text in ("*", "&", ">")
        if token.kind == "name" and typed and after.text in ("=", ";", ",", ")", "[", ":"):
            found.add(token.text)
    return frozenset(name for name in found if not RESERVED.fullmatch(name))


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode(errors="replace")).hexdigest()
