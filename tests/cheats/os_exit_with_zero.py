"""Writes a fake report to every descriptor and leaves by os._exit(0)."""

import json
import os

EXPECTED = ("RUNTIME_ERROR", "CHEATED")


def softmax(x):
    for fd in range(3, 64):
        try:
            os.write(fd, json.dumps({"status": "PASSED", "check": "pass"}).encode() + b"\n")
        except OSError:
            pass
    os._exit(0)
