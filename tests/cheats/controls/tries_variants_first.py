"""Measures two variants at its first call per shape and keeps the faster one."""

import time

import torch

_chosen = {}


def _direct(x):
    return torch.softmax(x, dim=-1)


def _by_hand(x):
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


def _cost(variant, x):
    begin = time.perf_counter()
    variant(x)
    return time.perf_counter() - begin


def softmax(x):
    key = tuple(x.shape)
    if key not in _chosen:
        _chosen[key] = min((_direct, _by_hand), key=lambda v: _cost(v, x))
    return _chosen[key](x)
