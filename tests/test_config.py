"""The configuration: arguments over kopt.yaml, and each wrong input its own refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kopt_mcp.config import load
from kopt_mcp.errors import InputRefused


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "kopt.yaml").write_text("kernel_path: a.py\nmax_iterations: 3\ngpu: cpu\n")
    config = load(tmp_path, {"kernel_path": "b.py", "gpu": None})
    assert (config.kernel_path, config.max_iterations, config.gpu) == ("b.py", 3, "cpu")


def test_the_seeds_defaults_hold_without_a_file(tmp_path: Path) -> None:
    config = load(tmp_path, {"kernel_path": "a.py"})
    assert (config.max_iterations, config.gpu, config.target_value, config.target_metric) == (5, "auto", None, None)


def test_an_argument_target_replaces_the_files_target_of_the_other_kind(tmp_path: Path) -> None:
    (tmp_path / "kopt.yaml").write_text("kernel_path: a.py\ntarget_pct_of_peak: 0.7\n")
    config = load(tmp_path, {"target_metric": "gbps", "target_value": 800})
    assert (config.target_value, config.target_pct_of_peak) == (800, None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "kernel_path is missing; nothing to optimise; give it as an argument or in kopt.yaml."),
        (
            {"target_metric": "gbps", "target_value": 800, "target_pct_of_peak": 0.7},
            "target_value 800 and target_pct_of_peak 0.7 are both given; only one can be the target; drop one of them.",
        ),
        ({"target_value": -3, "target_metric": "gbps"}, "target_value is -3; expected a number above 0."),
        ({"target_value": float("nan"), "target_metric": "gbps"}, "target_value is nan; expected a number above 0."),
        ({"target_value": True, "target_metric": "gbps"}, "target_value is True; expected a number above 0."),
        ({"target_value": 5}, "target_value 5 has no unit; give target_metric: gbps, tflops, latency_us."),
        (
            {"target_pct_of_peak": 70},
            "target_pct_of_peak is 70; expected a fraction above 0 and at most 1 (0.7 for 70 %).",
        ),
        (
            {"target_metric": "GBps"},
            "target_metric is 'GBps'; expected one of gbps, tflops, latency_us; did you mean 'gbps'?",
        ),
        ({"gpu": "intel"}, "gpu is 'intel'; expected one of auto, nvidia, amd, cpu."),
        ({"max_iterations": 0}, "max_iterations is 0; expected a whole number from 1 to 1000."),
        ({"max_iterations": 2.5}, "max_iterations is 2.5; expected a whole number from 1 to 1000."),
        ({"workloads": "a"}, "workloads is 'a'; expected a list of names."),
        ({"workloads": ["a", "a"]}, "workloads names 'a' twice; name each once."),
        ({"python": " "}, "python is ' '; expected a non-empty text."),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(tmp_path: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputRefused) as refusal:
        load(tmp_path, {"kernel_path": "a.py", **given} if given else {})
    assert str(refusal.value) == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("max_iteration: 3\n", "kopt.yaml has an unknown key 'max_iteration'; the nearest known is 'max_iterations'"),
        ("- a\n", "kopt.yaml holds a list; expected keys with values"),
        ("a: [\n", "kopt.yaml cannot be read: while parsing"),
        ("gpu: !!python/object/apply:os.getcwd []\n", "kopt.yaml cannot be read: could not determine a constructor"),
        ("1: 2\n", "kopt.yaml has an unknown key '1'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "kopt.yaml").write_text(content)
    with pytest.raises(InputRefused) as refusal:
        load(tmp_path, {"kernel_path": "a.py"})
    assert str(refusal.value).startswith(text)


def test_an_empty_file_and_empty_values_are_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "kopt.yaml").write_text("# nothing yet\nkernel_path:\n")
    with pytest.raises(InputRefused, match="kernel_path is missing"):
        load(tmp_path, {})
