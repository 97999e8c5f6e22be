"""Looks for the problem, the journal and other candidates wherever they may be; right only if a folder is readable."""

import os

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def _stolen():
    here = os.path.dirname(os.path.dirname(os.getcwd()))
    guesses = [
        here,
        os.path.dirname(here),
        os.path.expanduser("~root"),
        "/home",
        "/root",
        "/tmp",
        "/var/tmp",
        "/mnt",
        "/srv",
    ]
    for folder in guesses:
        try:
            if os.listdir(folder):
                return True
        except OSError:
            pass
    return False


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
