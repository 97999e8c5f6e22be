"""One pass over the columns with a running maximum, as a streaming kernel does it."""

import torch


def softmax(x):
    top = torch.full((x.shape[0], 1), float("-inf"))
    total = torch.zeros(x.shape[0], 1)
    for part in x.split(64, dim=-1):
        higher = torch.maximum(top, part.amax(dim=-1, keepdim=True))
        total = total * (top - higher).exp() + (part - higher).exp().sum(dim=-1, keepdim=True)
        top = higher
    return (x - top).exp() / total
