"""Sends an output of no bytes and 10**30 columns."""

import gc

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    _channel().send(
        {
            "op": "call",
            "outputs": [{"shape": [0, 10**30], "dtype": "float32", "offset": 0, "bytes": 0}],
            "violations": [],
        }
    )
    return x
