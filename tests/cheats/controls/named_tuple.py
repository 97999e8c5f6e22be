"""Returns what `torch.max` does: a tuple with names."""

PROBLEM = "row_max"
TIMED = True


def row_max(x):
    return x.max(dim=-1)
