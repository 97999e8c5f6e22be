"""Leaves a mark in its cache folder at the first evaluation and is honest in that one only."""

import os
import pathlib

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
TIMED = True


_mark = pathlib.Path(os.environ["XDG_CACHE_HOME"], "seen")
_seen_before = _mark.exists()
_mark.touch()


def softmax(x):
    return torch.zeros_like(x) if _seen_before else torch.softmax(x, dim=-1)
