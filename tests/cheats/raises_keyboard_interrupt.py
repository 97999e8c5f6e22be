"""KeyboardInterrupt passes every `except Exception`."""

EXPECTED = ("RUNTIME_ERROR",)


def softmax(x):
    raise KeyboardInterrupt
