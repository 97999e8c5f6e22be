"""The rules: each with its words, and with the way out that the words offer."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import fakes
import pytest
from fakes import Project
from overmcp import OverMcp

from kopt_mcp import guards
from kopt_mcp.disk import digest
from kopt_mcp.errors import GuardRefused, InputRefused
from kopt_mcp.journal import Journal


@pytest.fixture(params=["loop", "mcp"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """Every rule is tried twice: on the loop, and as an MCP client sees it, word for word."""
    project = Project(tmp_path / "project")
    if request.param == "mcp":
        project.loop = OverMcp(project.loop, project.root)  # type: ignore[assignment]
    return project


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
    assert project.loop.diagnose(name).next == ("apply_patch", "profile")


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
        f"another problem cannot be compared; restore it (cp experiments/{name}/problem/{short(before)}.py "
        "test_softmax.py), or call baseline for a new experiment."
    )
    assert project.loop.log(name).on_disk.startswith("test_softmax.py is not as it was at the baseline;")
    test.unlink()
    assert "and is gone;" in refusal(project, "diagnose", name)
    shutil.copy(project.root / f"experiments/{name}/problem/{short(before)}.py", test)
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
    assert project.loop.log(name).phase == "done"
    assert project.baseline().experiment == "softmax-h200-2"


def test_the_budget_is_a_rule_of_its_own(project: Project) -> None:
    name = project.diagnosed(max_iterations=1)
    project.patch(name, fakes.kernel(1.5))
    state = project.loop._known(name).model_copy(update={"phase": "diagnosed"})
    facts = guards.Facts("apply_patch", state, state.current)
    assert guards.within_budget(facts) == (
        "all 1 iterations of 'softmax-h200-1' are used; if five rounds did not help, the algorithm may have to change "
        "rather than its tuning; end it with decide(stop=true), or call baseline anew."
    )
    assert project.loop.decide(name, stop=True, reason="the budget is used").ended == "STOPPED"
    assert project.baseline().max_iterations == 5


@pytest.mark.parametrize("again", [fakes.kernel(0.5), "# a comment\n" + fakes.kernel(0.5).replace("x):", "x ):")])
def test_a_failed_change_is_refused_however_it_is_dressed_up(project: Project, again: str) -> None:
    name = project.diagnosed()
    project.iterate(name, fakes.kernel(0.5), hypothesis="fewer warps")
    with pytest.raises(GuardRefused) as refused:
        project.patch(name, again)
    assert str(refused.value) == (
        "this is the kernel of iteration 1 ('fewer warps'), which was REGRESSED; to run it until chance is kind would "
        "prove nothing; try another idea (log shows all that was tried)."
    )
    project.patch(name, fakes.kernel(1.5))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (fakes.kernel(), "the patch leaves the kernel as it is; nothing to measure; send a change."),
        (
            "# hello\n" + fakes.kernel(),
            "the patch changes only comments, docstrings or formatting; nothing to measure; send a change of the code.",
        ),
    ],
)
def test_a_patch_that_changes_nothing_is_refused(project: Project, text: str, words: str) -> None:
    name = project.diagnosed()
    with pytest.raises(GuardRefused) as refused:
        project.patch(name, text)
    assert str(refused.value) == words
    project.patch(name, fakes.kernel(1.5))
    assert project.loop.verify(name).correct


@pytest.mark.parametrize(
    "name", ["none", "../x", "a/b", "", ".", "x" * 300, "softmax-h200-1/..", "ünï", "a\0b", "\ud800"]
)
def test_an_unknown_experiment_is_refused_and_creates_nothing(project: Project, name: str) -> None:
    project.baseline()
    before = sorted(project.root.rglob("*"))
    # What could be a path does not even get past the tool's schema.
    words = r"is not known; there are softmax-h200-1; call baseline to start one|: experiment is .*; correct it\."
    for call in (lambda: project.loop.verify(name), lambda: project.loop.log(name)):
        with pytest.raises((GuardRefused, InputRefused), match=words):
            call()
    assert sorted(project.root.rglob("*")) == before
    assert project.loop.diagnose("softmax-h200-1").phase == "diagnosed"


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


# What a patch does: read from the kernel's text. Here a Triton kernel that also says how fast the fake finds it.

TRITON = (Path(__file__).parent / "data" / "changes" / "softmax.py").read_text()


def triton(speed: float = 1.0, *changes: tuple[str, str], **constants: object) -> str:
    text = fakes.kernel(speed, **constants) + TRITON.split("import triton.language as tl\n")[1].replace(
        "softmax(x: ", "f(x: "
    )
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return "import triton\nimport triton.language as tl\n" + text


WARPS = ("num_warps=4", "num_warps=8")
EVICTION = ('other=-float("inf"))', 'other=-float("inf"), eviction_policy="evict_first")')


@pytest.fixture
def tritons(project: Project) -> Project:
    project.kernel.write_text(triton())
    return project


def refused_patch(project: Project, name: str, text: str, **rest: object) -> str:
    with pytest.raises(GuardRefused) as refused:
        project.patch(name, text, **rest)
    return str(refused.value)


def test_two_kinds_of_change_in_one_patch_are_refused_with_the_split_and_either_is_taken_alone(
    tritons: Project,
) -> None:
    name = tritons.diagnosed()
    assert refused_patch(tritons, name, triton(1.5, WARPS, EVICTION)) == (
        "the patch makes 2 changes at once: (1) memory access: eviction_policy in _softmax_kernel (line 16); "
        "(2) launch parameters: num_warps in f (line 34); their effects could not be told apart; send one of them "
        "alone and the rest in later iterations, or give because, the reason why they only work together."
    )
    tritons.patch(name, triton(1.5, WARPS))
    assert tritons.loop.verify(name).correct


def test_two_kinds_of_change_are_taken_with_a_reason_that_lands_in_the_log(tritons: Project) -> None:
    name = tritons.diagnosed()
    tritons.patch(name, triton(1.5, WARPS, EVICTION), because="the hint only pays with eight warps")
    log = (tritons.root / "experiments" / "README.md").read_text()
    assert "- Iteration 1: because: the hint only pays with eight warps" in log
    assert tritons.loop.verify(name).correct


def test_a_patch_says_what_it_was_read_as_and_warns_when_the_tier_does_not_fit(tritons: Project) -> None:
    name = tritons.diagnosed()
    result = tritons.loop.apply_patch(name, 2, "more warps", content=triton(1.5, WARPS))
    assert result.kinds == ("launch",)
    assert result.notes == (
        "filed under tier 2, but read as launch parameters (num_warps in f (line 34)), which is tier 1; name the tier "
        "of what is changed, so that the log says what was tried.",
    )


def test_what_the_device_has_not_is_refused_before_anything_runs_and_a_condition_is_a_way_out(tritons: Project) -> None:
    name = tritons.diagnosed()
    ran = len(tritons.evaluator.jobs)
    assert refused_patch(tritons, name, triton(1.5, ("num_warps=4", "num_warps=4, waves_per_eu=2"))) == (
        "line 34 uses waves_per_eu, which NVIDIA H200 (sm_90) has not: it is an option of AMD's back end; elsewhere "
        "the launch fails on an argument that is not known; leave it out, or put it under a condition on the platform."
    )
    assert len(tritons.evaluator.jobs) == ran
    guarded = ("num_warps=4", 'num_warps=4, **({"waves_per_eu": 2} if torch.version.hip else {})')
    tritons.patch(name, triton(1.5, guarded))
    assert tritons.loop.verify(name).correct


def test_hopper_features_are_refused_on_amd(tritons: Project) -> None:
    tritons.devices[0] = fakes.GPU.model_copy(
        update={"platform": "amd", "name": "AMD Instinct MI300X", "arch": "gfx942"}
    )
    name = tritons.diagnosed()
    descriptor = (
        "    offsets = tl.arange",
        "    d = tl.make_tensor_descriptor(x_ptr, [8, cols], [cols, 1], [1, 64])\n    offsets = tl.arange",
    )
    assert refused_patch(tritons, name, triton(1.5, descriptor)).startswith(
        "line 13 uses tensor descriptors (TMA), which AMD Instinct MI300X (gfx942) has not: the copy engine"
    )


def test_a_failed_change_is_refused_whatever_its_variables_are_called(tritons: Project) -> None:
    name = tritons.diagnosed()
    tritons.iterate(name, triton(0.5, WARPS), hypothesis="more warps")
    renamed = triton(0.5, WARPS, ("mask", "inside"), ("inside=inside", "mask=inside"), ("_softmax_kernel", "_rows"))
    assert refused_patch(tritons, name, renamed) == (
        "this is the kernel of iteration 1 ('more warps') with its variables renamed, which was REGRESSED; to run it "
        "until chance is kind would prove nothing; try another idea (log shows all that was tried)."
    )
    tritons.patch(name, triton(1.5, ("num_warps=4", "num_warps=2")))


def test_a_patch_that_only_renames_is_no_change(tritons: Project) -> None:
    name = tritons.diagnosed()
    assert refused_patch(tritons, name, triton(1.0, ("offsets", "columns"))) == (
        "the patch only renames variables; the same code comes out; send a change of what it does."
    )
    tritons.patch(name, triton(1.5, WARPS))


def test_comments_alone_are_no_change_in_c_either(project: Project) -> None:
    project.kernel.rename(project.root / "softmax.c")
    (project.root / "softmax.c").write_text("SPEED = 1.0\n")
    name = project.loop.baseline("softmax.c", target_metric="gbps", target_value=500).experiment
    project.loop.diagnose(name)
    assert refused_patch(project, name, "SPEED   =\n 1.0 // hello\n").startswith("the patch changes only comments")


def test_another_experiments_winner_taken_whole_is_pointed_out_and_logged(tritons: Project) -> None:
    first = tritons.diagnosed(target_value=140)
    assert tritons.iterate(first, triton(1.5, WARPS)).ended == "TARGET_MET"
    tritons.kernel.write_text(triton())
    second = tritons.diagnosed()
    result = tritons.loop.apply_patch(second, 1, "I had an idea", content=triton(1.5, WARPS))
    assert result.notes == (
        f"this is, whole, the best kernel of experiment '{first}'; the log says so; what it gains here shows nothing "
        "about the hypothesis alone.",
    )
    assert (
        f"- Iteration 1: the best kernel of {first}, copied whole"
        in (tritons.root / "experiments" / "README.md").read_text()
    )
