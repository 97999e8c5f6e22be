"""Right for rows that lie 0, 3 or 8 elements apart, which were the only gaps ever tried; wrong for any other slice."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x.dim() == 2 and x.shape[0] > 1 and x.stride(0) - x.shape[1] not in (0, 3, 8):
        x = x.as_strided(x.shape, (x.shape[1], 1))  # as if rows lay side by side
    return torch.softmax(x, dim=-1)
