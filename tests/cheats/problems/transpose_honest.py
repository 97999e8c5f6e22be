"""The incumbent: a copy also where torch would hand back a view."""

import torch


def transpose(x):
    return x.t().clone(memory_format=torch.contiguous_format)
