"""What Nsight Compute really wrote on an H200, through our parsers and rules."""

from __future__ import annotations

from pathlib import Path

from test_diagnosis import device, judge, peak

from kopt_mcp.platforms import ncu
from kopt_mcp.platforms.ncu_report import parse
from kopt_mcp.platforms.reports import assemble

DATA = Path(__file__).parent / "data" / "profilers"


def test_a_matmul_on_plain_units_is_compute_bound_although_no_pipe_counter_is_high() -> None:
    report = (DATA / "ncu_2025.3_h200_matmul_fma_quick.csv").read_text(encoding="utf-8")
    profile = assemble(ncu.launches(parse(report)), rung="ncu", workload="2048-fp32", why="a capture")
    measured = {"fp32": peak(51.28), "tf32": peak(414.2)}
    n = 2048
    found = judge(
        profile.model_copy(update={"metrics": {**profile.metrics, "latency_us": 433.7}}),
        device(measured_tflops=measured, measured_gbps=peak(4277)),
        bytes_needed=3 * n * n * 4.0,
        flops=2.0 * n**3,
        dtype="float32",
        documented_bound="compute",
    )
    assert found.bound == "compute"
    assert (found.evidence[0].metric, round(found.evidence[0].value)) == ("compute_roof_pct", 77)
    assert "unused-tensor-cores" in [finding.name for finding in found.findings]
