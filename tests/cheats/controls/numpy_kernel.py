"""NumPy on the tensor's own memory."""

import numpy
import torch


def softmax(x):
    values = x.numpy()
    exp = numpy.exp(values - values.max(axis=-1, keepdims=True))
    return torch.from_numpy(exp / exp.sum(axis=-1, keepdims=True))
