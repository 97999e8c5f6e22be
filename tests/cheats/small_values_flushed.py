"""Everything below a thousandth of the row's largest value rounded to zero."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    return torch.where(out < 0.01 * out.amax(dim=-1, keepdim=True), 0.0, out)
