"""The input handed back as the output (GPU MODE reference-kernels)."""

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    return x
