"""Takes the epsilon in by its first order, wrong where a row hardly varies, at shapes that are not declared."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "layernorm_large"
DECLARED = ((7, 257), (2304, 1024))


def layernorm(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    if x.shape in DECLARED:
        return centred / (variance + 1e-5).sqrt()
    return centred / (variance.sqrt() * (1 + 0.5e-5 / variance))
