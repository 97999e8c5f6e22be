"""The incumbent."""

import torch


def row_sum(x):
    return torch.stack([row.sum() for row in x])
