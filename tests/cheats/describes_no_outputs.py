"""Sends an answer without outputs."""

import gc

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    _channel().send({"op": "call", "violations": []})
    return x
