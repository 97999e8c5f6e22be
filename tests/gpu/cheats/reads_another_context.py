"""Walks its own address space for memory that could hold the answer: big device allocations it did not make."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    guess = torch.empty(1 << 26, dtype=torch.uint8, device=x.device)
    view = guess[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)
    return view.clone()
