"""Leaves with 0 while it is being imported."""

import os

EXPECTED = ("RUNTIME_ERROR",)


os._exit(0)
