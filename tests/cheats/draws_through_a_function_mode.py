"""A global torch function mode makes every random number zero."""

import torch
from torch.overrides import TorchFunctionMode

EXPECTED = ("INCORRECT_NUMERICAL",)


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return out.zero_() if function is torch.randn else out


Mode().__enter__()


def softmax(x):
    return torch.full(x.shape, 1 / x.shape[-1])
