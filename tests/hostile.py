"""Hostile arguments and files, and who draws them at random. Not a test itself."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fakes

from kopt_mcp.edit import Edit

TOOLS = ("baseline", "profile", "diagnose", "apply_patch", "verify", "benchmark", "decide", "log", "detect_gpu")

PATHS = [
    "softmax.py",
    "./softmax.py",
    "sub/../softmax.py",
    "../outside/victim.py",
    "../../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "/proc/self/mem",
    "link_out.py",
    "link_in.py",
    "loop.py",
    "folder.py",
    "pipe.py",
    "",
    ".",
    "..",
    "/",
    "~",
    "~/x.py",
    "softmax.py/",
    "softmax.py\0",
    "a" * 5000,
    "a/" * 3000,
    "experiments",
    "experiments/README.md",
    "softmax.PY",
    "bom.py",
    "crlf.py",
    "binary.py",
    "latin.py",
    "long.py",
    "test_softmax.py",
    "kopt.yaml",
    "\ud800.py",
    "huge.py",
    "deep.py",
    "empty.py",
    ".git/config",
    "softmax.py\n",
    "file:///etc/passwd",
    "nul",
    "*",
    "softmax.c",
]
NAMES = [
    "softmax-h200-1",
    "softmax-h200-2",
    "softmax-h200-99",
    "softmax-cpu-1",
    "../x",
    "a/b",
    "..",
    ".",
    "",
    "x" * 10_000,
    "\0",
    "\ud800",
    "softmax-h200-1/",
    "/softmax-h200-1",
    "softmax-h200-1/..",
    "SOFTMAX-H200-1",
    "README.md",
    ".lock",
    "ünï",
    "softmax-h200-1\n",
    "link",
    "outside",
]
WRONG: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    [],
    {},
    [None],
    {"a": 1},
    b"bytes",
    (),
    object(),
    [[[[[[[]]]]]]],
    "x",
    ["x", "x"],
    {1, 2},
]


def texts() -> list[Any]:
    """Kernels, and what is none."""
    whole = fakes.kernel(1.5)
    return [
        whole,
        fakes.kernel(2.0),
        fakes.kernel(0.5),
        fakes.kernel(6.0),
        fakes.kernel(3.0, VERIFY="INCORRECT_NUMERICAL"),
        fakes.kernel(3.0, BENCHMARK="CHEATED"),
        fakes.kernel(),
        "",
        "\n",
        "x = (",
        "\0",
        "\ud800",
        "\ufeff" + whole,
        whole.replace("\n", "\r\n"),
        whole.replace("\n", "\r"),
        "#" * (3 << 20),
        "\n" * 1_000_000,
        "x = " + "-" * 5000 + "1",
        "(" * 3000,
        "SPEED = 1.0\n" + "a = 1\n" * 30_000,
        "\t\tdef f(:",
        "# -*- coding: latin-1 -*-\n" + whole,
        "SPEED = 1e999\n",
        "\x1a\x04\x08",
        "lambda:" * 500,
        "SPEED = 1.7\nclass A:\n  'x'\n",
        "if 1:\n  SPEED = 2",
    ]


DIFFS = [
    "",
    "@@",
    "@@ -1 +1 @@\n-SPEED = 1.0\n+SPEED = 1.5\n",
    "--- a/softmax.py\n+++ b/../../etc/passwd\n@@ -1 +1 @@\n-a\n+b\n",
    "--- /dev/null\n+++ b/softmax.py\n@@ -0,0 +1 @@\n+x\n",
    "@@ -99999999999 +1 @@\n-x\n+y\n",
    "@@ -1 +1 @@\n" + "-x\n" * 50_000,
    "diff --git a/x b/x\nnew file mode 120000\n",
    "*** a\n--- b\n***************\n",
    "GIT binary patch\nliteral 5\n",
    "\0",
    "\ud800",
    "@@ -1,1 +1,1 @@\r\n-SPEED = 1.0\r\n+SPEED = 1.6\r\n",
    "1c1\n< a\n---\n> b\n",
    "@@ @@\n",
    "\\ No newline at end of file\n",
]


class Fuzz:
    """Draws arguments, mostly of the right kind and often hostile."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.texts = texts()
        self.newest = NAMES[0]

    def any(self, *pools: Any) -> Any:
        if self.draw.random() < 0.08:
            return self.draw.choice(WRONG)
        return self.draw.choice(self.draw.choice(pools))

    def name(self) -> Any:
        return self.any([self.newest], [self.newest], [self.newest], NAMES)

    def tool(self, due: Sequence[str]) -> str:
        """Any tool, but as a rule one that is due."""
        return self.draw.choice(due if due and self.draw.random() < 0.6 else TOOLS)

    def sentence(self) -> Any:
        return self.any(["it is faster"], ["", " ", "x" * 301, "a\nb | c <!-- -->", "\ud800", "\0", "x" * 100_000])

    def edit(self) -> Any:
        search = self.any(["SPEED = 1.0", "return x", ""], self.texts)
        replace = self.any(["SPEED = 1.5", "return x + 0", ""], self.texts)
        both = isinstance(search, str) and isinstance(replace, str)
        return Edit.model_construct(search=search, replace=replace) if both else self.draw.choice(WRONG)

    def change(self) -> dict[str, Any]:
        ways = {
            "content": lambda: self.any(self.texts),
            "diff": lambda: self.any(DIFFS),
            "edits": lambda: self.draw.choice([[self.edit()], [self.edit(), self.edit()], self.draw.choice(WRONG)]),
            "working_copy": lambda: self.any([True, False]),
        }
        chosen = self.draw.choices(list(ways), k=1 if self.draw.random() < 0.9 else 2)
        return {way: ways[way]() for way in chosen}

    def arguments(self, tool: str) -> tuple[list[Any], dict[str, Any]]:
        if tool == "baseline":
            keys = {
                "test_path": PATHS,
                "target_metric": ["gbps", "tflops", "latency_us", "GBPS"],
                "gpu": ["auto", "cpu", "amd", "x"],
                "target_value": [500, 140.0, -1, 0],
                "target_pct_of_peak": [0.5, 70, 0],
                "max_iterations": [5, 1, 0, 10**9],
                "workloads": [["4096x4096-fp32"], ["x"], [], "x"],
            }
            chosen = self.draw.sample(list(keys), k=self.draw.choice([0, 0, 2, 3]))
            usual = {} if chosen else {"target_metric": "gbps", "target_value": 500}
            return [self.any(PATHS[:1], PATHS)], {**usual, **{key: self.any(keys[key]) for key in chosen}}
        if tool == "apply_patch":
            rest = {key: self.sentence() for key in ("idea", "because") if self.draw.random() < 0.2}
            return [self.name(), self.any([1, 2, 3], [0, 6, "1", 1.0]), self.sentence()], {**self.change(), **rest}
        if tool == "decide":
            rest = {key: self.sentence() for key in ("keep_reason", "reason") if self.draw.random() < 0.3}
            stop = {"stop": self.any([True])} if self.draw.random() < 0.1 else {}
            return [self.name()], {**rest, **stop}
        if tool == "profile":
            return [self.name(), self.any([None, "4096x4096-fp32"], ["x", "", "x" * 9999])], {
                "depth": self.any(["quick"], ["deep"])
            }
        if tool == "log":
            return [self.any([None], NAMES[:1], NAMES)], {
                "query": self.any([None], ["faster", "", "x" * 99_999, "\ud800"])
            }
        return ([] if tool == "detect_gpu" else [self.name()]), {}


def furnish(root: Path) -> None:
    """Files that a hostile path may name."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "victim.py").write_text("SPEED = 1.0\n")
    (root / "link_out.py").symlink_to(outside / "victim.py")
    (root / "link_in.py").symlink_to("softmax.py")
    (root / "loop.py").symlink_to("loop.py")
    (root / "folder.py").mkdir()
    os.mkfifo(root / "pipe.py")
    (root / "experiments").mkdir()
    (root / "experiments" / "link").symlink_to(outside)
    whole = fakes.kernel().encode()
    contents = {
        "bom.py": b"\xef\xbb\xbf" + whole,
        "crlf.py": whole.replace(b"\n", b"\r\n"),
        "binary.py": b"\x7fELF\0\0",
        "latin.py": b"# \xe9\n" + whole,
        "long.py": whole + b"\n" * 1_000_000,
        "huge.py": b"#" * (2 << 20),
        "deep.py": b"(" * 100_000,
        "empty.py": b"",
        "softmax.c": b"SPEED = 1.0\n",
    }
    for name, data in contents.items():
        (root / name).write_bytes(data)
