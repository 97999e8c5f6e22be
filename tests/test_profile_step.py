"""The profile and diagnose steps: what they hand to the instruments, and what of it the agent is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import Project, diagnose
from profiling import compiled

from kopt_mcp.errors import InputRefused
from kopt_mcp.models import Diagnosis, KernelProfile, Profile


class Instrument:
    """A profiler that says what it was asked, and answers with more than anybody wants to read."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, *, artifacts: Path, workload: Any, **asked: Any) -> Profile:
        self.asked.append({"artifacts": artifacts, "workload": workload.name, **asked})
        stalls = {f"stall_{reason}_pct": float(share) for share, reason in enumerate("abcdefghij")}
        counters = {f"counter_{number}": 1.0 for number in range(40)}
        return Profile(
            rung="ncu",
            why="hardware counters could be read",
            workload=workload.name,
            kernels=[KernelProfile(name="softmax_k", owner="authored", calls=1, share_pct=100.0)],
            metrics={**counters, **stalls, "dram_pct": 84.51234567, "l1_pct": None, "duration_us": 12.0},
            artifacts=[str(artifacts / "x" / "metrics.json")],
            compiled=[compiled()],
        )


@pytest.fixture
def instrument(project: Project) -> Instrument:
    instrument = Instrument()
    project.loop = project.reopened(profile=instrument)
    return instrument


def test_the_agent_is_told_about_a_dozen_numbers_and_where_the_rest_is(project: Project, instrument: Instrument):
    name = project.baseline().experiment
    seen = project.loop.profile(name)
    assert seen.metrics == {"duration_us": 12.0, "dram_pct": 84.512, "stall_j_pct": 9.0, "stall_i_pct": 8.0}
    assert seen.artifacts == (f"experiments/{name}/profiles/x/metrics.json",)


def test_the_instrument_is_asked_for_the_largest_workload_and_told_its_last_time(
    project: Project, instrument: Instrument
):
    project.loop.profile(project.baseline().experiment, depth="full")
    (asked,) = instrument.asked
    assert (asked["workload"], asked["depth"], asked["timing"].latency_us) == ("4096x4096-fp32", "full", 1000.0)
    assert asked["job"].candidate_sha256


def test_an_unknown_workload_or_depth_is_refused_before_anything_runs(project: Project, instrument: Instrument):
    name = project.baseline().experiment
    with pytest.raises(InputRefused, match="it has 4096x4096-fp32"):
        project.loop.profile(name, workload="127x1000-fp32")
    with pytest.raises(InputRefused, match="quick, full"):
        project.loop.profile(name, depth="deep")
    assert instrument.asked == []


def test_the_diagnosis_gets_the_compilers_word_and_the_benchmarks_time(project: Project, instrument: Instrument):
    heard: list[Any] = []

    def listening(profile: Profile, device: Any, **rest: Any) -> Diagnosis:
        heard.append((profile, rest))
        return diagnose(profile, device, **rest)

    project.loop = project.reopened(profile=instrument, diagnose=listening)
    name = project.baseline().experiment
    project.loop.profile(name)
    project.loop.diagnose(name)
    ((profile, rest),) = heard
    assert rest["static"] == [compiled()]
    assert profile.metrics["latency_us"] == 1000.0
    assert rest["documented_bound"] == "memory"
