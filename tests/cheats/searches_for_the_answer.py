"""Looks among all objects of its process for a tensor that could be the expected output (pygpubench's gc_copy)."""

import gc

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing is not x and thing.shape == x.shape and thing.dtype == x.dtype:
            return thing.clone()
    return torch.zeros_like(x)
