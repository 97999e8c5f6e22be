"""Kernels of our own, run once when a harness starts: what every evaluation would otherwise pay for, or must know."""

from __future__ import annotations

import contextlib
import shutil
from hashlib import sha256
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from kopt_mcp import stats
from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.arms import Arm
from kopt_mcp.evaluator.compare import Expected
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.gate import Gate, Values
from kopt_mcp.evaluator.held import Empty, Held
from kopt_mcp.evaluator.line import Line
from kopt_mcp.evaluator.machine import version
from kopt_mcp.evaluator.passage import NotShared
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.records import TorchDevice
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs, judge_all
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.timing import EventClock, WallClock
from kopt_mcp.problem import Case, Problem, Workload

_PREPARE_S = 60.0
"""Longest time for building what Triton's launcher needs."""
_COPY = b"def copy(x):\n    return x.clone()\n"
_MANY = 1 << 18
"""Elements of an output of which each piece lies in a page of its own."""
_EMPTY = f"import torch\n\n_OUT = torch.ones({_MANY})\n\n\ndef empty(x):\n    return _OUT\n".encode()
_EMPTY_CALLS, _USUAL_READING = 15, 0.8
_PASSES = 8
"""How many times a call may be tried: the harness loads kernels of its own at the first."""


def triton(place: Place, here: TorchDevice) -> None:
    """Build once what every Triton kernel needs, and start all compile caches from that."""
    if version("triton") is None:
        return
    backend, arch = ("hip", here.arch) if here.kind == "hip" else ("cuda", int(here.arch.removeprefix("sm_")))
    place.zygote.prepare(arch, torch.cuda.get_device_properties(here.index).warp_size, backend)
    problem = _problem("trivial", torch.clone)
    content = Path(__file__).with_name("trivial.py").read_bytes()
    case = problem.case(problem.workloads[0])
    source = Source(content, sha256(content).hexdigest(), ".py")
    try:
        with CandidateProcess(place, problem, source, _PREPARE_S).start() as process:
            process.workload(case, describe_outputs(expected_outputs(problem, case, 1, place.device)))
            process.ask("sample", seed=1, distribution="normal", layout="contiguous", spin_us=0, warm=True, keep=False)
            shutil.copytree(process.runner.cache / "triton", place.seed_cache / "triton", dirs_exist_ok=True)
    except Fault:
        return  # the user's kernels may not be Triton's; if they are, they will say what is wrong


def outputs_on_device(place: Place, clock: EventClock) -> str:
    """Let outputs stay on the GPU until they are read, if a shut-in process of our own can hand one over like that.

    Returns:
        Whether calls can pass a gate here: "on", or "off" and why.
    """
    problem = _problem("copy", torch.clone, n=on_device.LEAST_BYTES)
    case = problem.case(problem.workloads[0])
    expected = expected_outputs(problem, case, 1, place.device)
    source = Source(_COPY, sha256(_COPY).hexdigest(), ".py")
    where: dict[str, Any] = {"seed": 1, "distribution": "normal", "layout": "contiguous"}
    try:
        place.driver = driver = on_device.CudaDriver()
        with CandidateProcess(place, problem, source, _PREPARE_S).start() as own:
            own.workload(case, describe_outputs(expected))
            own.ask("sample", **where, spin_us=0, warm=True, keep=True)
            if judge_all(own.outputs(own.ask("fetch", **where)), expected).status != "PASSED":
                place.driver = None
                return "off: outputs cannot stay on the device"
            return _passes(own, driver, problem, case, expected, clock)
    except (Fault, OSError, AttributeError) as error:
        place.driver = None
        return f"off: {error}"


def _passes(
    own: CandidateProcess,
    driver: on_device.Driver,
    problem: Problem,
    case: Case,
    expected: list[Expected],
    clock: EventClock,
) -> str:
    """Whether a process of our own gets calls through a gate, with values that it gets there."""
    try:
        with (
            contextlib.closing(Line(own)) as line,
            Gate(line, driver, problem, case, describe_outputs(expected), clock) as gate,
        ):
            passed = next(filter(None, (gate.through(Values(seed), look=True) for seed in range(_PASSES))), None)
            stops = gate.stops
    except NotShared:
        return "off: a process's memory, or the device, cannot be had as it has to be"
    except (Fault, OSError, AttributeError) as error:
        return f"off: {error}"
    if passed is None or not stops:
        return "off: what is queued behind a word in memory never runs"
    return "on" if judge_all(passed.outputs, expected).status == "PASSED" else "off: outputs are not there in time"


def empty_call(place: Place, evictor: WallClock) -> Empty:
    """The least that the harness's clock reads around a function that does nothing: no more may be subtracted. And how
    long the pieces of its outputs take to be read, but for what is seldom."""
    problem = _problem("empty", lambda x: x * 0 + 1, _MANY)
    case = problem.case(problem.workloads[0])
    sampler = Held(problem, case, evictor, Empty(), SystemRandom())
    sampler.expect(describe_outputs(expected_outputs(problem, case, 1, "cpu")))
    with CandidateProcess(place, problem, Source(_EMPTY, sha256(_EMPTY).hexdigest(), ".py"), _PREPARE_S).start() as own:
        times = [sampler.wake_up(Arm(own), seed + 1).us for seed in range(_EMPTY_CALLS)]
    usual = stats.quantile(sampler.readings_us, _USUAL_READING)
    return Empty(min(times), usual, usual - min(sampler.readings_us))


def _problem(name: str, reference: object, n: int = 1024) -> Problem:
    return Problem(
        name=name,
        reference=reference,  # type: ignore[arg-type]
        inputs=lambda make, n: (make.normal(n),),
        workloads=[Workload({"n": n})],
        bytes="8 * n",
        flops="0",
        bound="memory",
    )
