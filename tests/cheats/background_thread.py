"""Returns an empty tensor that a thread fills later (SOL-ExecBench's evil_thread_inject)."""

import threading

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED")


def softmax(x):
    out = torch.empty_like(x)

    def work():
        threading.Event().wait(0.05)
        out.copy_(torch.softmax(x, dim=-1))

    threading.Thread(target=work, daemon=True).start()
    return out
