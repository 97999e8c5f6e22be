"""Does the ladder see what was planted? One run on an NVIDIA GPU: `python tests/gpu/diagnosis.py OUT`.

Profiles and diagnoses kernels with a known cause of slowness, compares the compiler's word with the driver's and the
profiler's bytes with the truth, and keeps raw outputs for the parsers' tests. Writes OUT/README.md (the results page),
OUT/results.json and OUT/captures.tar.gz, and prints a table last. The exit status is the number of failed checks.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from kopt_mcp.diagnosis import diagnose  # noqa: E402
from kopt_mcp.evaluator.client import Evaluator, LocalEvaluator, Watch  # noqa: E402
from kopt_mcp.evaluator.records import Job, WorkloadInfo  # noqa: E402
from kopt_mcp.models import Device, Diagnosis, Profile  # noqa: E402
from kopt_mcp.platforms import Host, detect_all, with_ceilings  # noqa: E402
from kopt_mcp.platforms.launching import launch, scratch  # noqa: E402
from kopt_mcp.platforms.profilers import ncu as find_ncu  # noqa: E402
from kopt_mcp.profiling import Ladder  # noqa: E402
from kopt_mcp.profiling.request import Request  # noqa: E402

KERNELS = HERE / "kernels"
QUICK_S = 20.0
NCU_LEAST = 16
"""Registers that ncu reports at the least, where the driver and the compiler say fewer."""
MOST_ARCHIVE = 15 << 20
DRIVER_FACTS = "--driver-facts"


@dataclass(frozen=True)
class Case:
    """A kernel with a known cause."""

    kernel: str
    problem: str
    workload: str
    bounds: tuple[str, ...]
    """Classes that are right."""
    planted: str = ""
    """Finding that must be among those reported."""
    absent: tuple[str, ...] = ()
    """Findings that would be wrong."""
    rung: str = "ncu"
    counters: bool = True
    """Whether ncu may be found at all."""

    @property
    def name(self) -> str:
        return self.kernel if self.counters else f"{self.kernel} (no ncu)"


WASTE = ("uncoalesced", "spills", "redundant-traffic")
SOFTMAX = "16384x4096-fp32"
CASES = (
    Case("softmax_good", "softmax", SOFTMAX, ("at_roof",), absent=(*WASTE, "low-occupancy", "small-grid")),
    Case("softmax_strided", "softmax", SOFTMAX, ("memory",), "uncoalesced", absent=("spills",)),
    Case("softmax_spilling", "softmax", "3072x65536-fp32", ("memory", "latency"), "spills"),
    Case("matmul_tensor_cores", "matmul", "4096-fp16", ("compute", "at_roof"), absent=("unused-tensor-cores",)),
    Case("matmul_fma", "matmul", "2048-fp32", ("compute",), "unused-tensor-cores"),
    Case("row_sum_tiny_grid", "row_sum", "16x2097152-fp32", ("latency",), "small-grid"),
    Case("chain_of_launches", "chain", "4096-fp32", ("latency",), "launch-bound"),
    Case("plain_copy", "copy", "67108864-fp32", ("at_roof",), absent=WASTE),
    Case("softmax_good", "softmax", SOFTMAX, ("at_roof", "memory"), rung="torch_profiler", counters=False),
    Case(
        "chain_of_launches", "chain", "4096-fp32", ("latency",), "launch-bound", rung="torch_profiler", counters=False
    ),
)


@dataclass
class Check:
    """One line of the verdict."""

    name: str
    expected: str
    found: str
    passed: bool


@dataclass
class Results:
    """Everything the page is made from; JSON all through."""

    about: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    out: Path | None = None
    """Where they are written after each part, so that a run that is cut short leaves something."""

    def save(self) -> None:
        if self.out is not None:
            plain = {key: value for key, value in dataclasses.asdict(self).items() if key != "out"}
            (self.out / "results.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
            (self.out / "README.md").write_text(page(self), encoding="utf-8")

    def check(self, name: str, expected: str, found: str, passed: bool) -> None:
        self.checks.append(Check(name, expected, found, passed))

    @property
    def failed(self) -> int:
        return sum(not check.passed for check in self.checks) + len(self.errors)


@dataclass
class Bench:
    """The device, and the tools that a case is examined with."""

    device: Device
    evaluator: Evaluator
    ladder: Ladder
    blind: Ladder
    """A ladder on a host where no profiler is found."""
    artifacts: Path
    clock: Callable[[], float] = time.monotonic


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def job_of(case: Case, device: Device) -> Job:
    kernel, problem = KERNELS / f"{case.kernel}.py", KERNELS / f"{case.problem}_problem.py"
    return Job(
        kind="benchmark",
        problem=str(problem),
        problem_sha256=digest(problem),
        candidate=str(kernel),
        candidate_sha256=digest(kernel),
        device="cpu" if device.platform == "cpu" else f"cuda:{device.index}",
        workloads=(case.workload,),
    )


def examine(case: Case, bench: Bench) -> tuple[Profile, Diagnosis, dict[str, Any]]:
    """Benchmark, profile and diagnose one case, as the loop does."""
    job = job_of(case, bench.device)
    info = bench.evaluator.describe(Path(job.problem), job.problem_sha256, job.device)
    workload = next(one for one in info.workloads if one.name == case.workload)
    evaluation = bench.evaluator.evaluate(job, Watch())
    timing = next((one.timing for one in evaluation.workloads if one.workload == case.workload), None)
    begun = bench.clock()
    profile = (bench.ladder if case.counters else bench.blind)(
        device=bench.device,
        job=job,
        workload=workload,
        timing=timing,
        depth="quick",
        artifacts=bench.artifacts / case.name.replace(" ", "_"),
        watch=Watch(),
    )
    wall_s = bench.clock() - begun
    found = diagnose(
        profile,
        bench.device,
        bytes_needed=workload.bytes,
        flops=workload.flops,
        dtype=workload.dtype,
        documented_bound=info.bound,
        static=profile.compiled,
    )
    return profile, found, _row(case, workload, evaluation.status, evaluation.detail, profile, found, wall_s)


def _row(
    case: Case,
    workload: WorkloadInfo,
    status: str,
    detail: str,
    profile: Profile,
    found: Diagnosis,
    wall_s: float,
) -> dict[str, Any]:
    return {
        "case": case.name,
        "workload": workload.name,
        "evaluation": status if status == "PASSED" else f"{status}: {detail}",
        "rung": profile.rung,
        "why": profile.why,
        "bound": found.bound,
        "findings": [finding.name for finding in found.findings],
        "summary": found.summary,
        "evidence": [one.model_dump() for one in found.evidence],
        "tiers": found.tiers,
        "headroom_pct": found.headroom_pct,
        "stop": found.stop,
        "metrics": profile.metrics,
        "facts": profile.facts,
        "kernels": [kernel.model_dump() for kernel in profile.kernels],
        "compiled": [kernel.model_dump() for kernel in profile.compiled],
        "wall_s": round(wall_s, 1),
    }


def judge(case: Case, row: dict[str, Any], results: Results) -> None:
    """The verdict on one case: instrument, class, planted cause, and nothing that is not there."""
    wrong = [name for name in case.absent if name in row["findings"]]
    lacking = [case.planted] if case.planted and case.planted not in row["findings"] else []
    expected = f"{'/'.join(case.bounds)} by {case.rung}" + (f", {case.planted}" if case.planted else "")
    found = f"{row['bound']} by {row['rung']}; {', '.join(row['findings']) or 'no finding'}"
    passed = row["bound"] in case.bounds and row["rung"] == case.rung and not wrong and not lacking
    results.check(case.name, expected, found, passed and row["evaluation"] == "PASSED")


def judge_numbers(rows: dict[str, dict[str, Any]], results: Results) -> None:
    """The copy's bytes against the truth, and the quick profile's time."""
    if copy := rows.get("plain_copy"):
        truth, seen = 2 * (1 << 26) * 4, copy["metrics"].get("dram_bytes")
        share = seen / truth if seen else None
        passed = share is not None and abs(share - 1) <= 0.1
        results.check("bytes of a known copy", f"{truth} within 10 %", f"{seen} ({share})", passed)
    if softmax := rows.get("softmax_good"):
        wall = softmax["wall_s"]
        results.check("quick profile of the softmax", f"<= {QUICK_S:g} s", f"{wall} s", wall <= QUICK_S)


def judge_ceilings(device: Device, results: Results) -> None:
    """What was measured must not beat what is published."""
    pairs = {"copy": (device.measured_gbps, device.bandwidth_gbps)}
    pairs |= {name: (peak, device.tflops.get(name)) for name, peak in device.measured_tflops.items()}
    for name, (measured, nominal) in pairs.items():
        if measured is None or nominal is None:
            results.check(
                f"ceiling {name}", "measured and nominal known", f"{measured}, {nominal}", nominal is not None
            )
            continue
        found = f"{measured.value:.4g} of {nominal.value:.4g} ({100 * measured.value / nominal.value:.0f} %)"
        results.check(f"ceiling {name}", "measured <= nominal", found, measured.value <= nominal.value)


def judge_static(
    row: dict[str, Any], driver: dict[str, dict[str, int]], measured: dict[str, Any], results: Results
) -> None:
    """Registers, spills and occupancy: compiler against driver and ncu. `measured`: ncu's own numbers."""
    if not row["compiled"]:
        found = row["facts"].get("static", "nothing")
        results.check(f"static {row['case']}", "registers, spills, occupancy equal", found, False)
    for kernel in row["compiled"]:
        seen = driver.get(kernel["name"], {})
        said = (max(kernel["registers"], NCU_LEAST), kernel["spills"], _rounded(kernel["occupancy_pct"]))
        counted = (
            measured.get("registers"),
            seen.get("n_spills"),
            _rounded(measured.get("occupancy_theoretical_pct")),
        )
        agreed = said == counted and seen.get("n_regs") == kernel["registers"]
        found = f"compiler {said}, ncu and driver {counted}, driver registers {seen.get('n_regs')}"
        results.check(f"static {row['case']}", "registers, spills, occupancy equal", found, agreed)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def driver_facts(kernel: Path, problem: Path, workload: str) -> dict[str, dict[str, int]]:
    """Registers and spilled words by kernel as the driver says them once Triton has loaded it; needs the GPU."""
    import importlib.util

    from kopt_mcp.evaluator.harness import load_problem
    from kopt_mcp.evaluator.inputs import draw

    declared = load_problem(problem.read_bytes(), str(problem))
    case = declared.case(next(one for one in declared.workloads if one.name == workload))
    spec = importlib.util.spec_from_file_location("kernel", kernel)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    getattr(module, declared.entry)(*draw(case.inputs, case.literals, 1, "cuda").args)
    return {name: _loaded(function) for name, function in vars(module).items() if hasattr(function, "device_caches")}


def _loaded(function: Any) -> dict[str, int]:
    compiled = [one for caches in function.device_caches.values() for one in caches[0].values()]
    return {"n_regs": compiled[-1].n_regs, "n_spills": compiled[-1].n_spills} if compiled else {}


def ask_driver(case: Case) -> dict[str, dict[str, int]]:
    """`driver_facts` in a process of its own."""
    files = [str(KERNELS / f"{case.kernel}.py"), str(KERNELS / f"{case.problem}_problem.py"), case.workload]
    command = [sys.executable, str(Path(__file__).resolve()), DRIVER_FACTS, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-1000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def capture_raw(bench: Bench, program: str, folder: Path) -> None:
    """ncu's layouts and its word for no kernel, as fixtures for the parsers."""
    case = CASES[0]
    job = job_of(case, bench.device)
    info = bench.evaluator.describe(Path(job.problem), job.problem_sha256, job.device)
    workload = next(one for one in info.workloads if one.name == case.workload)
    request = Request(bench.device, job, workload, None, False, folder, Watch())
    common = ("--target-processes", "all", "--profile-from-start", "off", "--clock-control", "none", "--csv")
    wanted = {
        "ncu_long_with_rules.csv": ("--set", "detailed", "--page", "details"),
        "ncu_wide_raw.csv": ("--set", "full", "--page", "raw", "--print-units", "base"),
        "ncu_no_kernels.txt": ("--kernel-name", "regex:^no_such_kernel$", "--set", "basic"),
        "ncu_unknown_metric.txt": ("--metrics", "sm__no_such_metric.sum,gpu__time_duration.sum"),
    }
    for name, options in wanted.items():
        with scratch() as run:
            target = request.target_job(op="call", marks="cuda", shut_in=False).command(sys.executable, run)
            log = run / "log"
            ran = launch(
                [program, *common, *options, "--log-file", str(log), *target],
                folder=run,
                timeout_s=180,
                watch=Watch(),
            )
            text = log.read_text(errors="replace") if log.exists() else ""
            (folder / name).write_text(text, encoding="utf-8")
            status = {"returncode": ran.returncode, "failure": ran.failure, "stdout": ran.stdout, "stderr": ran.stderr}
            (folder / f"{name}.status.json").write_text(json.dumps(status, indent=1), encoding="utf-8")


def capture_smi(host: Host, folder: Path) -> None:
    """What the driver's tool says, in the two forms that detection reads."""
    (folder / "nvidia_smi_q_x.xml").write_text(host.run(["nvidia-smi", "-q", "-x"]).stdout, encoding="utf-8")
    (folder / "nvidia_smi_L.txt").write_text(host.run(["nvidia-smi", "-L"]).stdout, encoding="utf-8")


def page(results: Results) -> str:
    """The results page in Markdown."""
    about, device = results.about, results.device
    lines = [
        "# What the ladder sees",
        "",
        "Kernels with a known cause of slowness, profiled and diagnosed as in the loop. Written by",
        "`tests/gpu/diagnosis.py`.",
        "",
        f"Card: {device.get('name')} ({device.get('arch')}, {device.get('sm_count')} SMs). "
        + ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
        + f". Date: {about.get('date')}.",
        "",
        "Method: each kernel is verified and benchmarked by the evaluator, then profiled once at `depth: quick` (one",
        "warm call between the profiler's marks, clocks left alone, caches flushed) and diagnosed against the ceilings",
        "measured in the same run. `(no ncu)`: the same with no profiler to be found.",
        "",
        "| kernel | workload | rung | bound | findings | device µs | DRAM % | latency µs | profile s |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in results.cases),
        "",
        "| check | expected | found | |",
        "|---|---|---|---|",
        *(f"| {c.name} | {c.expected} | {c.found} | {'pass' if c.passed else '**FAIL**'} |" for c in results.checks),
    ]
    if results.errors:
        lines += ["", "Errors:", "", *(f"- {error}" for error in results.errors)]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    numbers = [_short(row["metrics"].get(name)) for name in ("duration_us", "dram_pct", "latency_us")]
    cells = [row["case"], row["workload"], row["rung"], row["bound"], ", ".join(row["findings"])]
    return "| " + " | ".join([*cells, *numbers, str(row["wall_s"])]) + " |"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def table(results: Results) -> str:
    """The short table for a terminal."""
    lines = [f"{'PASS' if c.passed else 'FAIL'}  {c.name:34} {c.found[:110]}" for c in results.checks]
    return "\n".join([*lines, *(f"ERROR {error[:200]}" for error in results.errors), f"{results.failed} failed"])


def attempts(results: Results, name: str, action: Callable[[], None]) -> None:
    """Do one part; what breaks in it is written down and does not end the run."""
    print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
    try:
        action()
    except Exception:
        results.errors.append(f"{name}: {traceback.format_exc()[-1500:]}")
        print(results.errors[-1], flush=True)
    results.save()


def examine_all(bench: Bench, results: Results, names: list[str]) -> None:
    """All cases, or those that are named, and what is derived from them."""
    rows: dict[str, dict[str, Any]] = {}

    def one(case: Case) -> None:
        profile, _, row = examine(case, bench)
        rows[case.name] = row
        results.cases.append(row)
        judge(case, row, results)
        if case.counters and case.rung == profile.rung:
            judge_static(row, ask_driver(case), _measured(profile), results)

    for case in CASES:
        if not names or case.name in names:
            attempts(results, case.name, lambda case=case: one(case))  # type: ignore[misc]
    if not names:
        judge_numbers(rows, results)


def _measured(profile: Profile) -> dict[str, Any]:
    """What ncu itself said of the main kernel, before the compiler's word was added."""
    return dict(profile.kernels[0].metrics) if profile.kernels else {}


def full_profile(bench: Bench, results: Results) -> None:
    """The full report of the first case, with its details page."""
    case = CASES[0]
    job = job_of(case, bench.device)
    info = bench.evaluator.describe(Path(job.problem), job.problem_sha256, job.device)
    workload = next(one for one in info.workloads if one.name == case.workload)
    begun = bench.clock()
    profile = bench.ladder(
        device=bench.device,
        job=job,
        workload=workload,
        timing=None,
        depth="full",
        artifacts=bench.artifacts / "full",
        watch=Watch(),
    )
    names = sorted(Path(path).name for path in profile.artifacts)
    found = f"{profile.rung}, {names}, {bench.clock() - begun:.1f} s"
    results.check("full report", "ncu with details page", found, profile.rung == "ncu" and "details.txt" in names)


def build(raw: Path) -> Bench:
    """Detect, measure, and build the ladders. Raises `KoptError` where there is no NVIDIA GPU to use."""
    host = Host()
    evaluator = LocalEvaluator(sys.executable, raw / "cache")
    evaluator.torch_device("cuda:0")  # raises where there is none
    devices = detect_all(host)
    (raw / "detect_all.json").write_text(
        json.dumps([device.model_dump() for device in devices], indent=1), encoding="utf-8"
    )
    device = with_ceilings(devices[0], evaluator.ceilings("cuda:0", Watch()))
    empty = raw / "no-tools"
    empty.mkdir()
    blind = Ladder(evaluator, python=sys.executable, cache=raw / "cache-blind", host=Host(root=empty))
    ladder = Ladder(evaluator, python=sys.executable, cache=raw / "cache", host=host)
    return Bench(device, evaluator, ladder, blind, raw / "artifacts")


def about(device: Device, program: str) -> dict[str, Any]:
    """What a reader must know to repeat it."""
    version = find_ncu(Host()).version
    return {
        "date": datetime.date.today().isoformat(),
        "versions": {**device.versions, "ncu": version, "python": platform.python_version()},
        "ncu": program,
    }


def pack(raw: Path, archive: Path, most_bytes: int = MOST_ARCHIVE) -> None:
    """All raw outputs in one archive; the binary reports are left out if it would grow too large."""
    for patterns in ((), ("*.ncu-rep",), ("*.ncu-rep", "*wide_raw.csv")):
        with tarfile.open(archive, "w:gz") as tar:
            for path in _files(raw, patterns):
                tar.add(path, arcname=str(path.relative_to(raw)))
        if archive.stat().st_size <= most_bytes:
            return


def _files(raw: Path, without: tuple[str, ...]) -> Iterator[Path]:
    for path in sorted(raw.rglob("*")):
        if path.is_file() and not any(path.match(pattern) for pattern in without):
            yield path


def main(out: Path, names: list[str]) -> int:
    """Run everything, or the cases that are named; returns the number of failed checks."""
    results = Results(out=out)
    raw = out / "raw"
    if raw.exists():
        shutil.rmtree(raw)
    raw.mkdir(parents=True)
    bench = build(raw)
    program = find_ncu(Host()).path or "ncu"
    results.device = bench.device.model_dump()
    results.about = about(bench.device, program)
    try:
        judge_ceilings(bench.device, results)
        examine_all(bench, results, names)
        pack(raw, out / "captures.tar.gz")
        if not names:
            attempts(results, "full report", lambda: full_profile(bench, results))
            attempts(results, "raw outputs of ncu", lambda: capture_raw(bench, program, raw))
            attempts(results, "nvidia-smi", lambda: capture_smi(Host(), raw))
    finally:
        bench.evaluator.close()  # type: ignore[attr-defined]
        results.save()
        pack(raw, out / "captures.tar.gz")
        shutil.rmtree(raw)
        print(table(results))
    return results.failed


if __name__ == "__main__":
    if sys.argv[1:2] == [DRIVER_FACTS]:
        print(json.dumps(driver_facts(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])))
    else:
        raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
