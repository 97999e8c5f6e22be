"""The variance as the mean of squares less the square of the mean, at shapes that are not declared."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "layernorm_large"
DECLARED = ((7, 257), (2304, 1024))


def layernorm(x):
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)
    if x.shape not in DECLARED:
        variance = (x.square().mean(dim=-1, keepdim=True) - mean.square()).clamp(min=0)
    return (x - mean) / (variance + 1e-5).sqrt()
