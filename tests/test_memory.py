"""What past experiments taught: brought where it matters, found by its words, rendered as a skill, and kept small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import Project, ticking
from skills_ref.validator import validate

from kopt_mcp import lessons
from kopt_mcp.errors import InputRefused
from kopt_mcp.lessons import Lesson
from kopt_mcp.lock import Locks
from kopt_mcp.loop import Loop
from kopt_mcp.memory import FILE, LARGEST_BYTES, user_folder


def lesson(**changed: Any) -> Lesson:
    given: dict[str, Any] = {
        "project": "p", "experiment": "softmax-h200-1", "iteration": 1, "sha256": "0", "problem": "softmax",
        "platform": "nvidia", "arch": "sm_90", "bound": "memory", "tier": 1, "idea": "num-warps", "kinds": ("launch",),
        "hypothesis": "more warps", "status": "IMPROVED", "gain_pct": 12.0, "reason": "faster",
    }  # fmt: skip
    return Lesson(**{**given, **changed})


LOST = lesson(iteration=2, status="REGRESSED", gain_pct=-5.0, reason="slower: at best -4.8%")


def told(*past: Lesson, problem: str = "softmax", arch: str = "sm_90", bound: Any = None) -> tuple[str, ...]:
    return lessons.relevant(past, problem, "nvidia", arch, bound)


def test_a_line_holds_what_was_tried_how_often_what_came_of_it_and_where() -> None:
    assert told(
        lesson(), LOST, lesson(iteration=3, experiment="softmax-h200-2", status="FAILED", reason="TIMEOUT: ")
    ) == (
        "softmax on sm_90, memory: num-warps tried 3x: 1 gained, at best +12.0% (more warps), 1 FAILED, 1 REGRESSED "
        "(last: TIMEOUT:) [softmax-h200-1#1, softmax-h200-1#2, softmax-h200-2#3]",
    )


def test_the_same_kernel_on_the_same_device_comes_first_and_others_of_its_family_follow() -> None:
    other = lesson(problem="softmax-backward", idea="exp2")
    elsewhere = lesson(arch="sm_80", idea="read-once")
    lines = told(other, elsewhere, lesson())
    assert [line.split(" tried")[0] for line in lines] == [
        "softmax on sm_90, memory: num-warps",
        "softmax on sm_80, memory: read-once",
        "softmax-backward on sm_90, memory: exp2",
    ]


def test_another_kernel_counts_only_with_the_same_bottleneck_on_such_a_device() -> None:
    other = lesson(problem="layernorm")
    assert told(other) == ()
    assert told(other, bound="compute") == ()
    assert told(other, arch="sm_80", bound="memory")[0].startswith("layernorm on sm_90, memory: num-warps tried 1x")
    assert lessons.relevant([other], "softmax", "amd", "gfx942", "memory") == ()


def test_no_more_than_five_lines_are_brought() -> None:
    assert len(told(*(lesson(idea=f"idea-{n}", iteration=n) for n in range(9)))) == lessons.MOST_LINES


def test_lines_are_short_whatever_they_are_made_of() -> None:
    long = lesson(problem="p" * 400, hypothesis="h" * 300, reason="r" * 300)
    assert [len(text) for text in told(long, problem="p" * 400)] == [lessons.LONGEST_LINE]


def test_the_next_experiment_hears_of_the_last_at_its_baseline_and_diagnosis(project: Project) -> None:
    first = project.baseline()
    assert first.remembered == ()
    project.iterate(first.experiment, fakes.kernel(0.5), hypothesis="fewer warps", tier=2, idea="idea-2")
    project.iterate(first.experiment, fakes.kernel(1.5), idea="idea-1")
    second = project.baseline()
    assert second.remembered[0] == (
        f"softmax on sm_90, memory: idea-1 tried 1x: 1 gained, at best +50.0% (it is faster) [{first.experiment}#2]"
    )
    assert second.remembered[1].startswith(
        "softmax on sm_90, memory: idea-2 tried 1x: 1 REGRESSED (last: slower: at best"
    )
    assert project.loop.diagnose(second.experiment).remembered == second.remembered
    assert project.loop.diagnose(first.experiment).remembered == ()  # its own attempts are in its own log


def test_all_lessons_are_rendered_as_a_valid_skill_failures_too(project: Project, tmp_path: Path) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(1.5), hypothesis="vectorise | `loads` <b>")
    project.iterate(name, fakes.kernel(2.0, VERIFY="INCORRECT_NUMERICAL"), tier=2)
    text = project.loop.learned_patterns()
    folder = tmp_path / "learned-patterns"
    folder.mkdir()
    (folder / "SKILL.md").write_text(text)
    assert validate(folder) == []
    assert "Rendered from the journals of 1 experiments with 2 decided iterations." in text
    gained, lost = text.split("Did not gain:")
    assert "1 gained, at best +50.0% (vectorise  loads b)" in gained
    assert f"1 FAILED (last: INCORRECT_NUMERICAL: the kernel says INCORRECT_NUMERICAL) [{name}#2]" in lost


def test_without_any_experiment_the_skill_says_so(project: Project) -> None:
    assert project.loop.learned_patterns().endswith("Nothing has been decided yet.\n")


# the user's own store


class Home:
    """Two projects of one user."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "data"
        self.locks = folder / "locks"
        self.locks.mkdir()
        self.one = Project(folder / "one")
        self.two = Project(folder / "two")
        for project in (self.one, self.two):
            project.loop = self.reopened(project)

    def reopened(self, project: Project) -> Loop:
        locks = Locks(self.locks, bound_s=1.0, monotonic=ticking(), sleep=lambda seconds: None)
        return project.reopened(user_memory=self.store, locks=locks)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_what_one_project_learned_another_hears_and_finds(home: Home) -> None:
    name = home.one.baseline().experiment
    home.one.iterate(name, fakes.kernel(1.5), hypothesis="wider loads", idea="idea-1")
    home.one.iterate(name, fakes.kernel(1.7), idea="idea-2")
    assert home.two.loop.log(query="wider loads").matches == (
        f"{name} #1 T1 wider loads: IMPROVED +50.0%; softmax on sm_90; faster: at least +49.8% against the incumbent, "
        "above the bar of +1.0%",
    )
    assert len(home.two.baseline().remembered) == 2
    assert "idea-2" in home.two.loop.learned_patterns()


def test_no_path_leaves_the_project(home: Home) -> None:
    home.one.iterate(home.one.baseline().experiment, fakes.kernel(1.5))
    assert str(home.one.root.parent) not in (home.store / FILE).read_text()
    assert (home.store / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("said", ["memory: project", "memory: off", "memory: 'off'"])
def test_a_project_may_keep_its_lessons_to_itself(home: Home, said: str) -> None:
    (home.one.root / "kopt.yaml").write_text(f"{said}\n")
    name = home.one.baseline().experiment
    home.one.iterate(name, fakes.kernel(1.5))
    assert not (home.store / FILE).exists()
    assert bool(home.one.baseline().remembered) is (said == "memory: project")


def test_the_environment_wins_over_the_file(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.one.root / "kopt.yaml").write_text("memory: user\n")
    monkeypatch.setenv("KOPT_MEMORY", "off")
    home.one.iterate(home.one.baseline().experiment, fakes.kernel(1.5))
    assert not home.store.exists()
    monkeypatch.setenv("KOPT_MEMORY", "everywhere")
    with pytest.raises(InputRefused) as refusal:
        home.one.baseline()
    assert str(refusal.value) == (
        "memory is 'everywhere'; expected user, project or off; correct KOPT_MEMORY or kopt.yaml."
    )


def test_a_store_that_cannot_be_written_is_a_note(home: Home) -> None:
    home.store.write_text("a file where the folder should be")
    name = home.one.baseline().experiment
    result = home.one.iterate(name, fakes.kernel(1.5))
    assert result.status == "IMPROVED"
    assert result.notes[-1].startswith("the user's memory was not updated: data could not be written")


def test_a_line_of_the_store_that_cannot_be_read_costs_that_line_alone(home: Home) -> None:
    home.one.iterate(home.one.baseline().experiment, fakes.kernel(1.5))
    with (home.store / FILE).open("ab") as file:
        file.write(b"\xff\n{}\n" + b'{"project": ')
    assert len(home.two.baseline().remembered) == 1


def test_a_lesson_is_stored_once_however_often_it_is_told(home: Home) -> None:
    name = home.one.baseline().experiment
    for speed in (1.5, 1.7):
        home.one.iterate(name, fakes.kernel(speed))
    home.one.loop = home.reopened(home.one)
    home.one.loop.decide(name, stop=True, reason="enough")
    assert len((home.store / FILE).read_bytes().splitlines()) == 2


def test_a_store_that_has_grown_too_large_lets_the_older_half_go(home: Home) -> None:
    old = [lesson(iteration=n, project="old", reason="r" * 300) for n in range(5000)]
    home.store.mkdir()
    (home.store / FILE).write_bytes(b"".join(x.model_dump_json().encode() + b"\n" for x in old))
    home.one.iterate(home.one.baseline().experiment, fakes.kernel(1.5))
    kept = (home.store / FILE).read_bytes().splitlines()
    assert sum(len(line) + 1 for line in kept) <= LARGEST_BYTES
    assert b'"project":"old"' in kept[0]
    assert b'"hypothesis":"it is faster"' in kept[-1]


def test_the_store_lies_where_the_system_keeps_a_users_data() -> None:
    assert user_folder({"XDG_DATA_HOME": "/data"}) == Path("/data/kopt-mcp")
    assert user_folder({}) == user_folder({"XDG_DATA_HOME": "relative"}) == Path.home() / ".local/share/kopt-mcp"
