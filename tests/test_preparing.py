"""What a harness finds out when it starts, with processes and gates that do what the test wants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator import on_device, preparing
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.gate import Passed, Values
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.passage import NotShared, Went
from kopt_mcp.evaluator.records import TorchDevice

HERE = TorchDevice("cuda", 0, "NVIDIA H200", "sm_90", 1 << 37, 132, 60 << 20, "GPU-1", {})


class Own:
    """A process of our own, which copies."""

    handed: Callable[[torch.Tensor], torch.Tensor] = staticmethod(torch.clone)
    fails: dict[str, Exception]

    def __init__(self, place: Any, problem: Any, source: Any, timeout_s: float) -> None:
        self.case: Any = None
        self.runner = SimpleNamespace(cache=place.runners_cache)

    def start(self) -> Own:
        return self

    def __enter__(self) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        """It ends."""

    def workload(self, case: Any, outputs: Any) -> None:
        self.case = case

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        if op in self.fails:
            raise self.fails[op]
        return {"seed": fields["seed"]}

    def outputs(self, reply: dict[str, Any]) -> list[torch.Tensor]:
        return [self.handed(draw(self.case.inputs, self.case.literals, reply["seed"], "cpu").args[0])]


class Gate:
    """One that lets calls through in the end, or not."""

    fails: Exception | None = None
    passes_after, stops, right = 2, True, True
    closed = 0

    def __init__(self, line: Any, driver: Any, problem: Any, case: Any, outputs: Any, clock: Any) -> None:
        self.case, self.tried = case, 0

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        type(self).closed += 1

    def through(self, values: Values, look: bool) -> Passed | None:
        assert look
        if self.fails is not None:
            raise self.fails
        self.tried += 1
        if self.tried <= self.passes_after:
            return None
        # The expected outputs are those of the first seed: what came before it told no time.
        out = draw(self.case.inputs, self.case.literals, 1 if self.right else 2, "cpu").args[0]
        return Passed(Went(300.0, 70.0), [out])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(preparing, "CandidateProcess", Own)
    monkeypatch.setattr(preparing, "Gate", Gate)
    monkeypatch.setattr(Own, "fails", {}, raising=False)
    monkeypatch.setattr(Gate, "closed", 0)
    lines = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(preparing, "Line", lambda own: lines)
    monkeypatch.setattr(on_device, "CudaDriver", lambda: "a driver")
    (tmp_path / "runner" / "triton").mkdir(parents=True)
    (tmp_path / "runner" / "triton" / "launcher.so").write_bytes(b"built")
    prepared: list[Any] = []
    zygote = SimpleNamespace(prepare=lambda *how: prepared.append(how))
    return SimpleNamespace(
        device="cpu",
        driver=None,
        zygote=zygote,
        prepared=prepared,
        runners_cache=tmp_path / "runner",
        seed_cache=tmp_path / "seed",
    )


def opened(place: Any) -> str:
    return preparing.outputs_on_device(place, None)  # type: ignore[arg-type]


def test_calls_pass_a_gate_where_one_does_with_the_values_that_it_got_there(place: Any) -> None:
    assert opened(place) == "on"
    assert place.driver == "a driver"
    assert Gate.closed == 1


def test_outputs_that_are_not_what_they_were_do_not_stay_on_the_device(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "handed", staticmethod(torch.zeros_like))
    assert opened(place) == "off: outputs cannot stay on the device"
    assert place.driver is None
    assert Gate.closed == 0, "no gate was tried"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotShared(), "off: a process's memory, or the device, cannot be had as it has to be"),
        (Fault("RUNTIME_ERROR", "its memory cannot be reached"), "off: its memory cannot be reached"),
        (OSError("cudaHostRegister failed with CUDA error 801"), "off: cudaHostRegister failed with CUDA error 801"),
        (AttributeError("cuStreamWaitValue32_v2"), "off: cuStreamWaitValue32_v2"),
    ],
)
def test_a_gate_that_cannot_be_had_is_off_and_says_why_and_outputs_stay_on_the_device(
    place: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    monkeypatch.setattr(Gate, "fails", error)
    assert opened(place) == told
    assert place.driver == "a driver"
    assert Gate.closed == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"passes_after": 8}, "off: what is queued behind a word in memory never runs"),
        ({"stops": False}, "off: what is queued behind a word in memory never runs"),
        ({"right": False}, "off: outputs are not there in time"),
    ],
)
def test_a_gate_that_no_call_passes_rightly_is_off(
    place: Any, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], told: str
) -> None:
    for name, value in how.items():
        monkeypatch.setattr(Gate, name, value)
    assert opened(place) == told


@pytest.mark.parametrize(
    "error", [Fault("TIMEOUT", "it took longer than 60 s"), OSError("no such handle"), AttributeError("no such symbol")]
)
def test_a_process_of_our_own_that_fails_leaves_outputs_to_the_shared_memory(
    place: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Own, "fails", {"sample": error})
    assert opened(place) == f"off: {error.detail if isinstance(error, Fault) else error}"
    assert place.driver is None


def prepared(place: Any, monkeypatch: pytest.MonkeyPatch, here: TorchDevice, triton: str | None = "3.9") -> list[Any]:
    monkeypatch.setattr(preparing, "version", lambda package: triton)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(warp_size=32))
    preparing.triton(place, here)
    made: list[Any] = place.prepared
    return made


def test_what_triton_builds_for_the_first_kernel_is_where_all_others_start(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepared(place, monkeypatch, HERE) == [(90, 32, "cuda")]
    assert (place.seed_cache / "triton" / "launcher.so").read_bytes() == b"built"


def test_where_there_is_no_triton_nothing_is_built(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared(place, monkeypatch, HERE, triton=None) == []
    assert not place.seed_cache.exists()


def test_a_triton_that_does_not_work_is_left_for_the_users_kernels_to_tell(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "fails", {"sample": Fault("COMPILE_ERROR", "no C compiler")})
    amd = TorchDevice("hip", 0, "AMD MI300X", "gfx942", 1 << 37, 304, 256 << 20, "GPU-1", {})
    assert prepared(place, monkeypatch, amd) == [("gfx942", 32, "hip")]
    assert not place.seed_cache.exists()
