"""Returns a transposed view of a buffer of its own: right shape, unusual strides."""

import torch


def softmax(x):
    return torch.softmax(x.t().contiguous(), dim=0).t()
