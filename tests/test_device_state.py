"""How the device was while calls were timed: the driver's library through a stub, and what is made of stub readings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from evaluating import CHEATS, PROBLEMS, digest

from kopt_mcp.evaluator import machine
from kopt_mcp.evaluator.device_state import CpuObserver, GpuObserver, Observers, notes
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.harness import Harness
from kopt_mcp.evaluator.nvml import Nvml
from kopt_mcp.evaluator.records import (
    Ceilings,
    DeviceState,
    Evaluation,
    Job,
    OtherProcess,
    Reading,
    TorchDevice,
)
from kopt_mcp.evaluator.runners import Gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments" / "precision"))

from busy import Busy

STUB = Path(__file__).parent / "data" / "nvml" / "stub.c"
ME, OTHER = os.getpid(), 4_000_000


# The binding, against a library whose answers are known

Build = Callable[..., str]


@pytest.fixture
def driver(tmp_path: Path) -> Build:
    """Builds a driver's library; `defines` say what it can answer."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def build(*defines: str) -> str:
        library = tmp_path / "libnvidia-ml.so"
        given = {"NAME": '"GPU-1"', "MIG": "0", **dict(d.split("=") for d in defines if "=" in d)}
        flags = [f"-D{name}={value}" for name, value in given.items()]
        flags += [f"-D{name}" for name in defines if "=" not in name]
        subprocess.run([compiler, "-shared", "-fPIC", *flags, str(STUB), "-o", str(library)], check=True)
        return str(library)

    return build


def test_clocks_temperature_power_and_reasons_are_read_in_their_units(driver: Build) -> None:
    seen = Nvml("GPU-1", driver()).read("before")
    assert (seen.sm_mhz, seen.memory_mhz, seen.temperature_c, seen.power_w) == (1980, 3201, 61, 512.5)
    assert seen.throttle == ("hw_thermal_slowdown", "unknown_0x400")


def test_processes_of_both_kinds_are_listed_and_unknown_memory_is_none(driver: Build) -> None:
    device = Nvml("GPU-1", driver("PROCESSES"))
    assert device.processes() == {11: 1 << 30, 12: None, 13: 1 << 20}
    assert device.utilisation() == 37


def test_the_largest_share_of_each_process_counts_and_impossible_ones_do_not(driver: Build) -> None:
    device = Nvml("GPU-1", driver("PROCESSES"))
    assert device.utilisation_by_process(0) == {11: 90}
    assert device.utilisation_by_process(3000) == {}


def test_how_long_a_device_worked_is_told_by_the_samples_between_two_moments(driver: Build) -> None:
    device = Busy("GPU-1", driver("SAMPLES"))
    assert device.seconds(0, 4_000_000) == pytest.approx(0.1 + 1.0 + 0.75)
    assert device.seconds(1_500_000, 3_000_000) == pytest.approx(0.5), "the third was taken later"
    assert device.seconds(3_500_000, 4_000_000) is None, "none was taken"
    assert device.seconds(5_000_000, 6_000_000) is None
    assert Busy("GPU-1", driver()).seconds(0, 1) is None, "an old driver"


def test_what_a_driver_does_not_answer_is_none(driver: Build) -> None:
    device = Nvml("GPU-1", driver())
    assert device.processes() is None
    assert device.utilisation_by_process(0) is None
    assert not device.sliced()


def test_a_mig_slice_is_found_under_its_own_kind_of_name(driver: Build) -> None:
    assert Nvml("GPU-1", driver('NAME="MIG-1"', "SLICE")).sliced()


def test_a_device_that_is_cut_into_slices_counts_as_one(driver: Build) -> None:
    assert Nvml("GPU-1", driver("MIG=1")).sliced()


def test_a_library_without_a_running_driver_says_so(driver: Build) -> None:
    with pytest.raises(OSError, match="no NVIDIA driver is running"):
        Nvml("GPU-1", driver("INIT=9"))


def test_an_unknown_device_and_a_missing_library_say_so(driver: Build) -> None:
    with pytest.raises(OSError, match="knows no device GPU-2"):
        Nvml("GPU-2", driver())
    with pytest.raises(OSError, match="libnothing"):
        Nvml("GPU-1", "libnothing.so.9")


@pytest.mark.parametrize(
    ("defines", "gpu"),
    [
        (["MINOR=5"], Gpu(0, ("nvidia5", "nvidiactl", "nvidia-*"), "GPU-1")),
        (["INIT=9"], Gpu(3)),
        ([], Gpu(3)),
        (["MINOR=5", "MIG=1"], Gpu(3)),
        (["MINOR=5", 'NAME="MIG-1"', "SLICE"], Gpu(3)),
    ],
    ids=["a GPU", "no driver", "no number", "cut into slices", "a slice"],
)
def test_a_runner_gets_the_node_of_its_own_gpu_and_no_other(
    driver: Build, monkeypatch: pytest.MonkeyPatch, defines: list[str], gpu: Gpu
) -> None:
    monkeypatch.setattr(machine, "Nvml", lambda uuid: Nvml(uuid, driver(*defines)))
    assert machine.only(TorchDevice("cuda", 3, "a GPU", "sm_90", 1 << 30, 1, 1 << 20, "GPU-1", {})) == gpu


# What is made of it


@dataclass
class StubSensor:
    """Answers from lists; the last answer stays."""

    clocks: list[int] = field(default_factory=lambda: [1980])
    throttle: tuple[str, ...] = ()
    slices: bool = False
    listed: dict[int, int | None] | None = field(default_factory=lambda: {ME: 1 << 20})
    idle: list[int | None] = field(default_factory=lambda: [0])
    shares: list[dict[int, int] | None] = field(default_factory=lambda: [{}])
    asked_since: list[int] = field(default_factory=list)

    def read(self, when: Literal["before", "during", "after"]) -> Reading:
        return Reading(when, sm_mhz=_next(self.clocks), temperature_c=88, throttle=self.throttle)

    def sliced(self) -> bool:
        return self.slices

    def processes(self) -> dict[int, int | None] | None:
        return self.listed

    def utilisation(self) -> int | None:
        return _next(self.idle)

    def utilisation_by_process(self, since_us: int) -> dict[int, int] | None:
        self.asked_since.append(since_us)
        return _next(self.shares)


def _next(answers: list) -> object:  # type: ignore[type-arg]
    return answers.pop(0) if len(answers) > 1 else answers[0]


class Clock:
    """Moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def observed(sensor: StubSensor, blocks: int = 2, other: str = f"name{OTHER}") -> DeviceState:
    clock = Clock()
    observer = GpuObserver(sensor, lambda: {ME}, clock, clock.sleep, lambda pid: other)
    observer.begin()
    observer.before()
    for _ in range(blocks):
        observer.during()
    return observer.after()


def test_readings_lie_before_between_and_after_the_blocks() -> None:
    state = observed(StubSensor(), blocks=3)
    assert [r.when for r in state.readings] == ["before", "during", "during", "during", "after"]
    assert (state.processes, state.others, notes(state)) == ("visible", (), [])


def test_somebody_elses_work_means_no_number_and_names_who_and_what_to_do() -> None:
    sensor = StubSensor(listed={ME: 1, OTHER: 1 << 33}, shares=[{}, {OTHER: 0}, {OTHER: 64}])
    with pytest.raises(Fault) as fault:
        observed(sensor)
    assert fault.value.status == "DEVICE_BUSY"
    assert f"process {OTHER} (name{OTHER}) had 64 % of the device" in fault.value.detail
    assert "call again" in fault.value.detail


def test_work_that_is_only_counted_at_the_end_means_no_number_either() -> None:
    sensor = StubSensor(listed={ME: 1, OTHER: 1 << 33}, shares=[{}, {}, {}, {}, {OTHER: 64}])
    with pytest.raises(Fault, match="64 % of the device"):
        observed(sensor)
    assert set(sensor.asked_since[1:]) == {100_000_000}, "work before the timed part does not count"


def test_our_own_work_is_not_held_against_us() -> None:
    assert observed(StubSensor(shares=[{ME: 100}])).others == ()


def test_a_desktop_that_redraws_its_windows_is_no_reason_to_refuse() -> None:
    sensor = StubSensor(listed={ME: 1, OTHER: 300 << 20}, shares=[{OTHER: 5}])
    state = observed(sensor)
    assert state.others == (OtherProcess(OTHER, f"name{OTHER}", 300 << 20, 5),)


def test_an_idle_process_that_holds_memory_is_timed_beside_and_told_of() -> None:
    state = observed(StubSensor(listed={ME: 1, OTHER: 3 << 30}))
    (note,) = notes(state)
    assert note.startswith(f"process {OTHER} (name{OTHER}) holds 3.0 GiB of the device")
    assert note.endswith("0 %")


@pytest.mark.parametrize(
    ("sensor", "why"),
    [
        (StubSensor(slices=True), "a MIG slice"),
        (StubSensor(listed=None), "does not list processes"),
        (StubSensor(listed={OTHER: 1}), "this process itself is not in the driver's list"),
    ],
    ids=["MIG", "no list", "another namespace"],
)
def test_where_processes_are_not_visible_the_result_says_why_and_nobody_is_accused(
    sensor: StubSensor, why: str
) -> None:
    sensor.shares = [{OTHER: 90}]
    state = observed(sensor)
    assert state.processes.startswith("not visible: ")
    assert why in state.processes
    assert state.others == ()


def test_work_in_the_name_of_the_multi_process_service_is_nobodys() -> None:
    sensor = StubSensor(listed={ME: 1, OTHER: 1}, shares=[{OTHER: 90}])
    state = observed(sensor, other="nvidia-cuda-mps")
    assert state.processes == "not visible: the multi-process service works in everybody's name"


def test_a_device_that_works_though_nothing_of_ours_runs_is_busy_where_nobody_can_be_named() -> None:
    with pytest.raises(Fault) as fault:
        observed(StubSensor(listed=None, idle=[97]))
    assert fault.value.status == "DEVICE_BUSY"
    assert "97 % busy while nothing of this evaluation runs" in fault.value.detail


def test_what_the_last_evaluation_left_in_the_devices_own_count_is_waited_for() -> None:
    assert observed(StubSensor(listed=None, idle=[97, 60, 3])).readings


def test_a_driver_that_counts_no_ones_work_is_asked_whether_the_device_is_idle() -> None:
    with pytest.raises(Fault, match="97 % busy"):
        observed(StubSensor(shares=[None], idle=[97]))


def test_heat_that_slows_the_device_is_told_and_a_power_limit_is_not() -> None:
    (note,) = notes(observed(StubSensor(throttle=("sw_power_cap", "hw_thermal_slowdown"))))
    assert note.startswith("the device slowed itself down at 88 C while calls were timed (hw_thermal_slowdown)")
    assert notes(observed(StubSensor(throttle=("sw_power_cap", "applications_clocks_setting")))) == []


def test_a_clock_that_moves_over_the_blocks_is_told_with_its_share() -> None:
    (note,) = notes(observed(StubSensor(clocks=[345, 1410, 1980, 345])))
    assert note.startswith("the SM clock moved between 1410 and 1980 MHz (40 %) over the blocks")
    assert notes(observed(StubSensor(clocks=[345, 1900, 1980, 345]))) == []


# CPU


def stat(folder: Path, busy: int, idle: int, ours: int) -> None:
    """Counters of the machine, and of one process whose name holds what a name may hold."""
    (folder / str(ME)).mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 7 0\ncpu0 1 2\n")
    (folder / str(ME) / "stat").write_text(f"{ME} (a) b) R 1 1 1 0 -1 0 0 0 0 0 {ours} 0 0 0 20 0 1 0\n")


def test_cores_that_others_keep_busy_are_counted_without_our_own(tmp_path: Path) -> None:
    observer = CpuObserver(lambda: {ME, OTHER}, tmp_path)
    stat(tmp_path, busy=1000, idle=1000, ours=100)
    observer.before()
    stat(tmp_path, busy=1800, idle=1200, ours=300)
    state = observer.after()
    assert state.other_cores == pytest.approx(0.6 * (os.cpu_count() or 1))
    assert state.load is not None


def test_a_system_without_counters_says_nothing_of_other_cores(tmp_path: Path) -> None:
    observer = CpuObserver(lambda: {ME}, tmp_path)
    observer.before()
    assert observer.after().other_cores is None


def test_a_system_without_a_load_average_says_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unobtainable() -> tuple[float, float, float]:
        raise OSError("load averages are unobtainable")

    monkeypatch.setattr(os, "getloadavg", unobtainable)
    observer = CpuObserver(lambda: {ME}, tmp_path)
    stat(tmp_path, busy=1000, idle=1000, ours=0)
    observer.before()
    stat(tmp_path, busy=1000, idle=2000, ours=0)
    assert observer.after() == DeviceState(load=None, other_cores=0.0)


def test_busy_cores_are_told_and_a_quiet_machine_is_not() -> None:
    (note,) = notes(DeviceState(load=1.8, other_cores=0.9))
    assert note.startswith("other processes kept 0.9 of")
    assert "load average 1.8" in note
    assert notes(DeviceState(load=0.1, other_cores=0.1)) == []
    (note,) = notes(DeviceState(load=9.0, other_cores=0.8 * (os.cpu_count() or 1)))
    assert note.endswith("time it again on a quiet machine before you believe a ratio")


def test_the_drivers_library_is_opened_once_and_processes_have_their_own_names() -> None:
    opened: list[str] = []

    def sensor(uuid: str) -> StubSensor:
        opened.append(uuid)
        return StubSensor(listed={ME: 1, OTHER: 5})

    observers = Observers("cuda", "GPU-1", sensor)
    for observer in (observers(), observers()):
        observer.begin()
        observer.before()
        assert [o.name for o in observer.after().others] == ["name unknown"]
    assert opened == ["GPU-1"]


def test_a_device_without_the_drivers_library_is_timed_and_says_why_nobody_is_seen() -> None:
    def sensor(uuid: str) -> StubSensor:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    observer = Observers("cuda", "GPU-1", sensor)()
    observer.begin()
    assert observer.after() == DeviceState(processes="not visible: libnvidia-ml.so.1: cannot open shared object file")


def test_a_device_that_cannot_be_asked_says_so() -> None:
    observer = Observers("hip", "GPU-1")()
    observer.begin()
    observer.before()
    observer.during()
    assert observer.after() == DeviceState(processes="not visible: no NVML on this platform")


# In an evaluation


class Noted:
    """An observer that writes down when it was asked, and finds the device busy at one of these times."""

    def __init__(self, busy_at: str) -> None:
        self.busy_at = busy_at
        self.asked: list[str] = []

    def __call__(self) -> Noted:
        return self

    def _ask(self, when: str) -> None:
        self.asked.append(when)
        if when == self.busy_at:
            raise Fault("DEVICE_BUSY", "process 7 (hog) had 90 % of the device")

    def begin(self) -> None:
        self._ask("begin")

    def before(self) -> None:
        self._ask("before")

    def during(self) -> None:
        self._ask("during")

    def after(self) -> DeviceState:
        self._ask("after")
        return DeviceState(processes="visible", others=(OtherProcess(7, "hog", None, 0),))


@pytest.fixture(scope="module")
def harness_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Noted], Evaluation]]:
    """Times an honest kernel in a harness whose device is watched by the observer."""
    noted: list[Noted] = []
    harness = Harness("cpu", tmp_path_factory.mktemp("harness"), fork=False, observers=lambda: noted[-1])
    harness.adopt_ceilings(Ceilings(1e3, 1e3, {}, "not this machine"))

    def evaluate(observer: Noted) -> Evaluation:
        noted.append(observer)
        problem, kernel = PROBLEMS / "softmax_c.py", CHEATS / "controls" / "c_with_openmp.c"
        work = Job("benchmark", str(problem), digest(problem), str(kernel), digest(kernel), "cpu", timeout_s=60.0)
        return harness.evaluate(harness.problem(work.problem, work.problem_sha256), work, lambda f, text: None)

    yield evaluate
    harness.close()


def test_the_device_is_watched_around_the_blocks_and_the_result_holds_what_was_seen(
    harness_with: Callable[[Noted], Evaluation],
) -> None:
    observer = Noted("never")
    result = harness_with(observer)
    assert result.status == "PASSED", result.detail
    assert observer.asked[:3] == ["begin", "before", "during"]
    assert observer.asked[-2:] == ["during", "after"]
    assert result.device_state is not None
    assert result.device_state.others[0].pid == 7
    assert any("process 7 (hog) holds" in note for note in result.notes)
    assert re.fullmatch("[0-9a-f]{64}", result.binary_sha256 or "")


@pytest.mark.parametrize("when", ["begin", "before", "during", "after"])
def test_a_busy_device_gives_no_number_whenever_it_is_found_out(
    harness_with: Callable[[Noted], Evaluation], when: str
) -> None:
    result = harness_with(Noted(when))
    assert (result.status, result.detail) == ("DEVICE_BUSY", "process 7 (hog) had 90 % of the device")
    assert (result.workloads, result.ratio) == ((), None)


def test_this_machine_has_a_load() -> None:
    observer = Observers("cpu", "")()
    observer.begin()
    observer.before()
    observer.during()
    assert observer.after().load is not None
