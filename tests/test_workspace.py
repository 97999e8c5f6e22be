"""Files on disk, and the four ways to describe a change."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt_mcp.disk import digest
from kopt_mcp.edit import Edit, apply_diff, apply_edits, changed_lines
from kopt_mcp.errors import InputRefused, WorkspaceFailed
from kopt_mcp.problem import Problem
from kopt_mcp.scaffold import scaffold
from kopt_mcp.source import entry_of, normal_form
from kopt_mcp.workspace import LARGEST_BYTES, Candidates, Workspace, decode

TEXT = "import x\n\n\ndef f(a):\n    y = a + 1\n    return y\n\n\ndef g(a):\n    y = a + 1\n    return -y\n"


def test_an_edit_replaces_text_that_is_there_once() -> None:
    assert apply_edits(TEXT, [Edit(search="return y", replace="return y * 2")]).count("return y * 2") == 1


def test_edits_are_carried_out_one_after_the_other() -> None:
    edits = [Edit(search="import x", replace="import z"), Edit(search="import z\n", replace="import w\n")]
    assert apply_edits(TEXT, edits).startswith("import w\n")


@pytest.mark.parametrize(
    ("search", "text"),
    [
        (
            "    y = a + 1\n",
            "edits[0].search matches 2 times; at lines 5, 10; add the lines around it until it is unique.",
        ),
        (
            "    return y*2",
            "edits[0].search matches 0 times; nearest is line 6: '    return y'; copy the text exactly, with its "
            "indentation.",
        ),
        ("", "edits[0].search is empty; give the exact text to replace."),
        (
            "qqqq",
            "edits[0].search matches 0 times; no line comes near it; read the file again and copy the text exactly.",
        ),
    ],
)
def test_an_edit_that_does_not_match_exactly_once_is_refused(search: str, text: str) -> None:
    with pytest.raises(InputRefused) as refusal:
        apply_edits(TEXT, [Edit(search=search, replace="z")])
    assert str(refusal.value) == text


def test_no_edits_are_no_change() -> None:
    with pytest.raises(InputRefused, match="edits is empty"):
        apply_edits(TEXT, [])


HUNK = " def f(a):\n-    y = a + 1\n+    y = a + 2\n     return y\n"


@pytest.mark.parametrize(
    "head",
    [
        "--- a/k.py\n+++ b/k.py\n@@ -4,3 +4,3 @@\n",
        "--- a/k.py\n+++ b/k.py\n@@ -400,7 +1,2 @@ def f(a):\n",  # wrong place, wrong counts
        "diff --git a/k.py b/k.py\nindex 1..2 100644\n--- a/k.py\n+++ b/k.py\n@@ @@\n",
        "@@ -4,3 +4,3 @@\n",  # no names at all
        "--- k.py\n+++ k.py\n@@ ... @@\n",
        "*** Begin Patch\n*** Update File: k.py\n@@ def f(a):\n",
    ],
)
def test_a_hunk_is_found_by_its_context_whatever_its_numbers_say(head: str) -> None:
    assert apply_diff(TEXT, head + HUNK, "src/k.py") == TEXT.replace(
        "y = a + 1\n    return y\n", "y = a + 2\n    return y\n"
    )


def test_blank_context_lines_may_have_lost_their_space() -> None:
    diff = "--- a/k.py\n+++ b/k.py\n@@ -1,4 +1,4 @@\n-import x\n+import z\n\n\n def f(a):\n"
    assert apply_diff(TEXT, diff, "k.py").startswith("import z\n\n\ndef f")


def test_two_hunks_are_both_applied_and_shift_each_other() -> None:
    diff = "--- a/k.py\n+++ b/k.py\n@@ -1 +1,3 @@\n-import x\n+import x\n+import z\n+import w\n\n@@ -10,2 +12,2 @@\n"
    diff += "     y = a + 1\n-    return -y\n+    return y\n"
    out = apply_diff(TEXT, diff, "k.py")
    assert out.startswith("import x\nimport z\nimport w\n")
    assert "return -y" not in out


def test_the_claimed_line_decides_between_equal_places() -> None:
    diff = "--- a/k.py\n+++ b/k.py\n@@ -10,1 +10,1 @@\n-    y = a + 1\n+    y = a + 3\n"
    assert apply_diff(TEXT, diff, "k.py").split("\n")[9] == "    y = a + 3"


@pytest.mark.parametrize(
    ("diff", "text"),
    [
        (
            "@@ -99 +99 @@\n-    y = a + 1\n+    y = 0\n",
            "hunk 1 fits 2 places (lines 5, 10); add context until one is left.",
        ),
        ("@@ -1 +1 @@\n-    return y * 3\n+z\n", "hunk 1 fits nowhere; nearest is line 6: '    return y'"),
        ("@@ -1,0 +1 @@\n+z\n", "hunk 1 has no context; nobody can tell where it belongs; add the lines around it."),
        (
            "@@ -1,3 +1,3 @@\nimport x\n-    return y * 3\n+    return y * 4\n",
            "line 2 of the diff, 'import x', has no mark; a hunk's lines begin with a space, + or -; mark it, or send",
        ),
        ("@@ @@\n-import x\n+import z\ndef f(a):\n+    a = 1\n", "line 4 of the diff, 'def f(a):', has no mark;"),
        ("hello", "the diff holds no hunk; expected a unified diff of k.py alone, with @@ lines."),
        ("", "the diff holds no hunk"),
        (
            "--- a/test_k.py\n+++ b/test_k.py\n@@ -1 +1 @@\n-a\n+b\n",
            "the diff is of 'a/test_k.py'; only the kernel, k.py, may",
        ),
        (
            "--- a/k.py\n+++ b/k.py\n@@ -1 +1 @@\n-a\n+b\n--- a/o.py\n+++ b/o.py\n@@ -1 +1 @@\n-a\n+b\n",
            "the diff is of 2 files; expected a unified diff of k.py alone",
        ),
    ],
)
def test_a_diff_that_does_not_fit_is_refused(diff: str, text: str) -> None:
    with pytest.raises(InputRefused) as refusal:
        apply_diff(TEXT, diff, "k.py")
    assert str(refusal.value).startswith(text)


PIECES = [
    "@@ -1 +1 @@\n",
    "@@ -0,0 +1 @@\n",
    "--- a/k.py\n+++ b/k.py\n",
    "-import x\n",
    "+z\n",
    " \n",
    "\n",
    "a0\n",
    "\\",
    "\r",
]


@given(st.one_of(st.text(max_size=50), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
def test_no_text_makes_the_diff_reader_fail_in_another_way(diff: str) -> None:
    with suppress(InputRefused):
        apply_diff(TEXT, diff, "k.py")


def test_changed_lines_are_counted() -> None:
    assert changed_lines(TEXT, TEXT.replace("import x", "import z\nimport w")) == (2, 1)
    assert changed_lines("a\n" * 30_000, "a\n" * 30_005) == (5, 0)


@pytest.mark.parametrize(
    "raw", [b"a\r\nb\r\n", b"\xef\xbb\xbfa\nb\n", b"a\r\nb\n", b"\xef\xbb\xbfa\r\nb\r\n", b"a\nb", b""]
)
def test_line_ends_and_byte_order_marks_are_preserved(raw: bytes) -> None:
    text = decode(raw, "k.c")
    assert text.encode() == raw
    assert text.with_body(text.body).encode() == raw


def test_a_new_body_takes_on_the_manner_of_the_old_file() -> None:
    old = decode(b"\xef\xbb\xbfa\r\nb\r\n", "k.c")
    assert old.with_body("\ufeffc\nd\r\n").encode() == b"\xef\xbb\xbfc\r\nd\r\n"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\0b", "k.c is binary"),
        (b"\xff\xfe", "k.c is not UTF-8 at byte 0"),
        (b"x" * (LARGEST_BYTES + 1), f"k.c has more than the {LARGEST_BYTES} bytes that are accepted"),
    ],
)
def test_what_is_no_text_is_refused(raw: bytes, text: str) -> None:
    with pytest.raises(InputRefused, match=text):
        decode(raw, "k.c")


def test_a_file_of_a_million_lines_is_read() -> None:
    assert decode(b"\n" * LARGEST_BYTES, "k.c").body.count("\n") == LARGEST_BYTES


@pytest.mark.parametrize("given", ["../out.py", "/etc/passwd", "link.py", "up/../../out.py"])
def test_a_path_that_leads_out_of_the_project_is_refused(tmp_path: Path, given: str) -> None:
    root = tmp_path / "project"
    (root / "up").mkdir(parents=True)
    (tmp_path / "out.py").write_text("")
    (root / "link.py").symlink_to(tmp_path / "out.py")
    with pytest.raises(InputRefused, match="lies outside the project"):
        Workspace(root).resolve(given, "kernel_path")


@pytest.mark.parametrize(("given", "text"), [("", "give a path"), ("a\0b", "give a path"), ("no.py", "does not exist")])
def test_a_path_that_names_nothing_is_refused(tmp_path: Path, given: str, text: str) -> None:
    with pytest.raises(InputRefused, match=text):
        Workspace(tmp_path).resolve(given, "kernel_path")


def test_folders_pipes_and_loops_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "folder.py").mkdir()
    for name in ("pipe.py", "folder.py", "loop.py", "x" * 5000):
        with pytest.raises(InputRefused):
            Workspace(tmp_path).resolve(name, "kernel_path")


def test_a_link_inside_the_project_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("x = 1\n")
    (tmp_path / "link.py").symlink_to("real.py")
    path, data = Workspace(tmp_path).kernel("link.py")
    assert (path.name, data) == ("real.py", b"x = 1\n")


def test_a_test_or_an_empty_file_is_no_kernel(tmp_path: Path) -> None:
    (tmp_path / "test_k.py").write_text("x = 1\n")
    (tmp_path / "k.c").write_text(" \n")
    with pytest.raises(InputRefused) as refusal:
        Workspace(tmp_path).kernel("test_k.py")
    assert str(refusal.value) == (
        "kernel_path 'test_k.py' is a test, not a kernel; name the file that it tests, such as k.c."
    )
    with pytest.raises(InputRefused, match=r"^kernel_path 'k\.c' is empty; there is nothing to measure"):
        Workspace(tmp_path).kernel("k.c")


def test_what_a_kernel_takes_from_its_project_is_found_in_python_and_in_c(tmp_path: Path) -> None:
    (tmp_path / "pk" / "sub").mkdir(parents=True)
    for name in ("pk/helper.py", "pk/sub/near.py", "pk/sub/sizes.h", "pk/up.h"):
        (tmp_path / name).write_text("")
    (tmp_path / "pk" / "sub" / "k.py").write_text("import torch\nfrom ..helper import SCALE\nimport near\n")
    (tmp_path / "pk" / "sub" / "k.c").write_text('#include <math.h>\n#include "sizes.h"\n # include "../up.h"\n')
    (tmp_path / "pk" / "sub" / "alone.c").write_text('#include "gone.h"\nint x = ;\n')
    space = Workspace(tmp_path)
    assert space.own_imports(tmp_path / "pk/sub/k.py") == ["pk/helper.py", "pk/sub/near.py"]
    assert space.own_imports(tmp_path / "pk/sub/k.c") == ["pk/sub/sizes.h", "pk/up.h"]
    assert space.own_imports(tmp_path / "pk/sub/alone.c") == []


def test_a_kernel_in_an_unknown_language_or_among_the_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k.rs").write_text("")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "k.py").write_text("")
    with pytest.raises(InputRefused, match=r"ends in '\.rs'; expected one of \.py, \.cu"):
        Workspace(tmp_path).kernel("k.rs")
    with pytest.raises(InputRefused, match="lies in experiments/"):
        Workspace(tmp_path).kernel("experiments/k.py")


@pytest.mark.parametrize("place", ["src/test_k.py", "src/test_other.py", "src/tests/test_k.py", "tests/test_k.py"])
def test_the_test_is_found_by_convention(tmp_path: Path, place: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "k.py").write_text("")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("")
    space = Workspace(tmp_path)
    assert space.relative(space.test(None, tmp_path / "src" / "k.py")) == place


def test_of_several_tests_none_is_guessed(tmp_path: Path) -> None:
    for name in ("k.py", "test_a.py", "test_b.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(InputRefused, match=r"several tests beside it \(test_a.py, test_b.py\).*give test_path"):
        Workspace(tmp_path).test(None, tmp_path / "k.py")


def test_without_a_test_the_refusal_holds_a_scaffold_that_parses(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        "@triton.jit\ndef inner(p):\n    pass\n\n\ndef rms_norm(x, weight, eps=1e-6):\n    pass\n"
    )
    with pytest.raises(InputRefused) as refusal:
        Workspace(tmp_path).test(None, tmp_path / "k.py")
    head, draft = str(refusal.value).split("\n\n", 1)
    assert head.startswith(
        "k.py has no test; without a problem nothing can be verified; write test_k.py from this scaffold"
    )
    compile(draft, "test_k.py", "exec")
    assert 'entry="rms_norm"' in draft
    assert "def reference(x, weight):" in draft


def test_the_scaffold_is_a_problem_that_the_evaluator_accepts() -> None:
    namespace: dict[str, object] = {"__name__": "scaffold"}
    text = scaffold("k.py", "def rms_norm(x, weight):\n    pass\n").replace("test_rms_norm = PROBLEM.as_test()", "")
    exec(compile(text, "test_k.py", "exec"), namespace)
    assert namespace["PROBLEM"].entry == "rms_norm"  # type: ignore[attr-defined]


SILU_MUL = """
// gate * sigmoid(gate) * up
extern "C" void silu_mul(const double *gate, const double* up, double *out, int64_t rows, int64_t cols) { }
"""


def scaffolded(kernel: str, text: str) -> Problem:
    namespace: dict[str, Any] = {"__name__": "scaffold"}
    exec(compile(re.sub(r"test_\w+ = PROBLEM.as_test\(\)", "", scaffold(kernel, text)), "test_k.py", "exec"), namespace)
    problem: Problem = namespace["PROBLEM"]
    return problem


def test_the_scaffold_of_a_kernel_in_c_has_the_order_of_its_arguments() -> None:
    problem = scaffolded("silu_mul.c", SILU_MUL)
    assert problem.arguments == ("in0", "in1", "out0", "rows", "cols")
    assert problem.workloads[0].dtype == "float64"
    case = problem.case(problem.workloads[0])
    assert [getattr(item, "shape", item) for item in case.inputs] == [(4096, 4096), (4096, 4096), 4096, 4096]
    assert case.bytes == 3 * 4096 * 4096 * 8


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("void k(const float* x, float* y, int64_t n, cudaStream_t stream) {}", ("in0", "out0", "n")),
        ("void k(float* y, const float* x, int64_t a, int64_t b, int64_t c);", ("out0", "in0", "a", "b", "c")),
        ("int other(int) { return 1; }", ("in0", "out0", "rows", "cols")),
        ("void k(", ("in0", "out0", "rows", "cols")),
    ],
)
def test_a_scaffold_leaves_out_the_stream_and_guesses_where_it_cannot_read(
    text: str, arguments: tuple[str, ...]
) -> None:
    problem = scaffolded("k.cu", text)
    assert problem.arguments == arguments
    assert problem.case(problem.workloads[1]).bytes > 0


def test_the_entry_of_a_kernel_in_c_is_its_file_name() -> None:
    assert entry_of("void f() {}", "src/soft_max.cu") == ("soft_max", ())


def test_the_problems_own_modules_are_part_of_it_and_the_kernel_is_not(tmp_path: Path) -> None:
    files = {
        "k.py": "import lib.deep\n",
        "test_k.py": "import os, torch, k\nfrom reference import f\n",
        "reference.py": "from lib import deep\n",
        "lib/__init__.py": "",
        "lib/deep.py": "from . import sibling\n",
        "lib/sibling.py": "",
        "lib/unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = Workspace(tmp_path).problem_files(tmp_path / "test_k.py", tmp_path / "k.py")
    assert list(found) == ["lib/__init__.py", "lib/deep.py", "lib/sibling.py", "reference.py", "test_k.py"]


def test_comments_docstrings_and_formatting_do_not_change_the_program() -> None:
    one = 'def f(a):\n    """Doc."""\n    return a+1\n'
    other = "# a comment\ndef f( a ):\n    return (a\n        + 1)\n"
    assert normal_form(one, "k.py") == normal_form(other, "k.py")
    assert normal_form(one, "k.py") != normal_form(one.replace("1", "2"), "k.py")


@pytest.mark.parametrize("text", ["x = (\n", "x = '\\d' +\n", "def f(:\n", "(" * 100_000, "x = " + "-" * 100_000 + "1"])
def test_a_file_that_does_not_parse_is_refused(text: str) -> None:
    with pytest.raises(InputRefused, match="does not parse"):
        normal_form(text, "k.py")


def test_the_line_that_does_not_parse_is_quoted() -> None:
    with pytest.raises(InputRefused) as refusal:
        normal_form("x = 1\nif x\n    y = 2\n", "k.py")
    assert str(refusal.value) == "k.py line 2 does not parse: 'if x': expected ':'; nothing changed."


def test_a_version_is_stored_under_its_content_and_comes_back(tmp_path: Path) -> None:
    candidates = Candidates(Workspace(tmp_path), "x-1", ".py")
    sha256 = candidates.store(b"abc")
    assert sha256 == digest(b"abc")
    assert candidates.shown(sha256) == f"experiments/x-1/candidates/{sha256[:12]}.py"
    assert candidates.load(sha256) == b"abc"


def test_a_version_that_was_edited_is_not_used(tmp_path: Path) -> None:
    candidates = Candidates(Workspace(tmp_path), "x-1", ".py")
    sha256 = candidates.store(b"abc")
    candidates.path(sha256).write_bytes(b"abd")
    with pytest.raises(WorkspaceFailed, match="is not the version that was stored there"):
        candidates.load(sha256)
    candidates.store(b"abc")
    assert candidates.load(sha256) == b"abc"


def test_a_replaced_file_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text("old")
    path.chmod(0o750)
    Workspace(tmp_path).replace("k.py", b"new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o750


def test_a_file_that_became_a_way_out_is_not_written(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "out.py").write_text("outside")
    (root / "k.py").symlink_to(tmp_path / "out.py")
    space = Workspace(root)
    assert space.hash("k.py") is None
    with pytest.raises(WorkspaceFailed, match="leads out of the project"):
        space.replace("k.py", b"new")
    assert (tmp_path / "out.py").read_text() == "outside"
