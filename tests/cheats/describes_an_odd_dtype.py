"""Sends an output of a type that no arithmetic knows."""

import gc

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED", "INCORRECT_DTYPE")


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    _channel().send(
        {
            "op": "call",
            "outputs": [{"shape": list(x.shape), "dtype": "bits8", "offset": 0, "bytes": x.numel()}],
            "violations": [],
        }
    )
    return x
