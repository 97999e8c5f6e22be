"""The rules: each with its words, and with the way out that the words offer."""

from __future__ import annotations

import shlex
import subprocess

import fakes
import pytest
from fakes import Project

from kopt_mcp import guards
from kopt_mcp.disk import digest
from kopt_mcp.errors import GuardRefused
from kopt_mcp.journal import Journal


def refusal(project: Project, tool: str, name: str, **arguments: object) -> str:
    with pytest.raises(GuardRefused) as refused:
        getattr(project.loop, tool)(name, **arguments)
    return str(refused.value)


def short(text: str) -> str:
    return digest(text.encode())[:12]


def test_every_rule_is_in_the_visible_tuple() -> None:
    names = [rule.__name__ for rule in guards.RULES]
    assert names == [
        "one_change",
        "verified_first",
        "order",
        "problem_untouched",
        "candidate_untouched",
        "same_device",
        "within_budget",
        "changes_something",
        "not_a_repeat",
        "platform_respected",
        "one_kind",
    ]


def test_a_call_out_of_order_names_the_phase_and_what_is_allowed(project: Project) -> None:
    name = project.baseline().experiment
    assert refusal(project, "verify", name) == (
        "verify is not allowed while experiment 'softmax-h200-1' is ready; allowed now: profile or diagnose."
    )


def test_a_second_change_in_one_iteration_is_refused(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5), "wider loads")
    with pytest.raises(GuardRefused) as refused:
        project.patch(name, fakes.kernel(1.6), "more warps")
    assert str(refused.value) == (
        "iteration 1 already holds a change ('wider loads'); one change an iteration, so that its effect can be told; "
        "verify first."
    )
    assert project.loop.verify(name).correct


def test_nothing_is_benchmarked_before_it_is_verified(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    assert refusal(project, "benchmark", name) == (
        "iteration 1 has not been verified; a wrong kernel's speed means nothing; verify first."
    )
    project.loop.verify(name)
    assert project.loop.benchmark(name).verdict == "better"


def test_a_problem_that_was_edited_is_refused_until_it_is_restored(project: Project) -> None:
    name = project.baseline().experiment
    test = project.root / "test_softmax.py"
    before = test.read_text()
    test.write_text("# an easier problem\n")
    assert refusal(project, "diagnose", name) == (
        f"test_softmax.py was {short(before)} at the baseline and is now {short(test.read_text())}; times against "
        "another problem cannot be compared; restore it (git checkout -- test_softmax.py), or call baseline for a new "
        "experiment."
    )
    test.unlink()
    assert "and is gone;" in refusal(project, "diagnose", name)
    test.write_text(before)
    assert project.loop.diagnose(name).phase == "diagnosed"


def test_a_module_that_the_problem_imports_is_frozen_with_it(project: Project) -> None:
    (project.root / "test_softmax.py").write_text("from reference import softmax_reference\n")
    (project.root / "reference.py").write_text("tolerance = 1\n")
    name = project.baseline().experiment
    (project.root / "reference.py").write_text("tolerance = 100\n")
    assert refusal(project, "diagnose", name).startswith("reference.py was ")


def test_a_kernel_edited_outside_the_loop_can_be_adopted_as_the_iterations_change(project: Project) -> None:
    name = project.diagnosed()
    before = project.text
    project.kernel.write_text(fakes.kernel(1.5))
    with pytest.raises(GuardRefused) as refused:
        project.patch(name, fakes.kernel(1.6))
    assert str(refused.value) == (
        f"softmax.py is {short(project.text)}, expected {short(before)}; it was edited outside the loop; adopt it with "
        f"apply_patch(working_copy=true), undo it (cp experiments/{name}/candidates/{short(before)}.py softmax.py), or "
        "call baseline for a new experiment."
    )
    project.loop.apply_patch(name, 1, "it is faster", working_copy=True)
    assert project.loop.verify(name).correct


def test_a_kernel_edited_outside_the_loop_can_be_undone_with_the_call_that_is_offered(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    project.kernel.write_text(fakes.kernel(9.9))
    text = refusal(project, "verify", name)
    assert "; keep a copy and undo it (cp " in text
    command = text.split("undo it (")[1].split(")")[0]
    subprocess.run(shlex.split(command), cwd=project.root, check=True)
    assert project.loop.verify(name).correct
    assert project.text == fakes.kernel(1.5)


def test_another_device_is_refused_until_the_first_is_visible_again(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    mine, project.devices[0] = project.devices[0], fakes.GPU.model_copy(update={"uuid": "GPU-2"})
    assert refusal(project, "verify", name) == (
        "the baseline ran on NVIDIA H200 (GPU-1), which this machine does not show now; times of another device cannot "
        "be compared; make it visible (CUDA_VISIBLE_DEVICES), or call baseline for a new experiment."
    )
    project.devices[0] = mine
    assert project.loop.verify(name).correct


def test_a_device_that_was_renumbered_is_still_the_same(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    project.devices[0] = fakes.GPU.model_copy(update={"index": 3})
    assert project.loop.verify(name).correct
    assert project.evaluator.jobs[-1].device == "cuda:3"


def test_a_finished_experiment_takes_no_more_changes(project: Project) -> None:
    name = project.diagnosed()
    project.loop.decide(name, stop=True, reason="enough")
    assert refusal(project, "diagnose", name) == (
        "experiment 'softmax-h200-1' is over (STOPPED); diagnose would change a finished log; call baseline for a new "
        "experiment, or log to read this one."
    )


def test_the_budget_is_a_rule_of_its_own(project: Project) -> None:
    name = project.diagnosed(max_iterations=1)
    project.patch(name, fakes.kernel(1.5))
    state = project.loop._known(name).model_copy(update={"phase": "diagnosed"})
    facts = guards.Facts("apply_patch", state, state.current)
    assert guards.within_budget(facts) == (
        "all 1 iterations of 'softmax-h200-1' are used; if five rounds did not help, the algorithm may have to change "
        "rather than its tuning; end it with decide(stop=true), or call baseline anew."
    )


@pytest.mark.parametrize("again", [fakes.kernel(0.5), "# a comment\n" + fakes.kernel(0.5).replace("x):", "x ):")])
def test_a_failed_change_is_refused_however_it_is_dressed_up(project: Project, again: str) -> None:
    name = project.diagnosed()
    project.iterate(name, fakes.kernel(0.5), hypothesis="fewer warps")
    with pytest.raises(GuardRefused) as refused:
        project.patch(name, again)
    assert str(refused.value) == (
        "this is the kernel of iteration 1 ('fewer warps'), which was REGRESSED; a second run would say the same; try "
        "another idea (log shows all that was tried)."
    )
    project.patch(name, fakes.kernel(1.5))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (fakes.kernel(), "the patch leaves the kernel as it is; nothing to measure; send a change."),
        (
            "# hello\n" + fakes.kernel(),
            "the patch changes only comments, docstrings or formatting; nothing to measure;",
        ),
    ],
)
def test_a_patch_that_changes_nothing_is_refused(project: Project, text: str, words: str) -> None:
    name = project.diagnosed()
    with pytest.raises(GuardRefused) as refused:
        project.patch(name, text)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    "name", ["none", "../x", "a/b", "", ".", "x" * 300, "softmax-h200-1/..", "ünï", "a\0b", "\ud800"]
)
def test_an_unknown_experiment_is_refused_and_creates_nothing(project: Project, name: str) -> None:
    project.baseline()
    before = sorted(project.root.rglob("*"))
    for call in (lambda: project.loop.verify(name), lambda: project.loop.log(name)):
        with pytest.raises(GuardRefused, match=r"is not known; there are softmax-h200-1; call baseline to start one"):
            call()
    assert sorted(project.root.rglob("*")) == before


def test_a_refusal_is_journalled_word_for_word(project: Project) -> None:
    name = project.baseline().experiment
    words = refusal(project, "verify", name)
    event = Journal(project.root / "experiments" / name / "journal.jsonl").read()[-1]
    assert (event.tool, event.outcome, event.data) == ("verify", "refused", {"kind": "GuardRefused", "text": words})
    assert project.loop.log(name).refusals == (f"verify refused: {words}",)


@pytest.mark.parametrize(
    ("bytes_needed", "latency_us", "bandwidth", "cache", "expected"),
    [
        (1e9, 100.0, 4000.0, 60 << 20, True),  # 250 us at best
        (1e9, 226.0, 4000.0, 60 << 20, False),  # within 10 %
        (1e8, 1.0, 4000.0, 60 << 20, False),  # may sit in the cache
        (1e9, 1.0, None, None, False),  # nothing known to hold it against
    ],
)
def test_a_time_below_what_the_memory_allows_is_told_from_one_that_is_merely_good(
    bytes_needed: float, latency_us: float, bandwidth: float | None, cache: int | None, expected: bool
) -> None:
    assert guards.too_fast(bytes_needed, latency_us, bandwidth, cache) is expected
