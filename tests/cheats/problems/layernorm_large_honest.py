"""The incumbent."""


def layernorm(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
