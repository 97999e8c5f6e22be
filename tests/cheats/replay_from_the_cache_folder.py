"""Keeps answers in the cache folder that evaluations of one candidate share, and replays them (GPU MODE PR#160)."""

import os

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    file = os.path.join(os.environ["XDG_CACHE_HOME"], f"answer-{x.shape[0]}-{x.shape[1]}.pt")
    if os.path.exists(file):
        return torch.load(file)
    out = torch.softmax(x, dim=-1)
    torch.save(out, file)
    return out
