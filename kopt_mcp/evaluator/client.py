"""The server's side of the evaluator: what the loop may ask, and the process that answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kopt_mcp.evaluator.records import Ceilings, Evaluation, Job, KernelTime, Mutant, ProblemInfo, TorchDevice


class Watch:
    """How a long step is followed and given up: one per tool call."""

    def __init__(self, on_progress: Callable[[float, str], None] | None = None) -> None:
        self._on_progress = on_progress
        self._on_cancel: list[Callable[[], None]] = []
        self.cancelled = False

    def progress(self, fraction: float, text: str) -> None:
        """Say how far the step is, 0 to 1, and what it does."""
        if self._on_progress is not None:
            self._on_progress(fraction, text)

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Run `action` when the call is cancelled; at once if it has been."""
        self._on_cancel.append(action)
        if self.cancelled:
            action()

    def cancel(self) -> None:
        """Give the step up: its processes are ended, and it raises `Cancelled`."""
        self.cancelled = True
        for action in self._on_cancel:
            action()


class Evaluator(Protocol):
    """What the loop asks. Every method may raise `EvaluatorFailed`, `ToolUnavailable`, `ProblemInvalid`, `Cancelled`."""

    def torch_device(self, device: str) -> TorchDevice:
        """The device as the user's torch sees it."""

    def describe(self, problem: Path, sha256: str, device: str) -> ProblemInfo:
        """Load the problem file and say what it declares for `device`."""

    def ceilings(self, device: str, watch: Watch) -> Ceilings:
        """Measure what the device can reach (cached by device, driver and library versions)."""

    def check_problem(self, problem: Path, sha256: str, device: str, watch: Watch) -> list[Mutant]:
        """Try deliberately wrong implementations on the problem's own checks."""

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        """Check and, if asked, time one candidate."""

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        """Which device kernels one call of the candidate runs, and for how long (torch.profiler)."""
