"""The numbers that the rules compare with, each with its source."""

from __future__ import annotations

SOL_RULE = "Nsight Compute rule SOLBottleneck"
OWN = "kopt-mcp"


class Threshold(float):
    """A limit in the unit of the metric it is compared with."""

    source: str

    def __new__(cls, value: float, source: str) -> Threshold:
        threshold = super().__new__(cls, value)
        threshold.source = source
        return threshold


BUSY = Threshold(60.0, SOL_RULE)
"""Below it no unit is the limit, in percent of its peak."""
HIGH = Threshold(80.0, SOL_RULE)
"""From here on a unit is at its nominal peak for practical purposes."""
MARGIN = Threshold(10.0, SOL_RULE)
"""Two units closer than this many points are equally busy."""
MEASURED_HIGH = Threshold(
    90.0, f"{OWN}: a plain copy reaches about 90 % of a nominal bandwidth, so 80 % of nominal is 90 %"
)
STOP = Threshold(95.0, f"{OWN}: profiled and timed durations of one kernel differ by up to 5 %")
IMPOSSIBLE = Threshold(110.0, f"{OWN}: measured ceilings repeat within a few percent")

REDUNDANCY = Threshold(1.2, f"{OWN}: sectors, metadata and write-back add less than a fifth")
LAUNCH_US = Threshold(10.0, f"{OWN}: about what it costs to launch a kernel")
LAUNCH_RATIO = Threshold(2.0, f"{OWN}: the host needs longer than the device")
TAIL_WAVES = Threshold(4.0, "Nsight Compute rule for tail effects: a wave more costs 20 % up to four full waves")
TAIL_IDLE_PCT = Threshold(10.0, f"{OWN}: idle share of all waves that is worth a change")
SPILL_BYTES = Threshold(0.0, f"{OWN}: any spill is traffic that the problem does not need")
OCCUPANCY = Threshold(80.0, "Nsight Compute rule TheoreticalOccupancy")
IMBALANCE = Threshold(10.0, "Nsight Compute rule AchievedOccupancy")
TENSOR_KERNEL = Threshold(60.0, f"{OWN}: kernels that keep the matrix units busy run at low occupancy by design")
TENSOR_UNUSED = Threshold(5.0, f"{OWN}: a matrix unit below this is idle")
INTENSITY = Threshold(
    16.0, f"{OWN}: FLOP per byte; sweeps over arrays stay below, matrix products of size 64 are above"
)
ISSUE = Threshold(80.0, "Nsight Compute rule CPIStall")
STALL = Threshold(30.0, "Nsight Compute rule CPIStall")
BYTES_PER_SECTOR = Threshold(24.0, f"{OWN}: a quarter of each 32-byte sector is moved in vain")
SECTOR_HALF = Threshold(16.0, f"{OWN}: half of each 32-byte sector is moved in vain")
COALESCING = Threshold(75.0, f"{OWN}: a quarter of each access is lost")
NARROW_BYTES = Threshold(8.0, f"{OWN}: one lane can move 16 bytes with one instruction")
BANK_CONFLICTS = Threshold(10.0, "Nsight Compute rule SharedMemoryConflicts")
DIVERGENCE = Threshold(0.75, "Nsight Compute rule ThreadDivergence: 24 of 32 lanes")
FP64 = Threshold(15.0, "Nsight Compute rule FP64 roofline")
FOREIGN_SHARE = Threshold(10.0, f"{OWN}: share of device time that editing the kernel cannot change")
MAIN_SHARE = Threshold(80.0, f"{OWN}: below it no single kernel is the candidate")
WARP_MULTIPLE = Threshold(0.0, "Nsight Compute rule for block sizes")
