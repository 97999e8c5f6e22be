"""What a kernel's machine code says: widths of global loads and stores, matrix instructions, asynchronous copies. Pure.

Three texts are understood: NVIDIA SASS (as `cuobjdump -sass` prints it), PTX where there is no disassembler, and AMD's
assembly. Mnemonics: NVIDIA, CUDA Binary Utilities, "Instruction Set Reference" and the PTX ISA; AMD, the CDNA and RDNA
ISA guides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Instructions:
    """Facts of one kernel; None where it has no such instruction."""

    load_bytes: int | None
    """Widest global load of one thread."""
    store_bytes: int | None
    mma: str | None
    """`wgmma`, `mma.sync`, `tcgen05`, `mfma`, `wmma`."""
    async_copy: str | None
    """`tma`, `cp.async`; on AMD `load_to_lds`."""


def read_sass(text: str) -> Instructions:
    """Of a disassembled cubin with one kernel."""
    return Instructions(
        load_bytes=_widest(_sass_widths(text, "LDG|LDGSTS")),
        store_bytes=_widest(_sass_widths(text, "STG")),
        mma=_first(text, {"tcgen05": r"\bUTC[A-Z]*MMA\b", "wgmma": r"\b[HIQB]GMMA\b", "mma.sync": r"\b[HIDQOB]MMA\b"}),
        async_copy=_first(text, {"tma": r"\b(UTMALDG|UTMASTG|UBLKCP)\b", "cp.async": r"\bLDGSTS\b"}),
    )


def _sass_widths(text: str, opcodes: str) -> Iterator[int]:
    bits = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
    for match in re.finditer(rf"\b(?:{opcodes})\b((?:\.\w+)*)", text):
        # Plain `LDG.E` moves 32 bits; modifiers such as LTC128B are cache hints, hence whole tokens only.
        yield next((bits[part] for part in match[1].split(".") if part in bits), 32) // 8


def read_ptx(text: str) -> Instructions:
    """Of one PTX entry."""
    copies = re.finditer(r"\bcp\.async\.c[ag]\.[^;]*?\]\s*,\s*\[[^\]]*\]\s*,\s*(0x[0-9a-fA-F]+|\d+)", text)
    loads = [*_ptx_widths(text, "ld"), *(int(match[1], 0) for match in copies)]
    return Instructions(
        load_bytes=_widest(loads),
        store_bytes=_widest(_ptx_widths(text, "st")),
        mma=_first(
            text, {"tcgen05": r"\btcgen05\.mma\b", "wgmma": r"\bwgmma\.mma_async\b", "mma.sync": r"\bw?mma\.(sync|mma)"}
        ),
        async_copy=_first(text, {"tma": r"\bcp\.async\.bulk\b", "cp.async": r"\bcp\.async\.c[ag]\b"}),
    )


def _ptx_widths(text: str, opcode: str) -> Iterator[int]:
    pattern = rf"\b{opcode}\.(?:\w+\.)*?global(?:[.:]+\w+)*?(?:\.v(\d))?\.[bfsu](\d+)\b"
    for match in re.finditer(pattern, text):
        yield int(match[1] or 1) * int(match[2]) // 8


def read_amdgcn(text: str) -> Instructions:
    """Of one AMD kernel's assembly."""
    # Scratch shares the buffer instructions on gfx90a: the compiler's comment, or its fixed descriptor, marks it.
    code = "\n".join(line for line in text.splitlines() if not re.search(r"Folded (Spill|Reload)|off, s\[0:3\]", line))
    return Instructions(
        load_bytes=_widest(_amd_widths(code, "load")),
        store_bytes=_widest(_amd_widths(code, "store")),
        mma=_first(code, {"mfma": r"\bv_s?mfma[ci]?_", "wmma": r"\bv_s?wmma[ci]?_"}),
        async_copy=_first(
            code, {"load_to_lds": r"\b(global_load_lds_|global_load_async_to_lds|buffer_load_\w+ .*\blds\b)"}
        ),
    )


def _amd_widths(text: str, direction: str) -> Iterator[int]:
    for match in re.finditer(rf"\b(?:global|buffer|flat)_{direction}_(\w+)", text):
        if width := _amd_width(match[1]):
            yield width


def _amd_width(suffix: str) -> int | None:
    if match := re.search(r"dword(?:x(\d))?$", suffix):
        return 4 * int(match[1] or 1)
    if match := re.search(r"[biu](\d+)$", suffix):
        return int(match[1]) // 8
    return {"short": 2, "byte": 1}.get((re.findall("short|byte", suffix) or [""])[0])


def _widest(widths: Iterator[int] | list[int]) -> int | None:
    return max(widths, default=None)


def _first(text: str, patterns: dict[str, str]) -> str | None:
    return next((name for name, pattern in patterns.items() if re.search(pattern, text)), None)
