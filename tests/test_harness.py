"""The harness as the server sees it: requests answered, and errors that say which kind they are."""

import os
import py_compile
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from evaluating import CHEATS, PROBLEMS, digest, evaluate, running_evaluator

from kopt_mcp.errors import Cancelled, EvaluatorFailed, ProblemInvalid, ToolUnavailable, WorkspaceFailed
from kopt_mcp.evaluator import own_files, serving
from kopt_mcp.evaluator.channel import Channel
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.harness import Harness, HarnessError, load_problem
from kopt_mcp.evaluator.records import Ceilings, Evaluation, Job
from kopt_mcp.evaluator.serving import serve
from kopt_mcp.watch import Watch

SOFTMAX = PROBLEMS / "softmax.py"
PLAIN = CHEATS / "controls" / "plain.py"


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


def test_a_device_is_described_by_the_users_torch(evaluator: LocalEvaluator) -> None:
    device = evaluator.torch_device("cpu")
    assert (device.kind, device.index) == ("cpu", 0)
    assert device.versions["torch"]
    assert device.l2_bytes > 0


def test_a_problem_is_described_for_its_device(evaluator: LocalEvaluator) -> None:
    info = evaluator.describe(SOFTMAX, digest(SOFTMAX), "cpu")
    assert (info.name, info.entry, info.bound) == ("softmax", "softmax", "memory")
    assert [w.name for w in info.workloads if w.timed] == ["96x512-fp32"]
    assert info.workloads[0].bytes == 2 * 96 * 512 * 4


DOUBLING = "def reference(x):\n    return 2.0 * x\n"
TRIPLING = "def reference(x):\n    return 3.0 * x\n"
IMPORTING = """import os, sys
sys.path.append(os.path.dirname(__file__))
from own_reference import reference
from kopt_mcp.problem import Problem, Workload
PROBLEM = Problem(name="twice", reference=reference, inputs=lambda make, n: [make.normal(n)],
    workloads=[Workload({"n": 64})], bytes="8 * n", flops="n", bound="memory")
"""


def judged_by(evaluator: LocalEvaluator, folder: Path, reference: str = "", keep_time: bool = False) -> str:
    """The verdict on a kernel that doubles, by a problem that takes its reference from a module beside it."""
    folder.mkdir(exist_ok=True)
    module, kernel, problem = (folder / name for name in ("own_reference.py", "kernel.py", "test_twice.py"))
    before = module.stat() if module.exists() else None
    if reference:
        module.write_text(reference, encoding="utf-8")
    if keep_time and before:
        os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    kernel.write_text("def twice(x):\n    return x + x\n", encoding="utf-8")
    problem.write_text(IMPORTING, encoding="utf-8")
    return evaluate(evaluator, kernel, problem).status


def test_a_module_of_the_problem_counts_as_it_is_now_and_in_its_own_folder(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    assert judged_by(evaluator, tmp_path / "a", DOUBLING) == "PASSED"
    assert judged_by(evaluator, tmp_path / "b", TRIPLING) == "INCORRECT_NUMERICAL"
    assert judged_by(evaluator, tmp_path / "a") == "PASSED"
    assert judged_by(evaluator, tmp_path / "a", TRIPLING, keep_time=True) == "INCORRECT_NUMERICAL"


def test_a_module_of_the_problem_is_its_source_and_nothing_compiled_beside_it(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    module = tmp_path / "own_reference.py"
    module.write_text(DOUBLING, encoding="utf-8")
    py_compile.compile(str(module), doraise=True)
    (tmp_path / f"own_reference{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    assert judged_by(evaluator, tmp_path, TRIPLING, keep_time=True) == "INCORRECT_NUMERICAL"


def test_a_problem_says_which_modules_of_the_users_own_it_imported(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    assert judged_by(evaluator, tmp_path, DOUBLING) == "PASSED"
    problem = tmp_path / "test_twice.py"
    seen = evaluator.describe(problem, digest(problem), "cpu").files
    assert seen == {str(tmp_path / "own_reference.py"): digest(tmp_path / "own_reference.py")}
    assert evaluator.describe(SOFTMAX, digest(SOFTMAX), "cpu").files == {}


LOADING = """import importlib.util, os, sys
def load():
    path = os.path.join(os.path.dirname(__file__), "own_reference.py")
    spec = importlib.util.spec_from_file_location("own_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
reference = load().reference
"""
FINDING = """import importlib.util, os, sys
class Finder:  # as an editable install has one
    @staticmethod
    def find_spec(name, path=None, target=None):
        file = os.path.join(os.path.dirname(__file__), name + ".py")
        return importlib.util.spec_from_file_location(name, file) if name == "own_reference" else None
sys.meta_path.append(Finder)
from own_reference import reference
"""


@pytest.mark.parametrize("way", [LOADING, FINDING], ids=["by a loader", "by a finder of its own"])
def test_a_module_that_is_not_found_on_the_path_is_noted_too_and_taken_from_its_source(
    evaluator: LocalEvaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    rest = IMPORTING[IMPORTING.index("from kopt_mcp") :]
    monkeypatch.setattr(sys.modules[__name__], "IMPORTING", way + rest)
    module, problem = tmp_path / "own_reference.py", tmp_path / "test_twice.py"
    module.write_text(DOUBLING, encoding="utf-8")
    py_compile.compile(str(module), doraise=True)
    assert judged_by(evaluator, tmp_path, TRIPLING, keep_time=True) == "INCORRECT_NUMERICAL"
    assert evaluator.describe(problem, digest(problem), "cpu").files == {str(module): digest(module)}
    assert judged_by(evaluator, tmp_path, DOUBLING, keep_time=True) == "PASSED"


REGISTERED = """import enum, torch
class Mode(enum.Enum):
    TWICE = 2
LIBRARY = torch.library.Library("kopt_test_own", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: Mode.TWICE.value * x, "CompositeExplicitAutograd")
"""
WITH_AN_OPERATOR = """import pickle, torch
import sys; sys.path.append({folder!r})
import own_operators
from own_operators import Mode
from kopt_mcp.problem import Problem, Workload
def reference(x):
    from own_factor import FACTOR
    assert pickle.loads(pickle.dumps(Mode.TWICE)) is own_operators.Mode.TWICE
    return FACTOR * torch.ops.kopt_test_own.twice(x)
PROBLEM = Problem(name="twice", reference=reference, inputs=lambda make, n: [make.normal(n)],
    workloads=[Workload({{"n": 64}})], bytes="8 * n", flops="n", bound="memory")
"""


def test_two_problems_may_import_a_module_that_gives_torch_operators_and_one_may_change(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    (tmp_path / "own_operators.py").write_text(REGISTERED, encoding="utf-8")
    (tmp_path / "own_factor.py").write_text("FACTOR = 1\n", encoding="utf-8")
    kernel, one, other = (tmp_path / name for name in ("kernel.py", "test_one.py", "test_other.py"))
    kernel.write_text("def twice(x):\n    return x + x\n", encoding="utf-8")
    one.write_text(WITH_AN_OPERATOR.format(folder=str(tmp_path)), encoding="utf-8")
    other.write_text(one.read_text() + "# the other\n", encoding="utf-8")
    assert [evaluate(evaluator, kernel, problem).status for problem in (one, SOFTMAX, other, one)] == [
        "PASSED",
        "COMPILE_ERROR",  # it has no such function
        "PASSED",
        "PASSED",
    ]
    one.write_text(one.read_text() + "# changed\n", encoding="utf-8")
    assert evaluate(evaluator, kernel, one).status == "PASSED"
    (tmp_path / "own_factor.py").write_text("FACTOR = 3\n", encoding="utf-8")
    assert evaluate(evaluator, kernel, one).status == "INCORRECT_NUMERICAL"


def test_what_a_problem_did_to_torch_is_not_there_when_another_is_judged(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    meddler = tmp_path / "test_meddler.py"
    meddling = (
        "import torch\ntorch.allclose = torch.equal = lambda *a, **k: True\ntorch.set_default_dtype(torch.float64)\n"
    )
    looking = tmp_path / "test_looking.py"
    looks = "import torch\nassert torch.get_default_dtype() == torch.float32\nassert not torch.equal(*torch.eye(2))\n"
    rest = IMPORTING.partition("from own_reference import reference\n")[2]
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def twice(x):\n    return x + x\n", encoding="utf-8")
    for fails in ("", "raise ValueError('after it has meddled')\n"):
        meddler.write_text(meddling + fails + DOUBLING + rest, encoding="utf-8")
        looking.write_text(looks + DOUBLING + rest, encoding="utf-8")
        with suppress(ProblemInvalid):
            evaluator.describe(meddler, digest(meddler), "cpu")
        assert evaluate(evaluator, kernel, looking).status == "PASSED"


READING = """import json, os
with open(os.path.join(os.path.dirname(__file__), "data", "factor.json"), "rb") as file:
    FACTOR = json.load(file)
def reference(x):
    return FACTOR * x
"""


def test_data_that_a_problem_reads_are_a_part_of_it(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    kernel, problem, data = tmp_path / "kernel.py", tmp_path / "test_twice.py", tmp_path / "data" / "factor.json"
    kernel.write_text("def twice(x):\n    return x + x\n", encoding="utf-8")
    problem.write_text(READING + IMPORTING.partition("from own_reference import reference\n")[2], encoding="utf-8")
    data.parent.mkdir()
    data.write_text("2", encoding="utf-8")
    assert evaluator.describe(problem, digest(problem), "cpu").files == {str(data): digest(data)}
    assert evaluate(evaluator, kernel, problem).status == "PASSED"
    data.write_text("3", encoding="utf-8")
    assert evaluate(evaluator, kernel, problem).status == "INCORRECT_NUMERICAL"


def test_what_lies_in_a_folder_that_begins_with_a_dot_and_what_is_no_file_is_no_part_of_a_problem(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    problem, kept, loop = (tmp_path / name for name in ("test_twice.py", ".kept/factor.txt", "loop"))
    loop.symlink_to(loop)
    kept.parent.mkdir()
    kept.write_text("2", encoding="utf-8")
    reading = (
        f"open({str(kept)!r}).read()\n"
        f"try:\n    open({str(loop)!r})\nexcept OSError as error:\n    assert 'too many' in str(error).lower()\n"
    )
    rest = DOUBLING + IMPORTING.partition("from own_reference import reference\n")[2]
    problem.write_text(reading + rest, encoding="utf-8")
    assert evaluator.describe(problem, digest(problem), "cpu").files == {}


def test_a_file_whose_place_a_folder_has_taken_has_changed(tmp_path: Path) -> None:
    data = tmp_path / "factor.txt"
    data.write_text("2", encoding="utf-8")
    noted = {str(data): digest(data)}
    assert own_files.changed(noted) == ""
    data.unlink()
    data.mkdir()
    assert own_files.changed(noted) == "factor.txt"


def test_what_a_problem_writes_itself_is_no_part_of_it_and_what_it_rewrites_is_refused(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    kernel, problem, data = (tmp_path / name for name in ("kernel.py", "test_twice.py", "factor.txt"))
    kernel.write_text("def twice(x):\n    return x + x\n", encoding="utf-8")
    rest = DOUBLING + IMPORTING.partition("from own_reference import reference\n")[2]
    problem.write_text(f"P = {str(data)!r}\nopen(P, 'w').write('2')\nF = open(P).read()\n{rest}", encoding="utf-8")
    assert evaluator.describe(problem, digest(problem), "cpu").files == {}
    assert evaluate(evaluator, kernel, problem).status == "PASSED"
    problem.write_text(f"P = {str(data)!r}\nF = open(P).read()\nopen(P, 'w').write(F + '2')\n{rest}", encoding="utf-8")
    with pytest.raises(ProblemInvalid, match=r"reads factor\.txt and changes it as it loads"):
        evaluator.describe(problem, digest(problem), "cpu")


def test_a_problem_is_compiled_by_its_own_future_only(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    problem = tmp_path / "test_twice.py"
    own = "def typed(a: int) -> None: ...\nassert typed.__annotations__['a'] is int\n"
    problem.write_text(
        own + DOUBLING + IMPORTING.partition("from own_reference import reference\n")[2], encoding="utf-8"
    )
    assert evaluator.describe(problem, digest(problem), "cpu").name == "twice"


RUNS_ITS_KERNEL = {
    "by its name": "sys.path.append(os.path.dirname(__file__)); from twice import reference",
    "by its path": "run = runpy.run_path(KERNEL); reference = run['reference']",
    "by its text": "exec(compile(open(KERNEL).read(), KERNEL, 'exec'))",
    "by its text, without a name": "exec(open(KERNEL).read())",
    "when it is called": "reference = lambda x: runpy.run_path(KERNEL)['reference'](x)",
}


@pytest.mark.parametrize("way", RUNS_ITS_KERNEL)
def test_a_problem_may_not_run_the_kernel_that_it_judges(evaluator: LocalEvaluator, tmp_path: Path, way: str) -> None:
    kernel, problem = tmp_path / "twice.py", tmp_path / "test_twice.py"
    kernel.write_text(f"{DOUBLING}def twice(x):\n    return 2.0 * x\n", encoding="utf-8")
    head = (
        f"import os, runpy, sys\nKERNEL = os.path.join(os.path.dirname(__file__), 'twice.py')\n{RUNS_ITS_KERNEL[way]}\n"
    )
    problem.write_text(head + IMPORTING.partition("from own_reference import reference\n")[2], encoding="utf-8")
    evaluator.describe(problem, digest(problem), "cpu")
    with pytest.raises(ProblemInvalid, match="is the kernel that is judged"):
        evaluate(evaluator, kernel, problem)
    kernel.write_text(kernel.read_text(encoding="utf-8").replace("2.0", "3.0"), encoding="utf-8")
    with suppress(ProblemInvalid):  # or judged by what it was
        assert evaluate(evaluator, kernel, problem).status == "INCORRECT_NUMERICAL"
    assert evaluate(evaluator, PLAIN).status == "PASSED"


def test_mutants_are_tried_through_the_same_process(evaluator: LocalEvaluator) -> None:
    found = evaluator.check_problem(SOFTMAX, digest(SOFTMAX), "cpu", Watch())
    assert all(m.caught for m in found)


def test_a_verdict_carries_isolation_versions_and_checks(evaluator: LocalEvaluator) -> None:
    result = evaluate(evaluator, PLAIN)
    assert result.status == "PASSED"
    namespaces = {"network", "privileges", "shared memory", "processes", "system calls"}
    assert set(result.isolation) == {"session", "limits", *namespaces, "landlock"}
    assert set(result.environment) >= {"python", "torch"}
    assert all(w.checks > 3 and w.error_ratio is not None for w in result.workloads)


def test_a_wrong_kernel_is_told_where_at_the_public_seed_only(evaluator: LocalEvaluator) -> None:
    shown = evaluate(evaluator, CHEATS / "zeros.py")
    assert "public seed: expected" in shown.detail
    hidden = evaluate(evaluator, CHEATS / "public_seed_only.py")
    assert hidden.status == "INCORRECT_NUMERICAL"
    assert "expected" not in hidden.detail.replace("beyond the allowed", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise PermissionError(13, 'Permission denied')", True),
        ("raise RuntimeError('unable to open </x>: Permission denied (13)')", True),  # as torch has it
        ("raise RuntimeError('no')", False),
    ],
)
def test_a_kernel_that_was_denied_something_is_told_by_whom(
    evaluator: LocalEvaluator, tmp_path: Path, text: str, told: bool
) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(f"def softmax(x):\n    {text}\n", encoding="utf-8")
    result = evaluate(evaluator, kernel)
    assert result.status == "RUNTIME_ERROR"
    assert ("a kernel is shut in: it may write into its own folder" in result.detail) == told


def test_progress_is_reported(evaluator: LocalEvaluator) -> None:
    seen: list[tuple[float, str]] = []
    job = Job("verify", str(SOFTMAX), digest(SOFTMAX), str(PLAIN), digest(PLAIN), "cpu")
    evaluator.evaluate(job, Watch(lambda fraction, text: seen.append((fraction, text))))
    assert [text for _, text in seen][:2] == ["starting the candidate", "checking 3x257-fp32"]
    assert all(0 <= fraction <= 1 for fraction, _ in seen)


def test_confirm_times_and_checks_in_fresh_processes(evaluator: LocalEvaluator) -> None:
    result = evaluate(evaluator, PLAIN, kind="confirm")
    assert result.status == "PASSED"
    assert [w.workload for w in result.workloads if w.timing is not None] == ["96x512-fp32"]
    assert len(result.workloads) == 4
    assert evaluate(evaluator, CHEATS / "no_max_subtraction.py", kind="confirm").status == "INCORRECT_NUMERICAL"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A harness in this process."""
    made = Harness("cpu", tmp_path_factory.mktemp("harness"), fork=False)
    made.adopt_ceilings(Ceilings(1e3, 1e3, {}, "not this machine"))
    yield made
    made.close()


def judged(
    own: Harness,
    kind: Literal["verify", "benchmark", "confirm"],
    kernel: Path,
    file: Path,
    told: list[str] | None = None,
) -> Evaluation:
    said = [] if told is None else told
    job = Job(kind, str(file), digest(file), str(kernel), digest(kernel), "cpu", timeout_s=60.0)
    return own.evaluate(own.problem(job.problem, job.problem_sha256), job, lambda fraction, text: said.append(text))


C_PROBLEM, C_KERNEL = PROBLEMS / "softmax_c.py", CHEATS / "controls" / "c_with_openmp.c"


def test_a_confirmation_of_a_kernel_that_is_wrong_where_it_is_not_timed_is_a_refusal(
    own: Harness, tmp_path: Path
) -> None:
    kernel = tmp_path / "kernel.c"
    right = C_KERNEL.read_text(encoding="utf-8")
    kernel.write_text(right.rstrip().removesuffix("}") + "if (rows == 3) out[0] = 7.0f;\n}\n", encoding="utf-8")
    told: list[str] = []
    result = judged(own, "confirm", kernel, C_PROBLEM, told)
    assert any("block(s) timed, 0 workload(s) undecided" in text for text in told), "the timed one has 96 rows"
    assert result.status == "INCORRECT_NUMERICAL"
    assert result.ratio is None
    assert all(workload.timing is None for workload in result.workloads), "and no time of it is told"


def test_a_problem_of_which_nothing_is_timed_is_verified_and_cannot_be_benchmarked(
    own: Harness, tmp_path: Path
) -> None:
    file = tmp_path / "test_softmax.py"
    text = C_PROBLEM.read_text(encoding="utf-8")
    file.write_text(text.replace('"cols": 512})', '"cols": 512}, timed=False)'), encoding="utf-8")
    assert judged(own, "verify", C_KERNEL, file).status == "PASSED"
    with pytest.raises(
        HarnessError, match="'softmax' has no timed workload for cpu, so that there is nothing"
    ) as caught:
        judged(own, "benchmark", C_KERNEL, file)
    assert caught.value.kind == "ProblemInvalid"


@pytest.mark.parametrize("status", ["RUNTIME_ERROR", "TIMEOUT", "INCORRECT_NUMERICAL"])
@pytest.mark.parametrize("state", ["well", "wrong", "broken"])
def test_a_candidate_does_not_answer_for_a_device_on_which_a_known_good_kernel_fails_too(
    own: Harness, monkeypatch: pytest.MonkeyPatch, status: str, state: str
) -> None:
    arange = torch.arange

    def fails(*_: Any) -> Evaluation:
        raise Fault(status, "an illegal memory access")

    def of_device(*args: Any, **how: Any) -> torch.Tensor:
        if state == "broken":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return arange(*args, **how) + (1.0 if state == "wrong" else 0.0)

    monkeypatch.setattr(own, "_verify", fails)
    monkeypatch.setattr(torch, "arange", of_device)
    result = judged(own, "verify", C_KERNEL, C_PROBLEM)
    if state == "well" or status == "INCORRECT_NUMERICAL":
        assert (result.status, result.detail) == (status, "an illegal memory access")
    else:
        assert result.status == "DEVICE_UNHEALTHY"
        assert result.detail == "a known good kernel fails too, after: an illegal memory access"


def test_an_incumbent_that_does_not_load_leaves_the_question_open(evaluator: LocalEvaluator) -> None:
    result = evaluate(evaluator, PLAIN, kind="benchmark", incumbent=CHEATS / "no_such_function.py")
    assert result.status == "INCONCLUSIVE"
    assert result.detail.startswith("the incumbent failed, not the candidate")


def test_a_triton_kernel_is_not_timed_without_a_gpu(evaluator: LocalEvaluator) -> None:
    with pytest.raises(ToolUnavailable, match="benchmark needs a machine with a GPU"):
        evaluate(evaluator, CHEATS / "controls" / "triton_kernel.py", kind="benchmark")


def test_a_file_that_changed_after_it_was_hashed_is_refused(evaluator: LocalEvaluator) -> None:
    job = Job("verify", str(SOFTMAX), digest(SOFTMAX), str(PLAIN), "0" * 64, "cpu")
    with pytest.raises(WorkspaceFailed, match="is not the one that was hashed"):
        evaluator.evaluate(job, Watch())
    with pytest.raises(WorkspaceFailed, match="is not the one that was hashed"):
        evaluator.describe(SOFTMAX, "0" * 64, "cpu")


def test_a_file_that_is_not_there_is_named(evaluator: LocalEvaluator) -> None:
    job = Job("verify", str(SOFTMAX), digest(SOFTMAX), "/no/such/kernel.py", "0" * 64, "cpu")
    with pytest.raises(WorkspaceFailed, match=r"'/no/such/kernel\.py' cannot be read: No such file"):
        evaluator.evaluate(job, Watch())


def test_a_workload_that_is_not_declared_is_named(evaluator: LocalEvaluator) -> None:
    with pytest.raises(ProblemInvalid, match="has no cpu workload 'huge'"):
        evaluate(evaluator, PLAIN, workloads=("huge",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", r"declares no PROBLEM"),
        ("PROBLEM = 7\n", r"declares no PROBLEM"),
        ("x = 1\nimport a_package_that_is_not_there\n", r"line 2: ModuleNotFoundError"),
        ("def f(:\n", r"line 1: SyntaxError"),
        ("import sys\nsys.exit(3)\n", r"line 2: SystemExit: 3"),
        ("from kopt_mcp.problem import Workload\nWorkload({}, 'fp8')\n", r"p\.py: dtype 'fp8' is not known"),
    ],
)
def test_a_problem_that_does_not_load_says_which_line(text: str, words: str) -> None:
    with pytest.raises(HarnessError, match=words) as caught:
        load_problem(text.encode(), "/somewhere/p.py")
    assert caught.value.kind == "ProblemInvalid"


def test_a_problem_error_crosses_to_the_server(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("x = 1\n")
    with pytest.raises(ProblemInvalid, match=r"p\.py declares no PROBLEM"):
        evaluator.describe(file, digest(file), "cpu")


def test_a_reference_that_is_nan_is_the_problems_fault(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(SOFTMAX.read_text().replace("return exp / exp.sum(dim=-1, keepdim=True)", "return x.sqrt()"))
    assert evaluate(evaluator, PLAIN, file).status == "INVALID_PROBLEM"
    with pytest.raises(ProblemInvalid, match="mend the reference or the inputs"):
        evaluator.check_problem(file, digest(file), "cpu", Watch())


def test_the_same_answers_come_over_a_channel_in_this_process(tmp_path: Path) -> None:
    """Here and not in the client's process, where nothing measures which lines a test reaches."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(Channel(theirs), "cpu", tmp_path, False))
    thread.start()
    channel = Channel(ours)

    def ask(**request: Any) -> dict[str, Any]:
        channel.send(request)
        while (message := channel.receive(120))["event"] == "progress":
            assert 0 <= message["fraction"] <= 1
        return message

    problem = {"problem": str(SOFTMAX), "sha256": digest(SOFTMAX)}
    job: dict[str, Any] = asdict(Job("verify", str(SOFTMAX), digest(SOFTMAX), str(PLAIN), digest(PLAIN), "cpu"))
    known = {"copy_gbps": 1e6, "triad_gbps": 1e6, "tflops": {}, "measured_on": "paper"}
    beside = {"incumbent": str(PLAIN), "incumbent_sha256": digest(PLAIN), "floor": 0.2}
    assert ask(op="torch_device")["result"]["kind"] == "cpu"
    assert ask(op="describe", **{**problem, "sha256": "0"})["kind"] == "WorkspaceFailed"
    assert ask(op="describe", **problem)["result"]["entry"] == "softmax"
    assert all(m["caught"] for m in ask(op="check_problem", **problem)["result"])
    assert ask(op="ceilings", known=known)["result"] == known
    assert ask(op="evaluate", job=job)["result"]["status"] == "PASSED"
    assert ask(op="evaluate", job={**job, **beside, "kind": "confirm"})["result"]["status"] == "PASSED"
    assert ask(op="kernel_times", job=job, workload="3x257-fp32")["result"]
    assert ask(op="evaluate", job={**job, "workloads": ["huge"]})["kind"] == "ProblemInvalid"
    assert ask(op="evaluate", job={**job, "kind": 7, "nonsense": 1})["kind"] == "EvaluatorFailed"
    assert ask(op="describe", **{**problem, "problem": "test_other.py"}) == {"event": "outlived"}
    channel.close()
    thread.join()
    theirs.close()


def test_a_server_that_asks_nothing_has_no_device_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(serving, "Harness", lambda device, *_: made.append(device))
    ours, theirs = socket.socketpair()
    ours.close()
    serve(Channel(theirs), "cuda:0", tmp_path)
    theirs.close()
    assert made == []


def test_a_workload_that_no_memory_holds_is_told_to_be_smaller(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    problem, kernel = tmp_path / "test_twice.py", tmp_path / "kernel.py"
    rest = IMPORTING.partition("from own_reference import reference\n")[2].replace(
        '{"n": 64}', '{"n": 400_000_000_000}'
    )
    problem.write_text(DOUBLING + rest, encoding="utf-8")
    kernel.write_text("def twice(x):\n    return x + x\n", encoding="utf-8")
    with pytest.raises(ProblemInvalid, match=r"too little memory to check this problem.*smaller workloads"):
        evaluate(evaluator, kernel, problem)


def test_a_module_beside_the_problem_that_is_not_found_is_pointed_at(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    problem = tmp_path / "test_twice.py"
    problem.write_text("from beside import reference\n", encoding="utf-8")
    (tmp_path / "beside.py").write_text(DOUBLING, encoding="utf-8")
    with pytest.raises(ProblemInvalid, match=r"it lies beside it: put sys\.path\.insert"):
        evaluator.describe(problem, digest(problem), "cpu")


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolUnavailable, match="the interpreter '/no/such/python' cannot be started"):
        LocalEvaluator("/no/such/python", tmp_path).torch_device("cpu")


def test_an_interpreter_without_torch_is_told_how_to_get_it(tmp_path: Path) -> None:
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.symlink_to(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    local = LocalEvaluator(str(bare), tmp_path)
    with pytest.raises(ToolUnavailable, match="has no torch; run"):
        local.torch_device("cpu")
    local.close()


def test_a_cancelled_call_ends_its_processes_and_the_next_one_works(evaluator: LocalEvaluator) -> None:
    watch = Watch()
    watch.cancel()
    job = Job("verify", str(SOFTMAX), digest(SOFTMAX), str(PLAIN), digest(PLAIN), "cpu")
    with pytest.raises(Cancelled):
        evaluator.evaluate(job, watch)
    assert evaluate(evaluator, PLAIN).status == "PASSED"


def test_a_harness_that_dies_is_an_error_and_the_next_call_starts_another(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    file = tmp_path / "p.py"
    file.write_text("import os\nos._exit(3)\n")
    with pytest.raises(EvaluatorFailed, match="ended unexpectedly"):
        evaluator.describe(file, digest(file), "cpu")
    assert evaluate(evaluator, PLAIN).status == "PASSED"


def test_ceilings_are_measured_once_and_kept(evaluator: LocalEvaluator) -> None:
    first: Any = evaluator.ceilings("cpu", Watch())
    assert first.copy_gbps > 0
    assert first.tflops["fp32"] > 0
    assert evaluator.ceilings("cpu", Watch()) == first


def test_operators_of_one_call_are_listed_with_their_times(evaluator: LocalEvaluator) -> None:
    job = Job("verify", str(SOFTMAX), digest(SOFTMAX), str(PLAIN), digest(PLAIN), "cpu")
    rows = evaluator.kernel_times(job, "96x512-fp32", Watch())
    assert any("softmax" in r.name and r.calls >= 1 and r.total_us > 0 for r in rows)
    failing = CHEATS / "exits_with_zero.py"
    with pytest.raises(ToolUnavailable, match=r"torch\.profiler saw nothing"):
        evaluator.kernel_times(
            Job("verify", str(SOFTMAX), digest(SOFTMAX), str(failing), digest(failing), "cpu"), "96x512-fp32", Watch()
        )
