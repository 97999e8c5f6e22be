"""Does every shipped problem refuse wrong kernels on this device? python tests/gpu/mutants.py [DEVICE [TEST ...]]

Each is tried as `baseline` tries it: wrong implementations go through the problem's own checks, and none may pass.
"""

from __future__ import annotations

import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kopt_mcp.evaluator.harness import Harness  # noqa: E402


def main(device: str = "cuda:0", *tests: str) -> int:
    """Print a line a problem; how many let a wrong kernel pass."""
    paths = [Path(test) for test in tests] or sorted((ROOT / "skills" / "kernels").glob("*/test_*.py"))
    weak = 0
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(device, Path(folder))
        try:
            for path in paths:
                begin = time.perf_counter()
                problem = harness.problem(str(path), sha256(path.read_bytes()).hexdigest())
                tried = harness.check_problem(problem)
                passed = [mutant.name for mutant in tried if not mutant.caught]
                weak += bool(passed)
                verdict = f"let pass: {', '.join(passed)}" if passed else "all refused"
                seconds = time.perf_counter() - begin
                print(f"{path.stem:<32} {len(tried)} wrong kernels, {verdict}, {seconds:.1f} s", flush=True)
        finally:
            harness.close()
    return weak


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
