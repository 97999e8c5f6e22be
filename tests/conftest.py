"""A project with one kernel and one problem in a temporary folder, and a loop on it that needs no device."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fakes import Project
from hypothesis import HealthCheck, settings

# Tests run on every core at once: a second thread in each would only wait, and OpenMP waits by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is started in a shell's background ignores interrupts, and so would the servers that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "kopt",
    max_examples=int(os.environ.get("KOPT_SEQUENCES", "200")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("kopt")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")
