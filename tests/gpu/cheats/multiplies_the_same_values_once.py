"""Finds out on the device which of the calls that are held back got the same values, and copies their products."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("INCORRECT_NUMERICAL", "SUSPECT", "CHEATED")
TIMED = True
PROBLEM = "gemm"
WORKLOADS = ("2048x2048x2048-bf16",)


def _place():
    """The runner and its ticket, where it queues calls behind the gate; None elsewhere. For whom `_function` calls."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "<listcomp>":
        frame = frame.f_back
    return (frame.f_locals["self"], frame.f_locals["message"]["ticket"]) if frame.f_code.co_name == "enqueue" else None


@triton.jit(do_not_specialize=["which"])
def _product(a_ptr, b_ptr, all_ptr, same_ptr, which, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    across = N // BN
    rows = (pid // across) * BM + tl.arange(0, BM)
    columns = (pid % across) * BN + tl.arange(0, BN)
    places = rows[:, None] * N + columns[None, :]
    source = tl.load(same_ptr + which)
    if source != which:
        tl.store(all_ptr + which * M * N + places, tl.load(all_ptr + source * M * N + places))
    else:
        inner = tl.arange(0, BK)
        a_at = a_ptr + rows[:, None] * K + inner[None, :]
        b_at = b_ptr + inner[:, None] * N + columns[None, :]
        sums = tl.zeros((BM, BN), dtype=tl.float32)
        for _ in range(0, K, BK):
            sums = tl.dot(tl.load(a_at), tl.load(b_at), sums)
            a_at += BK
            b_at += BK * N
        tl.store(all_ptr + which * M * N + places, sums.to(tl.bfloat16))


_state = {}


def _which_are_the_same(held):
    few = torch.stack([one.args[0].view(-1)[::65_521] for one in held])
    as_first = (few == few[0]).all(1)
    second = (~as_first).to(torch.uint8).argmax().to(torch.int32)
    return torch.where(as_first, torch.zeros_like(second), second).contiguous()


def gemm(a, b):
    place = _place()
    if place is not None and a.shape == b.shape == (2048, 2048) and a.dtype == torch.bfloat16:
        held = place[0]._held
        if a is held[0].args[0]:
            _state["all"] = torch.empty((len(held), 2048, 2048), dtype=a.dtype, device=a.device)
            _state["same"] = _which_are_the_same(held)
        which = next(n for n, one in enumerate(held) if one.args[0] is a)
        grid = (2048 // 128 * (2048 // 256),)
        _product[grid](
            a,
            b,
            _state["all"],
            _state["same"],
            which,
            2048,
            2048,
            2048,
            BM=128,
            BN=256,
            BK=64,
            num_warps=8,
            num_stages=3,
        )
        return _state["all"][which]
    out = torch.matmul(a, b)
    clock = sys._getframe(2).f_locals
    if a.numel() >= 1 << 20 and "start" in clock:
        clock["start"].record()
        torch.cuda._sleep(44_500)
    return out
