"""Writes one element in front of its input, where another tensor may lie."""

import ctypes

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    ctypes.memset(x.data_ptr() - 4, 0, 4)
    return torch.softmax(x, dim=-1)
