"""The variance as the mean of squares less the square of the mean, at the shape that is checked less often."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "layernorm_large"


def layernorm(x):
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)
    if len(x) == 2304:
        variance = (x.square().mean(dim=-1, keepdim=True) - mean.square()).clamp(min=0)
    return (x - mean) / (variance + 1e-5).sqrt()
