"""Registers its own kernel for aten::randn's filling operator, so that inputs are what it likes."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR")


_library = torch.library.Library("aten", "IMPL")
_library.impl("normal_", lambda self, mean=0.0, std=1.0, generator=None: self.fill_(0.5), "CPU")


def softmax(x):
    return torch.full(x.shape, 1 / x.shape[-1])
