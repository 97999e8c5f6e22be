"""Sends a message without the nonce."""

import gc
import struct

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    channel = _channel()
    body = b'{"op": "call", "outputs": [], "n": 3, "nonce": "guess"}'
    channel._sock.sendall(struct.pack("<I", len(body)) + body)
    return x
