"""Answers are no longer than a model reads, and lose first what matters least."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import GPU, Project, kernel
from hypothesis import given
from hypothesis import strategies as st

from kopt_mcp import results
from kopt_mcp.evaluator.records import ProblemInfo, WorkloadInfo
from kopt_mcp.server.answers import MOST_BYTES, shortened, success

LONG = {
    "devices": [{"name": f"GPU {n}", "about": "x" * 900} for n in range(8)],
    "workloads": [{"workload": f"w{n}", "detail": "y" * 150} for n in range(12)],
    "notes": [f"note {n} {'z' * 200}" for n in range(6)],
    "next": ["profile", "diagnose"],
    "facts": {"vectorized": "1, " * 2000, "mma": "wgmma"},
}


def size(content: Any) -> int:
    return len(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode())


def test_a_short_answer_stays_as_it_is() -> None:
    assert shortened({"notes": ["a"], "detail": "b", "next": []}) == {"notes": ["a"], "detail": "b", "next": []}


@pytest.mark.parametrize("fields", [("devices",), ("workloads", "notes", "facts"), ("facts", "notes"), tuple(LONG)])
def test_a_long_answer_keeps_the_first_of_everything_and_says_what_it_lost(fields: tuple[str, ...]) -> None:
    content = {name: LONG[name] for name in (*fields, "next")}
    kept = shortened(content)
    assert size(kept) <= MOST_BYTES < size(content)
    assert kept["next"] == LONG["next"]
    for name in fields:
        if isinstance(LONG[name], list):
            assert kept[name][0] == LONG[name][0]
    if "notes" in kept:
        assert kept["notes"][-1].startswith("shortened to be read: ")


def test_a_long_table_loses_its_oldest_rows_and_keeps_the_newest() -> None:
    rows = [f"| {n} | {'step ' * 12} | T1 | PASS | {n} GBps | +1% | IMPROVED |" for n in range(1, 60)]
    table = "\n".join(["| Iter | Action |", "|------|--------|", "| 0 | baseline |", *rows, "Final: done."])
    kept = shortened({"table": table, "tried": ["a" * 300, "b" * 300]})
    lines = kept["table"].split("\n")
    assert size(kept) <= MOST_BYTES
    assert lines[2] == "| 0 | baseline |"
    assert lines[3].startswith("| ... |")
    assert lines[-2:] == [rows[-1], "Final: done."]
    assert sum(line.startswith("| ...") for line in lines) == 1


@given(
    st.dictionaries(
        st.sampled_from(["notes", "detail", "ideas", "facts", "table"]),
        st.one_of(
            st.lists(st.text(max_size=500), max_size=40),
            st.text(max_size=6000),
            st.dictionaries(st.text(max_size=5), st.text(max_size=3000), max_size=3),
        ),
    ).filter(lambda content: isinstance(content.get("notes", []), list))
)
def test_shortening_ends_and_keeps_every_field_of_its_type(content: dict[str, Any]) -> None:
    kept = shortened(content)
    assert kept.keys() == content.keys()
    assert all(type(kept[name]) is type(content[name]) for name in content)
    assert size(kept) <= max(MOST_BYTES, 12_000)


def test_a_machine_with_many_processors_names_them_all(project: Project) -> None:
    profilers = [{"name": "ncu", "path": "/x", "version": "1", "usable": False, "remedy": "r" * 600}]
    gpu = GPU.model_validate({**GPU.model_dump(), "profilers": profilers})
    project.devices = [gpu.model_copy(update={"index": n, "uuid": f"GPU-{n}"}) for n in range(8)]
    answer = success(project.loop.detect_gpu())
    content = answer.structured_content
    assert content is not None
    assert size(content) <= MOST_BYTES
    assert content["devices"][0]["index"] == 0
    assert [line.split(":")[0] for line in content["processors"]] == [str(n) for n in range(8)]


def test_an_experiment_with_many_workloads_and_iterations_is_still_read_in_one_go(project: Project) -> None:
    workloads = tuple(
        WorkloadInfo(name=f"{n}x4096-float32-{'shape' * 8}", dtype="float32", timed=True, bytes=1e8, flops=5e7)
        for n in range(40)
    )
    project.evaluator.problem = ProblemInfo(name="softmax", entry="softmax", bound="memory", workloads=workloads)
    begun = project.baseline(max_iterations=50, target_value=1e9)
    name = begun.experiment
    for count in range(25):
        project.iterate(name, kernel(1.1 ** (count + 1)), hypothesis="it is faster, since " + "this is long " * 20)
    logged = success(project.loop.log(name)).structured_content
    assert logged is not None
    assert size(success(begun).structured_content) <= MOST_BYTES
    assert size(logged) <= MOST_BYTES
    assert "| 25 |" in logged["table"]
    assert results.LogResult.model_validate(logged).next == ("profile", "diagnose")


def test_an_answer_of_log_holds_only_what_was_asked_for(project: Project) -> None:
    assert success(project.loop.log()).structured_content == {
        "experiments": [],
        "damaged": [],
        "next": ["detect_gpu", "baseline"],
    }
    found = success(project.loop.log(query="warps")).structured_content
    assert found == {"matches": [], "damaged": [], "next": ["detect_gpu", "baseline"]}
