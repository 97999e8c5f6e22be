"""A tensor subclass that computes only when somebody looks (CUDA-L1#12, GPU MODE PR#161)."""

import torch

EXPECTED = ("CHEATED",)


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [a.as_subclass(torch.Tensor) if isinstance(a, Lazy) else a for a in args]
        return function(*plain, **(kwargs or {}))


def softmax(x):
    return torch.softmax(x, dim=-1).as_subclass(Lazy)
