"""A product in four pieces along k, added up."""

PROBLEM = "matmul"
TIMED = True


def matmul(a, b):
    step = max(1, a.shape[1] // 4)
    return sum(x @ y for x, y in zip(a.split(step, dim=1), b.split(step, dim=0), strict=True))
