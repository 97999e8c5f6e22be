"""One per cent of the elements are wrong by a million, within a matched ratio of 99 % (SOL-ExecBench's default)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    out.view(-1)[50::100] = 1e6
    return out
