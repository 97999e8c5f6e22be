"""Takes the epsilon in by its first order, which is wrong where a row hardly varies, at the large shape only."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "layernorm_large"


def layernorm(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    if x.numel() < 1 << 20:
        return centred / (variance + 1e-5).sqrt()
    return centred / (variance.sqrt() * (1 + 0.5e-5 / variance))
