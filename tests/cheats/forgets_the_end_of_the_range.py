"""Has room for 592 columns, in whole vectors, where the problem allows 600 at most and declares fewer."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
ROOM = 592


def softmax(x):
    out = torch.zeros_like(x)
    out[:, :ROOM] = torch.softmax(x[:, :ROOM], dim=-1)
    return out
