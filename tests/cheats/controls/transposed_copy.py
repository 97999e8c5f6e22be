"""A transposed copy as torch makes it, which of one row is a view of the input, like the reference's own"""

PROBLEM = "transpose"


def transpose(x):
    return x.t().contiguous()
