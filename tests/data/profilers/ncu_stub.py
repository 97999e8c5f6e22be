"""Stands for ncu: prints recorded reports, in the way that the file `mode` beside it names. Never runs on a GPU.

Installed as a copy; the file `data` beside it names the folder of the reports.
"""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDE = "ncu_2025.3_h200_triton_softmax_raw_wide.csv"
DETAILS = "ncu_2025.3_h200_triton_softmax_details.txt"
REFUSED = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0."
)
NO_KERNELS = "==WARNING== No kernels were profiled.\nAvailable Kernels:\n1. softmax_kernel\n"
UNKNOWN = "lts__throughput.avg.pct_of_peak_sustained_elapsed"


def report(name: str) -> Path:
    return Path((HERE / "data").read_text(), name)


def after(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1] if option in sys.argv else ""


def target() -> list[str]:
    """The profiled program: it starts with the interpreter, which is the last absolute path before -I."""
    return sys.argv[sys.argv.index("-I") - 1 :]


def profile(mode: str, log: Path) -> int:
    if mode == "hangs":
        signal.pause()
    if mode == "runs the target":
        code = subprocess.run(target(), check=False).returncode
        log.write_text(f"==ERROR== The application returned an error code ({code}).\n")
        return 1
    if mode == "refuses":
        log.write_text(REFUSED)
        return 0
    if mode == "refuses aloud":
        print(REFUSED)
        return 1
    if mode == "sees no kernel":
        log.write_text(NO_KERNELS)
        return 0
    if mode == "knows fewer metrics" and UNKNOWN in after("--metrics"):
        log.write_text(f"==ERROR== Failed to find metric {UNKNOWN}\n")
        return 1
    if export := after("--export"):
        Path(f"{export}.ncu-rep").write_bytes(b"binary")
        return 0
    shutil.copy(report(WIDE), log)
    return 0


def main() -> int:
    if "--version" in sys.argv:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)")
        return 0
    with (HERE / "calls").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    if "--import" in sys.argv:
        print(report(WIDE if after("--page") == "raw" else DETAILS).read_text())
        return 0
    return profile((HERE / "mode").read_text(), Path(after("--log-file")))


if __name__ == "__main__":
    raise SystemExit(main())
