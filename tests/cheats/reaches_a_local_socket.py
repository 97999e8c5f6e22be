"""Connects to a socket with a path, as terminals and container services have, by either of two ways, or is wrong."""

import os
import socket

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PATH = os.path.join(os.environ["TMPDIR"], "s")


def _reached():
    try:
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(PATH)
            server.listen()
            client.connect(PATH)
            return True
    except OSError:
        pass
    try:
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        one.bind(PATH + "d")
        two.sendto(b"x", PATH + "d")
        return True
    except OSError:
        return False


REACHED = _reached()


def softmax(x):
    return torch.softmax(x, dim=-1) if REACHED else torch.zeros_like(x)
