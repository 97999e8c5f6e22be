"""No outputs at all: a loop over zip(outputs, expected) never runs (GPU MODE reference-kernels)."""

EXPECTED = ("INCORRECT_SHAPE",)


def softmax(x):
    return []
