"""The same program under other names and in another dress."""

from __future__ import annotations

from pathlib import Path

import pytest

from kopt_mcp import csource
from kopt_mcp.source import normal_form, shape

DATA = Path(__file__).parent / "data" / "changes"
SOFTMAX = (DATA / "softmax.py").read_text()
CUDA = (DATA / "softmax.cu").read_text()
TUNED = SOFTMAX.replace(
    "@triton.jit", '@triton.autotune(configs=[triton.Config({"BLOCK": 1024})], key=["cols"])\n@triton.jit'
)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (SOFTMAX, [("mask", "inside"), ("inside=inside", "mask=inside")]),
        (SOFTMAX, [("_softmax_kernel", "_rows_kernel")]),
        (SOFTMAX, [("BLOCK", "WIDTH")]),  # a parameter, and the argument that it is called with
        (TUNED, [("BLOCK", "WIDTH"), ("cols", "columns")]),  # and the autotuner's keys
        (SOFTMAX, [("rows, cols = x.shape", "n, c = x.shape"), ("(rows,)", "(n,)"), ("\n        cols,", "\n        c,"),
                   ("(cols)", "(c)")]),
        ("f = lambda meta: (meta['B'],)\n", [("meta", "m")]),
        ("def f(x):\n    return [y for y in x]\n", [("y", "z")]),
    ],
)  # fmt: skip
def test_other_names_are_the_same_shape(text: str, changes: list[tuple[str, str]]) -> None:
    other = text
    for old, new in changes:
        other = other.replace(old, new)
    assert other != text
    assert normal_form(other, "k.py") != normal_form(text, "k.py")
    assert shape(other, "k.py") == shape(text, "k.py")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_warps=4", "num_warps=8"),
        ("tl.exp(", "tl.exp2("),
        ("tl.max(x", "tl.min(x"),
        ("def softmax", "def softmax_2"),  # public: somebody calls it by this name
        ("out_ptr + row * out_stride", "x_ptr + row * out_stride"),
        ("num_warps", "num_stages"),
    ],
)
def test_another_program_has_another_shape(old: str, new: str) -> None:
    assert shape(SOFTMAX.replace(old, new), "k.py") != shape(SOFTMAX, "k.py")


def test_two_variables_exchanged_are_another_program() -> None:
    assert shape("def f(a, b):\n    return a - b\n", "k.py") != shape("def f(a, b):\n    return b - a\n", "k.py")
    assert shape("def f(a, b):\n    return a - b\n", "k.py") == shape("def f(x, y):\n    return x - y\n", "k.py")


def test_c_with_other_names_and_another_look_is_the_same() -> None:
    other = CUDA.replace("largest", "top").replace("    ", "\t").replace("// Combine", "// Join")
    assert normal_form(other, "k.cu") != normal_form(CUDA, "k.cu")
    assert shape(other, "k.cu") == shape(CUDA, "k.cu")
    assert normal_form(CUDA.replace("    ", "\t"), "k.cu") == normal_form(CUDA, "k.cu")
    for old, new in (("128", "256"), ("expf", "exp2f"), ("threadIdx.x", "threadIdx.y"), ("fmaxf", "fminf")):
        assert shape(CUDA.replace(old, new), "k.cu") != shape(CUDA, "k.cu")


def test_comments_that_the_evaluator_reads_and_the_ends_of_directives_count() -> None:
    assert normal_form("// kopt: cflags = -O2\nint x;", "k.c") != normal_form("// kopt: cflags = -O3\nint x;", "k.c")
    assert normal_form("#define A 1\nint x;", "k.c") != normal_form("#define A 1 int x;", "k.c")
    assert normal_form("#define A \\\n 1\n", "k.c") == normal_form("#define A 1\n", "k.c")
    assert normal_form('char *s = "// no comment";', "k.c") != normal_form('char *s = "//";', "k.c")


@pytest.mark.parametrize("text", ["", "/*", '"', "'", "#", "{{{", "}}}", "\\", "((", "<<<>>>", "// kopt:", "\x00"])
def test_no_text_makes_the_c_reader_fail(text: str) -> None:
    csource.tokens(text), csource.functions(text), csource.code_lines(text), csource.shape(text)


def test_functions_are_told_by_their_lines() -> None:
    owner = csource.functions(CUDA)
    lines = CUDA.splitlines()
    assert owner[next(n for n, line in enumerate(lines, 1) if "__shared__" in line)] == "over_block"
    assert owner[next(n for n, line in enumerate(lines, 1) if "<<<" in line)] == "softmax"
    assert 8 not in owner
