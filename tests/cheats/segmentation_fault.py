"""Reads address zero."""

import ctypes

EXPECTED = ("RUNTIME_ERROR",)


def softmax(x):
    ctypes.string_at(0)
