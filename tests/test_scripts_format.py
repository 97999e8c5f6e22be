"""The output of a script that tests a kernel itself: what is read off it, and that no pass is ever read into it."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kopt_mcp.evaluator.script_report import Line, Report, parse
from kopt_mcp.problems import Recognition, recognise

SOFTMAX = {
    "kernel": "softmax",
    "gpu": "Some GPU",
    "correctness": True,
    "latency_us": 12.5,
    "gbps": 800.0,
    "speedup": 1.25,
    "status": "pass",
}
GEMM = {
    "kernel": "gemm",
    "gpu": "Some GPU",
    "correctness": True,
    "benchmarks": [
        {"size": "1024x1024", "triton_us": 10.0, "pytorch_us": 12.0, "triton_tflops": 215.0, "pytorch_tflops": 179.0},
        {"size": "2048x2048", "triton_us": 40.0, "pytorch_us": 44.0, "triton_tflops": 430.0, "pytorch_tflops": 390.0},
    ],
    "avg_vs_pytorch": 1.15,
    "status": "pass",
}  # fmt: skip
NOISE = "softmax on Some GPU\n  2048x4096: 12.5 us {fast}\n{'not': 'json'}\n"


def one_line(report: dict[str, Any]) -> str:
    return f"{NOISE}{json.dumps(report)}\n"


def marked(report: dict[str, Any]) -> str:
    return f"{NOISE}--- JSON ---\n{json.dumps(report, indent=2)}\n"


def test_one_line_with_noise_around_it_is_read() -> None:
    found = parse(one_line(SOFTMAX) + "done\n", 0)
    assert found == Report("PASSED", "the script says correctness is true", "softmax",
                           (Line("reported", 12.5, 800.0, None, 1.25),))  # fmt: skip


def test_an_indented_report_behind_its_marker_is_read_size_by_size() -> None:
    found = parse(marked(GEMM), 0)
    assert (found.status, found.kernel) == ("PASSED", "gemm")
    assert found.lines == (
        Line("1024x1024", 10.0, None, 215.0, 1.15),
        Line("2048x2048", 40.0, None, 430.0, 1.15),
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"shape": [128, 64]}, "128x64"),
        ({"size": 4096, "shape": [1]}, "4096"),
        ({"workload": " ", "name": "a  wide\none"}, "a wide one"),
        ({"size": None}, "benchmark 1"),
    ],
)
def test_a_size_is_named_as_the_script_names_it(fields: dict[str, Any], name: str) -> None:
    found = parse(one_line({"correctness": True, "benchmarks": [{**fields, "latency_us": 1.0}]}), 0)
    assert [line.workload for line in found.lines] == [name]


@pytest.mark.parametrize("key", ["speedup", "vs_pytorch", "avg_vs_pytorch"])
def test_a_ratio_has_three_names(key: str) -> None:
    report = {**{k: v for k, v in SOFTMAX.items() if k != "speedup"}, key: 2.0}
    assert parse(one_line(report), 0).lines[0].speedup == 2.0


def test_what_was_not_measured_is_null_and_no_figure() -> None:
    assert parse(one_line({**SOFTMAX, "latency_us": None, "gbps": None}), 0) == Report(
        "PASSED", "the script says correctness is true", "softmax", ()
    )


def test_one_of_the_two_verdicts_is_enough() -> None:
    for key in ("correctness", "status"):
        report = {k: v for k, v in SOFTMAX.items() if k != key}
        assert parse(one_line(report), 0).status == "PASSED"


def changed(**fields: Any) -> str:
    return one_line({**SOFTMAX, **fields})


WRONG: dict[str, tuple[str, int, str, str]] = {
    "exit code against the report": (one_line(SOFTMAX), 1, "SUSPECT", "exited with code 1: it contradicts itself"),
    "killed after its report": (one_line(SOFTMAX), -9, "SUSPECT", "exited with code -9"),
    "report against the exit code": (changed(correctness=False, status="fail"), 0, "INCORRECT_NUMERICAL", "is false"),
    "status against correctness": (changed(status="fail"), 0, "INCORRECT_NUMERICAL", "status is 'fail'"),
    "correctness against status": (changed(correctness=False), 0, "INCORRECT_NUMERICAL", "correctness is false"),
    "its own words why": (changed(correctness=False, error="off by\n 3"), 1, "INCORRECT_NUMERICAL", ": off by 3"),
    "one size of several": (
        marked({**GEMM, "benchmarks": [{"size": "8", "triton_us": 1.0, "correctness": False}]}),
        0,
        "INCORRECT_NUMERICAL",
        "correctness is false at 8",
    ),
    "nothing printed": ("", 0, "INCONCLUSIVE", "printed no JSON object"),
    "a traceback": ("Traceback (most recent call last):\n  ValueError\n", 1, "RUNTIME_ERROR", "exited with code 1"),
    "two reports": (one_line(SOFTMAX) + one_line(SOFTMAX), 0, "INCONCLUSIVE", "printed 2 reports"),
    "a forged report before the own one": (
        one_line(SOFTMAX) + one_line({**SOFTMAX, "correctness": False, "status": "fail"}),
        1,
        "RUNTIME_ERROR",
        "printed 2 reports",
    ),
    "cut off": (marked(GEMM)[:-20], 0, "INCONCLUSIVE", "its report is broken"),
    "cut off, an inner report whole": (
        marked({**GEMM, "benchmarks": [SOFTMAX, {"size": "x"}]}).split('"size"')[0],
        0,
        "INCONCLUSIVE",
        "its report is broken",
    ),
    "text behind it": (json.dumps(SOFTMAX) + " ok\n", 0, "INCONCLUSIVE", "something behind it"),
    "a field twice": ('{"correctness": false, "correctness": true, "status": "pass"}\n', 0, "INCONCLUSIVE", "twice"),
    "not a bool": (changed(correctness="true"), 0, "INCONCLUSIVE", "correctness is 'true'; expected true or false"),
    "one": (changed(correctness=1), 0, "INCONCLUSIVE", "correctness is 1; expected true or false"),
    "null": (changed(correctness=None), 0, "INCONCLUSIVE", "correctness is None"),
    "no known status": (changed(status="ok"), 0, "INCONCLUSIVE", "status is 'ok'; expected 'pass' or 'fail'"),
    "no number": (changed(latency_us="12"), 0, "INCONCLUSIVE", "latency_us is '12'; expected a number"),
    "true as a number": (changed(gbps=True), 0, "INCONCLUSIVE", "gbps is True; expected a number"),
    "a negative time": (changed(latency_us=-1), 0, "INCONCLUSIVE", "latency_us is -1; expected a number above 0"),
    "no time at all": (changed(latency_us=0), 0, "INCONCLUSIVE", "latency_us is 0; expected a number above 0"),
    "NaN": (changed(latency_us=float("nan")), 0, "INCONCLUSIVE", "NaN is not JSON"),
    "too large": (changed(latency_us=1e300), 0, "INCONCLUSIVE", "below 1e+12"),
    "too many digits": (changed().replace("12.5", "9" * 5000), 0, "INCONCLUSIVE", "its report is broken"),
    "benchmarks of no kind": (changed(benchmarks={"a": 1}), 0, "INCONCLUSIVE", "benchmarks is no list of objects"),
    "a benchmark of no kind": (changed(benchmarks=[3]), 0, "INCONCLUSIVE", "benchmarks is no list of objects"),
    "two kernels": (
        changed(benchmarks=[{"size": 8, "a_us": 1.0, "b_us": 2.0}]),
        0,
        "INCONCLUSIVE",
        "'a_us' and 'b_us' may both be the kernel's; name one of them 'latency_us'",
    ),
    "one size twice": (changed(benchmarks=[{"size": 8}, {"size": 8}]), 0, "INCONCLUSIVE", "holds '8' twice"),
    "nested without end": ('{"correctness": true, "a": ' + "[" * 100_000, 0, "INCONCLUSIVE", "its report is broken"),
    "endless output": ("x" * (2 << 20), 0, "INCONCLUSIVE", "printed more than"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_pass_says_why(name: str) -> None:
    text, code, status, why = WRONG[name]
    found = parse(text, code)
    assert (found.status, found.lines) == (status, ())
    assert why in found.detail


# --- mutated outputs -----------------------------------------------------------------------------------------------

MUTATED = 5000


def _cut(text: str, draw: random.Random) -> str:
    start = draw.randrange(len(text) + 1)
    return text[:start] + text[start + draw.randrange(1, 30) :]


def _cut_off(text: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text) + 1)]


def _inserted(text: str, draw: random.Random) -> str:
    start = draw.randrange(len(text) + 1)
    piece = draw.choice(
        ['"', "{", "}", "[", ",", ":", "\n", "\\", "\0", "null", "NaN", "1e999", "\u2028", "'", "//", "\ufeff"]
    )
    return text[:start] + piece + text[start:]


def _replaced(text: str, draw: random.Random) -> str:
    if not text:
        return text
    start = draw.randrange(len(text))
    return text[:start] + draw.choice(string.printable) + text[start + 1 :]


def _doubled_line(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    return "\n".join(lines[: at + 1] + lines[at:])


def _swapped_lines(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


def _moved(text: str, draw: random.Random) -> str:
    start = draw.randrange(len(text) + 1)
    piece = text[start : start + draw.randrange(1, 40)]
    rest = text[:start] + text[start + len(piece) :]
    to = draw.randrange(len(rest) + 1)
    return rest[:to] + piece + rest[to:]


def _flipped(text: str, draw: random.Random) -> str:
    pairs = [
        ("true", "false"),
        ("false", "true"),
        ('"pass"', '"fail"'),
        ("12.5", "-12.5"),
        ("correctness", "Correctness"),
    ]
    old, new = draw.choice(pairs)
    return text.replace(old, new, 1)


DAMAGE: tuple[Callable[[str, random.Random], str], ...] = (
    _cut, _cut_off, _inserted, _replaced, _doubled_line, _swapped_lines, _moved,
)  # fmt: skip


def mutated(texts: list[str], ways: tuple[Callable[[str, random.Random], str], ...], seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    for _ in range(MUTATED):
        text = draw.choice(texts)
        for _ in range(draw.randrange(1, 5)):
            text = draw.choice(ways)(text, draw)
        yield text


def failing(report: dict[str, Any]) -> dict[str, Any]:
    inner = [{**item, "correctness": False} for item in report.get("benchmarks", [])]
    return {**report, "correctness": False, "status": "fail", **({"benchmarks": inner} if inner else {})}


def test_damage_to_the_output_of_a_failing_script_makes_no_pass_of_it() -> None:
    texts = [
        one_line(failing(SOFTMAX)),
        marked(failing(GEMM)),
        one_line({"status": "fail"}),
        one_line({"correctness": False}),
    ]
    passed = [t for t in mutated(texts, DAMAGE, 1) if parse(t, 0).status == "PASSED"]
    assert passed == []


def literally_passes(text: str) -> bool:
    """Slow and simple: exactly one object from the beginning of a line to the end of one speaks of a verdict, and
    nothing in it says anything but that all is right."""
    lines = text.split("\n")
    verdicts, start = [], 0
    while start < len(lines):
        end = next((e for e in range(start, len(lines)) if _json(lines[start : e + 1]) is not None), None)
        found = None if end is None else _json(lines[start : end + 1])
        if end is not None and found is not None and {"correctness", "status"} & set(found):
            verdicts.append(found)
        start = start + 1 if end is None else end + 1
    if len(verdicts) != 1:
        return False
    inner = verdicts[0].get("benchmarks", [])
    places = [verdicts[0], *(inner if isinstance(inner, list) else [None])]
    return all(
        isinstance(p, dict) and p.get("correctness", True) is True and str(p.get("status", "pass")).lower() == "pass"
        for p in places
    )


def _json(lines: list[str]) -> dict[str, Any] | None:
    if not lines[0].lstrip(" \t").startswith("{"):
        return None
    try:
        found = json.loads("\n".join(lines).strip(" \t\r\n"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def test_a_mutated_output_passes_only_if_it_literally_says_so_and_the_exit_code_agrees() -> None:
    texts = [
        one_line(SOFTMAX),
        marked(GEMM),
        one_line({"status": "pass"}),
        one_line(failing(SOFTMAX)),
        marked(failing(GEMM)),
    ]
    passes = 0
    for text in mutated(texts, (*DAMAGE, _flipped), 2):
        assert parse(text, 1).status != "PASSED"
        if parse(text, 0).status == "PASSED":
            passes += 1
            assert literally_passes(text), text
    assert passes > MUTATED / 20, "or the mutations leave nothing to be told apart"


# --- recognised without running ------------------------------------------------------------------------------------

SCRIPT = """
import argparse, json, sys
parser = argparse.ArgumentParser()
parser.add_argument("--json", action="store_true")
print(json.dumps({"kernel": "softmax", "correctness": True, "status": "pass"}))
raise SystemExit("recognising a script must not run it")
"""


def test_a_script_is_recognised_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "test_softmax.py"
    file.write_text(SCRIPT)
    found = recognise(file)
    assert isinstance(found, Recognition)
    assert (found.format, found.trust, found.name, found.missing) == ("script", "reported", "softmax", ())
    assert found.found == ("'--json', line 4", "'correctness', line 5", "'status', line 5")


def test_a_script_without_a_verdict_is_half_recognised(tmp_path: Path) -> None:
    file = tmp_path / "test_softmax.py"
    file.write_text(SCRIPT.replace("correctness", "ok").replace("status", "state"))
    assert recognise(file).missing == (
        "test_softmax.py prints neither 'correctness' nor 'status'; expected one of them.",
    )
