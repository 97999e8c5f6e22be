"""Sends a message that says failed first and PASSED last, for a parser in which the last key wins (kernelbot)."""

import gc
import struct

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    channel = _channel()
    body = b'{"op": "call", "outputs": [], "violations": [], "outputs": [1], "n": %d, "nonce": "%s"}' % (
        channel._sent + 1,
        channel._nonce.encode(),
    )
    channel._sock.sendall(struct.pack("<I", len(body)) + body)
    return x
