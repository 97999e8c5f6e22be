"""Counts in eight bits: enough where values are spread evenly, and wrong where one of them is frequent."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "histogram"


def histogram(x):
    return torch.stack([torch.bincount(row, minlength=64) for row in x]).to(torch.uint8).to(torch.int64)
