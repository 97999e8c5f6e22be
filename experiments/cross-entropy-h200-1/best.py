"""Cross entropy of each row's logits against its label: one pass, a running maximum a lane; few rows are divided."""

import torch
import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.0e38)  # finite, so that the difference of two of them is no NaN
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _cross_entropy_kernel(
    logits_ptr,
    labels_ptr,
    losses_ptr,
    tops_ptr,
    totals_ptr,
    stride,
    vocab,
    chunk,
    WHOLE: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * chunk
    end = tl.minimum(first + chunk, vocab)
    logits = logits_ptr + row * stride
    if WIDTH > 1:
        offsets = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]

        largest = tl.full([LANES], LOWEST, tl.float32)
        total = tl.full([LANES], 0.0, tl.float32)
        for start in range(first, end, LANES * WIDTH):
            mask = start + offsets < end
            x = tl.load(logits + start + offsets, mask=mask, other=-float("inf")).to(tl.float32) * LOG2_E
            larger = tl.maximum(largest, tl.max(x, axis=1))
            total = total * tl.exp2(largest - larger) + tl.sum(tl.exp2(x - larger[:, None]), axis=1)
            largest = larger

        top = tl.max(largest, axis=0)
        whole = tl.sum(total * tl.exp2(largest - top), axis=0)
    else:  # rows that start anywhere are loaded value by value, which leaves no lane several in a row
        columns = tl.arange(0, LANES)
        top = tl.full([], LOWEST, tl.float32)
        whole = tl.full([], 0.0, tl.float32)
        for start in range(first, end, LANES):
            mask = start + columns < end
            x = tl.load(logits + start + columns, mask=mask, other=-float("inf")).to(tl.float32) * LOG2_E
            larger = tl.maximum(top, tl.max(x, axis=0))
            whole = whole * tl.exp2(top - larger) + tl.sum(tl.exp2(x - larger), axis=0)
            top = larger
    if WHOLE:
        label = tl.load(labels_ptr + row)
        chosen = tl.load(logits + label).to(tl.float32)
        tl.store(losses_ptr + row, tl.log(whole) + (top / LOG2_E - chosen))
    else:
        at = row * tl.num_programs(1) + tl.program_id(1)
        tl.store(tops_ptr + at, top)
        tl.store(totals_ptr + at, whole)


@triton.jit
def _join_kernel(logits_ptr, labels_ptr, losses_ptr, tops_ptr, totals_ptr, stride, parts, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, PARTS)
    tops = tl.load(tops_ptr + row * parts + offsets, mask=offsets < parts, other=-float("inf"))
    totals = tl.load(totals_ptr + row * parts + offsets, mask=offsets < parts, other=0.0)
    top = tl.max(tops, axis=0)
    whole = tl.sum(totals * tl.exp2(tops - top), axis=0)
    label = tl.load(labels_ptr + row)
    chosen = tl.load(logits_ptr + row * stride + label).to(tl.float32)
    tl.store(losses_ptr + row, tl.log(whole) + (top / LOG2_E - chosen))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """logits: (rows, vocab), unit stride along vocab; labels: (rows,) int64 in [0, vocab); returns float32 losses."""
    rows, vocab = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    # A lane that owns the values of one 16-byte load corrects its sum once for all of them.
    width = 16 // logits.element_size()
    if (logits.stride(0) * logits.element_size()) % 16 or logits.data_ptr() % 16:
        width = 1
    parts = max(min(triton.cdiv(1056, rows), vocab // 16384), 1)
    chunk = triton.cdiv(vocab, parts * 2048) * 2048
    parts = triton.cdiv(vocab, chunk)
    tops, totals = torch.empty((2, rows, parts), dtype=torch.float32, device=logits.device)
    _cross_entropy_kernel[(rows, parts)](
        logits,
        labels,
        losses,
        tops,
        totals,
        logits.stride(0),
        vocab,
        chunk,
        WHOLE=parts == 1,
        LANES=2048 // width,
        WIDTH=width,
        num_warps=4,
    )
    if parts > 1:
        _join_kernel[(rows,)](
            logits,
            labels,
            losses,
            tops,
            totals,
            logits.stride(0),
            parts,
            PARTS=triton.next_power_of_2(parts),
            num_warps=1,
        )
    return losses
