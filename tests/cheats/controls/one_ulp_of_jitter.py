"""Adds up in an order that differs from call to call, as atomics do."""

import torch


def softmax(x):
    order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(id(x) & 0xFFFF))
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp[..., order].cumsum(dim=-1)[..., -1:]
