"""FlashInfer-Bench and SOL-ExecBench: definitions read and checked, solutions judged, traces written."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluating import running_evaluator
from tasks import Task, load, written

from kopt_mcp.__main__ import main
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.evaluator.records import Timing, WorkloadResult
from kopt_mcp.problem import ProblemError, Spec
from kopt_mcp.problems import definitions, flashinfer, recognise, solutions
from kopt_mcp.tracing import outcome_of

REFERENCE = """
import torch

@torch.no_grad()
def run(x, gain, eps):
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * gain.to(torch.float32)).to(x.dtype), scale.squeeze(-1)
"""
DEFINITION: dict[str, Any] = {
    "name": "small_rmsnorm_h96",
    "op_type": "rmsnorm",
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 96}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "float32"},
        "gain": {"shape": ["hidden"], "dtype": "float32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "y": {"shape": ["rows", "hidden"], "dtype": "float32"},
        "scale": {"shape": ["rows"], "dtype": "float32"},
    },
    "reference": REFERENCE,
}
WORKLOAD: dict[str, Any] = {
    "uuid": "one",
    "axes": {"rows": 5},
    "inputs": {"x": {"type": "random"}, "gain": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-5}},
}
RETURNING = REFERENCE.replace("@torch.no_grad()\n", "")
WRITING = """
import torch

def run(x, gain, eps, y, scale):
    torch.rsqrt(x.pow(2).mean(-1) + eps, out=scale)
    torch.mul(x * scale[:, None], gain, out=y)
"""


def files(definition: dict[str, Any] | None = None, *workloads: dict[str, Any]) -> dict[str, str]:
    lines = [json.dumps(one) for one in workloads or (WORKLOAD, {**WORKLOAD, "uuid": "two", "axes": {"rows": 33}})]
    return {"definition.json": json.dumps(definition or DEFINITION), "workload.jsonl": "\n".join(lines) + "\n"}


def with_changed(path: str, value: Any) -> dict[str, Any]:
    """The definition with one field changed, or left out where the value is `...`."""
    made = json.loads(json.dumps(DEFINITION))
    *outer, last = path.split("/")
    holder = made
    for name in outer:
        holder = holder[name]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return made


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


@pytest.fixture(scope="module")
def norm(evaluator: LocalEvaluator, tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = written(tmp_path_factory.mktemp("norm"), files())
    return Task(evaluator, folder, folder)


def test_a_definition_is_recognised_by_its_folder_and_by_its_file(tmp_path: Path) -> None:
    found = recognise(written(tmp_path, {**files(), "kernel.py": RETURNING}))
    assert (found.format, found.name, found.missing) == ("flashinfer", "small-rmsnorm-h96", ())
    assert [p.name for p in found.files] == ["definition.json", "workload.jsonl"]
    assert found.kernel == tmp_path / "kernel.py"
    assert recognise(tmp_path / "definition.json") == found


def test_workloads_are_found_where_the_data_set_has_them(tmp_path: Path) -> None:
    there = {
        "definitions/rmsnorm/small.json": json.dumps(DEFINITION),
        "workloads/rmsnorm/small.jsonl": json.dumps({"definition": DEFINITION["name"], "workload": WORKLOAD}) + "\n",
    }
    found = recognise(written(tmp_path, there) / "definitions/rmsnorm/small.json")
    assert (found.missing, [p.name for p in found.files]) == ((), ["small.json", "small.jsonl"])


@pytest.mark.parametrize(
    ("path", "value", "missing"),
    [
        ("name", ..., r"definition.json has no field 'name'; expected a text"),
        ("axes/rows", 5, r"definition.json: axes.rows is 5; expected an object with type"),
        ("axes/rows", {"type": "free"}, r"axes.rows: field 'type' is 'free'; expected 'const', 'var' or 'expr'"),
        ("axes/hidden", {"type": "const", "value": -1}, r"axes.hidden: field 'value' is -1; expected 0 to"),
        ("axes/hidden", {"type": "const", "value": 9.5}, r"axes.hidden: field 'value' is 9.5; expected a whole number"),
        ("inputs/x/shape", ["rows", "depth"], r"inputs.x: field 'shape' names 'depth', which is no axis"),
        ("inputs/x/shape", "rows", r"inputs.x: field 'shape' is 'rows'; expected a list"),
        ("inputs/x/dtype", "float8_e4m3fn", r"inputs.x: field 'dtype' is 'float8_e4m3fn'; expected one of float64"),
        ("outputs", {}, r"field 'outputs' is empty"),
        ("outputs/x", {"shape": [], "dtype": "float32"}, r"'x' is an input and an output"),
        ("reference", "def run(:", r"field 'reference' is no Python"),
        ("reference", "x = 1", r"field 'reference' defines no 'run'"),
        ("custom_inputs_entrypoint", "draw", r"field 'reference' defines no 'draw'"),
        (
            "constraints",
            ["rows > 99"],
            r"line 1: axes \{'rows': 5\} contradict the definition's constraint 'rows > 99'",
        ),
        ("axes/half", {"type": "expr", "expression": "hidden / 5"}, r"axes.half: 'hidden / 5' gives 19.2"),
        ("axes/half", {"type": "expr", "expression": "9 ** 9 ** 9"}, r"axes.half: '9 \*\* 9 \*\* 9' gives None"),
        ("axes/half", {"type": "expr", "expression": "exit()"}, r"axes.half: 'exit\(\)' gives None"),
        ("axes/half", {"type": "expr", "expression": "1e308 * 10"}, r"axes.half: '1e308 \* 10' gives inf"),
        ("axes/half", {"type": "expr", "expression": "(-1) ** 0.5"}, r"axes.half: .* gives None"),
        ("axes/half", {"type": "expr", "expression": "hidden > 5"}, r"axes.half: 'hidden > 5' gives True"),
        ("constraints", 5, r"definition.json: field 'constraints' is 5; expected a list"),
        ("constraints", ["0 < rows < 5"], r"contradict the definition's constraint '0 < rows < 5'"),
    ],
)
def test_a_definition_that_is_wrong_is_told_the_field(tmp_path: Path, path: str, value: Any, missing: str) -> None:
    found = flashinfer.recognise(written(tmp_path, files(with_changed(path, value))))
    assert any(re.search(missing, text) for text in found.missing), found.missing


@pytest.mark.parametrize(
    ("workload", "missing"),
    [
        ({**WORKLOAD, "axes": {}}, r"workload.jsonl line 1: axes has no field 'rows'; expected a whole number"),
        ({**WORKLOAD, "axes": {"rows": True}}, r"field 'rows' is True"),
        (
            {**WORKLOAD, "inputs": {**WORKLOAD["inputs"], "eps": {"type": "random"}}},
            r"inputs.eps: a number comes from 'ran",
        ),
        (
            {**WORKLOAD, "inputs": {**WORKLOAD["inputs"], "eps": {"type": "scalar", "value": "x"}}},
            r"field 'value' is 'x'",
        ),
        ({**WORKLOAD, "inputs": {**WORKLOAD["inputs"], "x": {"type": "web"}}}, r"inputs.x: field 'type' is 'web'"),
        ({**WORKLOAD, "inputs": {**WORKLOAD["inputs"], "x": {"type": "custom"}}}, r"has no custom_inputs_entrypoint"),
        ({**WORKLOAD, "inputs": {**WORKLOAD["inputs"], "x": {"type": "safetensors"}}}, r"inputs.x has no field 'path'"),
        ({"definition": "other", "workload": WORKLOAD}, r"field 'definition' is not 'small_rmsnorm_h96'"),
        ([], r"line 1 is \[\]; expected an object with axes"),
    ],
)
def test_a_workload_that_is_wrong_is_told_line_and_field(tmp_path: Path, workload: Any, missing: str) -> None:
    found = flashinfer.recognise(written(tmp_path, files(None, workload)))
    assert any(re.search(missing, text) for text in found.missing), found.missing


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("definition.json", '{"axes": {}, "axes": {}}', "given twice"),
        ("definition.json", "[" * 100_000, "not JSON"),
        ("definition.json", '{"name": "x"}', "has no axes and no inputs"),
        ("definition.json", '{"spec": {}, "sources": []}', "is a solution; name the definition as the task"),
        ("definition.yaml", "x: 1", "neither a folder nor a .json file"),
    ],
)
def test_what_is_no_definition_is_told_why(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        recognise(written(tmp_path, {name: text}) / name)


def test_a_definition_without_workloads_is_not_complete(tmp_path: Path) -> None:
    found = recognise(written(tmp_path, {"definition.json": json.dumps(DEFINITION)}))
    assert "has no workload.jsonl beside it" in found.missing[0]


def test_bytes_are_counted_from_the_definition(tmp_path: Path) -> None:
    problem = load(written(tmp_path, files()))
    assert [w.name for w in problem.workloads] == ["rows5", "rows33"]
    assert problem.case(problem.workloads[0]).bytes == 4 * (5 * 96 + 96 + 5 * 96 + 5)
    assert problem.certain == ("bytes",)


@pytest.mark.parametrize(
    ("name", "more", "kind", "args"),
    [
        ("x", {}, "normal", {"scale": 1.0, "shift": 0.0}),
        ("input_norm_weight", {}, "normal", {"scale": 0.25, "shift": 1.0}),
        ("q_proj", {}, "normal", {"scale": 96**-0.5, "shift": 0.0}),
        ("rstd", {}, "uniform", {"low": 0.1, "high": 2.0}),
        ("cos_cached", {}, "uniform", {"low": -1.0, "high": 1.0}),
        ("x_mask", {"description": "binary mask"}, "integers", {"low": 0, "high": 2}),
        ("indices", {"dtype": "int32"}, "integers", {"low": -1024, "high": 1024}),
        ("flags", {"dtype": "bool"}, "integers", {"low": 0, "high": 2}),
        ("A", {}, "normal", {"scale": 1.0, "shift": 0.0}),
        ("routing_weights", {}, "generated", None),
    ],
)
def test_random_inputs_get_values_that_their_names_can_have(
    tmp_path: Path, name: str, more: dict[str, Any], kind: str, args: dict[str, float] | None
) -> None:
    definition = with_changed("inputs", {name: {"shape": ["rows", "hidden"], "dtype": "float32", **more}})
    definition["outputs"] = {"y": {"shape": ["rows"], "dtype": "float32"}}
    definition["reference"] = "def run(x):\n    return x.float().sum(-1)\n"
    workload = {**WORKLOAD, "inputs": {name: {"type": "random"}}}
    problem = load(written(tmp_path, files(definition, workload)))
    spec = problem.case(problem.workloads[0]).inputs[0]
    assert isinstance(spec, Spec)
    assert spec.kind == kind
    assert args is None or spec.args == args


def test_the_definitions_checks_catch_wrong_implementations(norm: Task) -> None:
    assert norm.weaknesses() == []


@pytest.mark.parametrize("text", [RETURNING, WRITING], ids=["returning", "writing"])
def test_a_solution_may_return_its_outputs_or_write_into_them(norm: Task, text: str) -> None:
    done = norm.verify(text)
    assert done.status == "PASSED", done.detail
    assert all(w.max_abs_error is not None and w.max_rel_error is not None for w in done.workloads)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (RETURNING.replace("* gain.to(torch.float32)", ""), "INCORRECT_NUMERICAL"),
        (RETURNING.replace(", scale.squeeze(-1)", ""), "INCORRECT_SHAPE"),
        (RETURNING.replace("return (", "return {'y': (").replace("squeeze(-1)", "squeeze(-1)}"), "COMPILE_ERROR"),
        (WRITING.replace("out=y", "out=torch.empty_like(y)"), "INCORRECT_NUMERICAL"),
        (WRITING.replace("run(", "other("), "COMPILE_ERROR"),
        ("run = None\n", "COMPILE_ERROR"),
    ],
)
def test_a_wrong_solution_is_refused(norm: Task, text: str, status: str) -> None:
    assert norm.verify(text).status == status


def test_outputs_in_a_dict_are_taken_by_their_names(norm: Task) -> None:
    text = RETURNING.replace("return (wide", "return {'scale': scale.squeeze(-1), 'y': (wide").replace(
        ".to(x.dtype), scale.squeeze(-1)", ".to(x.dtype)}"
    )
    assert norm.verify(text).status == "PASSED"
    assert norm.verify(text.replace("'scale'", "'scales'")).status == "RUNTIME_ERROR"


def test_inputs_of_the_definitions_own_are_drawn_on_both_sides(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    definition = with_changed("custom_inputs_entrypoint", "draw")
    definition["inputs"]["order"] = {"shape": ["rows"], "dtype": "int64"}
    definition["reference"] = """
import torch

def draw(axes_and_scalars, device):
    assert axes_and_scalars["eps"] == 1e-5
    return {"order": torch.randperm(axes_and_scalars["rows"], device=device)}

def run(x, gain, eps, order):
    return (x * gain + eps)[order], x.sum(-1)[order]
"""
    workload = {**WORKLOAD, "inputs": {**WORKLOAD["inputs"], "order": {"type": "custom"}}}
    task = Task(evaluator, written(tmp_path, files(definition, workload)), tmp_path)
    text = "def run(x, gain, eps, order):\n    return (x * gain + eps)[order], x.sum(-1)[order]\n"
    assert task.verify(text).status == "PASSED"
    assert task.verify(text.replace("[order], x", "[order.sort().values], x")).status == "INCORRECT_NUMERICAL"


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def indexed(folder: Path, content: bytes) -> Path:
    """A definition with an input from a file, in a folder of a data set."""
    definition = with_changed("inputs", {"x": {"shape": ["rows", "hidden"], "dtype": "float32"}})
    definition["inputs"]["order"] = {"shape": ["rows"], "dtype": "int32"}
    definition["outputs"] = {"y": {"shape": ["rows", "hidden"], "dtype": "float32"}}
    definition["reference"] = "def run(x, order):\n    return x[order.long()].exp()\n"
    source = {"type": "safetensors", "path": "blob/order.safetensors", "tensor_key": "order"}
    workload = {**WORKLOAD, "inputs": {"x": {"type": "random"}, "order": source}}
    written(folder / "task", files(definition, workload))
    (folder / "blob").mkdir()
    (folder / "blob/order.safetensors").write_bytes(content)
    return folder / "task"


def test_inputs_from_a_file_are_the_same_in_every_call(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    order = struct.pack("<5i", 4, 0, 0, 3, 1)
    path = indexed(tmp_path, safetensors({"order": ("I32", [5], order), "other": ("F64", [], b"\0" * 8)}))
    assert [p.name for p in recognise(path).files] == ["definition.json", "workload.jsonl", "order.safetensors"]
    task = Task(evaluator, path, tmp_path)
    assert task.verify("def run(x, order):\n    return x[[4, 0, 0, 3, 1]].exp()\n").status == "PASSED"
    assert task.verify("def run(x, order):\n    return x[[4, 0, 0, 3, 2]].exp()\n").status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (safetensors({"order": ("I64", [5], b"\0" * 40)}), r"'order' is int64 \[5\]; expected int32 \[5\]"),
        (safetensors({"order": ("I32", [6], b"\0" * 24)}), r"'order' is int32 \[6\]; expected int32 \[5\]"),
        (safetensors({"other": ("I32", [5], b"\0" * 20)}), r"holds no tensor 'order'; it holds \['other'\]"),
        (safetensors({"order": ("I32", [5], b"\0" * 20)})[:-4], "the bytes of 'order' are not all there"),
        (
            safetensors({"order": ("I32", [5], b"\0" * 20)}).replace(b"[0, 20]", b'"0, 20"'),
            "the bytes of 'order' are not all there",
        ),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
        (b"\xff" * 64, "is no safetensors file"),
        (struct.pack("<Q", 4) + b"[[[[", "its header is not JSON"),
        (struct.pack("<Q", 2) + b"[]", "its header is no object"),
    ],
)
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        load(indexed(tmp_path, content))


def test_a_file_outside_is_not_looked_for(tmp_path: Path) -> None:
    for path in ("../../../etc/passwd", "/etc/passwd", "a\0b", "nowhere/x.safetensors"):
        with pytest.raises(ProblemError, match="which is not there; fetch it first"):
            definitions.data_file(tmp_path / "definition.json", path)


SOLUTION: dict[str, Any] = {
    "name": "two files",
    "definition": DEFINITION["name"],
    "author": "somebody",
    "spec": {"languages": ["pytorch"], "entry_point": "kernel.py::norm", "destination_passing_style": True},
    "sources": [
        {"path": "kernel.py", "content": f"from parts.scales import rsqrt\n{WRITING.replace('run(', 'norm(')}"},
        {"path": "parts/scales.py", "content": "import torch\nrsqrt = torch.rsqrt\n"},
    ],
}


def solution(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda s: None) -> Path:
    made = json.loads(json.dumps(SOLUTION))
    change(made)
    return written(folder, {"solution.json": json.dumps(made)}) / "solution.json"


def test_a_solution_becomes_one_file_that_says_how_it_is_called(norm: Task, tmp_path: Path) -> None:
    text = solutions.kernel_text(solutions.solution_of(solution(tmp_path)))
    assert norm.verify(text).status == "PASSED"
    assert (
        norm.verify(text.replace("DESTINATION_PASSING = True", "DESTINATION_PASSING = False")).status == "RUNTIME_ERROR"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda s: s["spec"].update(languages=["cuda_cpp"]),
            r"field 'languages' is \['cuda_cpp'\]; expected languages wh",
        ),
        (lambda s: s["spec"].update(languages=[]), "field 'languages' is"),
        (lambda s: s["spec"].update(entry_point="main.py::norm"), r"no 'file.py::function' among the sources"),
        (lambda s: s["spec"].update(entry_point="kernel.py::a b"), r"no 'file.py::function'"),
        (lambda s: s["sources"][1].update(path="../x.py"), r"sources\[1\]: field 'path' is '../x.py'"),
        (lambda s: s["sources"][1].update(path="kernel.py"), "given once"),
        (lambda s: s["sources"].append(3), r"sources\[2\] is 3; expected an object with path"),
        (lambda s: s.pop("spec"), "has no field 'spec'"),
    ],
)
def test_a_solution_that_is_wrong_is_told_the_field(tmp_path: Path, change: Callable[..., Any], why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        solutions.solution_of(solution(tmp_path, change))


def outcome(in_trace: bool = False, **changed: Any) -> dict[str, Any] | None:
    times = {"timing": timing(20.0), "incumbent": timing(50.0)}
    result = WorkloadResult("w", "PASSED", "", 0.25, 9, max_abs_error=1e-7, max_rel_error=1e-6, **times)
    return outcome_of(definitions.Workload({}, {}, {}, in_trace), replace(result, **changed))


def timing(latency_us: float) -> Timing:
    return Timing(latency_us, latency_us, latency_us, 1, "wall", "l2_cold")


def test_a_trace_holds_the_time_beside_the_references() -> None:
    made = outcome()
    assert made is not None
    assert made["performance"] == {
        "latency_ms": 0.02,
        "reference_latency_ms": 0.05,
        "speedup_factor": 2.5,
    }
    assert made["correctness"]["max_absolute_error"] == 1e-7


@pytest.mark.parametrize(
    ("status", "word", "correctness"),
    [
        ("INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL", True),
        ("INCORRECT_SHAPE", "INCORRECT_SHAPE", False),
        ("OUT_OF_MEMORY", "RUNTIME_ERROR", False),
        ("CHEATED", "REWARD_HACK", False),
        ("TIMEOUT", "TIMEOUT", False),
    ],
)
def test_a_failure_has_their_word_and_no_performance(status: str, word: str, correctness: bool) -> None:
    made = outcome(status=status)
    assert made is not None
    assert (made["status"], made["performance"]) == (word, None)
    assert (made["correctness"] is not None) is correctness


def test_what_was_not_found_out_leaves_no_trace() -> None:
    assert outcome(status="INCONCLUSIVE") is None
    assert outcome(status="DEVICE_BUSY") is None
    assert outcome(timing=None) is None
    assert outcome(in_trace=True, status="CHEATED") is None  # FlashInfer-Bench has no word for it


def test_a_solution_is_evaluated_and_its_traces_are_appended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, out = written(tmp_path / "task", files(None, WORKLOAD)), tmp_path / "traces.jsonl"
    arguments = ["evaluate", str(solution(tmp_path)), "--problem", str(folder), "--device", "cpu", "--trace", str(out)]
    assert main(["--root", str(tmp_path), *arguments]) == 0
    assert "1 traces were appended to" in capsys.readouterr().out
    (line,) = [json.loads(one) for one in out.read_text().splitlines()]
    assert (line["definition"], line["solution"], line["workload"]) == (DEFINITION["name"], "two files", WORKLOAD)
    assert line["evaluation"]["status"] == "PASSED"
    assert line["evaluation"]["performance"]["reference_latency_ms"] > 0


def test_traces_of_what_is_no_definition_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = written(tmp_path, {"kernel.py": "KERNEL_TYPE = 'softmax'\ndef kernel_fn(x): ...\n"}) / "kernel.py"
    arguments = ["evaluate", str(kernel), "--problem", str(kernel), "--trace", str(tmp_path / "t.jsonl")]
    assert main(["--root", str(tmp_path), *arguments]) == 1
    assert "--trace is given, but the problem is no definition.json" in capsys.readouterr().err


def test_a_solution_of_another_definition_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "task", files())
    other = solution(tmp_path, lambda s: s.update(definition="gemm"))
    assert main(["--root", str(tmp_path), "evaluate", str(other), "--problem", str(folder), "--device", "cpu"]) == 1
    assert "is a solution of 'gemm', and the problem is 'small_rmsnorm_h96'" in capsys.readouterr().err
