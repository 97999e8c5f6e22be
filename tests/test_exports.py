"""The log's machine-readable sisters: results.tsv in AutoKernel's columns, and index.json over all experiments."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import fakes
import pytest
from fakes import Project

from kopt_mcp import optlog
from kopt_mcp.errors import GuardRefused

AUTOKERNEL = (
    "experiment,tag,kernel_type,throughput_tflops,latency_us,pct_peak,speedup_vs_pytorch,correctness,peak_vram_mb,"
    "description"
)


def rows(project: Project, name: str) -> list[dict[str, str]]:
    text = (project.root / "experiments" / name / "results.tsv").read_text()
    reader = csv.DictReader(io.StringIO(text), delimiter="\t")
    found = list(reader)
    assert ",".join(reader.fieldnames or ()) == AUTOKERNEL
    return found


def index(project: Project) -> dict[str, Any]:
    found = json.loads((project.root / "experiments" / "index.json").read_text())
    assert found["format"] == 1
    return dict(found["experiments"])


def test_the_table_has_autokernels_columns_and_a_row_for_every_iteration(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(2.0), hypothesis="vectorised loads")
    project.iterate(name, fakes.kernel(9.0, VERIFY="INCORRECT_NUMERICAL"), hypothesis="skip the max")
    project.iterate(name, fakes.kernel(9.0, BENCHMARK="TIMEOUT"), hypothesis="spin")
    project.iterate(name, fakes.kernel(1.5), hypothesis="more warps")
    found = rows(project, name)
    assert [r["experiment"] for r in found] == ["0", "1", "2", "3", "4"]
    assert [r["tag"] for r in found] == ["baseline", "kept", "reverted", "reverted", "reverted"]
    assert [r["correctness"] for r in found] == ["PASS", "PASS", "FAIL", "TIMEOUT", "PASS"]
    assert [r["latency_us"] for r in found] == ["1000.00", "500.00", "", "", "666.67"]
    assert [r["throughput_tflops"] for r in found] == ["0.0500", "0.1000", "", "", "0.0750"]
    assert [r["pct_peak"] for r in found] == ["10.0", "20.0", "", "", "15.0"]
    assert [r["description"] for r in found][1:] == ["vectorised loads", "skip the max", "spin", "more warps"]
    assert {(r["speedup_vs_pytorch"], r["peak_vram_mb"], r["kernel_type"]) for r in found} == {("", "", "softmax")}


def test_an_open_iteration_comes_into_the_table_once_it_is_decided(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(2.0))
    assert [r["experiment"] for r in rows(project, name)] == ["0"]
    project.loop.verify(name)
    project.loop.benchmark(name)
    project.loop.decide(name)
    assert [r["tag"] for r in rows(project, name)] == ["baseline", "kept"]


def test_what_an_agent_writes_neither_breaks_the_table_nor_becomes_a_formula(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(1.5), hypothesis='=HYPERLINK("http://x")\t"quoted"\nnext line')
    project.iterate(name, fakes.kernel(1.7), hypothesis="left \u202eright\u202c")
    found = rows(project, name)
    assert found[1]["description"] == '\'=HYPERLINK("http://x") "quoted" next line'
    assert found[2]["description"] == "left <U+202E>right<U+202C>"


def test_the_index_names_every_experiment_and_follows_each_step(project: Project) -> None:
    first = project.baseline().experiment
    second = project.baseline(target_value=150).experiment
    assert index(project)[second]["ended"] is None
    project.iterate(second, fakes.kernel(2.0))
    found = index(project)
    assert list(found) == [first, second]
    numbers = [found[second][key] for key in ("baseline", "best", "target", "roof", "pct_of_roof")]
    assert numbers == pytest.approx([100, 200, 150, 1000, 20])
    assert (found[second]["ended"], found[second]["confirmed"], found[second]["iterations"]) == ("TARGET_MET", True, 1)
    assert (project.root / "experiments" / found[first]["journal"]).is_file()


def test_experiments_of_before_the_index_are_added_and_those_that_are_gone_are_dropped(project: Project) -> None:
    first = project.baseline().experiment
    second = project.baseline().experiment
    path = project.root / "experiments" / "index.json"
    path.write_text(json.dumps({"format": 1, "experiments": {"gone-1": {}}}))
    project.loop.diagnose(second)
    assert list(index(project)) == [first, second]


def test_a_damaged_index_is_a_note_and_not_a_failure(project: Project) -> None:
    name = project.diagnosed()
    (project.root / "experiments" / "index.json").write_text("{")
    result = project.loop.apply_patch(name, 1, "it is faster", content=fakes.kernel(1.5))
    assert result.notes[0].startswith("the log was not updated: experiments/index.json cannot be read")
    assert "it is written anew" in result.notes[0]
    assert "it is faster" in (project.root / "experiments" / "README.md").read_text()


def test_a_log_that_is_up_to_date_is_not_written_again(project: Project) -> None:
    name = project.diagnosed()
    folder = project.root / "experiments"
    before = {p: p.stat().st_ino for p in [folder / "README.md", folder / "index.json", folder / name / "results.tsv"]}
    with pytest.raises(GuardRefused):
        project.loop.verify(name)
    assert {p: p.stat().st_ino for p in before} == before


def test_the_log_holds_no_html_no_link_and_no_picture_of_an_agents(project: Project) -> None:
    name = project.baseline().experiment
    hostile = "</td><script>alert(1)</script> [click](http://x) ![p](http://x/p.png) <!-- x --> a < b \\](http://y)"
    project.iterate(name, fakes.kernel(1.5), hypothesis=hostile)
    row = next(
        line for line in (project.root / "experiments" / "README.md").read_text().splitlines() if "click" in line
    )
    assert "<script" not in row
    assert "</td" not in row
    assert "<!--" not in row
    assert "](" not in row.replace("\\](", "")
    assert "a < b" in row
    assert optlog.visible("a\u202eb\x1b[2J") == "a<U+202E>b<U+001B>[2J"
