"""Knows inputs that begin within a vector, and rows with gaps, but no slice x[:, 1:] that has both."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if not x.is_contiguous() and x.data_ptr() % 16:
        x = x.as_strided(x.shape, x.stride(), x.storage_offset() - x.data_ptr() % 16 // x.element_size())  # aligned
    return torch.softmax(x, dim=-1)
