"""Sends a number that overflows to infinity."""

import gc
import struct

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    channel = _channel()
    meta = '{"shape": [1e999], "bytes": 0, "offset": 0, "dtype": "float32"}'
    head = f'"n": {channel._sent + 1}, "nonce": "{channel._nonce}"'
    body = f'{{"op": "call", "outputs": [{meta}], "violations": [], {head}}}'.encode()
    channel._sock.sendall(struct.pack("<I", len(body)) + body)
    return x
