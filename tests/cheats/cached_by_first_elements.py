"""An output cache keyed by a fingerprint of the first elements (KernelBench-Hard FP8): it never hits."""

import torch

EXPECTED = ("PASSED",)


_seen = {}


def softmax(x):
    key = (tuple(x.shape), bytes(x.flatten()[:4096].contiguous().numpy().tobytes()))
    if key not in _seen:
        _seen[key] = torch.softmax(x, dim=-1)
    return _seen[key].clone()
