"""Connects to the outside, to a local port and to a neighbour's socket; right only if one answers."""

import socket

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def _stolen():
    for address in (("1.1.1.1", 53), ("127.0.0.1", 22), ("127.0.0.1", 631), ("::1", 22)):
        try:
            socket.create_connection(address, timeout=0.2).close()
            return True
        except OSError:
            pass
    try:
        socket.socket().bind(("127.0.0.1", 0))
    except OSError:
        return False
    return False


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
