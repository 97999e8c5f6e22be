"""Leaves torch with one thread, so that whatever is timed after it is slow."""

import torch

EXPECTED = ("CHEATED",)


def softmax(x):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return torch.softmax(x, dim=-1)
