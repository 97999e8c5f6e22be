"""Scripts that test a kernel themselves, as they are really run: which version they see, what they may touch, and that
their word is never more than a word."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fakes import FakeEvaluator

from kopt_mcp.errors import ProblemInvalid, ToolUnavailable, WorkspaceFailed
from kopt_mcp.evaluator.records import Evaluation, Job
from kopt_mcp.evaluator.reported import PAIRS, ReportedEvaluator
from kopt_mcp.evaluator.script_run import Script, ScriptProcess
from kopt_mcp.evaluator.shut_in import JOB_FILE
from kopt_mcp.platforms.host import Ran
from kopt_mcp.watch import Watch

SCRIPT = """
import json, sys
from pathlib import Path
from helpers import report
from kernel import LATENCY

assert "--json" in sys.argv
print("softmax:", LATENCY, "us")
print(json.dumps(report(LATENCY)))
"""
HELPERS = """
def report(latency, **more):
    return {"kernel": "softmax", "correctness": True, "latency_us": latency, "gbps": 1e5 / latency, **more}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "kernels" / "softmax").mkdir(parents=True)
    (made / "kernels" / "softmax" / "test_softmax.py").write_text(SCRIPT)
    (made / "kernels" / "softmax" / "helpers.py").write_text(HELPERS)
    (made / "kernels" / "softmax" / "kernel.py").write_text("LATENCY = 100.0\n")
    return made


def evaluator(root: Path, text: str | None = None, run: Any = None, least_s: float = 60.0) -> ReportedEvaluator:
    if text is not None:
        (root / "kernels" / "softmax" / "test_softmax.py").write_text(textwrap.dedent(text))
    folder = "kernels/softmax"
    files = {f"{folder}/{name}": digest(root / folder / name) for name in ("test_softmax.py", "helpers.py")}
    script = Script(root, f"{folder}/test_softmax.py", f"{folder}/kernel.py", files)
    return ReportedEvaluator(FakeEvaluator(), run or ScriptProcess(lambda: sys.executable), script, least_s=least_s)


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def version(root: Path, text: str) -> Path:
    file = root.parent / f"{sha256(text.encode()).hexdigest()[:8]}.py"
    file.write_text(text)
    return file


def evaluate(one: ReportedEvaluator, candidate: Path, incumbent: Path | None = None, **fields: Any) -> Evaluation:
    job = Job(
        **{
            "kind": "benchmark" if incumbent else "verify",
            "problem": "",
            "problem_sha256": "",
            "candidate": str(candidate),
            "candidate_sha256": digest(candidate),
            "device": "cpu",
            "incumbent": str(incumbent) if incumbent else None,
            "incumbent_sha256": digest(incumbent) if incumbent else None,
            "timeout_s": 60.0,
            **fields,
        }
    )
    return one.evaluate(job, Watch())


def test_the_script_sees_the_version_that_is_meant_and_its_word_is_labelled(root: Path) -> None:
    found = evaluate(evaluator(root), version(root, "LATENCY = 50.0\n"), version(root, "LATENCY = 100.0\n"))
    assert (found.status, found.trust) == ("PASSED", "reported")
    assert found.ratio is not None
    assert (found.ratio.value, found.ratio.low, found.ratio.high, found.ratio.blocks) == (2.0, 2.0, 2.0, PAIRS)
    (result,) = found.workloads
    assert result.timing is not None
    assert result.incumbent is not None
    assert (result.timing.latency_us, result.incumbent.latency_us) == (50.0, 100.0)
    assert (result.timing.method, result.timing.cache) == ("reported", "unknown")
    assert found.notes[0].startswith("trust: reported.")
    assert "write a Problem" in found.notes[0]


def test_the_kernel_in_the_project_is_neither_seen_nor_changed(root: Path) -> None:
    kernel = root / "kernels" / "softmax" / "kernel.py"
    text = f"""
        import json
        from helpers import report
        try:
            seen = open({str(kernel)!r}).read()
        except PermissionError:
            seen = "hidden"
        print(json.dumps(report(1.0, kernel=seen)))
    """
    found = evaluator(root, text).describe(Path(), "", "cpu")
    assert found.name == "hidden"
    assert kernel.read_text() == "LATENCY = 100.0\n"


def test_a_script_writes_beside_itself_but_not_into_the_project_and_has_no_network(root: Path) -> None:
    (root / "data.txt").write_text("as it was")
    (root / ".secret").write_text("hidden")
    text = """
        import json, socket
        from pathlib import Path
        from helpers import report
        said = []
        Path(__file__).with_name("results.json").write_text("{}")
        top = Path(__file__).parents[2]
        said.append(top.joinpath("data.txt").read_text())
        try:
            top.joinpath("data.txt").write_text("changed")
        except PermissionError:
            said.append("not written")
        said.append(str(top.joinpath(".secret").exists()))
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except ConnectionRefusedError:
            said.append("network")
        except OSError:
            said.append("no network")
        print(json.dumps(report(1.0, kernel=" ".join(said))))
    """
    assert evaluator(root, text).describe(Path(), "", "cpu").name == "as it was not written False no network"
    assert (root / "data.txt").read_text() == "as it was"
    assert not (root / "kernels" / "softmax" / "results.json").exists()


def test_a_link_out_of_the_project_is_not_followed(root: Path) -> None:
    (root.parent / "outside.txt").write_text("private")
    (root / "link.txt").symlink_to(root.parent / "outside.txt")
    text = """
        import json
        from pathlib import Path
        from helpers import report
        print(json.dumps(report(1.0, kernel=str(Path(__file__).parents[2].joinpath("link.txt").exists()))))
    """
    assert evaluator(root, text).describe(Path(), "", "cpu").name == "False"


def test_what_a_run_may_read_cannot_be_widened_by_the_run_before(root: Path) -> None:
    (root.parent / "outside.txt").write_text("private")
    text = f"""
        import json
        from pathlib import Path
        from helpers import report
        folder = Path(__file__).parents[3]
        for name in (*(p.name for p in folder.iterdir() if p.is_file()), "readable"):
            folder.joinpath(name).write_text(json.dumps([{str(root.parent)!r}]))
        try:
            Path({str(root.parent / "outside.txt")!r}).read_text()
            seen = True
        except PermissionError:
            seen = False
        print(json.dumps({{**report(1.0), "correctness": not seen}}))
    """
    same = version(root, "LATENCY = 1.0\n")
    assert evaluate(evaluator(root, text), same, same).status == "PASSED"


def test_a_run_cannot_have_the_next_one_write_outside(root: Path) -> None:
    outside = root.parent / "outside.txt"
    outside.write_text("as it was")
    text = f"""
        import json
        from pathlib import Path
        from helpers import report
        for name in ("stderr", "job.json", "isolation.json"):
            file = Path(__file__).parents[3] / name
            file.unlink()
            file.symlink_to({str(outside)!r})
        print(json.dumps(report(1.0)))
    """
    evaluate(evaluator(root, text), version(root, "LATENCY = 1.0\n"), version(root, "LATENCY = 2.0\n"))
    assert outside.read_text() == "as it was"


@pytest.mark.parametrize("instead", ["os.mkfifo(file)", "file.symlink_to(outside)"])
def test_what_a_script_prints_is_read_from_no_pipe_and_no_link(root: Path, instead: str) -> None:
    outside = root.parent / "outside.txt"
    outside.write_text(json.dumps({"correctness": True, "latency_us": 1.0, "kernel": "private"}))
    text = f"""
        import os
        from pathlib import Path
        outside = {str(outside)!r}
        for name in ("stdout", "stderr", "isolation.json"):
            file = Path(__file__).parents[3] / name
            file.unlink()
            {instead}
    """
    found = evaluate(evaluator(root, text), version(root, "LATENCY = 1.0\n"))
    assert (found.status, found.isolation) == ("INCONCLUSIVE", {})


def test_bytes_and_bound_are_what_the_script_counts(root: Path) -> None:
    found = evaluator(root).describe(Path(), "", "cpu")
    (workload,) = found.workloads
    assert (found.name, found.bound, workload.name, workload.flops) == ("softmax", "memory", "reported", 0.0)
    assert workload.bytes == pytest.approx(1e5 / 100 * 100 * 1e3)


def test_a_rate_without_a_time_stands_for_a_nominal_amount_of_work(root: Path) -> None:
    text = """
        import json
        from kernel import LATENCY
        print(json.dumps({"correctness": True, "tflops": 100.0 / LATENCY}))
    """
    one = evaluator(root, text)
    assert one.describe(Path(), "", "cpu").bound == "compute"
    found = evaluate(one, version(root, "LATENCY = 50.0\n"), version(root, "LATENCY = 100.0\n"))
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(2.0)
    assert found.notes[-1] == "the script reports a rate and no time; latency_us stands for a nominal amount of work"


def test_a_script_that_passes_and_exits_with_one_does_not_pass(root: Path) -> None:
    found = evaluate(evaluator(root, SCRIPT + "\nraise SystemExit(1)\n"), version(root, "LATENCY = 1.0\n"))
    assert (found.status, found.trust, found.ratio) == ("SUSPECT", "reported", None)


def test_a_kernel_that_prints_a_report_of_its_own_leaves_two(root: Path) -> None:
    forged = json.dumps({"correctness": True, "latency_us": 0.1, "gbps": 1e5, "status": "pass"})
    early = version(root, f"print({forged!r}, flush=True)\nLATENCY = 100.0\n")
    assert evaluate(evaluator(root), early).status == "INCONCLUSIVE"


def test_a_kernel_can_forge_the_whole_report_which_is_why_it_is_called_reported(root: Path) -> None:
    forged = json.dumps({"correctness": True, "latency_us": 0.1, "gbps": 1e5, "status": "pass"})
    instead = version(root, f"import os\nprint({forged!r}, flush=True)\nos._exit(0)\n")
    found = evaluate(evaluator(root), instead)
    assert (found.status, found.trust) == ("PASSED", "reported")


def test_a_crash_is_quoted_with_its_last_line(root: Path) -> None:
    found = evaluate(evaluator(root), version(root, "raise ValueError('no such shape')\n"))
    assert found.status == "RUNTIME_ERROR"
    assert found.detail.endswith(": ValueError: no such shape")


def test_a_script_that_hangs_is_ended(root: Path) -> None:
    endless = version(root, "import time\nwhile True:\n    time.sleep(60)\n")
    found = evaluate(evaluator(root, least_s=0.5), endless, timeout_s=0.5)
    assert (found.status, found.trust) == ("TIMEOUT", "reported")


def test_an_incumbent_that_fails_says_nothing_of_the_candidate(root: Path) -> None:
    found = evaluate(evaluator(root), version(root, "LATENCY = 1.0\n"), version(root, "raise ValueError\n"))
    assert found.status == "INCONCLUSIVE"
    assert found.detail.startswith("the incumbent failed, not the candidate:")


def test_a_size_that_is_missing_in_one_run_is_not_judged(root: Path) -> None:
    text = """
        import json
        from kernel import SIZES
        print(json.dumps({"correctness": True, "benchmarks": [{"size": s, "latency_us": 2.0} for s in SIZES]}))
    """
    one = evaluator(root, text)
    found = evaluate(one, version(root, "SIZES = [1, 2]\n"), version(root, "SIZES = [1]\n"))
    assert (found.status, [r.status for r in found.workloads]) == ("INCONCLUSIVE", ["PASSED", "INCONCLUSIVE"])


def test_candidate_and_incumbent_take_turns(root: Path) -> None:
    order: list[str] = []

    def run(script: Script, candidate: Path, device: str, **_: Any) -> tuple[Ran, dict[str, str]]:
        order.append(candidate.stem)
        return Ran(json.dumps({"correctness": True, "latency_us": 1.0}), "", 0), {}

    one, other = root.parent / "one.py", root.parent / "two.py"
    one.write_text("1")
    other.write_text("2")
    evaluate(evaluator(root, run=run), one, other)
    assert order[:8] == ["one", "two", "two", "one", "one", "two", "two", "one"]
    assert len(order) == 2 * PAIRS


def test_a_script_that_changed_is_not_run(root: Path) -> None:
    one = evaluator(root)
    (root / "kernels" / "softmax" / "helpers.py").write_text(HELPERS + "# touched\n")
    with pytest.raises(WorkspaceFailed, match=r"kernels/softmax/helpers\.py is not the file that was hashed"):
        evaluate(one, version(root, "LATENCY = 1.0\n"))


def test_a_baseline_needs_a_pass_and_a_figure(root: Path) -> None:
    with pytest.raises(ProblemInvalid, match="reports no latency_us, gbps or tflops"):
        evaluator(root, "import json\nprint(json.dumps({'correctness': True}))\n").describe(Path(), "", "cpu")
    with pytest.raises(ProblemInvalid, match=r"does not pass on kernels/softmax/kernel\.py \(INCORRECT_NUMERICAL\)"):
        evaluator(root, "import json\nprint(json.dumps({'correctness': False}))\n").describe(Path(), "", "cpu")


def test_nothing_of_a_script_can_be_profiled_or_tried_with_wrong_kernels(root: Path) -> None:
    one = evaluator(root)
    assert one.check_problem(Path(), "", "cpu", Watch()) == []
    job = Job("verify", "", "", "", "", "cpu")
    with pytest.raises(ToolUnavailable, match="cannot be told from its own work"):
        one.kernel_times(job, "reported", Watch())


def test_the_device_and_what_it_can_reach_are_not_the_scripts_to_say(root: Path) -> None:
    one, inner = evaluator(root), FakeEvaluator()
    assert one.torch_device("cuda:0") == inner.torch_device("cuda:0")
    assert one.ceilings("cuda:0", Watch()) == inner.ceilings("cuda:0", Watch())


def test_an_interpreter_that_cannot_be_started_is_no_verdict(root: Path) -> None:
    one = evaluator(root, run=lambda *_, **__: (Ran(failure="missing"), {}))
    with pytest.raises(ToolUnavailable, match=r"interpreter cannot be started: missing; set python in kopt\.yaml"):
        evaluate(one, version(root, "LATENCY = 1.0\n"))


def test_what_the_script_compares_with_is_told_on_its_word(root: Path) -> None:
    report = {"correctness": True, "benchmarks": [{"size": s, "latency_us": 1.0, "speedup": s} for s in (2, 8)]}
    one = evaluator(root, run=lambda *_, **__: (Ran(json.dumps(report), "", 0), {}))
    found = evaluate(one, version(root, "LATENCY = 1.0\n"))
    assert found.notes[1] == "the script reports 4x of what it compares with, on its word"


def asked(root: Path, kernel: Path, device: str) -> dict[str, str]:
    """The environment that a script is to be run in, by a launcher that starts nothing."""
    seen: list[dict[str, str]] = []

    def launch(argv: Sequence[str], *, folder: Path, timeout_s: float, watch: Watch) -> Ran:
        seen.append(json.loads((folder / JOB_FILE).read_text())["environment"])
        return Ran(returncode=0)

    script = Script(root, "kernels/softmax/test_softmax.py", "kernels/softmax/kernel.py", {})
    with TemporaryDirectory() as folder:
        run = ScriptProcess(lambda: sys.executable, launch)
        run(script, kernel, device, folder=Path(folder), timeout_s=1.0, watch=Watch())
    return seen[0]


def test_a_version_that_is_gone_is_named_before_anything_runs(root: Path) -> None:
    with pytest.raises(WorkspaceFailed, match=r"lost\.py cannot be laid out for the script: No such file"):
        asked(root, root.parent / "lost.py", "cpu")


@pytest.mark.parametrize(
    ("device", "masks", "shown"),
    [
        ("cpu", {"CUDA": "4,6", "HIP": "5"}, ("", "")),
        ("cuda:1", {}, ("1", "1")),
        ("cuda:1", {"CUDA": "4, 6"}, ("6", "6")),
        ("cuda", {"CUDA": "GPU-7"}, ("GPU-7", "GPU-7")),
        ("cuda:1", {"HIP": "4,6"}, ("1", "6")),
        ("cuda:0", {"CUDA": "3", "HIP": "5,7"}, ("3", "5")),
    ],
)
def test_a_script_is_shown_the_gpu_that_is_meant_and_no_other(
    root: Path, monkeypatch: pytest.MonkeyPatch, device: str, masks: dict[str, str], shown: tuple[str, str]
) -> None:
    """A device is counted among those that the mask of its platform leaves; HIP goes by CUDA's where it has none."""
    for name in ("CUDA", "HIP"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)
    for name, mask in masks.items():
        monkeypatch.setenv(f"{name}_VISIBLE_DEVICES", mask)
    environment = asked(root, root / "kernels" / "softmax" / "kernel.py", device)
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["HIP_VISIBLE_DEVICES"]) == shown
