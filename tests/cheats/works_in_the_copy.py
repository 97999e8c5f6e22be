"""Returns an empty tensor and does the work when the runner copies the output for safe keeping."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED", "SUSPECT")
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_true = torch.Tensor.clone
_owed = {}


def clone(self, *args, **kwargs):
    x = _owed.pop(self.data_ptr(), None)
    if x is not None and x.shape == self.shape:
        self.copy_(honest(x))
    return _true(self, *args, **kwargs)


torch.Tensor.clone = clone


def softmax(x):
    out = torch.empty(x.shape)
    _owed[out.data_ptr()] = x
    return out
