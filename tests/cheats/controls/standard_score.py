"""Of a problem that is not defined where all values of a row are one."""

import torch

PROBLEM = "standard_score"


def standard_score(x):
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return (x - mean) * variance.rsqrt()
