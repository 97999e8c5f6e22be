"""Bugs that other evaluators have had in public, one test each, named after the report."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from evaluating import CHEATS, Case, case, evaluate, honest, processes, ready, running_evaluator, still_works, verdict

from kopt_mcp import stats
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.evaluator.compare import expect, judge
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.records import Evaluation
from kopt_mcp.problem import Make


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


def cheat(evaluator: LocalEvaluator, name: str) -> Evaluation:
    found: Case = case(CHEATS / f"{name}.py")
    return verdict(evaluator, found)


def candidate(folder: Path, text: str) -> Path:
    file = folder / "kernel.py"
    file.write_text(text, encoding="utf-8")
    return file


def test_kernelbench_165_zeros_do_not_pass_softmax() -> None:
    """Zeros were within 1e-2 of softmax over 393216 columns, whose largest value is 2.5e-4."""
    ref = torch.softmax(torch.rand(2, 393_216, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), -1)
    assert ref.max() < 2.5e-4
    right = expect(ref, ref.float(), ref, ref, 393_216, 4.0, "ieee")
    assert judge(torch.zeros(2, 393_216), right).status == "INCORRECT_NUMERICAL"
    assert judge(ref.float(), right).status == "PASSED"


def test_kernelbench_76_a_crash_does_not_poison_the_next_evaluation(evaluator: LocalEvaluator) -> None:
    assert cheat(evaluator, "segmentation_fault").status == "RUNTIME_ERROR"
    assert still_works(evaluator)


def test_backendbench_45_a_fault_is_that_of_the_candidate_in_whose_call_it_shows(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    """The crash comes from a thread, some time after the call began; no later candidate may be blamed."""
    late = candidate(
        tmp_path,
        "import ctypes, threading, time, torch\n"
        "def softmax(x):\n"
        "    threading.Thread(target=ctypes.string_at, args=(0,)).start()\n"
        "    while True:\n        time.sleep(0.01)\n",
    )
    result = evaluate(evaluator, late, timeout_s=20)
    assert result.status == "RUNTIME_ERROR"
    assert "SIGSEGV" in result.detail
    assert still_works(evaluator)


def test_geak_254_a_cached_output_is_rejected_with_a_reason(evaluator: LocalEvaluator) -> None:
    result = cheat(evaluator, "cached_by_shape")
    assert result.status == "INCORRECT_NUMERICAL"
    assert "beyond the allowed error" in result.detail


def test_geak_316_no_verdict_without_a_check_of_this_very_source(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    """A pass needs checks; a kernel that reports its own success has none."""
    passed = evaluate(evaluator, CHEATS / "controls" / "plain.py")
    assert all(w.checks > 0 for w in passed.workloads)
    assert cheat(evaluator, "reports_that_it_passed").status == "CHEATED"


def test_geak_252_time_spent_outside_the_call_does_not_dilute_the_ratio(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    """Half a second at import is no part of the kernel's time; calls are so long that a busy machine drowns none."""
    text = (CHEATS / "controls" / "truly_faster.py").read_text().replace("import numpy", "import time\n\nimport numpy")
    slow_start = candidate(tmp_path, text + "\n\ntime.sleep(0.5)\n")
    result = evaluate(evaluator, slow_start, "softmax_tall", "benchmark", honest("softmax_tall"))
    assert result.ratio is not None
    assert result.ratio.value > 1.5


def test_reference_kernels_104_outputs_before_the_last_are_checked_too(evaluator: LocalEvaluator) -> None:
    assert cheat(evaluator, "right_at_every_second_call").status == "INCORRECT_NUMERICAL"


def test_reference_kernels_148_garbage_after_twenty_right_calls_fails(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    text = (CHEATS / "right_for_ten_calls.py").read_text().replace("<= 10", "<= 20")
    assert evaluate(evaluator, candidate(tmp_path, text)).status == "INCORRECT_NUMERICAL"


def test_reference_kernels_4ae0781_a_reference_that_is_nan_is_no_verdict_on_the_candidate(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    problem = tmp_path / "problem.py"
    text = (CHEATS / "problems" / "softmax.py").read_text()
    problem.write_text(text.replace("return exp / exp.sum(dim=-1, keepdim=True)", "return exp * torch.inf * 0"))
    assert evaluate(evaluator, CHEATS / "controls" / "plain.py", problem).status == "INVALID_PROBLEM"


def test_triton_6868_a_kernel_that_takes_no_time_has_a_verdict(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    nothing = candidate(tmp_path, "def softmax(x):\n    return None\n")
    assert evaluate(evaluator, nothing).status == "INCORRECT_SHAPE"
    claimed = cheat(evaluator, "claims_zero")
    assert claimed.ratio is not None
    assert claimed.ratio.low < 1.5, "it was not asked"


def test_backendbench_allclose_a_tighter_tolerance_changes_the_verdict() -> None:
    ref = torch.linspace(1, 2, 1000, dtype=torch.float64)
    out = (ref * (1 + 24 * 2.0**-24)).float()
    wide, narrow = (expect(ref, ref.float(), ref, None, 0.0, factor, "ieee") for factor in (64.0, 4.0))
    assert judge(out[:32], _first(wide, 32)).status == "PASSED"
    assert judge(out[:32], _first(narrow, 32)).status == "INCORRECT_NUMERICAL"


def _first(expected: object, count: int) -> object:
    from dataclasses import replace

    cut = {name: getattr(expected, name)[:count] for name in ("ref", "error_lp", "sensitivity")}
    return replace(expected, **cut)  # type: ignore[type-var]


def test_backendbench_eval_a_failed_kernel_is_not_counted_as_one(evaluator: LocalEvaluator) -> None:
    failed = evaluate(evaluator, CHEATS / "zeros.py", kind="benchmark", incumbent=honest("softmax"))
    assert failed.status == "INCORRECT_NUMERICAL"
    assert failed.ratio is None


def test_tritonbench_109_a_minimum_is_not_the_maximum() -> None:
    values = [3.0, 1.0, 2.0]
    assert (stats.quantile(values, 0.0), stats.median(values), stats.quantile(values, 1.0)) == (1.0, 2.0, 3.0)


def test_atropos_289_a_hung_kernel_is_given_up_and_nothing_of_it_is_left(evaluator: LocalEvaluator) -> None:
    ready(evaluator)
    before = processes()
    assert cheat(evaluator, "runs_for_ever").status == "TIMEOUT"
    assert processes() == before
    assert still_works(evaluator)


def test_robust_kbench_a_megabyte_of_output_is_no_timeout(evaluator: LocalEvaluator) -> None:
    assert cheat(evaluator, "prints_ten_megabytes").status == "PASSED"


def test_robust_kbench_a_crash_never_reads_the_results_of_the_run_before(evaluator: LocalEvaluator) -> None:
    assert still_works(evaluator)
    crashed = cheat(evaluator, "os_exit_with_zero")
    assert crashed.status in ("RUNTIME_ERROR", "CHEATED")
    assert all(w.timing is None for w in crashed.workloads)


def test_cuda_agent_16_tf32_fails_where_the_problem_asks_for_float32(evaluator: LocalEvaluator) -> None:
    assert cheat(evaluator, "tf32_inside").status == "INCORRECT_NUMERICAL"


def test_pytorch_45294_one_element_beside_an_input_is_seen_although_no_allocator_would_mind(
    evaluator: LocalEvaluator,
) -> None:
    result = cheat(evaluator, "writes_beside_its_input")
    assert "it wrote outside its inputs" in result.detail


def test_cuda_kernel_verifier_inputs_are_the_candidates_own_copy() -> None:
    make = Make("float32")
    recipe = [make.normal(8)]
    spoilt = draw(recipe, [], 1, "cpu").args[0]
    spoilt.zero_()
    assert draw(recipe, [], 1, "cpu").args[0].abs().sum() > 0


def test_kernelbot_the_last_key_does_not_win(evaluator: LocalEvaluator) -> None:
    result = cheat(evaluator, "sends_duplicate_keys")
    assert (result.status, "duplicate key" in result.detail) == ("CHEATED", True)


def test_flashinfer_bench_an_all_nan_reference_accepts_nothing(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    text = (CHEATS / "problems" / "softmax.py").read_text()
    problem.write_text(text.replace("return exp / exp.sum(dim=-1, keepdim=True)", "return x * torch.nan"))
    assert evaluate(evaluator, CHEATS / "zeros.py", problem).status == "INVALID_PROBLEM"
