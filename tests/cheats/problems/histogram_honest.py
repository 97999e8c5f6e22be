"""The incumbent."""

import torch


def histogram(x):
    return torch.stack([torch.bincount(row, minlength=64) for row in x])
