"""Machine code is read by whole mnemonics. The lines are of kernels that Triton 3.9 and nvcc 13.0 compiled."""

from __future__ import annotations

import pytest

from kopt_mcp.static.assembly import Instructions, read_amdgcn, read_ptx, read_sass


@pytest.mark.parametrize(
    ("line", "width"),
    [
        ("@!P0 LDG.E.128 R4, desc[UR4][R2.64] ;", 16),
        ("LDG.E.128.SYS R12, [R2] ;", 16),
        ("LDG.E.64.CONSTANT R6, desc[UR4][R2.64] ;", 8),
        ("@P2 LDG.E R9, desc[UR6][R2.64] ;", 4),
        ("LDG.E.U16 R5, desc[UR4][R2.64] ;", 2),
        ("LDG.E.U8 R5, desc[UR4][R2.64] ;", 1),
        ("LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64] ;", 32),
        ("LDG.E.LTC128B R9, [R2.64] ;", 4),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R71+UR4], [R18.64], P0 ;", 16),
    ],
)
def test_the_width_of_a_sass_load_is_its_size_modifier_and_not_a_cache_hint(line, width):
    assert read_sass(f"        /*0190*/                   {line}    /* 0x0 */").load_bytes == width


def test_the_widest_load_and_store_of_a_kernel_count():
    found = read_sass("LDG.E R2, [R4] ;\nLDG.E.64 R2, [R4] ;\nSTG.E.U16 [R4], R2 ;\nSTG.E [R4], R2 ;")

    assert (found.load_bytes, found.store_bytes) == (8, 4)


def test_shared_and_local_memory_and_barriers_of_copies_are_no_global_loads():
    text = (
        "LDS.128 R4, [R2] ;\nLDL.64 R4, [R1] ;\nLDGDEPBAR ;\nSTS.128 [R2], R4 ;\nSTL [R1], R4 ;\nLDC R1, c[0x0][0x28] ;"
    )

    assert read_sass(text) == Instructions(None, None, None, None)


@pytest.mark.parametrize(
    ("line", "mma"),
    [
        ("HMMA.16816.F32 R4, R8, R2, R4 ;", "mma.sync"),
        ("IMMA.16832.S8.S8 R4, R8.ROW, R2.COL, R4 ;", "mma.sync"),
        ("HGMMA.64x64x16.F32 R24, gdesc[UR8].tnspB, R24, gsb0 ;", "wgmma"),
        ("UTCHMMA gdesc[UR12], gdesc[UR14], tmem[UR4], tmem[UR16], idesc[UR17], !UPT ;", "tcgen05"),
        ("FFMA R4, R5, R6, R7 ;", None),
    ],
)
def test_sass_names_the_family_of_its_matrix_instructions(line, mma):
    assert read_sass(line).mma == mma


def test_tma_outranks_smaller_copies_in_the_same_kernel():
    assert read_sass("UTMALDG.2D [UR8], [UR4] ;\nLDGSTS.E.BYPASS.128 [R1], [R2] ;").async_copy == "tma"
    assert read_sass("LDGSTS.E.BYPASS.128 [R1], [R2] ;").async_copy == "cp.async"
    assert read_sass("UBLKCP.S.G [UR8], [UR4], UR6 ;").async_copy == "tma"


@pytest.mark.parametrize(
    ("line", "width"),
    [
        ("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", 16),
        ("ld.global.b32 { %r1 }, [ %rd1 + 0 ];", 4),
        ("ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd7];", 16),
        ("ld.global.L1::evict_last.L2::cache_hint.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ], %rd2;", 8),
        ("ld.relaxed.gpu.global.u16 %rs1, [%rd1];", 2),
        ("cp.async.cg.shared.global [ %r97 + 0 ], [ %rd38 + 0 ], 0x10, %r94;", 16),
        ("cp.async.ca.shared.global [ %r97 + 0 ], [ %rd38 + 0 ], 4;", 4),
        ("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];", None),
        ("ld.param.b64 %rd1, [kernel_param_0];", None),
    ],
)
def test_ptx_gives_the_width_where_nothing_can_disassemble(line, width):
    assert read_ptx(line).load_bytes == width


def test_ptx_names_matrix_instructions_and_copies_by_their_opcodes():
    assert read_ptx("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {...};").mma == "wgmma"
    assert read_ptx("tcgen05.mma.cta_group::1.kind::f16 [ %r1 + 0 ], %rd1, %rd2, %r3, %p1;").mma == "tcgen05"
    assert read_ptx("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {...};").mma == "mma.sync"
    assert read_ptx("cp.async.bulk.tensor.2d.shared::cluster.global.tile [%r1], [%rd1];").async_copy == "tma"
    assert read_ptx("st.global.v2.b32 [ %rd1 + 0 ], { %r1, %r2 };").store_bytes == 8


@pytest.mark.parametrize(
    ("line", "width"),
    [
        ("buffer_load_dwordx4 v[2:5], v1, s[8:11], 0 offen", 16),
        ("global_load_dwordx3 v[2:4], v[0:1], off", 12),
        ("global_load_dword v1, v[0:1], off", 4),
        ("buffer_load_b128 v[2:5], v1, s[8:11], 0 offen", 16),
        ("global_load_u16 v1, v0, s[0:1]", 2),
        ("global_load_d16_hi_b16 v1, v0, s[0:1]", 2),
        ("buffer_load_ushort v1, v0, s[8:11], 0 offen", 2),
        ("global_load_short_d16 v1, v[0:1], off", 2),
        ("buffer_load_ubyte v1, v0, s[8:11], 0 offen", 1),
        ("global_load_lds_dwordx4 v[0:1], off", 16),
        ("s_load_dwordx4 s[0:3], s[0:1], 0x0", None),
        ("scratch_load_dwordx4 v[2:5], off, s32", None),
        ("buffer_load_dword v1, off, s[0:3], 0 offset:4 ; 4-byte Folded Reload", None),
        ("buffer_load_dword v1, off, s[0:3], 0 offset:4", None),
    ],
)
def test_the_width_of_an_amd_load_is_in_its_name_and_scratch_is_no_global_memory(line, width):
    assert read_amdgcn(f"\t{line}").load_bytes == width


def test_amd_names_matrix_instructions_stores_and_loads_that_bypass_registers():
    assert read_amdgcn("\tv_mfma_f32_32x32x8_f16 v[0:15], v[2:3], v[4:5], v[0:15]").mma == "mfma"
    assert read_amdgcn("\tv_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v1").mma == "mfma"
    assert read_amdgcn("\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]").mma == "wmma"
    assert read_amdgcn("\tbuffer_store_dwordx2 v[0:1], v2, s[8:11], 0 offen").store_bytes == 8
    assert read_amdgcn("\tbuffer_load_dwordx4 v1, s[8:11], 0 offen lds").async_copy == "load_to_lds"
    assert read_amdgcn("\tbuffer_load_dwordx4 v[2:5], v1, s[8:11], 0 offen").async_copy is None
