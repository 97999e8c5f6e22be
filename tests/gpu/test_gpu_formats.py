"""The same kernel through several formats: one verdict, and times within noise of each other.

Also a script, for a machine without pytest: `python tests/gpu/test_gpu_formats.py RESULTS.json` prints a table.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kopt_mcp.evaluator.records import Evaluation, Job  # noqa: E402
from kopt_mcp.problems import functions, recognise, source  # noqa: E402

SOFTMAX = ROOT / "skills" / "kernels" / "softmax"
WITHIN = 0.05
"""Between two processes a kernel's time differs by a few per cent; a format that added work of its own would show."""
MODULE = """

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x)
"""
KERNELBENCH = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(4096, 4096)]


def get_init_inputs():
    return []
"""


def problems(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """Name of the format, problem file, kernel."""
    text = (SOFTMAX / "triton_template.py").read_text(encoding="utf-8")
    kernel = folder / "softmax.py"
    kernel.write_text(text + MODULE, encoding="utf-8")
    yield "problem", SOFTMAX / "test_softmax.py", kernel
    told = functions.recognised("torch:softmax(dim=-1)", ["4096x4096"], [], "softmax", folder, kernel)
    yield "functions", _written(folder / "test_functions.py", source(told, folder)), kernel
    task = _written(folder / "1_softmax.py", KERNELBENCH)
    yield "kernelbench", _written(folder / "test_kernelbench.py", source(recognise(task), folder, kernel)), kernel


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def evaluated(harness: Any, problem: Path, kernel: Path, own: bool) -> tuple[Evaluation, Evaluation]:
    """The verdict, and the times beside the kernel itself."""
    hashes = [sha256(path.read_bytes()).hexdigest() for path in (problem, kernel)]
    names = ("4096x4096-fp32",) if own else None
    fields = (str(problem), hashes[0], str(kernel), hashes[1], "cuda:0", names)
    twice = Job("benchmark", *fields, incumbent=str(kernel), incumbent_sha256=hashes[1])
    loaded = harness.problem(str(problem), hashes[0])
    checked, timed = (harness.evaluate(loaded, job, lambda part, text: None) for job in (Job("verify", *fields), twice))
    return checked, timed


def run_all(folder: Path) -> dict[str, dict[str, Any]]:
    """What each format says of the kernel."""
    from kopt_mcp.evaluator.harness import Harness

    cache = folder / "evaluator"
    cache.mkdir()
    harness = Harness("cuda:0", cache)
    found = {}
    try:
        for name, problem, kernel in problems(folder):
            checked, timed = evaluated(harness, problem, kernel, name == "problem")
            times = [r.timing.latency_us for r in timed.workloads if r.timing is not None]
            found[name] = {
                "status": checked.status,
                "detail": checked.detail,
                "timed": timed.status,
                "latency_us": times[0] if times else None,
                "ratio_to_itself": timed.ratio.value if timed.ratio else None,
            }
    finally:
        harness.close()
    return found


def main(target: str) -> int:
    """Run all in this process and write what was found."""
    with tempfile.TemporaryDirectory() as place:
        results = run_all(Path(place))
    print(json.dumps(results, indent=1))
    Path(target).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


def sees_a_gpu() -> bool:
    """Asked of a process of its own: a process that has used CUDA could not fork runners any more."""
    command = [sys.executable, "-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

import pytest  # noqa: E402

pytestmark = pytest.mark.gpu


def test_one_kernel_has_one_verdict_and_one_time_in_every_format(tmp_path: Path) -> None:
    if not sees_a_gpu():
        pytest.skip("torch sees no CUDA device")
    subprocess.run([sys.executable, __file__, str(tmp_path / "found.json")], check=True)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys(found, "PASSED")
    times = [one["latency_us"] for one in found.values()]
    assert max(times) <= (1 + WITHIN) * min(times), found
