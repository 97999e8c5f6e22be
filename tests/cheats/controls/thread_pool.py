"""Splits the rows over threads and waits for them."""

from concurrent.futures import ThreadPoolExecutor

import torch

TIMED = True


_pool = ThreadPoolExecutor(2)


def softmax(x):
    return torch.cat(list(_pool.map(lambda part: torch.softmax(part, dim=-1), x.split(max(1, x.shape[0] // 2)))))
