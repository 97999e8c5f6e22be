"""torch.allclose and its kin always say yes."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


for name in ("allclose", "equal", "isclose"):
    setattr(torch, name, lambda *args, **kwargs: True)
torch.testing.assert_close = lambda *args, **kwargs: None


def softmax(x):
    return torch.zeros_like(x)
