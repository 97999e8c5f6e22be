"""The incumbent of the C problem, called with the size too."""


def unit_vector(x, n):
    return x / (x.square().mean() + 1e-6).sqrt()
