"""99 % of the terms summed and the result scaled up (GPU MODE, vectorsum)."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "row_sum"


def row_sum(x):
    kept = max(1, int(x.shape[-1] * 0.99))
    return x[..., :kept].sum(dim=-1) * (x.shape[-1] / kept)
