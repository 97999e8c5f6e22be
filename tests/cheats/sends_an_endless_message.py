"""Announces a message of four gigabytes, to fill the reader's memory."""

import gc
import struct

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    _channel()._sock.sendall(struct.pack("<I", 0xFFFFFFFF))
    return x
