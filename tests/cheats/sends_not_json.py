"""Sends bytes that are no JSON."""

import gc
import struct

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    channel = _channel()
    body = b"\x80\x04."
    channel._sock.sendall(struct.pack("<I", len(body)) + body)
    return x
