"""The incumbent: one pass over the memory."""


def append(x, cache):
    cache[x.shape[0] :] = x
