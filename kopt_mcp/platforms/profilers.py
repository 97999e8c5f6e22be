"""Which profilers are installed and whether the system seems to allow them.

Only a hint: whether counters really come back is found by profiling a kernel; see `profiling.access`.
"""

from __future__ import annotations

import re

from kopt_mcp.models import Profiler
from kopt_mcp.platforms.host import Host

_CUDA = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/cuda/bin")
_ROCM = ("/opt/rocm/bin", "/opt/rocm-*/bin")

COUNTERS_REFUSED = (
    "the driver keeps GPU counters to administrators (RmProfilingAdminOnly: 1): load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0, start the container with --cap-add SYS_ADMIN, or run as root; rented "
    "machines usually allow none of these"
)
_CUDA_HOMES = ("CUDA_HOME", "CUDA_PATH")
_ROCM_HOMES = ("ROCM_PATH", "ROCM_HOME")
_EVENTS_REFUSED = (
    "kernel.perf_event_paranoid is {level}: `sysctl kernel.perf_event_paranoid=2` as root, or give perf CAP_PERFMON"
)
_NO_PMU = "no hardware counters here (a virtual machine without a PMU): only software events count"


def nvidia_profilers(host: Host) -> list[Profiler]:
    """`ncu`, `nsys` and `compute-sanitizer`; only ncu needs the driver's leave to read counters."""
    nsys = (*cuda_folders(host), "/opt/nvidia/nsight-systems/*/bin")
    return [ncu(host), _profiler(host, "nsys", nsys, "install Nsight Systems"), compute_sanitizer(host)]


def compute_sanitizer(host: Host, environment: str = "") -> Profiler:
    """The CUDA toolkit's, or the one that pip installs: `environment` is the folder of the user's, e.g. a venv."""
    installed = (f"{environment}/lib/python3*/site-packages/nvidia/cu*/bin",) if environment else ()
    install = "install the CUDA toolkit, or `pip install nvidia-cuda-sanitizer-api` where your torch is"
    return _profiler(host, "compute-sanitizer", (*cuda_folders(host), *installed), install)


def ncu(host: Host) -> Profiler:
    """Nsight Compute's command line."""
    refused = COUNTERS_REFUSED if counters_restricted(host) and not host.is_admin() else ""
    folders = (*cuda_folders(host), "/opt/nvidia/nsight-compute/*")
    return _profiler(host, "ncu", folders, "install Nsight Compute", refused)


def counters_restricted(host: Host) -> bool:
    """Whether the NVIDIA driver says that counters are for administrators; False when it does not say (WSL)."""
    params = host.read("/proc/driver/nvidia/params") or ""
    return re.search(r"^RmProfilingAdminOnly:\s*1", params, re.MULTILINE) is not None


def rocprofv3(host: Host) -> Profiler:
    """The profiler of rocprofiler-sdk."""
    return _profiler(host, "rocprofv3", rocm_folders(host), "install rocprofiler-sdk (ROCm 6.2 or newer)")


def rocprof(host: Host) -> Profiler:
    """The legacy profiler, kernel times only."""
    return _profiler(host, "rocprof", rocm_folders(host), "install rocprofiler")


def roctx_library(host: Host) -> str | None:
    """The library through which a program tells rocprofv3 what to record."""
    roots = [*(host.env[name] for name in _ROCM_HOMES if host.env.get(name)), "/opt/rocm", "/opt/rocm-*"]
    found = [path for root in roots for path in host.glob(f"{root}/lib/librocprofiler-sdk-roctx.so*")]
    return found[0] if found else None


def perf(host: Host) -> Profiler:
    """Linux perf; above paranoid level 2 it needs a privilege, and without a PMU it has only software events."""
    return _profiler(host, "perf", (), "install linux-perf (linux-tools)", _perf_obstacle(host))


def _perf_obstacle(host: Host) -> str:
    level = (host.read("/proc/sys/kernel/perf_event_paranoid") or "").strip()
    if re.fullmatch(r"\d+", level) and int(level) > 2 and not host.is_admin():
        return _EVENTS_REFUSED.format(level=level)
    found = [host.glob(f"/sys/bus/event_source/devices/{pmu}") for pmu in ("cpu", "cpu_core", "armv*")]
    return "" if any(found) else _NO_PMU


def cuda_toolkit(host: Host) -> str | None:
    """Release of the CUDA toolkit whose nvcc is found (`12.8`)."""
    path = host.which("nvcc", *cuda_folders(host))
    found = re.search(r"release (\d+\.\d+)", host.run([path, "--version"]).stdout) if path else None
    return found[1] if found else None


def cuda_folders(host: Host) -> tuple[str, ...]:
    """Where the programs of CUDA toolkits are, besides PATH; patterns for `Host.which`."""
    return (*(f"{host.env[name]}/bin" for name in _CUDA_HOMES if host.env.get(name)), *_CUDA)


def rocm_folders(host: Host) -> tuple[str, ...]:
    """Where the programs of ROCm are, besides PATH; patterns for `Host.which`."""
    return (*(f"{host.env[name]}/bin" for name in _ROCM_HOMES if host.env.get(name)), *_ROCM)


def _profiler(host: Host, name: str, folders: tuple[str, ...], install: str, obstacle: str = "") -> Profiler:
    path = host.which(name, *folders)
    if path is None:
        return Profiler(name=name, path=None, version=None, usable=False, remedy=f"{name} was not found: {install}")
    answer = host.run([path, "--version"])
    version = re.search(r"\d+\.\d+(?:\.\d+)*", answer.stdout) if answer.ok else None
    return Profiler(name=name, path=path, version=version[0] if version else None, usable=not obstacle, remedy=obstacle)
