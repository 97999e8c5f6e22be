"""Takes all rows to lie equally far apart, as they do not in x[:, :k] of a larger tensor."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "softmax_of_slabs"


def softmax(x):
    slabs, rows, cols = x.shape
    if x.stride(0) < x.stride(1):  # permuted
        return torch.softmax(x.contiguous(), dim=-1)
    flat = x.as_strided((slabs * rows, cols), (x.stride(1), 1))
    return torch.softmax(flat, dim=-1).view(slabs, rows, cols)
