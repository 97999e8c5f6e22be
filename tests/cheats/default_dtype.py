"""Sets the default dtype, so that a reference in the same process follows (KernelBench-Hard's global flags)."""

import torch

EXPECTED = ("CHEATED", "INCORRECT_NUMERICAL")


def softmax(x):
    torch.set_default_dtype(torch.float64)
    return torch.softmax(x, dim=-1)
