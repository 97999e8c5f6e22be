"""What stands behind a number: whole in the journal, in a line in every answer that holds the number."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from fakes import GPU, Project, kernel, timing

from kopt_mcp import __version__
from kopt_mcp.__main__ import main
from kopt_mcp.certificate import SHORT_BYTES, Certificate, issue
from kopt_mcp.evaluator.records import DeviceState, Evaluation, Ratio, WorkloadResult
from kopt_mcp.events import BenchmarkData

HASHES = {"source_sha256": "a" * 64, "incumbent_sha256": "b" * 64, "problem_sha256": "c" * 64}
ISOLATION = {"session": "own", "limits": "on", "network": "on, own user namespace", "landlock": "off: ENOSYS"}
ENVIRONMENT = {"python": "3.12.3", "torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0"}
LONG = GPU.model_copy(update={"uuid": "GPU-54d1af07-6d31-b582-469f-bf847cc3c3ea", "versions": {"driver": "580.159.04"}})


def evaluation(**changed: Any) -> Evaluation:
    results = tuple(WorkloadResult(name, "PASSED", timing=timing(100.0)) for name in ("one", "two"))
    return dataclasses.replace(
        Evaluation(
            "PASSED",
            "",
            results,
            Ratio(1.2345, 1.2301, 1.2389, 12),
            isolation=ISOLATION,
            environment=ENVIRONMENT,
            device_state=DeviceState(processes="visible"),
            binary_sha256="d" * 64,
        ),
        **changed,
    )


def certificate(found: Evaluation, **changed: Any) -> Certificate:
    given: dict[str, Any] = {
        **HASHES, "problem": "tracked", "weaknesses": (), "device": LONG, "floor": 0.0031, "at": 1_800_000_000.0,
        **changed,
    }  # fmt: skip
    return issue(found, **given)


def test_it_holds_how_what_where_and_when() -> None:
    found = certificate(evaluation())
    assert (found.methods, found.caches, found.samples, found.blocks) == (("cuda_events",), ("l2_cold",), 400, 12)
    assert (found.ratio, found.low, found.high, found.floor) == (1.2345, 1.2301, 1.2389, 0.0031)
    assert (found.source_sha256, found.incumbent_sha256, found.problem_sha256) == ("a" * 64, "b" * 64, "c" * 64)
    assert (found.binary_sha256, found.neighbours) == ("d" * 64, "visible")
    assert found.versions == {"kopt-mcp": __version__, "driver": "580.159.04", **ENVIRONMENT}
    assert (found.isolation, found.time) == (ISOLATION, "2027-01-15T08:00:00Z")
    assert "secret" in found.seeds


def test_its_short_form_is_a_line_of_at_most_400_bytes() -> None:
    found = certificate(evaluation())
    assert found.short() == (
        "cuda_events l2_cold, 400 calls, 1.234x [1.23, 1.239], floor 0.31%; "
        "kernel aaaaaaaaaaaa, binary dddddddddddd, problem cccccccccccc (tracked); "
        f"GPU-54d1af07-6d31-b582-469f-bf847cc3c3ea; kopt-mcp {__version__}, python 3.12.3, torch 2.11.0+cu130, "
        "triton 3.6.0, driver 580.159.04; isolated: session limits network landlock OFF; 2027-01-15T08:00:00Z"
    )
    assert len(found.short().encode()) <= SHORT_BYTES
    crowded = certificate(evaluation(), weaknesses=tuple(f"a weakness number {n}" for n in range(40)))
    assert len(crowded.short().encode()) <= SHORT_BYTES
    assert crowded.short().endswith("…")


def test_what_was_not_timed_beside_anything_claims_no_ratio() -> None:
    found = certificate(evaluation(ratio=None, binary_sha256=None, device_state=None), incumbent_sha256=None)
    assert (found.ratio, found.blocks, found.neighbours) == (None, None, "not looked for")
    assert found.short().startswith("cuda_events l2_cold, 400 calls, floor 0.31%; kernel aaaaaaaaaaaa, problem")


def test_who_stands_for_the_problem_and_what_it_lets_pass_stand_in_the_line() -> None:
    found = certificate(evaluation(), problem="unreviewed", weaknesses=("mean", "off by one"))
    assert "problem cccccccccccc (unreviewed, accepts mean, off by one)" in found.short()


# In the loop


def journalled(project: Project, name: str) -> list[dict[str, Any]]:
    lines = (project.root / "experiments" / name / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_benchmark_and_decide_show_it_and_the_journal_has_it_whole(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(1.5))
    project.loop.verify(name)
    timed = project.loop.benchmark(name).certificate
    assert "1.5x [1.498, 1.502]" in timed
    assert project.loop.decide(name).certificate == timed
    held = [event["data"]["certificate"] for event in journalled(project, name) if event["tool"] == "benchmark"]
    assert [Certificate.model_validate(one).short() for one in held] == [timed]
    assert held[0]["incumbent_sha256"] != held[0]["source_sha256"]


def test_the_last_word_is_the_cold_evaluations(project: Project) -> None:
    name = project.diagnosed()
    ended = project.iterate(name, kernel(6.0))
    assert ended.ended == "TARGET_MET"
    assert " 6x [5.998, 6.002]" in ended.certificate, "in turns with the first kernel"
    (confirmation,) = journalled(project, name)[-1]["data"]["confirmations"]
    assert Certificate.model_validate(confirmation["certificate"]).short() == ended.certificate
    assert project.loop.log(name).certificate == ended.certificate


def test_the_log_shows_that_of_the_best_version(project: Project) -> None:
    name = project.diagnosed()
    first = project.loop.log(name).certificate
    assert "1.001x" in first, "the baseline against itself"
    project.iterate(name, kernel(1.5))
    better = project.loop.log(name).certificate
    assert "1.5x" in better
    project.iterate(name, kernel(1.2))
    assert project.loop.log(name).certificate == better


def test_a_journal_of_an_earlier_release_has_none_and_is_read_all_the_same(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(1.5))
    project.loop.verify(name)
    project.loop.benchmark(name)
    old = journalled(project, name)[-1]["data"]
    assert BenchmarkData.model_validate(old).certificate is not None
    del old["certificate"]
    assert BenchmarkData.model_validate(old).certificate is None


def test_the_command_that_prints_the_log_prints_it_below_the_table(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    name = project.diagnosed()
    assert main(["--root", str(project.root), "log", name]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"\n\nBest: {project.loop.log(name).certificate}")
