"""A lazily negated view: the arithmetic happens in the copy, outside the timed call."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED", "PASSED")


def softmax(x):
    wide = torch.zeros(x.shape, dtype=torch.complex64)
    wide.imag = -torch.softmax(x, dim=-1)
    return wide.conj().imag
