"""The kernel that has Triton's compiler built ahead: what it computes, without a GPU.

Triton decides when it is imported whether it compiles or interprets, so it runs in a child process with
TRITON_INTERPRET=1: this file again, as a script that prints one line of JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SIZES = (0, 1, 1023, 1024, 1025, 5000)
"""Of none, of one block and its neighbours, and of several blocks of which the last is not full."""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")
def test_the_trivial_kernel_copies_all_of_its_input_and_writes_nothing_beside_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {str(size): [True, True] for size in SIZES}


def main() -> None:
    """By size, whether the copy is one, and whether what lies behind the target is as it was."""
    import torch

    from kopt_mcp.evaluator.trivial import copy_kernel, trivial

    found = {}
    for size in SIZES:
        x = torch.arange(float(size))
        made, target = trivial(x), torch.full((size + 2048,), -1.0)
        copy_kernel[(-(-size // 1024),)](x, target, size, BLOCK=1024)
        copied = torch.equal(made, x) and (size == 0 or made.data_ptr() != x.data_ptr())
        found[size] = [copied and torch.equal(target[:size], x), bool((target[size:] == -1).all())]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
