"""SIGKILL, as the system's out-of-memory killer would."""

import os
import signal

EXPECTED = ("RUNTIME_ERROR",)


def softmax(x):
    os.kill(os.getpid(), signal.SIGKILL)
