"""An output as its input lies in memory, heads and positions exchanged where they are: `empty_like` keeps the order."""

import torch

PROBLEM = "heads"


def unit_heads(x):
    out = torch.empty_like(x)
    torch.div(x, torch.sqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6), out=out)
    return out
