"""Backward of cross entropy: (softmax(logits) - one_hot(label)) * grad, one program per row, the row read twice."""

import torch
import triton
import triton.language as tl


@triton.jit
def _cross_entropy_backward_kernel(
    logits_ptr, labels_ptr, grad_ptr, dlogits_ptr, stride, dstride, vocab, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * stride
    dlogits = dlogits_ptr + row * dstride
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
    grad = tl.load(grad_ptr + row)
    for start in range(0, vocab, BLOCK):
        columns = start + offsets
        mask = columns < vocab
        x = tl.load(logits + columns, mask=mask, other=-float("inf")).to(tl.float32)
        probability = tl.exp(x - largest) / total
        dx = tl.where(columns == label, probability - 1.0, probability) * grad
        tl.store(dlogits + columns, dx.to(dlogits_ptr.dtype.element_ty), mask=mask)


def cross_entropy_backward(logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """logits: (rows, vocab); labels: (rows,) int64; grad: (rows,) float32; returns the gradient of the logits."""
    rows, vocab = logits.shape
    dlogits = torch.empty_like(logits)
    _cross_entropy_backward_kernel[(rows,)](
        logits, labels, grad, dlogits, logits.stride(0), dlogits.stride(0), vocab, BLOCK=2048, num_warps=4
    )
    return dlogits
