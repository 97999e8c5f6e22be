"""Each half of the sums on a stream of its own, joined before they are added."""

import torch

TIMED = True
PROBLEM = "gemm"
WORKLOADS = ("2048x2048x2048-fp32",)


_side = torch.cuda.Stream()


def gemm(a, b):
    half = a.shape[1] // 2
    if half == 0 or a.dtype != torch.float32:
        return a @ b
    current = torch.cuda.current_stream()
    _side.wait_stream(current)
    with torch.cuda.stream(_side):
        second = a[:, half:] @ b[half:]
    first = a[:, :half] @ b[:half]
    current.wait_stream(_side)
    second.record_stream(current)
    a.record_stream(_side)
    b.record_stream(_side)
    return first.add_(second)
