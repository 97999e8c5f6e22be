"""The order of the loop: the table, the fold, and random calls against a small model of both."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import fakes
import pytest
from fakes import Project
from hypothesis import given
from hypothesis import strategies as st

from kopt_mcp.disk import Disk
from kopt_mcp.errors import GuardRefused, JournalCorrupt
from kopt_mcp.events import Event
from kopt_mcp.journal import Journal
from kopt_mcp.phases import ANYTIME, PHASES, TABLE, allowed, fold, legal, markdown


def test_every_phase_has_a_way_forward() -> None:
    assert all(legal(phase) for phase in PHASES)


def test_only_reading_is_allowed_anytime() -> None:
    assert all(allowed(tool, phase) for tool in ANYTIME for phase in PHASES)
    assert not any(row.tool in ANYTIME for row in TABLE)


def test_a_finished_experiment_allows_nothing_but_reading_and_a_new_one() -> None:
    assert not any(allowed(row.tool, "done") for row in TABLE)
    assert not allowed("decide", "done", stop=True)
    assert legal("done") == ["log", "baseline"]


def test_the_markdown_table_names_every_tool_and_every_phase() -> None:
    text = markdown()
    assert all(f"`{row.tool}`" in text for row in TABLE)
    assert all(phase in text for phase in PHASES)
    assert {line.count("|") for line in text.splitlines()} == {4}


def test_an_experiment_without_events_does_not_exist() -> None:
    assert fold("x", []) is None


def test_a_step_before_the_baseline_cannot_be_replayed() -> None:
    event = Event(n=0, time="", tool="verify", outcome="ok", data={}, prev="")
    with pytest.raises(JournalCorrupt, match=r"event 0 \(verify\)"):
        fold("x", [event])


def test_an_event_without_its_fields_names_the_field() -> None:
    event = Event(n=0, time="", tool="baseline", outcome="ok", data={"kernel": "k.py"}, prev="")
    with pytest.raises(JournalCorrupt, match="test: Field required"):
        fold("x", [event])


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "journals").glob("*.jsonl")), ids=lambda p: p.stem)
def test_journals_of_earlier_releases_replay(path: Path) -> None:
    state = fold(path.stem, Journal(path).read())
    assert state is not None
    assert state.phase == "done"
    assert state.ended == "TARGET_MET"
    assert [i.decision.status for i in state.iterations if i.decision] == [
        "IMPROVED",
        "FAILED",
        "NEUTRAL",
        "TARGET_MET",
    ]


# A random walk: what may be called is decided by the model, what happens by the loop, and both must agree.

OUTCOMES = ("fast", "same", "slow", "wrong", "cheat")
CALLS = ("profile", "diagnose", "apply_patch", "verify", "benchmark", "decide", "keep", "stop")
STEPS = st.tuples(
    st.sampled_from(["legal", "legal", "legal", "any", "restart", "undo"]),
    st.integers(0, 7),
    st.sampled_from(OUTCOMES),
)
"""Legal steps more often than not, or the walk would never come far."""

SPEED = {"fast": 1.05, "same": 1.001, "slow": 0.9, "wrong": 1.0, "cheat": 1.0}


class QuietDisk(Disk):
    """Without the waits for the platters; what is promised across a power cut is not tested here."""

    def _sync(self, fd: int) -> None:
        pass


@dataclass
class Model:
    """The least that tells what is legal and what is on disk."""

    text: str
    phase: str = "ready"
    used: int = 0
    outcome: str = ""
    best: str = ""
    base: str = ""
    diagnosed: str = ""
    kept_since: int | None = None
    speeds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.best = self.base = self.text
        self.speeds[self.text] = 1.0

    def legal(self, call: str) -> bool:
        table = {
            "profile": ("ready", "diagnosed"),
            "diagnose": ("ready", "profiled"),
            "apply_patch": ("diagnosed",),
            "verify": ("patched",),
            "benchmark": ("verified",),
            "decide": ("benchmarked", "failed"),
            "keep": ("benchmarked", "failed"),
            "stop": ("ready", "profiled", "diagnosed", "patched", "verified", "benchmarked", "failed"),
        }
        return self.phase in table[call]

    def run(self, call: str, outcome: str, text: str) -> None:
        if call == "profile":
            self.phase = "profiled"
        elif call == "diagnose":
            self.phase, self.diagnosed = "diagnosed", self.text
        elif call == "apply_patch":
            self.phase, self.text, self.outcome, self.used = "patched", text, outcome, self.used + 1
        elif call == "verify":
            self._judge("verified", wrong=self.outcome == "wrong")
        elif call == "benchmark":
            self._judge("benchmarked", wrong=self.outcome == "cheat")
        else:
            self._decide(keep=call == "keep", stop=call == "stop")

    def _judge(self, phase: str, wrong: bool) -> None:
        self.phase = "failed" if wrong else phase
        self.text = self.base if wrong else self.text

    def _decide(self, keep: bool, stop: bool) -> None:
        measured = self.phase == "benchmarked"
        decided = self.phase in ("patched", "verified", "benchmarked", "failed")
        over = self.kept_since is not None and self.used - self.kept_since >= 2
        if measured and self.outcome == "fast":
            self.best = self.base = self.text
            self.kept_since = None
        elif measured and keep and not over and self.used < 5:
            self.base, self.kept_since = self.text, self.kept_since or self.used
        elif decided and over:
            self.text = self.base = self.best
            self.kept_since = None
        else:
            self.text = self.base
        if stop or self.used >= 5:
            self.phase, self.text = "done", self.best
        else:
            self.phase = "diagnosed" if self.diagnosed == self.text else "ready"


def call_loop(project: Project, name: str, call: str, text: str) -> None:
    loop = project.loop
    if call == "apply_patch":
        project.patch(name, text)
    elif call == "keep":
        loop.decide(name, "it enables the next one")
    elif call == "stop":
        loop.decide(name, stop=True, reason="enough")
    else:
        getattr(loop, call)(name)


def candidate(model: Model, outcome: str, number: int) -> str:
    constants = {"wrong": {"VERIFY": "INCORRECT_NUMERICAL"}, "cheat": {"BENCHMARK": "CHEATED"}}.get(outcome, {})
    speed = round(model.speeds[model.best] * SPEED[outcome], 6)
    text = fakes.kernel(speed, NUMBER=number, **constants)
    model.speeds[text] = speed
    return text


@given(st.lists(STEPS, max_size=40))
def test_random_calls_never_disagree_with_the_model(steps: list[tuple[str, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder) / "project", disk=QuietDisk())
        name = project.baseline(target_value=1e6).experiment
        model = Model(project.text)
        for number, (kind, pick, outcome) in enumerate(steps):
            if kind == "restart":
                project.loop = project.reopened()
            elif kind == "undo":
                project.kernel.write_text(fakes.kernel())  # the baseline: a version that the journal knows
            else:
                play(project, name, model, choose(model, kind, pick), outcome, number)
            seen = project.loop.log(name)
            assert seen.phase == model.phase
            assert list(seen.next) == legal(seen.phase)


def choose(model: Model, kind: str, pick: int) -> str:
    options = [call for call in CALLS if model.legal(call)] if kind == "legal" else []
    usual = [call for call in options if call != "stop"] or options or list(CALLS)
    return usual[pick % len(usual)]


def play(project: Project, name: str, model: Model, call: str, outcome: str, number: int) -> None:
    if model.legal(call):
        text = candidate(model, outcome, number)
        call_loop(project, name, call, text)
        model.run(call, outcome, text)
    else:
        with pytest.raises(GuardRefused):
            call_loop(project, name, call, fakes.kernel(2.0, NUMBER=number))
    assert project.text == model.text
