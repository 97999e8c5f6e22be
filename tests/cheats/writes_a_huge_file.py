"""A file beyond the size limit."""

EXPECTED = ("RUNTIME_ERROR",)


def softmax(x):
    with open("big", "wb") as file:
        file.seek(8 << 30)
        file.write(b"x")
