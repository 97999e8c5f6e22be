"""Cross entropy of each row's logits against its label: one program per row, one pass with a running maximum."""

import torch
import triton
import triton.language as tl


@triton.jit
def _cross_entropy_kernel(logits_ptr, labels_ptr, losses_ptr, stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * stride
    offsets = tl.arange(0, BLOCK)

    largest = tl.full([], -float("inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for start in range(0, vocab, BLOCK):
        mask = start + offsets < vocab
        x = tl.load(logits + start + offsets, mask=mask, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), axis=0)
        largest = larger

    label = tl.load(labels_ptr + row)
    chosen = tl.load(logits + label).to(tl.float32)
    tl.store(losses_ptr + row, tl.log(total) + (largest - chosen))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """logits: (rows, vocab), unit stride along vocab; labels: (rows,) int64 in [0, vocab); returns float32 losses."""
    rows, vocab = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _cross_entropy_kernel[(rows,)](logits, labels, losses, logits.stride(0), vocab, BLOCK=2048, num_warps=4)
    return losses
