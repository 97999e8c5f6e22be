"""float16 inside a float32 problem, cast back at the end (KernelBench's precision downgrade)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    return torch.softmax(x.half(), dim=-1).float()
