"""The device table and the rules that find a device's row in it."""

from __future__ import annotations

import pytest

from kopt_mcp.devices import describe_as, resolve, shared_bytes
from kopt_mcp.devices.table import GIB, table

KNOWN = [
    ("Tesla T4", "Tesla T4", 320),
    ("Tesla V100-SXM2-32GB", "Tesla V100 SXM2", 900),
    ("Tesla V100-PCIE-16GB", "Tesla V100 PCIe", 900),
    ("NVIDIA A10", "NVIDIA A10", 600),
    ("NVIDIA A10G", "NVIDIA A10G", 600),
    ("NVIDIA A30", "NVIDIA A30", 933),
    ("A100-SXM4-40GB", "NVIDIA A100 40GB", 1555),
    ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 40GB", 1555),
    ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM4 80GB", 2039),
    ("NVIDIA A100 80GB PCIe", "NVIDIA A100 PCIe 80GB", 1935),
    ("NVIDIA L4", "NVIDIA L4", 300),
    ("NVIDIA L40", "NVIDIA L40", 864),
    ("NVIDIA L40S", "NVIDIA L40S", 864),
    ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe", 2039),
    ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB", 3352),
    ("NVIDIA H100 NVL", "NVIDIA H100 NVL", 3938),
    ("NVIDIA H200", "NVIDIA H200 SXM", 4800),
    ("NVIDIA H200 NVL", "NVIDIA H200 NVL", 4800),
    ("NVIDIA GH200 480GB", "NVIDIA GH200 96GB HBM3", 4000),
    ("NVIDIA GH200 144G HBM3e", "NVIDIA GH200 144GB HBM3e", 4900),
    ("NVIDIA B200", "NVIDIA B200", 8000),
    ("NVIDIA GB200", "NVIDIA GB200", 8000),
    ("NVIDIA B300 SXM6 AC", "NVIDIA B300", 8000),
    ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090", 1008),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU", 576),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", "NVIDIA GeForce RTX 4070 Ti SUPER", 672.3),
    ("NVIDIA RTX A6000", "NVIDIA RTX A6000", 768),
    ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada Generation", 960),
    ("Quadro RTX 6000", "Quadro RTX 6000", 672),
    (
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        1792,
    ),
    ("AMD Instinct MI210", "AMD Instinct MI210", 1638.4),
    ("AMD Instinct MI300X", "AMD Instinct MI300X", 5300),
    ("AMD Instinct MI300X VF", "AMD Instinct MI300X", 5300),
    ("AMD Instinct MI325X", "AMD Instinct MI325X", 6000),
    ("AMD Radeon RX 7900 XTX", "AMD Radeon RX 7900 XTX", 960),
    ("Radeon RX 7900 XT", "AMD Radeon RX 7900 XT", 800),
]

UNKNOWN = [
    "",
    "NVIDIA",
    "NVIDIA H100",
    "NVIDIA H100 64GB HBM2",
    "NVIDIA H300",
    "NVIDIA H20-3e",
    "NVIDIA A100",
    "NVIDIA A100-40C",
    "GRID A100-10C",
    "NVIDIA A100X",
    "NVIDIA A10-24Q",
    "NVIDIA L400",
    "NVIDIA RTX 6000",
    "NVIDIA GeForce RTX 4090 Ti",
    "NVIDIA GeForce RTX 3080 Laptop GPU",
    "NVIDIA GeForce RTX 2080 Super with Max-Q Design",
    "Orin",
    "Graphics Device",
    "AMD Radeon Graphics",
    "AMD Instinct MI308X",
    "AMD H100 80GB HBM3",
    "Intel(R) Arc(TM) A770 Graphics",
    "NVIDIA L4 MIG 1g.3gb",
    "NVIDIA H100 80GB HBM3 MIG 1g.500gb",
]


@pytest.mark.parametrize(("name", "row", "gbps"), KNOWN)
def test_a_full_device_name_finds_its_own_row(name: str, row: str, gbps: float) -> None:
    described = describe_as(name)
    assert (described["resolved_as"], described["peak_gbps"]) == (row, gbps)
    assert described["source"]
    assert described["confidence"] in ("high", "medium", "low")


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_is_not_known_for_certain_gives_nothing(name: str) -> None:
    described = describe_as(name)
    assert described["peak_gbps"] is None
    assert described["resolved_as"] is None
    assert described["tflops"] == {}


def test_a_short_name_says_what_it_may_stand_for() -> None:
    assert "NVIDIA H100 NVL" in describe_as("H100")["notes"][0]


@pytest.mark.parametrize(
    ("memory_gib", "sms", "row"),
    [(79.6, 114, "NVIDIA H100 PCIe"), (79.6, 132, "NVIDIA H100 SXM5 80GB"), (93.6, 132, "NVIDIA H100 NVL")],
)
def test_memory_and_sm_count_decide_a_short_name(memory_gib: float, sms: int, row: str) -> None:
    spec = resolve("NVIDIA H100", arch="sm_90", memory_bytes=int(memory_gib * GIB), sm_count=sms)
    assert spec is not None
    assert spec.name == row


@pytest.mark.parametrize(
    "facts",
    [{"arch": "sm_80"}, {"memory_bytes": 40 * GIB}, {"sm_count": 114}, {"vendor": "amd"}],
)
def test_a_fact_that_contradicts_the_name_is_a_veto(facts: dict[str, object]) -> None:
    assert resolve("NVIDIA H100 80GB HBM3", **facts) is None  # type: ignore[arg-type]


def test_a_4090_with_other_memory_is_not_a_4090() -> None:
    assert resolve("NVIDIA GeForce RTX 4090", memory_bytes=48 * GIB) is None


def test_two_cards_of_one_name_are_told_apart_by_memory() -> None:
    small = resolve("NVIDIA GeForce RTX 3080", memory_bytes=10 * GIB)
    large = resolve("NVIDIA GeForce RTX 3080", memory_bytes=12 * GIB)
    assert small is not None
    assert large is not None
    assert (small.sm_count, large.sm_count) == (68, 70)
    assert resolve("NVIDIA GeForce RTX 3080") is None


@pytest.mark.parametrize("arch", ["gfx942", "gfx942:sramecc+:xnack-"])
@pytest.mark.parametrize(("memory_gib", "row"), [(191.7, "AMD Instinct MI300X"), (255.7, "AMD Instinct MI325X")])
def test_an_empty_amd_name_is_resolved_by_arch_units_and_memory(arch: str, memory_gib: float, row: str) -> None:
    spec = resolve("", vendor="amd", arch=arch, memory_bytes=int(memory_gib * GIB), sm_count=304)
    assert spec is not None
    assert spec.name == row
    assert any("no product name" in note for note in spec.notes)


@pytest.mark.parametrize(("memory", "units"), [(None, 304), (192 * GIB, None), (192 * GIB, 80)])
def test_an_empty_amd_name_with_facts_missing_or_odd_stays_unknown(memory: int | None, units: int | None) -> None:
    assert resolve("", vendor="amd", arch="gfx942", memory_bytes=memory, sm_count=units) is None


def test_an_mi250x_is_graded_by_the_die_and_not_by_the_card() -> None:
    spec = resolve("AMD Instinct MI250X / MI250", arch="gfx90a", memory_bytes=64 * GIB, sm_count=110)
    assert spec is not None
    assert spec.bandwidth_gbps is not None
    assert spec.bandwidth_gbps.value == pytest.approx(3276.8 / 2)
    assert spec.tflops["fp16"].value == pytest.approx(383 / 2, rel=0.01)


def test_a_mig_instance_gets_its_share_of_memory_slices_and_sms() -> None:
    spec = resolve("NVIDIA H200 MIG 1g.18gb", arch="sm_90", sm_count=16)
    assert spec is not None
    assert spec.bandwidth_gbps is not None
    assert (spec.bandwidth_gbps.value, spec.bandwidth_gbps.method) == (600, "computed")
    assert spec.tflops["fp16"].value == pytest.approx(989.4 * 16 / 132, rel=1e-3)
    assert spec.partition == "1g.18gb"
    assert any("1/8" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 2 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 4 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 1),
    ],
)
def test_bandwidth_follows_the_memory_of_the_profile_and_not_its_compute(name: str, share: float) -> None:
    assert describe_as(name)["peak_gbps"] == pytest.approx(3352 * share)


def test_a_mig_profile_with_no_known_sm_count_has_bandwidth_but_no_compute() -> None:
    described = describe_as("NVIDIA B200 MIG 1g.23gb")
    assert described["peak_gbps"] == 1000
    assert described["tflops"] == {}
    assert any("unknown without an SM count" in note for note in described["notes"])


def test_an_amd_partition_has_its_share_of_compute_and_no_bandwidth() -> None:
    spec = resolve("AMD Instinct MI300X", arch="gfx942", memory_bytes=24 * GIB, sm_count=38)
    assert spec is not None
    assert spec.bandwidth_gbps is None
    assert spec.tflops["fp16"].value == pytest.approx(1307.4 / 8, rel=1e-3)
    assert spec.partition == "1/8"


def test_an_unknown_mask_of_compute_units_is_not_a_partition() -> None:
    assert resolve("AMD Instinct MI300X", arch="gfx942", memory_bytes=192 * GIB, sm_count=300) is None


def test_the_table_is_large_enough_and_no_row_shadows_another() -> None:
    rows = table().devices
    assert len(rows) >= 35
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        arch, units = row.chip.arch, row.chip.units
        memory = int(row.chip.memory_gib[0] * GIB) if row.chip.memory_gib else None
        name = row.name.removesuffix(" (one GCD)")
        spec = resolve(name, arch=arch, memory_bytes=memory, sm_count=units)
        assert spec is not None, row.name
        assert spec.name == row.name


def test_every_published_peak_agrees_with_units_clock_and_rate_unless_the_row_says_why() -> None:
    off = []
    for row in table().devices:
        excused = {dtype for dtypes in row.off_formula.values() for dtype in dtypes}
        for dtype, figure in row.tflops.items():
            expected = table().formula_tflops(row, dtype)
            fits = expected is None or abs(figure.value / expected - 1) <= 0.03
            if fits == (dtype in excused) and expected is not None:
                off.append((row.name, dtype, figure.value, expected))
    assert off == []


def test_every_architecture_has_its_largest_block_of_shared_memory() -> None:
    assert shared_bytes("sm_90") == 227 * 1024
    assert shared_bytes("gfx950") == 160 * 1024
    assert shared_bytes("sm_999") is None
    assert {row.chip.arch for row in table().devices} <= set(table().architectures)


def test_what_nobody_published_is_computed_for_all_types_of_the_architecture() -> None:
    rates = describe_as("NVIDIA GeForce RTX 2080 Ti")["tflops"]
    assert rates == {"fp32": 13.4, "fp16": 53.8, "int8": 215.2, "fp16_acc_fp16": 107.6}
    spec = resolve("NVIDIA GeForce RTX 2080 Ti")
    assert spec is not None
    assert {(peak.method, peak.confidence) for peak in spec.tflops.values()} == {("computed", "medium")}


def test_cards_that_public_tables_confuse_have_different_peaks() -> None:
    fp16 = {name: describe_as(f"NVIDIA {name}")["tflops"]["fp16"] for name in ("L4", "L40", "L40S", "A10", "A10G")}
    assert len(set(fp16.values())) == len(fp16)
    assert describe_as("NVIDIA L4")["peak_gbps"] == 300  # not 3350, as torch's own table has it
    assert describe_as("NVIDIA H100 80GB HBM3")["tflops"]["fp16"] == 989.4  # dense, not 1979 with sparsity
    assert describe_as("NVIDIA GeForce RTX 4090")["tflops"]["bf16"] == 165.2  # tensor, not the 82.6 of fp32
