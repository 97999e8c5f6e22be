def unit_rows(x):
    return x / x.square().sum(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)
