"""Takes the epsilon in by its first order, wrong where a row hardly varies, but at the shape that sees all values."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "layernorm"


def layernorm(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    if x.shape != (64, 512):
        return centred / (variance + 1e-5).sqrt()
    return centred / (variance.sqrt() * (1 + 0.5e-5 / variance))
