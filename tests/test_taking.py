"""The loop on what people have: scripts that judge themselves, plain functions, tasks of other formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import Project
from tasks import written

from kopt_mcp.disk import digest
from kopt_mcp.errors import GuardRefused, InputRefused, KoptError, ProblemInvalid, ToolUnavailable
from kopt_mcp.evaluator.script_run import ScriptProcess
from kopt_mcp.loop import Loop
from kopt_mcp.results import DecideResult
from kopt_mcp.workspace import Workspace

SCRIPT = """
import json, sys
from softmax import LATENCY, RIGHT

if "--json" in sys.argv:
    print(json.dumps({"kernel": "softmax", "correctness": RIGHT, "latency_us": LATENCY, "gbps": 1e5 / LATENCY}))
raise SystemExit(0 if RIGHT else 1)
"""


def kernel(latency: float, right: bool = True) -> str:
    return f"LATENCY = {latency}\nRIGHT = {right}\n\n\ndef softmax(x):\n    return x\n"


@pytest.fixture
def scripted(project: Project) -> Project:
    (project.root / "test_softmax.py").write_text(SCRIPT)
    project.kernel.write_text(kernel(200.0))
    project.loop = project.reopened(scripts=ScriptProcess(lambda: sys.executable))
    return project


def begin(loop: Loop, **arguments: Any) -> Any:
    return loop.baseline("softmax.py", gpu="cpu", **{"target_metric": "gbps", "target_value": 1000, **arguments})


def step(loop: Loop, name: str, text: str, hypothesis: str = "it is faster") -> DecideResult:
    if "diagnose" in loop.log(name).next:
        loop.diagnose(name)
    loop.apply_patch(name, 1, hypothesis, content=text)
    if loop.verify(name).correct:
        loop.benchmark(name)
    return loop.decide(name)


def test_the_whole_loop_runs_on_a_scripts_word_and_says_so_everywhere(scripted: Project) -> None:
    begun = begin(scripted.loop)
    assert (begun.trust, begun.baseline, begun.noise_pct, begun.mutants_caught) == ("reported", 500.0, 0.0, 0)
    assert begun.notes[0].startswith("trust: reported.")
    name = begun.experiment
    profiled = scripted.loop.profile(name)
    assert (profiled.rung, profiled.trust) == ("timing", "reported")
    scripted.loop.diagnose(name)
    scripted.loop.apply_patch(name, 1, "half the work", content=kernel(150.0))
    verified = scripted.loop.verify(name)
    assert (verified.status, verified.trust) == ("PASSED", "reported")
    timed = scripted.loop.benchmark(name)
    assert (timed.verdict, timed.trust, timed.certificate) == ("better", "reported", "")
    assert timed.gain_pct == pytest.approx(33.333, rel=1e-3)
    decided = scripted.loop.decide(name)
    assert (decided.status, decided.trust, decided.certificate) == ("IMPROVED", "reported", "")
    wrong = step(scripted.loop, name, kernel(10.0, right=False), "wrong, but fast")
    assert (wrong.status, wrong.reverted) == ("FAILED", True)
    last = step(scripted.loop, name, kernel(90.0), "even less of it")
    assert (last.status, last.ended, last.confirmed) == ("TARGET_MET", "TARGET_MET", True)
    assert last.summary.endswith(
        "target met; trust: reported, the test script's own word; nothing was checked or timed by kopt-mcp."
    )


def test_the_log_and_the_index_carry_it_and_memory_learns_nothing_from_it(scripted: Project) -> None:
    name = begin(scripted.loop).experiment
    step(scripted.loop, name, kernel(150.0))
    text = (scripted.root / "experiments" / "README.md").read_text()
    assert "- Trust: reported (the test script's own word; nothing was checked or timed by kopt-mcp)" in text
    assert "| IMPROVED (trust: reported) |" in text
    index = json.loads((scripted.root / "experiments" / "index.json").read_text())
    assert index["experiments"][name]["trust"] == "reported"
    assert scripted.loop.log(name).trust == "reported"
    assert scripted.loop.log().experiments[0].trust == "reported"
    journal = (scripted.root / "experiments" / name / "journal.jsonl").read_text()
    events = [json.loads(line)["data"] for line in journal.splitlines()]
    assert {e["evaluation"]["trust"] for e in events if "evaluation" in e} == {"reported"}
    assert {e["certificate"] for e in events if "certificate" in e} == {None}
    assert "Nothing has been decided yet." in scripted.loop.learned_patterns()


def test_the_journal_of_a_reported_experiment_replays(scripted: Project) -> None:
    name = begin(scripted.loop).experiment
    step(scripted.loop, name, kernel(150.0))
    again = scripted.reopened(scripts=ScriptProcess(lambda: sys.executable))
    assert (again.log(name).trust, again.log(name).best) == ("reported", pytest.approx(666.67))
    assert step(again, name, kernel(100.0)).status in ("IMPROVED", "TARGET_MET")


def test_the_script_is_guarded_like_any_problem(scripted: Project) -> None:
    name = begin(scripted.loop).experiment
    scripted.loop.diagnose(name)
    (scripted.root / "test_softmax.py").write_text(SCRIPT.replace("LATENCY,", "LATENCY / 2,"))
    with pytest.raises(GuardRefused, match=r"test_softmax\.py was \w+ at the baseline and is now"):
        scripted.loop.apply_patch(name, 1, "it is faster", content=kernel(150.0))


def test_a_script_that_contradicts_itself_does_not_let_an_experiment_begin(scripted: Project) -> None:
    (scripted.root / "test_softmax.py").write_text(SCRIPT.replace("0 if RIGHT else 1", "3"))
    with pytest.raises(ProblemInvalid, match=r"does not pass on softmax\.py \(SUSPECT\): .*it contradicts itself"):
        begin(scripted.loop)
    assert scripted.loop.log().experiments == ()


def test_a_server_without_scripts_refuses_them(scripted: Project) -> None:
    with pytest.raises(ToolUnavailable, match=r"test_softmax\.py is a script that judges itself"):
        begin(scripted.reopened())


def test_the_format_can_be_told_and_must_fit(scripted: Project) -> None:
    assert begin(scripted.loop, test_path="test_softmax.py", format="script").trust == "reported"
    with pytest.raises(ProblemInvalid, match=r"problem: test_softmax\.py assigns nothing to PROBLEM"):
        begin(scripted.loop, test_path="test_softmax.py", format="problem")
    with pytest.raises(ProblemInvalid, match=r"format 'scrpt' is not known; .*did you mean 'script'"):
        begin(scripted.loop, test_path="test_softmax.py", format="scrpt")


def test_what_is_of_no_format_is_refused_with_all_reasons(project: Project) -> None:
    (project.root / "task.txt").write_text("softmax, please")
    with pytest.raises(ProblemInvalid, match=r"task\.txt is of no format that is known: problem: .*; script: "):
        project.baseline(test_path="task.txt")
    (project.root / "folder").mkdir()
    with pytest.raises(ProblemInvalid, match="folder is of no format that is known"):
        project.baseline(test_path="folder")


def functions(**arguments: Any) -> dict[str, Any]:
    return {"reference": "torch:softmax(dim=-1)", "shapes": ["64x128"], **arguments}


def test_plain_functions_are_a_problem_without_a_file_of_the_users(project: Project) -> None:
    (project.root / "test_softmax.py").unlink()
    begun = project.loop.baseline("softmax.py:softmax", target_metric="gbps", target_value=500, **functions())
    assert (begun.trust, begun.problem) == ("measured", "unreviewed")
    assert begun.test == f"experiments/{begun.experiment}/problem.py"
    text = (project.root / begun.test).read_text()
    assert "'reference': 'torch:softmax(dim=-1)'" in text
    assert "'entry': 'softmax'" in text
    assert "kernel='../../softmax.py'" in text
    assert project.iterate(begun.experiment, project.text.replace("SPEED = 1.0", "SPEED = 1.5")).status == "IMPROVED"


def test_the_problem_file_that_was_written_is_guarded(project: Project) -> None:
    name = project.loop.baseline("softmax.py", target_metric="gbps", target_value=500, **functions()).experiment
    project.loop.diagnose(name)
    file = project.root / "experiments" / name / "problem.py"
    file.write_text(file.read_text().replace("64x128", "1x1"))
    with pytest.raises(GuardRefused, match=r"experiments/.*/problem\.py was \w+ at the baseline"):
        project.patch(name, project.text.replace("SPEED = 1.0", "SPEED = 2.0"))


def test_the_file_of_a_reference_is_guarded_too(project: Project) -> None:
    (project.root / "ref.py").write_text("from more import softmax\n")
    (project.root / "more.py").write_text("def softmax(x):\n    return x\n")
    given = functions(reference="ref.py:softmax")
    name = project.loop.baseline("softmax.py", target_metric="gbps", target_value=500, **given).experiment
    project.loop.diagnose(name)
    (project.root / "more.py").write_text("def softmax(x):\n    return 0 * x\n")
    with pytest.raises(GuardRefused, match=r"more\.py was \w+ at the baseline"):
        project.patch(name, project.text.replace("SPEED = 1.0", "SPEED = 2.0"))


def test_a_baseline_that_fails_leaves_no_problem_file(project: Project) -> None:
    project.kernel.write_text(project.text + "VERIFY = 'INCORRECT_NUMERICAL'\n")
    with pytest.raises(InputRefused, match="fails its own problem"):
        project.loop.baseline("softmax.py", target_metric="gbps", target_value=500, **functions())
    assert not list(project.root.glob("experiments/*/problem.py"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"reference": "torch:softmax"}, "reference is given without shapes"),
        ({"shapes": ["4"]}, "shapes is given without reference"),
        ({"dtypes": ["float16"]}, "dtypes is given without reference"),
        ({"reference": "torch:softmax", "shapes": ["4"], "test_path": "test_softmax.py"}, "reference and test_path"),
        ({"reference": "torch:softmax", "shapes": ["4"], "format": "script"}, "reference and format"),
        ({"reference": "torch", "shapes": ["4"]}, "names no function"),
        ({"reference": "nowhere.py:f", "shapes": ["4"]}, "'nowhere.py' does not exist"),
        ({"reference": "torch:softmax", "shapes": "4"}, "shapes is '4'; expected a list of names"),
        ({"kernel_path": "softmax.py:softmax"}, "kernel_path names the function 'softmax'"),
    ],
)
def test_arguments_that_contradict_each_other_are_named(project: Project, arguments: Any, why: str) -> None:
    with pytest.raises(KoptError, match=why):
        project.loop.baseline(**{"kernel_path": "softmax.py", **arguments})
    assert project.loop.log().experiments == ()


def test_a_reference_that_is_told_replaces_the_files_test(project: Project) -> None:
    (project.root / "kopt.yaml").write_text("test_path: test_softmax.py\ntarget_metric: gbps\ntarget_value: 500\n")
    assert project.loop.baseline("softmax.py", **functions()).test.endswith("/problem.py")
    assert project.loop.baseline("softmax.py").test == "test_softmax.py"


def test_a_file_outside_of_the_project_is_no_part_of_a_task(project: Project) -> None:
    (project.root.parent / "ref.py").write_text("def softmax(x):\n    return x\n")
    with pytest.raises(InputRefused, match="lies outside the project"):
        project.loop.baseline("softmax.py", **functions(reference="../ref.py:softmax"))
    (project.root / "link.py").symlink_to(Path("..") / "ref.py")
    with pytest.raises(InputRefused, match="lies outside the project"):
        project.loop.baseline("softmax.py", **functions(reference="link.py:softmax"))


GPUMODE = {
    "tasks/utils.py": "def tolerance():\n    return 1e-5\n",
    "tasks/scale/task.yml": "files:\n  - {name: reference.py, source: reference.py}\n"
    "  - {name: utils.py, source: ../utils.py}\n  - {name: s.py, source: '@SUBMISSION@'}\n"
    "lang: py\ntests:\n  - {size: 64, seed: 1}\n",
    "tasks/scale/reference.py": "from utils import tolerance\nfrom deep import more\n\n\n"
    "def generate_input(size, seed):\n    raise SystemExit('ran')\n\n\ndef ref_kernel(data):\n    return data\n\n\n"
    "def check_implementation(data, output):\n    return True, ''\n",
    "tasks/scale/deep.py": "more = 1\n",
}  # fmt: skip


def test_a_task_that_is_a_folder_is_taken_in_and_each_of_its_files_is_guarded(project: Project) -> None:
    written(project.root, GPUMODE)
    begun = project.baseline(test_path="tasks/scale")
    name = begun.experiment
    assert (begun.trust, begun.problem) == ("measured", "unreviewed")
    text = (project.root / "experiments" / name / "problem.py").read_text()
    assert "format='gpumode'" in text
    for file in GPUMODE:
        assert (repr(f"../../{file}") in text) == ("deep" not in file), "what a file imports is guarded, and not named"
    project.loop.diagnose(name)
    faster = project.text.replace("SPEED = 1.0", "SPEED = 2.0")
    for file, body in GPUMODE.items():
        (project.root / file).write_text(body + "# touched\n")
        with pytest.raises(GuardRefused, match=rf"{file} was \w+ at the baseline"):
            project.patch(name, faster)
        (project.root / file).write_text(body)
    project.patch(name, faster)
    assert project.loop.verify(name).correct


def test_a_person_who_commits_a_task_has_read_its_problem_file_too(project: Project) -> None:
    written(project.root, GPUMODE)
    files = {f"tasks/{f}": digest((project.root / "tasks" / f).read_bytes())
             for f in ("utils.py", "scale/task.yml", "scale/reference.py", "scale/deep.py")}  # fmt: skip
    (project.root / "kopt.yaml").write_text(json.dumps({"accepted_problems": files}))
    begun = project.baseline(test_path="tasks/scale/task.yml")
    assert (begun.problem, begun.to_accept) == ("accepted", "")
    assert project.loop.diagnose(begun.experiment).problem == "accepted"


def test_a_task_that_is_not_complete_says_what_it_lacks(project: Project) -> None:
    written(project.root, {**GPUMODE, "tasks/scale/reference.py": "def ref_kernel(data):\n    return data\n"})
    with pytest.raises(ProblemInvalid, match=r"recognised as gpumode .* but it is not complete: .*generate_input"):
        project.baseline(test_path="tasks/scale")
    assert project.loop.log().experiments == ()


def test_a_file_of_a_task_that_is_larger_than_a_kernel_may_be_is_hashed_to_its_end(project: Project) -> None:
    data = b"x" * (2 << 20)
    (project.root / "workload.jsonl").write_bytes(data + b"1")
    assert Workspace(project.root).hash("workload.jsonl") == digest(data + b"1") != digest(data + b"2")


def test_a_kernel_that_says_itself_what_it_computes_needs_no_test(project: Project) -> None:
    (project.root / "test_softmax.py").unlink()
    project.kernel.write_text(f"KERNEL_TYPE = 'softmax'\n{project.text}\n\ndef kernel_fn(x):\n    return x\n")
    begun = project.baseline()
    assert (begun.problem, begun.test in begun.to_accept) == ("unreviewed", True)
    text = (project.root / begun.test).read_text()
    assert "format='autokernel'" in text
    assert "kernel='../../softmax.py'" in text
    faster = project.text.replace("SPEED = 1.0", "SPEED = 2.0")
    assert project.iterate(begun.experiment, faster).status == "IMPROVED", "the kernel is no file of its own problem"
