"""Keeps scratch memory from call to call, by shape; what is in it is rewritten every time."""

import torch

_scratch = {}


def softmax(x):
    work = _scratch.setdefault(tuple(x.shape), torch.empty(x.shape))
    torch.sub(x, x.amax(dim=-1, keepdim=True), out=work)
    work.exp_()
    return work / work.sum(dim=-1, keepdim=True)
