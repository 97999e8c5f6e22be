"""The incumbent of the C problem, called with the sizes too."""

import torch


def softmax(x, rows, cols):
    return torch.softmax(x, dim=-1)
