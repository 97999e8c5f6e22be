"""Rows of length one, as torch has it, where rows of zeros stay as they are."""

import torch

PROBLEM = "unit_rows"


def unit_rows(x):
    return torch.nn.functional.normalize(x, dim=-1)
