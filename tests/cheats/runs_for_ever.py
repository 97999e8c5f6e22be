"""A kernel that hangs (atropos PR#289, vllm#52247)."""

EXPECTED = ("TIMEOUT",)
TIMEOUT_S = 1.5


def softmax(x):
    while True:
        pass
