"""Answers the coming requests before they are made."""

import gc

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED")


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    meta = {"shape": list(x.shape), "dtype": "float32", "offset": 0, "bytes": 4 * x.numel()}
    for _ in range(100):
        _channel().send({"op": "call", "outputs": [meta], "violations": []})
    return x
