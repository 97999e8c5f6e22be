"""Detection on recorded machines: what is there, what is hidden, and what may be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kopt_mcp.evaluator import runners
from kopt_mcp.evaluator.records import Ceilings
from kopt_mcp.models import Device
from kopt_mcp.platforms import detect_all, launching, with_ceilings
from kopt_mcp.platforms.host import Host, Ran, run_command
from kopt_mcp.platforms.nvidia_detect import query_gpus, throttle_reasons
from kopt_mcp.platforms.present import Present

DATA = Path(__file__).parent / "data" / "devices"
H200_A = "GPU-11111111-aaaa-4bbb-8ccc-000000000001"
H200_B = "GPU-22222222-aaaa-4bbb-8ccc-000000000002"
H200_C = "GPU-22999999-aaaa-4bbb-8ccc-000000000003"
MIG_3G = "MIG-0a0a0a0a-1111-5222-8333-000000000001"
MIG_1G = "MIG-0b0b0b0b-1111-5222-8333-000000000002"
WHOLE_H100 = "GPU-44444444-aaaa-4bbb-8ccc-000000000002"


class Recorded:
    """Answers a command by the longest known beginning of `program arguments`; anything else is not installed."""

    def __init__(self, answers: Mapping[str, str | Ran]) -> None:
        self.answers = answers

    def __call__(self, argv: Sequence[str], timeout_s: float = 20.0) -> Ran:
        line = " ".join([Path(argv[0]).name, *argv[1:]])
        fits = [known for known in self.answers if line.startswith(known)]
        if not fits:
            return Ran(failure="missing")
        answer = self.answers[max(fits, key=len)]
        return answer if isinstance(answer, Ran) else Ran(stdout=answer, returncode=0)


def machine(root: Path, answers: Mapping[str, str | Ran], *, system: str = "Linux", **env: str) -> Host:
    return Host(
        run=Recorded(answers), env={"PATH": "/usr/bin", **env}, root=root, system=system, machine="x86_64", euid=1000
    )


def put(root: Path, path: str, text: str = "", *, program: bool = False) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    if program:
        file.chmod(0o755)


def recorded(name: str) -> str:
    return (DATA / name).read_text()


@pytest.fixture
def h200() -> dict[str, str | Ran]:
    return {"nvidia-smi --query-gpu": recorded("nvidia_query_h200.csv")}


@pytest.fixture
def mig() -> dict[str, str | Ran]:
    return {
        "nvidia-smi --query-gpu": recorded("nvidia_query_mig.csv"),
        "nvidia-smi -q -x": recorded("nvidia_details_mig.xml"),
        "nvidia-smi -L": recorded("nvidia_list_mig.txt"),
    }


@pytest.fixture
def mi300x() -> dict[str, str | Ran]:
    return {
        "rocminfo": recorded("rocminfo_mi300x.txt"),
        "amd-smi static": recorded("amd_smi_static.json"),
        "amd-smi metric": recorded("amd_smi_metric.json"),
    }


def uuids(devices: list[Device]) -> list[str]:
    return [device.uuid for device in devices if device.platform != "cpu"]


# Nothing there


def test_a_machine_with_nothing_installed_still_has_its_cpu(tmp_path: Path) -> None:
    devices = detect_all(machine(tmp_path, {}))
    assert [device.platform for device in devices] == ["cpu"]
    assert devices[0].bandwidth_gbps is None
    assert devices[0].notes == []


def test_a_broken_driver_is_a_note_and_not_a_crash(tmp_path: Path) -> None:
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    devices = detect_all(machine(tmp_path, {"nvidia-smi": Ran(stdout=text, returncode=9)}))
    assert "couldn't communicate" in devices[-1].notes[0]


def test_a_hung_driver_is_a_note(tmp_path: Path) -> None:
    devices = detect_all(machine(tmp_path, {"nvidia-smi": Ran(failure="timeout")}))
    assert devices[-1].notes == ["nvidia-smi shows no GPU: timeout"]


def test_a_gpu_on_the_bus_without_its_driver_is_pointed_out(tmp_path: Path) -> None:
    for slot, vendor in (("0000:01:00.0", "0x10de"), ("0000:02:00.0", "0x1002")):
        put(tmp_path, f"/sys/bus/pci/devices/{slot}/class", "0x030200\n")
        put(tmp_path, f"/sys/bus/pci/devices/{slot}/vendor", vendor + "\n")
    notes = detect_all(machine(tmp_path, {}))[-1].notes
    assert [note.split(":")[0] for note in notes] == [
        "an NVIDIA GPU is here but nvidia-smi is not",
        "an AMD GPU is here but rocminfo is not",
    ]


def test_an_intel_gpu_is_named_and_said_to_be_unsupported(tmp_path: Path) -> None:
    for part, text in (("class", "0x030000"), ("vendor", "0x8086"), ("device", "0x56a0")):
        put(tmp_path, f"/sys/bus/pci/devices/0000:03:00.0/{part}", text + "\n")
    line = "0000:03:00.0 VGA compatible controller [0300]: Intel Corporation DG2 [Arc A770] [8086:56a0] (rev 08)\n"
    assert detect_all(machine(tmp_path, {"lspci": line}))[-1].notes == [
        "Intel Corporation DG2 [Arc A770] is not supported"
    ]
    assert detect_all(machine(tmp_path, {}))[-1].notes == ["Intel GPU 8086:56a0 is not supported"]


def test_an_intel_gpu_is_also_found_where_only_drm_is_shown(tmp_path: Path) -> None:
    put(tmp_path, "/sys/class/drm/card0/device/vendor", "0x8086\n")
    put(tmp_path, "/sys/class/drm/card0/device/device", "0x7d55\n")
    assert detect_all(machine(tmp_path, {}))[-1].notes == ["Intel GPU 8086:7d55 is not supported"]


def test_detection_on_this_very_machine_ends_with_the_cpu() -> None:
    last = detect_all()[-1]
    assert (last.platform, last.index) == ("cpu", 0)
    assert last.sm_count
    assert last.memory_bytes


def test_the_server_side_never_imports_torch_or_numpy() -> None:
    code = "import sys, kopt_mcp.platforms as p; p.detect_all(); print({'torch', 'triton', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


# NVIDIA


def test_an_h200_shows_its_state_and_its_nominal_peaks(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    first = detect_all(machine(tmp_path, h200))[0]
    assert (first.name, first.arch, first.uuid, first.index) == ("NVIDIA H200", "sm_90", H200_A, 0)
    assert (first.clock_mhz, first.clock_max_mhz) == (1980, 1980)
    assert (first.power_w, first.power_limit_w, first.temperature_c) == (351.22, 700.0, 54.0)
    assert first.throttle == ["sw_power_cap"]
    assert first.memory_bytes == 143771 << 20
    assert (first.sm_count, first.shared_bytes) == (132, 232448)
    assert first.versions["driver"] == "570.124.06"
    assert first.bandwidth_gbps is not None
    assert (first.bandwidth_gbps.value, first.bandwidth_gbps.method) == (4800, "table")


def test_what_the_driver_does_not_say_is_null(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    third = detect_all(machine(tmp_path, h200))[2]
    assert third.power_w is None
    assert third.temperature_c is None
    assert third.throttle == ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"]


def test_a_throttle_bit_without_a_name_keeps_its_number() -> None:
    assert throttle_reasons("0x0000000000000404") == ["sw_power_cap", "unknown_0x400"]
    assert throttle_reasons("garbage") == []


def test_an_idle_gpu_is_not_throttled() -> None:
    assert throttle_reasons("0x0000000000000001") == []
    assert throttle_reasons("0x0000000000000005") == ["sw_power_cap"]


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (None, [H200_A, H200_B, H200_C]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [H200_B]),
        ("2,0", [H200_C, H200_A]),
        ("0,7,1", [H200_A]),
        ("0,-1,1", [H200_A]),
        ("0,0", [H200_A]),
        (H200_B, [H200_B]),
        ("GPU-2222", [H200_B]),
        ("GPU-22", []),
        (f"{H200_C}, GPU-1", [H200_C, H200_A]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    tmp_path: Path, h200: dict[str, str | Ran], mask: str | None, visible: list[str]
) -> None:
    env = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    devices = detect_all(machine(tmp_path, h200, **env))
    assert uuids(devices) == visible
    assert [device.index for device in devices[:-1]] == list(range(len(visible)))
    assert len(visible) == 3 or "hides" in devices[-1].notes[0]


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (None, [MIG_3G, MIG_1G, WHOLE_H100]),
        ("0", [MIG_3G]),
        ("1", [WHOLE_H100]),
        (MIG_1G, [MIG_1G]),
        ("MIG-0b0b", [MIG_1G]),
        ("MIG-GPU-33333333-aaaa-4bbb-8ccc-000000000001/9/0", [MIG_1G]),
        ("GPU-33333333-aaaa-4bbb-8ccc-000000000001", [MIG_3G]),
    ],
)
def test_mig_instances_are_selected_by_uuid_path_or_parent(
    tmp_path: Path, mig: dict[str, str | Ran], mask: str | None, visible: list[str]
) -> None:
    env = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert uuids(detect_all(machine(tmp_path, mig, **env))) == visible


def test_a_mig_instance_is_graded_by_its_own_sms_and_memory(tmp_path: Path, mig: dict[str, str | Ran]) -> None:
    one = detect_all(machine(tmp_path, mig, CUDA_VISIBLE_DEVICES=MIG_1G))[0]
    assert (one.name, one.partition, one.sm_count) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "1g.10gb", 16)
    assert one.memory_bytes == 9984 << 20
    assert one.bandwidth_gbps is not None
    assert one.bandwidth_gbps.value == pytest.approx(3352 / 8)
    assert one.tflops["fp16"].value == pytest.approx(989.4 * 16 / 132, rel=1e-3)
    assert one.versions["cuda_driver"] == "12.9"


def test_mig_mode_without_an_instance_is_explained(tmp_path: Path, mig: dict[str, str | Ran]) -> None:
    devices = detect_all(machine(tmp_path, {**mig, "nvidia-smi -L": ""}))
    assert uuids(devices) == [WHOLE_H100]
    assert "MIG mode without an instance" in devices[-1].notes[0]


def test_an_unknown_gpu_has_no_peak_and_says_so(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    text = recorded("nvidia_query_h200.csv").replace("NVIDIA H200", "NVIDIA H299")
    first = detect_all(machine(tmp_path, {**h200, "nvidia-smi --query-gpu": text}))[0]
    assert first.bandwidth_gbps is None
    assert first.tflops == {}
    assert first.shared_bytes == 232448
    assert any("not in the table" in note for note in first.notes)


def test_a_vgpu_is_marked_as_a_slice(tmp_path: Path, mig: dict[str, str | Ran]) -> None:
    details = recorded("nvidia_details_mig.xml").replace("<virtualization_mode>None", "<virtualization_mode>VGPU")
    device = detect_all(machine(tmp_path, {**mig, "nvidia-smi -q -x": details}))[2]
    assert device.partition == "vGPU"


def test_a_field_that_an_older_driver_does_not_know_is_asked_by_its_older_name_or_dropped() -> None:
    asked: list[str] = []

    def older(argv: Sequence[str], timeout_s: float = 20.0) -> Ran:
        fields = argv[1].removeprefix("--query-gpu=").split(",")
        asked.append(argv[1])
        for bad in ("clocks_event_reasons.active", "compute_cap"):
            if bad in fields:
                return Ran(stdout=f'Field "{bad}" is not a valid field to query.\n', returncode=2)
        known = {"uuid": H200_A, "name": "Tesla T4", "clocks_throttle_reasons.active": "0x40"}
        return Ran(stdout=", ".join(known.get(field, "[N/A]") for field in fields) + "\n", returncode=0)

    gpus, _ = query_gpus(older)
    assert len(asked) == 3
    assert gpus[0]["clocks_event_reasons.active"] == "0x40"
    assert gpus[0]["compute_cap"] is None
    assert gpus[0]["name"] == "Tesla T4"


def test_mixed_gpus_warn_that_cuda_may_number_them_otherwise(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    text = recorded("nvidia_query_h200.csv").replace("NVIDIA H200", "NVIDIA L4", 1)
    answers = {**h200, "nvidia-smi --query-gpu": text}
    assert any("PCI order" in note for note in detect_all(machine(tmp_path, answers))[0].notes)
    pinned = detect_all(machine(tmp_path, answers, CUDA_DEVICE_ORDER="PCI_BUS_ID"))[0]
    assert not any("PCI order" in note for note in pinned.notes)


def test_every_process_that_runs_a_candidate_is_told_which_gpu_is_which_and_in_what_order() -> None:
    telling = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
    assert telling <= set(launching.KEPT)
    assert telling <= set(runners._KEPT_ENVIRONMENT)


# Profilers


def test_ncu_is_found_beside_the_toolkit_and_the_newest_release_wins(
    tmp_path: Path, h200: dict[str, str | Ran]
) -> None:
    for release in ("2024.3.2", "2025.10.0", "2025.3.1"):
        put(tmp_path, f"/opt/nvidia/nsight-compute/{release}/ncu", program=True)
    version = (
        "NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2025\nVersion 2025.10.0.0 (build 1)\n"
    )
    ncu = detect_all(machine(tmp_path, {**h200, "ncu --version": version}))[0].profilers[0]
    assert (ncu.name, ncu.path) == ("ncu", "/opt/nvidia/nsight-compute/2025.10.0/ncu")
    assert (ncu.version, ncu.usable, ncu.remedy) == ("2025.10.0.0", True, "")


def test_a_profiler_on_the_path_or_in_cuda_home_comes_first(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    put(tmp_path, "/usr/local/cuda-12.9/bin/ncu", program=True)
    put(tmp_path, "/srv/cuda/bin/ncu", program=True)
    host = machine(tmp_path, h200, CUDA_HOME="/srv/cuda")
    assert detect_all(host)[0].profilers[0].path == "/srv/cuda/bin/ncu"
    put(tmp_path, "/usr/bin/ncu", program=True)
    assert detect_all(host)[0].profilers[0].path == "/usr/bin/ncu"


@pytest.mark.parametrize(
    ("status", "usable"),
    [
        ("CapEff:\t0000000000000000\n", False),
        ("CapEff:\t00000000a80425fb\n", False),
        ("CapEff:\t000001ffffffffff\n", True),
    ],
)
def test_counters_kept_to_administrators_are_usable_only_with_the_capability(
    tmp_path: Path, h200: dict[str, str | Ran], status: str, usable: bool
) -> None:
    put(tmp_path, "/usr/bin/ncu", program=True)
    put(tmp_path, "/proc/driver/nvidia/params", "EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    put(tmp_path, "/proc/self/status", f"Name:\tpython\n{status}")
    ncu = detect_all(machine(tmp_path, h200))[0].profilers[0]
    assert ncu.usable is usable
    assert usable or "NVreg_RestrictProfilingToAdminUsers=0" in ncu.remedy


def test_a_missing_profiler_says_what_to_install(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    profilers = detect_all(machine(tmp_path, h200))[0].profilers
    assert [(one.name, one.usable) for one in profilers] == [
        ("ncu", False),
        ("nsys", False),
        ("compute-sanitizer", False),
    ]
    assert "install Nsight Compute" in profilers[0].remedy


@pytest.mark.parametrize(
    ("level", "pmu", "usable", "remedy"),
    [("2", True, True, ""), ("4", True, False, "perf_event_paranoid"), ("2", False, False, "without a PMU")],
)
def test_perf_needs_leave_and_a_pmu(tmp_path: Path, level: str, pmu: bool, usable: bool, remedy: str) -> None:
    put(tmp_path, "/usr/bin/perf", program=True)
    put(tmp_path, "/proc/sys/kernel/perf_event_paranoid", level + "\n")
    if pmu:
        put(tmp_path, "/sys/bus/event_source/devices/cpu/type", "4\n")
    perf = detect_all(machine(tmp_path, {"perf --version": "perf version 6.1.4\n"}))[-1].profilers[0]
    assert (perf.version, perf.usable) == ("6.1.4", usable)
    assert remedy in perf.remedy


# AMD


def test_amd_devices_are_matched_to_their_state_by_unique_id(tmp_path: Path, mi300x: dict[str, str | Ran]) -> None:
    put(tmp_path, "/opt/rocm/.info/version", "7.0.2\n")
    first, second, _ = detect_all(machine(tmp_path, mi300x))
    assert (first.name, first.arch, first.uuid) == ("AMD Instinct MI300X VF", "gfx942", "GPU-0f1e2d3c4b5a6978")
    assert (first.clock_mhz, first.power_w, first.temperature_c, first.throttle) == (132, 141, 38, [])
    assert (second.clock_mhz, second.power_w, second.temperature_c) == (1640, 702, 88)
    assert second.throttle == ["throttled"]
    assert first.versions == {"driver": "6.12.12", "rocm": "7.0.2"}
    assert first.partition is None


def test_an_amd_device_without_a_name_gets_the_one_its_facts_give(tmp_path: Path, mi300x: dict[str, str | Ran]) -> None:
    second = detect_all(machine(tmp_path, mi300x))[1]
    assert second.name == "AMD Instinct MI300X"
    assert second.bandwidth_gbps is not None
    assert second.bandwidth_gbps.value == 5300
    assert second.l2_bytes == 32 << 20  # rocminfo shows the L2 of one die


def test_rocm_smi_serves_where_amd_smi_is_missing(tmp_path: Path, mi300x: dict[str, str | Ran]) -> None:
    answers = {"rocminfo": mi300x["rocminfo"], "rocm-smi": recorded("rocm_smi.json")}
    first, second, _ = detect_all(machine(tmp_path, answers))
    assert (first.clock_mhz, first.power_w, first.power_limit_w, first.temperature_c) == (132, 139, 750, 41)
    assert second.power_w is None


def test_a_compute_partition_is_named_and_has_no_bandwidth(tmp_path: Path, mi300x: dict[str, str | Ran]) -> None:
    info = recorded("rocminfo_mi300x.txt").replace("304", "38").replace("200998912", "25124864")
    static = recorded("amd_smi_static.json").replace('"SPX"', '"CPX"').replace("NPS1", "NPS4")
    second = detect_all(machine(tmp_path, {**mi300x, "rocminfo": info, "amd-smi static": static}))[1]
    assert second.partition == "CPX/NPS4"
    assert second.bandwidth_gbps is None


@pytest.mark.parametrize(
    ("env", "visible"),
    [
        ({}, ["0f1e2d3c4b5a6978", "1f1e2d3c4b5a6979"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["1f1e2d3c4b5a6979"]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["1f1e2d3c4b5a6979", "0f1e2d3c4b5a6978"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["0f1e2d3c4b5a6978"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1f1e"}, ["1f1e2d3c4b5a6979"]),
    ],
)
def test_amd_masks_are_read_as_hip_reads_them(
    tmp_path: Path, mi300x: dict[str, str | Ran], env: dict[str, str], visible: list[str]
) -> None:
    found = uuids(detect_all(machine(tmp_path, mi300x, **env)))
    assert found == [f"GPU-{digits}" for digits in visible]


def test_a_radeon_without_a_unique_id_is_still_one_device(tmp_path: Path) -> None:
    answers = {"rocminfo": recorded("rocminfo_rx7900.txt")}
    device = detect_all(machine(tmp_path, answers, HIP_VISIBLE_DEVICES="0"))[0]
    assert (device.uuid, device.sm_count, device.l2_bytes) == ("", 96, 6 << 20)


def test_no_right_to_open_kfd_is_explained(tmp_path: Path) -> None:
    text = 'Unable to open /dev/kfd read-write: Permission denied\nalice is not member of "render" group\n'
    devices = detect_all(machine(tmp_path, {"rocminfo": Ran(stdout=text, returncode=1)}))
    assert "render and video groups" in devices[-1].notes[0]


# Measured ceilings


def test_measured_ceilings_stand_beside_the_nominal_ones(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    device = detect_all(machine(tmp_path, h200))[0]
    measured = with_ceilings(device, Ceilings(4210.0, 4300.0, {"bf16": 760.0}, "H200, torch 2.9.0"))
    assert measured.measured_gbps is not None
    assert (measured.measured_gbps.value, measured.measured_gbps.method) == (4210.0, "measured")
    assert measured.measured_tflops["bf16"].value == 760.0
    assert measured.bandwidth_gbps == device.bandwidth_gbps
    assert measured.notes == device.notes


def test_a_nominal_peak_that_was_beaten_loses_its_confidence(tmp_path: Path, h200: dict[str, str | Ran]) -> None:
    device = detect_all(machine(tmp_path, h200))[0]
    measured = with_ceilings(device, Ceilings(6000.0, 6100.0, {"bf16": 2000.0}, "odd H200"))
    assert measured.bandwidth_gbps is not None
    assert measured.bandwidth_gbps.confidence == "low"
    assert measured.tflops["bf16"].confidence == "low"
    assert sum("do not trust" in note for note in measured.notes) == 2


def test_the_roof_of_a_cpu_is_only_ever_measured(tmp_path: Path) -> None:
    cpu = with_ceilings(detect_all(machine(tmp_path, {}))[-1], Ceilings(18.2, 20.1, {"fp32": 0.114}, "EPYC"))
    assert cpu.bandwidth_gbps is None
    assert cpu.measured_gbps is not None
    assert cpu.measured_gbps.value == 18.2


# CPU


def test_a_linux_cpu_shows_cores_caches_memory_and_limits(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", recorded("cpuinfo_epyc.txt"))
    put(tmp_path, "/proc/meminfo", "MemTotal:       24683652 kB\nMemFree: 1 kB\n")
    put(tmp_path, "/sys/fs/cgroup/cpu.max", "150000 100000\n")
    put(tmp_path, "/sys/fs/cgroup/memory.max", "max\n")
    put(tmp_path, "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3700000\n")
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "32K"), ("1", "Instruction", "32K"), ("3", "Unified", "256M")]
    ):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        for part, text in (("level", level), ("type", kind), ("size", size)):
            put(tmp_path, f"{folder}/{part}", text + "\n")
    cpu = detect_all(machine(tmp_path, {}))[-1]
    assert (cpu.name, cpu.arch, cpu.sm_count) == ("AMD EPYC 9534 64-Core Processor", "x86_64", 2)
    assert (cpu.clock_mhz, cpu.clock_max_mhz, cpu.memory_bytes) == (2450, 3700, 24683652 << 10)
    assert "caches: L1 32 KiB, L3 262144 KiB" in cpu.notes
    assert "vector instructions: avx512f, avx2, avx" in cpu.notes
    assert "the control group allows 1.5 CPUs" in cpu.notes


def test_an_arm_cpu_is_described_by_lscpu(tmp_path: Path) -> None:
    lscpu = "Model name:  Neoverse-V2\nCore(s) per socket:  72\nSocket(s):  1\nCPU max MHz:  3447.0\n"
    cpu = detect_all(machine(tmp_path, {"lscpu": lscpu}))[-1]
    assert (cpu.name, cpu.sm_count, cpu.clock_max_mhz) == ("Neoverse-V2", 72, 3447)


def test_a_mac_is_described_by_sysctl(tmp_path: Path) -> None:
    facts = ("machdep.cpu.brand_string: Apple M3", "hw.physicalcpu: 8", "hw.memsize: 25769803776")
    text = "\n".join((*facts, "hw.perflevel0.l2cachesize: 16777216", ""))
    cpu = detect_all(machine(tmp_path, {"sysctl": text}, system="Darwin"))[-1]
    assert (cpu.name, cpu.sm_count, cpu.memory_bytes, cpu.l2_bytes) == ("Apple M3", 8, 24 << 30, 16 << 20)
    assert cpu.profilers == []


# The one place where a process starts


def test_a_command_that_is_missing_fails_or_hangs_is_told_apart() -> None:
    assert run_command(["kopt-no-such-program"]).failure == "missing"
    failed = run_command([sys.executable, "-c", "import sys; print('why'); sys.exit(3)"])
    assert (failed.returncode, failed.failure, failed.reason) == (3, "", "why")
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    assert run_command(waits, timeout_s=0.2).failure == "timeout"


def test_a_command_cannot_read_the_servers_input() -> None:
    assert run_command([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]).stdout == "''\n"


def test_devices_are_detected_again_only_where_the_system_shows_others(tmp_path: Path) -> None:
    env, asked = {"CUDA_VISIBLE_DEVICES": "0"}, []
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()

    def detect() -> list[Device]:
        asked.append(1)
        return [Device(platform="nvidia", index=0, name="card", arch="sm_90", uuid=f"GPU-{len(asked)}")]

    present = Present(Host(root=tmp_path, env=env), detect)
    assert [present()[0].uuid for _ in range(3)] == ["GPU-1"] * 3
    (tmp_path / "dev" / "nvidia1").touch()
    assert [present()[0].uuid for _ in range(2)] == ["GPU-2"] * 2
    env["CUDA_VISIBLE_DEVICES"] = "1"
    assert present()[0].uuid == "GPU-3"
    (tmp_path / "dev" / "nvidia0").unlink()
    assert present()[0].uuid == "GPU-4"
