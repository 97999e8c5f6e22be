def vector_norm(x):
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt()
