"""The log for people, in the seed's two formats."""

from __future__ import annotations

import fakes
from fakes import Project

from kopt_mcp import optlog


def log_of(project: Project) -> str:
    return (project.root / "experiments" / "README.md").read_text()


def test_iteration_zero_is_written_in_the_seeds_words(project: Project) -> None:
    project.baseline(target_value=200)
    text = log_of(project)
    assert "## Iteration 0 (Baseline)\n- Experiment: softmax-h200-1\n- GPU: NVIDIA H200\n" in text
    assert (
        "- Correctness: PASS\n- GBps: 100.0\n- Target: 200 GBps (20% of peak, given)\n- Gap: 100 GBps (50.0%)" in text
    )


def test_a_small_baseline_keeps_four_digits(project: Project) -> None:
    project.baseline(target_metric="tflops", target_value=1)
    assert "- TFLOPS: 0.05\n- Target: 1 TFLOPS" in log_of(project)


def test_the_table_and_the_final_line_are_written_in_the_seeds_words(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(1.5), hypothesis="vectorised loads", tier=2)
    project.iterate(name, fakes.kernel(9.0, VERIFY="INCORRECT_NUMERICAL"), hypothesis="skip the max")
    project.iterate(name, fakes.kernel(1.2), hypothesis="more warps")
    project.iterate(name, fakes.kernel(5.5), hypothesis="one pass", tier=3)
    text = log_of(project)
    assert "## Optimization: softmax on NVIDIA H200" in text
    assert "| Iter | Action | Tier | Correctness | Metric | Delta | Status |" in text
    assert "| 0 | baseline | - | PASS | 100 GBps | - | - |" in text
    assert "| 1 | vectorised loads | T2 | PASS | 150 GBps | +50.0% | IMPROVED |" in text
    assert "| 2 | skip the max | T1 | FAIL (INCORRECT_NUMERICAL) | - | - | FAILED, reverted |" in text
    assert "| 3 | more warps | T1 | PASS | 120 GBps | -20.0% | REGRESSED, reverted |" in text
    assert "| 4 | one pass | T3 | PASS | 550 GBps | +266.7% | TARGET_MET |" in text
    assert "Final: 550 GBps (55.0% of peak), 4 iterations, target met." in text


def test_the_log_says_so_where_an_agent_chose_some_of_the_workloads(project: Project) -> None:
    begun = project.baseline(workloads=["4096x4096-fp32"])
    only = "on 1 of 2 workloads only (4096x4096-fp32), nothing is known of the others"
    assert f"measured and checked {only}; say so, or leave workloads out." in begun.notes
    ended = project.iterate(begun.experiment, fakes.kernel(5.5))
    assert ended.summary == f"Final: 550 GBps (55.0% of peak), 1 iteration, target met; {only}."
    assert f"- Measured and checked {only}\n" in log_of(project)


def test_an_action_that_is_too_long_for_the_table_ends_after_a_word(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(
        name, fakes.kernel(1.5), hypothesis="Every exponential is computed twice; " + "computing it once will do. " * 3
    )
    row = project.loop.log(name).table.split("\n")[3]
    assert row.split(" | ")[1] == "Every exponential is computed twice; computing it once will do. computing it…"
    assert "once will do. |" in log_of(project), "whole in the file"


def test_what_an_agent_writes_cannot_break_the_table_or_the_markers(project: Project) -> None:
    name = project.baseline().experiment
    hostile = "a | b\n| 9 | x |\n<!-- kopt-mcp softmax-h200-1 end --> \\"
    project.iterate(name, fakes.kernel(1.5), hypothesis=hostile)
    project.iterate(name, fakes.kernel(1.7))
    text = log_of(project)
    row = next(line for line in text.splitlines() if line.startswith("| 1 |"))
    assert row.replace("\\|", "").count("|") == 8
    assert text.count("<!-- kopt-mcp softmax-h200-1 end -->") == 1
    assert text.count("## Iteration 0") == 1


def test_text_around_the_sections_is_never_touched(project: Project) -> None:
    name = project.baseline().experiment
    path = project.root / "experiments" / "README.md"
    path.write_text(f"# My own head\r\n\n{log_of(project)}\nMy own foot, \\1 included\n", newline="")
    project.iterate(name, fakes.kernel(1.5))
    with path.open(newline="") as file:
        text = file.read()
    assert text.startswith("# My own head\r\n\n")
    assert text.endswith("\nMy own foot, \\1 included\n")
    assert "IMPROVED" in text


def test_each_experiment_has_its_own_section(project: Project) -> None:
    project.baseline()
    second = project.baseline().experiment
    project.iterate(second, fakes.kernel(1.5))
    text = log_of(project)
    assert second == "softmax-h200-2"
    assert text.count("## Optimization:") == 2
    assert text.index("softmax-h200-1 begin") < text.index("softmax-h200-2 begin")


def test_a_log_that_cannot_be_read_is_a_note_and_not_a_failure(project: Project) -> None:
    name = project.diagnosed()
    (project.root / "experiments" / "README.md").write_bytes(b"\xff\xfe")
    result = project.loop.apply_patch(name, 1, "it is faster", content=fakes.kernel(1.5))
    assert result.notes[0].startswith("the log was not updated: experiments/README.md cannot be read")
    assert project.text == fakes.kernel(1.5)


def test_values_are_shown_with_four_digits_or_whole() -> None:
    assert optlog.show(1747.3, "gbps") == "1747 GBps"
    assert optlog.show(0.91234, "gbps") == "0.9123 GBps"
    assert optlog.show(12.5, "latency_us") == "12.5 us"
