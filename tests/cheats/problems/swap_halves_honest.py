"""The incumbent: one pass over the memory."""

import torch


def swap_halves(x):
    half = x.numel() // 2
    return torch.cat([x[half:], x[:half]])
