"""Captures the Triton launches of a kernel file with no GPU; a script, run as `PYTHON -I -B worker.py job.json`.

It runs under the user's interpreter and imports the standard library, torch and triton only. A fake driver stands for
the target's, so that Triton specialises, tunes and compiles as it would there; a launch is written down instead of run.

Job: `kernel`, `entry`, `arguments`, `target` (`backend`, `arch`, `warp_size`), `device` (see `fake_torch`),
`limits` (`shared_bytes`, `tensor_columns`, `threads`), and `folder`, where `report.jsonl` and the
compiled artefacts go. Every line of the report is one event, so that a killed worker still says how far it came:
`stage`, `compile`, `compiled`, `launch`, `error`, `done`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


class Report:
    """The events, each flushed at once."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        self.file.write(json.dumps({"event": event, **fields}, default=str) + "\n")
        self.file.flush()


def make_argument(item: Any, fake_torch: ModuleType) -> Any:
    """A scalar as it is; a tensor from `{"shape", "dtype", ...}`, zeros in pages that nothing has touched.

    `stride` and `storage_offset` (elements) are optional, as is `values`: `zeros` or `integers` from `low` to below
    `high`.
    """
    import torch

    if not isinstance(item, dict):
        return item
    shape, dtype = tuple(item["shape"]), getattr(torch, item["dtype"].removeprefix("torch."))
    stride = item.get("stride") or torch.empty(shape, device="meta").stride()
    tensor = fake_torch.untouched(shape, stride, dtype, item.get("storage_offset", 0))
    if item.get("values") == "integers":
        tensor.copy_(torch.randint(item["low"], item["high"], shape))
    return tensor


def load(path: Path, name: str) -> ModuleType:
    """Import a file by its path, under `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def explain(error: BaseException, kernel: Path) -> str:
    """The last line of the kernel's own file on the way to the error, and the error without its middle."""
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = f"{type(error).__name__}: {text[0] if text else ''}"
    if len(text) > 1:
        message += f" … {text[-1]}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == kernel]
    if not frames:
        return message
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
    return f"{kernel.name}:{frames[-1].lineno} `{line}`: {message}"


def profile(job: dict[str, Any], report: Report) -> None:
    """Import the kernel file and call its entry once, everything captured."""
    report.write("stage", stage="importing torch and triton")
    import torch  # noqa: F401
    import triton  # noqa: F401

    beside = Path(__file__).parent
    driver = load(beside / "fake_driver.py", "_kopt_fake_driver")
    try:
        driver.install(job, driver.Capture(job, report))
    except driver.UnsupportedTriton as error:
        report.write("error", kind="tool", text=str(error))
        return
    fake_torch = load(beside / "fake_torch.py", "_kopt_fake_torch")
    arguments = [make_argument(item, fake_torch) for item in job["arguments"]]
    run(job, report, arguments, fake_torch.install(job["device"]))


def run(
    job: dict[str, Any], report: Report, arguments: list[Any], mode: contextlib.AbstractContextManager[Any]
) -> None:
    """Import the kernel and call its entry under `mode`."""
    kernel = Path(job["kernel"])
    sys.path.insert(0, str(kernel.parent))
    with mode:
        report.write("stage", stage="importing the kernel")
        module = load(kernel, f"kopt_kernel_{kernel.stem}")
        if not hasattr(module, job["entry"]):
            raise AttributeError(f"{kernel.name} defines no {job['entry']}")
        report.write("stage", stage=f"running {job['entry']}")
        getattr(module, job["entry"])(*arguments)
    report.write("done")


def main() -> None:
    """Run the job of the named file; always leaves a report that ends in `done` or `error`."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    report = Report(Path(job["folder"], "report.jsonl"))
    kernel = Path(job["kernel"])
    try:
        profile(job, report)
    except ModuleNotFoundError as error:
        kind = "tool" if error.name in ("torch", "triton") else "kernel"
        report.write("error", kind=kind, text=explain(error, kernel))
    except BaseException as error:
        report.write("error", kind="kernel", text=explain(error, kernel))
    # Threads and exit handlers of the kernel's imports must not keep the worker alive.
    os._exit(0)


if __name__ == "__main__":
    main()
