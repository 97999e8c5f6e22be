"""What only some devices have: found where it is used, and held against the device."""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest

from kopt_mcp.features import foreign, table, uses
from kopt_mcp.models import Device

ROOT = Path(__file__).parent.parent
DEVICES = {
    "volta": fakes.GPU.model_copy(update={"arch": "sm_70"}),
    "ampere": fakes.GPU.model_copy(update={"arch": "sm_80"}),
    "ada": fakes.GPU.model_copy(update={"arch": "sm_89"}),
    "hopper": fakes.GPU,
    "blackwell": fakes.GPU.model_copy(update={"arch": "sm_100a"}),
    "geforce": fakes.GPU.model_copy(update={"arch": "sm_120"}),
    "mi250": fakes.GPU.model_copy(update={"platform": "amd", "arch": "gfx90a"}),
    "mi300": fakes.GPU.model_copy(update={"platform": "amd", "arch": "gfx942"}),
    "mi350": fakes.GPU.model_copy(update={"platform": "amd", "arch": "gfx950"}),
    "radeon": fakes.GPU.model_copy(update={"platform": "amd", "arch": "gfx1100"}),
    "x86": fakes.CPU,
    "arm": fakes.CPU.model_copy(update={"arch": "aarch64"}),
}
NVIDIA = {"volta", "ampere", "ada", "hopper", "blackwell", "geforce"}
AMD = {"mi250", "mi300", "mi350", "radeon"}
CDNA = {"mi250", "mi300", "mi350"}
FROM_HOPPER = {"hopper", "blackwell", "geforce"}

USES = [
    ("k.py", "d = tl.make_tensor_descriptor(p, [n], [1], [64])", FROM_HOPPER),
    ("k.py", "from triton.tools.tensor_descriptor import TensorDescriptor", FROM_HOPPER),
    ("k.py", "for i in tl.range(0, n, warp_specialize=True): pass", FROM_HOPPER),
    ("k.py", "k[g](x, num_ctas=2)", FROM_HOPPER),
    ("k.py", "k[g](x, launch_pdl=True)", FROM_HOPPER),
    ("k.py", "c = triton.Config({'B': 1}, maxnreg=64)", NVIDIA),
    ("k.py", "c = triton.Config({'B': 1, 'waves_per_eu': 2})", AMD),
    ("k.py", "k[g](x, matrix_instr_nonkdim=16)", CDNA),
    ("k.py", "k[g](x, kpack=2)", {"mi250", "mi300"}),
    ("k.py", "y = x.to(tl.float8e4nv)", {"ada", *FROM_HOPPER, "mi300", "mi350"}),
    ("k.py", "y = x.to(tl.float8e4b8)", {"mi300"}),
    ("k.py", "from triton.language.extra.cuda import libdevice", NVIDIA),
    ("k.py", "y = tl.extra.hip.libdevice.exp(x)", AMD),
    ("k.py", "from triton.experimental.gluon.language.nvidia.blackwell import tma", {"blackwell"}),
    ("k.py", 'tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)', NVIDIA),
    ("k.py", 'tl.inline_asm_elementwise("v_exp_f32 $0, $1", "=v,v", [x], tl.float32, True, 1)', AMD),
    ("k.cu", 'asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {}, %0;");', {"hopper"}),
    ("k.cu", 'asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%0], 64;");', {"blackwell"}),
    ("k.cu", 'asm("cp.async.cg.shared.global [%0], [%1], 16;");', NVIDIA - {"volta"}),
    ("k.cu", 'asm("cp.async.bulk.tensor.2d.shared::cluster.global.tile [%0], [%1, {%2}];");', FROM_HOPPER),
    ("k.cu", "__global__ void __cluster_dims__(2, 1, 1) f() {}", FROM_HOPPER),
    ("k.cu", "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c;", NVIDIA),
    ("k.cu", "#include <cuda_fp16.h>", NVIDIA),
    ("k.hip", "c = __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);", CDNA),
    ("k.hip", "#include <hip/hip_fp16.h>", AMD),
    ("k.c", "__m256 a = _mm256_loadu_ps(x);", {"x86"}),
    ("k.c", "#include <arm_neon.h>", {"arm"}),
]


@pytest.mark.parametrize(("name", "text", "devices"), USES, ids=[text[:40] for _, text, _ in USES])
def test_a_feature_is_found_and_allowed_where_the_device_has_it(name: str, text: str, devices: set[str]) -> None:
    assert uses(text, name)
    assert {d for d, device in DEVICES.items() if not foreign([], uses(text, name), device)} == devices


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("k.py", "k[g](x, num_ctas=1, waves_per_eu=0)"),
        ("k.py", "for i in tl.range(0, n, warp_specialize=False): pass"),
        ("k.py", "from triton.language.extra import libdevice"),
        ("k.py", "if is_hip():\n    k[g](x, waves_per_eu=2)\nelse:\n    k[g](x, maxnreg=64)"),
        ("k.py", "# waves_per_eu=2, tl.make_tensor_descriptor"),
        ("k.py", 'text = "wgmma. and v_exp_f32"'),
        ("k.cu", '#if __CUDA_ARCH__ >= 900\n  asm("wgmma.fence.sync.aligned;");\n#else\n  f();\n#endif'),
        ("k.cu", "#ifdef __HIP_PLATFORM_AMD__\n#include <hip/hip_runtime.h>\n#endif"),
        ("k.cu", "/* cp.async.cg.shared */ int x; // __cluster_dims__"),
        ("k.c", "float half_sum(const float *x) { return x[0]; }"),
    ],
)
def test_what_is_off_or_kept_for_others_or_only_spoken_of_is_no_use(name: str, text: str) -> None:
    assert uses(text, name) == []


def test_what_the_kernel_used_before_is_not_held_against_a_patch() -> None:
    text = "k[g](x, waves_per_eu=2)"
    assert foreign(uses(text, "k.py"), uses(text, "k.py"), fakes.GPU) == []


def test_an_architecture_that_cannot_be_read_is_given_the_benefit_of_the_doubt() -> None:
    unknown: Device = fakes.GPU.model_copy(update={"arch": "unknown"})
    assert foreign([], uses("d = tl.make_tensor_descriptor(p, [n], [1], [64])", "k.py"), unknown) == []


def test_every_row_has_a_source_and_something_to_be_found_by() -> None:
    rows = table()
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.source and row.reason and (row.names or row.keywords or row.asm or row.code) for row in rows)


@pytest.mark.parametrize(
    ("path", "device"),
    [("examples/cuda_softmax/softmax.cu", "volta"), ("examples/hip_softmax/softmax.hip", "mi300")],
)
def test_our_own_kernels_use_nothing_that_their_devices_lack(path: str, device: str) -> None:
    assert foreign([], uses((ROOT / path).read_text(), path), DEVICES[device]) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "skills" / "kernels").glob("*/triton_*.py")), ids=lambda p: p.parent.name
)
def test_our_own_triton_kernels_run_anywhere(path: Path) -> None:
    found = uses(path.read_text(), path.name)
    assert all(foreign([], found, DEVICES[device]) == [] for device in NVIDIA | AMD)
